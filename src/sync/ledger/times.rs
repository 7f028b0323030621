//! Times that the next start has to know: it may come without the store, and long after.
//!
//! Owns what is kept of the store's clock and of the last list of the log, and what follows from both: whether
//! the log can still tell everything that happened since. Must never let a start rely on what it cannot know.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::Ledger;
use crate::error::Result;
use crate::local::{FactBatch, LoadedIndex};
use crate::namespace::Age;
use crate::remote::{Declared, KnownStore, Remote, StoreId};
use crate::stamp::Stamp;
use crate::task;

/// The name in the index under which the times lie.
pub(super) const TIMES: &str = "times";
/// The name in the index under which lies what the store declares of its expiry.
pub(super) const DECLARED: &str = "declared";
/// The clocks' difference is saved again when it moved by this.
const AHEAD_MOVED_MS: u64 = 1000;
/// The last list is saved again after this, or a twentieth of the age.
const LISTED_MOVED_MS: u64 = 60_000;

/// What is kept.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct PathTimes {
    /// How far the store's clock is ahead of this node's.
    pub(super) ahead_ms: i64,
    /// When the last list of the log began that was folded completely, by the store's clock; 0 is never.
    pub(super) listed_ms: u64,
    /// The last record that has to be sent under a new stamp, because one before it was late.
    pub(super) late_upto: u64,
    /// Which store this namespace is of; 0 is not known.
    pub(super) store: u64,
}

impl PathTimes {
    /// Reads what was saved; nothing is known if it is anything else.
    pub(super) fn decode(bytes: &[u8]) -> Self {
        postcard::from_bytes(bytes).unwrap_or_default()
    }

    /// Reports whether the log can lack what happened since it was listed last.
    pub(super) fn may_lack(&self, age: Age, now_ms: u64) -> bool {
        self.listed_ms > 0 && age.may_lack(self.listed_ms, now_ms)
    }

    /// Reports whether this is worth saving over what was saved.
    fn moved_from(&self, saved: &Self, age: Age) -> bool {
        let part_ms = age.limit().map_or(u64::MAX, |limit| limit.as_millis() as u64 / 20);
        (self.late_upto, self.store) != (saved.late_upto, saved.store)
            || self.ahead_ms.abs_diff(saved.ahead_ms) >= AHEAD_MOVED_MS
            || self.listed_ms.abs_diff(saved.listed_ms) >= LISTED_MOVED_MS.min(part_ms)
    }
}

/// Returns the store that an older version has kept in the index.
pub fn known_of_index(loaded: &LoadedIndex) -> Option<KnownStore> {
    loaded.meta.get(TIMES).and_then(|times| KnownStore::of_older(PathTimes::decode(times).store))
}

/// Reads what was saved of what the store declares; nothing is known if it is anything else.
pub(super) fn decode_declared(bytes: &[u8]) -> Declared {
    postcard::from_bytes(bytes).map_or(Declared::Unknown, Declared::Age)
}

impl Ledger {
    /// Notes that the log was listed and folded. The list began at `began` by the monotonic clock, and at
    /// `began_ms` by the store's.
    pub(in crate::sync) fn note_listed(&self, began: Duration, began_ms: u64) {
        *self.0.listed.lock() = Some(began);
        self.0.order.lock().times.listed_ms = began_ms;
    }

    /// Reports whether changes that this node has not heard of can be gone from the log.
    pub(in crate::sync) fn may_lack(&self) -> bool {
        let times = self.0.order.lock().times;
        times.may_lack(self.age(), self.now_ms())
    }

    /// Reports whether a store is another than the one of which this namespace is: this node was told to move.
    pub(in crate::sync) fn is_of_another_store(&self, store: StoreId) -> bool {
        ![0, store.0].contains(&self.0.order.lock().times.store)
    }

    /// Notes of which store this namespace is.
    pub(in crate::sync) fn note_store(&self, store: StoreId) {
        self.0.order.lock().times.store = store.0;
    }

    /// Returns which store it is, once the cache directory says so, too, unless that cannot be written: what is sent to a
    /// store that the next start does not know would be lost if something else were in its place then.
    pub(in crate::sync) async fn bound(&self, remote: &Remote) -> Result<StoreId> {
        let store = remote.store_id().await?;
        let news = remote.used().filter(|used| self.0.bound.lock().as_ref() != Some(used));
        if let Some(used) = news {
            let ledger = self.clone();
            task::blocking(move || ledger.bind(used)).await;
        }
        Ok(store)
    }

    /// Notes in the cache directory which store is used. A full disk is no reason to stop sending what fills it: the
    /// note is tried again with the next commit.
    fn bind(&self, used: KnownStore) {
        match self.0.dir.keep_store(&used.text()) {
            Ok(()) => *self.0.bound.lock() = Some(used),
            Err(error) => {
                if let Some(unsaid) = self.0.quiet_save.tell(&self.0.clock) {
                    let error = error.chain();
                    tracing::warn!(error, unsaid, "the next start will not know the store");
                }
            }
        }
    }

    /// Reports whether a log is that of `known`: it holds a commit that was folded into a namespace of that store,
    /// from no later than `upto_ms`.
    pub(in crate::sync) fn recognises(&self, log: &[Stamp], known: StoreId, upto_ms: u64) -> bool {
        let order = self.0.order.lock();
        let is_ours = |stamp: &Stamp| stamp.ms <= upto_ms && order.log.has(stamp);
        order.times.store == known.0 && log.iter().any(is_ours)
    }

    /// Adds what the store declares to what is saved, if it moved.
    pub(super) fn save_declared(&self, saved: &mut Declared, batch: &mut FactBatch) {
        let known = self.0.remote.as_ref().map(Remote::known_expiry).unwrap_or_default();
        if let Declared::Age(age) = known
            && std::mem::replace(saved, known) != known
        {
            batch.meta(DECLARED, &postcard::to_stdvec(&age).expect("numbers always encode"));
        }
    }

    /// Adds the times to what is saved, if they moved.
    pub(super) fn save_times(&self, now: PathTimes, saved: &mut PathTimes, batch: &mut FactBatch) {
        let Some(remote) = &self.0.remote else { return };
        let now = PathTimes { ahead_ms: remote.ahead_ms(), ..now };
        if now.moved_from(saved, self.age()) {
            batch.meta(TIMES, &postcard::to_stdvec(&now).expect("numbers always encode"));
            *saved = now;
        }
    }
}
