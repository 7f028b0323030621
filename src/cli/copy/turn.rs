//! Imports of one user take turns.
//!
//! The daemon keeps a bounded number of editions for one user ([`super::pace`]). One import stays
//! below the bound by counting its own units. A second one at the same time would exceed it, and
//! its units would be published file by file.
//!
//! Owns a file for each mount, in the runtime directory of the user. Its lock is the turn, and it
//! records the cost of the last import. Must never be removed: another process may wait for its lock.

use std::fs::{File, OpenOptions};
use std::io::Read as _;
use std::os::unix::fs::{FileExt as _, MetadataExt as _, OpenOptionsExt as _};
use std::time::Duration;

use rustix::fs::{FlockOperation, OFlags, flock};
use rustix::io::Errno;

use super::pace::UnitCost;
use crate::cli::failure::{Failure, Outcome};
use crate::cli::output::note;
use crate::cli::wait;
use crate::clock::{Clock, sleep};
use crate::config::Surroundings;
use crate::control;

/// How long an import waits for its turn.
const TURN_LIMIT: Duration = Duration::from_hours(6);
/// How often it tries.
const LOOK_EVERY: Duration = Duration::from_millis(200);
/// The longest text of the file.
const TEXT_BYTES_MAX: u64 = 100;

/// The exclusive right to import.
#[derive(Debug)]
pub(in crate::cli) struct ImportTurn {
    file: File,
    earlier: (UnitCost, Duration),
}

impl ImportTurn {
    /// Waits until no other import of this user is running on the mount with this device number.
    /// `None` if the user has no runtime directory: then the user has to run imports one at a time.
    pub(in crate::cli) fn take(around: &Surroundings, device: u64) -> Outcome<Option<Self>> {
        let dir = control::runtime_dir(around);
        if let Err(error) = control::prepare(&dir, around.uid) {
            let why = error.chain();
            note(&format!("warning: run one import at a time: they cannot take turns ({why})"));
            return Ok(None);
        }
        let path = dir.join(format!("import-{device:x}"));
        let failed = |error| Failure::failed(format!("open {}: {error}", path.display()));
        let mut options = OpenOptions::new();
        options.read(true).write(true).create(true).truncate(false).mode(0o600);
        options.custom_flags(OFlags::NOFOLLOW.bits() as i32);
        let file = options.open(&path).map_err(failed)?;
        let clock = Clock::system();
        let until = clock.mono() + TURN_LIMIT;
        let mut is_told = false;
        loop {
            match flock(&file, FlockOperation::NonBlockingLockExclusive) {
                Ok(()) => break,
                Err(Errno::WOULDBLOCK) => {}
                Err(error) => return Err(failed(error.into())),
            }
            if clock.mono() >= until {
                let hours = TURN_LIMIT.as_secs() / 3600;
                let text = format!("another import at this mount has not ended within {hours} h");
                return Err(Failure::failed(text).hint("run the same command again later"));
            }
            if !is_told {
                note(
                    "another import of yours is running on this mount: this one begins when it has ended",
                );
                is_told = true;
            }
            wait(async {
                sleep(LOOK_EVERY).await;
                Ok(())
            })?;
        }
        let earlier = earlier(&file, &clock).map_err(failed)?;
        Ok(Some(Self { file, earlier }))
    }

    /// Returns the cost of the last import, and how long ago it ended.
    pub(super) fn earlier(&self) -> (UnitCost, Duration) {
        self.earlier
    }

    /// Records the cost of an import as if it ended now.
    pub(super) fn note(&self, cost: UnitCost) {
        // If that fails, the next import counts what was recorded before.
        let text = format!("{:<width$}", cost.to_string(), width = TEXT_BYTES_MAX as usize - 1);
        self.file.write_all_at(text.as_bytes(), 0).ok();
    }
}

fn earlier(file: &File, clock: &Clock) -> std::io::Result<(UnitCost, Duration)> {
    let about = file.metadata()?;
    if about.len() == 0 {
        return Ok((UnitCost::default(), Duration::ZERO));
    }
    let mut text = String::new();
    let read = file.take(TEXT_BYTES_MAX).read_to_string(&mut text);
    let cost = read.ok().and_then(|_| UnitCost::parse(&text)).unwrap_or_else(UnitCost::most);
    let written = Duration::new(about.mtime().unsigned_abs(), about.mtime_nsec() as u32);
    Ok((cost, clock.wall().saturating_sub(written)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::around_runtime_dir;

    #[test]
    fn the_next_import_learns_what_the_last_one_has_left() {
        let dir = tempfile::tempdir().expect("temporary directory");
        let around = around_runtime_dir(&dir.path().join("run"));
        let take = |device| {
            ImportTurn::take(&around, device)
                .expect("the turn is free")
                .expect("a runtime directory exists")
        };
        let turn = take(7);
        assert_eq!(turn.earlier().0, UnitCost::default());
        turn.note(UnitCost::of(8, 1 << 40));
        turn.note(UnitCost::of(3, 5));
        let other = take(8);
        assert_eq!(other.earlier().0, UnitCost::default());
        drop(turn);
        let turn = take(7);
        assert_eq!(turn.earlier().0, UnitCost::of(3, 5));
        assert!(turn.earlier().1 < Duration::from_hours(1));
        turn.file.set_len(3).expect("cut");
        drop(turn);
        let turn = take(7);
        assert_eq!(turn.earlier().0, UnitCost::most(), "an unreadable cost counts as the largest");
        let others = Surroundings { uid: around.uid + 1, ..around };
        assert!(
            ImportTurn::take(&others, 7).expect("no failure").is_none(),
            "the directory belongs to another user"
        );
    }
}
