//! P14 isolation: owner, group and mode decide which users may read and change what, on every path to the data.
//!
//! B is the attacker, A the victim. Root checks A's files on both nodes, before and after.

use std::path::{Path, PathBuf};

use rustix::fs::OFlags;
use rustix::io::Errno;

use super::users::{A, B, Entry, World, assert_none};
use crate::harness::time::thread;
use crate::harness::tree;
use crate::harness::{Io, Must as _, SyscallProcess, eventually, in_both_modes};

pub(super) const OWN: &[u8] = b"what B wrote itself";
pub(super) const SECRET: &[u8] = b"A's secret, for no other user";
pub(super) const READ_WRITE: OFlags = OFlags::RDWR.union(OFlags::CREATE);
/// How many times a call is tried until the kernel relies on its cache.
const TRIES: usize = 3;
/// How long an announced change may take to arrive at a node whose kernel gets no answers.
const ARRIVAL_MS: u64 = 5_000;

/// An attack of B through a path, and the bytes that it read.
pub(super) type ByPath =
    (&'static str, fn(&mut SyscallProcess, &Path) -> Result<Option<Vec<u8>>, Errno>);
/// An attack of B through a descriptor that is open for reading and writing.
type ByDescriptor = (&'static str, fn(&mut SyscallProcess, i64) -> Result<(), Errno>);

fn open_and_write(process: &mut SyscallProcess, path: &Path, flags: OFlags) -> Result<(), Errno> {
    let fd = process.open(path, flags, 0o666)?;
    let wrote = process.write(fd, b"INTRUDER");
    process.close(fd)?;
    wrote.map(drop)
}

/// Every way to a file's data and attributes that begins with a path.
pub(super) const BY_PATH: [ByPath; 11] = [
    ("open to read", |process, path| {
        let fd = process.open(path, OFlags::RDONLY, 0)?;
        let read = process.read(fd, 0, 200)?;
        process.close(fd)?;
        Ok(Some(read))
    }),
    ("open to update", |process, path| {
        let fd = process.open(path, OFlags::RDWR, 0)?;
        let read = process.read(fd, 0, 200)?;
        process.pwrite(fd, 0, b"INTRUDER")?;
        process.close(fd)?;
        Ok(Some(read))
    }),
    ("open to write", |process, path| open_and_write(process, path, OFlags::WRONLY).map(|()| None)),
    ("open to append", |process, path| {
        open_and_write(process, path, OFlags::WRONLY | OFlags::APPEND).map(|()| None)
    }),
    ("open and empty", |process, path| {
        open_and_write(process, path, OFlags::WRONLY | OFlags::TRUNC).map(|()| None)
    }),
    ("truncate", |process, path| process.truncate(path, 3).map(|()| None)),
    ("chmod", |process, path| process.chmod(path, 0o666).map(|()| None)),
    ("chown", |process, path| process.chown(path, None, Some(B.gid)).map(|()| None)),
    ("utimes", |process, path| process.utimes(path, 1_000_000, 1).map(|()| None)),
    ("setxattr", |process, path| process.setxattr(path, "user.mark", b"B", 0).map(|()| None)),
    ("removexattr", |process, path| process.removexattr(path, "user.a").map(|()| None)),
];

/// Every way to a file's data and attributes that begins with a descriptor.
const BY_DESCRIPTOR: [ByDescriptor; 12] = [
    ("fchmod", |process, fd| process.fchmod(fd, 0o666)),
    ("fchown", |process, fd| process.fchown(fd, None, Some(B.gid))),
    ("futimens", |process, fd| process.futimes(fd, 1_000_000, 1)),
    ("fsetxattr", |process, fd| process.fsetxattr(fd, "user.mark", b"B")),
    ("ftruncate", |process, fd| process.ftruncate(fd, 3)),
    ("write", |process, fd| process.pwrite(fd, 0, b"INTRUDER").map(drop)),
    ("write and fsync", |process, fd| {
        process.pwrite(fd, 0, b"INTRUDER")?;
        process.fsync(fd)
    }),
    ("fallocate", |process, fd| process.fallocate(fd, 0, 0, 5_000)),
    ("store through a mapping", |process, fd| {
        let map = process.map(fd, OWN.len(), true, true)?;
        process.map_write(map, 0, b"INTRUDER");
        process.unmap(map)
    }),
    ("close of a duplicate", |process, fd| {
        process.pwrite(fd, 0, b"INTRUDER")?;
        let second = process.dup(fd)?;
        process.close(second)
    }),
    ("reopen and empty", |process, fd| {
        open_and_write(process, &SyscallProcess::proc_path(fd), OFlags::WRONLY | OFlags::TRUNC)
    }),
    ("nothing", |_, _| Ok(())),
];

/// How a name comes to lead to A's file instead of B's.
#[derive(Debug, Clone, Copy)]
enum Takeover {
    /// B unlinks its file, A creates one.
    Created,
    /// The same, and A has not closed it yet.
    Unclosed,
    /// A renames its file over B's.
    Renamed,
}

/// A descriptor of a file that has lost its name, reopened through `/proc/self/fd` or used as a
/// path: it refers to B's own file to the end, whatever has the name now.
fn p14_isolation_of_descriptors_of_unlinked_files(io: Io) {
    let Some(mut world) = World::two(io, "p14_isolation_of_descriptors_of_unlinked_files") else {
        return;
    };
    let (mut faults, mut precious) = (Vec::new(), Vec::new());
    for how in [Takeover::Created, Takeover::Unclosed, Takeover::Renamed] {
        for (what, act) in BY_PATH {
            let when = format!("{what}, {how:?}");
            let name = format!("open/{}", when.replace([' ', ','], "-"));
            let path = world.cluster.a.at(&name);
            world.b.make(&path, 0o644, OWN).must("B's file");
            let fd = world.b.open(&path, OFlags::RDONLY, 0).must("B opens its file");
            let mut writing = None;
            match how {
                Takeover::Created | Takeover::Unclosed => {
                    world.b.unlink(&path).must("B unlinks its file");
                    let made = world.a.open(&path, READ_WRITE | OFlags::TRUNC, 0o600);
                    let made = made.must("A creates");
                    world.a.write(made, SECRET).must("A writes");
                    writing = Some(made);
                }
                Takeover::Renamed => {
                    let tmp = world.cluster.a.at("open/tmp");
                    world.a.make(&tmp, 0o600, SECRET).must("A's file");
                    world.a.rename(&tmp, &path).must("A renames over");
                }
            }
            world.a.setxattr(&path, "user.a", b"A", 0).must("A's attribute");
            let before = match (how, writing) {
                // A look at A's unclosed file would wait for its close.
                (Takeover::Unclosed, _) => None,
                (_, made) => {
                    if let Some(made) = made {
                        world.a.close(made).must("A closes");
                    }
                    writing = None;
                    Some(Entry::of(&mut world.root, &path))
                }
            };
            let result = act(&mut world.b, &SyscallProcess::proc_path(fd));
            match &result {
                Ok(Some(read)) if read != OWN => {
                    faults.push(format!("{when}: B read {:?}", String::from_utf8_lossy(read)));
                }
                // With passthrough, a writable mapping would be one of the blob.
                Err(Errno::TXTBSY) if what == "open to update" && matches!(io, Io::Passthrough) => {
                }
                Err(errno) if what.starts_with("open") => {
                    faults.push(format!("{when}: B cannot reopen its own file: {errno}"));
                }
                _ => {}
            }
            if let Some(fd) = writing {
                world.a.close(fd).must("A closes");
            }
            world.b.close(fd).must("B closes");
            let after = Entry::of(&mut world.root, &path);
            let expected = before.unwrap_or_else(|| after.clone());
            faults.extend(expected.differs(&after, &when));
            let whole = after.bytes.as_deref() == Ok(SECRET) && after.owner == (A.uid, A.gid);
            if !whole || after.mode != 0o600 || after.xattrs != ["user.a=A"] {
                faults.push(format!("{when}: A's file became {after:?}"));
            }
            precious.push((name, expected));
        }
    }
    world.check_both(&precious, &mut faults);
    assert_none(&faults);
}
in_both_modes!(p14_isolation_of_descriptors_of_unlinked_files);

/// A descriptor of B's own file whose name leads to A's, because another node has replaced it: in a
/// directory where all users may rename, and in a sticky one.
fn p14_isolation_of_descriptors_of_replaced_files(io: Io) {
    let Some(mut world) = World::two(io, "p14_isolation_of_descriptors_of_replaced_files") else {
        return;
    };
    let (mut faults, mut precious, mut open) = (Vec::new(), Vec::new(), Vec::new());
    for dir in ["open", "sticky"] {
        for (k, (what, _)) in BY_DESCRIPTOR.into_iter().enumerate() {
            let name = format!("{dir}/n{k}");
            let path = world.cluster.b.at(&name);
            world.b.make(&path, 0o644, OWN).must("B's file");
            let fd = world.b.open(&path, OFlags::RDWR, 0).must("B opens its file");
            open.push((format!("{what} in {dir}"), name, fd, k));
        }
    }
    world.cluster.b.drain();
    for (when, name, ..) in &open {
        let (on_a, tmp) = (world.cluster.a.at(name), world.cluster.a.at("private/tmp"));
        eventually(10_000, "B's file arrives", || {
            world.root.stat(&on_a).map_err(|errno| format!("{when}: {errno}"))
        });
        world.a.make(&tmp, 0o600, SECRET).must("A's file");
        world.a.setxattr(&tmp, "user.a", b"A", 0).must("A's attribute");
        world.root.rename(&tmp, &on_a).must("root puts A's file there");
        precious.push((name.clone(), Entry::of(&mut world.root, &on_a)));
    }
    world.cluster.a.drain();
    for (when, name, ..) in &open {
        let on_b = world.cluster.b.at(name);
        eventually(10_000, "A's file arrives", || match world.root.stat(&on_b) {
            Ok(stat) if stat.uid == A.uid => Ok(()),
            other => Err(format!("{when}: {other:?}")),
        });
    }
    for (when, _, fd, k) in &open {
        let done = BY_DESCRIPTOR[*k].1(&mut world.b, *fd);
        let read = world.b.read(*fd, 0, 200);
        if read.as_deref().is_ok_and(|read| read.starts_with(&SECRET[..8])) {
            faults.push(format!("{when} ({done:?}): B reads A's content"));
        }
        // The result of a close of a file that lost its name is unspecified; its effect on the name is not.
        let _ = world.b.close(*fd);
    }
    world.check_both(&precious, &mut faults);
    assert_none(&faults);
}
in_both_modes!(p14_isolation_of_descriptors_of_replaced_files);

/// The result of a call that was held between kernel and daemon.
pub(super) struct Held<T> {
    pub(super) result: T,
    /// Whether the kernel looked the name up first, because it no longer relied on its cache.
    pub(super) asked_again: bool,
}

/// Runs an operation of B on node B on a name that it has just looked at, holds the request between
/// kernel and daemon until a change of node A has arrived, and returns the result.
pub(super) fn while_it_arrives<T: Send + 'static>(
    world: &mut World,
    name: &Path,
    act: impl FnOnce(&mut SyscallProcess) -> T + Send + 'static,
    change: impl FnOnce(&mut World),
) -> Held<T> {
    let applied = |world: &World| {
        world.cluster.b.status()["counters"]["commits_applied"].as_u64().must("the counter")
    };
    let before = applied(world);
    let mut b = std::mem::replace(&mut world.b, SyscallProcess::of(B, &[]));
    let pid = b.pid();
    drop(b.stat(name));
    let frozen = world.cluster.b.freeze_requests();
    let acting = thread(move || {
        let result = act(&mut b);
        (b, result)
    });
    let said =
        |file: &str| std::fs::read_to_string(format!("/proc/{pid}/{file}")).unwrap_or_default();
    eventually(ARRIVAL_MS, "the request is on its way", || {
        let place = said("wchan");
        let waits = place.contains("request_wait") || place.contains("fuse");
        if waits || acting.is_finished() { Ok(()) } else { Err(place) }
    });
    assert!(!acting.is_finished(), "the daemon answered although it was held");
    let stack = said("stack");
    let asked_again = ["fuse_lookup", "revalidate", "fuse_permission", "getattr"]
        .iter()
        .any(|function| stack.contains(function));
    change(world);
    world.cluster.a.drain();
    eventually(ARRIVAL_MS, "the change arrives at a node that is held", || {
        let count = applied(world);
        if count > before { Ok(()) } else { Err(format!("{count} commits applied")) }
    });
    drop(frozen);
    let (b, result) = acting.join().must("what B did");
    world.b = b;
    Held { result, asked_again }
}

/// O_CREAT of a name that the kernel believes missing, at which A's file arrives while the request
/// is in flight.
fn p14_isolation_of_names_that_arrive_under_a_create(io: Io) {
    let Some(mut world) = World::two(io, "p14_isolation_of_names_that_arrive_under_a_create")
    else {
        return;
    };
    let (mut faults, mut precious) = (Vec::new(), Vec::new());
    let ways = [
        ("read", OFlags::RDONLY),
        ("write", OFlags::WRONLY),
        ("update", OFlags::RDWR),
        ("empty and update", OFlags::RDWR | OFlags::TRUNC),
        ("empty and write", OFlags::WRONLY | OFlags::TRUNC),
        ("append", OFlags::WRONLY | OFlags::APPEND),
    ];
    for dir in ["open", "sticky"] {
        for (what, flags) in ways {
            let (name, when) = (format!("{dir}/{what}"), format!("create to {what} in {dir}"));
            let (on_a, on_b) = (world.cluster.a.at(&name), world.cluster.b.at(&name));
            assert_eq!(world.b.stat(&on_b).err(), Some(Errno::NOENT));
            let path = on_b.clone();
            let act = move |b: &mut SyscallProcess| {
                let fd = b.open(&path, flags | OFlags::CREATE, 0o666)?;
                let read = b.read(fd, 0, 200).unwrap_or_default();
                let _ = b.write(fd, b"INTRUDER");
                b.close(fd).map(|()| read)
            };
            let held = while_it_arrives(&mut world, &on_b, act, |world| {
                world.a.make(&on_a, 0o600, SECRET).must("A's file");
            });
            let opened = held.result;
            if opened != Err(Errno::ACCESS) {
                let shown = opened.map(|read| String::from_utf8_lossy(&read).into_owned());
                faults.push(format!("{when}: {shown:?}"));
            }
            let entry = Entry::of(&mut world.root, &on_a);
            precious.push((name, Entry { bytes: Ok(SECRET.to_vec()), mode: 0o600, ..entry }));
        }
    }
    world.check_both(&precious, &mut faults);
    assert_none(&faults);
}
in_both_modes!(p14_isolation_of_names_that_arrive_under_a_create);

/// Calls by path on a name that the kernel caches as B's file, at which A's file arrives while the
/// request is in flight: the kernel has checked the wrong inode.
fn p14_isolation_of_names_that_are_replaced_under_a_call(io: Io) {
    let Some(mut world) = World::two(io, "p14_isolation_of_names_that_are_replaced_under_a_call")
    else {
        return;
    };
    let (mut faults, mut precious) = (Vec::new(), Vec::new());
    let further: [ByPath; 3] = [
        ("unlink", |process, path| process.unlink(path).map(|()| None)),
        ("rename away", |process, path| {
            process.rename(path, &path.with_file_name("stolen")).map(|()| None)
        }),
        ("rename over", |process, path| {
            process.rename(&path.with_file_name("weapon"), path).map(|()| None)
        }),
    ];
    let ways: Vec<ByPath> = BY_PATH.into_iter().chain(further).collect();
    let tries: Vec<(usize, usize)> =
        (0..ways.len()).flat_map(|way| (0..TRIES).map(move |k| (way, k))).collect();
    let name_of = |(way, k): (usize, usize)| format!("sticky/{way}-{k}");
    let tmp_of = |(way, k): (usize, usize)| format!("private/tmp{way}-{k}");
    for one in &tries {
        let path = world.cluster.b.at(name_of(*one));
        world.b.make(&path, 0o644, OWN).must("B's file");
        world.b.setxattr(&path, "user.a", b"B", 0).must("B's attribute");
        let tmp = world.cluster.a.at(tmp_of(*one));
        world.a.make(&tmp, 0o600, SECRET).must("A's file");
        world.a.setxattr(&tmp, "user.a", b"A", 0).must("A's attribute");
    }
    let weapon = world.cluster.b.at("sticky/weapon");
    world.b.make(&weapon, 0o666, OWN).must("B's other file");
    world.cluster.settle();
    // Everything else has arrived before, so only the rename arrives during the call.
    for one in &tries {
        let (on_a, tmp) = (world.cluster.a.at(name_of(*one)), world.cluster.b.at(tmp_of(*one)));
        eventually(10_000, "both files arrive", || {
            let arrived = world.root.getxattr(&on_a, "user.a");
            let arrived = arrived.and_then(|_| world.root.getxattr(&tmp, "user.a"));
            arrived.map_err(|errno| errno.to_string())
        });
    }
    let mut results = Vec::new();
    for (way, (what, act)) in ways.into_iter().enumerate() {
        let mut asked_again = true;
        for k in 0..TRIES {
            let name = name_of((way, k));
            let (on_a, on_b) = (world.cluster.a.at(&name), world.cluster.b.at(&name));
            let tmp = world.cluster.a.at(tmp_of((way, k)));
            let before = Entry::of(&mut world.root, &tmp);
            assert_eq!(world.b.stat(&on_b).must("B's file").uid, B.uid);
            // The kernel also has the other names that the call uses in its cache.
            drop((world.b.stat(&weapon), world.b.stat(&on_b.with_file_name("stolen"))));
            let path = on_b.clone();
            let held = while_it_arrives(
                &mut world,
                &on_b,
                move |b| act(b, &path),
                |world| {
                    world.root.rename(&tmp, &on_a).must("root puts A's file there");
                },
            );
            if let Ok(Some(read)) = &held.result
                && read.starts_with(&SECRET[..8])
            {
                faults.push(format!("{what}: B read A's content"));
            }
            precious.push((name, before));
            results.push(format!("{way}-{k} {what}: {:?}", held.result.err()));
            // The kernel looks up the target of a rename in any case, after it has found the source.
            asked_again = held.asked_again && !what.starts_with("rename");
            if !asked_again {
                break;
            }
        }
        assert!(!asked_again, "{what}: the kernel asked again each of {TRIES} times");
    }
    world.check_both(&precious, &mut faults);
    if !faults.is_empty() {
        faults.push(format!("the answers to B: {}", results.join(", ")));
    }
    assert_none(&faults);
}
in_both_modes!(p14_isolation_of_names_that_are_replaced_under_a_call);

/// A mapping that survives the close: what is stored through it is never in an entry on only one of
/// the nodes, and no other user reads it before the file is closed.
fn p14_isolation_of_a_sealed_entry_from_its_writers_mapping(io: Io) {
    const LEN: usize = 80_000;
    let Some(mut world) =
        World::two(io, "p14_isolation_of_a_sealed_entry_from_its_writers_mapping")
    else {
        return;
    };
    let name = "open/sealed";
    let (on_a, on_b) = (world.cluster.a.at(name), world.cluster.b.at(name));
    let fd = world.b.open(&on_a, READ_WRITE | OFlags::TRUNC, 0o644).must("create");
    world.b.write(fd, &vec![b'A'; LEN]).must("write");
    let map = world.b.map(fd, LEN, true, true).must("map");
    world.b.close(fd).must("close");
    let early = world.a.open(&on_a, OFlags::RDONLY, 0).must("A opens it");
    world.cluster.a.drain();
    world.b.map_write(map, 0, &vec![b'Z'; LEN / 2]);
    world.b.msync(map).must("msync");
    let closed = vec![b'A'; LEN];
    assert!(world.a.get(&on_a).must("read") == closed, "unclosed bytes on the same node");
    assert!(world.a.read(early, 0, LEN).must("read") == closed, "an open version changed");
    eventually(10_000, "the entry arrives", || {
        world.root.get(&on_b).map(drop).map_err(|errno| errno.to_string())
    });
    assert!(world.root.get(&on_b).must("read") == closed, "unclosed bytes on the other node");
    world.b.unmap(map).must("unmap");
    assert!(world.a.read(early, 0, LEN).must("read") == closed, "an open version changed");
    world.cluster.settle();
    let all = tree::converge(&world.cluster.a.mount, &world.cluster.b.mount, 15_000);
    let blobs = tree::files_below(&world.cluster.a.cache.join("v1/blobs"));
    for blob in &blobs {
        let digest = blake3::hash(&std::fs::read(blob).must("read a blob")).to_hex().to_string();
        let named = blob.file_name().must("a name").to_string_lossy().into_owned();
        assert_eq!(digest, named, "a blob does not match its name");
    }
    assert!(all.contains_key(Path::new(name)), "{all:?}");
}
in_both_modes!(p14_isolation_of_a_sealed_entry_from_its_writers_mapping);

/// How B keeps access to the bytes that it has published.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kept {
    Mapping,
    Descriptor,
}

/// A's entry in a directory that only A may search does not change when B, which has published the
/// same bytes, continues to write.
fn p14_isolation_of_equal_content(io: Io) {
    const LEN: usize = 50_000;
    let Some(mut world) = World::two(io, "p14_isolation_of_equal_content") else { return };
    let (mut faults, mut precious) = (Vec::new(), Vec::new());
    let orders =
        [("A first", true, false), ("B first", false, false), ("B first, A later", false, true)];
    let mut round = 0_u8;
    for kept in [Kept::Mapping, Kept::Descriptor] {
        for (order, a_first, a_after_the_change) in orders {
            round += 1;
            let (when, bytes) = (format!("{kept:?}, {order}"), vec![round; LEN]);
            let name = format!("private/n{round}");
            let (of_a, of_b): (PathBuf, PathBuf) =
                (world.cluster.a.at(&name), world.cluster.a.at(format!("open/n{round}")));
            if a_first {
                world.a.make(&of_a, 0o600, &bytes).must("A publishes");
            }
            let fd = world.b.open(&of_b, READ_WRITE | OFlags::TRUNC, 0o644).must("B creates");
            world.b.write(fd, &bytes).must("B writes");
            let map = world.b.map(fd, LEN, true, true).must("B maps");
            let second = world.b.dup(fd).must("dup");
            world.b.close(second).must("B publishes");
            if kept == Kept::Mapping {
                world.b.close(fd).must("B closes");
            }
            if !a_first && !a_after_the_change {
                world.a.make(&of_a, 0o600, &bytes).must("A publishes");
            }
            match kept {
                Kept::Mapping => world.b.map_write(map, 0, b"INTRUDER"),
                Kept::Descriptor => drop(world.b.pwrite(fd, 0, b"INTRUDER").must("B writes")),
            }
            if a_after_the_change {
                world.a.make(&of_a, 0o600, &bytes).must("A publishes");
            }
            let before = Entry::of(&mut world.root, &of_a);
            if before.bytes.as_ref() != Ok(&bytes) {
                faults.push(format!("{when}: A's entry has other bytes"));
            }
            world.b.unmap(map).must("B unmaps");
            if kept == Kept::Descriptor {
                world.b.close(fd).must("B closes");
            }
            faults.extend(before.differs(&Entry::of(&mut world.root, &of_a), &when));
            // Properties of one of two equal entries do not apply to the other.
            world.b.make(&of_b, 0o666, &bytes).must("B publishes the same again");
            world.b.chmod(&of_b, 0o666).must("B opens its file to all");
            faults.extend(before.differs(&Entry::of(&mut world.root, &of_a), &when));
            if world.b.get(&of_a) != Err(Errno::ACCESS) {
                faults.push(format!("{when}: B reads A's entry"));
            }
            precious.push((name, Entry { bytes: Ok(bytes), ..before }));
        }
    }
    world.check_both(&precious, &mut faults);
    assert_none(&faults);
}
in_both_modes!(p14_isolation_of_equal_content);
