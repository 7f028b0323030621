//! Building a fold at once from what was kept of one.
//!
//! Must never make another fold than [`Fold::restore`] and [`Fold::locate`] would, only sooner and
//! with less memory.

use super::packed::Record;
use super::{Fold, Register};
use crate::digest::Digest;
use crate::name::TreePath;
use crate::namespace::location::Location;

/// Builds a fold from registers that come in path order.
#[derive(Debug, Default)]
pub struct Builder {
    /// Without registers as yet.
    fold: Fold,
    records: Vec<Record>,
    /// What came out of order.
    late: Vec<(TreePath, Register)>,
}

impl Builder {
    /// Starts with nothing.
    pub fn new() -> Self {
        Self::default()
    }

    /// As [`Fold::restore`]; soon done when the path comes after all that were restored before.
    pub fn restore(&mut self, path: &TreePath, register: Register) {
        if self.records.last().is_some_and(|last| last.path() >= path.as_bytes()) {
            self.late.push((path.clone(), register));
        } else {
            let record = self.fold.take_in(path, &register);
            self.records.push(record);
        }
    }

    /// As [`Fold::locate`].
    pub fn locate(&mut self, digest: Digest, location: &Location) {
        self.fold.locate(digest, location);
    }

    /// Returns the fold.
    pub fn finish(mut self) -> Fold {
        self.fold.registers = self.records.into_iter().collect();
        for (path, register) in self.late {
            self.fold.restore(&path, &register);
        }
        self.fold
    }
}
