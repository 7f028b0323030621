//! What may be shown: its bytes can be had, and it is not past its age.
//!
//! Owns the question for all code that answers programs, and the memory of contents that a record not yet
//! remote puts: these have no age. Must never let an outage of the store make a difference.
//!
//! Keeps P11 expiry.

use std::collections::HashMap;
use std::time::Duration;

use parking_lot::Mutex;

use super::{Ledger, Order};
use crate::digest::Digest;
use crate::local::Seq;
use crate::name::TreePath;
use crate::namespace::{Age, Entry, Fold, Living, Location, Op};
use crate::remote::Remote;

/// A location that is known is relied on for a new entry only this long after it was stored, or after a list of the log
/// began that showed the content in use: what is not used may be deleted in the store an hour later.
pub(super) const REUSE_WITHIN: Duration = Duration::from_mins(10);
/// Clocks differ by less than this: what was stored further ahead says nothing about its age.
const AHEAD_MAX: Duration = Duration::from_mins(1);

/// A content that a record puts which is not yet remote.
#[derive(Debug, Clone, Copy)]
struct PutContent {
    /// The last record that puts it.
    last: Seq,
    /// Some other entry pointed to it, ...
    shared: bool,
    /// ... as the log said at this time of the monotonic clock.
    at: Duration,
}

/// The contents that records put which are not yet remote.
#[derive(Debug, Default)]
pub(super) struct Unsent(Mutex<HashMap<Digest, PutContent>>);

impl Unsent {
    /// Notes that a record puts a content. `in_use` is when the log was listed that shows it in use by others, if it
    /// does.
    pub(super) fn note(&self, seq: Seq, digest: Digest, in_use: Option<Duration>) {
        let mut puts = self.0.lock();
        match puts.get_mut(&digest) {
            // What only records that wait point to is in no use in the store, so this one proves nothing new.
            Some(put) => put.last = seq,
            None => {
                let (shared, at) = (in_use.is_some(), in_use.unwrap_or_default());
                puts.insert(digest, PutContent { last: seq, shared, at });
            }
        }
    }

    /// Notes that the records up to one are remote, which put these contents.
    pub(super) fn sent(&self, upto: Seq, contents: impl Iterator<Item = Digest>, at: Duration) {
        let mut puts = self.0.lock();
        for digest in contents {
            match puts.get_mut(&digest) {
                Some(put) if put.last <= upto => drop(puts.remove(&digest)),
                // What was just sent uses it until what waits is sent too.
                Some(put) => (put.shared, put.at) = (true, at),
                None => {}
            }
        }
    }

    /// Reports whether a record puts a content that is not yet remote.
    pub(super) fn has(&self, digest: &Digest) -> bool {
        self.0.lock().contains_key(digest)
    }

    /// Reports whether a content was in use by others, a moment ago.
    fn is_shared(&self, digest: &Digest, now: Duration) -> bool {
        self.0.lock().get(digest).is_some_and(|put| put.shared && within(put.at, now))
    }
}

fn within(at: Duration, now: Duration) -> bool {
    now.saturating_sub(at) < REUSE_WITHIN
}

impl Ledger {
    /// Returns how long what is stored serves. Without a remote nothing ever expires.
    pub fn age(&self) -> Age {
        self.0.remote.as_ref().map_or(Age::NEVER, |remote| Age::of(remote.effective_expiry()))
    }

    /// Returns for how long what is known has to be kept although this node may show less: other nodes show
    /// it for so long.
    pub(in crate::sync) fn kept_age(&self) -> Age {
        self.0.remote.as_ref().map_or(Age::NEVER, |remote| Age::of(remote.kept_expiry()))
    }

    /// Returns for how much longer what a path has may be shown; `None` when it must not be: its bytes are
    /// neither here nor anywhere known, or it is past its age. `changed_ms` is the time of the register's
    /// last change; `None` for a directory that was never made. `fold` is the one that [`Ledger::read`] gives.
    pub fn shown(
        &self,
        fold: &Fold,
        path: &TreePath,
        entry: &Entry,
        changed_ms: Option<u64>,
    ) -> Option<Duration> {
        if self.hidden_in(fold, entry) {
            None
        } else {
            self.living_left(fold, path, entry, changed_ms)
        }
    }

    /// As [`Ledger::shown`], whether or not its bytes can be had.
    pub fn living_left(
        &self,
        fold: &Fold,
        path: &TreePath,
        entry: &Entry,
        changed_ms: Option<u64>,
    ) -> Option<Duration> {
        self.living(fold, |living| living.left(path, entry, changed_ms))
    }

    /// Returns for how much longer the bytes of an entry serve that was changed at `changed_ms`; `None`
    /// when they are past their age. What has no bytes is not asked here.
    pub fn content_left(&self, entry: &Entry, changed_ms: u64) -> Option<Duration> {
        let Some((digest, _)) = entry.content().filter(|(_, size)| *size > 0) else {
            return Some(Duration::MAX);
        };
        if self.age().is_endless() {
            return Some(Duration::MAX);
        }
        let fold = self.0.fold.read_recursive();
        self.living(&fold, |living| living.left_of(&digest, changed_ms))
    }

    /// Reports whether a record that puts a content is not yet remote.
    pub fn is_unsent(&self, digest: &Digest) -> bool {
        self.0.unsent.has(digest)
    }

    /// Looks at the namespace as it is now.
    pub(super) fn living<R>(&self, fold: &Fold, look: impl FnOnce(&Living<'_>) -> R) -> R {
        let (age, pending) = (self.age(), |digest: &Digest| self.0.unsent.has(digest));
        // Where nothing expires, the time is not asked for.
        let now_ms = if age.is_endless() { 0 } else { self.now_ms() };
        look(&Living { fold, age, now_ms, pending: &pending })
    }

    /// Reports whether what was stored at a time is past its age.
    pub(in crate::sync) fn is_expired(&self, stored_ms: u64) -> bool {
        let age = self.age();
        !age.is_endless() && age.left(stored_ms, self.now_ms()).is_none()
    }

    /// Reports whether half of the age is over of what was stored at a time.
    pub(in crate::sync) fn is_half_over(&self, stored_ms: u64) -> bool {
        let age = self.age();
        !age.is_endless() && age.is_half_over(stored_ms, self.now_ms())
    }

    /// Reports whether what was stored at a time should be stored again if it is used: half of its age is
    /// over, and it still serves.
    pub(in crate::sync) fn grows_old(&self, stored_ms: u64) -> bool {
        self.is_half_over(stored_ms) && !self.is_expired(stored_ms)
    }

    /// Reports whether a new entry may rely on a location that is known. It must last, and nothing may be
    /// about to delete it because no entry uses it: so it is too young for that, or other entries use the content, as
    /// far as the log tells.
    pub(in crate::sync) fn may_reuse(&self, digest: &Digest, location: &Location) -> bool {
        !self.is_unsure(digest, location.stored_ms)
            && (self.is_young(location.stored_ms)
                || self.0.unsent.is_shared(digest, self.0.clock.mono()))
    }

    /// Reports whether what was stored at a time is so young that nothing deletes it for most of the grace time, whether
    /// or not an entry uses it.
    pub(in crate::sync) fn is_young(&self, stored_ms: u64) -> bool {
        let now_ms = self.now_ms();
        let reuse_ms = REUSE_WITHIN.as_millis() as u64;
        // Our own clock may be far behind the store's.
        self.0.remote.as_ref().is_some_and(Remote::knows_time)
            && stored_ms <= now_ms.saturating_add(AHEAD_MAX.as_millis() as u64)
            && stored_ms.saturating_add(reuse_ms) > now_ms
    }

    /// Reports whether the log was listed so short a time ago.
    pub(in crate::sync) fn has_listed(&self, within: Duration) -> bool {
        let now = self.0.clock.mono();
        self.0.listed.lock().is_some_and(|at| now.saturating_sub(at) < within)
    }

    /// Notes what a record puts before it is applied: it keeps the bytes that the remote does not have, or
    /// not for long, from eviction.
    pub(super) fn note_put(&self, seq: Seq, order: &Order, fold: &Fold, op: &Op) {
        let Op::Put(entry) = op else { return };
        let Some((digest, _)) = entry.content().filter(|(_, size)| *size > 0) else { return };
        // What a path of this node alone has, no other node need have.
        let in_use = fold.uses(&digest) && !order.own.holds(&digest) && !order.outbox.has_private();
        let listed = *self.0.listed.lock();
        self.0.unsent.note(seq, digest, listed.filter(|_| in_use));
        if fold.stored_ms(&digest).is_none_or(|stored_ms| self.is_unsure(&digest, stored_ms)) {
            self.0.blobs.mark_unsaved(&digest);
        }
    }
}
