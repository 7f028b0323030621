//! Inodes: what the kernel holds on to by number.

use std::fs::File;
use std::sync::Arc;
use std::time::Duration;

use hearthfs_mount::{Attr, Backing, Ino};
use parking_lot::Mutex;

use crate::digest::Digest;
use crate::local::Pin;
use crate::namespace::{Attrs, Entry};
use crate::stamp::Stamp;

/// Where a name stands: its directory's inode and the name.
pub(super) type DirEntryKey = (Ino, Box<[u8]>);

/// Number of a live file.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub(super) struct LiveId(pub(super) u64);

/// How the open handles of an inode do their I/O. The kernel refuses a mixture with `EIO`, so the first
/// open decides for all that come while any is open.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Mode {
    /// The kernel reads and writes the backing file itself.
    Passthrough,
    /// Through the page cache, then us.
    Cached,
    /// Every call comes to us. Each handle may have bytes of its own.
    Direct,
}

/// The file behind an inode's handles, and what keeps it from eviction.
#[derive(Debug)]
pub(super) struct Source {
    pub(super) backing: Arc<Backing>,
    /// Held while something is appended: the end of the file must not move between the look and the write.
    pub(super) end: Mutex<()>,
    /// The blob it is, when it is one.
    pub(super) _pin: Option<Pin>,
}

impl Source {
    pub(super) fn new(file: File, pin: Option<Pin>) -> Arc<Self> {
        Arc::new(Self { backing: Arc::new(Backing::new(file)), end: Mutex::new(()), _pin: pin })
    }
}

/// What decides which callers may open a file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct AccessRights {
    uid: u32,
    gid: u32,
    bits: u32,
}

impl AccessRights {
    /// The bits that the kernel compares: not those that lend the rights of an owner or group.
    const BITS: u32 = 0o777;

    pub(super) fn of(attrs: &Attrs) -> Self {
        Self { uid: attrs.uid, gid: attrs.gid, bits: attrs.mode & Self::BITS }
    }

    /// Returns those that the kernel learns with these attributes.
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
    /// What was published; attributes as last seen.
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

    /// Reports whether this is still what a path has: the same put, or for a file with hard links, whose
    /// names have a put each, the same content of the same file.
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
    /// What a thread that was told to look again has found, and is about to begin from this.
    Reserved(Published),
    /// A file that was written and is no entry, as it was when its last writer left.
    Gone(Entry),
}

/// What the kernel holds on to by number.
#[derive(Debug)]
pub(super) struct Inode {
    pub(super) node: InodeKind,
    /// How many lookups the kernel has counted and not yet forgotten.
    pub(super) lookups: u64,
    /// Threads that were told to look again and have found it.
    pub(super) seats: u32,
    /// Open handles, and opens under way.
    pub(super) opens: u32,
    /// Those of them that write bytes of their own (see `decide`).
    pub(super) asides: u32,
    /// How those do their I/O.
    pub(super) mode: Option<Mode>,
    /// The file behind them, while any is open.
    pub(super) source: Option<Arc<Source>>,
    /// The names that lead here. A directory has one; none means unlinked or replaced.
    pub(super) places: Vec<DirEntryKey>,
    /// The last name that led here and does not any more.
    pub(super) last: Option<DirEntryKey>,
    /// When another node's change of this directory arrived.
    pub(super) changed_elsewhere: Option<Duration>,
    /// The rights that the kernel was told last: it checks callers by these.
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
            source,
            places: Vec::new(),
            last,
            changed_elsewhere,
            told,
        }
    }

    /// Returns the one place of a directory, or some place of a file.
    pub(super) fn place(&self) -> Option<&DirEntryKey> {
        self.places.first()
    }

    /// Returns the live file that it is.
    pub(super) fn live(&self) -> Option<LiveId> {
        if let InodeKind::Live(id) = self.node { Some(id) } else { None }
    }
}

/// Returns the inode number that a published entry gets when the kernel first hears of it: the same
/// for the same version of the same path, so that it survives being forgotten.
pub(super) fn number_of(path: &[u8], version: &[u8]) -> Ino {
    let mut bytes = Vec::with_capacity(path.len() + version.len() + 1);
    bytes.extend_from_slice(path);
    bytes.push(0xff);
    bytes.extend_from_slice(version);
    let digest = Digest::of(&bytes);
    let first = digest.as_bytes().first_chunk::<8>().expect("a digest has 32 bytes");
    // The upper half of the numbers is for live files; 0 and 1 are taken.
    Ino((u64::from_le_bytes(*first) >> 1).max(2))
}
