//! Generations: one version of a path's content while it is being written.
//!
//! A generation is private until it is published. With passthrough we do not see its writes, so what
//! was written is told from the staging file itself.

use std::collections::HashSet;
use std::fs::File;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use hearthfs_mount::{Ino, OpenFlags};
use parking_lot::Mutex;
use tokio::sync::watch;

use super::inode::{Source, Spot};
use super::who::Who;
use crate::digest::Digest;
use crate::local::StagedPath;
use crate::namespace::{Attrs, Entry, Kind, Time};
use crate::stamp::Stamp;
use crate::sync::HoldToken;

/// The unit of `st_blocks`.
const BLOCK_BYTES: u64 = 512;

/// What the staging file looked like at some moment: equal marks mean that nothing was written since.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Mark {
    pub(super) size: u64,
    mtime: (i64, i64),
}

impl Mark {
    pub(super) fn of(file: &File) -> io::Result<Self> {
        let meta = file.metadata()?;
        Ok(Self { size: meta.len(), mtime: (meta.mtime(), meta.mtime_nsec()) })
    }

    pub(super) fn mtime(&self) -> Time {
        Time { secs: self.mtime.0, nanos: self.mtime.1 as u32 }
    }
}

/// How far a generation has come.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Stage {
    /// Nobody but its members may see its bytes.
    Private,
    /// It was closed empty and never written: published, but perhaps only because a descriptor was
    /// duplicated, so other processes still wait for what comes.
    Held,
    /// It is an entry.
    Published,
    /// A member was killed, or the disk was full: it will never be an entry.
    Dropped,
}

/// What is known once a generation was published.
#[derive(Debug)]
pub(super) struct Published {
    pub(super) entry: Entry,
    pub(super) changed_ms: u64,
    pub(super) digest: Digest,
    pub(super) mark: Mark,
}

/// One version of a path's content while it is being written.
#[derive(Debug)]
pub(super) struct Generation {
    /// The inode that the kernel knows it by.
    pub(super) ino: Ino,
    /// Where it will be published; `None` once unlinked or replaced.
    pub(super) place: Option<Spot>,
    pub(super) source: Arc<Source>,
    /// The staging file's name, until the file is a blob.
    pub(super) staged: Option<StagedPath>,
    pub(super) stage: Stage,
    /// Processes that opened it for writing, and so see its bytes.
    pub(super) members: HashSet<Who>,
    /// Processes that were led here and have not come yet.
    pub(super) invited: HashSet<Who>,
    /// The inode on which its handle stands as a guest: one that belongs to another generation or version.
    /// A lock file must be one inode to all who open it, even to those who empty it; yet two who write in
    /// place must not share bytes. So whoever empties what another has open gets bytes of its own there.
    pub(super) guest_on: Option<Ino>,
    /// It stands there beside the file of another, of which it is only a later emptying. Where that one will
    /// never be an entry, one of its guests is the file.
    pub(super) guest: bool,
    /// Somebody has closed it in an orderly way.
    pub(super) closed_once: bool,
    /// Open handles that can write.
    pub(super) writers: u32,
    /// It empties a version that had content.
    pub(super) empties: bool,
    /// Made by `O_CREAT` or `O_TRUNC`: it is published even if nothing is written.
    pub(super) fresh: bool,
    /// What the file looked like when nothing of ours was written yet.
    pub(super) clean: Mark,
    /// Attributes; `mtime` holds as long as nothing was written.
    pub(super) attrs: Attrs,
    /// Attributes were changed, so it is published even if nothing is written.
    pub(super) attrs_moved: bool,
    /// The hard links that will get the new content too.
    pub(super) link: Option<Stamp>,
    /// `fsync` was called: publishing has to be durable as well.
    pub(super) synced: bool,
    pub(super) published: Option<Published>,
    pub(super) hold: Option<HoldToken>,
    /// It is being published: nobody may begin to share its bytes now.
    pub(super) settling: bool,
    /// Serialises publishing; held while hashing, never together with the state's lock waiting for it.
    pub(super) publishing: Arc<Mutex<()>>,
    /// Moves whenever the stage does.
    pub(super) moved: watch::Sender<Stage>,
}

impl Generation {
    /// Returns the file that holds its bytes.
    pub(super) fn file(&self) -> &File {
        self.source.backing.file()
    }

    /// Reports whether bytes were written since it began.
    pub(super) fn wrote(&self) -> bool {
        Mark::of(self.file()).map_or(true, |now| now != self.clean)
    }

    /// Reports whether bytes were written that no publish has covered.
    pub(super) fn unpublished_bytes(&self) -> bool {
        self.unpublished_as(Mark::of(self.file()).ok())
    }

    /// Reports the same of a file that looks like this; `None` when it could not be looked at.
    pub(super) fn unpublished_as(&self, now: Option<Mark>) -> bool {
        match (&self.published, now) {
            (Some(published), Some(now)) => now != published.mark,
            (None, Some(now)) => now != self.clean && now.size > 0,
            (_, None) => true,
        }
    }

    /// Notes what its file takes on the disk; returns whether that is more than was known.
    pub(super) fn measure(&self) -> bool {
        let (Some(staged), Ok(meta)) = (&self.staged, self.file().metadata()) else { return false };
        staged.note_bytes(meta.blocks().saturating_mul(BLOCK_BYTES))
    }

    /// Moves on to another stage and wakes who waits for it.
    pub(super) fn set_stage(&mut self, stage: Stage) {
        self.stage = stage;
        self.settling = false;
        self.moved.send_replace(stage);
    }

    /// Lets others share its bytes again, and wakes who waits for that.
    pub(super) fn settled(&mut self) {
        if std::mem::take(&mut self.settling) {
            self.moved.send_modify(|_| {});
        }
    }

    /// Reports whether an open for writing by `who` shares its bytes.
    pub(super) fn admits(&self, who: Who, flags: OpenFlags) -> bool {
        if who == Who::Unseen && self.writers > 0 {
            return false;
        }
        let member = self.members.contains(&who);
        // Its own descriptor, which has outlived the close that published it, has written on: what was
        // published then is there no more, and it is the only one who knows what to make of the rest.
        let goes_on = || self.stage == Stage::Published && self.writers > 0 && !flags.truncate;
        (self.can_join() && (member || !flags.truncate))
            || (member && goes_on() && self.unpublished_bytes())
    }

    /// Reports whether an open for writing has to wait for what it is about to publish, and begins from that.
    pub(super) fn is_awaited(&self, flags: OpenFlags) -> bool {
        self.settling && !flags.truncate
    }

    /// Returns the inode to which the kernel is led for it.
    pub(super) fn home(&self) -> Ino {
        self.guest_on.unwrap_or(self.ino)
    }

    /// Reports whether it stands as a guest and nothing was written: it leaves without a trace.
    pub(super) fn leaves_no_trace(&self) -> bool {
        self.guest && !self.wrote() && self.published.is_none() && !self.empties
    }

    /// Reports whether a further writer may share its bytes: nothing of it is published that a reader
    /// might hold open.
    pub(super) fn can_join(&self) -> bool {
        match self.stage {
            Stage::Private | Stage::Held => true,
            Stage::Published => {
                self.published.as_ref().is_some_and(|published| published.mark.size == 0)
            }
            Stage::Dropped => false,
        }
    }

    /// Returns the entry that it would be without any bytes.
    pub(super) fn as_empty(&self) -> Entry {
        let kind = Kind::File { digest: Digest::empty(), size: 0 };
        Entry { kind, attrs: self.attrs.clone(), link: self.link }
    }

    /// Returns size and mtime as `stat` shall tell them.
    pub(super) fn size_and_mtime(&self) -> io::Result<(u64, Time)> {
        let now = Mark::of(self.file())?;
        Ok((now.size, if now == self.clean { self.attrs.mtime } else { now.mtime() }))
    }

    /// Returns it as an entry of this size and mtime, which says nothing of its content.
    pub(super) fn as_entry(&self, (size, mtime): (u64, Time)) -> Entry {
        let mut attrs = self.attrs.clone();
        attrs.mtime = mtime;
        if attrs.atime == Time::default() {
            attrs.atime = mtime;
        }
        Entry { kind: Kind::File { digest: Digest::empty(), size }, attrs, link: self.link }
    }

    /// Makes a published version that is empty, and that another has just replaced, what it would be had it
    /// begun there: the copy of an empty file.
    pub(super) fn become_private(&mut self) {
        if let Some(published) = self.published.take_if(|published| published.mark.size == 0) {
            (self.clean, self.fresh, self.empties, self.hold) =
                (published.mark, false, false, None);
            self.set_stage(Stage::Private);
        }
    }

    /// Reports whether nothing of it was published and nothing ever will be.
    pub(super) fn is_lost(&self) -> bool {
        self.stage == Stage::Dropped && self.published.is_none()
    }

    /// Truncates or extends.
    pub(super) fn set_size(&mut self, size: u64) -> io::Result<()> {
        if self.file().metadata()?.len() == size {
            return Ok(());
        }
        self.file().set_len(size)
    }

    /// Sets the modification time without that counting as written bytes.
    pub(super) fn set_mtime(&mut self, mtime: Time) -> io::Result<()> {
        let wrote = self.wrote();
        self.attrs.mtime = mtime;
        self.attrs_moved = true;
        if wrote {
            set_mtime(self.file(), mtime)?;
        }
        Ok(())
    }
}

/// The modification time of a copy that nobody has written to: no clock gives it, so that any write
/// shows, however fast it follows.
pub(super) const UNTOUCHED: Time = Time { secs: 1, nanos: 1 };

/// Sets a file's modification time.
pub(super) fn set_mtime(file: &File, mtime: Time) -> io::Result<()> {
    let at = if mtime.secs >= 0 {
        UNIX_EPOCH + Duration::new(mtime.secs as u64, mtime.nanos)
    } else {
        UNIX_EPOCH - Duration::from_secs(mtime.secs.unsigned_abs())
            + Duration::from_nanos(u64::from(mtime.nanos))
    };
    let at: SystemTime = at;
    file.set_times(std::fs::FileTimes::new().set_modified(at))
}
