//! Back-off: how long to wait before a retry.

use std::time::Duration;

use crate::task;

/// Grows from one wait to the next, up to a limit. Has jitter, so that nodes do not retry in step.
#[derive(Debug)]
pub(super) struct Backoff {
    next: Duration,
    min: Duration,
    max: Duration,
}

impl Backoff {
    pub(super) fn new(min: Duration, max: Duration) -> Self {
        Self { next: min, min, max }
    }

    /// Returns the next wait: a random time between half of a doubling time and the whole of it.
    pub(super) fn wait(&mut self) -> Duration {
        let whole = self.next;
        self.next = (whole * 2).min(self.max);
        let half = whole / 2;
        half + half.mul_f64((task::random_u64() % 1001) as f64 / 1000.0)
    }

    /// Starts again with the shortest wait.
    pub(super) fn reset(&mut self) {
        self.next = self.min;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_grow_up_to_the_limit() {
        let mut backoff = Backoff::new(Duration::from_millis(100), Duration::from_secs(1));
        for whole in [100, 200, 400, 800, 1000, 1000] {
            let wait = backoff.wait().as_millis();
            assert!((whole / 2..=whole).contains(&wait), "{wait} for {whole}");
        }
        backoff.reset();
        assert!(backoff.wait() <= Duration::from_millis(100));
    }
}
