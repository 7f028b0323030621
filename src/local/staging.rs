//! Staging: files that are being written or fetched and have no digest yet.
//!
//! Owns the empty files that are kept ready. Files of an earlier run are moved aside, because the
//! journal may name their contents (see `leftovers`).

use std::fs::File;
use std::io;
use std::sync::Arc;
use std::sync::mpsc::{SyncSender, sync_channel};

use parking_lot::Mutex;

use super::dir::CacheDir;
use super::leftovers::{Leftover, put_aside};
use super::shelf::{Shelf, StagedPath};
use crate::error::{Error, Result};
use crate::task;

/// The number of empty files kept ready. Making one is most of the cost of a `create`, and a
/// program that creates a file has usually not finished the previous one when the next can be made.
const READY_FILES_MAX: usize = 16;
/// When only this many are left, more are made. Waking the thread costs a caller as much as the
/// round trip of a request, so it makes several at a time.
const READY_FILES_LOW: usize = 4;

/// The folder of staging files.
#[derive(Clone, Debug)]
pub struct Staging {
    shelf: Arc<Shelf>,
    ready: Option<Ready>,
    left: Arc<Mutex<Vec<Leftover>>>,
}

/// Files made in advance by a thread of their own, which ends with the last clone.
#[derive(Clone, Debug)]
struct Ready {
    files: Arc<Mutex<Vec<(File, StagedPath)>>>,
    wake: SyncSender<()>,
}

impl Ready {
    fn start(shelf: Arc<Shelf>) -> io::Result<Self> {
        let files = Arc::new(Mutex::new(Vec::with_capacity(READY_FILES_MAX)));
        let (wake, woken) = sync_channel::<()>(1);
        let made = Arc::clone(&files);
        // The thread ends by itself.
        drop(task::thread("hearthfs-stage", move || {
            while woken.recv().is_ok() {
                while made.lock().len() < READY_FILES_MAX {
                    // The next caller that needs a file tries it itself, and reports the error.
                    let Ok(one) = shelf.create() else { break };
                    made.lock().push(one);
                }
            }
        })?);
        let ready = Self { files, wake };
        ready.refill();
        Ok(ready)
    }

    fn refill(&self) {
        // A full channel means that the thread is already notified.
        self.wake.try_send(()).ok();
    }

    fn take(&self) -> Option<(File, StagedPath)> {
        let (one, left) = {
            let mut files = self.files.lock();
            (files.pop(), files.len())
        };
        if left <= READY_FILES_LOW {
            self.refill();
        }
        one
    }
}

impl Staging {
    /// Opens the folder and puts aside what an earlier run left in it.
    ///
    /// # Errors
    ///
    /// An error of the disk when what an earlier run left cannot be moved aside.
    pub fn open(dir: &CacheDir) -> Result<Self> {
        let shelf = dir.shelf();
        let mut left = Vec::new();
        if shelf.open() {
            left = put_aside(shelf.path())
                .map_err(|e| Error::io(format!("tidy up {}", shelf.path().display()), e))?;
        }
        let left = Arc::new(Mutex::new(left));
        Ok(Self { shelf: Arc::clone(shelf), ready: None, left })
    }

    /// Returns the files of an earlier run, once. Dropping them removes them.
    pub fn take_leftovers(&self) -> Vec<Leftover> {
        std::mem::take(&mut self.left.lock())
    }

    /// Keeps some empty files ready from now on.
    ///
    /// # Errors
    ///
    /// When the thread cannot be started.
    pub fn keep_ready(mut self) -> Result<Self> {
        let ready = Ready::start(Arc::clone(&self.shelf))
            .map_err(|e| Error::io("start the thread that makes staging files", e))?;
        self.ready = Some(ready);
        Ok(self)
    }

    /// Makes a new, empty file, open for reading and writing.
    ///
    /// # Errors
    ///
    /// `NoSpace` on a full disk, `Exhausted` when no descriptor is left, or another error of the disk.
    pub fn create(&self) -> Result<(File, StagedPath)> {
        match self.ready.as_ref().and_then(Ready::take) {
            Some(made) => Ok(made),
            None => self.shelf.create(),
        }
    }

    /// Returns the bytes of staging files, as recorded with [`StagedPath::note_bytes`], and of contents that
    /// are being kept.
    pub fn bytes(&self) -> u64 {
        self.shelf.bytes()
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn a_staged_file_lives_as_long_as_its_path() {
        let root = tempfile::tempdir().unwrap();
        let dir = CacheDir::open(root.path()).unwrap();
        let staging = Staging::open(&dir).unwrap();
        let (_file, staged) = staging.create().unwrap();
        let (_other, second) = staging.create().unwrap();
        assert_ne!(staged.path(), second.path());
        staged.note_bytes(100);
        second.note_bytes(50);
        staged.note_bytes(30);
        second.note_growth(40, 40);
        assert_eq!(staging.bytes(), 80);
        second.note_growth(1 << 40, 10);
        assert_eq!(staging.bytes(), 90);
        second.note_bytes(50);
        let path = staged.path().to_owned();
        drop(staged);
        assert!(!path.exists());
        assert_eq!(staging.bytes(), 50);
        let kept = second.path().to_owned();
        second.consume();
        assert!(kept.exists());
        assert_eq!(staging.bytes(), 0);
    }

    #[test]
    fn a_shelf_that_ends_late_takes_nothing_from_the_one_that_came_after_it() {
        let root = tempfile::tempdir().unwrap();
        let made = || {
            let dir = CacheDir::open(root.path()).unwrap();
            Staging::open(&dir).unwrap().create().unwrap()
        };
        let (late, early) = (made(), made());
        drop(late);
        assert!(early.1.path().exists());
    }

    #[test]
    fn files_that_are_kept_ready_are_as_good_as_new() {
        let root = tempfile::tempdir().unwrap();
        let dir = CacheDir::open(root.path()).unwrap();
        let staging = Staging::open(&dir).unwrap().keep_ready().unwrap();
        let files: Vec<_> = (0..3 * READY_FILES_MAX).map(|_| staging.create().unwrap()).collect();
        let paths: std::collections::BTreeSet<_> = files.iter().map(|(_, at)| at.path()).collect();
        assert_eq!(paths.len(), files.len());
        for (file, staged) in &files {
            assert!(staged.path().exists());
            assert_eq!(file.metadata().unwrap().len(), 0);
        }
        drop(files);
        assert_eq!(staging.bytes(), 0);
        // Whatever the thread is doing, it ends and leaves no file.
        drop(staging);
        let left = || fs::read_dir(dir.path().join("staging")).unwrap().count();
        while left() > 0 {
            std::thread::yield_now();
        }
    }

    #[test]
    fn leftovers_of_an_earlier_run_are_put_aside_at_the_first_open_only() {
        let root = tempfile::tempdir().unwrap();
        let folder = {
            let dir = CacheDir::open(root.path()).unwrap();
            let folder = dir.path().join("staging");
            fs::write(folder.join("0000000000000000"), b"x").unwrap();
            fs::write(folder.join("0000000000000001"), b"").unwrap();
            // This run stops before it has examined them.
            let left = Staging::open(&dir).unwrap().take_leftovers();
            assert_eq!(left.iter().map(Leftover::size).collect::<Vec<_>>(), [1]);
            drop(left);
            fs::write(folder.join("0000000000000000"), b"later").unwrap();
            folder
        };
        let dir = CacheDir::open(root.path()).unwrap();
        let staging = Staging::open(&dir).unwrap();
        let (copy, staged) = staging.create().unwrap();
        let left = staging.take_leftovers();
        let mut sizes: Vec<_> = left.iter().map(Leftover::size).collect();
        sizes.sort_unstable();
        assert_eq!(sizes, [1, 5]);
        let small = left.iter().find(|left| left.size() == 1).unwrap();
        assert_eq!(small.copy_to(&copy).unwrap(), crate::digest::Digest::of(b"x"));
        left.into_iter().for_each(Leftover::remove);
        assert_eq!(fs::read_dir(folder.join("left")).unwrap().count(), 0);
        assert!(Staging::open(&dir).unwrap().take_leftovers().is_empty());
        assert!(staged.path().exists());
    }
}
