//! Quiet: one warning a minute for a fault that repeats.

use std::time::Duration;

use parking_lot::Mutex;

use crate::clock::Clock;

/// At most one warning is logged in this time.
const WARN_EVERY: Duration = Duration::from_mins(1);

/// Decides whether a fault is logged again.
#[derive(Debug, Default)]
pub(super) struct Quiet(Mutex<(Option<Duration>, u64)>);

impl Quiet {
    /// Returns `None` if the fault must not be logged now. Otherwise returns how often it was
    /// suppressed since it was logged last.
    pub(super) fn tell(&self, clock: &Clock) -> Option<u64> {
        let now = clock.mono();
        let mut state = self.0.lock();
        if state.0.is_some_and(|last| now < last + WARN_EVERY) {
            state.1 += 1;
            return None;
        }
        state.0 = Some(now);
        Some(std::mem::take(&mut state.1))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fault_is_logged_once_a_minute_with_a_count() {
        let (clock, quiet) = (Clock::manual(0), Quiet::default());
        assert_eq!(quiet.tell(&clock), Some(0));
        assert_eq!((quiet.tell(&clock), quiet.tell(&clock)), (None, None));
        clock.advance(WARN_EVERY);
        assert_eq!(quiet.tell(&clock), Some(2));
        assert_eq!(quiet.tell(&clock), None);
    }
}
