//! What comes from another node while a program here writes: what the name has when the program is done.

use std::collections::BTreeMap;

use super::kernel::Kernel;
use super::node::{READ, REPLACE, UPDATE, get, in_both_modes, put};
use super::programs::Program;
use super::users::{ANN, EVE, ROOT, STICKY};
use crate::name::TreePath;
use crate::namespace::{Change, Commit, Entry, Op, Time};
use crate::remote::keys;
use crate::stamp::{NodeId, Stamp};

/// The node whose directories arrive.
const OTHER: NodeId = NodeId(0x0d17);

/// Brings in a directory that another node has made.
fn directory_arrives(kernel: &Kernel<'_>, path: &str, sequence: u64) {
    let path = TreePath::root().join(path.as_bytes()).unwrap();
    let ledger = kernel.rooms().engine.ledger();
    let stamp = Stamp { node: OTHER, ..ledger.next_stamp() };
    let op = Op::Put(Entry::directory(0o755, 0, 0, Time::default()));
    let commit = Commit {
        stamp,
        node: OTHER,
        incarnation: 1,
        sequence,
        packs: Vec::new(),
        blobs: Vec::new(),
        changes: vec![Change { path, stamp, op }],
        extensions: BTreeMap::new(),
    };
    ledger.apply_remote(&keys::commit_name(&stamp), &commit);
}

/// Begins a file under one name and renames it over another, while it is written.
fn begin_and_rename(kernel: &mut Kernel<'_>, program: &Program, from: &str, to: &str) {
    kernel.open(&program.caller(), from, 1, REPLACE, true).unwrap();
    kernel.write(1, 0, b"renamed").unwrap();
    kernel.rename(&program.caller(), from, to).unwrap();
}

#[test]
fn what_is_renamed_over_a_name_replaces_what_it_was_renamed_over() {
    in_both_modes(|kernel| {
        let (root, ann) = (Program::start(), Program::start_as(ANN));
        kernel.mkdir_as(&root.caller(), "dir", STICKY | 0o777).unwrap();
        put(kernel, &ann, "dir/file", b"first");
        begin_and_rename(kernel, &ann, "dir/new", "dir/file");
        assert_eq!(get(kernel, &root, "dir/file"), b"first", "until it is closed");
        kernel.close(&ann.caller(), 1).unwrap();
        assert_eq!(get(kernel, &root, "dir/file"), b"renamed");
        // A further name of what it replaces makes no difference.
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
fn what_is_renamed_over_a_name_does_not_replace_what_another_user_makes_there_later() {
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
fn no_close_puts_a_file_in_the_place_of_a_directory() {
    in_both_modes(|kernel| {
        let root = Program::start();
        let who = root.caller();
        put(kernel, &root, "file", b"first");
        begin_and_rename(kernel, &root, "new", "file");
        directory_arrives(kernel, "file", 0);
        kernel.close(&who, 1).unwrap();
        assert_eq!(kernel.list(&who, "file").unwrap(), [""; 0]);
        // Nor in the place of one that is there only for what lies in it.
        kernel.open(&who, "other", 1, UPDATE, true).unwrap();
        kernel.write(1, 0, b"text").unwrap();
        kernel.expect_arrival("other/below", Some((b"of another node", ROOT.makes(0o644))), 0);
        kernel.end_call();
        kernel.close(&who, 1).unwrap();
        assert_eq!(get(kernel, &root, "other/below"), b"of another node");
        assert_eq!(
            kernel.open(&who, "new", 1, READ, false).err(),
            Some(hearthfs_mount::Errno::ENOENT)
        );
    });
}
