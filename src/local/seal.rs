//! Seals: identify the state of a blob's file in which its digest was last known to be right.
//!
//! Owns the comparison that saves hashing a file again. Must never trust a name.

use std::fs::Metadata;
use std::os::unix::fs::MetadataExt as _;

use serde::{Deserialize, Serialize};

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
