//! P14 isolation, where B gets a descriptor that is independent of the file which has its name now.
//!
//! B is the attacker, A the victim. Root checks A's files on both nodes.

use rustix::fs::OFlags;
use rustix::io::Errno;
use rustix::process::Signal;

use super::p14::{BY_PATH, OWN, READ_WRITE, SECRET};
use super::users::{A, Entry, World, assert_none};
use crate::harness::syscall_process::IN_PLACE;
use crate::harness::{Io, Must as _, SyscallProcess, eventually, in_both_modes};

/// How B gets a descriptor without read access, of a file that no process has open and no name leads to.
#[derive(Debug, Clone, Copy)]
enum Lost {
    /// B has published the file, and unlinks it.
    Unlinked,
    /// B unlinks the file before it closes it.
    Unpublished,
    /// A renames its file over that of B.
    RenamedOver,
}

/// A descriptor of `O_PATH` holds an inode, but no bytes: it does not reach A's file, whichever
/// file has the name.
fn p14_isolation_of_path_descriptors(io: Io) {
    let Some(mut world) = World::two(io, "p14_isolation_of_path_descriptors") else { return };
    let (mut faults, mut precious) = (Vec::new(), Vec::new());
    for how in [Lost::Unlinked, Lost::Unpublished, Lost::RenamedOver] {
        for (what, act) in BY_PATH {
            let when = format!("{what}, {how:?}");
            let name = format!("open/{}", when.replace([' ', ','], "-"));
            let (path, tmp) = (world.cluster.a.at(&name), world.cluster.a.at("open/tmp"));
            let writing = world.b.open(&path, IN_PLACE, 0o644).must("B creates");
            world.b.write(writing, OWN).must("B writes");
            let fd = world.b.open(&path, OFlags::PATH, 0).must("B opens the path");
            if !matches!(how, Lost::Unpublished) {
                world.b.close(writing).must("B closes");
            }
            if matches!(how, Lost::RenamedOver) {
                world.a.make(&tmp, 0o600, SECRET).must("A's file");
                world.a.rename(&tmp, &path).must("A renames over");
            } else {
                world.b.unlink(&path).must("B unlinks its file");
                world.a.make(&path, 0o600, SECRET).must("A creates");
            }
            if matches!(how, Lost::Unpublished) {
                world.b.close(writing).must("B closes");
            }
            world.a.setxattr(&path, "user.a", b"A", 0).must("A's attribute");
            let before = Entry::of(&mut world.root, &path);
            // The second time the kernel's cache is up to date.
            for _ in 0..2 {
                let result = act(&mut world.b, &SyscallProcess::proc_path(fd));
                // The rest of B's own file may be read, as on a local disk.
                let fine = match &result {
                    Err(errno) => matches!(*errno, Errno::NOENT | Errno::ACCESS),
                    Ok(read) => read.as_deref() == Some(OWN),
                };
                if what == "open to read" && !fine {
                    faults.push(format!("{when}: the answer to B was {result:?}"));
                }
                if let Ok(Some(read)) = result
                    && read.starts_with(&SECRET[..8])
                {
                    faults.push(format!("{when}: B read A's content"));
                }
            }
            world.b.close(fd).must("B closes");
            let owned = before.owner == (A.uid, A.gid) && before.mode == 0o600;
            assert!(owned && before.bytes.as_deref() == Ok(SECRET), "{when}: {before:?}");
            faults.extend(before.differs(&Entry::of(&mut world.root, &path), &when));
            precious.push((name, before));
        }
    }
    world.check_both(&precious, &mut faults);
    assert_none(&faults);
}
in_both_modes!(p14_isolation_of_path_descriptors);

/// A renames the file that it still writes over one that B has open: B's operations through its
/// descriptor affect only its own file.
fn p14_isolation_of_files_renamed_before_their_close(io: Io) {
    let Some(mut world) = World::two(io, "p14_isolation_of_files_renamed_before_their_close")
    else {
        return;
    };
    let (first, rest) = SECRET.split_at(10);
    let (mut faults, mut precious) = (Vec::new(), Vec::new());
    let further = BY_PATH.into_iter().filter(|(what, _)| *what != "open to read");
    let ways: Vec<_> = further.collect();
    for (flags, word) in [(IN_PLACE, "WRONLY"), (READ_WRITE | OFlags::TRUNC, "RDWR")] {
        for (what, act) in &ways {
            let when = format!("{what}, A writes {word}");
            let name = format!("open/{}", when.replace([' ', ','], "-"));
            let (path, tmp) = (world.cluster.a.at(&name), world.cluster.a.at("open/tmp"));
            world.b.make(&path, 0o644, OWN).must("B's file");
            let fd = world.b.open(&path, OFlags::RDONLY, 0).must("B opens its file");
            let writing = world.a.open(&tmp, flags, 0o600).must("A creates");
            world.a.write(writing, first).must("A writes");
            world.a.rename(&tmp, &path).must("A renames the file that it writes");
            for _ in 0..2 {
                if let Ok(Some(read)) = act(&mut world.b, &SyscallProcess::proc_path(fd))
                    && read.starts_with(&SECRET[..8])
                {
                    faults.push(format!("{when}: B read A's content"));
                }
            }
            world.a.write(writing, rest).must("A writes the rest");
            world.a.close(writing).must("A closes");
            let closed = Entry::of(&mut world.root, &path);
            let owned = closed.owner == (A.uid, A.gid) && closed.mode == 0o600;
            if !owned || closed.bytes.as_deref() != Ok(SECRET) || !closed.xattrs.is_empty() {
                faults.push(format!("{when}: A's file became {closed:?}"));
            }
            world.b.close(fd).must("B closes");
            precious.push((name, Entry { bytes: Ok(SECRET.to_vec()), ..closed }));
        }
    }
    world.check_both(&precious, &mut faults);
    assert_none(&faults);
}
in_both_modes!(p14_isolation_of_files_renamed_before_their_close);

/// An operation of A through a descriptor.
type ByDescriptor = (&'static str, fn(&mut SyscallProcess, i64) -> Result<(), Errno>);

/// The operations of A through the descriptor of a file that it has renamed over B's, and not closed.
const UNCLOSED: [ByDescriptor; 6] = [
    ("fchmod", |process, fd| process.fchmod(fd, 0o666)),
    ("futimens", |process, fd| process.futimes(fd, 1_000_000, 1)),
    ("fsetxattr", |process, fd| process.fsetxattr(fd, "user.mark", b"A")),
    ("fchown", |process, fd| process.fchown(fd, None, Some(A.gid))),
    ("ftruncate", |process, fd| process.ftruncate(fd, 3)),
    ("write", |process, fd| process.write(fd, b"INTRUDER").map(drop)),
];

/// A renames the file that it still writes over one that B has published: A's operations through its descriptor
/// affect only its own file, and B's stays as it was published, on both nodes, also when A is killed.
fn p14_isolation_of_files_under_an_unclosed_one(io: Io) {
    let Some(mut world) = World::two(io, "p14_isolation_of_files_under_an_unclosed_one") else {
        return;
    };
    let (mut faults, mut precious) = (Vec::new(), Vec::new());
    let mut a = SyscallProcess::of(A, &[]);
    for (flags, word) in [(IN_PLACE, "WRONLY"), (READ_WRITE | OFlags::TRUNC, "RDWR")] {
        for (what, act) in UNCLOSED {
            let when = format!("{what}, A writes {word}");
            let name = format!("open/{}", when.replace([' ', ','], "-"));
            let (path, tmp) = (world.cluster.a.at(&name), world.cluster.a.at("open/tmp"));
            world.b.make(&path, 0o644, OWN).must("B's file");
            world.b.setxattr(&path, "user.b", b"B", 0).must("B's attribute");
            precious.push((name, Entry::of(&mut world.root, &path)));
            let writing = a.open(&tmp, flags, 0o600).must("A creates");
            a.write(writing, SECRET).must("A writes");
            a.rename(&tmp, &path).must("A renames the file that it writes");
            act(&mut a, writing).must(format_args!("{when}: A changes its own file"));
            let own = a.fstat(writing).must("A looks at its own file");
            assert_eq!((own.uid, own.gid), (A.uid, A.gid), "{when}: the owner of the file");
        }
    }
    // Any fault would be on its way to the other node by now.
    world.cluster.a.drain();
    for (name, before) in &precious {
        let other = world.cluster.b.at(name);
        eventually(10_000, "B's file is on the other node", || {
            world.root.getxattr(&other, "user.b").map_err(|errno| errno.to_string())
        });
        let there = Entry::of(&mut world.root, &other);
        faults.extend(before.differs(&there, &format!("{name} on the other node")));
    }
    a.kill(Signal::KILL);
    world.check_both(&precious, &mut faults);
    assert_none(&faults);
}
in_both_modes!(p14_isolation_of_files_under_an_unclosed_one);
