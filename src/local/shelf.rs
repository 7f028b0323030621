//! The names of staging files, and an approximate count of the bytes that are no blobs yet.
//!
//! Owns a name until it is dropped, which removes its file, or until the file gets another name.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use crate::error::{Error, Result};

/// The number of the next name, shared by all shelves of a process: a shelf that ends late, after
/// the folder was opened again, must not remove a file of the new one.
static NEXT: AtomicU64 = AtomicU64::new(0);

/// Names and counts staging files; shared with the blobs, which adopt files.
#[derive(Debug)]
pub(super) struct Shelf {
    path: PathBuf,
    bytes: AtomicU64,
    opened: AtomicBool,
}

impl Shelf {
    pub(super) fn new(path: PathBuf) -> Self {
        let opened = AtomicBool::new(false);
        Self { path, bytes: AtomicU64::new(0), opened }
    }

    /// Returns the bytes of staging files, as far as recorded.
    pub(super) fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }

    /// Returns the folder.
    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Records that the folder is in use. Returns true the first time.
    pub(super) fn open(&self) -> bool {
        !self.opened.swap(true, Ordering::Relaxed)
    }

    /// Reserves a name for a file that the caller will put there.
    pub(super) fn name(self: &Arc<Self>) -> StagedPath {
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let path = self.path.join(format!("{number:016x}"));
        StagedPath { path, bytes: self.count(), made: (0, 0), consumed: false }
    }

    /// Counts bytes that will be written: none at first.
    pub(super) fn count(self: &Arc<Self>) -> StagedBytes {
        StagedBytes { shelf: Arc::clone(self), bytes: AtomicU64::new(0) }
    }

    pub(super) fn create(self: &Arc<Self>) -> Result<(File, StagedPath)> {
        let mut staged = self.name();
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .create_new(true)
            .mode(0o600)
            .open(staged.path())
            .map_err(|e| Error::io(format!("create {}", staged.path().display()), e))?;
        let found = file.metadata();
        let found =
            found.map_err(|e| Error::io(format!("examine {}", staged.path().display()), e))?;
        staged.made = (found.mtime(), found.mtime_nsec());
        Ok((file, staged))
    }
}

/// Bytes that take room and are no blob yet. Dropping it ends that.
#[derive(Debug)]
pub struct StagedBytes {
    shelf: Arc<Shelf>,
    bytes: AtomicU64,
}

impl StagedBytes {
    /// Records how many they are. Returns whether they have grown.
    pub(super) fn note(&self, bytes: u64) -> bool {
        let old = self.bytes.swap(bytes, Ordering::Relaxed);
        // Wrapping arithmetic: the sum of all differences is the sum of the present sizes.
        self.shelf.bytes.fetch_add(bytes.wrapping_sub(old), Ordering::Relaxed);
        bytes > old
    }
}

impl Drop for StagedBytes {
    fn drop(&mut self) {
        self.note(0);
    }
}

/// A name in staging; dropping it removes the file.
#[derive(Debug)]
pub struct StagedPath {
    path: PathBuf,
    bytes: StagedBytes,
    made: (i64, i64),
    consumed: bool,
}

impl StagedPath {
    /// Returns the modification time of the empty file when it was made, in seconds and
    /// nanoseconds since the Unix epoch. It is known without a system call.
    pub fn made(&self) -> (i64, i64) {
        self.made
    }

    /// Returns the path of the file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Records the present size of the file in bytes, for the limit of the disk. Returns whether it has grown.
    pub fn note_bytes(&self, bytes: u64) -> bool {
        self.bytes.note(bytes)
    }

    /// Returns the count of its bytes.
    pub fn bytes(&self) -> &StagedBytes {
        &self.bytes
    }

    /// Records that `bytes` were written up to offset `end`. The file grows by at most `bytes`, and
    /// at most to `end`.
    pub fn note_growth(&self, end: u64, bytes: u64) {
        let known = self.bytes.bytes.load(Ordering::Relaxed);
        let grown = known.saturating_add(bytes).min(end);
        if grown > known {
            self.note_bytes(grown);
        }
    }

    /// Leaves the file in staging, for the next start: the journal names its content.
    pub fn leave(self) {
        self.consume();
    }

    /// Releases the name without removing anything: the file now has another name.
    pub(super) fn consume(mut self) {
        self.consumed = true;
    }
}

impl Drop for StagedPath {
    fn drop(&mut self) {
        if self.consumed {
            return;
        }
        match fs::remove_file(&self.path) {
            Err(e) if e.kind() != io::ErrorKind::NotFound => {
                tracing::debug!(path = %self.path.display(), error = %e, "staging file is not removed");
            }
            _ => {}
        }
    }
}
