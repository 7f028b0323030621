//! What the next start needs in the index: what moved since the last save.
//!
//! Owns the list of it. Must never let a save count commits as folded, or records as remote, before
//! all of their changes are in a save. So both are handed out only with the last part.
//!
//! The list has a limit. A node that reads a long log learns faster than the index writes; then the
//! list is dropped, and the index is filled again from the namespace, which has everything.

use std::collections::BTreeSet;
use std::time::Duration;

use crate::digest::Digest;
use crate::local::{FactBatch, LoadedIndex, Seq};
use crate::name::TreePath;
use crate::remote::keys;
use crate::stamp::Stamp;
use crate::sync::chains::Chains;
use crate::sync::folded_log::FoldedLog;
use crate::sync::missing::Missing;

/// The names of the chains and of the missing commits in the index.
const CHAINS: &str = "chains";
const MISSING: &str = "missing";
/// The most bytes that the list may take, approximately.
const LIST_BYTES_MAX: usize = 16 << 20;
/// What one item of the list takes besides its bytes.
const ITEM_BYTES: usize = 32;
/// How long the filling waits at most until no more commits are folded: it takes time for all that
/// is known.
const FILL_WAIT_MAX: Duration = Duration::from_mins(1);

/// A list that was dropped.
#[derive(Debug, Clone, Copy)]
struct Dropped {
    since: Duration,
    /// How many commits were folded at the last look.
    folded: usize,
}

/// What moved since the last save.
#[derive(Debug, Default)]
pub(super) struct Saved {
    paths: BTreeSet<TreePath>,
    locations: BTreeSet<Digest>,
    /// The bytes of `paths` and `locations`, approximately.
    bytes: usize,
    /// Set while `paths` and `locations` lack something: they are empty then.
    dropped: Option<Dropped>,
    /// Commits that were folded, and those that were deleted from the log.
    seen: Vec<Stamp>,
    unseen: Vec<Stamp>,
    /// All records up to this one are remote.
    ack: Option<Seq>,
    /// The missing commits, as saved.
    missing: Missing,
}

impl Saved {
    /// Starts with nothing moved; restores what the index has of the log.
    pub(super) fn restore(loaded: &LoadedIndex) -> (Self, FoldedLog) {
        let seen = loaded.seen.iter().filter_map(|name| keys::commit_stamp(name)).collect();
        let meta = |name| loaded.meta.get(name);
        let chains = meta(CHAINS).map(|chains| Chains::decode(chains)).unwrap_or_default();
        let missing = meta(MISSING).map(|missing| Missing::decode(missing)).unwrap_or_default();
        let log = FoldedLog::restore(seen, chains, missing.clone());
        (Self { missing, ..Self::default() }, log)
    }

    /// Notes that a path has another register now, or that other nodes know another one.
    pub(super) fn path_moved(&mut self, path: &TreePath) {
        if self.dropped.is_none() && self.paths.insert(path.clone()) {
            self.grow(path.as_bytes().len());
        }
    }

    /// Notes that a content is at another place now.
    pub(super) fn location_moved(&mut self, digest: Digest) {
        if self.dropped.is_none() && self.locations.insert(digest) {
            self.grow(size_of::<Digest>());
        }
    }

    fn grow(&mut self, bytes: usize) {
        self.bytes += bytes + ITEM_BYTES;
        if self.bytes > LIST_BYTES_MAX {
            (self.paths, self.locations, self.bytes) = (BTreeSet::new(), BTreeSet::new(), 0);
            self.dropped = Some(Dropped { since: Duration::ZERO, folded: 0 });
        }
    }

    /// Reports whether the list was dropped, so that the index must be filled again.
    pub(super) fn is_dropped(&self) -> bool {
        self.dropped.is_some()
    }

    /// Reports whether the list was dropped and commits are still being folded, so that filling the
    /// index now would have to be repeated soon.
    pub(super) fn must_wait(&mut self, log: &FoldedLog, now: Duration) -> bool {
        let Some(dropped) = &mut self.dropped else { return false };
        if dropped.folded == 0 {
            dropped.since = now;
        }
        let before = std::mem::replace(&mut dropped.folded, log.len());
        before != log.len() && now.saturating_sub(dropped.since) < FILL_WAIT_MAX
    }

    /// Begins the list again: the index is about to be filled.
    pub(super) fn begin_again(&mut self) {
        self.dropped = None;
    }

    /// Notes that commits were folded.
    pub(super) fn folded(&mut self, names: &[Stamp]) {
        self.seen.extend(names);
    }

    /// Notes that commits were deleted from the log.
    pub(super) fn forgotten(&mut self, names: Vec<Stamp>) {
        self.unseen.extend(names);
    }

    /// Notes that another namespace replaces this one, and that the index has nothing of it. Only
    /// commits that were folded into both remain to be saved.
    pub(super) fn replaced_by(&mut self, log: &FoldedLog) {
        self.unseen.clear();
        self.seen.retain(|stamp| log.has(stamp));
    }

    /// Notes that all records up to one are remote.
    pub(super) fn remote_upto(&mut self, upto: Seq) {
        self.ack = self.ack.max(Some(upto));
    }

    /// Takes a path that moved.
    pub(super) fn next_path(&mut self) -> Option<TreePath> {
        let path = self.paths.pop_first()?;
        self.bytes -= path.as_bytes().len() + ITEM_BYTES;
        Some(path)
    }

    /// Takes a content whose place moved.
    pub(super) fn next_location(&mut self) -> Option<Digest> {
        let digest = self.locations.pop_first()?;
        self.bytes -= size_of::<Digest>() + ITEM_BYTES;
        Some(digest)
    }

    /// Reports whether paths or places are left.
    pub(super) fn has_more(&self) -> bool {
        !self.paths.is_empty() || !self.locations.is_empty()
    }

    /// Adds what moved of the log to the last part of a save. Returns whether something was folded,
    /// and up to which record everything is remote.
    pub(super) fn finish(&mut self, log: &FoldedLog, batch: &mut FactBatch) -> (bool, Option<Seq>) {
        let seen = std::mem::take(&mut self.seen);
        if !seen.is_empty() {
            batch.meta(CHAINS, &log.chains().encode());
        }
        if *log.missing() != self.missing {
            self.save_missing(log, batch);
        }
        for stamp in &seen {
            batch.seen(&keys::commit_name(stamp));
        }
        for stamp in std::mem::take(&mut self.unseen) {
            batch.forget_seen(&keys::commit_name(&stamp));
        }
        (!seen.is_empty(), self.ack.take())
    }

    /// Adds the progress of each run to an index that is filled again.
    pub(super) fn save_chains(log: &FoldedLog, batch: &mut FactBatch) {
        batch.meta(CHAINS, &log.chains().encode());
    }

    /// Adds the missing commits.
    pub(super) fn save_missing(&mut self, log: &FoldedLog, batch: &mut FactBatch) {
        batch.meta(MISSING, &log.missing().encode());
        self.missing.clone_from(log.missing());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::name::path;

    #[test]
    fn p13_bounded_the_list_of_what_moved() {
        let (mut saved, mut log) = (Saved::default(), FoldedLog::default());
        let most = LIST_BYTES_MAX / ITEM_BYTES;
        for n in 0..most as u64 {
            saved.location_moved(Digest::of(&n.to_le_bytes()));
            saved.path_moved(&path("the same path again and again"));
            assert!(saved.bytes <= LIST_BYTES_MAX);
        }
        assert!(saved.is_dropped() && !saved.has_more(), "there is no limit");
        assert!(saved.next_path().is_none() && saved.next_location().is_none());
        let second = Duration::from_secs(1);
        for n in 1..60 {
            log.note_written(&crate::sync::chains::tests::commit(1, n), &[commit_name(n)]);
            assert!(saved.must_wait(&log, second * n as u32), "the log is being read");
        }
        assert!(!saved.must_wait(&log, second * 60), "it has come to its end");
        log.note_written(&crate::sync::chains::tests::commit(1, 99), &[commit_name(99)]);
        assert!(saved.must_wait(&log, second * 60), "it goes on");
        log.note_written(&crate::sync::chains::tests::commit(1, 100), &[commit_name(100)]);
        assert!(!saved.must_wait(&log, second * 62), "it takes too long");
        saved.begin_again();
        saved.path_moved(&path("f"));
        assert_eq!(saved.next_path(), Some(path("f")));
        assert_eq!((saved.bytes, saved.has_more()), (0, false));
    }

    fn commit_name(n: u64) -> Stamp {
        Stamp { ms: n, ..Stamp::default() }
    }
}
