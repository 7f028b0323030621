//! Changes by another node to a name that a call or an open file here uses. Each of these cases
//! failed once.

use hearthfs_mount::{Errno, OpenAccess, OpenFlags};

use super::kernel::Kernel;
use super::node::{READ, REPLACE, UPDATE, get, in_both_modes, put};
use super::programs::Program;
use super::users::{ANN, BOB, EVE, ROOT, Rights};

const WRITE: OpenFlags = OpenFlags { access: OpenAccess::Write, ..UPDATE };
const EMPTY: OpenFlags = OpenFlags { access: OpenAccess::Write, ..REPLACE };

/// Programs of root, Ann, Bob and Eve, in a directory with mode 0777.
fn programs(kernel: &mut Kernel<'_>) -> [Program; 4] {
    let all = [ROOT, ANN, BOB, EVE].map(Program::start_as);
    kernel.chmod(&all[0].caller(), "", 0o777).unwrap();
    all
}

/// Lets a change of another node arrive now.
fn arrives(kernel: &Kernel<'_>, path: &str, file: Option<(&[u8], Rights)>) {
    kernel.expect_arrival(path, file, 0);
    kernel.end_call();
}

#[test]
fn a_removed_name_does_not_stay_because_of_a_closed_file() {
    in_both_modes(|kernel| {
        let [_, ann, ..] = programs(kernel);
        let who = ann.caller();
        arrives(kernel, "file", Some((b"text", ANN.makes(0o666))));
        kernel.open(&who, "file", 1, UPDATE, false).unwrap();
        kernel.duplicate(1, 2);
        kernel.close(&who, 1).unwrap();
        arrives(kernel, "file", None);
        assert_eq!(kernel.rmdir(&who, "file"), Err(Errno::ENOENT));
        assert_eq!(kernel.rename(&who, "file", "other"), Err(Errno::ENOENT));
        assert_eq!(kernel.list(&who, "").unwrap(), Vec::<String>::new());
        kernel.close(&who, 2).unwrap();
    });
}

#[test]
fn a_removed_file_that_is_emptied_through_a_descriptor_stays_removed() {
    in_both_modes(|kernel| {
        let [_, ann, ..] = programs(kernel);
        let who = ann.caller();
        arrives(kernel, "file", Some((b"text", ANN.makes(0o666))));
        kernel.open(&who, "file", 1, READ, false).unwrap();
        arrives(kernel, "file", None);
        kernel.reopen(&who, 1, 2, EMPTY).unwrap();
        kernel.write(2, 0, b"late").unwrap();
        kernel.close(&who, 2).unwrap();
        assert_eq!(kernel.stat(&who, "file").err(), Some(Errno::ENOENT));
    });
}

#[test]
fn a_caller_that_was_refused_one_file_can_write_the_next_one() {
    in_both_modes(|kernel| {
        let [_, ann, _, eve] = programs(kernel);
        let who = eve.caller();
        for name in ["one", "next"] {
            put(kernel, &ann, name, b"of Ann");
            kernel.chmod(&ann.caller(), name, 0o666).unwrap();
            kernel.stat(&who, name).unwrap();
        }
        kernel.expect_arrival("one", Some((b"new", ANN.makes(0o644))), 0);
        assert_eq!(kernel.open(&who, "one", 1, EMPTY, false), Err(Errno::EACCES));
        put(kernel, &eve, "next", b"of Eve");
        assert_eq!(get(kernel, &ann, "next"), b"of Eve");
        assert_eq!(get(kernel, &ann, "one"), b"new");
    });
}

#[test]
fn a_caller_that_may_not_write_a_live_file_may_still_empty_its_name() {
    in_both_modes(|kernel| {
        let [_, ann, bob, _] = programs(kernel);
        kernel.open_as(&ann.caller(), "file", 1, WRITE, Some(0o600)).unwrap();
        arrives(kernel, "file", Some((b"text", EVE.makes(0o666))));
        assert_eq!(kernel.open(&bob.caller(), "file", 2, WRITE, false), Err(Errno::EACCES));
        put(kernel, &bob, "file", b"of Bob");
        assert_eq!(get(kernel, &bob, "file"), b"of Bob");
    });
}

#[test]
fn a_refused_caller_may_write_once_the_rights_allow_it() {
    in_both_modes(|kernel| {
        let [_, ann, bob, _] = programs(kernel);
        let who = bob.caller();
        arrives(kernel, "file", Some((b"text", EVE.makes(0o666))));
        kernel.stat(&who, "file").unwrap();
        kernel.expect_arrival("file", Some((b"text", EVE.makes(0o600))), 0);
        assert_eq!(kernel.open(&who, "file", 1, WRITE, false), Err(Errno::EACCES));
        arrives(kernel, "file", Some((b"more", EVE.makes(0o666))));
        kernel.open(&who, "file", 2, WRITE, false).unwrap();
        kernel.write(2, 0, b"M").unwrap();
        kernel.close(&who, 2).unwrap();
        assert_eq!(get(kernel, &ann, "file"), b"More");
    });
}

#[test]
fn a_file_renamed_before_its_close_does_not_replace_a_later_arrival() {
    in_both_modes(|kernel| {
        let [root, ann, ..] = programs(kernel);
        let who = ann.caller();
        put(kernel, &ann, "name", b"old");
        kernel.open(&who, "tmp", 1, WRITE, true).unwrap();
        kernel.rename(&who, "tmp", "name").unwrap();
        arrives(kernel, "name", Some((b"of Eve", EVE.makes(0o600))));
        kernel.write(1, 0, b"of Ann").unwrap();
        kernel.close(&who, 1).unwrap();
        assert_eq!(get(kernel, &root, "name"), b"of Eve");
        assert_eq!(kernel.stat(&who, "name").unwrap().uid, EVE.uid);
    });
}

#[test]
fn an_empty_file_that_is_renamed_after_its_removal_replaces_the_name() {
    in_both_modes(|kernel| {
        let [_, ann, ..] = programs(kernel);
        let who = ann.caller();
        arrives(kernel, "empty", Some((b"", ANN.makes(0o666))));
        put(kernel, &ann, "name", b"old");
        kernel.open(&who, "empty", 1, WRITE, false).unwrap();
        arrives(kernel, "empty", None);
        kernel.rename(&who, "empty", "name").unwrap();
        kernel.close(&who, 1).unwrap();
        assert_eq!(get(kernel, &ann, "name"), b"");
    });
}

#[test]
fn a_removed_name_goes_when_its_writer_closes_it_unwritten() {
    in_both_modes(|kernel| {
        let [_, ann, bob, _] = programs(kernel);
        arrives(kernel, "file", Some((b"text", BOB.makes(0o644))));
        kernel.open(&bob.caller(), "file", 1, WRITE, false).unwrap();
        arrives(kernel, "file", None);
        kernel.stat(&ann.caller(), "file").unwrap();
        kernel.close(&bob.caller(), 1).unwrap();
        assert_eq!(kernel.stat(&ann.caller(), "file").err(), Some(Errno::ENOENT));
    });
}

#[test]
fn a_file_is_emptied_through_its_descriptor_whatever_its_name_has_got() {
    in_both_modes(|kernel| {
        let [_, ann, bob, _] = programs(kernel);
        kernel.open_as(&ann.caller(), "file", 1, WRITE, Some(0o666)).unwrap();
        kernel.write(1, 0, b"text").unwrap();
        arrives(kernel, "file", Some((b"", ANN.makes(0o666))));
        kernel.reopen(&bob.caller(), 1, 2, EMPTY).unwrap();
        kernel.close(&ann.caller(), 1).unwrap();
        kernel.close(&bob.caller(), 2).unwrap();
        assert_eq!(get(kernel, &ann, "file"), b"", "the later close wins");
    });
}

#[test]
fn a_call_after_one_that_found_its_name_gone_is_a_new_call() {
    in_both_modes(|kernel| {
        let [_, ann, ..] = programs(kernel);
        let who = ann.caller();
        put(kernel, &ann, "gone", b"old");
        put(kernel, &ann, "other", b"text");
        kernel.stat(&who, "gone").unwrap();
        kernel.expect_arrival("gone", None, 0);
        assert_eq!(kernel.open(&who, "gone", 1, WRITE, false), Err(Errno::ENOENT));
        kernel.link(&who, "other", "further").unwrap();
        assert_eq!(get(kernel, &ann, "further"), b"text");
    });
}

#[test]
fn a_file_is_found_by_its_remaining_names() {
    in_both_modes(|kernel| {
        let [_, ann, bob, _] = programs(kernel);
        let who = ann.caller();
        put(kernel, &ann, "first", b"text");
        kernel.link(&who, "first", "second").unwrap();
        arrives(kernel, "first", None);
        kernel.truncate(&who, "second", 2).unwrap();
        assert_eq!(get(kernel, &bob, "second"), b"te");
        kernel.link(&who, "second", "first").unwrap();
        assert_eq!(get(kernel, &bob, "first"), b"te");
    });
}

#[test]
fn a_mode_that_is_set_on_a_removed_file_brings_it_back_with_its_close() {
    in_both_modes(|kernel| {
        let [_, ann, ..] = programs(kernel);
        let who = ann.caller();
        for mode in [0o600, 0o666] {
            arrives(kernel, "file", Some((b"text", ANN.makes(0o666))));
            kernel.open(&who, "file", 1, UPDATE, false).unwrap();
            arrives(kernel, "file", None);
            kernel.set_mode(&who, 1, mode).unwrap();
            kernel.close(&who, 1).unwrap();
            let found = kernel.stat(&who, "file").map(|attr| u32::from(attr.perm));
            // Without a change of its mode it is the file that was removed.
            assert_eq!(found, if mode == 0o600 { Ok(mode) } else { Err(Errno::ENOENT) });
        }
    });
}

#[test]
fn a_mode_that_is_set_through_a_second_descriptor_brings_a_new_file_back() {
    in_both_modes(|kernel| {
        let [_, ann, ..] = programs(kernel);
        let who = ann.caller();
        kernel.open_as(&who, "file", 1, READ, Some(0o666)).unwrap();
        kernel.reopen(&who, 1, 3, WRITE).unwrap();
        arrives(kernel, "file", None);
        kernel.set_mode(&who, 3, 0o644).unwrap();
        kernel.close(&who, 1).unwrap();
        kernel.close(&who, 3).unwrap();
        let found = kernel.stat(&who, "file").map(|attr| u32::from(attr.perm));
        assert_eq!(found, Ok(0o644));
    });
}

#[test]
fn a_closed_file_does_not_replace_a_later_link() {
    in_both_modes(|kernel| {
        let [_, ann, ..] = programs(kernel);
        let who = ann.caller();
        kernel.open_as(&who, "file", 1, WRITE, Some(0o666)).unwrap();
        kernel.duplicate(1, 2);
        kernel.close(&who, 1).unwrap();
        arrives(kernel, "file", None);
        kernel.symlink(&who, "file", "target").unwrap();
        kernel.write(2, 0, b"late").unwrap();
        kernel.close(&who, 2).unwrap();
        assert_eq!(kernel.read_link(&who, "file").unwrap(), b"target");
    });
}

/// Bytes that a mapping holds after the close are published with the rights of their writer, not of
/// the file's owner.
#[test]
fn p14_isolation_of_what_a_mapping_publishes() {
    in_both_modes(|kernel| {
        let [_, _, bob, eve] = programs(kernel);
        let who = eve.caller();
        arrives(kernel, "file", Some((b"of Bob", BOB.makes(0o666))));
        kernel.open(&who, "file", 1, UPDATE, false).unwrap();
        kernel.map(1, 2);
        kernel.close(&who, 1).unwrap();
        kernel.store(2, 0, b"of Eve");
        arrives(kernel, "file", Some((b"closed", BOB.makes(0o644))));
        kernel.unmap(2).unwrap();
        assert_eq!(get(kernel, &bob, "file"), b"closed");
    });
}

#[test]
fn a_closed_and_removed_file_does_not_move_with_the_next_file_of_its_name() {
    for written_late in [false, true] {
        in_both_modes(|kernel| {
            let [_, ann, bob, _] = programs(kernel);
            put(kernel, &bob, "other", b"older");
            kernel.open_as(&ann.caller(), "file", 1, REPLACE, Some(0o666)).unwrap();
            kernel.duplicate(1, 2);
            kernel.write(1, 0, b"removed").unwrap();
            kernel.close(&ann.caller(), 1).unwrap();
            arrives(kernel, "file", None);
            kernel.open_as(&bob.caller(), "file", 3, REPLACE, Some(0o666)).unwrap();
            kernel.rename(&bob.caller(), "file", "other").unwrap();
            assert_eq!(get(kernel, &ann, "other"), b"older", "visible until the next close");
            kernel.write(3, 0, b"newer").unwrap();
            kernel.close(&bob.caller(), 3).unwrap();
            if written_late {
                kernel.write(2, 0, b"late").unwrap();
            }
            kernel.close(&ann.caller(), 2).unwrap();
            assert_eq!(get(kernel, &ann, "other"), b"newer", "{written_late}");
            assert_eq!(kernel.stat(&ann.caller(), "file").err(), Some(Errno::ENOENT));
        });
    }
}

/// A file that another node has removed after its close is visible again while it is open for
/// writing, like a file that was not closed.
#[test]
fn a_removed_file_that_is_opened_by_a_descriptor_is_found_by_its_name() {
    in_both_modes(|kernel| {
        let [_, ann, bob, _] = programs(kernel);
        kernel.open_as(&ann.caller(), "file", 1, WRITE, Some(0o666)).unwrap();
        kernel.duplicate(1, 2);
        kernel.write(1, 0, b"text").unwrap();
        kernel.close(&ann.caller(), 1).unwrap();
        // Its closed bytes are preserved.
        assert_eq!(get(kernel, &bob, "file"), b"text");
        kernel.write(2, 0, b"t").unwrap();
        arrives(kernel, "file", None);
        assert_eq!(kernel.stat(&bob.caller(), "file").err(), Some(Errno::ENOENT));
        kernel.reopen(&ann.caller(), 2, 3, WRITE).unwrap();
        for program in [&ann, &bob] {
            assert_eq!(kernel.stat(&program.caller(), "file").unwrap().size, 4);
        }
        kernel.close(&ann.caller(), 3).unwrap();
        kernel.close(&ann.caller(), 2).unwrap();
    });
}

#[test]
fn a_file_made_under_a_removed_name_takes_the_name_from_a_closed_one() {
    for is_dir in [false, true] {
        in_both_modes(|kernel| {
            let [_, ann, bob, _] = programs(kernel);
            kernel.open_as(&ann.caller(), "file", 1, WRITE, Some(0o666)).unwrap();
            kernel.duplicate(1, 2);
            kernel.write(1, 0, b"closed").unwrap();
            kernel.close(&ann.caller(), 1).unwrap();
            arrives(kernel, "file", None);
            if is_dir {
                kernel.mkdir(&bob.caller(), "file").unwrap();
            } else {
                put(kernel, &bob, "file", b"newer");
            }
            kernel.reopen(&ann.caller(), 2, 3, WRITE).unwrap();
            kernel.write(3, 0, b"late").unwrap();
            if is_dir {
                assert_eq!(kernel.list(&ann.caller(), "file").unwrap(), Vec::<String>::new());
                kernel.rmdir(&bob.caller(), "file").unwrap();
            } else {
                assert_eq!(get(kernel, &ann, "file"), b"newer");
            }
            kernel.close(&ann.caller(), 3).unwrap();
            kernel.close(&ann.caller(), 2).unwrap();
            let left: &[&str] = if is_dir { &[] } else { &["file"] };
            assert_eq!(kernel.list(&bob.caller(), "").unwrap(), left);
            if !is_dir {
                assert_eq!(get(kernel, &bob, "file"), b"newer");
            }
        });
    }
}
