//! Backing files of passthrough handles.

use std::fs::File;
use std::io;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// A file that the kernel may read and write in our place, and its registration with the session.
///
/// All handles of one inode must share one backing while any of them is open; the registration
/// lives as long as this value.
#[derive(Debug)]
pub struct Backing {
    file: File,
    registration: Mutex<Registration>,
}

/// The state of the file's registration with the kernel.
#[derive(Debug)]
pub(crate) enum Registration {
    /// It was not tried.
    Untried,
    /// The kernel knows it by this id.
    Registered(fuser::BackingId),
    /// The kernel refused it. Never retried: handles opened without registration must not share the
    /// inode with one that has it.
    Refused,
}

impl Backing {
    /// Wraps a file. It is registered when it is first sent to the kernel.
    pub fn new(file: File) -> Self {
        Self { file, registration: Mutex::new(Registration::Untried) }
    }

    /// Returns the file itself.
    pub fn file(&self) -> &File {
        &self.file
    }

    /// Registers the file if it is not registered yet. The holder of the guard may send the id to the kernel.
    pub(crate) fn registered(
        &self,
        register: impl FnOnce(&File) -> io::Result<fuser::BackingId>,
    ) -> MutexGuard<'_, Registration> {
        let mut registration = self.registration.lock().unwrap_or_else(PoisonError::into_inner);
        if matches!(*registration, Registration::Untried) {
            *registration = match register(&self.file) {
                Ok(id) => Registration::Registered(id),
                Err(error) => {
                    tracing::debug!(%error, "backing file refused");
                    Registration::Refused
                }
            };
        }
        registration
    }
}
