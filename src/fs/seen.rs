//! What the namespace has under a path.
//!
//! Owns how that is read. Must never include files that are being written on this node.

use std::time::Duration;

use super::inode::Published;
use crate::name::TreePath;
use crate::namespace::{Entry, Fold, Time};
use crate::stamp::Stamp;
use crate::sync::Ledger;

/// What the namespace has under a path.
#[derive(Debug, Clone)]
pub(super) struct Seen {
    pub(super) entry: Entry,
    /// The change that put it; `None` for a directory that was never made.
    pub(super) stamp: Option<Stamp>,
    pub(super) changed_ms: u64,
    /// How much longer it may be shown.
    pub(super) left: Duration,
}

impl Seen {
    /// Returns the part of the inode number that does not come from the path.
    pub(super) fn version(&self) -> Option<Stamp> {
        self.stamp.filter(|_| !self.entry.is_directory())
    }

    pub(super) fn published(self) -> Published {
        Published { entry: self.entry, stamp: self.stamp, changed_ms: self.changed_ms }
    }
}

/// Reads what the namespace has under a path, before anything is hidden or has expired.
pub(super) fn seen_in(fold: &Fold, path: &TreePath) -> Option<Seen> {
    if let Some(register) = fold.visible(path) {
        let (stamp, changed_ms) = (Some(register.stamp), register.changed_ms());
        return register.entry.map(|entry| Seen { entry, stamp, changed_ms, left: Duration::MAX });
    }
    (!path.is_root() && fold.is_directory(path)).then(implied_directory)
}

/// Returns a directory that exists only because an entry exists below it.
pub(super) fn implied_directory() -> Seen {
    let entry = Entry::directory(0o755, 0, 0, Time::default());
    Seen { entry, stamp: None, changed_ms: 0, left: Duration::MAX }
}

/// Reads what is visible under a path: an entry whose bytes are available and that is not past its
/// age.
pub(super) fn shown_in(ledger: &Ledger, fold: &Fold, path: &TreePath) -> Option<Seen> {
    let seen = seen_in(fold, path)?;
    let changed_ms = seen.stamp.map(|_| seen.changed_ms);
    let left = ledger.shown(fold, path, &seen.entry, changed_ms)?;
    Some(Seen { left, ..seen })
}
