//! The state under the room's one lock: names, live files, handles, locks of names, retries.
//!
//! Owns the steps in which these change together. Its lock must never be held while the disk is
//! used, except to read the size and time of an open file.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use hearthfs_mount::{Errno, Handle, Ino, OpenFlags, Reply};
use parking_lot::MutexGuard;
use tokio::sync::watch;

use super::editions::Editions;
use super::handles::{Handles, OpenFile};
use super::inode::{DirEntryKey, Inode, InodeKind, LiveId, Mode, Published, Source, number_of};
use super::live::{Last, Live, Lives, Stage};
use super::locks::Locks;
use super::names::Names;
use super::retry::{Retries, Retry};
use super::seen::Seen;
use super::who::Who;
use crate::local::StagedPath;
use crate::name::TreePath;
use crate::namespace::Entry;
use crate::stamp::Stamp;

/// Everything that the kernel refers to.
#[derive(Debug)]
pub(super) struct State {
    pub(super) names: Names,
    pub(super) lives: Lives,
    pub(super) handles: Handles,
    pub(super) locks: Locks,
    pub(super) retries: Retries,
    pub(super) editions: Editions,
    /// When another node's change of an unknown directory arrived.
    pub(super) changed_elsewhere: Option<Duration>,
    /// Large files that no handle writes any more and that are not blobs yet. Each of them is a
    /// live file.
    pub(super) ending: Vec<Last>,
    /// Live files that only wait for their end: see `ending`.
    pub(super) left: VecDeque<LiveId>,
    /// Files that are not needed any more. Those that will never be an entry come with their names
    /// in staging: see [`close_files`].
    let_go: Vec<(Arc<Source>, Option<StagedPath>)>,
}

impl Drop for State {
    /// Leaves published bytes that are not blobs in staging, for the next start: the journal has
    /// their entries.
    fn drop(&mut self) {
        let staged = self.lives.iter_mut().filter(|live| live.version().is_some());
        staged.filter_map(|live| live.staged.take()).for_each(StagedPath::leave);
    }
}

impl State {
    /// Makes an empty state for a process that may have `descriptors` open.
    pub(super) fn new(descriptors: u64) -> Self {
        Self {
            names: Names::new(),
            lives: Lives::default(),
            handles: Handles::new(descriptors),
            locks: Locks::default(),
            retries: Retries::default(),
            editions: Editions::default(),
            changed_elsewhere: None,
            ending: Vec::new(),
            left: VecDeque::new(),
            let_go: Vec::new(),
        }
    }

    /// Adds an open file, which shares the lock of its name. `further` are the other names of the
    /// file.
    pub(super) fn add_file(&mut self, file: OpenFile, further: &[DirEntryKey]) -> Handle {
        if file.is_aside()
            && let Some(inode) = self.names.inode_mut(file.ino)
        {
            inode.asides += 1;
        }
        let handle = self.handles.add_file(file);
        self.share_lock(handle, further);
        handle
    }

    /// Removes an open file, and releases the lock that it holds.
    pub(super) fn remove_file(&mut self, handle: Handle) -> Option<OpenFile> {
        self.locks.close(handle);
        let file = self.handles.remove_file(handle)?;
        if file.is_aside()
            && let Some(inode) = self.names.inode_mut(file.ino)
        {
            inode.asides -= 1;
        }
        Some(file)
    }

    /// Returns an inode as the entry that it is or would become; `None` for a directory.
    pub(super) fn entry_of(&self, ino: Ino) -> Option<Entry> {
        match &self.names.inode(ino)?.node {
            InodeKind::Directory | InodeKind::Stale(_) => None,
            InodeKind::Entry(published) | InodeKind::Reserved(published) => {
                Some(published.entry.clone())
            }
            InodeKind::Gone(entry) => Some(entry.clone()),
            InodeKind::Live(id) => {
                let live = self.lives.get(*id)?;
                let version = live.version().map(|version| version.published.entry.clone());
                Some(version.unwrap_or_else(|| live.entry_now()))
            }
        }
    }

    /// Yields the live files of a name and of its group of hard links, oldest first.
    pub(super) fn lives_of(
        &self,
        spot: &DirEntryKey,
        group: Option<Stamp>,
    ) -> impl Iterator<Item = LiveId> {
        let linked = self.lives.of_group(group).iter();
        let here = self.names.lives(spot).iter();
        linked
            .chain(here.filter(move |id| {
                group.is_none() || self.lives.get(**id).is_none_or(|live| live.link != group)
            }))
            .copied()
    }

    /// Returns the newest live file of a name that `who` has opened for writing.
    pub(super) fn own_live(
        &self,
        spot: &DirEntryKey,
        seen: Option<&Seen>,
        who: Who,
    ) -> Option<LiveId> {
        let own = |id: &LiveId| {
            self.lives.get(*id).is_some_and(|live| {
                live.has_member(who) && !live.is_dropped() && live.concerns(seen)
            })
        };
        self.lives_of(spot, seen.and_then(|seen| seen.entry.link)).filter(own).last()
    }

    /// Returns the newest live file of a name that a writer joins.
    pub(super) fn joinable(
        &self,
        spot: &DirEntryKey,
        seen: Option<&Seen>,
        who: Who,
        flags: OpenFlags,
    ) -> Option<LiveId> {
        self.all_joinable(spot, seen, who, flags).last()
    }

    /// Yields all live files that a writer could join, oldest first.
    pub(super) fn all_joinable(
        &self,
        spot: &DirEntryKey,
        seen: Option<&Seen>,
        who: Who,
        flags: OpenFlags,
    ) -> impl Iterator<Item = LiveId> {
        let joins = move |id: &LiveId| {
            self.lives.get(*id).is_some_and(|live| {
                let closed = !live.writers.has_open() && live.version().is_some();
                !live.is_dropped()
                    && live.place().is_some()
                    && !closed
                    && live.concerns(seen)
                    && (who != Who::Unseen || !live.writers.has_handles())
                    && (!flags.truncate || live.has_member(who))
            })
        };
        self.lives_of(spot, seen.and_then(|seen| seen.entry.link)).filter(joins)
    }

    /// Reports whether a name without an entry exists because of a live file.
    pub(super) fn has_private(&self, spot: &DirEntryKey) -> bool {
        self.newest_private(spot).is_some()
    }

    /// Returns the newest live file that makes a name without an entry exist.
    pub(super) fn newest_private(&self, spot: &DirEntryKey) -> Option<LiveId> {
        let makes = |id: &LiveId| {
            self.is_unpublished(*id, spot) && self.lives.get(*id).is_some_and(Live::makes_a_name)
        };
        self.names.lives(spot).iter().copied().rev().find(makes)
    }

    /// Looks for a live file whose older version is this inode, that all have closed, and that was
    /// stored to through a mapping since. Returns what notifies of its end, and the time of the
    /// last store; no time if the end has come already and is being published.
    pub(super) fn unmapped(&self, ino: Ino) -> Option<(watch::Receiver<()>, Option<Duration>)> {
        let spot = self.names.inode(ino)?.place()?;
        let mut lives = self.names.lives(spot).iter().filter_map(|id| self.lives.get(*id));
        let ends = |live: &&Live| {
            let stored = live.mapped.stored().is_some();
            stored && live.is_ending() && live.is_private() && live.wrote()
        };
        let stored = |live: &Live| live.mapped.stored().filter(|_| !live.settling.is_on());
        lives.find(ends).map(|live| (live.settling.subscribe(), stored(live)))
    }

    /// Reports whether a live file was renamed over what is published under a name. For a process
    /// that walks to the name, the published version is gone.
    pub(super) fn has_successor(&self, spot: &DirEntryKey) -> bool {
        let mut lives = self.names.lives(spot).iter().filter_map(|id| self.lives.get(*id));
        lives.any(|live| live.lineage.is_renamed() && !live.is_dropped())
    }

    /// Reports whether the name of a live file leads other processes elsewhere.
    pub(super) fn is_unpublished(&self, id: LiveId, spot: &DirEntryKey) -> bool {
        self.lives
            .get(id)
            .is_some_and(|live| !live.is_dropped() && self.names.bound(spot) != Some(live.ino))
    }

    /// Reports whether any unpublished file has its name in a directory.
    pub(super) fn has_private_in(&self, dir: Ino) -> bool {
        self.lives.in_directory(dir).any(|live| {
            let unbound = live.place().is_some_and(|spot| self.names.bound(spot) != Some(live.ino));
            live.makes_a_name() && unbound
        })
    }

    /// Notes that the version of an inode was put again: it was moved or linked.
    pub(super) fn renew(&mut self, ino: Ino, published: Published) {
        let Some(inode) = self.names.inode_mut(ino) else { return };
        let same = |old: &Published| old.entry.kind == published.entry.kind;
        match &mut inode.node {
            InodeKind::Entry(old) if same(old) => *old = published,
            InodeKind::Live(id) => {
                let id = *id;
                if let Some(live) = self.lives.get_mut(id) {
                    live.lineage.follow(published.stamp);
                    live.lineage.replace(published.stamp);
                    let link = published.entry.link;
                    if let Some(version) = live.version_mut().filter(|v| same(&v.published)) {
                        version.published = published;
                    }
                    self.lives.set_link(id, link);
                }
            }
            _ => {}
        }
    }

    /// Lets live files of a name that may replace one put replace a second one instead: it has put
    /// the version of the first again.
    pub(super) fn rebase(&mut self, spot: &DirEntryKey, before: Option<Stamp>, put: Option<Stamp>) {
        for id in self.names.lives(spot).to_vec() {
            if let Some(live) = self.lives.get_mut(id)
                && before.is_some()
                && live.lineage.replaces() == before
            {
                live.lineage.replace(put);
            }
        }
    }

    /// Gives a live file a name.
    pub(super) fn place_live(&mut self, id: LiveId, spot: &DirEntryKey) {
        let Some(ino) = self.lives.get(id).map(|live| live.ino) else { return };
        self.lives.set_place(id, Some(spot.clone()));
        self.names.add_live(spot, id, ino);
    }

    /// Takes a live file off its name.
    pub(super) fn unplace_live(&mut self, id: LiveId) {
        let Some(live) = self.lives.get(id) else { return };
        let (ino, Some(spot)) = (live.ino, live.place().cloned()) else { return };
        self.lives.set_place(id, None);
        self.names.remove_live(&spot, id, ino);
    }

    /// Moves a live file from its name to another.
    pub(super) fn move_live(&mut self, id: LiveId, to: &DirEntryKey) {
        self.unplace_live(id);
        self.place_live(id, to);
    }

    /// Moves everything known of a name to another, which must lead nowhere.
    pub(super) fn move_slot(&mut self, from: &DirEntryKey, to: &DirEntryKey) {
        for id in self.names.move_slot(from, to) {
            let ino = self.lives.get(id).map(|live| live.ino);
            self.lives.set_place(id, Some(to.clone()));
            if let Some(ino) = ino {
                self.names.replace_place(ino, from, to);
            }
        }
    }

    /// Returns the open inodes of a name, if it has several. When the name goes, the kernel counts it
    /// off only for the inode that it has found there last.
    pub(super) fn open_inodes(&self, spot: &DirEntryKey) -> Vec<Ino> {
        let lives = self.names.lives(spot).iter().filter_map(|id| self.lives.get(*id));
        let mut all: Vec<Ino> = lives.map(|live| live.ino).chain(self.names.bound(spot)).collect();
        all.sort_unstable();
        all.dedup();
        if all.len() < 2 {
            return Vec::new();
        }
        all.retain(|ino| self.names.inode(*ino).is_some_and(|inode| inode.opens > 0));
        all
    }

    /// Takes a name away from everything that it led to. Processes that have these files open keep
    /// them, and they are never published.
    pub(super) fn retire(&mut self, spot: &DirEntryKey) {
        self.names.unbind(spot);
        for id in self.names.lives(spot).to_vec() {
            self.unplace_live(id);
            if let Some(live) = self.lives.get_mut(id) {
                if let Some(version) = live.version_mut() {
                    version.hold = None;
                }
                // Processes that wait for it look again and find the name gone.
                live.wake();
            }
        }
    }

    /// Takes a name that leads nowhere from files that were closed under it and removed by another
    /// node, because something else is made there now.
    pub(super) fn take_name(&mut self, spot: &DirEntryKey) {
        for id in self.names.lives(spot).to_vec() {
            self.unplace_live(id);
            if let Some(live) = self.lives.get(id) {
                live.wake();
            }
        }
    }

    /// Drops a live file, so that it will never be an entry, and wakes those that wait for it.
    /// Returns the name that the kernel may still remember.
    #[must_use]
    pub(super) fn drop_live(&mut self, id: LiveId) -> Option<DirEntryKey> {
        let live = self.lives.get_mut(id)?;
        live.set_stage(Stage::Dropped);
        let place = live.place().cloned();
        self.unplace_live(id);
        if self.is_idle(id) {
            self.end_live(id);
        }
        place
    }

    /// Forgets a live file that no handle writes any more. Its inode becomes an entry, or gone: see
    /// [`end_of`].
    pub(super) fn end_live(&mut self, id: LiveId) {
        let place = self.lives.get(id).and_then(|live| live.place().cloned());
        self.unplace_live(id);
        let Some(mut live) = self.lives.remove(id) else { return };
        let ino = live.ino;
        let node = end_of(&mut live, self.names.is_bound(ino));
        live.set_stage(Stage::Dropped);
        if let Some(inode) = self.names.inode_mut(ino)
            && matches!(inode.node, InodeKind::Live(of) if of == id)
        {
            inode.node = node;
            let is_entry = matches!(inode.node, InodeKind::Entry(_));
            // A caller that still knows the name by this inode means the current version of the
            // name.
            if let Some(spot) = place.filter(|_| is_entry) {
                self.names.place(ino, &spot);
            }
        }
        self.let_go.push((live.source, live.staged));
        self.names.sweep_inode(ino);
    }

    /// Closes an inode's file when no handle needs it, and forgets the inode when nothing needs it.
    pub(super) fn settle_inode(&mut self, ino: Ino) {
        if let Some(inode) = self.names.inode_mut(ino)
            && inode.opens == 0
        {
            inode.mode = None;
            if let Some(source) = inode.source.take() {
                self.let_go.push((source, None));
            }
        }
        self.names.sweep_inode(ino);
    }

    /// Notes that the bytes of a live file are changed through an inode. If that is another one than
    /// its own, which is returned then, the kernel does not change the pages that it has of the file.
    pub(super) fn note_change(&mut self, id: LiveId, through: Ino) -> Option<Ino> {
        let own = self.lives.get(id).map(|live| live.ino).filter(|own| *own != through)?;
        self.names.inode_mut(own)?.has_stale_pages = true;
        Some(own)
    }

    /// Counts an open of an inode, including one in flight.
    pub(super) fn count_open(&mut self, ino: Ino) {
        if let Some(inode) = self.names.inode_mut(ino) {
            inode.opens += 1;
        }
    }

    pub(super) fn uncount_open(&mut self, ino: Ino) {
        if let Some(inode) = self.names.inode_mut(ino) {
            inode.opens -= 1;
        }
        self.settle_inode(ino);
    }

    /// Gives up the seat of a thread that looked again. Returns the live file that has no writer
    /// now.
    #[must_use]
    pub(super) fn give_up(&mut self, retry: Option<Retry>) -> Option<LiveId> {
        let ino = retry?.seat?;
        self.leave_seat(ino)
    }

    /// Removes one seat of an inode.
    pub(super) fn leave_seat(&mut self, ino: Ino) -> Option<LiveId> {
        let inode = self.names.inode_mut(ino)?;
        inode.seats -= 1;
        let id = inode.live();
        self.names.sweep_inode(ino);
        id.filter(|id| self.is_idle(*id))
    }

    /// Reports whether a live file has no writer, and no retry is about to write it.
    pub(super) fn is_idle(&self, id: LiveId) -> bool {
        self.lives.get(id).is_some_and(|live| {
            let seats = self.names.inode(live.ino).map_or(0, |inode| inode.seats);
            !live.writers.has_handles() && seats == 0
        })
    }

    /// Reports whether the kernel's size of an inode may be wrong for a while. Callers that cannot
    /// be seen empty the same inode that they all read.
    pub(super) fn is_shaken(&self, ino: Ino, who: Who) -> bool {
        who == Who::Unseen || self.names.inode(ino).is_some_and(|inode| inode.asides > 0)
    }

    /// Reports whether an inode is the version that a name has.
    pub(super) fn is_version(&self, ino: Ino, seen: &Seen) -> bool {
        self.names.inode(ino).is_some_and(|inode| match &inode.node {
            InodeKind::Entry(published) => published.is(&seen.entry, seen.stamp),
            InodeKind::Live(id) => self.lives.get(*id).is_some_and(|live| {
                live.version().is_some_and(|v| v.published.is(&seen.entry, seen.stamp))
            }),
            _ => false,
        })
    }

    /// Returns the stamp of the published version behind an inode, if it is one.
    pub(super) fn stamp_of(&self, ino: Ino) -> Option<Stamp> {
        match &self.names.inode(ino)?.node {
            InodeKind::Entry(published) => published.stamp,
            InodeKind::Live(id) => self.lives.get(*id)?.version()?.published.stamp,
            _ => None,
        }
    }

    /// Reports whether an inode is a published version.
    pub(super) fn is_entry(&self, ino: Ino) -> bool {
        self.names.inode(ino).is_some_and(|inode: &Inode| matches!(inode.node, InodeKind::Entry(_)))
    }
}

/// Returns what the inode of a live file becomes at its end: the entry that it is bound to or was
/// when it was released, the version that it began from if no process has written to it, or gone.
fn end_of(live: &mut Live, bound: bool) -> InodeKind {
    if let Some(version) = live.version().filter(|version| bound || version.released) {
        let mut published = version.published.clone();
        if !bound {
            // Changes of a file without a name are not published.
            published.entry.attrs = live.attrs.clone();
        }
        return InodeKind::Entry(published);
    }
    let same = live.baseline.take_same_as().filter(|_| live.is_private() && !live.wrote());
    same.map_or_else(|| InodeKind::Gone(live.entry_now()), InodeKind::Entry)
}

/// Releases the lock of the state, then closes files that are not needed any more, and removes
/// their names in staging. A close unregisters the backing file in the kernel, which takes as long
/// as everything else in a release. No request waits for the lock meanwhile.
pub(super) fn close_files(mut state: MutexGuard<'_, State>) {
    let gone = std::mem::take(&mut state.let_go);
    drop(state);
    drop(gone);
}

/// Returns the inode of a published entry. Makes it, or replaces the one that the kernel has for
/// another version.
pub(super) fn entry_inode(
    state: &mut State,
    spot: &DirEntryKey,
    path: &TreePath,
    seen: Seen,
) -> Ino {
    if let Some(ino) = known_entry_inode(state, spot, &seen) {
        if state.names.bound(spot) != Some(ino) {
            state.names.bind(spot, ino);
        }
        return ino;
    }
    state.names.unbind(spot);
    let ino = new_entry_number(state, path, &seen);
    let link = seen.entry.link;
    let node = if seen.entry.is_directory() {
        InodeKind::Directory
    } else {
        InodeKind::Entry(seen.published())
    };
    state.names.add_bound(spot, ino, node);
    state.names.set_group(link, ino);
    ino
}

/// Returns the inode that the kernel has for a published entry: that of the name, or of another
/// name of the same file.
pub(super) fn known_entry_inode(state: &mut State, spot: &DirEntryKey, seen: &Seen) -> Option<Ino> {
    let linked = seen.entry.link.and_then(|group| state.names.group(group));
    let known = state.names.bound(spot).into_iter().chain(linked);
    known.into_iter().find(|ino| still_holds(state, *ino, seen))
}

/// Returns the number of the inode that a published entry gets if the kernel has none for it.
pub(super) fn new_entry_number(state: &State, path: &TreePath, seen: &Seen) -> Ino {
    let mut ino = number_of(path, seen.version());
    while state.names.inode(ino).is_some() {
        ino = Ino((ino.0 + 1).max(2));
    }
    ino
}

/// Reports whether an inode is still the version that the namespace has, and updates its
/// attributes.
fn still_holds(state: &mut State, ino: Ino, seen: &Seen) -> bool {
    let Some(inode) = state.names.inode_mut(ino) else { return false };
    match &mut inode.node {
        InodeKind::Directory => seen.entry.is_directory(),
        InodeKind::Entry(published) if published.is(&seen.entry, seen.stamp) => {
            published.entry.attrs = seen.entry.attrs.clone();
            published.changed_ms = seen.changed_ms;
            true
        }
        InodeKind::Live(id) => state
            .lives
            .get(*id)
            .and_then(Live::version)
            .is_some_and(|version| version.published.is(&seen.entry, seen.stamp)),
        _ => false,
    }
}

/// Refuses a handle whose mapping would write to the wrong file: the kernel maps the file that the
/// other handles of the inode are passed through to.
pub(super) fn may_stand_aside(state: &State, ino: Ino, flags: OpenFlags) -> Reply<()> {
    let passed = state.names.inode(ino).is_some_and(|inode| inode.mode == Some(Mode::Passthrough));
    if passed && flags.reads() { Err(Errno::ETXTBSY) } else { Ok(()) }
}
