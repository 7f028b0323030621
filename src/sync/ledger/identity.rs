//! The identity of this run, and twins: other nodes with this node's identity, because a disk or an
//! image was copied.
//!
//! Owns the marks of this run in its stamps and commits, and the detection of a twin. Must never
//! take an earlier run of this node for another node. Two nodes with one identity can give one
//! stamp to two changes, and one name to two commits. The store keeps only one of the two.

use std::sync::atomic::{AtomicBool, Ordering};

use super::Ledger;
use crate::namespace::Commit;
use crate::stamp::{NodeId, StampClock};
#[cfg(test)]
use crate::sync::folded_log::FoldedLog;
use crate::task;

/// The most incarnations in one process; a new one begins after a long silence.
const INCARNATIONS_MAX: u64 = 1 << 20;

/// The identity under which this run writes.
#[derive(Debug)]
pub(super) struct RunIdentity {
    stamps: StampClock,
    /// The number of the first incarnation of this run; further ones have the numbers that follow.
    first_incarnation: u64,
    /// Another node has the same identity, and this was logged.
    has_twin: AtomicBool,
}

impl RunIdentity {
    /// Begins a run of a node.
    pub(super) fn new(node: NodeId) -> Self {
        let (stamps, first_incarnation) = (StampClock::new(node), task::random_u64());
        Self { stamps, first_incarnation, has_twin: AtomicBool::new(false) }
    }

    pub(super) fn stamps(&self) -> &StampClock {
        &self.stamps
    }

    pub(super) fn first_incarnation(&self) -> u64 {
        self.first_incarnation
    }

    /// Reports whether a commit belongs to another run of this node.
    fn is_other_run(&self, commit: &Commit) -> bool {
        let is_of_this_run =
            commit.incarnation.wrapping_sub(self.first_incarnation) < INCARNATIONS_MAX;
        commit.node == self.stamps.node() && !is_of_this_run
    }
}

impl Ledger {
    /// Checks whether a commit that was just read is from a twin: it has this node's identity,
    /// belongs to another run, and was made after `alone_ms`, when the log of all earlier runs had
    /// been read. If so, logs this once, and makes the next start take another identity.
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

    /// Forgets which commits were folded, so that all are read again.
    #[cfg(test)]
    pub(in crate::sync) fn forget_seen_for_test(&self) {
        self.log(FoldedLog::forget_seen);
    }
}
