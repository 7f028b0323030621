//! The stamps that this node has given.
//!
//! Owns the bounds that a new stamp must exceed, beside what is known of other nodes. Must never
//! give one stamp twice, even if the clock was set back between two runs.

use crate::stamp::Stamp;
use crate::task;

/// The latest of these stamps.
#[derive(Debug, Default)]
pub(super) struct GivenStamps {
    /// The time of the last name.
    named_ms: u64,
    /// The greatest stamp of a change of this node.
    greatest: Stamp,
}

impl GivenStamps {
    /// Restores the state of earlier runs: the time of the last name, and the greatest stamp of a
    /// change.
    pub(super) fn restore(&mut self, named_ms: u64, greatest: Stamp) {
        (self.named_ms, self.greatest) = (named_ms, greatest);
    }

    /// Notes the stamp of a change that an earlier run has made.
    pub(super) fn note(&mut self, stamp: Stamp) {
        self.greatest = self.greatest.max(stamp);
    }

    /// Turns a new stamp into one for the name of an object, later than all earlier names.
    ///
    /// Names must be unique even if an earlier run left no trace of its names, and the clock was
    /// set back since. So the counter is random, and only the time grows.
    pub(super) fn name(&mut self, made: Stamp) -> Stamp {
        self.named_ms = made.ms.max(self.named_ms + 1);
        Stamp { ms: self.named_ms, counter: task::random_u64() as u32, node: made.node }
    }

    /// Returns the stamp of a change: `next`, or a stamp behind `last`, the last one that this node
    /// has given to the same paths. `last` is greater if this node's clock was far ahead then, and
    /// the change is not sent yet.
    pub(super) fn behind(&mut self, next: Stamp, last: Option<Stamp>) -> Stamp {
        let last = last.filter(|last| *last > next && last.node == next.node);
        let stamp = last.map_or(next, |last| {
            let last = last.max(self.greatest);
            Stamp { counter: last.counter.saturating_add(1), ..last }
        });
        self.note(stamp);
        stamp
    }
}
