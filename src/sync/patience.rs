//! Patience: waits out trouble that may pass, within the caller's deadline.
//!
//! Owns the only wait between a failed request and its retry. Must never wait for a store that is
//! known not to answer, nor for an answer that will not change.
//!
//! Keeps P8 never-in-the-way.

use std::time::Duration;

use parking_lot::Mutex;

use super::backoff::Backoff;
use crate::clock;
use crate::error::{Error, Kind, Result};
use crate::remote::{ErrorClass, Health, Progress, Remote};

/// The shortest and the longest wait between two requests that a program waits for.
pub(super) const WAIT_MIN: Duration = Duration::from_millis(100);
pub(super) const WAIT_MAX: Duration = Duration::from_secs(1);
/// How often a body is requested again if it began to arrive and broke off: its bytes count as
/// progress, so a connection that always breaks would keep the caller for ever.
const BROKEN_MAX: u32 = 4;

/// Reports whether a retry is worthwhile: the trouble may pass, and the store answers.
pub(super) fn may_pass(remote: &Remote, error: &Error) -> bool {
    ErrorClass::of(error.kind()) == ErrorClass::Passing && remote.health() == Health::Up
}

/// Repeats a request until it succeeds, the trouble is of a kind that does not pass, or nothing has
/// moved for `limit`.
pub(super) async fn wait_out<T, F>(
    remote: &Remote,
    limit: Duration,
    progress: &Progress,
    request: impl Fn() -> F,
) -> Result<T>
where
    F: Future<Output = Result<T>>,
{
    let last = Mutex::new(None);
    let again = async {
        let mut backoff = Backoff::new(WAIT_MIN, WAIT_MAX);
        let mut broken = 0;
        loop {
            let moves = progress.moves();
            let error = match request().await {
                Err(error) if may_pass(remote, &error) => error,
                done => return done,
            };
            broken += u32::from(progress.moves() > moves);
            if broken >= BROKEN_MAX {
                return Err(error);
            }
            let throttled = remote.wait_after(&error);
            *last.lock() = Some(error);
            clock::sleep(backoff.wait()).await;
            drop(throttled);
        }
    };
    progress.within(limit, again).await.unwrap_or_else(|| {
        let silent = || Error::new(Kind::TimedOut, format!("nothing has arrived for {limit:?}"));
        Err(last.into_inner().unwrap_or_else(silent))
    })
}
