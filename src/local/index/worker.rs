//! The thread of the index: takes orders from a bounded queue, and begins the index again when it
//! fails.

use std::collections::VecDeque;
use std::fs;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::SyncSender;
use std::time::Duration;

use parking_lot::{Condvar, Mutex};

use super::facts::{FactBatch, PendingFacts};
use super::load::IndexPiece;
use super::{Flushed, IndexTrouble, Store};
use crate::clock::Clock;

/// Operations that may wait for the index thread; then a save waits.
const QUEUE_OPS: usize = 100_000;
/// The same for what the index is filled with, of which there is always more.
const FILL_OPS: usize = 20_000;
/// How long a save waits for room in the queue before the index is given up.
const SAVE_WAIT: Duration = Duration::from_secs(10);
/// How long what was saved may stay in memory only, while nothing else is saved.
const FLUSH_AFTER: Duration = Duration::from_secs(2);
/// Facts after which what was saved is written in any case.
const WRITE_FACTS: usize = 20_000;
/// How long an index that cannot be begun again stays off before another attempt.
const RETRY_AFTER: Duration = Duration::from_mins(1);

/// Failures of one run after which the index stays off.
const LOSSES_MAX: u32 = 3;
/// How long the end of the thread is waited for.
const STOP_WAIT: Duration = Duration::from_secs(10);
/// How often the store is tried while a former one still holds it ...
const OPEN_TRIES: u32 = 200;
/// ... and how long it is waited in between, at most.
const OPEN_PAUSE: Duration = Duration::from_millis(20);

/// What the callers and the thread share.
#[derive(Debug, Default)]
pub(super) struct IndexShared {
    queue: Mutex<IndexQueue>,
    changed: Condvar,
    /// Moves when the index was begun again.
    pub(super) generation: AtomicU64,
}

impl IndexShared {
    /// Waits for the end of the thread, but not for ever; returns whether it came.
    pub(super) fn wait_ended(&self) -> bool {
        let mut queue = self.queue.lock();
        while !queue.ended {
            if self.changed.wait_for(&mut queue, STOP_WAIT).timed_out() {
                return queue.ended;
            }
        }
        true
    }

    /// Ends the thread once it has done what is in the queue.
    pub(super) fn stop(&self) {
        self.queue.lock().stopped = true;
        self.changed.notify_all();
    }

    /// Puts an order at the end of the queue; waits while it is full.
    pub(super) fn send(&self, order: IndexOrder) {
        let most = if matches!(order, IndexOrder::Fill(..)) { FILL_OPS } else { QUEUE_OPS };
        let mut queue = self.queue.lock();
        while queue.ops > most && !queue.stopped {
            if queue.given_up && order.is_data() {
                return;
            }
            if self.changed.wait_for(&mut queue, SAVE_WAIT).timed_out() && queue.ops > most {
                // A disk that takes this long would hold up programs next. The facts are elsewhere.
                queue.given_up = true;
                queue.orders.retain(|order| !order.is_data());
                queue.ops = queue.orders.len();
            }
        }
        if !queue.stopped {
            queue.ops += order.ops();
            queue.orders.push_back(order);
            self.changed.notify_all();
        }
    }
}

#[derive(Debug, Default)]
struct IndexQueue {
    orders: VecDeque<IndexOrder>,
    ops: usize,
    stopped: bool,
    /// The thread has ended.
    ended: bool,
    /// Set by a save that could not wait any longer.
    given_up: bool,
}

/// What the thread is asked to do.
#[derive(Debug)]
pub(super) enum IndexOrder {
    Save(FactBatch),
    /// Some of all facts, in order, because the owner saves all of them anew in this generation.
    Fill(u64, FactBatch),
    Load(SyncSender<IndexPiece>),
    Flush(SyncSender<Flushed>),
    /// What it was filled with so far is out of date.
    StopFilling,
    /// Begin again, because what was loaded makes no sense.
    Lose(IndexTrouble),
    /// The owner of the facts has saved all of them since this generation began.
    Refilled(u64),
}

impl IndexOrder {
    fn is_data(&self) -> bool {
        matches!(self, Self::Save(_) | Self::Fill(..))
    }

    /// What it counts for in the queue.
    fn ops(&self) -> usize {
        match self {
            Self::Save(batch) | Self::Fill(_, batch) => batch.len(),
            _ => 1,
        }
    }
}

/// What runs on the index thread.
pub(super) struct IndexWorker {
    shared: Arc<IndexShared>,
    store: Option<Store>,
    path: PathBuf,
    era: u64,
    /// What was saved and not yet written: whole batches, so that they are written whole.
    waiting: PendingFacts,
    /// When the index could not be begun again.
    off_since: Duration,
    /// How often it failed, and when last.
    losses: u32,
    lost_at: Option<Duration>,
    clock: Clock,
}

impl IndexWorker {
    pub(super) fn new(shared: Arc<IndexShared>, path: PathBuf, era: u64) -> Self {
        let (off_since, lost_at, clock) = (Duration::ZERO, None, Clock::system());
        let losses = 0;
        Self {
            shared,
            store: None,
            path,
            era,
            waiting: PendingFacts::new(),
            off_since,
            losses,
            lost_at,
            clock,
        }
    }

    /// Obeys until the queue is stopped and empty.
    pub(super) fn run(mut self) {
        let shared = Arc::clone(&self.shared);
        if let Err(why) = guarded(|| {
            self.work();
            Ok(())
        }) {
            tracing::warn!(%why, "the thread of the index ended");
        }
        shared.stop();
        // A caller that waits for an answer learns that there will be none.
        let mut queue = shared.queue.lock();
        queue.orders.clear();
        queue.ended = true;
        shared.changed.notify_all();
    }

    fn work(&mut self) {
        match guarded(|| self.open()) {
            Ok(store) => self.store = Some(store),
            Err(why) => {
                tracing::info!(%why, "the index cannot be used and is rebuilt");
                self.begin_again(true);
            }
        }
        while let Some(order) = self.next() {
            self.obey(order);
        }
        if let Err(why) = self.flush() {
            tracing::debug!(%why, "the index was not flushed at the end");
        }
        self.drop_store();
    }

    /// Opens the store. sled lets go of its lock some time after it was dropped, so this waits for
    /// a former one of this process; the cache directory is ours, so there is no other.
    fn open(&self) -> Result<Store, IndexTrouble> {
        let mut tries = 0;
        loop {
            match Store::open(&self.path, self.era) {
                Err(why) if tries < OPEN_TRIES && why.contains("acquire lock") => tries += 1,
                opened => return opened,
            }
            let mut queue = self.shared.queue.lock();
            self.shared.changed.wait_for(&mut queue, OPEN_PAUSE);
        }
    }

    /// Waits for the next order; flushes meanwhile. `None` when it is time to stop.
    fn next(&mut self) -> Option<IndexOrder> {
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
            if self.waiting.is_empty() {
                shared.changed.wait(&mut queue);
            } else if shared.changed.wait_for(&mut queue, FLUSH_AFTER).timed_out() {
                drop(queue);
                if let Err(why) = self.flush() {
                    self.lose(&why);
                }
            }
        }
    }

    /// Obeys one order. A caller that waits for an answer gets it when a failure has been dealt with.
    fn obey(&mut self, order: IndexOrder) {
        let done = match order {
            IndexOrder::Save(batch) => self.save(batch),
            IndexOrder::Fill(generation, batch) => self.fill(generation, &batch),
            IndexOrder::Load(pieces) => {
                let loaded = self.flush().and_then(|()| self.with(|store| store.load(&pieces)));
                let whole = matches!(loaded, Ok(Some(())));
                self.lose_if(loaded.map(drop));
                if pieces.send(IndexPiece::End(whole)).is_err() {
                    tracing::debug!("what the index remembered came too late");
                }
                Ok(())
            }
            IndexOrder::StopFilling => self
                .with(|store| {
                    store.stop_filling();
                    Ok(())
                })
                .map(drop),
            IndexOrder::Lose(why) => Err(why),
            IndexOrder::Flush(reply) => {
                let generation = self.shared.generation.load(Ordering::Acquire);
                let done = self.flush();
                let flushed = match (&done, &self.store) {
                    (Err(_), _) => Flushed::Unsure,
                    (Ok(()), None) => Flushed::Off,
                    (Ok(()), Some(_)) => Flushed::Durable(generation),
                };
                self.lose_if(done);
                // A caller that gave up waiting does not mind.
                reply.send(flushed).or(Ok(()))
            }
            IndexOrder::Refilled(generation) => {
                let now = self.shared.generation.load(Ordering::Acquire);
                if generation == now {
                    self.flush().and_then(|()| self.with(Store::filled).map(drop))
                } else {
                    Ok(())
                }
            }
        };
        self.lose_if(done);
    }

    fn save(&mut self, batch: FactBatch) -> Result<(), IndexTrouble> {
        if self.store.is_none() {
            let later = self.off_since + RETRY_AFTER;
            if self.losses > LOSSES_MAX || self.clock.mono() < later {
                return Ok(());
            }
            self.begin_again(false);
        }
        self.waiting.extend(batch.0);
        if self.waiting.len() >= WRITE_FACTS { self.flush() } else { Ok(()) }
    }

    fn fill(&mut self, generation: u64, batch: &FactBatch) -> Result<(), IndexTrouble> {
        if generation != self.shared.generation.load(Ordering::Acquire) {
            return Ok(());
        }
        if self.store.as_ref().is_some_and(|store| !store.is_filling()) {
            // What was saved before does not overrule it.
            self.flush()?;
        }
        self.with(|store| store.fill(&batch.0)).map(drop)
    }

    fn lose_if(&mut self, done: Result<(), IndexTrouble>) {
        if let Err(why) = done {
            self.lose(&why);
        }
    }

    /// Writes what is waiting and makes it durable.
    fn flush(&mut self) -> Result<(), IndexTrouble> {
        let facts = std::mem::take(&mut self.waiting);
        self.with(|store| if facts.is_empty() { store.flush() } else { store.save(&facts) })
            .map(drop)
    }

    /// Works on the store if there is one. A panic inside sled is an error like any other.
    fn with<T>(
        &mut self,
        work: impl FnOnce(&mut Store) -> Result<T, IndexTrouble>,
    ) -> Result<Option<T>, IndexTrouble> {
        match &mut self.store {
            Some(store) => guarded(|| work(store)).map(Some),
            None => Ok(None),
        }
    }

    /// Gives the index up and begins it again, empty.
    fn lose(&mut self, why: &str) {
        tracing::info!(why, "the index failed and is rebuilt");
        // A store that failed may wait for ever for its last bytes when it is dropped, and hold up
        // every other store of the process with it: it is left alone. That costs memory, so it may
        // happen a few times only.
        std::mem::forget(self.store.take());
        self.losses += 1;
        let now = self.clock.mono();
        let lost = self.lost_at.replace(now);
        if self.losses > LOSSES_MAX || lost.is_some_and(|lost| now < lost + RETRY_AFTER) {
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
            let mut store = self.open()?;
            if !whole {
                store.unset_whole()?;
            }
            Ok(store)
        });
        self.waiting.clear();
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
fn guarded<T>(work: impl FnOnce() -> Result<T, IndexTrouble>) -> Result<T, IndexTrouble> {
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
