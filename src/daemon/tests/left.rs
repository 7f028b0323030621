//! Closed files that wait for their end. The runtime has one thread, so that time passes for the
//! node only when a test says so.

use std::time::Duration;

use hearthfs_mount::OpenFlags;
use tokio::runtime::Runtime;

use super::kernel::Kernel;
use super::node::{READ, REPLACE, UPDATE, get, node, put};
use super::programs::Program;
use crate::digest::Digest;
use crate::name::TreePath;
use crate::namespace::{Attrs, Entry, EntryKind, Op};

/// The files that wait at most.
const LEFT_MAX: usize = 64;

fn runtime() -> Runtime {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap()
}

fn blobs(kernel: &Kernel<'_>) -> u64 {
    kernel.rooms().blobs.usage().blobs
}

#[test]
fn closed_files_become_blobs_together_a_moment_later() {
    let (runtime, dir) = (runtime(), tempfile::tempdir().unwrap());
    let mut kernel = Kernel::start(&runtime, node(&dir), false);
    let program = Program::start();
    for n in 0..3 {
        put(&mut kernel, &program, &n.to_string(), n.to_string().as_bytes());
    }
    assert_eq!(blobs(&kernel), 0);
    let waited = (0..200).find(|_| {
        kernel.pass(Duration::from_millis(5));
        blobs(&kernel) == 3
    });
    assert!(waited.is_some(), "{} blobs", blobs(&kernel));
    assert_eq!(kernel.rooms().blobs.usage().staged_bytes, 0);
    assert_eq!(kernel.rooms().fs.held().2, 0, "live files");
    for n in 0..3 {
        assert_eq!(get(&mut kernel, &program, &n.to_string()), n.to_string().as_bytes());
    }
}

#[test]
fn p13_bounded_a_release_that_finds_too_many_files_ends_its_own() {
    let (runtime, dir) = (runtime(), tempfile::tempdir().unwrap());
    let mut kernel = Kernel::start(&runtime, node(&dir), false);
    let program = Program::start();
    for n in 0..LEFT_MAX + 3 {
        put(&mut kernel, &program, &n.to_string(), n.to_string().as_bytes());
    }
    assert_eq!(blobs(&kernel), 3);
    assert_eq!(kernel.rooms().fs.held().2, LEFT_MAX);
}

#[test]
fn p4_local_durable_a_kill_before_the_end_loses_no_closed_file() {
    let (runtime, dir) = (runtime(), tempfile::tempdir().unwrap());
    let mut kernel = Kernel::start(&runtime, node(&dir), false);
    let program = Program::start();
    put(&mut kernel, &program, "small", b"text");
    put(&mut kernel, &program, "larger", &[7; 10_000]);
    put(&mut kernel, &program, "moved", b"under another name");
    kernel.rename(&program.caller(), "moved", "here").unwrap();
    assert_eq!(blobs(&kernel), 0);
    kernel.restart(false);
    assert_eq!(blobs(&kernel), 3);
    assert_eq!(get(&mut kernel, &program, "small"), b"text");
    assert!(get(&mut kernel, &program, "larger") == [7; 10_000]);
    assert_eq!(get(&mut kernel, &program, "here"), b"under another name");
}

#[test]
fn whatever_needs_the_bytes_of_a_file_ends_it_at_once() {
    let appends = OpenFlags { append: true, ..UPDATE };
    for passthrough in [false, true] {
        let (runtime, dir) = (runtime(), tempfile::tempdir().unwrap());
        let mut kernel = Kernel::start(&runtime, node(&dir), passthrough);
        let (writer, other) = (Program::start(), Program::start());
        let who = other.caller();
        for name in ["read", "appended", "cut", "waits"] {
            put(&mut kernel, &writer, name, name.as_bytes());
        }
        assert_eq!(blobs(&kernel), 0);
        kernel.open(&who, "read", 1, READ, false).unwrap();
        assert_eq!(blobs(&kernel), 1);
        kernel.open(&who, "appended", 2, appends, false).unwrap();
        kernel.write(2, 8, b" twice").unwrap();
        kernel.close(&who, 2).unwrap();
        kernel.truncate(&who, "cut", 1).unwrap();
        assert_eq!(get(&mut kernel, &other, "read"), b"read");
        assert_eq!(get(&mut kernel, &other, "appended"), b"appended twice");
        assert_eq!(get(&mut kernel, &other, "cut"), b"c");
        assert_eq!(get(&mut kernel, &writer, "waits"), b"waits");
    }
}

#[test]
fn a_file_that_has_to_survive_a_power_loss_does_not_wait() {
    let (runtime, dir) = (runtime(), tempfile::tempdir().unwrap());
    let mut kernel = Kernel::start(&runtime, node(&dir), false);
    let program = Program::start();
    kernel.open(&program.caller(), "file", 1, REPLACE, true).unwrap();
    kernel.write(1, 0, b"text").unwrap();
    kernel.sync(1).unwrap();
    kernel.close(&program.caller(), 1).unwrap();
    assert_eq!(blobs(&kernel), 1);
}

#[test]
fn another_file_with_the_same_content_can_be_read_before_the_end() {
    let (runtime, dir) = (runtime(), tempfile::tempdir().unwrap());
    let mut kernel = Kernel::start(&runtime, node(&dir), false);
    let (writer, reader) = (Program::start(), Program::start());
    put(&mut kernel, &writer, "file", b"text");
    let kind = EntryKind::File { digest: Digest::of(b"text"), size: 4 };
    let attrs = Attrs { mode: 0o644, ..Attrs::default() };
    let same = TreePath::root().join(b"same").unwrap();
    let ledger = kernel.rooms().engine.ledger().clone();
    ledger.publish(vec![(same, Op::Put(Entry { kind, attrs, link: None }))]).unwrap();
    assert_eq!(blobs(&kernel), 0);
    assert_eq!(get(&mut kernel, &reader, "same"), b"text");
}

#[test]
fn what_is_removed_before_the_end_may_be_evicted() {
    let (runtime, dir) = (runtime(), tempfile::tempdir().unwrap());
    let store = dir.path().join("store");
    std::fs::create_dir(&store).unwrap();
    let mut settings = node(&dir);
    settings.remote.url = Some(format!("file://{}", store.display()).parse().unwrap());
    let mut kernel = Kernel::start(&runtime, settings, false);
    let program = Program::start();
    let temporary = "bazel/tmp/6f0c-aaaa";
    for dir in ["bazel", "bazel/tmp"] {
        kernel.mkdir(&program.caller(), dir).unwrap();
    }
    // A call that asks the store lets time pass for the node.
    let in_time = (0..100).find(|n: &u32| {
        let before = blobs(&kernel);
        put(&mut kernel, &program, temporary, &n.to_le_bytes());
        kernel.unlink(&program.caller(), temporary).unwrap();
        blobs(&kernel) == before
    });
    assert!(in_time.is_some());
    let before = blobs(&kernel);
    kernel.rooms().fs.settle_published();
    let usage = kernel.rooms().blobs.usage();
    assert_eq!((usage.blobs, usage.unsaved_bytes), (before + 1, 0));
    put(&mut kernel, &program, temporary, b"stays on this node");
    kernel.rooms().fs.settle_published();
    assert!(kernel.rooms().blobs.usage().unsaved_bytes > 0);
}

#[test]
fn attributes_that_are_set_on_a_removed_file_stay() {
    let (runtime, dir) = (runtime(), tempfile::tempdir().unwrap());
    let mut kernel = Kernel::start(&runtime, node(&dir), false);
    let program = Program::start();
    let who = program.caller();
    put(&mut kernel, &program, "file", b"text");
    kernel.open(&who, "file", 1, READ, false).unwrap();
    kernel.unlink(&who, "file").unwrap();
    kernel.set_mode(&who, 1, 0o600).unwrap();
    assert_eq!(kernel.stat_of(&who, 1, false).unwrap().perm, 0o600);
    kernel.rooms().fs.settle_published();
    assert_eq!(kernel.rooms().fs.held().2, 0, "live files");
    assert_eq!(kernel.stat_of(&who, 1, false).unwrap().perm, 0o600);
    assert_eq!(kernel.read(1).unwrap(), b"text");
}

#[test]
fn files_that_wait_are_ended_when_descriptors_are_needed() {
    let (runtime, dir) = (runtime(), tempfile::tempdir().unwrap());
    let mut kernel = Kernel::start(&runtime, node(&dir), false);
    let program = Program::start();
    put(&mut kernel, &program, "file", b"text");
    assert!(kernel.rooms().fs.close_unneeded());
    assert_eq!((blobs(&kernel), kernel.rooms().fs.held().2), (1, 0));
    assert!(!kernel.rooms().fs.close_unneeded());
}
