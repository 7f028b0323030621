//! P9 self-healing: a damaged blob is a miss or the right bytes, and the next writer rebuilds it.

use std::fs::OpenOptions;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};

use crate::harness::body::{self, Id};
use crate::harness::{
    Cluster, Io, Must as _, Node, Options, SyscallProcess, eventually, in_both_modes, tree,
};

const SMALL: usize = 60_000;
const LARGE: usize = 1_400_000;
const TINY: usize = 100;

fn bytes(seq: u64, len: usize) -> Vec<u8> {
    body::make(Id { writer: 1, seq }, len)
}

/// How a file is damaged.
#[derive(Debug, Clone, Copy)]
enum Damage {
    /// One bit, at a part of the length in hundredths.
    Bit(u64),
    Half,
    Empty,
    Gone,
}

const DAMAGES: [Damage; 6] =
    [Damage::Bit(1), Damage::Bit(50), Damage::Bit(99), Damage::Half, Damage::Empty, Damage::Gone];

fn damage(path: &Path, how: Damage) {
    let open = OpenOptions::new().read(true).write(true).open(path);
    let file = open.must(format_args!("open {}", path.display()));
    let len = file.metadata().must("stat").len();
    match how {
        Damage::Bit(hundredths) => {
            let at = (len * hundredths / 100).min(len.saturating_sub(1));
            let mut byte = [0];
            file.read_exact_at(&mut byte, at).must("read a byte");
            byte[0] ^= 0x10;
            file.write_all_at(&byte, at).must("write it back, changed");
        }
        Damage::Half => file.set_len(len / 2).must("cut"),
        Damage::Empty => file.set_len(0).must("empty"),
        Damage::Gone => std::fs::remove_file(path).must("remove"),
    }
}

/// Reads a name that may be damaged: it must be whole and right, or missing.
#[track_caller]
fn right_or_missing(path: &Path, right: &[u8], when: &str) -> bool {
    for _ in 0..2 {
        match std::fs::read(path) {
            Ok(read) => assert!(read == right, "{when}: wrong bytes ({} of them)", read.len()),
            Err(error) => {
                let kind = error.kind();
                assert_eq!(kind, std::io::ErrorKind::NotFound, "{when}: {error}");
            }
        }
    }
    let stat = std::fs::metadata(path);
    let fine = stat.as_ref().map_or_else(
        |error| error.kind() == std::io::ErrorKind::NotFound,
        |meta| meta.len() == right.len() as u64,
    );
    assert!(fine, "{when}: stat says {stat:?}");
    std::fs::read(path).is_ok()
}

/// The next write of the same content, and of other content, is seen whole on all nodes, including fresh ones.
fn heals(cluster: &Cluster, writer: &Node, others: &[&Node], name: &str, same: &[u8]) {
    let other = bytes(1_000, same.len() + 1);
    let mut process = SyscallProcess::new();
    for content in [same, &other[..], same] {
        process.put(&writer.at(name), content).must(format_args!("write {name} again"));
        let read = std::fs::read(writer.at(name)).must("read what was written");
        assert!(read == content, "the writer reads other bytes of {name}");
        writer.drain();
        for node in others {
            eventually(6_000, format_args!("{name} is healed on every node"), || {
                let read = std::fs::read(node.at(name)).map_err(|error| error.to_string())?;
                if read == content { Ok(()) } else { Err("other bytes".to_owned()) }
            });
        }
    }
    let fresh = Node::start(&cluster.site, "fresh", Some(&cluster.store), Options::new(Io::best()));
    let read = std::fs::read(fresh.at(name)).must("read on a fresh node");
    assert!(read == same, "a fresh node reads other bytes of {name}");
    drop(fresh);
    std::fs::remove_dir_all(cluster.site.path().join("fresh.cache")).must("forget the fresh node");
}

/// Damages objects of one folder of the store, and reads them on a node that never had them.
fn damaged_objects(cluster: &mut Cluster, folder: &str, len: usize) {
    cluster.b.stop();
    std::fs::remove_dir_all(&cluster.b.cache).must("empty node B");
    for (k, how) in DAMAGES.into_iter().enumerate() {
        let (name, content) = (format!("f{k}"), bytes(k as u64, len));
        let before = cluster.store.objects_in(folder);
        SyscallProcess::new().put(&cluster.a.at(&name), &content).must("put");
        cluster.a.drain();
        let after = cluster.store.objects_in(folder);
        let new: Vec<&PathBuf> = after.iter().filter(|path| !before.contains(path)).collect();
        assert!(!new.is_empty(), "a body of {len} bytes made no object in {folder}");
        for path in new {
            damage(path, how);
        }
    }
    cluster.b.up();
    for (k, how) in DAMAGES.into_iter().enumerate() {
        let (name, content) = (format!("f{k}"), bytes(k as u64, len));
        let when = format!("{folder} with {how:?}");
        right_or_missing(&cluster.b.at(&name), &content, &when);
        let on_a = std::fs::read(cluster.a.at(&name)).must("the writer's own copy is good");
        assert!(on_a == content, "{when}: the writer's own copy");
        // B repairs what it missed. A, which has the bytes, repairs it by writing as well.
        let (writer, other) =
            if k % 2 == 0 { (&cluster.b, &cluster.a) } else { (&cluster.a, &cluster.b) };
        heals(cluster, writer, &[other], &name, &content);
    }
}

pub(crate) fn damaged_packs(cluster: &mut Cluster) {
    damaged_objects(cluster, "packs", SMALL);
}

pub(crate) fn damaged_blob_objects(cluster: &mut Cluster) {
    damaged_objects(cluster, "blobs", LARGE);
}

pub(crate) fn damaged_commits(cluster: &mut Cluster) {
    damaged_objects(cluster, "log", TINY);
}

fn p9_self_healing_of_damaged_packs(io: Io) {
    damaged_packs(&mut Cluster::two(io));
}
in_both_modes!(p9_self_healing_of_damaged_packs);

fn p9_self_healing_of_damaged_blob_objects(io: Io) {
    damaged_blob_objects(&mut Cluster::two(io));
}
in_both_modes!(p9_self_healing_of_damaged_blob_objects);

#[test]
fn p9_self_healing_of_damaged_commits() {
    damaged_commits(&mut Cluster::two(Io::best()));
}

/// Damages the blobs on the disk of a node that was stopped or killed.
fn p9_self_healing_of_damaged_local_blobs(io: Io) {
    for orderly in [true, false] {
        let mut cluster = Cluster::two(io);
        let lens = [SMALL, LARGE, TINY];
        for k in 0..DAMAGES.len() * lens.len() {
            let content = bytes(k as u64, lens[k / DAMAGES.len()]);
            SyscallProcess::new().put(&cluster.b.at(format!("f{k}")), &content).must("put");
        }
        cluster.b.drain();
        if orderly {
            cluster.b.stop();
        } else {
            cluster.b.kill_only();
        }
        let blobs = cluster.b.cache.join("v1/blobs");
        for k in 0..DAMAGES.len() * lens.len() {
            let content = bytes(k as u64, lens[k / DAMAGES.len()]);
            let digest = blake3::hash(&content).to_hex().to_string();
            let path = blobs.join(&digest[..2]).join(&digest);
            damage(&path, DAMAGES[k % DAMAGES.len()]);
        }
        cluster.b.up();
        for k in 0..DAMAGES.len() * lens.len() {
            let (name, content) = (format!("f{k}"), bytes(k as u64, lens[k / DAMAGES.len()]));
            let when = format!("local, orderly {orderly}, {:?}", DAMAGES[k % DAMAGES.len()]);
            right_or_missing(&cluster.b.at(&name), &content, &when);
        }
        for (name, content) in [("f0", bytes(0, SMALL)), ("f7", bytes(7, LARGE))] {
            heals(&cluster, &cluster.b, &[&cluster.a], name, &content);
        }
    }
}
in_both_modes!(p9_self_healing_of_damaged_local_blobs);

/// A damaged journal record costs at most its content: the node starts, and every name is right or missing.
#[test]
fn p9_self_healing_of_a_damaged_journal() {
    for how in [Damage::Bit(10), Damage::Bit(50), Damage::Bit(95), Damage::Half] {
        let mut cluster = Cluster::two(Io::best());
        cluster.store.fail();
        let mut process = SyscallProcess::new();
        for k in 0..10 {
            process.put(&cluster.a.at(format!("f{k}")), &bytes(k, SMALL)).must("put");
        }
        cluster.a.kill_only();
        cluster.store.heal();
        let records: Vec<PathBuf> = tree::files_below(&cluster.a.cache.join("v1/journal"))
            .into_iter()
            .filter(|path| path.metadata().is_ok_and(|meta| meta.len() > 0))
            .collect();
        assert!(!records.is_empty(), "ten files are pending, and no journal exists");
        for path in &records {
            damage(path, how);
        }
        // The damage must be logged: once, and by name.
        cluster.a.expect_error("journal");
        cluster.a.up();
        for k in 0..10 {
            let when = format!("after a journal with {how:?}");
            right_or_missing(&cluster.a.at(format!("f{k}")), &bytes(k, SMALL), &when);
        }
        heals(&cluster, &cluster.a, &[&cluster.b], "f5", &bytes(5, SMALL));
        tree::converge(&cluster.a.mount, &cluster.b.mount, 10_000);
    }
}
