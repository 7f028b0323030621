//! Counts: how much was folded, and what went to the store and came from it.
//!
//! Owns numbers that people and paces go by. Nothing else may depend on them.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::metrics::Histogram;
use crate::stamp::Stamp;

/// A commit that is older when it is folded tells nothing of how busy the log is now.
const FRESH_MS: u64 = 60_000;

/// What went to the store and came from it, counted for people.
#[derive(Debug, Default)]
pub struct Traffic {
    /// Blobs that were stored.
    pub uploaded: AtomicU64,
    /// Commits that were written.
    pub commits_written: AtomicU64,
    /// Commits of other nodes that were applied.
    pub commits_applied: AtomicU64,
    /// How long after its close each change of this node was remote.
    pub publish_delay: Histogram,
    /// How late each commit of another node was applied here.
    pub follower_lag: Histogram,
}

/// All that a ledger counts.
#[derive(Debug, Default)]
pub(super) struct LedgerCounts {
    pub(super) traffic: Traffic,
    /// Commits that were ever folded.
    folded: AtomicU64,
    /// Those of them that were made just before.
    fresh: AtomicU64,
    /// How often a purge asked whether bytes are lost.
    #[cfg(test)]
    pub(super) asked_lost: AtomicU64,
}

impl LedgerCounts {
    /// Starts with so many commits that earlier runs have folded.
    pub(super) fn new(folded: usize) -> Self {
        Self { folded: AtomicU64::new(folded as u64), ..Self::default() }
    }

    /// Counts a commit that was folded.
    pub(super) fn note_folded(&self, commit: Stamp, now_ms: u64) {
        self.note_replaced();
        let fresh = commit.ms.saturating_add(FRESH_MS) > now_ms;
        self.fresh.fetch_add(u64::from(fresh), Ordering::Relaxed);
    }

    /// Counts that another namespace has taken the place of the one in use.
    pub(super) fn note_replaced(&self) {
        self.folded.fetch_add(1, Ordering::Relaxed);
    }

    /// Tells how many commits were ever folded.
    pub(super) fn folded(&self) -> u64 {
        self.folded.load(Ordering::Relaxed)
    }

    /// Tells how many of them were made just before.
    pub(super) fn fresh(&self) -> u64 {
        self.fresh.load(Ordering::Relaxed)
    }
}
