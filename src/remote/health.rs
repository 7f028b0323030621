//! Whether the store answers, and which requests may still be made when it does not.
//!
//! Owns the gate in front of every request. Must never make a program wait for a store that is
//! known to be down, never keep background work from finding out that the store is back, and never
//! treat the failure of one object as a failure of the store.
//!
//! Keeps P8 never-in-the-way.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::{Mutex, MutexGuard};
use tokio::sync::Notify;

use crate::clock::Clock;
use crate::error::{Error, Kind, Result};

/// The first back-off for programs after a failure.
const BACKOFF_MIN: Duration = Duration::from_millis(500);
/// The longest back-off for programs.
const BACKOFF_MAX: Duration = Duration::from_secs(5);
/// At most one WARN in this time, however often the state changes.
const WARN_EVERY: Duration = Duration::from_mins(1);
/// A request that its caller dropped counts as unanswered if it took this long.
const GIVEN_UP_AFTER: Duration = Duration::from_secs(1);

/// Whether the store answers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Health {
    /// A request has succeeded lately.
    Up,
    /// It does not answer, or granted no request for a whole deadline, or is not the store that the node knows.
    Down {
        /// Since when, in milliseconds since the Unix epoch by our clock.
        since_ms: u64,
    },
}

/// What last kept the store from being used; kept after it came back.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Outage {
    /// What kind of trouble it was.
    pub kind: Kind,
    /// The cause in words, without credentials.
    pub why: String,
    /// When it last occurred, by the monotonic clock.
    pub at: Duration,
}

/// Whether a program waits for a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Lane {
    /// A program waits.
    Foreground,
    /// No program waits: uploads, polling, prefetch.
    Background,
}

/// Lets requests through or refuses them at once.
#[derive(Debug)]
pub(super) struct Gate {
    clock: Clock,
    label: String,
    /// How long requests may fail one by one, without a success in between, before they count as an outage.
    patience: Duration,
    state: Mutex<State>,
    /// Notified when the store answers again.
    recovered: Notify,
}

#[derive(Debug, Default)]
struct State {
    down: Option<Down>,
    /// The cause of the present outage, or else of the last one.
    last: Option<Outage>,
    /// When the last outage ended, by the monotonic clock; `None` before the first.
    ended_at: Option<Duration>,
    /// Counts the requests that succeeded.
    good: u64,
    /// When the first request failed after the last success.
    bad_since: Option<Duration>,
    /// The longest time without an answer since the store's objects were last checked.
    ended: Duration,
    last_warn: Option<Duration>,
    unsaid: u64,
}

impl State {
    /// Returns how long no request has succeeded; zero after a success.
    fn bad_for(&self, now: Duration) -> Duration {
        let down = self.down.as_ref().map(|down| down.since);
        let since = down.into_iter().chain(self.bad_since).min();
        since.map_or(Duration::ZERO, |since| now.saturating_sub(since))
    }
}

#[derive(Debug)]
struct Down {
    since_ms: u64,
    /// The store does not answer, so programs are refused at once. If false, the store answers, and
    /// any request may be the first to succeed again.
    closed: bool,
    /// As `since_ms`, by the monotonic clock.
    since: Duration,
    /// What the last failure was.
    why: String,
    backoff: Duration,
    next_try: Duration,
    probing: bool,
}

/// A request that the gate let through. The outcome must be reported when it ends.
#[derive(Debug)]
pub(super) struct RequestTicket {
    gate: Arc<Gate>,
    /// When the request was sent, and how many had succeeded until then; `None` while it waits for its turn.
    started: Option<(Duration, u64)>,
    probe: bool,
    open: bool,
}

impl Gate {
    /// Makes the gate of a store that is assumed to answer. Requests that fail one by one, without
    /// a success in between, count as an outage after `patience`.
    pub(super) fn new(clock: Clock, label: String, patience: Duration) -> Self {
        Self { clock, label, patience, state: Mutex::default(), recovered: Notify::new() }
    }

    /// Returns the notification that the store answers again.
    pub(super) fn recovered(&self) -> &Notify {
        &self.recovered
    }

    pub(super) fn health(&self) -> Health {
        match &self.state.lock().down {
            Some(down) => Health::Down { since_ms: down.since_ms },
            None => Health::Up,
        }
    }

    /// Returns for how long no request has succeeded, now or in an outage since [`Gate::looked`].
    pub(super) fn down_for(&self) -> Duration {
        let state = self.state.lock();
        state.bad_for(self.clock.mono()).max(state.ended)
    }

    /// Records that the store's objects were checked.
    pub(super) fn looked(&self) {
        self.state.lock().ended = Duration::ZERO;
    }

    /// Returns why the store counts as down; `None` if it does not.
    pub(super) fn why(&self) -> Option<String> {
        self.state.lock().down.as_ref().map(|down| down.why.clone())
    }

    /// Returns the last cause of an outage, which may be over.
    pub(super) fn last(&self) -> Option<Outage> {
        self.state.lock().last.clone()
    }

    /// Returns when the last outage ended, by the monotonic clock; `None` before the first.
    pub(super) fn ended_at(&self) -> Option<Duration> {
        self.state.lock().ended_at
    }

    /// Records a failure that is an outage for every caller although the store answers.
    pub(super) fn note_unusable(&self, kind: Kind, why: &str) {
        let at = self.clock.mono();
        self.state.lock().last = Some(Outage { kind, why: why.to_owned(), at });
    }

    /// Records that the store can be used again, after an outage that no request had shown.
    pub(super) fn came_back(&self) {
        self.state.lock().ended_at = Some(self.clock.mono());
        self.recovered.notify_waiters();
    }

    /// Lets a request through, or says at once that the store is down.
    pub(super) fn enter(self: &Arc<Self>, lane: Lane) -> Result<RequestTicket> {
        let now = self.clock.mono();
        let mut probe = false;
        if lane == Lane::Foreground
            && let Some(down) = self.state.lock().down.as_mut().filter(|down| down.closed)
        {
            if down.probing || now < down.next_try {
                return Err(Error::new(
                    Kind::Unavailable,
                    format!("{} does not answer; it is asked again soon", self.label),
                ));
            }
            down.probing = true;
            probe = true;
        }
        Ok(RequestTicket { gate: self.clone(), started: None, probe, open: true })
    }

    fn succeeded(&self) {
        let down = {
            let mut state = self.state.lock();
            state.good += 1;
            // A request sent before an outage may end well after it. Its success says nothing about
            // what the store holds now.
            state.ended = state.bad_for(self.clock.mono()).max(state.ended);
            state.bad_since = None;
            let down = state.down.take();
            if down.is_some() {
                state.ended_at = Some(self.clock.mono());
            }
            down
        };
        let Some(down) = down else { return };
        self.recovered.notify_waiters();
        let down_ms = self.clock.wall_ms().saturating_sub(down.since_ms);
        tracing::info!(remote = %self.label, down_ms, "remote answers again");
    }

    /// Records a failure that concerns the whole store, unless another request has succeeded since
    /// the failed one was sent.
    fn failed(&self, started: Option<(Duration, u64)>, kind: Kind, why: &str) {
        let state = self.state.lock();
        if started.is_none_or(|(_, good)| good == state.good) {
            self.note_down(state, true, kind, why);
        }
    }

    /// Records a failure that concerns only what was requested. It concerns the whole store if no
    /// request has succeeded for a whole deadline, or ever. Programs are then kept away if the
    /// store does not even answer.
    fn refused(&self, started: Option<(Duration, u64)>, kind: Kind, why: &str, answered: bool) {
        let mut state = self.state.lock();
        let now = self.clock.mono();
        if started.is_some_and(|(_, good)| good != state.good) {
            return;
        }
        let began = started.map_or(now, |(began, _)| began);
        let since = *state.bad_since.get_or_insert(began);
        let never = state.good == 0;
        if never || now.saturating_sub(since) >= self.patience {
            self.note_down(state, never || !answered, kind, why);
        }
    }

    fn note_down(&self, mut state: MutexGuard<'_, State>, closed: bool, kind: Kind, why: &str) {
        let now = self.clock.mono();
        state.last = Some(Outage { kind, why: why.to_owned(), at: now });
        if let Some(down) = &mut state.down {
            down.closed |= closed;
            why.clone_into(&mut down.why);
            // Several requests of one outage fail together; only one of them lengthens the back-off.
            if now >= down.next_try {
                down.backoff = (down.backoff * 2).min(BACKOFF_MAX);
                down.next_try = now + down.backoff;
            }
            return;
        }
        state.down = Some(Down {
            since_ms: self.clock.wall_ms(),
            closed,
            since: now,
            why: why.to_owned(),
            backoff: BACKOFF_MIN,
            next_try: now + BACKOFF_MIN,
            probing: false,
        });
        if state.last_warn.is_some_and(|last| now < last + WARN_EVERY) {
            state.unsaid += 1;
            drop(state);
            tracing::debug!(remote = %self.label, why, "remote does not answer");
            return;
        }
        let unsaid = std::mem::take(&mut state.unsaid);
        state.last_warn = Some(now);
        drop(state);
        tracing::warn!(remote = %self.label, why, unsaid, "remote does not answer");
    }
}

impl RequestTicket {
    /// Records that the request is sent now.
    pub(super) fn begin(&mut self) {
        self.started = Some((self.gate.clock.mono(), self.gate.state.lock().good));
    }

    /// Ends the request as a success: the store answered.
    pub(super) fn answered(mut self) {
        self.open = false;
        self.gate.succeeded();
    }

    /// Ends the request without an answer: the store itself has failed.
    pub(super) fn unanswered(mut self, kind: Kind, why: &str) {
        self.open = false;
        self.gate.failed(self.started, kind, why);
        self.end_probe();
    }

    /// Ends the request with a failure that concerns only what it asked for. `answered` is set if
    /// the store itself reported it.
    pub(super) fn refused(mut self, kind: Kind, why: &str, answered: bool) {
        self.open = false;
        self.gate.refused(self.started, kind, why, answered);
        self.end_probe();
    }

    /// Ends the request with an outcome that does not concern other requests.
    pub(super) fn undecided(mut self) {
        self.open = false;
        self.end_probe();
    }

    fn end_probe(&self) {
        if self.probe
            && let Some(down) = &mut self.gate.state.lock().down
        {
            down.probing = false;
        }
    }
}

impl Drop for RequestTicket {
    fn drop(&mut self) {
        if !self.open {
            return;
        }
        // The caller's deadline is shorter than ours. If this did not count, a store that hangs
        // would cost every lookup the caller's whole deadline.
        let now = self.gate.clock.mono();
        if self.started.is_some_and(|(at, _)| now.saturating_sub(at) >= GIVEN_UP_AFTER) {
            self.gate.failed(self.started, Kind::TimedOut, "no answer within the caller's time");
        }
        self.end_probe();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn gate() -> (Clock, Arc<Gate>) {
        let clock = Clock::manual(1_000_000);
        (clock.clone(), Arc::new(Gate::new(clock, "test".to_owned(), PATIENCE)))
    }

    const PATIENCE: Duration = Duration::from_secs(5);

    fn begun(gate: &Arc<Gate>) -> RequestTicket {
        let mut ticket = gate.enter(Lane::Foreground).expect("admitted");
        ticket.begin();
        ticket
    }

    #[test]
    fn refusals_are_no_outage_while_other_requests_succeed() {
        let (clock, gate) = gate();
        begun(&gate).answered();
        for _ in 0..100 {
            begun(&gate).refused(Kind::Unavailable, "503", true);
            clock.advance(Duration::from_secs(1));
            begun(&gate).answered();
        }
        assert_eq!(gate.health(), Health::Up);
        let slow = begun(&gate);
        begun(&gate).answered();
        slow.unanswered(Kind::Unavailable, "no answer");
        assert_eq!(gate.health(), Health::Up, "other requests were answered meanwhile");
    }

    /// Requests sent before an outage say nothing about what the store holds after it.
    #[test]
    fn an_outage_counts_until_the_store_is_checked() {
        let (clock, gate) = gate();
        begun(&gate).answered();
        let early = begun(&gate);
        for _ in 0..10 {
            begun(&gate).refused(Kind::Unavailable, "503", true);
            clock.advance(Duration::from_secs(1));
        }
        early.answered();
        assert_eq!(gate.health(), Health::Up);
        assert_eq!(gate.down_for(), Duration::from_secs(10));
        begun(&gate).answered();
        assert_eq!(gate.down_for(), Duration::from_secs(10));
        gate.looked();
        assert_eq!(gate.down_for(), Duration::ZERO);
    }

    #[test]
    fn no_success_within_a_deadline_is_an_outage_with_the_gate_open() {
        let (clock, gate) = gate();
        begun(&gate).answered();
        for _ in 0..5 {
            begun(&gate).refused(Kind::Unavailable, "503", true);
            assert_eq!(gate.health(), Health::Up);
            clock.advance(Duration::from_secs(1));
        }
        begun(&gate).refused(Kind::Unavailable, "503", true);
        assert_ne!(gate.health(), Health::Up);
        let (one, other) = (begun(&gate), begun(&gate));
        one.refused(Kind::Unavailable, "503", true);
        other.answered();
        assert_eq!(gate.health(), Health::Up);
    }

    #[test]
    fn the_reason_of_an_outage_is_kept_after_its_end() {
        let (clock, gate) = gate();
        begun(&gate).answered();
        begun(&gate).refused(Kind::Denied, "403", true);
        assert_eq!((gate.last(), gate.ended_at()), (None, None), "one refusal is no outage");
        begun(&gate).unanswered(Kind::TimedOut, "no answer");
        let first = clock.mono();
        clock.advance(BACKOFF_MAX);
        begun(&gate).unanswered(Kind::Unavailable, "refused");
        clock.advance(BACKOFF_MAX);
        begun(&gate).answered();
        let last = gate.last().expect("the last outage is kept");
        assert_eq!((last.kind, last.why.as_str()), (Kind::Unavailable, "refused"));
        assert_eq!((last.at, gate.ended_at()), (first + BACKOFF_MAX, Some(clock.mono())));
        gate.note_unusable(Kind::Unavailable, "another store");
        gate.came_back();
        assert_eq!(gate.last().map(|last| last.why).as_deref(), Some("another store"));
    }

    #[test]
    fn a_dead_store_gets_single_probes_with_back_off() {
        let (clock, gate) = gate();
        gate.enter(Lane::Foreground).expect("up").unanswered(Kind::Unavailable, "timeout");
        assert_eq!(gate.health(), Health::Down { since_ms: 1_000_000 });
        let mut waits = Vec::new();
        for _ in 0..6 {
            let mut waited = 0;
            let probe = loop {
                match gate.enter(Lane::Foreground) {
                    Ok(ticket) => break ticket,
                    Err(error) => assert_eq!(error.kind(), Kind::Unavailable),
                }
                clock.advance(Duration::from_millis(100));
                waited += 100;
            };
            assert!(gate.enter(Lane::Foreground).is_err(), "a second probe beside the first");
            assert!(gate.enter(Lane::Background).is_ok());
            probe.unanswered(Kind::Unavailable, "timeout");
            waits.push(waited);
        }
        assert_eq!(waits, [500, 1000, 2000, 4000, 5000, 5000]);
        clock.advance(BACKOFF_MAX);
        gate.enter(Lane::Foreground).expect("a probe").answered();
        assert_eq!(gate.health(), Health::Up);
        let both = (gate.enter(Lane::Foreground), gate.enter(Lane::Foreground));
        assert!(both.0.is_ok() && both.1.is_ok());
    }

    #[test]
    fn background_work_finds_out_that_the_store_is_back() {
        let (_clock, gate) = gate();
        gate.enter(Lane::Background).expect("up").unanswered(Kind::Unavailable, "refused");
        gate.enter(Lane::Background).expect("admitted").answered();
        assert_eq!(gate.health(), Health::Up);
    }

    #[test]
    fn a_probe_that_is_dropped_frees_its_place() {
        let (clock, gate) = gate();
        gate.enter(Lane::Foreground).expect("up").unanswered(Kind::Unavailable, "refused");
        clock.advance(BACKOFF_MIN);
        drop(gate.enter(Lane::Foreground).expect("a probe"));
        gate.enter(Lane::Foreground).expect("the next probe").answered();
    }

    #[test]
    fn a_request_given_up_counts_for_later_ones() {
        let (clock, gate) = gate();
        let waiting = gate.enter(Lane::Foreground).expect("up");
        clock.advance(GIVEN_UP_AFTER);
        drop(waiting);
        assert_eq!(gate.health(), Health::Up, "our own queue is not the store's fault");
        let mut ticket = gate.enter(Lane::Foreground).expect("up");
        ticket.begin();
        clock.advance(Duration::from_millis(999));
        drop(ticket);
        assert_eq!(gate.health(), Health::Up);
        let mut ticket = gate.enter(Lane::Foreground).expect("up");
        ticket.begin();
        clock.advance(GIVEN_UP_AFTER);
        drop(ticket);
        assert!(gate.enter(Lane::Foreground).is_err());
    }

    /// Collects the lines of a subscriber.
    #[derive(Clone, Default)]
    struct Lines(Arc<Mutex<Vec<u8>>>);

    impl std::io::Write for Lines {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            self.0.lock().extend_from_slice(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn an_outage_is_said_once_and_flapping_once_a_minute() {
        let (clock, gate) = gate();
        let lines = Lines::default();
        let writer = lines.clone();
        let subscriber =
            tracing_subscriber::fmt().with_writer(move || writer.clone()).with_ansi(false).finish();
        tracing::subscriber::with_default(subscriber, || {
            for _ in 0..5 {
                for _ in 0..10 {
                    gate.enter(Lane::Background)
                        .expect("admitted")
                        .unanswered(Kind::Unavailable, "refused");
                }
                gate.enter(Lane::Background).expect("admitted").answered();
            }
            clock.advance(WARN_EVERY);
            gate.enter(Lane::Background)
                .expect("admitted")
                .unanswered(Kind::Unavailable, "refused");
        });
        let text = String::from_utf8(lines.0.lock().clone()).expect("text");
        assert_eq!(text.matches("WARN").count(), 2, "{text}");
        assert!(text.contains("unsaid=4"), "{text}");
    }
}
