//! Files of the cache directory that are truncated, replaced or deleted under a running daemon.
//!
//! A program gets the right bytes or a miss, and the log reports it once. It never gets other bytes
//! or another error. Only the writer of a file that is damaged while it is written may get one.

use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use rustix::fs::OFlags;
use rustix::io::Errno;

use crate::harness::body::{self, Id};
use crate::harness::node::Site;
use crate::harness::syscall_process::IN_PLACE;
use crate::harness::{
    Cluster, Io, Must as _, Node, Options, SyscallProcess, eventually, in_both_modes, tree,
};

const LEN: usize = 5_000;
const CUT: usize = 10;

/// The damage to a file of the cache directory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Spoil {
    Cut,
    Replaced,
    Deleted,
}

const SPOILS: [Spoil; 3] = [Spoil::Cut, Spoil::Replaced, Spoil::Deleted];

fn content(seq: u64) -> Vec<u8> {
    body::make(Id { writer: 1, seq }, LEN)
}

fn spoil(path: &Path, how: Spoil) {
    match how {
        Spoil::Cut => {
            let file = std::fs::OpenOptions::new().write(true).open(path).must("open");
            file.set_len(CUT as u64).must("cut");
        }
        Spoil::Replaced => {
            let other = path.with_extension("other");
            std::fs::write(&other, body::make(Id { writer: 9, seq: 9 }, LEN)).must("write");
            std::fs::rename(&other, path).must("put it in place");
        }
        Spoil::Deleted => std::fs::remove_file(path).must("delete"),
    }
}

/// Waits for the file: bytes become a blob a moment after RELEASE, which the kernel sends after `close` has returned.
pub(crate) fn blob_of(node: &Node, bytes: &[u8]) -> PathBuf {
    let digest = blake3::hash(bytes).to_hex().to_string();
    eventually(10_000, "the blob's file", || {
        let found = tree::files_below(&node.cache.join("v1/blobs"));
        found.into_iter().find(|path| path.ends_with(&digest)).ok_or(digest.clone())
    })
}

fn warnings(node: &Node, about: &str) -> usize {
    node.log().lines().filter(|line| line.contains(" WARN ") && line.contains(about)).count()
}

/// Blobs that were just read, and that another process has open or not. Without a store what is
/// gone is a miss; with one it is fetched again.
fn bad_input_blobs_that_are_spoilt_after_a_read(io: Io) {
    for shared in [false, true] {
        let mut cluster = shared.then(|| Cluster::two(io));
        let site = Site::new();
        let alone = (!shared).then(|| Node::start(&site, "m", None, Options::new(io)));
        let node = alone.as_ref().or(cluster.as_ref().map(|two| &two.b)).must("a node");
        let (mut process, mut reader) = (SyscallProcess::new(), SyscallProcess::new());
        let ways = SPOILS.into_iter().flat_map(|how| [false, true].map(|is_open| (how, is_open)));
        for (k, (how, is_open)) in ways.enumerate() {
            let (path, bytes) = (node.at(format!("{how:?}-{is_open}")), content(k as u64));
            process.put(&path, &bytes).must("put");
            if let Some(two) = &cluster {
                two.b.drain();
            }
            let fd = is_open.then(|| reader.open(&path, OFlags::RDONLY, 0).must("open"));
            for _ in 0..3 {
                assert!(process.get(&path) == Ok(bytes.clone()), "{how:?} before");
            }
            spoil(&blob_of(node, &bytes), how);
            let mut missed = false;
            for _ in 0..5 {
                match process.get(&path) {
                    Ok(read) => assert!(read == bytes, "{how:?}, shared {shared}: other bytes"),
                    Err(errno) => {
                        assert_eq!(errno, Errno::NOENT, "{how:?}, shared {shared}");
                        missed = true;
                    }
                }
            }
            if let Some(fd) = fd {
                // A truncated file is lost for the processes that have it open; all other damage
                // leaves them their bytes.
                if how != Spoil::Cut {
                    assert!(reader.read(fd, 0, LEN) == Ok(bytes.clone()), "{how:?}: an open file");
                }
                reader.close(fd).must("close");
            }
            if shared {
                eventually(10_000, "it is fetched again", || match process.get(&path) {
                    Ok(read) if read == bytes => Ok(()),
                    other => Err(format!("{how:?}: {:?}", other.map(|read| read.len()))),
                });
            }
            let digest = blake3::hash(&bytes).to_hex().to_string();
            let told = warnings(node, &digest);
            assert!(
                told <= 1 && (told == 1 || !missed),
                "{how:?}: {told} warnings:\n{}",
                node.log()
            );
            let again = content(100 + k as u64);
            process.put(&path, &again).must("write it again");
            assert!(process.get(&path) == Ok(again), "{how:?} again");
        }
        if let Some(two) = &mut cluster {
            two.settle();
            tree::converge(&two.a.mount, &two.b.mount, 10_000);
        }
    }
}
in_both_modes!(bad_input_blobs_that_are_spoilt_after_a_read);

/// Returns the one file in `staging/` that holds bytes.
fn staged(node: &Node) -> PathBuf {
    eventually(10_000, "one staged file", || {
        let mut found = tree::files_below(&node.cache.join("v1/staging"));
        found.retain(|path| std::fs::metadata(path).is_ok_and(|meta| meta.size() > 0));
        if found.len() == 1 { Ok(found.remove(0)) } else { Err(format!("{found:?}")) }
    })
}

/// When a staged file is damaged.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum When {
    /// Everything is written, nothing is closed.
    Written,
    /// A duplicate was closed: the version is published, and its file is still in `staging/`.
    Published,
}

/// Files that are being written. Damage that the daemon cannot notice is left out: a file that is
/// truncated before its last close looks as if its writer had truncated it.
fn bad_input_staged_files_that_are_spoilt(io: Io) {
    let cluster = Cluster::two(io);
    let (mut process, mut reader) = (SyscallProcess::new(), SyscallProcess::new());
    let mut seq = 0;
    for when in [When::Written, When::Published] {
        for (word, flags) in
            [("w", IN_PLACE), ("rw", OFlags::RDWR | OFlags::CREATE | OFlags::TRUNC)]
        {
            for how in SPOILS {
                seq += 1;
                let (name, bytes) = (format!("{when:?}-{word}-{how:?}"), content(seq));
                let on_a = cluster.a.at(&name);
                let fd = process.open(&on_a, flags, 0o644).must("open");
                process.write(fd, &bytes).must("write");
                let file = staged(&cluster.a);
                if when == When::Published {
                    let copy = process.dup(fd).must("dup");
                    process.close(copy).must("close a duplicate");
                }
                spoil(&file, how);
                // The writer may get an error or not.
                let refused = process.close(fd).is_err();
                let mut missed = false;
                let right = |read: &[u8]| {
                    let cut = read == &bytes[..CUT] || read.is_empty();
                    read == bytes || (how == Spoil::Cut && cut)
                };
                let mut look = |path: &Path, opener: &str| {
                    let read = reader.get(path);
                    match &read {
                        Ok(read) => assert!(right(read), "{name}: {opener} reads other bytes"),
                        Err(errno) => {
                            assert_eq!(*errno, Errno::NOENT, "{name}: {opener}");
                            missed = true;
                        }
                    }
                    assert_eq!(reader.stat(path).is_ok(), read.is_ok(), "{name}: {opener} stats");
                };
                for _ in 0..3 {
                    look(&on_a, "a reader");
                }
                let digest = blake3::hash(&bytes).to_hex().to_string();
                let told = warnings(&cluster.a, &name) + warnings(&cluster.a, &digest);
                let log = cluster.a.log();
                assert!(
                    told <= 1 && (told == 1 || refused || !missed),
                    "{name}: {told} warnings:\n{log}"
                );
                seq += 1;
                // Until its RELEASE has come, a rewrite uses the damaged file.
                eventually(10_000, format_args!("{name}: again"), || {
                    process.put(&on_a, &content(seq)).map_err(|errno| errno.to_string())?;
                    let read = reader.get(&on_a).map_err(|errno| errno.to_string())?;
                    if read == content(seq) { Ok(()) } else { Err("other bytes".to_owned()) }
                });
            }
        }
    }
    cluster.settle();
    tree::converge(&cluster.a.mount, &cluster.b.mount, 10_000);
}
in_both_modes!(bad_input_staged_files_that_are_spoilt);
