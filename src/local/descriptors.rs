//! Descriptors: some are kept for the daemon's own work, however many files programs have open.
//!
//! Owns the reserve. Must never say that something is not there because it cannot be opened now.
//!
//! Keeps P13 bounded.

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd as _;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::io::Errno;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use crate::clock::Clock;
use crate::error::{Error, Result};

/// Descriptors that files of programs do not take: the store, the journal, the index and commands that ask for the
/// status need some. A process that may have few keeps a quarter.
const RESERVE: u64 = 64;
const RESERVE_PART: u64 = 4;
/// More are of no use, and some services allow a thousand million.
const DESCRIPTORS_MAX: u64 = 1 << 20;

/// The limit of this process, once it was asked for.
static LIMIT: OnceLock<u64> = OnceLock::new();
/// The minute of the last warning.
static WARNED: AtomicU64 = AtomicU64::new(0);

/// Raises this process's soft limit of descriptors as far as it may; returns what it is then. To be called at
/// the start of a daemon, whose children that programs see get the old one.
pub fn raise_limit() -> u64 {
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    let wanted = maximum.unwrap_or(DESCRIPTORS_MAX).min(DESCRIPTORS_MAX);
    let now = current.unwrap_or(DESCRIPTORS_MAX);
    if wanted <= now {
        return now;
    }
    match setrlimit(Resource::Nofile, Rlimit { current: Some(wanted), maximum }) {
        Ok(()) => wanted,
        Err(error) => {
            tracing::warn!(%error, now, wanted, "the limit of open files cannot be raised");
            now
        }
    }
}

fn limit() -> u64 {
    *LIMIT.get_or_init(|| getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX))
}

/// Returns how many descriptors the files of programs may take.
pub fn for_programs() -> u64 {
    let limit = limit();
    limit - RESERVE.min(limit / RESERVE_PART)
}

/// Checks that a file that is opened for a program leaves the daemon its reserve of descriptors. The kernel gives the
/// lowest number that is free, so the number tells how many are in use. A file that was opened long ago, when
/// more were, gets a lower one.
///
/// # Errors
///
/// `Exhausted` when fewer descriptors are free than the daemon keeps for its own work.
pub fn spare(file: File) -> Result<File> {
    let limit = limit();
    let fits = |file: &File| is_spare(file.as_raw_fd().unsigned_abs().into(), limit);
    if fits(&file) {
        return Ok(file);
    }
    if let Some(lower) = file.try_clone().ok().filter(fits) {
        return Ok(lower);
    }
    let minute = Clock::system().wall_ms() / 60_000;
    if WARNED.swap(minute, Ordering::Relaxed) != minute {
        tracing::warn!(limit, "programs have too many files open; further ones get ENFILE");
    }
    Err(Error::io("open a file for a program", io::Error::from(Errno::MFILE)))
}

fn is_spare(number: u64, limit: u64) -> bool {
    number < limit - RESERVE.min(limit / RESERVE_PART)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::Kind;

    #[test]
    fn some_are_kept_in_reserve() {
        assert!(is_spare(191, 256) && !is_spare(192, 256));
        assert!(is_spare(65_471, 65_536) && !is_spare(65_472, 65_536));
        assert!(is_spare(2, 4) && !is_spare(3, 4));
        assert!(is_spare(1 << 31, u64::MAX));
        assert!(spare(File::open("/dev/null").unwrap()).is_ok());
        let error = Error::io("", io::Error::from(Errno::MFILE));
        assert_eq!(error.kind(), Kind::Exhausted);
    }
}
