//! The lock files whose processes are watched.
//!
//! Owns their table and its limit for each user.

use std::sync::Arc;

use hearthfs_mount::Watched;

use super::shares::Shares;
use crate::hashing::FastMap;
use crate::local::LockOwner;
use crate::name::TreePath;
use crate::stamp::Stamp;

/// How many locks have their processes watched. A further lock is an ordinary file.
const LOCKS_MAX: u64 = 1024;

/// A lock file whose process is watched.
#[derive(Clone, Debug)]
pub(super) struct HeldLockFile {
    pub(super) owner: LockOwner,
    /// The change that put the lock there.
    pub(super) stamp: Stamp,
    pub(super) user: u32,
    pub(super) watched: Arc<Watched>,
}

/// All lock files whose processes are watched.
#[derive(Debug)]
pub(super) struct LockFiles {
    held: FastMap<TreePath, HeldLockFile>,
    shares: Shares,
}

impl Default for LockFiles {
    fn default() -> Self {
        Self { held: FastMap::default(), shares: Shares::new(LOCKS_MAX) }
    }
}

impl LockFiles {
    /// Adds a lock, and forgets an earlier one of the same name. Returns false if the user may have
    /// no more.
    pub(super) fn add(&mut self, held: HeldLockFile) -> bool {
        self.remove(&held.owner.path, None);
        let fits = self.shares.take(held.user, 1);
        if fits {
            self.held.insert(held.owner.path.clone(), held);
        }
        fits
    }

    /// Forgets a lock, if `stamp` is `None` or the stamp of the change that put it there.
    pub(super) fn remove(&mut self, path: &TreePath, stamp: Option<Stamp>) {
        let is_it = |held: &HeldLockFile| stamp.is_none_or(|stamp| held.stamp == stamp);
        if self.held.get(path).is_some_and(is_it)
            && let Some(held) = self.held.remove(path)
        {
            self.shares.give_back(held.user, 1);
        }
    }

    pub(super) fn get(&self, path: &TreePath) -> Option<&HeldLockFile> {
        self.held.get(path)
    }

    pub(super) fn get_mut(&mut self, path: &TreePath) -> Option<&mut HeldLockFile> {
        self.held.get_mut(path)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.held.is_empty()
    }

    pub(super) fn all(&self) -> Vec<HeldLockFile> {
        self.held.values().cloned().collect()
    }
}
