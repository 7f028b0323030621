//! Filling the index with everything, because it was lost or because the namespace was rebuilt.
//!
//! Must never need a second copy of the namespace, nor hold a lock for longer than one part takes.
//! What moves meanwhile is saved after it, as always, and overrides it.

use super::Ledger;
use super::save::GATHER_FACTS;
use super::saved::Saved;
use crate::digest::Digest;
use crate::error::Result;
use crate::local::FactBatch;
use crate::name::TreePath;
use crate::namespace::Register;
use crate::remote::keys;

/// The locations are sorted in this many parts, so that a list of all digests is never needed.
const DIGEST_PARTS: u8 = 16;

impl Ledger {
    /// Fills the index. The order of the parts is that of [`crate::local::Index::fill`].
    pub(super) fn refill(&self, generation: u64) -> Result<()> {
        self.refill_with(generation, || ())
    }

    /// Fills the index as if it were lost; calls `between` after the first part.
    #[cfg(test)]
    pub(in crate::sync) fn refill_for_test(&self, between: impl FnOnce()) {
        let mut known = self.0.disk.saving.lock();
        self.0.disk.index.renew();
        *known = self.0.disk.index.generation();
        self.refill_with(*known, between).expect("the index is filled");
    }

    fn refill_with(&self, generation: u64, between: impl FnOnce()) -> Result<()> {
        tracing::info!("the index is filled again");
        // Taken first: a commit may count as folded only together with all of its changes.
        let log = self.log_again();
        let apart = self.apart_again();
        let fill = |batch| self.0.disk.index.fill(generation, batch);
        fill(apart);
        between();
        for part in 0..DIGEST_PARTS {
            let is_here =
                |digest: &Digest| digest.as_bytes()[0] / (u8::MAX / DIGEST_PARTS + 1) == part;
            let mut digests: Vec<Digest> = self
                .read(|fold| fold.locations().map(|(digest, _)| digest).filter(is_here).collect());
            digests.sort_unstable();
            for some in digests.chunks(GATHER_FACTS) {
                let mut batch = FactBatch::new();
                self.read(|fold| {
                    let known = |digest| Some((digest, fold.location(digest)?));
                    let known = some.iter().filter_map(known);
                    known.for_each(|(digest, location)| batch.location(digest, &location));
                });
                fill(batch);
            }
        }
        fill(log);
        // Without a remote the journal has all registers.
        if self.0.remote.is_some() {
            let mut after = None;
            loop {
                let (batch, last) = self.registers_behind(after.as_ref())?;
                fill(batch);
                if last.is_none() {
                    break;
                }
                after = last;
            }
        }
        for some in self.0.disk.blobs.seals().chunks(GATHER_FACTS) {
            let mut batch = FactBatch::new();
            for (digest, used) in some {
                batch.seal(digest, *used);
            }
            fill(batch);
        }
        self.0.disk.index.refilled(generation);
        Ok(())
    }

    fn apart_again(&self) -> FactBatch {
        let mut batch = FactBatch::new();
        self.0.order.lock().outbox.save_again(self.0.disk.journal.acked(), &mut batch);
        batch
    }

    /// Takes what is known of the log and of time, by name.
    fn log_again(&self) -> FactBatch {
        let mut batch = FactBatch::new();
        let mut order = self.0.order.lock();
        let order = &mut *order;
        // By name, like everything that is filled.
        order.aside.save_again(&mut batch);
        Saved::save_chains(&order.log, &mut batch);
        order.times.save_again();
        order.times.save_declared(self.0.remote.as_ref(), &mut batch);
        order.saved.save_missing(&order.log, &mut batch);
        order.own.save_again();
        order.own.save(&mut batch);
        order.times.save(self.0.remote.as_ref(), &mut batch);
        for stamp in order.log.sorted() {
            batch.seen(&keys::commit_name(&stamp));
        }
        batch
    }

    /// Takes registers, the root's first. Returns the path of the last one; `None` if these were
    /// the last.
    fn registers_behind(&self, after: Option<&TreePath>) -> Result<(FactBatch, Option<TreePath>)> {
        let root = TreePath::root();
        let mut batch = FactBatch::new();
        let (mut last, mut unsure) = (None, false);
        {
            let order = self.0.order.lock();
            let fold = self.0.fold.read();
            let first = if after.is_none() { fold.register(&root) } else { None };
            let first: Option<(TreePath, Register)> = first.map(|found| (root.clone(), found));
            let rest = fold.registers_after(after.unwrap_or(&root));
            for (path, register) in first.into_iter().chain(rest).take(GATHER_FACTS) {
                if !order.outbox.is_unheard(&path) {
                    unsure |= order.outbox.is_ahead(&path) || self.0.rules.stays_here(&path);
                    if let Some(register) = order.outbox.filled(&path, register) {
                        batch.register(&path, &register);
                    }
                }
                last = Some(path);
            }
        }
        if unsure {
            self.0.disk.journal.sync()?;
        }
        Ok((batch, last))
    }
}
