//! The writing side of an open file: what it writes, how the writes arrive, and which processes have
//! closed it.
//!
//! Owns what is known about the writes and closes of one handle. Must never decide what follows
//! from them.

use super::inode::LiveId;

/// How the writes of a handle reach the live file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum WriteWay {
    /// The kernel writes without the daemon, so it is unknown whether the handle wrote anything.
    Passed,
    /// Through the daemon.
    Daemon,
    /// Through the daemon, and the live file has an inode of its own, which is not the inode of the
    /// handle.
    Aside,
}

/// Which processes have closed a handle. Its opener is one process; descriptors that were inherited or
/// duplicated belong to others, and may be open after the opener has closed it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum ClosedBy {
    /// None; a killed program that had inherited it does not count.
    Nobody,
    /// Programs that had inherited it. The opener still has it open.
    Others,
    /// The opener, even if it was being killed.
    Opener,
    /// The opener, and since the last close that a program made itself only killed programs.
    Torn,
}

/// The writing side of an open file.
#[derive(Debug)]
pub(super) struct WritingHandle {
    live: LiveId,
    way: WriteWay,
    /// It was opened to append.
    appends: bool,
    /// It wrote something.
    wrote: bool,
    closed: ClosedBy,
}

impl WritingHandle {
    pub(super) fn new(live: LiveId, way: WriteWay, appends: bool) -> Self {
        Self { live, way, appends, wrote: false, closed: ClosedBy::Nobody }
    }

    /// Returns the live file that it writes.
    pub(super) fn live(&self) -> LiveId {
        self.live
    }

    /// Reports whether the live file has an inode of its own, which is not the inode of the handle.
    pub(super) fn is_aside(&self) -> bool {
        self.way == WriteWay::Aside
    }

    /// Reports whether its writes go to the end of the file, wherever the kernel assumes the end.
    pub(super) fn goes_to_the_end(&self) -> bool {
        self.appends && self.way != WriteWay::Passed
    }

    /// Notes that it is about to write.
    pub(super) fn note_write(&mut self) {
        self.wrote = true;
    }

    /// Reports whether it may have written something.
    pub(super) fn may_have_written(&self) -> bool {
        self.wrote || self.way == WriteWay::Passed
    }

    /// Reports whether it is a writer of its own: it wrote, or may have, and was opened to append to
    /// what others write.
    pub(super) fn counts_as_writer(&self) -> bool {
        self.wrote || (self.way == WriteWay::Passed && self.appends)
    }

    /// Notes the close of a descriptor by the opener or another process, which may be dying. Returns
    /// whether it is the first close by the opener.
    pub(super) fn note_close(&mut self, opener: bool, dying: bool) -> bool {
        let was_closed = self.is_closed();
        self.closed = match (self.closed, opener, dying) {
            // No other process has closed what the killed one wrote since.
            (ClosedBy::Opener | ClosedBy::Torn, false, true) | (ClosedBy::Torn, true, true) => {
                ClosedBy::Torn
            }
            (closed @ (ClosedBy::Nobody | ClosedBy::Others), false, true) => closed,
            (ClosedBy::Nobody | ClosedBy::Others, false, false) => ClosedBy::Others,
            _ => ClosedBy::Opener,
        };
        self.is_closed() && !was_closed
    }

    /// Reports whether its opener has closed it.
    pub(super) fn is_closed(&self) -> bool {
        matches!(self.closed, ClosedBy::Opener | ClosedBy::Torn)
    }

    /// Reports whether a close covers all that it wrote.
    pub(super) fn is_covered(&self) -> bool {
        matches!(self.closed, ClosedBy::Others | ClosedBy::Opener)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What counts of the closes of a handle: whether the opener has made one, whether any program
    /// has made one itself, and whether only killed ones followed the opener's.
    #[test]
    fn closes_of_openers_heirs_and_killed_programs() {
        let all = [(false, false), (false, true), (true, false), (true, true)];
        for closes in (0..4_usize.pow(5)).map(|n| (0..5).map(move |at| all[n >> (2 * at) & 3])) {
            let mut writing = WritingHandle::new(LiveId(1), WriteWay::Daemon, false);
            let (mut closed, mut flushed, mut torn) = (false, false, false);
            for (opener, dying) in closes.clone() {
                let was_closed = closed;
                if dying && !opener {
                    torn |= closed;
                } else {
                    flushed |= !dying;
                    torn &= dying;
                    closed |= opener;
                }
                let closes_now = writing.note_close(opener, dying);
                let shown = closes.clone().collect::<Vec<_>>();
                assert_eq!(closes_now, closed && !was_closed, "{shown:?}");
                assert_eq!(writing.is_closed(), closed, "{shown:?}");
                assert_eq!(writing.is_covered(), (flushed || closed) && !torn, "{shown:?}");
            }
        }
    }

    #[test]
    fn the_way_decides_what_is_known_of_writes() {
        let new = |way, appends| WritingHandle::new(LiveId(1), way, appends);
        for (way, appends, may, counts, end) in [
            (WriteWay::Passed, false, true, false, false),
            (WriteWay::Passed, true, true, true, false),
            (WriteWay::Daemon, false, false, false, false),
            (WriteWay::Daemon, true, false, false, true),
            (WriteWay::Aside, true, false, false, true),
        ] {
            let mut one = new(way, appends);
            let known = (one.may_have_written(), one.counts_as_writer(), one.goes_to_the_end());
            assert_eq!(known, (may, counts, end), "{way:?}, {appends}");
            one.note_write();
            assert!(one.may_have_written() && one.counts_as_writer());
        }
    }
}
