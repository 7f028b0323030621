//! Holding a record back from the remote for a moment.

use std::time::Duration;

use super::queue::Hold;
use crate::sync::ledger::Ledger;

/// The longest time for which a record is held back.
pub const HOLD_MAX: Duration = Duration::from_secs(1);

/// Keeps a record, and all later ones, from the remote until it is released or dropped, for at most
/// [`HOLD_MAX`].
#[derive(Debug)]
pub struct HoldToken {
    ledger: Ledger,
    hold: Hold,
}

impl HoldToken {
    pub(in crate::sync::ledger) fn new(ledger: Ledger, hold: Hold) -> Self {
        Self { ledger, hold }
    }

    /// Releases the record.
    pub fn release(self) {}
}

impl Drop for HoldToken {
    fn drop(&mut self) {
        self.hold.release();
        self.ledger.0.signs.wake();
    }
}
