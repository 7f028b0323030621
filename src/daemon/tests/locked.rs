//! Locks of names that disappear and come back (rule 9).

use hearthfs_mount::{Errno, FlockKind, OpenAccess, OpenFlags};

use super::kernel::Kernel;
use super::node::{READ, UPDATE, in_both_modes, put};
use super::programs::Program;
use super::users::ROOT;

const WRITE: OpenFlags = OpenFlags { access: OpenAccess::Write, ..UPDATE };

/// Opens a name, which is made if it is missing, and requests its lock exclusively.
fn lock(
    kernel: &mut Kernel<'_>,
    program: &Program,
    path: &str,
    fd: u32,
    flags: OpenFlags,
) -> Result<(), Errno> {
    let who = program.caller();
    kernel.open(&who, path, fd, flags, flags.writes()).unwrap();
    kernel.flock(&who, fd, FlockKind::Exclusive)
}

/// Makes another node remove a name.
fn remove_elsewhere(kernel: &Kernel<'_>, path: &str) {
    kernel.expect_arrival(path, None, 0);
    kernel.end_call();
}

#[test]
fn all_names_of_a_file_share_one_lock() {
    for flags in [READ, UPDATE] {
        in_both_modes(|kernel| {
            let (one, other) = (Program::start(), Program::start());
            put(kernel, &one, "file", b"text");
            kernel.link(&one.caller(), "file", "further").unwrap();
            kernel.forget();
            assert_eq!(lock(kernel, &one, "further", 1, flags), Ok(()));
            assert_eq!(lock(kernel, &other, "file", 2, UPDATE), Err(Errno::EAGAIN));
            // Another node puts another file under one of the names.
            kernel.expect_arrival("file", Some((b"newer", ROOT.makes(0o644))), 0);
            kernel.end_call();
            kernel.close(&other.caller(), 2).unwrap();
            assert_eq!(lock(kernel, &other, "file", 3, READ), Err(Errno::EAGAIN));
        });
    }
}

#[test]
fn a_name_that_another_node_removes_keeps_its_lock() {
    for flags in [READ, WRITE, UPDATE] {
        in_both_modes(|kernel| {
            let (one, other) = (Program::start(), Program::start());
            put(kernel, &one, "file", b"text");
            assert_eq!(lock(kernel, &one, "file", 1, flags), Ok(()));
            remove_elsewhere(kernel, "file");
            assert_eq!(lock(kernel, &other, "file", 2, UPDATE), Err(Errno::EAGAIN));
            kernel.close(&one.caller(), 1).unwrap();
            assert_eq!(kernel.flock(&other.caller(), 2, FlockKind::Exclusive), Ok(()));
        });
    }
}

#[test]
fn a_name_that_goes_while_it_is_opened_keeps_its_lock() {
    for (flags, requests) in [READ, WRITE].into_iter().flat_map(|f| (0..6).map(move |n| (f, n))) {
        in_both_modes(|kernel| {
            let (one, other) = (Program::start(), Program::start());
            put(kernel, &one, "file", b"text");
            kernel.stat(&one.caller(), "file").unwrap();
            kernel.expect_arrival("file", None, requests);
            let opened = kernel.open(&one.caller(), "file", 1, flags, false);
            kernel.end_call();
            if opened == Err(Errno::ENOENT) {
                return;
            }
            opened.unwrap();
            kernel.flock(&one.caller(), 1, FlockKind::Exclusive).unwrap();
            let second = lock(kernel, &other, "file", 2, UPDATE);
            assert_eq!(second, Err(Errno::EAGAIN), "{flags:?}, after {requests} requests");
        });
    }
}

#[test]
fn a_name_below_a_directory_that_is_made_anew_has_another_lock() {
    in_both_modes(|kernel| {
        let (one, other) = (Program::start(), Program::start());
        let who = one.caller();
        for moved in [false, true] {
            kernel.mkdir(&who, "dir").unwrap();
            put(kernel, &one, "dir/file", b"text");
            assert_eq!(lock(kernel, &one, "dir/file", 1, READ), Ok(()));
            remove_elsewhere(kernel, "dir/file");
            if moved {
                kernel.mkdir(&who, "new").unwrap();
                kernel.rename(&who, "new", "dir").unwrap();
            } else {
                kernel.rmdir(&who, "dir").unwrap();
                kernel.mkdir(&who, "dir").unwrap();
            }
            assert_eq!(lock(kernel, &other, "dir/file", 2, UPDATE), Ok(()), "moved: {moved}");
            kernel.close(&who, 1).unwrap();
            kernel.close(&other.caller(), 2).unwrap();
            kernel.unlink(&who, "dir/file").unwrap();
            kernel.rmdir(&who, "dir").unwrap();
        }
    });
}

#[test]
fn a_name_that_was_a_directory_meanwhile_has_another_lock() {
    in_both_modes(|kernel| {
        let (one, other) = (Program::start(), Program::start());
        let who = one.caller();
        put(kernel, &one, "file", b"text");
        assert_eq!(lock(kernel, &one, "file", 1, READ), Ok(()));
        remove_elsewhere(kernel, "file");
        kernel.mkdir(&who, "file").unwrap();
        kernel.rmdir(&who, "file").unwrap();
        assert_eq!(lock(kernel, &other, "file", 2, UPDATE), Ok(()));
    });
}
