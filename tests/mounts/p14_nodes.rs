//! P14 isolation, where A's changes on one node arrive at B's node: while a call of B is in flight,
//! or below something that B holds open.

use std::path::{Path, PathBuf};

use rustix::fs::OFlags;
use rustix::io::Errno;

use super::p14::{ByPath, OWN, SECRET, while_it_arrives};
use super::users::{A, B, Entry, World, assert_none};
use crate::harness::syscall_process::{CREATE_NEW, IN_PLACE};
use crate::harness::{Io, Must as _, SyscallProcess, eventually, in_both_modes};

/// The operations of B below a directory that is its own, or open to all.
const BELOW: [ByPath; 14] = [
    ("read", |process, dir| process.get(&dir.join("entry")).map(Some)),
    ("write", |process, dir| process.put(&dir.join("entry"), b"INTRUDER").map(|()| None)),
    ("create", |process, dir| process.make(&dir.join("new"), 0o644, b"INTRUDER").map(|()| None)),
    ("create what is there", |process, dir| {
        let fd = process.open(&dir.join("entry"), OFlags::RDWR | OFlags::CREATE, 0o666)?;
        let read = process.read(fd, 0, 100)?;
        process.pwrite(fd, 0, b"INTRUDER")?;
        process.close(fd).map(|()| Some(read))
    }),
    ("mkdir", |process, dir| process.mkdir(&dir.join("below")).map(|()| None)),
    ("symlink", |process, dir| {
        process.symlink(Path::new("entry"), &dir.join("trap")).map(|()| None)
    }),
    ("mknod", |process, dir| process.mknod(&dir.join("pipe"), 0o010_666).map(|()| None)),
    ("unlink", |process, dir| process.unlink(&dir.join("entry")).map(|()| None)),
    ("move out", |process, dir| {
        process.rename(&dir.join("entry"), &dir.with_file_name("stolen")).map(|()| None)
    }),
    ("move in", |process, dir| {
        process.rename(&dir.with_file_name("weapon"), &dir.join("entry")).map(|()| None)
    }),
    ("link in", |process, dir| {
        process.link(&dir.with_file_name("weapon"), &dir.join("linked")).map(|()| None)
    }),
    ("list", |process, dir| process.list(dir).map(|names| Some(names.join(" ").into_bytes()))),
    ("look up a new name", |process, dir| process.get(&dir.join("extra")).map(Some)),
    ("chmod", |process, dir| process.chmod(&dir.join("entry"), 0o777).map(|()| None)),
];

/// Lists a directory as root on one node.
fn listed(world: &mut World, dir: &Path) -> Vec<String> {
    world.root.list(dir).unwrap_or_else(|errno| vec![errno.to_string()])
}

/// Makes directories of B on node B, with a file of B in each, and what B needs beside them; waits
/// until node A has them.
fn bs_directories(world: &mut World, names: &[String]) {
    let weapon = world.cluster.b.at("open/weapon");
    world.b.make(&weapon, 0o666, b"INTRUDER").must("B's other file");
    for name in names {
        let dir = world.cluster.b.at(name);
        world.b.mkdir_with(&dir, 0o777).must("B's directory");
        world.b.make(&dir.join("entry"), 0o666, OWN).must("B's file");
    }
    world.cluster.b.drain();
    for name in names {
        let entry = world.cluster.a.at(name).join("entry");
        eventually(10_000, "B's directory arrives", || {
            world.root.stat(&entry).map_err(|errno| errno.to_string())
        });
    }
}

/// Puts a closed directory of A in the place of B's, with a file that only the directory protects.
fn replace_by_as(world: &mut World, on_a: &Path) {
    world.root.unlink(&on_a.join("entry")).must("root removes B's file");
    world.root.rmdir(on_a).must("root removes B's directory");
    world.a.mkdir_with(on_a, 0o700).must("A's directory");
    for name in ["entry", "extra"] {
        world.a.make(&on_a.join(name), 0o666, SECRET).must("A's file");
    }
}

/// Reports whether B read something that only A's closed directory contains.
fn is_as(read: &[u8]) -> bool {
    read.starts_with(&SECRET[..8]) || read.ends_with(b"extra")
}

/// B acts below its own directory, and A's closed directory of the same name arrives while the
/// request is in flight.
fn p14_isolation_of_directories_that_are_replaced_under_a_call(io: Io) {
    let Some(mut world) =
        World::two(io, "p14_isolation_of_directories_that_are_replaced_under_a_call")
    else {
        return;
    };
    let (mut faults, mut precious, mut whole) = (Vec::new(), Vec::new(), Vec::new());
    let name_of = |what: &str| format!("open/{}", what.replace(' ', "-"));
    bs_directories(&mut world, &BELOW.map(|(what, _)| name_of(what)));
    for (what, act) in BELOW {
        let name = name_of(what);
        let (on_a, on_b) = (world.cluster.a.at(&name), world.cluster.b.at(&name));
        // The file that B uses is a new one each time.
        let weapon = on_b.with_file_name("weapon");
        world.b.make(&weapon, 0o666, b"INTRUDER").must("B's other file");
        let path = on_b.clone();
        drop(world.b.stat(&on_b.join("entry")));
        let held = while_it_arrives(
            &mut world,
            &on_b,
            move |b| act(b, &path),
            |world| {
                replace_by_as(world, &on_a);
            },
        );
        if let Ok(Some(read)) = &held.result
            && is_as(read)
        {
            faults.push(format!("{what}: B read A's content"));
        }
        let entry = format!("{name}/entry");
        let found = Entry::of(&mut world.root, &world.cluster.a.at(&entry));
        precious
            .push((entry, Entry { bytes: Ok(SECRET.to_vec()), owner: (A.uid, A.gid), ..found }));
        whole.push((format!("{what} ({:?})", held.result.map(drop)), name));
    }
    world.check_both(&precious, &mut faults);
    for (what, name) in whole {
        for at in [world.cluster.a.at(&name), world.cluster.b.at(&name)] {
            let names = listed(&mut world, &at);
            let mode = world.root.stat(&at).map(|stat| (stat.mode & 0o7777, stat.uid));
            if names != ["entry", "extra"] || mode != Ok((0o700, A.uid)) {
                faults.push(format!("{what}: {} holds {names:?}, {mode:?}", at.display()));
            }
        }
    }
    assert_none(&faults);
}
in_both_modes!(p14_isolation_of_directories_that_are_replaced_under_a_call);

/// B has its directory open and as its working directory when A's closed directory of the same name arrives.
fn p14_isolation_of_directories_that_others_replaced(io: Io) {
    let Some(mut world) = World::two(io, "p14_isolation_of_directories_that_others_replaced")
    else {
        return;
    };
    let (mut faults, mut precious, mut whole) = (Vec::new(), Vec::new(), Vec::new());
    // Nothing beside a directory can be reached from inside it.
    let within =
        BELOW.into_iter().filter(|(what, _)| !what.starts_with("move") && *what != "link in");
    let within: Vec<ByPath> = within.collect();
    let whens: Vec<_> = [("from within", true), ("by descriptor", false)]
        .into_iter()
        .flat_map(|(how, by_cwd)| {
            within.iter().map(move |(what, act)| (format!("{what}, {how}"), by_cwd, *act))
        })
        .collect();
    let name_of = |when: &str| format!("open/{}", when.replace([' ', ','], "-"));
    let names: Vec<String> = whens.iter().map(|(when, ..)| name_of(when)).collect();
    bs_directories(&mut world, &names);
    let mut standing = Vec::new();
    for name in &names {
        let (mut b, on_b) = (SyscallProcess::of(B, &[]), world.cluster.b.at(name));
        let fd = b.open(&on_b, OFlags::RDONLY | OFlags::DIRECTORY, 0).must("B opens it");
        b.chdir(&on_b).must("B enters it");
        standing.push((b, fd));
    }
    for name in &names {
        let on_a = world.cluster.a.at(name);
        replace_by_as(&mut world, &on_a);
    }
    world.cluster.a.drain();
    for name in &names {
        let on_b = world.cluster.b.at(name);
        eventually(10_000, "A's directory arrives", || match world.root.stat(&on_b) {
            Ok(stat) if stat.uid == A.uid => Ok(()),
            other => Err(format!("{other:?}")),
        });
    }
    for ((when, by_cwd, act), (mut b, fd)) in whens.into_iter().zip(standing) {
        let name = name_of(&when);
        let weapon = world.cluster.b.at("open/weapon");
        world.b.make(&weapon, 0o666, b"INTRUDER").must("B's other file");
        let from =
            if by_cwd { PathBuf::from("/proc/self/cwd") } else { SyscallProcess::proc_path(fd) };
        let done = act(&mut b, &from);
        if let Ok(Some(read)) = &done
            && is_as(read)
        {
            faults.push(format!("{when}: B read A's content"));
        }
        let listed = b.list(&from);
        if listed.as_ref().is_ok_and(|names| !names.is_empty()) {
            faults.push(format!("{when}: B lists A's directory: {listed:?}"));
        }
        let entry = format!("{name}/entry");
        let found = Entry::of(&mut world.root, &world.cluster.a.at(&entry));
        precious
            .push((entry, Entry { bytes: Ok(SECRET.to_vec()), owner: (A.uid, A.gid), ..found }));
        whole.push((format!("{when} ({:?})", done.map(drop)), name));
    }
    world.check_both(&precious, &mut faults);
    for (what, name) in whole {
        for at in [world.cluster.a.at(&name), world.cluster.b.at(&name)] {
            let names = listed(&mut world, &at);
            if names != ["entry", "extra"] {
                faults.push(format!("{what}: {} holds {names:?}", at.display()));
            }
        }
    }
    assert_none(&faults);
}
in_both_modes!(p14_isolation_of_directories_that_others_replaced);

/// A name that B's kernel believes missing, at which an object of A arrives while B makes something there.
fn p14_isolation_of_names_that_arrive_under_other_calls(io: Io) {
    let Some(mut world) = World::two(io, "p14_isolation_of_names_that_arrive_under_other_calls")
    else {
        return;
    };
    let makers: [ByPath; 7] = [
        ("mkdir", |process, path| process.mkdir(path).map(|()| None)),
        ("mknod", |process, path| process.mknod(path, 0o010_666).map(|()| None)),
        ("symlink", |process, path| process.symlink(Path::new("x"), path).map(|()| None)),
        ("link", |process, path| process.link(&path.with_file_name("weapon"), path).map(|()| None)),
        ("rename", |process, path| {
            process.rename(&path.with_file_name("weapon2"), path).map(|()| None)
        }),
        ("create new", |process, path| {
            let fd = process.open(path, CREATE_NEW, 0o666)?;
            process.write(fd, b"INTRUDER")?;
            process.close(fd).map(|()| None)
        }),
        ("create", |process, path| {
            process.put_with(path, IN_PLACE, 100, 0, b"INTRUDER").map(|()| None)
        }),
    ];
    let (mut faults, mut precious, mut told) = (Vec::new(), Vec::new(), Vec::new());
    for weapon in ["sticky/weapon", "sticky/weapon2"] {
        world.b.make(&world.cluster.b.at(weapon), 0o666, b"INTRUDER").must("B's file");
    }
    for (what, act) in makers {
        for kind in ["file", "link", "directory"] {
            let when = format!("{what} where a {kind} arrives");
            let name = format!("sticky/{}", when.replace(' ', "-"));
            let aim = world.cluster.b.at(format!("private/{}", when.replace(' ', "-")));
            let (on_a, on_b) = (world.cluster.a.at(&name), world.cluster.b.at(&name));
            assert_eq!(world.b.stat(&on_b).err(), Some(Errno::NOENT));
            drop(world.b.stat(&on_b.with_file_name("weapon2")));
            let path = on_b.clone();
            let held = while_it_arrives(
                &mut world,
                &on_b,
                move |b| act(b, &path),
                |world| match kind {
                    "file" => world.a.make(&on_a, 0o600, SECRET).must("A's file"),
                    "link" => world.a.symlink(&aim, &on_a).must("A's link"),
                    _ => {
                        world.a.mkdir_with(&on_a, 0o700).must("A's directory");
                        world.a.make(&on_a.join("entry"), 0o666, SECRET).must("A's file");
                    }
                },
            );
            told.push(format!("{when}: {:?}", held.result.as_ref().err()));
            if held.result.is_ok() {
                faults.push(format!("{when}: done"));
            }
            let stat = world.root.lstat(&on_a);
            let owner = stat.as_ref().map(|stat| stat.uid);
            if owner != Ok(A.uid) {
                faults.push(format!("{when}: found {stat:?}"));
            }
            let entry = if kind == "directory" { format!("{name}/entry") } else { name };
            if kind != "link" {
                let found = Entry::of(&mut world.root, &world.cluster.a.at(&entry));
                precious.push((
                    entry,
                    Entry { bytes: Ok(SECRET.to_vec()), owner: (A.uid, A.gid), ..found },
                ));
            }
        }
    }
    world.check_both(&precious, &mut faults);
    if !faults.is_empty() {
        faults.push(format!("the answers to B: {}", told.join(", ")));
    }
    assert_none(&faults);
}
in_both_modes!(p14_isolation_of_names_that_arrive_under_other_calls);

/// A revokes rights on its node. When that has arrived, B no longer has them on the other node, by
/// path, from a working directory, or through a descriptor of the directory. B keeps its open
/// files, as on a local disk.
fn p14_isolation_by_rights_that_are_taken_away(io: Io) {
    let Some(mut world) = World::two(io, "p14_isolation_by_rights_that_are_taken_away") else {
        return;
    };
    let mut faults = Vec::new();
    let (on_a, on_b) = (world.cluster.a.at("open/dir"), world.cluster.b.at("open/dir"));
    world.a.mkdir_with(&on_a, 0o777).must("A's directory");
    for name in ["chmod", "chgrp", "inside"] {
        world.a.make(&on_a.join(name), 0o666, SECRET).must("A's file");
        world.a.chmod(&on_a.join(name), 0o666).must("for all");
    }
    world.cluster.a.drain();
    for name in ["chmod", "chgrp", "inside"] {
        eventually(10_000, "A's files arrive", || match world.b.get(&on_b.join(name)) {
            Ok(read) if read == SECRET => Ok(()),
            other => Err(format!("{other:?}")),
        });
    }
    let dir = world.b.open(&on_b, OFlags::RDONLY | OFlags::DIRECTORY, 0).must("B opens it");
    let kept = world.b.open(&on_b.join("chmod"), OFlags::RDONLY, 0).must("B opens a file");
    let path = world.b.open(&on_b.join("chmod"), OFlags::PATH, 0).must("B opens a path");
    world.b.chdir(&on_b).must("B enters it");
    world.a.chmod(&on_a.join("chmod"), 0o600).must("A removes the access");
    world.a.chmod(&on_a.join("chgrp"), 0o060).must("A removes the access");
    world.cluster.a.drain();
    let closed = |name: &str, mode: u32, world: &mut World| {
        eventually(10_000, "A's change arrives", || match world.root.stat(&on_b.join(name)) {
            Ok(stat) if stat.mode & 0o7777 == mode => Ok(()),
            other => Err(format!("{other:?}")),
        });
    };
    closed("chmod", 0o600, &mut world);
    closed("chgrp", 0o060, &mut world);
    let here = Path::new;
    for name in ["chmod", "chgrp"] {
        for flags in [
            OFlags::RDONLY,
            OFlags::WRONLY,
            OFlags::RDWR,
            IN_PLACE,
            OFlags::RDONLY | OFlags::CREATE,
        ] {
            let ways = [
                world.b.open(&on_b.join(name), flags, 0o666),
                world.b.open(here(name), flags, 0o666),
                world.b.open_at(dir, name, flags, 0o666),
            ];
            if ways.iter().any(|opened| opened != &Err(Errno::ACCESS)) {
                faults.push(format!("{name}, {flags:?}: {ways:?}"));
            }
        }
    }
    for by in [path, kept] {
        let opened = world.b.open(&SyscallProcess::proc_path(by), OFlags::RDONLY, 0);
        if opened != Err(Errno::ACCESS) {
            faults.push(format!("reopened: {opened:?}"));
        }
    }
    assert_eq!(world.b.read(kept, 0, 100).must("B reads its open file"), SECRET);
    world.a.chmod(&on_a, 0o700).must("A closes the directory");
    world.cluster.a.drain();
    closed("", 0o700, &mut world);
    let inside = world.b.get(&on_b.join("inside")).map(drop);
    let told = [
        ("by path", inside),
        ("from within", world.b.get(here("inside")).map(drop)),
        ("by descriptor", world.b.open_at(dir, "inside", OFlags::RDONLY, 0).map(drop)),
        ("a new one", world.b.put(here("new"), b"B's")),
        ("a removal", world.b.unlink(here("inside"))),
        ("a directory", world.b.mkdir(here("below"))),
        ("a move", world.b.rename(here("inside"), &world.cluster.b.at("open/stolen"))),
        ("a list", world.b.list(here(".")).map(drop)),
    ];
    for (way, result) in told {
        if result != Err(Errno::ACCESS) {
            faults.push(format!("in a closed directory, {way}: {result:?}"));
        }
    }
    assert_none(&faults);
}
in_both_modes!(p14_isolation_by_rights_that_are_taken_away);

/// B has its file open for writing, A's arrives under the name, and B moves that to another name.
/// B's close must not replace it there.
fn p14_isolation_of_files_that_are_moved_under_an_open_one(io: Io) {
    let Some(mut world) = World::two(io, "p14_isolation_of_files_that_are_moved_under_an_open_one")
    else {
        return;
    };
    let at = |name: &str| format!("open/{name}");
    let mut faults = Vec::new();
    for (k, directory) in [false, true].into_iter().enumerate() {
        let (old, new) = if directory {
            world.root.mkdir_with(&world.cluster.b.at(at("dir")), 0o777).must("mkdir");
            (at("dir/n"), at("moved/n"))
        } else {
            (at("n"), at("m"))
        };
        let on_b = world.cluster.b.at(&old);
        world.b.make(&on_b, 0o666, OWN).must("B's file");
        let fd = world.b.open(&on_b, OFlags::WRONLY, 0).must("B opens its file");
        world.cluster.b.drain();
        let on_a = world.cluster.a.at(&old);
        eventually(10_000, "B's file arrives", || {
            world.root.stat(&on_a).map_err(|errno| errno.to_string())
        });
        let temporary = world.cluster.a.at(at("secret"));
        world.a.make(&temporary, 0o600, SECRET).must("A's file");
        world.a.rename(&temporary, &on_a).must("A replaces B's file");
        world.cluster.a.drain();
        eventually(10_000, "A's file arrives", || match world.root.stat(&on_b) {
            Ok(stat) if stat.uid == A.uid => Ok(()),
            other => Err(format!("{other:?}")),
        });
        let before = Entry::of(&mut world.root, &on_b);
        let from = if directory { world.cluster.b.at(at("dir")) } else { on_b };
        let to = if directory { world.cluster.b.at(at("moved")) } else { world.cluster.b.at(&new) };
        world.b.rename(&from, &to).must("B moves the file at the name");
        world.b.pwrite(fd, 0, b"INTRUDER").must("B writes to its own file");
        world.b.close(fd).must("B closes it");
        world.check_both(&[(new, before)], &mut faults);
        assert!(faults.is_empty(), "turn {k}: {}", faults.join("\n"));
    }
}
in_both_modes!(p14_isolation_of_files_that_are_moved_under_an_open_one);
