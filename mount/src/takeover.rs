//! Taking the place of a mount that nobody serves any more.
//!
//! Owns the order of it: the new mount first, then away with the dead one. Must never let a program see
//! the directory below: it would write there what nobody finds again, and what hinders the next mount.

use std::io;
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::path::Path;

use rustix::fs::CWD;
use rustix::mount::{
    FsMountFlags, FsOpenFlags, MountAttrFlags, MoveMountFlags, fsconfig_create, fsconfig_set_flag,
    fsconfig_set_string, fsmount, fsopen, move_mount,
};

use crate::mounting::{self, Look};
use crate::{mounts, process};

/// `MOVE_MOUNT_BENEATH`, since Linux 6.5.
const BENEATH: MoveMountFlags = MoveMountFlags::from_bits_retain(0x200);
/// The most mounts that are taken away from one place: crashes may have piled some up.
const PILE_MAX: usize = 16;

/// Puts a new mount under the dead one at `mount_point` and takes that away; `None` when there is none.
/// On an older kernel the dead one has to go first, and for a moment the directory shows.
pub(crate) fn take_over(mount_point: &Path, look: &Look<'_>) -> io::Result<Option<OwnedFd>> {
    let dead = dead_at(mount_point)?;
    if dead == 0 {
        return Ok(None);
    }
    for _ in 1..dead {
        mounts::clear_stale(mount_point)?;
    }
    let beneath = mount_beneath(mount_point, look);
    mounts::clear_stale(mount_point)?;
    match beneath {
        Ok(device) => {
            tracing::info!(mount_point = %mount_point.display(), "took the place of a dead mount");
            Ok(Some(device))
        }
        Err(error) => {
            let point = mount_point.display();
            tracing::info!(%error, mount_point = %point, "took away a dead mount");
            Ok(None)
        }
    }
}

/// Counts the mounts of ours at `mount_point` if the uppermost is dead: then so are those below it.
fn dead_at(mount_point: &Path) -> io::Result<usize> {
    let here: Vec<_> =
        mounts::all()?.into_iter().filter(|entry| entry.mount_point == mount_point).collect();
    match here.last() {
        Some(top) if top.is_hearthfs() && top.is_stale() => {
            let ours = here.iter().rev().take_while(|entry| entry.is_hearthfs()).count();
            Ok(ours.min(PILE_MAX))
        }
        _ => Ok(0),
    }
}

fn mount_beneath(mount_point: &Path, look: &Look<'_>) -> io::Result<OwnedFd> {
    let device = mounting::open_device()?;
    let context = fsopen("fuse", FsOpenFlags::FSOPEN_CLOEXEC)?;
    let subtype = mounts::FS_TYPE.trim_start_matches("fuse.");
    for (key, value) in [
        ("source", look.source),
        ("subtype", subtype),
        ("fd", &device.as_raw_fd().to_string()),
        ("rootmode", mounting::ROOT_MODE),
        ("user_id", &process::effective_user().to_string()),
        ("group_id", &process::effective_group().to_string()),
    ] {
        fsconfig_set_string(&context, key, value)?;
    }
    let flags = [
        ("default_permissions", look.default_permissions),
        ("allow_other", look.allow_other),
        ("ro", look.read_only),
    ];
    for (flag, _) in flags.into_iter().filter(|(_, on)| *on) {
        fsconfig_set_flag(&context, flag)?;
    }
    fsconfig_create(&context)?;
    let mut attributes = MountAttrFlags::MOUNT_ATTR_NOSUID
        | MountAttrFlags::MOUNT_ATTR_NODEV
        | MountAttrFlags::MOUNT_ATTR_NOATIME;
    if look.read_only {
        attributes |= MountAttrFlags::MOUNT_ATTR_RDONLY;
    }
    let mount = fsmount(&context, FsMountFlags::FSMOUNT_CLOEXEC, attributes)?;
    let how = MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH | BENEATH;
    move_mount(&mount, "", CWD, mount_point, how)?;
    Ok(device)
}
