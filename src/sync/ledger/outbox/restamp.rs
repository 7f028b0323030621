//! Late changes: those that were published here long before they can be sent, and those whose
//! stamps are far ahead.
//!
//! Other nodes may have forgotten a tombstone that should override such a change. So the change is
//! sent under a new stamp, unless others know a later change of the path; then that change wins, as
//! it would have before. It may be one of this node: if a cache directory was restored from a copy,
//! its journal holds changes that were replaced long ago. If a node's clock was far ahead before it
//! learned the store's time, its stamps would win over those of all nodes for that long. Such
//! changes are sent under new stamps, too. Owns both decisions. Must never let a change of ours be
//! ordered before one that was published before it.

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
    /// The stamps of this node from this one on were given to late changes; `None` before the
    /// first. They do not replace what follows them in the journal.
    since: Option<Stamp>,
    /// The new stamps of contents, by the old ones that attribute changes name.
    anew: HashMap<Stamp, Stamp>,
}

impl Restamp {
    /// Reports whether a stamp of this node may have been given to a late change.
    pub(super) fn is_new(&self, stamp: Stamp) -> bool {
        self.since.is_some_and(|since| stamp >= since)
    }

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

    /// Gives the changes of a batch new stamps, and omits those that a later change of the path has
    /// replaced, as far as others know. The log must have been folded completely just before.
    /// Reports whether these are the first ones: then the next start must know of them before they
    /// are sent.
    pub(in crate::sync) fn stamp_anew(&self, batch: &mut Batch) -> bool {
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
        let is_first = late.since.is_none();
        late.since.get_or_insert_with(|| self.0.identity.stamps().next(now_ms));
        let puts = batch.contents();
        let (before, changes) = (batch.changes.len(), std::mem::take(&mut batch.changes));
        for mut change in changes {
            let register = fold.register(&change.path);
            let known = order.outbox.known_to_others(&change.path, || register.clone());
            let here = batch.paths.get(&change.path).copied().unwrap_or(0);
            let more = order.outbox.queue.changes(&change.path) > here;
            let goes = match order.outbox.apart.known_mut(&change.path) {
                // The shown version stays here, whatever is sent to other nodes.
                _ if self.is_replaced(&late, &change, known) => false,
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
        is_first
    }

    /// Checks whether late changes are among the records of the journal, or were when the earlier
    /// run ended. If so, all records get new stamps, because some may have got them already.
    pub(in crate::sync::ledger) fn find_late(&self, order: &mut Ordered, records: &[Record]) {
        let upto = self.0.disk.journal.last();
        let changes = records.iter().flat_map(|record| &record.changes);
        let mut changes = changes.filter(|change| !self.0.rules.stays_here(&change.path));
        let begun = records.first().is_some_and(|first| order.times.is_late(first.seq));
        if begun || changes.any(|change| self.0.reliance.is_late(change.stamp)) {
            let since = begun.then(Stamp::default);
            order.outbox.late = Some(Restamp { upto, since, ..Restamp::default() });
        }
    }

    /// Reports whether `known`, which others know of the path, is later than a change.
    fn is_replaced(&self, late: &Restamp, change: &Change, known: Option<Register>) -> bool {
        let is_ours = |stamp: Stamp| stamp.node == self.node() && late.is_new(stamp);
        let is_later = |stamp: Stamp| stamp > change.stamp && !is_ours(stamp);
        known.is_some_and(|known| match change.op {
            Op::Put(_) | Op::Remove => is_later(known.stamp),
            Op::Attrs { of, .. } => {
                known.stamp == late.now_of(of) && known.attr_stamp.is_some_and(is_later)
            }
        })
    }

    /// Gives one change a new stamp; returns false if its content is gone. `more`: later changes of
    /// the path wait.
    fn stamp_one(
        &self,
        fold: &mut Fold,
        late: &mut Restamp,
        register: Option<Register>,
        change: &mut Change,
        more: bool,
    ) -> bool {
        let old = change.stamp;
        let stamp = self.0.identity.stamps().next(self.now_ms());
        let now = Time::from_wall(self.0.clock.wall());
        if let Op::Attrs { of, .. } = &mut change.op {
            *of = late.now_of(*of);
            let Some(register) = register.filter(|register| register.stamp == *of) else {
                return false;
            };
            if stamp < old && register.attr_stamp == Some(old) {
                fold.reset(&change.path, Some(Register { attr_stamp: None, ..register }));
            }
            change.stamp = stamp;
            fold.apply(change, now);
            return true;
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
