//! Saving behind: what the next start is to find in the index, and then what the journal may forget.
//!
//! The journal lets go of a record only when the index has, on disk, what it stands for: a start
//! without the remote shows everything that a start before it showed. A path with changes in the queue
//! that others need not ever hear of is not saved: the journal has it.

use std::collections::HashSet;

use super::Ledger;
use crate::digest::Digest;
use crate::error::Result;
use crate::local::{Batch, Seq};
use crate::name::TreePath;
use crate::namespace::{Change, Fold, Op, Register};
use crate::remote::keys;
use crate::stamp::Stamp;
use crate::task;

/// The name in the index under which the chains lie.
pub(super) const CHAINS: &str = "chains";
/// Facts that go into one batch when everything is saved again.
const REFILL_FACTS: usize = 20_000;

/// What moved since the last save.
#[derive(Debug, Default)]
pub(super) struct Dirty {
    pub(super) paths: HashSet<TreePath>,
    pub(super) locations: HashSet<Digest>,
    pub(super) seen: Vec<Stamp>,
    pub(super) unseen: Vec<Stamp>,
    /// Everything up to this record is remote.
    pub(super) ack: Option<Seq>,
}

impl Ledger {
    /// Saves what moved since the last time, and shortens the journal. Blocks on the disk.
    pub fn save(&self) -> Result<()> {
        let mut known = self.0.saving.lock();
        let generation = self.0.index.generation();
        if generation != *known {
            self.refill();
            self.0.index.refilled(generation);
            *known = generation;
        }
        let (mut batch, ack, unsure, learned) = self.gather();
        if unsure {
            self.0.journal.sync()?;
        }
        let news = self.0.blobs.news();
        for (digest, used) in news.sealed {
            batch.seal(&digest, used);
        }
        for digest in news.gone {
            batch.forget_seal(&digest);
        }
        self.0.index.save(batch);
        if learned || ack.is_some() {
            self.0.index.flush();
        }
        if let Some(upto) = ack {
            self.0.journal.ack(upto)?;
        }
        self.compact()
    }

    /// As [`Ledger::save`], for who can do nothing about a failure: the next start takes longer.
    pub fn save_index(&self) {
        if let Err(error) = self.save() {
            tracing::warn!(error = %error.chain(), "the state could not be saved");
        }
    }

    /// As [`Ledger::save_index`], on a thread for work that blocks.
    pub(in crate::sync) async fn save_behind(&self) {
        let ledger = self.clone();
        task::blocking(move || ledger.save_index()).await;
    }

    /// Takes what moved. The third part says whether something stands on records of the journal that
    /// a power loss could still take; the last whether it holds what only the store says otherwise,
    /// and a start without the store would miss.
    fn gather(&self) -> (Batch, Option<Seq>, bool, bool) {
        let mut batch = Batch::new();
        let mut order = self.0.order.lock();
        let dirty = std::mem::take(&mut order.dirty);
        let fold = self.0.fold.read();
        let mut unsure = false;
        if self.0.remote.is_some() {
            for path in &dirty.paths {
                if order.queue.is_private(path) {
                    continue;
                }
                unsure |= order.queue.has(path);
                match fold.register(path) {
                    Some(register) => batch.register(path, register),
                    None => batch.forget_register(path),
                }
            }
        }
        for digest in &dirty.locations {
            match fold.location(digest) {
                Some(location) => batch.location(digest, location),
                None => batch.forget_location(digest),
            }
        }
        if !dirty.seen.is_empty() {
            batch.meta(CHAINS, &order.chains.encode());
        }
        for stamp in &dirty.seen {
            batch.seen(&keys::commit_name(stamp));
        }
        for stamp in &dirty.unseen {
            batch.forget_seen(&keys::commit_name(stamp));
        }
        (batch, dirty.ack, unsure, !dirty.seen.is_empty())
    }

    /// Saves everything again, because the index was lost.
    fn refill(&self) {
        if self.0.remote.is_none() {
            return;
        }
        tracing::info!("the index is filled again");
        let order = self.0.order.lock();
        let fold = self.0.fold.read();
        let mut batch = Batch::new();
        let put = |batch: &mut Batch| {
            if batch.len() >= REFILL_FACTS {
                self.0.index.save(std::mem::take(batch));
            }
        };
        for (path, register) in fold.registers() {
            if !order.queue.has(path) {
                batch.register(path, register);
                put(&mut batch);
            }
        }
        for (digest, location) in fold.locations() {
            batch.location(digest, location);
            put(&mut batch);
        }
        self.0.index.save(batch);
        // Only now: an object of the log that is noted as seen is not read again.
        let mut batch = Batch::new();
        for stamp in &order.seen {
            batch.seen(&keys::commit_name(stamp));
        }
        batch.meta(CHAINS, &order.chains.encode());
        self.0.index.save(batch);
    }

    /// Shortens the journal of a node whose journal is all there is.
    fn compact(&self) -> Result<()> {
        if self.0.remote.is_some() {
            return Ok(());
        }
        let live = self.read(Fold::len) as u64;
        if !self.0.journal.wants_compaction(live) {
            return Ok(());
        }
        tracing::debug!(live, "the journal is compacted");
        self.0.journal.compact(|| {
            let _order = self.0.order.lock();
            self.read(|fold| {
                fold.registers().flat_map(|(p, r)| changes_of(p, r)).collect::<Vec<_>>()
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
