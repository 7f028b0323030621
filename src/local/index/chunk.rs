//! Chunks: many facts in one compressed value.
//!
//! sled keeps a great deal of memory and disk for each key, so there are few keys and large values:
//! a value is the era of its seals (8 bytes), then a zstd frame of facts, each one
//!
//! ```text
//! 4  bytes of the key, little-endian
//! 4  bytes of the value, or ffffffff where the key is forgotten
//! .. key, value
//! ```

use super::IndexTrouble;

/// Approximate raw bytes of facts in one chunk; a single fact may be larger. sled puts values
/// beyond some ten thousand bytes into separate files, which it handles badly.
const CHUNK_BYTES: usize = 32 << 10;
/// The fastest level: the index is written all the time and read once.
pub(super) const LEVEL: i32 = 1;
/// More bytes than any chunk unpacks to; a damaged chunk may claim any size.
const UNPACKED_MAX_BYTES: usize = 64 << 20;
const FORGOTTEN: u32 = u32::MAX;

/// Packs facts into chunks.
pub(super) struct Packer {
    era: u64,
    raw: Vec<u8>,
    count: u64,
}

impl Packer {
    pub(super) fn new(era: u64) -> Self {
        Self { era, raw: Vec::new(), count: 0 }
    }

    /// Adds a fact; returns a chunk when one is full.
    pub(super) fn add(
        &mut self,
        key: &[u8],
        value: Option<&[u8]>,
    ) -> Result<Option<Vec<u8>>, IndexTrouble> {
        self.count += 1;
        append(&mut self.raw, key, value);
        if self.raw.len() < CHUNK_BYTES { Ok(None) } else { self.finish() }
    }

    /// Returns the facts added since the last chunk, if there are any.
    pub(super) fn finish(&mut self) -> Result<Option<Vec<u8>>, IndexTrouble> {
        if self.raw.is_empty() {
            return Ok(None);
        }
        let packed = zstd::bulk::compress(&self.raw, LEVEL).map_err(|e| e.to_string())?;
        self.raw.clear();
        let mut chunk = self.era.to_le_bytes().to_vec();
        chunk.extend_from_slice(&packed);
        Ok(Some(chunk))
    }

    /// Counts the facts that were added.
    pub(super) fn count(&self) -> u64 {
        self.count
    }
}

/// The unpacked facts of one chunk.
pub(super) struct Unpacked {
    /// The era of its seals.
    pub(super) era: u64,
    pub(super) raw: Vec<u8>,
}

impl Unpacked {
    pub(super) fn new(chunk: &[u8]) -> Result<Self, IndexTrouble> {
        let (era, packed) = chunk.split_first_chunk::<8>().ok_or("a chunk is too short")?;
        let size = zstd::zstd_safe::get_frame_content_size(packed).ok().flatten();
        let size = size.map_or(0, |size| size as usize);
        if size > UNPACKED_MAX_BYTES {
            return Err("a chunk is too large".into());
        }
        let raw = zstd::bulk::decompress(packed, size).map_err(|e| e.to_string())?;
        Ok(Self { era: u64::from_le_bytes(*era), raw })
    }
}

/// Appends a fact.
pub(super) fn append(raw: &mut Vec<u8>, key: &[u8], value: Option<&[u8]>) {
    let length = value.map_or(FORGOTTEN, |value| value.len() as u32);
    raw.extend_from_slice(&(key.len() as u32).to_le_bytes());
    raw.extend_from_slice(&length.to_le_bytes());
    raw.extend_from_slice(key);
    raw.extend_from_slice(value.unwrap_or_default());
}

/// A key, its value unless it is forgotten, and the bytes after them.
type First<'a> = (&'a [u8], Option<&'a [u8]>, &'a [u8]);

/// Reads the first fact.
pub(super) fn first(raw: &[u8]) -> Result<First<'_>, IndexTrouble> {
    let (lengths, rest) = raw.split_first_chunk::<8>().ok_or(TORN)?;
    let [key, value] =
        [0, 4].map(|at| u32::from_le_bytes(lengths[at..at + 4].try_into().expect("four bytes")));
    let (key, rest) = rest.split_at_checked(key as usize).ok_or(TORN)?;
    if value == FORGOTTEN {
        return Ok((key, None, rest));
    }
    let (value, rest) = rest.split_at_checked(value as usize).ok_or(TORN)?;
    Ok((key, Some(value), rest))
}

/// Calls `told` with each fact.
pub(super) fn visit(
    mut raw: &[u8],
    mut told: impl FnMut(&[u8], Option<&[u8]>) -> Result<(), IndexTrouble>,
) -> Result<(), IndexTrouble> {
    while !raw.is_empty() {
        let (key, value, rest) = first(raw)?;
        told(key, value)?;
        raw = rest;
    }
    Ok(())
}

const TORN: &str = "a chunk ends within a fact";
