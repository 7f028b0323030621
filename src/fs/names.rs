//! Names: making and removing everything but regular files that are being written.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::time::Duration;

use hearthfs_mount::{Answer, Caller, Errno, Found, Ino, Reply};

use super::attrs::special_type;
use super::filesystem::Filesystem;
use super::handle::{FORMAT_FILE, FORMAT_MASK};
use super::inode::{Node, Spot};
use super::lookup::{Lead, Seen, version_inode};
use super::state::State;
use crate::digest::Digest;
use crate::error::Error;
use crate::name::{TreePath, check_name};
use crate::namespace::{Entry, Kind, Op};
use crate::stamp::Stamp;
use crate::sync::RECORD_CHANGES_MAX;

/// The longest target of a symbolic link (`PATH_MAX` less the end).
const TARGET_BYTES_MAX: usize = 4095;
/// The most entries that are cleared away at once: what is above is purged in time.
const CLEARED_MAX: usize = RECORD_CHANGES_MAX - 2;

impl Filesystem {
    /// Checks a name and the right to change anything.
    pub(super) fn spot(&self, parent: Ino, name: &OsStr) -> Reply<Spot> {
        check_name(name.as_bytes()).map_err(super::errno::of_path)?;
        if self.0.rules.read_only {
            return Err(Errno::EROFS);
        }
        self.0.rooms.freshness.note_activity();
        Ok((parent, name.as_bytes().into()))
    }

    /// Publishes changes; the caller holds the state's lock, so that what it checked still holds.
    pub(super) fn commit(&self, ops: Vec<(TreePath, Op)>) -> Reply<Vec<Stamp>> {
        self.publish_keeping(ops).map_err(|error| super::errno::promised(&error))
    }

    /// Publishes changes, and keeps the directories that they empty.
    pub(super) fn publish_keeping(
        &self,
        mut ops: Vec<(TreePath, Op)>,
    ) -> Result<Vec<Stamp>, Error> {
        let stay = self.directories_to_keep(&ops);
        ops.extend(stay);
        self.0.rooms.ledger.publish(ops)
    }

    /// Returns the changes that keep the directories from which something is removed. One that another node
    /// has removed meanwhile lives on only through what lies in it; to the program here it is a directory
    /// that it has emptied, and that stays until somebody removes it.
    fn directories_to_keep(&self, ops: &[(TreePath, Op)]) -> Vec<(TreePath, Op)> {
        let removed = ops.iter().filter(|(_, op)| *op == Op::Remove);
        let mut above: Vec<TreePath> = removed.filter_map(|(path, _)| path.parent()).collect();
        above.sort();
        above.dedup();
        self.0.rooms.ledger.read(|fold| {
            above.retain(|dir| {
                !dir.is_root() && fold.visible(dir).is_none() && fold.is_directory(dir)
            });
        });
        above.retain(|dir| ops.iter().all(|(path, _)| path != dir));
        let entry = Entry::directory(
            0o755,
            self.0.rules.root.attrs.uid,
            self.0.rules.root.attrs.gid,
            self.now(),
        );
        above.into_iter().map(|dir| (dir, Op::Put(entry.clone()))).collect()
    }

    /// Puts an entry under a name that must lead nowhere, and returns its inode.
    pub(super) fn put_new(&self, state: &mut State, spot: &Spot, entry: Entry) -> Reply<Ino> {
        let path = state.path_of(spot).ok_or_else(|| state.why_no_path(spot))?;
        if self.is_taken(state, spot, &path) {
            return Err(Errno::EEXIST);
        }
        let mut ops = vec![(path.clone(), Op::Put(entry.clone()))];
        ops.extend(self.ops_to_clear(&path));
        let stamps = self.commit(ops)?;
        let stamp = stamps.first().copied();
        let changed_ms = stamp.map_or(0, |stamp| stamp.ms);
        let seen = Seen { entry, stamp, changed_ms, left: Duration::MAX };
        Ok(version_inode(state, spot, &path, seen))
    }

    fn make(&self, spot: &Spot, entry: Entry) -> Reply<Found> {
        // One lock for both: what nobody was told of yet is forgotten when its name goes.
        let mut state = self.0.state.lock();
        let ino = self.put_new(&mut state, spot, entry)?;
        self.found(&mut state, Lead::lasting(ino), Some(spot))
    }

    /// Reports whether a name leads anywhere, for anybody.
    pub(super) fn is_taken(&self, state: &State, spot: &Spot, path: &TreePath) -> bool {
        self.seen(path).is_some() || state.private_generations(spot).next().is_some()
    }

    pub(super) fn make_node(
        &self,
        caller: &Caller,
        parent: Ino,
        name: &OsStr,
        mode: u32,
        rdev: u32,
    ) -> Reply<Found> {
        let spot = self.spot(parent, name)?;
        let attrs = self.attrs_for_new(parent, caller, mode)?;
        let kind = match mode & FORMAT_MASK {
            0 | FORMAT_FILE => Kind::File { digest: Digest::empty(), size: 0 },
            format if special_type(format).is_some() => Kind::Special { format, rdev },
            _ => return Err(Errno::EINVAL),
        };
        self.make(&spot, Entry { kind, attrs, link: None })
    }

    pub(super) fn make_directory(
        &self,
        caller: &Caller,
        parent: Ino,
        name: &OsStr,
        mode: u32,
    ) -> Reply<Found> {
        let spot = self.spot(parent, name)?;
        let mut attrs = self.attrs_for_new(parent, caller, mode)?;
        let inherited = {
            let state = self.0.state.lock();
            self.attr_of(&state, parent)?.0.perm & 0o2000
        };
        attrs.mode |= u32::from(inherited);
        self.make(&spot, Entry { kind: Kind::Directory, attrs, link: None })
    }

    pub(super) fn make_symlink(
        &self,
        caller: &Caller,
        parent: Ino,
        name: &OsStr,
        target: &[u8],
    ) -> Reply<Found> {
        if target.len() > TARGET_BYTES_MAX {
            return Err(Errno::ENAMETOOLONG);
        }
        let spot = self.spot(parent, name)?;
        let attrs = self.attrs_for_new(parent, caller, 0o777)?;
        let kind = Kind::Symlink { target: target.into() };
        self.make(&spot, Entry { kind, attrs, link: None })
    }

    pub(super) fn read_link(&self, ino: Ino) -> Reply<Vec<u8>> {
        let state = self.0.state.lock();
        match state.inodes.get(&ino).map(|inode| &inode.node) {
            Some(Node::Version { entry, .. }) => match &entry.kind {
                Kind::Symlink { target } => Ok(target.to_vec()),
                _ => Err(Errno::EINVAL),
            },
            Some(_) => Err(Errno::EINVAL),
            None => Err(Errno::ESTALE),
        }
    }

    pub(super) fn unlink_name(&self, parent: Ino, name: &OsStr) -> Reply<()> {
        let spot = self.spot(parent, name)?;
        let mut state = self.0.state.lock();
        let path = state.path_of(&spot).ok_or_else(|| state.why_no_path(&spot))?;
        let seen = self.seen(&path);
        let private = state.private_generations(&spot).next().is_some();
        match &seen {
            Some(seen) if seen.entry.is_directory() => return Err(Errno::EISDIR),
            None if !private => return Err(Errno::ENOENT),
            _ => {}
        }
        if let Some(seen) = &seen {
            let mut ops = vec![(path.clone(), Op::Remove)];
            ops.extend(self.ops_on_further_names(&path, &seen.entry));
            self.commit(ops)?;
        } else if let Some(dir) = path.parent() {
            self.0.rooms.ledger.touch_directory(&dir);
        }
        self.keep_linked(&mut state, &spot);
        state.retire(&spot);
        state.locks.unlink(&spot);
        Ok(())
    }

    /// Lets what is being written under a name that has just gone go on under another name of the file.
    pub(super) fn keep_linked(&self, state: &mut State, spot: &Spot) {
        for id in state.private_generations(spot).collect::<Vec<_>>() {
            let group = state.generations.get(&id).and_then(|generation| generation.link);
            let names: Vec<TreePath> = self.0.rooms.ledger.read(|fold| {
                group.map_or(Vec::new(), |group| fold.links(group).cloned().collect())
            });
            let mut spots = names.iter().filter_map(|name| state.spot_of(name));
            if let Some(other) = spots.find(|other| other != spot) {
                state.move_generation(id, spot, &other);
            }
        }
    }

    /// Returns the changes by which the further names of a file show that it lost one: POSIX moves its
    /// `ctime`.
    pub(super) fn ops_on_further_names(
        &self,
        path: &TreePath,
        entry: &Entry,
    ) -> Vec<(TreePath, Op)> {
        let Some(group) = entry.link else { return Vec::new() };
        self.0.rooms.ledger.read(|fold| {
            let names = fold.links(group).filter(|name| *name != path);
            names
                .filter_map(|name| {
                    let register = fold.register(name)?;
                    let attrs = register.entry?.attrs;
                    Some((name.clone(), Op::Attrs { of: register.stamp, attrs }))
                })
                .collect()
        })
    }

    pub(super) fn remove_directory(&self, parent: Ino, name: &OsStr) -> Reply<()> {
        let spot = self.spot(parent, name)?;
        let mut state = self.0.state.lock();
        let path = state.path_of(&spot).ok_or_else(|| state.why_no_path(&spot))?;
        let seen = self.seen(&path);
        match seen {
            None if state.private_generations(&spot).next().is_some() => Err(Errno::ENOTDIR),
            None => Err(Errno::ENOENT),
            Some(seen) if !seen.entry.is_directory() => Err(Errno::ENOTDIR),
            Some(_) => {
                let ops = self.ops_to_remove_directory(&state, &spot, &path)?;
                self.commit(ops)?;
                state.retire(&spot);
                Ok(())
            }
        }
    }

    /// Returns the changes that remove a directory, if it lists nothing. Entries that are hidden because
    /// their bytes are lost, or past their age, go with it.
    pub(super) fn ops_to_remove_directory(
        &self,
        state: &State,
        spot: &Spot,
        path: &TreePath,
    ) -> Reply<Vec<(TreePath, Op)>> {
        let dir = state.slots.get(spot).and_then(|slot| slot.published);
        if dir.is_some_and(|dir| state.has_private_names(dir)) {
            return Err(Errno::ENOTEMPTY);
        }
        let ledger = &self.0.rooms.ledger;
        let shown = ledger.read(|fold| {
            fold.below(path).any(|(path, register)| {
                let changed_ms = Some(register.changed_ms());
                let entry = register.entry.as_ref();
                entry.is_some_and(|entry| ledger.shown(fold, &path, entry, changed_ms).is_some())
            })
        });
        if shown {
            return Err(Errno::ENOTEMPTY);
        }
        let mut ops = self.ops_to_clear(path);
        ops.push((path.clone(), Op::Remove));
        Ok(ops)
    }

    /// Returns the changes that remove what is left below a path where nothing is shown, so that it cannot
    /// come back in what is made there now.
    pub(super) fn ops_to_clear(&self, path: &TreePath) -> Vec<(TreePath, Op)> {
        self.0.rooms.ledger.read(|fold| {
            let left = fold.below(path).filter(|(_, register)| register.entry.is_some());
            left.map(|(path, _)| (path.clone(), Op::Remove)).take(CLEARED_MAX).collect()
        })
    }

    pub(super) fn link_name(&self, ino: Ino, parent: Ino, name: &OsStr) -> Answer<Found> {
        let done = self.spot(parent, name).and_then(|spot| {
            let mut state = self.0.state.lock();
            let ino = state.owner(ino);
            self.link_into(&mut state, ino, &spot)?;
            self.found(&mut state, Lead::lasting(ino), Some(&spot))
        });
        done.into()
    }

    fn link_into(&self, state: &mut State, ino: Ino, spot: &Spot) -> Reply<()> {
        let path = state.path_of(spot).ok_or_else(|| state.why_no_path(spot))?;
        if self.is_taken(state, spot, &path) {
            return Err(Errno::EEXIST);
        }
        let inode = state.inodes.get(&ino).ok_or(Errno::ESTALE)?;
        let old = match &inode.node {
            Node::Directory => return Err(Errno::EPERM),
            Node::Gone(_) | Node::Promised(_) => return Err(Errno::ENOENT),
            Node::Version { .. } => inode.place().cloned().ok_or(Errno::ENOENT)?,
            // Its bytes are nobody's yet, so a second name has nothing to lead to.
            Node::Generation(id) => match state.generations.get(id) {
                Some(generation) if generation.published.is_some() => {
                    inode.place().cloned().ok_or(Errno::ENOENT)?
                }
                _ => return Err(Errno::EPERM),
            },
        };
        let old_path = state.path_of(&old).ok_or(Errno::ENOENT)?;
        let seen = self.seen(&old_path).ok_or(Errno::ENOENT)?;
        let mut entry = seen.entry;
        let mut ops = Vec::new();
        if entry.link.is_none() {
            entry.link = Some(self.0.rooms.ledger.next_stamp());
            ops.push((old_path, Op::Put(entry.clone())));
        }
        ops.push((path, Op::Put(entry.clone())));
        let stamps = self.commit(ops)?;
        let changed = stamps.last().map_or(0, |stamp| stamp.ms);
        let node = state.inodes.get_mut(&ino).map(|inode| &mut inode.node);
        match node {
            Some(Node::Version { entry: kept, changed_ms }) => {
                kept.link = entry.link;
                *changed_ms = changed;
            }
            Some(Node::Generation(id)) => {
                let id = *id;
                if let Some(generation) = state.generations.get_mut(&id) {
                    generation.link = entry.link;
                    if let Some(published) = &mut generation.published {
                        published.entry.link = entry.link;
                    }
                }
            }
            _ => {}
        }
        if let Some(group) = entry.link {
            state.groups.insert(group, ino);
        }
        state.bind(spot, ino);
        state.locks.link(&old, spot);
        Ok(())
    }
}

impl State {
    /// Takes a name away from everything that it led to.
    pub(super) fn retire(&mut self, spot: &Spot) {
        // A version that was published and is still open for writing goes with its name.
        let open = self.slots.get(spot).and_then(|slot| slot.published);
        if let Some(ino) = open
            && let Some(Node::Generation(id)) = self.inodes.get(&ino).map(|inode| &inode.node)
            && let Some(generation) = self.generations.get_mut(id)
            && generation.place.as_ref() == Some(spot)
        {
            // Another hard link may go on being its place.
            let inode = self.inodes.get(&ino);
            generation.place =
                inode.and_then(|inode| inode.places.iter().find(|place| *place != spot)).cloned();
            generation.hold = None;
        }
        self.unbind(spot);
        self.detach_generations(spot);
    }

    /// Reports whether something unpublished stands in a directory.
    pub(super) fn has_private_names(&self, dir: Ino) -> bool {
        self.generations.values().any(|generation| {
            generation.published.is_none()
                && generation.place.as_ref().is_some_and(|(parent, _)| *parent == dir)
        })
    }
}
