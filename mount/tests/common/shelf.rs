//! A small complete file system for the tests: names in memory, bytes in unlinked files.
//!
//! It follows the rules for any [`Vfs`]: inode numbers are never reused, all handles of an inode
//! share one backing, directory offsets never change, and an open never truncates a published inode
//! but leaves it to its readers.

mod calls;
mod tree;

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use hearthfs_mount::*;

use self::tree::{Kind, Open, State, attributes, directory, node};

/// The path of the bytes of all handles.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Way {
    Passthrough,
    Cached,
    Direct,
}

#[derive(Clone, Debug)]
pub(crate) struct Manners {
    pub(crate) way: Way,
    pub(crate) ttl: Duration,
    pub(crate) missing_ttl: Duration,
    /// Reads wait this long, with an [`Answer::Later`].
    pub(crate) slow_read: Option<Duration>,
    /// Whether an open that truncates a published file leads to another inode.
    pub(crate) versions: bool,
}

impl Manners {
    pub(crate) fn new(way: Way) -> Self {
        let ttl = Duration::from_mins(1);
        Self { way, ttl, missing_ttl: ttl, slow_read: None, versions: false }
    }
}

pub(crate) struct Shelf {
    manners: Manners,
    dir: PathBuf,
    state: Mutex<State>,
    /// Queried inside FLUSH, while the caller is still visible.
    pub(crate) tasks: Tasks,
    /// The result of each FLUSH: process, dying.
    pub(crate) closers: Mutex<Vec<(Option<u32>, bool)>>,
}

fn now() -> Timespec {
    #[expect(clippy::disallowed_methods, reason = "the file system of this test has no clock seam")]
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    Timespec { secs: since.as_secs() as i64, nanos: since.subsec_nanos() }
}

impl Shelf {
    pub(crate) fn new(dir: &Path, manners: Manners) -> Arc<Self> {
        let shelf = Self {
            manners,
            dir: dir.to_owned(),
            state: Mutex::default(),
            tasks: Tasks::detect(),
            closers: Mutex::default(),
        };
        let root = directory(1);
        let attr = Attr { nlink: 2, ..attributes(1, FileType::Directory, 0o777, 0, 0) };
        shelf.lock().last = 1;
        shelf.lock().nodes.insert(1, node(attr, root, None));
        Arc::new(shelf)
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap()
    }

    /// Returns the names of the requests so far, and forgets them.
    pub(crate) fn take_trace(&self) -> Vec<String> {
        std::mem::take(&mut self.lock().trace)
    }

    pub(crate) fn abilities(&self) -> Option<Abilities> {
        self.lock().abilities
    }

    /// Returns the inode number of a name in the root.
    pub(crate) fn ino_of(&self, name: &str) -> Option<u64> {
        self.lock().child(1, OsStr::new(name)).ok()
    }

    /// Removes a name as if another node had done it: without telling the kernel.
    pub(crate) fn remove_behind(&self, name: &str) {
        let mut state = self.lock();
        state.detach(1, OsStr::new(name)).unwrap();
    }

    /// Makes an empty file as if another node had done it: without telling the kernel.
    pub(crate) fn create_behind(&self, name: &str) {
        let attr = attributes(0, FileType::File, 0o644, 0, 0);
        let kind = self.new_file();
        self.lock().add(1, OsStr::new(name), attr, kind).unwrap();
    }

    /// Returns the number of known inodes.
    pub(crate) fn inodes(&self) -> usize {
        self.lock().nodes.len()
    }

    fn new_file(&self) -> Kind {
        let file = tempfile::tempfile_in(&self.dir).unwrap();
        Kind::File(Arc::new(Backing::new(file)))
    }

    fn found(&self, state: &mut State, ino: u64) -> Reply<Found> {
        let node = state.node(ino)?;
        node.lookups += 1;
        Ok(Found { attr: node.stat(), entry_ttl: self.manners.ttl, attr_ttl: self.manners.ttl })
    }

    fn opened(&self, state: &mut State, ino: u64, flags: OpenFlags) -> Reply<Opened> {
        state.last += 1;
        let handle = state.last;
        let node = state.node(ino)?;
        let Kind::File(backing) = &node.kind else { return Err(Errno::EISDIR) };
        let io = match self.manners.way {
            Way::Passthrough => Io::Passthrough(Arc::clone(backing)),
            Way::Cached => Io::Cached { keep: true },
            Way::Direct => Io::Direct,
        };
        node.handles += 1;
        state.handles.insert(handle, Open { ino, write: flags.writes() });
        Ok(Opened { handle: Handle(handle), io, no_flush: !flags.writes() })
    }

    fn make(
        &self,
        caller: &Caller,
        parent: Ino,
        name: &OsStr,
        mode: u32,
        (file_type, kind): (FileType, Kind),
    ) -> Reply<(Found, u64)> {
        let mut state = self.lock();
        let attr = attributes(0, file_type, mode, caller.uid, caller.gid);
        let ino = state.add(parent.0, name, attr, kind)?;
        Ok((self.found(&mut state, ino)?, ino))
    }

    fn trace(&self, what: &str) {
        self.lock().trace.push(what.to_owned());
    }
}
