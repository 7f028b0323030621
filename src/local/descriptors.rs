//! Descriptors: some are reserved for the daemon's own work, however many files programs have open.
//!
//! Owns the reserve. Must never report something as missing because it cannot be opened now.
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

/// Descriptors that files of programs do not take: the store, the journal, the index and status
/// commands need some. A process with a low limit reserves a quarter.
const RESERVE: u64 = 64;
const RESERVE_PART: u64 = 4;
/// A higher limit is useless, and some services allow a thousand million.
const DESCRIPTORS_MAX: u64 = 1 << 20;

/// The limit of this process, after it was first read.
static LIMIT: OnceLock<u64> = OnceLock::new();
/// The minute of the last warning.
static WARNED: AtomicU64 = AtomicU64::new(0);

/// Raises this process's soft limit of descriptors as far as allowed; returns the new limit. Called
/// when a daemon starts; child processes that programs see get the old limit.
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

/// Checks that a file opened for a program leaves the daemon its reserve of descriptors. The kernel
/// assigns the lowest free number, so the number shows how many are in use. A file opened long ago,
/// when more were in use, is moved to a lower number.
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
