//! How often the follower looks at the log while programs make requests.
//!
//! Owns the time from one look to the next. Must never exceed the time for which names are vouched
//! for, if looks take as long as before.

use std::time::Duration;

use super::freshness::VOUCHED_PART;

/// The shortest and the longest time between two looks.
const POLL_MIN: Duration = Duration::from_millis(100);
const POLL_MAX: Duration = Duration::from_secs(30);
/// The time between two looks if `freshness` is 0, so that each lookup makes one.
const POLL_ALWAYS_ASKED: Duration = Duration::from_secs(1);
/// After something has moved, more changes are expected for this long.
const LIVELY_FOR: Duration = Duration::from_secs(5);
/// If one look brings more commits than this, or the head has commits of more nodes, the fleet is
/// large, and more frequent looks are expensive for all nodes.
const FEW_COMMITS: u64 = 2;
const FEW_PUBLISHERS: usize = 4;
/// For this long after the store throttled, looks are only as frequent as they must be.
const THROTTLED_FOR: Duration = Duration::from_mins(1);
/// How much longer a look may take than those before it.
const SLACK: Duration = Duration::from_millis(10);

/// The pace of one follower.
#[derive(Debug)]
pub(super) struct LookPace {
    /// How old an answer may be.
    limit: Duration,
    /// The time that the slowest of the last looks took.
    took: Duration,
    /// The monotonic time when a look last brought commits, and how many it brought.
    moved: Option<(Duration, u64)>,
    /// When the store last throttled.
    throttled: Option<Duration>,
}

/// The figures of one look.
#[derive(Debug, Clone, Copy)]
pub(super) struct LookFigures {
    pub(super) took: Duration,
    pub(super) commits: u64,
    /// It needed no list.
    pub(super) by_head: bool,
    /// How many nodes have committed recently.
    pub(super) publishers: usize,
    /// The store throttles.
    pub(super) throttled: bool,
}

impl LookPace {
    pub(super) fn new(limit: Duration) -> Self {
        Self { limit, took: Duration::ZERO, moved: None, throttled: None }
    }

    /// Notes a look that ended at `now`, and returns how long to wait before the next one.
    pub(super) fn wait(&mut self, now: Duration, look: LookFigures) -> Duration {
        if self.limit.is_zero() {
            return POLL_ALWAYS_ASKED;
        }
        self.took = look.took.max(self.took * 7 / 8);
        if look.commits > 0 {
            self.moved = Some((now, look.commits));
        }
        let latest = self.limit.mul_f64(VOUCHED_PART).saturating_sub(self.took + SLACK);
        if look.throttled {
            self.throttled = Some(now);
        }
        let within = |at: Duration, time| now.saturating_sub(at) < time;
        let is_lively = self.moved.is_some_and(|(at, commits)| {
            within(at, LIVELY_FOR) && commits <= FEW_COMMITS && look.publishers <= FEW_PUBLISHERS
        });
        let is_throttled = self.throttled.is_some_and(|at| within(at, THROTTLED_FOR));
        let period = match (is_lively && !is_throttled, look.by_head) {
            (true, true) => self.limit / 5,
            (true, false) => self.limit / 2,
            (false, _) => latest.max(self.limit / 2),
        };
        period.saturating_sub(look.took).clamp(POLL_MIN, POLL_MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn look(commits: u64) -> LookFigures {
        let took = Duration::from_millis(20);
        LookFigures { took, commits, by_head: true, publishers: 1, throttled: false }
    }

    #[test]
    fn a_quiet_log_is_looked_at_as_rarely_as_the_promise_allows() {
        let mut pace = LookPace::new(SECOND);
        let period = pace.wait(SECOND, look(0)) + look(0).took;
        assert!(period < SECOND * 11 / 12 && period > Duration::from_millis(875), "{period:?}");
        let slow = LookFigures { took: Duration::from_millis(300), ..look(0) };
        let wait = pace.wait(SECOND, slow);
        assert!(
            wait + slow.took * 2 < SECOND * 11 / 12,
            "the next look may take as long: {wait:?}"
        );
        let after: Vec<_> = (0..40).map(|_| pace.wait(SECOND, look(0))).collect();
        assert!(after.is_sorted() && after[39] + look(0).took > Duration::from_millis(875));
    }

    #[test]
    fn a_log_that_moves_is_looked_at_more_often() {
        let mut pace = LookPace::new(SECOND);
        let period = |wait: Duration| wait + look(0).took;
        assert_eq!(period(pace.wait(SECOND * 10, look(1))), SECOND / 5);
        assert_eq!(period(pace.wait(SECOND * 14, look(0))), SECOND / 5);
        assert!(period(pace.wait(SECOND * 15, look(0))) > SECOND / 2, "quiet again");
        assert!(period(pace.wait(SECOND * 20, look(9))) > SECOND / 2, "many nodes publish");
        let list = LookFigures { by_head: false, ..look(1) };
        assert_eq!(period(pace.wait(SECOND * 20, list)), SECOND / 2, "lists are expensive");
        let fleet = LookFigures { publishers: 5, ..look(1) };
        assert!(period(pace.wait(SECOND * 20, fleet)) > SECOND / 2, "commits of many nodes");
        let refused = LookFigures { throttled: true, ..look(1) };
        assert!(period(pace.wait(SECOND * 20, refused)) > SECOND / 2);
        assert!(period(pace.wait(SECOND * 79, look(1))) > SECOND / 2, "for a minute");
        assert_eq!(period(pace.wait(SECOND * 80, look(1))), SECOND / 5);
    }

    #[test]
    fn short_and_long_limits_have_bounds() {
        assert_eq!(LookPace::new(Duration::ZERO).wait(SECOND, look(1)), POLL_ALWAYS_ASKED);
        assert_eq!(LookPace::new(Duration::from_millis(10)).wait(SECOND, look(1)), POLL_MIN);
        assert_eq!(LookPace::new(SECOND * 3600).wait(SECOND, look(0)), POLL_MAX);
    }
}
