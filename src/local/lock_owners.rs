//! The owners of lock files: the process that made each, kept for the next daemon.
//!
//! Owns one file of the cache directory, to which a line is appended for each lock. Must never be
//! used to decide whether a lock still exists: the namespace decides that.

use std::collections::BTreeMap;
use std::fs::{File, OpenOptions};
use std::io::{self, Read as _, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

use parking_lot::Mutex;

use super::dir::{CacheDir, write_atomic};
use crate::error::{Error, Result};
use crate::name::TreePath;

/// The size at which the file is rewritten with the owners that still count.
const REWRITE_BYTES: u64 = 64 << 10;
/// The most bytes that are read of it: unless it is not ours, it is far smaller.
const READ_BYTES_MAX: u64 = 16 << 20;

/// The process that made a lock file.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct LockOwner {
    /// The lock file.
    pub path: TreePath,
    /// The number of the process.
    pub process: u32,
    /// When it was started, in ticks since the boot.
    pub started: u64,
}

impl LockOwner {
    fn line(&self) -> String {
        let mut line = format!("{} {} ", self.process, self.started);
        line.extend(self.path.as_bytes().iter().map(|byte| format!("{byte:02x}")));
        line.push('\n');
        line
    }

    fn parse(line: &str) -> Option<Self> {
        let mut words = line.split(' ');
        let (process, started) = (words.next()?.parse().ok()?, words.next()?.parse().ok()?);
        let hex = words.next()?.as_bytes();
        let digits = hex.chunks(2).map(|digits| std::str::from_utf8(digits).ok());
        let bytes: Option<Vec<u8>> =
            digits.map(|digits| u8::from_str_radix(digits?, 16).ok()).collect();
        Some(Self { path: TreePath::from_bytes(&bytes?).ok()?, process, started })
    }
}

/// The file that keeps the owners.
#[derive(Debug)]
pub struct LockOwners {
    path: PathBuf,
    boot: String,
    open: Mutex<Open>,
    /// What the previous run left, until it is taken.
    earlier: Mutex<Option<Vec<LockOwner>>>,
}

#[derive(Debug)]
struct Open {
    /// `None` if it could not be opened; then nothing is kept.
    file: Option<File>,
    bytes: u64,
}

impl LockOwners {
    /// Opens the file. If that fails, as on a full disk, logs a warning and serves without it.
    pub fn open(dir: &CacheDir) -> Self {
        let path = dir.path().join("lock-owners");
        let warn = |error: &io::Error| {
            tracing::warn!(path = %path.display(), %error, "cannot save the owners of locks");
        };
        let earlier = read(&path, dir.boot()).inspect_err(warn).unwrap_or(Some(Vec::new()));
        let open = rewrite(&path, dir.boot(), earlier.iter().flatten()).inspect_err(warn);
        let open = open.unwrap_or(Open { file: None, bytes: 0 });
        let (open, earlier) = (Mutex::new(open), Mutex::new(earlier));
        Self { path, boot: dir.boot().to_owned(), open, earlier }
    }

    /// Returns the owner of each lock that earlier runs recorded, in the order of the paths. `None`
    /// if the machine was restarted since, or nothing was kept: then no process is alive that made
    /// a lock through an earlier daemon. Empty on a second call.
    pub fn take_earlier(&self) -> Option<Vec<LockOwner>> {
        self.earlier.lock().replace(Vec::new())
    }

    /// Records an owner. Returns true when the file has become large, so that
    /// [`LockOwners::keep_only`] is due.
    ///
    /// # Errors
    ///
    /// When the file cannot be written. The lock stays, but a restart does not find its process.
    pub fn note(&self, owner: &LockOwner) -> Result<bool> {
        let line = owner.line();
        let mut open = self.open.lock();
        let Some(file) = &mut open.file else { return Ok(false) };
        file.write_all(line.as_bytes()).map_err(|error| self.cannot_write(error))?;
        open.bytes += line.len() as u64;
        Ok(open.bytes >= REWRITE_BYTES)
    }

    /// Forgets all owners except those that `owners` returns. It is called while no owner can be
    /// recorded, so each owner is either among them or recorded afterwards.
    ///
    /// # Errors
    ///
    /// When the file cannot be replaced; the old one stays.
    pub fn keep_only(&self, owners: impl FnOnce() -> Vec<LockOwner>) -> Result<()> {
        let mut open = self.open.lock();
        let rewritten = rewrite(&self.path, &self.boot, owners().iter());
        *open = rewritten.map_err(|error| self.cannot_write(error))?;
        Ok(())
    }

    fn cannot_write(&self, error: io::Error) -> Error {
        Error::io(format!("write {}", self.path.display()), error)
    }
}

/// Reads the lines of the machine's present boot: the last one for each path.
fn read(path: &Path, boot: &str) -> io::Result<Option<Vec<LockOwner>>> {
    let mut bytes = Vec::new();
    match File::open(path) {
        Ok(file) => file.take(READ_BYTES_MAX).read_to_end(&mut bytes)?,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error),
    };
    let text = String::from_utf8_lossy(&bytes);
    let Some((_, lines)) = text.split_once('\n').filter(|(head, _)| *head == boot) else {
        return Ok(None);
    };
    // A line without its end was cut short by a kill.
    let whole = lines.split_inclusive('\n').filter_map(|line| line.strip_suffix('\n'));
    let last: BTreeMap<TreePath, LockOwner> =
        whole.filter_map(LockOwner::parse).map(|owner| (owner.path.clone(), owner)).collect();
    Ok(Some(last.into_values().collect()))
}

/// Rewrites the file and opens it.
fn rewrite<'o>(
    path: &Path,
    boot: &str,
    owners: impl Iterator<Item = &'o LockOwner>,
) -> io::Result<Open> {
    let mut text = format!("{boot}\n");
    text.extend(owners.map(LockOwner::line));
    write_atomic(path, text.as_bytes())?;
    let file = OpenOptions::new().append(true).mode(0o600).open(path)?;
    // The live owners may themselves need much space: the next rewrite comes after as much was appended.
    Ok(Open { file: Some(file), bytes: 0 })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::Kind;

    fn owner(path: &str, process: u32) -> LockOwner {
        let path = TreePath::from_bytes(path.replace('/', "\0").as_bytes()).unwrap();
        LockOwner { path, process, started: 7 }
    }

    /// Opens a cache directory that was just closed. For a moment, a child that another test is
    /// starting holds copies of all descriptors, and so of the lock.
    fn open_again(path: &Path) -> CacheDir {
        for _ in 0..1000 {
            match CacheDir::open(path) {
                Err(error) if error.kind() == Kind::Busy => {
                    std::thread::park_timeout(std::time::Duration::from_millis(5));
                }
                opened => return opened.unwrap(),
            }
        }
        panic!("{} stays in use", path.display());
    }

    #[test]
    fn the_last_owner_of_each_lock_is_known_after_a_restart() {
        let root = tempfile::tempdir().unwrap();
        {
            let dir = CacheDir::open(&root.path().join("cache")).unwrap();
            let owners = LockOwners::open(&dir);
            assert_eq!(owners.take_earlier(), None, "nothing was kept");
            assert_eq!(owners.take_earlier(), Some(Vec::new()));
            for owner in [owner("b/lock", 3), owner("a\nb/lock", 1), owner("b/lock", 2)] {
                assert!(!owners.note(&owner).unwrap());
            }
        }
        let dir = open_again(&root.path().join("cache"));
        let path = dir.path().join("lock-owners");
        let mut torn = OpenOptions::new().append(true).open(&path).unwrap();
        torn.write_all(b"9 7 63").unwrap();
        let owners = LockOwners::open(&dir);
        let wanted = [owner("a\nb/lock", 1), owner("b/lock", 2)];
        assert_eq!(owners.take_earlier().as_deref(), Some(wanted.as_slice()));
        owners.keep_only(|| wanted[..1].to_vec()).unwrap();
        let owners = LockOwners::open(&dir);
        assert_eq!(owners.take_earlier().as_deref(), Some(&wanted[..1]));
        let mut large = false;
        for _ in 0..REWRITE_BYTES / 4 {
            large |= owners.note(&owner("c", 1)).unwrap();
        }
        assert!(large);
        // Another boot of the machine.
        let text = std::fs::read_to_string(&path).unwrap();
        std::fs::write(&path, text.replacen(dir.boot(), "another", 1)).unwrap();
        assert_eq!(LockOwners::open(&dir).take_earlier(), None);
    }

    #[test]
    fn what_cannot_be_kept_is_no_reason_not_to_serve() {
        let root = tempfile::tempdir().unwrap();
        let dir = CacheDir::open(&root.path().join("cache")).unwrap();
        std::fs::create_dir(dir.path().join("lock-owners")).unwrap();
        let owners = LockOwners::open(&dir);
        assert_eq!(owners.take_earlier(), Some(Vec::new()), "no owner is known");
        assert!(!owners.note(&owner("c", 1)).unwrap());
    }
}
