//! Truncating a live file in place, while others may be writing it or closing it.
//!
//! Must never truncate a file that is a blob, or is about to be one.

use std::sync::Arc;

use hearthfs_mount::{Ino, Reply};

use super::filesystem::Filesystem;
use super::inode::{LiveId, Source};

/// A live file that is to be truncated.
#[derive(Clone, Copy)]
pub(super) struct ToCut {
    pub(super) id: LiveId,
    /// The inode that the caller truncates.
    pub(super) through: Ino,
    /// A descriptor of the caller keeps the file from ending.
    pub(super) held: bool,
}

impl Filesystem {
    /// Truncates a file that others may be writing. Returns false if the file was closed meanwhile: it may
    /// be a blob by now, or about to be one, and what to do must be decided again. Blocks.
    pub(super) fn cut_open(&self, cut: ToCut, size: u64) -> Reply<bool> {
        let Some(lock) = self.0.state.lock().lives.get(cut.id).map(|live| live.settling.lock())
        else {
            return Ok(false);
        };
        // No close digests the file meanwhile, and no RELEASE makes it a blob.
        let _one_at_a_time = lock.lock();
        let Some(source) = self.source_to_cut(cut) else { return Ok(false) };
        let other = self.0.state.lock().note_change(cut.id, cut.through);
        source.backing.file().set_len(size)?;
        self.expire_attrs_of(other);
        // A close that was examined before the truncation does not publish it.
        Ok(self.source_to_cut(cut).is_some())
    }

    /// Returns the file of a live file, unless that was closed.
    fn source_to_cut(&self, cut: ToCut) -> Option<Arc<Source>> {
        let state = self.0.state.lock();
        let live = state.lives.get(cut.id).filter(|live| !live.settling.is_on())?;
        let alone = live.is_dropped() || live.place().is_none();
        let open = live.version().is_none() && (cut.held || live.writers.has_open());
        (alone || open).then(|| Arc::clone(&live.source))
    }
}
