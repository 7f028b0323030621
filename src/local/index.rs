//! The index: what makes a start fast, and nothing more.
//!
//! Owns `index/` and everything about sled. Must never be needed: whatever goes wrong with it, an
//! error or a panic inside sled, it is dropped and begun again empty, its *generation* moves, and
//! the owner of the facts fills it again when it likes.
//!
//! Everything lies in one tree, with a letter before each key, because sled applies a batch to one
//! tree atomically: a log name that is noted as seen is never there without its registers. Facts in
//! an index that was begun again count only after [`Index::refilled`]; before that, a restart finds
//! it empty.

mod facts;
mod worker;

use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::sync_channel;
use std::time::Duration;

use parking_lot::Mutex;
use serde::Deserialize;

pub use self::facts::{Batch, Loaded, Used};
use self::facts::{LOCATION, META, OWN, REGISTER, SEAL, SEEN, key};
use self::worker::{Order, Shared, Worker};
use super::dir::CacheDir;
use crate::digest::Digest;
use crate::name::TreePath;
use crate::task;

/// The format of keys and values; another one begins empty.
const FORMAT: &[u8] = b"1";
/// What sled may keep in memory, in bytes.
const CACHE_BYTES: u64 = 16 << 20;
/// How long a load may take; then the index counts as empty.
const LOAD_WAIT: Duration = Duration::from_secs(60);
/// How long a flush is waited for.
const FLUSH_WAIT: Duration = Duration::from_secs(30);

/// The index of one cache directory; cheap to clone.
#[derive(Clone, Debug)]
pub struct Index(Arc<Owner>);

/// Stops the thread when the last clone of the index is dropped.
#[derive(Debug)]
struct Owner {
    shared: Arc<Shared>,
    thread: Mutex<Option<std::thread::JoinHandle<()>>>,
}

impl Index {
    /// Opens the index. It never fails: an index that cannot be used is begun again, and one that
    /// cannot even be begun is off.
    pub fn open(dir: &CacheDir) -> Self {
        let shared = Arc::new(Shared::default());
        let (path, era) = (dir.path().join("index"), dir.era());
        let worker = Worker::new(Arc::clone(&shared), path, era);
        let thread = match task::thread("index", move || worker.run()) {
            Ok(thread) => Some(thread),
            Err(e) => {
                tracing::warn!(error = %e, "the index has no thread and is off");
                shared.stop();
                None
            }
        };
        Self(Arc::new(Owner { shared, thread: Mutex::new(thread) }))
    }

    /// Returns a number that moves when the index was begun again: whoever owns the facts should
    /// then save all of them and call [`Index::refilled`] with the number seen before.
    pub fn generation(&self) -> u64 {
        self.0.shared.generation.load(Ordering::Acquire)
    }

    /// Says that everything was saved again since the generation moved to `generation`.
    pub fn refilled(&self, generation: u64) {
        self.0.shared.send(Order::Refilled(generation));
    }

    /// Reads everything that the index remembers; nothing if it was begun again.
    pub fn load(&self) -> Loaded {
        let (reply, answer) = sync_channel(1);
        self.0.shared.send(Order::Load(reply));
        answer.recv_timeout(LOAD_WAIT).unwrap_or_default()
    }

    /// Saves facts, later, in the order of the calls. Waits only when very much is waiting already.
    ///
    /// A fact must be true for ever or be replaced by a later one. In particular a register that
    /// stands on a record of the journal may be saved only once that record is durable.
    pub fn save(&self, batch: Batch) {
        if !batch.is_empty() {
            self.0.shared.send(Order::Save(batch));
        }
    }

    /// Returns when everything saved before is on disk, or given up.
    pub fn flush(&self) {
        let (reply, answer) = sync_channel(1);
        self.0.shared.send(Order::Flush(reply));
        if answer.recv_timeout(FLUSH_WAIT).is_err() {
            tracing::debug!("the index was not flushed");
        }
    }
}

impl Drop for Owner {
    fn drop(&mut self) {
        self.shared.stop();
        if let Some(thread) = self.thread.lock().take() {
            drop(thread.join());
        }
    }
}

/// Why the index is no longer to be used.
type Trouble = String;

/// The sled database.
struct Store {
    db: sled::Db,
    /// The file that sled writes, and its inode when it was opened.
    file: PathBuf,
    ino: u64,
}

impl Store {
    /// Opens what is at `path`; an empty folder becomes a whole, empty index.
    fn open(path: &Path, era: u64) -> Result<Self, Trouble> {
        let db = sled::Config::new()
            .path(path)
            .cache_capacity(CACHE_BYTES)
            .mode(sled::Mode::LowSpace)
            .flush_every_ms(None)
            .open()
            .map_err(text)?;
        let file = path.join("db");
        let ino = fs::metadata(&file).map_err(|e| e.to_string())?.ino();
        let store = Self { db, file, ino };
        if store.db.is_empty() {
            store.own("era", &era.to_le_bytes())?;
            store.own("format", FORMAT)?;
            store.set_whole()?;
            return Ok(store);
        }
        if store.get_own("format")?.as_deref() != Some(FORMAT) {
            return Err("it has another format".into());
        }
        if store.get_own("whole")?.is_none() {
            return Err("it was begun again and never filled".into());
        }
        if store.get_own("era")?.as_deref() != Some(&era.to_le_bytes()) {
            store.forget_all(SEAL)?;
            store.own("era", &era.to_le_bytes())?;
        }
        Ok(store)
    }

    fn own(&self, name: &str, value: &[u8]) -> Result<(), Trouble> {
        self.db.insert(key(OWN, name.as_bytes()), value).map(drop).map_err(text)
    }

    fn get_own(&self, name: &str) -> Result<Option<sled::IVec>, Trouble> {
        self.db.get(key(OWN, name.as_bytes())).map_err(text)
    }

    fn set_whole(&self) -> Result<(), Trouble> {
        self.own("whole", b"1")
    }

    fn unset_whole(&self) -> Result<(), Trouble> {
        self.db.remove(key(OWN, b"whole")).map_err(text)?;
        self.flush()
    }

    fn forget_all(&self, kind: u8) -> Result<(), Trouble> {
        for found in self.db.scan_prefix([kind]).keys() {
            self.db.remove(found.map_err(text)?).map_err(text)?;
        }
        Ok(())
    }

    fn save(&self, batch: Batch) -> Result<(), Trouble> {
        let mut ops = sled::Batch::default();
        for (key, value) in batch.0 {
            match value {
                Some(value) => ops.insert(key, value),
                None => ops.remove(key),
            }
        }
        self.db.apply_batch(ops).map_err(text)
    }

    fn flush(&self) -> Result<(), Trouble> {
        self.db.flush().map_err(text)?;
        // sled goes on writing to a file that somebody has removed, and says nothing.
        match fs::metadata(&self.file) {
            Ok(found) if found.ino() == self.ino => Ok(()),
            _ => Err("its files were removed".into()),
        }
    }

    fn load(&self) -> Result<Loaded, Trouble> {
        let mut loaded = Loaded::default();
        for found in self.db.iter() {
            let (key, value) = found.map_err(text)?;
            let Some((kind, rest)) = key.split_first() else { continue };
            match *kind {
                REGISTER => {
                    let path = TreePath::from_bytes(rest).map_err(|e| e.to_string())?;
                    loaded.registers.push((path, decode(&value)?));
                }
                LOCATION => loaded.locations.push((digest(rest)?, decode(&value)?)),
                SEAL => loaded.seals.push((digest(rest)?, decode(&value)?)),
                SEEN => loaded.seen.push(name(rest)?),
                META => loaded.meta.push((name(rest)?, value.to_vec())),
                _ => {}
            }
        }
        loaded.seals.sort_by_key(|(_, used)| used.used);
        Ok(loaded)
    }
}

fn text(error: sled::Error) -> Trouble {
    error.to_string()
}

fn decode<'a, T: Deserialize<'a>>(value: &'a [u8]) -> Result<T, Trouble> {
    postcard::from_bytes(value).map_err(|e| e.to_string())
}

fn digest(key: &[u8]) -> Result<Digest, Trouble> {
    key.try_into().map(Digest::from_bytes).map_err(|_| "a key is not a digest".into())
}

fn name(key: &[u8]) -> Result<String, Trouble> {
    String::from_utf8(key.to_vec()).map_err(|e| e.to_string())
}

#[cfg(test)]
mod tests;
