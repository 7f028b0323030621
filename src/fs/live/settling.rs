//! Publishing and preserving a live file: one at a time, and others can wait for the end.

use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::watch;

/// Whether a live file is being published or is becoming a blob. No further handle may share its
/// bytes then.
#[derive(Debug)]
pub(in crate::fs) struct Settling {
    is_on: bool,
    lock: Arc<Mutex<()>>,
    /// Changes whenever something happened that others wait for.
    moved: watch::Sender<()>,
}

impl Settling {
    pub(super) fn new() -> Self {
        Self { is_on: false, lock: Arc::new(Mutex::new(())), moved: watch::Sender::new(()) }
    }

    pub(in crate::fs) fn is_on(&self) -> bool {
        self.is_on
    }

    pub(in crate::fs) fn begin(&mut self) {
        self.is_on = true;
    }

    /// Ends it without waking those that wait. The end of the live file follows and wakes them.
    pub(in crate::fs) fn end_quietly(&mut self) {
        self.is_on = false;
    }

    /// Lets others share the bytes again, and wakes those that wait for that.
    pub(super) fn end(&mut self) {
        self.is_on = false;
        self.wake();
    }

    /// Returns the lock that serialises publishing and preserving. It is held while the file is
    /// hashed. A thread that holds the lock of the state must not wait for it.
    pub(in crate::fs) fn lock(&self) -> Arc<Mutex<()>> {
        Arc::clone(&self.lock)
    }

    /// Returns what changes when something happens that others wait for.
    pub(in crate::fs) fn subscribe(&self) -> watch::Receiver<()> {
        self.moved.subscribe()
    }

    /// Wakes those that wait for the file. They have subscribed under the lock that the caller
    /// holds. Mostly there are none, and counting them is faster than a search for waiters several
    /// times per file.
    pub(super) fn wake(&self) {
        if self.moved.receiver_count() > 0 {
            self.moved.send_modify(|()| {});
        }
    }
}
