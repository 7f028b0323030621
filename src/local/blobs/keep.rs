//! Keeping contents that the daemon has in memory, because it has fetched and checked them.
//!
//! Owns the one case in which a file of `blobs/` has its final name before its bytes: no blob of that
//! name is known, so no open can find the file, and whatever looks for it on disk waits for the stripe. A
//! stop in the middle leaves a file that has no seal, and that is hashed before it is used.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;

use super::{Blobs, NotAdopted, State, failed};
use crate::digest::Digest;
use crate::error::Result;
use crate::local::lru::charge;
use crate::local::seal::Seal;
use crate::local::shelf::StagedBytes;

impl Blobs {
    /// Makes `bytes` the blob of `digest`, if `is_room` holds when they are counted. Returns whether
    /// it did.
    ///
    /// The caller has digested the bytes, and the remote has them.
    ///
    /// # Errors
    ///
    /// `NoSpace` when the disk is full, or another error of the disk.
    pub fn keep(
        &self,
        digest: Digest,
        bytes: &[u8],
        is_room: impl FnOnce(&Self) -> bool,
    ) -> Result<bool> {
        if digest.is_empty_content() {
            return Ok(true);
        }
        let size = bytes.len() as u64;
        let staged = self.0.shelf.count();
        if !self.reserve(&staged, size, is_room) {
            return Ok(false);
        }
        if self.write_in_place(digest, bytes, &staged)? {
            self.relieve(charge(size));
        } else {
            self.replace(digest, bytes, &staged)?;
        }
        Ok(true)
    }

    /// Writes a new blob under its name. Returns false if the name is taken or cannot be made.
    fn write_in_place(&self, digest: Digest, bytes: &[u8], staged: &StagedBytes) -> Result<bool> {
        let path = self.path_of(&digest);
        let _stripe = self.stripe(&digest);
        if self.0.table.lock().tier.get(&digest).is_some() {
            return Ok(false);
        }
        let file = match OpenOptions::new().write(true).create_new(true).mode(0o600).open(&path) {
            Ok(file) => file,
            Err(e)
                if matches!(e.kind(), io::ErrorKind::AlreadyExists | io::ErrorKind::NotFound) =>
            {
                return Ok(false);
            }
            Err(e) => return Err(failed("make", &digest, e)),
        };
        match write_and_seal(file, bytes) {
            Ok(seal) => {
                self.count_new(digest, seal, true, false, staged);
                Ok(true)
            }
            Err(e) => {
                // The next start hashes what cannot be removed.
                fs::remove_file(&path).ok();
                Err(failed("write", &digest, e))
            }
        }
    }

    /// Replaces what has the name of a blob at once: it may be open, or not be a file.
    fn replace(&self, digest: Digest, bytes: &[u8], counted: &StagedBytes) -> Result<()> {
        let (mut file, staged) = self.0.shelf.create()?;
        staged.note_bytes(charge(bytes.len() as u64));
        counted.note(0);
        file.write_all(bytes).map_err(|e| failed("write", &digest, e))?;
        self.adopt(staged, &file, digest, bytes.len() as u64, State::Fetched)
            .map_err(NotAdopted::into_error)?;
        Ok(())
    }
}

/// Also closes the file: nobody can write to a blob.
fn write_and_seal(mut file: File, bytes: &[u8]) -> io::Result<Seal> {
    file.write_all(bytes)?;
    let seal = Seal::of(&file.metadata()?);
    if seal.size == bytes.len() as u64 {
        Ok(seal)
    } else {
        Err(io::Error::other("another program has changed it"))
    }
}
