//! Lag: how late the changes of other nodes arrive here, and how many commits are known and not
//! applied.
//!
//! Owns the figures, which are for people. Must never take part in a decision.

use std::time::Duration;

use parking_lot::Mutex;

/// The worst lag of this many minutes is reported; the present minute counts.
pub(super) const WORST_OF_MINUTES: usize = 5;
const MINUTE: Duration = Duration::from_mins(1);

/// How well this node follows the other nodes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Following {
    /// The age of the last list that was applied completely; `None` before the first.
    pub list_age: Option<Duration>,
    /// How long ago the last list began, whatever its outcome.
    pub attempt_age: Option<Duration>,
    /// Whether the last list that ended failed, or showed a commit that could not be read.
    pub list_failed: bool,
    /// The lag of the last commit that was applied, in milliseconds.
    pub lag_last_ms: Option<u64>,
    /// The worst lag of the last five minutes, including the present one; `None` if nothing was
    /// applied in them.
    pub lag_worst_ms: Option<u64>,
    /// Commits of the log that this node knows of and has not applied.
    pub unapplied: u64,
}

/// Measures the lag.
#[derive(Debug, Default)]
pub(super) struct Lag(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    /// The store's time since which this node follows. Earlier commits do not count as late.
    awake_ms: u64,
    last_ms: Option<u64>,
    /// The number of a minute by the monotonic clock, with the worst lag in it.
    worst: [Option<(u64, u64)>; WORST_OF_MINUTES],
    /// How many commits the last list has shown that are not read yet.
    pending: u64,
}

impl Lag {
    /// Notes that this node begins to follow, at a time of the store's clock: at its start, and
    /// when a program makes a request after a pause.
    pub(super) fn wake(&self, now_ms: u64) {
        self.0.lock().awake_ms = now_ms;
    }

    /// Notes how many commits a page of a list shows that were not applied. The first page starts
    /// the count again.
    pub(super) fn listed(&self, count: usize, first: bool) {
        let mut state = self.0.lock();
        let before = if first { 0 } else { state.pending };
        state.pending = before + count as u64;
    }

    /// Notes that one of these commits no longer waits to be read.
    pub(super) fn settled(&self) {
        let mut state = self.0.lock();
        state.pending = state.pending.saturating_sub(1);
    }

    /// Notes that a commit with a stamp of `stamp_ms` was applied. The time is `now_ms` by the
    /// store's clock, and `now` by the monotonic clock. Returns the lag.
    pub(super) fn applied(&self, stamp_ms: u64, now_ms: u64, now: Duration) -> Duration {
        let mut state = self.0.lock();
        let lag_ms = now_ms.saturating_sub(stamp_ms.max(state.awake_ms));
        state.last_ms = Some(lag_ms);
        let minute = minute_of(now);
        let slot = &mut state.worst[(minute % WORST_OF_MINUTES as u64) as usize];
        let before = slot.filter(|(of, _)| *of == minute).map_or(0, |(_, worst)| worst);
        *slot = Some((minute, before.max(lag_ms)));
        Duration::from_millis(lag_ms)
    }

    /// Returns the lag of the last commit, the worst recent lag, and how many commits wait to be
    /// read.
    pub(super) fn read(&self, now: Duration) -> (Option<u64>, Option<u64>, u64) {
        let state = self.0.lock();
        let minute = minute_of(now);
        let recent = |(of, _): &(u64, u64)| of + (WORST_OF_MINUTES as u64) > minute;
        let worst = state.worst.iter().flatten().filter(|one| recent(one));
        (state.last_ms, worst.map(|(_, worst)| *worst).max(), state.pending)
    }
}

fn minute_of(now: Duration) -> u64 {
    now.as_secs() / MINUTE.as_secs()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_worst_is_forgotten_after_minutes() {
        let (lag, mut now) = (Lag::default(), Duration::from_hours(1));
        assert_eq!(lag.read(now), (None, None, 0));
        lag.applied(1_000, 31_000, now);
        lag.applied(31_000, 31_200, now);
        assert_eq!(lag.read(now), (Some(200), Some(30_000), 0));
        now += 4 * MINUTE;
        lag.applied(50_000, 50_700, now);
        assert_eq!(lag.read(now), (Some(700), Some(30_000), 0));
        now += MINUTE;
        assert_eq!(lag.read(now), (Some(700), Some(700), 0));
        now += 10 * MINUTE;
        assert_eq!(lag.read(now), (Some(700), None, 0));
        lag.applied(9_000, 8_000, now);
        assert_eq!(lag.read(now), (Some(0), Some(0), 0), "the other clock is ahead");
    }

    #[test]
    fn commits_from_before_the_wake_have_no_lag() {
        let lag = Lag::default();
        lag.wake(100_000);
        lag.applied(1_000, 100_300, MINUTE);
        assert_eq!(lag.read(MINUTE).0, Some(300));
    }

    #[test]
    fn what_waits_is_counted_down() {
        let lag = Lag::default();
        lag.listed(3, true);
        lag.listed(2, false);
        lag.settled();
        assert_eq!(lag.read(MINUTE).2, 4);
        lag.listed(1, true);
        lag.settled();
        lag.settled();
        assert_eq!(lag.read(MINUTE).2, 0);
    }
}
