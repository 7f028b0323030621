//! The pace of the log: how long a publisher collects for one commit.
//!
//! Owns the measure. All nodes read the log, so they count nearly the same and slow down nearly alike, whatever their
//! number. Must never slow down a node that has the log for itself and collects for 50 ms or more, nor hold up a drain
//! for longer than a tick of its wait.

use std::time::Duration;

use parking_lot::Mutex;

/// Commits of all nodes together in a second, beyond which each takes longer.
const COMMITS_PER_SEC: f64 = 20.0;
/// The longest that is collected for.
const DELAY_MAX: Duration = Duration::from_secs(5);
/// A delay of zero grows as if it were this.
const GROWS_FROM: Duration = Duration::from_millis(10);
/// How long is counted before the delay is set anew.
const WINDOW: Duration = Duration::from_secs(2);
/// The count of a longer window says nothing about the present.
const WINDOW_MAX: Duration = Duration::from_secs(15);

/// Tells how long is collected for a commit.
#[derive(Debug)]
pub(super) struct Pace {
    /// The delay with which a few nodes do not disturb each other.
    least: Duration,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    delay: Duration,
    /// When the window began, and how many commits had been seen then.
    began: Duration,
    count: u64,
}

impl Pace {
    pub(super) fn new(least: Duration) -> Self {
        let state = State { delay: least, began: Duration::ZERO, count: 0 };
        Self { least, state: Mutex::new(state) }
    }

    /// Returns the delay, at a time of the monotonic clock at which `count` commits have been seen in all.
    pub(super) fn delay(&self, now: Duration, count: u64) -> Duration {
        let mut state = self.state.lock();
        let window = now.saturating_sub(state.began);
        if window < WINDOW {
            return state.delay;
        }
        let commits = count.saturating_sub(state.count);
        let most = DELAY_MAX.max(self.least);
        state.delay = if window > WINDOW_MAX {
            self.least
        } else {
            let part = commits as f64 / window.as_secs_f64() / COMMITS_PER_SEC;
            let delay = state.delay.max(GROWS_FROM).as_secs_f64();
            Duration::from_secs_f64((delay * part).min(most.as_secs_f64()))
        };
        state.delay = state.delay.max(self.least);
        (state.began, state.count) = (now, count);
        state.delay
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LEAST: Duration = Duration::from_millis(200);

    /// Lets nodes that always have something to say go on for a while; returns commits in the last ten seconds, and
    /// the last delay.
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
                delay = pace.delay(Duration::from_millis(20_000 + ms), count);
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
    fn what_was_long_ago_slows_no_node_down() {
        let pace = Pace::new(LEAST);
        assert_eq!(pace.delay(Duration::from_secs(100), 0), LEAST);
        assert_eq!(pace.delay(Duration::from_secs(103), 3000), DELAY_MAX);
        assert_eq!(pace.delay(Duration::from_secs(104), 3000), DELAY_MAX, "it is one window");
        assert_eq!(pace.delay(Duration::from_secs(106), 3000), LEAST);
        assert_eq!(pace.delay(Duration::from_secs(109), 6000), DELAY_MAX);
        assert_eq!(pace.delay(Duration::from_secs(200), 6_000_000), LEAST);
        let none = Pace::new(Duration::ZERO);
        assert_eq!(none.delay(Duration::from_secs(3), 6000), Duration::from_secs(1));
        let slow = Pace::new(DELAY_MAX * 2);
        assert_eq!(slow.delay(Duration::from_secs(3), 6000), DELAY_MAX * 2, "as it was set");
    }
}
