//! Time for the whole program.
//!
//! Owns the only reads of the system's clocks, so that a test can control time. Must never be
//! bypassed: the lint list forbids the raw calls.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// The environment variable with the number of seconds by which the wall clock of a program under
/// test is ahead.
#[cfg(any(test, feature = "test-util"))]
pub const CLOCK_VARIABLE: &str = "HEARTHFS_TEST_CLOCK_AHEAD_S";

/// A source of wall time and of monotonic time.
#[derive(Clone, Debug)]
pub struct Clock(TimeSource);

#[derive(Clone, Debug)]
enum TimeSource {
    /// The machine's wall clock, plus an offset that only tests set.
    System {
        start: Duration,
        ahead_ms: i64,
    },
    Manual {
        now_ms: Arc<AtomicU64>,
        ahead_ms: i64,
    },
    /// The time of the runtime that runs the caller, which a simulation pauses.
    #[cfg(any(test, feature = "test-util"))]
    Runtime {
        began: tokio::time::Instant,
        now_ms: u64,
        ahead_ms: i64,
    },
}

impl Clock {
    /// Returns the machine's own clock.
    pub fn system() -> Self {
        Self(TimeSource::System { start: since_boot(), ahead_ms: 0 })
    }

    /// Returns the clock for a program under test: the machine's, with the wall time shifted by
    /// [`CLOCK_VARIABLE`].
    #[cfg(any(test, feature = "test-util"))]
    pub fn of_process() -> Self {
        let ahead_s = std::env::var(CLOCK_VARIABLE).ok().and_then(|text| text.parse::<i64>().ok());
        let ahead_ms = ahead_s.unwrap_or(0).saturating_mul(1000);
        Self(TimeSource::System { start: since_boot(), ahead_ms })
    }

    /// Returns the machine's own clock.
    #[cfg(not(any(test, feature = "test-util")))]
    pub fn of_process() -> Self {
        Self::system()
    }

    /// Returns a clock that stands still until [`Clock::advance`] moves it.
    pub fn manual(now_ms: u64) -> Self {
        Self(TimeSource::Manual { now_ms: Arc::new(AtomicU64::new(now_ms)), ahead_ms: 0 })
    }

    /// Returns a clock that shows `now_ms` now and advances with the time of the runtime in which
    /// it is read. With a paused runtime a simulated day costs only the work in it. Must be made
    /// and read on threads of that runtime.
    #[cfg(any(test, feature = "test-util"))]
    pub fn of_runtime(now_ms: u64) -> Self {
        Self(TimeSource::Runtime { began: tokio::time::Instant::now(), now_ms, ahead_ms: 0 })
    }

    /// Returns a clock that advances with this one, with a wall time that is ahead by `ahead_ms`.
    #[must_use]
    pub fn skewed(&self, ahead_ms: i64) -> Self {
        Self(match &self.0 {
            TimeSource::System { start, .. } => TimeSource::System { start: *start, ahead_ms },
            TimeSource::Manual { now_ms, .. } => {
                TimeSource::Manual { now_ms: Arc::clone(now_ms), ahead_ms }
            }
            #[cfg(any(test, feature = "test-util"))]
            TimeSource::Runtime { began, now_ms, .. } => {
                TimeSource::Runtime { began: *began, now_ms: *now_ms, ahead_ms }
            }
        })
    }

    /// Moves a manual clock; the machine's clock cannot be moved and ignores this.
    pub fn advance(&self, by: Duration) {
        if let TimeSource::Manual { now_ms, .. } = &self.0 {
            now_ms.fetch_add(by.as_millis() as u64, Ordering::Relaxed);
        }
    }

    /// Returns the wall time since the Unix epoch.
    #[expect(clippy::disallowed_methods, reason = "this is the seam that all other code uses")]
    pub fn wall(&self) -> Duration {
        let (now, ahead_ms) = match &self.0 {
            TimeSource::System { ahead_ms, .. } => {
                (SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default(), *ahead_ms)
            }
            TimeSource::Manual { now_ms, ahead_ms } => {
                (Duration::from_millis(now_ms.load(Ordering::Relaxed)), *ahead_ms)
            }
            #[cfg(any(test, feature = "test-util"))]
            TimeSource::Runtime { ahead_ms, .. } => (self.mono(), *ahead_ms),
        };
        let by = Duration::from_millis(ahead_ms.unsigned_abs());
        if ahead_ms < 0 { now.saturating_sub(by) } else { now + by }
    }

    /// Returns the wall time in milliseconds since the Unix epoch.
    pub fn wall_ms(&self) -> u64 {
        self.wall().as_millis() as u64
    }

    /// Returns a time that only grows, since an arbitrary start; it also advances while the machine
    /// is suspended.
    pub fn mono(&self) -> Duration {
        match &self.0 {
            TimeSource::System { start, .. } => since_boot().saturating_sub(*start),
            TimeSource::Manual { now_ms, .. } => {
                Duration::from_millis(now_ms.load(Ordering::Relaxed))
            }
            #[cfg(any(test, feature = "test-util"))]
            TimeSource::Runtime { began, now_ms, .. } => {
                Duration::from_millis(*now_ms) + began.elapsed()
            }
        }
    }
}

/// Returns how long the machine has been up, suspended time included.
fn since_boot() -> Duration {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
    Duration::new(now.tv_sec.unsigned_abs(), now.tv_nsec.unsigned_abs() as u32)
}

/// Waits; the only place where a task sleeps.
#[expect(clippy::disallowed_methods, reason = "this is the seam that all other code uses")]
pub async fn sleep(time: Duration) {
    tokio::time::sleep(time).await;
}

/// Runs `work` for at most `limit`; returns `None` and drops `work` when the limit is reached.
#[expect(clippy::disallowed_methods, reason = "this is the seam that all other code uses")]
pub async fn within<T>(limit: Duration, work: impl Future<Output = T>) -> Option<T> {
    tokio::time::timeout(limit, work).await.ok()
}
