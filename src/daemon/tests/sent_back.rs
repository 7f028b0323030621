//! Opens that are sent back to look again, and what the calls after them may rely on.

use hearthfs_mount::Errno;

use super::kernel::Kernel;
use super::node::{READ, UPDATE, get, in_both_modes, put};
use super::programs::Program;

/// Has a program open a name that is renamed to "second" while it looks again.
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
fn a_call_after_one_that_found_nothing_is_another() {
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
            // Nothing of this one was looked at, so it may be sent back: a file that is read in passing is not
            // written beside its name.
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
