//! Contents in use with their places in the store, for callers that walk through all of them.
//! Commits that hold contents in use must stay in the store.
//!
//! Owns finding them. Must never hold the lock of the namespace for long.

use super::Ledger;
use crate::digest::Digest;
use crate::namespace::{Location, Site};
use crate::remote::keys;
use crate::stamp::Stamp;

/// How many locations are examined under the lock at once.
const SLICE: usize = 8000;

/// A content that files use, and the commit that holds it.
#[derive(Debug, Clone, Copy)]
pub(in crate::sync) struct Inline {
    pub(in crate::sync) digest: Digest,
    pub(in crate::sync) size: u64,
    pub(in crate::sync) commit: Stamp,
    /// When it was stored, in the store's time.
    pub(in crate::sync) stored_ms: u64,
}

impl Ledger {
    /// Returns the next contents in use that the store has, after a mark that is 0 at first; with
    /// the next mark, or `None` at the end.
    pub(in crate::sync) fn stored_in_use(
        &self,
        mark: u32,
    ) -> (Vec<(Digest, Location)>, Option<u32>) {
        let fold = self.0.fold.read();
        let (mut found, mut last, mut seen) = (Vec::new(), mark, 0);
        for (mark, digest, location) in fold.locations_from(mark).take(SLICE) {
            (last, seen) = (mark, seen + 1);
            if fold.uses(&digest) {
                found.push((digest, location));
            }
        }
        (found, (seen == SLICE).then_some(last))
    }

    /// As [`Ledger::stored_in_use`], for contents that are inline in commits.
    pub(in crate::sync) fn inline_in_use(&self, mark: u32) -> (Vec<Inline>, Option<u32>) {
        let (found, next) = self.stored_in_use(mark);
        let inline = found.into_iter().filter_map(|(digest, location)| {
            let Site::Inline { commit } = &location.site else { return None };
            let commit = keys::commit_stamp(commit)?;
            Some(Inline { digest, size: location.size, commit, stored_ms: location.stored_ms })
        });
        (inline.collect(), next)
    }

    /// Reports whether a content is inline in a commit.
    pub(in crate::sync) fn lies_inline(&self, digest: &Digest) -> bool {
        self.location(digest).is_some_and(|at| matches!(at.site, Site::Inline { .. }))
    }
}
