//! Locks on one node: `flock`, record locks, lock files that many hold open at once.

use rustix::fs::OFlags;
use rustix::io::Errno;

use crate::harness::hand::{CREATE_NEW, IN_PLACE};
use crate::harness::node::Site;
use crate::harness::{Hand, Io, Must as _, Node, Options, in_both_modes};

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
        let mut hands: Vec<Hand> = (0..3).map(|_| Hand::new()).collect();
        let mut fds = Vec::new();
        for hand in &mut hands {
            // Each opens, and empties, while those before it hold the file open and one the lock.
            let fd = hand.open(&path, flags, 0o644).must(format_args!("open {word}"));
            let locked = hand.flock(fd, EXCLUSIVE);
            let expected = if fds.is_empty() { Ok(()) } else { Err(Errno::AGAIN) };
            assert_eq!(locked, expected, "{word}, opener {}", fds.len());
            assert_eq!(
                hand.fstat(fd).must("fstat").nlink,
                1,
                "lock libraries check the link count"
            );
            fds.push(fd);
        }
        hands[1].begin_flock(fds[1], EXCLUSIVE);
        assert!(hands[1].heard(300).is_none(), "{word}: a second holder");
        hands[0].flock(fds[0], UNLOCK).must("unlock");
        assert_eq!(hands[1].heard(3_000), Some(Ok(())), "{word}: the waiter gets it");
        assert_eq!(hands[0].flock(fds[0], SHARED), Err(Errno::AGAIN), "{word}");
        let second = hands.remove(1);
        second.kill(rustix::process::Signal::KILL);
        hands[0].flock(fds[0], SHARED).must("shared, after the holder was killed");
        hands[1].flock(fds[2], SHARED).must("shared by two");
        assert_eq!(hands[0].stat(&path).must("stat").size, 0, "{word}");
    }
}
in_both_modes!(locks_flock_excludes_between_processes);

/// A lock file that is emptied 20 times a second by each waiter stays one file to all of them.
fn locks_polling_with_truncation_keeps_one_holder(io: Io) {
    let site = Site::new();
    let node = Node::start(&site, "m", None, Options::new(io));
    let (path, counter) = (node.at("poll.lock"), node.at("count"));
    std::fs::write(&counter, "0").must("begin the count");
    let workers: Vec<_> = (0..4)
        .map(|_| {
            let (path, counter) = (path.clone(), counter.clone());
            crate::harness::time::thread(move || {
                let mut hand = Hand::new();
                let mut done = 0;
                while done < 15 {
                    let fd = hand.open(&path, READ_WRITE | OFlags::TRUNC, 0o644).must("open");
                    match hand.flock(fd, EXCLUSIVE) {
                        Ok(()) => {
                            let bytes = hand.get(&counter).must("read the count");
                            let text = String::from_utf8(bytes).must("text");
                            let next = text.parse::<u32>().must(&text) + 1;
                            hand.put(&counter, next.to_string().as_bytes()).must("count");
                            hand.flock(fd, UNLOCK).must("unlock");
                            done += 1;
                        }
                        Err(errno) => assert_eq!(errno, Errno::AGAIN),
                    }
                    hand.close(fd).must("close");
                }
            })
        })
        .collect();
    for worker in workers {
        worker.join().must("a worker");
    }
    assert_eq!(std::fs::read_to_string(&counter).must("read"), "60", "a lost update");
}
in_both_modes!(locks_polling_with_truncation_keeps_one_holder);

fn locks_records_exclude_by_range(io: Io) {
    let site = Site::new();
    let node = Node::start(&site, "m", None, Options::new(io));
    let path = node.at("db");
    let (mut one, mut other) = (Hand::new(), Hand::new());
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
    let mut hands: Vec<Hand> = (0..4).map(|_| Hand::new()).collect();
    for round in 0..15 {
        for kind in ["file", "link", "dir", "hard"] {
            let path = mount.join(format!("{kind}{round}"));
            let wins: Vec<Result<(), Errno>> = std::thread::scope(|scope| {
                let path = &path;
                let tries: Vec<_> = hands
                    .iter_mut()
                    .map(|hand| {
                        scope.spawn(move || match kind {
                            "file" => {
                                hand.open(path, CREATE_NEW, 0o644).and_then(|fd| hand.close(fd))
                            }
                            "link" => hand.symlink(std::path::Path::new("me"), path),
                            "dir" => hand.mkdir(path),
                            _ => hand.link(&mount.join("source"), path),
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
