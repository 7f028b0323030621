//! What must hold in a commit or a checkpoint for readers to rely on it.
//!
//! Owns the rules; the writer and every reader apply them. Must never accept a value that could
//! choose a key or a path outside our layout.

use super::frame::FRAME_RAW_BYTES_MAX;
use super::keys;
use super::pack::PACK_BYTES_MAX;
use crate::digest::Digest;
use crate::error::{Error, Kind, Result};
use crate::name::TreePath;
use crate::namespace::{
    Attrs, BlobAt, BlobPlace, Change, Commit, Entry, EntryKind, Location, Op, Register, Site, Time,
    XATTR_TOTAL_BYTES_MAX,
};

/// The largest blob that lies in the commit itself.
pub const INLINE_BYTES_MAX: usize = 64 * 1024;
/// The first tag of extensions that must not be skipped.
pub(super) const REQUIRED_TAGS_FROM: u16 = 32_768;
/// The longest target of a symbolic link (`PATH_MAX` with its NUL).
const TARGET_BYTES_MAX: usize = 4095;
/// Permission bits, set-id and sticky.
const MODE_BITS: u32 = 0o7777;
/// The file type bits of `st_mode`.
const FORMAT_BITS: u32 = 0o170_000;

/// Checks a commit.
pub(super) fn commit(commit: &Commit) -> Result<()> {
    if let Some((tag, _)) = commit.extensions.range(REQUIRED_TAGS_FROM..).next() {
        let op =
            format!("commit has the newer format's extension {tag}; bring hearthfs up to date");
        return Err(Error::new(Kind::Invalid, op));
    }
    let wrong = |what: &str| {
        let op = format!("commit {} of node {}: {what}", commit.stamp.sortable(), commit.node);
        Error::new(Kind::Corrupt, op)
    };
    if commit.stamp.node != commit.node {
        return Err(wrong("its stamp belongs to another node"));
    }
    if !commit.packs.iter().all(|name| keys::pack_stamp(name).is_some()) {
        return Err(wrong("a pack has an impossible name"));
    }
    for blob_at in &commit.blobs {
        blob(blob_at, commit.packs.len()).map_err(wrong)?;
    }
    commit.changes.iter().try_for_each(change).map_err(wrong)
}

fn blob(blob: &BlobAt, packs: usize) -> std::result::Result<(), &'static str> {
    match &blob.place {
        BlobPlace::Inline(bytes) => {
            if bytes.len() > INLINE_BYTES_MAX || bytes.len() as u64 != blob.size {
                return Err("an inline blob has another size");
            }
            if Digest::of(bytes) != blob.digest {
                return Err("an inline blob does not match its digest");
            }
        }
        BlobPlace::Pack { pack, offset, length } => {
            if *pack as usize >= packs {
                return Err("a blob is in a pack that is not named");
            }
            packed(*offset, *length, blob.size)?;
        }
        BlobPlace::Object => {}
    }
    Ok(())
}

fn packed(offset: u64, length: u32, size: u64) -> std::result::Result<(), &'static str> {
    let end = offset.checked_add(u64::from(length));
    if length == 0 || end.is_none_or(|end| end > PACK_BYTES_MAX) {
        return Err("a blob is outside its pack");
    }
    if size > FRAME_RAW_BYTES_MAX {
        return Err("a blob is too large for a pack");
    }
    Ok(())
}

/// Checks a location, except the names in it.
pub(super) fn location(location: &Location) -> std::result::Result<(), &'static str> {
    match &location.site {
        Site::Pack { offset, length, .. } => packed(*offset, *length, location.size),
        Site::Inline { .. } if location.size > INLINE_BYTES_MAX as u64 => {
            Err("a blob is too large for a commit")
        }
        Site::Inline { .. } | Site::Object => Ok(()),
    }
}

/// Checks a register.
pub(super) fn register(
    path: &TreePath,
    register: &Register,
) -> std::result::Result<(), &'static str> {
    content(path, register.entry.as_ref())
}

fn change(change: &Change) -> std::result::Result<(), &'static str> {
    match &change.op {
        Op::Put(entry) => content(&change.path, Some(entry)),
        Op::Remove => content(&change.path, None),
        Op::Attrs { attrs: all, .. } => attrs(all),
    }
}

fn content(path: &TreePath, entry: Option<&Entry>) -> std::result::Result<(), &'static str> {
    match entry {
        Some(entry) if path.is_root() && !entry.is_directory() => {
            Err("the root is replaced by something other than a directory")
        }
        Some(entry) => put(entry),
        None if path.is_root() => Err("the root is removed"),
        None => Ok(()),
    }
}

fn put(entry: &Entry) -> std::result::Result<(), &'static str> {
    match &entry.kind {
        EntryKind::Symlink { target } => {
            if target.is_empty() || target.len() > TARGET_BYTES_MAX || target.contains(&0) {
                return Err("a symbolic link has an impossible target");
            }
        }
        EntryKind::Special { format, .. } => {
            if format & !FORMAT_BITS != 0 {
                return Err("a special file has an impossible type");
            }
        }
        EntryKind::File { .. } | EntryKind::Directory => {}
    }
    attrs(&entry.attrs)
}

pub(super) fn attrs(attrs: &Attrs) -> std::result::Result<(), &'static str> {
    if attrs.mode & !MODE_BITS != 0 {
        return Err("an entry has impossible permissions");
    }
    let possible = |time: &Time| time.nanos < 1_000_000_000;
    if !possible(&attrs.mtime) || !possible(&attrs.atime) {
        return Err("an entry has an impossible time");
    }
    if attrs.xattr_bytes() > XATTR_TOTAL_BYTES_MAX {
        return Err("an entry has too many extended attributes");
    }
    Ok(())
}
