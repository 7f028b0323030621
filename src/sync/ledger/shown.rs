//! What may be shown: its bytes can be had, and it is not past its age.
//!
//! Owns the question for all code that answers programs. Must never let an outage of the store make a difference.
//!
//! Keeps P11 expiry.

use std::time::Duration;

use super::reliance::REUSE_WITHIN;
use super::{Ledger, Ordered};
use crate::digest::Digest;
use crate::local::Seq;
use crate::name::TreePath;
use crate::namespace::{Age, Entry, Fold, Living, Location, Op};
use crate::remote::Remote;

/// Clocks differ by less than this: what was stored further ahead says nothing about its age.
const AHEAD_MAX: Duration = Duration::from_mins(1);

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
        self.0.reliance.is_unsent(digest)
    }

    /// Looks at the namespace as it is now.
    pub(super) fn living<R>(&self, fold: &Fold, look: impl FnOnce(&Living<'_>) -> R) -> R {
        let (age, pending) = (self.age(), |digest: &Digest| self.0.reliance.is_unsent(digest));
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
                || self.0.reliance.is_shared(digest, self.0.clock.mono()))
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
        self.0.reliance.has_listed(within, self.0.clock.mono())
    }

    /// Notes what a record puts before it is applied: it keeps the bytes that the remote does not have, or
    /// not for long, from eviction.
    pub(super) fn note_put(&self, seq: Seq, order: &Ordered, fold: &Fold, op: &Op) {
        let Op::Put(entry) = op else { return };
        let Some((digest, _)) = entry.content().filter(|(_, size)| *size > 0) else { return };
        // What a path of this node alone has, no other node need have.
        let in_use = fold.uses(&digest) && !order.own.holds(&digest) && !order.outbox.has_private();
        self.0.reliance.note_put(seq, digest, in_use);
        if fold.stored_ms(&digest).is_none_or(|stored_ms| self.is_unsure(&digest, stored_ms)) {
            self.0.disk.blobs.mark_unsaved(&digest);
        }
    }
}
