//! Counts: how much was folded, sent to the store and received from it.
//!
//! Owns numbers for people and for paces. Nothing else may depend on them.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::metrics::Histogram;
use crate::stamp::Stamp;

/// A commit that is older than this when it is folded says nothing about how busy the log is now.
const FRESH_MS: u64 = 60_000;

/// What was sent to the store and received from it, counted for people.
#[derive(Debug, Default)]
pub struct Traffic {
    /// Blobs that were stored.
    pub uploaded: AtomicU64,
    /// Commits that were written.
    pub commits_written: AtomicU64,
    /// Commits of other nodes that were applied.
    pub commits_applied: AtomicU64,
    /// The time from the close to the remote, for each change of this node.
    pub publish_delay: Histogram,
    /// How late each commit of another node was applied here.
    pub follower_lag: Histogram,
}

/// All that a ledger counts.
#[derive(Debug, Default)]
pub(super) struct LedgerCounts {
    pub(super) traffic: Traffic,
    /// Commits that were folded since the first run.
    folded: AtomicU64,
    /// How many of them were folded soon after they were made.
    fresh: AtomicU64,
    /// How often a purge checked whether bytes are lost.
    #[cfg(test)]
    pub(super) asked_lost: AtomicU64,
}

impl LedgerCounts {
    /// Starts with the number of commits that earlier runs have folded.
    pub(super) fn new(folded: usize) -> Self {
        Self { folded: AtomicU64::new(folded as u64), ..Self::default() }
    }

    /// Counts a commit that was folded.
    pub(super) fn note_folded(&self, commit: Stamp, now_ms: u64) {
        self.note_replaced();
        let fresh = commit.ms.saturating_add(FRESH_MS) > now_ms;
        self.fresh.fetch_add(u64::from(fresh), Ordering::Relaxed);
    }

    /// Counts that another namespace has replaced the present one.
    pub(super) fn note_replaced(&self) {
        self.folded.fetch_add(1, Ordering::Relaxed);
    }

    /// Returns how many commits were ever folded.
    pub(super) fn folded(&self) -> u64 {
        self.folded.load(Ordering::Relaxed)
    }

    /// Returns how many of them were folded soon after they were made.
    pub(super) fn fresh(&self) -> u64 {
        self.fresh.load(Ordering::Relaxed)
    }
}
