//! Writers beside others: through descriptors whose names have moved on.

use hearthfs_mount::{Errno, OpenAccess, OpenFlags};

use super::kernel::Kernel;
use super::node::{READ, REPLACE, UPDATE, get, in_both_modes, put};
use super::programs::Program;
use super::users::{ANN, BOB, ROOT};

/// Makes every call on an open file, and expects the file to have this size.
fn use_open_file(kernel: &mut Kernel<'_>, program: &Program, fd: u32, size: u64) {
    let who = program.caller();
    for by_handle in [false, true] {
        assert_eq!(kernel.stat_of(&who, fd, by_handle).unwrap().size, size);
    }
    kernel.set_mode(&who, fd, 0o640).unwrap();
    assert_eq!(kernel.stat_of(&who, fd, false).unwrap().perm, 0o640);
    kernel.set_xattr_of(&who, fd, "user.of", b"it").unwrap();
    assert_eq!(kernel.xattr_of(&who, fd, "user.of"), Ok(b"it".to_vec()));
}

#[test]
fn calls_on_an_open_file_without_a_name_work_after_its_writer_is_done() {
    in_both_modes(|kernel| {
        let (one, other) = (Program::start(), Program::start());
        let (who, whom) = (one.caller(), other.caller());
        kernel.open(&who, "file", 1, REPLACE, true).unwrap();
        kernel.open(&whom, "file", 2, REPLACE, true).unwrap();
        kernel.write(2, 0, b"of the other").unwrap();
        kernel.open(&who, "file", 3, READ, false).unwrap();
        kernel.write(1, 0, b"text").unwrap();
        kernel.unlink(&who, "file").unwrap();
        kernel.close(&who, 1).unwrap();
        use_open_file(kernel, &other, 2, 12);
        kernel.close(&whom, 2).unwrap();
        use_open_file(kernel, &one, 3, 4);
        assert_eq!(kernel.read(3).unwrap(), b"text");
        kernel.close(&who, 3).unwrap();
        assert_eq!(kernel.stat(&who, "file").err(), Some(Errno::ENOENT));
    });
}

#[test]
fn a_version_that_is_emptied_beside_an_open_file_stays_empty() {
    in_both_modes(|kernel| {
        let (first, second) = (Program::start(), Program::start());
        put(kernel, &first, "file", b"");
        kernel.open(&first.caller(), "file", 1, UPDATE, false).unwrap();
        put(kernel, &second, "file", b"text");
        assert_eq!(get(kernel, &second, "file"), b"text");
        put(kernel, &second, "file", b"");
        assert_eq!(get(kernel, &second, "file"), b"");
        kernel.close(&first.caller(), 1).unwrap();
        assert_eq!(get(kernel, &second, "file"), b"");
    });
}

#[test]
fn a_written_empty_file_follows_its_name_although_another_has_published_there() {
    in_both_modes(|kernel| {
        let (first, second) = (Program::start(), Program::start());
        let who = first.caller();
        for removed in [false, true] {
            put(kernel, &first, "file", b"");
            kernel.open(&who, "file", 1, UPDATE, false).unwrap();
            put(kernel, &second, "file", b"text");
            kernel.write(1, 0, b"late").unwrap();
            assert_eq!(get(kernel, &first, "file"), b"late", "the writer sees its own bytes");
            assert_eq!(get(kernel, &second, "file"), b"text");
            if removed {
                kernel.unlink(&who, "file").unwrap();
            } else {
                kernel.rename(&who, "file", "other").unwrap();
            }
            kernel.close(&who, 1).unwrap();
            let expected: &[&str] = if removed { &[] } else { &["other"] };
            assert_eq!(kernel.list(&who, "").unwrap(), expected);
            if !removed {
                assert_eq!(get(kernel, &second, "other"), b"late");
                kernel.unlink(&who, "other").unwrap();
            }
        }
    });
}

#[test]
fn writes_to_an_empty_file_are_lost_when_a_new_one_takes_its_name() {
    in_both_modes(|kernel| {
        let (first, second) = (Program::start(), Program::start());
        let (who, whom) = (first.caller(), second.caller());
        put(kernel, &first, "file", b"");
        kernel.open(&who, "file", 1, UPDATE, false).unwrap();
        kernel.write(1, 0, b"of the old").unwrap();
        kernel.open(&whom, "new", 2, REPLACE, true).unwrap();
        kernel.write(2, 0, b"of the new").unwrap();
        kernel.rename(&whom, "new", "file").unwrap();
        assert_eq!(get(kernel, &first, "file"), b"", "the old version until the close");
        kernel.close(&whom, 2).unwrap();
        kernel.close(&who, 1).unwrap();
        assert_eq!(get(kernel, &first, "file"), b"of the new");
    });
}

#[test]
fn a_mode_that_is_set_beside_a_writer_stays_after_its_close() {
    in_both_modes(|kernel| {
        let (writer, other) = (Program::start(), Program::start());
        put(kernel, &other, "file", b"text");
        kernel.open(&writer.caller(), "file", 1, UPDATE, false).unwrap();
        kernel.chmod(&other.caller(), "file", 0o600).unwrap();
        assert_eq!(kernel.stat(&writer.caller(), "file").unwrap().perm, 0o600, "both see one file");
        kernel.write(1, 0, b"next").unwrap();
        kernel.close(&writer.caller(), 1).unwrap();
        assert_eq!(kernel.stat(&other.caller(), "file").unwrap().perm, 0o600);
        assert_eq!(get(kernel, &other, "file"), b"next");
    });
}

#[test]
fn an_empty_file_that_its_writer_empties_again_is_not_published() {
    in_both_modes(|kernel| {
        let (writer, other) = (Program::start(), Program::start());
        put(kernel, &other, "file", b"");
        kernel.open(&writer.caller(), "file", 1, UPDATE, false).unwrap();
        kernel.open(&writer.caller(), "file", 2, REPLACE, false).unwrap();
        // The empty file does not replace a file that another node has put there meanwhile.
        kernel.expect_arrival("file", Some((b"text", ROOT.makes(0o644))), 0);
        kernel.stat(&other.caller(), "file").unwrap();
        kernel.close(&writer.caller(), 1).unwrap();
        kernel.close(&writer.caller(), 2).unwrap();
        assert_eq!(get(kernel, &other, "file"), b"text");
    });
}

/// If an unpublished file was renamed over a closed file, a writer that opens the name gets the
/// renamed one.
#[test]
fn a_writer_opens_the_file_that_was_renamed_over_a_closed_one() {
    in_both_modes(|kernel| {
        let [root, ann, bob] = [ROOT, ANN, BOB].map(Program::start_as);
        kernel.chmod(&root.caller(), "", 0o777).unwrap();
        let write = OpenFlags { access: OpenAccess::Write, ..UPDATE };
        kernel.open_as(&ann.caller(), "new", 1, write, Some(0o666)).unwrap();
        kernel.open_as(&ann.caller(), "file", 2, write, Some(0o666)).unwrap();
        kernel.duplicate(2, 3);
        kernel.write(2, 0, b"closed").unwrap();
        kernel.close(&ann.caller(), 2).unwrap();
        kernel.rename(&ann.caller(), "new", "file").unwrap();
        kernel.open(&bob.caller(), "file", 4, write, false).unwrap();
        kernel.write(4, 0, b"new").unwrap();
        kernel.close(&ann.caller(), 1).unwrap();
        kernel.close(&bob.caller(), 4).unwrap();
        kernel.close(&ann.caller(), 3).unwrap();
        assert_eq!(get(kernel, &bob, "file"), b"new");
    });
}

/// A closed file that is still written loses its name to a file that is renamed there, even if the
/// daemon sees no write.
#[test]
fn writes_to_a_closed_file_after_a_rename_over_it_are_lost() {
    in_both_modes(|kernel| {
        let (first, second) = (Program::start(), Program::start());
        let (who, whom) = (first.caller(), second.caller());
        let write = OpenFlags { access: OpenAccess::Write, ..UPDATE };
        for written_before in [true, false] {
            kernel.open(&who, "new", 1, write, true).unwrap();
            kernel.open(&whom, "file", 2, OpenFlags { truncate: true, ..write }, true).unwrap();
            kernel.duplicate(2, 3);
            kernel.write(2, 0, b"closed").unwrap();
            kernel.close(&whom, 2).unwrap();
            if written_before {
                kernel.write(3, 0, b"C").unwrap();
            }
            kernel.rename(&who, "new", "file").unwrap();
            if !written_before {
                kernel.write(3, 0, b"C").unwrap();
            }
            assert_eq!(get(kernel, &second, "file"), b"closed", "the old version until the close");
            kernel.write(1, 0, b"new").unwrap();
            kernel.close(&who, 1).unwrap();
            kernel.close(&whom, 3).unwrap();
            assert_eq!(get(kernel, &first, "file"), b"new", "written before: {written_before}");
            kernel.unlink(&who, "file").unwrap();
        }
    });
}

#[test]
fn a_version_that_is_reopened_by_its_descriptor_joins_the_file_that_goes_on_from_it() {
    in_both_modes(|kernel| {
        let [one, other, third] = [ROOT; 3].map(Program::start_as);
        let (who, whom) = (one.caller(), third.caller());
        let write = OpenFlags { access: OpenAccess::Write, ..UPDATE };
        kernel.open(&who, "file", 1, write, true).unwrap();
        kernel.duplicate(1, 2);
        kernel.duplicate(1, 3);
        kernel.write(1, 0, b"closed").unwrap();
        kernel.close(&who, 1).unwrap();
        put(kernel, &third, "file", b"between");
        // This open begins from the version in between, and is the newest live file of the name.
        kernel.open(&other.caller(), "file", 4, write, false).unwrap();
        kernel.write(2, 0, b"C").unwrap();
        kernel.close(&who, 2).unwrap();
        assert_eq!(get(kernel, &third, "file"), b"Closed");
        kernel.write(3, 1, b"L").unwrap();
        kernel.open(&whom, "file", 5, READ, false).unwrap();
        kernel.reopen(&whom, 5, 6, write).unwrap();
        kernel.write(6, 2, b"O").unwrap();
        kernel.close(&whom, 6).unwrap();
        kernel.close(&who, 3).unwrap();
        assert_eq!(get(kernel, &third, "file"), b"CLOsed");
        kernel.close(&other.caller(), 4).unwrap();
    });
}

/// A file that was closed unwritten differs from what another of its names has by now, even if it
/// was emptied at its beginning.
#[test]
fn a_file_with_two_names_is_emptied_by_a_program_that_has_left_an_older_version_open() {
    in_both_modes(|kernel| {
        let (one, other) = (Program::start(), Program::start());
        let who = one.caller();
        put(kernel, &one, "file", b"");
        kernel.link(&who, "file", "further").unwrap();
        kernel.open(&who, "further", 1, REPLACE, false).unwrap();
        kernel.duplicate(1, 2);
        put(kernel, &other, "further", b"text");
        kernel.close(&who, 1).unwrap();
        assert_eq!(get(kernel, &other, "file"), b"text");
        put(kernel, &one, "further", b"");
        assert_eq!(get(kernel, &other, "file"), b"");
        kernel.close(&who, 2).unwrap();
        assert_eq!(get(kernel, &other, "further"), b"");
    });
}

#[test]
fn a_killed_program_that_has_only_set_a_mode_publishes_nothing() {
    in_both_modes(|kernel| {
        let (mut killed, other) = (Program::start(), Program::start());
        put(kernel, &other, "file", b"older");
        kernel.open(&killed.caller(), "file", 1, UPDATE, false).unwrap();
        put(kernel, &other, "file", b"newer");
        kernel.set_mode(&killed.caller(), 1, 0o640).unwrap();
        killed.kill();
        kernel.close(&killed.caller(), 1).unwrap();
        assert_eq!(get(kernel, &other, "file"), b"newer");
    });
}
