//! Entries: what a path points to.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::digest::Digest;
use crate::stamp::Stamp;

/// The most that the extended attributes of one entry may take together, names and values, for a node to
/// accept it.
pub const XATTR_TOTAL_BYTES_MAX: usize = 64 * 1024;
/// The most that programs on this node may make of them for one entry: about what ext4 takes. What is above,
/// by another node or an earlier release, can still be read and made smaller.
pub const XATTR_ENTRY_BYTES_MAX: usize = 4 * 1024;
/// The most that programs on this node may bring the attributes of the whole namespace to. They are in memory.
pub const XATTR_SUM_BYTES_MAX: u64 = 16 << 20;

/// A time stamp of a file: seconds since the Unix epoch, which may lie before it, and nanoseconds.
#[derive(
    Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default, Serialize, Deserialize,
)]
pub struct Time {
    /// Whole seconds since the Unix epoch.
    pub secs: i64,
    /// Nanoseconds beyond, below one thousand million.
    pub nanos: u32,
}

impl Time {
    /// Makes a time from milliseconds since the Unix epoch.
    pub fn from_ms(ms: u64) -> Self {
        Self { secs: (ms / 1000) as i64, nanos: (ms % 1000) as u32 * 1_000_000 }
    }

    /// Makes a time from the duration since the Unix epoch.
    pub fn from_wall(wall: std::time::Duration) -> Self {
        Self { secs: wall.as_secs() as i64, nanos: wall.subsec_nanos() }
    }
}

/// Extended attributes of the `user.` kind; `None` when there are none, which is nearly always.
pub type Xattrs = Option<Box<BTreeMap<Box<[u8]>, Box<[u8]>>>>;

/// What can change of an entry without a new content.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Attrs {
    /// Permission bits, including set-id and sticky.
    pub mode: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Time of the last change of content; set when written, the same on every node.
    pub mtime: Time,
    /// Time of the last access as a program set it; reads do not move it.
    pub atime: Time,
    /// Extended attributes.
    pub xattrs: Xattrs,
}

/// What sort of thing an entry is, with what defines it.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Kind {
    /// A regular file.
    File {
        /// Its content.
        digest: Digest,
        /// Bytes of content.
        size: u64,
    },
    /// A directory.
    Directory,
    /// A symbolic link.
    Symlink {
        /// Where it points; any bytes.
        target: Box<[u8]>,
    },
    /// A FIFO, socket or device node.
    Special {
        /// The file type bits of `st_mode`.
        format: u32,
        /// The device number, for device nodes.
        rdev: u32,
    },
}

/// What a path points to.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Entry {
    /// What sort of thing it is.
    pub kind: Kind,
    /// What can change without a new content.
    pub attrs: Attrs,
    /// The group of hard links that this path belongs to; `None` for the only name of a file.
    pub link: Option<Stamp>,
}

impl Attrs {
    /// Counts the bytes of the extended attributes, names and values.
    pub fn xattr_bytes(&self) -> usize {
        let all = self.xattrs.iter().flat_map(|all| all.iter());
        all.map(|(name, value)| name.len() + value.len()).sum()
    }
}

impl Entry {
    /// Makes a directory entry.
    pub fn directory(mode: u32, uid: u32, gid: u32, now: Time) -> Self {
        Self {
            kind: Kind::Directory,
            attrs: Attrs { mode, uid, gid, mtime: now, atime: now, xattrs: None },
            link: None,
        }
    }

    /// Reports whether this is a directory.
    pub fn is_directory(&self) -> bool {
        matches!(self.kind, Kind::Directory)
    }

    /// Returns the content of a regular file.
    pub fn content(&self) -> Option<(Digest, u64)> {
        match self.kind {
            Kind::File { digest, size } => Some((digest, size)),
            _ => None,
        }
    }
}
