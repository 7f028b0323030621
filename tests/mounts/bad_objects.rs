//! Bad objects in the store of a running mount, and of one that starts: a commit, pack or
//! checkpoint that is cut off, of a newer format, or above its limits. The mount goes on, logs what
//! it left out and what to do, and serves all else.

use std::collections::BTreeMap;
use std::io::ErrorKind;
use std::path::Path;

use hearthfs::digest::Digest;
use hearthfs::name::TreePath;
use hearthfs::namespace::{Attrs, BlobAt, BlobPlace, Change, Commit, Entry, EntryKind, Op, Time};
use hearthfs::remote::{decode_commit, encode_commit, keys};
use hearthfs::stamp::{NodeId, Stamp};

use crate::checkpoints;
use crate::harness::body::{self, Id};
use crate::harness::time::wall;
use crate::harness::{
    Cluster, Io, Must as _, Node, Options, Store, SyscallProcess, eventually, sleep_ms, tree,
};

/// The apparent writer of forged objects.
const FORGER: NodeId = NodeId(0xf0_f0);
/// More than the limit of a commit, and of a frame of a pack or checkpoint.
const TOO_MUCH: usize = 65 << 20;
/// A file of this length lies in a pack.
const SMALL: usize = 60_000;
const SUM_BYTES: usize = 32;
const REMEDY_NEWER: &str = "upgrade this node";
const REMEDY_DAMAGED: &str = "written again";

/// Damages good bytes.
type Spoil = fn(&[u8]) -> Vec<u8>;

fn content(seq: u64, len: usize) -> Vec<u8> {
    body::make(Id { writer: 1, seq }, len)
}

fn halved(good: &[u8]) -> Vec<u8> {
    good[..good.len() / 2].to_vec()
}

/// Returns compressed zeros, which decompress to far more bytes.
fn bomb() -> Vec<u8> {
    zstd::bulk::compress(&vec![0; TOO_MUCH], 3).must("compress")
}

/// Puts an object into the store atomically.
fn place(cluster: &Cluster, at: &Path, bytes: &[u8]) {
    let aside = cluster.site.path().join("aside");
    std::fs::write(&aside, bytes).must("write an object aside");
    std::fs::rename(&aside, at).must("put it in its place");
}

/// Returns the warnings of a node that name something.
fn warnings(node: &Node, name: &str) -> Vec<String> {
    let log = node.log();
    let lines = log.lines().filter(|line| line.contains(" WARN ") && line.contains(name));
    lines.map(str::to_owned).collect()
}

/// Waits for one warning about `name` with these words for each start of the node.
#[track_caller]
fn said(node: &Node, name: &str, starts: usize, words: &[&str]) {
    let lines = eventually(10_000, format_args!("{name} is reported"), || {
        let lines = warnings(node, name);
        if lines.len() >= starts { Ok(lines) } else { Err(node.log()) }
    });
    assert_eq!(lines.len(), starts, "{name}: {lines:#?}");
    for word in words {
        assert!(lines[0].contains(word), "`{word}` is not in: {}", lines[0]);
    }
}

/// Makes a commit that creates one file, whose bytes it contains.
fn commit(sequence: u64, name: &str) -> Vec<u8> {
    let bytes = content(sequence, 900);
    let (digest, size) = (Digest::of(&bytes), bytes.len() as u64);
    let ms = wall().as_millis() as u64;
    let stamp = |counter| Stamp { ms, counter, node: FORGER };
    let time = Time::from_ms(ms);
    let attrs = Attrs { mode: 0o644, mtime: time, atime: time, ..Attrs::default() };
    let entry = Entry { kind: EntryKind::File { digest, size }, attrs, link: None };
    let path = TreePath::root().join(name.as_bytes()).must("a path");
    let commit = Commit {
        stamp: stamp(2),
        node: FORGER,
        incarnation: 1,
        sequence,
        packs: Vec::new(),
        blobs: vec![BlobAt { digest, size, place: BlobPlace::Inline(bytes), stored_ms: ms }],
        changes: vec![Change { path, stamp: stamp(1), op: Op::Put(entry) }],
        extensions: BTreeMap::new(),
    };
    encode_commit(&commit).must("encode")
}

/// Makes a commit of another version, raw size or frame, with the matching sum.
fn forged(good: &[u8], change: impl FnOnce(&mut Vec<u8>)) -> Vec<u8> {
    let mut bytes = good[..good.len() - SUM_BYTES].to_vec();
    change(&mut bytes);
    let sum = blake3::hash(&bytes);
    bytes.extend_from_slice(sum.as_bytes());
    bytes
}

const BAD_COMMITS: [(&str, Spoil, &str); 5] = [
    ("cut-off", halved, REMEDY_DAMAGED),
    ("newer", |good| forged(good, |bytes| bytes[8] = 2), REMEDY_NEWER),
    (
        "too-much",
        |good| {
            forged(good, |bytes| {
                bytes.truncate(10);
                bytes.extend_from_slice(&(TOO_MUCH as u32).to_le_bytes());
                bytes.extend_from_slice(&bomb());
            })
        },
        REMEDY_DAMAGED,
    ),
    (
        "more-than-it-says",
        |good| {
            forged(good, |bytes| {
                bytes.truncate(14);
                bytes.extend_from_slice(&bomb());
            })
        },
        REMEDY_DAMAGED,
    ),
    ("too-long", |good| [good, &vec![0; TOO_MUCH]].concat(), REMEDY_DAMAGED),
];

#[test]
fn bad_input_commits_in_the_store() {
    let mut cluster = Cluster::two(Io::best());
    let mut process = SyscallProcess::new();
    process.put(&cluster.a.at("before"), &content(100, SMALL)).must("put");
    cluster.settle();
    let log = cluster.store.objects().join(keys::LOG);
    let mut names = Vec::new();
    for (sequence, (what, spoil, remedy)) in (0..).zip(BAD_COMMITS) {
        let good = commit(sequence, what);
        let name = keys::commit_name(&decode_commit(&good).must("a good commit").stamp);
        place(&cluster, &log.join(&name), &spoil(&good));
        names.push((name, remedy));
        // So that the stamps differ.
        sleep_ms(2);
    }
    let last = commit(names.len() as u64, "found");
    let name = keys::commit_name(&decode_commit(&last).must("a good commit").stamp);
    place(&cluster, &log.join(name), &last);
    let serves = |node: &Node, starts: usize| {
        let found = eventually(10_000, "later commits are read", || {
            std::fs::read(node.at("found")).map_err(|error| error.to_string())
        });
        assert!(found == content(names.len() as u64, 900));
        assert!(std::fs::read(node.at("before")).must("read") == content(100, SMALL));
        for (name, remedy) in &names {
            said(node, name, starts, &[remedy]);
        }
    };
    serves(&cluster.a, 1);
    serves(&cluster.b, 1);
    process.put(&cluster.b.at("after"), &content(101, SMALL)).must("put");
    cluster.settle();
    let all = tree::converge(&cluster.a.mount, &cluster.b.mount, 10_000);
    assert_eq!(tree::texts(&cluster.a.mount), ["after", "before", "found"]);
    cluster.b.stop();
    cluster.b.up();
    serves(&cluster.b, 2);
    let late = Node::start(&cluster.site, "late", Some(&cluster.store), Options::new(Io::best()));
    serves(&late, 1);
    for node in [&cluster.b, &late] {
        let there = tree::converge(&cluster.a.mount, &node.mount, 10_000);
        assert_eq!(tree::difference(&all, &there), "");
    }
    // Names that were left out can be written like any other.
    process.put(&late.at("cut-off"), &content(102, SMALL)).must("put");
    late.drain();
    tree::converge(&late.mount, &cluster.b.mount, 10_000);
}

/// Changes the parts of a pack with one member: its frame, and the index record after it.
fn repacked(good: &[u8], change: impl FnOnce(&mut [u8], &mut Vec<u8>, &mut [u8])) -> Vec<u8> {
    let (index_at, sum_at) = (good.len() - 84, good.len() - 40);
    let mut head = good[..10].to_vec();
    let mut frame = good[10..index_at].to_vec();
    let mut index = good[index_at..sum_at].to_vec();
    change(&mut head, &mut frame, &mut index);
    let mut sum = blake3::Hasher::new();
    sum.update(&head).update(&index);
    [&head, &frame, &index, &sum.finalize().as_bytes()[..], &good[sum_at + SUM_BYTES..]].concat()
}

/// Makes a frame of the same length that holds far more than it should; the rest is a skippable frame.
fn inflated(frame: &mut [u8]) {
    let bomb = bomb();
    let rest = frame.len() - bomb.len() - 8;
    frame[..bomb.len()].copy_from_slice(&bomb);
    frame[bomb.len()..][..4].copy_from_slice(&0x184D_2A50_u32.to_le_bytes());
    frame[bomb.len() + 4..][..4].copy_from_slice(&(rest as u32).to_le_bytes());
}

/// Damaged packs, and whether the bytes of the blob in them are still readable.
const BAD_PACKS: [(&str, Spoil, bool); 6] = [
    ("cut-off", halved, false),
    ("newer", |good| repacked(good, |head, _, _| head[8] = 2), true),
    (
        "newer-within",
        |good| {
            repacked(good, |head, frame, _| {
                head[8] = 2;
                frame.fill(7);
            })
        },
        false,
    ),
    (
        "too-much",
        |good| repacked(good, |_, _, index| index[36..40].copy_from_slice(&[0xff; 4])),
        true,
    ),
    ("more-than-it-says", |good| repacked(good, |_, frame, _| inflated(frame)), false),
    ("too-long", |good| [good, &vec![0; TOO_MUCH]].concat(), true),
];

#[test]
fn bad_input_packs_in_the_store() {
    let mut cluster = Cluster::two(Io::best());
    let mut process = SyscallProcess::new();
    let mut packs = Vec::new();
    for (seq, (what, ..)) in (0..).zip(BAD_PACKS) {
        let before = cluster.store.objects_in(keys::PACKS);
        process.put(&cluster.a.at(what), &content(seq, SMALL)).must("put");
        cluster.a.drain();
        let mut new = cluster.store.objects_in(keys::PACKS);
        new.retain(|path| !before.contains(path));
        assert_eq!(new.len(), 1, "a pack for each file");
        packs.append(&mut new);
    }
    process.put(&cluster.a.at("good"), &content(100, SMALL)).must("put");
    cluster.a.drain();
    eventually(5_000, "node B has the names", || {
        let names = tree::texts(&cluster.b.mount);
        if names.len() == packs.len() + 1 { Ok(()) } else { Err(format!("{names:?}")) }
    });
    // Otherwise the node that wrote it would store the damaged content again.
    cluster.a.stop();
    for (path, (_, spoil, _)) in packs.iter().zip(BAD_PACKS) {
        let good = std::fs::read(path).must("read a pack");
        place(&cluster, path, &spoil(&good));
    }
    let late = Node::start(&cluster.site, "late", Some(&cluster.store), Options::new(Io::best()));
    for node in [&late, &cluster.b] {
        for (seq, (what, _, served)) in (0..).zip(BAD_PACKS) {
            for _ in 0..2 {
                let read = std::fs::read(node.at(what)).map_err(|error| error.kind());
                let whole = read.as_ref().is_ok_and(|bytes| *bytes == content(seq, SMALL));
                let missed = !served && read == Err(ErrorKind::NotFound);
                assert!(
                    whole == served && (whole || missed),
                    "{what}: {:?}",
                    read.map(|r| r.len())
                );
            }
        }
        assert!(std::fs::read(node.at("good")).must("read") == content(100, SMALL));
        said(node, "a pack was written by a newer hearthfs", 1, &[REMEDY_NEWER]);
        let damaged = warnings(node, "it is a miss until rewritten");
        assert!(damaged.len() <= 1, "{damaged:#?}");
    }
    said(&late, "it is a miss until rewritten", 1, &["missing or damaged"]);
    // The mounts go on, and a node that has the bytes stores the damaged content again.
    process.put(&cluster.b.at("newer-within"), &content(2, SMALL)).must("put");
    process.put(&cluster.b.at("after"), &content(101, SMALL)).must("put");
    cluster.b.drain();
    cluster.a.up();
    for node in [&cluster.a, &cluster.b] {
        for (seq, (what, ..)) in (0..).zip(BAD_PACKS) {
            eventually(10_000, format_args!("{what} is served again"), || {
                let read = std::fs::read(node.at(what)).map_err(|error| error.to_string())?;
                if read == content(seq, SMALL) { Ok(()) } else { Err("other bytes".to_owned()) }
            });
        }
        assert!(std::fs::read(node.at("after")).must("read") == content(101, SMALL));
    }
}

/// Makes the start of a checkpoint: magic, version, and their sum.
fn checkpoint_head(version: u8) -> Vec<u8> {
    let mut head = b"HFCKPT\r\n".to_vec();
    head.extend_from_slice(&[version, 0]);
    let sum = blake3::hash(&head);
    head.extend_from_slice(&sum.as_bytes()[..16]);
    head
}

/// Makes a checkpoint whose first frame claims `says` bytes, but holds far too many.
fn inflated_checkpoint(says: usize) -> Vec<u8> {
    let (mut bytes, bomb) = (checkpoint_head(1), bomb());
    let mut head = vec![0];
    head.extend_from_slice(&(says as u32).to_le_bytes());
    head.extend_from_slice(&(bomb.len() as u32).to_le_bytes());
    let mut sum = blake3::Hasher::new();
    sum.update(&bytes[10..26]).update(&head).update(&bomb);
    bytes.extend_from_slice(&head);
    bytes.extend_from_slice(&sum.finalize().as_bytes()[..16]);
    bytes.extend_from_slice(&bomb);
    bytes
}

const BAD_CHECKPOINTS: [(&str, Spoil); 4] = [
    ("cut off", halved),
    ("newer", |good| [&checkpoint_head(2), &good[26..]].concat()),
    ("too much", |_| inflated_checkpoint(TOO_MUCH)),
    ("more than it says", |_| inflated_checkpoint(1_000)),
];

#[test]
fn bad_input_checkpoints_in_the_store() {
    let options = checkpoints::options(Io::best());
    let cluster = Cluster::with(Store::dir, &options);
    checkpoints::fill(&cluster);
    let written = checkpoints::written(&cluster);
    let newest = written.last().must("a checkpoint");
    let good = std::fs::read(newest).must("read a checkpoint");
    let all = tree::converge(&cluster.a.mount, &cluster.b.mount, 20_000);
    for (k, (what, spoil)) in BAD_CHECKPOINTS.into_iter().enumerate() {
        // It looks like the newest of all.
        let ms = wall().as_millis() as u64;
        let name = keys::checkpoint_name(&Stamp { ms, counter: 0, node: FORGER });
        let at = cluster.store.objects().join(keys::CHECKPOINTS).join(&name);
        place(&cluster, &at, &spoil(&good));
        let late = format!("late{k}");
        let late = Node::start(&cluster.site, &late, Some(&cluster.store), options.clone());
        let there = tree::converge(&cluster.a.mount, &late.mount, 20_000);
        assert_eq!(tree::difference(&all, &there), "", "{what}");
        said(&late, &name, 1, &["the one before it or the whole log", REMEDY_NEWER]);
        let began = late.log().matches("started from a checkpoint").count();
        assert_eq!(began, 1, "{what}: from the earlier checkpoint: {}", late.log());
        // Running nodes do not need it, and go on.
        let bytes = content(k as u64, SMALL);
        SyscallProcess::new().put(&cluster.a.at("again"), &bytes).must("put");
        cluster.a.drain();
        for node in [&cluster.b, &late] {
            eventually(5_000, "the mounts still serve", || {
                let read = std::fs::read(node.at("again")).map_err(|error| error.to_string())?;
                if read == bytes { Ok(()) } else { Err("other bytes".to_owned()) }
            });
        }
        SyscallProcess::new().unlink(&cluster.a.at("again")).must("unlink");
        cluster.settle();
        std::fs::remove_file(&at).must("remove it");
    }
    for node in [&cluster.a, &cluster.b] {
        assert_eq!(warnings(node, "checkpoint"), [""; 0]);
    }
}
