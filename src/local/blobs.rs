//! The local blobs: immutable bytes under the name of their digest.
//!
//! Owns `blobs/` and decides what stays on this disk. Must never return a file whose bytes it has
//! reason to doubt, and never hold its table's lock while it accesses the disk.
//!
//! Two locks, in this order: a *stripe* serialises everything that changes the file of a digest on
//! disk; the *table* holds what we know, and is locked only for moments.
//!
//! Keeps P9 self-healing.

mod adopt;
mod discard;
mod evict;
mod keep;
mod list;
mod open;
mod pin;

pub use adopt::{Lodged, NotAdopted};
pub use pin::Pin;

use std::fs::{self, File};
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::{Mutex, MutexGuard};

use super::dir::{CacheDir, sync_dir};
use super::index::Used;
use super::lru::{Blob, Tier};
use super::seal::Seal;
use super::shelf::Shelf;
use crate::clock::Clock;
use crate::digest::Digest;
use crate::error::{Error, Kind, Result};
use crate::hashing::FastMap;

/// The most news kept for the index; the next start finds again what does not fit.
const NEWS_MAX: usize = 200_000;
/// The shortest time between two reports of one blob's use to the index, in seconds.
const USED_GRAIN_SECS: u32 = 600;

/// How many bytes the local tier may take; blobs and staging together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Above this, there is no room for new data.
    pub bytes: u64,
    /// Above this, eviction begins.
    pub high: u64,
    /// At this, eviction ends.
    pub low: u64,
}

impl Limits {
    /// Makes the usual limits of a tier of `bytes` bytes: eviction keeps a tenth of it free.
    pub fn of(bytes: u64) -> Self {
        Self { bytes, high: bytes, low: bytes / 10 * 9 }
    }
}

/// How blobs are kept.
#[derive(Clone, Debug)]
pub struct Options {
    /// Allows eviction of blobs that no remote has: they are the only copy, and their entries
    /// become misses. For a cache without a remote.
    pub evict_unsaved: bool,
    /// The clock that dates the use of blobs.
    pub clock: Clock,
}

/// Whether the remote has a blob.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// Not yet; it must not be evicted.
    Unsaved,
    /// Yes, or there is no remote.
    Saved,
    /// Yes, and it has just come from there.
    Fetched,
}

/// The result of adopting a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Adopted {
    /// It is the blob now.
    New,
    /// The blob was there already.
    Known,
}

/// A blob that is open for reading.
#[derive(Debug)]
pub struct OpenBlob {
    /// The file, open for reading only.
    pub file: File,
    /// Keeps it from eviction.
    pub pin: Pin,
}

/// Changes that the index has not received yet.
#[derive(Debug, Default)]
pub struct News {
    /// Blobs that were sealed or used.
    pub sealed: Vec<(Digest, Used)>,
    /// Blobs that are no longer there: evicted, damaged, or removed by another program.
    pub gone: Vec<Digest>,
}

/// What the local tier holds, in bytes on disk.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct Usage {
    /// All blobs.
    pub bytes: u64,
    /// Files being written or fetched.
    pub staged_bytes: u64,
    /// Blobs that the remote does not have yet.
    pub unsaved_bytes: u64,
    /// Blobs in use by open handles and uploads.
    pub pinned_bytes: u64,
    /// How many blobs.
    pub blobs: u64,
    /// What all together may take.
    pub limit: u64,
    /// Blobs evicted since the start.
    pub evictions: u64,
    /// Bytes of those.
    pub evicted_bytes: u64,
    /// Blobs found damaged since the start.
    pub damaged: u64,
}

/// All blobs of this node; cheap to clone.
#[derive(Clone, Debug)]
pub struct Blobs(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    path: PathBuf,
    /// An empty file, for the empty digest, which needs no blob.
    empty: PathBuf,
    shelf: Arc<Shelf>,
    /// The base of the limits, in bytes.
    limit: AtomicU64,
    options: Options,
    table: Mutex<Table>,
    stripes: Vec<Mutex<()>>,
    /// Whether the table knows every file; until then an unknown digest is looked up on disk.
    listed: AtomicBool,
    evictions: AtomicU64,
    evicted_bytes: AtomicU64,
    /// The monotonic second of the last eviction, plus one; 0 before the first.
    evicted_at: AtomicU64,
    damaged: AtomicU64,
    /// Held from the check for room until the bytes that take it are counted.
    reserving: Mutex<()>,
    /// When the disk's free space was last read, and how much it was.
    disk_free: Mutex<(Duration, u64)>,
    /// The minute of the last warnings about damage, and how many it has seen.
    warned: Mutex<(u64, u32)>,
}

#[derive(Debug)]
struct Table {
    tier: Tier,
    /// Pending news for the index: a seal, or that the blob is gone.
    news: FastMap<Digest, Option<Used>>,
    /// Digests whose bytes are still in staging, each with its number of guards.
    lodged: FastMap<Digest, u32>,
    /// Set from the moment the high mark is passed until the low one is reached.
    evicting: bool,
}

impl Table {
    fn tell(&mut self, digest: Digest, news: Option<Used>) {
        if self.news.len() < NEWS_MAX || self.news.contains_key(&digest) {
            self.news.insert(digest, news);
        }
    }

    fn forget(&mut self, digest: &Digest) {
        if self.tier.remove(digest).is_some() {
            self.tell(*digest, None);
        }
    }
}

impl Blobs {
    /// Opens the blobs of a directory.
    ///
    /// `known` is what the index remembers, least recently used first. Its seals are trusted until the
    /// folder has been listed, which goes on in the background and reads no contents; without it the
    /// folder is listed before this returns.
    ///
    /// # Errors
    ///
    /// An error of the disk when `blobs/` cannot be listed or the file of empty content cannot be made.
    pub fn open(
        dir: &CacheDir,
        limits: Limits,
        known: impl Iterator<Item = (Digest, Used)>,
        options: Options,
    ) -> Result<Self> {
        let mut tier = Tier::new();
        for (digest, Used { seal, used }) in known {
            let verified = !dir.doubt();
            tier.put(digest, Blob { seal, verified, used, fetched: false }, false);
        }
        let empty = dir.path().join("empty");
        make_empty(&empty).map_err(|e| Error::io(format!("make {}", empty.display()), e))?;
        let (news, lodged) = (FastMap::default(), FastMap::default());
        let blobs = Self(Arc::new(Inner {
            path: dir.path().join("blobs"),
            empty,
            shelf: Arc::clone(dir.shelf()),
            limit: AtomicU64::new(limits.bytes),
            options,
            table: Mutex::new(Table { tier, news, lodged, evicting: false }),
            stripes: (0..256).map(|_| Mutex::new(())).collect(),
            listed: AtomicBool::new(false),
            evictions: AtomicU64::new(0),
            evicted_bytes: AtomicU64::new(0),
            evicted_at: AtomicU64::new(0),
            damaged: AtomicU64::new(0),
            reserving: Mutex::new(()),
            disk_free: Mutex::new((Duration::ZERO, 0)),
            warned: Mutex::new((0, 0)),
        }));
        blobs.list()?;
        Ok(blobs)
    }

    /// Reports whether a blob is there, as far as known without opening it.
    pub fn contains(&self, digest: &Digest) -> bool {
        let known = || {
            let table = self.0.table.lock();
            table.tier.get(digest).is_some() || table.lodged.contains_key(digest)
        };
        digest.is_empty_content() || known() || self.look_up(digest)
    }

    /// Returns when a blob was last used, in seconds since the Unix epoch and up to ten minutes too
    /// early; `None` if it is not there or the time is unknown.
    pub fn last_used(&self, digest: &Digest) -> Option<u64> {
        let held = self.0.table.lock().tier.get(digest)?;
        (held.blob.used > 0).then_some(u64::from(held.blob.used))
    }

    /// Keeps a blob from eviction; `None` when it is not there.
    pub fn pin(&self, digest: &Digest) -> Option<Pin> {
        if digest.is_empty_content() {
            return Some(Pin::empty());
        }
        let pinned = self.count_pin(digest) || (self.look_up(digest) && self.count_pin(digest));
        pinned.then(|| Pin::counted(self.clone(), *digest))
    }

    /// Records that the remote has a blob. Returns whether the blob is there.
    pub fn mark_saved(&self, digest: &Digest) -> bool {
        self.edit(digest, |unsaved| *unsaved = false)
    }

    /// Records that the remote does not have a blob, which keeps it from eviction. Returns whether
    /// the blob is there.
    pub fn mark_unsaved(&self, digest: &Digest) -> bool {
        let unsaved = !self.0.options.evict_unsaved;
        self.edit(digest, |flag| *flag = unsaved)
    }

    /// Records that a blob was read and is damaged or unreadable. The next open hashes it, whatever
    /// its seal says, and removes it if it is wrong.
    pub fn suspect(&self, digest: &Digest) {
        self.0.table.lock().tier.change(digest, |held| held.blob.verified = false);
    }

    /// Reports whether a blob was fetched from the store since the last call; false if it is not there.
    pub fn take_fetched(&self, digest: &Digest) -> bool {
        let mut table = self.0.table.lock();
        let fetched = table.tier.get(digest).is_some_and(|held| held.blob.fetched);
        if fetched {
            table.tier.change(digest, |held| held.blob.fetched = false);
        }
        fetched
    }

    /// Makes a blob durable: it survives a power loss once this has returned.
    ///
    /// # Errors
    ///
    /// `NotFound` when the blob is not here; an error of the disk when it cannot keep the bytes.
    pub fn sync(&self, digest: &Digest) -> Result<()> {
        if digest.is_empty_content() {
            return Ok(());
        }
        let path = self.path_of(digest);
        let sync = || {
            File::open(&path)?.sync_all()?;
            path.parent().map_or(Ok(()), sync_dir)
        };
        sync().map_err(|e| Error::io(format!("sync {}", path.display()), e))
    }

    /// Returns the pending news for the index, and forgets them.
    pub fn news(&self) -> News {
        let taken = std::mem::take(&mut self.0.table.lock().news);
        let mut news = News::default();
        for (digest, what) in taken {
            match what {
                Some(used) => news.sealed.push((digest, used)),
                None => news.gone.push(digest),
            }
        }
        news
    }

    /// Returns the index facts of all blobs with valid seals, by digest.
    pub fn seals(&self) -> Vec<(Digest, Used)> {
        let table = self.0.table.lock();
        let told = |blob: &Blob| Used { seal: blob.seal, used: blob.used };
        let mut all: Vec<(Digest, Used)> =
            table.tier.sealed().map(|(digest, blob)| (*digest, told(blob))).collect();
        drop(table);
        all.sort_unstable_by_key(|(digest, _)| *digest);
        all
    }

    /// Returns what the tier holds.
    pub fn usage(&self) -> Usage {
        let table = self.0.table.lock();
        let sums = table.tier.sums();
        Usage {
            bytes: sums.bytes,
            staged_bytes: self.0.shelf.bytes(),
            unsaved_bytes: sums.unsaved,
            pinned_bytes: sums.pinned,
            blobs: table.tier.len() as u64,
            limit: self.limits().bytes,
            evictions: self.0.evictions.load(Ordering::Relaxed),
            evicted_bytes: self.0.evicted_bytes.load(Ordering::Relaxed),
            damaged: self.0.damaged.load(Ordering::Relaxed),
        }
    }

    /// Returns how many bytes the tier may take now.
    fn limits(&self) -> Limits {
        Limits::of(self.0.limit.load(Ordering::Relaxed))
    }

    /// Drops one pin.
    pub(super) fn unpin(&self, digest: &Digest) {
        self.0.table.lock().tier.unpin(digest);
    }

    fn edit(&self, digest: &Digest, edit: impl Fn(&mut bool)) -> bool {
        let once = || {
            let mut table = self.0.table.lock();
            table.tier.change(digest, |held| edit(&mut held.unsaved)).is_some()
        };
        digest.is_empty_content() || once() || (self.look_up(digest) && once())
    }

    fn count_pin(&self, digest: &Digest) -> bool {
        let now = self.now();
        let mut table = self.0.table.lock();
        let mut note = false;
        let held = table.tier.change(digest, |held| {
            held.pins += 1;
            note = now.abs_diff(held.blob.used) >= USED_GRAIN_SECS;
            if note {
                held.blob.used = now;
            }
        });
        if let Some(held) = held
            && note
            && held.blob.verified
        {
            table.tell(*digest, Some(Used { seal: held.blob.seal, used: now }));
        }
        held.is_some()
    }

    /// Looks for an unknown blob on disk, as long as the folder is not listed.
    fn look_up(&self, digest: &Digest) -> bool {
        if self.0.listed.load(Ordering::Acquire) {
            return false;
        }
        let _stripe = self.stripe(digest);
        let Some(seal) = seal_at(&self.path_of(digest)).ok().flatten() else { return false };
        let mut table = self.0.table.lock();
        if table.tier.get(digest).is_none() {
            table.tier.put(*digest, Blob { seal, verified: false, used: 0, fetched: false }, false);
        }
        true
    }

    fn stripe(&self, digest: &Digest) -> MutexGuard<'_, ()> {
        self.0.stripes[usize::from(digest.as_bytes()[0])].lock()
    }

    fn path_of(&self, digest: &Digest) -> PathBuf {
        let mut path = self.0.path.join(digest.shard());
        path.push(digest.to_string());
        path
    }

    fn now(&self) -> u32 {
        (self.0.options.clock.wall_ms() / 1000) as u32
    }
}

/// Takes the seal of the file at a path; `None` if there is nothing, or something other than a file.
fn seal_at(path: &std::path::Path) -> io::Result<Option<Seal>> {
    match fs::symlink_metadata(path) {
        Ok(found) if found.is_file() => Ok(Some(Seal::of(&found))),
        Ok(_) => Ok(None),
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(e) => Err(e),
    }
}

/// Makes sure that the empty file exists and is empty.
fn make_empty(path: &std::path::Path) -> io::Result<()> {
    match seal_at(path)? {
        Some(seal) if seal.size == 0 => Ok(()),
        _ => super::dir::write_atomic(path, &[]),
    }
}

/// Makes the error of an operation on a blob's file.
fn failed(what: &str, digest: &Digest, error: io::Error) -> Error {
    Error::io(format!("{what} blob {digest}"), error)
}

/// Reports whether an error means that the disk is full.
fn is_full(error: &io::Error) -> bool {
    Error::io("", io::Error::from(error.kind())).kind() == Kind::NoSpace
}

#[cfg(test)]
mod tests;
