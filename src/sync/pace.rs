//! The pace of the log: how long a publisher collects changes for one commit.
//!
//! Owns the measurement. All nodes read the log, so all count nearly the same and slow down nearly
//! alike, however many they are. A node that the store throttles slows down too: it may not even
//! see what the others publish. Must never slow down a node that is alone in the log and collects
//! for 50 ms or more. Must never hold up a drain for longer than a tick of its wait.

use std::time::Duration;

use parking_lot::Mutex;

/// If all nodes together make more commits per second than this, each of them collects for longer.
const COMMITS_PER_SEC: f64 = 20.0;
/// The longest time for collecting; and the longest while the store throttles.
const DELAY_MAX: Duration = Duration::from_secs(5);
const THROTTLED_DELAY_MAX: Duration = Duration::from_secs(30);
/// The store throttles if it refuses more than one request in this many; it may refuse single
/// requests at any time.
const REFUSED_PART: u64 = 20;
/// The factor by which the delay grows in a window in which the store throttled, and the factor by
/// which it shrinks at the most in each of the windows after it.
const THROTTLED_GROWTH: f64 = 2.0;
const THROTTLED_SHRINKING: f64 = 0.9;
/// For this long after the store throttled, the delay shrinks slowly: otherwise the store would
/// soon throttle again.
const THROTTLED_FOR: Duration = Duration::from_mins(1);
/// A delay of zero grows as if it were this long.
const GROWS_FROM: Duration = Duration::from_millis(10);
/// How long is counted before the delay is computed again.
const WINDOW: Duration = Duration::from_secs(2);
/// The count of a longer window says nothing about the present.
const WINDOW_MAX: Duration = Duration::from_secs(15);

/// Computes how long to collect for a commit.
#[derive(Debug)]
pub(super) struct Pace {
    /// The delay at which a few nodes do not disturb each other.
    least: Duration,
    state: Mutex<State>,
}

/// What was counted since the start.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct PaceCounts {
    /// Commits of all nodes.
    pub(super) commits: u64,
    /// Requests of this node, and how many of them the store refused because there were too many.
    pub(super) requests: u64,
    pub(super) refused: u64,
}

#[derive(Debug)]
struct State {
    delay: Duration,
    /// When the window began, and the counts at that time.
    began: Duration,
    counts: PaceCounts,
    /// The end of the last window in which the store throttled.
    throttled: Option<Duration>,
}

impl Pace {
    pub(super) fn new(least: Duration) -> Self {
        let counts = PaceCounts::default();
        let state = State { delay: least, began: Duration::ZERO, counts, throttled: None };
        Self { least, state: Mutex::new(state) }
    }

    /// Returns how much longer a delay is than that of a node which is alone in the log.
    pub(super) fn excess(&self, delay: Duration) -> Duration {
        delay.saturating_sub(self.least)
    }

    /// Returns the delay at a time of the monotonic clock, from the counts until then.
    pub(super) fn delay(&self, now: Duration, counts: PaceCounts) -> Duration {
        let mut state = self.state.lock();
        let window = now.saturating_sub(state.began);
        if window >= WINDOW {
            let refused = counts.refused.saturating_sub(state.counts.refused);
            let requests = counts.requests.saturating_sub(state.counts.requests);
            if refused * REFUSED_PART > requests {
                state.throttled = Some(now);
            }
            state.delay = state.next_delay(now, counts.commits).max(self.least);
            (state.began, state.counts) = (now, counts);
        }
        state.delay
    }
}

impl State {
    /// Returns the delay after a window that ends now.
    fn next_delay(&self, now: Duration, commits: u64) -> Duration {
        let window = now.saturating_sub(self.began);
        let commits = commits.saturating_sub(self.counts.commits);
        let part = commits as f64 / window.as_secs_f64() / COMMITS_PER_SEC;
        let since = self.throttled.map(|at| now.saturating_sub(at));
        let (part, most) = match since {
            Some(Duration::ZERO) => (part.max(THROTTLED_GROWTH), THROTTLED_DELAY_MAX),
            Some(since) if since < THROTTLED_FOR => {
                (part.max(THROTTLED_SHRINKING), THROTTLED_DELAY_MAX)
            }
            _ if window > WINDOW_MAX => (0.0, DELAY_MAX),
            _ => (part, DELAY_MAX),
        };
        let delay = self.delay.max(GROWS_FROM).as_secs_f64() * part;
        Duration::from_secs_f64(delay.min(most.as_secs_f64()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LEAST: Duration = Duration::from_millis(200);

    fn commits(commits: u64) -> PaceCounts {
        PaceCounts { commits, ..PaceCounts::default() }
    }

    /// Runs nodes that always have changes to publish for a while; returns the commits of the last
    /// ten seconds, and the last delay.
    fn fleet(nodes: u64, seconds: u64) -> (u64, Duration) {
        let pace: Vec<Pace> = (0..nodes).map(|_| Pace::new(LEAST)).collect();
        let mut due: Vec<u64> = (0..nodes).map(|n| n * 200 / nodes).collect();
        let (mut count, mut recent, mut delay) = (0, 0, LEAST);
        for ms in 0..seconds * 1000 {
            for (pace, due) in pace.iter().zip(&mut due) {
                if *due > ms {
                    continue;
                }
                count += 1;
                recent += u64::from(ms >= (seconds - 10) * 1000);
                delay = pace.delay(Duration::from_millis(20_000 + ms), commits(count));
                *due = ms + delay.as_millis() as u64;
            }
        }
        (recent, delay)
    }

    #[test]
    fn a_few_are_as_fast_as_ever_and_many_share() {
        for nodes in [1, 2, 3] {
            let (recent, delay) = fleet(nodes, 60);
            assert_eq!((recent, delay), (nodes * 50, LEAST), "{nodes} nodes");
        }
        for nodes in [10, 30, 100] {
            let (recent, delay) = fleet(nodes, 120);
            assert!((100..=300).contains(&recent), "{nodes} nodes: {recent} in ten seconds");
            assert!(delay <= DELAY_MAX);
        }
    }

    #[test]
    fn old_commits_slow_no_node_down() {
        let pace = Pace::new(LEAST);
        assert_eq!(pace.delay(Duration::from_secs(100), commits(0)), LEAST);
        assert_eq!(pace.delay(Duration::from_secs(103), commits(3000)), DELAY_MAX);
        assert_eq!(
            pace.delay(Duration::from_secs(104), commits(3000)),
            DELAY_MAX,
            "both are in one window"
        );
        assert_eq!(pace.delay(Duration::from_secs(106), commits(3000)), LEAST);
        assert_eq!(pace.delay(Duration::from_secs(109), commits(6000)), DELAY_MAX);
        assert_eq!(pace.delay(Duration::from_secs(200), commits(6_000_000)), LEAST);
        let none = Pace::new(Duration::ZERO);
        assert_eq!(none.delay(Duration::from_secs(3), commits(6000)), Duration::from_secs(1));
        let slow = Pace::new(DELAY_MAX * 2);
        assert_eq!(
            slow.delay(Duration::from_secs(3), commits(6000)),
            DELAY_MAX * 2,
            "the configured delay"
        );
    }

    #[test]
    fn a_store_that_throttles_slows_a_node_down_whatever_it_sees() {
        let (pace, mut now_s) = (Pace::new(LEAST), 100);
        let mut after_ms = |seconds, refused| {
            now_s += seconds;
            let counts = PaceCounts { commits: 0, requests: now_s * 10, refused };
            pace.delay(Duration::from_secs(now_s), counts).as_millis()
        };
        assert_eq!([1, 2].map(|count| after_ms(3, count)), [200, 200], "one request in thirty");
        assert_eq!([4, 8, 12, 16].map(|count| after_ms(3, count)), [400, 800, 1600, 3200]);
        assert_eq!(
            [16, 17].map(|count| after_ms(3, count)),
            [2880, 2592],
            "the delay shrinks step by step"
        );
        assert_eq!(
            [30, 60, 90, 120].map(|count| after_ms(20, count)),
            [5184, 10_368, 20_736, 30_000]
        );
        assert_eq!(after_ms(70, 120), 200);
    }
}
