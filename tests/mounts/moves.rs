//! Nodes that are told to move to another store, and two nodes made from one cache directory.

use std::path::Path;

use crate::harness::body::{self, Id};
use crate::harness::command::run;
use crate::harness::{
    Cluster, Io, Must as _, Node, Options, SyscallProcess, eventually, in_both_modes, sleep_ms,
    tree,
};

/// Part of the message about a node that moves to another store.
const OTHER_STORE: &str = "has moved here from another store";
/// Part of the message about two nodes with one identity.
const TWIN: &str = "identity of this cache directory";

fn body(seq: u64) -> Vec<u8> {
    // Some inside commits, some in packs, some as objects.
    body::make(Id { writer: 1, seq }, [300, 9_000, 300_000, 5_000_000][seq as usize % 4])
}

/// Writes files `from..upto` on a node.
fn write(node: &Node, prefix: &str, seqs: std::ops::Range<u64>) {
    let mut process = SyscallProcess::new();
    for seq in seqs {
        process.put(&node.at(format!("{prefix}{seq}")), &body(seq)).must("put a file");
    }
}

/// Waits until a node shows whole files that another wrote.
fn see(node: &Node, prefix: &str, seqs: std::ops::Range<u64>) {
    let mut process = SyscallProcess::new();
    for seq in seqs {
        let at = node.at(format!("{prefix}{seq}"));
        eventually(15_000, format_args!("{} exists", at.display()), || match process.get(&at) {
            Ok(bytes) if bytes == body(seq) => Ok(()),
            Ok(bytes) => Err(format!("{} other bytes", bytes.len())),
            Err(error) => Err(error.to_string()),
        });
    }
}

fn copy(from: &Path, to: &Path) {
    let mut command = std::process::Command::new("cp");
    run(command.arg("-a").arg(from).arg(to), 60_000).good();
}

/// As in `docs/operations.md`: copy while the nodes work, stop them, copy what is new, start.
fn moves_to_another_store_with_its_content(io: Io) {
    let mut cluster = Cluster::two(io);
    write(&cluster.a, "old", 0..4);
    cluster.settle();
    let new = cluster.site.path().join("elsewhere");
    copy(&cluster.store.objects(), &new);
    write(&cluster.b, "late", 0..4);
    let shown = tree::converge(&cluster.a.mount, &cluster.b.mount, 15_000);
    cluster.a.stop();
    cluster.b.stop();
    copy(&cluster.store.objects().join("."), &new);
    std::fs::remove_dir_all(cluster.store.objects()).must("the old one is not needed");
    for node in [&mut cluster.a, &mut cluster.b] {
        node.set_remote(&format!("file://{}", new.display()));
        node.up();
    }
    assert_eq!(tree::read(&cluster.a.mount).must("read"), shown);
    write(&cluster.a, "new", 4..8);
    see(&cluster.b, "new", 4..8);
    tree::converge(&cluster.a.mount, &cluster.b.mount, 15_000);
    assert!(!cluster.a.log().contains(OTHER_STORE), "the store moved, but is the same");
}
in_both_modes!(moves_to_another_store_with_its_content);

/// Nodes that keep their cache directories move to a new store. What they knew of the old store
/// must not count as a promise there.
fn moves_to_an_empty_store(io: Io) {
    let mut cluster = Cluster::two(io);
    write(&cluster.a, "old", 0..4);
    cluster.settle();
    tree::converge(&cluster.a.mount, &cluster.b.mount, 15_000);
    // A stop saves what a node knows; until then the journal would send it all again.
    for node in [&mut cluster.a, &mut cluster.b] {
        node.stop();
        node.up();
    }
    // A backlog, which is not lost.
    let away = cluster.site.path().join("away");
    std::fs::rename(cluster.store.objects(), &away).must("the store goes");
    write(&cluster.a, "kept", 0..4);
    cluster.a.kill_only();
    cluster.b.kill_only();
    let new = format!("file://{}", cluster.site.dir("empty").display());
    for node in [&mut cluster.a, &mut cluster.b] {
        node.set_remote(&new);
    }
    // `hearthfs init` was not run.
    let refused = cluster.a.refused();
    for part in [&new[..], "hearthfs init file://", &cluster.store.url()] {
        assert!(refused.contains(part), "`{part}` is not in: {refused}");
    }
    run(cluster.site.hearthfs().args(["init", &new]), 20_000).good();
    for node in [&mut cluster.a, &mut cluster.b] {
        node.up();
    }
    see(&cluster.b, "kept", 0..4);
    for node in [&cluster.a, &cluster.b] {
        assert_eq!(node.log().matches(OTHER_STORE).count(), 1, "{}", node.log());
    }
    // The same bytes again: the other node gets them, although this one had stored them once.
    write(&cluster.a, "again", 0..4);
    see(&cluster.b, "again", 0..4);
    write(&cluster.b, "old", 0..4);
    see(&cluster.a, "old", 0..4);
    cluster.settle();
    let shown = tree::converge(&cluster.a.mount, &cluster.b.mount, 15_000);
    assert_eq!(shown.len(), 12, "{shown:?}");
    // Configuring it once is enough.
    cluster.a.stop();
    cluster.a.up();
    assert_eq!(tree::read(&cluster.a.mount).must("read"), shown);
    assert_eq!(cluster.a.log().matches(OTHER_STORE).count(), 1, "{}", cluster.a.log());
}
in_both_modes!(moves_to_an_empty_store);

/// A store that is emptied on purpose becomes another one after `init --replaces`, for all nodes at once.
#[test]
fn moves_on_in_a_store_that_was_emptied() {
    let mut cluster = Cluster::two(Io::best());
    write(&cluster.a, "old", 0..4);
    cluster.settle();
    tree::converge(&cluster.a.mount, &cluster.b.mount, 15_000);
    cluster.a.stop();
    cluster.b.stop();
    std::fs::remove_dir_all(cluster.store.objects()).must("empty it");
    std::fs::create_dir(cluster.store.objects()).must("empty it");
    cluster.a.up();
    let why = cluster.a.status()["health"]["last_error"].to_string();
    let id = why.split("--replaces ").nth(1).and_then(|rest| rest.get(..16)).must("a remedy");
    let words = ["init", &cluster.store.url(), "--replaces", id];
    run(cluster.site.hearthfs().args(words), 20_000).good();
    cluster.b.up();
    write(&cluster.a, "again", 0..4);
    see(&cluster.b, "again", 0..4);
    let shown = tree::converge(&cluster.a.mount, &cluster.b.mount, 15_000);
    assert_eq!(shown.len(), 4, "lost entries are gone on all nodes: {shown:?}");
}

/// Nodes made from one image with a used cache directory notice each other and separate.
#[test]
fn moves_of_a_copied_cache_directory_are_noticed() {
    let mut cluster = Cluster::two(Io::best());
    write(&cluster.a, "old", 0..4);
    cluster.settle();
    cluster.a.stop();
    let image = cluster.site.path().join("c.cache");
    copy(&cluster.a.cache, &image);
    let identity = |cache: &Path| std::fs::read_to_string(cache.join("v1/node"));
    let first = identity(&image).must("an identity");
    cluster.a.expect_error(TWIN);
    cluster.a.up();
    let options = Options::new(Io::best());
    let mut c = Node::start_in(&cluster.site, "c", Some(&cluster.store), options, &image);
    c.expect_error(TWIN);
    let mut seq = 10;
    eventually(30_000, "both nodes notice", || {
        write(&cluster.a, "a", seq..seq + 1);
        write(&c, "c", seq..seq + 1);
        seq += 1;
        sleep_ms(1_000);
        let noticed = [&cluster.a, &c].map(|node| node.log().matches(TWIN).count());
        if noticed == [1, 1] { Ok(()) } else { Err(format!("{noticed:?}")) }
    });
    cluster.a.drain();
    c.drain();
    tree::converge(&cluster.a.mount, &c.mount, 15_000);
    c.stop();
    cluster.a.stop();
    c.up();
    cluster.a.up();
    let now = [&image, &cluster.a.cache].map(|cache| identity(cache).must("an identity"));
    assert!(now[0] != now[1] && !now.contains(&first), "{now:?} after {first}");
    write(&cluster.a, "then", 0..4);
    see(&c, "then", 0..4);
    tree::converge(&cluster.a.mount, &c.mount, 15_000);
    assert_eq!(c.log().matches(TWIN).count(), 1, "{}", c.log());
}
