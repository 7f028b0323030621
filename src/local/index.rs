//! The index: makes a start fast, and nothing more.
//!
//! Owns `index/` and everything about sled. Must never be required. After any error or panic inside
//! sled, it is dropped and starts again empty. Its *generation* then changes, and the owner of the
//! facts may fill it again.
//!
//! Most facts lie in a *base*, a flat file that is read from end to end. sled keeps what was saved
//! since as a log of *chunks*, each with many facts: one key per fact takes far too much memory and
//! disk. Later chunks override earlier ones and the base; when there are many, everything is merged
//! into a new base. The facts of one batch are written together, so a log name that is recorded as
//! seen never lacks its registers. Facts in an index that started again count only after
//! [`Index::refilled`]; before that, a restart finds it empty.

mod base;
mod chunk;
mod facts;
mod load;
mod worker;

use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{SyncSender, sync_channel};
use std::time::Duration;

use self::base::Base;
use self::chunk::{Packer, Unpacked, first, visit};
pub use self::facts::{FactBatch, Used};
use self::facts::{PendingFacts, SEAL, key};
pub use self::load::LoadedIndex;
use self::load::{FactDecoder, IndexPiece, Loading};
use self::worker::{IndexOrder, IndexShared, IndexWorker};
use super::dir::CacheDir;
use crate::task;

/// The format of keys and values; an index of another format starts again empty.
const FORMAT: &[u8] = b"2";
/// What sled may keep in memory, in bytes.
const CACHE_BYTES: u64 = 16 << 20;
/// The chunks may hold one part in this many of the facts of the base before everything is merged ...
const WORTH_PART: u64 = 8;
/// ... and this many besides.
const WORTH_FLOOR: u64 = 5_000;
/// The prefix of the key of a chunk.
const CHUNK: u8 = b'c';
/// The prefix of the key of a fact about the index itself.
const OWN: u8 = b'!';
/// The longest wait for the next facts of a load; after that the index counts as empty.
const LOAD_WAIT: Duration = Duration::from_mins(1);
/// The most pieces of a load that wait for their receiver.
const PIECES_MAX: usize = 4;
/// The longest wait for a flush.
const FLUSH_WAIT: Duration = Duration::from_secs(30);

/// The index of one cache directory; cheap to clone.
#[derive(Clone, Debug)]
pub struct Index(Arc<Owner>);

/// The result of a flush.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flushed {
    /// Everything that was saved in this generation is on disk.
    Durable(u64),
    /// It took too long, or failed. What was lost will be saved again in the next generation.
    Unsure,
    /// The index is off for now.
    Off,
}

/// Stops the thread when the last clone of the index is dropped.
#[derive(Debug)]
struct Owner {
    shared: Arc<IndexShared>,
    threaded: bool,
}

impl Index {
    /// Opens the index. Never fails: an unusable index starts again empty, and one that cannot even
    /// do that is off.
    pub fn open(dir: &CacheDir) -> Self {
        let shared = Arc::new(IndexShared::default());
        let (path, era) = (dir.path().join("index"), dir.era());
        let worker = IndexWorker::new(Arc::clone(&shared), path, era);
        let threaded = match task::thread("index", move || worker.run()) {
            Ok(_) => true,
            Err(e) => {
                tracing::warn!(error = %e, "the index cannot start its thread and is off");
                shared.stop();
                false
            }
        };
        Self(Arc::new(Owner { shared, threaded }))
    }

    /// Makes an index that is off and keeps nothing. Used by simulations: a thousand nodes would
    /// need a thread and a database each.
    #[cfg(any(test, feature = "test-util"))]
    pub fn off() -> Self {
        let shared = Arc::new(IndexShared::default());
        shared.stop();
        Self(Arc::new(Owner { shared, threaded: false }))
    }

    /// Returns a number that changes when the index starts again. The owner of the facts should
    /// then save all of them and call [`Index::refilled`] with the number it saw before.
    pub fn generation(&self) -> u64 {
        self.0.shared.generation.load(Ordering::Acquire)
    }

    /// Records that everything was saved again since the generation changed to `generation`.
    pub fn refilled(&self, generation: u64) {
        self.0.shared.send(IndexOrder::Refilled(generation));
    }

    /// Starts a new generation because all facts have changed. What the index is
    /// [filled](Index::fill) with replaces everything it has; until then it keeps the old facts.
    pub fn renew(&self) {
        // Changed at once, so that the next save fills it first.
        self.0.shared.generation.fetch_add(1, Ordering::AcqRel);
        self.0.shared.send(IndexOrder::StopFilling);
    }

    /// Reads everything that the index remembers; nothing if it started again.
    pub fn load(&self) -> LoadedIndex {
        let (pieces, told) = sync_channel(PIECES_MAX);
        self.0.shared.send(IndexOrder::Load(pieces));
        let mut loading = Loading::default();
        loop {
            match told.recv_timeout(LOAD_WAIT) {
                Ok(IndexPiece::Facts(facts)) => loading.take(facts),
                Ok(IndexPiece::End(true)) => return loading.finish(),
                Ok(IndexPiece::End(false)) | Err(_) => return LoadedIndex::default(),
            }
        }
    }

    /// Fills the index again, one part at a time, after the generation changed to `generation`.
    /// Each fact comes once: private parts of paths by path, locations by digest, other facts by
    /// name, objects of the log by name, registers by path, seals by digest. They take effect with
    /// [`Index::refilled`]. Facts [saved](Index::save) after the first part override them.
    pub fn fill(&self, generation: u64, batch: FactBatch) {
        if !batch.is_empty() {
            self.0.shared.send(IndexOrder::Fill(generation, batch));
        }
    }

    /// Saves facts in the background, in the order of the calls. Waits only if very much is already queued.
    ///
    /// A fact must stay true for ever or be replaced by a later one. In particular, a register that
    /// depends on a record of the journal may be saved only after that record is durable.
    pub fn save(&self, batch: FactBatch) {
        if !batch.is_empty() {
            self.0.shared.send(IndexOrder::Save(batch));
        }
    }

    /// Waits until everything saved before is on disk or given up, and returns the result. What was
    /// saved in another generation than the one in the result is not on disk.
    pub fn flush(&self) -> Flushed {
        if !self.0.threaded {
            return Flushed::Off;
        }
        let (reply, answer) = sync_channel(1);
        self.0.shared.send(IndexOrder::Flush(reply));
        answer.recv_timeout(FLUSH_WAIT).unwrap_or_else(|_| {
            tracing::debug!("the index was not flushed");
            Flushed::Unsure
        })
    }
}

impl Drop for Owner {
    fn drop(&mut self) {
        self.shared.stop();
        if self.threaded && !self.shared.wait_ended() {
            tracing::warn!("the index does not stop; not waiting for it");
        }
    }
}

/// Why the index cannot be used any longer.
type IndexTrouble = String;

/// The sled database.
struct Store {
    db: sled::Db,
    /// The file that sled writes, and its inode at the time of opening.
    file: PathBuf,
    ino: u64,
    /// The era of newly saved seals.
    era: u64,
    /// The number of the next chunk.
    next: u64,
    base: Option<Base>,
    /// The base that is being filled.
    filling: Option<base::BaseWriter>,
    /// Facts in the chunks.
    newer: u64,
}

impl Store {
    /// Opens what is at `path`; an empty folder becomes a whole, empty index.
    fn open(path: &Path, era: u64) -> Result<Self, IndexTrouble> {
        let db = sled::Config::new()
            .path(path)
            .cache_capacity(CACHE_BYTES)
            .mode(sled::Mode::LowSpace)
            .flush_every_ms(None)
            .open()
            .map_err(text)?;
        let file = path.join("db");
        let ino = fs::metadata(&file).map_err(|e| e.to_string())?.ino();
        let (base, filling) = (None, None);
        let mut store = Self { db, file, ino, era, next: 0, base, filling, newer: 0 };
        if store.db.is_empty() {
            base::sweep(store.dir(), None)?;
            store.own("format", FORMAT)?;
            store.set_whole()?;
            return Ok(store);
        }
        if store.get_own("format")?.as_deref() != Some(FORMAT) {
            return Err("it has another format".into());
        }
        if store.get_own("whole")?.is_none() {
            return Err("it was restarted and never filled".into());
        }
        if let Some(base) = store.get_own("base")? {
            store.base = Some(Base::open(store.dir(), number(&base)?)?);
        }
        base::sweep(store.dir(), store.base.as_ref())?;
        let last = store.db.scan_prefix([CHUNK]).next_back().transpose().map_err(text)?;
        store.next = match last {
            Some((key, _)) => number(&key[1..])? + 1,
            None => store.first(),
        };
        store.drop_dead()?;
        Ok(store)
    }

    /// Returns the folder of the index.
    fn dir(&self) -> &Path {
        self.file.parent().expect("the file lies in a folder")
    }

    /// Returns the number of the first chunk that is not in the base.
    fn first(&self) -> u64 {
        self.base.as_ref().map_or(0, |base| base.number)
    }

    fn own(&self, name: &str, value: &[u8]) -> Result<(), IndexTrouble> {
        self.db.insert(key(OWN, name.as_bytes()), value).map(drop).map_err(text)
    }

    fn get_own(&self, name: &str) -> Result<Option<sled::IVec>, IndexTrouble> {
        self.db.get(key(OWN, name.as_bytes())).map_err(text)
    }

    fn set_whole(&self) -> Result<(), IndexTrouble> {
        self.own("whole", b"1")
    }

    fn unset_whole(&mut self) -> Result<(), IndexTrouble> {
        self.db.remove(key(OWN, b"whole")).map_err(text)?;
        self.flush()
    }

    /// Writes facts, all or none, and makes them durable.
    fn save(&mut self, facts: &PendingFacts) -> Result<(), IndexTrouble> {
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
        self.newer += packer.count();
        self.flush()?;
        let most = self.base.as_ref().map_or(0, |base| base.facts) / WORTH_PART + WORTH_FLOOR;
        if self.newer > most && self.filling.is_none() { self.merge() } else { Ok(()) }
    }

    /// Writes facts to the base that is being filled.
    fn fill(&mut self, facts: &[facts::Fact]) -> Result<(), IndexTrouble> {
        let (dir, next, era) = (self.dir().to_owned(), self.next, self.era);
        let writer = match &mut self.filling {
            Some(writer) => writer,
            none => none.insert(base::BaseWriter::create(&dir, next, era)?),
        };
        for (key, value) in facts {
            writer.add(key, value.as_deref().ok_or("a missing fact was removed")?)?;
        }
        Ok(())
    }

    /// Reports whether a base is being filled.
    fn is_filling(&self) -> bool {
        self.filling.is_some()
    }

    /// Discards what the base was filled with so far.
    fn stop_filling(&mut self) {
        self.filling = None;
    }

    /// Ends the filling, if there is one.
    fn filled(&mut self) -> Result<(), IndexTrouble> {
        if let Some(writer) = self.filling.take() {
            self.replace_base(writer.finish()?)?;
        }
        self.set_whole()
    }

    fn flush(&mut self) -> Result<(), IndexTrouble> {
        self.check()?;
        self.db.flush().map_err(text)?;
        self.check()
    }

    /// Checks that the files are there: sled keeps writing to a file that was removed, without an
    /// error, or waits for ever.
    fn check(&self) -> Result<(), IndexTrouble> {
        match fs::metadata(&self.file) {
            Ok(found)
                if found.ino() == self.ino && self.base.as_ref().is_none_or(Base::is_there) =>
            {
                Ok(())
            }
            _ => Err("its files were removed".into()),
        }
    }

    /// Yields the unpacked chunks that are not in the base.
    fn chunks(&self) -> impl Iterator<Item = Result<Unpacked, IndexTrouble>> {
        let all = self.db.range(chunk_key(self.first())..chunk_key(self.next)).values();
        all.map(|chunk| Unpacked::new(&chunk.map_err(text)?))
    }

    /// Merges everything into a new base. Until that is in place, the old base and the chunks hold
    /// the same facts, so a crash in between is harmless.
    fn merge(&mut self) -> Result<(), IndexTrouble> {
        let chunks = self.chunks().collect::<Result<Vec<Unpacked>, IndexTrouble>>()?;
        let newer = newest(&chunks, self.era)?;
        let mut newer = newer.into_iter().peekable();
        let mut writer = base::BaseWriter::create(self.dir(), self.next, self.era)?;
        let mut put = |key: &[u8], value: Option<&[u8]>| match value {
            Some(value) => writer.add(key, value),
            None => Ok(()),
        };
        if let Some(base) = &self.base {
            let mut reader = base.read()?;
            let era = reader.era;
            while let Some(raw) = reader.next()? {
                visit(&raw, |key, value| {
                    while let Some((before, value)) = newer.next_if(|(newer, _)| *newer < key) {
                        put(before, value)?;
                    }
                    if let Some((_, value)) = newer.next_if(|(newer, _)| *newer == key) {
                        return put(key, value);
                    }
                    put(key, value.filter(|_| believes(self.era, era, key)))
                })?;
            }
        }
        for (key, value) in newer {
            put(key, value)?;
        }
        self.replace_base(writer.finish()?)
    }

    /// Replaces the old base and the chunks before the new one.
    fn replace_base(&mut self, base: Base) -> Result<(), IndexTrouble> {
        self.own("base", &base.number.to_be_bytes())?;
        self.db.flush().map_err(text)?;
        self.newer = 0;
        self.base = Some(base);
        self.drop_dead()?;
        self.flush()?;
        base::sweep(self.dir(), self.base.as_ref())
    }

    /// Removes the chunks that the base contains.
    fn drop_dead(&self) -> Result<(), IndexTrouble> {
        for dead in self.db.range(chunk_key(0)..chunk_key(self.first())).keys() {
            self.db.remove(dead.map_err(text)?).map_err(text)?;
        }
        Ok(())
    }

    /// Sends all facts, older ones first, until the receiver is gone.
    fn load(&mut self, pieces: &SyncSender<IndexPiece>) -> Result<(), IndexTrouble> {
        let (mut facts, mut decoder) = (0, FactDecoder::default());
        if let Some(base) = &self.base {
            let mut reader = base.read()?;
            let seals = reader.era == self.era;
            while let Some(raw) = reader.next()? {
                if pieces.send(decoder.decode(&raw, seals)?).is_err() {
                    return Ok(());
                }
            }
            facts = reader.facts.unwrap_or(0);
        }
        let mut newer = 0;
        for chunk in self.chunks() {
            let Unpacked { era, raw } = chunk?;
            visit(&raw, |_, _| {
                newer += 1;
                Ok(())
            })?;
            let seals = era == self.era;
            if pieces.send(decoder.decode(&raw, seals)?).is_err() {
                return Ok(());
            }
        }
        self.newer = newer;
        if let Some(base) = &mut self.base {
            base.facts = facts;
        }
        Ok(())
    }
}

/// Reports whether a fact is valid: a seal of another era is not.
fn believes(era: u64, of: u64, key: &[u8]) -> bool {
    era == of || key.first() != Some(&SEAL)
}

/// A fact that borrows its bytes.
type Lying<'a> = (&'a [u8], Option<&'a [u8]>);

/// Returns the newest fact of each key, in the order of the keys.
fn newest(chunks: &[Unpacked], era: u64) -> Result<Vec<Lying<'_>>, IndexTrouble> {
    let mut all: Vec<Lying<'_>> = Vec::new();
    for chunk in chunks.iter().rev() {
        let from = all.len();
        let mut rest = chunk.raw.as_slice();
        while !rest.is_empty() {
            let (key, value, after) = first(rest)?;
            all.push((key, value.filter(|_| believes(era, chunk.era, key))));
            rest = after;
        }
        // The newest of each key must come first.
        all[from..].reverse();
    }
    all.sort_by_key(|(key, _)| *key);
    all.dedup_by_key(|(key, _)| *key);
    Ok(all)
}

/// Returns the key of a chunk.
fn chunk_key(number: u64) -> Vec<u8> {
    key(CHUNK, &number.to_be_bytes())
}

/// Reads the number of a chunk.
fn number(bytes: &[u8]) -> Result<u64, IndexTrouble> {
    bytes.try_into().map(u64::from_be_bytes).map_err(|_| "a number is unreadable".into())
}

#[expect(clippy::needless_pass_by_value, reason = "the signature is what `map_err` passes")]
fn text(error: sled::Error) -> IndexTrouble {
    error.to_string()
}

#[cfg(test)]
mod tests;
