//! Locks on one node: `flock`, record locks, lock files that several processes hold open.

use std::path::Path;

use rustix::fs::OFlags;
use rustix::io::Errno;
use rustix::process::{Signal, kill_process};

use crate::harness::node::Site;
use crate::harness::syscall_process::{CREATE_NEW, IN_PLACE};
use crate::harness::{
    Cluster, Io, Must as _, Node, Options, SyscallProcess, eventually, in_both_modes, now, sleep_ms,
};

const READ_WRITE: OFlags = OFlags::RDWR.union(OFlags::CREATE);
const EXCLUSIVE: u32 = 2;
const SHARED: u32 = 1;
const UNLOCK: u32 = 8;

/// The ways in which lock libraries open their files.
fn openings() -> [(&'static str, OFlags); 4] {
    [
        ("plain", READ_WRITE),
        ("emptied", READ_WRITE.union(OFlags::TRUNC)),
        ("written", IN_PLACE),
        ("unwaiting", READ_WRITE.union(OFlags::NONBLOCK).union(OFlags::NOFOLLOW)),
    ]
}

fn locks_flock_excludes_between_processes(io: Io) {
    let site = Site::new();
    let node = Node::start(&site, "m", None, Options::new(io));
    for (word, flags) in openings() {
        let path = node.at(format!("{word}.lock"));
        let mut processes: Vec<SyscallProcess> = (0..3).map(|_| SyscallProcess::new()).collect();
        let mut fds = Vec::new();
        for process in &mut processes {
            // Each opens and truncates the file while those before it have it open and one holds the lock.
            let fd = process.open(&path, flags, 0o644).must(format_args!("open {word}"));
            let locked = process.flock(fd, EXCLUSIVE);
            let expected = if fds.is_empty() { Ok(()) } else { Err(Errno::AGAIN) };
            assert_eq!(locked, expected, "{word}, opener {}", fds.len());
            assert_eq!(
                process.fstat(fd).must("fstat").nlink,
                1,
                "lock libraries check the link count"
            );
            fds.push(fd);
        }
        processes[1].begin_flock(fds[1], EXCLUSIVE);
        assert!(processes[1].heard(300).is_none(), "{word}: a second holder");
        processes[0].flock(fds[0], UNLOCK).must("unlock");
        assert_eq!(processes[1].heard(3_000), Some(Ok(())), "{word}: the waiter gets it");
        assert_eq!(processes[0].flock(fds[0], SHARED), Err(Errno::AGAIN), "{word}");
        let second = processes.remove(1);
        second.kill(rustix::process::Signal::KILL);
        processes[0].flock(fds[0], SHARED).must("shared, after the holder was killed");
        processes[1].flock(fds[2], SHARED).must("shared by two");
        assert_eq!(processes[0].stat(&path).must("stat").size, 0, "{word}");
    }
}
in_both_modes!(locks_flock_excludes_between_processes);

/// A lock file that each waiter truncates 20 times a second stays one file for all of them.
fn locks_polling_with_truncation_keeps_one_holder(io: Io) {
    let site = Site::new();
    let node = Node::start(&site, "m", None, Options::new(io));
    let (path, counter) = (node.at("poll.lock"), node.at("count"));
    std::fs::write(&counter, "0").must("begin the count");
    let workers: Vec<_> = (0..4)
        .map(|_| {
            let (path, counter) = (path.clone(), counter.clone());
            crate::harness::time::thread(move || {
                let mut process = SyscallProcess::new();
                let mut done = 0;
                while done < 15 {
                    let fd = process.open(&path, READ_WRITE | OFlags::TRUNC, 0o644).must("open");
                    match process.flock(fd, EXCLUSIVE) {
                        Ok(()) => {
                            let bytes = process.get(&counter).must("read the count");
                            let text = String::from_utf8(bytes).must("text");
                            let next = text.parse::<u32>().must(&text) + 1;
                            process.put(&counter, next.to_string().as_bytes()).must("count");
                            process.flock(fd, UNLOCK).must("unlock");
                            done += 1;
                        }
                        Err(errno) => assert_eq!(errno, Errno::AGAIN),
                    }
                    process.close(fd).must("close");
                }
            })
        })
        .collect();
    for worker in workers {
        worker.join().must("a worker");
    }
    assert_eq!(std::fs::read_to_string(&counter).must("read"), "60", "an update is lost");
}
in_both_modes!(locks_polling_with_truncation_keeps_one_holder);

fn locks_records_exclude_by_range(io: Io) {
    let site = Site::new();
    let node = Node::start(&site, "m", None, Options::new(io));
    let path = node.at("db");
    let (mut one, mut other) = (SyscallProcess::new(), SyscallProcess::new());
    let first = one.open(&path, READ_WRITE, 0o644).must("open");
    let second = other.open(&path, READ_WRITE, 0o644).must("open");
    one.setlk(first, 1, 0, 100).must("lock a range");
    assert!(other.setlk(second, 1, 50, 10).is_err(), "the range is locked");
    other.setlk(second, 1, 100, 10).must("lock another range");
    one.setlk(first, 2, 0, 100).must("unlock");
    other.setlk(second, 0, 0, 100).must("read lock");
    one.setlk(first, 0, 0, 100).must("read lock by two");
    assert!(one.setlk(first, 1, 0, 1).is_err(), "a write lock beside a read lock");
}
in_both_modes!(locks_records_exclude_by_range);

/// Locks by existence: a file made with `O_EXCL`, a symbolic link, a directory, a hard link.
fn locks_by_existence_have_one_winner(io: Io) {
    let site = Site::new();
    let node = Node::start(&site, "m", None, Options::new(io));
    let mount = &node.mount;
    std::fs::write(mount.join("source"), b"x").must("write");
    let mut processes: Vec<SyscallProcess> = (0..4).map(|_| SyscallProcess::new()).collect();
    for round in 0..15 {
        for kind in ["file", "link", "dir", "hard"] {
            let path = mount.join(format!("{kind}{round}"));
            let wins: Vec<Result<(), Errno>> = std::thread::scope(|scope| {
                let path = &path;
                let tries: Vec<_> = processes
                    .iter_mut()
                    .map(|process| {
                        scope.spawn(move || match kind {
                            "file" => process
                                .open(path, CREATE_NEW, 0o644)
                                .and_then(|fd| process.close(fd)),
                            "link" => process.symlink(std::path::Path::new("me"), path),
                            "dir" => process.mkdir(path),
                            _ => process.link(&mount.join("source"), path),
                        })
                    })
                    .collect();
                tries.into_iter().map(|tried| tried.join().must("a try")).collect()
            });
            let winners = wins.iter().filter(|win| win.is_ok()).count();
            assert_eq!(winners, 1, "{kind}{round}: {wins:?}");
            assert!(wins.iter().all(|win| matches!(win, Ok(()) | Err(Errno::EXIST))), "{wins:?}");
        }
    }
}
in_both_modes!(locks_by_existence_have_one_winner);

/// The modes of `open()` in Python.
fn modes() -> [(&'static str, OFlags); 6] {
    let append = OFlags::APPEND.union(OFlags::CREATE);
    [
        ("r", OFlags::RDONLY),
        ("r+", OFlags::RDWR),
        ("a", append.union(OFlags::WRONLY)),
        ("a+", append.union(OFlags::RDWR)),
        ("w", IN_PLACE),
        ("w+", READ_WRITE.union(OFlags::TRUNC)),
    ]
}

/// Runs the same on a disk, which serves as the reference, and on a mount.
fn on_disk_and_mount(io: Io, act: impl Fn(&Path)) {
    let site = Site::new();
    act(&site.dir("disk"));
    let node = Node::start(&site, "m", None, Options::new(io));
    act(&node.mount);
}

fn processes<const N: usize>() -> [SyscallProcess; N] {
    std::array::from_fn(|_| SyscallProcess::new())
}

/// Opens with a mode, takes the lock exclusively, and keeps it.
fn hold(process: &mut SyscallProcess, path: &Path, flags: OFlags) -> i64 {
    let fd = process.open(path, flags, 0o644).must("open");
    process.flock(fd, EXCLUSIVE).must("lock");
    fd
}

/// Reports whether a process that opens the file now is excluded.
fn is_locked(path: &Path) -> bool {
    let mut process = SyscallProcess::new();
    let fd = process.open(path, READ_WRITE, 0o644).must("open");
    let refused = match process.flock(fd, SHARED) {
        Ok(()) => false,
        Err(errno) => {
            assert_eq!(errno, Errno::AGAIN);
            true
        }
    };
    // A file that a killed writer has made would vanish.
    process.close(fd).must("close");
    refused
}

/// When the second process comes, the name leads to a version of another node.
fn p15_locks_hold_while_another_node_uses_the_name(io: Io) {
    let cluster = Cluster::two(io);
    let emptied = READ_WRITE | OFlags::TRUNC;
    for content in ["", "pid"] {
        let lock = format!("{content}.lock");
        let (here, there) = (cluster.a.at(&lock), cluster.b.at(&lock));
        let [mut rank0, mut rank1, mut other] = processes();
        let held = hold(&mut rank0, &here, emptied);
        // Locks exclude only on one node.
        let fd = hold(&mut other, &there, emptied);
        other.write(fd, content.as_bytes()).must("write");
        other.close(fd).must("close");
        let later = format!("{content}.later");
        other.put(&cluster.b.at(&later), b"x").must("put");
        cluster.settle();
        eventually(5_000, "the later version arrives", || {
            std::fs::metadata(cluster.a.at(&later)).map_err(|error| error.to_string())
        });
        for (word, flags) in openings().into_iter().chain(modes()) {
            let mut process = SyscallProcess::new();
            let fd = process.open(&here, flags, 0o644).must("open");
            assert_eq!(process.flock(fd, EXCLUSIVE), Err(Errno::AGAIN), "{word} {content}");
            process.close(fd).must("close");
        }
        let fd = rank1.open(&here, emptied, 0o644).must("open");
        rank1.begin_flock(fd, EXCLUSIVE);
        assert!(rank1.heard(200).is_none(), "a second holder");
        rank0.close(held).must("close");
        assert_eq!(rank1.heard(3_000), Some(Ok(())));
    }
}
in_both_modes!(p15_locks_hold_while_another_node_uses_the_name);

fn p15_locks_exclude_whatever_the_open_modes(io: Io) {
    on_disk_and_mount(io, |dir| {
        let [mut one, mut other] = processes();
        for content in ["", "content"] {
            for (first, first_flags) in modes() {
                for (second, second_flags) in modes() {
                    let path = dir.join(format!("{first} {second} {}", content.len()));
                    std::fs::write(&path, content).must("write");
                    let one_fd = one.open(&path, first_flags, 0o644).must("open");
                    let other_fd = other.open(&path, second_flags, 0o644).must("open");
                    for (held, asked) in [
                        (SHARED, SHARED),
                        (SHARED, EXCLUSIVE),
                        (EXCLUSIVE, SHARED),
                        (EXCLUSIVE, EXCLUSIVE),
                    ] {
                        let what = format!("{}: {held} {asked}", path.display());
                        one.flock(one_fd, held).must(&what);
                        let refused = held != SHARED || asked != SHARED;
                        let wanted = if refused { Err(Errno::AGAIN) } else { Ok(()) };
                        assert_eq!(other.flock(other_fd, asked), wanted, "{what}");
                        one.flock(one_fd, UNLOCK).must(&what);
                        other.flock(other_fd, asked).must(&what);
                        other.flock(other_fd, UNLOCK).must(&what);
                    }
                    one.close(one_fd).must("close");
                    other.close(other_fd).must("close");
                }
            }
        }
    });
}
in_both_modes!(p15_locks_exclude_whatever_the_open_modes);

/// No caller waits for the kernel to report a close, yet a caller after it is not refused.
fn p15_locks_end_with_the_close(io: Io) {
    on_disk_and_mount(io, |dir| {
        let [mut one, mut other] = processes();
        let path = dir.join("n");
        let mut fd = hold(&mut one, &path, READ_WRITE);
        for round in 0..100 {
            let next = other.open(&path, READ_WRITE, 0o644).must("open");
            one.close(fd).must("close");
            assert_eq!(other.flock(next, EXCLUSIVE), Ok(()), "round {round}");
            fd = next;
            std::mem::swap(&mut one, &mut other);
        }
    });
}
in_both_modes!(p15_locks_end_with_the_close);

fn p15_locks_end_with_a_killed_holder(io: Io) {
    on_disk_and_mount(io, |dir| {
        let path = dir.join("n");
        for _ in 0..5 {
            let [mut holder, mut waiter] = processes();
            hold(&mut holder, &path, READ_WRITE);
            let fd = waiter.open(&path, READ_WRITE, 0o644).must("open");
            waiter.begin_flock(fd, EXCLUSIVE);
            assert!(waiter.heard(50).is_none());
            holder.kill(Signal::KILL);
            assert_eq!(waiter.heard(3_000), Some(Ok(())));
            waiter.kill(Signal::KILL);
            assert!(!is_locked(&path));
        }
    });
}
in_both_modes!(p15_locks_end_with_a_killed_holder);

fn p15_locks_come_in_the_order_of_waiting(io: Io) {
    on_disk_and_mount(io, |dir| {
        let path = dir.join("n");
        let mut holder = SyscallProcess::new();
        let held = hold(&mut holder, &path, READ_WRITE);
        let mut waiters: [SyscallProcess; 4] = processes();
        let fds = waiters.each_mut().map(|waiter| {
            let fd = waiter.open(&path, READ_WRITE, 0o644).must("open");
            waiter.begin_flock(fd, EXCLUSIVE);
            assert!(waiter.heard(100).is_none(), "the waiter waits");
            fd
        });
        holder.flock(held, UNLOCK).must("unlock");
        for at in 0..waiters.len() {
            assert_eq!(waiters[at].heard(3_000), Some(Ok(())), "waiter {at}");
            for later in &mut waiters[at + 1..] {
                assert!(later.heard(20).is_none(), "a later waiter still waits");
            }
            waiters[at].flock(fds[at], UNLOCK).must("unlock");
        }
    });
}
in_both_modes!(p15_locks_come_in_the_order_of_waiting);

fn p15_locks_let_waiters_handle_signals(io: Io) {
    on_disk_and_mount(io, |dir| {
        let path = dir.join("n");
        let [mut holder, mut waiter] = processes();
        let held = hold(&mut holder, &path, READ_WRITE);
        let fd = waiter.open(&path, READ_WRITE, 0o644).must("open");
        for _ in 0..3 {
            waiter.catch(Signal::ALARM, false);
            waiter.begin_flock(fd, EXCLUSIVE);
            assert!(waiter.heard(50).is_none());
            waiter.signal(Signal::ALARM);
            assert_eq!(waiter.heard(2_000), Some(Err(Errno::INTR)), "as Python expects");
        }
        waiter.catch(Signal::ALARM, true);
        waiter.begin_flock(fd, EXCLUSIVE);
        for _ in 0..3 {
            waiter.signal(Signal::ALARM);
            assert!(waiter.heard(120).is_none(), "the waiter keeps waiting");
        }
        // A process that is stopped meanwhile continues to wait.
        waiter.signal(Signal::STOP);
        sleep_ms(120);
        waiter.signal(Signal::CONT);
        assert!(waiter.heard(120).is_none(), "the waiter keeps waiting");
        holder.flock(held, UNLOCK).must("unlock");
        assert_eq!(waiter.heard(3_000), Some(Ok(())));
    });
}
in_both_modes!(p15_locks_let_waiters_handle_signals);

fn p15_locks_let_waiters_be_killed(io: Io) {
    on_disk_and_mount(io, |dir| {
        let path = dir.join("n");
        let mut holder = SyscallProcess::new();
        let held = hold(&mut holder, &path, READ_WRITE);
        for signal in [Signal::KILL, Signal::TERM, Signal::INT] {
            let mut waiter = SyscallProcess::new();
            let fd = waiter.open(&path, READ_WRITE, 0o644).must("open");
            waiter.begin_flock(fd, EXCLUSIVE);
            assert!(waiter.heard(50).is_none());
            let start = now();
            waiter.kill(signal);
            assert!(start.elapsed().as_millis() < 2_000, "{signal:?} took {:?}", start.elapsed());
        }
        holder.flock(held, UNLOCK).must("unlock");
        assert!(!is_locked(&path), "a dead waiter holds no lock");
    });
}
in_both_modes!(p15_locks_let_waiters_be_killed);

fn p15_locks_go_where_the_name_goes(io: Io) {
    on_disk_and_mount(io, |dir| {
        for flags in [READ_WRITE, OFlags::RDONLY] {
            let at = |name: &str| dir.join(name);
            for name in ["n", "x", "y"] {
                std::fs::write(at(name), name).must("write");
            }
            let [mut holder, mut member, mut mover] = processes();
            let held = hold(&mut holder, &at("n"), flags);
            let fd = member.open(&at("n"), flags, 0).must("open");
            mover.rename(&at("n"), &at("m")).must("rename");
            assert!(is_locked(&at("m")), "under its new name");
            assert!(!is_locked(&at("n")), "another file with the old name");
            mover.rename(&at("m"), &at("x")).must("rename over");
            assert!(is_locked(&at("x")), "in another's place");
            mover.rename_with(&at("x"), &at("y"), 2).must("exchange");
            assert!(is_locked(&at("y")) && !is_locked(&at("x")), "exchanged");
            mover.link(&at("y"), &at("z")).must("link");
            assert!(is_locked(&at("z")), "by another name of it");
            mover.unlink(&at("y")).must("unlink");
            assert!(is_locked(&at("z")), "by the name that stays");
            // The file that replaces it is another one; a process that has the old one open keeps its lock.
            mover.rename(&at("x"), &at("z")).must("rename over");
            assert!(!is_locked(&at("z")), "the file that replaced it");
            assert_eq!(member.flock(fd, SHARED), Err(Errno::AGAIN));
            holder.flock(held, UNLOCK).must("unlock");
            member.flock(fd, EXCLUSIVE).must("lock");
            assert_eq!(holder.flock(held, SHARED), Err(Errno::AGAIN));
            drop((holder, member));

            let mut holder = SyscallProcess::new();
            mover.mkdir(&at("d")).must("mkdir");
            hold(&mut holder, &at("d/n"), READ_WRITE);
            mover.rename(&at("d"), &at("e")).must("rename a directory");
            assert!(is_locked(&at("e/n")), "in a directory that moved");
            mover.unlink(&at("e/n")).must("unlink");
            mover.rmdir(&at("e")).must("rmdir");
            mover.unlink(&at("z")).must("unlink");
        }
    });
}
in_both_modes!(p15_locks_go_where_the_name_goes);

fn p15_locks_start_anew_after_an_unlink(io: Io) {
    on_disk_and_mount(io, |dir| {
        let path = dir.join("n");
        for flags in [READ_WRITE, OFlags::RDWR, OFlags::RDONLY] {
            if !flags.contains(OFlags::CREATE) {
                std::fs::write(&path, "content").must("write");
            }
            let [mut holder, mut member, mut remover] = processes();
            let held = hold(&mut holder, &path, flags);
            let fd = member.open(&path, flags, 0o644).must("open");
            remover.unlink(&path).must("unlink");
            assert_eq!(
                member.flock(fd, EXCLUSIVE),
                Err(Errno::AGAIN),
                "other processes have it open"
            );
            let mut next = SyscallProcess::new();
            let held_next = hold(&mut next, &path, READ_WRITE);
            assert!(is_locked(&path), "the next file with the name");
            holder.flock(held, UNLOCK).must("unlock");
            member.flock(fd, EXCLUSIVE).must("lock");
            assert!(is_locked(&path), "the next file with the name");
            next.close(held_next).must("close");
            assert!(!is_locked(&path), "the next file is not locked");
            remover.unlink(&path).must("unlink");
        }
    });
}
in_both_modes!(p15_locks_start_anew_after_an_unlink);

/// A lock belongs to the open file, whichever process has a descriptor of it.
fn p15_locks_are_shared_by_descriptors_of_one_open(io: Io) {
    on_disk_and_mount(io, |dir| {
        let path = dir.join("n");
        let mut holder = SyscallProcess::new();
        let fd = hold(&mut holder, &path, READ_WRITE);
        let again = holder.dup(fd).must("dup");
        holder.flock(again, EXCLUSIVE).must("its own lock");
        holder.close(fd).must("close");
        sleep_ms(50);
        assert!(is_locked(&path), "a duplicate keeps it");
        holder.flock(again, UNLOCK).must("unlock");
        assert!(!is_locked(&path), "a duplicate ends it");
        holder.flock(again, EXCLUSIVE).must("lock");
        let child = holder.fork_and_hold();
        holder.close(again).must("close");
        sleep_ms(50);
        assert!(is_locked(&path), "a child keeps it");
        kill_process(child, Signal::KILL).must("kill a child");
        eventually(3_000, "the child's end", || {
            if is_locked(&path) { Err("locked".to_owned()) } else { Ok(()) }
        });
        // Two opens by one process are two.
        let fd = hold(&mut holder, &path, READ_WRITE);
        let other = holder.open(&path, READ_WRITE, 0o644).must("open");
        assert_eq!(holder.flock(other, SHARED), Err(Errno::AGAIN));
        holder.flock(fd, SHARED).must("share");
        holder.flock(other, SHARED).must("share");
        // A refused change has released the old lock.
        assert_eq!(holder.flock(fd, EXCLUSIVE), Err(Errno::AGAIN));
        holder.flock(other, EXCLUSIVE).must("alone");
    });
}
in_both_modes!(p15_locks_are_shared_by_descriptors_of_one_open);

fn p15_locks_stay_when_content_is_replaced(io: Io) {
    on_disk_and_mount(io, |dir| {
        let path = dir.join("n");
        for (word, flags) in modes() {
            std::fs::write(&path, "content").must("write");
            let [mut holder, mut member, mut writer] = processes();
            let held = hold(&mut holder, &path, flags);
            let fd = member.open(&path, flags, 0o644).must("open");
            for content in [b"one".as_slice(), b"", b"another"] {
                writer.put(&path, content).must("write in place");
                assert!(is_locked(&path), "{word}");
                writer.truncate(&path, 1).must("truncate");
                assert!(is_locked(&path), "{word}");
            }
            assert_eq!(member.flock(fd, EXCLUSIVE), Err(Errno::AGAIN), "{word}");
            holder.close(held).must("close");
            assert!(!is_locked(&path), "{word}");
        }
    });
}
in_both_modes!(p15_locks_stay_when_content_is_replaced);
