//! P1 whole-or-nothing: no reader on any node ever gets bytes that no writer closed.

use std::collections::HashSet;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use rustix::fs::OFlags;
use rustix::io::Errno;

use super::users::{A, B, World};
use crate::harness::body::{self, Dice, Id};
use crate::harness::syscall_process::IN_PLACE;
use crate::harness::time::thread;
use crate::harness::{
    Cluster, Io, Must as _, SyscallProcess, eventually, in_both_modes, now, sleep_ms, tree,
};

const NAMES: [&str; 4] = ["first", "second", "third", "fourth"];
const BODY_LEN_MAX: usize = 1_500_000;
/// How long the four processes write and read.
const LOAD_MS: u64 = 8_000;

/// The counts of one process.
#[derive(Debug, Default)]
struct Report {
    closed: HashSet<Id>,
    reads: u64,
    faults: Vec<String>,
}

/// Writes and reads the four names for the given time, from a process of its own.
fn mix(mount: &Path, writer: u32, load_ms: u64) -> Report {
    let mut process = SyscallProcess::new();
    let mut dice = Dice::new(u64::from(writer));
    let mut report = Report::default();
    let mut seen = [false; NAMES.len()];
    let start = now();
    let mut seq = 0;
    while start.elapsed() < Duration::from_millis(load_ms) {
        let which = dice.below(NAMES.len() as u64) as usize;
        let path = mount.join(NAMES[which]);
        if dice.below(3) == 0 {
            seq += 1;
            let id = Id { writer, seq };
            let bytes = body::make(id, dice.len(BODY_LEN_MAX));
            let chunk = [1 << 21, 1 << 17, 7_000][dice.below(3) as usize];
            match process.put_with(
                &path,
                crate::harness::syscall_process::IN_PLACE,
                chunk,
                0,
                &bytes,
            ) {
                Ok(()) => drop(report.closed.insert(id)),
                Err(errno) => report.faults.push(format!("write {which}: {errno}")),
            }
            seen[which] = true;
            continue;
        }
        let read = match dice.below(4) {
            0 => process.get_mapped(&path, dice.below(30_000)),
            1 => process.get_slowly(&path, 50_000, 3_000),
            _ => process.get(&path),
        };
        report.reads += 1;
        match read {
            Ok(bytes) => {
                seen[which] = true;
                if let Err(fault) = body::check(&bytes) {
                    report.faults.push(format!("read {which}: {fault}"));
                }
            }
            Err(Errno::NOENT) if !seen[which] => {}
            Err(errno) => report.faults.push(format!("read {which}: {errno}")),
        }
    }
    report
}

/// Returns the identities of the bodies that a node shows under the four names.
fn shown(mount: &Path) -> Result<Vec<Id>, String> {
    let read = |name: &&str| {
        let bytes = std::fs::read(mount.join(name)).map_err(|error| format!("{name}: {error}"))?;
        body::check(&bytes)
    };
    NAMES.iter().map(read).collect()
}

fn p1_whole_or_nothing_under_writers_in_place(io: Io) {
    writers_in_place(&Cluster::two(io), LOAD_MS);
}
in_both_modes!(p1_whole_or_nothing_under_writers_in_place);

/// Four processes on two nodes write and read four names; readers get only what a writer closed.
pub(crate) fn writers_in_place(cluster: &Cluster, load_ms: u64) {
    let mounts = [&cluster.a, &cluster.a, &cluster.b, &cluster.b].map(|node| node.mount.clone());
    let workers: Vec<_> = mounts
        .into_iter()
        .zip(1..)
        .map(|(mount, writer)| thread(move || mix(&mount, writer, load_ms)))
        .collect();
    let reports: Vec<Report> =
        workers.into_iter().map(|worker| worker.join().must("a worker's report")).collect();

    let faults: Vec<&String> = reports.iter().flat_map(|report| &report.faults).collect();
    assert!(
        faults.is_empty(),
        "{} faults, such as {:#?}",
        faults.len(),
        &faults[..faults.len().min(8)]
    );
    let (reads, closes) = reports.iter().fold((0, 0), |(reads, closes), report| {
        (reads + report.reads, closes + report.closed.len())
    });
    assert!(reads > 100 && closes > 40, "too little was done: {reads} reads, {closes} closes");

    cluster.settle();
    let agreed = eventually(10_000, "both nodes show the same bodies", || {
        let (a, b) = (shown(&cluster.a.mount)?, shown(&cluster.b.mount)?);
        if a == b { Ok(a) } else { Err(format!("{a:?} / {b:?}")) }
    });
    for id in &agreed {
        let closed = reports.iter().any(|report| report.closed.contains(id));
        assert!(closed, "{id} is shown but its writer's close did not succeed");
    }
    sleep_ms(1_500);
    assert_eq!(shown(&cluster.a.mount), Ok(agreed.clone()), "node A shows other files later");
    assert_eq!(shown(&cluster.b.mount), Ok(agreed), "node B shows other files later");
}

fn p1_whole_or_nothing_for_slow_readers(io: Io) {
    slow_readers(&Cluster::two(io));
}
in_both_modes!(p1_whole_or_nothing_for_slow_readers);

/// A reader that opened one version gets that version to its end, while it is replaced in place.
pub(crate) fn slow_readers(cluster: &Cluster) {
    for (node, writer) in [(&cluster.a, 1), (&cluster.b, 2)] {
        let path = node.at(format!("slow{writer}"));
        let (mut writing, mut reading) = (SyscallProcess::new(), SyscallProcess::new());
        let old = body::make(Id { writer, seq: 0 }, 400_000);
        writing.put(&path, &old).must("write the first version");
        for seq in 1..6 {
            let fd = reading.open(&path, rustix::fs::OFlags::RDONLY, 0).must("open");
            let mut whole = reading.read(fd, 0, 100_000).must("read the first piece");
            let expected = body::make(Id { writer, seq }, 500_000 - 70_000 * seq as usize);
            writing.put(&path, &expected).must("replace");
            let mut more = reading.read(fd, 100_000, 1_000_000).must("read the rest");
            whole.append(&mut more);
            assert_eq!(body::check(&whole), Ok(Id { writer, seq: seq - 1 }));
            reading.close(fd).must("close");
            assert_eq!(body::check(&reading.get(&path).must("read")), Ok(Id { writer, seq }));
        }
    }
}

#[test]
fn p1_whole_or_nothing_across_nodes_before_the_close() {
    half_written(&Cluster::two(Io::best()));
}

/// A partial write on one node does not exist on the other, and is not in the store.
pub(crate) fn half_written(cluster: &Cluster) {
    let (mut process, bytes) =
        (SyscallProcess::new(), body::make(Id { writer: 1, seq: 1 }, 3_000_000));
    let path = cluster.a.at("half");
    let fd = process.open(&path, crate::harness::syscall_process::IN_PLACE, 0o644).must("create");
    process.write(fd, &bytes[..2_000_000]).must("write half");
    process.fsync(fd).must("sync");
    cluster.settle();
    sleep_ms(1_500);
    let there = std::fs::symlink_metadata(cluster.b.at("half"));
    assert!(there.is_err(), "node B shows a file that no writer closed: {there:?}");
    if cluster.store.has_files() {
        let large = cluster.store.objects_in("blobs");
        assert!(large.is_empty(), "bytes that no writer closed were uploaded: {large:?}");
    }
    process.write(fd, &bytes[2_000_000..]).must("write the rest");
    process.close(fd).must("close");
    cluster.a.drain();
    let read = eventually(5_000, "node B shows the closed file", || {
        std::fs::read(cluster.b.at("half")).map_err(|error| error.to_string())
    });
    assert!(read == bytes, "node B reads other bytes");
}

fn p1_whole_or_nothing_for_two_truncating_writers(io: Io) {
    guests(&Cluster::two(io));
}
in_both_modes!(p1_whole_or_nothing_for_two_truncating_writers);

/// Two processes that truncate one name before either writes share one inode, whose one size the kernel knows.
pub(crate) fn guests(cluster: &Cluster) {
    let path = cluster.a.at("contested");
    let (mut one, mut two, mut three) =
        (SyscallProcess::new(), SyscallProcess::new(), SyscallProcess::new());
    let first = one.open(&path, IN_PLACE, 0o644).must("open");
    let second = two.open(&path, IN_PLACE, 0o644).must("open by another");
    one.write(first, &[b'a'; 5_000]).must("write");
    one.close(first).must("publish");
    let reading = three.open(&path, OFlags::RDONLY, 0).must("open what was published");
    two.write(second, &[b'b'; 7_000]).must("write more");
    assert_eq!(three.read(reading, 0, 10_000).must("read"), [b'a'; 5_000]);
    assert_eq!(three.fstat(reading).must("fstat").size, 5_000);
    two.close(second).must("publish");
    assert_eq!(three.get(&path).must("read by name"), [b'b'; 7_000]);
    assert_eq!(three.read(reading, 0, 10_000).must("read"), [b'a'; 5_000]);
    three.close(reading).must("close");
    // One appends, and the kernel derives the end of the file from that size.
    let path = cluster.a.at("appended");
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::APPEND;
    let first = one.open(&path, flags, 0o644).must("open to append");
    let second = two.open(&path, IN_PLACE, 0o644).must("empty");
    two.write(second, &[b'b'; 7_000]).must("write");
    for line in ["one\n", "two\n"] {
        one.write(first, line.as_bytes()).must("append");
    }
    one.close(first).must("publish");
    assert_eq!(three.get(&path).must("read"), b"one\ntwo\n");
    two.close(second).must("publish");
    assert_eq!(three.get(&path).must("read"), [b'b'; 7_000]);
    cluster.settle();
    tree::converge(&cluster.a.mount, &cluster.b.mount, 10_000);
}

/// What a writer does to one name, again and again.
#[derive(Debug, Clone, Copy)]
enum Rewrite {
    Emptied,
    Over,
    Renamed,
}

/// A user who may only read a file is refused when opening it for update, and reads all of it right
/// after, also while its owner rewrites it.
fn p1_whole_or_nothing_after_a_refused_open(io: Io) {
    const LEN: usize = 150_000;
    const MS: u64 = 2_500;
    let Some(world) = World::two(io, "p1_whole_or_nothing_after_a_refused_open") else { return };
    let ways = [
        OFlags::RDWR,
        OFlags::WRONLY,
        OFlags::RDWR | OFlags::CREATE,
        OFlags::WRONLY | OFlags::TRUNC,
        OFlags::WRONLY | OFlags::APPEND,
    ];
    // Reads once after each refusal; returns the errors.
    let try_all = |process: &mut SyscallProcess, path: &Path| -> Vec<String> {
        let mut faults = Vec::new();
        for flags in ways {
            let refused = process.open(path, flags, 0o644);
            if refused != Err(Errno::ACCESS) {
                faults.push(format!("{flags:?}: {refused:?}"));
                if let Ok(fd) = refused {
                    let _ = process.close(fd);
                }
            }
            match process.get(path) {
                Ok(read) => faults.extend(body::check(&read).err()),
                Err(errno) => faults.push(format!("to read after {flags:?}: {errno}")),
            }
        }
        faults
    };
    for (k, how) in [Rewrite::Emptied, Rewrite::Over, Rewrite::Renamed].into_iter().enumerate() {
        let path = world.cluster.a.at(format!("open/f{k}"));
        let (mut owner, mut reader) = (SyscallProcess::of(A, &[]), SyscallProcess::of(B, &[]));
        let version = |seq| body::make(Id { writer: 1, seq }, LEN);
        owner.put(&path, &version(0)).must("put");
        assert_eq!(try_all(&mut reader, &path), Vec::<String>::new(), "{how:?}, at rest");
        let over = Arc::new(AtomicBool::new(false));
        let (end, target) = (Arc::clone(&over), path.clone());
        let writing = thread(move || {
            let tmp = target.with_extension("tmp");
            let mut seq = 0;
            while !end.load(Ordering::Relaxed) {
                seq += 1;
                let done = match how {
                    Rewrite::Emptied => owner.put(&target, &version(seq)),
                    Rewrite::Over => {
                        owner.put_with(&target, OFlags::WRONLY, 50_000, 0, &version(seq))
                    }
                    Rewrite::Renamed => {
                        owner.put(&tmp, &version(seq)).and_then(|()| owner.rename(&tmp, &target))
                    }
                };
                done.must("rewrite");
            }
            seq
        });
        let (start, mut rounds, mut faults) = (now(), 0, Vec::new());
        while start.elapsed() < Duration::from_millis(MS) {
            rounds += 1;
            faults.extend(try_all(&mut reader, &path));
        }
        over.store(true, Ordering::Relaxed);
        let versions = writing.join().must("the owner");
        let some = &faults[..faults.len().min(8)];
        assert!(
            faults.is_empty(),
            "{how:?}: {} faults in {rounds} rounds, such as {some:#?}",
            faults.len()
        );
        assert!(rounds > 5 && versions > 5, "{how:?}: {rounds} rounds, {versions} versions");
        assert_eq!(try_all(&mut reader, &path), Vec::<String>::new(), "{how:?}, at last");
    }
}
in_both_modes!(p1_whole_or_nothing_after_a_refused_open);
