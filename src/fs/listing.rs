//! Listing: the names of a directory, as they are when the listing begins.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::sync::Arc;

use hearthfs_mount::{Answer, Caller, DirEntry, DirSink, Errno, FileType, Handle, Ino, Reply};

use super::filesystem::Filesystem;
use super::handle::{Listed, OpenDir, type_of};
use super::inode::{Node, Spot, number_of};
use super::lookup::{implied_directory, version_of};
use super::state::State;
use super::who::Who;
use crate::name::TreePath;
use crate::namespace::Child;

/// Entries `.` and `..` come first.
const DOTS: u64 = 2;

impl Filesystem {
    pub(super) fn open_directory(&self, caller: &Caller, ino: Ino) -> Answer<Handle> {
        self.0.rooms.freshness.note_activity();
        let who = self.0.callers.who(caller);
        if self.0.rooms.freshness.ready() {
            return self.attach_directory(ino, who).into();
        }
        let this = self.clone();
        Answer::later(async move {
            this.0.rooms.freshness.wait_fresh(this.0.rules.deadline).await;
            this.attach_directory(ino, who)
        })
    }

    fn attach_directory(&self, ino: Ino, who: Who) -> Reply<Handle> {
        let mut state = self.0.state.lock();
        let inode = state.inodes.get_mut(&ino).ok_or(Errno::ESTALE)?;
        if !matches!(inode.node, Node::Directory) {
            return Err(Errno::ENOTDIR);
        }
        inode.opens += 1;
        let handle = state.fresh_handle();
        state.dirs.insert(handle, OpenDir { ino, who, names: None });
        Ok(handle)
    }

    pub(super) fn release_directory(&self, handle: Handle) {
        let mut state = self.0.state.lock();
        if let Some(dir) = state.dirs.remove(&handle) {
            if let Some(inode) = state.inodes.get_mut(&dir.ino) {
                inode.opens -= 1;
            }
            state.settle_inode(dir.ino);
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
        // Held to the end, so that the path is made once; the sink only fills a buffer.
        let mut state = self.0.state.lock();
        let parent = state
            .inodes
            .get(&ino)
            .and_then(|inode| inode.place())
            .map_or(Ino::ROOT, |(dir, _)| *dir);
        let path = state.directory_path(ino);
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
        for (index, listed) in names.iter().enumerate().skip(first) {
            let mut entry = DirEntry {
                name: OsStr::from_bytes(&listed.name),
                ino: listed.ino,
                file_type: listed.file_type,
                next: index as u64 + DOTS + 1,
                found: None,
            };
            if plus {
                let spot: Spot = (ino, listed.name.clone());
                let path = path.as_ref().and_then(|dir| dir.join(&listed.name).ok());
                let told = path.map(|path| self.find_and_tell(&mut state, &spot, &path, Some(who)));
                let Some(Ok(Some(mut found))) = told else {
                    // Gone since the listing began.
                    continue;
                };
                found.entry_ttl = found.entry_ttl.min(self.brief_ttl());
                found.attr_ttl = found.attr_ttl.min(self.brief_ttl());
                (entry.ino, entry.file_type) = (found.attr.ino, found.attr.file_type);
                entry.found = Some(found);
            }
            if sink(&entry) {
                if entry.found.is_some() {
                    state.forget(entry.ino, 1);
                }
                return Ok(());
            }
        }
        Ok(())
    }

    /// Returns the names of a listing: those of its beginning, taken anew when it is rewound.
    fn names_for(&self, ino: Ino, handle: Handle, offset: u64) -> Reply<(Arc<Vec<Listed>>, Who)> {
        let mut state = self.0.state.lock();
        let dir = state.dirs.get(&handle).ok_or(Errno::EBADF)?;
        let who = dir.who;
        if offset > 0
            && let Some(names) = &dir.names
        {
            return Ok((Arc::clone(names), who));
        }
        let names = match state.directory_path(ino) {
            Some(path) => Arc::new(self.names_in(&state, ino, &path)),
            None => Arc::new(Vec::new()),
        };
        if let Some(dir) = state.dirs.get_mut(&handle) {
            dir.names = Some(Arc::clone(&names));
        }
        Ok((names, who))
    }

    fn names_in(&self, state: &State, ino: Ino, path: &TreePath) -> Vec<Listed> {
        type Found = (Box<[u8]>, FileType, Vec<u8>);
        let ledger = &self.0.rooms.ledger;
        let found: Vec<Found> = ledger.read(|fold| {
            let shown = |child: Child| -> Option<Found> {
                let below = path.join(&child.name).ok()?;
                let Some(register) = child.register else {
                    ledger.shown(fold, &below, &implied_directory().entry, None)?;
                    return Some((child.name, FileType::Directory, Vec::new()));
                };
                let changed_ms = register.changed_ms();
                let entry = register.entry?;
                ledger.shown(fold, &below, &entry, Some(changed_ms))?;
                Some((child.name, type_of(&entry.kind), version_of(&entry, register.stamp)))
            };
            fold.children(path).into_iter().filter_map(shown).collect()
        });
        self.keep_order();
        let mut names: Vec<Listed> = Vec::with_capacity(found.len());
        for (name, file_type, version) in found {
            let spot: Spot = (ino, name);
            let known = state.slots.get(&spot).and_then(|slot| slot.published);
            let number = known.unwrap_or_else(|| {
                path.join(&spot.1)
                    .map_or(Ino(u64::MAX), |path| number_of(path.as_bytes(), &version))
            });
            names.push(Listed { name: spot.1, file_type, ino: number });
        }
        let private = state.generations.values().filter(|generation| {
            generation.published.is_none()
                && generation.stage == super::generation::Stage::Private
                && generation.place.as_ref().is_some_and(|(dir, _)| *dir == ino)
        });
        for generation in private {
            let Some((_, name)) = &generation.place else { continue };
            if let Err(at) = names.binary_search_by(|listed| (*listed.name).cmp(&**name)) {
                let listed =
                    Listed { name: name.clone(), file_type: FileType::File, ino: generation.ino };
                names.insert(at, listed);
            }
        }
        names
    }

    /// Takes back lookups that the kernel forgot.
    pub(super) fn forget_inode(&self, ino: Ino, count: u64) {
        self.0.state.lock().forget(ino, count);
    }
}

impl State {
    fn forget(&mut self, ino: Ino, count: u64) {
        if let Some(inode) = self.inodes.get_mut(&ino) {
            inode.lookups = inode.lookups.saturating_sub(count);
        }
        self.sweep_inode(ino);
    }
}
