//! Listings beside renames of the directory.

use std::ffi::OsStr;
use std::sync::atomic::{AtomicBool, Ordering};

use hearthfs_mount::{Answer, Caller, Ino, RenameMode, Vfs as _};
use tokio::runtime::Runtime;

use super::kernel::Kernel;
use super::node::{node, put, runtime};
use super::programs::Program;
use crate::fs::Filesystem;

const FILES: usize = 3;
const LISTINGS: usize = 10_000;

fn answer<T>(runtime: &Runtime, answer: Answer<T>) -> T {
    match answer {
        Answer::Now(reply) => reply,
        Answer::Later(work) => runtime.block_on(work),
    }
    .unwrap()
}

fn names_in(runtime: &Runtime, fs: &Filesystem, who: &Caller, dir: Ino) -> usize {
    let handle = answer(runtime, fs.opendir(who, dir));
    let mut count = 0;
    let listed = fs.readdir(dir, handle, 2, false, &mut |_| {
        count += 1;
        false
    });
    listed.unwrap();
    fs.releasedir(dir, handle);
    count
}

/// A program that lists a directory by a descriptor finds all names, whatever the directory is called.
#[test]
fn a_listing_is_whole_while_its_directory_is_renamed() {
    let (runtime, dir) = (runtime(), tempfile::tempdir().unwrap());
    let mut kernel = Kernel::start(&runtime, node(&dir), false);
    let root = Program::start();
    kernel.mkdir_as(&root.caller(), "dir", 0o755).unwrap();
    for n in 0..FILES {
        put(&mut kernel, &root, &format!("dir/{n}"), b"text");
    }
    let who = root.caller();
    let ino = kernel.stat(&who, "dir").unwrap().ino;
    let (fs, done) = (kernel.rooms().fs.clone(), AtomicBool::new(false));
    let counts = std::thread::scope(|scope| {
        let renaming = fs.clone();
        let (runtime, done) = (&runtime, &done);
        scope.spawn(move || {
            let [one, other] = ["dir", "other"].map(OsStr::new);
            while !done.load(Ordering::Relaxed) {
                for (from, to) in [(one, other), (other, one)] {
                    let (from, to) = ((Ino::ROOT, from), (Ino::ROOT, to));
                    answer(runtime, renaming.rename(&who, from, to, RenameMode::Replace));
                }
            }
        });
        let counts: Vec<_> = (0..LISTINGS).map(|_| names_in(runtime, &fs, &who, ino)).collect();
        done.store(true, Ordering::Relaxed);
        counts
    });
    let wrong = counts.iter().filter(|count| **count != FILES).count();
    assert_eq!(wrong, 0, "listings without all names");
}
