//! Touches: changes of times by which a client notes that it has used an entry.
//!
//! Such a change is journalled and shown here at once. Other nodes get it together with all others
//! of a minute: the last times of each path. Owns the table of these paths, and what other nodes
//! know of them. Must never hold back any other change, nor a touch of an entry that other nodes do
//! not know yet.

use std::collections::BTreeSet;
use std::ops::Bound;
use std::time::Duration;

use super::Outbox;
use super::queue::Weight;
use crate::digest::Digest;
use crate::error::Result;
use crate::name::TreePath;
use crate::namespace::{Attrs, Change, Fold, Op, Register, Time, Touch};
use crate::stamp::NodeId;
use crate::sync::ledger::stay_rules::StayRules;
use crate::sync::ledger::{Ledger, Locked, RECORD_META_BYTES_MAX};

/// How often touches are sent.
pub(in crate::sync) const TOUCH_EVERY: Duration = Duration::from_mins(1);
/// The most paths that wait. Beyond that, a touch is sent like any other change.
pub(super) const TOUCHED_MAX: usize = 10_000;
/// The most paths in one record, so that the order lock is not held for long.
const TOGETHER_MAX: usize = 1000;

/// The paths whose times other nodes do not know.
#[derive(Debug, Default)]
pub(super) struct Touched {
    paths: BTreeSet<TreePath>,
    /// What other nodes know of them.
    known: Fold,
}

impl Touched {
    /// Reports whether other nodes do not know the times of a path.
    pub(super) fn has(&self, path: &TreePath) -> bool {
        self.paths.contains(path)
    }

    /// Returns what other nodes know of a path with such times.
    pub(super) fn known(&self, path: &TreePath) -> Option<Register> {
        self.known.register(path)
    }

    /// Reports whether a content is part of what other nodes know of a path with such times.
    pub(super) fn uses(&self, digest: &Digest) -> bool {
        self.known.uses(digest)
    }

    /// Notes a change that other nodes know.
    pub(super) fn hear(&mut self, change: &Change) {
        if self.has(&change.path) {
            self.known.apply(change, Time::default());
        }
    }

    /// Forgets all paths, because the namespace is rebuilt and does not have these times.
    pub(super) fn clear(&mut self) {
        *self = Self::default();
    }

    fn note(&mut self, path: &TreePath, known: &Register) {
        if self.paths.insert(path.clone()) {
            self.known.restore(path, known);
        }
    }

    /// Forgets a path, because its times are sent. Returns what other nodes know of it.
    pub(super) fn sent(&mut self, path: &TreePath) -> Option<Register> {
        if !self.paths.remove(path) {
            return None;
        }
        let known = self.known.register(path);
        self.known.reset(path, None);
        if self.paths.is_empty() {
            // This also drops what it has noted of directories.
            self.known = Fold::new();
        }
        known
    }
}

impl Outbox {
    /// Returns the register that a change touches, if it is a touch: it only moves the times of an
    /// entry that other nodes know, and only notes a use.
    fn touches(&self, rules: &StayRules, fold: &Fold, change: &Change) -> Option<Register> {
        let Op::Attrs { of, attrs } = &change.op else { return None };
        if rules.classify(&change.path).touch != Some(Touch::Times)
            || self.queue.has(&change.path)
            || self.touched.paths.len() >= TOUCHED_MAX
        {
            return None;
        }
        let register = fold.register(&change.path).filter(|register| register.stamp == *of)?;
        let now = register.entry.as_ref().map(|entry| entry.attrs.clone()).unwrap_or_default();
        let used = Attrs { mtime: attrs.mtime, atime: attrs.atime, ..now };
        (used == *attrs).then_some(register)
    }
}

impl Locked<'_> {
    /// Applies a change to the namespace if it is a touch; a touch is not queued. Reports whether
    /// it is one.
    pub(in crate::sync::ledger) fn take_touch(&mut self, change: &Change, now: Time) -> bool {
        let Self { ledger, order, fold } = self;
        let Some(known) = order.outbox.touches(&ledger.0.rules, fold, change) else { return false };
        order.outbox.touched.note(&change.path, &known);
        fold.apply(change, now);
        order.saved.path_moved(&change.path);
        true
    }
}

impl Ledger {
    /// Queues the waiting touches for the remote. Blocks on the local disk. Touches that an error
    /// leaves are sent the next time.
    pub(in crate::sync) fn send_touches(&self) -> Result<()> {
        let mut after = None;
        loop {
            after = self.send_some_touches(after.as_ref())?;
            if after.is_none() {
                return self.send_rides();
            }
        }
    }

    /// Sends the touches after a path, as many as one record may hold. Returns the last path.
    fn send_some_touches(&self, after: Option<&TreePath>) -> Result<Option<TreePath>> {
        let mut order = self.0.order.lock();
        let order = &mut *order;
        let (mut paths, mut changes, mut meta) = (Vec::new(), Vec::new(), 0);
        {
            let fold = self.0.fold.read();
            let from = after.map_or(Bound::Unbounded, Bound::Excluded);
            let touched = order.outbox.touched.paths.range::<TreePath, _>((from, Bound::Unbounded));
            for path in touched.take(TOGETHER_MAX) {
                if let Some(change) = times_of(&fold, path, self.node()) {
                    meta += Weight::of(std::slice::from_ref(&change)).meta;
                    if meta > RECORD_META_BYTES_MAX {
                        break;
                    }
                    changes.push(change);
                }
                paths.push(path.clone());
            }
        }
        if !changes.is_empty() {
            self.check_bounds(order, &changes)?;
            let seq = self.0.disk.journal.append(&changes)?;
            {
                let mut fold = self.0.fold.write();
                let mut locked = self.locked(order, &mut fold);
                for change in &changes {
                    locked.track(seq, change);
                }
            }
            self.enqueue(order, seq, changes, None);
        }
        for path in &paths {
            order.outbox.touched.sent(path);
        }
        Ok(paths.pop())
    }
}

/// Returns the change that gives other nodes the times of a path, if the node `own` has set them
/// last.
fn times_of(fold: &Fold, path: &TreePath, own: NodeId) -> Option<Change> {
    let register = fold.register(path)?;
    let attrs = register.entry?.attrs;
    let (of, stamp) = (register.stamp, register.attr_stamp?);
    let op = Op::Attrs { of, attrs };
    (stamp.node == own).then(|| Change { path: path.clone(), stamp, op })
}
