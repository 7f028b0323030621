//! Packs: many small blobs in one object.
//!
//! Owns the format of a pack, which is self-describing:
//!
//! ```text
//! "HFPACK\r\n" | version u16 | frames back to back | index | members u32 | checksum 32 | "\r\nKCAPFH"
//! index: per member, in the order of the frames: digest 32 | length u32 | raw size u32
//! ```
//!
//! Numbers are little-endian. The checksum is BLAKE3 over everything except the frames and what
//! follows it. Each frame is checked by its digest, so damage to one blob costs only that blob. A
//! pack must never be trusted further: a reader checks every length before using it.

use std::collections::HashMap;
use std::io::Cursor;

use super::frame::{FRAME_RAW_BYTES_MAX, ZSTD_LEVEL, decode_frame};
use crate::digest::Digest;
use crate::error::{Error, Kind, Result};

/// The largest pack, in bytes.
pub const PACK_BYTES_MAX: u64 = 64 * 1024 * 1024;
/// The most blobs in one pack.
pub const PACK_MEMBERS_MAX: usize = 65_536;

const MAGIC: &[u8; 8] = b"HFPACK\r\n";
const END: &[u8; 8] = b"\r\nKCAPFH";
const VERSION: u16 = 1;
const HEAD_BYTES: usize = MAGIC.len() + 2;
const MEMBER_BYTES: usize = 32 + 4 + 4;
const TAIL_BYTES: usize = 4 + 32 + END.len();

/// One blob of a pack.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PackMember {
    /// Its content.
    pub digest: Digest,
    /// First byte of its frame in the pack.
    pub offset: u64,
    /// Bytes of its frame.
    pub length: u32,
    /// Raw bytes, uncompressed.
    pub size: u32,
}

/// Builds a pack in memory.
pub struct PackBuilder {
    bytes: Vec<u8>,
    members: Vec<PackMember>,
    known: HashMap<Digest, usize>,
    compressor: zstd::bulk::Compressor<'static>,
}

impl std::fmt::Debug for PackBuilder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("PackBuilder")
            .field("bytes", &self.bytes.len())
            .field("members", &self.members.len())
            .finish_non_exhaustive()
    }
}

impl Default for PackBuilder {
    fn default() -> Self {
        Self::new()
    }
}

impl PackBuilder {
    /// Starts an empty pack.
    pub fn new() -> Self {
        let mut bytes = MAGIC.to_vec();
        bytes.extend_from_slice(&VERSION.to_le_bytes());
        Self {
            bytes,
            members: Vec::new(),
            known: HashMap::new(),
            compressor: zstd::bulk::Compressor::new(ZSTD_LEVEL)
                .expect("zstd supports the level, and memory does not fail"),
        }
    }

    /// Adds a blob; returns the offset and length of its frame. A blob that is already there is not added
    /// again. Returns `None` if it does not fit: the pack is full, or the blob too large for any pack.
    ///
    /// The caller guarantees that `raw` has the digest.
    pub fn add(&mut self, digest: &Digest, raw: &[u8]) -> Option<(u64, u32)> {
        if let Some(at) = self.known.get(digest) {
            let member = &self.members[*at];
            return Some((member.offset, member.length));
        }
        let index = (self.members.len() + 1) * MEMBER_BYTES + TAIL_BYTES;
        let most = self.bytes.len() + zstd::zstd_safe::compress_bound(raw.len()) + index;
        if raw.len() as u64 > FRAME_RAW_BYTES_MAX
            || most as u64 > PACK_BYTES_MAX
            || self.members.len() == PACK_MEMBERS_MAX
        {
            return None;
        }
        let offset = self.bytes.len() as u64;
        self.bytes.reserve(zstd::zstd_safe::compress_bound(raw.len()));
        let mut end = Cursor::new(&mut self.bytes);
        end.set_position(offset);
        let length = self
            .compressor
            .compress_to_buffer(raw, &mut end)
            .expect("the buffer has the size that zstd requires");
        let (length, size) = (length as u32, raw.len() as u32);
        self.known.insert(*digest, self.members.len());
        self.members.push(PackMember { digest: *digest, offset, length, size });
        Some((offset, length))
    }

    /// Returns the number of blobs so far.
    pub fn len(&self) -> usize {
        self.members.len()
    }

    /// Reports whether there is no blob in it yet.
    pub fn is_empty(&self) -> bool {
        self.members.is_empty()
    }

    /// Returns the size that the finished pack would have now.
    pub fn bytes(&self) -> u64 {
        (self.bytes.len() + self.members.len() * MEMBER_BYTES + TAIL_BYTES) as u64
    }

    /// Finishes the pack.
    pub fn finish(self) -> Vec<u8> {
        let mut bytes = self.bytes;
        let index = bytes.len();
        for member in &self.members {
            bytes.extend_from_slice(member.digest.as_bytes());
            bytes.extend_from_slice(&member.length.to_le_bytes());
            bytes.extend_from_slice(&member.size.to_le_bytes());
        }
        bytes.extend_from_slice(&(self.members.len() as u32).to_le_bytes());
        let checksum = checksum(&bytes[..HEAD_BYTES], &bytes[index..]);
        bytes.extend_from_slice(&checksum);
        bytes.extend_from_slice(END);
        bytes
    }
}

/// Reads a pack that has been fetched whole.
#[derive(Debug)]
pub struct PackReader<'a> {
    bytes: &'a [u8],
    members: Vec<PackMember>,
}

impl<'a> PackReader<'a> {
    /// Reads the index of a pack, checking everything except the blobs.
    ///
    /// # Errors
    ///
    /// `Corrupt` for a damaged index, `Invalid` for a newer format.
    pub fn open(bytes: &'a [u8]) -> Result<Self> {
        let damaged = |what| Error::new(Kind::Corrupt, format!("pack is damaged: {what}"));
        if bytes.len() as u64 > PACK_BYTES_MAX || bytes.len() < HEAD_BYTES + TAIL_BYTES {
            return Err(damaged("its size is impossible"));
        }
        let (rest, end) = bytes.split_at(bytes.len() - END.len());
        if &bytes[..MAGIC.len()] != MAGIC || end != END {
            return Err(damaged("its start or end is not that of a pack"));
        }
        let (rest, sum) = rest.split_at(rest.len() - 32);
        let count_at = rest.len() - 4;
        let count = number(&rest[count_at..]) as usize;
        if count > PACK_MEMBERS_MAX || count * MEMBER_BYTES > count_at - HEAD_BYTES {
            return Err(damaged("it has more members than room for them"));
        }
        let index_at = count_at - count * MEMBER_BYTES;
        if checksum(&bytes[..HEAD_BYTES], &rest[index_at..]) != sum {
            return Err(damaged("the checksum of its index differs"));
        }
        // Checked after the checksum: a newer version keeps both ends as they are, and damage must
        // not look like a version.
        let version = u16::from_le_bytes([bytes[MAGIC.len()], bytes[MAGIC.len() + 1]]);
        if version != VERSION {
            let op = format!("pack has the newer format {version}, this version knows {VERSION}");
            return Err(Error::new(Kind::Invalid, op));
        }
        let mut members = Vec::with_capacity(count);
        let mut offset = HEAD_BYTES as u64;
        for record in rest[index_at..count_at].chunks_exact(MEMBER_BYTES) {
            let digest = Digest::from_bytes(record[..32].try_into().expect("it has 32 bytes"));
            let (length, size) = (number(&record[32..36]), number(&record[36..]));
            if u64::from(size) > FRAME_RAW_BYTES_MAX {
                return Err(damaged("a member is too large"));
            }
            members.push(PackMember { digest, offset, length, size });
            offset += u64::from(length);
        }
        if offset != index_at as u64 {
            return Err(damaged("its frames do not fill it"));
        }
        Ok(Self { bytes, members })
    }

    /// Returns all blobs of the pack, in the order of their frames.
    pub fn members(&self) -> &[PackMember] {
        &self.members
    }

    /// Returns the frame of a member, still compressed.
    pub fn frame(&self, member: &PackMember) -> Option<&'a [u8]> {
        let start = usize::try_from(member.offset).ok()?;
        self.bytes.get(start..start.checked_add(member.length as usize)?)
    }

    /// Returns the content of a member, checked against its digest.
    ///
    /// # Errors
    ///
    /// `Invalid` for a member of another pack, `Corrupt` when its frame is damaged.
    pub fn read(&self, member: &PackMember) -> Result<Vec<u8>> {
        let frame = self.frame(member).ok_or_else(|| {
            Error::new(Kind::Invalid, format!("blob {} is not in this pack", member.digest))
        })?;
        decode_frame(frame, &member.digest, u64::from(member.size))
    }
}

fn number(bytes: &[u8]) -> u32 {
    u32::from_le_bytes(bytes.try_into().expect("callers pass 4 bytes"))
}

fn checksum(head: &[u8], index: &[u8]) -> [u8; 32] {
    let mut hasher = blake3::Hasher::new();
    hasher.update(head).update(index);
    *hasher.finalize().as_bytes()
}

#[cfg(test)]
mod tests;
