//! Saving in the background: what the next start needs in the index, and then what the journal may
//! forget.
//!
//! The journal releases a record only when its effects are in the index, on disk: a start without
//! the remote shows everything that an earlier start showed. A path with changes in the queue that
//! other nodes may never need is not saved: the journal has it.

use super::Ledger;
use crate::error::Result;
use crate::local::{FactBatch, Flushed, Seq};
use crate::name::TreePath;
use crate::namespace::{Change, Fold, Op, Register};
use crate::task;

/// How many facts are taken under the lock at once, approximately.
pub(super) const GATHER_FACTS: usize = 5000;

/// A part of what moved.
struct Gathered {
    batch: FactBatch,
    /// All records up to this one are remote, and saved once this part is.
    ack: Option<Seq>,
    /// Whether something in it depends on records of the journal that a power loss could still
    /// take.
    unsure: bool,
    /// Whether it completes what was learned from other nodes. A start without the store has no
    /// other source for that.
    learned: bool,
    /// Whether this is the last part.
    last: bool,
}

impl Ledger {
    /// Saves what moved since the last time, and shortens the journal. Blocks on the disk.
    ///
    /// # Errors
    ///
    /// An error of the disk; nothing leaves the journal unless it is saved.
    pub fn save(&self) -> Result<()> {
        self.discard_never_sent();
        let mut known = self.0.disk.saving.lock();
        if self.0.order.lock().saved.is_dropped() {
            self.0.disk.index.renew();
            // Before the namespace is read: what moves from now on is saved after it.
            self.0.order.lock().saved.begin_again();
        }
        let generation = self.0.disk.index.generation();
        if generation != *known {
            self.refill(generation)?;
            *known = generation;
        }
        loop {
            let Gathered { mut batch, ack, unsure, learned, last } = self.gather();
            if unsure && let Err(error) = self.0.disk.journal.sync() {
                // What was gathered is lost with this batch. The next save fills the index again, and
                // acknowledges.
                self.0.disk.index.renew();
                if let Some(upto) = ack {
                    self.0.order.lock().saved.remote_upto(upto);
                }
                return Err(error);
            }
            if last {
                let news = self.0.disk.blobs.news();
                news.sealed.iter().for_each(|(digest, used)| batch.seal(digest, *used));
                news.gone.iter().for_each(|digest| batch.forget_seal(digest));
            }
            self.0.disk.index.save(batch);
            let flushed = (learned || ack.is_some()).then(|| self.0.disk.index.flush());
            if let Some(upto) = ack {
                if self.may_let_go(flushed, generation) {
                    self.0.disk.journal.ack(upto)?;
                } else {
                    // The next save notes it, and fills the index again if it has lost something.
                    self.0.order.lock().saved.remote_upto(upto);
                }
            }
            if last {
                break;
            }
        }
        self.compact()
    }

    /// Reports whether the journal may release what was saved in a generation of the index. If the
    /// index is off, the next start can read the content of the store from there; what stays on
    /// this node it cannot.
    fn may_let_go(&self, flushed: Option<Flushed>, generation: u64) -> bool {
        match flushed {
            Some(Flushed::Durable(now)) => now == generation,
            Some(Flushed::Unsure) | None => false,
            Some(Flushed::Off) => {
                let order = self.0.order.lock();
                order.own.is_empty() && order.outbox.keeps_nothing()
            }
        }
    }

    /// Reports whether a save should wait, because a long log is being read and the index must be
    /// filled again at its end.
    pub(in crate::sync) fn is_catching_up(&self) -> bool {
        let order = &mut *self.0.order.lock();
        order.saved.must_wait(&order.log, self.0.clock.mono())
    }

    /// As [`Ledger::save`], for a caller that can do nothing about a failure: the next start takes
    /// longer.
    pub fn save_index(&self) {
        if let Err(error) = self.save()
            && let Some(unsaid) = self.0.warned.save.tell(&self.0.clock)
        {
            tracing::warn!(error = %error.chain(), unsaid, "the state could not be saved");
        }
    }

    /// As [`Ledger::save_index`], on a thread for blocking work.
    pub(in crate::sync) async fn save_behind(&self) {
        let ledger = self.clone();
        task::blocking(move || ledger.save_index()).await;
    }

    /// As [`Ledger::save_behind`], and waits for the disk even if nothing leaves the journal.
    pub(in crate::sync) async fn save_surely(&self) {
        let ledger = self.clone();
        let save = move || {
            ledger.save_index();
            ledger.0.disk.index.flush()
        };
        if task::blocking(save).await == Flushed::Unsure {
            tracing::debug!("the state may not be on the disk");
        }
    }

    /// Takes some of what moved. Commits count as folded, and records as saved, only with the last
    /// part.
    fn gather(&self) -> Gathered {
        let mut batch = FactBatch::new();
        let mut order = self.0.order.lock();
        let order = &mut *order;
        let fold = self.0.fold.read();
        let mut unsure = order.outbox.save(&fold, self.0.disk.journal.acked(), &mut batch);
        while batch.len() < GATHER_FACTS
            && let Some(path) = order.saved.next_path()
        {
            if self.0.remote.is_none() || order.outbox.is_unheard(&path) {
                continue;
            }
            // Changes that are not sent depend on the journal until the index has them.
            unsure |= order.outbox.is_ahead(&path) || self.0.rules.stays_here(&path);
            match fold.register(&path) {
                Some(register) => batch.register(&path, &register),
                None => batch.forget_register(&path),
            }
        }
        while batch.len() < GATHER_FACTS
            && let Some(digest) = order.saved.next_location()
        {
            match fold.location(&digest) {
                Some(location) => batch.location(&digest, &location),
                None => batch.forget_location(&digest),
            }
        }
        if order.saved.is_dropped() {
            // The commits must not count as folded; the next save fills the index again.
            return Gathered { batch, ack: None, unsure, learned: false, last: true };
        }
        if order.saved.has_more() {
            return Gathered { batch, ack: None, unsure, learned: false, last: false };
        }
        order.aside.save(&mut batch);
        order.own.save(&mut batch);
        order.times.save_declared(self.0.remote.as_ref(), &mut batch);
        order.times.save(self.0.remote.as_ref(), &mut batch);
        let (learned, ack) = order.saved.finish(&order.log, &mut batch);
        Gathered { batch, ack, unsure, learned, last: true }
    }

    /// Compacts the journal of a node that has only the journal.
    fn compact(&self) -> Result<()> {
        if self.0.remote.is_some() {
            return Ok(());
        }
        let live = self.read(Fold::len) as u64;
        if !self.0.disk.journal.wants_compaction(live) {
            return Ok(());
        }
        tracing::debug!(live, "the journal is compacted");
        self.0.disk.journal.compact(|| {
            let order = self.0.order.lock();
            self.read(|fold| {
                let all = fold.registers().flat_map(|(path, register)| {
                    // A later mount with a remote must not send them.
                    let private = order.outbox.is_private_version(&path, register.stamp);
                    changes_of(&path, &register).into_iter().map(move |change| (change, private))
                });
                all.collect::<Vec<_>>()
            })
        })
    }
}

/// Returns the changes that produce a register.
pub(super) fn changes_of(path: &TreePath, register: &Register) -> Vec<Change> {
    let op = register.entry.clone().map_or(Op::Remove, Op::Put);
    let mut changes = vec![Change { path: path.clone(), stamp: register.stamp, op }];
    if let (Some(stamp), Some(entry)) = (register.attr_stamp, &register.entry) {
        let op = Op::Attrs { of: register.stamp, attrs: entry.attrs.clone() };
        changes.push(Change { path: path.clone(), stamp, op });
    }
    changes
}
