//! The index: what makes a start fast, and nothing more.
//!
//! Owns `index/` and everything about sled. Must never be needed: whatever goes wrong with it, an
//! error or a panic inside sled, it is dropped and begun again empty, its *generation* moves, and
//! the owner of the facts fills it again when it likes.
//!
//! It is a log of *chunks*, each with many facts: sled takes far too much memory and disk for a
//! key of its own for every fact. Newer chunks overrule older ones; when there are many, all are
//! rewritten as a *base*, in which each key occurs once. The facts of one batch are written
//! together, so a log name that is noted as seen is never there without its registers. Facts in an
//! index that was begun again count only after [`Index::refilled`]; before that, a restart finds it
//! empty.

mod chunk;
mod facts;
mod worker;

use std::collections::HashSet;
use std::fs;
use std::ops::Range;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::sync_channel;
use std::time::Duration;

use self::chunk::{Packer, Unpacked};
pub use self::facts::{Batch, Loaded, Used};
use self::facts::{Facts, SEAL, key};
use self::worker::{Order, Shared, Worker};
use super::dir::CacheDir;
use crate::task;

/// The format of keys and values; another one begins empty.
const FORMAT: &[u8] = b"1";
/// What sled may keep in memory, in bytes.
const CACHE_BYTES: u64 = 16 << 20;
/// The chunks after the base may hold a quarter of its facts before all is rewritten ...
const WORTH_PART: u64 = 4;
/// ... and this many besides.
const WORTH_FLOOR: u64 = 50_000;
/// Before the number of a chunk.
const CHUNK: u8 = b'c';
/// Before the name of a fact about the index itself.
const OWN: u8 = b'!';
/// How long a load may take; then the index counts as empty.
const LOAD_WAIT: Duration = Duration::from_mins(1);
/// How long a flush is waited for.
const FLUSH_WAIT: Duration = Duration::from_secs(30);

/// The index of one cache directory; cheap to clone.
#[derive(Clone, Debug)]
pub struct Index(Arc<Owner>);

/// Stops the thread when the last clone of the index is dropped.
#[derive(Debug)]
struct Owner {
    shared: Arc<Shared>,
    threaded: bool,
}

impl Index {
    /// Opens the index. It never fails: an index that cannot be used is begun again, and one that
    /// cannot even be begun is off.
    pub fn open(dir: &CacheDir) -> Self {
        let shared = Arc::new(Shared::default());
        let (path, era) = (dir.path().join("index"), dir.era());
        let worker = Worker::new(Arc::clone(&shared), path, era);
        let threaded = match task::thread("index", move || worker.run()) {
            Ok(_) => true,
            Err(e) => {
                tracing::warn!(error = %e, "the index has no thread and is off");
                shared.stop();
                false
            }
        };
        Self(Arc::new(Owner { shared, threaded }))
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
        if self.threaded && !self.shared.wait_ended() {
            tracing::warn!("the index does not stop; it is left behind");
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
    /// The era of the seals that are saved now.
    era: u64,
    /// The number of the next chunk.
    next: u64,
    /// The numbers of the chunks of the base; those after it overrule it, those before are dead.
    base: Range<u64>,
    /// Facts in the base, and in the chunks after it.
    facts: (u64, u64),
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
        let mut store = Self { db, file, ino, era, next: 0, base: 0..0, facts: (0, 0) };
        if store.db.is_empty() {
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
        if let Some(base) = store.get_own("base")? {
            let numbers = base.split_at_checked(8).ok_or("its base is unreadable")?;
            store.base = number(numbers.0)?..number(numbers.1)?;
        }
        let last = store.db.scan_prefix([CHUNK]).next_back().transpose().map_err(text)?;
        store.next = match last {
            Some((key, _)) => number(&key[1..])? + 1,
            None => store.base.end,
        };
        store.drop_dead()?;
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

    fn unset_whole(&mut self) -> Result<(), Trouble> {
        self.db.remove(key(OWN, b"whole")).map_err(text)?;
        self.flush()
    }

    /// Writes facts, all or none, and makes them durable.
    fn save(&mut self, facts: &Facts) -> Result<(), Trouble> {
        self.check()?;
        let mut packer = Packer::new(self.era);
        let mut chunks = Vec::new();
        for (key, value) in facts {
            chunks.extend(packer.add(key, value.as_deref())?);
        }
        chunks.extend(packer.finish()?);
        let mut batch = sled::Batch::default();
        for chunk in chunks {
            batch.insert(chunk_key(self.next), chunk);
            self.next += 1;
        }
        self.db.apply_batch(batch).map_err(text)?;
        self.facts.1 += packer.count();
        self.flush()?;
        if self.facts.1 > self.facts.0 / WORTH_PART + WORTH_FLOOR { self.compact() } else { Ok(()) }
    }

    fn flush(&mut self) -> Result<(), Trouble> {
        self.check()?;
        self.db.flush().map_err(text)?;
        self.check()
    }

    /// Looks whether the files are there: sled goes on writing to a file that somebody has removed,
    /// and says nothing, or waits for ever.
    fn check(&self) -> Result<(), Trouble> {
        match fs::metadata(&self.file) {
            Ok(found) if found.ino() == self.ino => Ok(()),
            _ => Err("its files were removed".into()),
        }
    }

    /// Calls `visit` with the newest value of each key that is not forgotten, as the chunks before
    /// `end` have it. Returns how many facts there are in the base and after it.
    fn visit(
        &self,
        end: u64,
        mut visit: impl FnMut(&[u8], &[u8]) -> Result<(), Trouble>,
    ) -> Result<(u64, u64), Trouble> {
        let mut overruled: HashSet<[u8; 16]> = HashSet::new();
        let mut counts = (0, 0);
        let newer = self.db.range(chunk_key(self.base.end)..chunk_key(end)).values().rev();
        for chunk in newer {
            let chunk = Unpacked::new(&chunk.map_err(text)?)?;
            chunk.visit(|key, value| {
                counts.1 += 1;
                let first = overruled.insert(short(key));
                match value.filter(|_| first && self.believes(&chunk, key)) {
                    Some(value) => visit(key, value),
                    None => Ok(()),
                }
            })?;
        }
        let base = self.db.range(chunk_key(self.base.start)..chunk_key(self.base.end)).values();
        for chunk in base {
            let chunk = Unpacked::new(&chunk.map_err(text)?)?;
            chunk.visit(|key, value| {
                counts.0 += 1;
                let stays = self.believes(&chunk, key)
                    && (overruled.is_empty() || !overruled.contains(&short(key)));
                match value.filter(|_| stays) {
                    Some(value) => visit(key, value),
                    None => Ok(()),
                }
            })?;
        }
        Ok(counts)
    }

    /// Reports whether a fact may be believed: a seal of another era means nothing.
    fn believes(&self, chunk: &Unpacked, key: &[u8]) -> bool {
        chunk.era == self.era || key.first() != Some(&SEAL)
    }

    /// Rewrites everything as a new base. Until the base is switched, the new chunks say again what
    /// the old ones say, so a crash in between is harmless.
    fn compact(&mut self) -> Result<(), Trouble> {
        let (start, mut next) = (self.next, self.next);
        let mut packer = Packer::new(self.era);
        let mut put = |chunk: Option<Vec<u8>>| -> Result<(), Trouble> {
            if let Some(chunk) = chunk {
                self.db.insert(chunk_key(next), chunk).map_err(text)?;
                next += 1;
            }
            Ok(())
        };
        self.visit(start, |key, value| put(packer.add(key, Some(value))?))?;
        put(packer.finish()?)?;
        self.db.flush().map_err(text)?;
        let base = [start.to_be_bytes(), next.to_be_bytes()].concat();
        self.own("base", &base)?;
        self.db.flush().map_err(text)?;
        self.next = next;
        self.base = start..next;
        self.facts = (packer.count(), 0);
        self.drop_dead()?;
        self.flush()
    }

    /// Removes the chunks that a compaction has replaced.
    fn drop_dead(&self) -> Result<(), Trouble> {
        for dead in self.db.range(chunk_key(0)..chunk_key(self.base.start)).keys() {
            self.db.remove(dead.map_err(text)?).map_err(text)?;
        }
        Ok(())
    }

    fn load(&mut self) -> Result<Loaded, Trouble> {
        let mut loaded = Loaded::default();
        self.facts = self.visit(self.next, |key, value| loaded.take(key, value))?;
        loaded.sort();
        Ok(loaded)
    }
}

/// Returns the key of a chunk.
fn chunk_key(number: u64) -> Vec<u8> {
    key(CHUNK, &number.to_be_bytes())
}

/// Reads the number of a chunk.
fn number(bytes: &[u8]) -> Result<u64, Trouble> {
    bytes.try_into().map(u64::from_be_bytes).map_err(|_| "a number is unreadable".into())
}

/// Returns a name for a key that takes less memory.
fn short(key: &[u8]) -> [u8; 16] {
    blake3::hash(key).as_bytes()[..16].try_into().expect("sixteen bytes")
}

#[expect(clippy::needless_pass_by_value, reason = "it is handed to map_err")]
fn text(error: sled::Error) -> Trouble {
    error.to_string()
}

#[cfg(test)]
mod tests;
