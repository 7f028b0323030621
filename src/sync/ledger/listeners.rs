//! The listeners: what hears when something moves that the kernel may remember otherwise.
//!
//! Owns them, and the counts by which a caller sees that it has missed nothing. Must never be told with a lock held.

#[cfg(test)]
mod untold;

use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::RwLock;

use crate::name::TreePath;

/// What hears of it.
pub(super) type Subscriber = Box<dyn Fn(Moved<'_>) + Send + Sync>;

/// What other nodes have moved.
#[derive(Debug, Clone, Copy)]
pub struct Moved<'a> {
    /// What [`Ledger::applied`](super::Ledger::applied) says of it.
    pub count: u64,
    /// The paths that moved; `None` when it may be any. Without one, names are in doubt and nothing moved.
    pub paths: Option<&'a [TreePath]>,
}

/// The listeners, and how much they have heard.
#[derive(Default)]
pub(super) struct Listeners {
    all: RwLock<Vec<Subscriber>>,
    /// What they were not told yet, while a test has them wait.
    #[cfg(test)]
    untold: untold::Untold,
    /// How often something moved that the kernel may remember otherwise; for commits of other nodes counted
    /// under the lock of the namespace.
    applied: AtomicU64,
    /// How many notifications of that they got.
    told: AtomicU64,
    /// Records of this node that were brought into the namespace. Counted under its lock.
    records: AtomicU64,
}

impl Listeners {
    pub(super) fn add(&self, one: Subscriber) {
        self.all.write().push(one);
    }

    /// Counts one notification. It has to be told, once no lock is held.
    pub(super) fn count(&self) -> u64 {
        self.applied.fetch_add(1, Ordering::AcqRel) + 1
    }

    /// Counts a record of this node that was brought into the namespace.
    pub(super) fn count_record(&self) {
        self.records.fetch_add(1, Ordering::AcqRel);
    }

    /// Tells how many notifications were counted.
    pub(super) fn applied(&self) -> u64 {
        self.applied.load(Ordering::Acquire)
    }

    /// Tells how many notifications and records were counted.
    pub(super) fn changes(&self) -> u64 {
        self.records.load(Ordering::Acquire) + self.applied()
    }

    /// Reports whether something was counted and not told yet.
    pub(super) fn is_telling(&self) -> bool {
        // In this order: each telling comes after its count.
        let told = self.told.load(Ordering::Acquire);
        self.applied() > told
    }

    /// Tells what was counted.
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
