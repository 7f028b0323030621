//! Builds a whole fold from stored registers.
//!
//! The result must always equal that of the calls of the same names on [`Fold`]; only time and memory differ.

use super::packed::PackedRecord;
use super::reach::InOrder;
use super::{Fold, Register};
use crate::digest::Digest;
use crate::name::TreePath;
use crate::namespace::location::Location;

/// Builds a fold, fast as long as registers come in path order.
#[derive(Debug, Default)]
pub struct Builder {
    fold: Fold,
    /// Registers that came in order. The fold already counts them but does not contain them yet.
    records: Vec<PackedRecord>,
    reach: InOrder,
    /// A register has come out of order; from then on everything goes directly into the fold.
    settled: bool,
}

impl Builder {
    /// Starts an empty builder.
    pub fn new() -> Self {
        Self::default()
    }

    /// As [`Fold::restore`]; fast if the path comes after all before it.
    pub fn restore(&mut self, path: &TreePath, register: Register) {
        if let Some(register) = self.append(path, register) {
            self.settle();
            self.fold.restore(path, &register);
        }
    }

    /// As [`Fold::reset`]; fast if the path comes after all before it.
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

    /// Looks contents up that the next calls will name. Each content lies somewhere else in memory, and
    /// a processor waits for many of these places at once only if it has nothing to do in between.
    pub fn look_at(&self, contents: impl Iterator<Item = Digest>) {
        let known = contents.filter(|digest| self.fold.places.uses(digest)).count();
        std::hint::black_box(known);
    }

    /// Appends a register if it is in order; returns it otherwise.
    fn append(&mut self, path: &TreePath, register: Register) -> Option<Register> {
        let last = self.records.last().map(PackedRecord::path);
        if self.settled || last.is_some_and(|last| last >= path.as_bytes()) {
            return Some(register);
        }
        let record = self.fold.take_in(path, &register);
        self.fold.may_cover |= self.reach.is_covered(&self.records, &record);
        self.records.push(record);
        None
    }

    /// As [`Fold::locate`].
    pub fn locate(&mut self, digest: Digest, location: &Location) {
        self.fold.locate(digest, location);
    }

    /// Replaces a known location, or removes it.
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
