//! Attributes: what `stat` reports.

use std::time::Duration;

use hearthfs_mount::{
    Answer, Attr, Caller, Errno, FileType, Handle, Ino, Reply, SetAttr, SetTime, Timespec,
};

use super::filesystem::Filesystem;
use super::handles::type_of;
use super::inode::{InodeKind, Published};
use super::live::Live;
use super::lookup::TTL_OF_LIVE;
use super::retry::RetryWish;
use super::seen::{Seen, seen_in};
use super::state::State;
use crate::name::TreePath;
use crate::namespace::{Attrs, Entry, EntryKind, Op, Time};

/// The preferred size of I/O, the same as ext4 reports.
const BLOCK: u32 = 4096;

fn timespec(time: Time) -> Timespec {
    Timespec { secs: time.secs, nanos: time.nanos }
}

fn time(spec: Timespec) -> Time {
    Time { secs: spec.secs, nanos: spec.nanos }
}

/// Builds the attributes that `stat` reports for an entry.
pub(super) fn attr_from(ino: Ino, entry: &Entry, changed: Time, nlink: u32) -> Attr {
    let size = match &entry.kind {
        EntryKind::File { size, .. } => *size,
        EntryKind::Symlink { target } => target.len() as u64,
        EntryKind::Directory => u64::from(BLOCK),
        EntryKind::Special { .. } => 0,
    };
    let rdev = if let EntryKind::Special { rdev, .. } = entry.kind { rdev } else { 0 };
    Attr {
        ino,
        size,
        blocks: size.div_ceil(u64::from(BLOCK)) * u64::from(BLOCK / 512),
        atime: timespec(entry.attrs.atime),
        mtime: timespec(entry.attrs.mtime),
        ctime: timespec(changed),
        file_type: type_of(&entry.kind),
        perm: (entry.attrs.mode & 0o7777) as u16,
        nlink,
        uid: entry.attrs.uid,
        gid: entry.attrs.gid,
        rdev,
        blksize: BLOCK,
    }
}

impl Filesystem {
    /// Returns attributes, and how long the kernel may cache them.
    pub(super) fn attr_of(&self, state: &State, ino: Ino) -> Reply<(Attr, Duration)> {
        let inode = state.names.inode(ino).ok_or(Errno::ESTALE)?;
        match &inode.node {
            InodeKind::Directory => Ok((self.directory_attr(state, ino), self.brief_ttl())),
            InodeKind::Entry(published) => {
                let (attr, now) = self.entry_attr(state, ino, published);
                Ok((attr, if now { self.ttl() } else { Duration::ZERO }))
            }
            InodeKind::Live(id) => {
                let live = state.lives.get(*id).ok_or(Errno::ESTALE)?;
                Ok(self.attr_of_live(state, live, live.size_and_mtime()?))
            }
            InodeKind::Reserved(Published { entry, changed_ms, .. }) => {
                let nlink = self.names_of(entry).unwrap_or(1);
                Ok((attr_from(ino, entry, Time::from_ms(*changed_ms), nlink), Duration::ZERO))
            }
            InodeKind::Gone(entry) => {
                Ok((attr_from(ino, entry, entry.attrs.mtime, 0), Duration::ZERO))
            }
            InodeKind::Stale(_) => Err(Errno::ESTALE),
        }
    }

    /// As [`Filesystem::attr_of`], for a live file with this size and modification time.
    pub(super) fn attr_of_live(
        &self,
        state: &State,
        live: &Live,
        (size, mtime): (u64, Time),
    ) -> (Attr, Duration) {
        let entry = live.as_entry((size, mtime));
        let is_named = state.names.inode(live.ino).is_some_and(|inode| inode.place().is_some());
        let nlink = self.names_of(&entry).unwrap_or(u32::from(is_named));
        let changed = live.version().map(|v| Time::from_ms(v.published.changed_ms));
        let changed = changed.unwrap_or(mtime).max(mtime);
        (attr_from(live.ino, &entry, changed, nlink), self.ttl().min(TTL_OF_LIVE))
    }

    /// Counts the names of a hard-linked entry; `None` for an entry with only one name.
    pub(super) fn names_of(&self, entry: &Entry) -> Option<u32> {
        let group = entry.link?;
        Some(self.0.rooms.ledger.read(|fold| fold.links(group).count()) as u32)
    }

    /// Returns the attributes of a version, and whether these are the attributes of a visible path.
    fn entry_attr(&self, state: &State, ino: Ino, published: &Published) -> (Attr, bool) {
        let place = state.names.inode(ino).and_then(|inode| inode.place().cloned());
        let current = place
            .and_then(|spot| state.names.path_of(&spot))
            .and_then(|path| self.0.rooms.ledger.read(|fold| seen_in(fold, &path)));
        match current.filter(|seen| published.is(&seen.entry, seen.stamp)) {
            Some(seen) => (self.seen_attr(ino, &seen), true),
            None => {
                let nlink = self.names_of(&published.entry).unwrap_or(0);
                let changed = Time::from_ms(published.changed_ms);
                (attr_from(ino, &published.entry, changed, nlink), false)
            }
        }
    }

    /// Returns the attributes of a version that the namespace has.
    pub(super) fn seen_attr(&self, ino: Ino, seen: &Seen) -> Attr {
        let nlink = self.names_of(&seen.entry).unwrap_or(1);
        attr_from(ino, &seen.entry, Time::from_ms(seen.changed_ms), nlink)
    }

    /// Returns the attributes of a directory. Its times change with its content on every node,
    /// until they are set explicitly.
    fn directory_attr(&self, state: &State, ino: Ino) -> Attr {
        let Some(path) = state.names.directory_path(ino) else {
            let gone = super::seen::implied_directory().entry;
            return attr_from(ino, &gone, Time::default(), 0);
        };
        let (seen, moved, subdirectories) = self
            .0
            .rooms
            .ledger
            .read(|fold| (seen_in(fold, &path), fold.moved(&path), fold.subdirectories(&path)));
        let (mut entry, changed_ms) = match seen {
            Some(seen) if seen.stamp.is_some() => (seen.entry, seen.changed_ms),
            _ => (self.0.rules.root.clone(), 0),
        };
        let mut changed = Time::from_ms(changed_ms).max(entry.attrs.mtime);
        if let Some(moved) = moved {
            entry.attrs.mtime = moved;
            changed = changed.max(moved);
        }
        attr_from(ino, &entry, changed, subdirectories.saturating_add(2))
    }

    pub(super) fn get_attr(
        &self,
        caller: &Caller,
        ino: Ino,
        handle: Option<Handle>,
    ) -> Answer<(Attr, Duration)> {
        let (is_directory, is_stale) = {
            let state = self.0.state.lock();
            if let Some(private) = Self::aside_attr(&state, ino, handle) {
                return private.into();
            }
            let node = state.names.inode(ino).map(|inode| &inode.node);
            (matches!(node, Some(InodeKind::Directory)), matches!(node, Some(InodeKind::Stale(_))))
        };
        if is_stale {
            // The call that the kernel needs the attributes for comes after its retry.
            self.look_again(caller, ino, RetryWish::Unknown);
            return Err(Errno::ESTALE).into();
        }
        // Programs stat the root to see whether the mount works. That must not wait for the store.
        if !is_directory || ino == Ino::ROOT || self.0.rooms.freshness.ready() {
            return self.told_attr(ino).into();
        }
        // A process may have this as its working directory and send no other request. It must not
        // become stale.
        self.0.rooms.freshness.note_activity();
        let this = self.clone();
        Answer::later(async move {
            this.0.rooms.freshness.wait_fresh(this.0.rules.deadline).await;
            this.told_attr(ino)
        })
    }

    /// Returns attributes for the kernel. From now on the kernel relies on them.
    fn told_attr(&self, ino: Ino) -> Reply<(Attr, Duration)> {
        let mut state = self.0.state.lock();
        let (attr, ttl) = self.attr_of(&state, ino)?;
        state.names.note_told(&attr);
        Ok((attr, ttl))
    }

    /// Returns the attributes of a handle that stands aside: its bytes are not those of the inode
    /// it is open on.
    fn aside_attr(
        state: &State,
        ino: Ino,
        handle: Option<Handle>,
    ) -> Option<Reply<(Attr, Duration)>> {
        let id = state.handles.file(handle?)?.live()?;
        let live = state.lives.get(id).filter(|live| live.ino != ino)?;
        let own = live.size_and_mtime().map_err(Errno::from).map(|looks| {
            let entry = live.as_entry(looks);
            let nlink = u32::from(live.place().is_some());
            (attr_from(ino, &entry, looks.1, nlink), Duration::ZERO)
        });
        Some(own)
    }
}

/// Returns the change that gives a path new attributes; `None` if the path leads nowhere.
pub(super) fn attrs_op(
    fold: &crate::namespace::Fold,
    path: &TreePath,
    root: &Entry,
    edit: &impl Fn(&mut Attrs) -> Reply<()>,
) -> Option<Reply<Op>> {
    let seen = seen_in(fold, path);
    if seen.is_none() && !path.is_root() {
        return None;
    }
    let moved = fold.moved(path);
    let (mut entry, stamp) = match seen {
        Some(seen) => (seen.entry, seen.stamp),
        None => (root.clone(), None),
    };
    if let Some(moved) = moved.filter(|_| entry.is_directory()) {
        entry.attrs.mtime = moved;
    }
    if let Err(errno) = edit(&mut entry.attrs) {
        return Some(Err(errno));
    }
    Some(Ok(match stamp {
        Some(of) => Op::Attrs { of, attrs: entry.attrs },
        None => Op::Put(entry),
    }))
}

pub(super) fn apply(attrs: &mut Attrs, set: SetAttr, now: Time) {
    let chosen = |set: SetTime| match set {
        SetTime::Now => now,
        SetTime::At(at) => time(at),
    };
    attrs.mode = set.mode.map_or(attrs.mode, |mode| mode & 0o7777);
    attrs.uid = set.uid.unwrap_or(attrs.uid);
    attrs.gid = set.gid.unwrap_or(attrs.gid);
    attrs.atime = set.atime.map_or(attrs.atime, chosen);
    attrs.mtime = set.mtime.map_or(attrs.mtime, chosen);
}

/// Returns the file type for the type bits given to `mknod`; `None` for a type that cannot be made.
pub(super) fn special_type(format: u32) -> Option<FileType> {
    use super::handles::{FORMAT_BLOCK, FORMAT_CHAR, FORMAT_FIFO, FORMAT_SOCKET};
    match format {
        FORMAT_FIFO => Some(FileType::Fifo),
        FORMAT_SOCKET => Some(FileType::Socket),
        FORMAT_CHAR => Some(FileType::CharDevice),
        FORMAT_BLOCK => Some(FileType::BlockDevice),
        _ => None,
    }
}
