//! Units of several users (P14): the publish of a draft has no more rights than its writer.

use super::kernel::Kernel;
use super::node::{REPLACE, get, in_both_modes, put};
use super::programs::Program;
use super::units::{make_dirs, missing, names, until};
use super::users::{ANN, EVE};

const KEY: &str = "triton/KEY";

/// Makes the directory of a unit with a mode.
fn make_open(kernel: &mut Kernel<'_>, mode: u32) {
    let root = Program::start();
    make_dirs(kernel, &root, KEY);
    kernel.chmod(&root.caller(), KEY, mode).unwrap();
}

#[test]
fn p14_units_put_no_file_in_the_place_of_a_directory() {
    in_both_modes(|kernel| {
        make_open(kernel, 0o777);
        let (ann, eve) = (Program::start_as(ANN), Program::start_as(EVE));
        put(kernel, &eve, "triton/KEY/a", b"draft");
        make_dirs(kernel, &ann, "triton/KEY/a");
        put(kernel, &ann, "triton/KEY/a/file", b"kept");
        put(kernel, &eve, "triton/KEY/__grp__.json", b"{}");
        let fresh = Program::start_as(ANN);
        assert_eq!(names(kernel, &fresh, "triton/KEY/a"), ["file"], "a file hides the directory");
        assert!(
            missing(kernel, &fresh, "triton/KEY/__grp__.json"),
            "an incomplete draft is hidden"
        );
    });
}

#[test]
fn p14_units_leave_files_in_a_sticky_directory_to_their_owner() {
    for (mode, stays) in [(0o777, false), (0o1777, true)] {
        in_both_modes(|kernel| {
            make_open(kernel, mode);
            let (ann, eve) = (Program::start_as(ANN), Program::start_as(EVE));
            put(kernel, &eve, "triton/KEY/a", b"eve");
            kernel.open(&eve.caller(), "triton/KEY/b", 1, REPLACE, true).unwrap();
            // No marker completes it, so it is published when its writer has stopped writing.
            put(kernel, &ann, "triton/KEY/a", b"ann");
            kernel.chmod(&ann.caller(), "triton/KEY/a", 0o666).unwrap();
            until(kernel, "files without recent writes", |kernel| {
                !missing(kernel, &Program::start(), "triton/KEY/a")
            });
            kernel.close(&eve.caller(), 1).unwrap();
            put(kernel, &eve, "triton/KEY/__grp__.json", b"{}");
            let fresh = Program::start();
            let found = get(kernel, &fresh, "triton/KEY/a");
            assert_eq!(found, if stays { b"ann".as_slice() } else { b"eve" }, "{mode:o}");
            assert_eq!(missing(kernel, &fresh, "triton/KEY/__grp__.json"), stays, "{mode:o}");
        });
    }
}
