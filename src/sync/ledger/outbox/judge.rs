//! The verdict on a record: which of its changes stay here.
//!
//! Owns that decision, which a start has to repeat from what the record says. Must never part the members of a unit that one
//! record has put.

use std::collections::HashSet;

use super::apart::{ApartReason, KeptApart, has_bytes};
use crate::local::Note;
use crate::namespace::{Change, Op};
use crate::sync::ledger::{Ledger, Ordered};

/// Which changes of a record stay here.
#[derive(Debug, Default)]
pub(in crate::sync::ledger) struct Stays {
    /// One for each change; empty where none does.
    each: Vec<bool>,
    /// Why they do, for the record.
    pub(in crate::sync::ledger) note: Note,
}

impl Stays {
    /// Reports whether the change with a number stays here.
    pub(in crate::sync::ledger) fn has(&self, number: usize) -> bool {
        self.each.get(number).copied().unwrap_or(false)
    }
}

impl Ledger {
    /// Decides which changes of a record stay here: what is not complete, with the unit it belongs to, and attributes of
    /// what stays; on a private mount all.
    pub(in crate::sync::ledger) fn judge(
        &self,
        order: &Ordered,
        changes: &[Change],
        private: bool,
    ) -> Stays {
        if private {
            let each =
                changes.iter().map(|change| !self.0.rules.stays_here(&change.path)).collect();
            return Stays { each, note: Note { torn: Vec::new(), private } };
        }
        let is_empty = |change: &Change| matches!(&change.op, Op::Put(entry) if !has_bytes(entry));
        let whole = self.0.rules.knows_no_torn() && !changes.iter().any(is_empty);
        if self.0.remote.is_none() || (whole && order.outbox.apart.has_none()) {
            return Stays::default();
        }
        let mut stays = Stays::default();
        let mut stamps = HashSet::new();
        for change in changes {
            let stay = match &change.op {
                Op::Put(entry) if !self.0.rules.stays_here(&change.path) => {
                    let torn = self.0.rules.torn_by(&change.path, entry);
                    stays.note.torn.extend(torn);
                    torn.is_some()
                }
                Op::Attrs { of, .. } => {
                    let kept = order.outbox.apart.kept(&change.path);
                    // Others may have the version whose attributes a private mount has changed.
                    let known = |kept: &KeptApart| {
                        let known = order.outbox.apart.known(&change.path).map(|known| known.stamp);
                        kept.why == ApartReason::Private && known == Some(*of)
                    };
                    kept.is_some_and(|kept| {
                        kept.why != ApartReason::Used && kept.stamp == *of && !known(kept)
                    })
                }
                _ => false,
            };
            if stay && self.0.rules.is_member(&change.path) {
                stamps.insert(change.stamp);
            }
            stays.each.push(stay);
        }
        for (stay, change) in stays.each.iter_mut().zip(changes) {
            // Nothing else in a record shares a stamp.
            *stay |= stamps.contains(&change.stamp);
        }
        stays
    }
}
