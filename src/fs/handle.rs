//! Handles: open files and open directories.

use std::fs::File;
use std::sync::Arc;

use hearthfs_mount::Ino;

use super::inode::{GenId, Source};
use super::who::Who;
use crate::namespace::Kind;

/// What a handle reads and writes when its calls come to us.
#[derive(Debug, Clone)]
pub(super) enum Bytes {
    /// No bytes, and there never will be any.
    Empty,
    /// The file of its inode or of its generation.
    Source(Arc<Source>),
}

impl Bytes {
    /// Returns the file, unless the content is empty for good.
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
    /// Who opened it.
    pub(super) who: Who,
    pub(super) write: bool,
    /// Writes go to the end, wherever the kernel believes that to be: it counts by the inode, on which
    /// others may stand who have bytes of their own.
    pub(super) to_the_end: bool,
    pub(super) bytes: Bytes,
    /// The generation that it writes, or reads before it is published.
    pub(super) generation: Option<GenId>,
    /// Its opener has closed it. Descriptors that were inherited or duplicated may still be open.
    pub(super) closed: bool,
    /// Somebody closed a descriptor of it in an orderly way.
    pub(super) flushed: bool,
}

/// One name of a listing.
#[derive(Debug, Clone)]
pub(super) struct Listed {
    pub(super) name: Box<[u8]>,
    pub(super) file_type: hearthfs_mount::FileType,
    pub(super) ino: Ino,
}

/// An open directory. The names are those of the moment when the listing began, so that offsets stay
/// true however the directory moves.
#[derive(Debug)]
pub(super) struct OpenDir {
    pub(super) ino: Ino,
    pub(super) who: Who,
    pub(super) names: Option<Arc<Vec<Listed>>>,
}

/// Returns the file type of an entry.
pub(super) fn type_of(kind: &Kind) -> hearthfs_mount::FileType {
    use hearthfs_mount::FileType;
    match kind {
        Kind::File { .. } => FileType::File,
        Kind::Directory => FileType::Directory,
        Kind::Symlink { .. } => FileType::Symlink,
        Kind::Special { format, .. } => match *format {
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
