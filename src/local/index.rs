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

use std::collections::VecDeque;
use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{SyncSender, sync_channel};
use std::time::Duration;

use parking_lot::{Condvar, Mutex};
use serde::{Deserialize, Serialize};

use super::dir::CacheDir;
use super::seal::Seal;
use crate::clock::Clock;
use crate::digest::Digest;
use crate::name::TreePath;
use crate::namespace::{Location, Register};
use crate::task;

/// The format of keys and values; another one begins empty.
const FORMAT: &[u8] = b"1";
/// What sled may keep in memory, in bytes.
const CACHE_BYTES: u64 = 16 << 20;
/// Operations that may wait for the index thread; then [`Index::save`] waits.
const QUEUE_OPS: usize = 100_000;
/// How long a save waits for room in the queue before the index is given up.
const SAVE_WAIT: Duration = Duration::from_secs(10);
/// How long a load may take; then the index counts as empty.
const LOAD_WAIT: Duration = Duration::from_secs(60);
/// How long a flush is waited for.
const FLUSH_WAIT: Duration = Duration::from_secs(30);
/// How long what was saved may stay in memory only, while nothing else is saved.
const FLUSH_AFTER: Duration = Duration::from_secs(2);
/// Operations after which it is flushed in any case.
const FLUSH_OPS: usize = 50_000;
/// How long an index that cannot be begun again stays off before another attempt.
const RETRY_AFTER: Duration = Duration::from_secs(60);

const REGISTER: u8 = b'r';
const LOCATION: u8 = b'l';
const SEAL: u8 = b's';
const SEEN: u8 = b'n';
const META: u8 = b'm';
/// Facts about the index itself.
const OWN: u8 = b'!';

/// When a blob was last used, and how its file looked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Used {
    /// How its file looked when its digest was last known to be right.
    pub seal: Seal,
    /// Last use, in seconds since the Unix epoch, roughly.
    pub used: u32,
}

/// Facts to save together: all of them are found by the next start, or none.
#[derive(Debug, Default, Clone)]
pub struct Batch(Vec<(Vec<u8>, Option<Vec<u8>>)>);

impl Batch {
    /// Starts an empty batch.
    pub fn new() -> Self {
        Self::default()
    }

    /// Saves what the fold keeps of a path.
    pub fn register(&mut self, path: &TreePath, register: &Register) {
        self.put(key(REGISTER, path.as_bytes()), register);
    }

    /// Forgets a path.
    pub fn forget_register(&mut self, path: &TreePath) {
        self.0.push((key(REGISTER, path.as_bytes()), None));
    }

    /// Saves where the remote keeps a blob.
    pub fn location(&mut self, digest: &Digest, location: &Location) {
        self.put(key(LOCATION, digest.as_bytes()), location);
    }

    /// Forgets where the remote keeps a blob.
    pub fn forget_location(&mut self, digest: &Digest) {
        self.0.push((key(LOCATION, digest.as_bytes()), None));
    }

    /// Saves the seal of a local blob.
    pub fn seal(&mut self, digest: &Digest, used: Used) {
        self.put(key(SEAL, digest.as_bytes()), &used);
    }

    /// Forgets a local blob.
    pub fn forget_seal(&mut self, digest: &Digest) {
        self.0.push((key(SEAL, digest.as_bytes()), None));
    }

    /// Notes that an object of the log was folded.
    pub fn seen(&mut self, name: &str) {
        self.0.push((key(SEEN, name.as_bytes()), Some(Vec::new())));
    }

    /// Forgets an object of the log.
    pub fn forget_seen(&mut self, name: &str) {
        self.0.push((key(SEEN, name.as_bytes()), None));
    }

    /// Saves any other fact under a name.
    pub fn meta(&mut self, name: &str, value: &[u8]) {
        self.0.push((key(META, name.as_bytes()), Some(value.to_vec())));
    }

    /// Counts the facts.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Reports whether there is nothing to save.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    fn put(&mut self, key: Vec<u8>, value: &impl Serialize) {
        let value = postcard::to_stdvec(value).expect("facts are plain data");
        self.0.push((key, Some(value)));
    }
}

fn key(kind: u8, rest: &[u8]) -> Vec<u8> {
    let mut key = Vec::with_capacity(1 + rest.len());
    key.push(kind);
    key.extend_from_slice(rest);
    key
}

/// Everything that the index remembers.
#[derive(Debug, Default)]
pub struct Loaded {
    /// What the fold kept, in path order.
    pub registers: Vec<(TreePath, Register)>,
    /// Where the remote keeps blobs.
    pub locations: Vec<(Digest, Location)>,
    /// Local blobs, least recently used first.
    pub seals: Vec<(Digest, Used)>,
    /// Objects of the log that were folded, in order of their names.
    pub seen: Vec<String>,
    /// Other facts.
    pub meta: Vec<(String, Vec<u8>)>,
}

/// The index of one cache directory; cheap to clone.
#[derive(Clone, Debug)]
pub struct Index(Arc<Owner>);

/// Stops the thread when the last clone of the index is dropped.
#[derive(Debug)]
struct Owner {
    shared: Arc<Shared>,
    thread: Mutex<Option<std::thread::JoinHandle<()>>>,
}

#[derive(Debug)]
struct Shared {
    queue: Mutex<Queue>,
    changed: Condvar,
    generation: AtomicU64,
}

#[derive(Debug, Default)]
struct Queue {
    orders: VecDeque<Order>,
    ops: usize,
    stopped: bool,
    /// Set by a save that could not wait any longer.
    given_up: bool,
}

#[derive(Debug)]
enum Order {
    Save(Batch),
    Load(SyncSender<Loaded>),
    Flush(SyncSender<()>),
    Refilled(u64),
}

impl Order {
    /// What it counts for in the queue.
    fn ops(&self) -> usize {
        match self {
            Self::Save(batch) => batch.len(),
            _ => 1,
        }
    }
}

impl Index {
    /// Opens the index. It never fails: an index that cannot be used is begun again, and one that
    /// cannot even be begun is off.
    pub fn open(dir: &CacheDir) -> Self {
        let shared = Arc::new(Shared {
            queue: Mutex::new(Queue::default()),
            changed: Condvar::new(),
            generation: AtomicU64::new(0),
        });
        let (path, era) = (dir.path().join("index"), dir.era());
        let worker = Worker {
            shared: Arc::clone(&shared),
            store: None,
            path,
            era,
            unflushed: 0,
            off_since: Duration::ZERO,
            lost_at: None,
            clock: Clock::system(),
        };
        let thread = match task::thread("index", move || worker.run()) {
            Ok(thread) => Some(thread),
            Err(e) => {
                tracing::warn!(error = %e, "the index has no thread and is off");
                shared.queue.lock().stopped = true;
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
        self.send(Order::Refilled(generation));
    }

    /// Reads everything that the index remembers; nothing if it was begun again.
    pub fn load(&self) -> Loaded {
        let (reply, answer) = sync_channel(1);
        self.send(Order::Load(reply));
        answer.recv_timeout(LOAD_WAIT).unwrap_or_default()
    }

    /// Saves facts, later, in the order of the calls. Waits only when very much is waiting already.
    ///
    /// A fact must be true for ever or be replaced by a later one. In particular a register that
    /// stands on a record of the journal may be saved only once that record is durable.
    pub fn save(&self, batch: Batch) {
        if !batch.is_empty() {
            self.send(Order::Save(batch));
        }
    }

    /// Returns when everything saved before is on disk, or given up.
    pub fn flush(&self) {
        let (reply, answer) = sync_channel(1);
        self.send(Order::Flush(reply));
        // Too late or never: the facts are elsewhere.
        drop(answer.recv_timeout(FLUSH_WAIT));
    }

    fn send(&self, order: Order) {
        let shared = &self.0.shared;
        let mut queue = shared.queue.lock();
        while queue.ops > QUEUE_OPS && !queue.stopped {
            if shared.changed.wait_for(&mut queue, SAVE_WAIT).timed_out() && queue.ops > QUEUE_OPS {
                // A disk that takes this long would hold up programs next. The facts are elsewhere.
                queue.given_up = true;
                queue.orders.retain(|order| !matches!(order, Order::Save(_)));
                queue.ops = queue.orders.len();
            }
        }
        if !queue.stopped {
            queue.ops += order.ops();
            queue.orders.push_back(order);
            shared.changed.notify_all();
        }
    }
}

impl Drop for Owner {
    fn drop(&mut self) {
        self.shared.queue.lock().stopped = true;
        self.shared.changed.notify_all();
        if let Some(thread) = self.thread.lock().take() {
            drop(thread.join());
        }
    }
}

/// What runs on the index thread.
struct Worker {
    shared: Arc<Shared>,
    store: Option<Store>,
    path: PathBuf,
    era: u64,
    unflushed: usize,
    /// When the index could not be begun again.
    off_since: Duration,
    /// When it failed last.
    lost_at: Option<Duration>,
    clock: Clock,
}

/// Why the index is no longer to be used.
type Trouble = String;

impl Worker {
    fn run(mut self) {
        match guarded(|| Store::open(&self.path, self.era)) {
            Ok(store) => self.store = Some(store),
            Err(why) => {
                tracing::info!(%why, "the index cannot be used and is rebuilt");
                self.begin_again(true);
            }
        }
        while let Some(order) = self.next() {
            if let Err(why) = self.obey(order) {
                self.lose(&why);
            }
        }
        if let Err(why) = self.flush() {
            tracing::debug!(%why, "the index was not flushed at the end");
        }
        self.drop_store();
    }

    /// Waits for the next order; flushes meanwhile. `None` when it is time to stop.
    fn next(&mut self) -> Option<Order> {
        loop {
            let shared = Arc::clone(&self.shared);
            let mut queue = shared.queue.lock();
            if std::mem::take(&mut queue.given_up) {
                drop(queue);
                self.lose("the disk is too slow for it");
                continue;
            }
            if let Some(order) = queue.orders.pop_front() {
                queue.ops -= order.ops();
                shared.changed.notify_all();
                return Some(order);
            }
            if queue.stopped {
                return None;
            }
            if self.unflushed == 0 {
                shared.changed.wait(&mut queue);
            } else if shared.changed.wait_for(&mut queue, FLUSH_AFTER).timed_out() {
                drop(queue);
                if let Err(why) = self.flush() {
                    self.lose(&why);
                }
            }
        }
    }

    fn obey(&mut self, order: Order) -> Result<(), Trouble> {
        match order {
            Order::Save(batch) => {
                if self.store.is_none() && self.clock.mono() >= self.off_since + RETRY_AFTER {
                    self.begin_again(false);
                }
                self.unflushed += batch.len();
                self.with(|store| store.save(batch))?;
                if self.unflushed >= FLUSH_OPS { self.flush() } else { Ok(()) }
            }
            Order::Load(reply) => {
                // Whoever gave up waiting gets nothing, and that is an empty index to him.
                self.with(Store::load).map(|loaded| drop(reply.send(loaded.unwrap_or_default())))
            }
            Order::Flush(reply) => self.flush().map(|()| drop(reply.send(()))),
            Order::Refilled(generation) => {
                let now = self.shared.generation.load(Ordering::Acquire);
                if generation == now { self.with(Store::set_whole).map(drop) } else { Ok(()) }
            }
        }
    }

    fn flush(&mut self) -> Result<(), Trouble> {
        self.unflushed = 0;
        self.with(Store::flush).map(drop)
    }

    /// Works on the store if there is one. A panic inside sled is an error like any other.
    fn with<T>(
        &mut self,
        work: impl FnOnce(&Store) -> Result<T, Trouble>,
    ) -> Result<Option<T>, Trouble> {
        match &self.store {
            Some(store) => guarded(|| work(store)).map(Some),
            None => Ok(None),
        }
    }

    /// Gives the index up and begins it again, empty.
    fn lose(&mut self, why: &str) {
        tracing::info!(why, "the index failed and is rebuilt");
        self.drop_store();
        let now = self.clock.mono();
        let lost = self.lost_at.replace(now);
        if lost.is_some_and(|lost| now < lost + RETRY_AFTER) {
            // Whatever ails it would ail it again at once.
            self.off_since = now;
            self.shared.generation.fetch_add(1, Ordering::Release);
        } else {
            self.begin_again(false);
        }
    }

    fn begin_again(&mut self, whole: bool) {
        let opened = guarded(|| {
            move_aside(&self.path).map_err(|e| e.to_string())?;
            let store = Store::open(&self.path, self.era)?;
            if !whole {
                store.unset_whole()?;
            }
            Ok(store)
        });
        self.unflushed = 0;
        match opened {
            Ok(store) => self.store = Some(store),
            Err(why) => {
                tracing::warn!(%why, "the index is off; the next start takes longer");
                self.off_since = self.clock.mono();
            }
        }
        if !whole {
            self.shared.generation.fetch_add(1, Ordering::Release);
        }
    }

    fn drop_store(&mut self) {
        if let Some(store) = self.store.take()
            && let Err(why) = guarded(|| {
                drop(store);
                Ok(())
            })
        {
            tracing::debug!(%why, "the index was not closed well");
        }
    }
}

/// Runs work that may panic.
fn guarded<T>(work: impl FnOnce() -> Result<T, Trouble>) -> Result<T, Trouble> {
    catch_unwind(AssertUnwindSafe(work)).unwrap_or_else(|panic| {
        let text = panic.downcast_ref::<String>().map(String::as_str);
        let text = text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("no reason");
        Err(format!("panic: {text}"))
    })
}

/// Keeps what is at `path` beside it, in place of what was kept there before, and makes it anew.
fn move_aside(path: &Path) -> io::Result<()> {
    let aside = path.with_extension("broken");
    for result in [fs::remove_dir_all(&aside), fs::rename(path, &aside)] {
        match result {
            Err(e) if e.kind() != io::ErrorKind::NotFound => return Err(e),
            _ => {}
        }
    }
    fs::create_dir_all(path)
}

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
