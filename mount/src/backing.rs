//! Backing files of passthrough handles.

use std::fs::File;
use std::sync::{Mutex, PoisonError};

/// A file that the kernel may read and write in our place, and its registration with the session.
///
/// All handles of one inode must share one backing as long as any of them is open; the registration
/// lives as long as this does.
#[derive(Debug)]
pub struct Backing {
    file: File,
    id: Mutex<Option<fuser::BackingId>>,
}

impl Backing {
    /// Offers a file. It is registered when it is first handed to the kernel.
    pub fn new(file: File) -> Self {
        Self { file, id: Mutex::new(None) }
    }

    /// Returns the file itself.
    pub fn file(&self) -> &File {
        &self.file
    }

    pub(crate) fn id(&self) -> std::sync::MutexGuard<'_, Option<fuser::BackingId>> {
        self.id.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
