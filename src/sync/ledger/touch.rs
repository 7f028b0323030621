//! Touches: changes of times by which a client notes that it has used an entry.
//!
//! Such a change is journalled and shown here at once. Others get it together with all that came within a minute: the
//! last times of each path, in one record. Owns the table of these paths. Must never hold back a change of anything else,
//! nor a touch of what others do not know yet.

use std::collections::BTreeSet;
use std::time::Duration;

use super::{Ledger, Order};
use crate::error::Result;
use crate::name::TreePath;
use crate::namespace::{Attrs, Change, Fold, Op, Time, Touch};

/// How often touches are sent.
pub(in crate::sync) const TOUCH_EVERY: Duration = Duration::from_mins(1);
/// The most paths that wait. Beyond that a touch is a change as any other.
const TOUCHED_MAX: usize = 10_000;

/// The paths whose times others do not know.
#[derive(Debug, Default)]
pub(super) struct Touched(BTreeSet<TreePath>);

impl Touched {
    /// Reports whether others do not know the times of a path.
    pub(super) fn has(&self, path: &TreePath) -> bool {
        self.0.contains(path)
    }

    /// Forgets a path, because its times are sent.
    pub(super) fn sent(&mut self, path: &TreePath) {
        self.0.remove(path);
    }
}

impl Ledger {
    /// Takes the touches out of the changes of a record, and brings them into the namespace.
    pub(super) fn take_touches(
        &self,
        order: &mut Order,
        fold: &mut Fold,
        changes: Vec<Change>,
        now: Time,
    ) -> Vec<Change> {
        let mut sent = Vec::with_capacity(changes.len());
        for change in changes {
            if self.is_touch(order, fold, &change) {
                fold.apply(&change, now);
                order.dirty.paths.insert(change.path.clone());
                order.touched.0.insert(change.path);
            } else {
                order.touched.sent(&change.path);
                sent.push(change);
            }
        }
        sent
    }

    /// Reports whether a change only moves the times of an entry that others know, and is a mere use of it.
    fn is_touch(&self, order: &Order, fold: &Fold, change: &Change) -> bool {
        let Op::Attrs { of, attrs } = &change.op else { return false };
        if self.0.profiles.classify(&change.path).touch != Some(Touch::Times)
            || order.queue.has(&change.path)
            || order.touched.0.len() >= TOUCHED_MAX
        {
            return false;
        }
        fold.register(&change.path).filter(|register| register.stamp == *of).is_some_and(|known| {
            let now = known.entry.map(|entry| entry.attrs).unwrap_or_default();
            Attrs { mtime: attrs.mtime, atime: attrs.atime, ..now } == *attrs
        })
    }

    /// Puts the touches that wait on their way to the remote.
    pub(in crate::sync) fn send_touches(&self) -> Result<()> {
        let mut order = self.0.order.lock();
        let order = &mut *order;
        let changes: Vec<Change> = {
            let fold = self.0.fold.read();
            let times = |path: &TreePath| {
                let register = fold.register(path)?;
                let attrs = register.entry?.attrs;
                let (of, stamp) = (register.stamp, register.attr_stamp?);
                Some(Change { path: path.clone(), stamp, op: Op::Attrs { of, attrs } })
            };
            order.touched.0.iter().filter_map(times).collect()
        };
        if !changes.is_empty() {
            let seq = self.0.journal.append(&changes)?;
            {
                let fold = self.0.fold.read();
                for change in &changes {
                    order.queue.track(change, &fold);
                }
            }
            order.queue.push(seq, changes, self.0.clock.mono(), None);
            self.note_totals(order);
            self.0.queued.notify_waiters();
        }
        order.touched.0.clear();
        Ok(())
    }
}
