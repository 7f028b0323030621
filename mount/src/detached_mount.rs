//! A mount that is not attached anywhere yet.
//!
//! Owns making and attaching it; its descriptor distinguishes it from every other mount. Must never
//! let a program see the directory below a dead mount: files written there would never be found
//! again, and would obstruct the next mount.

use std::io;
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::path::Path;

use rustix::fs::CWD;
use rustix::mount::{
    FsMountFlags, FsOpenFlags, MountAttrFlags, MoveMountFlags, fsconfig_create, fsconfig_set_flag,
    fsconfig_set_string, fsmount, fsopen, move_mount,
};

use crate::shape::{MountShape, ROOT_MODE};
use crate::stale_mount::MountOnTop;
use crate::{device, mounts, process};

/// `MOVE_MOUNT_BENEATH`, since Linux 6.5.
const BENEATH: MoveMountFlags = MoveMountFlags::from_bits_retain(0x200);

#[derive(Debug)]
pub(crate) struct DetachedMount {
    pub(crate) device: OwnedFd,
    pub(crate) mount: OwnedFd,
}

impl DetachedMount {
    /// Makes a detached mount.
    pub(crate) fn make(shape: &MountShape<'_>) -> io::Result<Self> {
        let device = device::open()?;
        let context = fsopen("fuse", FsOpenFlags::FSOPEN_CLOEXEC)?;
        let subtype = mounts::FS_TYPE.trim_start_matches("fuse.");
        for (key, value) in [
            ("source", shape.source),
            ("subtype", subtype),
            ("fd", &device.as_raw_fd().to_string()),
            ("rootmode", ROOT_MODE),
            ("user_id", &process::effective_user().to_string()),
            ("group_id", &process::effective_group().to_string()),
        ] {
            fsconfig_set_string(&context, key, value)?;
        }
        let flags = [
            ("default_permissions", shape.default_permissions),
            ("allow_other", shape.allow_other),
            ("ro", shape.read_only),
        ];
        for (flag, _) in flags.into_iter().filter(|(_, on)| *on) {
            fsconfig_set_flag(&context, flag)?;
        }
        fsconfig_create(&context)?;
        let mut attributes = MountAttrFlags::MOUNT_ATTR_NOSUID
            | MountAttrFlags::MOUNT_ATTR_NODEV
            | MountAttrFlags::MOUNT_ATTR_NOATIME;
        if shape.read_only {
            attributes |= MountAttrFlags::MOUNT_ATTR_RDONLY;
        }
        let mount = fsmount(&context, FsMountFlags::FSMOUNT_CLOEXEC, attributes)?;
        Ok(Self { device, mount })
    }

    /// Attaches it at `mount_point`: below the dead mount there, which is then removed. An older
    /// kernel requires the dead one to be removed first, and for a moment the directory is visible.
    pub(crate) fn attach(
        &self,
        mount_point: &Path,
        dead: &mut Option<MountOnTop>,
    ) -> io::Result<()> {
        let Some(dead) = dead.take() else { return self.attach_on_top(mount_point) };
        let point = mount_point.display();
        match self.attach_under(&dead) {
            Ok(()) => {
                tracing::info!(mount_point = %point, "replaced a dead mount");
                dead.detach()
            }
            Err(error) => {
                tracing::info!(%error, mount_point = %point, "removed a dead mount");
                dead.detach()?;
                self.attach_on_top(mount_point)
            }
        }
    }

    fn attach_on_top(&self, mount_point: &Path) -> io::Result<()> {
        let how = MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH;
        Ok(move_mount(&self.mount, "", CWD, mount_point, how)?)
    }

    /// Refers to the dead mount itself: at its path there may be a live one by now.
    fn attach_under(&self, dead: &MountOnTop) -> io::Result<()> {
        let how = MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH
            | MoveMountFlags::MOVE_MOUNT_T_EMPTY_PATH
            | BENEATH;
        Ok(move_mount(&self.mount, "", dead.root(), "", how)?)
    }
}
