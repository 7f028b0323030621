//! The decision what an open comes to.
//!
//! A pure function of what the inode is, what else its name has, and how the caller asks. Owns no state, takes no
//! lock, does no I/O; the caller that carries the plan out must decide again under the lock in which it acts.
//!
//! Keeps P1 whole-or-nothing and P3 stable-open.

use hearthfs_mount::Errno;

/// The caller, and what it asks for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct OpenRequest {
    pub(super) how: How,
    /// The thread was told to look again just before, and must not be told so twice.
    pub(super) last: bool,
    /// It has just walked to the name: it has not come by a descriptor.
    pub(super) walked: bool,
    /// The process cannot be seen, so nothing is known of it.
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
    /// It was promised to a thread that looked again.
    Reserved,
    /// It is no entry any more; its bytes are there while it is open.
    Gone {
        open: bool,
    },
    /// A published version.
    Entry {
        /// Its name still leads to it.
        bound: bool,
        /// Its bytes can be had, and it is not past its age.
        readable: bool,
    },
    /// A file that can still be written.
    Live(LiveIs),
}

/// What a live file is for the caller.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct LiveIs {
    pub(super) stage: StageIs,
    /// The caller writes it.
    pub(super) member: bool,
    /// It has a name.
    pub(super) named: bool,
    pub(super) writers: WritersAre,
    /// It is being published just now.
    pub(super) settling: bool,
}

/// What its handles that can write have come to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum WritersAre {
    /// All are released.
    Gone,
    /// Their openers have closed all of them, and one is not released.
    Closed,
    /// The opener of one has not closed it.
    Open,
}

/// How far a live file has come.
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
    /// One that the caller may read: it has just walked to the name.
    pub(super) current: bool,
}

/// What an open comes to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum OpenPlan {
    /// It reads the version of the inode, or what is left of it.
    Read,
    /// It reads what the name has now, through this inode: that has nothing to read any more.
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
    /// It waits for the release of the live file, for a moment, then has its published bytes kept elsewhere, and
    /// is decided again.
    Settle,
    /// The kernel looks the name up again: `ESTALE`.
    LookAgain,
    /// It fails.
    Fail(Errno),
}

impl OpenPlan {
    /// Reports whether the caller gets what the kernel has checked its rights on: the inode, or the next version of it.
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

/// Decides what an open comes to.
pub(super) fn decide_open(asked: OpenRequest, is: Is, name: NameHas) -> OpenPlan {
    let again_or = |otherwise| if asked.last { otherwise } else { OpenPlan::LookAgain };
    match is {
        Is::Directory => OpenPlan::Fail(Errno::EISDIR),
        Is::Other => OpenPlan::Fail(Errno::ENXIO),
        // Others have begun since it was promised.
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
        // Only a process that has it open comes back to it.
        Is::Gone { open: true } if !asked.walked => again_or(OpenPlan::Read),
        Is::Entry { bound, readable } if asked.writes() => {
            write_entry(asked, bound, readable, name)
        }
        // What the caller writes itself, or what the name leads to now, is another inode.
        Is::Entry { bound, .. } if (name.own || !bound) && !asked.last => OpenPlan::LookAgain,
        // The kernel finds what there is now. Of what is reserved, its thread was refused by the mode, and reads what it
        // could not write.
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
        // Only a process that has it open comes back to a file without a name. One that cannot be seen may have walked to the
        // name before it was removed.
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
    // A writer that joined now would change what is being digested.
    if live.settling {
        return OpenPlan::Wait;
    }
    if asked.unseen && live.writers != WritersAre::Gone {
        return OpenPlan::Aside { named };
    }
    // A lookup can have been overtaken by an unlink; a descriptor cannot.
    if !named && !live.member && !asked.last {
        return OpenPlan::LookAgain;
    }
    // All its writers have closed it: what comes now begins from that, as soon as it is a blob.
    let closed = live.writers != WritersAre::Open
        && matches!(live.stage, StageIs::Published | StageIs::Held);
    if asked.empties() && (closed || !live.member) {
        return again_or(OpenPlan::Aside { named });
    }
    // Its published bytes have to be kept elsewhere before a writer goes on.
    if live.stage == StageIs::Writing { OpenPlan::Join } else { OpenPlan::Settle }
}

fn write_entry(asked: OpenRequest, bound: bool, readable: bool, name: NameHas) -> OpenPlan {
    let has_bytes = readable || asked.empties() || name.own || name.joinable;
    if !has_bytes {
        return if asked.last { OpenPlan::Fail(Errno::ENOENT) } else { OpenPlan::LookAgain };
    }
    // A caller that cannot be seen can look again, but cannot be led.
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
