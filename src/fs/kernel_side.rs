//! The kernel, as the file system knows it: what it can do, what it remembers, and how it is made to
//! forget.
//!
//! Owns the number of commits that the kernel's cache of names reflects. Must never make the kernel
//! forget a single name while the state is locked: the kernel may have to wait for another request.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use hearthfs_mount::{Abilities, Ino, Notices};
use parking_lot::Mutex;

use super::inode::DirEntryKey;

#[derive(Debug, Default)]
pub(super) struct KernelSide {
    passthrough: AtomicBool,
    notices: Mutex<Option<Arc<dyn Notices>>>,
    /// How many commits of other nodes the kernel's cache of names reflects.
    told: AtomicU64,
    /// Held while the kernel is told.
    telling: Mutex<()>,
    /// Names cannot be taken back from the kernel at once, so it must not remember them.
    forgetful: AtomicBool,
}

impl KernelSide {
    /// Stores what the session can do.
    pub(super) fn learn(&self, abilities: Abilities) {
        self.passthrough.store(abilities.passthrough, Ordering::Relaxed);
    }

    /// Sets the way to notify the kernel that names moved. On a `shared` mount they move without
    /// the kernel.
    pub(super) fn connect(&self, notices: Arc<dyn Notices>, shared: bool) {
        let forgetful = shared && !notices.expire_all();
        self.forgetful.store(forgetful, Ordering::Relaxed);
        *self.notices.lock() = Some(notices);
    }

    /// Reports whether the kernel may read and write files without the daemon.
    pub(super) fn passes_through(&self) -> bool {
        self.passthrough.load(Ordering::Relaxed)
    }

    /// Reports whether the kernel must not remember names.
    pub(super) fn is_forgetful(&self) -> bool {
        self.forgetful.load(Ordering::Relaxed)
    }

    /// Makes the kernel look every name up again at once. Returns whether the kernel can do that.
    pub(super) fn expire_names(&self) -> bool {
        self.notices.lock().as_ref().is_none_or(|notices| notices.expire_all())
    }

    /// Makes the kernel request the attributes of an inode again before it uses them. Returns
    /// whether that is sure.
    pub(super) fn expire_attrs(&self, ino: Ino) -> bool {
        self.notices.lock().as_ref().is_none_or(|notices| notices.expire_attrs(ino))
    }

    /// Makes the kernel look these names up again before the caller gets its answer. Must be called
    /// without the lock of the state.
    ///
    /// A kernel with epochs looks all names up again then, and takes no lock of its own for that.
    /// To take back a single name, the kernel locks the directory, and the process that holds that
    /// lock may be waiting for the daemon. A daemon that is killed while one of its threads waits
    /// there does not end. So only a kernel without epochs gets single names, from a separate
    /// thread.
    pub(super) fn doubt(&self, spots: impl IntoIterator<Item = DirEntryKey>) {
        let mut spots = spots.into_iter().peekable();
        if spots.peek().is_none() || self.expire_names() {
            return;
        }
        if let Some(notices) = self.notices.lock().as_ref() {
            for (parent, name) in spots {
                notices.inval_entry(parent, OsStr::from_bytes(&name));
            }
        }
    }

    /// Does the same for names that moved in the last of `applied` changes of other nodes.
    pub(super) fn doubt_moved(&self, spots: Vec<DirEntryKey>, applied: u64) {
        let _one_at_a_time = self.telling.lock();
        self.doubt(spots);
        self.told.fetch_max(applied, Ordering::AcqRel);
    }

    /// Makes the kernel look every name up again, if it was not told of all `applied` changes of
    /// other nodes.
    pub(super) fn keep_order(&self, applied: u64) {
        // Most calls end here, without the lock. A call that finds another one at work must wait
        // for it, and that one stores the count last.
        if applied <= self.told.load(Ordering::Acquire) {
            return;
        }
        let _one_at_a_time = self.telling.lock();
        if applied > self.told.load(Ordering::Acquire) {
            self.expire_names();
            self.told.fetch_max(applied, Ordering::AcqRel);
        }
    }
}
