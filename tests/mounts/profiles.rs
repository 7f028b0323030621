//! Profiles: what is known of a client's files by their names, and what follows from it.

use std::path::Path;

use crate::harness::hand::IN_PLACE;
use crate::harness::{Cluster, Hand, Io, Must as _, Node, eventually, in_both_modes};

/// Waits until a name has these bytes on a node.
fn has(node: &Node, name: &str, want: &[u8]) {
    eventually(10_000, format_args!("{name} has other bytes"), || {
        let read = Hand::new().get(&node.at(name)).map_err(|errno| errno.to_string())?;
        if read == want { Ok(()) } else { Err(String::from_utf8_lossy(&read).into_owned()) }
    });
}

/// Two nodes write one name in place. The file of A was begun before B's came, and is closed after it. Returns what
/// both have then.
fn in_place(cluster: &Cluster, name: &str) -> Vec<u8> {
    let (mut one, mut other) = (Hand::new(), Hand::new());
    let path = cluster.a.at(name);
    let fd = one.open(&path, IN_PLACE, 0o644).must("A begins");
    one.write(fd, b"A's version").must("A writes");
    other.put(&cluster.b.at(name), b"B's version").must("B writes and closes");
    cluster.b.drain();
    has(&cluster.a, name, b"B's version");
    one.close(fd).must("A's close");
    cluster.a.drain();
    let here = Hand::new().get(&path).must("read on A");
    has(&cluster.b, name, &here);
    here
}

/// The same by a rename.
fn renamed(cluster: &Cluster, name: &str) -> Vec<u8> {
    let (mut one, mut other) = (Hand::new(), Hand::new());
    let (path, temporary) = (cluster.a.at(name), cluster.a.at(name).with_extension("mine"));
    one.put(&temporary, b"A's version").must("A writes");
    other.put(&cluster.b.at(name), b"B's version").must("B writes");
    cluster.b.drain();
    has(&cluster.a, name, b"B's version");
    one.rename(&temporary, &path).must("A renames");
    assert_eq!(Hand::new().get(&temporary), Err(rustix::io::Errno::NOENT), "the old name");
    let here = one.get(&path).must("read by A");
    assert_eq!(Hand::new().get(&path).must("read by another on A"), here);
    cluster.a.drain();
    has(&cluster.b, name, &here);
    here
}

fn directories(cluster: &Cluster) {
    for dir in ["jax", "plain"] {
        Hand::new().mkdir(&cluster.a.at(dir)).must("mkdir");
    }
    cluster.a.drain();
    for dir in ["jax", "plain"] {
        eventually(10_000, "the directories", || {
            let there = Path::is_dir(&cluster.b.at(dir));
            if there { Ok(()) } else { Err("not there".to_owned()) }
        });
    }
}

/// The first version of a client's entry stays; elsewhere the last close counts.
fn profiles_write_once_in_place(io: Io) {
    let cluster = Cluster::two(io);
    directories(&cluster);
    let published = |node: &Node| node.status()["counters"]["published"].as_u64().must("a count");
    assert_eq!(in_place(&cluster, "plain/jit_f-0-cache"), b"A's version");
    let before = published(&cluster.a);
    assert_eq!(in_place(&cluster, "jax/jit_f-0-cache"), b"B's version");
    assert_eq!(published(&cluster.a), before, "A publishes nothing");
    // What is begun after it came replaces it: the writer has seen what was there.
    let mut hand = Hand::new();
    hand.put(&cluster.a.at("jax/jit_f-0-cache"), b"repaired").must("put");
    hand.put(&cluster.a.at("jax/jit_f-0-cache"), b"and again").must("put");
    cluster.a.drain();
    has(&cluster.b, "jax/jit_f-0-cache", b"and again");
    // So does what is begun after a removal.
    hand.unlink(&cluster.a.at("jax/jit_f-0-cache")).must("unlink");
    hand.put(&cluster.a.at("jax/jit_f-0-cache"), b"new").must("put");
    cluster.a.drain();
    has(&cluster.b, "jax/jit_f-0-cache", b"new");
}
in_both_modes!(profiles_write_once_in_place);

fn profiles_write_once_by_rename(io: Io) {
    let cluster = Cluster::two(io);
    directories(&cluster);
    assert_eq!(renamed(&cluster, "plain/jit_f-0-cache"), b"A's version");
    assert_eq!(renamed(&cluster, "jax/jit_f-0-cache"), b"B's version");
    let mut hand = Hand::new();
    let later = cluster.a.at("jax/later");
    hand.put(&later, b"repaired").must("put");
    hand.rename(&later, &cluster.a.at("jax/jit_f-0-cache")).must("rename");
    assert_eq!(hand.get(&cluster.a.at("jax/jit_f-0-cache")).must("read"), b"repaired");
    cluster.a.drain();
    has(&cluster.b, "jax/jit_f-0-cache", b"repaired");
}
in_both_modes!(profiles_write_once_by_rename);
