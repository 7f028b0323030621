//! Digesting a closed file, which may be written all the time.
//!
//! Owns the tries, and the bytes of small files, which are read once. Must never be called with a lock held: it reads
//! all of the file.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

use super::live::Mark;
use crate::digest::Digest;
use crate::local::hash_file;

/// The bytes of a published file up to this size are kept in memory until they are a blob, in case the writer
/// goes on through a duplicated descriptor.
const KEPT_BYTES_MAX: u64 = 1024 * 1024;
/// How often a file that changes while it is digested is digested again.
const DIGEST_TRIES_MAX: u32 = 4;

/// Bytes that are digested and not yet announced.
pub(super) struct Digested {
    pub(super) digest: Digest,
    pub(super) mark: Mark,
    pub(super) kept: Option<Vec<u8>>,
}

/// Digests a whole file, again if it has moved since `seen` or moves meanwhile. Keeps the bytes of a small one.
pub(super) fn digest_of(file: &File, seen: Option<Mark>) -> io::Result<Digested> {
    let mut before = match seen {
        Some(seen) => seen,
        None => Mark::of(file)?,
    };
    let mut tries = 0;
    loop {
        let (digest, kept) = if before.size <= KEPT_BYTES_MAX {
            let bytes = read_all(file, before.size as usize)?;
            (Digest::of(&bytes), Some(bytes))
        } else {
            (hash_file(file, before.size)?, None)
        };
        let mark = Mark::of(file)?;
        let whole = kept.as_ref().is_none_or(|kept| kept.len() as u64 == mark.size);
        tries += 1;
        if before == mark && whole {
            return Ok(Digested { digest, mark, kept });
        }
        if tries >= DIGEST_TRIES_MAX {
            // It is being written all the time. What was read last is what was closed.
            let size = kept.as_ref().map_or(mark.size, |kept| kept.len() as u64);
            return Ok(Digested { digest, mark: mark.with_size(size), kept });
        }
        before = mark;
    }
}

fn read_all(file: &File, size: usize) -> io::Result<Vec<u8>> {
    let mut bytes = vec![0; size];
    let mut filled = 0;
    while filled < size {
        match file.read_at(&mut bytes[filled..], filled as u64) {
            Ok(0) => break,
            Ok(count) => filled += count,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    bytes.truncate(filled);
    Ok(bytes)
}
