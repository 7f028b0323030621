//! Keeping contents that the daemon has in memory, because it has fetched and checked them.
//!
//! Owns the short way: a file without a name gets its name when it is complete. Whatever ends the
//! process before that leaves nothing. Where it cannot be used, the content goes through staging.

use std::fs::File;
use std::io::Write as _;
use std::os::fd::AsRawFd as _;
use std::path::Path;

use rustix::fs::{AtFlags, CWD, Mode, OFlags};
use rustix::io::Errno;

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
        if self.write_unnamed(digest, bytes, &staged)? {
            self.relieve(charge(size));
        } else {
            self.replace(digest, bytes, &staged)?;
        }
        Ok(true)
    }

    /// Makes a blob of a file that has no name until it is complete. Returns false if that cannot be
    /// done: the name is taken, or the disk does not make such files.
    fn write_unnamed(&self, digest: Digest, bytes: &[u8], staged: &StagedBytes) -> Result<bool> {
        let path = self.path_of(&digest);
        let shard = self.0.path.join(digest.shard());
        let flags = OFlags::TMPFILE | OFlags::WRONLY | OFlags::CLOEXEC;
        let Ok(file) = rustix::fs::open(&shard, flags, Mode::RUSR | Mode::WUSR) else {
            return Ok(false);
        };
        let mut file = File::from(file);
        file.write_all(bytes).map_err(|e| failed("write", &digest, e))?;
        let _stripe = self.stripe(&digest);
        if self.0.table.lock().tier.get(&digest).is_some() || link(&file, &path).is_err() {
            return Ok(false);
        }
        // Naming changes the ctime, so the seal is taken afterwards.
        let found = file.metadata().map_err(|e| failed("examine", &digest, e))?;
        // Nobody can write to a blob.
        drop(file);
        self.count_new(digest, Seal::of(&found), true, false, staged);
        Ok(true)
    }

    /// Writes a staging file, and replaces what has the name of the blob at once.
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

/// Gives an open file a name that is not taken.
fn link(file: &File, path: &Path) -> rustix::io::Result<()> {
    match rustix::fs::linkat(file, "", CWD, path, AtFlags::EMPTY_PATH) {
        // Linux before 6.10 allows this only with `CAP_DAC_READ_SEARCH`.
        Err(Errno::NOENT) => link_through_proc(file, path),
        linked => linked,
    }
}

/// The same; needs `/proc` and no capability.
fn link_through_proc(file: &File, path: &Path) -> rustix::io::Result<()> {
    let open = format!("/proc/self/fd/{}", file.as_raw_fd());
    rustix::fs::linkat(CWD, open, CWD, path, AtFlags::SYMLINK_FOLLOW)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_ways_to_name_a_file_name_it_once() {
        let root = tempfile::tempdir().unwrap();
        // It has a name already, because not every disk makes files without one.
        let mut file = File::create(root.path().join("first")).unwrap();
        file.write_all(b"content").unwrap();
        for (n, link) in [link, link_through_proc].into_iter().enumerate() {
            let path = root.path().join(n.to_string());
            link(&file, &path).unwrap();
            assert_eq!(std::fs::read(&path).unwrap(), b"content");
            assert_eq!(link(&file, &path), Err(Errno::EXIST));
        }
    }
}
