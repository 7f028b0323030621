//! Opens that the kernel permits by outdated rights of an inode, where the file has other rights by
//! now (P14).

use hearthfs_mount::{Errno, OpenAccess, OpenFlags};

use super::kernel::Kernel;
use super::node::{READ, in_both_modes};
use super::programs::Program;
use super::users::{ANN, BOB, ROOT};

const WRITE: OpenFlags = OpenFlags { access: OpenAccess::Write, ..READ };

/// Makes a file that all users may write, and opens it once more by a descriptor after `act` has
/// withdrawn that permission. `act` returns the descriptor.
fn refuses(act: impl Fn(&mut Kernel<'_>, [&Program; 3]) -> u32) {
    in_both_modes(|kernel| {
        let [root, ann, ann_too, bob] = [ROOT, ANN, ANN, BOB].map(Program::start_as);
        kernel.chmod(&root.caller(), "", 0o777).unwrap();
        kernel.open_as(&ann.caller(), "file", 1, WRITE, Some(0o666)).unwrap();
        kernel.write(1, 0, b"text").unwrap();
        kernel.close(&ann.caller(), 1).unwrap();
        let fd = act(kernel, [&ann, &ann_too, &bob]);
        for flags in [WRITE, OpenFlags { truncate: true, ..WRITE }] {
            let opened = kernel.reopen(&bob.caller(), fd, 90, flags);
            assert_eq!(opened, Err(Errno::EACCES), "{flags:?}");
        }
        kernel.reopen(&ann.caller(), fd, 91, WRITE).unwrap();
        kernel.close(&ann.caller(), 91).unwrap();
    });
}

#[test]
fn a_mode_that_a_writer_sets_holds_for_descriptors_of_what_was_published() {
    refuses(|kernel, [ann, _, bob]| {
        kernel.open(&bob.caller(), "file", 2, READ, false).unwrap();
        kernel.open(&ann.caller(), "file", 3, WRITE, false).unwrap();
        kernel.chmod(&ann.caller(), "file", 0o600).unwrap();
        assert_eq!(kernel.reopen(&bob.caller(), 2, 90, READ), Err(Errno::EACCES));
        2
    });
}

#[test]
fn a_mode_that_is_set_by_the_name_holds_for_descriptors_of_what_is_written() {
    refuses(|kernel, [ann, ann_too, bob]| {
        kernel.open(&ann.caller(), "file", 2, WRITE, false).unwrap();
        kernel.stat(&ann.caller(), "file").unwrap();
        kernel.duplicate(2, 3);
        kernel.chmod(&ann_too.caller(), "file", 0o600).unwrap();
        assert_eq!(kernel.stat(&bob.caller(), "file").unwrap().perm, 0o600);
        3
    });
}

#[test]
fn a_mode_that_is_set_by_another_name_holds_for_descriptors_of_what_is_written() {
    refuses(|kernel, [ann, ann_too, _]| {
        kernel.link(&ann.caller(), "file", "further").unwrap();
        kernel.open(&ann.caller(), "file", 2, WRITE, false).unwrap();
        kernel.stat(&ann.caller(), "file").unwrap();
        kernel.duplicate(2, 3);
        kernel.chmod(&ann_too.caller(), "further", 0o600).unwrap();
        3
    });
}

#[test]
fn a_mode_that_another_node_sets_holds_for_descriptors() {
    refuses(|kernel, [_, _, bob]| {
        kernel.open(&bob.caller(), "file", 2, READ, false).unwrap();
        kernel.expect_mode("file", 0o600);
        kernel.end_call();
        2
    });
}
