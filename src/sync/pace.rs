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
/// The factor by which the delay grows in a window in which the store throttled.
const THROTTLED_GROWTH: f64 = 2.0;
/// The factor by which this delay shrinks afterwards in the time of [`WINDOW`], however many commits the log
/// gets: otherwise the store would soon throttle again. It shrinks by at most the factor by which
/// it grows before the store has shown whether it throttles at the shorter one.
const THROTTLED_SHRINKING: f64 = 0.9;
/// A delay of zero grows as if it were this long.
const GROWS_FROM: Duration = Duration::from_millis(10);
/// How long is counted before the delay is computed again.
pub(super) const WINDOW: Duration = Duration::from_secs(2);
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

/// What the head of the log shows of the last [`WINDOW`].
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Crowd {
    /// Commits, and the nodes that made them.
    pub(super) commits: usize,
    pub(super) nodes: usize,
}

#[derive(Debug)]
struct State {
    /// The delay that the pace of the log asks for.
    busy: Duration,
    /// The delay that the store asks for; zero unless it has throttled.
    throttled: Duration,
    /// When the window began, and the counts at that time.
    began: Duration,
    counts: PaceCounts,
}

impl Pace {
    pub(super) fn new(least: Duration) -> Self {
        let counts = PaceCounts::default();
        let state = State { busy: least, throttled: Duration::ZERO, began: Duration::ZERO, counts };
        Self { least, state: Mutex::new(state) }
    }

    /// Returns how much longer a delay is than that of a node which is alone in the log.
    pub(super) fn excess(&self, delay: Duration) -> Duration {
        delay.saturating_sub(self.least)
    }

    /// Returns the delay at a time of the monotonic clock, from the counts until then.
    pub(super) fn delay(&self, now: Duration, counts: PaceCounts, crowd: Crowd) -> Duration {
        let mut state = self.state.lock();
        let window = now.saturating_sub(state.began);
        if window >= WINDOW {
            state.count(window, counts);
            state.busy = state.busy.max(self.least);
            (state.began, state.counts) = (now, counts);
        }
        if crowd.commits as f64 > COMMITS_PER_SEC * WINDOW.as_secs_f64() {
            // Many nodes began at once. Until a window ends, each of them would go on as if it were alone.
            let share = Duration::from_secs_f64(crowd.nodes as f64 / COMMITS_PER_SEC);
            state.busy = state.busy.max(share.min(DELAY_MAX));
        }
        state.busy.max(state.throttled)
    }
}

impl State {
    /// Computes the delays after a window.
    fn count(&mut self, window: Duration, counts: PaceCounts) {
        let refused = counts.refused.saturating_sub(self.counts.refused);
        let requests = counts.requests.saturating_sub(self.counts.requests);
        if refused * REFUSED_PART > requests {
            let from = self.throttled.max(self.busy).max(GROWS_FROM);
            self.throttled = from.mul_f64(THROTTLED_GROWTH).min(THROTTLED_DELAY_MAX);
        } else {
            let shrinking = THROTTLED_SHRINKING.powf(window.div_duration_f64(WINDOW));
            self.throttled = self.throttled.mul_f64(shrinking.max(THROTTLED_GROWTH.recip()));
        }
        let commits = counts.commits.saturating_sub(self.counts.commits) as f64;
        let part = if window > WINDOW_MAX {
            0.0
        } else {
            commits / window.as_secs_f64() / COMMITS_PER_SEC
        };
        self.busy = self.busy.max(GROWS_FROM).mul_f64(part).min(DELAY_MAX);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LEAST: Duration = Duration::from_millis(200);
    const NONE: Crowd = Crowd { commits: 0, nodes: 0 };

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
                delay = pace.delay(Duration::from_millis(20_000 + ms), commits(count), NONE);
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
        assert_eq!(pace.delay(Duration::from_secs(100), commits(0), NONE), LEAST);
        assert_eq!(pace.delay(Duration::from_secs(103), commits(3000), NONE), DELAY_MAX);
        assert_eq!(
            pace.delay(Duration::from_secs(104), commits(3000), NONE),
            DELAY_MAX,
            "both are in one window"
        );
        assert_eq!(pace.delay(Duration::from_secs(106), commits(3000), NONE), LEAST);
        assert_eq!(pace.delay(Duration::from_secs(109), commits(6000), NONE), DELAY_MAX);
        assert_eq!(pace.delay(Duration::from_secs(200), commits(6_000_000), NONE), LEAST);
        let none = Pace::new(Duration::ZERO);
        assert_eq!(none.delay(Duration::from_secs(3), commits(6000), NONE), Duration::from_secs(1));
        let slow = Pace::new(DELAY_MAX * 2);
        assert_eq!(
            slow.delay(Duration::from_secs(3), commits(6000), NONE),
            DELAY_MAX * 2,
            "the configured delay"
        );
    }

    #[test]
    fn nodes_that_begin_at_once_share_the_pace_before_it_is_counted() {
        let pace = Pace::new(LEAST);
        let after_ms = |ms, commits, nodes| {
            let counts = PaceCounts::default();
            pace.delay(Duration::from_millis(ms), counts, Crowd { commits, nodes }).as_millis()
        };
        assert_eq!(after_ms(100, 40, 40), 200, "few commits");
        assert_eq!(after_ms(200, 41, 3), 200, "few nodes");
        assert_eq!(after_ms(300, 50, 30), 1500);
        assert_eq!(after_ms(400, 200, 150), 5000);
        assert_eq!(after_ms(500, 10, 10), 5000, "until the pace is counted");
        assert_eq!(after_ms(2500, 10, 10), 200);
    }

    #[test]
    fn a_store_that_throttles_slows_a_node_down_whatever_it_sees() {
        let (pace, mut now_s) = (Pace::new(LEAST), 100);
        let mut after_ms = |seconds, refused| {
            now_s += seconds;
            let counts = PaceCounts { commits: 0, requests: now_s * 10, refused };
            pace.delay(Duration::from_secs(now_s), counts, NONE).as_millis()
        };
        assert_eq!([1, 2].map(|count| after_ms(3, count)), [200, 200], "one request in thirty");
        assert_eq!([4, 8, 12, 16].map(|count| after_ms(3, count)), [400, 800, 1600, 3200]);
        assert_eq!(
            [16, 17].map(|count| after_ms(3, count)),
            [2732, 2332],
            "the delay shrinks step by step"
        );
        assert_eq!(
            [30, 60, 90, 120].map(|count| after_ms(20, count)),
            [4665, 9331, 18_662, 30_000]
        );
        assert_eq!([120; 8].map(|count| after_ms(70, count))[..3], [15_000, 7500, 3750]);
        assert_eq!(after_ms(70, 120), 200);
    }

    /// A node that was throttled longer than the others must not stay slower than they are because
    /// they make as many commits as they should.
    #[test]
    fn a_node_that_was_throttled_soon_follows_the_pace_of_the_log_again() {
        let (pace, mut now_ms, mut refused) = (Pace::new(LEAST), 100_000, 0);
        let mut after_ms = |ms: u64, refused| {
            now_ms += ms;
            let counts = PaceCounts { commits: now_ms / 50, requests: now_ms / 100, refused };
            pace.delay(Duration::from_millis(now_ms), counts, NONE).as_millis() as u64
        };
        let mut delay_ms = after_ms(2000, 0);
        while delay_ms < 14_000 {
            refused += 1000;
            delay_ms = after_ms(2000, refused);
        }
        let mut waited_ms = 0;
        while delay_ms > DELAY_MAX.as_millis() as u64 {
            waited_ms += delay_ms;
            delay_ms = after_ms(delay_ms, refused);
        }
        assert!(waited_ms < 60_000, "{waited_ms}");
    }
}
