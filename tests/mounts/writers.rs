//! Several writers of one file: by its name, by another of its names, and while it is being closed.

use std::path::Path;
use std::time::Duration;

use rustix::fs::OFlags;
use rustix::io::Errno;

use crate::harness::body::{self, Dice, Id};
use crate::harness::node::Alone;
use crate::harness::time::thread;
use crate::harness::{Io, Must as _, Options, SyscallProcess, in_both_modes, now, sleep_ms};

/// The number of processes that storm the names of a directory.
const STORMERS: u32 = 6;
const STORMED: [&str; 4] = ["first", "second", "third", "fourth"];
const STORM_MS: u64 = 4_000;
const STORMED_LEN_MAX: usize = 20_000;
/// How many times a single writer repeats its calls.
const SEQUENCES: usize = 600;

/// A file with several names is written through any of them, and all lead to the new content.
fn writers_by_any_name_of_a_file(io: Io) {
    let alone = Alone::new(io);
    let (mut process, mut reader) = (SyscallProcess::new(), SyscallProcess::new());
    let (first, second) = (alone.at("first"), alone.at("second"));
    process.put(&first, b"old text").must("put");
    process.link(&first, &second).must("link");
    let fd =
        process.open(&second, OFlags::RDWR | OFlags::CREATE, 0o644).must("open the second name");
    process.pwrite(fd, 0, b"new").must("write");
    for name in [&first, &second] {
        assert_eq!(process.get(name).must("read own bytes"), b"new text");
        assert_eq!(reader.get(name).must("read"), b"old text");
    }
    process.close(fd).must("close");
    for name in [&first, &second] {
        assert_eq!(reader.get(name).must("read"), b"new text");
    }
    process.put(&second, b"anew").must("replace through the second name");
    assert_eq!(reader.get(&first).must("read"), b"anew");
    reader.truncate(&second, 2).must("cut it through the second name");
    assert_eq!(process.get(&first).must("read"), b"an");
    let (one, other) = (process.stat(&first).must("stat"), process.stat(&second).must("stat"));
    assert_eq!((one.ino, one.nlink), (other.ino, 2));
}
in_both_modes!(writers_by_any_name_of_a_file);

/// A process that truncates a file by its name while another writes it truncates what is being
/// written, and publishes nothing of the other's.
fn writers_whose_file_is_truncated_by_name(io: Io) {
    let alone = Alone::new(io);
    let (mut writer, mut cutter, mut reader) =
        (SyscallProcess::new(), SyscallProcess::new(), SyscallProcess::new());
    let path = alone.at("file");
    writer.put(&path, b"0123456789").must("put");
    let fd = writer.open(&path, OFlags::RDWR, 0).must("open");
    writer.pwrite(fd, 0, b"not yet").must("write");
    cutter.truncate(&path, 5).must("cut");
    assert_eq!(reader.get(&path).must("read"), b"0123456789");
    writer.pwrite(fd, 0, b"NOW").must("write on");
    writer.close(fd).must("close");
    assert_eq!(reader.get(&path).must("read"), b"NOW y");
}
in_both_modes!(writers_whose_file_is_truncated_by_name);

/// A file that is truncated by its name, while the descriptor that published it is open, stays
/// whole for its readers.
fn writers_and_readers_of_truncated_files(io: Io) {
    let alone = Alone::new(io);
    let (mut writer, mut cutter, mut reader) =
        (SyscallProcess::new(), SyscallProcess::new(), SyscallProcess::new());
    let path = alone.at("file");
    let fd = writer.open(&path, OFlags::RDWR | OFlags::CREATE, 0o644).must("create");
    let kept = writer.dup(fd).must("dup");
    writer.write(fd, b"0123456789").must("write");
    writer.close(fd).must("close, which publishes");
    let reading = reader.open(&path, OFlags::RDONLY, 0).must("open");
    cutter.truncate(&path, 5).must("cut");
    assert_eq!(reader.read(reading, 0, 100).must("read"), b"0123456789");
    assert_eq!(reader.get(&path).must("read again"), b"01234");
    writer.close(kept).must("close the other descriptor");
    assert_eq!(reader.get(&path).must("read again"), b"01234");
}
in_both_modes!(writers_and_readers_of_truncated_files);

/// A process that opens a file for writing while another closes it starts from what was closed, and
/// leaves it whole.
fn writers_that_open_a_file_during_its_publish(io: Io) {
    /// Large enough that digesting it takes a while; it is sparse.
    const BYTES: u64 = 512 << 20;
    // On a busy machine digesting takes longer than the default wait of callers.
    let alone = Alone::with(Options::new(io).deadline("60s"));
    let (mut writer, mut late, mut reader) =
        (SyscallProcess::new(), SyscallProcess::new(), SyscallProcess::new());
    let path = alone.at("large");
    let fd = writer.open(&path, OFlags::RDWR | OFlags::CREATE, 0o644).must("create");
    writer.pwrite(fd, 0, b"closed").must("write");
    writer.ftruncate(fd, BYTES).must("grow");
    std::thread::scope(|scope| {
        let closing = scope.spawn(|| writer.close(fd));
        sleep_ms(60);
        let fd = late.open(&path, OFlags::RDWR, 0).must("open meanwhile");
        late.pwrite(fd, 0, b"unclosed").must("write meanwhile");
        closing.join().must("join").must("close");
        let reading = reader.open(&path, OFlags::RDONLY, 0).must("open to read");
        assert_eq!(reader.read(reading, 0, 8).must("read"), b"closed\0\0");
        late.close(fd).must("close");
        assert_eq!(reader.read(reading, 0, 8).must("read"), b"closed\0\0");
    });
    let fd = reader.open(&path, OFlags::RDONLY, 0).must("open to read");
    assert_eq!(reader.read(fd, 0, 8).must("read"), b"unclosed");
    assert_eq!(reader.fstat(fd).must("stat").size, BYTES);
}
in_both_modes!(writers_that_open_a_file_during_its_publish);

/// What is stored through a mapping of a file that is open for append goes to its place in the mapping.
fn writers_that_append_and_map(io: Io) {
    let alone = Alone::new(io);
    let mut process = SyscallProcess::new();
    for (name, there) in [("new", false), ("empty", true)] {
        let path = alone.at(name);
        if there {
            process.put(&path, b"").must("put nothing");
        }
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::APPEND;
        let fd = process.open(&path, flags, 0o644).must("open to append");
        process.write(fd, &[b'.'; 10_000]).must("append");
        let map = process.map(fd, 10_000, true, true).must("map");
        process.map_write(map, 5_000, b"stored");
        process.msync(map).must("msync");
        process.write(fd, b"end").must("append");
        process.unmap(map).must("unmap");
        process.close(fd).must("close");
        let mut expected = vec![b'.'; 10_000];
        expected[5_000..5_006].copy_from_slice(b"stored");
        expected.extend_from_slice(b"end");
        assert!(process.get(&path).must("read") == expected, "{name}");
    }
}
in_both_modes!(writers_that_append_and_map);

/// Several writers, one after the other, each on files of its own: each finds the effects of the
/// calls before, although the kernel reports the end of a descriptor only later. All write the same
/// bytes, which are kept once.
fn writers_see_the_effects_of_earlier_calls(io: Io) {
    let alone = Alone::new(io);
    let workers: Vec<_> = (0..3)
        .map(|number| {
            let dir = alone.at(&format!("w{number}"));
            thread(move || {
                let mut process = SyscallProcess::new();
                process.mkdir(&dir).must("mkdir");
                for round in 0..SEQUENCES {
                    let at = dir.join(format!("f{}", round % 9));
                    let body = vec![b'q'; if round % 2 == 0 { 1 } else { 5_000 }];
                    process.put(&at, &body).must("put");
                    process.truncate(&at, 3).must("cut it");
                    let mut wanted = [&body[..body.len().min(3)], b"\0\0\0"].concat();
                    wanted.truncate(3);
                    assert_eq!(process.get(&at).must("read"), wanted, "round {round}, cut");
                    let fd = process.open(&at, OFlags::WRONLY | OFlags::APPEND, 0).must("open");
                    process.write(fd, b"A").must("append");
                    process.close(fd).must("close");
                    wanted.push(b'A');
                    assert_eq!(process.get(&at).must("read"), wanted, "round {round}, appended");
                    process.truncate(&at, 2).must("cut it again");
                    assert_eq!(
                        process.get(&at).must("read"),
                        wanted[..2],
                        "round {round}, cut again"
                    );
                    process.unlink(&at).must("unlink");
                }
            })
        })
        .collect();
    for worker in workers {
        worker.join().must("a worker");
    }
}
in_both_modes!(writers_see_the_effects_of_earlier_calls);

/// Many processes replace, rename over, remove, truncate and read the same few names: each open
/// finds a whole version or no file, and creating is never refused.
fn writers_that_storm_a_few_names(io: Io) {
    storm(&Alone::new(io));
}
in_both_modes!(writers_that_storm_a_few_names);

/// The same with processes that are not visible to the daemon. Then there is no passthrough.
#[test]
fn writers_not_visible_that_storm_a_few_names() {
    let test = "writers_not_visible_that_storm_a_few_names";
    if !crate::harness::is_root() {
        crate::harness::skipped(test, "unshare --pid needs root");
        return;
    }
    if crate::harness::command::need(test, "unshare") {
        let words = ["unshare", "--pid", "--fork", "--kill-child"];
        storm(&Alone::with(Options::new(Io::Ordinary).wrapped(&words)));
    }
}

fn storm(alone: &Alone) {
    let stormers: Vec<_> = (1..=STORMERS)
        .map(|number| {
            let mount = alone.node.mount.clone();
            thread(move || rage(&mut SyscallProcess::new(), &mount, number))
        })
        .collect();
    let (mut reads, mut faults) = (0, Vec::new());
    for stormer in stormers {
        let (read, found) = stormer.join().must("a stormer");
        reads += read;
        faults.extend(found);
    }
    let some = &faults[..faults.len().min(8)];
    assert!(faults.is_empty(), "{} faults, such as {some:#?}", faults.len());
    assert!(reads > 50, "too little was done: {reads} files read");
}

/// Performs one operation after another on the names; returns how many times a file was read, and the errors.
fn rage(process: &mut SyscallProcess, mount: &Path, number: u32) -> (u32, Vec<String>) {
    let (mut dice, mut reads, mut faults) = (Dice::new(u64::from(number)), 0, Vec::new());
    let mine = mount.join(format!("temporary {number}"));
    let (start, mut seq) = (now(), 0);
    while start.elapsed() < Duration::from_millis(STORM_MS) {
        let pick = |dice: &mut Dice| mount.join(STORMED[dice.below(STORMED.len() as u64) as usize]);
        let path = pick(&mut dice);
        seq += 1;
        let bytes = body::make(Id { writer: number, seq }, dice.len(STORMED_LEN_MAX));
        // A process that opens a file which another writes takes part in writing it, and sees its
        // bytes: so no process does both.
        let updates = number.is_multiple_of(3);
        let (what, may_miss, done) = match dice.below(12) {
            0..3 if !updates => ("write in place", false, process.put(&path, &bytes)),
            3 | 4 => {
                let made = process.put(&mine, &bytes);
                ("rename over", false, made.and_then(|()| process.rename(&mine, &path)))
            }
            5 => ("unlink", true, process.unlink(&path)),
            6 => ("rename", true, process.rename(&path, &pick(&mut dice))),
            7 => ("stat", true, process.stat(&path).map(drop)),
            0..3 | 8.. if updates => {
                let opened = process.open(&path, OFlags::RDWR, 0);
                ("open to update", true, opened.and_then(|fd| process.close(fd)))
            }
            _ => {
                let read = process.get(&path);
                let checked = read.map(|bytes| body::check(&bytes));
                reads += u32::from(checked.is_ok());
                if let Ok(Err(fault)) = &checked {
                    faults.push(format!("read: {fault}"));
                }
                ("read", true, checked.map(drop))
            }
        };
        match done {
            Err(Errno::NOENT) if may_miss => {}
            Err(errno) => faults.push(format!("{what}: {errno:?}")),
            Ok(()) => {}
        }
    }
    (reads, faults)
}
