//! The identity of this run, and twins: another node that has this node's identity, because a disk or an image was copied.
//!
//! Owns what this run's stamps and commits are marked with, and noticing a twin. Must never take an earlier run of this node
//! for another. Two nodes with one identity can give one stamp to two changes, and one name to two commits, of which the
//! store keeps one.

use std::sync::atomic::{AtomicBool, Ordering};

use super::Ledger;
use crate::namespace::Commit;
use crate::stamp::{NodeId, StampClock};
#[cfg(test)]
use crate::sync::folded_log::FoldedLog;
use crate::task;

/// Rows of commits that one process may begin; it begins one after a long silence.
const ROWS_MAX: u64 = 1 << 20;

/// What this run writes under.
#[derive(Debug)]
pub(super) struct RunIdentity {
    stamps: StampClock,
    /// What the first row of commits of this run is called; further ones have the numbers that follow.
    incarnation: u64,
    /// Another node has the same, and that was said.
    has_twin: AtomicBool,
}

impl RunIdentity {
    /// Begins a run of a node.
    pub(super) fn new(node: NodeId) -> Self {
        let (stamps, incarnation) = (StampClock::new(node), task::random_u64());
        Self { stamps, incarnation, has_twin: AtomicBool::new(false) }
    }

    pub(super) fn stamps(&self) -> &StampClock {
        &self.stamps
    }

    pub(super) fn incarnation(&self) -> u64 {
        self.incarnation
    }

    /// Reports whether a commit is of another run of this node.
    fn is_other_run(&self, commit: &Commit) -> bool {
        let is_of_this_run = commit.incarnation.wrapping_sub(self.incarnation) < ROWS_MAX;
        commit.node == self.stamps.node() && !is_of_this_run
    }
}

impl Ledger {
    /// Looks whether a commit that was just read is of a twin: under this node's identity, of another run,
    /// and made after `alone_ms`, when the log of all earlier runs had been read. Says so, once, and sees to
    /// it that the next start takes another identity.
    pub(in crate::sync) fn note_twin(&self, commit: &Commit, alone_ms: u64) {
        let identity = &self.0.identity;
        if !identity.is_other_run(commit)
            || commit.stamp.ms <= alone_ms
            || identity.has_twin.swap(true, Ordering::Relaxed)
        {
            return;
        }
        let dir = &self.0.disk.dir;
        let kept = dir.give_up_node().err().map(|error| error.chain());
        tracing::error!(
            node = %self.node(), cache_dir = %dir.path().display(), kept,
            "another node writes under the identity of this cache directory: was a disk or an image with it \
             in it copied? Restart hearthfs here, which takes a new identity; leave cache directories out \
             of images"
        );
    }

    /// Forgets which objects of the log were folded, so that all are read again.
    #[cfg(test)]
    pub(in crate::sync) fn forget_seen_for_test(&self) {
        self.log(FoldedLog::forget_seen);
    }
}
