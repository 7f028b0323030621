//! How an inode is to be opened.

use hearthfs_mount::{Caller, OpenFlags};

use super::decide::{How, OpenRequest};
use super::retry::Try;
use super::who::Who;

/// How many times an open is decided again because something changed meanwhile.
pub(super) const DECIDE_TRIES_MAX: u32 = 64;

/// How an inode is to be opened.
#[derive(Debug, Clone, Copy)]
pub(super) struct Wish {
    pub(super) caller: Caller,
    pub(super) who: Who,
    pub(super) flags: OpenFlags,
    /// How the open relates to an earlier `ESTALE` of its thread.
    pub(super) tried: Try,
    /// It has not yet waited for the end of a file that was stored to through a mapping.
    pub(super) patient: bool,
    /// The client whose figures count it, if it reads an entry.
    pub(super) client: Option<usize>,
}

impl Wish {
    /// Reports whether its thread must not be made to look again.
    pub(super) fn is_last(&self) -> bool {
        self.tried != Try::First
    }

    /// Reports whether it writes, even if it only empties the file.
    pub(super) fn writes(&self) -> bool {
        self.flags.changes()
    }

    /// Returns the permission bits that it needs: 4 to read, 2 to write.
    pub(super) fn wants(&self) -> u32 {
        wants(self.flags)
    }

    /// Returns the facts that the decision about the open needs.
    pub(super) fn asked(&self) -> OpenRequest {
        OpenRequest {
            how: match self.writes() {
                _ if self.flags.truncate => How::Empty,
                true => How::Write,
                false => How::Read,
            },
            last: self.is_last(),
            walked: self.tried == Try::Walked,
            unseen: self.who == Who::Unseen,
        }
    }
}

/// Returns the permission bits that an open needs: 4 to read, 2 to write.
pub(super) fn wants(flags: OpenFlags) -> u32 {
    u32::from(flags.reads()) * 4 + u32::from(flags.changes()) * 2
}
