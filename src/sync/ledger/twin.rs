//! Twins: another node that has this node's identity, because a disk or an image was copied.
//!
//! Owns noticing that. Must never take an earlier run of this node for another. Two nodes with one identity
//! can give one stamp to two changes, and one name to two commits, of which the store keeps one.

use std::sync::atomic::Ordering;

use super::Ledger;
use crate::namespace::Commit;
#[cfg(test)]
use crate::sync::folded_log::FoldedLog;

/// Rows of commits that one process may begin; it begins one after a long silence.
const ROWS_MAX: u64 = 1 << 20;

impl Ledger {
    /// Looks whether a commit that was just read is of a twin: under this node's identity, of another run,
    /// and made after `alone_ms`, when the log of all earlier runs had been read. Says so, once, and sees to
    /// it that the next start takes another identity.
    pub(in crate::sync) fn note_twin(&self, commit: &Commit, alone_ms: u64) {
        let other = commit.node == self.node() && !self.is_of_this_run(commit);
        if !other || commit.stamp.ms <= alone_ms || self.0.twin.swap(true, Ordering::Relaxed) {
            return;
        }
        let kept = self.0.dir.give_up_node().err().map(|error| error.chain());
        tracing::error!(
            node = %self.node(), cache_dir = %self.0.dir.path().display(), kept,
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

    fn is_of_this_run(&self, commit: &Commit) -> bool {
        commit.incarnation.wrapping_sub(self.0.incarnation) < ROWS_MAX
    }
}
