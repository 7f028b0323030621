//! What the next start needs in the index: what moved since the last save.
//!
//! Owns the list of it. Must never let a save count commits as folded, or records as remote, before
//! all of their changes are in a save. So both are handed out only with the last part.

use std::collections::BTreeSet;

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

/// What moved since the last save.
#[derive(Debug, Default)]
pub(super) struct Saved {
    paths: BTreeSet<TreePath>,
    locations: BTreeSet<Digest>,
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
        self.paths.insert(path.clone());
    }

    /// Notes that a content is at another place now.
    pub(super) fn location_moved(&mut self, digest: Digest) {
        self.locations.insert(digest);
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
        self.paths.pop_first()
    }

    /// Takes a content whose place moved.
    pub(super) fn next_location(&mut self) -> Option<Digest> {
        self.locations.pop_first()
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
