//! P2 killed-writer: a writer that dies by a signal publishes nothing; the older version stays.

use std::path::Path;

use rustix::fs::OFlags;
use rustix::io::Errno;
use rustix::process::{Pid, Signal, kill_process};

use crate::harness::body::{self, Id};
use crate::harness::syscall_process::{CREATE_NEW, IN_PLACE};
use crate::harness::{
    Cluster, Io, Must as _, Options, Store, SyscallProcess, eventually, in_both_modes, sleep_ms,
    tree,
};

/// How a writer writes while it dies: total length, length of a piece, pause after each.
const SMALL_CHUNKS: (usize, usize, u64) = (64 << 20, 4096, 200);
const ONE_HUGE_WRITE: (usize, usize, u64) = (256 << 20, 256 << 20, 0);

#[derive(Debug, Clone, Copy)]
enum Death {
    Killed(Signal),
    /// A signal that the process raises itself.
    Raised(i32),
}

/// Makes a process open `path`, begin to write, and die of a signal before it closes.
fn die_writing(path: &Path, flags: OFlags, how: (usize, usize, u64), death: Death) {
    let mut process = SyscallProcess::new();
    let fd = process.open(path, flags, 0o644).must("open for writing");
    process.write(fd, b"the beginning of something").must("write");
    match death {
        Death::Killed(signal) => {
            let (len, chunk, delay_us) = how;
            process.begin_fill(fd, len, chunk, delay_us);
            sleep_ms(30);
            let status = process.kill(signal);
            assert!(!status.success(), "the writer did not die: {status}");
        }
        Death::Raised(number) => {
            process.write(fd, &vec![b'y'; 300_000]).must("write more");
            let status = process.leave("die", number);
            assert!(!status.success(), "the writer did not die: {status}");
        }
    }
}

fn deaths() -> Vec<(Death, (usize, usize, u64))> {
    let mut all = Vec::new();
    for signal in [Signal::KILL, Signal::TERM] {
        all.push((Death::Killed(signal), SMALL_CHUNKS));
        all.push((Death::Killed(signal), ONE_HUGE_WRITE));
    }
    // SIGSEGV and SIGABRT, raised in the middle of the work.
    all.push((Death::Raised(11), SMALL_CHUNKS));
    all.push((Death::Raised(6), SMALL_CHUNKS));
    all
}

fn expect_absent(cluster: &Cluster, name: &str, why: &str) {
    for node in [&cluster.a, &cluster.b] {
        let there = std::fs::read(node.at(name)).map(|bytes| bytes.len());
        let kind = there.as_ref().map_err(std::io::Error::kind);
        assert_eq!(kind, Err(std::io::ErrorKind::NotFound), "{why}: {there:?}");
        let listed = tree::texts(&node.mount).contains(&name.to_owned());
        assert!(!listed, "{why}: a directory lists {name}");
    }
}

fn p2_killed_writer_over_nothing_leaves_nothing(io: Io) {
    let cluster = Cluster::two(io);
    for (number, (death, how)) in deaths().into_iter().enumerate() {
        for (flags, word) in [(IN_PLACE, "plain"), (CREATE_NEW, "exclusive")] {
            let name = format!("new-{number}-{word}");
            die_writing(&cluster.a.at(&name), flags, how, death);
            expect_absent(&cluster, &name, &format!("{death:?} {how:?} {word}"));
        }
    }
    cluster.settle();
    sleep_ms(1_200);
    for number in 0..deaths().len() {
        let name = format!("new-{number}-plain");
        expect_absent(&cluster, &name, "after a while");
        let id = Id { writer: 1, seq: number as u64 };
        SyscallProcess::new()
            .put(&cluster.a.at(&name), &body::make(id, 50_000))
            .must("a later writer");
        let read = std::fs::read(cluster.a.at(&name)).must("read the later writer's file");
        assert_eq!(body::check(&read), Ok(id));
    }
    tree::converge(&cluster.a.mount, &cluster.b.mount, 10_000);
}
in_both_modes!(p2_killed_writer_over_nothing_leaves_nothing);

fn p2_killed_writer_keeps_the_old_version(io: Io) {
    over_an_old_version(&Cluster::two(io));
}
in_both_modes!(p2_killed_writer_keeps_the_old_version);

/// Writers of existing names die in every way; both nodes keep the old version.
pub(crate) fn over_an_old_version(cluster: &Cluster) {
    let old = Id { writer: 1, seq: 0 };
    for (number, (death, how)) in deaths().into_iter().enumerate() {
        let name = format!("old-{number}");
        let path = cluster.a.at(&name);
        SyscallProcess::new().put(&path, &body::make(old, 200_000)).must("write the old version");
        die_writing(&path, IN_PLACE, how, death);
        let read = std::fs::read(&path).must("read the old version");
        assert_eq!(body::check(&read), Ok(old), "{death:?} {how:?}, emptied first");

        die_writing(&path, OFlags::RDWR, how, death);
        let read = std::fs::read(&path).must("read the old version");
        assert_eq!(body::check(&read), Ok(old), "{death:?} {how:?}, written over");
    }
    cluster.settle();
    let all = tree::converge(&cluster.a.mount, &cluster.b.mount, 10_000);
    assert_eq!(all.len(), deaths().len(), "only the old versions: {all:?}");
    for name in all.keys() {
        let read = std::fs::read(cluster.b.mount.join(name)).must("read on node B");
        assert_eq!(body::check(&read), Ok(old), "{} on node B", name.display());
    }
    let new = Id { writer: 2, seq: 1 };
    SyscallProcess::new()
        .put(&cluster.b.at("old-0"), &body::make(new, 100_000))
        .must("a later writer");
    cluster.b.drain();
    eventually(5_000, "the later version is visible", || {
        let read = std::fs::read(cluster.a.at("old-0")).map_err(|error| error.to_string())?;
        let id = body::check(&read)?;
        if id == new { Ok(()) } else { Err(id.to_string()) }
    });
}

/// While a process writes, others see the old version at once, without a wait.
fn p2_killed_writer_is_never_waited_for_when_there_is_a_version(io: Io) {
    let cluster = Cluster::with(Store::dir, &Options::new(io).alone());
    let path = cluster.a.at("busy");
    let old = Id { writer: 1, seq: 0 };
    SyscallProcess::new().put(&path, &body::make(old, 100_000)).must("write the old version");
    let mut writer = SyscallProcess::new();
    let fd = writer.open(&path, IN_PLACE, 0o644).must("open");
    writer.write(fd, &vec![7; 50_000]).must("write");
    let start = crate::harness::now();
    let read = std::fs::read(&path).must("read while it is written");
    assert_eq!(body::check(&read), Ok(old));
    assert!(start.elapsed().as_millis() < 1_000, "the reader waited {:?}", start.elapsed());
    writer.kill(Signal::KILL);
    let read = std::fs::read(&path).must("read after the writer died");
    assert_eq!(body::check(&read), Ok(old));
}
in_both_modes!(p2_killed_writer_is_never_waited_for_when_there_is_a_version);

/// A process that ends with `exit()` or `_exit()` closes its files: that is a clean close.
fn p2_killed_writer_is_not_one_that_exits(io: Io) {
    let cluster = Cluster::two(io);
    for op in ["exit", "_exit"] {
        for code in [0, 3] {
            let name = format!("{op}-{code}");
            let bytes = body::make(Id { writer: 1, seq: 1 }, 300_000);
            let mut process = SyscallProcess::new();
            let fd = process.open(&cluster.a.at(&name), IN_PLACE, 0o644).must("open");
            process.write(fd, &bytes).must("write");
            let status = process.leave(op, code);
            assert_eq!(status.code(), Some(code));
            let read = std::fs::read(cluster.a.at(&name)).must("read what exit() closed");
            assert!(read == bytes, "{name} holds other bytes");
        }
    }
    cluster.settle();
    let all = tree::converge(&cluster.a.mount, &cluster.b.mount, 10_000);
    assert_eq!(all.len(), 4);
}
in_both_modes!(p2_killed_writer_is_not_one_that_exits);

/// A killed process that had closed its file before has published it.
fn p2_killed_writer_keeps_what_it_closed_before(io: Io) {
    let cluster = Cluster::two(io);
    let bytes = body::make(Id { writer: 1, seq: 1 }, 70_000);
    let mut process = SyscallProcess::new();
    process.put(&cluster.a.at("closed"), &bytes).must("write and close");
    let fd = process.open(&cluster.a.at("closed"), OFlags::RDONLY, 0).must("open to read");
    process.read(fd, 0, 10).must("read");
    process.kill(Signal::KILL);
    assert!(std::fs::read(cluster.a.at("closed")).must("read") == bytes);
    let mut lock = SyscallProcess::new();
    let fd = lock.open(&cluster.a.at("lock"), OFlags::RDWR | OFlags::CREATE, 0o644).must("open");
    lock.flock(fd, 2).must("lock");
    lock.kill(Signal::KILL);
    let again =
        SyscallProcess::new().open(&cluster.a.at("lock"), OFlags::RDWR | OFlags::CREATE, 0o644);
    assert!(again.is_ok(), "the lock file of a killed process: {again:?}");
    let missing = SyscallProcess::new().get(&cluster.a.at("never"));
    assert_eq!(missing, Err(Errno::NOENT));
}
in_both_modes!(p2_killed_writer_keeps_what_it_closed_before);

/// The temporary of a killed process cannot be renamed to a published name.
fn p2_killed_writer_before_its_rename(io: Io) {
    let cluster = Cluster::two(io);
    let (temporary, name) = (cluster.a.at("entry.tmp"), cluster.a.at("entry"));
    let mut process = SyscallProcess::new();
    let fd = process.open(&temporary, CREATE_NEW, 0o600).must("create a temporary");
    process.write(fd, &vec![1; 100_000]).must("write");
    process.rename(&temporary, &name).must("rename while it is open");
    process.kill(Signal::KILL);
    expect_absent(&cluster, "entry", "renamed while open, then killed");
    expect_absent(&cluster, "entry.tmp", "renamed while open, then killed");
    let bytes = body::make(Id { writer: 2, seq: 2 }, 90_000);
    let mut later = SyscallProcess::new();
    later.put_with(&temporary, CREATE_NEW, 1 << 20, 0, &bytes).must("a later temporary");
    later.rename(&temporary, &name).must("a later rename");
    assert!(std::fs::read(&name).must("read") == bytes);
}
in_both_modes!(p2_killed_writer_before_its_rename);

/// Makes the child of [`SyscallProcess::fork_and_write`] write, and kills it afterwards.
fn write_and_die(child: Pid, fd: i64, end: usize) {
    let said = |file: &str| {
        std::fs::read_to_string(format!("/proc/{}/{file}", child.as_raw_nonzero()))
            .must("poll a child")
    };
    kill_process(child, Signal::USR1).must("signal the child");
    eventually(5_000, "the child has written", || {
        let text = said(&format!("fdinfo/{fd}"));
        let place = text.lines().find_map(|line| line.strip_prefix("pos:")).unwrap_or_default();
        if place.trim() == end.to_string() { Ok(()) } else { Err(text) }
    });
    kill_process(child, Signal::KILL).must("kill a child");
    // No process waits for it, so it stays a zombie; its files are closed by then.
    eventually(5_000, "the child is dead", || {
        let text = said("stat");
        if text.contains(") Z ") { Ok(()) } else { Err(text) }
    });
}

/// A child inherits a file, continues to write after its parent has closed it, and is killed:
/// nothing that it wrote is published. What the parent closed is.
fn p2_killed_writer_of_an_inherited_file(io: Io) {
    const CHILDS: usize = 100_000;
    let cluster = Cluster::two(io);
    let of_child = body::make(Id { writer: 2, seq: 1 }, CHILDS);
    let of_parent = body::make(Id { writer: 1, seq: 1 }, 5_000);
    let of_old = body::make(Id { writer: 1, seq: 0 }, 70_000);
    let ways = [
        ("plain", IN_PLACE),
        ("readable", OFlags::RDWR | OFlags::CREATE | OFlags::TRUNC),
        ("append", OFlags::WRONLY | OFlags::CREATE | OFlags::APPEND),
    ];
    let mut closed = Vec::new();
    for (word, flags) in ways {
        for (old, before) in [(false, false), (true, false), (false, true), (true, true)] {
            let name = format!("{word}-{old}-{before}");
            let path = cluster.a.at(&name);
            if old {
                SyscallProcess::new().put(&path, &of_old).must("write the old version");
            }
            let appends = old && flags.contains(OFlags::APPEND);
            let mut expected = if appends { of_old.clone() } else { Vec::new() };
            let mut parent = SyscallProcess::new();
            let fd = parent.open(&path, flags, 0o644).must("open");
            let child = parent.fork_and_write(fd, &of_child);
            if before {
                parent.write(fd, &of_parent).must("write by the parent");
                expected.extend_from_slice(&of_parent);
            }
            parent.close(fd).must("close by the parent");
            write_and_die(child, fd, expected.len() + CHILDS);
            let read = SyscallProcess::new().get(&path);
            assert!(is_parents(&read, &expected), "{name}: {:?}", read.map(|read| read.len()));
            closed.push((name, expected));
        }
    }
    cluster.settle();
    sleep_ms(1_200);
    tree::converge(&cluster.a.mount, &cluster.b.mount, 10_000);
    for (name, expected) in closed {
        for node in [&cluster.a, &cluster.b] {
            let read = SyscallProcess::new().get(&node.at(&name));
            let len = read.as_ref().map(Vec::len);
            assert!(is_parents(&read, &expected), "{name} after a while: {len:?}");
        }
    }
}
in_both_modes!(p2_killed_writer_of_an_inherited_file);

/// Reports whether the result is what a parent closed. If it closed only an empty file, there may be none.
fn is_parents(read: &Result<Vec<u8>, Errno>, expected: &[u8]) -> bool {
    read.as_deref() == Ok(expected) || (expected.is_empty() && *read == Err(Errno::NOENT))
}

/// A process that stores into an entry through a mapping and is killed: the previous version stays.
fn p2_killed_writer_through_a_mapping(io: Io) {
    const LEN: usize = 200_000;
    let cluster = Cluster::two(io);
    let old = body::make(Id { writer: 1, seq: 0 }, LEN);
    let new = body::make(Id { writer: 2, seq: 0 }, LEN);
    let ways = [("half", LEN / 2, false), ("synced", LEN / 2, true), ("whole", LEN, false)];
    for (name, len, synced) in ways {
        let path = cluster.a.at(name);
        SyscallProcess::new().put(&path, &old).must("write the old version");
        let mut process = SyscallProcess::new();
        let fd = process.open(&path, OFlags::RDWR, 0).must("open");
        let map = process.map(fd, LEN, true, true).must("map");
        process.map_write(map, 0, &new[..len]);
        if synced {
            process.msync(map).must("msync");
        }
        let read = SyscallProcess::new().get(&path).must("read while it is mapped");
        assert!(read == old, "{name}, mapped: {:?}", body::check(&read));
        process.kill(Signal::KILL);
        let read = SyscallProcess::new().get(&path).must("read after the kill");
        assert!(read == old, "{name}, killed: {:?}", body::check(&read));
    }
    cluster.settle();
    sleep_ms(1_200);
    tree::converge(&cluster.a.mount, &cluster.b.mount, 10_000);
    for (name, ..) in ways {
        for node in [&cluster.a, &cluster.b] {
            let read = SyscallProcess::new().get(&node.at(name)).must("read after a while");
            assert!(read == old, "{name} after a while: {:?}", body::check(&read));
        }
    }
}
in_both_modes!(p2_killed_writer_through_a_mapping);

/// The thread that closes the files of a killed process may have been ending by itself.
fn p2_killed_writer_with_threads_that_end(io: Io) {
    const KILLS: u32 = 300;
    let cluster = Cluster::two(io);
    let mut published = Vec::new();
    for number in 0..KILLS {
        let path = cluster.a.at(format!("new-{number}"));
        let mut process = SyscallProcess::new();
        let fd = process.open(&path, IN_PLACE, 0o644).must("open for writing");
        process.write(fd, b"the beginning of something").must("write");
        process.churn(3);
        sleep_ms(2);
        process.kill(Signal::KILL);
        published.extend(std::fs::read(&path).map(|_| number));
    }
    assert_eq!(published, Vec::<u32>::new(), "of {KILLS} killed writers");
}
in_both_modes!(p2_killed_writer_with_threads_that_end);
