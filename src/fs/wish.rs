//! How an inode is to be opened.

use hearthfs_mount::{Caller, OpenFlags};

use super::decide::{How, OpenRequest};
use super::retry::Try;
use super::who::Who;

/// How often an open is decided anew because something moved meanwhile.
pub(super) const DECIDE_TRIES_MAX: u32 = 64;

/// How an inode is to be opened.
#[derive(Debug, Clone, Copy)]
pub(super) struct Wish {
    pub(super) caller: Caller,
    pub(super) who: Who,
    pub(super) flags: OpenFlags,
    /// Whether its thread was told to look again just before.
    pub(super) tried: Try,
    /// It has not waited yet for the end of a file that was stored to through a mapping.
    pub(super) patient: bool,
    /// The client in whose figures it counts, if it reads an entry.
    pub(super) client: Option<usize>,
}

impl Wish {
    /// Reports whether its thread must not be told to look again.
    pub(super) fn is_last(&self) -> bool {
        self.tried != Try::First
    }

    /// Reports whether it writes, were it only by emptying the file.
    pub(super) fn writes(&self) -> bool {
        self.flags.write || self.flags.truncate
    }

    /// Returns what it needs the permission bits to allow: 4 to read, 2 to write.
    pub(super) fn wants(&self) -> u32 {
        wants(self.flags)
    }

    /// Returns what the decision about the open has to know of it.
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

/// Returns what an open needs the permission bits to allow: 4 to read, 2 to write.
pub(super) fn wants(flags: OpenFlags) -> u32 {
    u32::from(flags.read) * 4 + u32::from(flags.write || flags.truncate) * 2
}
