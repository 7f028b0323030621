//! The folded log: what is known of the log, and the one way to fold a commit of it.
//!
//! Owns the names of the folded commits, how far each incarnation of each node has come, and which
//! commits are missing. These three change together: a folded commit is in all of them. Must never
//! count a commit as folded unless the namespace gets its changes in the same call.

use std::collections::HashSet;

use super::chains::{Chains, Incarnation};
use super::missing::Missing;
use crate::digest::Digest;
use crate::namespace::{Change, Commit, Location};
use crate::remote::{CheckpointChain, keys};
use crate::stamp::{NodeId, Stamp};

/// What was folded of the log.
#[derive(Debug, Default)]
pub(super) struct FoldedLog {
    /// The names of the folded commits.
    seen: HashSet<Stamp>,
    chains: Chains,
    missing: Missing,
}

/// A namespace that takes in commits, with its folded log.
pub(super) trait Intake {
    /// Returns the folded log of the namespace.
    fn folded(&mut self) -> &mut FoldedLog;

    /// Notes the location of a content.
    fn locate(&mut self, digest: Digest, location: Location);

    /// Takes in one change.
    fn change(&mut self, change: &Change);
}

/// Folds a commit of the log; returns false if it was folded before.
pub(super) fn fold_commit(commit: &Commit, into: &mut impl Intake) -> bool {
    if !into.folded().note(commit) {
        return false;
    }
    let name = keys::commit_name(&commit.stamp);
    for blob in &commit.blobs {
        if let Some(location) = commit.location_of(&name, blob) {
            into.locate(blob.digest, location);
        }
    }
    commit.changes.iter().for_each(|change| into.change(change));
    true
}

impl FoldedLog {
    /// Makes the folded log that a checkpoint describes.
    pub(super) fn of(seen: HashSet<Stamp>, chains: &[CheckpointChain]) -> Self {
        Self { seen, chains: Chains::of(chains), missing: Missing::default() }
    }

    /// Restores the folded log of an earlier run.
    pub(super) fn restore(seen: HashSet<Stamp>, chains: Chains, missing: Missing) -> Self {
        Self { seen, chains, missing }
    }

    /// Notes that a commit of the log is folded; returns false if it was before. Commits between
    /// the last folded one of its incarnation and this one are missing from now on.
    fn note(&mut self, commit: &Commit) -> bool {
        if !self.seen.insert(commit.stamp) {
            return false;
        }
        self.missing.came(commit);
        self.missing.note_absent(Incarnation::of(commit), self.chains.lack_before(commit));
        self.chains.note(commit);
        true
    }

    /// Notes that this node has written a commit under these names. Its namespace has the changes
    /// already. Nothing that is missing counts as folded because of it.
    pub(super) fn note_written(&mut self, commit: &Commit, names: &[Stamp]) {
        self.seen.extend(names);
        // A checkpoint tells other nodes; without it, they would take our next commit for a gap.
        self.chains.note(commit);
    }

    /// Makes room for further incarnations, if there is none. Forgets those whose last commit is so
    /// old that no further one is expected.
    pub(super) fn make_room(&mut self, is_silent: impl Fn(u64) -> bool) {
        self.chains.make_room(is_silent);
    }

    /// Reports whether a commit was folded.
    pub(super) fn has(&self, stamp: &Stamp) -> bool {
        self.seen.contains(stamp)
    }

    /// Counts the commits that were folded.
    pub(super) fn len(&self) -> usize {
        self.seen.len()
    }

    /// Returns the names of all folded commits.
    pub(super) fn names(&self) -> &HashSet<Stamp> {
        &self.seen
    }

    /// Returns the names of all folded commits, ascending.
    pub(super) fn sorted(&self) -> Vec<Stamp> {
        let mut names: Vec<Stamp> = self.seen.iter().copied().collect();
        names.sort_unstable();
        names
    }

    /// Yields the names of the folded commits of one node.
    pub(super) fn of_node(&self, node: NodeId) -> impl Iterator<Item = Stamp> {
        self.seen.iter().filter(move |stamp| stamp.node == node).copied()
    }

    /// Returns those objects of the log that were not folded, in the given order.
    pub(super) fn unseen(&self, all: impl Iterator<Item = Stamp>) -> Vec<Stamp> {
        all.filter(|stamp| !self.seen.contains(stamp)).collect()
    }

    /// Returns the time of the latest folded commit; 0 if there is none.
    pub(super) fn latest_ms(&self) -> u64 {
        self.seen.iter().map(|stamp| stamp.ms).max().unwrap_or(0)
    }

    /// Counts, for each of these times, the folded commits that were made after it, and returns
    /// when the first of those was made.
    pub(super) fn since<const N: usize>(&self, times_ms: [u64; N]) -> [(u64, u64); N] {
        let mut counted = [(0, u64::MAX); N];
        for stamp in &self.seen {
            for (after_ms, (count, first_ms)) in times_ms.iter().zip(&mut counted) {
                if stamp.ms > *after_ms {
                    (*count, *first_ms) = (*count + 1, stamp.ms.min(*first_ms));
                }
            }
        }
        counted
    }

    /// Forgets objects that are no longer in the log, and returns them. `all` is what the log has
    /// up to `before_ms`; objects whose names are younger may exist although `all` lacks them.
    pub(super) fn forget_unlisted(&mut self, all: &HashSet<Stamp>, before_ms: u64) -> Vec<Stamp> {
        let is_gone = |stamp: &&Stamp| stamp.ms < before_ms && !all.contains(stamp);
        let gone: Vec<Stamp> = self.seen.iter().filter(is_gone).copied().collect();
        for stamp in &gone {
            self.seen.remove(stamp);
        }
        gone
    }

    /// Forgets which commits were folded, so that all are read again.
    #[cfg(test)]
    pub(super) fn forget_seen(&mut self) {
        self.seen.clear();
    }

    /// Returns how far each incarnation has come.
    pub(super) fn chains(&self) -> &Chains {
        &self.chains
    }

    /// Reports whether nothing was folded yet.
    pub(super) fn knows_nothing(&self) -> bool {
        self.chains.is_empty()
    }

    /// Reports whether a commit follows directly on the folded ones of its incarnation, or is
    /// older.
    pub(super) fn follows(&self, commit: &Commit) -> bool {
        self.chains.follows(commit)
    }

    /// Returns the commits that are missing.
    pub(super) fn missing(&self) -> &Missing {
        &self.missing
    }

    /// Notes that a commit of the log is unusable.
    pub(super) fn note_unusable(&mut self, stamp: Stamp) {
        self.missing.note_unusable(stamp);
    }

    /// Notes that a commit that was not folded is not in the log any more.
    pub(super) fn note_gone(&mut self, stamp: &Stamp) {
        self.missing.gone(stamp);
    }

    /// Notes that commits are missing of which nothing is known.
    pub(super) fn note_others_missing(&mut self) {
        self.missing.note_others();
    }

    /// Reports whether another view of the log has commits that this one lacks, as far as they
    /// know.
    pub(super) fn lacks(&self, other: &Self) -> bool {
        // A commit without a known name may be in any checkpoint that is newer than the gap.
        self.missing.has_nameless()
            || !other.seen.is_subset(&self.seen)
            || !self.chains.reach(&other.chains)
    }
}
