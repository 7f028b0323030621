//! Freshness: how old the knowledge about the remote may be.
//!
//! Owns the decision whether a list of the log is needed, the wait for it, and how long the kernel
//! may remember a name. Must never make a program wait for a store that is known not to answer.
//! Must never start two lists if one is enough. Must never vouch for names without a task that
//! revokes this in time.
//!
//! Keeps P10 freshness.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::{Notify, watch};

use crate::clock::{self, Clock};
use crate::remote::{Health, Remote};

/// How long answers are valid if there is no remote that could contradict them.
pub const FRESH_FOR_EVER: Duration = Duration::from_hours(24);
/// How long the log is polled after the last request of a program.
const ACTIVE_FOR: Duration = Duration::from_secs(10);
/// A failed list is not repeated for a waiting program within this time.
const FAILED_FOR: Duration = Duration::from_millis(500);
/// A person who asks what is known starts a list at most this often, shared with all others who
/// ask.
const ANEW_EVERY: Duration = Duration::from_millis(250);
/// Names are vouched for only if the freshness is at least this, so that lists come much more often
/// than they must.
const VOUCHED_FROM: Duration = Duration::from_millis(400);
/// The part of the window in which names are vouched for. The rest is for telling the kernel when
/// that ends.
pub(super) const VOUCHED_PART: f64 = 11.0 / 12.0;

/// Knows whether what this node knows is fresh enough, and waits until it is; cheap to clone.
#[derive(Clone, Debug)]
pub struct Freshness(Arc<FreshnessGate>);

#[derive(Debug)]
struct FreshnessGate {
    clock: Clock,
    /// How old a list may be; zero asks each time.
    limit: Duration,
    remote: Option<Remote>,
    state: Mutex<State>,
    /// Counts the lists that have ended.
    ended: watch::Sender<u64>,
    /// Wakes the follower.
    wake: Notify,
    /// When a program last made a request, in milliseconds of the monotonic clock.
    active_ms: AtomicU64,
    /// Whether the follower sleeps until a program makes a request.
    asleep: AtomicBool,
    /// Wakes the guard.
    vouched: Notify,
}

/// One list of the log.
#[derive(Debug, Clone, Copy)]
pub(super) struct List {
    number: u64,
    start: Duration,
}

#[derive(Debug, Default)]
struct State {
    begun: u64,
    running: Option<List>,
    /// The last list that was folded completely.
    good: Option<List>,
    /// The last list that was not folded completely.
    bad: Option<List>,
    /// A program waits for a list that has not begun yet.
    asked: bool,
    /// There is a guard that revokes the vouching in time.
    guarded: bool,
    /// The kernel may hold names that do not expire.
    vouching: bool,
}

impl Freshness {
    pub(super) fn new(clock: Clock, limit: Duration, remote: Option<Remote>) -> Self {
        let ended = watch::Sender::new(0);
        let (state, wake) = (Mutex::default(), Notify::new());
        let (active_ms, asleep) = (AtomicU64::new(0), AtomicBool::new(false));
        let vouched = Notify::new();
        Self(Arc::new(FreshnessGate {
            clock,
            limit,
            remote,
            state,
            ended,
            wake,
            active_ms,
            asleep,
            vouched,
        }))
    }

    /// Reports whether an answer may be given without asking the store: a list that began within
    /// the last `freshness` was folded. Always false if `freshness` is zero; always true without a
    /// remote.
    pub fn ready(&self) -> bool {
        if self.0.remote.is_none() {
            return true;
        }
        !self.left().is_zero()
    }

    /// Waits until the knowledge is fresh, for at most `limit`; returns whether it is.
    ///
    /// Joins a list in flight if it began within the window. Otherwise requests one, which all
    /// callers share. Returns at once if the store is known not to answer.
    pub async fn wait_fresh(&self, limit: Duration) -> bool {
        if self.0.remote.is_none() {
            return true;
        }
        self.note_activity();
        if self.is_down() {
            return self.ready();
        }
        self.wait_for_list(limit, self.0.limit).await
    }

    /// As [`Freshness::wait_fresh`], for a person who asks what is known: only a list that begins
    /// after the request counts, however old answers may be otherwise.
    pub async fn ask_anew(&self, limit: Duration) -> bool {
        if self.0.remote.is_none() {
            return true;
        }
        if self.is_down() {
            return false;
        }
        let (_, last, _) = self.lists();
        let next = last.map_or(Duration::ZERO, |begun| begun + ANEW_EVERY);
        let asked = async {
            clock::sleep(next.saturating_sub(self.0.clock.mono())).await;
            self.wait_for_list(limit, Duration::ZERO).await
        };
        clock::within(limit, asked).await.unwrap_or(false)
    }

    /// Waits for a list that is at most `old`, for at most `limit`; returns whether it came.
    async fn wait_for_list(&self, limit: Duration, old: Duration) -> bool {
        let now = self.0.clock.mono();
        let mut ended = self.0.ended.subscribe();
        let need = self.0.state.lock().begun + 1;
        let wait = async {
            loop {
                if let Some(fresh) = self.settle(now, need, old) {
                    return fresh;
                }
                if ended.changed().await.is_err() {
                    return false;
                }
            }
        };
        clock::within(limit, wait).await.unwrap_or(false)
    }

    /// Returns whether the wait that began at `since` is over, and its result. Requests a list if
    /// one is needed. A list may be `limit` old; zero asks each time.
    fn settle(&self, since: Duration, need: u64, limit: Duration) -> Option<bool> {
        let will_do =
            |list: &List| list.number >= need || (!limit.is_zero() && list.start + limit >= since);
        let mut state = self.0.state.lock();
        if state.good.as_ref().is_some_and(will_do) {
            return Some(true);
        }
        let failed = state
            .bad
            .as_ref()
            .is_some_and(|list| list.number >= need || list.start + FAILED_FOR.min(limit) > since);
        if failed && state.running.is_none() {
            return Some(false);
        }
        if !state.running.as_ref().is_some_and(will_do) && !state.asked {
            state.asked = true;
            self.0.wake.notify_one();
        }
        None
    }

    /// Returns how long an answer that is given now stays within the promised freshness.
    pub fn ttl(&self) -> Duration {
        if self.0.remote.is_none() { FRESH_FOR_EVER } else { self.left() }
    }

    /// Returns how long the kernel may remember a name that it receives now. While the log is
    /// polled, this is for ever: the kernel is notified when anything changes, and before the
    /// knowledge gets older than it may.
    pub fn name_ttl(&self) -> Duration {
        if self.0.remote.is_none() || self.is_vouching() { FRESH_FOR_EVER } else { self.left() }
    }

    fn is_vouching(&self) -> bool {
        let state = self.0.state.lock();
        state.vouching && self.vouched_until(&state) > self.0.clock.mono()
    }

    /// Returns until when the last good list vouches for names. The rest of its window is for
    /// revoking that.
    fn vouched_until(&self, state: &State) -> Duration {
        let good = state.good.filter(|_| self.0.limit >= VOUCHED_FROM);
        good.map_or(Duration::ZERO, |list| list.start + self.0.limit.mul_f64(VOUCHED_PART))
    }

    /// Calls `doubt` when names were vouched for and no longer are: no list came in time, because
    /// no program makes requests, the store does not answer, or the machine is busy. A node that
    /// does not run this vouches for nothing.
    pub(super) async fn guard(&self, doubt: impl Fn()) {
        let _guarding = Guarding::new(self, &doubt);
        loop {
            let until = {
                let state = self.0.state.lock();
                state.vouching.then(|| self.vouched_until(&state))
            };
            match until.map(|until| until.saturating_sub(self.0.clock.mono())) {
                None => self.0.vouched.notified().await,
                Some(Duration::ZERO) => self.end_vouching(&doubt),
                Some(left) => clock::sleep(left).await,
            }
        }
    }

    /// Stops vouching, unless another list has arrived.
    fn end_vouching(&self, doubt: &impl Fn()) {
        {
            let mut state = self.0.state.lock();
            if state.guarded && self.vouched_until(&state) > self.0.clock.mono() {
                return;
            }
            if !std::mem::take(&mut state.vouching) {
                return;
            }
        }
        // No answer vouches for anything after this, so the kernel forgets in time what it learns
        // from now on.
        doubt();
    }

    /// Notes that a program made a request: the log is polled for some time after it.
    pub fn note_activity(&self) {
        // In one order with `woken`: either this call sees that the follower sleeps, or `woken`
        // sees the activity.
        self.0.active_ms.store(self.now_ms(), Ordering::SeqCst);
        if self.0.asleep.load(Ordering::SeqCst) && self.0.asleep.swap(false, Ordering::SeqCst) {
            self.0.wake.notify_one();
        }
    }

    fn left(&self) -> Duration {
        let good = self.0.state.lock().good;
        let until = good.map_or(Duration::ZERO, |list| list.start + self.0.limit);
        until.saturating_sub(self.0.clock.mono())
    }

    /// Returns a time of the monotonic clock, never 0.
    fn now_ms(&self) -> u64 {
        self.0.clock.mono().as_millis() as u64 + 1
    }

    /// Reports whether the store is known to be unusable.
    pub fn is_down(&self) -> bool {
        self.0.remote.as_ref().is_some_and(|remote| remote.health() != Health::Up)
    }

    /// Reports whether a program made a request recently.
    pub(super) fn is_active(&self) -> bool {
        let last = self.0.active_ms.load(Ordering::SeqCst);
        last > 0 && self.now_ms().saturating_sub(last) < ACTIVE_FOR.as_millis() as u64
    }

    /// Returns how old a list may be.
    pub(super) fn limit(&self) -> Duration {
        self.0.limit
    }

    /// Begins a list. It answers all callers that wait for a list that has not begun.
    pub(super) fn begin(&self) -> List {
        let mut state = self.0.state.lock();
        state.begun += 1;
        state.asked = false;
        let list = List { number: state.begun, start: self.0.clock.mono() };
        state.running = Some(list);
        list
    }

    /// Notes that the list in flight is requested again: it shows what is in the log from now on.
    pub(super) fn begin_again(&self) {
        let now = self.0.clock.mono();
        if let Some(list) = &mut self.0.state.lock().running {
            list.start = now;
        }
    }

    /// Ends a list; `good` if everything that it showed was folded.
    pub(super) fn end(&self, list: List, good: bool) {
        {
            let mut state = self.0.state.lock();
            let list = state.running.take().filter(|one| one.number == list.number).unwrap_or(list);
            if good {
                state.good = Some(list);
                let now = self.0.clock.mono();
                if state.guarded && !state.vouching && self.vouched_until(&state) > now {
                    state.vouching = true;
                    self.0.vouched.notify_one();
                }
            } else {
                state.bad = Some(list);
            }
        }
        self.0.ended.send_modify(|count| *count += 1);
    }

    /// Returns when a program waits for a list, or after `limit`.
    pub(super) async fn asked(&self, limit: Duration) {
        let asked = async {
            while !self.0.state.lock().asked {
                self.0.wake.notified().await;
            }
        };
        clock::within(limit, asked).await;
    }

    /// Returns when the last good list began, when the last list of all began (both by the
    /// monotonic clock), and whether the last one that ended was bad.
    pub(super) fn lists(&self) -> (Option<Duration>, Option<Duration>, bool) {
        let State { good, bad, running, .. } = *self.0.state.lock();
        let last = [good, bad, running].into_iter().flatten().map(|list| list.start).max();
        let failed = bad.is_some_and(|bad| good.is_none_or(|good| good.number < bad.number));
        (good.map(|list| list.start), last, failed)
    }

    /// Returns when a program makes a request again, and whether it slept until then.
    pub(super) async fn woken(&self) -> bool {
        let mut slept = false;
        loop {
            self.0.asleep.store(true, Ordering::SeqCst);
            if self.is_active() || self.0.state.lock().asked {
                self.0.asleep.store(false, Ordering::SeqCst);
                return slept;
            }
            self.0.wake.notified().await;
            slept = true;
        }
    }
}

/// Registers a guard until it ends, however it ends.
struct Guarding<'a, D: Fn()> {
    freshness: &'a Freshness,
    doubt: &'a D,
}

impl<'a, D: Fn()> Guarding<'a, D> {
    fn new(freshness: &'a Freshness, doubt: &'a D) -> Self {
        freshness.0.state.lock().guarded = true;
        Self { freshness, doubt }
    }
}

impl<D: Fn()> Drop for Guarding<'_, D> {
    fn drop(&mut self) {
        self.freshness.0.state.lock().guarded = false;
        self.freshness.end_vouching(self.doubt);
    }
}
