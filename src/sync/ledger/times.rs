//! Times that the next start needs: it may come without the store, and after a long time.
//!
//! Owns what is kept of the store's clock and of the last list of the log, and the conclusion
//! whether the log still has everything that happened since. Must never let a start rely on what it
//! cannot know.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::Ledger;
use crate::error::Result;
use crate::local::{FactBatch, LoadedIndex, Seq};
use crate::namespace::Age;
use crate::remote::{Declared, KnownStore, Remote, StoreId};
use crate::stamp::Stamp;
use crate::task;

/// The name of the times in the index.
const TIMES: &str = "times";
/// The name of the declared expiry in the index.
const DECLARED: &str = "declared";
/// The difference of the clocks is saved again when it has moved by this.
const AHEAD_MOVED_MS: u64 = 1000;
/// The last list is saved again after this time, or after a twentieth of the age.
const LISTED_MOVED_MS: u64 = 60_000;

/// The times that are kept.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
struct StartTimes {
    /// How far the store's clock is ahead of this node's.
    ahead_ms: i64,
    /// When the last list of the log began that was folded completely, by the store's clock; 0 if
    /// never.
    listed_ms: u64,
    /// The last record that must be sent under a new stamp, because an earlier one was late.
    late_upto: u64,
    /// The store to which this namespace belongs; 0 if unknown.
    store: u64,
}

impl StartTimes {
    /// Reads the times from the index; nothing is known if the data there is anything else.
    fn restore(loaded: &LoadedIndex) -> Option<Self> {
        let times = loaded.meta.get(TIMES)?;
        Some(postcard::from_bytes(times).unwrap_or_default())
    }

    /// Reports whether these times differ enough from the saved ones to be saved.
    fn moved_from(&self, saved: &Self, age: Age) -> bool {
        let part_ms = age.limit().map_or(u64::MAX, |limit| limit.as_millis() as u64 / 20);
        (self.late_upto, self.store) != (saved.late_upto, saved.store)
            || self.ahead_ms.abs_diff(saved.ahead_ms) >= AHEAD_MOVED_MS
            || self.listed_ms.abs_diff(saved.listed_ms) >= LISTED_MOVED_MS.min(part_ms)
    }
}

/// Returns the store that an older version has noted in the index.
pub fn known_of_index(loaded: &LoadedIndex) -> Option<KnownStore> {
    StartTimes::restore(loaded).and_then(|times| KnownStore::of_older(times.store))
}

/// The times for the next start, with those that are saved.
#[derive(Debug, Default)]
pub(super) struct KeptTimes {
    now: StartTimes,
    saved: StartTimes,
    /// The declared expiry, as saved.
    declared: Declared,
}

impl KeptTimes {
    /// Restores the known times, and passes them to the remote.
    pub(super) fn restore(loaded: &LoadedIndex, remote: Option<&Remote>) -> Self {
        let now = StartTimes::restore(loaded).unwrap_or_default();
        let mut declared = Declared::default();
        if let Some(remote) = remote {
            remote.assume_ahead(now.ahead_ms);
            // Nothing is known if the data is anything else.
            if let Some(bytes) = loaded.meta.get(DECLARED) {
                declared = postcard::from_bytes(bytes).map_or(Declared::Unknown, Declared::Age);
            }
            remote.assume_expiry(declared);
        }
        Self { now, saved: now, declared }
    }

    /// Returns when the log was last listed and folded, in the store's time; 0 if never.
    pub(super) fn listed_ms(&self) -> u64 {
        self.now.listed_ms
    }

    /// Reports whether the log can lack changes since it was last listed.
    pub(super) fn may_lack(&self, age: Age, now_ms: u64) -> bool {
        self.now.listed_ms > 0 && age.may_lack(self.now.listed_ms, now_ms)
    }

    /// Notes that all records up to one must be sent under new stamps.
    pub(super) fn note_late(&mut self, upto: Seq) {
        self.now.late_upto = self.now.late_upto.max(upto.0);
    }

    /// Reports whether a record had to be sent under a new stamp.
    pub(super) fn is_late(&self, seq: Seq) -> bool {
        seq.0 <= self.now.late_upto
    }

    /// Marks all times to be saved again, because the index is filled again.
    pub(super) fn save_again(&mut self) {
        (self.saved, self.declared) = (StartTimes::default(), Declared::Unknown);
    }

    /// Adds the declared expiry to a save, if it has changed.
    pub(super) fn save_declared(&mut self, remote: Option<&Remote>, batch: &mut FactBatch) {
        let known = remote.map(Remote::known_expiry).unwrap_or_default();
        if let Declared::Age(age) = known
            && std::mem::replace(&mut self.declared, known) != known
        {
            batch.meta(DECLARED, &postcard::to_stdvec(&age).expect("numbers always encode"));
        }
    }

    /// Adds the times to a save, if they have changed.
    pub(super) fn save(&mut self, remote: Option<&Remote>, batch: &mut FactBatch) {
        let Some(remote) = remote else { return };
        let now = StartTimes { ahead_ms: remote.ahead_ms(), ..self.now };
        if now.moved_from(&self.saved, Age::of(remote.effective_expiry())) {
            batch.meta(TIMES, &postcard::to_stdvec(&now).expect("numbers always encode"));
            self.saved = now;
        }
    }
}

impl Ledger {
    /// Notes that the log was listed and folded. The list began at `began` by the monotonic clock, and at
    /// `began_ms` by the store's.
    pub(in crate::sync) fn note_listed(&self, began: Duration, began_ms: u64) {
        self.0.reliance.note_listed(began);
        self.0.order.lock().times.now.listed_ms = began_ms;
    }

    /// Reports whether changes that this node has not received can be gone from the log.
    pub(in crate::sync) fn may_lack(&self) -> bool {
        let (age, now_ms) = (self.age(), self.now_ms());
        self.0.order.lock().times.may_lack(age, now_ms)
    }

    /// Reports whether a store is not the one to which this namespace belongs: this node was
    /// configured to move.
    pub(in crate::sync) fn is_of_another_store(&self, store: StoreId) -> bool {
        ![0, store.0].contains(&self.0.order.lock().times.now.store)
    }

    /// Reports whether this namespace belongs to the store that is used now.
    pub(in crate::sync) fn is_of_used_store(&self) -> bool {
        let used = self.0.remote.as_ref().and_then(Remote::used);
        used.is_some_and(|used| !self.is_of_another_store(used.store()))
    }

    /// Notes the store to which this namespace belongs.
    pub(in crate::sync) fn note_store(&self, store: StoreId) {
        let before = std::mem::replace(&mut self.0.order.lock().times.now.store, store.0);
        if ![0, store.0].contains(&before) {
            self.0.reliance.forget_store();
        }
    }

    /// Returns which store this is, after noting it in the cache directory, unless that cannot be
    /// written. If the next start did not know the store, and another one were in its place,
    /// everything that was sent would be lost.
    pub(in crate::sync) async fn bound(&self, remote: &Remote) -> Result<StoreId> {
        let store = remote.store_id().await?;
        {
            // From the first commit on the namespace has something of a store.
            let known = &mut self.0.order.lock().times.now.store;
            *known = if *known == 0 { store.0 } else { *known };
        }
        let news = remote.used().filter(|used| self.0.disk.bound.lock().as_ref() != Some(used));
        if let Some(used) = news {
            let ledger = self.clone();
            task::blocking(move || ledger.bind(used)).await;
        }
        Ok(store)
    }

    /// Notes in the cache directory which store is used. A full disk must not stop uploads, which
    /// make room: the note is retried with the next commit.
    fn bind(&self, used: KnownStore) {
        match self.0.disk.dir.keep_store(&used.text()) {
            Ok(()) => *self.0.disk.bound.lock() = Some(used),
            Err(error) => {
                if let Some(unsaid) = self.0.warned.save.tell(&self.0.clock) {
                    let error = error.chain();
                    tracing::warn!(
                        error,
                        unsaid,
                        "cannot save the store's identity for the next start"
                    );
                }
            }
        }
    }

    /// Reports whether a log is that of `known`: it has a commit, from `upto_ms` at the latest,
    /// that was folded into a namespace of that store.
    pub(in crate::sync) fn recognises(&self, log: &[Stamp], known: StoreId, upto_ms: u64) -> bool {
        let order = self.0.order.lock();
        let is_ours = |stamp: &Stamp| stamp.ms <= upto_ms && order.log.has(stamp);
        order.times.now.store == known.0 && log.iter().any(is_ours)
    }
}
