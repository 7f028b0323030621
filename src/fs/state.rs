//! The state under the room's one lock: inodes, slots, generations, handles.

use std::collections::HashMap;
use std::sync::Arc;

use hearthfs_mount::{Errno, Handle, Ino};
use parking_lot::MutexGuard;

use super::detour::Detours;
use super::generation::{Generation, Stage};
use super::handle::{OpenDir, OpenFile};
use super::inode::{GenId, Inode, Node, Source, Spot};
use super::locks::Locks;
use super::slot::Slot;
use super::who::Who;
use crate::name::TreePath;
use crate::namespace::Entry;
use crate::stamp::Stamp;

/// Numbers from here up are for files that were born on this node while the kernel watched.
const FIRST_GENERATION_INO: u64 = 1 << 63;

/// Everything the kernel holds on to.
#[derive(Debug)]
pub(super) struct State {
    pub(super) inodes: HashMap<Ino, Inode>,
    pub(super) slots: HashMap<Spot, Slot>,
    pub(super) generations: HashMap<GenId, Generation>,
    pub(super) files: HashMap<Handle, OpenFile>,
    pub(super) dirs: HashMap<Handle, OpenDir>,
    /// The inode of each group of hard links that the kernel knows.
    pub(super) groups: HashMap<Stamp, Ino>,
    /// The generations of each such group, oldest first.
    pub(super) linked: HashMap<Stamp, Vec<GenId>>,
    /// Who was sent back to look again.
    pub(super) detours: Detours,
    /// Who has locked what by `flock`.
    pub(super) locks: Locks,
    /// Files that nobody needs any more: see [`close_files`].
    let_go: Vec<Arc<Source>>,
    next_ino: u64,
    next_handle: u64,
}

impl State {
    pub(super) fn new() -> Self {
        let mut inodes = HashMap::new();
        inodes.insert(Ino::ROOT, Inode { lookups: 1, ..Inode::new(Node::Directory, None) });
        Self {
            inodes,
            slots: HashMap::new(),
            generations: HashMap::new(),
            files: HashMap::new(),
            dirs: HashMap::new(),
            groups: HashMap::new(),
            linked: HashMap::new(),
            detours: Detours::default(),
            locks: Locks::default(),
            let_go: Vec::new(),
            next_ino: FIRST_GENERATION_INO,
            next_handle: 1,
        }
    }

    /// Lets go of a file, to be closed by the next [`close_files`].
    pub(super) fn let_go(&mut self, source: Arc<Source>) {
        self.let_go.push(source);
    }

    pub(super) fn fresh_ino(&mut self) -> Ino {
        self.next_ino += 1;
        Ino(self.next_ino)
    }

    pub(super) fn fresh_handle(&mut self) -> Handle {
        self.next_handle += 1;
        Handle(self.next_handle)
    }

    pub(super) fn fresh_generation(&mut self) -> GenId {
        self.next_handle += 1;
        GenId(self.next_handle)
    }

    /// Returns the path of a directory's inode; `None` when it, or a directory above it, was removed.
    pub(super) fn directory_path(&self, ino: Ino) -> Option<TreePath> {
        let mut names = Vec::new();
        let mut at = ino;
        while at != Ino::ROOT {
            let (parent, name) = self.inodes.get(&at)?.place()?;
            names.push(name);
            at = *parent;
        }
        names.iter().rev().try_fold(TreePath::root(), |dir, name| dir.join(name).ok())
    }

    /// Returns the path of a name.
    pub(super) fn path_of(&self, spot: &Spot) -> Option<TreePath> {
        self.directory_path(spot.0)?.join(&spot.1).ok()
    }

    /// Says why a name has no path.
    pub(super) fn why_no_path(&self, spot: &Spot) -> Errno {
        match self.directory_path(spot.0) {
            None => Errno::ENOENT,
            Some(dir) => dir.join(&spot.1).err().map_or(Errno::ENOENT, super::errno::of_path),
        }
    }

    /// Returns the name under which the kernel knows a path, if it knows every directory on the way.
    pub(super) fn spot_of(&self, path: &TreePath) -> Option<Spot> {
        let (dir, name) = path.split()?;
        let mut at = Ino::ROOT;
        for part in dir.components() {
            at = self.slots.get(&(at, part.into()))?.published?;
        }
        Some((at, name.into()))
    }

    /// Returns what an inode is, or would be, as an entry; `None` for a directory.
    pub(super) fn entry_of(&self, ino: Ino) -> Option<Entry> {
        match &self.inodes.get(&ino)?.node {
            Node::Directory => None,
            Node::Version { entry, .. } | Node::Gone(entry) | Node::Promised(entry) => {
                Some(entry.clone())
            }
            Node::Generation(id) => {
                let generation = self.generations.get(id)?;
                let published = generation.published.as_ref();
                Some(published.map_or_else(|| generation.as_empty(), |p| p.entry.clone()))
            }
        }
    }

    /// Reports whether an inode stands ready for who was told of it to write.
    pub(super) fn is_promised(&self, ino: Ino) -> bool {
        self.inodes.get(&ino).is_some_and(|inode| matches!(inode.node, Node::Promised(_)))
    }

    /// Counts one lookup of an inode that the kernel is about to be told of.
    pub(super) fn count_lookup(&mut self, ino: Ino) {
        if let Some(inode) = self.inodes.get_mut(&ino) {
            inode.lookups += 1;
        }
    }

    /// Makes a name lead to an inode, and the inode know the name.
    pub(super) fn bind(&mut self, spot: &Spot, ino: Ino) {
        let slot = self.slots.entry(spot.clone()).or_default();
        let old = slot.published.replace(ino);
        if let Some(old) = old.filter(|old| *old != ino) {
            self.unplace(old, spot);
        }
        if let Some(inode) = self.inodes.get_mut(&ino)
            && !inode.places.contains(spot)
        {
            inode.places.push(spot.clone());
        }
    }

    /// Lets who writes what a name has led to go on in private, since another version takes its place: it
    /// still goes where the name goes. Who has an empty file open has written nothing yet.
    pub(super) fn displace(&mut self, spot: &Spot, by: Ino) {
        let bound = self.slots.get(spot).and_then(|slot| slot.published).filter(|ino| *ino != by);
        let Some(Node::Generation(id)) = bound.and_then(|i| self.inodes.get(&i)).map(|i| &i.node)
        else {
            return;
        };
        let id = *id;
        let Some(generation) = self.generations.get_mut(&id) else { return };
        if generation.place.as_ref() != Some(spot) {
            return;
        }
        generation.become_private();
        if let Some(slot) = self.slots.get_mut(spot) {
            slot.generations.push(id);
        }
    }

    /// Makes a name lead nowhere; what it led to keeps its content for who has it open.
    pub(super) fn unbind(&mut self, spot: &Spot) {
        if let Some(slot) = self.slots.get_mut(spot)
            && let Some(old) = slot.published.take()
        {
            self.unplace(old, spot);
        }
        self.sweep_slot(spot);
    }

    fn unplace(&mut self, ino: Ino, spot: &Spot) {
        if let Some(inode) = self.inodes.get_mut(&ino) {
            // A generation that is still private under this name stays in its place.
            let stays = matches!(inode.node, Node::Generation(id)
                if self.generations.get(&id).is_some_and(|g| g.place.as_ref() == Some(spot)
                    && g.published.is_none()));
            if !stays {
                inode.places.retain(|place| place != spot);
                inode.last = Some(spot.clone());
            }
        }
        self.sweep_inode(ino);
    }

    /// Takes every generation off a name: what they hold will never be published.
    pub(super) fn detach_generations(&mut self, spot: &Spot) {
        let ids = match self.slots.get_mut(spot) {
            Some(slot) => std::mem::take(&mut slot.generations),
            None => return,
        };
        for id in ids {
            if let Some(generation) = self.generations.get_mut(&id) {
                generation.place = None;
                generation.hold = None;
                // Whoever waits for it looks again and finds the name gone.
                generation.moved.send_modify(|_| {});
                let ino = generation.ino;
                if let Some(inode) = self.inodes.get_mut(&ino) {
                    inode.places.retain(|place| place != spot);
                    inode.last = Some(spot.clone());
                }
            }
        }
        self.sweep_slot(spot);
    }

    /// Moves everything known of a name to another, which must lead nowhere.
    pub(super) fn move_slot(&mut self, from: &Spot, to: &Spot) {
        let Some(slot) = self.slots.remove(from) else { return };
        if let Some(ino) = slot.published
            && let Some(inode) = self.inodes.get_mut(&ino)
        {
            inode.places.retain(|place| place != from);
            inode.places.push(to.clone());
            // A published file that is open for writing goes along: what is written comes under its new name.
            if let Node::Generation(id) = inode.node
                && let Some(generation) = self.generations.get_mut(&id)
                && generation.place.as_ref() == Some(from)
            {
                generation.place = Some(to.clone());
            }
        }
        for id in &slot.generations {
            if let Some(generation) = self.generations.get_mut(id) {
                generation.place = Some(to.clone());
                let ino = generation.ino;
                // A published version that another has displaced has no place.
                if let Some(inode) = self.inodes.get_mut(&ino)
                    && inode.places.contains(from)
                {
                    inode.places.retain(|place| place != from && place != to);
                    inode.places.push(to.clone());
                }
            }
        }
        self.slots.insert(to.clone(), slot);
    }

    /// Forgets a slot that says nothing.
    pub(super) fn sweep_slot(&mut self, spot: &Spot) {
        if self.slots.get(spot).is_some_and(Slot::is_empty) {
            self.slots.remove(spot);
        }
    }

    /// Forgets an inode that neither the kernel nor a handle nor a generation needs.
    pub(super) fn sweep_inode(&mut self, ino: Ino) {
        let Some(inode) = self.inodes.get(&ino) else { return };
        let in_use = inode.lookups > 0
            || inode.opens > 0
            || ino == Ino::ROOT
            || matches!(inode.node, Node::Generation(_));
        if in_use {
            return;
        }
        let Some(inode) = self.inodes.remove(&ino) else { return };
        if let Node::Version { entry, .. } = &inode.node
            && let Some(group) = entry.link
            && self.groups.get(&group) == Some(&ino)
        {
            self.groups.remove(&group);
        }
        for spot in inode.places {
            if let Some(slot) = self.slots.get_mut(&spot)
                && slot.published == Some(ino)
            {
                slot.published = None;
            }
            self.sweep_slot(&spot);
        }
    }

    /// Returns the generations of a name that may still become its entry, oldest first.
    pub(super) fn private_generations(&self, spot: &Spot) -> impl Iterator<Item = GenId> {
        let ids = self.slots.get(spot).map_or(&[][..], |slot| &slot.generations);
        ids.iter().copied().filter(|id| self.is_private(*id))
    }

    /// Returns the private generations of a file with hard links, oldest first: it is written under one of
    /// its names, whichever it was opened by.
    pub(super) fn linked(&self, entry: &Entry) -> impl Iterator<Item = GenId> {
        let ids = entry.link.and_then(|group| self.linked.get(&group));
        ids.into_iter().flatten().copied().filter(|id| self.is_private(*id))
    }

    /// Returns the newest of these that `who` takes part in.
    pub(super) fn own_linked(&self, entry: &Entry, who: Who) -> Option<GenId> {
        self.linked(entry).filter(|id| self.takes_part(*id, who)).last()
    }

    /// Returns the name under which a version of an inode is written: of several, one that no other file is
    /// about to take.
    pub(super) fn place_to_write(&self, ino: Ino) -> Option<Spot> {
        let inode = self.inodes.get(&ino)?;
        let link = match &inode.node {
            Node::Version { entry, .. } => entry.link,
            _ => None,
        };
        let is_free = |spot: &&Spot| {
            self.private_generations(spot)
                .all(|id| self.generations.get(&id).is_some_and(|g| g.link == link))
        };
        inode.places.iter().find(is_free).or(inode.place()).cloned()
    }

    /// Moves a private generation from one name of its file to another.
    pub(super) fn move_generation(&mut self, id: GenId, from: &Spot, to: &Spot) {
        let Some(generation) = self.generations.get_mut(&id) else { return };
        generation.place = Some(to.clone());
        if let Some(inode) = self.inodes.get_mut(&generation.ino) {
            inode.places.retain(|place| place != from && place != to);
            inode.places.push(to.clone());
        }
        if let Some(slot) = self.slots.get_mut(from) {
            slot.generations.retain(|other| *other != id);
        }
        self.slots.entry(to.clone()).or_default().generations.push(id);
    }

    /// Reports whether the file of an inode will never be an entry.
    pub(super) fn is_lost(&self, ino: Ino) -> bool {
        match self.inodes.get(&ino).map(|inode| &inode.node) {
            Some(Node::Gone(_)) => true,
            Some(Node::Generation(id)) => self.generations.get(id).is_none_or(Generation::is_lost),
            _ => false,
        }
    }

    /// Returns what stands for the lost file of an inode: the guest there that became the file, or else the
    /// newest.
    pub(super) fn heir(&self, ino: Ino) -> Option<GenId> {
        let guests = self.guests(ino);
        guests.max_by_key(|(id, generation)| (!generation.guest, *id)).map(|(id, _)| id)
    }

    /// Returns the inode whose file is meant by an inode: it itself, unless its file is lost and there are
    /// guests.
    pub(super) fn owner(&self, ino: Ino) -> Ino {
        let heir = if self.is_lost(ino) { self.heir(ino) } else { None };
        heir.and_then(|id| self.generations.get(&id)).map_or(ino, |generation| generation.ino)
    }

    fn guests(&self, ino: Ino) -> impl Iterator<Item = (GenId, &Generation)> {
        let all = self.generations.iter().map(|(id, generation)| (*id, generation));
        all.filter(move |(_, g)| g.guest_on == Some(ino) && !g.is_lost())
    }

    /// Makes the oldest guest of a file that was just made, and that will never be an entry, the file: it is
    /// there for whoever has it open and for who comes now, on the same inode.
    pub(super) fn find_heir(&mut self, lost: GenId) {
        let Some(generation) = self.generations.get(&lost) else { return };
        if !generation.fresh || generation.guest || generation.published.is_some() {
            return;
        }
        let heir = self.guests(generation.home()).filter(|(id, _)| *id != lost);
        let heir = heir.min_by_key(|(id, _)| *id).map(|(id, _)| id);
        if let Some(heir) = heir.and_then(|id| self.generations.get_mut(&id)) {
            heir.guest = false;
        }
    }

    fn is_private(&self, id: GenId) -> bool {
        let generation = self.generations.get(&id);
        generation.is_some_and(|g| g.stage == Stage::Private && g.place.is_some())
    }

    /// Returns the newest private generation of a name that `who` takes part in.
    pub(super) fn own_generation(&self, spot: &Spot, who: Who) -> Option<GenId> {
        self.private_generations(spot).filter(|id| self.takes_part(*id, who)).last()
    }

    fn takes_part(&self, id: GenId, who: Who) -> bool {
        let generation = self.generations.get(&id).filter(|_| who != Who::Unseen);
        generation.is_some_and(|g| g.members.contains(&who) || g.invited.contains(&who))
    }
}

/// Ends the use of the state and closes the files that were let go. Closing tells the kernel that a backing
/// file is done with, which takes as long as all else that a release does: nobody shall wait for the lock
/// meanwhile.
pub(super) fn close_files(mut state: MutexGuard<'_, State>) {
    let gone = std::mem::take(&mut state.let_go);
    drop(state);
    drop(gone);
}
