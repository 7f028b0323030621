//! The disk: the parts of the cache directory that the ledger uses.
//!
//! Owns only the grouping. The rules for each part are in `local`.

use parking_lot::Mutex;

use crate::local::{Blobs, CacheDir, Index, Journal, Staging};
use crate::remote::KnownStore;

/// The parts of the cache directory.
pub(super) struct Disk {
    /// Holds the lock of the cache directory while this process uses its contents.
    pub(super) dir: CacheDir,
    pub(super) journal: Journal,
    pub(super) blobs: Blobs,
    pub(super) staging: Staging,
    pub(super) index: Index,
    /// The generation of the index that was saved last; locked during a save.
    pub(super) saving: Mutex<u64>,
    /// The store in use, as this run has noted it in the cache directory.
    pub(super) bound: Mutex<Option<KnownStore>>,
}
