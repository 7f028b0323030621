//! Making names: directories, links, devices, and files without a writer.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::time::Duration;

use hearthfs_mount::{Answer, Caller, Errno, Found, Ino, Reply};

use super::attrs::special_type;
use super::check::Examined;
use super::filesystem::Filesystem;
use super::handles::{FORMAT_FILE, FORMAT_MASK};
use super::inode::{DirEntryKey, InodeKind, Published};
use super::lookup::{Lead, is_hidden};
use super::retry::{RetryWish, Try};
use super::rights::MAY_CHANGE_NAMES;
use super::seen::Seen;
use super::state::{State, entry_inode};
use super::units::{PublishedBy, Purpose};
use crate::digest::Digest;
use crate::error::Error;
use crate::name::{TreePath, check_name};
use crate::namespace::{Entry, EntryKind, Op};
use crate::stamp::Stamp;
use crate::sync::{RECORD_CHANGES_MAX, Turn, Written};

/// The longest target of a symbolic link (`PATH_MAX` less the end).
const TARGET_BYTES_MAX: usize = 4095;
/// The most entries that are cleared away at once. Entries beyond that are purged in time.
const CLEARED_MAX: usize = RECORD_CHANGES_MAX - 2;

impl Filesystem {
    /// Checks a name and the permission to change anything.
    pub(super) fn spot(&self, parent: Ino, name: &OsStr) -> Reply<DirEntryKey> {
        check_name(name.as_bytes()).map_err(super::errno::of_path)?;
        if is_hidden(parent, name.as_bytes()) {
            return Err(Errno::EPERM);
        }
        if self.0.rules.read_only {
            return Err(Errno::EROFS);
        }
        self.0.rooms.freshness.note_activity();
        Ok((parent, name.as_bytes().into()))
    }

    /// Writes changes to the journal, together with the changes that keep the directories they
    /// empty. Must be called without the lock of the state. The caller applies the result under
    /// that lock.
    pub(super) fn write_keeping<'a>(
        &self,
        turn: Turn<'a>,
        mut ops: Vec<(TreePath, Op)>,
    ) -> Result<Written<'a>, Error> {
        let stay = self.directories_to_keep(&ops);
        ops.extend(stay);
        turn.write(ops)
    }

    /// Returns the changes that keep the directories from which something is removed. A directory
    /// that another node has removed meanwhile lives on only while it has content. The program here
    /// has emptied a directory, and that has to stay until it is removed.
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
        let root = &self.0.rules.root.attrs;
        let entry = Entry::directory(0o755, root.uid, root.gid, self.now());
        above.into_iter().map(|dir| (dir, Op::Put(entry.clone()))).collect()
    }

    /// Returns the changes that remove hidden entries below a path where nothing is shown, so that
    /// they cannot come back in a directory that is made there now.
    pub(super) fn ops_to_clear(&self, path: &TreePath) -> Vec<(TreePath, Op)> {
        self.0.rooms.ledger.read(|fold| {
            let left = fold.below(path).filter(|(_, register)| register.entry.is_some());
            left.map(|(path, _)| (path.clone(), Op::Remove)).take(CLEARED_MAX).collect()
        })
    }

    /// Puts an entry under a name that must lead nowhere. `then` gets the entry's inode under the
    /// same lock, because an inode that is in no answer yet is forgotten when its name goes.
    fn put_then<R>(
        &self,
        spot: &DirEntryKey,
        entry: Entry,
        then: impl FnOnce(&mut State, Ino) -> R,
    ) -> Reply<R> {
        let turn = self.0.rooms.ledger.begin();
        let (path, ops) = {
            let state = self.0.state.lock();
            let path = state.names.path_of(spot).ok_or_else(|| state.names.why_no_path(spot))?;
            if self.is_taken(&state, spot, &path) {
                return Err(Errno::EEXIST);
            }
            let mut ops = vec![(path.clone(), Op::Put(entry.clone()))];
            ops.extend(self.ops_to_clear(&path));
            (path, ops)
        };
        let written = self.write_keeping(turn, ops).map_err(|e| super::errno::promised(&e))?;
        let mut state = self.0.state.lock();
        let stamp: Option<Stamp> = written.apply().first().copied();
        let changed_ms = stamp.map_or(0, |stamp| stamp.ms);
        let seen = Seen { entry, stamp, changed_ms, left: Duration::MAX };
        state.take_name(spot);
        let ino = entry_inode(&mut state, spot, &path, seen);
        Ok(then(&mut state, ino))
    }

    pub(super) fn put_new(&self, spot: &DirEntryKey, entry: Entry) -> Reply<Ino> {
        self.put_then(spot, entry, |_, ino| ino)
    }

    fn make_entry(&self, spot: &DirEntryKey, entry: Entry) -> Reply<Found> {
        self.put_then(spot, entry, |state, ino| self.found(state, Lead::lasting(ino), Some(spot)))?
    }

    /// Reports whether a name leads anywhere, for any process.
    pub(super) fn is_taken(&self, state: &State, spot: &DirEntryKey, path: &TreePath) -> bool {
        self.seen(path).is_some() || state.has_private(spot)
    }

    pub(super) fn make_node(
        &self,
        caller: &Caller,
        parent: Ino,
        name: &OsStr,
        mode: u32,
        rdev: u32,
    ) -> Reply<Found> {
        let spot = self.routed(caller, self.spot(parent, name)?, Purpose::Make)?;
        let attrs = self.attrs_for_new(&self.0.state.lock(), parent, caller, mode)?;
        let kind = match mode & FORMAT_MASK {
            0 | FORMAT_FILE => EntryKind::File { digest: Digest::empty(), size: 0 },
            format if special_type(format).is_some() => EntryKind::Special { format, rdev },
            _ => return Err(Errno::EINVAL),
        };
        let made = self.make_entry(&spot, Entry { kind, attrs, link: None })?;
        self.note_published(&spot, Some(caller), PublishedBy::NameCall)?;
        Ok(made)
    }

    pub(super) fn make_directory(
        &self,
        caller: &Caller,
        parent: Ino,
        name: &OsStr,
        mode: u32,
    ) -> Reply<Found> {
        let spot = self.spot(parent, name)?;
        let mut attrs = self.attrs_for_new(&self.0.state.lock(), parent, caller, mode)?;
        let inherited = {
            let state = self.0.state.lock();
            self.attr_of(&state, parent)?.0.perm & 0o2000
        };
        attrs.mode |= u32::from(inherited);
        self.make_entry(&spot, Entry { kind: EntryKind::Directory, attrs, link: None })
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
        let spot = self.routed(caller, self.spot(parent, name)?, Purpose::Make)?;
        let attrs = self.attrs_for_new(&self.0.state.lock(), parent, caller, 0o777)?;
        let kind = EntryKind::Symlink { target: target.into() };
        let made = self.make_entry(&spot, Entry { kind, attrs, link: None })?;
        self.note_published(&spot, Some(caller), PublishedBy::NameCall)?;
        Ok(made)
    }

    pub(super) fn read_link(&self, ino: Ino) -> Reply<Vec<u8>> {
        let state = self.0.state.lock();
        match state.names.inode(ino).map(|inode| &inode.node) {
            Some(InodeKind::Entry(published)) => match &published.entry.kind {
                EntryKind::Symlink { target } => Ok(target.to_vec()),
                _ => Err(Errno::EINVAL),
            },
            Some(_) => Err(Errno::EINVAL),
            None => Err(Errno::ESTALE),
        }
    }

    pub(super) fn link_name(
        &self,
        caller: &Caller,
        ino: Ino,
        parent: Ino,
        name: &OsStr,
    ) -> Answer<Found> {
        let spot = self.spot(parent, name);
        let spot = spot.and_then(|spot| self.routed(caller, spot, Purpose::Make));
        let linked = spot.and_then(|spot| {
            let now = self.0.rooms.clock.mono();
            let (tried, retry) = self.0.state.lock().retries.end_at(caller, &spot, now);
            self.give_up_seat(retry);
            let found = match self.link_at(caller, ino, &spot) {
                // The name of the file may have a newer version. The kernel looks both names up
                // again.
                Err(Errno::ENOENT) if tried == Try::First => {
                    let (spots, wish) = (vec![spot], RetryWish::Read);
                    self.0.state.lock().retries.begin(caller, spots, None, wish, now);
                    self.0.begun.notify_one();
                    return Err(Errno::ESTALE);
                }
                linked => linked?,
            };
            self.note_published(&spot, Some(caller), PublishedBy::NameCall)?;
            Ok(found)
        });
        linked.into()
    }

    /// Makes another name for a published file.
    fn link_at(&self, caller: &Caller, ino: Ino, spot: &DirEntryKey) -> Reply<Found> {
        let old = published_place(&self.0.state.lock(), ino);
        let examined = old.map_or(Ok(Examined::Unasked), |old| self.examine_for(&old, spot));
        let examined = examined.map_err(|e| super::errno::promised(&e))?;
        let turn = self.0.rooms.ledger.begin();
        let (ops, entry, old, before) = {
            let state = self.0.state.lock();
            self.may_use(&state, caller, spot.0, MAY_CHANGE_NAMES)?;
            let path = state.names.path_of(spot).ok_or_else(|| state.names.why_no_path(spot))?;
            if self.is_taken(&state, spot, &path) {
                return Err(Errno::EEXIST);
            }
            let old = published_place(&state, ino)?;
            let old_path = state.names.path_of(&old).ok_or(Errno::ENOENT)?;
            let seen = self.seen(&old_path).ok_or(Errno::ENOENT)?;
            if !state.is_version(ino, &seen) || !examined.is_of(seen.entry.content()) {
                // The kernel has checked another version than the current one.
                return Err(Errno::ENOENT);
            }
            let (mut entry, before) = (seen.entry, seen.stamp);
            let mut ops = Vec::new();
            if entry.link.is_none() {
                entry.link = Some(self.0.rooms.ledger.next_stamp());
                ops.push((old_path, Op::Put(entry.clone())));
            }
            ops.push((path, Op::Put(entry.clone())));
            (ops, entry, old, before)
        };
        let is_put_anew = ops.len() > 1;
        let written = self.write_keeping(turn, ops).map_err(|e| super::errno::promised(&e))?;
        let mut state = self.0.state.lock();
        let stamps = written.apply();
        let stamp = stamps.last().copied();
        if let Some(begun) = before.and_then(|before| self.0.beginnings.begun(before)) {
            for put in &stamps {
                self.0.beginnings.note_begun(*put, begun);
            }
        }
        if is_put_anew {
            state.rebase(&old, before, stamps.first().copied());
        }
        let published = Published {
            stamp: stamps.first().copied(),
            changed_ms: stamp.map_or(0, |stamp| stamp.ms),
            entry,
        };
        state.names.set_group(published.entry.link, ino);
        state.renew(ino, published);
        state.take_name(spot);
        state.names.bind(spot, ino);
        state.locks.link(&old, spot);
        self.found(&mut state, Lead::lasting(ino), Some(spot))
    }
}

/// Returns a name under which all processes find an inode.
fn published_place(state: &State, ino: Ino) -> Reply<DirEntryKey> {
    let inode = state.names.inode(ino).ok_or(Errno::ESTALE)?;
    match &inode.node {
        InodeKind::Directory => return Err(Errno::EPERM),
        InodeKind::Gone(_) | InodeKind::Reserved(_) => return Err(Errno::ENOENT),
        InodeKind::Stale(_) => return Err(Errno::ESTALE),
        // The file has no published bytes yet, so a second name would lead to nothing.
        InodeKind::Live(id) if state.lives.get(*id).is_none_or(|live| live.version().is_none()) => {
            return Err(Errno::EPERM);
        }
        InodeKind::Entry(_) | InodeKind::Live(_) => {}
    }
    let bound = |spot: &&DirEntryKey| state.names.bound(spot) == Some(ino);
    inode.places.iter().find(bound).cloned().ok_or(Errno::ENOENT)
}
