//! The stamps that this node has given.
//!
//! Owns what a new one has to come after, beside what is known of others. Must never give one stamp twice, also where the
//! clock was set back between two runs.

use crate::stamp::Stamp;
use crate::task;

/// The latest of them.
#[derive(Debug, Default)]
pub(super) struct GivenStamps {
    /// The time of the last name.
    named_ms: u64,
    /// The greatest stamp that a change of this node has.
    greatest: Stamp,
}

impl GivenStamps {
    /// Takes up what earlier runs have given: the time of the last name, and the greatest stamp of a change.
    pub(super) fn restore(&mut self, named_ms: u64, greatest: Stamp) {
        (self.named_ms, self.greatest) = (named_ms, greatest);
    }

    /// Notes the stamp of a change that an earlier run has made.
    pub(super) fn note(&mut self, stamp: Stamp) {
        self.greatest = self.greatest.max(stamp);
    }

    /// Makes of a new stamp one for the name of an object, later than all names that were made before.
    ///
    /// Names must be unique also when a run before has left nothing behind that tells which it used,
    /// and the clock was set back since. So the counter is random, and the time alone grows.
    pub(super) fn name(&mut self, made: Stamp) -> Stamp {
        self.named_ms = made.ms.max(self.named_ms + 1);
        Stamp { ms: self.named_ms, counter: task::random_u64() as u32, node: made.node }
    }

    /// Returns the stamp of a change: the next one, or one behind `last`, the last that this node has given to the same
    /// paths. That is the greater one where its clock was far ahead, and it has not sent that yet.
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
