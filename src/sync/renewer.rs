//! The renewer: what is used after half its age is stored again before it expires.
//!
//! Owns what waits for that, and when it is due. Must never renew what has expired, what was not opened, or
//! what another node has renewed meanwhile; and never hurry: no caller waits for what it does.
//!
//! Keeps P11 expiry.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::runtime::Handle;
use tokio::sync::Notify;
use tokio::task::JoinHandle;

use super::backoff::Backoff;
use super::fetcher::Fetcher;
use super::freshness::Freshness;
use super::ledger::Ledger;
use crate::clock;
use crate::digest::Digest;
use crate::task;

/// Contents that wait to be renewed; the next open of what finds no room asks again.
const WAITING_MAX: usize = 10_000;
/// Contents that are renewed together.
const TOGETHER_MAX: usize = 1024;
/// The most bytes that are renewed together, more only for one that is larger: they are kept from eviction
/// meanwhile.
const TOGETHER_BYTES_MAX: u64 = 64 << 20;
/// How long the look at what other nodes have done may take.
const LOOK_MAX: Duration = Duration::from_secs(30);
/// The shortest and the longest wait for those that are on their way, and after a look that failed.
const PAUSE_MIN: Duration = Duration::from_secs(1);
const PAUSE_MAX: Duration = Duration::from_mins(1);

/// Stores again what is used; cheap to clone.
#[derive(Clone, Debug)]
pub struct Renewer(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    ledger: Ledger,
    fetcher: Fetcher,
    freshness: Freshness,
    /// Whether anything is renewed at all.
    on: bool,
    waiting: Mutex<HashMap<Digest, WaitingRenewals>>,
    wake: Notify,
}

#[derive(Debug, Clone, Copy)]
struct WaitingRenewals {
    size: u64,
    /// When it is due, by the monotonic clock.
    due: Duration,
}

impl Renewer {
    /// Makes a renewer that does nothing until it is started, and nothing at all unless `on`.
    pub(super) fn new(ledger: Ledger, fetcher: Fetcher, freshness: Freshness, on: bool) -> Self {
        let (waiting, wake) = (Mutex::default(), Notify::new());
        Self(Arc::new(Inner { ledger, fetcher, freshness, on, waiting, wake }))
    }

    /// Notes that a program has opened a file with this content.
    pub fn note_use(&self, digest: &Digest, size: u64) {
        let inner = &self.0;
        if !inner.on || size == 0 || inner.ledger.age().is_endless() {
            return;
        }
        if !inner.is_due(digest) {
            return;
        }
        let due = inner.ledger.clock().mono() + inner.jitter(digest);
        let mut waiting = inner.waiting.lock();
        if waiting.len() < WAITING_MAX && !waiting.contains_key(digest) {
            waiting.insert(*digest, WaitingRenewals { size, due });
            inner.wake.notify_one();
        }
    }

    /// Starts renewing. Aborting it loses nothing: the next open asks again.
    pub(super) fn start(&self, runtime: &Handle) -> JoinHandle<()> {
        let this = self.clone();
        task::spawn(runtime, "renew", async move {
            let mut backoff = Backoff::new(PAUSE_MIN, PAUSE_MAX);
            loop {
                let until = this.0.next_due();
                match until.map(|due| due.saturating_sub(this.0.ledger.clock().mono())) {
                    None => this.0.wake.notified().await,
                    Some(Duration::ZERO) => {
                        if this.renew().await {
                            backoff.reset();
                        } else {
                            clock::sleep(backoff.wait()).await;
                        }
                    }
                    Some(left) => drop(clock::within(left, this.0.wake.notified()).await),
                }
            }
        })
    }

    /// Renews what is due, some of it. Returns false when it has to be tried again later.
    pub(super) async fn renew(&self) -> bool {
        let inner = &self.0;
        if inner.ledger.is_renewing() {
            return false;
        }
        // Another node may have renewed it, or put something else in its place.
        if !inner.freshness.wait_fresh(LOOK_MAX).await {
            // What expires meanwhile is nothing to wait for.
            inner.waiting.lock().retain(|digest, _| inner.is_due(digest));
            return false;
        }
        let mut ready = Vec::new();
        for (digest, size) in inner.take_due() {
            if !inner.is_wanted(&digest) {
                continue;
            }
            match inner.fetcher.fetch(digest, size).await {
                Ok(()) => ready.push((digest, size)),
                Err(error) => {
                    tracing::debug!(%digest, error = %error.chain(), "cannot be renewed");
                }
            }
        }
        if !ready.is_empty() {
            tracing::debug!(contents = ready.len(), "stored again, because they are used");
            inner.ledger.store_again(&ready);
        }
        true
    }
}

impl Inner {
    fn is_due(&self, digest: &Digest) -> bool {
        self.ledger
            .stored_ms(digest)
            .is_some_and(|stored_ms| self.ledger.reliance().grows_old(stored_ms))
    }

    fn is_wanted(&self, digest: &Digest) -> bool {
        self.is_due(digest) && self.ledger.read(|fold| fold.uses(digest))
    }

    /// Spreads the nodes over some time, each content in another order, so that one comes first and the
    /// others see what it has done.
    fn jitter(&self, digest: &Digest) -> Duration {
        let mut text = digest.as_bytes().to_vec();
        text.extend_from_slice(&self.ledger.node().0.to_le_bytes());
        let hash = Digest::of(&text);
        let part = u32::from(u16::from_le_bytes([hash.as_bytes()[0], hash.as_bytes()[1]]));
        self.ledger.age().jitter() * part / u32::from(u16::MAX)
    }

    fn next_due(&self) -> Option<Duration> {
        self.waiting.lock().values().map(|waiting| waiting.due).min()
    }

    /// Takes what is due, within the limits.
    fn take_due(&self) -> Vec<(Digest, u64)> {
        let now = self.ledger.clock().mono();
        let mut waiting = self.waiting.lock();
        let mut due: Vec<(Digest, WaitingRenewals)> = waiting
            .iter()
            .filter(|(_, one)| one.due <= now)
            .map(|(digest, one)| (*digest, *one))
            .collect();
        due.sort_unstable_by_key(|(_, one)| one.due);
        let (mut taken, mut bytes) = (Vec::new(), 0);
        for (digest, one) in due.into_iter().take(TOGETHER_MAX) {
            bytes += one.size;
            if !taken.is_empty() && bytes > TOGETHER_BYTES_MAX {
                break;
            }
            waiting.remove(&digest);
            taken.push((digest, one.size));
        }
        taken
    }
}
