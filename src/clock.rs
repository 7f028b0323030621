//! Time, as everything here sees it.
//!
//! Owns the only reads of the system's clocks, so that a test can own time instead. Must never be
//! bypassed: the lint list forbids the raw calls.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// A source of wall time and of monotonic time.
#[derive(Clone, Debug)]
pub struct Clock(Source);

#[derive(Clone, Debug)]
enum Source {
    System { start: Instant },
    Manual { now_ms: Arc<AtomicU64> },
}

impl Clock {
    /// Returns the machine's own clock.
    #[expect(clippy::disallowed_methods, reason = "this is the seam itself")]
    pub fn system() -> Self {
        Self(Source::System { start: Instant::now() })
    }

    /// Returns a clock that stands still until [`Clock::advance`] moves it.
    pub fn manual(now_ms: u64) -> Self {
        Self(Source::Manual { now_ms: Arc::new(AtomicU64::new(now_ms)) })
    }

    /// Moves a manual clock; the machine's clock cannot be moved and ignores this.
    pub fn advance(&self, by: Duration) {
        if let Source::Manual { now_ms } = &self.0 {
            now_ms.fetch_add(by.as_millis() as u64, Ordering::Relaxed);
        }
    }

    /// Returns the wall time since the Unix epoch.
    #[expect(clippy::disallowed_methods, reason = "this is the seam itself")]
    pub fn wall(&self) -> Duration {
        match &self.0 {
            Source::System { .. } => {
                SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default()
            }
            Source::Manual { now_ms } => Duration::from_millis(now_ms.load(Ordering::Relaxed)),
        }
    }

    /// Returns the wall time in milliseconds since the Unix epoch.
    pub fn wall_ms(&self) -> u64 {
        self.wall().as_millis() as u64
    }

    /// Returns a time that only grows, since an arbitrary start.
    pub fn mono(&self) -> Duration {
        match &self.0 {
            Source::System { start } => start.elapsed(),
            Source::Manual { now_ms } => Duration::from_millis(now_ms.load(Ordering::Relaxed)),
        }
    }
}

/// Waits; the one place where a task sleeps.
#[expect(clippy::disallowed_methods, reason = "this is the seam itself")]
pub async fn sleep(time: Duration) {
    tokio::time::sleep(time).await;
}

/// Runs `work` for at most `limit`; `None` when the limit came first and `work` was dropped.
#[expect(clippy::disallowed_methods, reason = "this is the seam itself")]
pub async fn within<T>(limit: Duration, work: impl Future<Output = T>) -> Option<T> {
    tokio::time::timeout(limit, work).await.ok()
}
