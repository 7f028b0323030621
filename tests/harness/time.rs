//! Waits with a limit.
//!
//! Owns the waits of the tests. Must never wait without a deadline.

use std::fmt::Display;
use std::sync::mpsc;
use std::time::{Duration, Instant};

use super::Must as _;

/// Returns the time, for measuring.
#[expect(clippy::disallowed_methods, reason = "the tests measure real time")]
pub(crate) fn now() -> Instant {
    Instant::now()
}

/// Sleeps on this thread.
#[expect(clippy::disallowed_methods, reason = "the tests use real time")]
pub(crate) fn sleep_ms(ms: u64) {
    std::thread::sleep(Duration::from_millis(ms));
}

/// Returns the wall clock in seconds and nanoseconds since the epoch.
#[expect(clippy::disallowed_methods, reason = "file times are wall-clock times")]
pub(crate) fn wall() -> Duration {
    std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default()
}

/// Starts a thread of the test; the test joins it if it needs the result.
pub(crate) fn thread<T: Send + 'static>(
    work: impl FnOnce() -> T + Send + 'static,
) -> std::thread::JoinHandle<T> {
    hearthfs::task::thread("test", work).must("start a thread")
}

/// Runs `work` on a thread of its own and fails if it takes longer than `limit_ms`.
#[track_caller]
pub(crate) fn within<T: Send + 'static>(
    limit_ms: u64,
    what: impl Display,
    work: impl FnOnce() -> T + Send + 'static,
) -> T {
    let (tell, told) = mpsc::sync_channel(1);
    let worker = thread(move || drop(tell.send(work())));
    match told.recv_timeout(Duration::from_millis(limit_ms)) {
        Ok(value) => value,
        Err(mpsc::RecvTimeoutError::Disconnected) => {
            let cause = worker.join().err();
            let text = cause.and_then(|cause| {
                let plain = cause.downcast_ref::<&str>().map(|text| (*text).to_owned());
                plain.or_else(|| cause.downcast_ref::<String>().cloned())
            });
            panic!("{what}: {}", text.unwrap_or_default());
        }
        Err(mpsc::RecvTimeoutError::Timeout) => panic!("{what}: not done after {limit_ms} ms"),
    }
}

/// Repeats a check until `done` accepts its answer. Fails with the last answer if that was refused and its check
/// began after `limit_ms`: on a busy machine a check may take longer than that, and its answer is then an old one.
#[track_caller]
pub(crate) fn eventually<T>(
    limit_ms: u64,
    what: impl Display,
    mut done: impl FnMut() -> Result<T, String>,
) -> T {
    let start = now();
    loop {
        let is_last = start.elapsed() > Duration::from_millis(limit_ms);
        match done() {
            Ok(value) => return value,
            Err(last) if is_last => {
                panic!("{what}: not within {limit_ms} ms; last: {last}");
            }
            Err(_) => sleep_ms(20),
        }
    }
}
