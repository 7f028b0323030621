//! The cache directory: its holder, its format, its identity.
//!
//! Owns the layout below `<cache-dir>/v1`, the lock, the node's identity and the record of how the
//! last run ended. Must never change anything in a directory that it refuses.

use std::fs::{self, DirBuilder, File, OpenOptions, TryLockError};
use std::io::{self, Read as _, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, FileExt as _, MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustix::fs::{Access, Mode, OFlags};
use rustix::io::Errno;

use super::shelf::Shelf;
use crate::error::{Error, Kind, Result, kind_of_io};
use crate::stamp::NodeId;
use crate::task;

/// The format of the layout below `v1`.
const FORMAT: u32 = 1;
/// Free space below which a new directory is refused: room for one segment of the journal, the index
/// and a few blobs.
const MIN_FREE_BYTES: u64 = 16 << 20;
/// The file that records which store this node knows.
const STORE: &str = "store";
/// Marks a directory as a cache for backup programs (the Cache Directory Tagging Specification).
const TAG: &str = "Signature: 8a477f597d28d172789f06886806bc55\n\
    # This directory is a cache of hearthfs; it can be left out of backups.\n";
/// The owner that is shown for users without a number in this user namespace.
const OVERFLOW_UID: u32 = 65_534;
/// The most bytes that are read of a small file of ours.
const SMALL_FILE_BYTES: u64 = 64 << 10;

/// The cache directory of one daemon, held exclusively until the last clone is dropped.
///
/// What is opened in it does not keep the lock: keep this until all of that is closed.
#[derive(Clone, Debug)]
pub struct CacheDir(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    v1: PathBuf,
    lock: File,
    node: NodeId,
    life: Life,
    shelf: Arc<Shelf>,
}

/// How earlier runs ended, as far as that shows what the page cache may have lost.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Life {
    boot: String,
    /// Counts how often the contents of files came into doubt; seals of an earlier era are invalid.
    era: u64,
    doubt: bool,
}

impl CacheDir {
    /// Opens the cache directory at `root`, and makes it if it does not exist.
    ///
    /// # Errors
    ///
    /// Before anything is changed: `Invalid` for a path that is no directory or holds a newer format, `Denied` when it
    /// is not writable, `NoSpace` when a new one does not fit, `Busy` when another process holds it.
    pub fn open(root: &Path) -> Result<Self> {
        let root = absolute(root)?;
        check_place(&root)?;
        check_format(&root)?;
        let v1 = root.join("v1");
        let fresh = !v1.join("blobs").exists();
        let held = match OpenOptions::new().read(true).write(true).open(v1.join("LOCK")) {
            Ok(file) => Some(lock(&root, file)?),
            Err(e) if e.kind() == io::ErrorKind::NotFound => None,
            Err(e) => return Err(refused(&root, "LOCK cannot be opened", e)),
        };
        make_dirs(&v1).map_err(|e| refused(&root, "cannot be made", e))?;
        let lock = match held {
            Some(file) => file,
            None => lock(&root, make_lock(&v1).map_err(|e| refused(&root, "cannot be made", e))?)?,
        };
        let fill = || -> io::Result<(NodeId, Life)> {
            for (name, text) in [("FORMAT", format!("{FORMAT}\n")), ("CACHEDIR.TAG", TAG.into())] {
                if !v1.join(name).exists() {
                    write_atomic(&v1.join(name), text.as_bytes())?;
                }
            }
            Ok((node_of(&v1)?, Life::begin(&v1, fresh)?))
        };
        let (node, life) = fill().map_err(|e| refused(&root, "cannot be written", e))?;
        if life.doubt {
            tracing::warn!(
                path = %root.display(),
                "the machine restarted without a clean stop; blobs are verified when first used"
            );
        }
        let shelf = Arc::new(Shelf::new(v1.join("staging")));
        let dir = Self(Arc::new(Inner { v1, lock, node, life, shelf }));
        dir.set_holder("starting")?;
        Ok(dir)
    }

    /// Returns the text that [`CacheDir::keep_store`] kept about the store that this node knows;
    /// `None` if there is none. Takes no lock and changes nothing.
    ///
    /// # Errors
    ///
    /// `Invalid` or `Denied` for a path that cannot be a cache directory; an error of the disk when the file cannot be
    /// read.
    pub fn kept_store(root: &Path) -> Result<Option<String>> {
        let root = absolute(root)?;
        check_place(&root)?;
        let path = root.join("v1").join(STORE);
        read_small(&path).map_err(|e| Error::io(format!("read {}", path.display()), e))
    }

    /// Reports whether an earlier run has used the cache directory at `root`.
    pub fn is_used(root: &Path) -> bool {
        root.join("v1/index").exists()
    }

    /// Keeps what the next run has to know about the store of this node.
    ///
    /// # Errors
    ///
    /// An error of the disk; the file is then unchanged.
    pub fn keep_store(&self, text: &str) -> Result<()> {
        let path = self.0.v1.join(STORE);
        write_atomic(&path, text.as_bytes())
            .map_err(|e| Error::io(format!("write {}", path.display()), e))
    }

    /// Records the holder of the directory (the mount point), for the message of a second daemon.
    ///
    /// # Errors
    ///
    /// An error of the disk when `LOCK` cannot be written.
    pub fn set_holder(&self, holder: &str) -> Result<()> {
        let text = format!("{}\n{holder}\n", std::process::id());
        // Never empty in between: on a full disk a freed block might not be available again.
        let write = || {
            self.0.lock.write_all_at(text.as_bytes(), 0)?;
            self.0.lock.set_len(text.len() as u64)
        };
        write().map_err(|e| Error::io(format!("write {}", self.path().join("LOCK").display()), e))
    }

    /// Returns the identity of this directory, which its stamps carry.
    pub fn node(&self) -> NodeId {
        self.0.node
    }

    /// Gives up this identity, because another node has the same: the next start takes a new one.
    ///
    /// # Errors
    ///
    /// An error of the disk when `node` cannot be removed. If it is already gone, that is no error.
    pub fn give_up_node(&self) -> Result<()> {
        let path = self.0.v1.join("node");
        match fs::remove_file(&path) {
            Err(e) if e.kind() != io::ErrorKind::NotFound => {
                Err(Error::io(format!("remove {}", path.display()), e))
            }
            _ => Ok(()),
        }
    }

    /// Reports whether file contents may have been lost: the last run did not stop cleanly, and the
    /// machine was restarted since.
    pub fn doubt(&self) -> bool {
        self.0.life.doubt
    }

    /// Returns a number that changes whenever contents come into doubt. What was known about a file
    /// in another era must be forgotten.
    pub fn era(&self) -> u64 {
        self.0.life.era
    }

    /// Records a clean stop. First makes everything written before durable, which is what makes the
    /// stop clean. May take as long as the disk needs.
    ///
    /// # Errors
    ///
    /// An error of the disk when something may not be durable; the next start then counts this run as not clean.
    pub fn mark_clean(&self) -> Result<()> {
        let mark = || {
            rustix::fs::syncfs(&self.0.lock)?;
            self.0.life.write(&self.0.v1, true)
        };
        mark().map_err(|e| Error::io(format!("clean stop of {}", self.path().display()), e))
    }

    /// Returns the identity of the machine's present boot, which changes with a restart.
    pub(super) fn boot(&self) -> &str {
        &self.0.life.boot
    }

    /// Returns the folder of the present format, `<cache-dir>/v1`.
    pub fn path(&self) -> &Path {
        &self.0.v1
    }

    /// Returns the shelf, which names and counts staging files.
    pub(super) fn shelf(&self) -> &Arc<Shelf> {
        &self.0.shelf
    }
}

fn absolute(root: &Path) -> Result<PathBuf> {
    std::path::absolute(root)
        .map_err(|e| Error::io(format!("cache directory {}", root.display()), e))
}

fn refused(root: &Path, what: &str, error: io::Error) -> Error {
    Error::io(format!("cache directory {}: {what}", root.display()), error)
}

fn refuse(kind: Kind, root: &Path, why: &str) -> Error {
    Error::new(kind, format!("cache directory {}: {why}", root.display()))
}

/// Checks that the directory, or the nearest one above it that exists, can be used.
fn check_place(root: &Path) -> Result<()> {
    let mut place = root;
    let found = loop {
        match fs::metadata(place) {
            Ok(found) => break found,
            Err(e) if e.kind() == io::ErrorKind::NotFound => {
                place = place.parent().ok_or_else(|| refused(root, "cannot be reached", e))?;
            }
            Err(e) if e.kind() == io::ErrorKind::NotADirectory => {
                return Err(refuse(
                    Kind::Invalid,
                    root,
                    "a part of the path is a file; choose another cache directory",
                ));
            }
            Err(e) => return Err(refused(root, "cannot be reached", e)),
        }
    };
    if !found.is_dir() {
        let why = format!("{} is not a directory; choose another path", place.display());
        return Err(refuse(Kind::Invalid, root, &why));
    }
    check_writable(root, place)?;
    check_owner(root)?;
    let v1 = root.join("v1");
    match fs::symlink_metadata(&v1) {
        Ok(found) if !found.is_dir() => {
            let why = format!("{} is not a directory; remove it", v1.display());
            Err(refuse(Kind::Invalid, root, &why))
        }
        // The cache itself may have filled the disk, and is served all the same.
        Ok(_) if v1.join("blobs").is_dir() => check_writable(root, &v1),
        Ok(_) => check_writable(root, &v1).and_then(|()| check_space(root, place)),
        Err(_) => check_space(root, place),
    }
}

/// Refuses a cache directory in which another user could put other files, or which another user
/// could replace: its content is served to all users, and written with this user's rights.
///
/// Root is trusted, because it can do all that anyway. Of the directories above, the nearest is checked: a
/// default place has one of its own. So are links on the way, whose owners may redirect them at any time.
fn check_owner(root: &Path) -> Result<()> {
    let user = rustix::process::geteuid().as_raw();
    let trusted = |uid: u32| uid == user || uid == 0;
    let v1 = root.join("v1");
    for (above, place) in [v1.as_path()].into_iter().chain(root.ancestors()).enumerate() {
        let Ok(link) = fs::symlink_metadata(place) else { continue };
        let owned = |uid: u32| not_ours(root, place, &format!("belongs to user {uid}"));
        if link.is_symlink() && !trusted(link.uid()) {
            return Err(owned(link.uid()));
        }
        let Ok(found) = fs::metadata(place) else { continue };
        let (mode, sticky) = (found.mode() & 0o7777, found.mode() & 0o1000 != 0);
        let safe = match above {
            0 | 1 => trusted(found.uid()) && mode & 0o022 == 0,
            // In a user namespace the owner of `/tmp` may have no number.
            2 if sticky => trusted(found.uid()) || found.uid() == OVERFLOW_UID,
            2 => trusted(found.uid()) && mode & 0o002 == 0,
            _ => true,
        };
        if !safe && trusted(found.uid()) {
            let why = format!("can be written by others (mode {mode:04o})");
            return Err(not_ours(root, place, &why));
        }
        if !safe {
            return Err(owned(found.uid()));
        }
    }
    Ok(())
}

fn not_ours(root: &Path, place: &Path, why: &str) -> Error {
    let remedy = if place.starts_with(root) {
        "remove it, remove these rights with chown and `chmod go-w`, or set another; a directory below it that \
         does not exist yet is made with mode 0700"
    } else {
        "set a directory whose path only you and root can change"
    };
    let shown = root.display();
    let text = format!("local.cache_dir = \"{shown}\": {} {why}; {remedy}", place.display());
    Error::new(Kind::Denied, text)
}

fn check_writable(root: &Path, dir: &Path) -> Result<()> {
    let may = rustix::fs::access(dir, Access::READ_OK | Access::WRITE_OK | Access::EXEC_OK);
    may.map_err(|e| {
        let what = format!(
            "cache directory {}: {} is not writable; change its owner or choose another cache \
             directory",
            root.display(),
            dir.display()
        );
        Error::with(Kind::Denied, what, io::Error::from(e))
    })
}

fn check_space(root: &Path, place: &Path) -> Result<()> {
    let disk = rustix::fs::statvfs(place)
        .map_err(|e| refused(root, "the free space of the disk cannot be read", e.into()))?;
    let free = disk.f_bavail.saturating_mul(disk.f_frsize);
    if free < MIN_FREE_BYTES || (disk.f_files > 0 && disk.f_favail == 0) {
        let why = format!(
            "the disk has {free} bytes and {} inodes free, at least {MIN_FREE_BYTES} bytes are \
             needed; free some space or choose another cache directory",
            disk.f_favail
        );
        return Err(refuse(Kind::NoSpace, root, &why));
    }
    Ok(())
}

/// Refuses a directory that was written by a later release.
fn check_format(root: &Path) -> Result<()> {
    let newer = |name: &str| {
        let why = format!(
            "{name} was written by a newer hearthfs; run the newer version, or choose another cache directory"
        );
        Err(refuse(Kind::Invalid, root, &why))
    };
    let entries = match fs::read_dir(root) {
        Ok(entries) => entries,
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(e) => return Err(refused(root, "cannot be listed", e)),
    };
    for entry in entries {
        let name = entry.map_err(|e| refused(root, "cannot be listed", e))?.file_name();
        let number = name.to_str().and_then(|n| n.strip_prefix('v')?.parse::<u32>().ok());
        if number.is_some_and(|number| number > FORMAT) {
            return newer(&name.to_string_lossy());
        }
    }
    match read_small(&root.join("v1/FORMAT")) {
        Ok(Some(text)) if text.trim().parse() != Ok(FORMAT) => {
            newer(&format!("v1 (format {:?})", text.trim()))
        }
        Ok(_) => Ok(()),
        Err(e) => Err(refused(root, "v1/FORMAT cannot be read", e)),
    }
}

/// Takes the lock, or reports who holds it.
fn lock(root: &Path, file: File) -> Result<File> {
    match file.try_lock() {
        Ok(()) => Ok(file),
        Err(TryLockError::WouldBlock) => {
            let mut text = String::new();
            let read = (&file).take(SMALL_FILE_BYTES).read_to_string(&mut text);
            let (pid, mount) = match read {
                Ok(_) => text.trim_end().split_once('\n').unwrap_or((text.trim_end(), "unknown")),
                Err(_) => ("unknown", "unknown"),
            };
            let why = format!(
                "in use by process {pid} (mount {mount}); unmount that one, or choose another \
                 cache directory"
            );
            Err(refuse(Kind::Busy, root, &why))
        }
        Err(TryLockError::Error(e)) => Err(refused(root, "cannot be locked", e)),
    }
}

fn make_lock(v1: &Path) -> io::Result<File> {
    OpenOptions::new()
        .read(true)
        .write(true)
        .create(true)
        .truncate(false)
        .mode(0o600)
        .open(v1.join("LOCK"))
}

fn make_dirs(v1: &Path) -> io::Result<()> {
    let mut builder = DirBuilder::new();
    builder.recursive(true).mode(0o700);
    for name in ["journal", "index", "staging", "blobs"] {
        builder.create(v1.join(name))?;
    }
    let blobs = v1.join("blobs");
    if fs::metadata(blobs.join("ff")).is_err() {
        for shard in 0..=255_u8 {
            builder.create(blobs.join(format!("{shard:02x}")))?;
        }
        sync_dir(&blobs)?;
        sync_dir(v1)?;
    }
    Ok(())
}

/// Reads the node's identity, and makes it the first time.
fn node_of(v1: &Path) -> io::Result<NodeId> {
    let path = v1.join("node");
    if let Some(text) = read_small(&path)? {
        if let Ok(id) = u64::from_str_radix(text.trim(), 16) {
            return Ok(NodeId(id));
        }
        // A new identity is always safe; an old one that was read incompletely might be that of another node.
        tracing::warn!(path = %path.display(), "the node's identity is unreadable; a new one is made");
    }
    let node = NodeId(task::random_u64());
    write_atomic(&path, format!("{node}\n").as_bytes())?;
    Ok(node)
}

impl Life {
    /// Reads how the last run ended and records that a new one has begun.
    fn begin(v1: &Path, fresh: bool) -> io::Result<Self> {
        let boot = read_small(Path::new("/proc/sys/kernel/random/boot_id"))
            .ok()
            .flatten()
            .map_or_else(|| format!("unknown-{:016x}", task::random_u64()), |t| t.trim().into());
        let last = read_small(&v1.join("state"))?;
        let life = Self::after(boot, last.as_deref(), fresh);
        match life.write(v1, false) {
            // A full disk is no reason to refuse to serve what it holds. Without a record, the next
            // start is in doubt, which is always safe.
            Err(e) if !fresh && kind_of_io(&e) == Kind::NoSpace => {
                tracing::warn!(path = %v1.display(), error = %e, "the disk is full");
                for name in ["state.next", "state"] {
                    match fs::remove_file(v1.join(name)) {
                        Err(e) if e.kind() != io::ErrorKind::NotFound => return Err(e),
                        _ => {}
                    }
                }
            }
            written => written?,
        }
        Ok(life)
    }

    /// Decides about doubt from the record of the last run.
    fn after(boot: String, last: Option<&str>, fresh: bool) -> Self {
        let mut words = last.unwrap_or_default().split_ascii_whitespace();
        let (last_boot, end) = (words.next(), words.next());
        let era = words.next().and_then(|era| era.parse::<u64>().ok());
        let doubt = match (last_boot, end, era) {
            (Some(_), Some("clean"), Some(_)) => false,
            (Some(last_boot), Some("running"), Some(_)) => last_boot != boot,
            _ => !fresh,
        };
        let era = era.unwrap_or_else(|| if fresh { 0 } else { task::random_u64() >> 1 });
        Self { boot, era: era + u64::from(doubt), doubt }
    }

    fn write(&self, v1: &Path, clean: bool) -> io::Result<()> {
        let end = if clean { "clean" } else { "running" };
        let text = format!("{} {end} {}\n", self.boot, self.era);
        write_atomic(&v1.join("state"), text.as_bytes())
    }
}

/// Reads a small text file; `None` if it does not exist. Refuses a link, and anything that is not a
/// file, without blocking.
fn read_small(path: &Path) -> io::Result<Option<String>> {
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let file = match rustix::fs::open(path, flags, Mode::empty()) {
        Ok(file) => File::from(file),
        Err(Errno::NOENT) => return Ok(None),
        Err(e) => return Err(e.into()),
    };
    if !file.metadata()?.is_file() {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "it is not a file; remove it"));
    }
    let mut bytes = Vec::new();
    file.take(SMALL_FILE_BYTES).read_to_end(&mut bytes)?;
    Ok(Some(String::from_utf8_lossy(&bytes).into_owned()))
}

/// Replaces a small file atomically: a reader sees the old or the new one, also after a power loss.
pub(super) fn write_atomic(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let next = path.with_extension("next");
    let mut file =
        OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&next)?;
    file.write_all(bytes)?;
    file.sync_all()?;
    fs::rename(&next, path)?;
    path.parent().map_or(Ok(()), sync_dir)
}

/// Makes the names in a directory durable.
pub(super) fn sync_dir(path: &Path) -> io::Result<()> {
    File::open(path)?.sync_all()
}

#[cfg(test)]
mod tests;
