//! Listing: the names of a directory at the moment when the listing begins.
//!
//! Keeps P12 clean-directories.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::sync::Arc;
use std::time::Duration;

use hearthfs_mount::{Answer, Caller, DirEntry, DirSink, Errno, FileType, Handle, Ino, Reply};

use super::filesystem::Filesystem;
use super::handles::{Listed, OpenDir, type_of};
use super::inode::{DirEntryKey, Inode, InodeKind};
use super::live::Live;
use super::rights::MAY_LIST;
use super::state::{State, known_entry_inode, new_entry_number};
use super::who::Who;
use crate::name::TreePath;
use crate::namespace::EDITIONS;

/// Entries `.` and `..` come first.
const DOTS: u64 = 2;
/// How many names are read from the namespace at a time.
const READ_AT_ONCE: usize = 1024;
/// How often the names of a directory are collected if directories are renamed meanwhile.
const LIST_TRIES_MAX: u32 = 16;
/// How long the kernel may cache the entries of a listing. The kernel counts a name from the moment
/// when it reads the answer, so a name that was taken back in between stays cached.
const LISTED_TTL_MAX: Duration = Duration::from_secs(1);
/// How many names are sent with their attributes under one lock. A lookup waits no longer than that
/// takes.
const TOLD_AT_ONCE: usize = 64;

impl Filesystem {
    pub(super) fn open_directory(&self, caller: &Caller, ino: Ino) -> Answer<Handle> {
        self.0.rooms.freshness.note_activity();
        let who = self.0.callers.who(caller);
        if self.0.rooms.freshness.ready() {
            return self.attach_directory(caller, ino, who).into();
        }
        let (this, caller) = (self.clone(), *caller);
        Answer::later(async move {
            this.0.rooms.freshness.wait_fresh(this.0.rules.deadline).await;
            this.attach_directory(&caller, ino, who)
        })
    }

    fn attach_directory(&self, caller: &Caller, ino: Ino, who: Who) -> Reply<Handle> {
        let mut state = self.0.state.lock();
        self.may_use(&state, caller, ino, MAY_LIST)?;
        if !state.handles.has_room(caller.uid) {
            return Err(Errno::ENFILE);
        }
        let inode = state.names.inode(ino).ok_or(Errno::ESTALE)?;
        if !matches!(inode.node, InodeKind::Directory) {
            return Err(Errno::ENOTDIR);
        }
        state.count_open(ino);
        Ok(state.handles.add_dir(OpenDir { ino, who, user: caller.uid, names: None }))
    }

    pub(super) fn release_directory(&self, handle: Handle) {
        let mut state = self.0.state.lock();
        if let Some(dir) = state.handles.remove_dir(handle) {
            state.uncount_open(dir.ino);
        }
    }

    pub(super) fn list(
        &self,
        ino: Ino,
        handle: Handle,
        offset: u64,
        plus: bool,
        sink: DirSink<'_>,
    ) -> Reply<()> {
        let (names, who) = self.names_for(ino, handle, offset)?;
        let parent = {
            let state = self.0.state.lock();
            let place = state.names.inode(ino).and_then(Inode::place);
            place.map_or(Ino::ROOT, |(dir, _)| *dir)
        };
        for (at, name, dot) in [(0, ".", ino), (1, "..", parent)] {
            let entry = DirEntry {
                name: OsStr::new(name),
                ino: dot,
                file_type: FileType::Directory,
                next: at + 1,
                found: None,
            };
            if offset <= at && sink(&entry) {
                return Ok(());
            }
        }
        let first = usize::try_from(offset.saturating_sub(DOTS)).unwrap_or(usize::MAX);
        let mut index = first;
        while index < names.len() {
            let part = &names[index..names.len().min(index + TOLD_AT_ONCE)];
            if self.tell_part(ino, part, index, (who, plus), sink) {
                break;
            }
            index += part.len();
        }
        Ok(())
    }

    /// Sends some names of a listing. Returns whether the sink is full.
    fn tell_part(
        &self,
        ino: Ino,
        part: &[Listed],
        first: usize,
        (who, plus): (Who, bool),
        sink: DirSink<'_>,
    ) -> bool {
        let mut guard = self.0.state.lock();
        let state = &mut *guard;
        // A directory without a path was removed, and so was everything in it.
        let Some(dir) = state.names.directory_path(ino) else { return false };
        let limit = self.brief_ttl().min(LISTED_TTL_MAX);
        for (index, listed) in part.iter().enumerate() {
            let Ok(path) = dir.join(&listed.name) else { continue };
            let spot = self.routed_now(state, who, (ino, Arc::clone(&listed.name)), &path);
            let private = if spot.0 == ino { None } else { state.names.path_of(&spot) };
            let path = private.unwrap_or(path);
            let mut entry = DirEntry {
                name: OsStr::from_bytes(&listed.name),
                ino,
                file_type: FileType::File,
                next: (first + index) as u64 + DOTS + 1,
                found: None,
            };
            // A name that has gone since the listing began is left out.
            if plus {
                let told = self.find_and_tell(state, &spot, &path, Some(who));
                let Ok(Ok(mut found)) = told else { continue };
                found.entry_ttl = found.entry_ttl.min(limit);
                found.attr_ttl = found.attr_ttl.min(limit);
                (entry.ino, entry.file_type) = (found.attr.ino, found.attr.file_type);
                entry.found = Some(found);
            } else {
                let Some(shown) = self.number_and_type(state, &spot, &path, who) else { continue };
                (entry.ino, entry.file_type) = shown;
            }
            if sink(&entry) {
                if entry.found.is_some() {
                    state.names.note_untold(entry.ino);
                    state.names.forget(entry.ino, 1);
                }
                return true;
            }
        }
        false
    }

    /// Returns what a listing without attributes shows of a name: the number and the type of the
    /// inode that a lookup would find. As long as the kernel does not know a file with hard links,
    /// each of its names has another number.
    fn number_and_type(
        &self,
        state: &mut State,
        spot: &DirEntryKey,
        path: &TreePath,
        who: Who,
    ) -> Option<(Ino, FileType)> {
        let seen = self.seen(path);
        let own = state.own_live(spot, seen.as_ref(), who);
        match (own, seen) {
            (None, Some(seen)) => {
                let known = known_entry_inode(state, spot, &seen);
                let ino = known.unwrap_or_else(|| new_entry_number(state, path, &seen));
                Some((ino, type_of(&seen.entry.kind)))
            }
            (own, _) => {
                let live = state.lives.get(own.or_else(|| state.newest_private(spot))?)?;
                Some((live.ino, FileType::File))
            }
        }
    }

    /// Returns the names of a listing: those at its beginning. When it is rewound, they are
    /// collected again.
    fn names_for(&self, ino: Ino, handle: Handle, offset: u64) -> Reply<(Arc<Vec<Listed>>, Who)> {
        let (mut tries, mut path, mut moves, who) = {
            let state = self.0.state.lock();
            let dir = state.handles.dir(handle).ok_or(Errno::EBADF)?;
            if offset > 0
                && let Some(names) = &dir.names
            {
                return Ok((Arc::clone(names), dir.who));
            }
            let names = &state.names;
            (LIST_TRIES_MAX, names.directory_path(ino), names.directory_moves(), dir.who)
        };
        loop {
            let names = path.map_or(Vec::new(), |path| {
                let mut names = self.names_in(ino, &path);
                self.merge_editions(who, &path, &mut names);
                names
            });
            let mut state = self.0.state.lock();
            tries -= 1;
            // A directory that is renamed meanwhile has nothing under its old path.
            if moves != state.names.directory_moves() && tries > 0 {
                path = state.names.directory_path(ino);
                moves = state.names.directory_moves();
                continue;
            }
            let names = Arc::new(names);
            let kept = state.handles.keep_names(handle, &names);
            return if kept { Ok((names, who)) } else { Err(Errno::ENOMEM) };
        }
    }

    /// Collects the names of a directory in parts, so that no caller waits behind a lock for a
    /// large directory. Names that are hidden are left out when the listing is sent.
    fn names_in(&self, ino: Ino, path: &TreePath) -> Vec<Listed> {
        // A file that is published meanwhile is among them, even if its place in the namespace was
        // read before.
        let private = private_names(&self.0.state.lock(), ino);
        let mut names: Vec<Listed> = Vec::new();
        loop {
            let last = names.last().map(|listed| Arc::clone(&listed.name));
            let part = self
                .0
                .rooms
                .ledger
                .read(|fold| fold.names_after(path, last.as_deref(), READ_AT_ONCE));
            let more = part.len() == READ_AT_ONCE;
            names
                .extend(part.into_iter().map(|(name, is_directory)| Listed { name, is_directory }));
            if more {
                continue;
            }
            if path.is_root() {
                names.retain(|listed| &*listed.name != EDITIONS);
            }
            self.keep_order();
            if !private.is_empty() {
                names.extend(private.into_iter().map(|name| Listed { name, is_directory: false }));
                names.sort_by(|one, other| one.name.cmp(&other.name));
                names.dedup_by(|one, other| one.name == other.name);
            }
            return names;
        }
    }

    /// Replaces the members of units by those of the editions that the process has.
    fn merge_editions(&self, who: Who, path: &TreePath, names: &mut Vec<Listed>) {
        let editions = self.editions_listed(who, path);
        if editions.is_empty() {
            return;
        }
        names.retain(|listed| {
            let unit = path.join(&listed.name).ok().and_then(|at| self.unit_of(&at));
            listed.is_directory || unit.is_none_or(|unit| !editions.contains_key(&unit))
        });
        for private in editions.into_values() {
            let dir = {
                let state = self.0.state.lock();
                state.names.spot_of(&private).and_then(|spot| state.names.bound(&spot))
            };
            let Some(dir) = dir else { continue };
            let members = self.names_in(dir, &private).into_iter();
            names.extend(members.filter(|listed| !listed.is_directory));
        }
        names.sort_by(|one, other| one.name.cmp(&other.name));
    }

    /// Subtracts lookups that the kernel forgot.
    pub(super) fn forget_inode(&self, ino: Ino, count: u64) {
        self.0.state.lock().names.forget(ino, count);
    }
}

/// Returns the names of files that are being written and not published.
fn private_names(state: &State, dir: Ino) -> Vec<Arc<[u8]>> {
    let makes_a_name = |live: &&Live| live.is_private() && live.makes_a_name();
    let lives = state.lives.in_directory(dir).filter(makes_a_name);
    lives.filter_map(|live| Some(Arc::clone(&live.place()?.1))).collect()
}
