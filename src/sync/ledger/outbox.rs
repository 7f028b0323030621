//! The outbox: what this node shows and other nodes do not know.
//!
//! Owns the changes that are pending for the store (`queue`), those that wait to be sent with
//! others (`touch`, `ride`), those that stay here (`apart`), those that were omitted because other
//! nodes had made them (`needless`), and the new stamps of late changes (`restamp`). For each path
//! with such changes it keeps what other nodes know instead. Must never lose this knowledge: a
//! snapshot, the index and `gc` rely on it where the namespace shows something else.

mod apart;
mod hold;
mod judge;
mod needless;
mod queue;
mod restamp;
mod ride;
mod touch;

use std::collections::HashSet;
use std::time::Duration;

use self::apart::{Apart, ApartReason};
pub use self::hold::{HOLD_MAX, HoldToken};
pub(super) use self::judge::{Split, Stays};
use self::needless::LeftOut;
use self::queue::Queue;
pub(super) use self::queue::{Hold, Weight};
pub(in crate::sync) use self::queue::{Outlook, PACKED_BELOW_BYTES};
use self::restamp::Restamp;
pub(in crate::sync) use self::touch::TOUCH_EVERY;
use self::touch::Touched;
use super::dirs::keep_dirs;
use super::{Ledger, Locked, Ordered, Pending};
use crate::digest::Digest;
use crate::error::{Error, Kind, Result};
use crate::local::{FactBatch, Seq};
use crate::name::TreePath;
use crate::namespace::{Change, Entry, Fold, Op, Register, Time};
use crate::stamp::Stamp;
use crate::sync::batch::Batch;
use crate::sync::doubts::Amends;
use crate::sync::room::PENDING_RECORDS_MAX;

/// From this many pending records, or bytes of changes (approximately), only removals are accepted:
/// a program that only makes names and changes attributes begins no file, so it is not slowed
/// earlier.
const RECORDS_MAX: u64 = 2 * PENDING_RECORDS_MAX;
const PENDING_META_BYTES_MAX: u64 = 256 << 20;
/// From this many bytes of the namespace in memory, only removals are accepted, too: about fifteen
/// million entries with usual paths.
const NAMESPACE_BYTES_MAX: u64 = 2 << 30;

/// What other nodes do not know, and what they know instead.
#[derive(Debug, Default)]
pub(super) struct Outbox {
    queue: Queue,
    apart: Apart,
    touched: Touched,
    left_out: LeftOut,
    /// Set while late changes are being sent.
    late: Option<Restamp>,
}

impl Outbox {
    /// Reports whether a path shows something that other nodes do not know, or not yet.
    pub(super) fn is_ahead(&self, path: &TreePath) -> bool {
        self.queue.has(path) || self.apart.has(path) || self.touched.has(path)
    }

    /// Reports whether a path has changes that are pending for the store.
    pub(super) fn is_queued(&self, path: &TreePath) -> bool {
        self.queue.has(path)
    }

    /// Reports whether a path shows a version that stays here, or waits to be sent with others.
    pub(super) fn is_apart(&self, path: &TreePath) -> bool {
        self.apart.has(path)
    }

    /// Reports whether a path shows a change of a private mount.
    pub(super) fn is_private(&self, path: &TreePath) -> bool {
        self.apart.why(path) == Some(ApartReason::Private)
    }

    /// Reports whether a path shows the change of a private mount with this stamp.
    pub(super) fn is_private_version(&self, path: &TreePath, stamp: Stamp) -> bool {
        self.apart.is_private(path, stamp)
    }

    /// Reports whether a private mount has changed any path.
    pub(super) fn has_private(&self) -> bool {
        self.apart.has_private()
    }

    /// Yields the paths after one, up to another, that a private mount has changed.
    pub(super) fn private_between<'a>(
        &'a self,
        after: &TreePath,
        upto: &TreePath,
    ) -> impl Iterator<Item = &'a TreePath> + use<'a> {
        self.apart.private_between(after, upto)
    }

    /// Reports whether other nodes may never need what a path shows: all of it is in the queue,
    /// which may omit it.
    pub(super) fn is_unheard(&self, path: &TreePath) -> bool {
        self.queue.is_private(path) && !self.apart.has(path)
    }

    /// Reports whether no version stays here, and none was replaced recently.
    pub(super) fn keeps_nothing(&self) -> bool {
        self.apart.is_empty()
    }

    /// Reports whether a stamp of this node may be a new one that a late change got. A change with
    /// it does not replace those that follow it in the queue.
    pub(super) fn is_new_stamp(&self, stamp: Stamp) -> bool {
        self.late.as_ref().is_some_and(|late| late.is_new(stamp))
    }

    /// Returns what other nodes know of a path that shows `shown`.
    pub(super) fn known_to_others(
        &self,
        path: &TreePath,
        shown: impl FnOnce() -> Option<Register>,
    ) -> Option<Register> {
        if self.queue.has(path) {
            self.queue.committed(path)
        } else if self.apart.has(path) {
            self.apart.known(path)
        } else if self.touched.has(path) {
            self.touched.known(path)
        } else {
            shown()
        }
    }

    /// Reports whether a content is part of what other nodes know of a path that shows something
    /// else, or may soon.
    pub(super) fn uses(&self, digest: &Digest) -> bool {
        self.queue.uses(digest) || self.apart.uses(digest) || self.touched.uses(digest)
    }

    /// Notes that a change is about to be applied to `fold` and queued.
    pub(super) fn track(&mut self, change: &Change, fold: &Fold) {
        if self.apart.has(&change.path) {
            // Other nodes do not know what is shown.
            let known = self.apart.known(&change.path);
            let is_known = known.as_ref().is_some_and(|known| known.entry.is_some());
            self.queue.track(change, known, is_known);
        } else {
            let shown = fold.register(&change.path);
            let is_known = match &shown {
                Some(shown) => shown.entry.is_some(),
                None => fold.knows(&change.path),
            };
            self.queue.track(change, shown, is_known);
        }
        if let Some(known) = self.touched.sent(&change.path) {
            self.queue.rebase(&change.path, Some(known));
        }
    }

    /// As [`Outbox::track`], for a change that an earlier run has left in the journal. `queued`
    /// holds the stamps of all changes that it has left.
    pub(super) fn track_again(&mut self, change: &Change, fold: &Fold, queued: &HashSet<Stamp>) {
        self.track(change, fold);
        self.queue.disown(&change.path, queued);
        // The earlier run may have sent it without noting that.
        self.queue.touch(&change.path);
    }

    /// Notes a change that other nodes know, unless it concerns a version that stays here. Returns
    /// whether changes of its path are pending.
    pub(super) fn hear(&mut self, change: &Change) -> bool {
        if !self.apart.has(&change.path) {
            self.touched.hear(change);
        }
        self.queue.hear(change)
    }

    /// Checks a change of another node that is shown now. Returns the changes that were omitted at
    /// its path, if they are later.
    pub(super) fn take_left_out(&mut self, change: &Change) -> Option<Vec<Change>> {
        self.left_out.hear(change)
    }

    /// Reports whether a change that stays here was replaced by one of another node before the
    /// journal released it.
    pub(super) fn is_gone(&self, change: &Change) -> bool {
        self.apart.is_gone(change)
    }

    /// Counts the changes that wait to be taken.
    pub(super) fn changes_left(&self) -> usize {
        self.queue.changes_left()
    }

    /// Adds what moved of the versions that stay here to a save, with their registers. `acked` is
    /// the last record that the journal has released. Reports whether anything moved.
    pub(super) fn save(&mut self, fold: &Fold, acked: Seq, batch: &mut FactBatch) -> bool {
        let moved = self.apart.take_moved(acked);
        for path in &moved {
            self.apart.save_path(path, batch);
            match fold.register(path).filter(|_| !self.is_unheard(path)) {
                Some(register) => batch.register(path, &register),
                None => batch.forget_register(path),
            }
        }
        !moved.is_empty()
    }

    /// Writes all versions that stay here for an index that is filled again. Their registers are
    /// written with those of all paths.
    pub(super) fn save_again(&mut self, acked: Seq, batch: &mut FactBatch) {
        self.apart.save_again(acked, batch);
    }

    /// Returns the register that the index gets for a path while it is filled.
    pub(super) fn filled(&self, path: &TreePath, shown: Register) -> Option<Register> {
        self.apart.filled(path, shown)
    }
}

impl Ledger {
    /// Refuses changes that would make the namespace or the queue exceed their bounds. Removals are
    /// always accepted: they make room.
    pub(super) fn check_bounds(&self, order: &Ordered, changes: &[Change]) -> Result<()> {
        if changes.iter().all(|change| change.op == Op::Remove) {
            return Ok(());
        }
        let full = |what: &str| Err(Error::new(Kind::NoSpace, format!("no room for more {what}")));
        if self.0.fold.read().bytes() > NAMESPACE_BYTES_MAX {
            return full("names and attributes");
        }
        let meta = order.outbox.queue.meta();
        if self.0.signs.room().records() > RECORDS_MAX || meta > PENDING_META_BYTES_MAX {
            return full("changes that are not yet remote");
        }
        Ok(())
    }

    /// Queues a record for the remote: it is in the journal, and its changes were tracked.
    pub(super) fn enqueue(
        &self,
        order: &mut Ordered,
        seq: Seq,
        changes: Vec<Change>,
        hold: Option<Hold>,
    ) {
        order.outbox.queue.push(seq, changes, self.0.clock.mono(), hold);
        self.note_totals(order);
        self.0.signs.wake();
    }

    /// Returns what is not yet remote, including contents that the store refuses.
    pub fn pending(&self) -> Pending {
        let (records, bytes, oldest) = self.0.order.lock().outbox.queue.totals();
        let waited = oldest.map_or(Duration::ZERO, |at| self.0.clock.mono().saturating_sub(at));
        let aside = self.aside();
        let (records, bytes) = (records + aside.contents, bytes + aside.bytes);
        Pending { records, bytes, oldest_ms: waited.as_millis() as u64 }
    }

    /// Counts records that wait for a batch, records that are held, and records in a batch; and
    /// contents that are set aside.
    pub(in crate::sync) fn stages(&self) -> (u64, u64, u64, u64) {
        let order = self.0.order.lock();
        let (queued, held, taken) = order.outbox.queue.stages(self.0.clock.mono(), HOLD_MAX);
        (queued, held, taken, order.aside.len())
    }

    /// Returns whether there is a batch to take; `enough` bytes for packs make one.
    pub(in crate::sync) fn outlook(&self, enough: u64) -> Outlook {
        let order = self.0.order.lock();
        match order.outbox.queue.outlook(self.0.clock.mono(), enough, HOLD_MAX) {
            Outlook::Nothing | Outlook::Held(_) if order.bad.has_amends() => Outlook::Open,
            outlook => outlook,
        }
    }

    /// Takes the next batch.
    pub(in crate::sync) fn take(&self) -> Option<Batch> {
        let now = self.0.clock.mono();
        let (taken, amends) = {
            let mut order = self.0.order.lock();
            let mut taken = order.outbox.queue.take(now, HOLD_MAX);
            if taken.is_none() && order.bad.has_amends() {
                taken = Some(order.outbox.queue.take_nothing(now));
            }
            (taken?, order.bad.take_amends())
        };
        // Without the lock: programs publish meanwhile.
        let mut batch = Batch::of(taken, amends);
        let mut order = self.0.order.lock();
        let resets = order.outbox.queue.settle(&mut batch);
        let mut fold = self.0.fold.write();
        self.locked(&mut order, &mut fold).board(&mut batch);
        for (path, removed, before) in resets {
            // A later change in the queue stays.
            if fold.register(&path).is_some_and(|register| register.stamp == removed) {
                fold.reset(&path, before);
            }
        }
        Some(batch)
    }

    /// Notes that some records of a private mount need not wait for the store. Returns false if
    /// none waits.
    pub(in crate::sync) fn settle_private(&self) -> bool {
        let now = self.0.clock.mono();
        let Some(taken) = self.0.order.lock().outbox.queue.take(now, HOLD_MAX) else {
            return false;
        };
        debug_assert!(taken.changes.is_empty(), "a private mount sends nothing");
        self.committed(&Batch::of(taken, Amends::default()), Vec::new(), None);
        true
    }

    /// Releases all held records.
    pub(in crate::sync) fn release_all(&self) {
        self.0.order.lock().outbox.queue.release_all();
        self.0.signs.wake();
    }

    /// Notes that other nodes know the changes of the oldest batch that was taken.
    pub(super) fn landed(&self, order: &mut Ordered, batch: &Batch) {
        order.outbox.queue.done(batch);
        if !batch.rides.is_empty() {
            self.locked(order, &mut self.0.fold.write()).rides_landed(batch);
        }
        order.outbox.apart.say(batch.upto);
        self.note_totals(order);
    }

    fn note_totals(&self, order: &Ordered) {
        let (records, bytes, _) = order.outbox.queue.totals();
        self.0.signs.room().note_pending(records, bytes);
    }
}

impl Locked<'_> {
    /// Notes that a change is about to be applied to the namespace and queued, in the record `seq`.
    pub(super) fn track(&mut self, seq: Seq, change: &Change) {
        self.order.outbox.track(change, self.fold);
        self.note_put(seq, &change.op);
    }

    /// Applies changes that are not remote, and those that never will be, to a namespace that
    /// replaces the `old` one. Times that were not sent yet are lost with the old one.
    pub(super) fn keep_own(&mut self, old: &Fold) {
        let Self { ledger, order, fold: new } = &mut *self;
        for path in order.own.paths().filter(|path| !order.outbox.apart.has(path)) {
            if let Some(register) = old.register(path) {
                new.reset(path, Some(register));
                keep_dirs(new, old, path);
            }
        }
        let outbox = &mut order.outbox;
        outbox.touched.clear();
        for path in outbox.queue.paths() {
            let (shown, remote) = (old.register(&path), outbox.queue.committed(&path));
            outbox.queue.rebase(&path, new.register(&path));
            if shown.as_ref().is_some_and(|shown| shown.entry.is_some()) {
                keep_dirs(new, old, &path);
            }
            let Some(shown) = shown.filter(|_| !outbox.apart.has(&path)) else { continue };
            let (content, attrs) = remote.map_or((None, None), |r| (Some(r.stamp), r.attr_stamp));
            if content != Some(shown.stamp) {
                new.restore(&path, &shown);
                let content = shown.entry.as_ref().and_then(Entry::content);
                if let Some((digest, _)) = content
                    && new
                        .stored_ms(&digest)
                        .is_none_or(|stored_ms| ledger.0.reliance.is_half_over(stored_ms))
                {
                    ledger.0.disk.blobs.mark_unsaved(&digest);
                }
            } else if let (Some(stamp), Some(entry)) = (shown.attr_stamp, shown.entry)
                && attrs != Some(stamp)
            {
                let op = Op::Attrs { of: shown.stamp, attrs: entry.attrs };
                new.apply(&Change { path, stamp, op }, Time::default());
            }
        }
        self.keep_apart(old);
    }
}
