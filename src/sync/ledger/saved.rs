//! What the next start is to find in the index: what moved since the last save.
//!
//! Owns the list of it. Must never let a save count objects of the log as folded, or records as remote, before all that they
//! have brought is in a save: so both are handed out with the last part only.

use std::collections::BTreeSet;

use crate::digest::Digest;
use crate::local::{FactBatch, LoadedIndex, Seq};
use crate::name::TreePath;
use crate::remote::keys;
use crate::stamp::Stamp;
use crate::sync::chains::Chains;
use crate::sync::folded_log::FoldedLog;
use crate::sync::missing::Missing;

/// The names in the index under which the chains and the missing commits lie.
const CHAINS: &str = "chains";
const MISSING: &str = "missing";

/// What moved since the last save.
#[derive(Debug, Default)]
pub(super) struct Saved {
    paths: BTreeSet<TreePath>,
    locations: BTreeSet<Digest>,
    /// Objects of the log that were folded, and those that are gone from it.
    seen: Vec<Stamp>,
    unseen: Vec<Stamp>,
    /// Everything up to this record is remote.
    ack: Option<Seq>,
    /// What was missing when that was saved.
    missing: Missing,
}

impl Saved {
    /// Starts with nothing moved; brings back what the index has of the log.
    pub(super) fn restore(loaded: &LoadedIndex) -> (Self, FoldedLog) {
        let seen = loaded.seen.iter().filter_map(|name| keys::commit_stamp(name)).collect();
        let meta = |name| loaded.meta.get(name);
        let chains = meta(CHAINS).map(|chains| Chains::decode(chains)).unwrap_or_default();
        let missing = meta(MISSING).map(|missing| Missing::decode(missing)).unwrap_or_default();
        let log = FoldedLog::restore(seen, chains, missing.clone());
        (Self { missing, ..Self::default() }, log)
    }

    /// Notes that a path has something else now, or is known otherwise.
    pub(super) fn path_moved(&mut self, path: &TreePath) {
        self.paths.insert(path.clone());
    }

    /// Notes that a content lies elsewhere now.
    pub(super) fn location_moved(&mut self, digest: Digest) {
        self.locations.insert(digest);
    }

    /// Notes that objects of the log were folded.
    pub(super) fn folded(&mut self, names: &[Stamp]) {
        self.seen.extend(names);
    }

    /// Notes that objects are gone from the log.
    pub(super) fn forgotten(&mut self, names: Vec<Stamp>) {
        self.unseen.extend(names);
    }

    /// Notes that another namespace takes the place of this one, of which the index has nothing: only what was folded
    /// into both is still to be told.
    pub(super) fn replaced_by(&mut self, log: &FoldedLog) {
        self.unseen.clear();
        self.seen.retain(|stamp| log.has(stamp));
    }

    /// Notes that everything up to a record is remote.
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

    /// Adds what moved of the log to the last part of a save. Returns whether something was folded, and up to which record
    /// everything is remote.
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

    /// Adds how far each run has come to what an index gets that is filled anew.
    pub(super) fn save_chains(log: &FoldedLog, batch: &mut FactBatch) {
        batch.meta(CHAINS, &log.chains().encode());
    }

    /// Adds what is missing in what was folded.
    pub(super) fn save_missing(&mut self, log: &FoldedLog, batch: &mut FactBatch) {
        batch.meta(MISSING, &log.missing().encode());
        self.missing.clone_from(log.missing());
    }
}
