//! The processes that write a live file, and their handles.

use hearthfs_mount::Caller;

use super::Mark;
use crate::fs::who::Who;
use crate::hashing::FastSet;

/// The writers of a live file. An open handle is also counted as a handle.
#[derive(Debug)]
pub(in crate::fs) struct LiveWriters {
    /// Processes that opened it for writing, and so see its bytes.
    members: FastSet<Who>,
    last: Caller,
    /// Handles that can write and are not released.
    handles: u32,
    /// Those of them that their openers have not closed.
    open: u32,
    /// Closes that are not answered yet. Their bytes are being published, or wait for room.
    closes: u32,
    /// It was closed once by a program that was not being killed.
    closed_once: bool,
    /// What the file looked like at the last such close, if others had it open then. These bytes
    /// are closed and not published yet.
    closed: Option<Mark>,
}

impl LiveWriters {
    /// Makes the writers of a live file that this process is about to open.
    pub(super) fn new(who: Who, caller: Caller) -> Self {
        Self {
            members: FastSet::from_iter([who]),
            last: caller,
            handles: 0,
            open: 0,
            closes: 0,
            closed_once: false,
            closed: None,
        }
    }

    /// Adds a handle.
    pub(in crate::fs) fn join(&mut self, who: Who, caller: Caller) {
        self.handles += 1;
        self.open += 1;
        self.members.insert(who);
        self.last = caller;
    }

    /// Notes that the opener of a handle has closed it.
    pub(in crate::fs) fn close(&mut self) {
        self.open -= 1;
    }

    /// Removes a handle, which its opener has closed or not.
    pub(in crate::fs) fn release(&mut self, closed: bool) {
        self.handles -= 1;
        self.open -= u32::from(!closed);
    }

    /// Notes that a close begins to publish.
    pub(in crate::fs) fn begin_close(&mut self) {
        self.closes += 1;
    }

    /// Notes that such a close is about to be answered.
    pub(in crate::fs) fn end_close(&mut self) {
        self.closes -= 1;
    }

    /// Notes that a program closed the file itself. `look` examines the file.
    pub(in crate::fs) fn note_close(&mut self, look: impl FnOnce() -> Option<Mark>) {
        self.closed_once = true;
        if self.open > 0 {
            self.closed = look();
        }
    }

    /// Makes it a closed file that no process sees as its own.
    pub(in crate::fs) fn leave(&mut self) {
        self.closed_once = true;
        self.members.clear();
    }

    /// Reports whether there is a handle that is not released.
    pub(in crate::fs) fn has_handles(&self) -> bool {
        self.handles > 0
    }

    /// Reports whether there is a handle that its opener has not closed.
    pub(in crate::fs) fn has_open(&self) -> bool {
        self.open > 0
    }

    /// Reports whether there is such a handle, or a close that is not answered yet.
    pub(in crate::fs) fn has_open_or_closes(&self) -> bool {
        self.has_open() || self.closes > 0
    }

    /// Reports whether it was closed once by a program that was not being killed.
    pub(in crate::fs) fn has_closed(&self) -> bool {
        self.closed_once
    }

    /// Reports whether a file that looks like this is as a program closed it while others had it
    /// open.
    pub(in crate::fs) fn is_as_closed(&self, now: Option<Mark>) -> bool {
        self.closed.is_some() && now == self.closed
    }

    pub(super) fn has_member(&self, who: Who) -> bool {
        self.members.contains(&who)
    }

    /// Returns the caller that opened it for writing last. Bytes that no close has published are
    /// published with its rights.
    pub(in crate::fs) fn last(&self) -> Caller {
        self.last
    }
}
