//! Beginnings: when files were begun on this node, and when versions of other nodes came to it.
//!
//! A name that keeps its first version has to tell whether a file was begun before that came. Stamps alone do not
//! say so: they are of the close, on whichever node. Owns what is remembered of it, in memory and within limits. What is
//! not remembered, such as after a restart, is told by stamps. Must never be asked where the namespace says enough.

use std::num::NonZeroUsize;

use lru::LruCache;
use parking_lot::Mutex;

use crate::stamp::Stamp;

/// Files of which it is remembered when they were begun, and versions of which it is remembered when they came, each.
const REMEMBERED_MAX: NonZeroUsize = NonZeroUsize::new(8192).expect("it is not 0");

/// A moment on this node.
#[derive(Clone, Copy, Debug)]
pub(super) struct Moment {
    /// Greater than the stamps of all that was published here before, and smaller than of what comes after.
    pub(super) stamp: Stamp,
    /// What had come from other nodes, as `Ledger::applied` counts it.
    pub(super) applied: u64,
}

/// What is remembered, by the stamps of puts.
#[derive(Debug)]
pub(super) struct Beginnings(Mutex<KnownPaths>);

#[derive(Debug)]
struct KnownPaths {
    begun: LruCache<Stamp, Moment>,
    /// With which count of `Ledger::applied`.
    came: LruCache<Stamp, u64>,
}

impl Beginnings {
    pub(super) fn new() -> Self {
        let (begun, came) = (LruCache::new(REMEMBERED_MAX), LruCache::new(REMEMBERED_MAX));
        Self(Mutex::new(KnownPaths { begun, came }))
    }

    /// Notes when a file was begun that has been put.
    pub(super) fn note_begun(&self, put: Stamp, begun: Moment) {
        self.0.lock().begun.put(put, begun);
    }

    /// Returns when the file of a put was begun, if that is remembered.
    pub(super) fn begun(&self, put: Stamp) -> Option<Moment> {
        self.0.lock().begun.peek(&put).copied()
    }

    /// Notes that what one put has put was put anew by another.
    pub(super) fn note_moved(&self, before: Stamp, put: Stamp) {
        let mut known = self.0.lock();
        if let Some(begun) = known.begun.pop(&before) {
            known.begun.put(put, begun);
        }
    }

    /// Notes with which count the put of another node has come, if it was not here before.
    pub(super) fn note_came(&self, put: Stamp, count: u64) {
        self.0.lock().came.get_or_insert(put, || count);
    }

    /// Reports whether a put has come, or was made here, after a moment.
    pub(super) fn came_after(&self, put: Stamp, moment: Moment) -> bool {
        match self.0.lock().came.peek(&put) {
            Some(count) => *count > moment.applied,
            None => put > moment.stamp,
        }
    }

    /// Reports whether a put has come, or was made here, after the file of another was begun.
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
        assert!(known.came_after_begin(stamp(5), stamp(4)), "nothing is known of either");
        assert!(!known.came_after_begin(stamp(4), stamp(5)));
        known.note_begun(stamp(5), Moment { stamp: stamp(2), applied: 7 });
        assert!(known.came_after_begin(stamp(4), stamp(5)), "put here while the other was written");
        assert!(!known.came_after_begin(stamp(1), stamp(5)));
        known.note_came(stamp(1), 8);
        assert!(known.came_after_begin(stamp(1), stamp(5)), "it came later than it was put");
        known.note_came(stamp(4), 7);
        known.note_came(stamp(4), 9);
        assert!(!known.came_after_begin(stamp(4), stamp(5)), "it was here already");
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
