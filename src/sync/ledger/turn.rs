//! A turn to publish: first the journal, then the namespace.
//!
//! Owns the order of these two steps. A caller with its own state to keep in step checks that state
//! while it holds the turn, writes without its own lock, and applies under that lock. So no change
//! of this node or of another comes in between, and no thread waits for the disk behind the
//! caller's lock.

use parking_lot::MutexGuard;

use super::outbox::{Hold, HoldToken, Split, Stays, Weight};
use super::{Ledger, Ordered, RECORD_CHANGES_MAX, RECORD_META_BYTES_MAX};
use crate::error::{Error, Kind, Result};
use crate::local::Seq;
use crate::name::TreePath;
use crate::namespace::{Change, Op, Time};
use crate::stamp::Stamp;

/// The right to publish next. Lock order: a turn comes before every lock of its holder.
#[must_use]
pub struct Turn<'a> {
    ledger: &'a Ledger,
    order: MutexGuard<'a, Ordered>,
}

/// Changes that are in the journal and not yet in the namespace. They must be applied.
#[must_use]
pub struct Written<'a> {
    turn: Turn<'a>,
    record: Option<(Seq, Vec<Change>, Stays)>,
    stamps: Vec<Stamp>,
    hold: Option<Hold>,
}

impl Ledger {
    /// Takes the turn to publish, once no other thread has it.
    pub fn begin(&self) -> Turn<'_> {
        Turn { ledger: self, order: self.0.order.lock() }
    }
}

impl<'a> Turn<'a> {
    /// Writes one atomic group of changes to the journal, unless all of it is in effect already.
    ///
    /// # Errors
    ///
    /// `NoSpace` if the disk is full or a bound is reached, `Invalid` for more than
    /// [`RECORD_CHANGES_MAX`] changes. Nothing was published then.
    pub fn write(mut self, ops: Vec<(TreePath, Op)>) -> Result<Written<'a>> {
        let standing = self.ledger.standing(&self.order, &self.ledger.0.fold.read(), &ops);
        if let Some(stamps) = standing {
            return Ok(Written { turn: self, record: None, stamps, hold: None });
        }
        let changes = self.stamped(ops);
        let meta = Weight::of(&changes).meta;
        if changes.len() > RECORD_CHANGES_MAX || meta > RECORD_META_BYTES_MAX {
            let op = format!("publish {} changes of {meta} bytes at once", changes.len());
            return Err(Error::new(Kind::Invalid, op));
        }
        self.ledger.check_bounds(&self.order, &changes)?;
        let inner = &self.ledger.0;
        let stays = self.order.outbox.judge(&inner.rules, &changes, self.ledger.is_private());
        let tier_bytes = inner.disk.blobs.usage().limit;
        self.order.own.check(&inner.rules, tier_bytes, &changes, &stays)?;
        let seq = self.ledger.0.disk.journal.append_with(&changes, &stays.note)?;
        let stamps = changes.iter().map(|change| change.stamp).collect();
        Ok(Written { turn: self, record: Some((seq, changes, stays)), stamps, hold: None })
    }

    /// Gives each change its stamp. The lock of the namespace is released before anything else
    /// reads it: another read by this thread would wait for a writer that waits for this one.
    ///
    /// All members of units in one record have one stamp. So two versions of a unit cannot mix on
    /// any node: every name that both put goes to the same version. No other two changes share a
    /// stamp: where changes get new stamps, the old ones identify them.
    fn stamped(&mut self, ops: Vec<(TreePath, Op)>) -> Vec<Change> {
        let now_ms = self.ledger.now_ms();
        let stamps = self.ledger.0.identity.stamps();
        let fold = self.ledger.0.fold.read();
        let several = ops.len() > 1;
        let given = &mut self.order.given;
        let mut behind = |last: Option<Stamp>| given.behind(stamps.next(now_ms), last);
        let own = self.ledger.node();
        let last = |path: &TreePath| {
            let last = fold.register(path).map(|register| register.last_stamp());
            last.filter(|last| last.node == own)
        };
        let is_member = |path: &TreePath| several && self.ledger.0.rules.is_member(path);
        let members: Vec<bool> = ops.iter().map(|(path, _)| is_member(path)).collect();
        let of_members = ops.iter().zip(&members).filter(|(_, member)| **member);
        let last_of_members = of_members.filter_map(|((path, _), _)| last(path)).max();
        let shared = members.contains(&true).then(|| behind(last_of_members));
        let stamped = ops.into_iter().zip(members).map(|((path, op), member)| {
            let stamp = match shared.filter(|_| member) {
                Some(shared) => shared,
                None => behind(last(&path)),
            };
            Change { path, stamp, op }
        });
        stamped.collect()
    }
}

impl Written<'_> {
    /// Keeps the record, and all later ones, from the remote until the token is dropped, for at
    /// most [`super::HOLD_MAX`].
    pub fn hold(&mut self) -> HoldToken {
        let hold = self.hold.get_or_insert_with(Hold::new).clone();
        HoldToken::new(self.turn.ledger.clone(), hold)
    }

    /// Reports whether all of it was in effect already, so that nothing was written.
    pub fn is_nothing(&self) -> bool {
        self.record.is_none()
    }

    /// Brings the changes into the namespace and queues them for the remote. Returns their stamps,
    /// or those of the existing changes.
    pub fn apply(mut self) -> Vec<Stamp> {
        let stamps = std::mem::take(&mut self.stamps);
        let Some((seq, changes, stays)) = self.record.take() else { return stamps };
        let (ledger, order) = (self.turn.ledger, &mut *self.turn.order);
        let now = Time::from_wall(ledger.0.clock.wall());
        let shared = ledger.0.remote.is_some();
        let private = stays.note.private;
        let Split { mut changes, own, apart } = stays.split(&ledger.0.rules, changes);
        {
            let mut fold = ledger.0.fold.write();
            let mut locked = ledger.locked(order, &mut fold);
            changes.retain(|change| {
                if shared {
                    if locked.take_touch(change, now) || locked.take_ride((seq, change), now) {
                        return false;
                    }
                    locked.track(seq, change);
                }
                locked.fold.apply(change, now);
                if shared {
                    locked.replace_apart(change);
                } else {
                    ledger.0.rules.forget_alone(locked.fold, change);
                }
                true
            });
            // After the changes that are sent: they may put a content that a path of this node
            // alone releases.
            for change in &own {
                locked.apply_own(change, now);
            }
            for change in &apart {
                locked.apply_apart((seq, change), private, now);
            }
            // Before other threads can read it.
            ledger.0.listeners.count_record();
        }
        if shared {
            // A record of which nothing is sent is queued too, so that the journal releases it in
            // order.
            let hold = self.hold.take().filter(|_| !changes.is_empty());
            ledger.enqueue(order, seq, changes, hold);
        }
        stamps
    }
}

impl std::fmt::Debug for Turn<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Turn").finish_non_exhaustive()
    }
}

impl std::fmt::Debug for Written<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Written").field("record", &self.record).finish_non_exhaustive()
    }
}
