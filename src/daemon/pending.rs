//! What a dead daemon has not sent to the store.
//!
//! Owns the count. Must never take another cache directory for that of the mount.

use std::path::Path;

use super::build::is_held_for;
use crate::local::{CacheDir, Journal};

/// Counts the changes in a cache directory that wait for the store. `None` if they cannot be known:
/// the directory was last used by another mount, is in use, or cannot be read.
pub fn count_pending(cache_dir: &Path, mount_point: &Path) -> Option<u64> {
    if !is_held_for(cache_dir, mount_point) {
        return None;
    }
    let dir = CacheDir::open(cache_dir).ok()?;
    // Opening it makes the same repairs as the next mount.
    let (_, records) = Journal::open(&dir).ok()?;
    dir.set_holder(&mount_point.to_string_lossy()).ok()?;
    Some(records.iter().filter(|record| !record.note.private).count() as u64)
}
