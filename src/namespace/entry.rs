//! Entries: what a path points to.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::digest::Digest;
use crate::stamp::Stamp;

/// The largest sum of the extended attributes of one entry, names and values, that a node accepts.
pub const XATTR_TOTAL_BYTES_MAX: usize = 64 * 1024;
/// The largest sum that programs on this node can create for one entry: about the limit of ext4. An
/// entry above it, from another node or an earlier release, can still be read and made smaller.
pub const XATTR_ENTRY_BYTES_MAX: usize = 4 * 1024;
/// The largest sum of all extended attributes that programs on this node can create. They are kept in memory.
pub const XATTR_SUM_BYTES_MAX: u64 = 16 << 20;

/// The name of the extended attribute in which an encoded entry carries how long it took to make.
/// Older versions keep it and pass it on, like any attribute.
pub const TOOK_NAME: &[u8] = b"user.hearthfs.took";

/// A time stamp of a file: seconds and nanoseconds since the Unix epoch; may be before it.
#[derive(
    Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default, Serialize, Deserialize,
)]
pub struct Time {
    /// Whole seconds since the Unix epoch.
    pub secs: i64,
    /// Additional nanoseconds, below one thousand million.
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

/// Extended attributes of the `user.` kind; `None` if there are none, the usual case.
pub type Xattrs = Option<Box<BTreeMap<Box<[u8]>, Box<[u8]>>>>;

/// The properties of an entry that can change without a new content.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(from = "WrittenAttrs", into = "WrittenAttrs")]
pub struct Attrs {
    /// Permission bits, including set-id and sticky.
    pub mode: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Time of the last change of content; set when written, the same on every node.
    pub mtime: Time,
    /// Time of the last access as a program set it; reads do not change it.
    pub atime: Time,
    /// Extended attributes.
    pub xattrs: Xattrs,
    /// How long its content took to make, in milliseconds; 0 if unknown.
    pub took_ms: u32,
}

/// The encoded form of attributes: that of the first version, to which no field can be added.
#[derive(Serialize, Deserialize)]
struct WrittenAttrs {
    mode: u32,
    uid: u32,
    gid: u32,
    mtime: Time,
    atime: Time,
    xattrs: Xattrs,
}

impl From<WrittenAttrs> for Attrs {
    fn from(written: WrittenAttrs) -> Self {
        let WrittenAttrs { mode, uid, gid, mtime, atime, xattrs } = written;
        let (xattrs, took_ms) = split_xattrs(xattrs);
        Self { mode, uid, gid, mtime, atime, xattrs, took_ms }
    }
}

impl From<Attrs> for WrittenAttrs {
    fn from(attrs: Attrs) -> Self {
        let joined = attrs.written_xattrs();
        let Attrs { mode, uid, gid, mtime, atime, xattrs, .. } = attrs;
        Self { mode, uid, gid, mtime, atime, xattrs: joined.or(xattrs) }
    }
}

/// Splits the time that the content took to make from encoded attributes.
pub fn split_xattrs(mut written: Xattrs) -> (Xattrs, u32) {
    let Some(all) = &mut written else { return (None, 0) };
    let Some(took) = all.remove(TOOK_NAME) else { return (written, 0) };
    if all.is_empty() {
        written = None;
    }
    let took_ms = std::str::from_utf8(&took).ok().and_then(|text| text.parse().ok());
    (written, took_ms.unwrap_or(0))
}

/// The kind of an entry, with the data specific to it.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum EntryKind {
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
    /// The kind of the entry.
    pub kind: EntryKind,
    /// The properties that can change without a new content.
    pub attrs: Attrs,
    /// The group of hard links that this path belongs to; `None` for the only name of a file.
    pub link: Option<Stamp>,
}

impl Attrs {
    /// Returns the extended attributes as they are encoded, if that differs from [`Attrs::xattrs`].
    pub fn written_xattrs(&self) -> Xattrs {
        (self.took_ms > 0).then(|| {
            let mut all = self.xattrs.clone().unwrap_or_default();
            all.insert(TOOK_NAME.into(), self.took_ms.to_string().into_bytes().into());
            all
        })
    }

    /// Counts the bytes of the extended attributes that programs have set, names and values.
    pub fn xattr_bytes(&self) -> usize {
        let all = self.xattrs.iter().flat_map(|all| all.iter());
        all.map(|(name, value)| name.len() + value.len()).sum()
    }
}

impl Entry {
    /// Makes a directory entry.
    pub fn directory(mode: u32, uid: u32, gid: u32, now: Time) -> Self {
        Self {
            kind: EntryKind::Directory,
            attrs: Attrs { mode, uid, gid, mtime: now, atime: now, ..Attrs::default() },
            link: None,
        }
    }

    /// Reports whether this is a directory.
    pub fn is_directory(&self) -> bool {
        matches!(self.kind, EntryKind::Directory)
    }

    /// Returns the content of a regular file.
    pub fn content(&self) -> Option<(Digest, u64)> {
        match self.kind {
            EntryKind::File { digest, size } => Some((digest, size)),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn attrs() -> Attrs {
        let xattrs = BTreeMap::from([(b"user.note"[..].into(), b"x"[..].into())]);
        let times = (Time::from_ms(1), Time::from_ms(2));
        let (mtime, atime) = times;
        Attrs { mode: 0o644, uid: 1, gid: 2, mtime, atime, xattrs: Some(xattrs.into()), took_ms: 0 }
    }

    /// The form that the first version reads and writes.
    #[derive(Serialize, Deserialize)]
    struct First {
        mode: u32,
        uid: u32,
        gid: u32,
        mtime: Time,
        atime: Time,
        xattrs: Xattrs,
    }

    fn passed_on(attrs: &Attrs) -> (Attrs, Xattrs) {
        let bytes = postcard::to_stdvec(attrs).unwrap();
        let first: First = postcard::from_bytes(&bytes).unwrap();
        let again = postcard::to_stdvec(&first).unwrap();
        assert_eq!(again, bytes);
        (postcard::from_bytes(&again).unwrap(), first.xattrs)
    }

    #[test]
    fn the_first_version_passes_on_what_an_entry_took() {
        let plain = attrs();
        assert_eq!(passed_on(&plain), (plain.clone(), plain.xattrs.clone()), "nothing is added");
        for took_ms in [1, 41_000, u32::MAX] {
            let took = Attrs { took_ms, ..attrs() };
            let (read, xattrs) = passed_on(&took);
            assert_eq!(read, took);
            let text = took_ms.to_string();
            assert_eq!(xattrs.unwrap().get(TOOK_NAME).map(|v| &**v), Some(text.as_bytes()));
            let bare = Attrs { xattrs: None, ..took };
            assert_eq!(passed_on(&bare).0, bare);
        }
    }

    #[test]
    fn what_an_entry_took_is_no_attribute_of_a_program() {
        let took = Attrs { took_ms: 7, ..attrs() };
        assert_eq!(took.xattr_bytes(), attrs().xattr_bytes());
        for text in [&b""[..], b"-1", b"99999999999", b"\xff", b"7 "] {
            let written = BTreeMap::from([(TOOK_NAME.into(), text.into())]);
            assert_eq!(split_xattrs(Some(written.into())), (None, 0), "{text:?}");
        }
    }
}
