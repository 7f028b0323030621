//! Operations without effect are not published, and no other node drops a cached name because of them.

use std::os::fd::OwnedFd;
use std::path::Path;

use rustix::fs::{CWD, FileType, FlockOperation, Mode, OFlags, Timespec, Timestamps, UTIME_OMIT};

use crate::copies::SEEN_MS;
use crate::harness::{Cluster, Io, Must as _, Node, SyscallProcess, eventually, in_both_modes};

/// Returns the number of objects in the log, and the writer's count of publishes.
fn counts(cluster: &Cluster) -> (usize, u64) {
    cluster.a.drain();
    (cluster.store.objects_in("log").len(), count(&cluster.a, "published"))
}

fn count(node: &Node, what: &str) -> u64 {
    node.status()["counters"][what].as_u64().must("a count")
}

/// Opens a lock file, locks and unlocks it, as python-filelock does.
fn lock(path: &Path) {
    let flags = OFlags::RDWR | OFlags::CREATE | OFlags::TRUNC | OFlags::CLOEXEC;
    let file: OwnedFd = rustix::fs::open(path, flags, Mode::from_raw_mode(0o644)).must("open");
    rustix::fs::fchmod(&file, Mode::from_raw_mode(0o644)).must("fchmod");
    rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive).must("flock");
    rustix::fs::flock(&file, FlockOperation::Unlock).must("unlock");
}

/// A lock file is published once, however often it is used.
fn unchanged_lock_files_are_published_once(io: Io) {
    let cluster = Cluster::two(io);
    let at = cluster.a.at("cache.lock");
    lock(&at);
    let before = counts(&cluster);
    for _ in 0..20 {
        lock(&at);
    }
    assert_eq!(counts(&cluster), before);
    // A program that sets its time explicitly still changes it.
    let set = Timespec { tv_sec: 1_700_000_000, tv_nsec: 5 };
    let omit = Timespec { tv_sec: 0, tv_nsec: UTIME_OMIT };
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::TRUNC | OFlags::CLOEXEC;
    let file: OwnedFd = rustix::fs::open(&at, flags, Mode::from_raw_mode(0o644)).must("open");
    let times = Timestamps { last_access: omit, last_modification: set };
    rustix::fs::futimens(&file, &times).must("futimens");
    drop(file);
    assert!(counts(&cluster).0 > before.0);
    let about = SyscallProcess::new().stat(&at).must("stat");
    assert_eq!((about.mtime_s, about.mtime_ns), (1_700_000_000, 5));
}
in_both_modes!(unchanged_lock_files_are_published_once);

/// Equal attributes, missing names, and files that are rewritten without a change.
fn unchanged_attributes_and_missing_names_are_not_published(io: Io) {
    let cluster = Cluster::two(io);
    let mut process = SyscallProcess::new();
    let (dir, file, empty) = (cluster.a.at("dir"), cluster.a.at("dir/file"), cluster.a.at("empty"));
    process.mkdir(&dir).must("mkdir");
    process.put(&file, b"bytes").must("put");
    process.put(&empty, b"").must("put");
    process.chmod(&dir, 0o750).must("chmod");
    process.chmod(&file, 0o640).must("chmod");
    process.setxattr(&file, "user.tag", b"value", 0).must("setxattr");
    let before = counts(&cluster);
    let forgot = count(&cluster.b, "commits_applied");
    for _ in 0..5 {
        process.chmod(&dir, 0o750).must("chmod");
        process.chmod(&file, 0o640).must("chmod");
        process.setxattr(&file, "user.tag", b"value", 0).must("setxattr");
        for path in [&dir, &file, &empty] {
            let about = process.stat(path).must("stat");
            let time = Timespec { tv_sec: about.mtime_s, tv_nsec: about.mtime_ns };
            let times = Timestamps {
                last_access: Timespec { tv_sec: 0, tv_nsec: UTIME_OMIT },
                last_modification: time,
            };
            let none = rustix::fs::AtFlags::empty();
            rustix::fs::utimensat(rustix::fs::CWD, path, &times, none).must("utimensat");
        }
        assert!(process.unlink(&cluster.a.at("missing")).is_err());
        process.truncate(&file, 5).must("truncate");
        process.put(&empty, b"").must("put");
    }
    assert_eq!(counts(&cluster), before);
    assert_eq!(count(&cluster.b, "commits_applied"), forgot, "no name is invalidated");
    // Rewriting the same bytes is a change: their time moves.
    process.put(&file, b"bytes").must("put");
    assert_eq!(counts(&cluster).1, before.1 + 1);
}
in_both_modes!(unchanged_attributes_and_missing_names_are_not_published);

/// What another node has published is not published again, and both show the same version.
fn unchanged_files_of_another_node_are_not_published_again(io: Io) {
    let cluster = Cluster::two(io);
    let bytes = |n: u32| vec![n as u8; 9_000 + n as usize];
    let write = |node: &Node| {
        let mut process = SyscallProcess::new();
        for n in 0..50 {
            process.put(&node.at(format!("file{n}")), &bytes(n)).must("put");
        }
        node.drain();
    };
    write(&cluster.a);
    // A recent list of the log is not repeated before an upload.
    eventually(SEEN_MS, "node B has it", || {
        if cluster.b.at("file49").exists() { Ok(()) } else { Err("it is missing".to_owned()) }
    });
    let objects = || ["log", "packs", "blobs"].map(|place| cluster.store.objects_in(place).len());
    let before = objects();
    write(&cluster.b);
    assert_eq!(objects(), before, "commits, packs and blobs");
    let times = |node: &Node, n: u32| {
        let about = SyscallProcess::new().stat(&node.at(format!("file{n}"))).must("stat");
        (about.mtime_s, about.mtime_ns)
    };
    for n in 0..50 {
        for node in [&cluster.a, &cluster.b] {
            assert_eq!(std::fs::read(node.at(format!("file{n}"))).must("read"), bytes(n));
        }
        assert_eq!(times(&cluster.a, n), times(&cluster.b, n), "file{n}");
    }
}
in_both_modes!(unchanged_files_of_another_node_are_not_published_again);

/// The kernel opens a pipe itself, and does not look its name up again for a descriptor.
fn an_open_pipe_without_a_name_can_be_changed(io: Io) {
    let cluster = Cluster::two(io);
    let at = cluster.a.at("pipe");
    let mode = Mode::from_raw_mode(0o600);
    rustix::fs::mknodat(CWD, &at, FileType::Fifo, mode, 0).must("make a pipe");
    let flags = OFlags::RDWR | OFlags::CLOEXEC;
    let pipe: OwnedFd = rustix::fs::open(&at, flags, Mode::empty()).must("open it");
    std::fs::remove_file(&at).must("unlink it");
    rustix::fs::fchmod(&pipe, Mode::from_raw_mode(0o640)).must("fchmod");
    let omit = Timespec { tv_sec: 0, tv_nsec: UTIME_OMIT };
    let set = Timespec { tv_sec: 77, tv_nsec: 0 };
    let times = Timestamps { last_access: omit, last_modification: set };
    rustix::fs::futimens(&pipe, &times).must("futimens");
    assert_eq!(rustix::fs::fstat(&pipe).must("fstat").st_mode & 0o777, 0o640);
}
in_both_modes!(an_open_pipe_without_a_name_can_be_changed);
