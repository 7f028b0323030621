//! Beginnings: when files were begun on this node, and when versions of other nodes arrived.
//!
//! Where a name keeps its first version, the daemon has to know whether a file was begun before
//! that version arrived. Stamps alone do not show that: a stamp is made at the close, on whichever
//! node. Owns this memory, which is bounded. Where nothing is remembered, as after a restart,
//! stamps decide. Must never be asked where the namespace has the answer.

use std::num::NonZeroUsize;

use lru::LruCache;
use parking_lot::Mutex;

use crate::stamp::Stamp;

/// How many files are remembered with their beginning, and how many versions with their arrival.
const REMEMBERED_MAX: NonZeroUsize = NonZeroUsize::new(8192).expect("it is not 0");

/// A moment on this node.
#[derive(Clone, Copy, Debug)]
pub(super) struct Moment {
    /// Greater than the stamps of everything that was published here before, and smaller than the
    /// stamps of what is published later.
    pub(super) stamp: Stamp,
    /// How many changes of other nodes had arrived, as `Ledger::applied` counts them.
    pub(super) applied: u64,
}

/// What is remembered, by the stamps of the puts.
#[derive(Debug)]
pub(super) struct Beginnings(Mutex<KnownPaths>);

#[derive(Debug)]
struct KnownPaths {
    begun: LruCache<Stamp, Moment>,
    /// The count of `Ledger::applied` at the arrival.
    came: LruCache<Stamp, u64>,
}

impl Beginnings {
    pub(super) fn new() -> Self {
        let (begun, came) = (LruCache::new(REMEMBERED_MAX), LruCache::new(REMEMBERED_MAX));
        Self(Mutex::new(KnownPaths { begun, came }))
    }

    /// Notes when the file of this put was begun.
    pub(super) fn note_begun(&self, put: Stamp, begun: Moment) {
        self.0.lock().begun.put(put, begun);
    }

    /// Returns when the file of a put was begun, if that is remembered.
    pub(super) fn begun(&self, put: Stamp) -> Option<Moment> {
        self.0.lock().begun.peek(&put).copied()
    }

    /// Notes that the second put has put again what the first one had put.
    pub(super) fn note_moved(&self, before: Stamp, put: Stamp) {
        let mut known = self.0.lock();
        if let Some(begun) = known.begun.pop(&before) {
            known.begun.put(put, begun);
        }
    }

    /// Notes at which count the put of another node arrived, unless it was here already.
    pub(super) fn note_came(&self, put: Stamp, count: u64) {
        self.0.lock().came.get_or_insert(put, || count);
    }

    /// Reports whether a put arrived, or was made here, after a moment.
    pub(super) fn came_after(&self, put: Stamp, moment: Moment) -> bool {
        match self.0.lock().came.peek(&put) {
            Some(count) => *count > moment.applied,
            None => put > moment.stamp,
        }
    }

    /// Reports whether a put arrived, or was made here, after the file of the other put was begun.
    pub(super) fn came_after_begin(&self, put: Stamp, other: Stamp) -> bool {
        match self.begun(other) {
            Some(begun) => self.came_after(put, begun),
            None => put > other,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stamp::NodeId;

    fn stamp(ms: u64) -> Stamp {
        Stamp { ms, counter: 0, node: NodeId(1) }
    }

    #[test]
    fn what_is_remembered_goes_before_stamps_and_is_bounded() {
        let known = Beginnings::new();
        assert!(known.came_after_begin(stamp(5), stamp(4)), "neither is remembered");
        assert!(!known.came_after_begin(stamp(4), stamp(5)));
        known.note_begun(stamp(5), Moment { stamp: stamp(2), applied: 7 });
        assert!(known.came_after_begin(stamp(4), stamp(5)), "put here after the other began");
        assert!(!known.came_after_begin(stamp(1), stamp(5)));
        known.note_came(stamp(1), 8);
        assert!(known.came_after_begin(stamp(1), stamp(5)), "its arrival counts, not its stamp");
        known.note_came(stamp(4), 7);
        known.note_came(stamp(4), 9);
        assert!(!known.came_after_begin(stamp(4), stamp(5)), "it arrived before the other began");
        known.note_moved(stamp(5), stamp(9));
        assert!(known.begun(stamp(5)).is_none() && known.begun(stamp(9)).is_some());
        for ms in 100..100 + REMEMBERED_MAX.get() as u64 {
            known.note_begun(stamp(ms), Moment { stamp: stamp(ms), applied: 0 });
            known.note_came(stamp(ms), 1);
        }
        assert!(known.begun(stamp(9)).is_none() && known.begun(stamp(100)).is_some());
        assert_eq!(known.0.lock().came.len(), REMEMBERED_MAX.get());
    }
}
