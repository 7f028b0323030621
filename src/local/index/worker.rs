//! The thread of the index: executes orders from a bounded queue, and restarts the index when it fails.

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

/// The most bytes of facts in the queue; after that a save waits.
const QUEUE_BYTES: usize = 8 << 20;
/// The same for filling the index, which always has more to add.
const FILL_BYTES: usize = 2 << 20;
/// How long a save waits for room in the queue before it gives the index up.
const SAVE_WAIT: Duration = Duration::from_secs(10);
/// How long saved facts may stay only in memory while nothing else is saved.
const FLUSH_AFTER: Duration = Duration::from_secs(2);
/// The number of pending facts after which they are written at once.
const WRITE_FACTS: usize = 20_000;
/// The pause between two attempts to restart an index that failed to.
const RETRY_AFTER: Duration = Duration::from_mins(1);
/// After this many failures in one run the pause is long: each costs memory that is not given back.
/// It has an end, because without an index the journal keeps what only this node has.
const LOSSES_MAX: u32 = 3;
const LONG_RETRY_AFTER: Duration = Duration::from_hours(1);
/// The longest wait for the end of the thread.
const STOP_WAIT: Duration = Duration::from_secs(10);
/// How many times opening the store is tried while an earlier one still holds it ...
const OPEN_TRIES: u32 = 200;
/// ... and the longest pause in between.
const OPEN_PAUSE: Duration = Duration::from_millis(20);

/// What the callers and the thread share.
#[derive(Debug, Default)]
pub(super) struct IndexShared {
    queue: Mutex<IndexQueue>,
    changed: Condvar,
    /// Changes when the index starts again.
    pub(super) generation: AtomicU64,
}

impl IndexShared {
    /// Waits for the end of the thread, up to a limit; returns whether it has ended.
    pub(super) fn wait_ended(&self) -> bool {
        let mut queue = self.queue.lock();
        while !queue.ended {
            if self.changed.wait_for(&mut queue, STOP_WAIT).timed_out() {
                return queue.ended;
            }
        }
        true
    }

    /// Ends the thread after it has emptied the queue.
    pub(super) fn stop(&self) {
        self.queue.lock().stopped = true;
        self.changed.notify_all();
    }

    /// Appends an order to the queue; waits while it is full.
    pub(super) fn send(&self, order: IndexOrder) {
        let most = if matches!(order, IndexOrder::Fill(..)) { FILL_BYTES } else { QUEUE_BYTES };
        let mut queue = self.queue.lock();
        while queue.bytes > most && !queue.stopped {
            if queue.given_up && order.is_data() {
                return;
            }
            if self.changed.wait_for(&mut queue, SAVE_WAIT).timed_out() && queue.bytes > most {
                // Otherwise a disk this slow would delay programs next. The facts exist elsewhere too.
                queue.given_up = true;
                queue.orders.retain(|order| !order.is_data());
                queue.bytes = queue.orders.iter().map(IndexOrder::bytes).sum();
            }
        }
        if !queue.stopped {
            queue.bytes += order.bytes();
            queue.orders.push_back(order);
            self.changed.notify_all();
        }
    }
}

#[derive(Debug, Default)]
struct IndexQueue {
    orders: VecDeque<IndexOrder>,
    bytes: usize,
    stopped: bool,
    /// The thread has ended.
    ended: bool,
    /// Set by a save that could not wait any longer.
    given_up: bool,
}

/// An order to the thread.
#[derive(Debug)]
pub(super) enum IndexOrder {
    Save(FactBatch),
    /// A part of all facts, in order: the owner saves all of them again in this generation.
    Fill(u64, FactBatch),
    Load(SyncSender<IndexPiece>),
    Flush(SyncSender<Flushed>),
    /// Discard what the index was filled with so far; it is stale.
    StopFilling,
    /// The owner of the facts has saved all of them since this generation began.
    Refilled(u64),
}

impl IndexOrder {
    fn is_data(&self) -> bool {
        matches!(self, Self::Save(_) | Self::Fill(..))
    }

    /// The bytes of its facts.
    fn bytes(&self) -> usize {
        match self {
            Self::Save(batch) | Self::Fill(_, batch) => batch.bytes(),
            _ => 0,
        }
    }
}

/// The state of the index thread.
pub(super) struct IndexWorker {
    shared: Arc<IndexShared>,
    store: Option<Store>,
    path: PathBuf,
    era: u64,
    /// Saved facts that are not written yet. Contains only whole batches, so that they are written whole.
    waiting: PendingFacts,
    /// When the index last failed to start again.
    off_since: Duration,
    /// How many times it has failed, and when last.
    losses: u32,
    lost_at: Option<Duration>,
    clock: Clock,
}

/// Returns how long the index stays off after so many failures.
fn pause_after(losses: u32) -> Duration {
    if losses > LOSSES_MAX { LONG_RETRY_AFTER } else { RETRY_AFTER }
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

    /// Executes orders until the queue is stopped and empty.
    pub(super) fn run(mut self) {
        let shared = Arc::clone(&self.shared);
        if let Err(why) = guarded(|| {
            self.work();
            Ok(())
        }) {
            tracing::warn!(%why, "the thread of the index ended");
        }
        shared.stop();
        // A caller that waits for a reply learns that none will come.
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

    /// Opens the store. sled releases its lock some time after it was dropped, so this waits for an
    /// earlier store of this process. The cache directory is locked, so no other process has one.
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
                queue.bytes -= order.bytes();
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

    /// Executes one order. A caller that waits for a reply gets it after a failure was handled.
    fn obey(&mut self, order: IndexOrder) {
        let done = match order {
            IndexOrder::Save(batch) => self.save(batch),
            IndexOrder::Fill(generation, batch) => self.fill(generation, &batch),
            IndexOrder::Load(pieces) => {
                let loaded = self.flush().and_then(|()| self.with(|store| store.load(&pieces)));
                let whole = matches!(loaded, Ok(Some(())));
                self.lose_if(loaded.map(drop));
                if pieces.send(IndexPiece::End(whole)).is_err() {
                    tracing::debug!("the content of the index was read too late");
                }
                Ok(())
            }
            IndexOrder::StopFilling => self
                .with(|store| {
                    store.stop_filling();
                    Ok(())
                })
                .map(drop),
            IndexOrder::Flush(reply) => {
                let generation = self.shared.generation.load(Ordering::Acquire);
                let done = self.flush();
                let flushed = match (&done, &self.store) {
                    (Err(_), _) => Flushed::Unsure,
                    (Ok(()), None) => Flushed::Off,
                    (Ok(()), Some(_)) => Flushed::Durable(generation),
                };
                self.lose_if(done);
                // The caller may have stopped waiting, which is fine.
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
            if self.clock.mono() < self.off_since + pause_after(self.losses) {
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
            // Facts saved before must not override it.
            self.flush()?;
        }
        self.with(|store| store.fill(&batch.0)).map(drop)
    }

    fn lose_if(&mut self, done: Result<(), IndexTrouble>) {
        if let Err(why) = done {
            self.lose(&why);
        }
    }

    /// Writes the pending facts and makes them durable.
    fn flush(&mut self) -> Result<(), IndexTrouble> {
        let facts = std::mem::take(&mut self.waiting);
        self.with(|store| if facts.is_empty() { store.flush() } else { store.save(&facts) })
            .map(drop)
    }

    /// Runs work on the store if there is one. Treats a panic inside sled like any other error.
    fn with<T>(
        &mut self,
        work: impl FnOnce(&mut Store) -> Result<T, IndexTrouble>,
    ) -> Result<Option<T>, IndexTrouble> {
        match &mut self.store {
            Some(store) => guarded(|| work(store)).map(Some),
            None => Ok(None),
        }
    }

    /// Gives the index up and starts it again, empty.
    fn lose(&mut self, why: &str) {
        tracing::info!(why, "the index failed and is rebuilt");
        // Dropping a failed store may wait for ever for its last bytes, and block every other store of
        // the process with it, so it is leaked. That costs memory, so it must not happen often.
        std::mem::forget(self.store.take());
        self.losses += 1;
        let now = self.clock.mono();
        let lost = self.lost_at.replace(now);
        if self.losses > LOSSES_MAX || lost.is_some_and(|lost| now < lost + RETRY_AFTER) {
            // Another attempt at once would fail for the same reason.
            self.off_since = now;
            let minutes = pause_after(self.losses).as_secs() / 60;
            tracing::warn!(losses = self.losses, minutes, "the index is off for a while");
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
            tracing::debug!(%why, "the index was not closed cleanly");
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

/// Moves what is at `path` aside, replacing what was kept there before, and makes the folder anew.
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
