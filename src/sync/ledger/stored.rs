//! Contents in use with their places in the store, for callers that go through all of them.
//!
//! Must never hold the lock of the namespace for long.

use super::Ledger;
use crate::digest::Digest;
use crate::namespace::Location;

/// Locations that are looked at under the lock at once.
const SLICE: usize = 8000;

impl Ledger {
    /// Returns the next contents in use that the store has, behind a mark that is 0 at first; with the mark to go on from,
    /// or none at the end.
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
}
