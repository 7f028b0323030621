//! Allows one daemon at a time to change a mount point.
//!
//! Owns the lock that all daemons of one user share when they mount at one place, whatever their
//! cache and runtime directories: a file named after the place, in a directory that belongs to that
//! user alone. Must never lie where another user can open it: opening is enough to hold the lock,
//! and a process that holds it delays an unmount. Must never be the only thing that keeps two
//! daemons apart: daemons of two users do not share it, and there may be no such directory.

use std::fs::File;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::fs::{AtFlags, FlockOperation, Mode, OFlags, flock};
use rustix::io::Errno;

use crate::process;

/// The longest wait for others: mounting takes milliseconds, unless a mount does not answer.
const LIMIT: Duration = Duration::from_secs(15);
const POLL: Duration = Duration::from_millis(5);

/// Held while the mounts at a place are examined and changed.
#[derive(Debug)]
pub(crate) struct MountLock {
    _held: Option<HeldLock>,
}

/// A lock, which is held as long as the file is open.
#[derive(Debug)]
struct HeldLock {
    _file: File,
    dir: OwnedFd,
    name: String,
}

impl MountLock {
    /// Waits for the lock of `mount_point` (free of links), but continues without it if it is unavailable.
    pub(crate) fn take(mount_point: &Path) -> Self {
        let user = process::effective_user();
        let dir = directories(user).iter().find_map(|dir| open_directory(dir, user).ok());
        let held = dir.and_then(|dir| HeldLock::wait(dir, name_of(mount_point)));
        if held.is_none() {
            tracing::warn!(mount_point = %mount_point.display(), "mounting without a lock");
        }
        Self { _held: held }
    }
}

impl HeldLock {
    fn wait(dir: OwnedFd, name: String) -> Option<Self> {
        let mut file = open_file(&dir, &name).ok()?;
        for _ in 0..LIMIT.as_millis() / POLL.as_millis() {
            match flock(&file, FlockOperation::NonBlockingLockExclusive) {
                Ok(()) if file.metadata().is_ok_and(|about| about.nlink() > 0) => {
                    return Some(Self { _file: file, dir, name });
                }
                // The process that held it has removed the file.
                Ok(()) => file = open_file(&dir, &name).ok()?,
                Err(Errno::WOULDBLOCK | Errno::INTR) => {
                    #[expect(
                        clippy::disallowed_methods,
                        reason = "this crate has no seam for time; the wait has a limit"
                    )]
                    std::thread::sleep(POLL);
                }
                Err(_) => return None,
            }
        }
        None
    }
}

impl Drop for HeldLock {
    fn drop(&mut self) {
        // While it is locked, so that no process removes the file of another.
        let gone = rustix::fs::unlinkat(&self.dir, self.name.as_str(), AtFlags::empty());
        if let Err(error) = gone {
            tracing::debug!(%error, "the lock file of a mount point is not removed");
        }
    }
}

/// Returns the directories of a user's locks, the first choice first. They depend only on the user,
/// because the environment may differ between two daemons. Not `/run/hearthfs`, which a service
/// manager may remove with everything in it while locks are held.
fn directories(user: u32) -> [PathBuf; 2] {
    let first = match user {
        0 => "/run/hearthfs-turns".to_owned(),
        _ => format!("/run/user/{user}/hearthfs-turns"),
    };
    [first.into(), format!("/tmp/hearthfs-turns-{user}").into()]
}

/// Returns the name of the lock of a place. Two places with the same name only wait for each other.
/// The number must be the same in all versions (FNV-1a); a path could be too long for a name.
fn name_of(mount_point: &Path) -> String {
    let add = |sum: u64, byte: &u8| (sum ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3);
    let bytes = mount_point.as_os_str().as_bytes();
    format!("{:016x}", bytes.iter().fold(0xcbf2_9ce4_8422_2325, add))
}

/// Opens a directory, and makes it if necessary. Fails if others could write to it.
fn open_directory(dir: &Path, user: u32) -> rustix::io::Result<OwnedFd> {
    match rustix::fs::mkdir(dir, Mode::RWXU) {
        Ok(()) | Err(Errno::EXIST) => {}
        Err(error) => return Err(error),
    }
    let flags = OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let held = rustix::fs::open(dir, flags, Mode::empty())?;
    let about = rustix::fs::fstat(&held)?;
    if about.st_uid != user || about.st_mode & 0o022 != 0 {
        return Err(Errno::PERM);
    }
    Ok(held)
}

fn open_file(dir: &OwnedFd, name: &str) -> rustix::io::Result<File> {
    let flags = OFlags::RDWR | OFlags::CREATE | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    Ok(rustix::fs::openat(dir, name, flags, Mode::RUSR | Mode::WUSR)?.into())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt as _, symlink};
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    #[test]
    fn a_name_is_the_same_in_all_versions() {
        assert_eq!(name_of(Path::new("")), "cbf29ce484222325");
        assert_eq!(name_of(Path::new("a")), "af63dc4c8601ec8c");
        assert_ne!(name_of(Path::new("/mnt/a")), name_of(Path::new("/mnt/b")));
    }

    #[test]
    fn one_at_a_time_and_nothing_stays() {
        let base = tempfile::tempdir().unwrap();
        let (dir, user) = (base.path().join("turns"), process::effective_user());
        let inside = AtomicUsize::new(0);
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..25 {
                        let held =
                            HeldLock::wait(open_directory(&dir, user).unwrap(), "x".to_owned());
                        assert_eq!(inside.fetch_add(1, Ordering::SeqCst), 0);
                        let mode = std::fs::metadata(dir.join("x")).unwrap().mode();
                        assert_eq!(mode & 0o777, 0o600);
                        inside.fetch_sub(1, Ordering::SeqCst);
                        drop(held.unwrap());
                    }
                });
            }
        });
        assert_eq!(std::fs::read_dir(&dir).unwrap().count(), 0);
    }

    #[test]
    fn only_a_private_directory_will_do() {
        let base = tempfile::tempdir().unwrap();
        let (dir, user) = (base.path().join("turns"), process::effective_user());
        open_directory(&dir, user).unwrap();
        open_directory(&dir, user).unwrap();
        assert_eq!(
            open_directory(&dir, user + 1).unwrap_err(),
            Errno::PERM,
            "another user's directory"
        );
        let link = base.path().join("link");
        symlink(&dir, &link).unwrap();
        assert!(open_directory(&link, user).is_err(), "a link");
        std::fs::set_permissions(&dir, std::fs::Permissions::from_mode(0o777)).unwrap();
        assert_eq!(open_directory(&dir, user).unwrap_err(), Errno::PERM, "open to others");
    }
}
