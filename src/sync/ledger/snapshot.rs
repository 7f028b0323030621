//! Snapshots: what was remote at one moment, handed out in slices.
//!
//! Owns the difference between what this node shows and what other nodes can know: a snapshot
//! contains neither changes in the queue nor changes after it began. Must never hold a lock for
//! longer than a slice takes. Must never keep more than what has moved meanwhile: a copy of a
//! million entries would stop every program for a second, and double the memory.

use std::collections::BTreeMap;

use super::{Ledger, Ordered};
use crate::digest::Digest;
use crate::error::{Error, Kind, Result};
use crate::name::TreePath;
use crate::namespace::{Fold, Location, Register};
use crate::remote::{CheckpointChain, CheckpointEarly};
use crate::stamp::Stamp;
use crate::sync::missing::Missing;

/// How many registers are taken under the lock at once; this takes a millisecond or two.
const SLICE: usize = 2000;
/// How many locations are examined under the lock at once.
const SLICE_LOCATIONS: usize = 8000;

/// Registers with the places of their contents.
pub(in crate::sync) type Slice = Vec<(TreePath, Register, Option<Location>)>;

/// What has moved since a snapshot began, as it was in the remote at that moment.
#[derive(Debug)]
pub(super) struct Before {
    /// The stamp of the snapshot.
    name: Stamp,
    /// The last path that was handed out.
    upto: Option<TreePath>,
    registers: BTreeMap<TreePath, Option<Register>>,
}

impl Ordered {
    /// Keeps what is remote of a path for the snapshot in progress. Must be called before the path
    /// moves.
    pub(super) fn keep(&mut self, path: &TreePath, fold: &Fold) {
        let Some(before) = &mut self.before else { return };
        if before.upto.as_ref().is_some_and(|upto| path <= upto)
            || before.registers.contains_key(path)
        {
            return;
        }
        let register = self.outbox.known_to_others(path, || fold.register(path));
        before.registers.insert(path.clone(), register);
    }
}

/// What was remote at one moment.
pub(in crate::sync) struct Snapshot {
    ledger: Ledger,
    /// The stamp of the snapshot, later than all that was remote.
    pub(in crate::sync) stamp: Stamp,
    /// The names of the folded commits, ascending.
    pub(in crate::sync) commits: Vec<Stamp>,
    pub(in crate::sync) chains: Vec<CheckpointChain>,
    pub(in crate::sync) early: Vec<CheckpointEarly>,
    mark: u32,
}

impl Ledger {
    /// Begins a snapshot in which the `known` commits are missing. `None` if others are missing by
    /// now, while another snapshot is in progress, and while it is unknown what is remote, because
    /// records of an earlier run are not.
    pub(in crate::sync) fn snapshot(&self, known: &Missing) -> Option<Snapshot> {
        if !self.0.signs.is_replayed() {
            return None;
        }
        let stamp = self.name_stamp();
        let mut order = self.0.order.lock();
        if order.before.is_some() || order.log.missing() != known {
            return None;
        }
        order.before = Some(Before { name: stamp, upto: None, registers: BTreeMap::new() });
        let (commits, chains) = (order.log.sorted(), order.log.chains().all());
        let fold = self.0.fold.read();
        let early = fold.early_attrs().map(|(path, of, stamp, attrs)| CheckpointEarly {
            path: path.clone(),
            of,
            stamp,
            attrs: attrs.clone(),
        });
        let early = early.collect();
        Some(Snapshot { ledger: self.clone(), stamp, commits, chains, early, mark: 0 })
    }

    /// Counts, for each of these times, the commits that were made after it, and returns when the
    /// first of those was made.
    pub(in crate::sync) fn since<const N: usize>(&self, times_ms: [u64; N]) -> [(u64, u64); N] {
        self.log(|log| log.since(times_ms))
    }

    /// Counts the commits of all nodes that were folded soon after they were made.
    pub(in crate::sync) fn busyness(&self) -> u64 {
        self.0.counts.fresh()
    }

    /// Counts the commits that were ever folded; while the count stays the same, a caller need not
    /// check.
    pub(in crate::sync) fn folded(&self) -> u64 {
        self.0.counts.folded()
    }
}

impl Snapshot {
    /// Returns the next registers with the places of their contents, in path order; `None` at the
    /// end.
    pub(in crate::sync) fn registers(&mut self) -> Result<Option<Slice>> {
        let mut order = self.ledger.0.order.lock();
        let order = &mut *order;
        let fold = self.ledger.0.fold.read();
        let upto = self.before(order)?.upto.clone();
        let root = TreePath::root();
        let first = upto.is_none().then(|| fold.register(&root)).flatten();
        let first = first.map(|register| (root.clone(), register));
        let after = upto.unwrap_or(root);
        let slice: Vec<_> =
            first.into_iter().chain(fold.registers_after(&after)).take(SLICE).collect();
        let Some((last, _)) = slice.last() else { return Ok(None) };
        let last = last.clone();
        let mut out = Vec::with_capacity(slice.len());
        for (path, shown) in slice {
            if self.ledger.0.rules.stays_here(&path) {
                continue;
            }
            let kept = order.before.as_mut().and_then(|before| before.registers.remove(&path));
            let register =
                kept.unwrap_or_else(|| order.outbox.known_to_others(&path, || Some(shown)));
            let Some(register) = register else { continue };
            let content = register.entry.as_ref().and_then(crate::namespace::Entry::content);
            // A content that only this node could not read is given the place in the log, for nodes
            // that start from this.
            let location = content.and_then(|(digest, _)| {
                fold.location(&digest).or_else(|| order.bad.place(&digest).cloned())
            });
            out.push((path, register, location));
        }
        let before = self.before(order)?;
        // Registers after that which no longer exist were purged.
        before.registers = before.registers.split_off(&last);
        before.upto = Some(last);
        Ok(Some(out))
    }

    /// Returns places of contents that no file has; `None` at the end.
    pub(in crate::sync) fn locations(&mut self) -> Option<Vec<(Digest, Location)>> {
        let fold = self.ledger.0.fold.read();
        let slice: Vec<_> = fold.locations_from(self.mark).take(SLICE_LOCATIONS).collect();
        self.mark = slice.last()?.0;
        let unused = slice.into_iter().filter(|(_, digest, _)| !fold.uses(digest));
        Some(unused.map(|(_, digest, location)| (digest, location)).collect())
    }

    fn before<'a>(&self, order: &'a mut Ordered) -> Result<&'a mut Before> {
        let own = order.before.as_mut().filter(|before| before.name == self.stamp);
        own.ok_or_else(|| Error::new(Kind::Closed, "the namespace was replaced meanwhile"))
    }
}

impl Drop for Snapshot {
    fn drop(&mut self) {
        let mut order = self.ledger.0.order.lock();
        if order.before.as_ref().is_some_and(|before| before.name == self.stamp) {
            order.before = None;
        }
    }
}
