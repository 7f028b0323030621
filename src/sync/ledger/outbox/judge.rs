//! The verdict on a record: which of its changes stay here.
//!
//! Owns that decision. A start must be able to repeat it from the contents of the record. Must
//! never separate the members of a unit that one record has put.

use std::collections::HashSet;

use super::Outbox;
use super::apart::{ApartReason, KeptApart, has_bytes};
use crate::local::Note;
use crate::namespace::{Change, Op};
use crate::sync::ledger::stay_rules::StayRules;

/// Which changes of a record stay here.
#[derive(Debug, Default)]
pub(in crate::sync::ledger) struct Stays {
    /// One flag for each change; empty if none stays.
    each: Vec<bool>,
    /// Why they stay, for the record.
    pub(in crate::sync::ledger) note: Note,
}

/// The changes of a record, by where they go.
#[derive(Debug, Default)]
pub(in crate::sync::ledger) struct Split {
    /// Changes that are sent.
    pub(in crate::sync::ledger) changes: Vec<Change>,
    /// Changes that stay here because of their names.
    pub(in crate::sync::ledger) own: Vec<Change>,
    /// Changes that stay here because of what they put.
    pub(in crate::sync::ledger) apart: Vec<Change>,
}

impl Stays {
    /// Reports whether the change at this index stays here.
    pub(in crate::sync::ledger) fn has(&self, number: usize) -> bool {
        self.each.get(number).copied().unwrap_or(false)
    }

    /// Splits the changes of the record into those that are sent and those that stay here.
    pub(in crate::sync::ledger) fn split(&self, rules: &StayRules, changes: Vec<Change>) -> Split {
        let mut split = Split::default();
        for (number, change) in changes.into_iter().enumerate() {
            if self.has(number) {
                split.apart.push(change);
            } else if rules.stays_here(&change.path) {
                split.own.push(change);
            } else {
                split.changes.push(change);
            }
        }
        split
    }
}

impl Outbox {
    /// Decides which changes of a record stay here: incomplete files, with their units, and
    /// attributes of versions that stay; on a private mount, all changes.
    pub(in crate::sync::ledger) fn judge(
        &self,
        rules: &StayRules,
        changes: &[Change],
        private: bool,
    ) -> Stays {
        if private {
            let each = changes.iter().map(|change| !rules.stays_here(&change.path)).collect();
            return Stays { each, note: Note { torn: Vec::new(), private } };
        }
        let is_empty = |change: &Change| matches!(&change.op, Op::Put(entry) if !has_bytes(entry));
        let whole = rules.knows_no_torn() && !changes.iter().any(is_empty);
        if !rules.is_shared() || (whole && self.apart.has_none()) {
            return Stays::default();
        }
        let mut stays = Stays::default();
        let mut stamps = HashSet::new();
        for change in changes {
            let stay = match &change.op {
                Op::Put(entry) if !rules.stays_here(&change.path) => {
                    let torn = rules.torn_by(&change.path, entry);
                    stays.note.torn.extend(torn);
                    torn.is_some()
                }
                Op::Attrs { of, .. } => {
                    let kept = self.apart.kept(&change.path);
                    // Other nodes may have the version whose attributes a private mount has
                    // changed.
                    let known = |kept: &KeptApart| {
                        let known = self.apart.known(&change.path).map(|known| known.stamp);
                        kept.why == ApartReason::Private && known == Some(*of)
                    };
                    kept.is_some_and(|kept| {
                        kept.why != ApartReason::Used && kept.stamp == *of && !known(kept)
                    })
                }
                _ => false,
            };
            if stay && rules.is_member(&change.path) {
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
