//! Shared parts of the tests on real mounts.
#![allow(dead_code, reason = "each test program uses only some items")]

pub(crate) mod shelf;

use std::ffi::CString;
use std::fs::File;
use std::io::Write as _;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use hearthfs_mount::{MountOptions, Session, Wakes};
use shelf::{Manners, Shelf, Way};

/// A mounted [`Shelf`] in a directory of its own, unmounted at the end.
pub(crate) struct Mounted {
    pub(crate) shelf: Arc<Shelf>,
    pub(crate) session: Session,
    pub(crate) runtime: tokio::runtime::Runtime,
    pub(crate) dir: tempfile::TempDir,
    over: Arc<AtomicBool>,
}

impl Mounted {
    pub(crate) fn new(manners: Manners) -> Self {
        Self::with(manners, |_| ())
    }

    pub(crate) fn with(manners: Manners, change: impl FnOnce(&mut MountOptions)) -> Self {
        let dir = tempfile::Builder::new().prefix("hearthfs mount,").tempdir().unwrap();
        let (point, store) = (dir.path().join("mnt"), dir.path().join("store"));
        std::fs::create_dir(&point).unwrap();
        std::fs::create_dir(&store).unwrap();
        let mut options = MountOptions {
            mount_point: point,
            fs_name: "shelf,with \\comma".to_owned(),
            read_only: false,
            allow_other: true,
            user_xattrs: true,
            wakes: Wakes::Quick,
            threads: 2,
            want_flock: true,
            probe_file: (manners.way == Way::Passthrough)
                .then(|| tempfile::tempfile_in(&store).unwrap()),
        };
        change(&mut options);
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()
            .unwrap();
        let way = manners.way;
        let shelf = Shelf::new(&store, manners);
        let session =
            Session::mount(Arc::clone(&shelf) as _, options, runtime.handle().clone()).unwrap();
        assert_eq!(shelf.abilities(), Some(session.abilities()));
        let over = Arc::new(AtomicBool::new(false));
        watch(session.mount_point().to_owned(), Arc::clone(&over));
        if way == Way::Passthrough {
            assert_eq!(session.abilities().passthrough_refusal, None);
        }
        Self { shelf, session, runtime, dir, over }
    }

    pub(crate) fn path(&self, name: impl AsRef<Path>) -> PathBuf {
        self.session.mount_point().join(name)
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        self.over.store(true, Ordering::Relaxed);
        drop(self.session.unmount(true));
        if !std::thread::panicking() {
            self.session.wait().unwrap();
            assert_eq!(self.session.panics(), 0);
        }
    }
}

/// A request that is never answered would hang the test for ever, even after a kill. So a mount
/// that lives too long is aborted, and the test fails.
fn watch(mount_point: PathBuf, over: Arc<AtomicBool>) {
    const LIFE_MAX: Duration = Duration::from_mins(1);
    #[expect(clippy::disallowed_methods, reason = "the watchdog runs beside the tests")]
    std::thread::spawn(move || {
        let start = now();
        while !over.load(Ordering::Relaxed) {
            if start.elapsed() > LIFE_MAX {
                eprintln!("{} ran too long: aborted", mount_point.display());
                let path = CString::new(mount_point.as_os_str().as_bytes()).unwrap();
                // SAFETY: a NUL-terminated path that outlives the call.
                unsafe { libc::umount2(path.as_ptr(), libc::MNT_FORCE) };
                return;
            }
            nap(Duration::from_millis(50));
        }
    });
}

/// Reports whether a test cannot run here, and prints the reason.
pub(crate) fn skipped(test: &str) -> bool {
    let reason = match File::options().read(true).write(true).open("/dev/fuse") {
        Err(error) => format!("/dev/fuse: {error}"),
        Ok(_) if hearthfs_mount::process::effective_user() != 0 => "needs root".to_owned(),
        Ok(_) => return false,
    };
    say_skipped(test, &reason);
    true
}

/// Prints in one piece, bypassing the capture of output, that a test could not run.
pub(crate) fn say_skipped(test: &str, reason: &str) {
    let line = format!("SKIPPED {test}: {reason}\n");
    drop(std::io::stderr().lock().write_all(line.as_bytes()));
}

/// Runs a test once for each kind of I/O.
pub(crate) fn each_way(test: &str, run: impl Fn(Way)) {
    if skipped(test) {
        return;
    }
    for way in [Way::Passthrough, Way::Cached, Way::Direct] {
        eprintln!("{test} {way:?}");
        run(way);
    }
}

pub(crate) fn within(limit: Duration, what: &str, mut done: impl FnMut() -> bool) {
    let start = now();
    while !done() {
        assert!(start.elapsed() < limit, "{what} took too long");
        nap(Duration::from_millis(5));
    }
}

/// Unmounts a mount that is no longer used. A process that another test is starting holds copies of
/// all descriptors until it executes its program, so the mount can be busy for a moment.
pub(crate) fn unmount(session: &Session) {
    within(Duration::from_secs(10), "unmounting", || match session.unmount(false) {
        Ok(()) => true,
        Err(error) => {
            assert_eq!(error.kind(), std::io::ErrorKind::ResourceBusy, "{error}");
            false
        }
    });
}

#[expect(clippy::disallowed_methods, reason = "the kernel uses real time")]
pub(crate) fn now() -> Instant {
    Instant::now()
}

#[expect(clippy::disallowed_methods, reason = "the kernel uses real time")]
pub(crate) fn nap(time: Duration) {
    std::thread::sleep(time);
}
