//! Opens blobs: at once if the seal is unbroken, otherwise after hashing.

use std::fs::{self, File};
use std::io;
use std::sync::atomic::Ordering;

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;

use super::{Blobs, OpenBlob, Pin, failed, make_empty};
use crate::digest::Digest;
use crate::error::Result;
use crate::local::descriptors::spare;
use crate::local::file_digest::hash_file;
use crate::local::index::Used;
use crate::local::seal::Seal;

/// The most warnings about damaged blobs in one minute; further ones are counted and logged at DEBUG.
const DAMAGE_WARNINGS_PER_MINUTE: u32 = 10;

impl Blobs {
    /// Opens a blob of `size` bytes for a program, which may keep it open; `None` if it is missing or damaged.
    ///
    /// Without an unbroken seal this reads the whole file, which may take a while.
    ///
    /// # Errors
    ///
    /// An error of the disk, which the caller should treat as a miss; `Exhausted` when only the
    /// reserve of descriptors is left.
    pub fn open_blob(&self, digest: &Digest, size: u64) -> Result<Option<OpenBlob>> {
        let Some(OpenBlob { file, pin }) = self.open_briefly(digest, size)? else {
            return Ok(None);
        };
        Ok(Some(OpenBlob { file: spare(file)?, pin }))
    }

    /// As [`Blobs::open_blob`], for the daemon's own work, which may use the reserve of descriptors.
    ///
    /// # Errors
    ///
    /// An error of the disk; `Exhausted` when no descriptor is left at all.
    pub fn open_briefly(&self, digest: &Digest, size: u64) -> Result<Option<OpenBlob>> {
        if digest.is_empty_content() {
            return if size == 0 { self.open_empty().map(Some) } else { Ok(None) };
        }
        match self.try_to_open(digest, size)? {
            Some(open) => Ok(Some(open)),
            // A writer of the same bytes may have adopted its file just now.
            None => self.open_at_rest(digest, size),
        }
    }

    /// Reports whether the open file of a blob still has its seal, and records that the blob is
    /// used. Does not access the disk.
    pub fn is_whole(&self, digest: &Digest, size: u64, file: &File) -> bool {
        let Ok(found) = file.metadata() else { return false };
        let seal = Seal::of(&found);
        // Pinning for a moment records the use.
        let Some(_pin) = self.pin(digest) else { return false };
        let table = self.0.table.lock();
        let held = table.tier.get(digest);
        held.is_some_and(|held| held.blob.verified && held.blob.seal == seal && seal.size == size)
    }

    /// Opens a blob under its stripe, so that its file is not moved meanwhile, if its seal is unbroken.
    fn open_at_rest(&self, digest: &Digest, size: u64) -> Result<Option<OpenBlob>> {
        let (pin, open) = {
            let _stripe = self.stripe(digest);
            if !self.count_pin(digest) {
                return Ok(None);
            }
            (Pin::counted(self.clone(), *digest), self.whole_file(digest, size))
        };
        Ok(open?.map(|file| OpenBlob { file, pin }))
    }

    /// Returns the file of a blob if its seal is unbroken. The caller holds the stripe.
    fn whole_file(&self, digest: &Digest, size: u64) -> Result<Option<File>> {
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let file = match rustix::fs::open(self.path_of(digest), flags, Mode::empty()) {
            Ok(file) => File::from(file),
            // The file may well exist.
            Err(e @ (Errno::MFILE | Errno::NFILE)) => return Err(failed("open", digest, e.into())),
            Err(_) => return Ok(None),
        };
        let seal = Seal::of(&file.metadata().map_err(|e| failed("examine", digest, e))?);
        let Some(held) = self.0.table.lock().tier.get(digest) else { return Ok(None) };
        let whole = held.blob.verified && held.blob.seal == seal && seal.size == size;
        Ok(whole.then_some(file))
    }

    fn try_to_open(&self, digest: &Digest, size: u64) -> Result<Option<OpenBlob>> {
        let Some(pin) = self.pin(digest) else { return Ok(None) };
        let Some((file, seal)) = self.open_file(digest)? else { return Ok(None) };
        let Some(held) = self.0.table.lock().tier.get(digest) else { return Ok(None) };
        let unbroken = held.blob.verified && held.blob.seal == seal;
        if !unbroken && !self.verify(digest, &file, seal)? {
            return Ok(None);
        }
        if seal.size != size {
            tracing::debug!(%digest, size, found = seal.size, "an entry has another size than its blob");
            return Ok(None);
        }
        Ok(Some(OpenBlob { file, pin }))
    }

    fn open_empty(&self) -> Result<OpenBlob> {
        let open = || {
            make_empty(&self.0.empty)?;
            File::open(&self.0.empty)
        };
        let file = open().map_err(|e| failed("open", &Digest::empty(), e))?;
        Ok(OpenBlob { file, pin: Pin::empty() })
    }

    /// Opens the file of a blob, whatever its content, and returns its present seal; `None` if
    /// there is no such file.
    fn open_file(&self, digest: &Digest) -> Result<Option<(File, Seal)>> {
        // Another program may have put a FIFO or a link there. The open must not block on it or follow it.
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let file = match rustix::fs::open(self.path_of(digest), flags, Mode::empty()) {
            Ok(file) => File::from(file),
            Err(Errno::NOENT) => {
                self.vanished(digest);
                return Ok(None);
            }
            Err(Errno::LOOP | Errno::NXIO) => {
                self.damaged(digest, None);
                return Ok(None);
            }
            Err(e) => return Err(failed("open", digest, e.into())),
        };
        let found = file.metadata().map_err(|e| failed("examine", digest, e))?;
        if !found.is_file() {
            self.damaged(digest, None);
            return Ok(None);
        }
        Ok(Some((file, Seal::of(&found))))
    }

    /// Hashes an open blob; seals it if it is right, removes it if it is wrong.
    fn verify(&self, digest: &Digest, file: &File, before: Seal) -> Result<bool> {
        let content = hash_file(file, before.size).map_err(|e| failed("read", digest, e))?;
        let after = Seal::of(&file.metadata().map_err(|e| failed("examine", digest, e))?);
        if after != before {
            // Moved, linked or written meanwhile: report a miss now; the next open decides.
            return Ok(false);
        }
        if content != *digest {
            self.damaged(digest, Some(after.ino));
            return Ok(false);
        }
        let now = self.now();
        let mut table = self.0.table.lock();
        let mut news = None;
        table.tier.change(digest, |held| {
            // A file that was adopted during the read has a better seal than ours.
            if !held.blob.verified || held.blob.seal.ino == after.ino {
                held.blob.seal = after;
                held.blob.verified = true;
                held.blob.used = now;
                news = Some(Used { seal: after, used: now });
            }
        });
        if news.is_some() {
            table.tell(*digest, news);
        }
        Ok(true)
    }

    /// Forgets a blob whose file another program has removed.
    fn vanished(&self, digest: &Digest) {
        let _stripe = self.stripe(digest);
        let gone = fs::symlink_metadata(self.path_of(digest))
            .is_err_and(|e| e.kind() == io::ErrorKind::NotFound);
        if gone {
            self.0.table.lock().forget(digest);
            if self.may_warn() {
                tracing::warn!(%digest, "the file of a local blob was removed by another program");
            }
        }
    }

    /// Removes a damaged blob, if the file with inode `ino` is still the one in place. `None`
    /// stands for something that is not a file.
    fn damaged(&self, digest: &Digest, ino: Option<u64>) {
        let path = self.path_of(digest);
        {
            let _stripe = self.stripe(digest);
            let here = super::seal_at(&path).ok().flatten().map(|seal| seal.ino);
            if here != ino {
                return;
            }
            let removed = match fs::remove_file(&path) {
                Err(e) if e.kind() == io::ErrorKind::IsADirectory => fs::remove_dir_all(&path),
                other => other,
            };
            if let Err(e) = removed
                && e.kind() != io::ErrorKind::NotFound
            {
                // The blob stays in the table unverified, so that it is never served.
                tracing::debug!(%digest, error = %e, "a damaged blob cannot be removed");
            } else {
                self.0.table.lock().forget(digest);
            }
        }
        let total = self.0.damaged.fetch_add(1, Ordering::Relaxed) + 1;
        if self.may_warn() {
            tracing::warn!(%digest, total, "a local blob was damaged; it is a miss until rewritten");
        } else {
            tracing::debug!(%digest, total, "a local blob was damaged");
        }
    }

    fn may_warn(&self) -> bool {
        let minute = u64::from(self.now()) / 60;
        let mut warned = self.0.warned.lock();
        if warned.0 != minute {
            *warned = (minute, 0);
        }
        warned.1 += 1;
        warned.1 <= DAMAGE_WARNINGS_PER_MINUTE
    }
}
