//! Looking at a mount through the kernel, from a process of its own.
//!
//! Owns both ends of that process. Must never look from the daemon itself, which is what is looked at.

use std::path::Path;

use tokio::sync::OwnedMutexGuard;

use super::outsider::Outsider;
use crate::control::{Mounted, Mounts};
use crate::error::Result;

/// The command by which this program looks at a mount.
pub const LOOK: &str = "look-at";

/// What a look found.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum LookResult {
    /// The mount answers.
    Alive = 0,
    /// It answers with an error, or the look failed.
    Dead = 1,
    /// No mount of ours is there any more.
    Gone = 3,
}

/// Looks at a mount and waits for its answer, however long that takes; for the process of its own.
pub fn look_at(point: &Path) -> LookResult {
    let Ok(mounts) = Mounts::read() else { return LookResult::Dead };
    if !mounts.at(point).is_some_and(Mounted::is_ours) {
        return LookResult::Gone;
    }
    // Not `stat`: that the kernel may answer from memory, even for a daemon that is gone.
    if rustix::fs::statvfs(point).is_ok() { LookResult::Alive } else { LookResult::Dead }
}

/// A look that is under way.
#[derive(Debug)]
pub(super) struct Look(Outsider);

impl Look {
    /// Starts one, which holds `held` until its process has ended.
    pub(super) fn start(point: &Path, held: OwnedMutexGuard<()>) -> Result<Self> {
        const NO_ARGUMENTS: &[&str] = &[];
        Outsider::start(LOOK, point, NO_ARGUMENTS, false, held).map(Self)
    }

    /// Returns what it found; may be called again if the future is dropped before.
    pub(super) async fn seen(&mut self) -> LookResult {
        let ended = self.0.ended().await;
        match ended.and_then(|output| output.status.code()) {
            Some(code) if code == LookResult::Alive as i32 => LookResult::Alive,
            Some(code) if code == LookResult::Gone as i32 => LookResult::Gone,
            _ => LookResult::Dead,
        }
    }
}
