//! Room: whether new data may be stored, and the wait until it may.
//!
//! Owns the only decision about a full tier, a full backlog and a full disk, and the callers that
//! wait for room. Must never be waited for with a lock held. Must never keep a writer waiting for
//! room that cannot come: while the store is known to be down, or for a file that is larger than
//! the tier.
//!
//! Keeps P13 bounded.

use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::Notify;

use super::quiet::Quiet;
use crate::clock::{self, Clock};
use crate::config::ByteSize;
use crate::error::{Error, Kind, Result};
use crate::local::Blobs;
use crate::remote::{Health, Remote};

/// How many records may wait for the store before new writers must wait.
pub const PENDING_RECORDS_MAX: u64 = 200_000;
/// How many bytes of content may wait for the store before new writers must wait. The size of the
/// local tier is a separate limit, and usually the smaller one.
pub const PENDING_BYTES_MAX: u64 = 1 << 40;
/// The default for how long a writer waits for room.
pub const FULL_WAIT: Duration = Duration::from_mins(1);
/// How many writers may wait at the same time; further ones are refused at once.
const WAITERS_MAX: usize = 16_384;
/// How long a reader waits for room. A caller that requests a content which is not here has its own
/// deadline.
const READER_WAIT: Duration = Duration::from_secs(5);
/// How often a waiting writer checks by itself: there is no notification when a reader closes a
/// file, or when the store stops answering.
const LOOK_EVERY: Duration = Duration::from_millis(100);
/// How many checks in a row a writer makes while nothing is in flight to the store. Then only
/// processes with open files can make room, and perhaps they never do.
const IDLE_LOOKS_MAX: u32 = 50;
/// A store counts as down after this long without an answer: one failed request is no reason to refuse.
const DOWN_AFTER_MS: u64 = 1_000;
/// An episode of waiting ends when no writer has waited for this long.
const EPISODE_GAP: Duration = Duration::from_secs(10);
/// The fraction of the tier that may be unsaved. Above it, uploads are no longer delayed to gather
/// more changes.
const UNSAVED_PART: u64 = 2;

/// What a writer wants to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Demand {
    /// Begin a file.
    Begin,
    /// Publish a closed file of this many bytes, which the disk holds already.
    Close(u64),
    /// Keep this many fetched bytes. A reader waits for them, and must not have to wait for writers
    /// to finish.
    Keep(u64),
}

/// Whether writers are slowed, and why.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Slowed {
    /// Writers that wait at this moment.
    pub writers: u64,
    /// For how long writers have had to wait, with short gaps.
    pub since: Duration,
    /// The cause.
    pub why: String,
}

/// Room for new data on one node; cheap to clone.
#[derive(Clone, Debug)]
pub struct Room(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    blobs: Blobs,
    remote: Option<Remote>,
    clock: Clock,
    patience: Duration,
    /// Changes that are not yet remote, as the ledger has noted them.
    records: AtomicU64,
    bytes: AtomicU64,
    /// Notified when something has become remote or evictable.
    moved: Notify,
    /// Notified when the first writer begins to wait.
    pressed: Notify,
    /// Counts the notifications of [`Inner::moved`].
    progress: AtomicU64,
    /// A writer's wait has timed out, and nothing has moved since.
    stalled: AtomicBool,
    /// Callers that wait to publish a closed file or to keep fetched bytes. They go before callers
    /// that begin a file: their bytes are here already, or a reader waits.
    ahead: AtomicU64,
    episode: Mutex<Option<Episode>>,
    quiet: Quiet,
    slowed: AtomicU64,
    refused: AtomicU64,
}

/// A period in which writers waited, with gaps shorter than [`EPISODE_GAP`].
#[derive(Debug)]
struct Episode {
    began: Duration,
    last: Duration,
    waiting: usize,
}

/// The result of a check of the tier.
enum TierLook {
    Open,
    /// Something is in flight to the store, which will make room.
    Draining,
    /// Nothing is in flight; only programs that have files open can make room.
    Idle,
    Hopeless,
}

impl Room {
    /// Makes the room of a node whose writers wait at most `patience`.
    pub(super) fn new(
        blobs: Blobs,
        remote: Option<Remote>,
        clock: Clock,
        patience: Duration,
    ) -> Self {
        Self(Arc::new(Inner {
            blobs,
            remote,
            clock,
            patience,
            records: AtomicU64::new(0),
            bytes: AtomicU64::new(0),
            moved: Notify::new(),
            pressed: Notify::new(),
            progress: AtomicU64::new(0),
            stalled: AtomicBool::new(false),
            ahead: AtomicU64::new(0),
            episode: Mutex::new(None),
            quiet: Quiet::default(),
            slowed: AtomicU64::new(0),
            refused: AtomicU64::new(0),
        }))
    }

    /// Reports whether the demand can be met at once. May evict, never waits.
    pub fn is_open(&self, demand: Demand) -> bool {
        let inner = &self.0;
        match demand {
            Demand::Begin => {
                inner.ahead.load(Ordering::Relaxed) == 0
                    && inner.records.load(Ordering::Relaxed) < PENDING_RECORDS_MAX
                    && inner.bytes.load(Ordering::Relaxed) < PENDING_BYTES_MAX
                    && inner.blobs.make_room(0)
            }
            // A sparse file has a size as well, and all of it would be digested.
            Demand::Close(bytes) => inner.blobs.could_hold(bytes) && inner.blobs.make_room(0),
            Demand::Keep(bytes) => inner.blobs.make_room(bytes),
        }
    }

    /// Reports whether a closed file of this size could ever be kept. Its bytes are on the disk
    /// already, so refusing it frees no more space than the next upload would.
    pub fn admits(&self, bytes: u64) -> bool {
        let blobs = &self.0.blobs;
        blobs.could_hold(bytes) && (blobs.make_room(0) || blobs.fits(bytes))
    }

    /// Waits until the demand can be met. Nothing is reserved: the first caller to act gets the
    /// room. Must not be called with a lock held, nor on a thread that answers the kernel. Fetches
    /// do not count as slowed.
    ///
    /// # Errors
    ///
    /// `NoSpace`: at once if the store is down or the file can never fit, otherwise after the
    /// node's patience.
    pub async fn wait(&self, demand: Demand) -> Result<()> {
        if self.is_open(demand) {
            return Ok(());
        }
        let _ahead = (demand != Demand::Begin).then(|| AheadWaiter::of(self));
        if let Demand::Keep(_) = demand {
            return match clock::within(READER_WAIT, self.look_out(demand)).await {
                Some(true) => Ok(()),
                _ => Err(Error::new(Kind::NoSpace, "no room for what is fetched")),
            };
        }
        let Some(_waiter) = self.enter() else {
            return Err(self.refuse("too many writers already wait for room"));
        };
        let before = self.0.progress.load(Ordering::Relaxed);
        let open = clock::within(self.0.patience, self.look_out(demand)).await;
        if open == Some(true) {
            return Ok(());
        }
        if open.is_none() && self.0.progress.load(Ordering::Relaxed) == before {
            self.0.stalled.store(true, Ordering::Relaxed);
        }
        Err(self.refuse(&self.why()))
    }

    async fn look_out(&self, demand: Demand) -> bool {
        let mut idle = 0;
        loop {
            let moved = self.0.moved.notified();
            let mut moved = std::pin::pin!(moved);
            // Enabled before the check, so that no notification is missed in between.
            moved.as_mut().enable();
            match self.look(demand) {
                TierLook::Open => return true,
                TierLook::Hopeless => return false,
                TierLook::Draining => idle = 0,
                TierLook::Idle => idle += 1,
            }
            if idle > IDLE_LOOKS_MAX {
                return false;
            }
            clock::within(LOOK_EVERY, moved).await;
        }
    }

    fn look(&self, demand: Demand) -> TierLook {
        let inner = &self.0;
        if self.is_open(demand) {
            return TierLook::Open;
        }
        let draining = inner.records.load(Ordering::Relaxed) > 0;
        if let Demand::Close(bytes) = demand {
            if bytes > inner.blobs.usage().limit {
                return TierLook::Hopeless;
            }
            // Processes with open files hold the rest of the tier. They wait for each other's
            // closes, so this one goes ahead: its blob can be uploaded and evicted, its staging
            // file cannot.
            if !draining && inner.blobs.fits(bytes) {
                return TierLook::Open;
            }
        }
        match draining {
            false if matches!(demand, Demand::Keep(_)) => TierLook::Hopeless,
            false => TierLook::Idle,
            true if self.is_down() || inner.stalled.load(Ordering::Relaxed) => TierLook::Hopeless,
            true => TierLook::Draining,
        }
    }

    /// Reports whether the store is known to accept nothing.
    fn is_down(&self) -> bool {
        self.0.remote.as_ref().is_some_and(|remote| {
            let down_for = |since_ms| self.0.clock.wall_ms().saturating_sub(since_ms);
            remote.unfit().is_some()
                || matches!(remote.health(), Health::Down { since_ms }
                    if down_for(since_ms) >= DOWN_AFTER_MS)
        })
    }

    /// Counts a writer that begins to wait; `None` if too many wait already.
    fn enter(&self) -> Option<RoomWaiter<'_>> {
        let (now, why) = (self.0.clock.mono(), self.why());
        let fresh = {
            let mut episode = self.0.episode.lock();
            let over = |e: &Episode| e.waiting == 0 && now.saturating_sub(e.last) > EPISODE_GAP;
            if episode.as_ref().is_none_or(over) {
                *episode = Some(Episode { began: now, last: now, waiting: 1 });
                true
            } else {
                let episode = episode.as_mut().expect("the episode was just checked");
                if episode.waiting >= WAITERS_MAX {
                    return None;
                }
                episode.waiting += 1;
                false
            }
        };
        if fresh && let Some(unsaid) = self.0.quiet.tell(&self.0.clock) {
            tracing::warn!(
                pending_records = self.records(),
                pending_bytes = self.0.bytes.load(Ordering::Relaxed),
                wait_ms = self.0.patience.as_millis() as u64,
                why,
                unsaid,
                "writers are slowed"
            );
        }
        self.0.slowed.fetch_add(1, Ordering::Relaxed);
        self.0.pressed.notify_waiters();
        Some(RoomWaiter(self))
    }

    fn refuse(&self, why: &str) -> Error {
        self.0.refused.fetch_add(1, Ordering::Relaxed);
        Error::new(Kind::NoSpace, format!("no room for new data: {why}"))
    }

    /// Returns the cause, as text.
    fn why(&self) -> String {
        let usage = self.0.blobs.usage();
        let human = |bytes| ByteSize(bytes).human();
        let limit = human(usage.limit);
        let unsaved = human(usage.unsaved_bytes);
        if self.0.records.load(Ordering::Relaxed) == 0 {
            let open = human(usage.staged_bytes.saturating_add(usage.pinned_bytes));
            let free = human(self.0.blobs.disk_free());
            return format!("open files take {open} of {limit}, and the disk has {free} free");
        }
        match &self.0.remote {
            Some(_) if self.is_down() => {
                format!("{unsaved} of {limit} are not yet remote, and the store is down")
            }
            _ => format!("{unsaved} of {limit} are not yet remote, and are being uploaded"),
        }
    }

    /// Returns whether and why writers are slowed, for people.
    pub fn slowed(&self) -> Option<Slowed> {
        let now = self.0.clock.mono();
        let (writers, since) = {
            let episode = self.0.episode.lock();
            let episode = episode.as_ref()?;
            if episode.waiting == 0 && now.saturating_sub(episode.last) > EPISODE_GAP {
                return None;
            }
            (episode.waiting as u64, now.saturating_sub(episode.began))
        };
        Some(Slowed { writers, since, why: self.why() })
    }

    /// Returns how many writers had to wait, and how many were refused.
    pub fn counts(&self) -> (u64, u64) {
        (self.0.slowed.load(Ordering::Relaxed), self.0.refused.load(Ordering::Relaxed))
    }

    /// Reports whether unsaved content should go to the store at once, without gathering more.
    pub(super) fn is_pressed(&self) -> bool {
        if self.0.episode.lock().as_ref().is_some_and(|episode| episode.waiting > 0) {
            return true;
        }
        let usage = self.0.blobs.usage();
        usage.unsaved_bytes > usage.limit / UNSAVED_PART
    }

    /// Returns when a writer begins to wait.
    pub(super) fn pressed(&self) -> impl Future<Output = ()> + '_ {
        self.0.pressed.notified()
    }

    /// Notes how much is not yet remote.
    pub(super) fn note_pending(&self, records: u64, bytes: u64) {
        self.0.records.store(records, Ordering::Relaxed);
        self.0.bytes.store(bytes, Ordering::Relaxed);
    }

    /// Counts the records that are not yet remote.
    pub(super) fn records(&self) -> u64 {
        self.0.records.load(Ordering::Relaxed)
    }

    /// Wakes waiting callers, because something has become remote or evictable.
    pub(super) fn note_progress(&self) {
        self.0.progress.fetch_add(1, Ordering::Relaxed);
        self.0.stalled.store(false, Ordering::Relaxed);
        self.0.moved.notify_waiters();
    }
}

/// A writer that waits.
struct RoomWaiter<'a>(&'a Room);

impl Drop for RoomWaiter<'_> {
    fn drop(&mut self) {
        let inner = &self.0.0;
        if let Some(episode) = inner.episode.lock().as_mut() {
            episode.waiting -= 1;
            episode.last = inner.clock.mono();
        }
    }
}

/// A caller that waits and goes before callers that begin a file.
struct AheadWaiter<'a>(&'a Room);

impl<'a> AheadWaiter<'a> {
    fn of(room: &'a Room) -> Self {
        room.0.ahead.fetch_add(1, Ordering::Relaxed);
        Self(room)
    }
}

impl Drop for AheadWaiter<'_> {
    fn drop(&mut self) {
        if self.0.0.ahead.fetch_sub(1, Ordering::Relaxed) == 1 {
            self.0.0.moved.notify_waiters();
        }
    }
}
