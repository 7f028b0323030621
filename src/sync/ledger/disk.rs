//! The disk: the parts of the cache directory that the ledger uses.
//!
//! Owns that they belong together. What each of them may do is said in `local`.

use parking_lot::Mutex;

use crate::local::{Blobs, CacheDir, Index, Journal, Staging};
use crate::remote::KnownStore;

/// The parts of the cache directory.
pub(super) struct Disk {
    /// Holds the lock of the cache directory for as long as this process uses what is in it.
    pub(super) dir: CacheDir,
    pub(super) journal: Journal,
    pub(super) blobs: Blobs,
    pub(super) staging: Staging,
    pub(super) index: Index,
    /// The generation of the index that was saved last; held during a save.
    pub(super) saving: Mutex<u64>,
    /// What this run has noted in the cache directory of the store that it uses.
    pub(super) bound: Mutex<Option<KnownStore>>,
}
