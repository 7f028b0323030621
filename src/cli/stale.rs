//! Mounts of other users. The kernel lets only the user of a mount ask its daemon, not even root.
//!
//! Owns the question in the name of that user, and the removal of the mount if the daemon is dead.
//! Must never hand that user anything of root: no variable, descriptor or group.

use std::io;
use std::os::fd::AsRawFd as _;
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::mount::{UnmountFlags, unmount};

use crate::clock::{sleep, within};
use crate::config::Surroundings;
use crate::control::{Mounted, Mounts};
use crate::daemon::{LOOK, LookResult};

/// How long a mount may take to answer.
const LOOK_LIMIT: Duration = Duration::from_secs(5);
const LOOK_POLL: Duration = Duration::from_millis(5);

/// Reports whether this is root, and the mount that of another user.
pub(super) fn is_of_other(around: &Surroundings, mounted: &Mounted) -> bool {
    around.uid == 0 && mounted.owner.is_some_and(|owner| owner != 0)
}

/// Looks at a mount from a process of its user; `None` if there is no answer in time.
pub(super) async fn look_as_owner(mounted: &Mounted) -> Option<LookResult> {
    let (Some(user), Some(group)) = (mounted.owner, mounted.group) else {
        return Some(LookResult::Failed);
    };
    // The running program itself, which may lie in a directory that is closed to the user.
    let mut command = Command::new("/proc/self/exe");
    command.arg0("hearthfs").arg(LOOK).arg("--").arg(&mounted.point).uid(user).gid(group);
    // The user can read the environment of its processes.
    command.env_clear().current_dir("/");
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    let Ok(mut child) = command.spawn() else { return Some(LookResult::Failed) };
    let ended = within(LOOK_LIMIT, ended(&mut child)).await;
    if ended.is_none() {
        // It is not waited for: it may hang even then.
        child.kill().ok();
    }
    Some(match ended? {
        Some(code) if code == LookResult::Alive as i32 => LookResult::Alive,
        Some(code) if code == LookResult::Dead as i32 => LookResult::Dead,
        Some(code) if code == LookResult::Gone as i32 => LookResult::Gone,
        _ => LookResult::Failed,
    })
}

async fn ended(child: &mut Child) -> Option<i32> {
    loop {
        match child.try_wait() {
            Ok(None) => sleep(LOOK_POLL).await,
            Ok(Some(status)) => return status.code(),
            Err(_) => return None,
        }
    }
}

/// Removes the mount of another user at `point` if its daemon is dead; returns whether it did.
pub(super) async fn remove(around: &Surroundings, point: &Path) -> io::Result<bool> {
    let top = || Ok::<_, io::Error>(Mounts::read().map_err(io::Error::other)?.at(point).cloned());
    let Some(found) = top()?.filter(|top| top.is_ours() && is_of_other(around, top)) else {
        return Ok(false);
    };
    let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let root = rustix::fs::open(point, flags, Mode::empty())?;
    match look_as_owner(&found).await {
        Some(LookResult::Dead) => {}
        Some(LookResult::Failed) => {
            let user = found.owner.unwrap_or_default();
            let why = format!("user {user} cannot be asked whether its daemon is alive");
            return Err(io::Error::other(why));
        }
        _ => return Ok(false),
    }
    if top()? != Some(found) {
        // Another daemon has mounted there meanwhile.
        return Ok(false);
    }
    match unmount(format!("/proc/self/fd/{}", root.as_raw_fd()), UnmountFlags::DETACH) {
        Ok(()) | Err(Errno::INVAL) => Ok(true),
        Err(error) => Err(error.into()),
    }
}
