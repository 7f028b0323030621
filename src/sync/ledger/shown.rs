//! What may be shown: entries whose bytes can be obtained and that are not past their age.
//!
//! Owns this decision for all code that answers programs. Must never let an outage of the store
//! change the result.
//!
//! Keeps P11 expiry.

use std::time::Duration;

use super::{Ledger, Locked};
use crate::digest::Digest;
use crate::local::Seq;
use crate::name::TreePath;
use crate::namespace::{Age, Entry, Fold, Living, Op};

impl Ledger {
    /// Returns how long stored content is served. Without a remote nothing ever expires.
    pub fn age(&self) -> Age {
        self.0.reliance.age()
    }

    /// Returns for how much longer the entry of a path may be shown; `None` if it must not be
    /// shown, because its bytes are neither here nor at any known place, or because it is past its
    /// age. `changed_ms` is the time of the register's last change; `None` for a directory that was
    /// never made. `fold` is the one that [`Ledger::read`] passes.
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

    /// As [`Ledger::shown`], whether or not its bytes can be obtained.
    pub fn living_left(
        &self,
        fold: &Fold,
        path: &TreePath,
        entry: &Entry,
        changed_ms: Option<u64>,
    ) -> Option<Duration> {
        self.living(fold, |living| living.left(path, entry, changed_ms))
    }

    /// Returns for how much longer the bytes of an entry are served that was changed at
    /// `changed_ms`; `None` if they are past their age. Must not be called for entries without
    /// bytes.
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
        // If nothing expires, the time is not read.
        let now_ms = if age.is_endless() { 0 } else { self.now_ms() };
        look(&Living { fold, age, now_ms, pending: &pending })
    }
}

impl Locked<'_> {
    /// Notes what a record puts, before it is applied. If the remote does not have the bytes, or
    /// not for long, this keeps them from eviction.
    pub(super) fn note_put(&self, seq: Seq, op: &Op) {
        let Self { ledger, order, fold } = self;
        let Op::Put(entry) = op else { return };
        let Some((digest, _)) = entry.content().filter(|(_, size)| *size > 0) else { return };
        // No other node needs what a path of this node alone has.
        let in_use = fold.uses(&digest) && !order.own.holds(&digest) && !order.outbox.has_private();
        let reliance = &ledger.0.reliance;
        reliance.note_put(seq, digest, in_use);
        let stored_ms = fold.stored_ms(&digest);
        if stored_ms.is_none_or(|stored_ms| reliance.is_unsure(&digest, stored_ms)) {
            ledger.0.disk.blobs.mark_unsaved(&digest);
        }
    }
}
