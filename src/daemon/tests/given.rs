//! Cases that have to be constructed, because no kernel and no random program would reach them.

use std::ffi::OsStr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use hearthfs_mount::{Errno, Ino, Notices, OpenAccess, OpenFlags};

use super::kernel::Kernel;
use super::node::{UPDATE, node, put, runtime};
use super::programs::Program;
use super::users::ROOT;
use crate::name::TreePath;
use crate::namespace::{Entry, Op, Time};
use crate::sync::RECORD_CHANGES_MAX;

const WRITE: OpenFlags = OpenFlags {
    access: OpenAccess::Write,
    truncate: true,
    append: false,
    exclusive: false,
    direct: false,
};

#[test]
fn a_directory_that_is_too_large_to_move_at_once_is_left_to_mv() {
    let (runtime, dir) = (runtime(), tempfile::tempdir().unwrap());
    let mut kernel = Kernel::start(&runtime, node(&dir), false);
    let program = Program::start();
    let who = program.caller();
    let large = TreePath::root().join(b"large").unwrap();
    let entry = Entry::directory(0o755, 0, 0, Time::default());
    let ledger = kernel.rooms().engine.ledger().clone();
    ledger.publish(vec![(large.clone(), Op::Put(entry.clone()))]).unwrap();
    let below = RECORD_CHANGES_MAX / 2;
    let ops =
        (0..below).map(|n| (large.join(n.to_string().as_bytes()).unwrap(), Op::Put(entry.clone())));
    ledger.publish(ops.collect()).unwrap();
    assert_eq!(kernel.rename(&who, "large", "other"), Err(Errno::EXDEV));
    assert!(kernel.stat(&who, "other").is_err());
    kernel.rmdir(&who, "large/0").unwrap();
    kernel.rename(&who, "large", "other").unwrap();
    assert!(kernel.stat(&who, "other/1").is_ok() && kernel.stat(&who, "large").is_err());
}

#[test]
fn a_file_that_cannot_be_published_leaves_nothing_behind() {
    let (runtime, dir) = (runtime(), tempfile::tempdir().unwrap());
    let mut kernel = Kernel::start(&runtime, node(&dir), false);
    let program = Program::start();
    let who = program.caller();
    let (journal, aside) = (dir.path().join("cache/v1/journal"), dir.path().join("aside"));
    std::fs::rename(&journal, &aside).unwrap();
    kernel.open(&who, "file", 1, WRITE, true).unwrap();
    kernel.write(1, 0, b"never read").unwrap();
    assert_eq!(kernel.close(&who, 1), Err(Errno::EIO));
    let usage = kernel.rooms().blobs.usage();
    assert_eq!((usage.blobs, usage.bytes, usage.staged_bytes), (0, 0, 0));
    assert_eq!(kernel.stat(&who, "file").err(), Some(Errno::ENOENT));
    std::fs::rename(&aside, &journal).unwrap();
    kernel.open(&who, "file", 2, WRITE, true).unwrap();
    kernel.write(2, 0, b"for all").unwrap();
    kernel.close(&who, 2).unwrap();
    kernel.rooms().fs.settle_published();
    let usage = kernel.rooms().blobs.usage();
    assert_eq!((usage.blobs, usage.staged_bytes), (1, 0));
    assert_eq!(kernel.stat(&who, "file").unwrap().size, 7);
}

#[test]
fn an_empty_file_that_is_renamed_while_it_is_written_is_published_under_its_new_name() {
    let (runtime, dir) = (runtime(), tempfile::tempdir().unwrap());
    let mut kernel = Kernel::start(&runtime, node(&dir), false);
    let program = Program::start();
    let who = program.caller();
    kernel.open(&who, "old", 1, WRITE, true).unwrap();
    kernel.close(&who, 1).unwrap();
    kernel.open(&who, "old", 2, WRITE, false).unwrap();
    kernel.rename(&who, "old", "new").unwrap();
    kernel.write(2, 0, b"text").unwrap();
    kernel.close(&who, 2).unwrap();
    assert_eq!(kernel.list(&who, "").unwrap(), ["new"]);
    assert_eq!(kernel.stat(&who, "new").unwrap().size, 4);
}

#[test]
fn a_large_file_for_which_a_thread_never_came_is_not_digested_by_the_thread_that_finds_out() {
    const LARGE: usize = 9 << 20;
    let (runtime, dir) = (runtime(), tempfile::tempdir().unwrap());
    let mut kernel = Kernel::start(&runtime, node(&dir), false);
    let (writer, late) = (Program::start(), Program::start());
    let who = writer.caller();
    kernel.open(&who, "large", 1, UPDATE, true).unwrap();
    kernel.write(1, 0, &vec![7; LARGE]).unwrap();
    kernel.close_duplicate(&who, 1).unwrap();
    // The closed bytes have to be read again once no process can write to the file, and a thread
    // has a seat to write to it.
    kernel.write(1, 0, b"changed").unwrap();
    let stale = kernel.open_late(&late.caller(), "large", UPDATE, |_| {});
    assert_eq!(stale, Err(Errno::ESTALE));
    kernel.look_again(&late.caller(), "large").unwrap();
    kernel.close(&who, 1).unwrap();
    let lives = |kernel: &Kernel<'_>| kernel.rooms().fs.held().2;
    assert_eq!(lives(&kernel), 1, "the file waits for that thread");
    // While no other task can run, that thread makes another call.
    let (began, begun) = std::sync::mpsc::channel();
    let (go_on, goes_on) = std::sync::mpsc::channel::<()>();
    let hog = crate::task::spawn(runtime.handle(), "hog", async move {
        began.send(()).unwrap();
        goes_on.recv().ok();
    });
    begun.recv().unwrap();
    kernel.open(&late.caller(), "other", 2, UPDATE, true).unwrap();
    assert!(lives(&kernel) == 2, "the file was digested meanwhile");
    drop(go_on);
    runtime.block_on(hog).unwrap();
    kernel.close(&late.caller(), 2).unwrap();
    while lives(&kernel) > 0 {
        runtime.block_on(crate::clock::sleep(std::time::Duration::from_millis(5)));
    }
    assert_eq!(kernel.stat(&who, "large").unwrap().size, LARGE as u64);
}

/// Counts the notifications that a kernel with epochs gets.
#[derive(Debug, Default)]
pub(super) struct Counted {
    all: AtomicU32,
    one: AtomicU32,
}

impl Counted {
    /// Returns how many times names were taken back.
    pub(super) fn taken_back(&self) -> u32 {
        self.all.load(Ordering::Relaxed) + self.one.load(Ordering::Relaxed)
    }
}

impl Notices for Counted {
    fn expire_all(&self) -> bool {
        self.all.fetch_add(1, Ordering::Relaxed);
        true
    }

    fn expire_attrs(&self, _: Ino) -> bool {
        true
    }

    fn inval_entry(&self, _: Ino, _: &OsStr) {
        self.one.fetch_add(1, Ordering::Relaxed);
    }
}

#[test]
fn all_names_are_taken_back_once_for_each_commit() {
    let (runtime, dir) = (runtime(), tempfile::tempdir().unwrap());
    let mut kernel = Kernel::start(&runtime, node(&dir), false);
    let program = Program::start();
    put(&mut kernel, &program, "file", b"text");
    kernel.stat(&program.caller(), "file").unwrap();
    let counted = Arc::new(Counted::default());
    let notices: Arc<Counted> = Arc::clone(&counted);
    kernel.rooms().fs.set_notices(notices);
    for commits in 1..4 {
        kernel.expect_arrival("file", Some((b"of another node", ROOT.makes(0o644))), 0);
        kernel.end_call();
        assert_eq!(counted.all.load(Ordering::Relaxed), commits);
    }
    assert_eq!(counted.one.load(Ordering::Relaxed), 0);
}
