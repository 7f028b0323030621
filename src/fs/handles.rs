//! Handles: open files and open directories.
//!
//! Owns the tables of both. Must never decide what a handle is open on.

use std::fs::File;
use std::sync::Arc;

use hearthfs_mount::{Handle, Ino};

use super::inode::{LiveId, Source};
use super::shares::Shares;
use super::who::Who;
use super::writing_handle::WritingHandle;
use crate::hashing::FastMap;
use crate::namespace::EntryKind;

/// The most files and directories that are open at once.
const OPEN_MAX: u64 = 1 << 20;
/// The most names that open directories keep, over all listings.
const LISTED_MAX: u64 = 1 << 22;

/// What a handle reads and writes when its calls come to the daemon.
#[derive(Debug, Clone)]
pub(super) enum Bytes {
    /// No bytes now or later.
    Empty,
    /// The file of its inode or of its live file.
    Source(Arc<Source>),
}

impl Bytes {
    /// Returns the file, unless the content is always empty.
    pub(super) fn file(&self) -> Option<&File> {
        match self {
            Self::Empty => None,
            Self::Source(source) => Some(source.backing.file()),
        }
    }
}

/// An open file.
#[derive(Debug)]
pub(super) struct OpenFile {
    pub(super) ino: Ino,
    /// The process that opened it.
    pub(super) who: Who,
    /// The user whose share it counts against.
    pub(super) user: u32,
    pub(super) bytes: Bytes,
    /// `None` if it can only read.
    pub(super) writing: Option<WritingHandle>,
}

impl OpenFile {
    /// Returns the live file that it writes.
    pub(super) fn live(&self) -> Option<LiveId> {
        self.writing.as_ref().map(WritingHandle::live)
    }

    /// Reports whether it writes a live file that has an inode of its own.
    pub(super) fn is_aside(&self) -> bool {
        self.writing.as_ref().is_some_and(WritingHandle::is_aside)
    }
}

/// One name of a listing.
#[derive(Debug, Clone)]
pub(super) struct Listed {
    pub(super) name: Arc<[u8]>,
    pub(super) is_directory: bool,
}

/// An open directory. The names are those at the beginning of the listing, so that offsets stay
/// valid when the directory changes.
#[derive(Debug)]
pub(super) struct OpenDir {
    pub(super) ino: Ino,
    pub(super) who: Who,
    /// The user whose share it counts against.
    pub(super) user: u32,
    pub(super) names: Option<Arc<Vec<Listed>>>,
}

/// All open files and directories.
#[derive(Debug)]
pub(super) struct Handles {
    files: FastMap<Handle, OpenFile>,
    dirs: FastMap<Handle, OpenDir>,
    open: Shares,
    listed: Shares,
    next: u64,
}

impl Handles {
    /// Makes empty tables for a process that may have `descriptors` open. Every open file can need
    /// one.
    pub(super) fn new(descriptors: u64) -> Self {
        Self {
            files: FastMap::default(),
            dirs: FastMap::default(),
            open: Shares::new(descriptors.min(OPEN_MAX)),
            listed: Shares::new(LISTED_MAX),
            next: 0,
        }
    }

    /// Reports whether a user may open one more file or directory.
    pub(super) fn has_room(&self, user: u32) -> bool {
        self.open.has_room(user)
    }

    fn fresh(&mut self) -> Handle {
        self.next += 1;
        Handle(self.next)
    }

    pub(super) fn add_file(&mut self, file: OpenFile) -> Handle {
        let handle = self.fresh();
        self.open.add(file.user, 1);
        self.files.insert(handle, file);
        handle
    }

    pub(super) fn add_dir(&mut self, dir: OpenDir) -> Handle {
        let handle = self.fresh();
        self.open.add(dir.user, 1);
        self.dirs.insert(handle, dir);
        handle
    }

    pub(super) fn file(&self, handle: Handle) -> Option<&OpenFile> {
        self.files.get(&handle)
    }

    pub(super) fn file_mut(&mut self, handle: Handle) -> Option<&mut OpenFile> {
        self.files.get_mut(&handle)
    }

    pub(super) fn dir(&self, handle: Handle) -> Option<&OpenDir> {
        self.dirs.get(&handle)
    }

    /// Keeps the names of a listing with its handle and drops the earlier ones. Returns whether the
    /// user may have that many.
    pub(super) fn keep_names(&mut self, handle: Handle, names: &Arc<Vec<Listed>>) -> bool {
        let Some(dir) = self.dirs.get_mut(&handle) else { return true };
        let count = |names: &Arc<Vec<Listed>>| names.len() as u64;
        self.listed.give_back(dir.user, dir.names.as_ref().map_or(0, count));
        dir.names = Some(Arc::clone(names)).filter(|_| self.listed.take(dir.user, count(names)));
        dir.names.is_some()
    }

    pub(super) fn remove_file(&mut self, handle: Handle) -> Option<OpenFile> {
        let file = self.files.remove(&handle)?;
        self.open.give_back(file.user, 1);
        Some(file)
    }

    pub(super) fn remove_dir(&mut self, handle: Handle) -> Option<OpenDir> {
        let dir = self.dirs.remove(&handle)?;
        self.open.give_back(dir.user, 1);
        self.listed.give_back(dir.user, dir.names.as_ref().map_or(0, |names| names.len() as u64));
        Some(dir)
    }

    /// Counts the open files.
    pub(super) fn files(&self) -> usize {
        self.files.len()
    }

    /// Yields the handles that write a live file. Looks at every open file, so only rare cases may
    /// use it.
    pub(super) fn writers(&self, id: LiveId) -> impl Iterator<Item = (&OpenFile, &WritingHandle)> {
        let all = self.files.values().filter_map(|file| Some((file, file.writing.as_ref()?)));
        all.filter(move |(_, writing)| writing.live() == id)
    }
}

/// Returns the file type of an entry.
pub(super) fn type_of(kind: &EntryKind) -> hearthfs_mount::FileType {
    use hearthfs_mount::FileType;
    match kind {
        EntryKind::File { .. } => FileType::File,
        EntryKind::Directory => FileType::Directory,
        EntryKind::Symlink { .. } => FileType::Symlink,
        EntryKind::Special { format, .. } => match *format {
            FORMAT_FIFO => FileType::Fifo,
            FORMAT_SOCKET => FileType::Socket,
            FORMAT_CHAR => FileType::CharDevice,
            _ => FileType::BlockDevice,
        },
    }
}

/// The file type bits of `st_mode` (`inode(7)`).
pub(super) const FORMAT_MASK: u32 = 0o170_000;
pub(super) const FORMAT_FILE: u32 = 0o100_000;
pub(super) const FORMAT_FIFO: u32 = 0o010_000;
pub(super) const FORMAT_SOCKET: u32 = 0o140_000;
pub(super) const FORMAT_CHAR: u32 = 0o020_000;
pub(super) const FORMAT_BLOCK: u32 = 0o060_000;
