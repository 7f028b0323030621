//! Missing commits: commits that are known to have been in the log, and whose changes are not in
//! the namespace.
//!
//! Owns what is remembered of them, also over a restart. Must never treat a commit as present
//! before it was folded, or before the namespace was rebuilt from a checkpoint: a node that writes
//! a checkpoint relies on this.

use std::collections::BTreeSet;
use std::ops::Range;

use serde::{Deserialize, Serialize};

use super::chains::Incarnation;
use crate::namespace::Commit;
use crate::stamp::Stamp;

/// The most missing commits that are remembered one by one; of further ones only the fact is
/// remembered, and those in the log are read again whenever a list shows them.
const MISSING_MAX: usize = 10_000;

/// The commits that are missing.
#[derive(Clone, Default, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(super) struct Missing {
    /// In the log, and unusable: damaged, of a newer version, or not returned by the store.
    unusable: BTreeSet<Stamp>,
    /// Not in the log when a later commit of their incarnation was folded.
    absent: BTreeSet<(Incarnation, u64)>,
    /// Whether there may be others of which nothing is known: too many, deleted from the log before
    /// they could be used, or in a checkpoint that could not be used.
    others: bool,
}

impl Missing {
    /// Reports whether nothing is missing.
    pub(super) fn is_empty(&self) -> bool {
        self.unusable.is_empty() && self.absent.is_empty() && !self.others
    }

    /// Returns those that are in the log and unusable.
    pub(super) fn unusable(&self) -> impl Iterator<Item = Stamp> {
        self.unusable.iter().copied()
    }

    /// Reports whether a commit is known to be unusable.
    pub(super) fn is_unusable(&self, stamp: &Stamp) -> bool {
        self.unusable.contains(stamp)
    }

    /// Counts those that are in the log and unusable.
    pub(super) fn unusable_len(&self) -> usize {
        self.unusable.len()
    }

    /// Reports whether a commit is missing whose name is unknown. The names in a checkpoint then do
    /// not show whether the checkpoint has it.
    pub(super) fn has_nameless(&self) -> bool {
        self.others || !self.absent.is_empty()
    }

    /// Notes a commit of the log that is unusable.
    pub(super) fn note_unusable(&mut self, stamp: Stamp) {
        if self.has_room() {
            self.unusable.insert(stamp);
        } else {
            self.others |= !self.unusable.contains(&stamp);
        }
    }

    /// Notes commits of an incarnation that were absent when a later one of it was folded.
    pub(super) fn note_absent(&mut self, incarnation: Incarnation, sequences: Range<u64>) {
        for sequence in sequences {
            if !self.has_room() {
                self.others = true;
                return;
            }
            self.absent.insert((incarnation, sequence));
        }
    }

    /// Notes that there may be others of which nothing is known.
    pub(super) fn note_others(&mut self) {
        self.others = true;
    }

    fn has_room(&self) -> bool {
        self.unusable.len() + self.absent.len() < MISSING_MAX
    }

    /// Notes that a commit was folded after all.
    pub(super) fn came(&mut self, commit: &Commit) {
        self.unusable.remove(&commit.stamp);
        self.absent.remove(&(Incarnation::of(commit), commit.sequence));
    }

    /// Notes that a commit is not in the log any more. If it was unusable, its changes are missing
    /// for good here.
    pub(super) fn gone(&mut self, stamp: &Stamp) {
        self.others |= self.unusable.remove(stamp);
    }

    /// Encodes the missing commits, for the index.
    pub(super) fn encode(&self) -> Vec<u8> {
        postcard::to_stdvec(self).expect("numbers always encode")
    }

    /// Decodes what `encode` wrote. For anything else, assumes that something may be missing.
    pub(super) fn decode(bytes: &[u8]) -> Self {
        postcard::from_bytes(bytes).unwrap_or(Self { others: true, ..Self::default() })
    }
}

#[cfg(test)]
mod tests {
    use super::super::chains::tests::commit;
    use super::*;

    #[test]
    fn a_missing_commit_is_no_longer_missing_once_it_came() {
        let mut missing = Missing::default();
        missing.note_absent(Incarnation::of(&commit(1, 0)), 2..4);
        missing.note_unusable(commit(2, 7).stamp);
        assert!(missing.has_nameless() && missing == Missing::decode(&missing.encode()));
        missing.came(&commit(1, 1));
        missing.came(&commit(1, 2));
        assert!(missing.has_nameless(), "one commit is still missing");
        missing.came(&commit(1, 3));
        assert!(!missing.has_nameless() && !missing.is_empty());
        missing.came(&commit(2, 7));
        assert!(missing.is_empty());
    }

    #[test]
    fn a_commit_deleted_before_it_could_be_used_stays_missing() {
        let mut missing = Missing::default();
        let (old, young) = (commit(1, 5).stamp, commit(1, 9).stamp);
        missing.note_unusable(old);
        missing.note_unusable(young);
        let known = missing.clone();
        missing.gone(&commit(1, 7).stamp);
        assert_eq!(missing, known, "a commit that was not missing");
        missing.gone(&old);
        assert!(missing.has_nameless() && missing.unusable().eq([young]));
        assert!(Missing::decode(b"\xff").has_nameless(), "unreadable bytes count as a gap");
    }

    #[test]
    fn too_many_missing_commits_are_remembered_as_others() {
        let mut missing = Missing::default();
        missing.note_absent(Incarnation::of(&commit(1, 0)), 0..u64::MAX);
        assert_eq!(missing.absent.len(), MISSING_MAX);
        for sequence in 0..2 * MISSING_MAX as u64 {
            missing.came(&commit(1, sequence));
        }
        assert!(!missing.is_empty() && missing.absent.is_empty());
    }
}
