//! Directories that another node closes to others while a call is in flight: the kernel has checked
//! the old mode.

use std::ffi::OsStr;
use std::sync::Arc;
use std::time::Duration;

use hearthfs_mount::{Answer, Caller, Errno, Ino, Lookup, Reply, Vfs as _};
use parking_lot::Mutex;
use tokio::runtime::Runtime;

use super::kernel::Kernel;
use super::node::{node, put, runtime};
use super::programs::Program;
use super::users::{EVE, ROOT};
use crate::fs::Filesystem;

/// Looks a name up, as a kernel does that has let the caller search the directory.
fn look_up(
    runtime: &Runtime,
    fs: &Filesystem,
    who: &Caller,
    dir: Ino,
    name: &str,
) -> Reply<Lookup> {
    match fs.lookup(who, dir, OsStr::new(name)) {
        Answer::Now(reply) => reply,
        Answer::Later(work) => runtime.block_on(work),
    }
}

#[test]
fn until_a_change_is_noted_any_directory_may_have_been_closed() {
    let (runtime, dir) = (runtime(), tempfile::tempdir().unwrap());
    let mut kernel = Kernel::start(&runtime, node(&dir), false);
    let (root, eve) = (Program::start(), Program::start_as(EVE));
    kernel.mkdir_as(&root.caller(), "dir", 0o700).unwrap();
    put(&mut kernel, &root, "dir/file", b"text");
    let (ino, who) = (kernel.stat(&root.caller(), "dir").unwrap().ino, eve.caller());
    let fs = kernel.rooms().fs.clone();
    let look = move |fs: &Filesystem| match fs.lookup(&who, ino, OsStr::new("file")) {
        Answer::Now(reply) => reply.map(drop),
        Answer::Later(_) => panic!("no wait without a store"),
    };
    assert_eq!(look(&fs), Ok(()), "no other node has changed it, and the kernel has checked it");
    let (asked, seen) = (Arc::new(Mutex::new(Some(fs.clone()))), Arc::new(Mutex::new(Vec::new())));
    let (asks, sees) = (Arc::clone(&asked), Arc::clone(&seen));
    kernel.rooms().engine.ledger().subscribe(Box::new(move |_| {
        if let Some(fs) = asks.lock().as_ref() {
            sees.lock().push(look(fs));
        }
    }));
    kernel.expect_arrival("other", Some((b"text", ROOT.makes(0o644))), 0);
    kernel.end_call();
    assert_eq!(*seen.lock(), [Err(Errno::EACCES)]);
    assert_eq!(look(&fs), Ok(()), "only another path has changed");
    drop(asked.lock().take());
}

#[test]
fn a_call_that_waits_while_a_node_takes_over_a_checkpoint_meets_the_rights_that_come_with_it() {
    let (runtime, dir) = (runtime(), tempfile::tempdir().unwrap());
    let homes = ["store", "one", "other"].map(|name| dir.path().join(name));
    for home in &homes {
        std::fs::create_dir(home).unwrap();
    }
    let settings = |home: &std::path::Path| {
        let mut settings = node(&dir);
        settings.local.cache_dir = home.join("cache");
        settings.remote.url = Some(format!("file://{}", homes[0].display()).parse().unwrap());
        settings.remote.freshness = Duration::ZERO;
        settings
    };
    let (root, eve) = (Program::start(), Program::start_as(EVE));
    let mut one = Kernel::start(&runtime, settings(&homes[1]), false);
    put(&mut one, &root, "file", b"text");
    one.chmod(&root.caller(), "", 0o700).unwrap();
    one.drain();
    let checkpointer = one.rooms().engine.checkpointer().unwrap().clone();
    runtime.block_on(checkpointer.write()).unwrap();

    let other = Kernel::start(&runtime, settings(&homes[2]), false);
    let fs = &other.rooms().fs;
    let seen = look_up(&runtime, fs, &eve.caller(), Ino::ROOT, "file");
    assert_eq!(seen.err(), Some(Errno::EACCES));
    assert!(matches!(
        look_up(&runtime, fs, &root.caller(), Ino::ROOT, "file"),
        Ok(Lookup::Found(_))
    ));
}
