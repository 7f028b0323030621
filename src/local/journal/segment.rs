//! Segments: the files that the journal consists of.
//!
//! ```text
//! 0   8  "hearthJ\n"
//! 8   4  format version, little-endian
//! 12 32  the key of the records' sums, random
//! 44  4  first bytes of BLAKE3 over the 44 before
//! 48 48  the same again: without the key, no record can be read
//! 96  .. records, see `record`
//! ```
//!
//! A header of version 1 has no key: its sum is at 12, and the records begin at 16. This build reads
//! such segments, and writes none.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use super::record::SumKey;
use crate::task;

/// The bytes before the first record.
pub(super) const HEADER_BYTES: u64 = 2 * COPY_BYTES as u64;
/// The format that this build writes, and the newest it reads.
pub(super) const VERSION: u32 = 2;
const MAGIC: &[u8; 8] = b"hearthJ\n";
/// The bytes of each copy of the header, and those before its sum.
const COPY_BYTES: usize = 48;
const SUMMED_BYTES: usize = COPY_BYTES - 4;
/// The bytes of a header of version 1, and those before its sum.
const V1_BYTES: usize = 16;
const V1_SUMMED_BYTES: usize = V1_BYTES - 4;

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

/// Makes a new segment for records from `first` on. Also returns the key of its records.
///
/// An existing file of that name holds only unacknowledged bytes, and is replaced.
pub(super) fn create(dir: &Path, first: u64) -> io::Result<(Segment, File, SumKey)> {
    let path = path_of(dir, first, Form::Log);
    let header = Header::random();
    let file = create_file(&path, &header)?;
    Ok((Segment::new(path, first), file, header.key))
}

/// Makes a file with nothing but a header.
pub(super) fn create_file(path: &Path, header: &Header) -> io::Result<File> {
    let file = OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(path)?;
    if let Err(e) = file.write_all_at(&header.bytes(), 0) {
        drop(fs::remove_file(path));
        return Err(e);
    }
    Ok(file)
}

/// What precedes the records of a segment.
#[derive(Debug)]
pub(super) struct Header {
    pub(super) version: u32,
    pub(super) key: SumKey,
    /// Whether one of its two copies is damaged.
    pub(super) damaged: bool,
}

impl Header {
    /// Returns one for a new segment.
    pub(super) fn random() -> Self {
        let mut key = [0; blake3::KEY_LEN];
        for part in key.chunks_exact_mut(8) {
            part.copy_from_slice(&task::random_u64().to_le_bytes());
        }
        Self { version: VERSION, key: SumKey::Secret(key), damaged: false }
    }

    /// Reads the header of a segment; `None` if it is torn or damaged.
    pub(super) fn read(bytes: &[u8]) -> Option<Self> {
        let copies = [0, COPY_BYTES].map(|at| copy(bytes.get(at..at + COPY_BYTES)?));
        let damaged = bytes.len() >= 2 * COPY_BYTES && copies[0] != copies[1];
        let keyed = copies.into_iter().flatten().next();
        let keyed = keyed.map(|(version, key)| Self { version, key: SumKey::Secret(key), damaged });
        keyed.or_else(|| {
            let is_v1 = version_of(bytes, V1_SUMMED_BYTES)? == 1;
            is_v1.then_some(Self { version: 1, key: SumKey::Public, damaged: false })
        })
    }

    /// Returns where the records begin.
    pub(super) fn end(&self) -> u64 {
        match self.key {
            SumKey::Secret(_) => HEADER_BYTES,
            SumKey::Public => V1_BYTES as u64,
        }
    }

    /// Encodes it.
    fn bytes(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(HEADER_BYTES as usize);
        bytes.extend_from_slice(MAGIC);
        bytes.extend_from_slice(&self.version.to_le_bytes());
        let copies = match &self.key {
            SumKey::Secret(key) => {
                bytes.extend_from_slice(key);
                2
            }
            SumKey::Public => 1,
        };
        let sum = blake3::hash(&bytes);
        bytes.extend_from_slice(&sum.as_bytes()[..4]);
        bytes.repeat(copies)
    }
}

/// Reads a copy of a header with a key.
fn copy(bytes: &[u8]) -> Option<(u32, [u8; blake3::KEY_LEN])> {
    let version = version_of(bytes, SUMMED_BYTES)?;
    let key = bytes[V1_SUMMED_BYTES..SUMMED_BYTES].try_into().expect("as long as a key");
    Some((version, key))
}

/// Returns the version of a header whose sum is over the first `summed` bytes, and follows them.
fn version_of(bytes: &[u8], summed: usize) -> Option<u32> {
    let (header, sum) = bytes.get(..summed + 4)?.split_at(summed);
    if header[..8] != MAGIC[..] || sum != &blake3::hash(header).as_bytes()[..4] {
        return None;
    }
    Some(u32::from_le_bytes(header[8..12].try_into().expect("four bytes")))
}
