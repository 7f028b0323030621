//! Opens that get `ESTALE`, and what later calls of the thread may rely on.

use std::time::Duration;

use hearthfs_mount::Errno;

use super::kernel::Kernel;
use super::node::{READ, REPLACE, UPDATE, get, in_both_modes, node, put, runtime};
use super::programs::Program;
use super::users::{ANN, BOB};

/// Makes a program open a name that is renamed to "second" while the program looks again.
fn open_what_goes(kernel: &mut Kernel<'_>, program: &Program, replaced: bool) {
    let other = Program::start();
    let flags = if replaced { READ } else { UPDATE };
    let mut step = 0;
    let opened = kernel.race(&program.caller(), "first", Ok((1, flags)), |kernel| {
        step += 1;
        match step {
            2 if replaced => put(kernel, &other, "first", b"replaced"),
            3 => kernel.rename(&other.caller(), "first", "second").unwrap(),
            _ => {}
        }
    });
    assert_eq!((opened, step), (Err(Errno::ENOENT), 3));
}

#[test]
fn a_call_after_one_that_found_nothing_is_a_new_call() {
    in_both_modes(|kernel| {
        for replaced in [false, true] {
            let (program, reader) = (Program::start(), Program::start());
            put(kernel, &reader, "first", b"text");
            if !replaced {
                kernel.open(&reader.caller(), "first", 9, READ, false).unwrap();
            }
            open_what_goes(kernel, &program, replaced);
            if replaced {
                kernel.open(&reader.caller(), "second", 9, READ, false).unwrap();
            }
            // The retry of the earlier call has ended, so this call may get `ESTALE`. It has to,
            // because a file that is passed through to readers cannot be written by a handle that
            // stands aside.
            kernel.open(&program.caller(), "second", 2, UPDATE, false).unwrap();
            kernel.write(2, 0, b"OWN").unwrap();
            kernel.close(&program.caller(), 2).unwrap();
            let expected: &[u8] = if replaced { b"OWNlaced" } else { b"OWNt" };
            assert_eq!(get(kernel, &Program::start(), "second"), expected);
            kernel.close(&reader.caller(), 9).unwrap();
            kernel.unlink(&reader.caller(), "second").unwrap();
        }
    });
}

#[test]
fn an_empty_file_of_another_user_is_opened_at_once() {
    for passthrough in [false, true] {
        let (runtime, dir) = (runtime(), tempfile::tempdir().unwrap());
        let store = dir.path().join("store");
        std::fs::create_dir(&store).unwrap();
        let mut settings = node(&dir);
        settings.remote.url = Some(format!("file://{}", store.display()).parse().unwrap());
        settings.remote.freshness = Duration::ZERO;
        settings.writeback.delay = Duration::from_mins(1);
        let mut kernel = Kernel::start(&runtime, settings, passthrough);
        kernel.chmod(&Program::start().caller(), "", 0o777).unwrap();
        let (ann, bob) = (Program::start_as(ANN), Program::start_as(BOB));
        kernel.mkdir(&ann.caller(), "dir").unwrap();
        for step in 0..50 {
            let name = format!("dir/{step}");
            kernel.open_as(&ann.caller(), &name, 1, REPLACE, Some(0o666)).unwrap();
            kernel.close(&ann.caller(), 1).unwrap();
            let opened = kernel.open_as(&bob.caller(), &name, 2, REPLACE, Some(0o666));
            assert_eq!(opened, Ok(()), "{passthrough} {step}");
            kernel.close(&bob.caller(), 2).unwrap();
        }
    }
}
