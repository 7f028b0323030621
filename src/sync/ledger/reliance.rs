//! Reliance: what this node may rely on without asking the store, and for how long.
//!
//! Owns the ages, and the evidence for a content (a record that is not yet remote puts it; other
//! nodes use it according to the last list of the log) and against it (another node could not read
//! it). Has its own locks, which are held for moments, so that it can be asked while the namespace
//! is locked. Must never take a doubt of another node for a proof.

use std::time::Duration;

use parking_lot::Mutex;

use crate::clock::Clock;
use crate::digest::Digest;
use crate::hashing::FastMap;
use crate::local::Seq;
use crate::namespace::{Age, Location};
use crate::remote::Remote;
use crate::stamp::{MAX_AHEAD_MS, Stamp};

/// How long a new entry may rely on a known location: this long after it was stored, or after the
/// start of a list of the log that showed the content in use. The store may delete unused content
/// an hour later.
const REUSE_WITHIN: Duration = Duration::from_mins(10);
/// Clocks differ by less than this: a time of storing that is further ahead says nothing about the
/// age.
const AHEAD_MAX: Duration = Duration::from_mins(1);
/// The most places in doubt that are remembered; a forgotten place may be doubted once more.
const DOUBTED_MAX: usize = 10_000;

/// A content that a record puts, while the record is not yet remote.
#[derive(Debug, Clone, Copy)]
struct PutContent {
    /// The last record that puts it.
    last: Seq,
    /// Whether another entry pointed to it.
    shared: bool,
    /// The monotonic time at which the log showed that.
    at: Duration,
}

/// What is known of contents, beside their locations.
#[derive(Debug)]
pub(in crate::sync) struct Reliance {
    remote: Option<Remote>,
    clock: Clock,
    /// The contents that records put which are not yet remote.
    unsent: Mutex<FastMap<Digest, PutContent>>,
    /// When the last list of the log began that was folded completely, by the monotonic clock.
    listed: Mutex<Option<Duration>>,
    /// Places that other nodes could not read, by the time at which they were stored.
    doubted: Mutex<FastMap<Digest, u64>>,
}

impl Reliance {
    /// Makes one that knows of no content yet.
    pub(super) fn new(remote: Option<Remote>, clock: Clock) -> Self {
        let (unsent, listed, doubted) = (Mutex::default(), Mutex::default(), Mutex::default());
        Self { remote, clock, unsent, listed, doubted }
    }

    /// Returns the wall time in milliseconds since the Unix epoch, by the store's clock if it is
    /// known.
    pub(super) fn now_ms(&self) -> u64 {
        self.remote.as_ref().map_or_else(|| self.clock.wall_ms(), Remote::now_ms)
    }

    /// Returns how long stored content is served. Without a remote nothing ever expires.
    pub(super) fn age(&self) -> Age {
        self.remote.as_ref().map_or(Age::NEVER, |remote| Age::of(remote.effective_expiry()))
    }

    /// Returns how long knowledge must be kept even if this node shows less: other nodes show
    /// entries for this long.
    pub(in crate::sync) fn kept_age(&self) -> Age {
        self.remote.as_ref().map_or(Age::NEVER, |remote| Age::of(remote.kept_expiry()))
    }

    /// Reports whether an incarnation whose last commit was made at `ms` makes no further one. A
    /// later commit would belong to a new incarnation.
    pub(in crate::sync) fn is_silent(&self, ms: u64) -> bool {
        self.kept_age().is_tombstone_over(ms, self.now_ms())
    }

    /// Reports whether a change is late: some node may soon forget a tombstone that should override
    /// it, or no node could replace it because its stamp is far ahead.
    pub(super) fn is_late(&self, stamp: Stamp) -> bool {
        let now_ms = self.now_ms();
        stamp.ms > now_ms.saturating_add(MAX_AHEAD_MS)
            || [self.age(), self.kept_age()].iter().any(|age| age.is_late(stamp.ms, now_ms))
    }

    /// Reports whether something that was stored at `stored_ms` is past its age.
    pub(in crate::sync) fn is_expired(&self, stored_ms: u64) -> bool {
        let age = self.age();
        !age.is_endless() && age.left(stored_ms, self.now_ms()).is_none()
    }

    /// Reports whether something that was stored at `stored_ms` has passed half of its age.
    pub(super) fn is_half_over(&self, stored_ms: u64) -> bool {
        let age = self.age();
        !age.is_endless() && age.is_half_over(stored_ms, self.now_ms())
    }

    /// Reports whether something that was stored at `stored_ms` should be stored again if it is
    /// used: half of its age has passed, and it is still served.
    pub(in crate::sync) fn grows_old(&self, stored_ms: u64) -> bool {
        self.is_half_over(stored_ms) && !self.is_expired(stored_ms)
    }

    /// Reports whether a content that was stored at `stored_ms` should be stored again by the next
    /// writer: half of its age has passed, or another node could not read it.
    pub(super) fn is_unsure(&self, digest: &Digest, stored_ms: u64) -> bool {
        self.is_half_over(stored_ms) || self.is_doubted(digest, stored_ms)
    }

    /// Reports whether a new entry may rely on a known location. It must last, and nothing may be
    /// about to delete it as unused. So it must be too young for that, or other entries use the
    /// content according to the log.
    pub(in crate::sync) fn may_reuse(&self, digest: &Digest, location: &Location) -> bool {
        !self.is_unsure(digest, location.stored_ms)
            && (self.is_young(location.stored_ms) || self.is_shared(digest))
    }

    /// Reports whether something that was stored at `stored_ms` is so young that nothing deletes it
    /// for most of the grace time, even if no entry uses it.
    pub(in crate::sync) fn is_young(&self, stored_ms: u64) -> bool {
        let now_ms = self.now_ms();
        let reuse_ms = REUSE_WITHIN.as_millis() as u64;
        // Our own clock may be far behind the store's.
        self.remote.as_ref().is_some_and(Remote::knows_time)
            && stored_ms <= now_ms.saturating_add(AHEAD_MAX.as_millis() as u64)
            && stored_ms.saturating_add(reuse_ms) > now_ms
    }

    /// Notes that a record puts a content; `in_use`: other nodes use it, according to the last list
    /// of the log.
    pub(super) fn note_put(&self, seq: Seq, digest: Digest, in_use: bool) {
        let listed = self.listed.lock().filter(|_| in_use);
        let mut puts = self.unsent.lock();
        match puts.get_mut(&digest) {
            // A content that only waiting records point to is not in use in the store, so this
            // record proves nothing new.
            Some(put) => put.last = seq,
            None => {
                let (shared, at) = (listed.is_some(), listed.unwrap_or_default());
                puts.insert(digest, PutContent { last: seq, shared, at });
            }
        }
    }

    /// Notes that the records up to one, which put these contents, are remote.
    pub(super) fn note_sent(&self, upto: Seq, contents: impl Iterator<Item = Digest>) {
        let at = self.clock.mono();
        let mut puts = self.unsent.lock();
        for digest in contents {
            match puts.get_mut(&digest) {
                Some(put) if put.last <= upto => drop(puts.remove(&digest)),
                // What was just sent uses it until the waiting records are sent too.
                Some(put) => (put.shared, put.at) = (true, at),
                None => {}
            }
        }
    }

    /// Reports whether a record puts a content that is not yet remote.
    pub(super) fn is_unsent(&self, digest: &Digest) -> bool {
        self.unsent.lock().contains_key(digest)
    }

    /// Reports whether other nodes used a content a moment ago.
    fn is_shared(&self, digest: &Digest) -> bool {
        let now = self.clock.mono();
        let is_near = |at: Duration| now.saturating_sub(at) < REUSE_WITHIN;
        self.unsent.lock().get(digest).is_some_and(|put| put.shared && is_near(put.at))
    }

    /// Notes that the log was listed and folded completely; the list began at `began`.
    pub(super) fn note_listed(&self, began: Duration) {
        *self.listed.lock() = Some(began);
    }

    /// Reports whether that was at most `within` ago.
    pub(in crate::sync) fn has_listed(&self, within: Duration) -> bool {
        let now = self.clock.mono();
        self.listed.lock().is_some_and(|at| now.saturating_sub(at) < within)
    }

    /// Forgets what was known of the contents of another store.
    pub(super) fn forget_store(&self) {
        self.unsent.lock().values_mut().for_each(|put| put.shared = false);
        self.doubted.lock().clear();
    }

    /// Notes that another node could not read a content that was stored at `stored_ms`.
    pub(super) fn doubt(&self, digest: Digest, stored_ms: u64) {
        let mut all = self.doubted.lock();
        if all.len() < DOUBTED_MAX || all.contains_key(&digest) {
            all.insert(digest, stored_ms);
        }
    }

    /// Returns when the place in doubt of a content was stored.
    pub(super) fn doubted_ms(&self, digest: &Digest) -> Option<u64> {
        self.doubted.lock().get(digest).copied()
    }

    /// Reports whether a content that was stored at `stored_ms` is in doubt.
    pub(super) fn is_doubted(&self, digest: &Digest, stored_ms: u64) -> bool {
        self.doubted_ms(digest).is_some_and(|doubted_ms| doubted_ms >= stored_ms)
    }
}
