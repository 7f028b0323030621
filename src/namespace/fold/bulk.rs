//! Building a fold at once from what was kept of one.
//!
//! Must never make another fold than the calls of the same names on [`Fold`] would, only sooner and
//! with less memory.

use super::packed::PackedRecord;
use super::{Fold, Register};
use crate::digest::Digest;
use crate::name::TreePath;
use crate::namespace::location::Location;

/// Builds a fold from registers that come in path order, as far as they do.
#[derive(Debug, Default)]
pub struct Builder {
    fold: Fold,
    /// What came in order, and is not in the fold yet although it is counted there.
    records: Vec<PackedRecord>,
    /// Something has come out of order: from then on the fold is what it is.
    settled: bool,
}

impl Builder {
    /// Starts with nothing.
    pub fn new() -> Self {
        Self::default()
    }

    /// As [`Fold::restore`]; soon done when the path comes after all before it.
    pub fn restore(&mut self, path: &TreePath, register: Register) {
        if let Some(register) = self.append(path, register) {
            self.settle();
            self.fold.restore(path, &register);
        }
    }

    /// As [`Fold::reset`]; soon done when the path comes after all before it.
    pub fn reset(&mut self, path: &TreePath, register: Option<Register>) {
        let rest = match register {
            Some(register) => match self.append(path, register) {
                Some(register) => Some(register),
                None => return,
            },
            None => None,
        };
        self.settle();
        self.fold.reset(path, rest);
    }

    /// Takes a register in order; gives it back if it is not.
    fn append(&mut self, path: &TreePath, register: Register) -> Option<Register> {
        let last = self.records.last().map(PackedRecord::path);
        if self.settled || last.is_some_and(|last| last >= path.as_bytes()) {
            return Some(register);
        }
        let record = self.fold.take_in(path, &register);
        self.records.push(record);
        None
    }

    /// As [`Fold::locate`].
    pub fn locate(&mut self, digest: Digest, location: &Location) {
        self.fold.locate(digest, location);
    }

    /// Puts a location, or none, in place of what was known.
    pub fn relocate(&mut self, digest: Digest, location: Option<&Location>) {
        if location.is_some_and(|location| self.fold.locate(digest, location)) {
            return;
        }
        self.fold.places.unlocate(&digest);
        if let Some(location) = location {
            self.fold.locate(digest, location);
        }
    }

    fn settle(&mut self) {
        if !self.settled {
            self.settled = true;
            self.fold.registers = std::mem::take(&mut self.records).into_iter().collect();
        }
    }

    /// Returns the fold.
    pub fn finish(mut self) -> Fold {
        self.settle();
        self.fold
    }
}
