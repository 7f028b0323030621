//! Chains: which commits of each incarnation of each node were folded, so that a gap is noticed.
//!
//! Owns the expected sequence numbers. Must never hold a commit back for ever: a commit that is
//! still missing when the log is listed again has expired or is lost.
//!
//! Keeps P5 in-order.

use std::collections::HashMap;
use std::ops::Range;

use serde::{Deserialize, Serialize};

use crate::namespace::Commit;
use crate::remote::CheckpointChain;
use crate::stamp::NodeId;

/// The most incarnations of nodes that are remembered. Beyond that, those are forgotten that have
/// been silent for so long that no further commit of them is expected, and then the one whose last
/// commit is the oldest. A new commit of a forgotten incarnation costs one list of the log. While
/// the number is at this bound, gaps are noticed only in known incarnations.
const CHAINS_MAX: usize = 4096;

/// One incarnation of one node.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
pub(super) struct Incarnation {
    node: NodeId,
    /// The random number that its commits have.
    number: u64,
}

impl Incarnation {
    /// Returns the incarnation that made a commit.
    pub(super) fn of(commit: &Commit) -> Self {
        Self { node: commit.node, number: commit.incarnation }
    }
}

#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
struct Link {
    /// The sequence number that comes next.
    next: u64,
    /// When the last commit was made, in milliseconds.
    ms: u64,
}

/// The expected sequence numbers.
#[derive(Debug, Default)]
pub(super) struct Chains(HashMap<Incarnation, Link>);

impl Chains {
    /// Reports whether a commit follows directly on the folded ones, or is older.
    pub(super) fn follows(&self, commit: &Commit) -> bool {
        commit.sequence <= self.next(commit)
    }

    fn next(&self, commit: &Commit) -> u64 {
        self.0.get(&Incarnation::of(commit)).map_or(0, |link| link.next)
    }

    /// Notes that a commit was folded.
    pub(super) fn note(&mut self, commit: &Commit) {
        let incarnation = Incarnation::of(commit);
        let link = self.0.entry(incarnation).or_insert(Link { next: 0, ms: 0 });
        link.next = link.next.max(commit.sequence.saturating_add(1));
        link.ms = link.ms.max(commit.stamp.ms);
        if self.0.len() > CHAINS_MAX
            && let Some(oldest) =
                self.0.iter().min_by_key(|(_, link)| link.ms).map(|(incarnation, _)| *incarnation)
        {
            self.0.remove(&oldest);
        }
    }

    /// Makes room, if there is none. Forgets incarnations whose last commit is so old that no
    /// further one is expected.
    pub(super) fn make_room(&mut self, is_silent: impl Fn(u64) -> bool) {
        if self.0.len() >= CHAINS_MAX {
            self.0.retain(|_, link| !is_silent(link.ms));
        }
    }

    /// Makes chains from those of a checkpoint, which are in the order of their times.
    pub(super) fn of(all: &[CheckpointChain]) -> Self {
        let links = all.iter().rev().take(CHAINS_MAX).map(|chain| {
            let incarnation = Incarnation { node: chain.node, number: chain.incarnation };
            (incarnation, Link { next: chain.next, ms: chain.ms })
        });
        Self(links.collect())
    }

    /// Returns the chains, for a checkpoint.
    pub(super) fn all(&self) -> Vec<CheckpointChain> {
        let chain = |(incarnation, link): (&Incarnation, &Link)| CheckpointChain {
            node: incarnation.node,
            incarnation: incarnation.number,
            next: link.next,
            ms: link.ms,
        };
        let mut all: Vec<_> = self.0.iter().map(chain).collect();
        all.sort_unstable_by_key(|chain| (chain.ms, chain.node, chain.incarnation));
        all
    }

    /// Reports whether a node other than this one has made a commit after a time.
    pub(super) fn has_others_after(&self, node: NodeId, ms: u64) -> bool {
        self.0.iter().any(|(incarnation, link)| incarnation.node != node && link.ms > ms)
    }

    /// Reports whether no commit was folded yet.
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Reports whether these chains are at least as long as `others`, as far as they know: they may
    /// have forgotten some incarnations when there were too many.
    pub(super) fn reach(&self, others: &Self) -> bool {
        let reaches = |(incarnation, link): (&Incarnation, &Link)| {
            self.0.get(incarnation).is_some_and(|known| known.next >= link.next)
        };
        others.0.len() < CHAINS_MAX && others.0.iter().all(reaches)
    }

    /// Returns which commits of its incarnation are missing before this one. Empty for an
    /// incarnation that may have been forgotten.
    pub(super) fn lack_before(&self, commit: &Commit) -> Range<u64> {
        let known = self.0.len() < CHAINS_MAX || self.0.contains_key(&Incarnation::of(commit));
        let upto = if known { commit.sequence } else { 0 };
        self.next(commit)..upto
    }

    /// Encodes the chains, for the index.
    pub(super) fn encode(&self) -> Vec<u8> {
        let all: Vec<(Incarnation, Link)> =
            self.0.iter().map(|(incarnation, link)| (*incarnation, *link)).collect();
        postcard::to_stdvec(&all).expect("numbers always encode")
    }

    /// Decodes what `encode` wrote. Returns empty chains for anything else.
    pub(super) fn decode(bytes: &[u8]) -> Self {
        let all: Vec<(Incarnation, Link)> = postcard::from_bytes(bytes).unwrap_or_default();
        Self(all.into_iter().take(CHAINS_MAX).collect())
    }
}

#[cfg(test)]
pub(super) mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::stamp::Stamp;

    /// Makes the commit with this number of an incarnation of this node.
    pub(in crate::sync) fn commit(node: u64, sequence: u64) -> Commit {
        let node = NodeId(node);
        Commit {
            stamp: Stamp { ms: sequence, counter: 0, node },
            node,
            incarnation: 1,
            sequence,
            packs: Vec::new(),
            blobs: Vec::new(),
            changes: Vec::new(),
            extensions: BTreeMap::new(),
        }
    }

    #[test]
    fn a_gap_is_noticed_and_can_be_passed() {
        let mut chains = Chains::default();
        assert!(!chains.follows(&commit(1, 3)), "the start of the chain is missing");
        chains.note(&commit(1, 3));
        assert!(chains.follows(&commit(1, 4)) && chains.follows(&commit(1, 2)));
        assert!(!chains.follows(&commit(1, 5)));
        let again = Chains::decode(&chains.encode());
        assert!(again.follows(&commit(1, 4)) && !again.follows(&commit(1, 5)));
        assert!(Chains::decode(b"\xff\xff").follows(&commit(1, 0)));
    }

    #[test]
    fn chains_can_be_compared_and_handed_over() {
        let (mut old, mut new) = (Chains::default(), Chains::default());
        assert!(old.is_empty() && old.reach(&new));
        for sequence in 0..3 {
            old.note(&commit(1, sequence));
            new.note(&commit(1, sequence));
        }
        new.note(&commit(2, 0));
        assert!(new.reach(&old) && !old.reach(&new), "an unknown incarnation");
        old.note(&commit(2, 0));
        new.note(&commit(1, 3));
        assert!(!old.reach(&new), "a longer incarnation");
        let again = Chains::of(&new.all());
        assert!(again.reach(&new) && new.reach(&again));
        assert_eq!(new.lack_before(&commit(1, 6)), 4..6);
        assert!(
            new.lack_before(&commit(1, 4)).is_empty() && new.lack_before(&commit(1, 0)).is_empty()
        );
    }

    #[test]
    fn the_number_of_chains_is_bounded() {
        let mut chains = Chains::default();
        for node in 0..CHAINS_MAX as u64 + 10 {
            chains.note(&commit(node, node));
        }
        assert_eq!(chains.0.len(), CHAINS_MAX);
        assert!(!chains.follows(&commit(0, 1)), "the oldest chain was dropped");
        let last = CHAINS_MAX as u64 + 9;
        assert_eq!(Chains::of(&chains.all()[..]).all().last().map(|chain| chain.ms), Some(last));
    }

    #[test]
    fn gaps_are_noticed_again_when_old_incarnations_are_forgotten() {
        let mut chains = Chains::default();
        for node in 0..CHAINS_MAX as u64 {
            chains.note(&commit(node, node));
        }
        let known = CHAINS_MAX as u64 - 1;
        assert_eq!(chains.lack_before(&commit(known, known + 3)), known + 1..known + 3);
        assert!(chains.lack_before(&commit(9999, 2)).is_empty(), "the chain may have been dropped");
        assert!(!Chains::default().reach(&chains), "more chains may exist");
        chains.make_room(|_| false);
        assert!(chains.lack_before(&commit(9999, 2)).is_empty());
        chains.make_room(|ms| ms < 10);
        assert_eq!(chains.lack_before(&commit(9999, 2)), 0..2);
        assert!(Chains::of(&chains.all()).reach(&chains));
        let left = chains.0.len();
        chains.make_room(|_| true);
        assert_eq!(chains.0.len(), left, "there is room");
    }
}
