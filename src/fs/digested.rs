//! Digests a closed file, even if it is written to all the time.
//!
//! Owns the number of tries, and the bytes of small files, which are read only once. Must never be
//! called with a lock held, because it reads the whole file.

use std::fs::File;
use std::io;

use super::kept::{KEPT_BYTES_MAX, Kept, Spare};
use super::live::Mark;
use crate::digest::Digest;
use crate::local::hash_file;

/// How many times to digest a file that changes meanwhile.
const DIGEST_TRIES_MAX: u32 = 4;

/// Bytes that are digested and not announced yet.
pub(super) struct Digested {
    pub(super) digest: Digest,
    pub(super) mark: Mark,
    /// How many bytes it takes on the disk.
    pub(super) disk_bytes: u64,
    pub(super) kept: Option<Kept>,
}

/// Digests a whole file. Digests it again if it has changed since `seen` or changes meanwhile.
/// Keeps the bytes of a small file.
pub(super) fn digest_of(file: &File, seen: Mark, spare: &Spare) -> io::Result<Digested> {
    let mut before = seen;
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
            // The file is written to all the time. The bytes that were read last count as the
            // closed ones.
            let size = kept.as_ref().map_or(mark.size, |kept| kept.len() as u64);
            return Ok(Digested { digest, mark: mark.with_size(size), disk_bytes, kept });
        }
        before = mark;
    }
}
