//! The store's time: what its clock shows, whatever ours does.
//!
//! Owns the difference between the clocks. All ages are in the store's time. A node whose clock is
//! hours off, or is set while it runs, must never misjudge the age of an entry.

use std::time::Duration;

use parking_lot::Mutex;

use crate::clock::Clock;

/// Smaller differences of the clocks are noise: stores report time in whole seconds.
const NOISE_MS: i64 = 2000;
/// The date header of an answer may come from a proxy with another clock. Differences below this are ignored.
const DATE_NOISE_MS: u64 = 60_000;
/// How far date headers may move our time in one run, all together.
const DATES_MOVE_MAX_MS: u64 = 24 * 3_600_000;
/// How long a learned time is used before it is learned again.
const LEARN_EVERY: Duration = Duration::from_hours(1);

/// The store's time, as far as it is known.
#[derive(Debug)]
pub(super) struct StoreTime {
    clock: Clock,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// How far the store's clock was ahead of our wall clock when an earlier run learned it.
    ahead_ms: i64,
    /// A time of the store, and the moment of it by our monotonic clock, which cannot be set.
    base: Option<(u64, Duration)>,
    /// When the time was last learned from a write.
    learned: Option<Duration>,
    /// How much later a date header has shown the time to be since then; 0 if there is nothing to check.
    doubt_ms: u64,
    /// The `doubt_ms` that a later check refuted.
    dismissed_ms: u64,
    /// How far date headers have moved the time.
    dated_ms: u64,
    /// The latest time that the store has shown, and the moment of it.
    shown: Option<(u64, Duration)>,
}

impl State {
    /// Notes that the store has shown a time; returns the latest one that it has shown, as of now.
    fn show(&mut self, ms: u64, mono: Duration) -> u64 {
        let known = self.shown.map(|(ms, at)| after(ms, mono.saturating_sub(at)));
        let latest = known.map_or(ms, |known| known.max(ms));
        self.shown = Some((latest, mono));
        latest
    }
}

fn after(ms: u64, time: Duration) -> u64 {
    ms.saturating_add(time.as_millis() as u64)
}

impl StoreTime {
    pub(super) fn new(clock: Clock) -> Self {
        Self { clock, state: Mutex::default() }
    }

    /// Returns the store's time in milliseconds since the Unix epoch.
    pub(super) fn now_ms(&self) -> u64 {
        self.at(&self.state.lock(), self.clock.mono())
    }

    fn at(&self, state: &State, mono: Duration) -> u64 {
        match state.base {
            Some((ms, at)) => after(ms, mono.saturating_sub(at)),
            None => self.clock.wall_ms().saturating_add_signed(state.ahead_ms),
        }
    }

    /// Returns how far the store's clock is ahead of our wall clock.
    pub(super) fn ahead_ms(&self) -> i64 {
        (self.now_ms() as i64).saturating_sub(self.clock.wall_ms() as i64)
    }

    /// Sets what an earlier run learned, unless this run has learned better.
    pub(super) fn assume(&self, ahead_ms: i64) {
        self.state.lock().ahead_ms = ahead_ms;
    }

    /// Trusts our clock.
    #[cfg(any(test, feature = "test-util"))]
    pub(super) fn trust_clock(&self) {
        let mono = self.clock.mono();
        let mut state = self.state.lock();
        (state.base, state.learned) = (Some((self.clock.wall_ms(), mono)), Some(mono));
    }

    /// Reports whether this run has learned the time, and no date header has contradicted it since.
    pub(super) fn is_learned(&self) -> bool {
        let state = self.state.lock();
        state.learned.is_some() && state.doubt_ms == 0
    }

    /// Reports whether the time should be learned again.
    pub(super) fn is_old(&self) -> bool {
        let now = self.clock.mono();
        let state = self.state.lock();
        state.doubt_ms > 0 || state.learned.is_none_or(|at| now.saturating_sub(at) >= LEARN_EVERY)
    }

    /// Learns the time from a write that the store dates at `stored_ms`, sent at `before` and acknowledged
    /// by `after`, by the monotonic clock. Returns how far our estimate was off; 0 if that may be noise.
    pub(super) fn learn(&self, before: Duration, after: Duration, stored_ms: i64) -> i64 {
        let mono = self.clock.mono();
        let mut state = self.state.lock();
        let now_ms = self.at(&state, mono);
        let took_ms = after.saturating_sub(before).as_millis() as i64;
        let since_ms = mono.saturating_sub(before).as_millis() as i64 - took_ms / 2;
        let off = stored_ms - (now_ms as i64 - since_ms);
        let off = if off.abs() < NOISE_MS + took_ms / 2 { 0 } else { off };
        state.base = Some((now_ms.saturating_add_signed(off), mono));
        state.learned = Some(mono);
        let doubt_ms = std::mem::take(&mut state.doubt_ms);
        if doubt_ms > 0 {
            let was_wrong = off < (doubt_ms / 2) as i64;
            state.dismissed_ms = if was_wrong { doubt_ms } else { 0 };
        }
        off
    }

    /// Learns that the store's clock has shown `stored_ms`, which is a lower bound. A node that
    /// writes nothing learns only this. A node that has learned better needs it too: a virtual
    /// machine may be paused without its monotonic clock advancing.
    pub(super) fn note_taken(&self, stored_ms: u64) {
        let mono = self.clock.mono();
        let mut state = self.state.lock();
        let now_ms = self.at(&state, mono);
        state.show(stored_ms, mono);
        if stored_ms > now_ms.saturating_add_signed(NOISE_MS) {
            state.base = Some((stored_ms, mono));
            // This much of the doubt is settled.
            state.doubt_ms = state.doubt_ms.saturating_sub(stored_ms.saturating_sub(now_ms));
        }
    }

    /// Takes the date header of an answer into account. A node that has learned the time learns it
    /// again before its next write. A node that writes nothing has no better source except the
    /// times of stored objects. If its clock is ahead of all that the store has shown, it goes by
    /// the latest of that: an answer from a cache may have an early date.
    pub(super) fn note_date(&self, date_ms: u64) {
        let mono = self.clock.mono();
        let mut state = self.state.lock();
        let now_ms = self.at(&state, mono);
        if date_ms <= now_ms.saturating_add(DATE_NOISE_MS) {
            let shown_ms = state.show(date_ms, mono);
            if state.learned.is_none() && shown_ms.saturating_add(DATE_NOISE_MS) < now_ms {
                state.base = Some((shown_ms, mono));
            }
            return;
        }
        let later_ms = date_ms - now_ms;
        if state.learned.is_some() {
            // A proxy with a wrong clock must not cause a check each time.
            if later_ms > state.dismissed_ms.saturating_add(DATE_NOISE_MS) {
                state.doubt_ms = later_ms;
            }
            return;
        }
        let move_ms = later_ms.min(DATES_MOVE_MAX_MS - state.dated_ms);
        state.dated_ms += move_ms;
        state.base = Some((now_ms + move_ms, mono));
        state.show(now_ms + move_ms, mono);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ms(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    const DAY_MS: u64 = 24 * 3_600_000;

    #[test]
    fn the_stores_rounding_is_not_taken_for_a_difference() {
        for (before, after, stored, off) in [
            (10_000, 10_010, 10_000, 0),
            (10_999, 11_000, 10_000, 0),
            (10_000, 10_000, 12_500, 2_500),
            (10_000, 10_000, 5_000, -5_000),
            (10_000, 16_000, 16_500, 0),
            (10_000, 12_000, 3_611_000, 3_600_000),
        ] {
            let clock = Clock::manual(after);
            let time = StoreTime::new(clock.clone());
            assert_eq!(time.learn(ms(before), ms(after), stored), off, "{before} {after} {stored}");
            assert_eq!(time.now_ms() as i64, after as i64 + off);
            clock.advance(ms(500));
            assert_eq!(time.now_ms() as i64, after as i64 + off + 500);
            assert_eq!(time.ahead_ms(), off);
        }
    }

    #[test]
    fn a_wall_clock_that_is_set_does_not_move_what_was_learned() {
        let clock = Clock::manual(50_000);
        let time = StoreTime::new(clock.skewed(7_200_000));
        assert_eq!(time.now_ms(), 7_250_000, "no time is known");
        assert!(!time.is_learned() && time.is_old());
        assert_eq!(time.learn(ms(50_000), ms(50_000), 50_000), -7_200_000);
        assert_eq!((time.now_ms(), time.ahead_ms()), (50_000, -7_200_000));
        assert!(time.is_learned() && !time.is_old());
        clock.advance(LEARN_EVERY);
        assert!(time.is_old());
    }

    #[test]
    fn a_pause_that_our_clock_misses_is_corrected() {
        let clock = Clock::manual(50_000);
        let time = StoreTime::new(clock.clone());
        time.learn(ms(50_000), ms(50_000), 50_000);
        time.note_taken(3_650_000);
        assert_eq!(time.now_ms(), 3_650_000);
        time.note_taken(60_000);
        assert_eq!(time.now_ms(), 3_650_000, "an older time changes nothing");
        clock.advance(ms(1_000));
        assert_eq!(
            time.learn(ms(51_000), ms(51_000), 81_000),
            -3_570_000,
            "the time of our own write counts"
        );
    }

    #[test]
    fn date_headers_are_no_proof() {
        let clock = Clock::manual(50_000);
        let time = StoreTime::new(clock.clone());
        // A node that writes nothing has no better source, and the date may be that of a proxy.
        time.note_date(50_000 + 3_600_000);
        assert_eq!(time.now_ms(), 50_000 + 3_600_000);
        for _ in 0..3 {
            time.note_date(50_000 + 40 * DAY_MS);
            assert_eq!(time.now_ms(), 50_000 + DAY_MS);
        }
        time.note_taken(50_000 + 2 * DAY_MS);
        assert_eq!(time.now_ms(), 50_000 + 2 * DAY_MS, "a time that the store took counts");
        // A node that writes learns the time again.
        time.learn(ms(50_000), ms(50_000), 50_000);
        assert!(!time.is_old());
        time.note_date(50_000 + 3_600_000);
        assert!(time.is_old() && !time.is_learned() && time.now_ms() == 50_000);
        time.learn(ms(50_000), ms(50_000), 50_000);
        time.note_date(50_000 + 3_600_000);
        assert!(!time.is_old() && time.is_learned(), "the date was wrong");
        time.note_date(50_000 + DAY_MS);
        assert!(time.is_old());
        time.learn(ms(50_000), ms(50_000), 50_000 + DAY_MS as i64);
        assert!(!time.is_old() && time.now_ms() == 50_000 + DAY_MS, "the date was right");
    }

    #[test]
    fn a_clock_that_is_ahead_of_all_dates_is_not_used() {
        let clock = Clock::manual(50_000 + 50 * DAY_MS);
        let time = StoreTime::new(clock.skewed(40 * DAY_MS as i64));
        let real = || clock.wall_ms();
        time.note_date(real() - 3_600_000);
        assert_eq!(
            time.now_ms(),
            real() - 3_600_000,
            "an answer from a cache, but better than our clock"
        );
        time.note_taken(real() - 600_000);
        assert_eq!(time.now_ms(), real() - 600_000);
        clock.advance(ms(1000));
        time.note_date(real() - 3_600_000);
        assert_eq!(time.now_ms(), real() - 600_000, "it was later already");
        time.note_date(real());
        assert_eq!(time.now_ms(), real());
        time.note_date(real() - 3_600_000);
        assert_eq!(time.now_ms(), real());
        // What is learned from a write is better.
        time.learn(clock.mono(), clock.mono(), real() as i64 + 600_000);
        time.note_date(real());
        assert_eq!(time.now_ms(), real() + 600_000);
    }

    #[test]
    fn the_time_of_an_earlier_run_holds_until_this_one_learns() {
        let clock = Clock::manual(50_000);
        let time = StoreTime::new(clock.skewed(-3_600_000 + 10_000_000));
        time.assume(3_600_000 - 10_000_000);
        assert_eq!(time.now_ms(), 50_000);
        time.note_taken(51_000);
        assert_eq!(time.now_ms(), 50_000, "the difference may be noise");
        time.note_taken(90_000);
        assert_eq!(time.now_ms(), 90_000);
        assert!(!time.is_learned());
    }
}
