//! Digesting a closed file, which may be written all the time.
//!
//! Owns the tries, and the bytes of small files, which are read once. Must never be called with a lock held: it reads
//! all of the file.

use std::fs::File;
use std::io;

use super::kept::{KEPT_BYTES_MAX, Kept, Spare};
use super::live::Mark;
use crate::digest::Digest;
use crate::local::hash_file;

/// How often a file that changes while it is digested is digested again.
const DIGEST_TRIES_MAX: u32 = 4;

/// Bytes that are digested and not yet announced.
pub(super) struct Digested {
    pub(super) digest: Digest,
    pub(super) mark: Mark,
    /// How many bytes it takes on the disk.
    pub(super) disk_bytes: u64,
    pub(super) kept: Option<Kept>,
}

/// Digests a whole file, again if it has moved since `seen` or moves meanwhile. Keeps the bytes of a small one.
pub(super) fn digest_of(file: &File, seen: Option<Mark>, spare: &Spare) -> io::Result<Digested> {
    let mut before = match seen {
        Some(seen) => seen,
        None => Mark::of(file)?,
    };
    let mut tries = 0;
    loop {
        let (digest, kept) = if before.size <= KEPT_BYTES_MAX {
            let bytes = spare.read(file, before.size as usize)?;
            (Digest::of(&bytes), Some(bytes))
        } else {
            (hash_file(file, before.size)?, None)
        };
        let (mark, disk_bytes) = Mark::and_disk_bytes(file)?;
        let whole = kept.as_ref().is_none_or(|kept| kept.len() as u64 == mark.size);
        tries += 1;
        if before == mark && whole {
            return Ok(Digested { digest, mark, disk_bytes, kept });
        }
        if tries >= DIGEST_TRIES_MAX {
            // It is being written all the time. What was read last is what was closed.
            let size = kept.as_ref().map_or(mark.size, |kept| kept.len() as u64);
            return Ok(Digested { digest, mark: mark.with_size(size), disk_bytes, kept });
        }
        before = mark;
    }
}
