//! Reading ahead: contents that were stored together are fetched together.
//!
//! A program that waits for one parcel will probably request the next ones, so these are fetched
//! while it works on the first. How many depends on the last guesses: twice as many if programs
//! continue in the same order, half as many if they do not.
//!
//! Owns fetches that no program has requested, within limits in number and bytes. Must never evict.
//! Must never take the part of the tier that is left to writers. Must never send requests to a
//! store that throttles or is down. If a program wants the same object, its request in flight
//! continues for that program.

use std::collections::VecDeque;
use std::num::NonZeroUsize;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use futures::future::BoxFuture;
use lru::LruCache;
use parking_lot::Mutex;

use super::{FLIGHTS_MAX, Inner, WHOLE_PACK_BYTES};
use crate::digest::Digest;
use crate::error::{Error, Kind, Result};
use crate::remote::Health;
use crate::sync::parcels::{Order, Parcel};
use crate::sync::unpack::For;
use crate::task;

/// The most parcels that are fetched ahead at the same time.
const AT_ONCE: usize = 8;
/// How many parcels are fetched after one that a program waits for: at first, and at most.
const WINDOW_FIRST: usize = 6;
const WINDOW_MAX: usize = 16;
/// The most bytes of contents that wait to be fetched ahead.
const QUEUED_BYTES_MAX: u64 = 128 << 20;
/// How far back in the order a parcel may be so that the program still counts as following the
/// order: parcels of several nodes are interleaved.
const NEAR: usize = 4;
/// The most parcels that are remembered as fetched.
const KNOWN_MAX: NonZeroUsize = NonZeroUsize::new(4096).expect("it is not 0");
/// An order older than this is built again.
const ORDER_AGE_MAX: Duration = Duration::from_secs(30);
/// An order that lacks a parcel is built again if it is older than this, and older than this many
/// times the time that building it took.
const ORDER_AGE_MIN: Duration = Duration::from_secs(2);
const ORDER_COST: u32 = 50;
/// How long nothing is fetched ahead after a failed request.
const REST: Duration = Duration::from_secs(10);
/// How long after a fetch ahead the programs' use of contents is watched.
const WATCHED_FOR: Duration = Duration::from_secs(10);

/// The fetches ahead.
#[derive(Debug, Default)]
pub(super) struct Ahead {
    state: Mutex<State>,
    /// Until this monotonic time in milliseconds, programs may begin to use what was fetched ahead.
    watched_until_ms: AtomicU64,
}

#[derive(Debug)]
struct State {
    /// The order, when it was built, and how long it is used even if it lacks a parcel.
    order: Option<(Arc<Order>, Duration, Duration)>,
    window: usize,
    known: LruCache<Parcel, ParcelMemory>,
    /// Parcels that programs have requested and that are not yet planned for, and whether a program has
    /// gone on in that parcel.
    asked: VecDeque<(Parcel, bool)>,
    queue: VecDeque<(Parcel, u64)>,
    queued_bytes: u64,
    /// A task is planning.
    planning: bool,
    /// Fetches in flight.
    running: usize,
    rests_until: Duration,
}

/// What is remembered of a parcel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ParcelMemory {
    /// It is fetched ahead, or was.
    Ahead,
    /// A program has requested it, because of this content.
    Asked(Digest),
    /// Programs use more of its contents.
    Read,
}

impl Default for State {
    fn default() -> Self {
        Self {
            order: None,
            window: WINDOW_FIRST,
            known: LruCache::new(KNOWN_MAX),
            asked: VecDeque::new(),
            queue: VecDeque::new(),
            queued_bytes: 0,
            planning: false,
            running: 0,
            rests_until: Duration::ZERO,
        }
    }
}

impl State {
    /// Notes that a parcel is to be planned for; returns whether a planner must be started.
    fn ask(&mut self, parcel: &Parcel, memory: ParcelMemory) -> bool {
        self.known.put(parcel.clone(), memory);
        if self.asked.len() >= WINDOW_MAX {
            return false;
        }
        self.asked.push_back((parcel.clone(), memory == ParcelMemory::Read));
        !std::mem::replace(&mut self.planning, true)
    }

    /// Queues the parcels that follow one in the order. `is_read` says that a program goes on in it.
    fn follow(&mut self, parcel: &Parcel, order: &Order, is_read: bool) {
        let Some(place) = order.place(parcel) else { return };
        let near = order.from(place.saturating_sub(NEAR));
        let mut near = near.iter().take(place.min(NEAR));
        let goes_on = is_read || near.any(|(one, _)| self.known.contains(one));
        self.window = if goes_on {
            (self.window * 2).clamp(1, WINDOW_MAX)
        } else if self.known.len() > 1 {
            self.window / 2
        } else {
            self.window
        };
        let lacking = order.from(place + 1).iter().filter(|(_, bytes)| *bytes > 0);
        for (next, bytes) in lacking.take(self.window) {
            if self.queued_bytes.saturating_add(*bytes) > QUEUED_BYTES_MAX {
                return;
            }
            if !self.known.contains(next) {
                self.known.put(next.clone(), ParcelMemory::Ahead);
                self.queue.push_back((next.clone(), *bytes));
                self.queued_bytes += bytes;
            }
        }
    }

    /// Takes the next parcel, if one more may be fetched.
    fn take(&mut self) -> Option<(Parcel, u64)> {
        if self.running >= AT_ONCE {
            return None;
        }
        while let Some((parcel, bytes)) = self.queue.pop_front() {
            self.queued_bytes -= bytes;
            // If a program was faster, it has fetched the parcel itself.
            if self.known.peek(&parcel) == Some(&ParcelMemory::Ahead) {
                self.running += 1;
                return Some((parcel, bytes));
            }
        }
        None
    }

    fn rest(&mut self, until: Duration) {
        self.queue.clear();
        (self.queued_bytes, self.rests_until) = (0, until);
    }
}

impl Inner {
    /// Notes that a program waits for a content of a parcel. Returns at once.
    pub(super) fn note_asked(self: &Arc<Self>, parcel: &Parcel, digest: Digest) {
        if !self.goes_on {
            return;
        }
        let begin = {
            let mut state = self.ahead.state.lock();
            let is_guess =
                state.known.get(parcel).is_none_or(|memory| *memory == ParcelMemory::Ahead);
            is_guess && state.ask(parcel, ParcelMemory::Asked(digest))
        };
        self.begin_planning(begin);
    }

    /// Notes that a program uses a content that is here. If its parcel was fetched ahead, or because
    /// of another content in it, the program goes on as was guessed, and more is fetched: otherwise
    /// the next request would come only when the program waits again. Returns at once.
    pub(super) fn note_used(self: &Arc<Self>, digest: Digest, size: u64) {
        let now_ms = self.ledger.clock().mono().as_millis() as u64;
        if now_ms >= self.ahead.watched_until_ms.load(Ordering::Relaxed) {
            return;
        }
        let location = self.ledger.location(&digest);
        let parcel = location.and_then(|location| Parcel::of(&location.site, digest, size));
        let Some(parcel) = parcel else { return };
        let begin = {
            let mut state = self.ahead.state.lock();
            match state.known.get(&parcel) {
                Some(ParcelMemory::Ahead) => state.ask(&parcel, ParcelMemory::Asked(digest)),
                Some(ParcelMemory::Asked(first)) if *first != digest => {
                    state.ask(&parcel, ParcelMemory::Read)
                }
                _ => false,
            }
        };
        self.begin_planning(begin);
    }

    fn begin_planning(self: &Arc<Self>, begin: bool) {
        if begin {
            let inner = Arc::clone(self);
            drop(task::spawn(&self.runtime, "ahead", async move { inner.plan().await }));
        }
    }

    /// Plans what to fetch after the parcels that programs have requested.
    async fn plan(self: Arc<Self>) {
        loop {
            let asked = {
                let mut state = self.ahead.state.lock();
                let asked = state.asked.pop_front();
                state.planning = asked.is_some();
                asked
            };
            let Some((parcel, is_read)) = asked else { return };
            if !self.may_go() {
                continue;
            }
            let order = self.order(&parcel).await;
            self.ahead.state.lock().follow(&parcel, &order, is_read);
            self.go();
        }
    }

    /// Returns the order; builds it again if it is old.
    async fn order(self: &Arc<Self>, parcel: &Parcel) -> Arc<Order> {
        let now = self.ledger.clock().mono();
        let known = self.ahead.state.lock().order.clone();
        if let Some((order, made, serves)) = known {
            let age = now.saturating_sub(made);
            let has = order.place(parcel).is_some();
            if age < serves || (has && age < ORDER_AGE_MAX) {
                return order;
            }
        }
        let ledger = self.ledger.clone();
        let order = Arc::new(task::blocking(move || Order::of(&ledger)).await);
        let made = self.ledger.clock().mono();
        let serves = ORDER_AGE_MIN.max(made.saturating_sub(now) * ORDER_COST);
        self.ahead.state.lock().order = Some((Arc::clone(&order), made, serves));
        order
    }

    /// Begins as many fetches as allowed.
    fn go(self: &Arc<Self>) {
        loop {
            let Some((parcel, bytes)) = self.ahead.state.lock().take() else { return };
            let inner = Arc::clone(self);
            self.watch();
            let work = async move {
                let went = inner.fetch_ahead(parcel, bytes).await;
                inner.watch();
                {
                    let mut state = inner.ahead.state.lock();
                    state.running -= 1;
                    if went.is_err() {
                        state.rest(inner.ledger.clock().mono() + REST);
                    }
                }
                inner.go();
            };
            drop(task::spawn(&self.runtime, "ahead", work));
        }
    }

    /// Watches what programs use for some time.
    fn watch(&self) {
        let until = self.ledger.clock().mono() + WATCHED_FOR;
        self.ahead.watched_until_ms.store(until.as_millis() as u64, Ordering::Relaxed);
    }

    async fn fetch_ahead(self: &Arc<Self>, parcel: Parcel, bytes: u64) -> Result<()> {
        if !self.may_go()
            || self.places.available_permits() == 0
            || !self.ledger.blobs().has_room_to_spare(bytes)
        {
            return Err(Error::new(Kind::Busy, "nothing is fetched ahead now"));
        }
        self.bring(parcel, For::Later).await
    }

    /// Reports whether the store can take requests for which no program waits.
    pub(super) fn may_go(&self) -> bool {
        let rests = self.ledger.clock().mono() < self.ahead.state.lock().rests_until;
        !rests
            && self.remote.as_ref().is_some_and(|remote| {
                remote.unfit().is_none()
                    && remote.health() == Health::Up
                    && !remote.throttling().now
            })
    }

    /// Notes that a parcel is fetched for no program; returns false if it was fetched before.
    pub(super) fn note_begun(&self, parcel: &Parcel) -> bool {
        let mut state = self.ahead.state.lock();
        if state.known.contains(parcel) {
            return false;
        }
        state.known.put(parcel.clone(), ParcelMemory::Ahead);
        true
    }

    /// Reports whether programs use all places for requests.
    pub(super) fn is_crowded(&self) -> bool {
        self.places.available_permits() <= AT_ONCE
    }

    /// Makes the contents of a parcel local, as far as there is room. Evicts nothing.
    ///
    /// `Closed` if that failed for one content, for any reason.
    pub(super) async fn bring(self: &Arc<Self>, parcel: Parcel, whom: For) -> Result<()> {
        let inner = Arc::clone(self);
        let progress = crate::remote::Progress::default();
        match parcel {
            Parcel::Pack(name) => {
                if self.ledger.pack_end(&name) > WHOLE_PACK_BYTES || self.troubled.knows(&name) {
                    return Ok(());
                }
                let key = Arc::clone(&name);
                let work = move |progress| -> BoxFuture<'static, Result<()>> {
                    Box::pin(async move { inner.fetch_pack(&name, whom, &progress).await })
                };
                self.packs.join(&self.runtime, key, FLIGHTS_MAX, &progress, work).await
            }
            Parcel::Object(digest, size) => {
                let work = move |progress| -> BoxFuture<'static, Result<()>> {
                    Box::pin(async move {
                        if inner.ledger.blobs().contains(&digest) {
                            return Ok(());
                        }
                        let remote = inner.telling(&progress)?;
                        let fetched = inner.fetch_object(&remote, digest, size, whom).await;
                        // A program that waits for the same content then does everything itself.
                        let given_up = |e| Error::with(Kind::Closed, "no program waited for it", e);
                        fetched.map_err(given_up)
                    })
                };
                self.blobs.join(&self.runtime, digest, FLIGHTS_MAX, &progress, work).await
            }
        }
    }
}
