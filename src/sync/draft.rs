//! Drafts: a namespace that is put together beside the one in use, or where there is none.
//!
//! Owns a fold with the names of what was folded into it. Must never be shown before it is whole.

use std::collections::HashSet;
use std::io::Read;

use super::chains::{Chains, Incarnation};
use super::missing::Missing;
use crate::error::Result;
use crate::namespace::{Builder, Change, Commit, Fold, Op, Time};
use crate::remote::{CheckpointHead, CheckpointItem, CheckpointReader, keys};
use crate::stamp::Stamp;

/// A namespace with the commits that made it.
#[derive(Debug)]
pub struct LogView {
    pub(super) fold: Fold,
    pub(super) seen: HashSet<Stamp>,
    pub(super) chains: Chains,
    pub(super) missing: Missing,
}

impl LogView {
    /// Starts with nothing.
    pub fn new() -> Self {
        Self {
            fold: Fold::new(),
            seen: HashSet::new(),
            chains: Chains::default(),
            missing: Missing::default(),
        }
    }

    /// Reads a checkpoint.
    ///
    /// # Errors
    ///
    /// As [`CheckpointReader::new`] and [`CheckpointReader::next`].
    pub fn read(from: impl Read) -> Result<(CheckpointHead, Self)> {
        let mut reader = CheckpointReader::new(from)?;
        let (mut seen, mut chains) = (HashSet::new(), Vec::new());
        let (mut builder, mut early) = (Builder::new(), Vec::new());
        while let Some(item) = reader.next()? {
            match item {
                CheckpointItem::Commit(stamp) => drop(seen.insert(stamp)),
                CheckpointItem::Chain(chain) => chains.push(chain),
                CheckpointItem::Register(path, register, location) => {
                    if let Some(location) = location
                        && let Some((digest, _)) =
                            register.entry.as_ref().and_then(crate::namespace::Entry::content)
                    {
                        builder.locate(digest, &location);
                    }
                    builder.restore(&path, register);
                }
                CheckpointItem::Early(one) => early.push(one),
                CheckpointItem::Location(digest, location) => builder.locate(digest, &location),
            }
        }
        let mut fold = builder.finish();
        for one in early {
            let op = Op::Attrs { of: one.of, attrs: one.attrs };
            fold.apply(&Change { path: one.path, stamp: one.stamp, op }, Time::default());
        }
        let (chains, missing) = (Chains::of(&chains), Missing::default());
        Ok((*reader.head(), Self { fold, seen, chains, missing }))
    }

    /// Folds a commit of the log.
    pub fn apply(&mut self, commit: &Commit) {
        if !self.seen.insert(commit.stamp) {
            return;
        }
        self.missing.came(commit);
        self.missing.note_absent(Incarnation::of(commit), self.chains.lack_before(commit));
        self.chains.note(commit);
        let name = keys::commit_name(&commit.stamp);
        for blob in &commit.blobs {
            if let Some(location) = commit.location_of(&name, blob) {
                self.fold.locate(blob.digest, &location);
            }
        }
        for change in &commit.changes {
            self.fold.apply(change, Time::default());
        }
    }

    /// Returns the namespace.
    pub fn fold(&self) -> &Fold {
        &self.fold
    }

    /// Reports whether commits are missing before those that were folded.
    pub(super) fn is_partial(&self) -> bool {
        !self.missing.is_empty()
    }

    /// Reports whether a commit was folded.
    pub fn has(&self, stamp: &Stamp) -> bool {
        self.seen.contains(stamp)
    }
}

impl Default for LogView {
    fn default() -> Self {
        Self::new()
    }
}
