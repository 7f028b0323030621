//! Inodes: the objects that the kernel refers to by number.

use std::fs::File;
use std::sync::Arc;
use std::time::Duration;

use hearthfs_mount::{Attr, Backing, Ino};
use parking_lot::Mutex;

use crate::digest::Digest;
use crate::local::Pin;
use crate::name::TreePath;
use crate::namespace::{Attrs, Entry};
use crate::stamp::Stamp;

/// The size of a version in the input of an inode number: a separator and a stamp.
const VERSION_BYTES: usize = 1 + 8 + 4 + 8;

/// The key of a name: its directory's inode, and the name. A name is in several tables, which share
/// its bytes.
pub(super) type DirEntryKey = (Ino, Arc<[u8]>);

/// The number of a live file.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub(super) struct LiveId(pub(super) u64);

/// How the open handles of an inode do their I/O. The kernel refuses a mixture with `EIO`, so the
/// first open decides for all opens while any handle is open.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Mode {
    /// The kernel reads and writes the backing file itself.
    Passthrough,
    /// Through the page cache, then through the daemon.
    Cached,
    /// Every call comes to the daemon. Each handle may have bytes of its own.
    Direct,
}

/// The file behind an inode's handles, and the pin that keeps it from eviction.
#[derive(Debug)]
pub(super) struct Source {
    pub(super) backing: Arc<Backing>,
    /// Held while something is appended: the end of the file must not move between the `fstat` and
    /// the write.
    pub(super) end: Mutex<()>,
    /// The pin of the blob, if the file is one.
    pub(super) _pin: Option<Pin>,
}

impl Source {
    pub(super) fn new(file: File, pin: Option<Pin>) -> Arc<Self> {
        Arc::new(Self { backing: Arc::new(Backing::new(file)), end: Mutex::new(()), _pin: pin })
    }
}

/// The attributes that decide which callers may open a file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct AccessRights {
    uid: u32,
    gid: u32,
    bits: u32,
}

impl AccessRights {
    /// The bits that the kernel compares. The set-user-id and set-group-id bits are left out.
    const BITS: u32 = 0o777;

    pub(super) fn of(attrs: &Attrs) -> Self {
        Self { uid: attrs.uid, gid: attrs.gid, bits: attrs.mode & Self::BITS }
    }

    /// Returns the rights that the kernel learns from these attributes.
    pub(super) fn told(attr: &Attr) -> Self {
        Self { uid: attr.uid, gid: attr.gid, bits: u32::from(attr.perm) & Self::BITS }
    }

    /// Returns owner, group and mode.
    pub(super) fn parts(self) -> (u32, u32, u32) {
        (self.uid, self.gid, self.bits)
    }
}

/// One version of a path as the namespace has it.
#[derive(Clone, Debug)]
pub(super) struct Published {
    /// The published entry, with the attributes that were seen last.
    pub(super) entry: Entry,
    /// The change that put it; `None` for a directory that was never made.
    pub(super) stamp: Option<Stamp>,
    /// Time of the last change, in milliseconds since the Unix epoch.
    pub(super) changed_ms: u64,
}

impl Published {
    /// Reports whether owner, group and mode are those of another version.
    pub(super) fn has_rights_of(&self, other: &Self) -> bool {
        let rights = |version: &Self| {
            let attrs = &version.entry.attrs;
            (attrs.uid, attrs.gid, attrs.mode)
        };
        rights(self) == rights(other)
    }

    /// Reports whether this is still what a path has. It is if the put is the same. The names of a
    /// file with hard links have a put each, so there the same content of the same file counts,
    /// too.
    pub(super) fn is(&self, entry: &Entry, stamp: Option<Stamp>) -> bool {
        match (self.entry.link, entry.link) {
            (Some(one), Some(two)) => one == two && self.entry.kind == entry.kind,
            (None, None) => self.stamp == stamp,
            _ => false,
        }
    }
}

/// What an inode is.
#[derive(Debug)]
pub(super) enum InodeKind {
    /// A directory; its attributes are in the namespace as long as it has a place.
    Directory,
    /// One published version of something that is not a directory. Its content never changes.
    Entry(Published),
    /// A file that can still be written.
    Live(LiveId),
    /// Reserved for a thread that looks again. The thread has found this version and is about to
    /// begin from it.
    Reserved(Published),
    /// A file that was written and is not an entry, as it was when its last writer left.
    Gone(Entry),
    /// Nothing, until this version is published under the public name. Its file was renamed into a
    /// draft and has another inode there, but the kernel may remember that the public name leads
    /// here. The kernel has to look that name up again.
    Stale(Published),
}

/// An object that the kernel refers to by number.
#[derive(Debug)]
pub(super) struct Inode {
    pub(super) node: InodeKind,
    /// How many lookups the kernel has counted and not yet forgotten.
    pub(super) lookups: u64,
    /// The number of threads that look again and have found this inode.
    pub(super) seats: u32,
    /// Open handles, and opens that are in flight.
    pub(super) opens: u32,
    /// The open handles that write bytes of their own (see `decide`).
    pub(super) asides: u32,
    /// How these handles do their I/O.
    pub(super) mode: Option<Mode>,
    /// Its bytes were changed through another inode, so the pages that the kernel has may be old.
    pub(super) has_stale_pages: bool,
    /// The file behind these handles, while any is open.
    pub(super) source: Option<Arc<Source>>,
    /// The names that lead here. A directory has one; a file without any was unlinked or replaced.
    pub(super) places: Vec<DirEntryKey>,
    /// The last name that led here and does not any more.
    pub(super) last: Option<DirEntryKey>,
    /// When another node's change of this directory arrived.
    pub(super) changed_elsewhere: Option<Duration>,
    /// The rights in the last answer to the kernel, which checks callers by them.
    pub(super) told: Option<AccessRights>,
}

impl Inode {
    pub(super) fn new(node: InodeKind) -> Self {
        let (mode, source, last, changed_elsewhere, told) = (None, None, None, None, None);
        Self {
            node,
            lookups: 0,
            seats: 0,
            opens: 0,
            asides: 0,
            mode,
            has_stale_pages: false,
            source,
            places: Vec::new(),
            last,
            changed_elsewhere,
            told,
        }
    }

    /// Makes an inode that has a name.
    pub(super) fn new_at(node: InodeKind, place: DirEntryKey) -> Self {
        Self { places: vec![place], ..Self::new(node) }
    }

    /// Returns the place of a directory, or one of the places of a file.
    pub(super) fn place(&self) -> Option<&DirEntryKey> {
        self.places.first()
    }

    /// Returns the live file behind this inode, if there is one.
    pub(super) fn live(&self) -> Option<LiveId> {
        if let InodeKind::Live(id) = self.node { Some(id) } else { None }
    }
}

/// Returns the inode number of a published entry. It is the same for the same version of the same
/// path, so it is unchanged after the kernel has forgotten it. A directory has no version: it keeps
/// its number, whichever node made it last. Files that are open below it are found by that number.
pub(super) fn number_of(path: &TreePath, version: Option<Stamp>) -> Ino {
    let mut bytes = Vec::with_capacity(path.as_bytes().len() + VERSION_BYTES);
    bytes.extend_from_slice(path.as_bytes());
    bytes.push(0xff);
    if let Some(stamp) = version {
        bytes.extend_from_slice(&stamp.ms.to_le_bytes());
        bytes.extend_from_slice(&stamp.counter.to_le_bytes());
        bytes.extend_from_slice(&stamp.node.0.to_le_bytes());
    }
    let digest = Digest::of(&bytes);
    let first = digest.as_bytes().first_chunk::<8>().expect("a digest has 32 bytes");
    // The upper half of the numbers is for live files; 0 and 1 are taken.
    Ino((u64::from_le_bytes(*first) >> 1).max(2))
}
