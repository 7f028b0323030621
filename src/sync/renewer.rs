//! The renewer: stores contents again before they expire, if they are used after half their age.
//!
//! Owns what waits to be renewed, and when it is due. Must never renew what has expired, what was
//! not opened, or what another node has renewed meanwhile. Must never hurry: no caller waits for a
//! renewal.
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

/// The most contents that wait to be renewed. If there is no room for one, its next open tries
/// again.
const WAITING_MAX: usize = 10_000;
/// The most contents that are renewed together.
const TOGETHER_MAX: usize = 1024;
/// The most bytes that are renewed together, unless a single content is larger: they are kept from
/// eviction meanwhile.
const TOGETHER_BYTES_MAX: u64 = 64 << 20;
/// How long the check for the changes of other nodes may take.
const LOOK_MAX: Duration = Duration::from_secs(30);
/// The shortest and the longest wait for renewals in flight, and after a check that failed.
const PAUSE_MIN: Duration = Duration::from_secs(1);
const PAUSE_MAX: Duration = Duration::from_mins(1);

/// Stores used contents again; cheap to clone.
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
    /// Makes a renewer that does nothing until it is started, and never does anything unless `on`
    /// is set.
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

    /// Starts renewing. Aborting it loses nothing: the next open queues the content again.
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

    /// Renews some of what is due. Returns false if it must be retried later.
    pub(super) async fn renew(&self) -> bool {
        let inner = &self.0;
        if inner.ledger.is_renewing() {
            return false;
        }
        // Another node may have renewed it, or replaced the file's content.
        if !inner.freshness.wait_fresh(LOOK_MAX).await {
            // A content that expires meanwhile need not wait any more.
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
                    tracing::debug!(%digest, error = %error.chain(), "a content cannot be renewed");
                }
            }
        }
        if !ready.is_empty() {
            tracing::debug!(contents = ready.len(), "stored contents again that are used");
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

    /// Spreads the nodes over some time, for each content in another order, so that one node is
    /// first and the others see its renewal.
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

    /// Takes contents that are due, within the limits.
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
