//! Objects in trouble: what the store does not return now, each object by itself.
//!
//! Owns how often all callers together request such an object. Must never keep a caller from
//! another object.
//!
//! Keeps P8 never-in-the-way.

use std::collections::HashMap;
use std::hash::Hash;
use std::time::Duration;

use parking_lot::Mutex;

use super::backoff::Backoff;
use crate::clock::Clock;

/// The most objects that are remembered; a forgotten object is requested at once.
const TROUBLED_MAX: usize = 10_000;

/// The objects in trouble, and the end of the back-off of each.
#[derive(Debug)]
pub(super) struct Troubled<K> {
    clock: Clock,
    min: Duration,
    max: Duration,
    all: Mutex<HashMap<K, One>>,
}

#[derive(Debug)]
struct One {
    since: Duration,
    backoff: Backoff,
    until: Duration,
    /// Counts the waits, from 1.
    round: u64,
    /// Whether the store throttled the last request for it.
    throttled: bool,
}

impl<K: Eq + Hash> Troubled<K> {
    /// Makes an empty one. The back-off of an object is between `min` and `max`, and grows each
    /// time.
    pub(super) fn new(clock: Clock, min: Duration, max: Duration) -> Self {
        Self { clock, min, max, all: Mutex::default() }
    }

    /// Returns how much of an object's back-off is left.
    pub(super) fn left(&self, key: &K) -> Duration {
        let all = self.all.lock();
        all.get(key).map_or(Duration::ZERO, |one| one.until.saturating_sub(self.clock.mono()))
    }

    /// Returns how long to wait for an object, and the round of that wait. `None` if no wait is
    /// left, or only the one of the round `waited`, which the caller has made.
    pub(super) fn wait(&self, key: &K, waited: u64) -> Option<(Duration, u64)> {
        let left = self.left(key);
        let all = self.all.lock();
        let one = all.get(key).filter(|one| one.round != waited && !left.is_zero())?;
        Some((left, one.round))
    }

    /// Tries to take the turn to request an object, after the wait of the round `waited`. The first
    /// caller gets it. The others wait until its outcome is known, or for `max`.
    pub(super) fn turn(&self, key: &K, waited: u64) -> bool {
        let now = self.clock.mono();
        let mut all = self.all.lock();
        let Some(one) = all.get_mut(key) else { return true };
        let first = one.until <= now || one.round == waited;
        if first {
            (one.until, one.round) = (now + self.max, one.round + 1);
        }
        first
    }

    /// Reports whether an object was requested and not returned since.
    pub(super) fn knows(&self, key: &K) -> bool {
        self.all.lock().contains_key(key)
    }

    /// Notes whether the store throttles requests for an object in trouble.
    pub(super) fn note_throttled(&self, key: &K, throttled: bool) {
        if let Some(one) = self.all.lock().get_mut(key) {
            one.throttled = throttled;
        }
    }

    /// Reports whether callers wait for an object because the store throttles.
    pub(super) fn is_throttled(&self, key: &K) -> bool {
        self.all.lock().get(key).is_some_and(|one| one.throttled)
    }

    /// Reports whether an object has been in trouble for less than `limit`. An object that is not
    /// remembered has not: otherwise a full table would make callers wait for it for ever.
    pub(super) fn is_young(&self, key: &K, limit: Duration) -> bool {
        let all = self.all.lock();
        all.get(key).is_some_and(|one| self.clock.mono().saturating_sub(one.since) < limit)
    }

    /// Notes that an object was requested and not returned. Returns whether this is its first
    /// trouble.
    pub(super) fn note(&self, key: K) -> bool {
        let now = self.clock.mono();
        let mut all = self.all.lock();
        if all.len() >= TROUBLED_MAX && !all.contains_key(&key) {
            // These are no longer requested.
            all.retain(|_, one| one.until.saturating_add(self.max) > now);
            if all.len() >= TROUBLED_MAX {
                return true;
            }
        }
        let mut first = false;
        let one = all.entry(key).or_insert_with(|| {
            first = true;
            let backoff = Backoff::new(self.min, self.max);
            One { since: now, backoff, until: now, round: 0, throttled: false }
        });
        (one.until, one.round) = (now + one.backoff.wait(), one.round + 1);
        first
    }

    /// Notes that requesting an object again is useless in this run. It was [noted](Self::note).
    pub(super) fn give_up(&self, key: &K) {
        if let Some(one) = self.all.lock().get_mut(key) {
            one.until = Duration::MAX;
        }
    }

    /// Notes that an object was returned.
    pub(super) fn clear(&self, key: &K) {
        let mut all = self.all.lock();
        if !all.is_empty() {
            all.remove(key);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_object_waits_for_itself() {
        let clock = Clock::manual(1_000_000);
        let (min, max) = (Duration::from_millis(100), Duration::from_secs(1));
        let troubled = Troubled::new(clock.clone(), min, max);
        assert!(troubled.note("a") && !troubled.note("a"));
        assert!(troubled.left(&"a") >= min && troubled.left(&"b").is_zero());
        clock.advance(max);
        assert!(troubled.left(&"a").is_zero());
        for n in 0..2 * TROUBLED_MAX {
            troubled.note(if n % 2 == 0 { "a" } else { "b" });
        }
        assert!((max / 2..=max).contains(&troubled.left(&"b")));
        troubled.clear(&"b");
        assert!(troubled.left(&"b").is_zero() && !troubled.left(&"a").is_zero());
    }

    #[test]
    fn one_of_the_waiting_callers_asks_first() {
        let clock = Clock::manual(1_000_000);
        let (min, max) = (Duration::from_millis(100), Duration::from_secs(1));
        let troubled = Troubled::new(clock.clone(), min, max);
        assert!(troubled.turn(&"a", 0) && troubled.turn(&"a", 0), "no trouble is known");
        troubled.note("a");
        let (left, round) = troubled.wait(&"a", 0).expect("a back-off");
        assert!(left <= min && !troubled.turn(&"a", 0));
        // Both have waited.
        assert!(troubled.wait(&"a", round).is_none());
        assert!(troubled.turn(&"a", round) && !troubled.turn(&"a", round));
        let (left, next) = troubled.wait(&"a", round).expect("one request is in flight");
        assert_eq!((left, next), (max, round + 1));
        clock.advance(max);
        assert!(troubled.turn(&"a", round), "the request may have been dropped");
        troubled.clear(&"a");
        assert!(troubled.turn(&"a", next) && troubled.turn(&"a", next));
    }

    #[test]
    fn there_is_a_bound() {
        let clock = Clock::manual(1_000_000);
        let troubled = Troubled::new(clock.clone(), Duration::from_secs(1), Duration::from_secs(1));
        for n in 0..=TROUBLED_MAX {
            troubled.note(n);
        }
        assert_eq!(troubled.all.lock().len(), TROUBLED_MAX);
        let limit = Duration::from_mins(1);
        assert!(troubled.is_young(&0, limit) && !troubled.is_young(&TROUBLED_MAX, limit));
        clock.advance(Duration::from_secs(3));
        troubled.note(TROUBLED_MAX + 1);
        assert_eq!(troubled.all.lock().len(), 1);
    }
}
