//! Removing names.
//!
//! Keeps P15 own-node-at-once.

use std::ffi::OsStr;

use hearthfs_mount::{Caller, Errno, Ino, Reply};

use super::filesystem::Filesystem;
use super::inode::{DirEntryKey, InodeKind};
use super::rights::{MAY_CHANGE_NAMES, may_take};
use super::seen::Seen;
use super::state::State;
use super::units::Purpose;
use crate::name::TreePath;
use crate::namespace::{Entry, Op};

impl Filesystem {
    pub(super) fn unlink_name(&self, caller: &Caller, parent: Ino, name: &OsStr) -> Reply<()> {
        let spot = self.routed(caller, self.spot(parent, name)?, Purpose::Take)?;
        let turn = self.0.rooms.ledger.begin();
        let (ops, path) = {
            let state = self.0.state.lock();
            self.may_use(&state, caller, spot.0, MAY_CHANGE_NAMES)?;
            let path = state.names.path_of(&spot).ok_or_else(|| state.names.why_no_path(&spot))?;
            let seen = self.seen(&path);
            match &seen {
                Some(seen) if seen.entry.is_directory() => return Err(Errno::EISDIR),
                None if !state.has_private(&spot) => return Err(Errno::ENOENT),
                _ => {}
            }
            let mut ops = Vec::new();
            if let Some(seen) = &seen {
                self.may_remove(&state, caller, &spot, seen)?;
                ops.push((path.clone(), Op::Remove));
                ops.extend(self.ops_on_further_names(&path, &seen.entry));
            }
            (ops, path)
        };
        let published = !ops.is_empty();
        let written = self.write_keeping(turn, ops).map_err(|e| super::errno::promised(&e))?;
        let mut state = self.0.state.lock();
        drop(written.apply());
        if !published && let Some(dir) = path.parent() {
            self.0.rooms.ledger.touch_directory(&dir);
        }
        let open = state.open_inodes(&spot);
        self.keep_linked(&mut state, &spot);
        state.retire(&spot);
        state.locks.unlink(&spot);
        super::state::close_files(state);
        self.expire_attrs_of(open);
        Ok(())
    }

    /// Checks the sticky bit of a directory once more where the kernel has checked it for another
    /// version than the current one.
    pub(super) fn may_remove(
        &self,
        state: &State,
        caller: &Caller,
        (parent, name): &DirEntryKey,
        seen: &Seen,
    ) -> Reply<()> {
        let bound = state.names.bound(&(*parent, name.clone()));
        let known =
            bound.and_then(|ino| state.names.inode(ino)).is_some_and(|inode| match &inode.node {
                InodeKind::Entry(published) => published.is(&seen.entry, seen.stamp),
                InodeKind::Live(id) => state.lives.get(*id).is_some_and(|live| {
                    live.version().is_some_and(|v| v.published.is(&seen.entry, seen.stamp))
                }),
                _ => true,
            });
        if known {
            return Ok(());
        }
        let (dir, _) = self.attr_of(state, *parent)?;
        let owner = seen.entry.attrs.uid;
        if may_take(caller, u32::from(dir.perm), dir.uid, owner) {
            Ok(())
        } else {
            Err(Errno::EPERM)
        }
    }

    /// Moves live files under a removed name to another name of the same file, so that they go on
    /// there.
    pub(super) fn keep_linked(&self, state: &mut State, spot: &DirEntryKey) {
        for id in state.names.lives(spot).to_vec() {
            let group = state.lives.get(id).and_then(|live| live.link);
            let names: Vec<TreePath> = self.0.rooms.ledger.read(|fold| {
                group.map_or(Vec::new(), |group| fold.links(group).cloned().collect())
            });
            let mut spots = names.iter().filter_map(|name| state.names.spot_of(name));
            if let Some(other) = spots.find(|other| other != spot) {
                state.move_live(id, &other);
            }
        }
    }

    /// Returns the changes that record on the other names of a file that it has lost one: POSIX
    /// updates its `ctime`.
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

    pub(super) fn remove_directory(&self, caller: &Caller, parent: Ino, name: &OsStr) -> Reply<()> {
        let spot = self.spot(parent, name)?;
        let with_editions = self.path_with_editions(&spot);
        if let Some(path) = &with_editions {
            self.leave_directory(path)?;
        }
        let turn = self.0.rooms.ledger.begin();
        let ops = {
            let state = self.0.state.lock();
            self.may_use(&state, caller, spot.0, MAY_CHANGE_NAMES)?;
            let path = state.names.path_of(&spot).ok_or_else(|| state.names.why_no_path(&spot))?;
            let seen = match self.seen(&path) {
                None if state.has_private(&spot) => return Err(Errno::ENOTDIR),
                None => return Err(Errno::ENOENT),
                Some(seen) if !seen.entry.is_directory() => return Err(Errno::ENOTDIR),
                Some(seen) => seen,
            };
            self.may_remove(&state, caller, &spot, &seen)?;
            self.ops_to_remove_directory(&state, &spot, &path)?
        };
        let written = self.write_keeping(turn, ops).map_err(|e| super::errno::promised(&e))?;
        let mut state = self.0.state.lock();
        drop(written.apply());
        state.retire(&spot);
        // The locks of a file under this name that another node has removed before.
        state.locks.unlink(&spot);
        let inside = with_editions.map(|path| Self::editions_inside(&state, &path));
        drop(state);
        if let Some(inside) = inside {
            self.end_editions(inside);
        }
        Ok(())
    }

    /// Returns the changes that remove a directory, if its listing is empty. Entries that are
    /// hidden, because their bytes are lost or past their age, are removed with it.
    pub(super) fn ops_to_remove_directory(
        &self,
        state: &State,
        spot: &DirEntryKey,
        path: &TreePath,
    ) -> Reply<Vec<(TreePath, Op)>> {
        if state.names.bound(spot).is_some_and(|dir| state.has_private_in(dir)) {
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
}
