//! Names: which inode a name leads to, and what else is being written under it.
//!
//! Owns the inodes, and the bindings between names and inodes. It knows nothing of the content of
//! files. Must never read the namespace or the disk.

use std::collections::hash_map::Entry;

use hearthfs_mount::{Attr, Errno, Ino};

use super::inode::{AccessRights, DirEntryKey, Inode, InodeKind, LiveId, Published};
use crate::hashing::FastMap;
use crate::name::TreePath;
use crate::stamp::Stamp;

/// Numbers from here up are for files that began on this node.
const FIRST_LIVE_INO: u64 = 1 << 63;
/// Almost no path has more names; others take a second allocation.
const USUAL_DEPTH: usize = 8;

/// What is known about one name.
#[derive(Debug, Default)]
struct NameState {
    /// The inode of the namespace's entry under this name, if the kernel knows it.
    bound: Option<Ino>,
    /// The live files under this name, oldest first. One of them may also be the bound inode.
    lives: Vec<LiveId>,
    /// The inode for the next writer that looks again and begins a live file. All such writers that
    /// do not empty the file get the same inode, so that they share it.
    reserved: Option<Ino>,
    /// The stale inode that the kernel may find under this public name.
    stale: Option<Ino>,
}

impl NameState {
    /// Reports whether a slot has no information.
    fn is_empty(&self) -> bool {
        let inodes = [self.bound, self.reserved, self.stale];
        self.lives.is_empty() && inodes.iter().all(Option::is_none)
    }
}

/// The result of [`Names::make_stale`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Staling {
    /// This inode is stale now.
    Stale(Ino),
    /// The kernel does not know the file of the name.
    Unknown,
    /// Something uses the inode, or it has other names, so it stays.
    InUse,
}

/// All names and inodes that the kernel knows.
#[derive(Debug)]
pub(super) struct Names {
    /// The numbers are our own, so no program can choose numbers that collide.
    inodes: FastMap<Ino, Inode>,
    slots: FastMap<DirEntryKey, NameState>,
    /// The inode of each group of hard links.
    groups: FastMap<Stamp, Ino>,
    /// How many times a directory got another name.
    directory_moves: u64,
    next_ino: u64,
}

impl Names {
    pub(super) fn new() -> Self {
        let mut root = Inode::new(InodeKind::Directory);
        root.lookups = 1;
        Self {
            inodes: FastMap::from_iter([(Ino::ROOT, root)]),
            slots: FastMap::default(),
            groups: FastMap::default(),
            directory_moves: 0,
            next_ino: FIRST_LIVE_INO,
        }
    }

    #[inline]
    pub(super) fn inode(&self, ino: Ino) -> Option<&Inode> {
        self.inodes.get(&ino)
    }

    #[inline]
    pub(super) fn inode_mut(&mut self, ino: Ino) -> Option<&mut Inode> {
        self.inodes.get_mut(&ino)
    }

    /// Returns the number of inodes.
    pub(super) fn len(&self) -> usize {
        self.inodes.len()
    }

    /// Adds an inode under a number that no other inode has.
    pub(super) fn add(&mut self, ino: Ino, node: InodeKind) {
        let old = self.inodes.insert(ino, Inode::new(node));
        debug_assert!(old.is_none(), "inode numbers are never used twice");
    }

    /// Adds an inode that was born here.
    pub(super) fn add_fresh(&mut self, node: InodeKind) -> Ino {
        self.next_ino += 1;
        let ino = Ino(self.next_ino);
        self.add(ino, node);
        ino
    }

    /// Adds an inode for the entry of a name that is not bound.
    pub(super) fn add_bound(&mut self, spot: &DirEntryKey, ino: Ino, node: InodeKind) {
        let old = self.inodes.insert(ino, Inode::new_at(node, spot.clone()));
        debug_assert!(old.is_none(), "inode numbers are never used twice");
        let old = self.slots.entry(spot.clone()).or_default().bound.replace(ino);
        debug_assert!(old.is_none(), "the caller has unbound the name");
    }

    /// Reports whether anything is known about a name.
    pub(super) fn knows(&self, spot: &DirEntryKey) -> bool {
        self.slots.contains_key(spot)
    }

    /// Returns the inode that a name is bound to.
    #[inline]
    pub(super) fn bound(&self, spot: &DirEntryKey) -> Option<Ino> {
        self.slots.get(spot)?.bound
    }

    /// Reports whether any name is bound to an inode.
    pub(super) fn is_bound(&self, ino: Ino) -> bool {
        let places = self.inodes.get(&ino).map_or(&[][..], |inode| &inode.places);
        places.iter().any(|spot| self.bound(spot) == Some(ino))
    }

    /// Returns the live files of a name, oldest first.
    #[inline]
    pub(super) fn lives(&self, spot: &DirEntryKey) -> &[LiveId] {
        self.slots.get(spot).map_or(&[], |slot| &slot.lives)
    }

    /// Returns how many times a directory got another name. As long as this does not change, a path
    /// leads to the same directory.
    pub(super) fn directory_moves(&self) -> u64 {
        self.directory_moves
    }

    /// Returns the path of a directory's inode; `None` if the directory or one above it was
    /// removed.
    pub(super) fn directory_path(&self, ino: Ino) -> Option<TreePath> {
        self.path_through(ino, None)
    }

    /// Returns the path of a name.
    pub(super) fn path_of(&self, spot: &DirEntryKey) -> Option<TreePath> {
        self.path_through(spot.0, Some(&spot.1))
    }

    /// Returns the path of a directory, or of a name in it.
    fn path_through<'a>(&'a self, dir: Ino, name: Option<&'a [u8]>) -> Option<TreePath> {
        let mut names = Vec::with_capacity(USUAL_DEPTH);
        names.extend(name);
        let mut at = dir;
        while at != Ino::ROOT {
            let (parent, name) = self.inodes.get(&at)?.place()?;
            names.push(name);
            at = *parent;
        }
        TreePath::of_names(names.into_iter().rev()).ok()
    }

    /// Returns the error for a name that has no path.
    pub(super) fn why_no_path(&self, spot: &DirEntryKey) -> Errno {
        match self.directory_path(spot.0) {
            None => Errno::ENOENT,
            Some(dir) => dir.join(&spot.1).err().map_or(Errno::ENOENT, super::errno::of_path),
        }
    }

    /// Returns the name for a path, if the kernel knows every directory on the way.
    pub(super) fn spot_of(&self, path: &TreePath) -> Option<DirEntryKey> {
        let (dir, name) = path.split()?;
        let mut at = Ino::ROOT;
        for part in dir.components() {
            at = self.slots.get(&(at, part.into()))?.bound?;
        }
        Some((at, name.into()))
    }

    /// Returns the inode of a group of hard links.
    pub(super) fn group(&self, group: Stamp) -> Option<Ino> {
        self.groups.get(&group).copied()
    }

    pub(super) fn set_group(&mut self, group: Option<Stamp>, ino: Ino) {
        if let Some(group) = group {
            self.groups.insert(group, ino);
        }
    }

    /// Counts one lookup of an inode, and notes its rights, for an answer to the kernel that has
    /// both.
    pub(super) fn note_found(&mut self, attr: &Attr) {
        if let Some(inode) = self.inodes.get_mut(&attr.ino) {
            inode.lookups += 1;
            inode.told = Some(AccessRights::told(attr));
        }
    }

    /// Notes the rights in an answer to the kernel.
    pub(super) fn note_told(&mut self, attr: &Attr) {
        if let Some(inode) = self.inodes.get_mut(&attr.ino) {
            inode.told = Some(AccessRights::told(attr));
        }
    }

    /// Notes that such an answer was not sent after all.
    pub(super) fn note_untold(&mut self, ino: Ino) {
        if let Some(inode) = self.inodes.get_mut(&ino) {
            inode.told = None;
        }
    }

    /// Counts one lookup of an inode that the next answer to the kernel contains.
    pub(super) fn count_lookup(&mut self, ino: Ino) {
        if let Some(inode) = self.inodes.get_mut(&ino) {
            inode.lookups += 1;
        }
    }

    /// Subtracts lookups that the kernel forgot.
    pub(super) fn forget(&mut self, ino: Ino, count: u64) {
        if let Some(inode) = self.inodes.get_mut(&ino) {
            inode.lookups = inode.lookups.saturating_sub(count);
        }
        self.sweep_inode(ino);
    }

    /// Binds a name to an inode and adds the name to the inode's places. The inode that was bound
    /// to it before is unbound.
    pub(super) fn bind(&mut self, spot: &DirEntryKey, ino: Ino) {
        let slot = self.slots.entry(spot.clone()).or_default();
        let old = slot.bound.replace(ino);
        if let Some(old) = old.filter(|old| *old != ino) {
            self.unplace(old, spot);
        }
        self.place(ino, spot);
    }

    /// Makes a name lead nowhere. Processes that have the file open keep its content.
    pub(super) fn unbind(&mut self, spot: &DirEntryKey) {
        let old = self.slots.get_mut(spot).and_then(|slot| slot.bound.take());
        if let Some(old) = old {
            self.unplace(old, spot);
        }
        self.sweep_slot(spot);
    }

    /// Unbinds every name that is bound to an inode. A live file stays at its name.
    pub(super) fn unbind_all(&mut self, ino: Ino) {
        let places = self.inodes.get(&ino).map_or(Vec::new(), |inode| inode.places.clone());
        for spot in places.iter().filter(|spot| self.bound(spot) == Some(ino)).collect::<Vec<_>>() {
            self.unbind(spot);
        }
    }

    /// Adds a name to an inode's places.
    pub(super) fn place(&mut self, ino: Ino, spot: &DirEntryKey) {
        if let Some(inode) = self.inodes.get_mut(&ino)
            && !inode.places.contains(spot)
        {
            inode.places.push(spot.clone());
        }
    }

    /// Removes a name from an inode's places, unless the inode's live file has that name.
    fn unplace(&mut self, ino: Ino, spot: &DirEntryKey) {
        let live = self.inodes.get(&ino).and_then(Inode::live);
        let stands = live.is_some_and(|id| self.lives(spot).contains(&id));
        if !stands {
            self.displace(ino, spot);
        }
        self.sweep_inode(ino);
    }

    fn displace(&mut self, ino: Ino, spot: &DirEntryKey) {
        if let Some(inode) = self.inodes.get_mut(&ino) {
            inode.places.retain(|place| place != spot);
            inode.last = Some(spot.clone());
        }
    }

    /// Puts a live file under a name.
    pub(super) fn add_live(&mut self, spot: &DirEntryKey, id: LiveId, ino: Ino) {
        let slot = self.slots.entry(spot.clone()).or_default();
        if !slot.lives.contains(&id) {
            slot.lives.push(id);
        }
        self.place(ino, spot);
    }

    /// Takes a live file off a name. The name is no longer a place of its inode, unless it is bound
    /// to the inode.
    pub(super) fn remove_live(&mut self, spot: &DirEntryKey, id: LiveId, ino: Ino) {
        if let Some(slot) = self.slots.get_mut(spot) {
            slot.lives.retain(|other| *other != id);
        }
        if self.bound(spot) != Some(ino) {
            self.displace(ino, spot);
        }
        self.sweep_slot(spot);
    }

    /// Moves everything that is known about a name to another name, which must lead nowhere.
    /// Returns the live files that moved along.
    pub(super) fn move_slot(&mut self, from: &DirEntryKey, to: &DirEntryKey) -> Vec<LiveId> {
        let Some(slot) = self.slots.remove(from) else { return Vec::new() };
        if let Some(ino) = slot.bound {
            self.replace_place(ino, from, to);
            let is_directory = |inode: &Inode| matches!(inode.node, InodeKind::Directory);
            self.directory_moves += u64::from(self.inodes.get(&ino).is_some_and(is_directory));
        }
        if let Some(inode) = slot.reserved.and_then(|ino| self.inodes.get_mut(&ino)) {
            inode.last = Some(to.clone());
        }
        let lives = slot.lives.clone();
        self.slots.insert(to.clone(), slot);
        lives
    }

    /// Makes the inode of a draft's name stale: the kernel may know its number, but every call on
    /// it gets `ESTALE`. The next lookup of the name finds another inode. `public` is the name by
    /// which the kernel knows the stale inode.
    pub(super) fn make_stale(&mut self, draft: &DirEntryKey, public: DirEntryKey) -> Staling {
        if !self.lives(draft).is_empty() {
            return Staling::InUse;
        }
        let Some(ino) = self.bound(draft) else { return Staling::Unknown };
        let Some(inode) = self.inodes.get_mut(&ino) else { return Staling::Unknown };
        let InodeKind::Entry(published) = &inode.node else { return Staling::InUse };
        let is_linked = published.entry.link.is_some() || inode.places.len() > 1;
        if is_linked || inode.opens > 0 || inode.seats > 0 {
            return Staling::InUse;
        }
        inode.node = InodeKind::Stale(published.clone());
        self.unbind(draft);
        if let Some(inode) = self.inodes.get_mut(&ino) {
            self.slots.entry(public.clone()).or_default().stale = Some(ino);
            inode.last = Some(public);
        }
        Staling::Stale(ino)
    }

    /// Gives a public name its stale inode back, if the content of that is published there now. So
    /// the kernel needs no retry, which the open of a writer may need to be led to its draft.
    pub(super) fn revive(&mut self, public: &DirEntryKey, put: Published) {
        let Some(ino) = self.slots.get_mut(public).and_then(|slot| slot.stale.take()) else {
            return;
        };
        if self.bound(public).is_none()
            && let Some(inode) = self.inodes.get_mut(&ino)
            && let InodeKind::Stale(old) = &inode.node
            && old.entry.kind == put.entry.kind
            && put.entry.link.is_none()
        {
            inode.node = InodeKind::Entry(put);
            self.bind(public, ino);
        }
        self.sweep_slot(public);
    }

    /// Replaces one place of an inode by another.
    pub(super) fn replace_place(&mut self, ino: Ino, from: &DirEntryKey, to: &DirEntryKey) {
        if let Some(inode) = self.inodes.get_mut(&ino) {
            inode.places.retain(|place| place != from && place != to);
            inode.places.push(to.clone());
        }
    }

    /// Returns the inode that is reserved at a name for threads that begin from this version, or
    /// reserves a new one. All threads that begin at the same time share it, so that they join one
    /// file. A reserved inode whose rights differ is not shared, because it must keep the rights
    /// that the kernel has checked.
    pub(super) fn reserve(&mut self, spot: &DirEntryKey, told: Published) -> Ino {
        let known = self.slots.get(spot).and_then(|slot| slot.reserved);
        let is_it = |ino: &Ino| {
            let node = self.inodes.get(ino).map(|inode| &inode.node);
            matches!(node, Some(InodeKind::Reserved(known)) if known.has_rights_of(&told))
        };
        if let Some(ino) = known.filter(is_it) {
            return ino;
        }
        let ino = self.reserve_alone(spot, InodeKind::Reserved(told));
        self.slots.entry(spot.clone()).or_default().reserved = Some(ino);
        ino
    }

    /// Makes an inode that only one thread gets in an answer.
    pub(super) fn reserve_alone(&mut self, spot: &DirEntryKey, node: InodeKind) -> Ino {
        let ino = self.add_fresh(node);
        if let Some(inode) = self.inodes.get_mut(&ino) {
            inode.last = Some(spot.clone());
        }
        ino
    }

    /// Ends the reservation of an inode, which has become a file.
    pub(super) fn end_reservation(&mut self, spot: &DirEntryKey, ino: Ino) {
        if let Some(slot) = self.slots.get_mut(spot)
            && slot.reserved == Some(ino)
        {
            slot.reserved = None;
        }
    }

    /// Forgets a slot that has no information.
    fn sweep_slot(&mut self, spot: &DirEntryKey) {
        if self.slots.get(spot).is_some_and(NameState::is_empty) {
            self.slots.remove(spot);
        }
    }

    /// Forgets an inode that no handle, no live file and no lookup of the kernel needs.
    pub(super) fn sweep_inode(&mut self, ino: Ino) {
        let Some(inode) = self.inodes.get(&ino) else { return };
        let in_use =
            inode.lookups > 0 || inode.opens > 0 || inode.seats > 0 || inode.live().is_some();
        if in_use || ino == Ino::ROOT {
            return;
        }
        let Some(inode) = self.inodes.remove(&ino) else { return };
        if let InodeKind::Entry(published) = &inode.node
            && let Some(group) = published.entry.link
            && self.groups.get(&group) == Some(&ino)
        {
            self.groups.remove(&group);
        }
        for spot in inode.places.into_iter().chain(inode.last) {
            if let Entry::Occupied(mut known) = self.slots.entry(spot) {
                let slot = known.get_mut();
                slot.bound = slot.bound.filter(|bound| *bound != ino);
                slot.reserved = slot.reserved.filter(|reserved| *reserved != ino);
                slot.stale = slot.stale.filter(|stale| *stale != ino);
                if slot.is_empty() {
                    known.remove();
                }
            }
        }
    }
}
