//! A remote that is a directory shared by the nodes.
//!
//! Owns what a directory needs and a bucket does not: creating it, telling it from an empty mount
//! point, and removing temporaries of writers that died. Must never write when the shared file
//! system is no longer mounted there.

use std::io::{self, Read as _};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use object_store::ObjectStore;
use object_store::local::LocalFileSystem;

use super::format::{self, StoreId};
use super::keys;
use crate::error::{Error, Kind, Result};
use crate::task;

/// Age at which a temporary belongs to a writer that died. Uploads end within minutes.
const LITTER_AGE: Duration = Duration::from_hours(24);
/// How many directory entries one sweep looks at.
const SWEEP_ENTRIES_MAX: usize = 200_000;

/// The directory and, once it exists, its client.
#[derive(Debug)]
pub(super) struct SharedDir {
    root: PathBuf,
    store: OnceLock<Arc<LocalFileSystem>>,
    /// Which store was checked there; 0 before the first check.
    checked: AtomicU64,
}

impl SharedDir {
    pub(super) fn new(root: PathBuf) -> Self {
        Self { root, store: OnceLock::new(), checked: AtomicU64::new(0) }
    }

    /// Returns the client, after [`SharedDir::open`] has made it.
    pub(super) fn store(&self) -> Result<Arc<dyn ObjectStore>> {
        self.store.get().map(|store| store.clone() as _).ok_or_else(|| self.gone())
    }

    /// Makes the client, and also the directory if `make` is set. Blocks: a shared file system may hang.
    pub(super) fn open(&self, make: bool) -> Result<()> {
        if self.store.get().is_some() {
            return Ok(());
        }
        if make {
            self.make()?;
        } else if let Err(error) = std::fs::metadata(&self.root)
            && error.kind() == std::io::ErrorKind::NotFound
        {
            let op = format!(
                "remote {} does not exist: correct the address, or mount the shared file system there",
                self.root.display()
            );
            return Err(Error::with(Kind::NotFound, op, error));
        }
        let store = LocalFileSystem::new_with_prefix(&self.root).map_err(|_| self.gone())?;
        // A node that drops its journal after a put relies on the put to survive a power loss.
        self.store.get_or_init(|| Arc::new(store.with_fsync(true)));
        Ok(())
    }

    /// Notes which store was checked there.
    pub(super) fn note_checked(&self, store: StoreId) {
        self.checked.store(store.0, Ordering::Relaxed);
    }

    /// Reports whether this is still the directory that was checked. It is not if the share was
    /// unmounted and left a bare mount point, or if another store was made there since.
    pub(super) fn is_present(&self) -> bool {
        let read = || {
            let file = std::fs::File::open(self.root.join(keys::FORMAT))?;
            let mut said = Vec::new();
            file.take(format::FORMAT_BYTES_MAX).read_to_end(&mut said)?;
            io::Result::Ok(said)
        };
        let store = read().ok().and_then(|said| format::store_of(&said));
        let checked = self.checked.load(Ordering::Relaxed);
        store.is_some_and(|store| checked == 0 || store.0 == checked)
    }

    /// Makes the directory if its parent exists.
    fn make(&self) -> Result<()> {
        let shown = self.root.display();
        match std::fs::metadata(&self.root) {
            Ok(data) if data.is_dir() => return Ok(()),
            Ok(_) => {
                let op = format!("remote {shown} is not a directory; name a directory");
                return Err(Error::new(Kind::Invalid, op));
            }
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
            Err(error) => return Err(Error::io(format!("look at remote {shown}"), error)),
        }
        match std::fs::create_dir(&self.root) {
            Ok(()) => sync_dir(self.root.parent().unwrap_or(Path::new("/"))),
            // Another node made it first.
            Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => Ok(()),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
                let parent = self.root.parent().unwrap_or(Path::new("/")).display();
                let op = format!(
                    "remote {shown} cannot be made: {parent} does not exist; make it, or mount the \
                     shared file system there"
                );
                Err(Error::with(Kind::NotFound, op, error))
            }
            Err(error) => {
                let op = format!("make remote {shown}; choose a directory that hearthfs may write");
                Err(Error::io(op, error))
            }
        }
    }

    /// Removes a file that was stored at a given time. Returns false and leaves the file if it was
    /// stored again since. Blocks.
    ///
    /// The file is renamed first and checked under its new name. A node that stores it again
    /// meanwhile makes a new file under the old name, which is not touched.
    pub(super) fn remove_old(&self, key: &str, stored_ms: u64) -> io::Result<bool> {
        self.remove_if(key, |path| {
            let modified = std::fs::metadata(path)?.modified()?;
            let at = modified.duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
            Ok(at.as_millis() as u64 == stored_ms)
        })
    }

    fn remove_if(&self, key: &str, is_old: impl Fn(&Path) -> io::Result<bool>) -> io::Result<bool> {
        let path = self.root.join(key);
        match is_old(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(true),
            Ok(true) => {}
            other => return other,
        }
        // Named like the client's temporaries, so that the sweep also removes what a crash leaves.
        let mut aside = path.clone().into_os_string();
        aside.push(format!("#{}", task::random_u64()));
        let aside = PathBuf::from(aside);
        match std::fs::rename(&path, &aside) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(true),
            moved => moved?,
        }
        let old = is_old(&aside);
        // A file that cannot be checked goes back too.
        if !matches!(old, Ok(true)) {
            match std::fs::hard_link(&aside, &path) {
                // A newer file has taken the name.
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
                // Some file systems have no links.
                Err(_) => return std::fs::rename(&aside, &path).and(old),
                Ok(()) => {}
            }
        }
        std::fs::remove_file(&aside).and(old)
    }

    pub(super) fn gone(&self) -> Error {
        let op = format!(
            "remote {} does not exist, or its {} is missing or of another store: check that the shared file system is mounted",
            self.root.display(),
            keys::FORMAT
        );
        Error::new(Kind::Unavailable, op)
    }

    /// Removes temporaries of writers that died; returns how many.
    pub(super) fn sweep(&self, now_ms: u64) -> usize {
        let oldest = now_ms.saturating_sub(LITTER_AGE.as_millis() as u64);
        let mut todo: Vec<PathBuf> =
            [keys::LOG, keys::PACKS, keys::BLOBS, keys::CHECKPOINTS, keys::PROBES]
                .map(|dir| self.root.join(dir))
                .into();
        let (mut seen, mut removed) = (0, 0);
        while let Some(dir) = todo.pop() {
            let Ok(entries) = std::fs::read_dir(&dir) else { continue };
            for entry in entries.flatten() {
                seen += 1;
                if seen > SWEEP_ENTRIES_MAX {
                    return removed;
                }
                let is_dir = entry.file_type().is_ok_and(|kind| kind.is_dir());
                if is_dir && dir.ends_with(keys::BLOBS) {
                    todo.push(entry.path());
                } else if !is_dir && is_litter(&entry, oldest) {
                    removed += usize::from(std::fs::remove_file(entry.path()).is_ok());
                }
            }
        }
        removed
    }
}

/// Reports whether an entry is an old temporary: the client writes `<name>#<number>` and renames
/// it. No name of ours holds `#`.
fn is_litter(entry: &std::fs::DirEntry, oldest_ms: u64) -> bool {
    let name = entry.file_name();
    let numbered = name
        .to_str()
        .and_then(|name| name.rsplit_once('#'))
        .is_some_and(|(_, n)| !n.is_empty() && n.bytes().all(|digit| digit.is_ascii_digit()));
    let modified = || {
        let time = entry.metadata().ok()?.modified().ok()?;
        time.duration_since(std::time::UNIX_EPOCH).ok()
    };
    numbered && modified().is_some_and(|time| (time.as_millis() as u64) < oldest_ms)
}

fn sync_dir(dir: &Path) -> Result<()> {
    std::fs::File::open(dir)
        .and_then(|dir| dir.sync_all())
        .map_err(|error| Error::io(format!("sync {}", dir.display()), error))
}

#[cfg(test)]
mod tests {
    use super::*;

    const DAY_MS: u64 = 24 * 60 * 60 * 1000;

    #[test]
    fn a_directory_is_made_but_not_its_parents() {
        let base = tempfile::tempdir().expect("a directory");
        let dir = SharedDir::new(base.path().join("a"));
        assert_eq!(dir.store().expect_err("not open yet").kind(), Kind::Unavailable);
        let error = dir.open(false).expect_err("missing");
        assert_eq!(error.kind(), Kind::NotFound);
        assert!(error.to_string().contains("a does not exist: correct"), "{error}");
        dir.open(true).expect("made");
        dir.make().expect("it exists");
        dir.store().expect("a client");
        let error = SharedDir::new(base.path().join("b/c")).open(true).expect_err("no parent");
        assert_eq!(error.kind(), Kind::NotFound);
        assert!(error.to_string().contains("b does not exist"), "{error}");
        std::fs::write(base.path().join("file"), b"").expect("written");
        let error = SharedDir::new(base.path().join("file")).open(true).expect_err("a file");
        assert!(error.to_string().contains("not a directory"), "{error}");
    }

    #[test]
    fn another_store_in_the_same_place_is_not_the_checked_one() {
        let base = tempfile::tempdir().expect("a directory");
        let dir = SharedDir::new(base.path().to_owned());
        let path = base.path().join(keys::FORMAT);
        let write = |id: u64| {
            let text = format::Format::new(StoreId(id), 5, None).encode();
            std::fs::write(&path, text).expect("written");
        };
        assert!(!dir.is_present());
        write(1);
        assert!(dir.is_present(), "any store is present until one is checked");
        dir.note_checked(StoreId(1));
        assert!(dir.is_present());
        write(2);
        assert!(!dir.is_present());
        std::fs::write(&path, b"").expect("written");
        assert!(!dir.is_present());
    }

    #[test]
    fn a_file_that_was_stored_again_is_not_removed() {
        let base = tempfile::tempdir().expect("a directory");
        let dir = SharedDir::new(base.path().to_owned());
        let path = base.path().join("file");
        let store = |secs: u64| {
            let file = std::fs::File::create(&path).expect("made");
            let at = std::time::UNIX_EPOCH + Duration::from_secs(secs);
            file.set_modified(at).expect("set");
        };
        store(100);
        assert!(!dir.remove_old("file", 99_000).expect("checked"));
        assert!(path.exists());
        assert!(dir.remove_old("file", 100_000).expect("removed"));
        assert!(!path.exists());
        assert!(dir.remove_old("file", 100_000).expect("it was removed"));
        // While a writer stores a file again all the time, a young file never stays missing.
        std::thread::scope(|scope| {
            let writer = scope.spawn(|| {
                for round in 0..400 {
                    let next = base.path().join("next");
                    let file = std::fs::File::create(&next).expect("made");
                    let secs = if round % 2 == 0 { 100 } else { 200 + round };
                    let at = std::time::UNIX_EPOCH + Duration::from_secs(secs);
                    file.set_modified(at).expect("set");
                    std::fs::rename(&next, &path).expect("stored");
                }
            });
            while !writer.is_finished() {
                dir.remove_old("file", 100_000).expect("removed or left");
            }
        });
        assert!(path.exists(), "the last file is young");
        assert_eq!(std::fs::read_dir(base.path()).expect("readable").count(), 1);
    }

    #[test]
    fn a_file_that_cannot_be_looked_at_is_put_back() {
        let base = tempfile::tempdir().expect("a directory");
        let dir = SharedDir::new(base.path().to_owned());
        std::fs::write(base.path().join("file"), b"kept").expect("written");
        let broken = |path: &Path| match path.extension() {
            None if path.ends_with("file") => Ok(true),
            _ => Err(io::Error::other("a server that is away")),
        };
        let error = dir.remove_if("file", broken).expect_err("the check fails");
        assert_eq!(error.to_string(), "a server that is away");
        assert_eq!(std::fs::read(base.path().join("file")).expect("readable"), b"kept");
        assert_eq!(std::fs::read_dir(base.path()).expect("readable").count(), 1);
    }

    #[test]
    fn only_old_temporaries_are_swept() {
        let base = tempfile::tempdir().expect("a directory");
        let shard = base.path().join("blobs/ab");
        std::fs::create_dir_all(&shard).expect("made");
        for name in ["abc#1", "abc#27", "abc", "abc#", "abc#x"] {
            std::fs::write(shard.join(name), b"x").expect("written");
        }
        std::fs::write(base.path().join("foreign#1"), b"x").expect("written");
        let dir = SharedDir::new(base.path().to_owned());
        let now_ms = crate::clock::Clock::system().wall_ms();
        assert_eq!(dir.sweep(now_ms), 0);
        assert_eq!(dir.sweep(now_ms + DAY_MS + 60_000), 2);
        let left = std::fs::read_dir(&shard).expect("readable").count();
        assert_eq!(left, 3);
        assert!(base.path().join("foreign#1").exists());
    }
}
