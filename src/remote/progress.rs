//! Progress: lets callers wait as long as bytes move.
//!
//! Owns the one meaning of a deadline: it counts from the last bytes that moved. Must never count
//! anything but bytes: a retry is no progress.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;

use crate::clock;

/// Tells waiting callers that bytes have moved; cheap to clone.
#[derive(Debug, Clone)]
pub struct Progress(Arc<watch::Sender<u64>>);

impl Default for Progress {
    fn default() -> Self {
        Self(Arc::new(watch::Sender::new(0)))
    }
}

impl Progress {
    /// Notes that bytes have moved.
    pub fn note(&self) {
        self.0.send_modify(|moves| *moves += 1);
    }

    /// Returns how often bytes have moved.
    pub fn moves(&self) -> u64 {
        *self.0.borrow()
    }

    /// Runs `work` until nothing has moved for `limit`; then drops `work` and returns `None`.
    pub async fn within<T>(&self, limit: Duration, work: impl Future<Output = T>) -> Option<T> {
        let mut moved = self.0.subscribe();
        let mut work = std::pin::pin!(work);
        loop {
            let either = futures::future::select(work.as_mut(), Box::pin(moved.changed()));
            match clock::within(limit, either).await? {
                futures::future::Either::Left((done, _)) => return Some(done),
                futures::future::Either::Right(_) => {}
            }
        }
    }

    /// Runs `work`, and records progress of `other` here, too.
    pub async fn follow<T>(&self, other: &Self, work: impl Future<Output = T>) -> T {
        let mut moved = other.0.subscribe();
        let mut work = std::pin::pin!(work);
        loop {
            match futures::future::select(work.as_mut(), Box::pin(moved.changed())).await {
                futures::future::Either::Left((done, _)) => return done,
                futures::future::Either::Right(_) => self.note(),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(test: impl Future<Output = ()>) {
        let mut runtime = tokio::runtime::Builder::new_current_thread();
        let runtime = runtime.enable_all().start_paused(true).build();
        runtime.expect("a runtime").block_on(test);
    }

    #[test]
    fn the_deadline_counts_from_the_last_bytes() {
        run(async {
            let (here, there) = (Progress::default(), Progress::default());
            let limit = Duration::from_secs(5);
            let work = async {
                for _ in 0..10 {
                    clock::sleep(Duration::from_secs(4)).await;
                    there.note();
                }
            };
            assert!(here.within(limit, here.follow(&there, work)).await.is_some());
            assert_eq!(here.moves(), 9, "the last move ends the work");
            let silent = clock::sleep(Duration::from_secs(6));
            assert!(here.within(limit, silent).await.is_none());
        });
    }
}
