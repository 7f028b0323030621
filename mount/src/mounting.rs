//! Attaching a FUSE device to a directory.
//!
//! Owns the order of its steps, and the check that the place is free. Must never act on a mount
//! only because it is where ours should be: another daemon may be mounting there at the same time.
//!
//! There are three ways to mount: a detached mount that is attached in a second step, mount(2) if
//! that is unsupported, and the helper for users who may not mount.

use std::ffi::CString;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use crate::detached_mount::DetachedMount;
use crate::mount_lock::MountLock;
use crate::mounts::{self, MountEntry};
use crate::shape::{MountShape, ROOT_MODE};
use crate::stale_mount::{self, MountOnTop};
use crate::{device, helper, process};

/// A mount that this process has just made.
#[derive(Debug)]
pub(crate) struct Attached {
    pub(crate) device: OwnedFd,
    pub(crate) entry: MountEntry,
}

/// Mounts at `mount_point`. Replaces a dead mount of ours; fails with `ResourceBusy` for a live one.
pub(crate) fn mount(mount_point: &Path, shape: &MountShape<'_>) -> io::Result<Attached> {
    let _turn = MountLock::take(mount_point);
    let dead = stale_mount::lowest_dead(mount_point)?;
    let attached = attach(mount_point, shape, dead)?;
    // A process that could not get the lock notices a second mount here. The upper mount goes, so
    // that one stays.
    match mounts::beneath(&attached.entry)? {
        Some(other) if other.is_hearthfs() => {
            // A mount without a server hinders no program until it is gone.
            drop(attached.device);
            stale_mount::take_away(&attached.entry)?;
            Err(stale_mount::taken(&other))
        }
        _ => Ok(attached),
    }
}

fn attach(
    mount_point: &Path,
    shape: &MountShape<'_>,
    mut dead: Option<MountOnTop>,
) -> io::Result<Attached> {
    let detached = DetachedMount::make(shape).and_then(|detached| {
        detached.attach(mount_point, &mut dead)?;
        Ok(detached)
    });
    match detached {
        Ok(DetachedMount { device, mount }) => {
            let id = mounts::id_of(&mount)?;
            let ours = mounts::all()?.into_iter().find(|entry| entry.id == id);
            let entry = ours.ok_or_else(|| {
                io::Error::other("the mount does not show in /proc/self/mountinfo")
            })?;
            Ok(Attached { device, entry })
        }
        Err(error) => {
            tracing::debug!(%error, "mounting in one step");
            dead.map_or(Ok(()), MountOnTop::detach)?;
            attach_at_once(mount_point, shape)
        }
    }
}

/// Mounts in the ways that do not report which mount they made.
fn attach_at_once(mount_point: &Path, shape: &MountShape<'_>) -> io::Result<Attached> {
    let before = mounts::at(mount_point)?;
    let device = match mount_by_kernel(mount_point, shape) {
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
            helper::mount(mount_point, shape)?
        }
        result => result?,
    };
    let mut new = mounts::at(mount_point)?;
    new.retain(|entry| entry.is_hearthfs() && !before.iter().any(|old| old.is_same(entry)));
    match <[MountEntry; 1]>::try_from(new) {
        Ok([entry]) => Ok(Attached { device, entry }),
        Err(several) => {
            // Without its device, ours is the dead one.
            drop(device);
            stale_mount::clear_stale(mount_point)?;
            Err(io::Error::new(
                io::ErrorKind::ResourceBusy,
                format!(
                    "{} mounts appeared at the same time, or disappeared at once",
                    several.len()
                ),
            ))
        }
    }
}

fn mount_by_kernel(mount_point: &Path, shape: &MountShape<'_>) -> io::Result<OwnedFd> {
    let device = device::open()?;
    let data = format!(
        "fd={},rootmode={ROOT_MODE},user_id={},group_id={}{}",
        device.as_raw_fd(),
        process::effective_user(),
        process::effective_group(),
        shape.common(),
    );
    let source = CString::new(shape.source)?;
    let target = CString::new(mount_point.as_os_str().as_bytes())?;
    let fs_type = CString::new(mounts::FS_TYPE)?;
    let data = CString::new(data)?;
    let mut flags = libc::MS_NOSUID | libc::MS_NODEV | libc::MS_NOATIME;
    if shape.read_only {
        flags |= libc::MS_RDONLY;
    }
    // SAFETY: all pointers are to NUL-terminated strings that outlive the call.
    let mounted = unsafe {
        libc::mount(source.as_ptr(), target.as_ptr(), fs_type.as_ptr(), flags, data.as_ptr().cast())
    };
    if mounted == 0 { Ok(device) } else { Err(io::Error::last_os_error()) }
}
