//! The decision about an open.
//!
//! A pure function of what the inode is, what else its name has, and what the caller asks for. Owns
//! no state, takes no lock, does no I/O. The caller that carries the plan out must decide again
//! under the lock in which it acts.
//!
//! Keeps P1 whole-or-nothing and P3 stable-open.

use hearthfs_mount::Errno;

/// The caller, and what it asks for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct OpenRequest {
    pub(super) how: How,
    /// The thread has just looked again, so it must not get `ESTALE` a second time.
    pub(super) last: bool,
    /// The thread has just walked to the name: it did not get here through a descriptor.
    pub(super) walked: bool,
    /// The process cannot be seen, so nothing is known about it.
    pub(super) unseen: bool,
}

/// What the caller wants to do with the content.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum How {
    Read,
    Write,
    /// It writes, and empties the file first (`O_TRUNC`).
    Empty,
}

impl OpenRequest {
    fn writes(self) -> bool {
        self.how != How::Read
    }

    fn empties(self) -> bool {
        self.how == How::Empty
    }
}

/// What the inode is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Is {
    Directory,
    /// Neither a directory nor a regular file.
    Other,
    /// It is reserved for a thread that looks again.
    Reserved,
    /// It is not an entry any more. Its bytes exist while it is open.
    Gone {
        open: bool,
    },
    /// A published version.
    Entry {
        /// Its name still leads to it.
        bound: bool,
        /// Its bytes are available, and it is not past its age.
        readable: bool,
    },
    /// A file that a process can still write.
    Live(LiveIs),
}

/// What a live file is for the caller.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct LiveIs {
    pub(super) stage: StageIs,
    /// The caller has opened it for writing.
    pub(super) member: bool,
    /// It has a name.
    pub(super) named: bool,
    pub(super) writers: WritersAre,
    /// It is being published right now.
    pub(super) settling: bool,
}

/// The state of the handles that can write the file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum WritersAre {
    /// All are released.
    Gone,
    /// Their openers have closed all of them, and at least one is not released.
    Closed,
    /// The opener of at least one has not closed it.
    Open,
}

/// The stage of a live file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum StageIs {
    Writing,
    Held,
    Published,
    Dropped,
}

/// What else the name has.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct NameHas {
    /// Another live file, which the caller writes.
    pub(super) own: bool,
    /// Another live file, which a writer that does not empty it joins.
    pub(super) joinable: bool,
    /// An entry that is not this inode.
    pub(super) entry: bool,
    /// An entry that the caller may read, because the caller has just walked to the name.
    pub(super) current: bool,
}

/// What happens with an open.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum OpenPlan {
    /// It reads the version of the inode, or what is left of it.
    Read,
    /// It reads what the name has now, through this inode, which has nothing to read any more.
    ReadCurrent,
    /// It reads what is being written.
    ReadLive,
    /// It writes the live file of the inode.
    Join,
    /// It writes another live file of the name, through this inode.
    JoinAside,
    /// It begins a live file on the inode that was reserved for it.
    Begin,
    /// It begins a live file of its own, through this inode: no other handle sees its bytes.
    Aside {
        /// They are published under the name of the inode.
        named: bool,
    },
    /// It waits until the live file moves on, and is decided again.
    Wait,
    /// It ends the live file, or waits a moment for its release and has the published bytes
    /// preserved. After that the open is decided again.
    Settle,
    /// The kernel looks the name up again: `ESTALE`.
    LookAgain,
    /// It fails.
    Fail(Errno),
}

impl OpenPlan {
    /// Reports whether the caller gets the file whose rights the kernel has checked: the inode, or
    /// its next version.
    pub(super) fn is_of_the_inode(self) -> bool {
        match self {
            Self::Read
            | Self::ReadLive
            | Self::Join
            | Self::JoinAside
            | Self::Begin
            | Self::Aside { .. } => true,
            Self::ReadCurrent | Self::Wait | Self::Settle | Self::LookAgain | Self::Fail(_) => {
                false
            }
        }
    }
}

/// Decides what happens with an open.
pub(super) fn decide_open(asked: OpenRequest, is: Is, name: NameHas) -> OpenPlan {
    let again_or = |otherwise| if asked.last { otherwise } else { OpenPlan::LookAgain };
    match is {
        Is::Directory => OpenPlan::Fail(Errno::EISDIR),
        Is::Other => OpenPlan::Fail(Errno::ENXIO),
        // Others have begun a live file since the inode was reserved.
        Is::Reserved if asked.writes() && name.joinable && !asked.empties() => OpenPlan::JoinAside,
        Is::Reserved if asked.writes() => OpenPlan::Begin,
        Is::Gone { open } if asked.writes() => {
            let has_bytes = open || asked.empties();
            again_or(if has_bytes {
                OpenPlan::Aside { named: false }
            } else {
                OpenPlan::Fail(Errno::ENOENT)
            })
        }
        // Only a process that has the file open gets here again.
        Is::Gone { open: true } if !asked.walked => again_or(OpenPlan::Read),
        Is::Entry { bound, readable } if asked.writes() => {
            write_entry(asked, bound, readable, name)
        }
        // The caller's own live file, or the current version of the name, is another inode.
        Is::Entry { bound, .. } if (name.own || !bound) && !asked.last => OpenPlan::LookAgain,
        // The kernel finds what the name has now. An open of a reserved inode for reading means
        // that the mode refused writing, and the thread now reads the file it could not write.
        Is::Reserved | Is::Gone { .. } | Is::Entry { readable: false, .. } => {
            again_or(current(name))
        }
        Is::Entry { .. } => OpenPlan::Read,
        Is::Live(live) if asked.writes() => write_live(asked, live),
        Is::Live(live) => read_live(asked, live, name),
    }
}

fn current(name: NameHas) -> OpenPlan {
    if name.current { OpenPlan::ReadCurrent } else { OpenPlan::Fail(Errno::ENOENT) }
}

fn read_live(asked: OpenRequest, live: LiveIs, name: NameHas) -> OpenPlan {
    let again_or = |otherwise| if asked.last { otherwise } else { OpenPlan::LookAgain };
    match live.stage {
        StageIs::Dropped if live.member => OpenPlan::ReadLive,
        StageIs::Dropped => again_or(current(name)),
        _ if live.member => OpenPlan::ReadLive,
        // Only a process that has the file open gets to a file without a name. A process that
        // cannot be seen may have walked to the name before it was removed.
        StageIs::Writing if !live.named && (asked.walked || asked.unseen) => current(name),
        StageIs::Writing if !live.named => again_or(OpenPlan::ReadLive),
        // Other processes read the published version.
        StageIs::Writing if name.entry => again_or(OpenPlan::Wait),
        StageIs::Writing | StageIs::Held => OpenPlan::Wait,
        StageIs::Published => OpenPlan::Settle,
    }
}

fn write_live(asked: OpenRequest, live: LiveIs) -> OpenPlan {
    let again_or = |otherwise| if asked.last { otherwise } else { OpenPlan::LookAgain };
    let named = live.named;
    if live.stage == StageIs::Dropped {
        return again_or(OpenPlan::Aside { named: false });
    }
    // A writer that joined now would change bytes that are being digested.
    if live.settling {
        return OpenPlan::Wait;
    }
    if asked.unseen && live.writers != WritersAre::Gone {
        return OpenPlan::Aside { named };
    }
    // An unlink can overtake a lookup, but not a descriptor.
    if !named && !live.member && !asked.last {
        return OpenPlan::LookAgain;
    }
    // All its writers have closed it. A new writer begins from that version as soon as it is a
    // blob.
    let closed = live.writers != WritersAre::Open
        && matches!(live.stage, StageIs::Published | StageIs::Held);
    if asked.empties() && (closed || !live.member) {
        return again_or(OpenPlan::Aside { named });
    }
    // The published bytes have to be preserved before a writer goes on.
    if live.stage == StageIs::Writing { OpenPlan::Join } else { OpenPlan::Settle }
}

fn write_entry(asked: OpenRequest, bound: bool, readable: bool, name: NameHas) -> OpenPlan {
    let has_bytes = readable || asked.empties() || name.own || name.joinable;
    if !has_bytes {
        return if asked.last { OpenPlan::Fail(Errno::ENOENT) } else { OpenPlan::LookAgain };
    }
    // A caller that cannot be seen can look again, but it cannot be led to another inode.
    let cannot_be_led = asked.last || (asked.unseen && bound);
    if !cannot_be_led {
        return OpenPlan::LookAgain;
    }
    match bound {
        true if name.joinable && !asked.empties() && !asked.unseen => OpenPlan::JoinAside,
        bound => OpenPlan::Aside { named: bound },
    }
}

#[cfg(test)]
mod tests;
