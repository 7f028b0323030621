//! The clock of the benchmark, and a bound on its duration.
//!
//! Owns the only clock and the only sleep here. A mount that hangs blocks every process that
//! accesses it, so the watchdog kills the daemons of this run when a section exceeds its limit.

use std::sync::{LazyLock, Mutex, PoisonError};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};

static CLOCK: LazyLock<hearthfs::clock::Clock> = LazyLock::new(hearthfs::clock::Clock::system);
static STARTED: Mutex<Vec<Pid>> = Mutex::new(Vec::new());
static DEADLINE: Mutex<Option<Duration>> = Mutex::new(None);

/// Returns the time since the start.
pub(crate) fn now() -> Duration {
    CLOCK.mono()
}

/// Returns milliseconds since the Unix epoch.
pub(crate) fn wall_ms() -> u64 {
    CLOCK.wall_ms()
}

/// Waits.
#[expect(clippy::disallowed_methods, reason = "a benchmark has no runtime that could sleep")]
pub(crate) fn sleep_ms(ms: u64) {
    std::thread::sleep(Duration::from_millis(ms));
}

/// Returns the duration of `work`, and its result.
pub(crate) fn timed<T>(work: impl FnOnce() -> T) -> (Duration, T) {
    let start = now();
    let done = work();
    (now().saturating_sub(start), done)
}

/// Registers a daemon of this run.
pub(crate) fn watch(pid: Pid) {
    STARTED.lock().unwrap_or_else(PoisonError::into_inner).push(pid);
}

/// Removes a daemon that ended.
pub(crate) fn unwatch(pid: Pid) {
    STARTED.lock().unwrap_or_else(PoisonError::into_inner).retain(|other| *other != pid);
}

/// Sets the limit of the section that starts now.
pub(crate) fn limit(time: Duration) {
    *DEADLINE.lock().unwrap_or_else(PoisonError::into_inner) = Some(now() + time);
}

/// Starts the watchdog.
pub(crate) fn start_watchdog() -> std::io::Result<()> {
    let thread = hearthfs::task::thread("watchdog", || {
        loop {
            sleep_ms(500);
            let deadline = *DEADLINE.lock().unwrap_or_else(PoisonError::into_inner);
            if deadline.is_some_and(|deadline| now() > deadline) {
                for pid in STARTED.lock().unwrap_or_else(PoisonError::into_inner).drain(..) {
                    crate::say(format_args!("too late: killing process {}", pid.as_raw_nonzero()));
                    let _ = kill_process(pid, Signal::KILL);
                }
            }
        }
    })?;
    // The thread ends with the process.
    drop(thread);
    Ok(())
}
