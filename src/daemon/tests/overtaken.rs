//! Changes of another node that arrive while a program here writes: what the name has when the
//! program is done.

use hearthfs_mount::Errno;

use super::kernel::Kernel;
use super::node::{READ, REPLACE, UPDATE, get, in_both_modes, put};
use super::programs::Program;
use super::users::{ANN, EVE, ROOT, STICKY};
use crate::name::path as tree_path;
use crate::namespace::{Attrs, Entry, Op, Time};
use crate::stamp::{NodeId, Stamp};

/// The node whose changes arrive.
const OTHER: NodeId = NodeId(0x0d17);
/// A name that keeps its first version, and another one in that directory.
const KEPT: &str = "jax/jit_f-0-cache";
const TEMPORARY: &str = "jax/temporary";

/// Brings in a change that another node has made at a given moment.
fn arrives(kernel: &Kernel<'_>, path: &str, op: Op, put: Stamp, sequence: u64) {
    kernel.fold_arrival(vec![(tree_path(path), op)], Stamp { node: OTHER, ..put }, sequence);
}

/// Makes the put of another node: a file with these bytes, which are on this node.
fn file_of(kernel: &Kernel<'_>, bytes: &[u8]) -> Op {
    let attrs = Attrs { mode: 0o644, ..Attrs::default() };
    Op::Put(Entry { kind: kernel.arrived_content(bytes), attrs, link: None })
}

/// Begins a file under one name and renames it over another, while it is written.
fn begin_and_rename(kernel: &mut Kernel<'_>, program: &Program, from: &str, to: &str) {
    kernel.open(&program.caller(), from, 1, REPLACE, true).unwrap();
    kernel.write(1, 0, b"renamed").unwrap();
    kernel.rename(&program.caller(), from, to).unwrap();
}

#[test]
fn a_file_renamed_over_a_name_replaces_the_version_under_it() {
    in_both_modes(|kernel| {
        let (root, ann) = (Program::start(), Program::start_as(ANN));
        kernel.mkdir_as(&root.caller(), "dir", STICKY | 0o777).unwrap();
        put(kernel, &ann, "dir/file", b"first");
        begin_and_rename(kernel, &ann, "dir/new", "dir/file");
        assert_eq!(get(kernel, &root, "dir/file"), b"first", "the old version until the close");
        kernel.close(&ann.caller(), 1).unwrap();
        assert_eq!(get(kernel, &root, "dir/file"), b"renamed");
        // Another name of the replaced file makes no difference.
        kernel.chmod(&ann.caller(), "dir/file", 0o444).unwrap();
        begin_and_rename(kernel, &ann, "dir/new", "dir/file");
        kernel.link(&root.caller(), "dir/file", "dir/twin").unwrap();
        kernel.write(1, 0, b"RENAMED").unwrap();
        kernel.close(&ann.caller(), 1).unwrap();
        assert_eq!(get(kernel, &root, "dir/file"), b"RENAMED");
        assert_eq!(get(kernel, &root, "dir/twin"), b"renamed");
    });
}

#[test]
fn a_file_renamed_over_a_link_replaces_the_link_at_its_close() {
    in_both_modes(|kernel| {
        let root = Program::start();
        kernel.symlink(&root.caller(), "file", "elsewhere").unwrap();
        begin_and_rename(kernel, &root, "new", "file");
        kernel.close(&root.caller(), 1).unwrap();
        assert_eq!(get(kernel, &root, "file"), b"renamed");
        // A link that was made since is not the one that it was renamed over.
        begin_and_rename(kernel, &root, "new", "file");
        kernel.unlink(&root.caller(), "file").unwrap();
        kernel.symlink(&root.caller(), "file", "elsewhere").unwrap();
        kernel.close(&root.caller(), 1).unwrap();
        assert_eq!(kernel.read_link(&root.caller(), "file").unwrap(), b"elsewhere");
    });
}

#[test]
fn a_file_renamed_over_a_name_does_not_replace_a_later_file_of_another_user() {
    in_both_modes(|kernel| {
        let (root, ann) = (Program::start(), Program::start_as(ANN));
        kernel.mkdir_as(&root.caller(), "dir", STICKY | 0o777).unwrap();
        put(kernel, &ann, "dir/file", b"first");
        begin_and_rename(kernel, &ann, "dir/new", "dir/file");
        for file in [None, Some((&b"of Eve"[..], EVE.makes(0o644)))] {
            kernel.expect_arrival("dir/file", file, 0);
            kernel.end_call();
        }
        kernel.close(&ann.caller(), 1).unwrap();
        assert_eq!(get(kernel, &root, "dir/file"), b"of Eve");
        assert_eq!(kernel.stat(&root.caller(), "dir/file").unwrap().uid, EVE.uid);
    });
}

#[test]
fn no_close_replaces_a_directory_by_a_file() {
    in_both_modes(|kernel| {
        let root = Program::start();
        let who = root.caller();
        put(kernel, &root, "file", b"first");
        begin_and_rename(kernel, &root, "new", "file");
        let directory = Op::Put(Entry::directory(0o755, 0, 0, Time::default()));
        arrives(kernel, "file", directory, kernel.rooms().engine.ledger().next_stamp(), 0);
        kernel.close(&who, 1).unwrap();
        assert_eq!(kernel.list(&who, "file").unwrap(), [""; 0]);
        // A close does not replace an implied directory either, which exists only because of what
        // lies in it.
        kernel.open(&who, "other", 1, UPDATE, true).unwrap();
        kernel.write(1, 0, b"text").unwrap();
        kernel.expect_arrival("other/below", Some((b"of another node", ROOT.makes(0o644))), 0);
        kernel.end_call();
        kernel.close(&who, 1).unwrap();
        assert_eq!(get(kernel, &root, "other/below"), b"of another node");
        assert_eq!(kernel.open(&who, "new", 1, READ, false).err(), Some(Errno::ENOENT));
    });
}

/// A step that happens before another one, in the tests below.
#[derive(Clone, Copy, PartialEq, Debug)]
enum Step {
    /// The other node puts its version.
    Put,
    /// That version arrives.
    Arrive,
    /// A program here begins its file, and writes part of it.
    Begin,
    Close,
    /// The program opens the file once more, and appends.
    Append,
    ChangeMode,
    /// The program makes another name for its file.
    Link,
    Rename,
}
use Step::{Append, Arrive, Begin, ChangeMode, Close, Link, Put, Rename};

/// Carries out all steps, and returns what the name has then.
fn after(kernel: &mut Kernel<'_>, steps: &[Step], sequence: u64) -> Vec<u8> {
    let program = Program::start();
    let who = program.caller();
    let mut put = None;
    for step in steps {
        match step {
            Put => put = Some(kernel.rooms().engine.ledger().next_stamp()),
            Arrive => {
                let file = file_of(kernel, b"of another node");
                arrives(kernel, KEPT, file, put.expect("a program put it before"), sequence);
            }
            Begin => {
                kernel.open(&who, TEMPORARY, 1, REPLACE, true).unwrap();
                kernel.write(1, 0, b"own").unwrap();
            }
            Close => kernel.close(&who, 1).unwrap(),
            Append => {
                kernel.open(&who, TEMPORARY, 1, UPDATE, false).unwrap();
                kernel.write(1, 3, b" and more").unwrap();
                kernel.close(&who, 1).unwrap();
            }
            Link => kernel.link(&who, TEMPORARY, "jax/twin").unwrap(),
            ChangeMode => kernel.chmod(&who, TEMPORARY, 0o600).unwrap(),
            Rename => kernel.rename(&who, TEMPORARY, KEPT).unwrap(),
        }
    }
    assert_eq!(kernel.stat(&who, TEMPORARY).err(), Some(Errno::ENOENT));
    let has = get(kernel, &program, KEPT);
    assert_eq!(get(kernel, &Program::start(), KEPT), has, "every reader sees the same version");
    has
}

#[test]
fn p7_one_winner_by_rename_is_the_first_version_however_long_the_other_was_written() {
    in_both_modes(|kernel| {
        let root = Program::start();
        kernel.mkdir(&root.caller(), "jax").unwrap();
        let cases = [
            // Begun before the other version arrived.
            (true, &[Begin, Put, Arrive, Close, Rename][..]),
            (true, &[Put, Begin, Arrive, Close, Rename]),
            (true, &[Begin, Put, Close, Arrive, Rename]),
            (true, &[Put, Begin, Close, Arrive, Rename]),
            (true, &[Begin, Put, Arrive, Close, ChangeMode, Rename]),
            (true, &[Begin, Close, Put, Arrive, Append, Rename]),
            (true, &[Begin, Close, Put, Arrive, Link, Rename]),
            (true, &[Begin, Put, Arrive, Rename, Close]),
            (true, &[Put, Begin, Arrive, Rename, Close]),
            (true, &[Put, Begin, Rename, Arrive, Close]),
            // Begun after the other version arrived.
            (false, &[Put, Arrive, Begin, Close, Rename]),
            (false, &[Put, Arrive, Begin, Close, Append, Rename]),
            (false, &[Put, Arrive, Begin, Rename, Close]),
        ];
        for (sequence, (first, steps)) in (0..).zip(cases) {
            let wanted: &[u8] = match first {
                true => b"of another node",
                false if steps.contains(&Append) => b"own and more",
                false => b"own",
            };
            assert_eq!(after(kernel, steps, sequence), wanted, "{steps:?}");
            kernel.unlink(&root.caller(), KEPT).unwrap();
            if steps.contains(&Link) {
                kernel.unlink(&root.caller(), "jax/twin").unwrap();
            }
        }
    });
}

#[test]
fn p7_one_winner_by_rename_of_two_programs_of_one_node_is_the_first() {
    in_both_modes(|kernel| {
        let (one, other) = (Program::start(), Program::start());
        let who = one.caller();
        kernel.mkdir(&who, "jax").unwrap();
        kernel.open(&who, TEMPORARY, 1, REPLACE, true).unwrap();
        kernel.write(1, 0, b"one").unwrap();
        put(kernel, &other, KEPT, b"other");
        kernel.close(&who, 1).unwrap();
        kernel.rename(&who, TEMPORARY, KEPT).unwrap();
        assert_eq!(get(kernel, &one, KEPT), b"other");
        // A file that is begun later replaces it, although a change of its attributes has arrived
        // meanwhile.
        put(kernel, &one, TEMPORARY, b"repaired");
        let ledger = kernel.rooms().engine.ledger();
        let there = tree_path(KEPT);
        let of = ledger.read(|fold| fold.register(&there)).unwrap().stamp;
        let attrs = Op::Attrs { of, attrs: Attrs { mode: 0o600, ..Attrs::default() } };
        arrives(kernel, KEPT, attrs, ledger.next_stamp(), 0);
        kernel.rename(&who, TEMPORARY, KEPT).unwrap();
        assert_eq!(get(kernel, &other, KEPT), b"repaired");
    });
}
