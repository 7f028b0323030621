//! Late changes: those that were published here long before they can be sent, and those whose
//! stamps are far ahead.
//!
//! Other nodes may have forgotten a tombstone that should override such a change. So the change is
//! sent under a new stamp, unless another node has changed the path meanwhile; then that change
//! wins, as it would have before. If a node's clock was far ahead before it learned the store's
//! time, its stamps would win over those of all nodes for that long. Such changes are sent under
//! new stamps, too. Owns both decisions. Must never let a change of ours be ordered before one that
//! was published before it.

use std::collections::HashMap;

use crate::local::{Record, Seq};
use crate::namespace::{Change, Fold, Op, Register, Time};
use crate::stamp::{MAX_AHEAD_MS, Stamp};
use crate::sync::batch::Batch;
use crate::sync::ledger::{Ledger, Ordered};

/// The state while late changes are being sent.
#[derive(Debug, Default)]
pub(super) struct Restamp {
    /// The last record that was published when the first late one was sent: all records up to it
    /// get new stamps, so that they stay in order.
    upto: Seq,
    /// The last record that has got its new stamps.
    done: Seq,
    /// The new stamps of contents, by the old ones that attribute changes name.
    anew: HashMap<Stamp, Stamp>,
}

impl Restamp {
    /// Returns the present stamp of a content: it may have got a new one more than once.
    fn now_of(&self, mut stamp: Stamp) -> Stamp {
        // Each new stamp is made after the one before and never again, so this ends.
        while let Some(anew) = self.anew.get(&stamp) {
            stamp = *anew;
        }
        stamp
    }
}

impl Ledger {
    /// Reports whether a batch needs new stamps before it is sent: a change in it is late, or one
    /// before it was.
    pub(in crate::sync) fn is_late(&self, batch: &Batch) -> bool {
        let follows_late =
            || self.0.order.lock().outbox.late.as_ref().is_some_and(|late| late.done < batch.upto);
        batch.changes.iter().any(|change| self.0.reliance.is_late(change.stamp))
            || (!batch.changes.is_empty() && follows_late())
    }

    /// Gives the changes of a batch new stamps, and omits those whose path another node has changed
    /// since. The log must have been folded completely just before.
    pub(in crate::sync) fn stamp_anew(&self, batch: &mut Batch) {
        let mut order = self.0.order.lock();
        let mut fold = self.0.fold.write();
        let last = self.0.disk.journal.last();
        let (now_ms, near_ms) = (self.now_ms(), self.now_ms().saturating_add(MAX_AHEAD_MS));
        // Searching the namespace takes time, and is needed once.
        if self.0.identity.stamps().is_far_ahead(now_ms) {
            self.0
                .identity
                .stamps()
                .come_back(now_ms, fold.stamps().filter(|s| s.ms <= near_ms).max());
        }
        let mut late =
            order.outbox.late.take().unwrap_or(Restamp { upto: last, ..Restamp::default() });
        let puts = batch.contents();
        let (before, changes) = (batch.changes.len(), std::mem::take(&mut batch.changes));
        for mut change in changes {
            let register = fold.register(&change.path);
            let here = batch.paths.get(&change.path).copied().unwrap_or(0);
            let more = order.outbox.queue.changes(&change.path) > here;
            let goes = match order.outbox.apart.known_mut(&change.path) {
                // The shown version stays here, whatever is sent to other nodes.
                Some((known, register)) => {
                    self.stamp_one(known, &mut late, register, &mut change, more)
                }
                None => self.stamp_one(&mut fold, &mut late, register, &mut change, more),
            };
            if goes {
                batch.changes.push(change);
            }
        }
        let left = batch.contents();
        let gone = puts.into_iter().filter(|put| !left.contains(put));
        batch.dropped.extend(gone.map(|(digest, _)| digest));
        late.done = batch.upto;
        order.times.note_late(late.upto);
        order.outbox.late = (batch.upto < late.upto).then_some(late);
        let superseded = before - batch.changes.len();
        tracing::info!(
            changes = before,
            superseded,
            "changes that waited very long, or were stamped far ahead, are sent with new stamps"
        );
    }

    /// Checks whether late changes are among the records of the journal, or were when the earlier
    /// run ended. If so, all records get new stamps, because some may have got them already.
    pub(in crate::sync::ledger) fn find_late(&self, order: &mut Ordered, records: &[Record]) {
        let upto = self.0.disk.journal.last();
        let changes = records.iter().flat_map(|record| &record.changes);
        let mut changes = changes.filter(|change| !self.0.rules.stays_here(&change.path));
        let begun = records.first().is_some_and(|first| order.times.is_late(first.seq));
        if begun || changes.any(|change| self.0.reliance.is_late(change.stamp)) {
            order.outbox.late = Some(Restamp { upto, ..Restamp::default() });
        }
    }

    /// Gives one change a new stamp; returns false if the change is superseded. `more`: later
    /// changes of the path wait.
    fn stamp_one(
        &self,
        fold: &mut Fold,
        late: &mut Restamp,
        register: Option<Register>,
        change: &mut Change,
        more: bool,
    ) -> bool {
        let (old, own) = (change.stamp, self.node());
        let stamp = self.0.identity.stamps().next(self.now_ms());
        let now = Time::from_wall(self.0.clock.wall());
        let lost_to = |stamp: Stamp| stamp > old && stamp.node != own;
        if let Op::Attrs { of, .. } = &mut change.op {
            *of = late.now_of(*of);
            let Some(register) = register.filter(|register| register.stamp == *of) else {
                return false;
            };
            if register.attr_stamp.is_some_and(lost_to) {
                return false;
            }
            if stamp < old && register.attr_stamp == Some(old) {
                fold.reset(&change.path, Some(Register { attr_stamp: None, ..register }));
            }
            change.stamp = stamp;
            fold.apply(change, now);
            return true;
        }
        if register.as_ref().is_some_and(|register| lost_to(register.stamp)) {
            return false;
        }
        // The members of a unit have one stamp, and get one new stamp.
        let stamp = *late.anew.entry(old).or_insert(stamp);
        change.stamp = stamp;
        // A later change of ours stays visible here.
        let shown = register.filter(|register| register.stamp == old);
        if shown.is_some() && stamp < old {
            // The new stamp is lower, and would lose to the old one.
            fold.reset(&change.path, None);
        }
        if shown.is_some() || !more {
            fold.apply(change, now);
        }
        if let Some(Register { attr_stamp: Some(_), entry: Some(entry), .. }) = shown {
            let op = Op::Attrs { of: stamp, attrs: entry.attrs };
            let stamp = self.0.identity.stamps().next(self.now_ms());
            fold.apply(&Change { path: change.path.clone(), stamp, op }, now);
        }
        true
    }
}
