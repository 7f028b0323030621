//! P14 isolation: no user can make the daemon stall for another, whatever resource it exhausts.
//!
//! B exhausts; meanwhile A works as usual, and each of its calls ends soon.

use std::time::Duration;

use rustix::fs::OFlags;
use rustix::io::Errno;
use rustix::process::Signal;

use super::p14::SECRET;
use super::users::{A, B, can_be_others, let_in};
use crate::harness::node::Site;
use crate::harness::syscall_process::{IN_PLACE, User};
use crate::harness::{
    Io, Must as _, Node, Options, SyscallProcess, eventually, in_both_modes, now, sleep_ms,
};

/// The longest that a call of A may take on a machine that is busy with B's calls. Less than the
/// deadline of anything that waits, so that a call that waits for B is noticed.
const SOON: Duration = Duration::from_secs(3);
const EXCLUSIVE: u32 = 2;
const UNLOCK: u32 = 8;

/// One node with a directory for all, and A with a directory of its own.
struct Scene {
    a: SyscallProcess,
    b: SyscallProcess,
    node: Node,
    rounds: u32,
    _site: Site,
}

impl Scene {
    fn new(io: Io, test: &str) -> Option<Self> {
        if !can_be_others(test, io) {
            return None;
        }
        let site = Site::new();
        let_in(site.path(), 0o755);
        let node = Node::start(&site, "m", None, Options::new(io));
        let mut root = SyscallProcess::new();
        root.mkdir_with(&node.at("open"), 0o777).must("mkdir");
        root.mkdir(&node.at("private")).must("mkdir");
        root.chown(&node.at("private"), Some(A.uid), Some(A.gid)).must("chown");
        Some(Self {
            a: SyscallProcess::of(A, &[]),
            b: SyscallProcess::of(B, &[]),
            node,
            rounds: 0,
            _site: site,
        })
    }

    /// Runs the usual file operations of a program as A; none may fail, and none may take long.
    fn a_works(&mut self, when: &str) {
        self.rounds += 1;
        let (a, version) = (&mut self.a, format!("A's version {}", self.rounds).into_bytes());
        let at = |name: &str| self.node.at(format!("private/{name}"));
        let (entry, tmp, lock) = (at("entry"), at("tmp"), at("lock"));
        let mut slow = Vec::new();
        let mut timed =
            |what: &str,
             a: &mut SyscallProcess,
             act: &dyn Fn(&mut SyscallProcess) -> Result<(), Errno>| {
                let start = now();
                act(a).must(format_args!("{when}: A's {what}"));
                if start.elapsed() > SOON {
                    slow.push(format!("{what} took {:?}", start.elapsed()));
                }
            };
        timed("rewrite", a, &|a| a.put(&entry, &version));
        let reads = |a: &mut SyscallProcess| {
            let read = a.get(&entry)?;
            assert_eq!(read, version, "{when}: A's entry");
            Ok(())
        };
        timed("read", a, &reads);
        timed("temporary", a, &|a| a.put(&tmp, &version));
        timed("rename", a, &|a| a.rename(&tmp, &entry));
        timed("read after a rename", a, &reads);
        timed("cut", a, &|a| a.truncate(&entry, 3));
        timed("look", a, &|a| {
            assert_eq!(a.stat(&entry)?.size, 3, "{when}: A's entry is cut");
            assert_eq!(a.get(&entry)?, version[..3], "{when}: A's entry is cut");
            Ok(())
        });
        timed("attribute", a, &|a| a.setxattr(&entry, "user.a", SECRET, 0));
        timed("chmod", a, &|a| a.chmod(&entry, 0o600));
        timed("lock", a, &|a| {
            let fd = a.open(&lock, OFlags::RDWR | OFlags::CREATE, 0o600)?;
            a.flock(fd, EXCLUSIVE)?;
            a.flock(fd, UNLOCK)?;
            a.close(fd)
        });
        timed("list", a, &|a| a.list(&at("")).map(drop));
        timed("unlink", a, &|a| a.unlink(&entry));
        timed("mkdir", a, &|a| a.mkdir(&at("dir")).and_then(|()| a.rmdir(&at("dir"))));
        assert!(slow.is_empty(), "{when}: {slow:?}");
    }
}

/// Many processes of one user that wait: for a lock, or for the first version of a file.
fn p14_isolation_from_crowds_that_wait(io: Io) {
    // More than one user's share of the waiting requests.
    const CROWD: usize = 900;
    let Some(mut scene) = Scene::new(io, "p14_isolation_from_crowds_that_wait") else { return };
    let (lock, unclosed) = (scene.node.at("open/lock"), scene.node.at("open/unclosed"));
    scene.a_works("before");
    let held = scene.b.open(&lock, OFlags::RDWR | OFlags::CREATE, 0o666).must("B's lock file");
    scene.b.flock(held, EXCLUSIVE).must("B locks");
    let mut crowd = SyscallProcess::of(B, &[]);
    crowd.crowd(CROWD, &lock, OFlags::RDWR, true);
    scene.a_works("while a crowd waits for a lock");
    // A third user waits for another lock, and gets it.
    let mut other = SyscallProcess::of(User { uid: 63_003, gid: 63_003 }, &[]);
    let theirs = scene.node.at("open/theirs");
    scene.a.put(&theirs, b"").must("A's lock file");
    scene.a.chmod(&theirs, 0o666).must("for all");
    let mine = scene.a.open(&theirs, OFlags::RDONLY, 0).must("A opens it");
    scene.a.flock(mine, EXCLUSIVE).must("A locks");
    let fd = other.open(&theirs, OFlags::RDONLY, 0).must("the other opens it");
    other.begin_flock(fd, EXCLUSIVE);
    assert!(other.heard(50).is_none(), "a lock that A holds was given, or refused at once");
    scene.a.flock(mine, UNLOCK).must("A unlocks");
    assert_eq!(other.heard(5_000), Some(Ok(())), "a lock that is free");
    scene.a.close(mine).must("close");
    crowd.kill(Signal::KILL);
    scene.a_works("after the crowd has ended");
    let writing = scene.b.open(&unclosed, IN_PLACE, 0o666).must("B creates");
    scene.b.write(writing, b"not closed").must("B writes");
    let mut crowd = SyscallProcess::of(B, &[]);
    crowd.crowd(CROWD, &unclosed, OFlags::RDONLY, false);
    scene.a_works("while a crowd waits for a file");
    crowd.kill(Signal::KILL);
    scene.b.close(writing).must("B closes");
    scene.a_works("afterwards");
}
in_both_modes!(p14_isolation_from_crowds_that_wait);

/// B is repeatedly killed during calls that the kernel should repeat: the daemon's records of them
/// do not affect A.
fn p14_isolation_from_calls_that_never_come_back(io: Io) {
    const CUTTERS: usize = 4_400;
    let Some(mut scene) = Scene::new(io, "p14_isolation_from_calls_that_never_come_back") else {
        return;
    };
    for k in 0..CUTTERS {
        let path = scene.node.at(format!("open/n{k}"));
        scene.b.put(&path, b"B's").must("B's file");
    }
    scene.a_works("before");
    for round in 0..3 {
        let mut b = SyscallProcess::of(B, &[]);
        b.cutters(CUTTERS, &scene.node.at("open/n"));
        sleep_ms(700);
        b.kill(Signal::KILL);
        scene.a_works(&format!("after kill {round}"));
    }
    let mut reader = SyscallProcess::of(A, &[]);
    let path = scene.node.at("private/looped");
    for k in 0..50 {
        let text = format!("version {k}").into_bytes();
        scene.a.put(&path, &text).must("A rewrites");
        assert_eq!(reader.get(&path), Ok(text), "A's other process reads");
    }
    eventually(10_000, "B also works", || {
        let done = scene.b.put(&scene.node.at("open/n0"), b"B's");
        done.map_err(|errno| errno.to_string())
    });
}
in_both_modes!(p14_isolation_from_calls_that_never_come_back);
