//! Segments: the files that the journal consists of.
//!
//! ```text
//! 0   8  "hearthJ\n"
//! 8   4  format version, little-endian
//! 12  4  first bytes of BLAKE3 over the twelve before
//! 16 32  the key of the records' sums, random
//! 48  4  first bytes of BLAKE3 over the 48 before
//! 52 52  the same again: without the key, no record can be read
//! 104 .. records, see `record`
//! ```
//!
//! A header of version 1 ends before the key, and the records begin there. This build reads such
//! segments, and writes none. Every later version begins with the same 16 bytes, so that every build
//! recognizes what it cannot read.

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
/// The bytes of each copy of the header.
const COPY_BYTES: usize = START_BYTES + blake3::KEY_LEN + SUM_BYTES;
/// The bytes before the key, which are a whole header of version 1.
const START_BYTES: usize = 8 + 4 + SUM_BYTES;
const SUM_BYTES: usize = 4;

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
        if let Some(version) = version_of(bytes).filter(|version| *version != VERSION) {
            return Some(Self { version, key: SumKey::Public, damaged: false });
        }
        let copies = [0, COPY_BYTES].map(|at| key_of(bytes.get(at..at + COPY_BYTES)?));
        let damaged = bytes.len() >= 2 * COPY_BYTES && copies[0] != copies[1];
        let key = SumKey::Secret(copies.into_iter().flatten().next()?);
        Some(Self { version: VERSION, key, damaged })
    }

    /// Returns where the records begin.
    pub(super) fn end(&self) -> u64 {
        match self.key {
            SumKey::Secret(_) => HEADER_BYTES,
            SumKey::Public => START_BYTES as u64,
        }
    }

    /// Encodes it.
    fn bytes(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(HEADER_BYTES as usize);
        bytes.extend_from_slice(MAGIC);
        bytes.extend_from_slice(&self.version.to_le_bytes());
        bytes.extend_from_slice(&sum(&bytes));
        match &self.key {
            SumKey::Secret(key) => {
                bytes.extend_from_slice(key);
                bytes.extend_from_slice(&sum(&bytes));
                bytes.repeat(2)
            }
            SumKey::Public => bytes,
        }
    }
}

fn sum(bytes: &[u8]) -> [u8; SUM_BYTES] {
    blake3::hash(bytes).as_bytes()[..SUM_BYTES].try_into().expect("as long as a sum")
}

/// Returns what precedes the sum at the end of `bytes`, if the sum is right.
fn summed(bytes: &[u8]) -> Option<&[u8]> {
    let (body, found) = bytes.split_at_checked(bytes.len().checked_sub(SUM_BYTES)?)?;
    (found == sum(body)).then_some(body)
}

/// Reads the key of one copy of a header of the present version.
fn key_of(copy: &[u8]) -> Option<[u8; blake3::KEY_LEN]> {
    let body = summed(copy)?;
    (version_of(body)? == VERSION).then(|| body[START_BYTES..].try_into().expect("only the key"))
}

/// Reads the version of a header.
fn version_of(header: &[u8]) -> Option<u32> {
    let version = summed(header.get(..START_BYTES)?)?.strip_prefix(MAGIC)?;
    Some(u32::from_le_bytes(version.try_into().expect("four bytes")))
}
