//! Drafts: a namespace that is built beside the one in use, or where there is none yet.
//!
//! Owns a fold, and which commits of the log were folded into it. Must never be shown before it is
//! complete.

use std::collections::HashSet;
use std::io::Read;

use super::folded_log::{FoldedLog, Intake, fold_commit};
use crate::digest::Digest;
use crate::error::Result;
use crate::namespace::{Builder, Change, Commit, Fold, Location, Op, Time};
use crate::remote::{CheckpointHead, CheckpointItem, CheckpointReader};
use crate::stamp::Stamp;

/// A namespace with the commits that made it.
#[derive(Debug, Default)]
pub struct LogView {
    fold: Fold,
    log: FoldedLog,
}

impl LogView {
    /// Makes an empty one.
    pub fn new() -> Self {
        Self::default()
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
        Ok((*reader.head(), Self { fold, log: FoldedLog::of(seen, &chains) }))
    }

    /// Reads the names of the commits in a checkpoint, and nothing else of it.
    ///
    /// # Errors
    ///
    /// As [`LogView::read`].
    pub(super) fn read_names(from: impl Read) -> Result<Self> {
        let mut reader = CheckpointReader::new(from)?;
        let mut names = HashSet::new();
        while let Some(item) = reader.next()? {
            if let CheckpointItem::Commit(stamp) = item {
                names.insert(stamp);
            }
        }
        Ok(Self { fold: Fold::new(), log: FoldedLog::of(names, &[]) })
    }

    /// Folds a commit of the log.
    pub fn apply(&mut self, commit: &Commit) {
        fold_commit(commit, self);
    }

    /// Returns the namespace.
    pub fn fold(&self) -> &Fold {
        &self.fold
    }

    /// Returns what was folded of the log.
    pub(super) fn log(&self) -> &FoldedLog {
        &self.log
    }

    /// As [`LogView::log`], but allows noting commits that could not be folded.
    pub(super) fn log_mut(&mut self) -> &mut FoldedLog {
        &mut self.log
    }

    /// Reports whether a commit was folded.
    pub fn has(&self, stamp: &Stamp) -> bool {
        self.log.has(stamp)
    }

    /// Takes it apart into the fold and the folded log.
    pub(super) fn into_parts(self) -> (Fold, FoldedLog) {
        (self.fold, self.log)
    }
}

impl Intake for LogView {
    fn folded(&mut self) -> &mut FoldedLog {
        &mut self.log
    }

    fn locate(&mut self, digest: Digest, location: Location) {
        self.fold.locate(digest, &location);
    }

    fn change(&mut self, change: &Change) {
        self.fold.apply(change, Time::default());
    }
}
