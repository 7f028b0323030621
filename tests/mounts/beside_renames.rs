//! Listings and opens beside publishes and renames of directories.

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::fs::OFlags;
use rustix::io::Errno;

use crate::harness::syscall_process::CREATE_NEW;
use crate::harness::{Cluster, Io, Must as _, SyscallProcess, in_both_modes, sleep_ms};

/// Files that make a listing take a while.
const MANY: usize = 10_000;
const PUBLISHED: usize = 500;
const OPENS: usize = 2000;

fn names_in(dir: &Path) -> BTreeSet<String> {
    let entries = std::fs::read_dir(dir).must("list");
    let name = |entry: std::io::Result<std::fs::DirEntry>| entry.must("an entry").file_name();
    entries.map(|entry| name(entry).into_string().must("a name")).collect()
}

/// Makes empty files whose names begin with `n`.
fn fill(dir: &Path, count: usize) {
    std::fs::create_dir(dir).must("mkdir");
    for n in 0..count {
        std::fs::File::create(dir.join(format!("n{n:06}"))).must("create");
    }
}

/// Runs `beside` again and again until `main` has ended.
fn run_beside(beside: impl Fn() + Sync + Send, main: impl FnOnce()) {
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !done.load(Ordering::Relaxed) {
                beside();
            }
        });
        let ended = std::panic::catch_unwind(std::panic::AssertUnwindSafe(main));
        done.store(true, Ordering::Relaxed);
        if let Err(panic) = ended {
            std::panic::resume_unwind(panic);
        }
    });
}

/// A file that exists before a listing begins is in the listing, even if it is published meanwhile.
fn a_listing_has_what_is_published_meanwhile(io: Io) {
    let cluster = Cluster::two(io);
    let dir = cluster.a.at("dir");
    fill(&dir, MANY);
    let (writing, there) = (dir.clone(), parking_lot::Mutex::new(BTreeSet::new()));
    std::thread::scope(|scope| {
        let made = &there;
        let writer = scope.spawn(move || {
            let mut process = SyscallProcess::new();
            for n in 0..PUBLISHED {
                let name = format!("a{n:06}");
                let fd = process.open(&writing.join(&name), CREATE_NEW, 0o644).must("create");
                made.lock().insert(name);
                process.write(fd, b"x").must("write");
                sleep_ms(1);
                process.close(fd).must("close");
            }
        });
        while !writer.is_finished() {
            let before = there.lock().clone();
            let listed = names_in(&dir);
            let missing: Vec<_> = before.difference(&listed).collect();
            assert!(missing.is_empty(), "a listing lacks {missing:?}");
        }
    });
}
in_both_modes!(a_listing_has_what_is_published_meanwhile);

/// An open finds the file or nothing while a directory above it is renamed.
fn an_open_beside_a_rename_of_its_directory_is_never_stale(io: Io) {
    let cluster = Cluster::two(io);
    let (dir, other) = (cluster.a.at("dir"), cluster.a.at("other"));
    std::fs::create_dir(&dir).must("mkdir");
    let mut process = SyscallProcess::new();
    process.put(&dir.join("file"), b"bytes").must("put");
    let back_and_forth = || {
        std::fs::rename(&dir, &other).must("rename");
        std::fs::rename(&other, &dir).must("rename back");
    };
    run_beside(back_and_forth, || {
        for flags in [OFlags::RDWR, OFlags::WRONLY | OFlags::APPEND, OFlags::WRONLY | OFlags::TRUNC]
        {
            for n in 0..OPENS {
                match process.open(&dir.join("file"), flags, 0) {
                    Ok(fd) => process.close(fd).must("close"),
                    Err(Errno::NOENT) => {}
                    Err(error) => panic!("open {n} with {flags:?}: {error}"),
                }
            }
        }
    });
}
in_both_modes!(an_open_beside_a_rename_of_its_directory_is_never_stale);
