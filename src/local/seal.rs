//! Seals: identify the state of a blob's file in which its digest was last known to be right.
//!
//! Owns the comparison that saves hashing a file again. Must never trust a name.

use std::fs::{File, Metadata};
use std::io;
use std::os::unix::fs::{FileExt as _, MetadataExt as _};

use serde::{Deserialize, Serialize};

use crate::digest::{Digest, Hasher};

/// Bytes read at a time when a file is hashed.
const HASH_CHUNK_BYTES: usize = 256 << 10;
/// The same for a small file.
const HASH_CHUNK_BYTES_MIN: usize = 4 << 10;

/// Metadata of a file that changes whenever its bytes change, unless root hides it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Seal {
    /// Bytes of content.
    pub size: u64,
    /// Last change of content, in nanoseconds since the Unix epoch.
    pub mtime_ns: i64,
    /// Last change of the inode, in nanoseconds since the Unix epoch; cannot be set by programs.
    pub ctime_ns: i64,
    /// Inode number.
    pub ino: u64,
}

impl Seal {
    /// Takes the seal of a file from its metadata.
    pub fn of(found: &Metadata) -> Self {
        let ns = |secs: i64, nanos: i64| secs.saturating_mul(1_000_000_000).saturating_add(nanos);
        Self {
            size: found.size(),
            mtime_ns: ns(found.mtime(), found.mtime_nsec()),
            ctime_ns: ns(found.ctime(), found.ctime_nsec()),
            ino: found.ino(),
        }
    }
}

/// Digests the whole content of an open file, whatever its offset. Reads to the end even if that is
/// not at `expected` bytes, which only determines the size of the buffer.
///
/// # Errors
///
/// When the file cannot be read.
pub fn hash_file(file: &File, expected: u64) -> io::Result<Digest> {
    let mut hasher = Hasher::new();
    let expected = usize::try_from(expected).unwrap_or(usize::MAX);
    let mut buffer = vec![0; expected.clamp(HASH_CHUNK_BYTES_MIN, HASH_CHUNK_BYTES)];
    let mut offset = 0;
    loop {
        match file.read_at(&mut buffer, offset) {
            Ok(0) => return Ok(hasher.finish()),
            Ok(n) => {
                hasher.update(&buffer[..n]);
                offset += n as u64;
            }
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            Err(e) => return Err(e),
        }
    }
}
