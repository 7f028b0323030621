//! Lacking: contents that were fetched and could not be kept for lack of room, remembered so that
//! they are not fetched again and again for nothing.
//!
//! Owns a bounded memory. Must never outlast the lack of room: it depends on a back-off and on the
//! free space of the disk.

use std::collections::HashMap;
use std::time::Duration;

use parking_lot::Mutex;

use super::quiet::Quiet;
use crate::clock::Clock;
use crate::digest::Digest;

/// The most contents that are remembered. Beyond that, those that may be retried soonest are
/// forgotten.
const LACKING_MAX: usize = 4_096;
/// How long a content is not fetched after the first failure, and at most.
const WAIT_MIN: Duration = Duration::from_secs(1);
const WAIT_MAX: Duration = Duration::from_secs(10);
/// There is room again only if the free space has grown by more than this, beside the size of the
/// content.
const MORE_BYTES: u64 = 1 << 20;

/// The contents for which there was no room.
#[derive(Debug, Default)]
pub(super) struct Lacking {
    known: Mutex<HashMap<Digest, Lack>>,
    quiet: Quiet,
}

#[derive(Clone, Copy, Debug)]
struct Lack {
    wait: Duration,
    next: Duration,
    /// The free space of the disk at that time.
    free: u64,
}

impl Lacking {
    /// Reports whether fetching a content of `size` bytes is useless now, while the disk has `free`
    /// bytes.
    pub(super) fn is_in_vain(&self, digest: &Digest, size: u64, now: Duration, free: u64) -> bool {
        let known = self.known.lock();
        let grown = |lack: &Lack| free > lack.free.saturating_add(size).saturating_add(MORE_BYTES);
        known.get(digest).is_some_and(|lack| now < lack.next && !grown(lack))
    }

    /// Notes that there was no room for a content.
    pub(super) fn note(&self, digest: Digest, now: Duration, free: u64) {
        let mut known = self.known.lock();
        if known.len() >= LACKING_MAX && !known.contains_key(&digest) {
            let first = known.iter().min_by_key(|(_, lack)| lack.next).map(|(digest, _)| *digest);
            first.map(|first| known.remove(&first));
        }
        let before = known.get(&digest).map(|lack| (lack.wait * 2).min(WAIT_MAX));
        let wait = before.unwrap_or(WAIT_MIN);
        known.insert(digest, Lack { wait, next: now + wait, free });
    }

    /// As [`Quiet::tell`], for the warning that there is no room.
    pub(super) fn tell(&self, clock: &Clock) -> Option<u64> {
        self.quiet.tell(clock)
    }

    /// Notes that there was room.
    pub(super) fn clear(&self, digest: &Digest) {
        self.known.lock().remove(digest);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_depends_on_time_and_on_room() {
        let (lacking, one) = (Lacking::default(), Digest::of(b"1"));
        let at = Duration::from_millis;
        assert!(!lacking.is_in_vain(&one, 10, at(0), 5));
        lacking.note(one, at(0), 5);
        assert!(lacking.is_in_vain(&one, 10, at(999), 5));
        assert!(!lacking.is_in_vain(&one, 10, at(1_000), 5), "the back-off is over");
        assert!(!lacking.is_in_vain(&one, 10, at(1), 2 * MORE_BYTES), "there is room again");
        lacking.note(one, at(1_000), 5);
        assert!(lacking.is_in_vain(&one, 10, at(2_999), 5), "the back-off has doubled");
        lacking.clear(&one);
        assert!(!lacking.is_in_vain(&one, 10, at(2_999), 5));
    }

    #[test]
    fn it_is_bounded() {
        let lacking = Lacking::default();
        for n in 0..2 * LACKING_MAX {
            lacking.note(Digest::of(&n.to_le_bytes()), Duration::from_millis(n as u64), 0);
        }
        assert_eq!(lacking.known.lock().len(), LACKING_MAX);
        let last = Digest::of(&(2 * LACKING_MAX - 1).to_le_bytes());
        assert!(lacking.is_in_vain(&last, 0, Duration::from_millis(2 * LACKING_MAX as u64), 0));
    }
}
