//! The limit on the rate of units.
//!
//! For some seconds the daemon keeps an edition of each unit that a process has written or read, and the number of editions is
//! limited. Beyond the limit, files of units are published one by one, also those of other processes of the same user. A
//! copy must stay below the limit, so it waits.
//!
//! Owns that wait. Must never wait for a unit that is larger than the limits: it goes alone.

use std::collections::VecDeque;
use std::fmt;
use std::time::Duration;

use parking_lot::{Condvar, Mutex};

use crate::clock::Clock;
use crate::namespace::{EDITION_COUNTS_FOR, EDITION_KEPT_FOR, EDITIONS_LISTED_MAX, OWN_PATHS_MAX};

/// How long a unit counts after it was copied. The daemon removes expired editions at intervals.
const COUNTS_FOR: Duration = EDITION_KEPT_FOR.saturating_add(Duration::from_secs(2));
/// The longest wait before the clock is read again.
const LOOK_EVERY: Duration = Duration::from_millis(200);

/// The cost of units for the daemon.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct UnitCost {
    /// The members that it lists.
    listed: u64,
    /// The names that it keeps on the node.
    names: u64,
    /// Their bytes.
    bytes: u64,
}

impl fmt::Display for UnitCost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {} {}", self.listed, self.names, self.bytes)
    }
}

impl UnitCost {
    /// Parses the text of a [`UnitCost`].
    pub(super) fn parse(text: &str) -> Option<Self> {
        let mut numbers = text.split_whitespace().map(|number| number.parse().ok());
        let (listed, names, bytes) = (numbers.next()??, numbers.next()??, numbers.next()??);
        Some(Self { listed, names, bytes })
    }

    /// Returns the cost of one unit.
    pub(super) fn of(files: usize, bytes: u64) -> Self {
        let names = files as u64 + 1;
        Self { listed: EDITION_COUNTS_FOR + names, names, bytes }
    }

    /// Returns the highest cost that one copy may cause. Bytes are limited by the size of the cache.
    pub(super) fn most() -> Self {
        Self { listed: EDITIONS_LISTED_MAX / 2, names: OWN_PATHS_MAX as u64 / 2, bytes: u64::MAX }
    }

    fn plus(self, other: Self) -> Self {
        Self {
            listed: self.listed.saturating_add(other.listed),
            names: self.names.saturating_add(other.names),
            bytes: self.bytes.saturating_add(other.bytes),
        }
    }

    fn minus(self, other: Self) -> Self {
        Self {
            listed: self.listed.saturating_sub(other.listed),
            names: self.names.saturating_sub(other.names),
            bytes: self.bytes.saturating_sub(other.bytes),
        }
    }

    fn fits(self, limit: Self) -> bool {
        self.listed <= limit.listed && self.names <= limit.names && self.bytes <= limit.bytes
    }
}

#[derive(Debug, Default)]
struct PacedUnits {
    all: UnitCost,
    /// Units that were copied, in order, each with the time at which it stops counting.
    ended: VecDeque<(Duration, UnitCost)>,
}

/// The units of the last seconds.
#[derive(Debug)]
pub(super) struct CopyPace {
    limit: UnitCost,
    counted: Mutex<PacedUnits>,
    less: Condvar,
    clock: Clock,
}

/// A unit that is being copied.
#[derive(Debug)]
pub(super) struct Begun<'a> {
    pace: &'a CopyPace,
    cost: UnitCost,
}

impl CopyPace {
    /// Creates a limit without units. `bytes` is the most bytes of units that the daemon may keep on the node.
    pub(super) fn new(bytes: u64, clock: Clock) -> Self {
        // Less than the three quarters that one user may have, so that other programs of the user find room.
        let limit = UnitCost { bytes, ..UnitCost::most() };
        Self { limit, counted: Mutex::default(), less: Condvar::new(), clock }
    }

    /// Adds the cost of an earlier copy of the same user, and how long ago that ended.
    pub(super) fn count_earlier(&self, (cost, ago): (UnitCost, Duration)) {
        let until = self.clock.mono() + COUNTS_FOR.saturating_sub(ago);
        let mut counted = self.counted.lock();
        counted.all = counted.all.plus(cost);
        counted.ended.push_front((until, cost));
    }

    /// Returns the cost of the units of the last seconds.
    pub(super) fn cost(&self) -> UnitCost {
        self.counted.lock().all
    }

    /// Waits until one more unit fits, or `stopped` returns true.
    pub(super) fn begin(&self, cost: UnitCost, stopped: impl Fn() -> bool) -> Begun<'_> {
        let mut counted = self.counted.lock();
        loop {
            let now = self.clock.mono();
            while let Some((until, old)) = counted.ended.front().copied()
                && now >= until
            {
                counted.ended.pop_front();
                counted.all = counted.all.minus(old);
            }
            let all = counted.all.plus(cost);
            if all.fits(self.limit) || counted.all == UnitCost::default() || stopped() {
                counted.all = all;
                return Begun { pace: self, cost };
            }
            self.less.wait_for(&mut counted, LOOK_EVERY);
        }
    }
}

impl Drop for Begun<'_> {
    fn drop(&mut self) {
        let until = self.pace.clock.mono() + COUNTS_FOR;
        self.pace.counted.lock().ended.push_back((until, self.cost));
        self.pace.less.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn units_wait_for_those_of_the_last_seconds() {
        let clock = Clock::manual(0);
        let pace = CopyPace::new(100, clock.clone());
        let waits = |bytes| {
            let asked = std::cell::Cell::new(false);
            let stopped = || {
                asked.set(true);
                true
            };
            drop(pace.begin(UnitCost::of(8, bytes), stopped));
            asked.get()
        };
        assert!(!waits(1000), "a unit larger than the limit is copied alone");
        assert!(waits(1), "the next unit waits for it");
        clock.advance(COUNTS_FOR);
        assert!(!waits(50) && !waits(50));
        assert!(waits(1));
        clock.advance(COUNTS_FOR);
        assert!(!waits(100));
        clock.advance(COUNTS_FOR);
        let most = EDITIONS_LISTED_MAX / 2 / (EDITION_COUNTS_FOR + 9);
        let begun: Vec<_> = (0..most).map(|_| pace.begin(UnitCost::of(8, 0), || false)).collect();
        clock.advance(COUNTS_FOR);
        assert!(waits(0), "units in flight count for any length of time");
        drop(begun);
        clock.advance(COUNTS_FOR);
        assert!(!waits(0));
    }
}
