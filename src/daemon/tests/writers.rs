//! Several writers and several names: what programs rarely do, and random programs hardly ever
//! reach.

use hearthfs_mount::{Caller, Errno, OpenFlags};

use super::kernel::Kernel;
use super::node::{READ, REPLACE, UPDATE, get, in_both_modes, put};
use super::programs::Program;
use super::users::EVE;

#[test]
fn a_file_is_written_through_any_of_its_names() {
    in_both_modes(|kernel| {
        let (one, other) = (Program::start(), Program::start());
        let (who, whom) = (one.caller(), other.caller());
        put(kernel, &one, "first", b"old text");
        kernel.link(&who, "first", "second").unwrap();
        for (fd, flags) in [(1, UPDATE), (2, REPLACE)] {
            kernel.open(&who, "second", fd, flags, true).unwrap();
            kernel.write(fd, 0, b"new").unwrap();
            assert_eq!(&get(kernel, &one, "second")[..3], b"new", "the writer sees its own bytes");
            assert_eq!(&get(kernel, &one, "first")[..3], b"new", "by either name");
            assert_eq!(get(kernel, &other, "second"), b"old text");
            kernel.close(&who, fd).unwrap();
            let expected: &[u8] = if flags.truncate { b"new" } else { b"new text" };
            for name in ["first", "second"] {
                assert_eq!(get(kernel, &other, name), expected, "{name}");
            }
            put(kernel, &other, "first", b"old text");
        }
        // Two processes that write by different names share the bytes, as if they used one name.
        kernel.open(&who, "second", 3, UPDATE, false).unwrap();
        kernel.open(&whom, "first", 4, UPDATE, false).unwrap();
        kernel.write(3, 0, b"A").unwrap();
        kernel.write(4, 1, b"B").unwrap();
        kernel.close(&who, 3).unwrap();
        assert_eq!(get(kernel, &Program::start(), "first"), b"old text");
        kernel.close(&whom, 4).unwrap();
        assert_eq!(get(kernel, &one, "second"), b"ABd text");
    });
}

#[test]
fn a_truncate_by_name_is_published_when_the_writers_close() {
    in_both_modes(|kernel| {
        let (writer, cutter, reader) = (Program::start(), Program::start(), Program::start());
        put(kernel, &writer, "file", b"0123456789");
        kernel.open(&writer.caller(), "file", 1, UPDATE, false).unwrap();
        kernel.write(1, 0, b"not yet").unwrap();
        kernel.truncate(&cutter.caller(), "file", 5).unwrap();
        assert_eq!(get(kernel, &reader, "file"), b"0123456789", "no writer has closed the file");
        kernel.write(1, 0, b"NOW").unwrap();
        kernel.close(&writer.caller(), 1).unwrap();
        assert_eq!(get(kernel, &reader, "file"), b"NOW y");
        kernel.truncate(&cutter.caller(), "file", 2).unwrap();
        assert_eq!(get(kernel, &reader, "file"), b"NO");
    });
}

#[test]
fn extended_attributes_come_with_what_is_written_next() {
    in_both_modes(|kernel| {
        let program = Program::start();
        let who = program.caller();
        // An empty published file is written in place. An attribute that is set meanwhile is set on
        // both.
        put(kernel, &program, "file", b"");
        kernel.open(&who, "file", 1, UPDATE, false).unwrap();
        kernel.set_xattr(&who, "file", "user.of", b"the file").unwrap();
        assert_eq!(kernel.xattr(&who, "file", "user.of"), Ok(b"the file".to_vec()));
        kernel.write(1, 0, b"text").unwrap();
        kernel.close(&who, 1).unwrap();
        assert_eq!(kernel.xattr(&who, "file", "user.of"), Ok(b"the file".to_vec()));
    });
}

#[test]
fn extended_attributes_of_a_file_that_has_lost_its_name() {
    in_both_modes(|kernel| {
        let program = Program::start();
        let who = program.caller();
        put(kernel, &program, "read", b"text");
        kernel.open(&who, "read", 1, READ, false).unwrap();
        kernel.open(&who, "written", 2, UPDATE, true).unwrap();
        for (fd, name) in [(1, "read"), (2, "written")] {
            kernel.unlink(&who, name).unwrap();
            kernel.set_xattr_of(&who, fd, "user.of", b"nobody").unwrap();
            assert_eq!(kernel.xattr_of(&who, fd, "user.of"), Ok(b"nobody".to_vec()), "{name}");
            assert_eq!(kernel.stat(&who, name).err(), Some(Errno::ENOENT));
            kernel.close(&who, fd).unwrap();
        }
    });
}

#[test]
fn no_writer_begins_while_the_mount_ends() {
    in_both_modes(|kernel| {
        let program = Program::start();
        let who = program.caller();
        put(kernel, &program, "file", b"text");
        kernel.rooms().fs.close_to_writers();
        for flags in [UPDATE, REPLACE] {
            assert_eq!(kernel.open(&who, "file", 1, flags, false), Err(Errno::EROFS));
            assert_eq!(kernel.open(&who, "new", 1, flags, true), Err(Errno::EROFS));
        }
        assert_eq!(kernel.truncate(&who, "file", 1), Err(Errno::EROFS));
        assert_eq!(get(kernel, &program, "file"), b"text");
    });
}

#[test]
fn a_listing_without_attributes_has_the_numbers_that_stat_reports() {
    in_both_modes(|kernel| {
        let program = Program::start();
        let who = program.caller();
        kernel.mkdir(&who, "dir").unwrap();
        kernel.symlink(&who, "link", "dir").unwrap();
        put(kernel, &program, "file", b"text");
        kernel.forget();
        let listed = kernel.numbers(&who, "").unwrap();
        assert_eq!(listed.len(), 3);
        for (name, number) in listed {
            assert_eq!(kernel.stat(&who, &name).unwrap().ino, number, "{name}");
        }
    });
}

#[test]
fn stores_through_a_mapping_go_to_the_mapped_file() {
    in_both_modes(|kernel| {
        let (one, other) = (Program::start(), Program::start());
        let (who, whom) = (one.caller(), other.caller());
        // Through a handle that appends.
        put(kernel, &one, "log", b"");
        kernel.open(&who, "log", 1, OpenFlags { append: true, ..UPDATE }, false).unwrap();
        kernel.write(1, 0, b"0123456789").unwrap();
        kernel.write_stored(1, 2, b"__").unwrap();
        kernel.write_stored(1, 8, b"__ and what lies behind the end").unwrap();
        kernel.close(&who, 1).unwrap();
        assert_eq!(get(kernel, &one, "log"), b"01__4567__");
        // Two processes that empty one name have an inode and bytes of their own each.
        kernel.open(&who, "entry", 2, REPLACE, true).unwrap();
        kernel.open(&whom, "entry", 3, REPLACE, true).unwrap();
        kernel.write(3, 0, b"of the other").unwrap();
        kernel.write(2, 0, b"of the first").unwrap();
        kernel.write_stored(3, 0, b"OF").unwrap();
        kernel.close(&who, 2).unwrap();
        assert_eq!(get(kernel, &one, "entry"), b"of the first");
        kernel.close(&whom, 3).unwrap();
        assert_eq!(get(kernel, &one, "entry"), b"OF the other");
    });
}

#[test]
fn extended_attributes_are_those_of_all_names() {
    in_both_modes(|kernel| {
        let program = Program::start();
        let who = program.caller();
        put(kernel, &program, "first", b"text");
        kernel.link(&who, "first", "second").unwrap();
        for (set, read) in [("first", "second"), ("second", "first")] {
            kernel.set_xattr(&who, set, "user.set", set.as_bytes()).unwrap();
            assert_eq!(kernel.xattr(&who, read, "user.set"), Ok(set.into()));
            kernel.forget();
            assert_eq!(kernel.xattr(&who, read, "user.set"), Ok(set.into()));
        }
    });
}

#[test]
fn a_writer_that_goes_on_after_a_close_can_open_the_file_again() {
    in_both_modes(|kernel| {
        let (program, reader) = (Program::start(), Program::start());
        let who = program.caller();
        kernel.open(&who, "file", 1, UPDATE, true).unwrap();
        kernel.write(1, 0, b"first").unwrap();
        kernel.close_duplicate(&who, 1).unwrap();
        assert_eq!(get(kernel, &reader, "file"), b"first");
        kernel.write(1, 5, b" second").unwrap();
        kernel.open(&who, "file", 2, UPDATE, false).unwrap();
        assert_eq!(kernel.read(2).unwrap(), b"first second");
        kernel.write(2, 12, b" third").unwrap();
        kernel.close(&who, 2).unwrap();
        assert_eq!(get(kernel, &reader, "file"), b"first second third");
        kernel.close(&who, 1).unwrap();
        // No other process writes the file any more, so the next open begins a version of its own.
        kernel.open(&reader.caller(), "file", 3, READ, false).unwrap();
        kernel.open(&who, "file", 4, UPDATE, false).unwrap();
        kernel.write(4, 0, b"FIRST").unwrap();
        assert_eq!(kernel.read(3).unwrap(), b"first second third");
        kernel.close(&who, 4).unwrap();
        assert_eq!(get(kernel, &reader, "file"), b"FIRST second third");
    });
}

#[test]
fn a_file_is_written_further_under_its_remaining_names() {
    in_both_modes(|kernel| {
        let (program, reader) = (Program::start(), Program::start());
        let who = program.caller();
        for replaced in [false, true] {
            put(kernel, &program, "first", b"old");
            kernel.link(&who, "first", "second").unwrap();
            kernel.open(&who, "second", 1, UPDATE, false).unwrap();
            kernel.write(1, 0, b"new").unwrap();
            if replaced {
                put(kernel, &reader, "another", b"another");
                kernel.rename(&who, "another", "first").unwrap();
            } else {
                kernel.unlink(&who, "first").unwrap();
            }
            kernel.close(&who, 1).unwrap();
            assert_eq!(get(kernel, &reader, "second"), b"new");
            if replaced {
                assert_eq!(get(kernel, &reader, "first"), b"another");
            }
            kernel.unlink(&who, "second").unwrap();
        }
    });
}

#[test]
fn a_writer_by_one_name_does_not_get_the_file_that_takes_the_other() {
    in_both_modes(|kernel| {
        let (program, reader) = (Program::start(), Program::start());
        let who = program.caller();
        put(kernel, &program, "first", b"text of two names");
        kernel.link(&who, "first", "second").unwrap();
        kernel.open(&who, "temporary", 1, UPDATE, true).unwrap();
        kernel.write(1, 0, b"what comes").unwrap();
        kernel.rename(&who, "temporary", "first").unwrap();
        kernel.open(&who, "second", 2, UPDATE, false).unwrap();
        kernel.write(2, 0, b"TEXT").unwrap();
        kernel.close(&who, 2).unwrap();
        assert_eq!(get(kernel, &reader, "second"), b"TEXT of two names");
        kernel.truncate(&who, "second", 4).unwrap();
        kernel.close(&who, 1).unwrap();
        assert_eq!(get(kernel, &reader, "first"), b"what comes");
        assert_eq!(get(kernel, &reader, "second"), b"TEXT");
    });
}

#[test]
fn a_truncate_of_a_live_file_does_not_make_its_caller_a_writer() {
    in_both_modes(|kernel| {
        let (writer, cutter, reader) = (Program::start(), Program::start(), Program::start());
        put(kernel, &writer, "file", b"0123456789");
        kernel.open(&writer.caller(), "file", 1, UPDATE, false).unwrap();
        kernel.write(1, 0, b"first").unwrap();
        kernel.truncate(&cutter.caller(), "file", 8).unwrap();
        assert_eq!(get(kernel, &cutter, "file"), b"0123456789");
        kernel.open(&cutter.caller(), "file", 2, REPLACE, false).unwrap();
        kernel.write(2, 0, b"second").unwrap();
        kernel.write(1, 8, b"!").unwrap();
        kernel.close(&cutter.caller(), 2).unwrap();
        assert_eq!(get(kernel, &reader, "file"), b"second");
        kernel.close(&writer.caller(), 1).unwrap();
        assert_eq!(get(kernel, &reader, "file"), b"first567!");
    });
}

#[test]
fn a_truncate_by_the_remaining_name_applies_to_what_the_writer_writes() {
    in_both_modes(|kernel| {
        let (writer, cutter, reader) = (Program::start(), Program::start(), Program::start());
        let who = writer.caller();
        put(kernel, &writer, "first", b"0123456789");
        kernel.link(&who, "first", "second").unwrap();
        kernel.open(&who, "first", 1, OpenFlags { append: true, ..UPDATE }, false).unwrap();
        kernel.unlink(&who, "first").unwrap();
        kernel.truncate(&cutter.caller(), "second", 0).unwrap();
        kernel.write(1, 0, b"x").unwrap();
        kernel.close(&who, 1).unwrap();
        assert_eq!(get(kernel, &reader, "second"), b"x");
    });
}

#[test]
fn a_truncate_of_a_live_file_clears_its_set_id_bits() {
    in_both_modes(|kernel| {
        let (root, eve, reader) = (Program::start(), Program::start_as(EVE), Program::start());
        // Through the inode that is written, and through the one that was published before.
        for published in [false, true] {
            if published {
                put(kernel, &root, "file", b"text");
                kernel.chmod(&root.caller(), "file", 0o4777).unwrap();
            }
            kernel.open_as(&root.caller(), "file", 1, UPDATE, Some(0o4777)).unwrap();
            kernel.write(1, 0, b"program").unwrap();
            kernel.truncate(&eve.caller(), "file", 4).unwrap();
            kernel.close(&root.caller(), 1).unwrap();
            assert_eq!(get(kernel, &reader, "file"), b"prog");
            assert_eq!(kernel.stat(&reader.caller(), "file").unwrap().perm, 0o777, "{published}");
            kernel.unlink(&root.caller(), "file").unwrap();
        }
    });
}

#[test]
fn a_writer_that_comes_too_late_makes_no_file() {
    in_both_modes(|kernel| {
        let other = Program::start();
        for flags in [UPDATE, REPLACE] {
            let (program, late) = (Program::start(), Program::start());
            let who = late.caller();
            put(kernel, &other, "file", b"text");
            let remove = |kernel: &mut Kernel<'_>| kernel.unlink(&other.caller(), "file").unwrap();
            assert_eq!(kernel.open_late(&who, "file", flags, remove), Err(Errno::ESTALE));
            assert_eq!(kernel.stat(&who, "file").err(), Some(Errno::ENOENT));
            // The thread is led to what another process has put there meanwhile.
            let who = program.caller();
            put(kernel, &other, "file", b"text");
            let replace = |kernel: &mut Kernel<'_>| {
                kernel.unlink(&other.caller(), "file").unwrap();
                put(kernel, &other, "file", b"other");
            };
            assert_eq!(kernel.open_late(&who, "file", flags, replace), Err(Errno::ESTALE));
            let own = kernel.look_again(&who, "file").unwrap();
            assert_ne!(
                own.ino,
                kernel.stat(&other.caller(), "file").unwrap().ino,
                "the writer has its own inode"
            );
            assert_eq!(kernel.stat(&other.caller(), "file").unwrap().size, 5);
            kernel.unlink(&who, "file").unwrap();
        }
    });
}

#[test]
fn no_caller_gets_estale_twice() {
    in_both_modes(|kernel| {
        let (other, reader) = (Program::start(), Program::start());
        let unseen = Caller { uid: 0, gid: 0, tid: 0 };
        for (flags, removed, seen) in [
            (UPDATE, false, true),
            (UPDATE, true, true),
            (UPDATE, false, false),
            (UPDATE, true, false),
            (REPLACE, false, true),
            (REPLACE, true, true),
            (REPLACE, false, false),
            (REPLACE, true, false),
        ] {
            let program = Program::start();
            let who = if seen { program.caller() } else { unseen };
            put(kernel, &other, "file", b"text");
            let mut moves = 0;
            let opened = kernel.race(&who, "file", Ok((1, flags)), |kernel| {
                moves += 1;
                kernel.unlink(&other.caller(), "file").unwrap();
                if moves < 4 || !removed {
                    put(kernel, &other, "file", b"other");
                }
            });
            let case = format!("{flags:?}, removed: {removed}, seen: {seen}");
            assert_eq!(opened, Ok(()), "{case}");
            kernel.write(1, 0, b"OWN").unwrap();
            kernel.close(&who, 1).unwrap();
            // Writes to a file that is gone are lost with it.
            let found = kernel.stat(&reader.caller(), "file");
            if removed && moves == 4 {
                assert_eq!(found.err(), Some(Errno::ENOENT), "{case}");
                continue;
            }
            let expected: &[u8] = match (seen, flags.truncate) {
                // The node cannot lead it to the new file: it has written to the file that it had
                // looked up.
                (false, _) => b"other",
                (true, true) => b"OWN",
                (true, false) => b"OWNer",
            };
            assert_eq!(get(kernel, &reader, "file"), expected, "{case}");
            kernel.unlink(&other.caller(), "file").unwrap();
        }
    });
}

#[test]
fn a_truncate_does_not_get_estale_twice() {
    in_both_modes(|kernel| {
        let (other, cutter) = (Program::start(), Program::start());
        for size in [0, 2] {
            put(kernel, &other, "file", b"text");
            let mut moves = 0;
            let done = kernel.race(&cutter.caller(), "file", Err(size), |kernel| {
                moves += 1;
                put(kernel, &other, "file", b"other");
            });
            assert_eq!((done, moves), (Ok(()), 4));
            kernel.truncate(&cutter.caller(), "file", size).unwrap();
            assert_eq!(kernel.stat(&other.caller(), "file").unwrap().size, size);
        }
    });
}

#[test]
fn a_writer_that_opens_a_new_file_of_another_makes_no_file_itself() {
    in_both_modes(|kernel| {
        for name in ["file", "moved"] {
            let (mut one, guest, late) = (Program::start(), Program::start(), Program::start());
            put(kernel, &guest, "file", b"text");
            let mut moves = 0;
            let opened = kernel.race(&late.caller(), "file", Ok((3, UPDATE)), |kernel| {
                moves += 1;
                if moves < 4 {
                    return;
                }
                kernel.unlink(&guest.caller(), "file").unwrap();
                kernel.open(&one.caller(), "file", 1, REPLACE, true).unwrap();
                kernel.open(&guest.caller(), "file", 2, REPLACE, true).unwrap();
                kernel.write(2, 0, b"second").unwrap();
                one.kill();
                kernel.write(1, 0, b"first").unwrap();
                kernel.close(&one.caller(), 1).unwrap();
            });
            assert_eq!((opened, moves), (Ok(()), 4));
            if name != "file" {
                kernel.rename(&guest.caller(), "file", name).unwrap();
            }
            kernel.close(&late.caller(), 3).unwrap();
            let reader = Program::start();
            let found = kernel.open(&reader.caller(), name, 4, READ, false);
            assert_eq!(found.err(), Some(Errno::ENOENT), "the new file is not closed");
            kernel.close(&guest.caller(), 2).unwrap();
            assert_eq!(get(kernel, &late, name), b"second");
            kernel.unlink(&late.caller(), name).unwrap();
        }
    });
}

#[test]
fn a_symbolic_link_that_is_renamed_to_a_further_name_of_itself_stays() {
    in_both_modes(|kernel| {
        let program = Program::start();
        let who = program.caller();
        kernel.symlink(&who, "first", "target").unwrap();
        kernel.link(&who, "first", "second").unwrap();
        kernel.rename(&who, "second", "first").unwrap();
        assert_eq!(kernel.list(&who, "").unwrap(), ["first", "second"]);
    });
}

#[test]
fn a_mode_that_a_writer_sets_shows_by_every_name_of_the_file() {
    in_both_modes(|kernel| {
        let program = Program::start();
        let who = program.caller();
        put(kernel, &program, "first", b"text");
        kernel.link(&who, "first", "second").unwrap();
        kernel.open(&who, "first", 1, UPDATE, false).unwrap();
        kernel.set_mode(&who, 1, 0o600).unwrap();
        for name in ["first", "second"] {
            assert_eq!(kernel.stat(&who, name).unwrap().perm, 0o600, "{name}");
        }
        kernel.close(&who, 1).unwrap();
    });
}

#[test]
fn a_version_of_another_program_shows_by_each_name_while_an_older_one_is_not_released() {
    in_both_modes(|kernel| {
        let (one, other) = (Program::start(), Program::start());
        put(kernel, &one, "first", b"old");
        kernel.link(&one.caller(), "first", "second").unwrap();
        for (written, read) in [("first", "second"), ("second", "first"), ("first", "first")] {
            kernel.open(&one.caller(), written, 1, REPLACE, false).unwrap();
            kernel.write(1, 0, b"own").unwrap();
            // The file is closed, and the kernel has not sent the RELEASE yet.
            kernel.close_duplicate(&one.caller(), 1).unwrap();
            assert_eq!(get(kernel, &one, read), b"own", "{read}");
            put(kernel, &other, "first", b"of another");
            assert_eq!(get(kernel, &one, read), b"of another", "{read}");
            kernel.close(&one.caller(), 1).unwrap();
            assert_eq!(get(kernel, &one, read), b"of another", "{read}");
        }
    });
}

#[test]
fn a_writer_by_one_name_sees_its_size_by_the_other() {
    in_both_modes(|kernel| {
        let (writer, other) = (Program::start(), Program::start());
        let size = |kernel: &mut Kernel<'_>, program: &Program| {
            kernel.stat(&program.caller(), "second").unwrap().size
        };
        put(kernel, &writer, "first", b"text");
        kernel.link(&writer.caller(), "first", "second").unwrap();
        assert_eq!(size(kernel, &writer), 4);
        kernel.open(&writer.caller(), "first", 1, UPDATE, false).unwrap();
        kernel.write(1, 4, b" and more").unwrap();
        assert_eq!(size(kernel, &writer), 13, "both names lead to one file");
        assert_eq!(size(kernel, &other), 4, "the writer has not closed it");
        kernel.close(&writer.caller(), 1).unwrap();
        assert_eq!(size(kernel, &other), 13);
    });
}
