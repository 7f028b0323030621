//! Rename: one atomic group of changes, for files and whole directories.
//!
//! Keeps P15 own-node-at-once.

use std::cmp::Ordering;
use std::collections::{HashMap, HashSet};
use std::ffi::OsStr;
use std::sync::Arc;

use hearthfs_mount::{Answer, Caller, Errno, Ino, RenameMode, Reply};

use super::check::Examined;
use super::filesystem::Filesystem;
use super::inode::{DirEntryKey, LiveId, Published};
use super::live::Live;
use super::rights::MAY_CHANGE_NAMES;
use super::seen::{Seen, seen_in};
use super::state::{State, close_files};
use super::units::{PublishedBy, Purpose};
use super::worth::Made;
use crate::error::{Error, Kind};
use crate::name::TreePath;
use crate::namespace::{Entry, Op};
use crate::stamp::Stamp;
use crate::sync::{RECORD_CHANGES_MAX, Turn};
use crate::task;

/// The most entries that one rename moves: each of them is a removal and a put in the same record.
const MOVE_ENTRIES_MAX: usize = RECORD_CHANGES_MAX / 2;

/// How many times to check a file that is replaced meanwhile.
const EXAMINED_MAX: u32 = 64;

/// One side of a rename: a name and what it has.
struct RenameSide {
    spot: DirEntryKey,
    path: TreePath,
    /// What is published there.
    seen: Option<Seen>,
    /// Whether a file that is not published is there.
    private: bool,
}

impl RenameSide {
    fn is_there(&self) -> bool {
        self.seen.is_some() || self.private
    }

    fn is_directory(&self) -> bool {
        self.seen.as_ref().is_some_and(|seen| seen.entry.is_directory())
    }
}

/// How the names move once the changes are in the journal.
enum Move {
    /// No name moves.
    Nothing,
    /// Only live files move: nothing is published under the old name.
    Private,
    /// The file of one name replaces that of the other.
    Replace,
    /// The file that moves is dropped: the other name keeps its version.
    GiveWay,
    /// The files of the two names change places.
    Exchange,
}

/// A rename that is allowed.
struct Renaming {
    from: RenameSide,
    to: RenameSide,
    how: Move,
    ops: Vec<(TreePath, Op)>,
}

impl Filesystem {
    pub(super) fn rename(
        &self,
        caller: &Caller,
        from: (Ino, &OsStr),
        to: (Ino, &OsStr),
        mode: RenameMode,
    ) -> Answer<()> {
        let (from, to) = match (self.spot(from.0, from.1), self.spot(to.0, to.1)) {
            (Ok(from), Ok(to)) => (from, to),
            (Err(errno), _) | (_, Err(errno)) => return Err(errno).into(),
        };
        let lingering = self.lingers_before_unit(&from, &to);
        let Some((id, mut moved)) = lingering.filter(|(id, _)| !self.finish_left(*id)) else {
            return self.rename_name(caller, from, to, mode).into();
        };
        let (this, caller) = (self.clone(), *caller);
        Answer::later(async move {
            // The rename reports an error.
            this.settle_or_keep(id, &mut moved).await.ok();
            // It may read the file, and publish a whole unit.
            task::blocking(move || this.rename_name(&caller, from, to, mode)).await
        })
    }

    fn rename_name(
        &self,
        caller: &Caller,
        from: DirEntryKey,
        to: DirEntryKey,
        mode: RenameMode,
    ) -> Reply<()> {
        self.settle_directories(caller, &from, &to, mode)?;
        let there = to.clone();
        let (from, to) = self.routed_sides(caller, from, to, mode)?;
        let made = to.clone();
        let (turn, renaming) = self.examined_rename(caller, &from, &to, mode)?;
        let Renaming { from, to, how, mut ops } = renaming;
        let moves = matches!(how, Move::Replace);
        let entries =
            if moves { self.made_by_rename(caller, &from, &to, &mut ops) } else { Vec::new() };
        // Other processes still find the version that stays, but the kernel takes the moved one for
        // it.
        let stays = matches!(how, Move::GiveWay) || (from.seen.is_none() && to.seen.is_some());
        self.carry_out(turn, &from, &to, &how, ops)?;
        self.note_made(entries);
        let is_divided = made != there;
        if is_divided && matches!(how, Move::Replace) {
            self.part_from_public(&made, there);
        } else {
            self.doubt((is_divided || stays).then_some(there));
        }
        // A file that is still being written is published by its close.
        if matches!(how, Move::Replace | Move::Exchange) {
            self.note_published(&made, Some(caller), PublishedBy::NameCall)?;
        }
        Ok(())
    }

    /// Finds the clients' entries that a rename makes, and sets how long they took.
    fn made_by_rename(
        &self,
        caller: &Caller,
        from: &RenameSide,
        to: &RenameSide,
        ops: &mut [(TreePath, Op)],
    ) -> Vec<Made> {
        let puts = ops.iter_mut().filter_map(|(path, op)| match op {
            Op::Put(entry) if entry.content().is_some() => Some((path, entry)),
            _ => None,
        });
        let made = puts.filter_map(|(path, entry)| {
            let source = path.moved(&to.path, &from.path)?;
            let seen = if *path == to.path { to.seen.clone() } else { self.seen(path) };
            self.made_by_move(caller, &source, path, seen.as_ref(), entry)
        });
        made.collect()
    }

    /// Takes the turn for a rename that is allowed. Before that, checks whether the files that move
    /// are complete.
    fn examined_rename(
        &self,
        caller: &Caller,
        from: &DirEntryKey,
        to: &DirEntryKey,
        mode: RenameMode,
    ) -> Reply<(Turn<'_>, Renaming)> {
        let back = mode == RenameMode::Exchange;
        for _ in 0..EXAMINED_MAX {
            let examine = |from, to| {
                self.examine_for(from, to).map_err(|error| super::errno::promised(&error))
            };
            let there = examine(from, to)?;
            let other = if back { examine(to, from)? } else { Examined::Unasked };
            let turn = self.0.rooms.ledger.begin();
            let renaming = self.checked_rename(caller, from.clone(), to.clone(), mode)?;
            if let Some(id) = self.written_on(&renaming) {
                // This must not happen within the turn, because a publish that waits for the turn
                // may hold the file's lock.
                drop(turn);
                self.preserve(id).map_err(|error| super::errno::promised(&error))?;
                continue;
            }
            let is_known = |side: &RenameSide, examined: Examined| {
                examined.is_of(side.seen.as_ref().and_then(|seen| seen.entry.content()))
            };
            if is_known(&renaming.from, there) && is_known(&renaming.to, other) {
                return Ok((turn, renaming));
            }
        }
        Err(Errno::EBUSY)
    }

    /// Returns the closed file that an unpublished file is about to be renamed over, if a process
    /// may still write to the closed one. Other processes find that one until the unpublished file
    /// is published. Later writes to it have no name, so its closed bytes must be preserved first.
    fn written_on(&self, renaming: &Renaming) -> Option<LiveId> {
        if !matches!(renaming.how, Move::Private) {
            return None;
        }
        let state = self.0.state.lock();
        let id = state.names.inode(state.names.bound(&renaming.to.spot)?)?.live()?;
        let live = state.lives.get(id)?;
        (live.version().is_some() && live.writers.has_handles()).then_some(id)
    }

    /// Settles the drafts in directories that a rename moves or replaces, if the rename is allowed
    /// at all: a directory moves as it is published.
    fn settle_directories(
        &self,
        caller: &Caller,
        from: &DirEntryKey,
        to: &DirEntryKey,
        mode: RenameMode,
    ) -> Reply<()> {
        let paths = [self.path_with_editions(from), self.path_with_editions(to)];
        let [from_dir, to_dir] = paths.map(|path| path.filter(|path| self.is_directory(path)));
        if from_dir.is_none() && to_dir.is_none() {
            return Ok(());
        }
        drop(self.checked_rename(caller, from.clone(), to.clone(), mode)?);
        match to_dir {
            Some(path) if mode == RenameMode::Exchange => self.move_directory(&path)?,
            Some(path) => self.leave_directory(&path)?,
            None => {}
        }
        if let Some(path) = from_dir {
            self.move_directory(&path)?;
        }
        Ok(())
    }

    fn is_directory(&self, path: &TreePath) -> bool {
        self.0.rooms.ledger.read(|fold| fold.is_directory(path))
    }

    /// Checks a rename against the present state.
    fn checked_rename(
        &self,
        caller: &Caller,
        from: DirEntryKey,
        to: DirEntryKey,
        mode: RenameMode,
    ) -> Reply<Renaming> {
        let state = self.0.state.lock();
        self.may_use(&state, caller, from.0, MAY_CHANGE_NAMES)?;
        self.may_use(&state, caller, to.0, MAY_CHANGE_NAMES)?;
        let (from, to) = (self.side(&state, from)?, self.side(&state, to)?);
        let (how, ops) = self.plan_rename(&state, caller, &from, &to, mode)?;
        Ok(Renaming { from, to, how, ops })
    }

    /// Returns the names that the two names of a rename lead the caller to.
    fn routed_sides(
        &self,
        caller: &Caller,
        from: DirEntryKey,
        to: DirEntryKey,
        mode: RenameMode,
    ) -> Reply<(DirEntryKey, DirEntryKey)> {
        let path = self.0.state.lock().names.path_of(&from);
        if path.is_some_and(|path| self.is_directory(&path)) {
            return Ok((from, to));
        }
        let take = if mode == RenameMode::Exchange { Purpose::Make } else { Purpose::Take };
        let to = self.routed(caller, to, Purpose::Make)?;
        let from = self.routed(caller, from, take)?;
        Ok((from, to))
    }

    fn side(&self, state: &State, spot: DirEntryKey) -> Reply<RenameSide> {
        let path = state.names.path_of(&spot).ok_or_else(|| state.names.why_no_path(&spot))?;
        let seen = self.seen(&path);
        let private = state.has_private(&spot);
        Ok(RenameSide { spot, path, seen, private })
    }

    /// Checks a rename, and returns what it has to do.
    fn plan_rename(
        &self,
        state: &State,
        caller: &Caller,
        from: &RenameSide,
        to: &RenameSide,
        mode: RenameMode,
    ) -> Reply<(Move, Vec<(TreePath, Op)>)> {
        if !from.is_there() {
            return Err(Errno::ENOENT);
        }
        if to.path.is_below(&from.path)
            || (mode == RenameMode::Exchange && from.path.is_below(&to.path))
        {
            return Err(Errno::EINVAL);
        }
        for side in [from, to] {
            if let Some(seen) = &side.seen {
                self.may_remove(state, caller, &side.spot, seen)?;
            }
        }
        match mode {
            RenameMode::NoReplace if to.is_there() => Err(Errno::EEXIST),
            RenameMode::Exchange if !to.is_there() => Err(Errno::ENOENT),
            // No version exists yet that could go to the other name.
            RenameMode::Exchange if from.seen.is_none() || to.seen.is_none() => Err(Errno::EBUSY),
            RenameMode::Exchange => Ok((Move::Exchange, self.ops_to_exchange(from, to)?)),
            _ if from.path == to.path || is_same_file(state, from, to) => {
                Ok((Move::Nothing, Vec::new()))
            }
            _ => self.plan_replace(state, from, to),
        }
    }

    fn plan_replace(
        &self,
        state: &State,
        from: &RenameSide,
        to: &RenameSide,
    ) -> Reply<(Move, Vec<(TreePath, Op)>)> {
        let mut ops = Vec::new();
        if to.is_there() {
            match (from.is_directory(), to.is_directory()) {
                (true, false) => return Err(Errno::ENOTDIR),
                (false, true) => return Err(Errno::EISDIR),
                (true, true) => ops = self.ops_to_remove_directory(state, &to.spot, &to.path)?,
                (false, false) => {}
            }
            // The put below replaces this removal.
            ops.retain(|(path, _)| *path != to.path);
        } else {
            ops = self.ops_to_clear(&to.path);
        }
        // A file that is still being written takes its name along. What is published under the new
        // name stays until the file is published.
        if from.seen.is_none() {
            return Ok((Move::Private, Vec::new()));
        }
        if let (Some(moving), Some(there)) = (&from.seen, &to.seen)
            && self.comes_too_late(&to.path, moving, there)
        {
            let mut ops = vec![(from.path.clone(), Op::Remove)];
            ops.extend(self.ops_on_further_names(&from.path, &moving.entry));
            return Ok((Move::GiveWay, ops));
        }
        if let Some(lost) = &to.seen {
            ops.extend(self.ops_on_further_names(&to.path, &lost.entry));
        }
        ops.extend(self.ops_to_move(&from.path, &to.path)?);
        puts_prevail(&mut ops);
        directories_last(&mut ops);
        Ok((Move::Replace, ops))
    }

    /// Reports whether the moving file was begun before the version at its new name arrived, and
    /// that name keeps its first version.
    fn comes_too_late(&self, to: &TreePath, moving: &Seen, there: &Seen) -> bool {
        let files = moving.entry.content().is_some() && there.entry.content().is_some();
        let (Some(put), Some(other)) = (there.stamp, moving.stamp) else { return false };
        files && self.keeps_first(to, there) && self.0.beginnings.came_after_begin(put, other)
    }

    fn ops_to_exchange(&self, from: &RenameSide, to: &RenameSide) -> Reply<Vec<(TreePath, Op)>> {
        let mut ops = self.ops_to_move(&from.path, &to.path)?;
        ops.extend(self.ops_to_move(&to.path, &from.path)?);
        puts_prevail(&mut ops);
        directories_last(&mut ops);
        Ok(ops)
    }

    fn carry_out(
        &self,
        turn: Turn<'_>,
        from: &RenameSide,
        to: &RenameSide,
        how: &Move,
        ops: Vec<(TreePath, Op)>,
    ) -> Reply<()> {
        let moved: Vec<TreePath> = ops.iter().map(|(path, _)| path.clone()).collect();
        let puts: Vec<Option<Entry>> = ops
            .iter()
            .map(|(_, op)| if let Op::Put(entry) = op { Some(entry.clone()) } else { None })
            .collect();
        let written = self.write_keeping(turn, ops).map_err(|error| too_large(&error))?;
        let mut guard = self.0.state.lock();
        let state = &mut *guard;
        let before = self.stamps_before(state, from, to, &moved);
        let stamps = written.apply();
        self.note_moved(from, to, &moved, &stamps);
        let open = match how {
            Move::Nothing | Move::Private | Move::Exchange => Vec::new(),
            Move::GiveWay => state.open_inodes(&from.spot),
            Move::Replace => state.open_inodes(&to.spot),
        };
        match how {
            Move::Nothing => {}
            Move::Private => self.move_private(state, from, to),
            Move::GiveWay => {
                self.keep_linked(state, &from.spot);
                state.retire(&from.spot);
                state.locks.unlink(&from.spot);
            }
            Move::Replace => {
                self.keep_linked(state, &to.spot);
                state.retire(&to.spot);
                state.move_slot(&from.spot, &to.spot);
                state.locks.rename(&from.spot, &to.spot);
            }
            Move::Exchange => {
                let aside: DirEntryKey = (from.spot.0, Arc::from(&b"\0exchange"[..]));
                state.move_slot(&from.spot, &aside);
                state.move_slot(&to.spot, &from.spot);
                state.move_slot(&aside, &to.spot);
                state.locks.exchange(&from.spot, &to.spot);
            }
        }
        renew_moved(state, moved, puts, &before, &stamps);
        close_files(guard);
        self.expire_attrs_of(open);
        Ok(())
    }

    /// Returns the stamp of the version that moves to each path of a put, if a live file moves
    /// there. Must be called before anything has moved.
    fn stamps_before(
        &self,
        state: &State,
        from: &RenameSide,
        to: &RenameSide,
        paths: &[TreePath],
    ) -> Vec<Option<Stamp>> {
        self.0.rooms.ledger.read(|fold| {
            let source = |path: &TreePath| {
                let moved = path.moved(&to.path, &from.path);
                moved.or_else(|| path.moved(&from.path, &to.path))
            };
            let is_written = |path: &TreePath| {
                let spot = state.names.spot_of(path);
                spot.is_some_and(|spot| !state.names.lives(&spot).is_empty())
            };
            let stamp = |path: &TreePath| {
                let source = source(path).filter(|source| is_written(source))?;
                seen_in(fold, &source)?.stamp
            };
            paths.iter().map(stamp).collect()
        })
    }

    /// Notes for a moved file when it was begun.
    fn note_moved(&self, from: &RenameSide, to: &RenameSide, paths: &[TreePath], stamps: &[Stamp]) {
        let before = from.seen.as_ref().and_then(|seen| seen.stamp);
        let put = paths.iter().zip(stamps).find(|(path, _)| **path == to.path);
        if let (Some(before), Some((_, put))) = (before, put) {
            self.0.beginnings.note_moved(before, *put);
        }
    }

    /// Moves live files that have no published version under their old name.
    fn move_private(&self, state: &mut State, from: &RenameSide, to: &RenameSide) {
        let keeps = self.is_write_once(&to.path);
        self.keep_linked(state, &to.spot);
        // The published version of the new name stays bound there.
        for id in state.names.lives(&to.spot).to_vec() {
            if state.is_unpublished(id, &to.spot) {
                state.unplace_live(id);
            }
        }
        for id in state.names.lives(&from.spot).to_vec() {
            // A file that was closed under the name and removed by another node is not the file
            // that moves.
            if !state.lives.get(id).is_some_and(Live::makes_a_name) {
                state.unplace_live(id);
                continue;
            }
            state.move_live(id, &to.spot);
            if let Some(live) = state.lives.get_mut(id) {
                // A writer that began from nothing and has written nothing does not create a file
                // by this move.
                if live.lineage.follows().is_some() || live.baseline.mark().size > 0 {
                    live.baseline.freshen();
                }
                let there = to.seen.as_ref().and_then(|seen| seen.stamp);
                let late =
                    |put: &Stamp| keeps && self.0.beginnings.came_after(*put, live.lineage.begun());
                // If it was begun too early, it does not replace that version. It can only take the
                // name if that version is gone by then.
                let there = there.filter(|put| !late(put));
                live.lineage.rename_over(there);
            }
        }
        state.locks.rename(&from.spot, &to.spot);
        for dir in [from.path.parent(), to.path.parent()].into_iter().flatten() {
            self.0.rooms.ledger.touch_directory(&dir);
        }
    }

    /// Returns the changes that move what is published under a path, and everything below it.
    fn ops_to_move(&self, from: &TreePath, to: &TreePath) -> Reply<Vec<(TreePath, Op)>> {
        let ledger = &self.0.rooms.ledger;
        let moving: Vec<(TreePath, Option<Entry>)> = ledger.read(|fold| {
            let as_shown = |path: &TreePath, mut entry: Entry| {
                if let Some(moved) = fold.moved(path).filter(|_| entry.is_directory()) {
                    entry.attrs.mtime = moved;
                }
                entry
            };
            let own =
                seen_in(fold, from).map(|seen| (from.clone(), Some(as_shown(from, seen.entry))));
            let below = fold.below(from).filter_map(|(path, register)| {
                let entry = register.entry.clone()?;
                // An entry past its age does not move; it is removed.
                let changed_ms = Some(register.changed_ms());
                let left = ledger.living_left(fold, &path, &entry, changed_ms);
                let entry = left.map(|_| as_shown(&path, entry));
                Some((path, entry))
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

/// Drops the other changes of each path that also gets a put: where both sides change a path, the
/// put decides.
fn puts_prevail(ops: &mut Vec<(TreePath, Op)>) {
    let is_put = |op: &Op| matches!(op, Op::Put(_));
    let puts: HashSet<TreePath> =
        ops.iter().filter(|(_, op)| is_put(op)).map(|(path, _)| path.clone()).collect();
    ops.retain(|(path, op)| is_put(op) || !puts.contains(path));
}

/// Orders directories after the entries that move into them and out of them, the deepest first. A
/// directory that moves keeps its time, and a later stamp of a change in it would replace that
/// time.
fn directories_last(ops: &mut [(TreePath, Op)]) {
    let is_directory = |op: &Op| matches!(op, Op::Put(entry) if entry.is_directory());
    ops.sort_by(|(one, one_op), (other, other_op)| {
        let order = is_directory(one_op).cmp(&is_directory(other_op));
        order.then_with(|| if is_directory(one_op) { other.cmp(one) } else { Ordering::Equal })
    });
}

/// Updates the moved inodes to the versions that were put under their new paths.
fn renew_moved(
    state: &mut State,
    paths: Vec<TreePath>,
    puts: Vec<Option<Entry>>,
    before: &[Option<Stamp>],
    stamps: &[Stamp],
) {
    let mut put: HashMap<TreePath, (Option<Stamp>, Published)> = HashMap::new();
    for (((path, entry), before), stamp) in paths.into_iter().zip(puts).zip(before).zip(stamps) {
        if let Some(entry) = entry {
            let published = Published { entry, stamp: Some(*stamp), changed_ms: stamp.ms };
            put.insert(path, (*before, published));
        }
    }
    for (path, (before, published)) in put {
        let Some(spot) = state.names.spot_of(&path) else { continue };
        for id in state.names.lives(&spot).to_vec() {
            if let Some(live) = state.lives.get_mut(id) {
                // A live file that began from an older version than the one that moves, perhaps of
                // another user, is left alone.
                if before.is_some() && live.lineage.follows() == before {
                    live.lineage.follow(published.stamp);
                }
            }
        }
        state.rebase(&spot, before, published.stamp);
        if let Some(ino) = state.names.bound(&spot) {
            state.renew(ino, published);
        }
    }
}

/// Returns the error of a move that was not written. A move that is too large for one record cannot
/// be one step. `EXDEV` makes programs such as `mv` copy the files and remove the originals, as
/// between two file systems.
fn too_large(error: &Error) -> Errno {
    if error.kind() == Kind::Invalid { Errno::EXDEV } else { super::errno::promised(error) }
}

/// Reports whether two names belong to one file. POSIX requires that the rename does nothing then.
fn is_same_file(state: &State, from: &RenameSide, to: &RenameSide) -> bool {
    let link = |side: &RenameSide| side.seen.as_ref().and_then(|seen| seen.entry.link);
    let bound = |side: &RenameSide| state.names.bound(&side.spot);
    (link(from).is_some() && link(from) == link(to))
        || (bound(from).is_some() && bound(from) == bound(to))
}
