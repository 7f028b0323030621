//! Segments: the files that the journal consists of.
//!
//! ```text
//! 0   8  "hearthJ\n"
//! 8   4  format version, little-endian
//! 12  4  first bytes of BLAKE3 over the twelve before
//! 16  .. records, see `record`
//! ```
//!
//! The sums of a segment of version 1 have no key. This build reads such segments, and begins none.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

/// The bytes before the first record.
pub(super) const HEADER_BYTES: u64 = 16;
/// The format that this build writes, and the newest it reads.
pub(super) const VERSION: u32 = 2;
const MAGIC: &[u8; 8] = b"hearthJ\n";

/// The known facts about one segment.
#[derive(Debug, Clone)]
pub(super) struct Segment {
    path: PathBuf,
    first: u64,
    /// The number of its last record; `first - 1` when it has none.
    last: u64,
    records: u64,
    bytes: u64,
    changes: u64,
}

impl Segment {
    pub(super) fn new(path: PathBuf, first: u64) -> Self {
        Self { path, first, last: first - 1, records: 0, bytes: 0, changes: 0 }
    }

    /// Counts a new record.
    pub(super) fn add(&mut self, seq: u64, bytes: u64, changes: u64) {
        self.last = seq;
        self.records += 1;
        self.bytes += bytes;
        self.changes += changes;
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    pub(super) fn set_path(&mut self, path: PathBuf) {
        self.path = path;
    }

    pub(super) fn first(&self) -> u64 {
        self.first
    }

    pub(super) fn last(&self) -> u64 {
        self.last
    }

    pub(super) fn changes(&self) -> u64 {
        self.changes
    }

    pub(super) fn is_empty(&self) -> bool {
        self.records == 0
    }

    /// Returns how many records, and about how many bytes, come after `acked`.
    pub(super) fn after(&self, acked: u64) -> (u64, u64) {
        if self.last <= acked || self.records == 0 {
            return (0, 0);
        }
        // Numbers have no gaps, except where a record was damaged.
        let records = (self.last - acked).min(self.records);
        let bytes = u128::from(self.bytes) * u128::from(records) / u128::from(self.records);
        (records, bytes as u64)
    }
}

/// The kind of a segment, as its name shows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Form {
    /// Records as they were appended.
    Log,
    /// A snapshot: replaces everything with smaller numbers.
    Snapshot,
}

impl Form {
    fn extension(self) -> &'static str {
        match self {
            Self::Log => "log",
            Self::Snapshot => "snap",
        }
    }
}

/// Returns the path of the segment whose first record is `first`.
pub(super) fn path_of(dir: &Path, first: u64, form: Form) -> PathBuf {
    dir.join(format!("{first:016x}.{}", form.extension()))
}

/// Reads the number and form from a name; `None` for any other name.
pub(super) fn parse_name(name: &str) -> Option<(u64, Form)> {
    let (number, extension) = name.split_once('.')?;
    let form = match extension {
        "log" => Form::Log,
        "snap" => Form::Snapshot,
        _ => return None,
    };
    if number.len() != 16 {
        return None;
    }
    u64::from_str_radix(number, 16).ok().filter(|first| *first > 0).map(|first| (first, form))
}

/// Makes a new segment for records from `first` on.
///
/// An existing file of that name holds only unacknowledged bytes, and is replaced.
pub(super) fn create(dir: &Path, first: u64) -> io::Result<(Segment, File)> {
    let path = path_of(dir, first, Form::Log);
    let file = create_file(&path, VERSION)?;
    Ok((Segment::new(path, first), file))
}

/// Makes a file with nothing but the header of a version.
pub(super) fn create_file(path: &Path, version: u32) -> io::Result<File> {
    let file = OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(path)?;
    if let Err(e) = file.write_all_at(&header(version), 0) {
        drop(fs::remove_file(path));
        return Err(e);
    }
    Ok(file)
}

fn header(version: u32) -> [u8; HEADER_BYTES as usize] {
    let mut bytes = [0; HEADER_BYTES as usize];
    bytes[..8].copy_from_slice(MAGIC);
    bytes[8..12].copy_from_slice(&version.to_le_bytes());
    let sum = blake3::hash(&bytes[..12]);
    bytes[12..].copy_from_slice(&sum.as_bytes()[..4]);
    bytes
}

/// Reads the version of a segment; `None` when the header is torn or damaged.
pub(super) fn version_of(bytes: &[u8]) -> Option<u32> {
    let header = bytes.get(..HEADER_BYTES as usize)?;
    let sum = blake3::hash(&header[..12]);
    if header[..8] != MAGIC[..] || header[12..] != sum.as_bytes()[..4] {
        return None;
    }
    Some(u32::from_le_bytes(header[8..12].try_into().expect("four bytes")))
}
