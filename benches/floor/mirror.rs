//! The state of the floor: the last name of each inode, open files, open listings.

use std::collections::HashMap;
use std::ffi::{OsStr, OsString};
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use fuser::{FileAttr, FileHandle, FileType, INodeNo};

/// The attributes that mean "no such name": inode number 0.
pub(super) const NOTHING: FileAttr = FileAttr {
    ino: INodeNo(0),
    size: 0,
    blocks: 0,
    atime: UNIX_EPOCH,
    mtime: UNIX_EPOCH,
    ctime: UNIX_EPOCH,
    crtime: UNIX_EPOCH,
    kind: FileType::RegularFile,
    perm: 0,
    nlink: 0,
    uid: 0,
    gid: 0,
    rdev: 0,
    blksize: 4096,
    flags: 0,
};

/// The names of a directory when it was opened.
pub(super) type Listing = Vec<(OsString, fs::Metadata)>;

/// The last name that led to an inode, and its open file if any.
#[derive(Debug)]
pub(super) struct Known {
    parent: u64,
    name: OsString,
    backing: Weak<Backing>,
}

/// An open file, shared by all handles of its inode.
#[derive(Debug)]
pub(super) struct Backing {
    pub(super) file: File,
    pub(super) id: Option<fuser::BackingId>,
}

#[derive(Debug)]
pub(super) struct Mirror {
    directory: PathBuf,
    pub(super) passthrough: bool,
    pub(super) requests: Arc<AtomicU64>,
    inodes: Mutex<HashMap<u64, Known>>,
    pub(super) handles: Mutex<HashMap<u64, Arc<Backing>>>,
    pub(super) listings: Mutex<HashMap<u64, Arc<Listing>>>,
    last: AtomicU64,
}

pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Returns the number of a mirrored file, unchanged; no other file has the number of the root.
fn number(meta: &fs::Metadata) -> u64 {
    meta.ino() << 1
}

fn time(secs: i64, nanos: i64) -> SystemTime {
    let nanos = Duration::from_nanos(nanos.unsigned_abs());
    let secs = Duration::from_secs(secs.unsigned_abs());
    UNIX_EPOCH.checked_add(secs).map_or(UNIX_EPOCH, |time| time + nanos)
}

pub(super) fn attr(ino: u64, meta: &fs::Metadata) -> FileAttr {
    FileAttr {
        ino: INodeNo(ino),
        size: meta.size(),
        blocks: meta.blocks(),
        atime: time(meta.atime(), meta.atime_nsec()),
        mtime: time(meta.mtime(), meta.mtime_nsec()),
        ctime: time(meta.ctime(), meta.ctime_nsec()),
        kind: FileType::from_std(meta.file_type()).unwrap_or(FileType::RegularFile),
        perm: (meta.mode() & 0o7777) as u16,
        nlink: meta.nlink() as u32,
        uid: meta.uid(),
        gid: meta.gid(),
        ..NOTHING
    }
}

impl Mirror {
    pub(super) fn new(directory: &Path, passthrough: bool, requests: Arc<AtomicU64>) -> Self {
        let root = Known { parent: 0, name: OsString::new(), backing: Weak::new() };
        Self {
            directory: directory.to_owned(),
            passthrough,
            requests,
            inodes: Mutex::new(HashMap::from([(1, root)])),
            handles: Mutex::default(),
            listings: Mutex::default(),
            last: AtomicU64::new(0),
        }
    }

    /// Returns the attributes of an inode, from its open file if there is one.
    pub(super) fn stat(&self, ino: u64) -> io::Result<FileAttr> {
        let open = lock(&self.inodes).get(&ino).and_then(|known| known.backing.upgrade());
        let meta = match open {
            Some(backing) => backing.file.metadata(),
            None => fs::symlink_metadata(self.path(ino)?),
        };
        Ok(attr(ino, &meta?))
    }

    /// Keeps the names of a directory for its listings.
    pub(super) fn open_listing(&self, ino: u64) -> io::Result<u64> {
        let names = self.list(ino)?;
        let handle = self.last.fetch_add(1, Ordering::Relaxed);
        lock(&self.listings).insert(handle, Arc::new(names));
        Ok(handle)
    }

    /// Counts a request with a waiting caller.
    pub(super) fn count(&self) {
        self.requests.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn path(&self, ino: u64) -> io::Result<PathBuf> {
        let inodes = lock(&self.inodes);
        let (mut ino, mut names) = (ino, Vec::new());
        while ino != 1 {
            let known = inodes.get(&ino).ok_or_else(|| io::Error::from(io::ErrorKind::NotFound))?;
            names.push(&known.name);
            ino = known.parent;
        }
        Ok(names.iter().rev().fold(self.directory.clone(), |path, name| path.join(name)))
    }

    pub(super) fn child(&self, parent: INodeNo, name: &OsStr) -> io::Result<PathBuf> {
        Ok(self.path(parent.0)?.join(name))
    }

    /// Records a name that leads to a file.
    pub(super) fn learn(&self, parent: INodeNo, name: &OsStr, meta: &fs::Metadata) -> FileAttr {
        let ino = number(meta);
        let mut inodes = lock(&self.inodes);
        let known = inodes.entry(ino).or_insert_with(|| Known {
            parent: parent.0,
            name: name.to_owned(),
            backing: Weak::new(),
        });
        if known.parent != parent.0 || known.name != name {
            known.parent = parent.0;
            name.clone_into(&mut known.name);
        }
        attr(ino, meta)
    }

    /// Makes a handle of a file; all handles of an inode share the first one's file.
    pub(super) fn handle(
        &self,
        ino: u64,
        open: impl FnOnce() -> io::Result<File>,
        register: impl FnOnce(&File) -> io::Result<fuser::BackingId>,
    ) -> io::Result<(u64, Arc<Backing>)> {
        let shared = lock(&self.inodes).get(&ino).and_then(|known| known.backing.upgrade());
        let backing = if let Some(shared) = shared {
            shared
        } else {
            let file = open()?;
            let id = if self.passthrough { register(&file).ok() } else { None };
            let mut inodes = lock(&self.inodes);
            let known =
                inodes.get_mut(&ino).ok_or_else(|| io::Error::from(io::ErrorKind::NotFound))?;
            // Another open may have been faster.
            known.backing.upgrade().unwrap_or_else(|| {
                let ours = Arc::new(Backing { file, id });
                known.backing = Arc::downgrade(&ours);
                ours
            })
        };
        let handle = self.last.fetch_add(1, Ordering::Relaxed);
        lock(&self.handles).insert(handle, Arc::clone(&backing));
        Ok((handle, backing))
    }

    pub(super) fn of_handle(&self, handle: FileHandle) -> io::Result<Arc<Backing>> {
        let known = lock(&self.handles).get(&handle.0).cloned();
        known.ok_or_else(|| io::ErrorKind::InvalidInput.into())
    }

    pub(super) fn list(&self, ino: u64) -> io::Result<Listing> {
        let mut names = Vec::new();
        for entry in fs::read_dir(self.path(ino)?)? {
            let entry = entry?;
            names.push((entry.file_name(), entry.metadata()?));
        }
        Ok(names)
    }
}
