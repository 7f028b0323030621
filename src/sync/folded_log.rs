//! The folded log: what is known of the log, and the one way in which a commit of it is folded.
//!
//! Owns the names of what was folded, how far each run of each node has come, and what is missing. These three move
//! together: a commit that counts as folded is in all of them. Must never count a commit as folded whose changes the
//! namespace does not get in the same call.

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
    /// The names of the commits.
    seen: HashSet<Stamp>,
    chains: Chains,
    missing: Missing,
}

/// A namespace that takes in what commits say, with what was folded into it.
pub(super) trait Intake {
    /// Returns what of the log was folded into it.
    fn folded(&mut self) -> &mut FoldedLog;

    /// Learns where a content lies.
    fn locate(&mut self, digest: Digest, location: Location);

    /// Takes in one change.
    fn change(&mut self, change: &Change);
}

/// Folds a commit of the log; false if it was folded before.
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
    /// Makes what a checkpoint says of the log.
    pub(super) fn of(seen: HashSet<Stamp>, chains: &[CheckpointChain]) -> Self {
        Self { seen, chains: Chains::of(chains), missing: Missing::default() }
    }

    /// Brings back what was known of the log.
    pub(super) fn restore(seen: HashSet<Stamp>, chains: Chains, missing: Missing) -> Self {
        Self { seen, chains, missing }
    }

    /// Notes that a commit of the log is folded; false if it was before. What lies between it and what was folded of its
    /// run is missing from now on.
    fn note(&mut self, commit: &Commit) -> bool {
        if !self.seen.insert(commit.stamp) {
            return false;
        }
        self.missing.came(commit);
        self.missing.note_absent(Incarnation::of(commit), self.chains.lack_before(commit));
        self.chains.note(commit);
        true
    }

    /// Notes that this node has written a commit, under any of these names, of changes that its namespace has already.
    /// It heals nothing that is missing.
    pub(super) fn note_written(&mut self, commit: &Commit, names: &[Stamp]) {
        self.seen.extend(names);
        // A checkpoint says it to other nodes, which would take our next one for a gap.
        self.chains.note(commit);
    }

    /// Makes room for further runs, if there is none, by forgetting those whose last commit is so old that none follows it.
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

    /// Returns the names of all that was folded.
    pub(super) fn names(&self) -> &HashSet<Stamp> {
        &self.seen
    }

    /// Returns the names of all that was folded, ascending.
    pub(super) fn sorted(&self) -> Vec<Stamp> {
        let mut names: Vec<Stamp> = self.seen.iter().copied().collect();
        names.sort_unstable();
        names
    }

    /// Yields the names of the commits of one node that were folded.
    pub(super) fn of_node(&self, node: NodeId) -> impl Iterator<Item = Stamp> {
        self.seen.iter().filter(move |stamp| stamp.node == node).copied()
    }

    /// Returns those of the log's objects that were not folded, in the order given.
    pub(super) fn unseen(&self, all: impl Iterator<Item = Stamp>) -> Vec<Stamp> {
        all.filter(|stamp| !self.seen.contains(stamp)).collect()
    }

    /// Returns up to when what was folded goes; 0 for nothing.
    pub(super) fn latest_ms(&self) -> u64 {
        self.seen.iter().map(|stamp| stamp.ms).max().unwrap_or(0)
    }

    /// Counts, for each of these times, the commits that were made after it, and says when the first was made.
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

    /// Forgets objects that the log does not have any more, and returns them. `all` is what it has up to `before_ms`; what is
    /// younger by its name may be there all the same.
    pub(super) fn forget_unlisted(&mut self, all: &HashSet<Stamp>, before_ms: u64) -> Vec<Stamp> {
        let is_gone = |stamp: &&Stamp| stamp.ms < before_ms && !all.contains(stamp);
        let gone: Vec<Stamp> = self.seen.iter().filter(is_gone).copied().collect();
        for stamp in &gone {
            self.seen.remove(stamp);
        }
        self.missing.listed(all, before_ms);
        gone
    }

    /// Forgets which objects of the log were folded, so that all are read again.
    #[cfg(test)]
    pub(super) fn forget_seen(&mut self) {
        self.seen.clear();
    }

    /// Returns how far each run has come.
    pub(super) fn chains(&self) -> &Chains {
        &self.chains
    }

    /// Reports whether nothing was ever folded.
    pub(super) fn knows_nothing(&self) -> bool {
        self.chains.is_empty()
    }

    /// Reports whether a commit comes directly after what was folded of its run, or is older.
    pub(super) fn follows(&self, commit: &Commit) -> bool {
        self.chains.follows(commit)
    }

    /// Returns the commits that are missing in what was folded.
    pub(super) fn missing(&self) -> &Missing {
        &self.missing
    }

    /// Notes that a commit of the log cannot be used.
    pub(super) fn note_unusable(&mut self, stamp: Stamp) {
        self.missing.note_unusable(stamp);
    }

    /// Notes that commits are missing of which nothing can be told.
    pub(super) fn note_others_missing(&mut self) {
        self.missing.note_others();
    }

    /// Reports whether another view of the log has what this one does not have, as far as can be told.
    pub(super) fn lacks(&self, other: &Self) -> bool {
        // What has no name may be in any checkpoint that is newer than the gap.
        self.missing.has_nameless()
            || !other.seen.is_subset(&self.seen)
            || !self.chains.reach(&other.chains)
    }
}
