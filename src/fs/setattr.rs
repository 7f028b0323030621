//! Changing attributes: `chmod`, `chown`, `utimens`, `truncate`, extended attributes.
//!
//! A change through a handle or an inode applies to that file, never to the file that its former
//! name leads to now, because the kernel has checked the rights on this one. If that name leads
//! elsewhere and no process has the file open, the kernel looks the name up again. An open file
//! without a name, or a FIFO, socket or device, keeps the change to itself.

use std::time::Duration;

use hearthfs_mount::{
    Answer, Attr, Caller, Errno, Handle, Ino, OpenAccess, OpenFlags, Reply, SetAttr,
};
use tokio::sync::watch;

use super::attrs::{apply, attrs_op};
use super::begin::{BeginBase, Copied, LiveOn};
use super::cut::ToCut;
use super::filesystem::Filesystem;
use super::inode::{DirEntryKey, Inode, InodeKind, LiveId};
use super::live::{Live, Mark, MtimeToSet};
use super::retry::{RetryWish, Try};
use super::seen::seen_in;
use super::state::State;
use super::wish::Wish;
use crate::name::TreePath;
use crate::namespace::{Attrs, Entry, EntryKind, Op};

/// The way in which the size is changed.
enum Resize {
    /// The change is done, or there is nothing to do.
    Done,
    /// This file has to be truncated, without the lock of the state.
    Cut(ToCut),
    /// The published bytes have to be preserved first.
    Keep(LiveId),
    /// Its writers have closed the file, and it is about to be a blob.
    Wait(watch::Receiver<()>),
    /// A whole new version has to be published.
    Publish(Box<BeginBase>),
}

impl Filesystem {
    pub(super) fn set_attr(
        &self,
        caller: &Caller,
        ino: Ino,
        set: SetAttr,
    ) -> Answer<(Attr, Duration)> {
        if self.0.rules.read_only {
            return Err(Errno::EROFS).into();
        }
        let now = self.0.rooms.clock.mono();
        let (tried, retry) = self.0.state.lock().retries.end(caller, ino, false, now);
        self.give_up_seat(retry);
        let Some(size) = set.size else { return self.set_rest(caller, ino, set, tried) };
        let who = self.0.callers.who(caller);
        let flags =
            OpenFlags { access: OpenAccess::Write, truncate: size == 0, ..OpenFlags::default() };
        let wish = Wish { caller: *caller, who, flags, tried, patient: true, client: None };
        match self.resize(&wish, ino, set.handle, size) {
            Ok(Resize::Done) => self.set_rest(caller, ino, set, Try::Last),
            Err(errno) => Err(self.looks_again(&wish, ino, errno)).into(),
            Ok(step) => {
                let this = self.clone();
                Answer::later(async move {
                    let resized = this.resize_in_time(&wish, ino, set, size, step).await;
                    match resized {
                        // The kernel looks the name up again, and finds the new version with its
                        // size.
                        Ok(true) if !wish.is_last() => {
                            return Err(this.looks_again(&wish, ino, Errno::ESTALE));
                        }
                        Ok(true) => drop(this.expire_names()),
                        Ok(false) => {}
                        Err(errno) => return Err(this.looks_again(&wish, ino, errno)),
                    }
                    match this.set_rest(&wish.caller, ino, set, Try::Last) {
                        Answer::Now(reply) => reply,
                        Answer::Later(work) => work.await,
                    }
                })
            }
        }
    }

    /// Records a retry if the answer is `ESTALE`.
    fn looks_again(&self, wish: &Wish, ino: Ino, errno: Errno) -> Errno {
        if errno == Errno::ESTALE {
            self.look_again(&wish.caller, ino, RetryWish::Read);
        }
        errno
    }

    fn set_rest(
        &self,
        caller: &Caller,
        ino: Ino,
        set: SetAttr,
        tried: Try,
    ) -> Answer<(Attr, Duration)> {
        let rest = SetAttr { size: None, handle: None, ..set };
        if rest != SetAttr::default()
            && let Err(errno) = self.set_attrs(caller, ino, set, tried)
        {
            return Err(errno).into();
        }
        self.get_attr(caller, ino, set.handle)
    }

    /// Decides how the size is changed, and changes it where that takes no wait.
    fn resize(&self, wish: &Wish, ino: Ino, handle: Option<Handle>, size: u64) -> Reply<Resize> {
        let mut guard = self.0.state.lock();
        let state = &mut *guard;
        let by_handle = handle.and_then(|handle| {
            let writing = state.handles.file_mut(handle)?.writing.as_mut()?;
            writing.note_write();
            Some(writing.live())
        });
        let inode = state.names.inode(ino).ok_or(Errno::ESTALE)?;
        let id = by_handle.or(inode.live());
        if let Some((id, live)) = id.and_then(|id| Some((id, state.lives.get_mut(id)?))) {
            let (alone, open) =
                (live.is_dropped() || live.place().is_none(), live.writers.has_open());
            let closed = !open && live.version().is_some() && by_handle.is_none();
            if live.settling.is_on() || (closed && live.writers.has_handles()) {
                // The file is closed, and about to be a blob.
                return Ok(Resize::Wait(live.settling.subscribe()));
            }
            if closed {
                return Ok(Resize::Keep(id));
            }
            if by_handle.is_some() || open || alone {
                return Ok(match live.file().metadata()?.len() == size {
                    true => Resize::Done,
                    false if live.version().is_some() => Resize::Keep(id),
                    // Its writers go on with the file.
                    false => {
                        let held = by_handle.is_some();
                        self.cut(ToCut { id, through: ino, held }, live, wish)
                    }
                });
            }
            // Its writers have closed it, and its name leads to the version that they closed.
            return self.resize_elsewhere(state, ino, wish, size);
        }
        match &inode.node {
            InodeKind::Directory => Err(Errno::EISDIR),
            InodeKind::Entry(published) if published.entry.content().is_none() => {
                Err(Errno::EINVAL)
            }
            InodeKind::Entry(published)
                if has_size(&published.entry, size) && !is_written(state, inode) =>
            {
                Ok(Resize::Done)
            }
            _ => self.resize_elsewhere(state, ino, wish, size),
        }
    }

    /// Decides to truncate a file that others may be writing. That clears the set-user-id and
    /// set-group-id bits.
    fn cut(&self, cut: ToCut, live: &mut Live, wish: &Wish) -> Resize {
        if wish.caller.uid != 0 {
            self.drop_privileges(&wish.caller, &mut live.attrs);
        }
        Resize::Cut(cut)
    }

    /// Decides how the size of the file under the inode's name is changed. If that is another
    /// inode, the kernel looks again. If the caller has looked again already, its truncation counts
    /// as done just before the name moved on.
    fn resize_elsewhere(
        &self,
        state: &mut State,
        ino: Ino,
        wish: &Wish,
        size: u64,
    ) -> Reply<Resize> {
        let plan = super::decide::OpenPlan::Aside { named: true };
        let base = self.base_of(state, ino, wish, plan)?;
        let inode = state.names.inode(ino).ok_or(Errno::ESTALE)?;
        let own = match &inode.node {
            InodeKind::Entry(published) => Some(published),
            // The file was closed, and not written to since.
            InodeKind::Live(id) => state
                .lives
                .get(*id)
                .and_then(|live| live.baseline.same_as().filter(|_| !live.wrote())),
            _ => None,
        };
        let (Some(spot), Some(published)) = (&base.spot, &base.published) else {
            return if wish.is_last() { Ok(Resize::Done) } else { Err(Errno::ESTALE) };
        };
        // The names of one file have different stamps.
        let is_it = own.is_some_and(|own| own.is(&published.entry, published.stamp));
        if !is_it || state.has_successor(spot) {
            return if wish.is_last() { Ok(Resize::Done) } else { Err(Errno::ESTALE) };
        }
        // Other processes write this version, so the file that they write is truncated.
        let path = state.names.path_of(spot);
        let seen = path.and_then(|path| self.seen(&path));
        let joinable = state.joinable(spot, seen.as_ref(), wish.who, OpenFlags::default());
        let link = published.entry.link;
        let same =
            |live: &&mut Live| live.writers.has_open() && live.continues(published.stamp, link);
        let live = joinable.and_then(|id| Some((id, state.lives.get_mut(id).filter(same)?)));
        if let Some((id, live)) = live {
            if live.settling.is_on() {
                return Ok(Resize::Wait(live.settling.subscribe()));
            }
            return Ok(match live.file().metadata()?.len() == size {
                true => Resize::Done,
                false if live.version().is_some() => Resize::Keep(id),
                false => self.cut(ToCut { id, through: ino, held: false }, live, wish),
            });
        }
        if has_size(&published.entry, size) {
            return Ok(Resize::Done);
        }
        Ok(Resize::Publish(Box::new(base)))
    }

    /// Returns whether a new version was published.
    async fn resize_in_time(
        &self,
        wish: &Wish,
        ino: Ino,
        set: SetAttr,
        size: u64,
        first: Resize,
    ) -> Reply<bool> {
        let mut left = self.0.rules.deadline;
        let mut step = first;
        loop {
            match step {
                Resize::Done => return Ok(false),
                Resize::Cut(cut) => {
                    let this = self.clone();
                    if crate::task::blocking(move || this.cut_open(cut, size)).await? {
                        return Ok(false);
                    }
                }
                Resize::Keep(id) => {
                    let this = self.clone();
                    let kept = crate::task::blocking(move || this.preserve(id)).await;
                    kept.map_err(|error| super::errno::promised(&error))?;
                }
                Resize::Wait(mut moved) => {
                    left = self.wait_for(&mut moved, left).await.ok_or(Errno::ETIMEDOUT)?;
                }
                Resize::Publish(base) => {
                    if self.publish_resized(wish, ino, *base, size).await? {
                        return Ok(true);
                    }
                }
            }
            step = self.resize(wish, ino, set.handle, size)?;
        }
    }

    /// Publishes a version with another size at once. Returns false if the name has another version
    /// by now.
    async fn publish_resized(
        &self,
        wish: &Wish,
        ino: Ino,
        base: BeginBase,
        size: u64,
    ) -> Reply<bool> {
        self.wait_for_room().await?;
        if !self.0.rooms.ledger.room().admits(size) {
            return Err(Errno::ENOSPC);
        }
        // Of a larger file only the beginning is needed.
        let copy = base.copy.clone().filter(|copy| !matches!(copy, Copied::Blob(..)) || size > 0);
        let (file, staged) = self.stage_copy(copy).await?;
        let (this, wish) = (self.clone(), *wish);
        crate::task::blocking(move || {
            let clean = Mark::of(&file)?;
            file.set_len(size)?;
            let id = {
                let mut state = this.0.state.lock();
                let plan = super::decide::OpenPlan::Aside { named: true };
                if !this.base_of(&state, ino, &wish, plan)?.is(&base) {
                    return Ok(false);
                }
                let staged = (file, staged, clean);
                let id = this.begin_live(&mut state, LiveOn::Fresh, &wish, &base, staged, false)?;
                let live = state.lives.get_mut(id).ok_or(Errno::ESTALE)?;
                live.baseline.freshen();
                live.writers.leave();
                id
            };
            let done = this.publish(id, Some((&wish.caller, wish.who)), false);
            this.finish_here(id);
            done.map(|()| true)
        })
        .await
    }

    /// Changes attributes other than the size.
    pub(super) fn set_attrs(
        &self,
        caller: &Caller,
        ino: Ino,
        set: SetAttr,
        tried: Try,
    ) -> Reply<()> {
        let now = self.now();
        let is_directory = {
            let state = self.0.state.lock();
            state.names.inode(ino).is_some_and(|inode| matches!(inode.node, InodeKind::Directory))
        };
        let owns_anew = (set.uid.is_some() || set.gid.is_some()) && !is_directory;
        self.edit_attrs(caller, ino, tried, |attrs| {
            if owns_anew {
                self.drop_privileges(caller, attrs);
            }
            apply(attrs, set, now);
            Ok(())
        })
    }

    /// Changes the attributes of an inode of any kind; `edit` gets the present ones. `tried` says how
    /// the call relates to an earlier `ESTALE` of its thread.
    pub(super) fn edit_attrs(
        &self,
        caller: &Caller,
        ino: Ino,
        tried: Try,
        edit: impl Fn(&mut Attrs) -> Reply<()>,
    ) -> Reply<()> {
        if self.0.rules.read_only {
            return Err(Errno::EROFS);
        }
        let turn = self.0.rooms.ledger.begin();
        let (ops, own, (further, inodes)) = {
            let mut guard = self.0.state.lock();
            let state = &mut *guard;
            let root = &self.0.rules.root;
            let paths = self.paths_of(state, ino);
            // Others may write the next version under the name that the caller walked to, and a
            // change of this one alone would be lost.
            if paths.is_empty() && tried == Try::First && Self::is_closed_entry(state, ino) {
                drop(guard);
                self.look_again(caller, ino, RetryWish::Read);
                return Err(Errno::ESTALE);
            }
            let own = Self::edit_private(state, ino, paths.is_empty(), &edit)?;
            let further = Self::edit_successors(state, ino, paths.is_empty(), &edit);
            let ops = self.0.rooms.ledger.read(|fold| {
                let ops = paths.into_iter().filter_map(|path| {
                    let op = attrs_op(fold, &path, root, &edit)?;
                    Some(op.map(|op| (path, op)))
                });
                ops.collect::<Reply<Vec<_>>>()
            })?;
            (ops, own, further)
        };
        if let Some(touch) = own {
            touch.carry_out()?;
        }
        for touch in further {
            if let Err(error) = touch.carry_out() {
                // A failure there does not concern the file that the caller has named.
                tracing::debug!(%error, "the time of an open file could not be set");
            }
        }
        let attrs = ops.iter().find_map(|(_, op)| match op {
            Op::Attrs { attrs, .. } => Some(attrs.clone()),
            _ => None,
        });
        let paths: Vec<TreePath> = ops.iter().map(|(path, _)| path.clone()).collect();
        let written = turn.write(ops).map_err(|error| super::errno::promised(&error))?;
        let changes = !written.is_nothing();
        let mut state = self.0.state.lock();
        drop(written.apply());
        if let Some(attrs) = attrs
            && let Some(InodeKind::Entry(published)) =
                state.names.inode_mut(ino).map(|i| &mut i.node)
        {
            published.entry.attrs = attrs;
        }
        // Under another name of the file, the kernel may remember the inode of the published
        // version and its attributes.
        let further = |path: &TreePath| {
            let spot = state.names.spot_of(path)?;
            state.names.bound(&spot).is_some_and(|bound| bound != ino).then_some(spot)
        };
        let further: Vec<_> = match paths.len() {
            0 | 1 => Vec::new(),
            _ => paths.iter().filter(|_| changes).filter_map(further).collect(),
        };
        drop(state);
        self.doubt(further);
        self.expire_attrs_of(inodes);
        Ok(())
    }

    /// Reports whether an inode is a published version that no process has open. The kernel does not
    /// look again for a descriptor. It opens a FIFO, socket or device itself, so such an inode may
    /// be open.
    fn is_closed_entry(state: &State, ino: Ino) -> bool {
        state.names.inode(ino).is_some_and(|inode| match &inode.node {
            InodeKind::Entry(one) => {
                inode.opens == 0 && !matches!(one.entry.kind, EntryKind::Special { .. })
            }
            _ => false,
        })
    }

    /// Changes the attributes that only the inode has: those of a live file, or, with `alone`,
    /// those of a file that has lost its name. Returns what has to be done to the file.
    fn edit_private(
        state: &mut State,
        ino: Ino,
        alone: bool,
        edit: &impl Fn(&mut Attrs) -> Reply<()>,
    ) -> Reply<Option<MtimeToSet>> {
        let inode = state.names.inode_mut(ino).ok_or(Errno::ESTALE)?;
        match &mut inode.node {
            InodeKind::Entry(published) | InodeKind::Reserved(published) if alone => {
                edit(&mut published.entry.attrs).map(|()| None)
            }
            InodeKind::Gone(entry) => edit(&mut entry.attrs).map(|()| None),
            InodeKind::Stale(_) => Err(Errno::ESTALE),
            InodeKind::Directory | InodeKind::Entry(_) | InodeKind::Reserved(_) => Ok(None),
            InodeKind::Live(id) => {
                let live = state.lives.get_mut(*id).ok_or(Errno::ESTALE)?;
                let (changed, touch) = live.edit_attrs(edit)?;
                let attrs = live.attrs.clone();
                match live.version_mut() {
                    // It is published under its name as well.
                    Some(version) if !alone => version.published.entry.attrs = attrs,
                    None if !alone => {}
                    _ => live.attrs_moved |= changed,
                }
                Ok(touch)
            }
        }
    }

    /// Changes the attributes of live files that others write from the version of an inode. They
    /// are the same file, so their close must not undo the change. With `alone`, the version has
    /// lost its name: then only a live file that is written through this inode changes, because the
    /// caller may have that open, and its close publishes the change. Returns what has to be done
    /// to their files, and the inodes whose attributes have changed.
    fn edit_successors(
        state: &mut State,
        ino: Ino,
        alone: bool,
        edit: &impl Fn(&mut Attrs) -> Reply<()>,
    ) -> (Vec<MtimeToSet>, Vec<Ino>) {
        let mut edited = (Vec::new(), Vec::new());
        let Some(inode) = state.names.inode(ino) else { return edited };
        let (stamp, link) = match &inode.node {
            InodeKind::Entry(published) => (published.stamp, published.entry.link),
            InodeKind::Live(id) => match state.lives.get(*id) {
                Some(live) => (live.lineage.follows(), live.link),
                None => return edited,
            },
            _ => return edited,
        };
        // Another node may have removed the name since the caller looked it up.
        let spots = inode.places.iter().chain(&inode.last);
        let all = spots.flat_map(|spot| state.lives_of(spot, link));
        for id in all.collect::<Vec<_>>() {
            let is_next = |live: &&mut Live| live.continues(stamp, link) && live.ino != ino;
            let mut writers = state.handles.writers(id);
            if alone && !writers.any(|(file, writing)| writing.is_aside() && file.ino == ino) {
                continue;
            }
            let Some(live) = state.lives.get_mut(id).filter(is_next) else { continue };
            match live.edit_attrs(edit) {
                Ok((changed, touch)) => {
                    live.attrs_moved |= alone && changed;
                    edited.0.extend(touch);
                    edited.1.extend(changed.then_some(live.ino));
                }
                // A failure there does not concern the file that the caller has named.
                Err(errno) => {
                    tracing::debug!(?errno, "attributes of an open file could not be changed");
                }
            }
        }
        edited
    }

    /// Returns the paths of the version that a live file began from, while its name still has that
    /// version, or the `last` name has it. An unpublished file may have taken that name, and others
    /// still find the version under it.
    fn paths_begun_from(
        &self,
        state: &State,
        live: &Live,
        last: Option<&DirEntryKey>,
    ) -> Vec<TreePath> {
        let path = live.place().or(last).and_then(|spot| state.names.path_of(spot));
        let Some(path) = path.filter(|_| live.lineage.follows().is_some()) else {
            return Vec::new();
        };
        self.0.rooms.ledger.read(|fold| match seen_in(fold, &path) {
            // What it replaces would be wrong here: after a rename over a name, it is the stamp of another
            // file, perhaps of another user.
            Some(seen) if seen.stamp == live.lineage.follows() => {
                let links = seen.entry.link.into_iter().flat_map(|group| fold.links(group));
                let mut paths: Vec<TreePath> = links.cloned().chain([path]).collect();
                paths.sort();
                paths.dedup();
                paths
            }
            _ => Vec::new(),
        })
    }

    /// Returns the paths that share the attributes of an inode; none where its names lead elsewhere
    /// by now.
    fn paths_of(&self, state: &State, ino: Ino) -> Vec<TreePath> {
        if ino == Ino::ROOT {
            return vec![TreePath::root()];
        }
        let Some(inode) = state.names.inode(ino) else { return Vec::new() };
        let published = match &inode.node {
            InodeKind::Directory => None,
            InodeKind::Entry(published) => Some(published),
            InodeKind::Live(id) => match state.lives.get(*id) {
                Some(live) => match live.version() {
                    Some(version) => Some(&version.published),
                    // For all other processes the version that it began from is the same file.
                    None => return self.paths_begun_from(state, live, inode.last.as_ref()),
                },
                None => return Vec::new(),
            },
            _ => return Vec::new(),
        };
        let own = inode.places.iter().filter_map(|spot| state.names.path_of(spot));
        self.0.rooms.ledger.read(|fold| {
            let is_it = |entry: &Entry, stamp| match published {
                None => entry.is_directory(),
                Some(published) => published.is(entry, stamp),
            };
            let mut paths: Vec<TreePath> = Vec::new();
            for path in own {
                let Some(seen) = seen_in(fold, &path) else { continue };
                if !is_it(&seen.entry, seen.stamp) {
                    continue;
                }
                paths.extend(
                    seen.entry.link.into_iter().flat_map(|group| fold.links(group)).cloned(),
                );
                paths.push(path);
            }
            paths.sort();
            paths.dedup();
            paths
        })
    }
}

fn has_size(entry: &Entry, size: u64) -> bool {
    entry.content().is_some_and(|(_, has)| has == size)
}

/// Reports whether a live file exists under any name of an inode.
fn is_written(state: &State, inode: &Inode) -> bool {
    let link =
        if let InodeKind::Entry(published) = &inode.node { published.entry.link } else { None };
    inode.places.iter().any(|spot| state.lives_of(spot, link).next().is_some())
}
