//! Saving behind: what the next start is to find in the index, and then what the journal may forget.
//!
//! The journal lets go of a record only when the index has, on disk, what it stands for: a start
//! without the remote shows everything that a start before it showed. A path with changes in the queue
//! that others need not ever hear of is not saved: the journal has it.

use super::Ledger;
use crate::error::Result;
use crate::local::{FactBatch, Flushed, Seq};
use crate::name::TreePath;
use crate::namespace::{Change, Fold, Op, Register};
use crate::task;

/// Facts that are taken under the lock at once, roughly.
pub(super) const GATHER_FACTS: usize = 5000;

/// A part of what moved.
struct Gathered {
    batch: FactBatch,
    /// Everything up to this record is remote, and saved when this is.
    ack: Option<Seq>,
    /// Something in it stands on records of the journal that a power loss could still take.
    unsure: bool,
    /// It ends what others have told, which a start without the store has from nowhere else.
    learned: bool,
    /// Nothing is left.
    last: bool,
}

impl Ledger {
    /// Saves what moved since the last time, and shortens the journal. Blocks on the disk.
    ///
    /// # Errors
    ///
    /// An error of the disk; nothing that is not saved leaves the journal.
    pub fn save(&self) -> Result<()> {
        let mut known = self.0.disk.saving.lock();
        let generation = self.0.disk.index.generation();
        if generation != *known {
            self.refill(generation)?;
            *known = generation;
        }
        loop {
            let Gathered { mut batch, ack, unsure, learned, last } = self.gather();
            if unsure {
                self.0.disk.journal.sync()?;
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
                    // With the next save, which fills the index anew if it has lost something.
                    self.0.order.lock().saved.remote_upto(upto);
                }
            }
            if last {
                break;
            }
        }
        self.compact()
    }

    /// Reports whether the journal may let go of what was saved in a generation of the index. Where the index is off, what
    /// is in the store can be read from there, at the next start; what stays on this node cannot.
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

    /// As [`Ledger::save`], for a caller that can do nothing about a failure: the next start takes longer.
    pub fn save_index(&self) {
        if let Err(error) = self.save()
            && let Some(unsaid) = self.0.warned.save.tell(&self.0.clock)
        {
            tracing::warn!(error = %error.chain(), unsaid, "the state could not be saved");
        }
    }

    /// As [`Ledger::save_index`], on a thread for work that blocks.
    pub(in crate::sync) async fn save_behind(&self) {
        let ledger = self.clone();
        task::blocking(move || ledger.save_index()).await;
    }

    /// Takes some of what moved. Objects of the log count as seen, and records as saved, only with
    /// the last of it.
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
            // What is not sent stands on the journal as long as the index does not have it.
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

    /// Shortens the journal of a node whose journal is all there is.
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

/// Returns the changes that make a register.
fn changes_of(path: &TreePath, register: &Register) -> Vec<Change> {
    let op = register.entry.clone().map_or(Op::Remove, Op::Put);
    let mut changes = vec![Change { path: path.clone(), stamp: register.stamp, op }];
    if let (Some(stamp), Some(entry)) = (register.attr_stamp, &register.entry) {
        let op = Op::Attrs { of: register.stamp, attrs: entry.attrs.clone() };
        changes.push(Change { path: path.clone(), stamp, op });
    }
    changes
}
