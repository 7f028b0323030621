//! Staging files that an earlier run left behind.
//!
//! A closed file stays in staging until its last descriptor is gone. If the daemon stops in
//! between, the journal names a content that no blob has, and the staging file holds it. Owns these
//! files until a task has examined them. Must never turn one of them into a blob itself: a program
//! may still write to it through a descriptor that the kernel passed through.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};

use super::file_digest::hash_file;
use crate::digest::Digest;

/// The folder to which they are moved, so that their names do not collide with those of this run.
const FOLDER: &str = "left";

/// One staging file of an earlier run. It may be the only copy of a closed file, so it stays until
/// it is removed explicitly: a start that fails or is refused loses nothing.
#[derive(Debug)]
pub struct Leftover {
    path: PathBuf,
    size: u64,
}

impl Leftover {
    /// Returns its size in bytes.
    pub fn size(&self) -> u64 {
        self.size
    }

    /// Removes the file: its bytes are a blob now, or no entry names them.
    pub fn remove(self) {
        if let Err(error) = gone(fs::remove_file(&self.path)) {
            tracing::debug!(path = %self.path.display(), %error, "a leftover of an earlier run is not removed");
        }
    }

    /// Copies its bytes and returns the digest of the copy.
    ///
    /// # Errors
    ///
    /// When the leftover cannot be read, or the copy cannot be written.
    pub fn copy_to(&self, to: &File) -> io::Result<Digest> {
        let mut from = File::open(&self.path)?;
        let mut writer = to;
        io::copy(&mut from, &mut writer)?;
        hash_file(to, self.size)
    }
}

/// Moves all files of the staging folder aside and returns the non-empty ones. Files that a run
/// which is just ending removes meanwhile are no error.
pub(super) fn put_aside(staging: &Path) -> io::Result<Vec<Leftover>> {
    let aside = staging.join(FOLDER);
    let mut number = 0_u64;
    let mut left = Vec::new();
    for entry in read(&aside)? {
        number += 1;
        keep(entry?.path(), &mut left)?;
    }
    for entry in read(staging)? {
        let entry = entry?;
        if entry.file_name() == FOLDER {
            continue;
        }
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            fs::remove_dir_all(entry.path())?;
            continue;
        }
        if entry.metadata().is_ok_and(|found| found.is_file() && found.len() > 0) {
            fs::create_dir_all(&aside)?;
            let mut to = aside.join(format!("{number:016x}"));
            while to.exists() {
                number += 1;
                to = aside.join(format!("{number:016x}"));
            }
            if gone(fs::rename(entry.path(), &to))? {
                keep(to, &mut left)?;
            }
        } else {
            gone(fs::remove_file(entry.path()))?;
        }
    }
    Ok(left)
}

fn keep(path: PathBuf, left: &mut Vec<Leftover>) -> io::Result<()> {
    let found = fs::symlink_metadata(&path)?;
    let leftover = Leftover { path, size: found.len() };
    if found.is_file() && found.len() > 0 {
        left.push(leftover);
    } else {
        leftover.remove();
    }
    Ok(())
}

fn read(folder: &Path) -> io::Result<impl Iterator<Item = io::Result<fs::DirEntry>>> {
    match fs::read_dir(folder) {
        Ok(entries) => Ok(Some(entries).into_iter().flatten()),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None.into_iter().flatten()),
        Err(error) => Err(error),
    }
}

/// Returns false if the file was already gone.
fn gone(done: io::Result<()>) -> io::Result<bool> {
    match done {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(error) => Err(error),
    }
}
