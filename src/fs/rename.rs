//! Rename: one atomic group of changes, whatever moves.

use std::ffi::OsStr;

use hearthfs_mount::{Errno, Ino, RenameMode, Reply};

use super::filesystem::Filesystem;
use super::inode::Spot;
use super::lookup::{Seen, seen_in};
use super::state::State;
use crate::error::Kind;
use crate::name::TreePath;
use crate::namespace::{Entry, Op};
use crate::sync::RECORD_CHANGES_MAX;

/// The most entries that one rename moves: each is a removal and a put of one record.
const MOVE_ENTRIES_MAX: usize = RECORD_CHANGES_MAX / 2;

/// What stands under one name of a rename.
struct Side {
    spot: Spot,
    path: TreePath,
    /// What is published there.
    seen: Option<Seen>,
    /// Something unpublished stands there.
    private: bool,
}

impl Side {
    fn is_there(&self) -> bool {
        self.seen.is_some() || self.private
    }

    fn is_directory(&self) -> bool {
        self.seen.as_ref().is_some_and(|seen| seen.entry.is_directory())
    }
}

impl Filesystem {
    pub(super) fn rename_name(
        &self,
        from: (Ino, &OsStr),
        to: (Ino, &OsStr),
        mode: RenameMode,
    ) -> Reply<()> {
        let (from, to) = (self.spot(from.0, from.1)?, self.spot(to.0, to.1)?);
        let mut guard = self.0.state.lock();
        let state = &mut *guard;
        let (from, to) = (self.side(state, from)?, self.side(state, to)?);
        if !from.is_there() {
            return Err(Errno::ENOENT);
        }
        if to.path.is_below(&from.path)
            || (mode == RenameMode::Exchange && from.path.is_below(&to.path))
        {
            return Err(Errno::EINVAL);
        }
        // Other processes go on finding the version that stays until the file is closed.
        let divided = (from.seen.is_none() && to.seen.is_some()).then(|| to.spot.clone());
        let done = match mode {
            RenameMode::NoReplace if to.is_there() => Err(Errno::EEXIST),
            RenameMode::Exchange if !to.is_there() => Err(Errno::ENOENT),
            RenameMode::Exchange => self.exchange(state, &from, &to),
            _ if from.path == to.path || is_same_file(state, &from, &to) => Ok(()),
            _ => self.replace(state, &from, &to),
        };
        drop(guard);
        self.invalidate(divided.filter(|_| done.is_ok()));
        done
    }

    fn side(&self, state: &State, spot: Spot) -> Reply<Side> {
        let path = state.path_of(&spot).ok_or_else(|| state.why_no_path(&spot))?;
        let seen = self.seen(&path);
        let private = state.private_generations(&spot).next().is_some();
        Ok(Side { spot, path, seen, private })
    }

    fn replace(&self, state: &mut State, from: &Side, to: &Side) -> Reply<()> {
        let mut ops = Vec::new();
        if to.is_there() {
            match (from.is_directory(), to.is_directory()) {
                (true, false) => return Err(Errno::ENOTDIR),
                (false, true) => return Err(Errno::EISDIR),
                (true, true) => ops = self.ops_to_remove_directory(state, &to.spot, &to.path)?,
                (false, false) => {}
            }
            // The put below takes the place of this removal.
            ops.retain(|(path, _)| *path != to.path);
        } else {
            ops = self.ops_to_clear(&to.path);
        }
        let moving = self.ops_to_move(&from.path, &to.path)?;
        // A file that is still being written takes its name along, but what is published under the new
        // name stays until there is something to take its place.
        let waits = from.seen.is_none();
        if waits {
            self.move_private(state, from, to);
            return Ok(());
        }
        if let Some(lost) = &to.seen {
            ops.extend(self.ops_on_further_names(&to.path, &lost.entry));
        }
        ops.extend(moving);
        self.commit_move(ops)?;
        self.keep_linked(state, &to.spot);
        state.retire(&to.spot);
        state.move_slot(&from.spot, &to.spot);
        state.locks.rename(&from.spot, &to.spot);
        Ok(())
    }

    /// Moves generations that have no published version under their old name.
    fn move_private(&self, state: &mut State, from: &Side, to: &Side) {
        self.keep_linked(state, &to.spot);
        state.retire(&to.spot);
        let ids = state
            .slots
            .get_mut(&from.spot)
            .map_or(Vec::new(), |slot| std::mem::take(&mut slot.generations));
        for id in &ids {
            let Some(generation) = state.generations.get_mut(id) else { continue };
            generation.place = Some(to.spot.clone());
            // Who began from nothing and has written nothing still makes no file.
            generation.fresh |= generation.clean.size > 0;
            let ino = generation.ino;
            if let Some(inode) = state.inodes.get_mut(&ino) {
                inode.places.retain(|place| *place != from.spot);
                inode.places.push(to.spot.clone());
            }
        }
        state.slots.entry(to.spot.clone()).or_default().generations.extend(ids);
        state.locks.rename(&from.spot, &to.spot);
        state.sweep_slot(&from.spot);
        for dir in [from.path.parent(), to.path.parent()].into_iter().flatten() {
            self.0.rooms.ledger.touch_directory(&dir);
        }
    }

    fn exchange(&self, state: &mut State, from: &Side, to: &Side) -> Reply<()> {
        if from.seen.is_none() || to.seen.is_none() {
            // There is no version to put on the other side yet.
            return Err(Errno::EBUSY);
        }
        let mut ops = self.ops_to_move(&from.path, &to.path)?;
        ops.extend(self.ops_to_move(&to.path, &from.path)?);
        // A path that both sides touch ends as the put says.
        let puts: std::collections::HashSet<TreePath> =
            ops.iter().filter(|(_, op)| matches!(op, Op::Put(_))).map(|(p, _)| p.clone()).collect();
        ops.retain(|(path, op)| matches!(op, Op::Put(_)) || !puts.contains(path));
        self.commit_move(ops)?;
        let aside: Spot = (from.spot.0, Box::from(&b"\0exchange"[..]));
        state.move_slot(&from.spot, &aside);
        state.move_slot(&to.spot, &from.spot);
        state.move_slot(&aside, &to.spot);
        state.locks.exchange(&from.spot, &to.spot);
        Ok(())
    }

    /// Publishes a move. What is too large for one record cannot move in one step: `EXDEV` makes programs
    /// such as `mv` copy it and remove the original, as between two file systems.
    fn commit_move(&self, ops: Vec<(TreePath, Op)>) -> Reply<()> {
        match self.publish_keeping(ops) {
            Ok(_) => Ok(()),
            Err(error) if error.kind() == Kind::Invalid => Err(Errno::EXDEV),
            Err(error) => Err(super::errno::promised(&error)),
        }
    }

    /// Returns the changes that move what is published under a path, with everything below it.
    fn ops_to_move(&self, from: &TreePath, to: &TreePath) -> Reply<Vec<(TreePath, Op)>> {
        let ledger = &self.0.rooms.ledger;
        let moving: Vec<(TreePath, Option<Entry>)> = ledger.read(|fold| {
            let own = seen_in(fold, from).map(|seen| (from.clone(), Some(seen.entry)));
            let below = fold.below(from).filter_map(|(path, register)| {
                let entry = register.entry.clone()?;
                // What is past its age stays behind, and goes.
                let changed_ms = Some(register.changed_ms());
                let left = ledger.living_left(fold, &path, &entry, changed_ms);
                Some((path, left.map(|_| entry)))
            });
            own.into_iter().chain(below).take(MOVE_ENTRIES_MAX + 1).collect()
        });
        if moving.len() > MOVE_ENTRIES_MAX {
            return Err(Errno::EXDEV);
        }
        let mut ops = Vec::with_capacity(moving.len() * 2);
        for (path, entry) in moving {
            if let Some(entry) = entry {
                let target = path.moved(from, to).ok_or(Errno::ENAMETOOLONG)?;
                ops.push((target, Op::Put(entry)));
            }
            ops.push((path, Op::Remove));
        }
        Ok(ops)
    }
}

/// Reports whether two names are of one file: POSIX wants nothing done then.
fn is_same_file(state: &State, from: &Side, to: &Side) -> bool {
    let ino = |side: &Side| state.slots.get(&side.spot).and_then(|slot| slot.published);
    let link = |side: &Side| side.seen.as_ref().and_then(|seen| seen.entry.link);
    (link(from).is_some() && link(from) == link(to))
        || (ino(from).is_some() && ino(from) == ino(to))
}
