//! When a batch is taken: how long to collect changes, and what ends the wait.
//!
//! Owns these times. Must never make a drain wait, nor a writer that waits for room.

use std::time::Duration;

use parking_lot::Mutex;

use super::{Inner, Publisher};
use crate::clock;
use crate::sync::ledger::Outlook;
use crate::sync::pace::PaceCounts;
use crate::task;

/// How often per delay to check whether there is enough for a batch.
const TICKS_PER_DELAY: u32 = 20;
/// The longest tick: a drain may stay unnoticed for this long.
const TICK_MAX: Duration = Duration::from_millis(250);
/// How long a batch waits while other nodes keep the last commit from being announced. No node would see
/// it before that one, and each commit makes the log longer for all nodes.
const LATE_MAX: Duration = Duration::from_secs(5);
/// After this long without a commit, the next one is made as soon as no more changes arrive. With
/// less, nodes that write the same contents agree about smaller batches and upload more copies. For
/// a node that is alone in the log, it is enough that the batch before was taken one delay ago: so
/// it makes no more commits than a node that closes files without a pause.
const IDLE_AFTER: Duration = Duration::from_secs(1);
/// A node is alone in the log if it has run for this long, and no other node has made a commit for
/// this long, as far as a look at the log shows that is at most [`LOOKED_WITHIN`] old. Nodes that
/// start together would otherwise all be alone at first.
const ALONE_AFTER: Duration = Duration::from_secs(5);
const LOOKED_WITHIN: Duration = Duration::from_secs(2);

impl Publisher {
    /// Waits until a batch is worth taking.
    pub(super) async fn ripe(&self) {
        let inner = &self.0;
        loop {
            let moved = inner.ledger.queued().notified();
            match inner.ledger.outlook(inner.pack_bytes) {
                Outlook::Nothing => moved.await,
                Outlook::Held(_) if inner.is_hurried() => inner.ledger.release_all(),
                Outlook::Held(left) => drop(clock::within(left, moved).await),
                Outlook::Full => return,
                Outlook::Open => break,
            }
        }
        self.collect_at_pace().await;
    }

    /// Collects changes for as long as the log and the store ask for, and until the last commit is
    /// announced.
    async fn collect_at_pace(&self) {
        let inner = &self.0;
        let began = inner.ledger.clock().mono();
        let (mut collected, mut late) = (None, Duration::ZERO);
        loop {
            let delay = self.delay();
            let until = match collected {
                None => Some(delay),
                // Nodes that learn of each other at the same time must not commit at the same time.
                Some(before) if delay > before => {
                    Some(before + task::random_part(delay.saturating_sub(before)))
                }
                Some(_) => None,
            };
            if let Some(until) = until {
                self.collect(began, until).await;
                collected = Some(delay);
            } else if inner.announcer.is_beaten() && late < LATE_MAX {
                inner.announcer.emptied(TICK_MAX).await;
                late += TICK_MAX;
            } else {
                return;
            }
            if self.must_go_on() {
                return;
            }
        }
    }

    /// Returns for how long to collect.
    fn delay(&self) -> Duration {
        let inner = &self.0;
        let counts = PaceCounts {
            commits: inner.ledger.busyness(),
            requests: inner.remote.requests().total(),
            refused: inner.remote.throttling().answers.iter().sum(),
        };
        let now = inner.ledger.clock().mono();
        let delay = inner.pace.delay(now, counts, inner.announcer.crowd());
        inner.announcer.spread_over(inner.pace.excess(delay));
        delay
    }

    /// Collects changes until `delay` after `began`.
    async fn collect(&self, began: Duration, delay: Duration) {
        let inner = &self.0;
        let now = inner.ledger.clock().mono();
        let left = (began + delay).saturating_sub(now);
        let ticks = ticks_of(left);
        let is_past = |at: &Mutex<Option<Duration>>, time| {
            at.lock().is_none_or(|at| now.saturating_sub(at) >= time)
        };
        let is_due =
            is_past(&inner.last, IDLE_AFTER) || (is_past(&inner.taken, delay) && inner.is_alone());
        let (tick, enough_quiet) = (left / ticks, if is_due { ticks / 4 } else { ticks });
        let (mut quiet, mut records) = (0, inner.ledger.records());
        for _ in 0..ticks {
            if quiet >= enough_quiet || self.must_go_on() {
                return;
            }
            clock::within(tick, inner.ledger.room().pressed()).await;
            let now = inner.ledger.records();
            quiet = if now == records { quiet + 1 } else { 0 };
            records = now;
        }
    }

    /// Reports whether a batch must not wait for more changes.
    fn must_go_on(&self) -> bool {
        let inner = &self.0;
        inner.is_hurried()
            || inner.ledger.room().is_pressed()
            || inner.ledger.outlook(inner.pack_bytes) == Outlook::Full
    }
}

impl Inner {
    /// Reports whether no other node publishes, as far as this node knows.
    fn is_alone(&self) -> bool {
        let ledger = &self.ledger;
        let before_ms = ledger.now_ms().saturating_sub(ALONE_AFTER.as_millis() as u64);
        ledger.clock().mono().saturating_sub(self.made) >= ALONE_AFTER
            && ledger.reliance().has_listed(LOOKED_WITHIN)
            && !ledger.log(|log| log.chains().has_others_after(ledger.node(), before_ms))
    }
}

/// Returns into how many ticks a delay is divided: [`TICKS_PER_DELAY`], or more so that none exceeds [`TICK_MAX`].
fn ticks_of(delay: Duration) -> u32 {
    let least = delay.as_millis().div_ceil(TICK_MAX.as_millis());
    u32::try_from(least).unwrap_or(u32::MAX).max(TICKS_PER_DELAY)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_drain_is_noticed_within_a_quarter_of_a_second() {
        for (seconds, ticks) in [(0, 20), (1, 20), (5, 20), (6, 24), (30, 120)] {
            let delay = Duration::from_secs(seconds);
            assert_eq!(ticks_of(delay), ticks, "{seconds} s");
            assert!(delay / ticks <= TICK_MAX, "{seconds} s");
        }
    }
}
