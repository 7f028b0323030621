//! Adopting a staged file as a blob, and lodging a digest that is still in staging.
//!
//! Owns the step from `staging/` to `blobs/`. A file becomes a blob only when no process can write to it any
//! more. Until then its content can be *lodged*: the digest counts as present, although no blob has it yet.

use std::fs::{self, File};
use std::io;
use std::path::Path;

use super::{Adopted, Blob, Blobs, State, Used, failed, is_full, seal_at};
use crate::digest::Digest;
use crate::error::{Error, Kind, Result};
use crate::local::lru::charge;
use crate::local::seal::Seal;
use crate::local::shelf::{StagedBytes, StagedPath};

/// Keeps a digest counted as present while its bytes are still in staging.
#[derive(Debug)]
pub struct Lodged {
    blobs: Blobs,
    digest: Digest,
}

impl Drop for Lodged {
    fn drop(&mut self) {
        let mut table = self.blobs.0.table.lock();
        if let Some(count) = table.lodged.get_mut(&self.digest) {
            *count -= 1;
            if *count == 0 {
                table.lodged.remove(&self.digest);
            }
        }
    }
}

/// A staged file that was not adopted. Dropping it removes the file.
#[derive(Debug)]
pub struct NotAdopted {
    /// The staged file.
    pub staged: StagedPath,
    /// Why it is not a blob.
    pub error: Error,
}

impl NotAdopted {
    /// Removes the staged file and returns why it was not adopted.
    pub fn into_error(self) -> Error {
        self.error
    }
}

impl Blobs {
    /// Counts a digest as present until the guard is dropped. The caller holds its bytes in staging and
    /// adopts them, or a copy of them, before it drops the guard.
    pub fn lodge(&self, digest: Digest) -> Lodged {
        *self.0.table.lock().lodged.entry(digest).or_insert(0) += 1;
        Lodged { blobs: self.clone(), digest }
    }

    /// Reports whether a content counts as present although no blob has it yet.
    pub fn is_lodged(&self, digest: &Digest) -> bool {
        let table = self.0.table.lock();
        table.lodged.contains_key(digest) && table.tier.get(digest).is_none()
    }

    /// Makes a staged file the blob of `digest`. No process may write to it any more.
    ///
    /// `file` is the staged file. `digest` and `size` are those of its content, which the caller has
    /// read. Survives SIGKILL after this has returned; [`Blobs::sync`] makes it survive a power loss.
    ///
    /// # Errors
    ///
    /// `Corrupt` when the file has another size than `size` or was exchanged, `NoSpace` when the disk
    /// is full, or another error of the disk. The caller gets the staged file back, which is removed
    /// unless the caller keeps it.
    pub fn adopt(
        &self,
        staged: StagedPath,
        file: &File,
        digest: Digest,
        size: u64,
        state: State,
    ) -> std::result::Result<Adopted, NotAdopted> {
        if digest.is_empty_content() {
            return Ok(Adopted::Known);
        }
        let adopted = match self.put_in_place(&staged, file, digest, size, state) {
            Ok(Adopted::Known) => Adopted::Known,
            Ok(Adopted::New) => {
                staged.consume();
                Adopted::New
            }
            Err(error) => return Err(NotAdopted { staged, error }),
        };
        self.relieve(charge(size));
        Ok(adopted)
    }

    fn put_in_place(
        &self,
        staged: &StagedPath,
        file: &File,
        digest: Digest,
        size: u64,
        state: State,
    ) -> Result<Adopted> {
        let found = file.metadata().map_err(|e| failed("examine", &digest, e))?;
        if found.len() != size {
            let op = format!("adopt blob {digest}: {} bytes instead of {size}", found.len());
            return Err(Error::new(Kind::Corrupt, op));
        }
        let unsaved = state == State::Unsaved && !self.0.options.evict_unsaved;
        let fetched = state == State::Fetched;
        let path = self.path_of(&digest);
        let _stripe = self.stripe(&digest);
        let known = self.0.table.lock().tier.get(&digest);
        let here = match known {
            Some(_) => seal_at(&path).map_err(|e| failed("examine", &digest, e))?,
            None => None,
        };
        if let Some(held) = known
            && held.blob.verified
            && here == Some(held.blob.seal)
        {
            let used = self.now();
            self.0.table.lock().tier.change(&digest, |held| {
                held.unsaved |= unsaved;
                // Nothing may refer to it yet, so it must not look like one that is long unused.
                held.blob.used = used;
            });
            return Ok(Adopted::Known);
        }
        self.rename(staged.path(), &path, &digest)?;
        // Renaming changes the ctime, so the seal is taken afterwards. It is the seal of the path: if a
        // program replaced the staged file under its name, it did not replace the bytes that were digested.
        let found = Seal::of(&file.metadata().map_err(|e| failed("examine", &digest, e))?);
        let placed = seal_at(&path).map_err(|e| failed("examine", &digest, e))?;
        if placed.is_some_and(|placed| placed.ino != found.ino) {
            let op = format!("adopt blob {digest}: its staging file was exchanged");
            return Err(Error::new(Kind::Corrupt, op));
        }
        let unsaved = unsaved || known.is_some_and(|held| held.unsaved);
        self.count_new(digest, found, fetched, unsaved, staged.bytes());
        Ok(Adopted::New)
    }

    /// Notes that a file is the blob of `digest` from now on. The caller holds the stripe.
    pub(super) fn count_new(
        &self,
        digest: Digest,
        seal: Seal,
        fetched: bool,
        unsaved: bool,
        staged: &StagedBytes,
    ) {
        let used = self.now();
        let mut table = self.0.table.lock();
        table.tier.put(digest, Blob { seal, verified: true, used, fetched }, unsaved);
        table.tell(digest, Some(Used { seal, used }));
        // Under the same lock, so that the file is counted exactly once at any time.
        staged.note(0);
    }

    /// Renames, and retries once after removing the cause of a failure that can be removed.
    fn rename(&self, from: &Path, to: &Path, digest: &Digest) -> Result<()> {
        let first = match fs::rename(from, to) {
            Ok(()) => return Ok(()),
            Err(e) => e,
        };
        if is_full(&first) {
            self.free_up(super::evict::FULL_DISK_STEP_BYTES);
        } else if first.kind() == io::ErrorKind::NotFound && from.exists() {
            if let Some(shard) = to.parent() {
                fs::create_dir_all(shard).map_err(|e| failed("adopt", digest, e))?;
            }
        } else if first.kind() == io::ErrorKind::IsADirectory {
            fs::remove_dir_all(to).map_err(|e| failed("adopt", digest, e))?;
        } else {
            return Err(failed("adopt", digest, first));
        }
        fs::rename(from, to).map_err(|e| failed("adopt", digest, e))
    }
}
