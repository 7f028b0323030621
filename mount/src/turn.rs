//! One daemon at a time at a mount point.
//!
//! Owns the lock that all who mount at one place find, whatever their cache and runtime directories: the
//! directory that the mount point lies in. Must never be all that keeps two daemons apart: that
//! directory may be unreadable, or locked by somebody who has nothing to do with us.

use std::fs::File;
use std::path::Path;
use std::time::Duration;

use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;

/// How long one waits for others: mounting takes milliseconds, unless a mount does not answer.
const LIMIT: Duration = Duration::from_secs(15);
const POLL: Duration = Duration::from_millis(5);

/// Held while the mounts at a place are looked at and changed.
#[derive(Debug)]
pub(crate) struct Turn {
    /// Locked as long as it is open.
    _dir: Option<File>,
}

impl Turn {
    /// Waits for the turn at `mount_point` (free of links), but goes on without it where it cannot be had.
    pub(crate) fn take(mount_point: &Path) -> Self {
        let Some(Ok(dir)) = mount_point.parent().map(File::open) else {
            return Self { _dir: None };
        };
        let tries = LIMIT.as_millis() / POLL.as_millis();
        for _ in 0..tries {
            match flock(&dir, FlockOperation::NonBlockingLockExclusive) {
                Ok(()) => return Self { _dir: Some(dir) },
                Err(Errno::WOULDBLOCK | Errno::INTR) => {
                    #[expect(clippy::disallowed_methods, reason = "the crate is a leaf; limited")]
                    std::thread::sleep(POLL);
                }
                Err(_) => break,
            }
        }
        tracing::warn!(mount_point = %mount_point.display(), "mounting without a lock");
        Self { _dir: None }
    }
}
