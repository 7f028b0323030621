//! A handle of our topmost mount at a path.
//!
//! Owns telling a dead mount from a live one, and removing exactly the mount of the handle. Must
//! never use the path for that: another daemon may have mounted there meanwhile.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd as _, BorrowedFd};
use std::path::Path;
use std::sync::mpsc;
use std::time::Duration;

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::mount::UnmountFlags;

use crate::helper;
use crate::mount_lock::MountLock;
use crate::mounts::{self, MountEntry};

/// How long a mount may take to answer before it counts as alive.
const ANSWER_LIMIT: Duration = Duration::from_secs(5);
/// The most mounts that are removed from one place: crashes may have stacked several.
const PILE_MAX: usize = 16;

/// How many times, and at what interval, a covered mount is checked again.
const COVERED_POLLS: u32 = 400;
const COVERED_POLL: Duration = Duration::from_millis(5);

#[derive(Debug)]
pub(crate) struct MountOnTop {
    root: File,
    entry: MountEntry,
}

impl MountOnTop {
    /// Opens the mount at `point` (free of links) if it is one of ours. Accesses no other file system.
    fn at(point: &Path) -> io::Result<Option<Self>> {
        // Nothing else may be accessed: an automount would wait for the mount that is about to be made.
        if !mounts::top_at(point)?.is_some_and(|top| top.is_hearthfs()) {
            return Ok(None);
        }
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let root = File::from(rustix::fs::open(point, flags, Mode::empty())?);
        let id = mounts::id_of(&root)?;
        let held = mounts::at(point)?.into_iter().find(|entry| entry.id == id);
        Ok(held.filter(MountEntry::is_hearthfs).map(|entry| Self { root, entry }))
    }

    pub(crate) fn root(&self) -> BorrowedFd<'_> {
        self.root.as_fd()
    }

    /// Reports whether it is no longer served. A thread that waits for a mount that hangs is left
    /// behind, because nothing can end it.
    fn is_dead(&self) -> io::Result<bool> {
        let root = self.root.try_clone()?;
        let (tell, told) = mpsc::sync_channel(1);
        let ask = move || {
            // Not `stat`: the kernel answers that from its cache, even after the daemon is gone.
            let answer = rustix::fs::fstatfs(&root).map(drop);
            // Otherwise it would keep the mount busy for a moment after the answer.
            drop(root);
            // The receiver is gone only if the limit has passed.
            tell.send(answer).ok();
        };
        let thread = std::thread::Builder::new().name("hearthfs-ask".to_owned());
        #[expect(
            clippy::disallowed_methods,
            reason = "this crate has no seam for threads; the call may never return"
        )]
        drop(thread.spawn(ask)?);
        let answer = told.recv_timeout(ANSWER_LIMIT);
        Ok(matches!(answer, Ok(Err(Errno::NOTCONN | Errno::CONNABORTED))))
    }

    /// Removes it; its users keep their open files. Succeeds if it is already gone.
    pub(crate) fn detach(self) -> io::Result<()> {
        let link = format!("/proc/self/fd/{}", self.root.as_raw_fd());
        match rustix::mount::unmount(link, UnmountFlags::DETACH) {
            Ok(()) | Err(Errno::INVAL) => Ok(()),
            // Uses the path, because the helper accepts nothing else.
            Err(Errno::PERM) => helper::unmount(&self.entry.mount_point, true),
            Err(error) => Err(error.into()),
        }
    }
}

/// Removes all dead mounts at `point` except the lowest, and returns that one. Fails with
/// `ResourceBusy` for a live one.
pub(crate) fn lowest_dead(point: &Path) -> io::Result<Option<MountOnTop>> {
    for _ in 0..PILE_MAX {
        let Some(top) = MountOnTop::at(point)? else { return Ok(None) };
        if !top.is_dead()? {
            return Err(taken(&top.entry));
        }
        match mounts::beneath(&top.entry) {
            Ok(Some(below)) if below.is_hearthfs() => top.detach()?,
            Ok(_) => return Ok(Some(top)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(error),
        }
    }
    Err(io::Error::other(format!("more than {PILE_MAX} mounts are piled up")))
}

/// Removes exactly this mount, once nothing lies on it any more.
pub(crate) fn take_away(mount: &MountEntry) -> io::Result<()> {
    for _ in 0..COVERED_POLLS {
        match MountOnTop::at(&mount.mount_point)? {
            Some(top) if top.entry.is_same(mount) => return top.detach(),
            _ if !mounts::at(&mount.mount_point)?.iter().any(|here| here.is_same(mount)) => {
                return Ok(());
            }
            _ => {
                #[expect(
                    clippy::disallowed_methods,
                    reason = "this crate has no seam for time; the wait has a limit"
                )]
                std::thread::sleep(COVERED_POLL);
            }
        }
    }
    Err(io::Error::other("another mount is on top of the one to remove"))
}

/// Removes what dead daemons left at a mount point. Returns whether there was anything.
///
/// # Errors
///
/// When the mount point cannot be examined, a dead mount cannot be detached, or more are stacked
/// than one call removes.
pub fn clear_stale(point: &Path) -> io::Result<bool> {
    let point = mounts::resolve(point)?;
    let _turn = MountLock::take(&point);
    for taken in 0..PILE_MAX {
        match MountOnTop::at(&point)? {
            Some(top) if top.is_dead()? => top.detach()?,
            _ => return Ok(taken > 0),
        }
    }
    Err(io::Error::other(format!("more than {PILE_MAX} mounts are piled up")))
}

/// Reports whether our mount at exactly this path is no longer served.
///
/// # Errors
///
/// When the mount point cannot be examined.
pub fn is_stale(point: &Path) -> io::Result<bool> {
    MountOnTop::at(&mounts::resolve(point)?)?.map_or(Ok(false), |top| top.is_dead())
}

/// Returns the error that the place is taken.
pub(crate) fn taken(other: &MountEntry) -> io::Error {
    let owner = other.owner.map_or_else(String::new, |user| format!(" of user {user}"));
    let source = other.source.to_string_lossy();
    io::Error::new(
        io::ErrorKind::ResourceBusy,
        format!("another hearthfs daemon{owner} has mounted {source} there"),
    )
}
