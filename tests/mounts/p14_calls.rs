//! P14 isolation: what two users can do to each other with set-id bits, attributes, kinds of files,
//! and passed descriptors.
//!
//! The reference is a plain directory, as in `p14_attacks.rs`.

use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::Command;

use rustix::fs::OFlags;
use rustix::process::Signal;

use super::p14_attacks::{SECRET, as_in_a_plain_directory};
use super::users::{A, B, can_be_others, let_in};
use crate::harness::command::run;
use crate::harness::node::Site;
use crate::harness::{Io, Must as _, Node, Options, SyscallProcess, in_both_modes};

/// Another user's program runs with the rights of the user that starts it, whatever its set-id bits say.
fn p14_isolation_of_set_id_programs(io: Io) {
    if !can_be_others("p14_isolation_of_set_id_programs", io) {
        return;
    }
    let site = Site::new();
    let_in(site.path(), 0o755);
    let node = Node::start(&site, "m", None, Options::new(io));
    let (mut root, program) =
        (SyscallProcess::new(), std::fs::read("/usr/bin/id").must("a program"));
    for (owner, mode) in [(0, 0o4755), (0, 0o6755), (A.uid, 0o4755), (A.uid, 0o2755)] {
        let path = node.at(format!("id-{owner}-{mode:o}"));
        root.put(&path, &program).must("put");
        root.chown(&path, Some(owner), Some(owner)).must("chown");
        root.chmod(&path, mode).must("chmod");
        assert_eq!(root.stat(&path).must("stat").mode & 0o7777, mode);
        for (word, own) in [("-u", B.uid), ("-g", B.gid)] {
            let mut command = Command::new(&path);
            let said = run(command.arg(word).uid(B.uid).gid(B.gid), 20_000).good();
            assert_eq!(said.trim(), own.to_string(), "{} {word}", path.display());
        }
    }
}
in_both_modes!(p14_isolation_of_set_id_programs);

/// Extended attributes: which user may set which on which file, and which cannot be set at all.
fn p14_isolation_of_extended_attributes(io: Io) {
    as_in_a_plain_directory(io, "p14_isolation_of_extended_attributes", &[], |stage| {
        for mode in [0o600, 0o644, 0o666, 0o622] {
            for dir in ["open", "sticky"] {
                let path = stage.of_a(&format!("{dir}/{mode:o}"), mode);
                stage.a.setxattr(&path, "user.a", b"A", 0).must("A's attribute");
                for (name, flags) in [("user.a", 1), ("user.b", 2), ("user.a", 0), ("user.b", 0)] {
                    let set = stage.b.setxattr(&path, name, b"B's", flags);
                    stage.note(&format!("{dir}, {mode:o}, set {name} {flags}"), set);
                }
                let read = stage.b.getxattr(&path, "user.a");
                stage.log.push(format!("{dir}, {mode:o}, read: {read:?}"));
                let removed = stage.b.removexattr(&path, "user.a");
                stage.note(&format!("{dir}, {mode:o}, remove"), removed);
                let left = stage.a.getxattr(&path, "user.a");
                stage.log.push(format!("{dir}, {mode:o}, left: {left:?}"));
                for name in [
                    "security.capability",
                    "trusted.b",
                    "security.selinux",
                    "system.posix_acl_access",
                ] {
                    // The error differs between file systems. Only success would matter.
                    let set = stage.b.setxattr(&path, name, b"\x01\0\0\x02\0\0\0\0", 0).is_ok();
                    let removed = stage.b.removexattr(&path, name).is_ok();
                    stage.log.push(format!("{dir}, {mode:o}, {name}: {set} {removed}"));
                }
            }
        }
        // In a sticky directory only its owner can set attributes of the directory itself.
        for dir in ["open", "sticky", "readable", "private"] {
            let set = stage.b.setxattr(&stage.dir.join(dir), "user.b", b"B", 0);
            stage.note(&format!("set on {dir}"), set);
        }
        let (fifo, link) = (stage.at("open/fifo"), stage.at("open/link"));
        stage.b.mknod(&fifo, 0o010_666).must("a pipe");
        stage.try_b("set on a pipe", |b| b.setxattr(&fifo, "user.b", b"B", 0));
        // The comparison would wait for a writer.
        stage.b.unlink(&fifo).must("unlink");
        stage.b.symlink(Path::new("../private/600"), &link).must("a link");
        stage.try_b("set through a link", |b| b.setxattr(&link, "user.b", b"B", 0));
    });
}
in_both_modes!(p14_isolation_of_extended_attributes);

/// Descriptors that A passes to B: B may do what A's open mode allows, and no more.
fn p14_isolation_of_descriptors_that_are_passed_on(io: Io) {
    as_in_a_plain_directory(io, "p14_isolation_of_descriptors_that_are_passed_on", &[], |stage| {
        for (what, flags) in [
            ("read", OFlags::RDONLY),
            ("write", OFlags::WRONLY),
            ("update", OFlags::RDWR),
            ("append", OFlags::WRONLY | OFlags::APPEND),
            ("path", OFlags::PATH),
        ] {
            for early in [true, false] {
                let name = format!("{what}, A closes {}", if early { "first" } else { "last" });
                let path = stage.of_a(&format!("private/{name}"), 0o600);
                let fd = stage.a.open(&path, flags, 0).must("A opens");
                let (a, b) = (&mut stage.a, &mut stage.b);
                let passed = a.pass(fd, b).must("A passes it on");
                if early {
                    a.close(fd).must("A closes");
                }
                let read = stage.b.read(passed, 0, 100);
                stage.log.push(format!("{name}, read: {read:?}"));
                stage.try_b(&format!("{name}, write"), |b| b.pwrite(passed, 0, b"B's"));
                stage.try_b(&format!("{name}, cut"), |b| b.ftruncate(passed, 3));
                stage.try_b(&format!("{name}, chmod"), |b| b.fchmod(passed, 0o777));
                stage.try_b(&format!("{name}, mark"), |b| b.fsetxattr(passed, "user.b", b"B"));
                stage.try_b(&format!("{name}, utimes"), |b| b.futimes(passed, 1_000_000, 1));
                stage.try_b(&format!("{name}, chown"), |b| b.fchown(passed, Some(B.uid), None));
                for (how, again) in [("read", OFlags::RDONLY), ("write", OFlags::WRONLY)] {
                    let opened = stage.b.open(&SyscallProcess::proc_path(passed), again, 0);
                    stage.note(&format!("{name}, reopen to {how}"), opened);
                    if let Ok(again) = opened {
                        stage.b.close(again).must("close");
                    }
                }
                let stolen = stage.at(&format!("open/{name}"));
                stage.try_b(&format!("{name}, link"), |b| b.link_fd(passed, &stolen));
                stage.b.close(passed).must("B closes");
                if !early {
                    stage.a.close(fd).must("A closes");
                }
                let left = stage.a.get(&path);
                stage.log.push(format!("{name}, left: {left:?}"));
            }
        }
    });
}
in_both_modes!(p14_isolation_of_descriptors_that_are_passed_on);

/// Files that another process has open, seen through `/proc`: those of another user are
/// inaccessible, own ones follow the file's mode.
fn p14_isolation_of_what_others_have_open(io: Io) {
    as_in_a_plain_directory(io, "p14_isolation_of_what_others_have_open", &[], |stage| {
        let mut second = SyscallProcess::of(B, &[]);
        for mode in [0o600, 0o644, 0o666, 0o000] {
            for whose in ["A", "B"] {
                let name = format!("{mode:o} of {whose}");
                let path = stage.at(&format!("open/{name}"));
                let process = if whose == "A" { &mut stage.a } else { &mut stage.b };
                process.make(&path, 0o600, SECRET).must("a file");
                let fd = process.open(&path, OFlags::RDONLY, 0).must("open");
                process.chmod(&path, mode).must("chmod");
                let seen = format!("/proc/{}/fd/{fd}", process.pid());
                let seen = Path::new(&seen);
                for (how, flags) in [
                    ("read", OFlags::RDONLY),
                    ("write", OFlags::WRONLY),
                    ("empty", OFlags::WRONLY | OFlags::TRUNC),
                ] {
                    let opened = second.open(seen, flags, 0);
                    stage.note(&format!("{name}, {how}"), opened);
                    if let Ok(fd) = opened {
                        second.close(fd).must("close");
                    }
                }
                // For an own file, truncating has made another version, and this is still the old one.
                if whose == "A" {
                    let cut = second.truncate(seen, 2);
                    stage.note(&format!("{name}, truncate"), cut);
                    let marked = second.chmod(seen, 0o777);
                    stage.note(&format!("{name}, chmod"), marked);
                }
                let process = if whose == "A" { &mut stage.a } else { &mut stage.b };
                process.close(fd).must("close");
            }
        }
    });
}
in_both_modes!(p14_isolation_of_what_others_have_open);

/// Times, access, kinds of files, and links in a sticky directory.
fn p14_isolation_of_times_kinds_and_traps(io: Io) {
    as_in_a_plain_directory(io, "p14_isolation_of_times_kinds_and_traps", &[], |stage| {
        for mode in [0o600, 0o644, 0o666, 0o622, 0o755] {
            let path = stage.of_a(&format!("open/{mode:o}"), mode);
            stage.a.utimes(&path, 1_000_000, 0).must("A's time");
            stage.try_b(&format!("{mode:o}, touch"), |b| b.touch(&path));
            let moved = stage.a.stat(&path).must("stat").mtime_s != 1_000_000;
            stage.log.push(format!("{mode:o}, touched: {moved}"));
            stage.try_b(&format!("{mode:o}, no access time"), |b| {
                let fd = b.open(&path, OFlags::RDONLY | OFlags::NOATIME, 0)?;
                b.close(fd)
            });
            stage.try_b(&format!("{mode:o}, as a directory"), |b| {
                b.open(&path, OFlags::RDONLY | OFlags::DIRECTORY, 0)
            });
        }
        for dir in ["open", "sticky", "readable"] {
            for (kind, mode) in [("null", 0o020_666), ("disk", 0o060_666), ("pipe", 0o010_622)] {
                let path = stage.dir.join(format!("{dir}/{kind}"));
                let made = stage.b.mknod(&path, mode);
                stage.note(&format!("{dir}, make {kind}"), made);
                let mode = stage.a.stat(&path).map(|stat| format!("{:o}", stat.mode));
                stage.log.push(format!("{dir}, {kind} is {mode:?}"));
                // The comparison would wait for a writer.
                let gone = stage.b.unlink(&path);
                stage.note(&format!("{dir}, unlink {kind}"), gone);
            }
        }
        // A link of B's in a sticky directory, and one of A's, followed by the other.
        stage.of_a("readable/aim", 0o666);
        let (aim, theirs) = (Path::new("../readable/aim"), Path::new("../open/own"));
        let own = stage.at("open/own");
        stage.b.make(&own, 0o666, b"B's").must("B's file");
        for (name, target, by_a) in
            [("of-b", theirs, false), ("of-a", aim, true), ("b-to-a", aim, false)]
        {
            let link = stage.at(&format!("sticky/{name}"));
            let maker = if by_a { &mut stage.a } else { &mut stage.b };
            maker.symlink(target, &link).must("a link");
            let (read, wrote) = (stage.a.get(&link), stage.a.put(&link, b"through a link"));
            stage.note(&format!("{name}, A reads"), read);
            stage.note(&format!("{name}, A writes"), wrote);
            let (read, wrote) = (stage.b.get(&link), stage.b.put(&link, b"through a link of"));
            stage.note(&format!("{name}, B reads"), read);
            stage.note(&format!("{name}, B writes"), wrote);
            let linked = stage.b.link(&link, &stage.dir.join(format!("open/{name}")));
            stage.note(&format!("{name}, B links it"), linked);
            let gone = if by_a { stage.b.unlink(&link) } else { stage.a.unlink(&link) };
            stage.note(&format!("{name}, the other removes it"), gone);
        }
    });
}
in_both_modes!(p14_isolation_of_times_kinds_and_traps);

/// Working directories that A removes, closes, or replaces while B is in them.
fn p14_isolation_of_working_directories(io: Io) {
    as_in_a_plain_directory(io, "p14_isolation_of_working_directories", &[], |stage| {
        for (what, mode) in
            [("closed", 0o700), ("removed", 0o755), ("replaced", 0o700), ("moved", 0o700)]
        {
            let dir = stage.at(&format!("open/{what}"));
            stage.a.mkdir_with(&dir, 0o777).must("A's directory");
            stage.b.chdir(&dir).must("B enters it");
            let fd = stage.b.open(&dir, OFlags::RDONLY | OFlags::DIRECTORY, 0).must("B opens it");
            match what {
                "closed" => stage.a.chmod(&dir, mode).must("A closes it"),
                "moved" => {
                    stage.a.chmod(&dir, mode).must("A closes it");
                    stage.a.rename(&dir, &stage.dir.join("private/moved")).must("A moves it");
                }
                _ => stage.a.rmdir(&dir).must("A removes it"),
            }
            let inside = match what {
                "closed" => Some(dir.clone()),
                "moved" => Some(stage.at("private/moved")),
                "replaced" => {
                    stage.a.mkdir_with(&dir, mode).must("A makes another");
                    Some(dir.clone())
                }
                _ => None,
            };
            if let Some(inside) = inside {
                stage.a.make(&inside.join("open"), 0o666, SECRET).must("A's file");
            }
            let here = Path::new;
            stage.try_b(&format!("{what}, read"), |b| b.get(here("open")));
            stage.try_b(&format!("{what}, write"), |b| b.put(here("open"), b"B's"));
            stage.try_b(&format!("{what}, create"), |b| b.make(here("new"), 0o644, b"B's"));
            stage.try_b(&format!("{what}, mkdir"), |b| b.mkdir(here("below")));
            stage.try_b(&format!("{what}, link out"), |b| b.link(here("open"), here("../stolen")));
            stage
                .try_b(&format!("{what}, move out"), |b| b.rename(here("open"), here("../stolen")));
            stage.try_b(&format!("{what}, move in"), |b| b.rename(here("../none"), here("in")));
            stage.try_b(&format!("{what}, unlink"), |b| b.unlink(here("open")));
            stage.try_b(&format!("{what}, list"), |b| b.list(here(".")));
            stage.try_b(&format!("{what}, stat"), |b| b.stat(here("open")));
            stage.try_b(&format!("{what}, by descriptor"), |b| {
                b.open_at(fd, "open", OFlags::RDWR, 0)
            });
            stage.try_b(&format!("{what}, above"), |b| b.get(here("../../private/none")));
            stage.try_b(&format!("{what}, by proc"), |b| {
                b.get(&SyscallProcess::proc_path(fd).join("open"))
            });
            stage.b.close(fd).must("close");
            stage.b.chdir(&stage.dir.join("open")).must("chdir");
        }
        // A file that a killed process of B left open gives no access to A's file of its name.
        let path = stage.of_a("open/last", 0o600);
        let mut other = SyscallProcess::of(B, &[]);
        let opened = other.open(&path, OFlags::RDONLY, 0);
        stage.note("open by another of B's", opened);
        other.kill(Signal::KILL);
    });
}
in_both_modes!(p14_isolation_of_working_directories);
