//! One entry, as reported by the kernel and the daemon.
//!
//! Owns reading it. Must never open the entry: that would count as a use, and fetch it.

use std::cell::Cell;
use std::ffi::OsStr;
use std::io;
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::os::unix::ffi::OsStrExt as _;

use rustix::fs::{AtFlags, FileType, Stat, lgetxattr, statat};
use rustix::io::Errno;

use crate::cli::output::note;
use crate::namespace::{FACTS_NAME, Facts};

/// The longest form of the facts, in bytes.
const FACTS_BYTES_MAX: usize = 16 << 10;

/// An entry of a directory.
#[derive(Debug)]
pub(in crate::cli) struct SeenEntry {
    /// The kernel's attributes.
    pub(in crate::cli) stat: Stat,
    /// The daemon's facts, if the caller may have them.
    pub(in crate::cli) facts: Option<Facts>,
}

/// Prints once that a mount reports less than it could.
#[derive(Debug, Default)]
pub(in crate::cli) struct Silence(Cell<bool>);

impl Silence {
    fn note(&self) {
        if !self.0.replace(true) {
            note(
                "note: the mount reports only sizes and times: its daemon has an older version, or mount.xattrs is off",
            );
        }
    }
}

impl SeenEntry {
    /// Reads a name in an open directory; follows no link.
    pub(in crate::cli) fn look(dir: &OwnedFd, name: &OsStr, silence: &Silence) -> io::Result<Self> {
        let stat = statat(dir, name, AtFlags::SYMLINK_NOFOLLOW)?;
        let facts = facts(dir, name, silence)?;
        Ok(Self { stat, facts })
    }

    /// Returns what it is, as a word.
    pub(in crate::cli) fn word(&self) -> &'static str {
        match FileType::from_raw_mode(self.stat.st_mode) {
            FileType::RegularFile => "file",
            FileType::Directory => "directory",
            FileType::Symlink => "link",
            _ => "special",
        }
    }

    /// Reports whether it is a regular file.
    pub(in crate::cli) fn is_file(&self) -> bool {
        FileType::from_raw_mode(self.stat.st_mode) == FileType::RegularFile
    }

    /// Returns the bytes of a regular file.
    pub(in crate::cli) fn size(&self) -> Option<u64> {
        self.is_file().then_some(self.stat.st_size as u64)
    }

    /// Returns its permission bits.
    pub(in crate::cli) fn mode(&self) -> u32 {
        self.stat.st_mode & 0o7777
    }

    /// Returns the number of its names.
    #[expect(clippy::useless_conversion, reason = "the type is narrower on other architectures")]
    pub(in crate::cli) fn names(&self) -> u64 {
        u64::from(self.stat.st_nlink)
    }

    /// Returns how long ago it was written, in milliseconds.
    pub(in crate::cli) fn age_ms(&self) -> Option<u64> {
        let facts = self.facts.as_ref()?;
        Some(facts.now_ms.saturating_sub(facts.written_ms?))
    }

    /// Returns how long ago its content was last used on this node, in milliseconds.
    pub(in crate::cli) fn unused_ms(&self, wall_ms: u64) -> Option<u64> {
        let used_s = self.facts.as_ref()?.content.as_ref()?.used_s?;
        Some(wall_ms.saturating_sub(used_s * 1000))
    }
}

/// Asks the daemon. No call takes a directory and a name, and the path in `/proc` starts from the
/// directory itself.
fn facts(dir: &OwnedFd, name: &OsStr, silence: &Silence) -> io::Result<Option<Facts>> {
    let mut path = format!("/proc/self/fd/{}/", dir.as_raw_fd()).into_bytes();
    path.extend_from_slice(name.as_bytes());
    let mut value = [0; FACTS_BYTES_MAX];
    let length = match lgetxattr(OsStr::from_bytes(&path), FACTS_NAME, &mut value[..]) {
        Ok(length) => length,
        // This user may not read it, it is being removed, or its facts are too long.
        Err(Errno::ACCESS | Errno::PERM | Errno::NODATA | Errno::RANGE) => return Ok(None),
        Err(Errno::OPNOTSUPP) => {
            silence.note();
            return Ok(None);
        }
        Err(error) => return Err(error.into()),
    };
    let facts = serde_json::from_slice(&value[..length]);
    if facts.is_err() {
        silence.note();
    }
    Ok(facts.ok())
}
