//! How many requests the kernel sends for the calls of programs, the main factor of speed.
//!
//! Counts the calls of the `Vfs`. The request for `security.capability`, one before the first write
//! of an inode, is answered before it reaches the `Vfs`; the session's own counts show it.
#![expect(
    clippy::unwrap_used,
    clippy::print_stderr,
    reason = "a failed `unwrap` or `expect` fails the test"
)]

mod common;

use std::fs::{self, File, OpenOptions};
use std::io::{Read, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::PermissionsExt;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use common::shelf::{Manners, Way};
use common::{Mounted, skipped};

/// Runs `act` and returns the requests that it caused.
fn requests(m: &Mounted, act: impl FnOnce()) -> String {
    common::nap(Duration::from_millis(20));
    drop(m.shelf.take_trace());
    act();
    m.shelf.take_trace().join(" ")
}

fn mounted(way: Way, allow_other: bool) -> Mounted {
    let m = Mounted::with(Manners::new(way), |options| options.allow_other = allow_other);
    // The root's own attributes are requested once.
    fs::metadata(m.path("")).unwrap();
    m
}

/// Lets only one test run at a time: a program that another test starts briefly inherits what is
/// open here, and releases it with a FLUSH.
fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

#[test]
fn a_new_file() {
    if skipped("a_new_file") {
        return;
    }
    let _alone = alone();
    for (way, wanted) in [
        (Way::Passthrough, "lookup create flush"),
        (Way::Cached, "lookup create write flush"),
        (Way::Direct, "lookup create write flush"),
    ] {
        for (allow_other, again) in [(false, ""), (true, "getattr ")] {
            let m = mounted(way, allow_other);
            for round in 0..3 {
                let path = m.path(format!("f{round}"));
                let seen = requests(&m, || {
                    let options =
                        OpenOptions::new().write(true).create(true).truncate(true).clone();
                    options.open(&path).unwrap().write_all(&[1; 8192]).unwrap();
                });
                // After the names of a directory have changed, the kernel requests its mode again
                // before the next step through it, if it checks modes.
                let again = if round == 0 { "" } else { again };
                assert_eq!(seen, format!("{again}{wanted}"), "{way:?} {allow_other}");
            }
        }
    }
}

#[test]
fn further_writes() {
    if skipped("further_writes") {
        return;
    }
    let _alone = alone();
    for (way, wanted) in [(Way::Passthrough, 0), (Way::Cached, 100), (Way::Direct, 100)] {
        let m = mounted(way, false);
        let mut file = File::create(m.path("f")).unwrap();
        file.write_all(b"first").unwrap();
        let seen = requests(&m, || (0..100).for_each(|_| file.write_all(b"more").unwrap()));
        assert_eq!(seen.split_whitespace().count(), wanted, "{way:?} {seen}");
    }
}

/// One request for `security.capability` for each new file that is written, unless extended attributes are off.
#[test]
fn questions_for_capabilities() {
    if skipped("questions_for_capabilities") {
        return;
    }
    let _alone = alone();
    for (way, user_xattrs, wanted) in [
        (Way::Passthrough, true, 10),
        (Way::Cached, true, 10),
        (Way::Direct, true, 0),
        (Way::Passthrough, false, 1),
    ] {
        let m = Mounted::with(Manners::new(way), |options| options.user_xattrs = user_xattrs);
        for round in 0..10 {
            let mut file = File::create(m.path(format!("f{round}"))).unwrap();
            (0..10).for_each(|_| file.write_all(b"some").unwrap());
        }
        let requests = m.session.requests();
        let asked = requests.iter().find(|(name, _)| *name == "getxattr").map_or(0, |(_, n)| *n);
        assert_eq!(asked, wanted, "{way:?} {user_xattrs} {requests:?}");
    }
}

#[test]
fn a_known_file() {
    if skipped("a_known_file") {
        return;
    }
    let _alone = alone();
    for (way, wanted, stat) in [
        (Way::Passthrough, "open", "getattr"),
        (Way::Cached, "open", ""),
        (Way::Direct, "open read read", "getattr"),
    ] {
        for allow_other in [false, true] {
            let m = mounted(way, allow_other);
            let path = m.path("f");
            fs::write(&path, [1; 8192]).unwrap();
            drop(fs::read(&path).unwrap());
            fs::metadata(m.path("")).unwrap();
            let seen = requests(&m, || {
                let (mut file, mut body) = (File::open(&path).unwrap(), [0; 10_000]);
                assert_eq!(file.read(&mut body).unwrap(), 8192);
                assert_eq!(file.read(&mut body).unwrap(), 0);
            });
            assert_eq!(seen, wanted, "{way:?}");
            // A read may have changed the access time.
            let seen = requests(&m, || assert!(fs::metadata(&path).unwrap().is_file()));
            assert_eq!(seen, stat, "{way:?}");
            let seen = requests(&m, || assert!(fs::metadata(&path).unwrap().is_file()));
            assert_eq!(seen, "", "{way:?}");
        }
    }
}

#[test]
fn a_missing_name() {
    if skipped("a_missing_name") {
        return;
    }
    let _alone = alone();
    let m = mounted(Way::Passthrough, true);
    let path = m.path("f");
    let seen = requests(&m, || assert!(!path.exists()));
    assert_eq!(seen, "lookup");
    let seen = requests(&m, || {
        for _ in 0..10 {
            assert!(!path.exists());
            File::open(&path).unwrap_err();
        }
    });
    assert_eq!(seen, "");

    let manners = Manners { missing_ttl: Duration::ZERO, ..Manners::new(Way::Passthrough) };
    let m = Mounted::new(manners);
    fs::metadata(m.path("")).unwrap();
    let seen = requests(&m, || (0..5).for_each(|_| assert!(!m.path("f").exists())));
    assert_eq!(seen, "lookup lookup lookup lookup lookup");

    // A short lifetime ends.
    let ttl = Duration::from_millis(300);
    let m = Mounted::new(Manners { missing_ttl: ttl, ..Manners::new(Way::Passthrough) });
    fs::metadata(m.path("")).unwrap();
    assert!(!m.path("f").exists());
    m.shelf.create_behind("f");
    assert!(!m.path("f").exists());
    common::nap(ttl + Duration::from_millis(50));
    assert!(m.path("f").exists());
}

#[test]
fn a_temporary_that_is_renamed() {
    if skipped("a_temporary_that_is_renamed") {
        return;
    }
    let _alone = alone();
    let m = mounted(Way::Passthrough, false);
    let seen = requests(&m, || {
        fs::write(m.path("tmp"), [1; 8192]).unwrap();
        fs::rename(m.path("tmp"), m.path("final")).unwrap();
    });
    assert_eq!(seen, "lookup create flush lookup rename");
}

/// If the kernel does not check modes, files that no user may run are still refused.
#[test]
fn root_alone_may_all_but_run_what_no_user_may() {
    if skipped("root_alone_may_all_but_run_what_no_user_may") {
        return;
    }
    let _alone = alone();
    for allow_other in [false, true] {
        let m = mounted(Way::Passthrough, allow_other);
        fs::write(m.path("script"), "#!/bin/sh\nexit 7\n").unwrap();
        let c = std::ffi::CString::new(m.path("script").as_os_str().as_bytes()).unwrap();
        // SAFETY: a NUL-terminated path that outlives the call.
        let may = |mask| unsafe { libc::access(c.as_ptr(), mask) } == 0;
        assert!(may(libc::F_OK) && may(libc::R_OK | libc::W_OK) && !may(libc::X_OK));
        let run = || std::process::Command::new(m.path("script")).status();
        assert_eq!(run().unwrap_err().raw_os_error(), Some(libc::EACCES));
        fs::set_permissions(m.path("script"), fs::Permissions::from_mode(0o755)).unwrap();
        assert!(may(libc::X_OK));
        assert_eq!(run().unwrap().code(), Some(7));
        std::env::set_current_dir(m.path("")).unwrap();
        std::env::set_current_dir("/").unwrap();
    }
}
