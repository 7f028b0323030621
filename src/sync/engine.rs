//! The engine: all parts of `sync`, put together and running.
//!
//! Owns the tasks. Must never lose what was published, however it stops.

use std::time::Duration;

use parking_lot::Mutex;
use tokio::runtime::Handle;
use tokio::task::JoinHandle;

use super::backoff::Backoff;
use super::checkpointer::Checkpointer;
use super::fetcher::Fetcher;
use super::follower::Follower;
use super::ledger::{Ledger, LedgerParts, Pending, PurgeMark, TOUCH_EVERY};
use super::publisher::{DrainOutcome, Publisher};
use super::renewer::Renewer;
use crate::clock;
use crate::error::Result;
use crate::remote::Health;
use crate::task;

/// How often changed state is saved to the index.
const SAVE_EVERY: Duration = Duration::from_secs(1);

/// The settings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EngineSettings {
    /// The longest time for which changes are collected for one commit.
    pub delay: Duration,
    /// From this many bytes for packs, a commit is made earlier; also the size of a pack.
    pub pack_bytes: u64,
    /// How old an answer about the remote may be; zero asks the remote each time.
    pub freshness: Duration,
    /// Nothing is ever written to the remote; also true of a private mount.
    pub read_only: bool,
    /// Content that is used after half its age is stored again.
    pub renew_on_use: bool,
    /// Content that was stored together with what a program asks for is fetched, too.
    pub ahead: bool,
    /// At the start, this many bytes of the most recently stored content are fetched.
    pub prefetch: u64,
}

impl Default for EngineSettings {
    fn default() -> Self {
        Self {
            delay: Duration::from_millis(200),
            pack_bytes: 8 << 20,
            freshness: Duration::from_secs(1),
            read_only: false,
            renew_on_use: true,
            ahead: true,
            prefetch: 0,
        }
    }
}

/// Why records are not remote yet. Each record counts once.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Unsent {
    /// They wait for a batch: for more records to join them, or for the batch in flight to end.
    pub queued: u64,
    /// Programs may still add changes to them.
    pub held: u64,
    /// They are in a batch in flight.
    pub uploading: u64,
    /// They are in a batch in flight, and the store throttles its uploads.
    pub throttled: u64,
    /// The store cannot be used. Held records count as held.
    pub store_down: u64,
    /// Contents that the store refuses.
    pub refused: u64,
    /// The mount is read-only, and an earlier mount has left them.
    pub read_only: u64,
}

/// The shortest and the longest wait before refused contents are retried: the refusal may have come
/// from a proxy, or from a limit that was changed since.
const ASIDE_MIN: Duration = Duration::from_mins(1);
const ASIDE_MAX: Duration = Duration::from_hours(1);
/// A purge begins this often, or after a hundredth of the age if that is sooner.
const PURGE_EVERY: Duration = Duration::from_mins(15);
/// The shortest time between two purges.
const PURGE_EVERY_MIN: Duration = Duration::from_secs(1);
/// The pause between two steps of a purge.
const PURGE_REST: Duration = Duration::from_millis(20);

/// How often a start checks whether the content of the store is known, before it fetches some of
/// it; and how many times.
const KNOWN_WAIT: Duration = Duration::from_millis(100);
const KNOWN_TRIES: u32 = 6000;

/// The parts of the engine.
pub type Parts = LedgerParts;

/// The running synchronisation of one node.
#[derive(Debug)]
pub struct Engine {
    ledger: Ledger,
    fetcher: Fetcher,
    follower: Follower,
    publisher: Option<Publisher>,
    checkpointer: Option<Checkpointer>,
    renewer: Renewer,
    prefetch: u64,
    tasks: Mutex<Vec<JoinHandle<()>>>,
    runtime: Handle,
}

impl Engine {
    /// Opens the ledger and makes the other parts. Starts nothing and asks the store nothing.
    ///
    /// # Errors
    ///
    /// As [`Ledger::open`].
    pub fn open(parts: Parts, settings: EngineSettings, runtime: Handle) -> Result<Self> {
        let ledger = Ledger::open(parts)?;
        let remote = ledger.remote().cloned();
        let fetcher = Fetcher::new(ledger.clone(), runtime.clone(), settings.ahead);
        let follower = Follower::new(ledger.clone(), settings.freshness);
        let checkpointer = remote.as_ref().filter(|_| !settings.read_only).map(|remote| {
            Checkpointer::new(ledger.clone(), follower.clone(), fetcher.clone(), remote)
        });
        let publisher = remote.as_ref().filter(|_| !settings.read_only).map(|remote| {
            let (delay, pack_bytes) = (settings.delay, settings.pack_bytes);
            Publisher::new(ledger.clone(), remote, follower.clone(), delay, pack_bytes)
        });
        let freshness = follower.freshness().clone();
        let on = publisher.is_some() && settings.renew_on_use;
        let renewer = Renewer::new(ledger.clone(), fetcher.clone(), freshness, on);
        let (tasks, prefetch) = (Mutex::new(Vec::new()), settings.prefetch);
        Ok(Self {
            ledger,
            fetcher,
            follower,
            publisher,
            checkpointer,
            renewer,
            prefetch,
            tasks,
            runtime,
        })
    }

    /// Starts publishing, following and saving.
    pub fn start(&self) {
        let mut tasks = self.tasks.lock();
        if self.ledger.remote().is_some() {
            tasks.extend(self.follower.start(&self.runtime));
        }
        if let Some(publisher) = &self.publisher {
            tasks.extend(publisher.start(&self.runtime));
            tasks.push(self.renewer.start(&self.runtime));
        }
        if let Some(checkpointer) = &self.checkpointer {
            tasks.push(checkpointer.start(&self.runtime));
        }
        if self.ledger.is_private() {
            let settle = settle_for_ever(self.ledger.clone());
            tasks.push(task::spawn(&self.runtime, "settle", settle));
        }
        if self.prefetch > 0 && self.ledger.remote().is_some() {
            let work = warm_up(self.follower.clone(), self.fetcher.clone(), self.prefetch);
            tasks.push(task::spawn(&self.runtime, "warm up", work));
        }
        let ledger = self.ledger.clone();
        tasks.push(task::spawn(&self.runtime, "purge", purge_for_ever(self.ledger.clone())));
        if self.publisher.is_some() {
            tasks.push(task::spawn(&self.runtime, "aside", retry_aside(self.ledger.clone())));
            tasks.push(task::spawn(&self.runtime, "touches", send_touches(self.ledger.clone())));
        }
        tasks.push(task::spawn(&self.runtime, "save", async move {
            loop {
                clock::sleep(SAVE_EVERY).await;
                if !ledger.is_catching_up() {
                    ledger.save_behind().await;
                }
            }
        }));
    }

    /// Returns when everything that was published before the call is remote, or after `limit`.
    /// Calls `progress` periodically. Without a publisher there is nothing to wait for. A
    /// checkpoint that is due is written within the same time, but is not part of the report.
    pub async fn drain(&self, limit: Duration, progress: impl FnMut(Pending)) -> DrainOutcome {
        let Some(publisher) = &self.publisher else {
            return DrainOutcome { complete: true, left: self.ledger.pending(), elapsed_ms: 0 };
        };
        send_touches_of(&self.ledger).await;
        let report = publisher.drain_with(limit, progress).await;
        if report.complete
            && let Some(checkpointer) = &self.checkpointer
        {
            let left = limit.saturating_sub(Duration::from_millis(report.elapsed_ms));
            clock::within(left, Box::pin(checkpointer.write_at_end())).await;
        }
        report
    }

    /// Stops all tasks and saves. Changes that are not remote stay in the journal for the next
    /// start.
    pub async fn stop(&self) {
        self.kill().await;
        self.ledger.save_behind().await;
    }

    /// Stops all tasks wherever they are, as a crash does; the next start finds everything in the
    /// journal.
    pub async fn kill(&self) {
        let tasks = std::mem::take(&mut *self.tasks.lock());
        for task in &tasks {
            task.abort();
        }
        for task in tasks {
            // It was aborted, or ended by a panic that was reported when it happened.
            drop(task.await);
        }
    }

    /// Reports whether a task has ended by itself. Only a panic causes that. Nothing is published,
    /// followed or saved any more, so the daemon must be restarted.
    pub fn has_failed(&self) -> bool {
        self.tasks.lock().iter().any(JoinHandle::is_finished)
    }

    /// Returns why records are not remote yet; all zero without a remote.
    pub fn unsent(&self) -> Unsent {
        let remote = self.ledger.remote().filter(|_| !self.ledger.is_private());
        let Some(remote) = remote else { return Unsent::default() };
        let (queued, held, taken, refused) = self.ledger.stages();
        let Some(publisher) = &self.publisher else {
            return Unsent { read_only: queued + held + taken, refused, ..Unsent::default() };
        };
        let unsent = Unsent { held, refused, ..Unsent::default() };
        if remote.unfit().is_some() || remote.health() != Health::Up {
            Unsent { store_down: queued + taken, ..unsent }
        } else if publisher.is_throttled() {
            Unsent { queued, throttled: taken, ..unsent }
        } else {
            Unsent { queued, uploading: taken, ..unsent }
        }
    }

    /// Returns the namespace and the journal.
    pub fn ledger(&self) -> &Ledger {
        &self.ledger
    }

    /// Returns the fetcher, which makes contents local.
    pub fn fetcher(&self) -> &Fetcher {
        &self.fetcher
    }

    /// Returns the renewer, which stores used contents again.
    pub fn renewer(&self) -> &Renewer {
        &self.renewer
    }

    /// Returns the follower, which brings in the changes of other nodes and knows whether all of
    /// them are in.
    pub fn follower(&self) -> &Follower {
        &self.follower
    }

    /// Returns the checkpointer; `None` without a remote and in read-only mode.
    pub fn checkpointer(&self) -> Option<&Checkpointer> {
        self.checkpointer.as_ref()
    }

    /// Returns the publisher, which brings changes to the remote; `None` without a remote and in
    /// read-only mode.
    pub fn publisher(&self) -> Option<&Publisher> {
        self.publisher.as_ref()
    }
}

/// Fetches some of the most recently stored content, once that is known. The task does not end: an
/// ended task counts as a panic.
async fn warm_up(follower: Follower, fetcher: Fetcher, budget: u64) {
    for _ in 0..KNOWN_TRIES {
        // It starts no list of its own: each start begins with one, and this can wait for it.
        let is_known = follower.following().is_some_and(|following| following.list_age.is_some());
        if is_known {
            let bytes = fetcher.warm_up(budget).await;
            if bytes > 0 {
                tracing::info!(bytes, "fetched the most recently stored contents");
            }
            break;
        }
        clock::sleep(KNOWN_WAIT).await;
    }
    std::future::pending::<()>().await;
}

/// Removes the records of a private mount from the journal: nothing of them is sent.
async fn settle_for_ever(ledger: Ledger) {
    loop {
        let queued = ledger.queued().notified();
        while ledger.settle_private() {}
        queued.await;
    }
}

/// Retries what the store refused: at the start, soon after, and then ever more rarely.
async fn retry_aside(ledger: Ledger) {
    let mut backoff = Backoff::new(ASIDE_MIN, ASIDE_MAX);
    loop {
        if ledger.aside().contents == 0 {
            backoff.reset();
        } else {
            ledger.retry_aside();
        }
        clock::sleep(backoff.wait()).await;
    }
}

/// Sends touches periodically.
async fn send_touches(ledger: Ledger) {
    loop {
        clock::sleep(TOUCH_EVERY).await;
        send_touches_of(&ledger).await;
    }
}

async fn send_touches_of(ledger: &Ledger) {
    let ledger = ledger.clone();
    if let Err(error) = task::blocking(move || ledger.send_touches()).await {
        tracing::warn!(
            error = error.chain(),
            "times of use could not be sent; they are sent with the next ones"
        );
    }
}

/// Periodically forgets records that are long past their age, and records that have no effect any
/// more.
async fn purge_for_ever(ledger: Ledger) {
    loop {
        let part = ledger.age().limit().map_or(PURGE_EVERY, |limit| limit / 100);
        clock::sleep(part.clamp(PURGE_EVERY_MIN, PURGE_EVERY)).await;
        let mut mark = Some(PurgeMark::start());
        while let Some(from) = mark {
            let step = ledger.clone();
            mark = task::blocking(move || step.purge(&from)).await;
            clock::sleep(PURGE_REST).await;
        }
    }
}
