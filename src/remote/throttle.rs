//! Throttling: answers that say "too many requests", and the waits that follow.
//!
//! Owns the figures. They are for people and for work that can wait: reading ahead, and the pace of
//! the log. Must never decide about a single request.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;

use super::trouble::{THROTTLED, Trouble};
use crate::clock::Clock;
use crate::error::Error;

/// For how long after such an answer the store counts as throttling.
const THROTTLED_FOR: Duration = Duration::from_secs(10);

/// How much the store throttles.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Throttling {
    /// Answers so far, by [`THROTTLED`].
    pub answers: [u64; THROTTLED.len()],
    /// The time waited because of them, summed over all requests that waited.
    pub waited: Duration,
    /// The last such answer came within the last ten seconds, or a request still waits because of one.
    pub now: bool,
}

/// Counts throttling answers, and measures the waits.
#[derive(Debug)]
pub(super) struct Throttle {
    clock: Clock,
    /// Incremented where requests are made; for buckets in the HTTP client, so that its own retries count.
    answers: Arc<Answers>,
    last: Mutex<Option<Duration>>,
    waited_ms: AtomicU64,
    waiting: AtomicU64,
}

/// Answers by their status.
#[derive(Debug, Default)]
pub(super) struct Answers([AtomicU64; THROTTLED.len()]);

impl Answers {
    /// Counts an answer if it is one of [`THROTTLED`].
    pub(super) fn note(&self, status: u16) {
        if let Some(place) = THROTTLED.iter().position(|one| *one == status) {
            self.0[place].fetch_add(1, Ordering::Relaxed);
        }
    }

    fn read(&self) -> [u64; THROTTLED.len()] {
        std::array::from_fn(|place| self.0[place].load(Ordering::Relaxed))
    }
}

impl Throttle {
    pub(super) fn new(clock: Clock, answers: Arc<Answers>) -> Self {
        let (waited_ms, waiting) = (AtomicU64::new(0), AtomicU64::new(0));
        Self { clock, answers, last: Mutex::new(None), waited_ms, waiting }
    }

    /// Counts the outcome of a request; `counted` if the HTTP client already has.
    pub(super) fn note(&self, trouble: &Trouble, counted: bool) {
        let Some(status) = trouble.status().filter(|status| THROTTLED.contains(status)) else {
            return;
        };
        if !counted {
            self.answers.note(status);
        }
        *self.last.lock() = Some(self.clock.mono());
    }

    pub(super) fn read(&self) -> Throttling {
        let recent = |at: &Duration| self.clock.mono().saturating_sub(*at) < THROTTLED_FOR;
        let now = self.waiting.load(Ordering::Relaxed) > 0 || self.last.lock().iter().any(recent);
        let waited = Duration::from_millis(self.waited_ms.load(Ordering::Relaxed));
        Throttling { answers: self.answers.read(), waited, now }
    }
}

/// A wait because of throttling, measured until it is dropped.
#[derive(Debug)]
pub struct Wait {
    throttle: Arc<Throttle>,
    began: Duration,
}

impl Wait {
    /// Starts a wait.
    pub(super) fn begin(throttle: Arc<Throttle>) -> Self {
        throttle.waiting.fetch_add(1, Ordering::Relaxed);
        let began = throttle.clock.mono();
        Self { throttle, began }
    }
}

impl Drop for Wait {
    fn drop(&mut self) {
        let throttle = &self.throttle;
        let took = throttle.clock.mono().saturating_sub(self.began);
        throttle.waited_ms.fetch_add(took.as_millis() as u64, Ordering::Relaxed);
        throttle.waiting.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Reports whether the store throttled the request that ended with this error.
pub fn is_throttled(error: &Error) -> bool {
    Trouble::is_throttled(error)
}
