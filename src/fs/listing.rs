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
use super::inode::{DirEntryKey, Inode, InodeKind, number_of};
use super::live::Live;
use super::rights::MAY_LIST;
use super::seen::{implied_directory, version_of};
use super::state::State;
use super::who::Who;
use crate::name::TreePath;
use crate::namespace::{Child, EDITIONS, Fold};
use crate::sync::Ledger;

/// Entries `.` and `..` come first.
const DOTS: u64 = 2;
/// How many names are read from the namespace at a time.
const READ_AT_ONCE: usize = 1024;
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
            if self.tell_part(ino, part, index, plus.then_some(who), sink) {
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
        plus: Option<Who>,
        sink: DirSink<'_>,
    ) -> bool {
        let mut guard = self.0.state.lock();
        let state = &mut *guard;
        let dir = state.names.directory_path(ino);
        for (index, listed) in part.iter().enumerate() {
            let mut entry = DirEntry {
                name: OsStr::from_bytes(&listed.name),
                ino: listed.ino,
                file_type: listed.file_type,
                next: (first + index) as u64 + DOTS + 1,
                found: None,
            };
            if let Some(who) = plus {
                let spot: DirEntryKey = (ino, listed.name.clone());
                let path = dir.as_ref().and_then(|dir| dir.join(&listed.name).ok());
                let told = path.map(|path| {
                    let spot = self.routed_now(state, who, spot, &path);
                    let path = state.names.path_of(&spot).unwrap_or(path);
                    self.find_and_tell(state, &spot, &path, Some(who))
                });
                let Some(Ok(Some(mut found))) = told else {
                    // The name has gone since the listing began.
                    continue;
                };
                let limit = self.brief_ttl().min(LISTED_TTL_MAX);
                found.entry_ttl = found.entry_ttl.min(limit);
                found.attr_ttl = found.attr_ttl.min(limit);
                (entry.ino, entry.file_type) = (found.attr.ino, found.attr.file_type);
                entry.found = Some(found);
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

    /// Returns the names of a listing: those at its beginning. When it is rewound, they are
    /// collected again.
    fn names_for(&self, ino: Ino, handle: Handle, offset: u64) -> Reply<(Arc<Vec<Listed>>, Who)> {
        let (path, who) = {
            let state = self.0.state.lock();
            let dir = state.handles.dir(handle).ok_or(Errno::EBADF)?;
            if offset > 0
                && let Some(names) = &dir.names
            {
                return Ok((Arc::clone(names), dir.who));
            }
            (state.names.directory_path(ino), dir.who)
        };
        let names = path.map_or(Vec::new(), |path| {
            let mut names = self.names_in(ino, &path);
            self.merge_editions(who, &path, &mut names);
            names
        });
        let names = Arc::new(names);
        let kept = self.0.state.lock().handles.keep_names(handle, &names);
        if kept { Ok((names, who)) } else { Err(Errno::ENOMEM) }
    }

    /// Collects the names of a directory in parts, so that no caller waits behind a lock for a
    /// large directory.
    fn names_in(&self, ino: Ino, path: &TreePath) -> Vec<Listed> {
        let ledger = &self.0.rooms.ledger;
        let mut names: Vec<Listed> = Vec::new();
        let mut last: Option<Box<[u8]>> = None;
        loop {
            let (found, more) = ledger.read(|fold| {
                let part = fold.children_after(path, last.as_deref(), READ_AT_ONCE);
                let more = part.len() == READ_AT_ONCE;
                last = part.last().map(|child| child.name.clone());
                let part = part.into_iter();
                let part = part.filter(|child| !path.is_root() || &*child.name != EDITIONS);
                let shown = part.filter_map(|child| shown(ledger, fold, path, child));
                (shown.collect::<Vec<_>>(), more)
            });
            self.keep_order();
            let state = self.0.state.lock();
            for (name, file_type, version) in found {
                let spot: DirEntryKey = (ino, name);
                let number = state.names.bound(&spot).unwrap_or_else(|| {
                    path.join(&spot.1)
                        .map_or(Ino(u64::MAX), |path| number_of(path.as_bytes(), &version))
                });
                names.push(Listed { name: spot.1, file_type, ino: number });
            }
            if !more {
                add_private(&state, ino, &mut names);
                return names;
            }
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
            listed.file_type == FileType::Directory
                || unit.is_none_or(|unit| !editions.contains_key(&unit))
        });
        for private in editions.into_values() {
            let dir = {
                let state = self.0.state.lock();
                state.names.spot_of(&private).and_then(|spot| state.names.bound(&spot))
            };
            let Some(dir) = dir else { continue };
            let members = self.names_in(dir, &private).into_iter();
            names.extend(members.filter(|listed| listed.file_type != FileType::Directory));
        }
        names.sort_by(|one, other| one.name.cmp(&other.name));
    }

    /// Subtracts lookups that the kernel forgot.
    pub(super) fn forget_inode(&self, ino: Ino, count: u64) {
        self.0.state.lock().names.forget(ino, count);
    }
}

/// Returns what a listing shows of a name, if the name is visible: the name, its type, and what its
/// inode number is made from.
fn shown(
    ledger: &Ledger,
    fold: &Fold,
    dir: &TreePath,
    child: Child,
) -> Option<(Box<[u8]>, FileType, Vec<u8>)> {
    let below = dir.join(&child.name).ok()?;
    let Some(register) = child.register else {
        ledger.shown(fold, &below, &implied_directory().entry, None)?;
        return Some((child.name, FileType::Directory, Vec::new()));
    };
    let changed_ms = register.changed_ms();
    let entry = register.entry?;
    ledger.shown(fold, &below, &entry, Some(changed_ms))?;
    Some((child.name, type_of(&entry.kind), version_of(&entry, register.stamp)))
}

/// Adds the names of files that are being written and not published.
fn add_private(state: &State, dir: Ino, names: &mut Vec<Listed>) {
    let makes_a_name = |live: &&Live| live.is_private() && live.makes_a_name();
    for live in state.lives.in_directory(dir).filter(makes_a_name) {
        let Some((_, name)) = live.place() else { continue };
        if let Err(at) = names.binary_search_by(|listed| (*listed.name).cmp(&**name)) {
            let listed = Listed { name: name.clone(), file_type: FileType::File, ino: live.ino };
            names.insert(at, listed);
        }
    }
}
