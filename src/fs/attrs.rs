//! Attributes: what `stat` tells, and `chmod`, `chown`, `utimens`, `truncate`.

use std::time::Duration;

use hearthfs_mount::{
    Answer, Attr, Caller, Errno, FileType, Handle, Ino, OpenFlags, Reply, SetAttr, SetTime,
    Timespec,
};
use tokio::sync::watch;

use super::filesystem::Filesystem;
use super::generation::Stage;
use super::handle::type_of;
use super::inode::{Node, Spot};
use super::lookup::{Seen, TTL_OF_GENERATION, same_content, seen_in};
use super::state::{State, close_files};
use super::who::Who;
use crate::name::TreePath;
use crate::namespace::{Attrs, Entry, Kind, Op, Time};

/// Preferred size of I/O, as ext4 tells it.
const BLOCK: u32 = 4096;

fn timespec(time: Time) -> Timespec {
    Timespec { secs: time.secs, nanos: time.nanos }
}

fn time(spec: Timespec) -> Time {
    Time { secs: spec.secs, nanos: spec.nanos }
}

/// Builds what `stat` tells of an entry.
pub(super) fn attr_from(ino: Ino, entry: &Entry, changed: Time, nlink: u32) -> Attr {
    let size = match &entry.kind {
        Kind::File { size, .. } => *size,
        Kind::Symlink { target } => target.len() as u64,
        Kind::Directory => u64::from(BLOCK),
        Kind::Special { .. } => 0,
    };
    let rdev = if let Kind::Special { rdev, .. } = entry.kind { rdev } else { 0 };
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
    /// Returns attributes, and for how long the kernel may take them for granted.
    pub(super) fn attr_of(&self, state: &State, ino: Ino) -> Reply<(Attr, Duration)> {
        let asked = ino;
        let ino = state.owner(asked);
        let (attr, ttl) = self.own_attr(state, ino)?;
        Ok((Attr { ino: asked, ..attr }, ttl))
    }

    fn own_attr(&self, state: &State, ino: Ino) -> Reply<(Attr, Duration)> {
        let inode = state.inodes.get(&ino).ok_or(Errno::ESTALE)?;
        match &inode.node {
            Node::Directory => Ok((self.directory_attr(state, ino), self.brief_ttl())),
            Node::Version { entry, changed_ms } => {
                let (attr, now) = self.version_attr(state, ino, entry, *changed_ms);
                Ok((attr, if now { self.ttl() } else { Duration::ZERO }))
            }
            Node::Generation(id) => {
                let generation = state.generations.get(id).ok_or(Errno::ESTALE)?;
                let (size, mtime) = generation.size_and_mtime()?;
                let entry = generation.as_entry((size, mtime));
                let nlink = self.names_of(&entry).unwrap_or(u32::from(!inode.places.is_empty()));
                let changed = generation.published.as_ref().map(|p| Time::from_ms(p.changed_ms));
                let changed = changed.unwrap_or(mtime).max(mtime);
                Ok((attr_from(ino, &entry, changed, nlink), self.ttl().min(TTL_OF_GENERATION)))
            }
            Node::Gone(entry) | Node::Promised(entry) => {
                Ok((attr_from(ino, entry, entry.attrs.mtime, 0), Duration::ZERO))
            }
        }
    }

    /// Counts the names of a hard-linked entry; `None` for one that has but its own.
    pub(super) fn names_of(&self, entry: &Entry) -> Option<u32> {
        let group = entry.link?;
        Some(self.0.rooms.ledger.read(|fold| fold.links(group).count()) as u32)
    }

    /// Returns the attributes of a version, and whether they are those of a visible path.
    fn version_attr(
        &self,
        state: &State,
        ino: Ino,
        entry: &Entry,
        changed_ms: u64,
    ) -> (Attr, bool) {
        let place = state.inodes.get(&ino).and_then(|inode| inode.place().cloned());
        let current = place
            .and_then(|spot| state.path_of(&spot))
            .and_then(|path| self.0.rooms.ledger.read(|fold| seen_in(fold, &path)));
        match current.filter(|seen| same_content(&seen.entry, entry)) {
            Some(seen) => (self.seen_attr(ino, &seen), true),
            None => {
                let nlink = self.names_of(entry).unwrap_or(0);
                (attr_from(ino, entry, Time::from_ms(changed_ms), nlink), false)
            }
        }
    }

    /// Returns the attributes of a version that is what the namespace has.
    pub(super) fn seen_attr(&self, ino: Ino, seen: &Seen) -> Attr {
        let nlink = self.names_of(&seen.entry).unwrap_or(1);
        attr_from(ino, &seen.entry, Time::from_ms(seen.changed_ms), nlink)
    }

    /// Returns the attributes of a directory. Its times move with its content on every node, until it is given
    /// others.
    fn directory_attr(&self, state: &State, ino: Ino) -> Attr {
        let Some(path) = state.directory_path(ino) else {
            let gone = super::lookup::implied_directory().entry;
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

    pub(super) fn get_attr(&self, ino: Ino, handle: Option<Handle>) -> Answer<(Attr, Duration)> {
        let is_directory = {
            let state = self.0.state.lock();
            if let Some(private) = self.private_attr(&state, ino, handle) {
                return private.into();
            }
            matches!(state.inodes.get(&ino).map(|inode| &inode.node), Some(Node::Directory))
        };
        // The root is asked for by whoever looks whether the mount works; that must not wait for the store.
        if !is_directory || ino == Ino::ROOT || self.0.rooms.freshness.ready() {
            return self.attr_of(&self.0.state.lock(), ino).into();
        }
        // Somebody may stand in this directory and only ever ask for it: it must not grow stale.
        self.0.rooms.freshness.note_activity();
        let this = self.clone();
        Answer::later(async move {
            this.0.rooms.freshness.wait_fresh(this.0.rules.deadline).await;
            let state = this.0.state.lock();
            this.attr_of(&state, ino)
        })
    }

    /// Returns the attributes of a handle that has bytes of its own on somebody else's inode.
    fn private_attr(
        &self,
        state: &State,
        ino: Ino,
        handle: Option<Handle>,
    ) -> Option<Reply<(Attr, Duration)>> {
        let id = state.files.get(&handle?)?.generation?;
        let generation = state.generations.get(&id).filter(|g| g.ino != ino)?;
        Some(generation.size_and_mtime().map_err(Errno::from).and_then(|(size, mtime)| {
            let (mut attr, _) = self.attr_of(state, ino)?;
            (attr.size, attr.mtime) = (size, timespec(mtime));
            attr.blocks = size.div_ceil(512);
            Ok((attr, Duration::ZERO))
        }))
    }

    pub(super) fn set_attr(
        &self,
        caller: &Caller,
        ino: Ino,
        set: SetAttr,
    ) -> Answer<(Attr, Duration)> {
        if self.0.rules.read_only {
            return Err(Errno::EROFS).into();
        }
        self.with_detour(caller, None, |last| self.set_all(caller, ino, set, last))
    }

    fn set_all(
        &self,
        caller: &Caller,
        ino: Ino,
        set: SetAttr,
        last: bool,
    ) -> Answer<(Attr, Duration)> {
        if let Some(size) = set.size
            && let Some(answer) = self.set_size(caller, ino, set, size, last)
        {
            return answer;
        }
        let rest = SetAttr { size: None, handle: None, ..set };
        if rest != SetAttr::default()
            && let Err(errno) = self.set_attrs(ino, set)
        {
            return Err(errno).into();
        }
        self.get_attr(ino, set.handle)
    }

    /// Truncates; `None` when that is done and the other attributes remain.
    fn set_size(
        &self,
        caller: &Caller,
        ino: Ino,
        set: SetAttr,
        size: u64,
        last: bool,
    ) -> Option<Answer<(Attr, Duration)>> {
        let who = self.0.callers.who(caller);
        {
            let mut state = self.0.state.lock();
            let by_handle = set.handle.and_then(|handle| state.files.get(&handle)?.generation);
            let ino = state.owner(ino);
            let id = by_handle.or(match state.inodes.get(&ino).map(|inode| &inode.node) {
                Some(Node::Generation(id)) => Some(*id),
                _ => None,
            });
            let open = id.is_some_and(|id| state.is_open_for_writing(id));
            match id.and_then(|id| state.generations.get_mut(&id)) {
                // What is published is in the hands of readers; only those who write it go on with it.
                Some(generation)
                    if set.handle.is_some()
                        || (open
                            && (generation.can_join() || generation.members.contains(&who))) =>
                {
                    generation.invited.remove(&who);
                    return generation.set_size(size).err().map(|error| Err(error.into()).into());
                }
                // Its writers have closed it, and it is being published: what is cut is what they have closed.
                Some(generation) if generation.settling || generation.stage == Stage::Private => {
                    let moved = generation.moved.subscribe();
                    drop(state);
                    return Some(self.truncate_published(who, ino, size, last, moved));
                }
                _ => {}
            }
            if let Some(Node::Version { entry, .. }) = state.inodes.get(&ino).map(|i| &i.node)
                && entry.content().is_some_and(|(_, now)| now == size)
            {
                return None;
            }
        }
        Some(self.truncate_path(who, ino, size, last))
    }

    /// Truncates a file by its path once it is published.
    fn truncate_published(
        &self,
        who: Who,
        ino: Ino,
        size: u64,
        last: bool,
        mut moved: watch::Receiver<Stage>,
    ) -> Answer<(Attr, Duration)> {
        let this = self.clone();
        Answer::later(async move {
            let came = this.wait_for(&mut moved, this.0.rules.deadline).await;
            came.ok_or(Errno::ETIMEDOUT)?;
            match this.truncate_path(who, ino, size, last) {
                Answer::Now(reply) => reply,
                Answer::Later(work) => work.await,
            }
        })
    }

    /// Truncates a published file by its path: a whole new version, published at once, or with the last
    /// close of those who are writing one. The kernel is told `ESTALE`, looks the path up again, and finds
    /// the version with the size already right. Who was told so before has done it, perhaps to a file that
    /// has lost its name since; the inode that he asked for stays what it is, for who reads it.
    fn truncate_path(&self, who: Who, ino: Ino, size: u64, last: bool) -> Answer<(Attr, Duration)> {
        let this = self.clone();
        Answer::later(async move {
            match this.publish_truncated(who, ino, size).await {
                Ok(()) if !last => Err(Errno::ESTALE),
                Ok(()) | Err(Errno::ESTALE) if last => {
                    // The kernel is not told to look, so it must not remember.
                    this.expire_names();
                    this.attr_of(&this.0.state.lock(), ino)
                }
                done => Err(done.err().unwrap_or(Errno::ESTALE)),
            }
        })
    }

    async fn publish_truncated(&self, who: Who, ino: Ino, size: u64) -> Reply<()> {
        let flags = OpenFlags { write: true, truncate: size == 0, ..OpenFlags::default() };
        let id = self.begin_detached(ino, who, flags).await?;
        let work = self.clone();
        crate::task::blocking(move || {
            let set = {
                let mut state = work.0.state.lock();
                let generation = state.generations.get_mut(&id).ok_or(Errno::ESTALE)?;
                generation.fresh = true;
                generation.set_size(size)
            };
            let done = set.map_err(Errno::from).and_then(|()| work.publish(id, false, None));
            let mut state = work.0.state.lock();
            // Others may have it open, since before or by now: then it ends with their close.
            let alone = state.generations.get(&id).is_some_and(|g| g.writers == 0);
            match done {
                Ok(()) if alone => state.end_generation(id),
                Err(_) if alone => drop(state.drop_generation(id)),
                _ => {}
            }
            close_files(state);
            done
        })
        .await
    }

    /// Changes attributes other than the size.
    pub(super) fn set_attrs(&self, ino: Ino, set: SetAttr) -> Reply<()> {
        let now = self.now();
        let mut state = self.0.state.lock();
        let ino = state.owner(ino);
        let inode = state.inodes.get(&ino).ok_or(Errno::ESTALE)?;
        let (generation, places) = match inode.node {
            Node::Generation(id) => (Some(id), inode.places.clone()),
            _ => (None, inode.places.clone()),
        };
        let mut private = false;
        if let Some(generation) = generation.and_then(|id| state.generations.get_mut(&id)) {
            let mtime = generation.attrs.mtime;
            apply(&mut generation.attrs, set, now);
            if generation.attrs.mtime != mtime {
                let wanted = generation.attrs.mtime;
                generation.set_mtime(wanted)?;
            }
            generation.attrs_moved = true;
            private = generation.published.is_none();
        }
        if private {
            return Ok(());
        }
        if ino == Ino::ROOT {
            return self.publish_attrs(&mut state, &[TreePath::root()], set, now);
        }
        let paths: Vec<TreePath> = places.iter().filter_map(|spot| state.path_of(spot)).collect();
        if paths.is_empty() {
            // An open file without a name: nobody else can ever see it.
            if let Some(Node::Version { entry, .. } | Node::Gone(entry) | Node::Promised(entry)) =
                state.inodes.get_mut(&ino).map(|i| &mut i.node)
            {
                apply(&mut entry.attrs, set, now);
            }
            return Ok(());
        }
        self.publish_attrs(&mut state, &paths, set, now)
    }

    /// Publishes new attributes of paths, and of every further name of the files there.
    fn publish_attrs(
        &self,
        _state: &mut State,
        paths: &[TreePath],
        set: SetAttr,
        now: Time,
    ) -> Reply<()> {
        let root = &self.0.rules.root;
        let ops = self.0.rooms.ledger.read(|fold| {
            let mut all: Vec<TreePath> = paths.to_vec();
            for path in paths {
                if let Some(group) = fold.entry(path).and_then(|entry| entry.link) {
                    all.extend(fold.links(group).cloned());
                }
            }
            all.sort();
            all.dedup();
            all.into_iter()
                .filter_map(|path| {
                    let op = attrs_op(fold, &path, root, set, now)?;
                    Some((path, op))
                })
                .collect::<Vec<_>>()
        });
        if ops.is_empty() {
            return Err(Errno::ENOENT);
        }
        self.0.rooms.ledger.publish(ops).map_err(|error| super::errno::promised(&error))?;
        Ok(())
    }

    /// Changes the extended attributes of whatever an inode is; `edit` gets the attributes as they are.
    pub(super) fn edit_attrs(&self, ino: Ino, edit: impl Fn(&mut Attrs) -> Reply<()>) -> Reply<()> {
        if self.0.rules.read_only {
            return Err(Errno::EROFS);
        }
        let mut state = self.0.state.lock();
        let state = &mut *state;
        let ino = state.owner(ino);
        let inode = state.inodes.get_mut(&ino).ok_or(Errno::ESTALE)?;
        let spot: Option<Spot> = inode.place().cloned();
        match &mut inode.node {
            Node::Generation(id) => {
                let generation = state.generations.get_mut(id).ok_or(Errno::ESTALE)?;
                edit(&mut generation.attrs)?;
                // What is written comes with these, whatever is published now.
                generation.attrs_moved = true;
                if generation.published.is_none() || spot.is_none() {
                    return Ok(());
                }
            }
            // An open file without a name: nobody else can ever see it.
            Node::Version { entry, .. } if spot.is_none() => return edit(&mut entry.attrs),
            Node::Gone(entry) | Node::Promised(entry) => return edit(&mut entry.attrs),
            _ => {}
        }
        let path = match spot {
            Some(spot) => state.path_of(&spot).ok_or(Errno::ENOENT)?,
            None if ino == Ino::ROOT => TreePath::root(),
            None => return Err(Errno::ENOENT),
        };
        let found = self.0.rooms.ledger.read(|fold| seen_in(fold, &path));
        let (mut attrs, stamp, entry) = match found {
            Some(seen) => (seen.entry.attrs.clone(), seen.stamp, seen.entry),
            None => (self.0.rules.root.attrs.clone(), None, self.0.rules.root.clone()),
        };
        edit(&mut attrs)?;
        let mut ops = Vec::new();
        for name in self.names_with(&path, &entry) {
            // Each name has a put of its own.
            let of = match stamp {
                Some(_) if name != path => {
                    self.0.rooms.ledger.read(|fold| fold.register(&name).map(|r| r.stamp))
                }
                stamp => stamp,
            };
            let op = match of {
                Some(of) => Op::Attrs { of, attrs: attrs.clone() },
                None => Op::Put(Entry { attrs: attrs.clone(), ..entry.clone() }),
            };
            ops.push((name, op));
        }
        self.0.rooms.ledger.publish(ops).map_err(|error| super::errno::promised(&error))?;
        Ok(())
    }
}

/// Returns the change that gives a path new attributes; `None` if the path leads nowhere.
fn attrs_op(
    fold: &crate::namespace::Fold,
    path: &TreePath,
    root: &Entry,
    set: SetAttr,
    now: Time,
) -> Option<Op> {
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
    apply(&mut entry.attrs, set, now);
    Some(match stamp {
        Some(of) => Op::Attrs { of, attrs: entry.attrs },
        None => Op::Put(entry),
    })
}

fn apply(attrs: &mut Attrs, set: SetAttr, now: Time) {
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

/// Returns the file type bits that `mknod` was given, as a type; `None` for one that cannot be made.
pub(super) fn special_type(format: u32) -> Option<FileType> {
    use super::handle::{FORMAT_BLOCK, FORMAT_CHAR, FORMAT_FIFO, FORMAT_SOCKET};
    match format {
        FORMAT_FIFO => Some(FileType::Fifo),
        FORMAT_SOCKET => Some(FileType::Socket),
        FORMAT_CHAR => Some(FileType::CharDevice),
        FORMAT_BLOCK => Some(FileType::BlockDevice),
        _ => None,
    }
}
