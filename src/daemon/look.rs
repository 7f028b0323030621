//! Looks at a mount through the kernel, from a separate process.
//!
//! Owns both ends of that process. Must never look from the daemon itself, because the look depends
//! on the daemon's answer.

use std::path::Path;

use rustix::io::Errno;
use tokio::sync::OwnedMutexGuard;

use super::outsider::Outsider;
use crate::control::{Mounted, Mounts};
use crate::error::Result;

/// The command by which this program looks at a mount.
pub const LOOK: &str = "look-at";

/// The result of a look.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum LookResult {
    /// The mount answers.
    Alive = 0,
    /// Its daemon is dead.
    Dead = 1,
    /// It answers with another error, or the look failed.
    Failed = 2,
    /// There is no mount of ours any more.
    Gone = 3,
}

/// Looks at a mount and waits for its answer, however long that takes. Runs in a separate process.
pub fn look_at(point: &Path) -> LookResult {
    let Ok(mounts) = Mounts::read() else { return LookResult::Failed };
    if !mounts.at(point).is_some_and(Mounted::is_ours) {
        return LookResult::Gone;
    }
    // Not `stat`: the kernel may answer that from its cache, even after the daemon is gone.
    match rustix::fs::statvfs(point) {
        Ok(_) => LookResult::Alive,
        Err(Errno::NOTCONN | Errno::CONNABORTED) => LookResult::Dead,
        Err(_) => LookResult::Failed,
    }
}

/// A look in progress.
#[derive(Debug)]
pub(super) struct Look(Outsider);

impl Look {
    /// Starts a look, which holds `held` until its process has ended.
    pub(super) fn start(point: &Path, held: OwnedMutexGuard<()>) -> Result<Self> {
        const NO_ARGUMENTS: &[&str] = &[];
        Outsider::start(LOOK, point, NO_ARGUMENTS, false, held).map(Self)
    }

    /// Returns the result; may be called again if the future was dropped before.
    pub(super) async fn seen(&mut self) -> LookResult {
        let ended = self.0.ended().await;
        match ended.and_then(|output| output.status.code()) {
            Some(code) if code == LookResult::Alive as i32 => LookResult::Alive,
            Some(code) if code == LookResult::Gone as i32 => LookResult::Gone,
            Some(code) if code == LookResult::Dead as i32 => LookResult::Dead,
            _ => LookResult::Failed,
        }
    }
}
