//! Which process sees what, and when: the rules of writing, one by one, on one node without a remote.

use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

use rustix::fs::OFlags;
use rustix::io::Errno;

use crate::harness::body::{self, Id};
use crate::harness::node::Alone;
use crate::harness::syscall_process::{CREATE_NEW, IN_PLACE, SCRATCH};
use crate::harness::{Io, Must as _, Options, SyscallProcess, in_both_modes, now, tree};

const READ_WRITE: OFlags = OFlags::RDWR.union(OFlags::CREATE);

fn whole(id: u64, len: usize) -> Vec<u8> {
    body::make(Id { writer: 1, seq: id }, len)
}

fn elapsed_ms(since: std::time::Instant) -> u64 {
    since.elapsed().as_millis() as u64
}

/// Rule 1: the name is there at once; `O_EXCL` has one winner.
fn visibility_1_create_shows_the_name_and_has_one_winner(io: Io) {
    let alone = Alone::new(io);
    let mut processes: Vec<SyscallProcess> = (0..6).map(|_| SyscallProcess::new()).collect();
    for round in 0..20 {
        let path = alone.at(&format!("lock{round}"));
        let mut winners = 0;
        std::thread::scope(|scope| {
            let path = &path;
            let tries: Vec<_> = processes
                .iter_mut()
                .map(|process| scope.spawn(move || process.open(path, CREATE_NEW, 0o644)))
                .collect();
            for tried in tries {
                match tried.join().must("a try") {
                    Ok(_) => winners += 1,
                    Err(errno) => assert_eq!(errno, Errno::EXIST),
                }
            }
        });
        assert_eq!(winners, 1, "winners of round {round}");
        let stat =
            SyscallProcess::new().stat(&path).must("stat by another process, before any close");
        assert_eq!((stat.size, stat.nlink), (0, 1));
        assert!(tree::texts(&alone.node.mount).contains(&format!("lock{round}")));
    }
}
in_both_modes!(visibility_1_create_shows_the_name_and_has_one_winner);

/// Rule 2: writers of one generation see each other's bytes.
fn visibility_2_writers_join_one_generation(io: Io) {
    let alone = Alone::new(io);
    let path = alone.at("joined");
    let (mut one, mut other) = (SyscallProcess::new(), SyscallProcess::new());
    let first = one.open(&path, READ_WRITE, 0o644).must("create");
    one.pwrite(first, 0, b"from one....").must("write");
    let second = other.open(&path, READ_WRITE, 0o644).must("join");
    assert_eq!(other.read(second, 0, 100).must("read"), b"from one....");
    other.pwrite(second, 8, b"and other").must("write");
    assert_eq!(one.read(first, 0, 100).must("read"), b"from oneand other");
    assert_eq!(one.fstat(first).must("fstat").size, 17);
    one.close(first).must("close");
    other.close(second).must("close");
    assert_eq!(std::fs::read(&path).must("read"), b"from oneand other");
}
in_both_modes!(visibility_2_writers_join_one_generation);

/// Rule 2: two processes that write one name in place never interleave, and the last close wins.
fn visibility_2_emptying_by_another_process_starts_anew(io: Io) {
    let alone = Alone::new(io);
    for (round, old) in [false, true].into_iter().enumerate() {
        let path = alone.at(&format!("entry{round}"));
        if old {
            SyscallProcess::new().put(&path, &whole(0, 5_000)).must("an old version");
        }
        let (mut one, mut other) = (SyscallProcess::new(), SyscallProcess::new());
        let (mine, theirs) = (whole(1, 300_000), whole(2, 200_000));
        let first = one.open(&path, IN_PLACE, 0o644).must("one opens");
        one.write(first, &mine[..150_000]).must("one writes half");
        let second = other.open(&path, IN_PLACE, 0o644).must("other opens");
        other.write(second, &theirs[..100_000]).must("other writes half");
        one.write(first, &mine[150_000..]).must("one writes the rest");
        other.write(second, &theirs[100_000..]).must("other writes the rest");
        one.close(first).must("one closes");
        assert!(std::fs::read(&path).must("read") == mine, "after one's close, old {old}");
        other.close(second).must("other closes");
        assert!(std::fs::read(&path).must("read") == theirs, "after other's close, old {old}");
    }
}
in_both_modes!(visibility_2_emptying_by_another_process_starts_anew);

/// Rule 2: the same process may truncate its own file again, and continues in the same generation.
fn visibility_2_emptying_by_the_same_process_is_the_same_file(io: Io) {
    let alone = Alone::new(io);
    let (path, mut process) = (alone.at("twice"), SyscallProcess::new());
    let first = process.open(&path, IN_PLACE, 0o644).must("open");
    process.write(first, &[b'a'; 10_000]).must("write");
    let second = process.open(&path, IN_PLACE, 0o644).must("open and empty again");
    assert_eq!(process.fstat(first).must("fstat").size, 0);
    process.write(second, b"short").must("write");
    process.close(first).must("close");
    process.close(second).must("close");
    assert_eq!(std::fs::read(&path).must("read"), b"short");
}
in_both_modes!(visibility_2_emptying_by_the_same_process_is_the_same_file);

/// Rule 3: a reader of a file that was never published waits for the publish.
fn visibility_3_a_reader_waits_for_the_first_publish(io: Io) {
    let alone = Alone::with(Options::new(io).alone());
    let (path, bytes) = (alone.at("first"), whole(1, 100_000));
    let mut writer = SyscallProcess::new();
    let fd = writer.open(&path, IN_PLACE, 0o644).must("create");
    writer.write(fd, &bytes[..50_000]).must("write half");
    let reader = {
        let path = path.clone();
        crate::harness::time::thread(move || {
            let start = now();
            (SyscallProcess::new().get(&path), elapsed_ms(start))
        })
    };
    crate::harness::sleep_ms(600);
    writer.write(fd, &bytes[50_000..]).must("write the rest");
    writer.close(fd).must("close");
    let (read, waited_ms) = reader.join().must("the reader");
    assert!(read == Ok(bytes), "the reader got other bytes");
    assert!((500..4_000).contains(&waited_ms), "the reader waited {waited_ms} ms");
}
in_both_modes!(visibility_3_a_reader_waits_for_the_first_publish);

/// Rule 3: the wait is bounded, and after it the file does not exist.
fn visibility_3_the_wait_ends_with_enoent(io: Io) {
    let alone = Alone::with(Options::new(io).alone().open_wait("1s"));
    let path = alone.at("never");
    let mut writer = SyscallProcess::new();
    let fd = writer.open(&path, IN_PLACE, 0o644).must("create");
    writer.write(fd, &[1; 5_000]).must("write");
    let start = now();
    assert_eq!(SyscallProcess::new().get(&path), Err(Errno::NOENT));
    let waited_ms = elapsed_ms(start);
    assert!((800..3_000).contains(&waited_ms), "waited {waited_ms} ms");
    writer.close(fd).must("close");
    assert_eq!(SyscallProcess::new().get(&path).must("read after the close").len(), 5_000);
}
in_both_modes!(visibility_3_the_wait_ends_with_enoent);

/// Rule 3: a writer sees its own bytes; other processes see the published ones.
fn visibility_3_the_writer_sees_its_own_bytes(io: Io) {
    let alone = Alone::new(io);
    let path = alone.at("own");
    let (mut writer, mut other) = (SyscallProcess::new(), SyscallProcess::new());
    writer.put(&path, b"the old version").must("publish");
    let fd = writer.open(&path, IN_PLACE, 0o644).must("open");
    writer.write(fd, b"new").must("write");
    assert_eq!(writer.get(&path).must("own bytes"), b"new");
    assert_eq!(other.get(&path).must("published bytes"), b"the old version");
    assert_eq!(writer.get(&path).must("own bytes, again"), b"new");
    writer.close(fd).must("close");
    assert_eq!(other.get(&path).must("published bytes"), b"new");
}
in_both_modes!(visibility_3_the_writer_sees_its_own_bytes);

/// Rule 4: when `close()` has returned, all processes read the new version; duplicates are one handle.
fn visibility_4_publish_is_done_when_close_returns(io: Io) {
    let alone = Alone::new(io);
    let (mut writer, mut reader) = (SyscallProcess::new(), SyscallProcess::new());
    for seq in 0..50 {
        let (path, bytes) =
            (alone.at(&format!("n{}", seq % 3)), whole(seq, 64 + 3_000 * seq as usize));
        let fd = writer.open(&path, IN_PLACE, 0o644).must("open");
        writer.write(fd, &bytes).must("write");
        let twin = writer.dup(fd).must("dup");
        writer.close(fd).must("close the first");
        writer.close(twin).must("close the second");
        assert!(reader.get(&path) == Ok(bytes), "version {seq} is not read after its close");
    }
}
in_both_modes!(visibility_4_publish_is_done_when_close_returns);

/// Rule 4: several programs inherit and write one descriptor, as in shells.
fn visibility_4_shell_redirections_keep_every_byte(io: Io) {
    let alone = Alone::new(io);
    let script =
        "{ echo one; sh -c 'echo two'; (echo three; sleep 0.2; echo four); } > out; cat out";
    let mut shell = std::process::Command::new("sh");
    shell.args(["-c", script]).current_dir(&alone.node.mount);
    let said = crate::harness::command::run(&mut shell, 20_000);
    assert_eq!(said.good(), "one\ntwo\nthree\nfour\n");
    let script = "echo a > log; for i in 1 2 3; do echo $i >> log; done; cat log; \
                  sh -c 'echo x; echo y >&2' > both 2>&1; cat both; echo z > both; cat both";
    let mut shell = std::process::Command::new("sh");
    shell.args(["-c", script]).current_dir(&alone.node.mount);
    let said = crate::harness::command::run(&mut shell, 20_000);
    assert_eq!(said.good(), "a\n1\n2\n3\nx\ny\nz\n");
}
in_both_modes!(visibility_4_shell_redirections_keep_every_byte);

/// Rule 4: a child that inherits the descriptor and exits does not end the parent's writing.
fn visibility_4_a_child_that_exits_is_not_the_last_close(io: Io) {
    let alone = Alone::new(io);
    let (path, bytes, mut process) = (alone.at("parent"), whole(1, 400_000), SyscallProcess::new());
    let fd = process.open(&path, IN_PLACE, 0o644).must("open");
    for piece in bytes.chunks(100_000) {
        process.write(fd, piece).must("write");
        process.spawn_and_exit(0);
    }
    process.close(fd).must("close");
    assert!(std::fs::read(&path).must("read") == bytes);
}
in_both_modes!(visibility_4_a_child_that_exits_is_not_the_last_close);

/// Rule 5: writing starts from the published version, in private, and opening for writing is not writing.
fn visibility_5_writing_begins_from_what_is_published(io: Io) {
    let alone = Alone::new(io);
    let (mut writer, mut reader) = (SyscallProcess::new(), SyscallProcess::new());
    let path = alone.at("entry");
    writer.put(&path, b"first version").must("put");
    let published = || alone.node.status()["counters"]["published"].as_u64().must("a count");
    let look = |process: &mut SyscallProcess| {
        let about = process.stat(&path).must("stat");
        (published(), about.size, about.mtime_s, about.mtime_ns)
    };
    let before = look(&mut reader);
    for flags in [OFlags::RDWR, OFlags::WRONLY | OFlags::APPEND] {
        let fd = writer.open(&path, flags, 0).must("open and write nothing");
        writer.close(fd).must("close");
    }
    assert_eq!(look(&mut reader), before);
    let fd = writer.open(&path, OFlags::RDWR, 0).must("open");
    assert_eq!(writer.read(fd, 0, 100).must("read"), b"first version");
    writer.pwrite(fd, 0, b"other").must("write");
    assert_eq!(writer.read(fd, 0, 100).must("read"), b"other version");
    assert_eq!(reader.get(&path).must("read"), b"first version");
    writer.close(fd).must("close");
    assert_eq!(reader.get(&path).must("read"), b"other version");
    let fd = writer.open(&path, OFlags::WRONLY | OFlags::TRUNC, 0).must("empty it");
    assert_eq!(reader.get(&path).must("read"), b"other version");
    writer.close(fd).must("close");
    assert_eq!(reader.get(&path).must("read"), b"");
    assert_eq!(published(), before.0 + 2);
}
in_both_modes!(visibility_5_writing_begins_from_what_is_published);

/// Rule 6: renaming an open file, and over an open file.
fn visibility_6_rename_of_and_over_open_files(io: Io) {
    let alone = Alone::new(io);
    let (tmp, name) = (alone.at("x.tmp"), alone.at("x"));
    let mut process = SyscallProcess::new();
    let fd = process.open(&tmp, CREATE_NEW, 0o600).must("create");
    process.write(fd, b"before ").must("write");
    process.rename(&tmp, &name).must("rename while open");
    process.write(fd, b"after").must("write on");
    process.close(fd).must("close");
    assert_eq!(std::fs::read(&name).must("read"), b"before after");
    assert!(!tmp.exists(), "the temporary is gone");

    let mut reader = SyscallProcess::new();
    let held = reader.open(&name, OFlags::RDONLY, 0).must("open");
    process.put(&tmp, b"replacement").must("write");
    process.rename(&tmp, &name).must("rename over an open file");
    assert_eq!(reader.read(held, 0, 100).must("read the held one"), b"before after");
    assert_eq!(reader.get(&name).must("read the new one"), b"replacement");
    assert_eq!(tree::texts(&alone.node.mount), ["x"]);
}
in_both_modes!(visibility_6_rename_of_and_over_open_files);

/// Rule 6: directories, flags, and the errors that programs rely on.
fn visibility_6_rename_of_directories_and_flags(io: Io) {
    let alone = Alone::new(io);
    let mut process = SyscallProcess::new();
    let at = |name: &str| alone.at(name);
    let (d, e, f) = (at("d"), at("e"), at("f"));
    for dir in [&d, &e, &f] {
        process.mkdir(dir).must("mkdir");
    }
    process.put(&at("d/one"), b"1").must("put");
    process.put(&at("f/two"), b"2").must("put");
    process.rename(&d, &e).must("rename a directory onto an empty one");
    assert_eq!(process.get(&at("e/one")).must("read"), b"1");
    assert_eq!(process.rename(&e, &f), Err(Errno::NOTEMPTY));
    assert_eq!(process.rmdir(&f), Err(Errno::NOTEMPTY));
    process.rename(&e, &at("g")).must("rename a directory onto a missing name");
    assert_eq!(process.rename(&at("g"), &at("g/inside")), Err(Errno::INVAL));
    assert_eq!(process.rename(&at("g"), &at("f/two")), Err(Errno::NOTDIR));
    assert_eq!(process.rename(&at("f/two"), &at("g")), Err(Errno::ISDIR));
    assert_eq!(process.rename(&at("nothing"), &at("h")), Err(Errno::NOENT));
    assert_eq!(process.rename_with(&at("f/two"), &at("g/one"), 1), Err(Errno::EXIST));
    process.rename_with(&at("f/two"), &at("g/two"), 1).must("NOREPLACE onto nothing");
    process.rename_with(&at("g/one"), &at("g/two"), 2).must("EXCHANGE");
    assert_eq!(process.get(&at("g/one")).must("read"), b"2");
    assert_eq!(process.get(&at("g/two")).must("read"), b"1");
    process.rename_with(&at("f"), &at("g"), 2).must("EXCHANGE of directories");
    assert_eq!(process.get(&at("f/one")).must("read"), b"2");
    assert_eq!(process.rename_with(&at("g"), &at("none"), 2), Err(Errno::NOENT));
    process.rmdir(&at("g")).must("rmdir of the empty one");
    assert_eq!(process.rmdir(&at("g")), Err(Errno::NOENT));
    assert_eq!(tree::texts(&alone.node.mount), ["f"]);
}
in_both_modes!(visibility_6_rename_of_directories_and_flags);

/// Rule 6: unlink of open files: still readable and writable, gone from the directory, link count 0.
fn visibility_6_unlink_of_open_files(io: Io) {
    let alone = Alone::new(io);
    let (path, mut process, mut other) =
        (alone.at("u"), SyscallProcess::new(), SyscallProcess::new());
    process.put(&path, &whole(1, 50_000)).must("put");
    let reading = other.open(&path, OFlags::RDONLY, 0).must("open to read");
    let writing = process.open(&path, OFlags::RDWR, 0).must("open to write");
    process.pwrite(writing, 0, b"changed").must("write");
    process.unlink(&path).must("unlink");
    assert_eq!(process.fstat(writing).must("fstat").nlink, 0);
    assert_eq!(other.fstat(reading).must("fstat").nlink, 0);
    assert!(tree::texts(&alone.node.mount).is_empty(), "the directory is empty");
    assert_eq!(process.get(&path), Err(Errno::NOENT));
    assert!(other.read(reading, 0, 60_000).must("read") == whole(1, 50_000));
    process.pwrite(writing, 50_000, b"more").must("write on");
    assert_eq!(process.read(writing, 0, 7).must("read"), b"changed");
    process.put(&path, b"another").must("a new file of that name");
    process.close(writing).must("close the unlinked one");
    assert_eq!(process.get(&path).must("read"), b"another");

    let temporary = alone.at("t");
    let fd = process.open(&temporary, SCRATCH, 0o600).must("create");
    process.unlink(&temporary).must("unlink at once");
    process.write(fd, b"scratch").must("write");
    assert_eq!(process.read(fd, 0, 9).must("read"), b"scratch");
    process.close(fd).must("close");
    assert_eq!(tree::texts(&alone.node.mount), ["u"]);
}
in_both_modes!(visibility_6_unlink_of_open_files);

/// Rule 6: a file that is read and written loses its name at once for both, by an unlink and by a
/// rename over it.
fn visibility_6_links_of_open_files(io: Io) {
    let alone = Alone::new(io);
    let (mut process, mut other) = (SyscallProcess::new(), SyscallProcess::new());
    let (path, new) = (alone.at("file"), alone.at("new"));
    for renames in [false, true] {
        process.put(&path, &whole(1, 50_000)).must("put");
        process.put(&new, b"new").must("put another");
        // By now the kernel may remember the attributes of the published version for long.
        crate::harness::sleep_ms(200);
        let reading = other.open(&path, OFlags::RDONLY, 0).must("open to read");
        assert_eq!(other.fstat(reading).must("fstat").nlink, 1);
        let writing = process.open(&path, OFlags::RDWR, 0).must("open to write");
        process.pwrite(writing, 0, b"changed").must("write");
        if renames {
            process.rename(&new, &path).must("rename over it");
        } else {
            process.unlink(&path).must("unlink");
        }
        assert_eq!(process.fstat(writing).must("fstat").nlink, 0, "the writer, {renames}");
        assert_eq!(other.fstat(reading).must("fstat").nlink, 0, "the reader, {renames}");
        process.close(writing).must("close");
        other.close(reading).must("close");
    }
}
in_both_modes!(visibility_6_links_of_open_files);

/// Rule 7: names, modes, symbolic links, times.
fn visibility_7_attributes_are_kept(io: Io) {
    let alone = Alone::new(io);
    let (path, mut process) = (alone.at("a"), SyscallProcess::new());
    let before = crate::harness::time::wall().as_secs() as i64;
    process.put(&path, b"#!/bin/sh\nexit 7\n").must("put");
    let stat = process.stat(&path).must("stat");
    assert!((before - 2..before + 60).contains(&stat.mtime_s), "written at {}", stat.mtime_s);
    process.chmod(&path, 0o751).must("chmod");
    process.utimes(&path, 1_234_567_890, 123_456_789).must("utimes");
    let stat = process.stat(&path).must("stat");
    assert_eq!(stat.mode & 0o7777, 0o751);
    assert_eq!((stat.mtime_s, stat.mtime_ns), (1_234_567_890, 123_456_789));
    let status = crate::harness::command::run(&mut std::process::Command::new(&path), 10_000);
    assert_eq!(status.code(), 7, "a program runs from the mount");
    process.symlink(Path::new("no/such/target"), &alone.at("s")).must("symlink");
    assert_eq!(process.symlink(Path::new("x"), &alone.at("s")), Err(Errno::EXIST));
    assert_eq!(process.readlink(&alone.at("s")).must("readlink"), b"no/such/target");
    assert_eq!(process.stat(&alone.at("s")), Err(Errno::NOENT));
    assert_eq!(process.lstat(&alone.at("s")).must("lstat").mode & 0o170_000, 0o120_000);
    let fd = process.open(&alone.at("s"), OFlags::RDONLY | OFlags::NOFOLLOW, 0);
    assert_eq!(fd, Err(Errno::LOOP));
    let fd = process.open(&path, OFlags::RDONLY | OFlags::DIRECTORY, 0);
    assert_eq!(fd, Err(Errno::NOTDIR));
}
in_both_modes!(visibility_7_attributes_are_kept);

/// Rule 7: a directory's time moves when its content changes.
fn visibility_7_a_directorys_time_moves(io: Io) {
    let alone = Alone::new(io);
    let (dir, mut process) = (alone.at("dir"), SyscallProcess::new());
    process.mkdir(&dir).must("mkdir");
    let mut last = process.stat(&dir).must("stat");
    let mut moved = |process: &mut SyscallProcess, what: &str| {
        let next = process.stat(&dir).must("stat");
        let (was, is) = ((last.mtime_s, last.mtime_ns), (next.mtime_s, next.mtime_ns));
        assert!(is > was, "{what} did not move the directory's time: {was:?} {is:?}");
        last = next;
    };
    crate::harness::sleep_ms(15);
    process.put(&alone.at("dir/f"), b"1").must("put");
    moved(&mut process, "create");
    crate::harness::sleep_ms(15);
    process.rename(&alone.at("dir/f"), &alone.at("dir/g")).must("rename");
    moved(&mut process, "rename");
    crate::harness::sleep_ms(15);
    process.mkdir(&alone.at("dir/sub")).must("mkdir");
    moved(&mut process, "mkdir");
    crate::harness::sleep_ms(15);
    process.unlink(&alone.at("dir/g")).must("unlink");
    moved(&mut process, "unlink");
    crate::harness::sleep_ms(15);
    process.rmdir(&alone.at("dir/sub")).must("rmdir");
    moved(&mut process, "rmdir");
}
in_both_modes!(visibility_7_a_directorys_time_moves);

/// Rule 8: for callers whose process the daemon cannot see, the same rules hold per handle.
fn visibility_8_callers_in_another_pid_namespace(io: Io) {
    if !crate::harness::is_root() {
        crate::harness::skipped("visibility_8", "unshare --pid needs root");
        return;
    }
    if !crate::harness::command::need("visibility_8", "unshare") {
        return;
    }
    let mut options = Options::new(io).open_wait("1s");
    let inside = ["unshare", "--pid", "--fork", "--kill-child", "--mount-proc"];
    for (callers_inside, daemon_inside) in [(true, false), (false, true)] {
        let callers: &[&str] = if callers_inside { &inside } else { &[] };
        // Without --mount-proc the daemon stays in the test's mount namespace.
        options = options.wrapped(if daemon_inside { &inside[..4] } else { &[] });
        if daemon_inside && io == Io::Passthrough {
            // If no caller is visible there is no passthrough, and requesting it is refused.
            continue;
        }
        let alone = Alone::with(options.clone());
        namespaced_round(&alone, callers);
    }
}
in_both_modes!(visibility_8_callers_in_another_pid_namespace);

fn namespaced_round(alone: &Alone, callers: &[&str]) {
    let (mut one, mut other) = (SyscallProcess::wrapped(callers), SyscallProcess::wrapped(callers));
    let path = alone.at("entry");
    one.put(&path, &whole(1, 150_000)).must("write and close");
    assert!(other.get(&path).must("read") == whole(1, 150_000));
    let (mine, theirs) = (whole(2, 300_000), whole(3, 250_000));
    let first = one.open(&path, IN_PLACE, 0o644).must("one opens");
    one.write(first, &mine[..9_000]).must("one writes");
    let second = other.open(&path, IN_PLACE, 0o644).must("other opens");
    other.write(second, &theirs).must("other writes");
    assert!(SyscallProcess::new().get(&path).must("a third reads") == whole(1, 150_000));
    one.write(first, &mine[9_000..]).must("one writes on");
    other.close(second).must("other closes");
    assert!(SyscallProcess::wrapped(callers).get(&path).must("read") == theirs);
    one.close(first).must("one closes");
    assert!(SyscallProcess::new().get(&path).must("read") == mine);
    one.put(&alone.at("e.tmp"), b"renamed").must("write a temporary");
    one.rename(&alone.at("e.tmp"), &alone.at("e")).must("rename it");
    assert_eq!(other.get(&alone.at("e")).must("read"), b"renamed");
    let lock = one.open(&alone.at("lock"), READ_WRITE, 0o644).must("open a lock file");
    one.flock(lock, 2).must("lock");
    let again = other.open(&alone.at("lock"), READ_WRITE, 0o644).must("open it again");
    assert_eq!(other.flock(again, 2), Err(Errno::AGAIN));
}

/// Rule 12: reads do not change access times that programs have set.
fn visibility_12_reading_moves_no_access_time(io: Io) {
    let alone = Alone::new(io);
    let (mut one, mut other) = (SyscallProcess::new(), SyscallProcess::new());
    let (dir, path) = (alone.at("dir"), alone.at("dir/file"));
    one.mkdir(&dir).must("mkdir");
    one.put(&path, &whole(1, 20_000)).must("put");
    let atime = |path: &Path| {
        let about = std::fs::metadata(path).must("stat");
        (about.atime(), about.atime_nsec())
    };
    let read_all = |one: &mut SyscallProcess, other: &mut SyscallProcess| {
        for process in [one, other] {
            assert!(process.get(&path).must("read") == whole(1, 20_000));
            assert!(process.get_mapped(&path, 0).must("map") == whole(1, 20_000));
        }
        assert_eq!(tree::texts(&dir), ["file"]);
    };
    let at_first = (atime(&dir), atime(&path));
    crate::harness::sleep_ms(15);
    read_all(&mut one, &mut other);
    assert_eq!((atime(&dir), atime(&path)), at_first);
    let set = (1_000_000_000, 123_456_789);
    one.utimes(&path, set.0, set.1).must("set the times");
    read_all(&mut one, &mut other);
    assert_eq!(atime(&path), set);
}
in_both_modes!(visibility_12_reading_moves_no_access_time);
