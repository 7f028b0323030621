//! Files that can still be written after a close: through a duplicate, a mapping, or another
//! process that appends, counts or keeps a database.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use rustix::fs::OFlags;
use rustix::io::Errno;
use rustix::process::Signal;

use crate::harness::body::{self, Id};
use crate::harness::command::{need, run};
use crate::harness::node::Site;
use crate::harness::syscall_process::{CREATE_NEW, IN_PLACE, SCRATCH};
use crate::harness::time::thread;
use crate::harness::{
    Cluster, Io, Must as _, Node, Options, Store, SyscallProcess, eventually, in_both_modes, now,
    sleep_ms,
};

const READ_WRITE: OFlags = OFlags::RDWR.union(OFlags::CREATE);
const APPEND: OFlags = OFlags::WRONLY.union(OFlags::CREATE).union(OFlags::APPEND);
const BUSY_LEN_MAX: usize = 200_000;
/// How long the programs of this file may take.
const LIMIT_MS: u64 = 120_000;

fn alone(io: Io) -> (Node, Site) {
    let site = Site::new();
    (Node::start(&site, "m", None, Options::new(io)), site)
}

/// Waits until the other node shows exactly these bytes.
#[track_caller]
fn arrives(cluster: &Cluster, name: &str, bytes: &[u8]) {
    cluster.a.drain();
    eventually(10_000, format_args!("{name} on the other node"), || {
        let read = std::fs::read(cluster.b.at(name)).map_err(|error| error.to_string())?;
        if read == bytes { Ok(()) } else { Err(format!("{} other bytes", read.len())) }
    });
}

/// A linker allocates and maps its output, closes it, stores through the mapping, unmaps, renames.
fn live_files_of_a_linker(io: Io) {
    const LEN: usize = 150_000;
    let cluster = Cluster::two(io);
    let mut linker = SyscallProcess::new();
    // A store right after the close, and one after the daemon has finished its work for the close.
    for (k, pause_ms) in [0, 50, 50, 0, 400].into_iter().enumerate() {
        let (name, tmp) = (format!("lib{k}.so"), cluster.a.at(format!("lib{k}.so.tmp")));
        let path = cluster.a.at(&name);
        let bytes = body::make(Id { writer: 6, seq: k as u64 }, LEN);
        let fd = linker.open(&tmp, READ_WRITE | OFlags::TRUNC, 0o644).must("create");
        linker.ftruncate(fd, LEN as u64).must("make room");
        let map = linker.map(fd, LEN, true, true).must("map");
        linker.close(fd).must("close");
        sleep_ms(pause_ms);
        linker.map_write(map, 0, &bytes);
        linker.unmap(map).must("unmap");
        linker.rename(&tmp, &path).must("rename");
        let read = SyscallProcess::new().get(&path).must(format_args!("read {name}"));
        assert!(read == bytes, "{name} after {pause_ms} ms: {:?}", body::check(&read));
        assert!(linker.get(&path).must("read by the linker") == bytes, "{name} by the linker");
    }
    for k in 0..5 {
        arrives(&cluster, &format!("lib{k}.so"), &body::make(Id { writer: 6, seq: k }, LEN));
    }
}
in_both_modes!(live_files_of_a_linker);

/// The same while another process reads the output in between: it gets what was closed, to the end.
fn live_files_of_a_linker_that_is_watched(io: Io) {
    const LEN: usize = 64 << 10;
    let cluster = Cluster::two(io);
    let (mut linker, mut watcher) = (SyscallProcess::new(), SyscallProcess::new());
    for round in 0..4 {
        let name = format!("out{round}");
        let path = cluster.a.at(&name);
        let bytes = body::make(Id { writer: 8, seq: round }, LEN);
        let fd = linker.open(&path, SCRATCH, 0o644).must("create");
        linker.ftruncate(fd, LEN as u64).must("make room");
        let map = linker.map(fd, LEN, true, true).must("map");
        linker.map_write(map, 0, b"begun");
        linker.close(fd).must("close");
        let closed = [b"begun".to_vec(), vec![0; LEN - 5]].concat();
        let early = watcher.open(&path, OFlags::RDONLY, 0).must("open what was closed");
        let view = watcher.map(early, LEN, false, true).must("map what was closed");
        linker.map_write(map, 0, &bytes);
        linker.msync(map).must("msync");
        assert!(watcher.read(early, 0, LEN + 1).must("read") == closed, "an open version changed");
        assert!(watcher.map_read(view, 0, LEN) == closed, "a mapped version changed");
        linker.unmap(map).must("unmap");
        // The kernel reports the last unmapping after the call has returned.
        eventually(2_000, "the stored bytes, after the unmapping", || {
            let read = watcher.get(&path).map_err(|errno| errno.to_string())?;
            if read == bytes { Ok(()) } else { Err("the bytes of the close".to_owned()) }
        });
        assert!(watcher.read(early, 0, LEN + 1).must("read") == closed, "an open version changed");
        assert!(watcher.map_read(view, 0, LEN) == closed, "a mapped version changed");
        watcher.unmap(view).must("unmap");
        watcher.close(early).must("close");
        arrives(&cluster, &name, &bytes);
    }
}
in_both_modes!(live_files_of_a_linker_that_is_watched);

/// Checks that all ways to examine a name agree.
#[track_caller]
fn agrees(node: &Node, name: &str, expected: &[u8], when: &str) {
    let (path, mut process) = (node.at(name), SyscallProcess::new());
    let size = process.stat(&path).map(|stat| stat.size);
    assert_eq!(size, Ok(expected.len() as u64), "{when}: stat");
    assert_eq!(process.get(&path), Ok(expected.to_vec()), "{when}: open");
    assert_eq!(process.open(&path, CREATE_NEW, 0o644), Err(Errno::EXIST), "{when}: O_EXCL");
    let listed = process.list(&node.mount).must("list");
    assert!(listed.iter().any(|listed| listed == name), "{when}: {listed:?}");
}

/// `write`, `close(dup(fd))`, overwrite, SIGKILL: every call finds the version that was closed.
fn live_files_of_a_writer_that_is_killed(io: Io) {
    let cluster = Cluster::two(io);
    for (k, old) in [None, Some(b"an older version".as_slice())].into_iter().enumerate() {
        for (how, flags) in [("emptied", IN_PLACE), ("readable", READ_WRITE | OFlags::TRUNC)] {
            let name = format!("{how}{k}");
            let path = cluster.a.at(&name);
            if let Some(old) = old {
                SyscallProcess::new().put(&path, old).must("put");
            }
            let mut writer = SyscallProcess::new();
            let fd = writer.open(&path, flags, 0o644).must("open");
            writer.write(fd, b"8 bytes.").must("write");
            let second = writer.dup(fd).must("dup");
            writer.close(second).must("close a duplicate");
            agrees(&cluster.a, &name, b"8 bytes.", "closed");
            writer.pwrite(fd, 0, b"overwritten, and longer").must("overwrite");
            agrees(&cluster.a, &name, b"8 bytes.", "overwritten");
            writer.kill(Signal::KILL);
            agrees(&cluster.a, &name, b"8 bytes.", "killed");
            arrives(&cluster, &name, b"8 bytes.");
            agrees(&cluster.a, &name, b"8 bytes.", "killed, and later");
            SyscallProcess::new().put(&path, b"the next version").must("write it again");
            agrees(&cluster.a, &name, b"the next version", "written again");
        }
    }
}
in_both_modes!(live_files_of_a_writer_that_is_killed);

/// The same without a read before the kill, so that only the close can have saved the bytes.
fn live_files_of_a_writer_that_is_killed_unseen(io: Io) {
    let (node, _site) = alone(io);
    for round in 0..6 {
        let name = format!("f{round}");
        let mut writer = SyscallProcess::new();
        let fd = writer.open(&node.at(&name), IN_PLACE, 0o644).must("open");
        writer.write(fd, b"8 bytes.").must("write");
        let second = writer.dup(fd).must("dup");
        writer.close(second).must("close a duplicate");
        if round % 2 == 0 {
            writer.pwrite(fd, 0, b"overwritten, and longer").must("overwrite");
        } else {
            writer.ftruncate(fd, 3).must("truncate");
        }
        writer.kill(Signal::KILL);
        agrees(&node, &name, b"8 bytes.", "killed");
    }
}
in_both_modes!(live_files_of_a_writer_that_is_killed_unseen);

/// A reader that has the closed version open keeps it while the writer continues through another descriptor.
fn live_files_with_readers_of_the_closed_version(io: Io) {
    let cluster = Cluster::two(io);
    for round in 0..4 {
        let name = format!("f{round}");
        let path = cluster.a.at(&name);
        let first = body::make(Id { writer: 1, seq: round }, 9_000);
        let second = body::make(Id { writer: 2, seq: round }, 12_000);
        let (mut writer, mut reader, mut late) =
            (SyscallProcess::new(), SyscallProcess::new(), SyscallProcess::new());
        let fd = writer.open(&path, READ_WRITE | OFlags::TRUNC, 0o644).must("open");
        writer.write(fd, &first).must("write");
        let duplicate = writer.dup(fd).must("dup");
        writer.close(duplicate).must("close a duplicate");
        let reading = reader.open(&path, OFlags::RDONLY, 0).must("open");
        let view = reader.map(reading, first.len(), false, round % 2 == 0).must("map");
        let mut check = |when: &str| {
            let read = reader.read(reading, 0, 20_000).must("read");
            assert!(read == first, "{when}: {:?}", body::check(&read));
            assert!(reader.map_read(view, 0, first.len()) == first, "{when}: the mapping");
            let size = reader.fstat(reading).must("fstat").size;
            assert_eq!(size, first.len() as u64, "{when}: fstat");
        };
        check("closed");
        writer.pwrite(fd, 0, &second[..5_000]).must("overwrite");
        check("overwritten");
        assert!(late.get(&path).must("read") == first, "a later reader");
        writer.ftruncate(fd, 10).must("cut");
        check("cut");
        assert_eq!(
            late.stat(&path).must("stat").size,
            first.len() as u64,
            "stat by another process"
        );
        writer.pwrite(fd, 0, &second).must("write");
        check("written");
        assert!(late.get(&path).must("read") == first, "a later reader");
        assert!(writer.read(fd, 0, 20_000).must("read own bytes") == second);
        writer.close(fd).must("close");
        assert!(late.get(&path).must("read") == second, "the next version");
        check("closed again");
        arrives(&cluster, &name, &second);
    }
}
in_both_modes!(live_files_with_readers_of_the_closed_version);

/// `exec 3>>f; echo x >&3; echo y >> f; echo z >&3; exec 3>&-`, in one shell and with a child for the second line.
fn live_files_that_a_shell_appends_to(io: Io) {
    let cluster = Cluster::two(io);
    for (k, second) in ["echo y >> f", "/bin/echo y >> f", "sh -c 'echo y >> f'"].iter().enumerate()
    {
        for (name, before, text) in
            [("new", None, "x\ny\nz\n"), ("old", Some("w\n"), "w\nx\ny\nz\n")]
        {
            let dir = cluster.a.at(format!("{name}{k}"));
            std::fs::create_dir(&dir).must("mkdir");
            if let Some(before) = before {
                std::fs::write(dir.join("f"), before).must("write");
            }
            let line = format!("exec 3>>f; echo x >&3; {second}; echo z >&3; exec 3>&-");
            let mut shell = Command::new("sh");
            run(shell.args(["-c", &line]).current_dir(&dir), 20_000).good();
            let read = std::fs::read_to_string(dir.join("f")).must("read");
            assert_eq!(read, text, "{line} ({name})");
            arrives(&cluster, &format!("{name}{k}/f"), text.as_bytes());
        }
    }
}
in_both_modes!(live_files_that_a_shell_appends_to);

/// Several processes that open with O_APPEND, write a line, and close: no line is lost or torn.
fn live_files_that_many_append_to(io: Io) {
    const WRITERS: usize = 5;
    const LINES: usize = 80;
    let cluster = Cluster::two(io);
    for (name, exists) in [("new", false), ("old", true)] {
        let path = cluster.a.at(name);
        if exists {
            SyscallProcess::new().put(&path, b"").must("put");
        }
        let writers: Vec<_> = (0..WRITERS)
            .map(|writer| {
                let path = path.clone();
                thread(move || {
                    let mut process = SyscallProcess::new();
                    for line in 0..LINES {
                        let text = format!("writer {writer} line {line}\n");
                        process.put_with(&path, APPEND, 1 << 16, 0, text.as_bytes()).must("append");
                    }
                })
            })
            .collect();
        for writer in writers {
            writer.join().must("a writer");
        }
        let text = SyscallProcess::new().get(&path).must("read");
        let mut lines: Vec<String> =
            String::from_utf8_lossy(&text).lines().map(str::to_owned).collect();
        lines.sort();
        let mut expected: Vec<String> = (0..WRITERS)
            .flat_map(|writer| (0..LINES).map(move |line| format!("writer {writer} line {line}")))
            .collect();
        expected.sort();
        let lost: Vec<&String> = expected.iter().filter(|line| !lines.contains(line)).collect();
        assert!(lost.is_empty(), "{name}: {} of {} lines are lost", lost.len(), expected.len());
        assert_eq!(lines, expected, "{name}: lines that no process wrote");
        arrives(&cluster, name, &text);
    }
}
in_both_modes!(live_files_that_many_append_to);

/// Two append to one file, and one of them is killed: what the other appends before and after is
/// there after its close.
fn live_files_of_two_appenders_one_killed(io: Io) {
    let cluster = Cluster::two(io);
    for (k, (exists, killed_first)) in
        [(false, false), (false, true), (true, false), (true, true)].into_iter().enumerate()
    {
        let (name, when) = (format!("f{k}"), format!("{exists} {killed_first}"));
        let path = cluster.a.at(&name);
        if exists {
            SyscallProcess::new().put(&path, b"old\n").must("put");
        }
        let (mut killed, mut other) = (SyscallProcess::new(), SyscallProcess::new());
        let begin = |process: &mut SyscallProcess| {
            process.open(&path, APPEND, 0o644).must("open to append")
        };
        let (of_killed, of_other) = if killed_first {
            let first = begin(&mut killed);
            (first, begin(&mut other))
        } else {
            let first = begin(&mut other);
            (begin(&mut killed), first)
        };
        for round in 0..3 {
            let line = |word: &str| format!("{word} {round}\n").into_bytes();
            killed.write(of_killed, &line("killed")).must("append");
            other.write(of_other, &line("before")).must("append");
        }
        killed.kill(Signal::KILL);
        for round in 0..3 {
            let line = format!("after {round}\n");
            other.write(of_other, line.as_bytes()).must("append");
        }
        other.close(of_other).must("close");
        let text = SyscallProcess::new().get(&path).must("read");
        let shown = String::from_utf8_lossy(&text).into_owned();
        let lines: Vec<&str> = shown.lines().filter(|line| !line.starts_with("killed ")).collect();
        let mut expected =
            vec!["before 0", "before 1", "before 2", "after 0", "after 1", "after 2"];
        if exists {
            expected.insert(0, "old");
        }
        assert_eq!(lines, expected, "{when}: {shown:?}");
        arrives(&cluster, &name, &text);
    }
}
in_both_modes!(live_files_of_two_appenders_one_killed);

/// A line is appended and closed while another process, which wrote nothing, has the file open and is killed.
fn live_files_of_an_idle_appender_that_is_killed(io: Io) {
    let cluster = Cluster::two(io);
    for exists in [false, true] {
        for lines in [1, 3] {
            let name = format!("{exists}{lines}");
            let path = cluster.a.at(&name);
            let mut expected = String::new();
            if exists {
                expected.push_str("old\n");
                SyscallProcess::new().put(&path, expected.as_bytes()).must("put");
            }
            let mut idle = SyscallProcess::new();
            idle.open(&path, APPEND, 0o644).must("open to append");
            for k in 0..lines {
                let line = format!("line {k}\n");
                let mut other = SyscallProcess::new();
                other.put_with(&path, APPEND, 1 << 16, 0, line.as_bytes()).must("append");
                expected.push_str(&line);
            }
            idle.kill(Signal::KILL);
            let read = SyscallProcess::new().get(&path);
            let shown = read.map(|read| String::from_utf8_lossy(&read).into_owned());
            assert_eq!(shown, Ok(expected.clone()), "{name}");
            arrives(&cluster, &name, expected.as_bytes());
        }
    }
}
in_both_modes!(live_files_of_an_idle_appender_that_is_killed);

const COUNT: &str = include_str!("../programs/count.py");
const MATRIX: &str = include_str!("../programs/lock_matrix.py");
const SQLITE: &str = include_str!("../programs/sqlite_writers.py");

/// Starts a Python program with these arguments.
fn python(program: &str, args: &[&str]) -> Command {
    let mut command = Command::new("python3");
    command.args(["-c", program]).args(args);
    command
}

/// Two processes that have the file open for update count in it under `fcntl` locks: no count is lost.
fn live_files_that_two_count_in(io: Io) {
    if !need(&format!("live_files_that_two_count_in::{}", io.word()), "python3") {
        return;
    }
    let cluster = Cluster::two(io);
    for how in ["kept", "reopened", "mixed"] {
        let path = cluster.a.at(how);
        std::fs::write(&path, "0").must("begin the count");
        let said = run(&mut python(COUNT, &[&path.to_string_lossy(), how, "300"]), LIMIT_MS);
        assert_eq!(said.good().trim(), "600", "counts, {how}");
        assert_eq!(std::fs::read_to_string(&path).must("read"), "600", "{how}, after both ended");
        arrives(&cluster, how, b"600");
    }
}
in_both_modes!(live_files_that_two_count_in);

/// Reports whether docs/semantics.md excludes a combination from its promise: record locks of a
/// process that only reads and of one that writes, which has a version of its own.
fn is_record_of_a_reader(line: &str) -> bool {
    let words: Vec<&str> = line.split(' ').collect();
    !words[0].starts_with("flock") && (words[2] == "r") != (words[3] == "r")
}

/// Every pair of lock kinds and open modes behaves as in a plain directory, except those that are not promised.
fn live_files_lock_like_plain_ones(io: Io) {
    if !need(&format!("live_files_lock_like_plain_ones::{}", io.word()), "python3") {
        return;
    }
    let (node, site) = alone(io);
    let ask = |dir: &Path| -> Vec<String> {
        let said = run(&mut python(MATRIX, &[&dir.to_string_lossy()]), LIMIT_MS).good();
        said.lines().map(str::to_owned).collect()
    };
    let (plain, here) = (ask(&site.dir("plain")), ask(&node.mount));
    assert!(plain.len() > 1_000, "only {} combinations", plain.len());
    assert_eq!(plain.len(), here.len());
    let apart: Vec<String> = plain
        .iter()
        .zip(&here)
        .filter(|(plain, here)| plain != here && !is_record_of_a_reader(plain))
        .map(|(plain, here)| format!("plain {plain} / here {here}"))
        .collect();
    let some = &apart[..apart.len().min(12)];
    assert!(apart.is_empty(), "{} of {} differ:\n{}", apart.len(), plain.len(), some.join("\n"));
}
in_both_modes!(live_files_lock_like_plain_ones);

/// Two processes insert 500 rows each into one sqlite database, in both journal modes: all rows are there.
fn live_files_of_sqlite(io: Io) {
    if !need(&format!("live_files_of_sqlite::{}", io.word()), "python3") {
        return;
    }
    let cluster = Cluster::two(io);
    for mode in ["wal", "delete"] {
        let dir = cluster.a.at(mode);
        std::fs::create_dir(&dir).must("mkdir");
        let path = dir.join("db");
        let said = run(&mut python(SQLITE, &[&path.to_string_lossy(), mode, "500"]), LIMIT_MS);
        assert_eq!(said.good().trim(), "1000 ok", "{mode}");
    }
}
in_both_modes!(live_files_of_sqlite);

/// Two nodes write one path in place concurrently while the machine is busy: every open succeeds,
/// and every read is of a whole version.
fn live_files_of_two_busy_nodes(io: Io) {
    const WRITERS: u32 = 2;
    const BURNERS: usize = 6;
    const BUSY_MS: u64 = 4_000;
    const NAMES: [&str; 2] = ["graph.pb", "flags.json"];
    let options = Options::new(io).delay("10ms").freshness("100ms");
    let cluster = Cluster::with(Store::dir, &options);
    let over = Arc::new(AtomicBool::new(false));
    let burners: Vec<_> = (0..BURNERS)
        .map(|_| {
            let over = Arc::clone(&over);
            thread(move || {
                let mut sum = 0_u64;
                while !over.load(Ordering::Relaxed) {
                    sum = std::hint::black_box(sum.wrapping_mul(31).wrapping_add(7));
                }
            })
        })
        .collect();
    let mut workers = Vec::new();
    for (k, mount) in [&cluster.a.mount, &cluster.b.mount].into_iter().enumerate() {
        for writer in 0..WRITERS {
            let number = k as u32 * WRITERS + writer;
            let paths = NAMES.map(|name| mount.join(name));
            workers.push(thread(move || busy(number, &paths, BUSY_MS)));
        }
    }
    let results: Vec<_> = workers.into_iter().map(std::thread::JoinHandle::join).collect();
    over.store(true, Ordering::Relaxed);
    for burner in burners {
        burner.join().must("a burner");
    }
    let faults: Vec<String> =
        results.into_iter().flat_map(|faults| faults.must("a worker")).collect();
    let some = &faults[..faults.len().min(8)];
    assert!(faults.is_empty(), "{} faults, such as {some:#?}", faults.len());
    cluster.settle();
    crate::harness::tree::converge(&cluster.a.mount, &cluster.b.mount, 15_000);
}
in_both_modes!(live_files_of_two_busy_nodes);

/// Writes the names in place, also as empty files, while another process reads them and keeps the
/// last one open; returns the errors.
fn busy(number: u32, paths: &[PathBuf; 2], ms: u64) -> Vec<String> {
    let (mut process, mut reader) = (SyscallProcess::new(), SyscallProcess::new());
    let (mut faults, mut seq, mut kept) = (Vec::new(), 0, None);
    let mut dice = body::Dice::new(u64::from(number));
    let start = now();
    while start.elapsed() < Duration::from_millis(ms) {
        let path = &paths[dice.below(2) as usize];
        seq += 1;
        let mut bytes = body::make(Id { writer: number, seq }, dice.len(BUSY_LEN_MAX));
        if dice.below(4) == 0 {
            bytes.clear();
        }
        if let Err(errno) = process.put_with(path, IN_PLACE, 1 << 15, 0, &bytes) {
            faults.push(format!("writer {number}: open, write and close in place: {errno}"));
        }
        let opened = reader.open(path, OFlags::RDONLY, 0);
        let read = opened.and_then(|fd| {
            if let Some(before) = kept.replace(fd) {
                reader.close(before)?;
            }
            reader.read(fd, 0, BUSY_LEN_MAX + 1)
        });
        match read {
            Ok(read) if read.is_empty() => {}
            Ok(read) => faults.extend(body::check(&read).err()),
            Err(errno) => faults.push(format!("writer {number}: read: {errno}")),
        }
    }
    faults
}
