//! Reliance: which contents may be relied on without a look at the store.
//!
//! Owns what speaks for a content (a record that is not yet remote puts it, others use it by the last list of the log) and
//! what speaks against it (another node could not read it). Has locks of its own, that are held for moments, so that it
//! can be asked with the namespace locked. Must never take a doubt of another node for a proof.

use std::collections::HashMap;
use std::time::Duration;

use parking_lot::Mutex;

use crate::digest::Digest;
use crate::local::Seq;

/// A location that is known is relied on for a new entry only this long after it was stored, or after a list of the log
/// began that showed the content in use: what is not used may be deleted in the store an hour later.
pub(super) const REUSE_WITHIN: Duration = Duration::from_mins(10);
/// Places in doubt that are remembered; what is forgotten may be doubted once more.
const DOUBTED_MAX: usize = 10_000;

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

/// What is known of contents, beside where they lie.
#[derive(Debug, Default)]
pub(super) struct Reliance {
    /// The contents that records put which are not yet remote.
    unsent: Mutex<HashMap<Digest, PutContent>>,
    /// When the last list of the log began that was folded completely, by the monotonic clock.
    listed: Mutex<Option<Duration>>,
    /// Places that other nodes could not read, by the time at which they were stored.
    doubted: Mutex<HashMap<Digest, u64>>,
}

impl Reliance {
    /// Notes that a record puts a content; `in_use`: others use it, as far as the last list of the log tells.
    pub(super) fn note_put(&self, seq: Seq, digest: Digest, in_use: bool) {
        let listed = self.listed.lock().filter(|_| in_use);
        let mut puts = self.unsent.lock();
        match puts.get_mut(&digest) {
            // What only records that wait point to is in no use in the store, so this one proves nothing new.
            Some(put) => put.last = seq,
            None => {
                let (shared, at) = (listed.is_some(), listed.unwrap_or_default());
                puts.insert(digest, PutContent { last: seq, shared, at });
            }
        }
    }

    /// Notes that the records up to one are remote, which put these contents.
    pub(super) fn note_sent(
        &self,
        upto: Seq,
        contents: impl Iterator<Item = Digest>,
        at: Duration,
    ) {
        let mut puts = self.unsent.lock();
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
    pub(super) fn is_unsent(&self, digest: &Digest) -> bool {
        self.unsent.lock().contains_key(digest)
    }

    /// Reports whether a content was in use by others, a moment ago.
    pub(super) fn is_shared(&self, digest: &Digest, now: Duration) -> bool {
        let is_near = |at: Duration| now.saturating_sub(at) < REUSE_WITHIN;
        self.unsent.lock().get(digest).is_some_and(|put| put.shared && is_near(put.at))
    }

    /// Notes that the log was listed and folded completely; the list began at this time.
    pub(super) fn note_listed(&self, began: Duration) {
        *self.listed.lock() = Some(began);
    }

    /// Reports whether it was, so short a time ago.
    pub(super) fn has_listed(&self, within: Duration, now: Duration) -> bool {
        self.listed.lock().is_some_and(|at| now.saturating_sub(at) < within)
    }

    /// Notes that another node could not read a content that was stored at a time.
    pub(super) fn doubt(&self, digest: Digest, stored_ms: u64) {
        let mut all = self.doubted.lock();
        if all.len() < DOUBTED_MAX || all.contains_key(&digest) {
            all.insert(digest, stored_ms);
        }
    }

    /// Returns when what is in doubt of a content was stored.
    pub(super) fn doubted_ms(&self, digest: &Digest) -> Option<u64> {
        self.doubted.lock().get(digest).copied()
    }

    /// Reports whether a content that was stored at a time is in doubt.
    pub(super) fn is_doubted(&self, digest: &Digest, stored_ms: u64) -> bool {
        self.doubted_ms(digest).is_some_and(|doubted_ms| doubted_ms >= stored_ms)
    }
}
