//! The queue: records that are in the journal and not yet remote, oldest first.
//!
//! Owns what is known of every path with changes in the queue. This decides which changes need not
//! be sent at all. Must never reorder or split a record.

use std::collections::{HashSet, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crate::digest::Digest;
use crate::hashing::FastMap;
use crate::local::Seq;
use crate::name::TreePath;
use crate::namespace::{Change, Entry, EntryKind, Fold, Op, Register, Time};
use crate::stamp::Stamp;
use crate::sync::batch::{Batch, Taken};

/// The most changes that a batch collects; a single record may have more.
const BATCH_CHANGES_MAX: usize = 4096;
/// The most bytes of content that a batch collects; a single record may put more.
const BATCH_BYTES_MAX: u64 = 64 << 20;
/// The most bytes that the changes of a batch may take in a commit, approximately.
const BATCH_META_BYTES_MAX: u64 = 16 << 20;
/// Contents smaller than this are stored in packs.
pub(in crate::sync) const PACKED_BELOW_BYTES: u64 = 1 << 20;

/// The size of a record.
#[derive(Clone, Copy, Debug, Default)]
pub(in crate::sync::ledger) struct Weight {
    changes: usize,
    /// The content of all files.
    bytes: u64,
    /// The content of the files that are stored in packs.
    packed: u64,
    /// The changes themselves.
    pub(in crate::sync::ledger) meta: u64,
}

impl Weight {
    pub(in crate::sync::ledger) fn of(changes: &[Change]) -> Self {
        let mut weight = Self { changes: changes.len(), ..Self::default() };
        for change in changes {
            weight.meta += 64 + change.path.as_bytes().len() as u64;
            match &change.op {
                Op::Put(entry) => {
                    weight.meta += 128 + entry_bytes(entry);
                    let size = entry.content().map_or(0, |(_, size)| size);
                    weight.bytes += size;
                    weight.packed += if size < PACKED_BELOW_BYTES { size } else { 0 };
                }
                Op::Attrs { attrs, .. } => weight.meta += 64 + attrs.xattr_bytes() as u64,
                Op::Remove => {}
            }
        }
        weight
    }

    fn plus(self, other: Self) -> Self {
        Self {
            changes: self.changes + other.changes,
            bytes: self.bytes + other.bytes,
            packed: self.packed + other.packed,
            meta: self.meta + other.meta,
        }
    }

    fn minus(self, other: Self) -> Self {
        Self {
            changes: self.changes - other.changes,
            bytes: self.bytes - other.bytes,
            packed: self.packed - other.packed,
            meta: self.meta - other.meta,
        }
    }

    fn is_full(self) -> bool {
        self.changes >= BATCH_CHANGES_MAX
            || self.bytes >= BATCH_BYTES_MAX
            || self.meta >= BATCH_META_BYTES_MAX
    }

    fn is_over(self) -> bool {
        self.changes > BATCH_CHANGES_MAX
            || self.bytes > BATCH_BYTES_MAX
            || self.meta > BATCH_META_BYTES_MAX
    }
}

fn entry_bytes(entry: &Entry) -> u64 {
    let target = match &entry.kind {
        EntryKind::Symlink { target } => target.len() as u64,
        _ => 0,
    };
    target + entry.attrs.xattr_bytes() as u64
}

/// Whether a held record may be sent.
#[derive(Debug, Clone)]
pub(in crate::sync::ledger) struct Hold(Arc<AtomicBool>);

impl Hold {
    pub(in crate::sync::ledger) fn new() -> Self {
        Self(Arc::new(AtomicBool::new(true)))
    }

    pub(in crate::sync::ledger) fn release(&self) {
        self.0.store(false, Ordering::Release);
    }

    fn holds(&self) -> bool {
        self.0.load(Ordering::Acquire)
    }
}

#[derive(Debug)]
struct WaitingRecord {
    seq: Seq,
    changes: Vec<Change>,
    weight: Weight,
    /// When it was published, by the monotonic clock.
    at: Duration,
    hold: Option<Hold>,
}

/// What is known of a path with changes in the queue.
#[derive(Debug, Default)]
struct Trail {
    /// How many changes of it are in the queue or in flight.
    changes: u32,
    /// Whether other nodes know something of it, or are about to: then no change of it may be
    /// omitted.
    known: bool,
    /// The tombstone that was there before the first of the changes.
    before: Option<Register>,
}

/// What the publisher can take from the queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::sync) enum Outlook {
    /// Nothing can be taken.
    Nothing,
    /// Nothing can be taken for this long, or until a release.
    Held(Duration),
    /// Something can be taken, and more may come.
    Open,
    /// There is enough for a batch.
    Full,
}

#[derive(Debug, Default)]
pub(super) struct Queue {
    waiting: VecDeque<WaitingRecord>,
    weight: Weight,
    paths: FastMap<TreePath, Trail>,
    /// What other nodes know of the paths with changes in the queue; no register if they know
    /// nothing.
    committed: Fold,
    /// Records and bytes of batches that were taken and are not yet remote, with the time of the
    /// oldest record in each.
    flying: VecDeque<(u64, u64, Duration)>,
}

impl Queue {
    /// Notes that a change is about to be applied and queued. `register` is what other nodes know
    /// of its path, and `known` is whether they know of an entry there.
    pub(super) fn track(&mut self, change: &Change, register: Option<Register>, known: bool) {
        let trail = self.paths.entry(change.path.clone()).or_insert_with(|| {
            if let Some(register) = &register {
                self.committed.restore(&change.path, register);
            }
            Trail { changes: 0, known, before: register.filter(|_| !known) }
        });
        trail.changes += 1;
    }

    /// Notes that other nodes know something of a path. Returns whether it has changes in the
    /// queue.
    pub(super) fn touch(&mut self, path: &TreePath) -> bool {
        self.paths.get_mut(path).is_some_and(|trail| {
            trail.known = true;
            true
        })
    }

    /// Forgets what other nodes were taken to know of a path if it has one of the `queued` stamps:
    /// the earlier run may have kept changes there that it had not sent.
    pub(super) fn disown(&mut self, path: &TreePath, queued: &HashSet<Stamp>) {
        let Some(mut register) = self.committed.register(path) else { return };
        if queued.contains(&register.stamp) {
            self.committed.reset(path, None);
        } else if register.attr_stamp.is_some_and(|stamp| queued.contains(&stamp)) {
            register.attr_stamp = None;
            self.committed.reset(path, Some(register));
        }
    }

    /// Notes a change that other nodes know of a path, if it has changes in the queue. Returns
    /// whether it has.
    pub(super) fn hear(&mut self, change: &Change) -> bool {
        let waits = self.touch(&change.path);
        if waits {
            self.committed.apply(change, Time::default());
        }
        waits
    }

    /// Returns what other nodes know of a path with changes in the queue.
    pub(super) fn committed(&self, path: &TreePath) -> Option<Register> {
        self.committed.register(path)
    }

    /// Reports whether a content is part of what other nodes know of a path with changes in the
    /// queue.
    pub(super) fn uses(&self, digest: &Digest) -> bool {
        self.committed.uses(digest)
    }

    /// Corrects what other nodes know of a path with changes in the queue.
    pub(super) fn rebase(&mut self, path: &TreePath, committed: Option<Register>) {
        self.touch(path);
        self.committed.reset(path, committed);
    }

    /// Counts the changes that wait.
    pub(super) fn changes_left(&self) -> usize {
        self.waiting.iter().map(|waiting| waiting.changes.len()).sum()
    }

    /// Returns the paths with changes in the queue.
    pub(super) fn paths(&self) -> Vec<TreePath> {
        self.paths.keys().cloned().collect()
    }

    /// Reports whether a path has changes in the queue that other nodes may never need.
    pub(super) fn is_private(&self, path: &TreePath) -> bool {
        self.paths.get(path).is_some_and(|trail| !trail.known)
    }

    /// Counts the changes of a path that wait or are in flight.
    pub(super) fn changes(&self, path: &TreePath) -> u32 {
        self.paths.get(path).map_or(0, |trail| trail.changes)
    }

    /// Reports whether a path has changes in the queue.
    pub(super) fn has(&self, path: &TreePath) -> bool {
        self.paths.contains_key(path)
    }

    pub(super) fn push(
        &mut self,
        seq: Seq,
        changes: Vec<Change>,
        at: Duration,
        hold: Option<Hold>,
    ) {
        let weight = Weight::of(&changes);
        self.weight = self.weight.plus(weight);
        self.waiting.push_back(WaitingRecord { seq, changes, weight, at, hold });
    }

    /// Returns whether there is something to take. `enough` is the number of bytes for packs that
    /// make a batch.
    pub(super) fn outlook(&self, now: Duration, enough: u64, hold_max: Duration) -> Outlook {
        let Some(first) = self.waiting.front() else { return Outlook::Nothing };
        if let Some(left) = first.held(now, hold_max) {
            return Outlook::Held(left);
        }
        if self.weight.is_full() || self.weight.packed >= enough {
            return Outlook::Full;
        }
        Outlook::Open
    }

    /// Takes the records of the next batch.
    pub(super) fn take(&mut self, now: Duration, hold_max: Duration) -> Option<Taken> {
        let (mut sum, mut records, mut upto) = (Weight::default(), 0, None);
        let mut changes = Vec::new();
        let oldest = self.waiting.front()?.at;
        while let Some(next) = self.waiting.front() {
            let with = sum.plus(next.weight);
            if next.held(now, hold_max).is_some() || (records > 0 && with.is_over()) {
                break;
            }
            let next = self.waiting.pop_front().expect("the front was just checked");
            self.weight = self.weight.minus(next.weight);
            (sum, upto, records) = (with, Some(next.seq), records + 1);
            changes.extend(next.changes);
        }
        let upto = upto?;
        self.flying.push_back((records, sum.bytes, oldest));
        Some(Taken { upto, records, bytes: sum.bytes, changes })
    }

    /// Takes a batch without records, for amendments without changes.
    pub(super) fn take_nothing(&mut self, now: Duration) -> Taken {
        self.flying.push_back((0, 0, now));
        Taken { upto: Seq(0), records: 0, bytes: 0, changes: Vec::new() }
    }

    /// Omits from a batch what no other node needs: paths that were created and removed in it.
    /// Returns how to reset the fold for them: the path, the removal, and what was there before.
    pub(super) fn settle(&mut self, batch: &mut Batch) -> Vec<(TreePath, Stamp, Option<Register>)> {
        let mut resets = Vec::new();
        for change in &batch.changes {
            if change.op == Op::Remove
                && let Some(trail) = self.paths.get_mut(&change.path)
                && !trail.known
            {
                resets.push((change.path.clone(), change.stamp, trail.before.clone()));
                let count = batch.paths.remove(&change.path).unwrap_or(0);
                self.let_go(&change.path, count);
            }
        }
        // The remaining paths are those that are sent.
        batch.changes.retain(|change| batch.paths.contains_key(&change.path));
        for path in batch.paths.keys() {
            self.touch(path);
        }
        resets
    }

    /// Notes that `count` changes of a path are remote, or need not be.
    pub(super) fn let_go(&mut self, path: &TreePath, count: u32) {
        let Some(trail) = self.paths.get_mut(path) else { return };
        trail.changes = trail.changes.saturating_sub(count);
        if trail.changes == 0 {
            self.paths.remove(path);
            self.committed.reset(path, None);
        }
    }

    /// Notes that the oldest batch that was taken is remote.
    pub(super) fn done(&mut self, batch: &Batch) {
        self.flying.pop_front();
        for change in batch.changes.iter().filter(|change| self.paths.contains_key(&change.path)) {
            self.committed.apply(change, Time::default());
        }
        for (path, count) in &batch.paths {
            self.let_go(path, *count);
        }
        if self.paths.is_empty() {
            // This also drops what it has noted of directories.
            self.committed = Fold::new();
        }
    }

    /// Returns the numbers of records and bytes, and the time of the oldest record.
    pub(super) fn totals(&self) -> (u64, u64, Option<Duration>) {
        let flying = self.flying.iter().fold((0, 0), |sum, one| (sum.0 + one.0, sum.1 + one.1));
        let oldest = self.flying.front().map(|one| one.2).or(self.waiting.front().map(|w| w.at));
        (flying.0 + self.waiting.len() as u64, flying.1 + self.weight.bytes, oldest)
    }

    /// Counts the records that wait to be taken, the held ones among them, and the records that
    /// were taken. Records after a held one wait for it, and count as held.
    pub(super) fn stages(&self, now: Duration, hold_max: Duration) -> (u64, u64, u64) {
        let waiting = self.waiting.len() as u64;
        let held = self.waiting.front().is_some_and(|first| first.held(now, hold_max).is_some());
        let taken = self.flying.iter().map(|one| one.0).sum();
        if held { (0, waiting, taken) } else { (waiting, 0, taken) }
    }

    /// Counts the bytes of the changes that wait, approximately.
    pub(super) fn meta(&self) -> u64 {
        self.weight.meta
    }

    /// Releases all held records.
    pub(super) fn release_all(&mut self) {
        self.waiting.iter().filter_map(|waiting| waiting.hold.as_ref()).for_each(Hold::release);
    }
}

impl WaitingRecord {
    /// Returns how much longer the record is held, if it is.
    fn held(&self, now: Duration, hold_max: Duration) -> Option<Duration> {
        let hold = self.hold.as_ref().filter(|hold| hold.holds())?;
        let left = (self.at + hold_max).saturating_sub(now);
        if left.is_zero() {
            hold.release();
            return None;
        }
        Some(left)
    }
}
