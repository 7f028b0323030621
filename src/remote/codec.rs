//! Commits as bytes.
//!
//! Owns the format of a commit:
//!
//! ```text
//! "HFCMIT\r\n" | version u16 | raw bytes u32 | zstd(postcard(commit)) | checksum 32
//! ```
//!
//! Numbers are little-endian; the checksum is BLAKE3 over all before it. Every later version keeps
//! magic, version and checksum where they are. Must never return a commit that was not written
//! whole in a format that we know, and never take more memory than its limits.

use std::collections::BTreeMap;
use std::fmt;
use std::marker::PhantomData;

use serde::de::{SeqAccess, Visitor};
use serde::{Deserialize, Deserializer};

use super::frame::{self, ZSTD_LEVEL};
use super::validate;
use crate::error::{Error, Kind, Result};
use crate::namespace::{BlobAt, Change, Commit};
use crate::stamp::{NodeId, Stamp};

/// The largest encoded commit.
pub const COMMIT_BYTES_MAX: usize = 32 * 1024 * 1024;
/// The largest commit before compression.
pub const COMMIT_RAW_BYTES_MAX: usize = 64 * 1024 * 1024;
/// The most changes in one commit.
pub const COMMIT_CHANGES_MAX: usize = 100_000;
/// The most blobs that one commit announces.
pub const COMMIT_BLOBS_MAX: usize = 100_000;
/// The most packs that one commit names.
pub const COMMIT_PACKS_MAX: usize = 1024;

const MAGIC: &[u8; 8] = b"HFCMIT\r\n";
const VERSION: u16 = 1;
const HEAD_BYTES: usize = MAGIC.len() + 2 + 4;
const SUM_BYTES: usize = 32;

/// Encodes a commit, if readers will accept it.
///
/// # Errors
///
/// `Invalid` when readers would refuse it: too large, or something in it that no commit may hold.
pub fn encode_commit(commit: &Commit) -> Result<Vec<u8>> {
    let refuse = |what: &str| Error::new(Kind::Invalid, format!("commit {what}"));
    check_counts(commit)?;
    validate::commit(commit)?;
    let raw = postcard::to_stdvec(commit)
        .map_err(|error| Error::with(Kind::Internal, "encode a commit", error))?;
    if raw.len() > COMMIT_RAW_BYTES_MAX {
        return Err(refuse("is too large before compression"));
    }
    let packed = zstd::bulk::compress(&raw, ZSTD_LEVEL)
        .map_err(|error| Error::io("compress a commit", error))?;
    let mut bytes = Vec::with_capacity(HEAD_BYTES + packed.len() + SUM_BYTES);
    bytes.extend_from_slice(MAGIC);
    bytes.extend_from_slice(&VERSION.to_le_bytes());
    bytes.extend_from_slice(&(raw.len() as u32).to_le_bytes());
    bytes.extend_from_slice(&packed);
    bytes.extend_from_slice(blake3::hash(&bytes).as_bytes());
    if bytes.len() > COMMIT_BYTES_MAX {
        return Err(refuse("is too large"));
    }
    Ok(bytes)
}

/// Decodes the commit that was read under `name`.
///
/// # Errors
///
/// As [`decode_commit`]; `Corrupt` if it is another commit.
pub fn decode_commit_named(bytes: &[u8], name: &Stamp) -> Result<Commit> {
    let commit = decode_commit(bytes)?;
    if commit.stamp != *name {
        return Err(Error::new(Kind::Corrupt, "a commit has the name of another"));
    }
    Ok(commit)
}

/// Decodes a commit and checks everything in it that a reader will rely on.
///
/// # Errors
///
/// `Corrupt` for damage or what no commit may hold, `Invalid` for a newer format or an extension that must be known.
pub fn decode_commit(bytes: &[u8]) -> Result<Commit> {
    let damaged = |what: &str| Error::new(Kind::Corrupt, format!("commit is damaged: {what}"));
    if bytes.len() < HEAD_BYTES + SUM_BYTES || bytes.len() > COMMIT_BYTES_MAX {
        return Err(damaged("its size is impossible"));
    }
    let (body, sum) = bytes.split_at(bytes.len() - SUM_BYTES);
    if &body[..MAGIC.len()] != MAGIC {
        return Err(damaged("its start is not that of a commit"));
    }
    if blake3::hash(body).as_bytes() != sum {
        return Err(damaged("its checksum differs"));
    }
    let version = u16::from_le_bytes([body[8], body[9]]);
    if version != VERSION {
        let op = format!("commit has the newer format {version}, this version knows {VERSION}");
        return Err(Error::new(Kind::Invalid, op));
    }
    let size = u32::from_le_bytes([body[10], body[11], body[12], body[13]]) as usize;
    if size > COMMIT_RAW_BYTES_MAX {
        return Err(damaged("it is too large before compression"));
    }
    let raw = frame::decompress(&body[HEAD_BYTES..], size)
        .filter(|raw| raw.len() == size)
        .ok_or_else(|| damaged("it does not decompress"))?;
    let (wire, rest) = postcard::take_from_bytes::<Wire>(&raw)
        .map_err(|error| Error::with(Kind::Corrupt, "decode a commit", error))?;
    if !rest.is_empty() {
        return Err(damaged("something follows it"));
    }
    let commit = wire.into_commit();
    validate::commit(&commit)?;
    Ok(commit)
}

fn check_counts(commit: &Commit) -> Result<()> {
    for (what, count, most) in [
        ("changes", commit.changes.len(), COMMIT_CHANGES_MAX),
        ("blobs", commit.blobs.len(), COMMIT_BLOBS_MAX),
        ("packs", commit.packs.len(), COMMIT_PACKS_MAX),
    ] {
        if count > most {
            let op = format!("commit has {count} {what} where {most} are the most");
            return Err(Error::new(Kind::Invalid, op));
        }
    }
    Ok(())
}

/// [`Commit`] field by field, with limits that hold during decoding.
#[derive(Deserialize)]
struct Wire {
    stamp: Stamp,
    node: NodeId,
    incarnation: u64,
    sequence: u64,
    packs: Few<String, COMMIT_PACKS_MAX>,
    blobs: Few<BlobAt, COMMIT_BLOBS_MAX>,
    changes: Few<Change, COMMIT_CHANGES_MAX>,
    extensions: BTreeMap<u16, Vec<u8>>,
}

impl Wire {
    fn into_commit(self) -> Commit {
        Commit {
            stamp: self.stamp,
            node: self.node,
            incarnation: self.incarnation,
            sequence: self.sequence,
            packs: self.packs.0,
            blobs: self.blobs.0,
            changes: self.changes.0,
            extensions: self.extensions,
        }
    }
}

/// A list of at most `MAX` items, encoded like a `Vec`.
pub(super) struct Few<T, const MAX: usize>(pub(super) Vec<T>);

impl<'de, T: Deserialize<'de>, const MAX: usize> Deserialize<'de> for Few<T, MAX> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> std::result::Result<Self, D::Error> {
        struct Collect<T, const MAX: usize>(PhantomData<T>);
        impl<'de, T: Deserialize<'de>, const MAX: usize> Visitor<'de> for Collect<T, MAX> {
            type Value = Vec<T>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "at most {MAX} items")
            }

            fn visit_seq<A: SeqAccess<'de>>(
                self,
                mut items: A,
            ) -> std::result::Result<Vec<T>, A::Error> {
                // The stated length is not trusted: no memory is reserved for items that may never come.
                let mut all = Vec::new();
                while let Some(item) = items.next_element()? {
                    if all.len() == MAX {
                        return Err(serde::de::Error::invalid_length(MAX + 1, &self));
                    }
                    all.push(item);
                }
                Ok(all)
            }
        }
        deserializer.deserialize_seq(Collect::<T, MAX>(PhantomData)).map(Self)
    }
}

#[cfg(test)]
mod tests;
