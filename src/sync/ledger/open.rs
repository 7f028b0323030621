//! Starting: from what the index and the journal have kept to the namespace.

use std::collections::{HashMap, HashSet};
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64};

use parking_lot::{Mutex, RwLock};
use tokio::sync::{Notify, watch};

use super::apply::intern;
use super::bad::Bad;
use super::queue::Queue;
use super::save::{CHAINS, Dirty};
use super::{Inner, Ledger, Order};
use crate::clock::Clock;
use crate::error::Result;
use crate::local::{Blobs, CacheDir, Index, Journal, Loaded, Record, Seq, Staging};
use crate::namespace::{Fold, Time};
use crate::remote::{Remote, keys};
use crate::stamp::StampClock;
use crate::sync::chains::Chains;
use crate::sync::quiet::Quiet;
use crate::task;

/// What a ledger is made of.
pub struct LedgerParts {
    /// The cache directory; the ledger holds it as long as it lives.
    pub dir: CacheDir,
    /// The index.
    pub index: Index,
    /// What the index remembered; its seals have gone to the blobs.
    pub loaded: Loaded,
    /// The local blobs.
    pub blobs: Blobs,
    /// The staging files.
    pub staging: Staging,
    /// The remote; `None` for a cache of this node alone.
    pub remote: Option<Remote>,
    /// The time.
    pub clock: Clock,
}

impl fmt::Debug for LedgerParts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LedgerParts").field("dir", &self.dir).finish_non_exhaustive()
    }
}

impl Ledger {
    /// Opens the journal and rebuilds the namespace, without asking the store anything.
    ///
    /// Everything that was published and is not remote is queued again.
    pub fn open(parts: LedgerParts) -> Result<Self> {
        let (journal, records) = Journal::open(&parts.dir)?;
        let generation = parts.index.generation();
        let stamps = StampClock::new(parts.dir.node());
        let mut order = Order {
            queue: Queue::default(),
            dirty: Dirty::default(),
            seen: HashSet::new(),
            chains: Chains::default(),
            packs: HashMap::new(),
            named_ms: 0,
            bad: Bad::default(),
        };
        let mut fold = Fold::new();
        restore(&mut order, &mut fold, parts.loaded);
        let kept = match parts.remote {
            Some(_) => HashSet::new(),
            None => fold.registers().map(|(path, _)| path.clone()).collect(),
        };
        let before = records.first().map_or(journal.last(), |first| Seq(first.seq.0 - 1));
        let ledger = Self(Arc::new(Inner {
            _dir: parts.dir,
            clock: parts.clock,
            incarnation: task::random_u64(),
            stamps,
            remote: parts.remote,
            journal,
            blobs: parts.blobs,
            staging: parts.staging,
            index: parts.index,
            fold: RwLock::new(fold),
            order: Mutex::new(order),
            saving: Mutex::new(generation),
            kept,
            subscribers: RwLock::new(Vec::new()),
            queued: Notify::new(),
            remote_upto: watch::Sender::new(before),
            records: AtomicU64::new(0),
            bytes: AtomicU64::new(0),
            warned_ahead: AtomicBool::new(false),
            applied: AtomicU64::new(0),
            quiet_bad: Quiet::default(),
            traffic: super::Traffic::default(),
            quiet_save: Quiet::default(),
        }));
        ledger.observe_all();
        ledger.replay(records);
        Ok(ledger)
    }

    /// Makes sure that what we stamp from now on comes after everything that is known.
    fn observe_all(&self) {
        let now_ms = self.now_ms();
        let latest = self.read(|fold| {
            let all = fold.registers().map(|(_, register)| register);
            all.map(|register| register.attr_stamp.unwrap_or_default().max(register.stamp))
                .filter(|stamp| stamp.ms <= now_ms.saturating_add(crate::stamp::MAX_AHEAD_MS))
                .max()
        });
        if let Some(stamp) = latest {
            self.observe(stamp, now_ms);
        }
        let mut order = self.0.order.lock();
        let own = order.seen.iter().filter(|stamp| stamp.node == self.node());
        order.named_ms = own.map(|stamp| stamp.ms).max().unwrap_or(0);
    }

    /// Applies what the journal has kept.
    fn replay(&self, records: Vec<Record>) {
        if records.is_empty() {
            return;
        }
        let (count, now_ms) = (records.len(), self.now_ms());
        let mut order = self.0.order.lock();
        for record in records {
            let mut fold = self.0.fold.write();
            for change in &record.changes {
                self.observe(change.stamp, now_ms);
                if self.0.remote.is_some() {
                    order.queue.track(change, &fold);
                    // The run before may have sent it without noting that.
                    order.queue.touch(&change.path);
                }
                fold.apply(change, Time::from_ms(change.stamp.ms));
                match &self.0.remote {
                    Some(_) => self.keep_unsaved(&fold, &change.op),
                    None => self.forget_alone(&mut fold, change),
                }
            }
            drop(fold);
            if self.0.remote.is_some() {
                order.queue.push(record.seq, record.changes, self.0.clock.mono(), None);
            }
        }
        self.note_totals(&order);
        drop(order);
        tracing::info!(
            records = count,
            "took over from the journal what an earlier run had published"
        );
    }
}

/// Brings back what the index remembered.
fn restore(order: &mut Order, fold: &mut Fold, loaded: Loaded) {
    for (path, register) in loaded.registers {
        fold.restore(&path, register);
    }
    for (digest, mut location) in loaded.locations {
        intern(order, &mut location);
        fold.locate(digest, location);
    }
    order.seen = loaded.seen.iter().filter_map(|name| keys::commit_stamp(name)).collect();
    for (name, value) in loaded.meta {
        if name == CHAINS {
            order.chains = Chains::decode(&value);
        }
    }
}
