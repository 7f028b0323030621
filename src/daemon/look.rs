//! Looking at a mount through the kernel, from a process of its own.
//!
//! Owns both ends of that process. Must never let a thread of the daemon wait for the daemon's own
//! answer: a request that was taken and is never answered cannot be interrupted, and with such a thread
//! the daemon could not be ended, not even by SIGKILL. A process of its own gets its answer, an error,
//! when the daemon is gone.

use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Command, ExitStatus, Stdio};

use tokio::sync::{OwnedMutexGuard, oneshot};

use super::notify::MANAGER_VARIABLES;
use crate::control::{Mounted, Mounts};
use crate::error::{Error, Result};
use crate::task;

/// The command by which this program looks at a mount.
pub const LOOK: &str = "look-at";

/// What a look found.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Seen {
    /// The mount answers.
    Alive = 0,
    /// It answers with an error, or the look failed.
    Dead = 1,
    /// No mount of ours is there any more.
    Gone = 3,
}

/// Looks at a mount and waits for its answer, however long that takes; for the process of its own.
pub fn look_at(point: &Path) -> Seen {
    let Ok(mounts) = Mounts::read() else { return Seen::Dead };
    if !mounts.at(point).is_some_and(Mounted::is_ours) {
        return Seen::Gone;
    }
    // Not `stat`: that the kernel may answer from memory, even for a daemon that is gone.
    if rustix::fs::statvfs(point).is_ok() { Seen::Alive } else { Seen::Dead }
}

/// A look that is under way.
#[derive(Debug)]
pub(super) struct Look(oneshot::Receiver<std::io::Result<ExitStatus>>);

impl Look {
    /// Starts one, which holds `held` until its process has ended.
    pub(super) fn start(point: &Path, held: OwnedMutexGuard<()>) -> Result<Self> {
        let failed = |error| Error::io("start a process that looks at the mount", error);
        // The program itself, even if its file was replaced by a newer one meanwhile.
        let mut command = Command::new("/proc/self/exe");
        command.arg0("hearthfs").arg(LOOK).arg("--").arg(point).current_dir("/");
        command.stdin(Stdio::null()).stdout(Stdio::null());
        for variable in MANAGER_VARIABLES {
            command.env_remove(variable);
        }
        let mut child = command.spawn().map_err(failed)?;
        let (tell, told) = oneshot::channel();
        let wait = move || {
            let ended = child.wait();
            drop(held);
            // Perhaps it is not waited for any more.
            tell.send(ended).ok();
        };
        task::thread("look", wait).map_err(failed)?;
        Ok(Self(told))
    }

    /// Returns what it found; may be called again if the future is dropped before.
    pub(super) async fn seen(&mut self) -> Seen {
        match (&mut self.0).await {
            Ok(Ok(status)) if status.code() == Some(Seen::Alive as i32) => Seen::Alive,
            Ok(Ok(status)) if status.code() == Some(Seen::Gone as i32) => Seen::Gone,
            _ => Seen::Dead,
        }
    }
}
