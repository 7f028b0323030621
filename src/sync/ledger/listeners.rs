//! The listeners: callers that are notified when something moves that the kernel may remember
//! differently.
//!
//! Owns them, and the counts by which a caller sees that it has missed nothing. Must never be
//! notified with a lock held.

#[cfg(test)]
mod untold;

use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::RwLock;

use crate::name::TreePath;

/// The callback of a listener.
pub(super) type Subscriber = Box<dyn Fn(Moved<'_>) + Send + Sync>;

/// What other nodes have moved.
#[derive(Debug, Clone, Copy)]
pub struct Moved<'a> {
    /// The count of [`Ledger::applied`](super::Ledger::applied) after it.
    pub count: u64,
    /// The paths that moved; `None` if it may be any. An empty slice means that names are in doubt
    /// and nothing moved.
    pub paths: Option<&'a [TreePath]>,
}

/// The listeners, and how much they were notified of.
#[derive(Default)]
pub(super) struct Listeners {
    all: RwLock<Vec<Subscriber>>,
    /// The notifications that a test delays.
    #[cfg(test)]
    untold: untold::Untold,
    /// How often something moved that the kernel may remember differently. Commits of other nodes
    /// are counted under the lock of the namespace.
    applied: AtomicU64,
    /// How many of these notifications were delivered.
    told: AtomicU64,
    /// Records of this node that were brought into the namespace. Counted under its lock.
    records: AtomicU64,
}

impl Listeners {
    pub(super) fn add(&self, one: Subscriber) {
        self.all.write().push(one);
    }

    /// Counts one notification. The caller must deliver it once no lock is held.
    pub(super) fn count(&self) -> u64 {
        self.applied.fetch_add(1, Ordering::AcqRel) + 1
    }

    /// Counts a record of this node that was brought into the namespace.
    pub(super) fn count_record(&self) {
        self.records.fetch_add(1, Ordering::AcqRel);
    }

    /// Returns how many notifications were counted.
    pub(super) fn applied(&self) -> u64 {
        self.applied.load(Ordering::Acquire)
    }

    /// Returns how many notifications and records were counted.
    pub(super) fn changes(&self) -> u64 {
        self.records.load(Ordering::Acquire) + self.applied()
    }

    /// Reports whether a notification was counted and not yet delivered.
    pub(super) fn is_telling(&self) -> bool {
        // In this order: each delivery comes after its count.
        let told = self.told.load(Ordering::Acquire);
        self.applied() > told
    }

    /// Delivers a notification.
    pub(super) fn tell(&self, moved: Moved<'_>) {
        #[cfg(test)]
        if self.untold.keeps(moved) {
            return;
        }
        for told in self.all.read().iter() {
            told(moved);
        }
        self.told.fetch_add(1, Ordering::Release);
    }
}
