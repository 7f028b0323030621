//! Several daemons that mount at one place at the same time.
#![expect(
    clippy::unwrap_used,
    clippy::print_stderr,
    reason = "a failed `unwrap` or `expect` fails the test"
)]

mod common;

use std::ffi::CString;
use std::fs::{self, File};
use std::io;
use std::os::fd::AsRawFd as _;
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;
use std::sync::Barrier;

use common::shelf::{Manners, Shelf, Way};
use common::skipped;
use hearthfs_mount::{MountOptions, Session, Wakes, is_stale, mounts};

const ROUNDS: usize = 15;
const RIVALS: usize = 3;

fn options(point: &Path, name: &str) -> MountOptions {
    MountOptions {
        mount_point: point.to_owned(),
        fs_name: name.to_owned(),
        read_only: false,
        allow_other: false,
        user_xattrs: true,
        wakes: Wakes::Quick,
        threads: 1,
        want_flock: false,
        probe_file: None,
    }
}

/// Leaves a mount whose device is closed.
fn leave_dead(point: &Path) {
    let device = File::options().read(true).write(true).open("/dev/fuse").unwrap();
    let text = |bytes: &[u8]| CString::new(bytes).unwrap();
    let data = format!("fd={},rootmode=40755,user_id=0,group_id=0", device.as_raw_fd());
    let (point, data) = (text(point.as_os_str().as_bytes()), text(data.as_bytes()));
    let (source, kind) = (text(b"dead"), text(mounts::FS_TYPE.as_bytes()));
    // SAFETY: all pointers are to NUL-terminated strings that outlive the call.
    let mounted = unsafe {
        libc::mount(source.as_ptr(), point.as_ptr(), kind.as_ptr(), 0, data.as_ptr().cast())
    };
    assert_eq!(mounted, 0, "{}", io::Error::last_os_error());
}

fn count_at(point: &Path) -> usize {
    mounts::all().unwrap().iter().filter(|entry| entry.mount_point == point).count()
}

/// Mounts with all at once, and returns the sessions that succeeded and the errors of the others.
fn race(dir: &Path, runtime: &tokio::runtime::Runtime) -> (Vec<Session>, Vec<io::Error>) {
    let gate = Barrier::new(RIVALS);
    let mut ended = Vec::new();
    std::thread::scope(|scope| {
        let rivals: Vec<_> = (0..RIVALS)
            .map(|rival| {
                let gate = &gate;
                scope.spawn(move || {
                    let store = dir.join(format!("store{rival}"));
                    fs::create_dir_all(&store).unwrap();
                    let shelf = Shelf::new(&store, Manners::new(Way::Direct));
                    let options = options(&dir.join("mnt"), &format!("rival{rival}"));
                    gate.wait();
                    Session::mount(shelf, options, runtime.handle().clone())
                })
            })
            .collect();
        ended.extend(rivals.into_iter().map(|rival| rival.join().unwrap()));
    });
    let (mut won, mut lost) = (Vec::new(), Vec::new());
    for end in ended {
        match end {
            Ok(session) => won.push(session),
            Err(error) => lost.push(error),
        }
    }
    (won, lost)
}

/// Runs rounds of rivals at a place with so many dead mounts.
fn one_wins(dead: usize) {
    let dir = tempfile::tempdir().unwrap();
    let point = dir.path().canonicalize().unwrap().join("mnt");
    fs::create_dir(&point).unwrap();
    let runtime = tokio::runtime::Runtime::new().unwrap();
    for round in 0..ROUNDS {
        for _ in 0..dead {
            leave_dead(&point);
        }
        assert_eq!(is_stale(&point).unwrap(), dead > 0);
        let (won, lost) = race(dir.path(), &runtime);
        assert_eq!(won.len(), 1, "round {round}: {lost:?}");
        assert_eq!(count_at(&point), 1, "round {round}");
        let top = mounts::mounted_at(&point).unwrap().unwrap();
        for error in lost {
            assert_eq!(error.kind(), io::ErrorKind::ResourceBusy, "{error}");
            let said = error.to_string();
            let named = said.contains("user 0") && said.contains(top.source.to_str().unwrap());
            assert!(named, "round {round}: {said}");
        }
        fs::write(point.join("f"), "served").unwrap();
        assert_eq!(fs::read(point.join("f")).unwrap(), b"served");
        for session in won {
            common::unmount(&session);
            session.wait().unwrap();
        }
        assert_eq!(count_at(&point), 0, "round {round}");
        assert_eq!(fs::read_dir(&point).unwrap().count(), 0, "round {round}");
    }
}

#[test]
fn one_of_many_gets_a_free_place() {
    if !skipped("one_of_many_gets_a_free_place") {
        one_wins(0);
    }
}

#[test]
fn one_of_many_gets_the_place_of_a_dead_mount() {
    if !skipped("one_of_many_gets_the_place_of_a_dead_mount") {
        one_wins(1);
        one_wins(3);
    }
}

#[test]
fn a_live_mount_stays_alone() {
    if skipped("a_live_mount_stays_alone") {
        return;
    }
    let m = common::Mounted::new(Manners::new(Way::Direct));
    let point = m.session.mount_point();
    fs::write(m.path("f"), "here").unwrap();
    let (won, lost) = race(m.dir.path(), &m.runtime);
    assert!(won.is_empty());
    assert!(lost.iter().all(|error| error.to_string().contains("shelf,with")), "{lost:?}");
    assert_eq!(count_at(point), 1);
    assert_eq!(fs::read(m.path("f")).unwrap(), b"here");
}
