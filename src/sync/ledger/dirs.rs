//! The directories above what is sent: other nodes may have forgotten them, because nothing below
//! them was left to be served.
//!
//! Owns what is kept and sent of them, so that a file which waited here never becomes visible below
//! a directory with another owner and mode than its writer saw.
//!
//! Keeps P14 isolation.

use std::collections::HashSet;

use super::Ledger;
use super::save::changes_of;
use crate::name::TreePath;
use crate::namespace::{Change, Entry, Fold, Op};
use crate::sync::ledger::RECORD_CHANGES_MAX;

impl Ledger {
    /// Returns the changes that have made the directories above what `changes` put, as far as these
    /// directories are past their age. They keep their stamps, so they change nothing on a node
    /// that still has them.
    pub(in crate::sync) fn dirs_above(&self, changes: &[Change]) -> Vec<Change> {
        let (mut seen, mut above) = (HashSet::new(), Vec::new());
        if self.0.reliance.age().is_endless() {
            return above;
        }
        let order = self.0.order.lock();
        let fold = self.0.fold.read();
        for change in changes.iter().filter(|change| matches!(change.op, Op::Put(_))) {
            // Directories come before what they hold.
            let mut dirs: Vec<_> =
                parents(&change.path).filter(|dir| seen.insert(dir.clone())).collect();
            dirs.reverse();
            for dir in dirs.iter().filter(|dir| !self.0.rules.stays_here(dir)) {
                let known = order.outbox.known_to_others(dir, || fold.register(dir));
                let is_due = known.as_ref().is_some_and(|known| {
                    known.entry.as_ref().is_some_and(Entry::is_directory)
                        && self.0.reliance.is_expired(known.changed_ms())
                });
                if let Some(known) = known.filter(|_| is_due) {
                    above.extend(changes_of(dir, &known));
                }
            }
        }
        // One commit must hold all.
        above.truncate(RECORD_CHANGES_MAX.saturating_sub(changes.len()));
        above
    }
}

/// Copies to `new` the directories above a path of which it knows nothing.
pub(super) fn keep_dirs(new: &mut Fold, old: &Fold, path: &TreePath) {
    for dir in parents(path) {
        let register = old.register(&dir).filter(|_| new.register(&dir).is_none());
        if register.as_ref().is_some_and(|one| one.entry.as_ref().is_some_and(Entry::is_directory))
        {
            new.reset(&dir, register);
        }
    }
}

/// Yields the directories above a path, the nearest first, without the root.
fn parents(path: &TreePath) -> impl Iterator<Item = TreePath> {
    std::iter::successors(path.parent(), TreePath::parent).filter(|dir| !dir.is_root())
}
