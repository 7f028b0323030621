//! What the namespace has under a path.
//!
//! Owns how that is read. Must never include files that are being written on this node.

use std::time::Duration;

use super::inode::Published;
use crate::name::TreePath;
use crate::namespace::{Entry, Fold, PathIs, Time};
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

/// Nothing is visible under a path.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Absent {
    /// Whether the namespace knows any change of the path. Most misses by far are of names that no
    /// node has ever had.
    pub(super) is_known: bool,
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
    read_in(fold, path).ok()
}

fn read_in(fold: &Fold, path: &TreePath) -> Result<Seen, Absent> {
    match fold.at(path) {
        PathIs::Entry(register) => {
            let (stamp, changed_ms) = (Some(register.stamp), register.changed_ms());
            let seen = |entry| Seen { entry, stamp, changed_ms, left: Duration::MAX };
            register.entry.map(seen).ok_or(Absent { is_known: true })
        }
        PathIs::ImpliedDirectory => Ok(implied_directory()),
        PathIs::Nothing { is_known } => Err(Absent { is_known }),
    }
}

/// Returns a directory that exists only because an entry exists below it.
pub(super) fn implied_directory() -> Seen {
    let entry = Entry::directory(0o755, 0, 0, Time::default());
    Seen { entry, stamp: None, changed_ms: 0, left: Duration::MAX }
}

/// Reads what is visible under a path: an entry whose bytes are available and that is not past its
/// age.
pub(super) fn shown_in(ledger: &Ledger, fold: &Fold, path: &TreePath) -> Result<Seen, Absent> {
    let seen = read_in(fold, path)?;
    let changed_ms = seen.stamp.map(|_| seen.changed_ms);
    match ledger.shown(fold, path, &seen.entry, changed_ms) {
        Some(left) => Ok(Seen { left, ..seen }),
        None => Err(Absent { is_known: true }),
    }
}
