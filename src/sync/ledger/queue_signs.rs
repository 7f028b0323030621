//! Signs of the queue: what tasks and writers can read without its lock.
//!
//! Owns the wake-ups and the number of the last record that is remote. Must never be ahead of the
//! queue: a record counts as remote only after the queue has released it.

use tokio::sync::{Notify, watch};

use crate::local::Seq;
use crate::sync::room::Room;

/// The signs.
#[derive(Debug)]
pub(super) struct QueueSigns {
    /// Notified when something was queued or released, or is wanted soon.
    moved: Notify,
    /// The last record that is remote.
    remote_upto: watch::Sender<Seq>,
    /// The last record that an earlier run has left.
    replayed: Seq,
    /// The number of pending records, for callers without the lock, and the callers that wait for
    /// room.
    room: Room,
}

impl QueueSigns {
    /// Starts with all records up to `remote_upto` remote; an earlier run has left those up to
    /// `replayed`.
    pub(super) fn new(remote_upto: Seq, replayed: Seq, room: Room) -> Self {
        let (moved, remote_upto) = (Notify::new(), watch::Sender::new(remote_upto));
        Self { moved, remote_upto, replayed, room }
    }

    /// Wakes tasks that wait for the queue to move.
    pub(super) fn wake(&self) {
        self.moved.notify_waiters();
    }

    pub(super) fn moved(&self) -> &Notify {
        &self.moved
    }

    /// Notes that all records up to one are remote; 0 for a batch without records.
    pub(super) fn note_remote(&self, upto: Seq) {
        // A batch without records has no number of its own.
        self.remote_upto.send_modify(|known| *known = upto.max(*known));
        self.room.note_progress();
    }

    /// Receives up to which record everything is remote.
    pub(super) fn remote_upto(&self) -> watch::Receiver<Seq> {
        self.remote_upto.subscribe()
    }

    /// Reports whether all records of an earlier run are remote.
    pub(super) fn is_replayed(&self) -> bool {
        *self.remote_upto.borrow() >= self.replayed
    }

    pub(super) fn room(&self) -> &Room {
        &self.room
    }
}
