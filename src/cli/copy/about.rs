//! What a copy needs to know about a name.
//!
//! Owns the comparison of two states of a name. Must never open anything.

use rustix::fs::{FileType, Stat, Timespec};

/// The permission bits that a new directory gets exactly as requested.
const MODE_ASKED: u32 = 0o1777;

/// Identifies a file or directory independently of its name.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) struct Id {
    pub(super) device: u64,
    number: u64,
}

/// A file, link or directory at one moment.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct About {
    pub(super) id: Id,
    kind: FileType,
    /// The permission bits, set-id bits included.
    pub(super) mode: u32,
    pub(super) uid: u32,
    pub(super) gid: u32,
    pub(super) size: u64,
    pub(super) modified: Timespec,
    pub(super) accessed: Timespec,
    /// When its content or its attributes last changed, by the clock of its machine.
    changed: Timespec,
}

#[expect(
    clippy::useless_conversion,
    clippy::unnecessary_cast,
    reason = "the fields have other types on other architectures"
)]
impl About {
    pub(super) fn of(stat: &Stat) -> Self {
        let time = |sec: i64, nsec: i64| Timespec { tv_sec: sec, tv_nsec: nsec as _ };
        Self {
            id: Id { device: u64::from(stat.st_dev), number: u64::from(stat.st_ino) },
            kind: FileType::from_raw_mode(stat.st_mode),
            mode: u32::from(stat.st_mode) & 0o7777,
            uid: stat.st_uid,
            gid: stat.st_gid,
            size: stat.st_size as u64,
            modified: time(stat.st_mtime as i64, stat.st_mtime_nsec as i64),
            accessed: time(stat.st_atime as i64, stat.st_atime_nsec as i64),
            changed: time(stat.st_ctime as i64, stat.st_ctime_nsec as i64),
        }
    }

    pub(super) fn is_file(&self) -> bool {
        self.kind == FileType::RegularFile
    }

    pub(super) fn is_link(&self) -> bool {
        self.kind == FileType::Symlink
    }

    pub(super) fn is_dir(&self) -> bool {
        self.kind == FileType::Directory
    }

    /// Returns how many bytes a copy of it has.
    pub(super) fn bytes(&self) -> u64 {
        if self.is_file() { self.size } else { 0 }
    }

    /// Reports whether it can be a directory that this process has just made with these permission
    /// bits. Bits outside [`MODE_ASKED`] depend on the parent directory.
    pub(super) fn is_made_with(&self, mode: u32) -> bool {
        self.uid == rustix::process::geteuid().as_raw() && (self.mode ^ mode) & MODE_ASKED == 0
    }

    /// Reports whether size and time are the same. Such files count as the same version: a copy
    /// takes both from its source.
    pub(super) fn is_version(&self, other: &Self) -> bool {
        (self.kind, self.size, self.modified) == (other.kind, other.size, other.modified)
    }

    /// Reports whether it is the same file, and neither its content nor its attributes have changed.
    pub(super) fn is_unchanged(&self, other: &Self) -> bool {
        self.id == other.id && self.changed == other.changed && self.is_version(other)
    }
}
