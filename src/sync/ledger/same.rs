//! Changes that change nothing.
//!
//! Owns the decision whether a record repeats what is in effect already. Such a record takes no
//! stamp, and is sent neither to the journal nor to another node. Must never omit a change that
//! makes an entry live longer or brings lost bytes back: that is a change, although it looks the
//! same.

use super::{Ledger, Ordered};
use crate::name::TreePath;
use crate::namespace::{Entry, Fold, Op, Register};
use crate::stamp::Stamp;

impl Ledger {
    /// Returns the stamp of the existing change for each operation, if all of them together change
    /// nothing.
    ///
    /// A record is dropped whole or not at all: beside a real change, equal attributes still move a
    /// `ctime`, and a path that the record touches twice needs no check.
    pub(super) fn standing(
        &self,
        order: &Ordered,
        fold: &Fold,
        ops: &[(TreePath, Op)],
    ) -> Option<Vec<Stamp>> {
        let stamps = ops.iter().map(|(path, op)| self.stands(order, fold, path, op));
        let stamps: Vec<Stamp> = stamps.collect::<Option<_>>()?;
        for digest in ops.iter().filter_map(|(_, op)| put_content(op)) {
            // The writer has marked the blob as one that must be kept for the store.
            let kept = self.0.reliance.is_unsent(&digest) || order.own.holds(&digest);
            if fold.stored_ms(&digest).is_some() && !kept {
                self.0.disk.blobs.mark_saved(&digest);
            }
        }
        Some(stamps)
    }

    fn stands(&self, order: &Ordered, fold: &Fold, path: &TreePath, op: &Op) -> Option<Stamp> {
        match op {
            // Other nodes do not have what an earlier, private mount has left here.
            Op::Put(_) if !self.0.rules.is_private() && order.outbox.is_private(path) => None,
            // Over a tombstone it is a change: it also removes older changes that have not arrived
            // yet.
            Op::Remove => (!fold.knows(path) && !fold.is_directory(path)).then(Stamp::default),
            Op::Attrs { of, attrs } => {
                let (register, entry) = self.lasting(fold, path)?;
                (register.stamp == *of && entry.attrs == *attrs).then(|| register.last_stamp())
            }
            Op::Put(put) => {
                let (register, entry) = self.lasting(fold, path)?;
                (entry == *put).then_some(register.stamp)
            }
        }
    }

    /// Returns what is shown at a path, with its times as shown, unless publishing it again would
    /// make it live longer.
    fn lasting(&self, fold: &Fold, path: &TreePath) -> Option<(Register, Entry)> {
        let register = fold.visible(path)?;
        let mut entry = register.entry.clone()?;
        self.shown(fold, path, &entry, Some(register.changed_ms()))?;
        let digest = entry.content().map(|(digest, _)| digest);
        let old = match digest.filter(|digest| !digest.is_empty_content()) {
            None => self.0.reliance.is_half_over(register.changed_ms()),
            Some(digest) if self.0.reliance.is_unsent(&digest) => false,
            Some(digest) => match fold.stored_ms(&digest) {
                Some(stored_ms) => self.0.reliance.is_unsure(&digest, stored_ms),
                // The store has lost it; the next node that writes it brings it back.
                None => self.0.remote.is_some(),
            },
        };
        if let Some(moved) = fold.moved(path).filter(|_| entry.is_directory()) {
            entry.attrs.mtime = moved;
        }
        (!old).then_some((register, entry))
    }
}

fn put_content(op: &Op) -> Option<crate::digest::Digest> {
    let Op::Put(entry) = op else { return None };
    entry.content().map(|(digest, _)| digest)
}
