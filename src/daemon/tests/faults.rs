//! Faults that were inserted on purpose and that random single calls found late or never: one case
//! for each (docs/faults.md).

use std::ffi::OsStr;
use std::os::unix::fs::FileExt as _;
use std::sync::Arc;
use std::time::Duration;

use hearthfs_mount::{Answer, Errno, FlockKind, Ino, Lookup, OpenAccess, OpenFlags, Vfs as _};

use super::given::Counted;
use super::kernel::Kernel;
use super::node::{READ, REPLACE, UPDATE, get, in_both_modes, node, put, runtime};
use super::programs::Program;
use super::units::{make_dirs, missing};
use super::users::{ANN, BOB, ROOT};

const EMPTY: OpenFlags = OpenFlags { access: OpenAccess::Write, ..REPLACE };

#[test]
fn a_childs_close_is_not_that_of_its_parent() {
    in_both_modes(|kernel| {
        let [parent, child, other] = std::array::from_fn(|_| Program::start());
        put(kernel, &other, "file", b"old");
        for flags in [REPLACE, EMPTY] {
            let before = get(kernel, &other, "file");
            kernel.open(&parent.caller(), "file", 1, flags, false).unwrap();
            kernel.write(1, 0, b"half").unwrap();
            kernel.duplicate(1, 2);
            kernel.close(&child.caller(), 2).unwrap();
            assert_eq!(get(kernel, &other, "file"), before, "the parent has not closed it");
            kernel.write(1, 4, b" and whole").unwrap();
            kernel.close(&parent.caller(), 1).unwrap();
            assert_eq!(get(kernel, &other, "file"), b"half and whole");
        }
    });
}

#[test]
fn writes_through_a_remaining_descriptor_are_published_by_its_close() {
    in_both_modes(|kernel| {
        let [opener, heir, other] = std::array::from_fn(|_| Program::start());
        for flags in [REPLACE, EMPTY] {
            kernel.open(&opener.caller(), "file", 1, flags, true).unwrap();
            kernel.duplicate(1, 2);
            kernel.write(1, 0, b"first").unwrap();
            kernel.close(&opener.caller(), 1).unwrap();
            kernel.open(&other.caller(), "file", 3, READ, false).unwrap();
            kernel.write(2, 0, b"LATER").unwrap();
            assert_eq!(kernel.read(3).unwrap(), b"first", "the open version does not change");
            kernel.close(&other.caller(), 3).unwrap();
            kernel.close(&heir.caller(), 2).unwrap();
            assert_eq!(get(kernel, &other, "file"), b"LATER");
        }
    });
}

#[test]
fn a_remaining_descriptor_that_writes_nothing_more_replaces_nothing() {
    in_both_modes(|kernel| {
        let [opener, heir, other] = std::array::from_fn(|_| Program::start());
        for flags in [REPLACE, EMPTY] {
            kernel.open(&opener.caller(), "file", 1, flags, true).unwrap();
            kernel.duplicate(1, 2);
            kernel.write(1, 0, b"first").unwrap();
            kernel.close(&opener.caller(), 1).unwrap();
            assert_eq!(get(kernel, &other, "file"), b"first");
            put(kernel, &other, "file", b"second");
            kernel.close(&heir.caller(), 2).unwrap();
            assert_eq!(get(kernel, &other, "file"), b"second");
        }
    });
}

/// With passthrough, a mapping lasts longer than the last request for its file that the daemon
/// gets.
#[test]
fn stores_after_the_end_of_a_file_change_no_entry() {
    let (runtime, dir) = (runtime(), tempfile::tempdir().unwrap());
    let kernel = &mut Kernel::start(&runtime, node(&dir), true);
    let (one, other) = (Program::start(), Program::start());
    let who = one.caller();
    kernel.open(&who, "file", 1, EMPTY, true).unwrap();
    kernel.open(&who, "file", 2, UPDATE, false).unwrap();
    let mapped = kernel.backing_of(2).expect("all writers use the mode of the first");
    kernel.write(1, 0, b"published").unwrap();
    kernel.close(&who, 2).unwrap();
    kernel.close(&who, 1).unwrap();
    mapped.file().write_all_at(b"STORED", 0).unwrap();
    assert_eq!(get(kernel, &other, "file"), b"published");
    put(kernel, &other, "same", b"published");
    assert_eq!(get(kernel, &other, "same"), b"published");
}

#[test]
fn the_lock_of_a_file_goes_with_its_last_descriptor() {
    in_both_modes(|kernel| {
        let (one, other) = (Program::start(), Program::start());
        put(kernel, &one, "lock", b"");
        kernel.open(&one.caller(), "lock", 1, UPDATE, false).unwrap();
        kernel.open(&other.caller(), "lock", 2, UPDATE, false).unwrap();
        kernel.duplicate(1, 3);
        kernel.flock(&one.caller(), 1, FlockKind::Exclusive).unwrap();
        for fd in [1, 3] {
            let refused = kernel.flock(&other.caller(), 2, FlockKind::Shared);
            assert_eq!(refused, Err(Errno::EAGAIN), "descriptor {fd} is open");
            kernel.close(&one.caller(), fd).unwrap();
        }
        assert_eq!(kernel.flock(&other.caller(), 2, FlockKind::Exclusive), Ok(()));
        kernel.close(&other.caller(), 2).unwrap();
    });
}

#[test]
fn a_file_of_another_user_is_emptied_like_an_own_file() {
    in_both_modes(|kernel| {
        let [ann, bob] = [ANN, BOB].map(Program::start_as);
        kernel.chmod(&Program::start().caller(), "", 0o777).unwrap();
        put(kernel, &ann, "file", b"a long text");
        kernel.chmod(&ann.caller(), "file", 0o666).unwrap();
        for (flags, text) in [(EMPTY, b"new"), (REPLACE, b"yet")] {
            kernel.open(&bob.caller(), "file", 1, flags, false).unwrap();
            kernel.write(1, 0, text).unwrap();
            kernel.close(&bob.caller(), 1).unwrap();
            assert_eq!(get(kernel, &ann, "file"), text);
            put(kernel, &ann, "file", b"a long text");
        }
    });
}

#[test]
fn a_file_that_is_renamed_over_another_keeps_its_inode() {
    in_both_modes(|kernel| {
        let (one, other) = (Program::start(), Program::start());
        put(kernel, &one, "old", b"old");
        put(kernel, &one, "new", b"new text");
        let inode = kernel.stat(&one.caller(), "new").unwrap().ino;
        kernel.stat(&one.caller(), "old").unwrap();
        kernel.rename(&one.caller(), "new", "old").unwrap();
        assert_eq!(kernel.look_again(&other.caller(), "old").unwrap().ino, inode);
        assert_eq!(get(kernel, &other, "old"), b"new text");
    });
}

/// The kernel has checked the version before. The version that has arrived since belongs to another
/// user and is closed to all others.
#[test]
fn a_writer_does_not_begin_from_a_file_that_came_meanwhile_and_that_it_may_not_open() {
    in_both_modes(|kernel| {
        let [root, ann, bob] = [ROOT, ANN, BOB].map(Program::start_as);
        kernel.chmod(&root.caller(), "", 0o777).unwrap();
        put(kernel, &ann, "file", b"for all");
        kernel.chmod(&ann.caller(), "file", 0o666).unwrap();
        let mut moments = 0;
        let opened = kernel.race(&bob.caller(), "file", Ok((1, UPDATE)), |kernel| {
            moments += 1;
            if moments == 4 {
                kernel.expect_arrival("file", Some((b"secret", ANN.makes(0o600))), 0);
                kernel.end_call();
            }
        });
        assert_eq!((opened, moments), (Err(Errno::EACCES), 4));
        assert_eq!(get(kernel, &root, "file"), b"secret");
    });
}

#[test]
fn a_reader_does_not_read_a_file_that_came_meanwhile_and_that_it_may_not_open() {
    in_both_modes(|kernel| {
        let [root, ann, bob] = [ROOT, ANN, BOB].map(Program::start_as);
        kernel.chmod(&root.caller(), "", 0o777).unwrap();
        put(kernel, &ann, "file", b"for all");
        kernel.stat(&bob.caller(), "file").unwrap();
        let mut moments = 0;
        let opened = kernel.race(&bob.caller(), "file", Ok((1, READ)), |kernel| {
            moments += 1;
            let came = match moments {
                2 => None,
                3 => return kernel.open(&ann.caller(), "file", 2, EMPTY, true).unwrap(),
                4 => {
                    kernel.unlink(&ann.caller(), "file").unwrap();
                    Some((&b"secret"[..], ANN.makes(0o600)))
                }
                _ => return,
            };
            kernel.expect_arrival("file", came, 0);
            kernel.end_call();
        });
        assert_eq!((opened, moments), (Err(Errno::ENOENT), 4));
        kernel.close(&ann.caller(), 2).unwrap();
        assert_eq!(get(kernel, &root, "file"), b"secret");
    });
}

#[test]
fn a_reader_that_found_the_name_of_a_killed_writer_does_not_read_its_bytes() {
    in_both_modes(|kernel| {
        let (mut writer, reader) = (Program::start(), Program::start());
        kernel.open(&writer.caller(), "file", 1, EMPTY, true).unwrap();
        kernel.write(1, 0, b"half").unwrap();
        let opened = kernel.open_late(&reader.caller(), "file", READ, |kernel| {
            writer.kill();
            kernel.close(&writer.caller(), 1).unwrap();
        });
        assert_eq!(opened, Err(Errno::ESTALE), "the retry finds nothing");
        assert!(missing(kernel, &reader, "file"));
    });
}

/// Looks a name up as the kernel does. Returns how long it may be remembered.
fn remembered_for(kernel: &Kernel<'_>, program: &Program, dir: Ino, name: &str) -> Duration {
    let fs = kernel.rooms().fs.clone();
    let Answer::Now(reply) = fs.lookup(&program.caller(), dir, OsStr::new(name)) else {
        panic!("no wait without a store")
    };
    let Lookup::Found(found) = reply.unwrap() else { panic!("{name} is missing") };
    fs.forget(found.attr.ino, 1);
    found.entry_ttl
}

/// Another process finds a renamed member only when its unit is published, and then by the inode that
/// the kernel may still remember.
#[test]
fn a_renamed_member_gets_its_inode_back_when_it_is_published() {
    const DIR: &str = "triton/K";
    in_both_modes(|kernel| {
        let (writer, reader) = (Program::start(), Program::start());
        let who = writer.caller();
        let move_in = |kernel: &mut Kernel<'_>, name: &str| {
            let temporary = format!("{DIR}/tmp.pid_1_{name}");
            make_dirs(kernel, &writer, &temporary);
            put(kernel, &writer, &format!("{temporary}/{name}"), b"{}");
            let ino = kernel.stat(&who, &format!("{temporary}/{name}")).unwrap().ino;
            let member = format!("{DIR}/{name}");
            kernel.rename(&who, &format!("{temporary}/{name}"), &member).unwrap();
            (member, ino)
        };
        let (member, ino) = move_in(kernel, "k.ptx");
        assert_eq!(kernel.stat(&reader.caller(), &member).err(), Some(Errno::ENOENT));
        assert_ne!(kernel.stat(&who, &member).unwrap().ino, ino, "the draft has another inode");
        move_in(kernel, "__grp__k.json");
        assert_eq!(kernel.stat(&reader.caller(), &member).unwrap().ino, ino);
        assert_eq!(get(kernel, &reader, &member), b"{}");
    });
}

/// Each time all names are taken back, every program has to look every name up again.
#[test]
fn a_temporary_that_becomes_a_member_takes_no_names_back() {
    const DIR: &str = "numba/d";
    in_both_modes(|kernel| {
        let (writer, reader) = (Program::start(), Program::start());
        make_dirs(kernel, &writer, DIR);
        let dir = kernel.stat(&writer.caller(), DIR).unwrap().ino;
        let temporary = "m.f-1.py311.nbi.tmp.0123456789abcdef";
        put(kernel, &writer, "plain", b"index");
        let plain = remembered_for(kernel, &reader, Ino::ROOT, "plain");
        assert!(!plain.is_zero(), "a name that is not renamed is remembered");
        put(kernel, &writer, &format!("{DIR}/{temporary}"), b"index");
        let remembered = remembered_for(kernel, &reader, dir, temporary);
        assert!(!remembered.is_zero(), "the rename needs no lookup");
        let counted = Arc::new(Counted::default());
        let notices: Arc<Counted> = Arc::clone(&counted);
        kernel.rooms().fs.set_notices(notices);
        let before = counted.taken_back();
        let (who, member) = (writer.caller(), format!("{DIR}/m.f-1.py311.nbi"));
        kernel.rename(&who, &format!("{DIR}/{temporary}"), &member).unwrap();
        kernel.rename(&who, "plain", &member).unwrap();
        assert_eq!(counted.taken_back(), before, "the remembered name leads to a stale inode");
        put(kernel, &writer, "open", b"index");
        kernel.open(&reader.caller(), "open", 1, READ, false).unwrap();
        kernel.rename(&who, "open", &member).unwrap();
        assert!(counted.taken_back() > before, "the inode is in use");
        kernel.close(&reader.caller(), 1).unwrap();
    });
}

/// The kernel moves what it remembers of the old name to the new one.
#[test]
fn p6_units_are_not_seen_early_by_a_name_that_was_remembered() {
    in_both_modes(|kernel| {
        let (writer, reader) = (Program::start(), Program::start());
        make_dirs(kernel, &writer, "triton/KEY");
        put(kernel, &writer, "plain", b"of no version");
        kernel.stat(&reader.caller(), "plain").unwrap();
        kernel.rename(&writer.caller(), "plain", "triton/KEY/a").unwrap();
        assert_eq!(kernel.stat(&reader.caller(), "triton/KEY/a").err(), Some(Errno::ENOENT));
        assert!(missing(kernel, &reader, "triton/KEY/a"));
        assert_eq!(get(kernel, &writer, "triton/KEY/a"), b"of no version");
    });
}

/// One version of another node arrives before the open, and another before the second try. What the
/// first try has found belongs to the first of them.
#[test]
fn p6_units_that_move_twice_while_they_are_opened_are_one_version_or_a_miss() {
    const NAMES: [&str; 3] = ["triton/KEY/a", "triton/KEY/b", "triton/KEY/__grp__.json"];
    in_both_modes(|kernel| {
        let (writer, reader) = (Program::start(), Program::start());
        make_dirs(kernel, &writer, "triton/KEY");
        for name in NAMES {
            put(kernel, &writer, name, b"0");
        }
        for name in NAMES {
            kernel.stat(&reader.caller(), name).unwrap();
        }
        let mut moments = 0_u8;
        let opened = kernel.race(&reader.caller(), NAMES[2], Ok((1, READ)), |kernel| {
            moments += 1;
            // A version arrives between what is found and what is opened, each time.
            if moments.is_multiple_of(2) {
                let bytes = moments.to_string().into_bytes();
                let files = NAMES.map(|name| (name.to_owned(), bytes.clone()));
                kernel.expect_unit(&files, 0);
                kernel.end_call();
            }
        });
        assert_eq!(moments, 4, "two lookups");
        match opened {
            Err(errno) => assert_eq!(errno, Errno::ENOENT),
            Ok(()) => {
                let version = kernel.read(1).unwrap();
                for name in &NAMES[..2] {
                    assert_eq!(get(kernel, &reader, name), version, "{name}");
                }
            }
        }
    });
}
