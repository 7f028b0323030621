//! Adopting another namespace in place of the one in use.
//!
//! Owns what of ours has to survive that: changes that are not remote, and when directories moved. Must
//! never take over what only the old namespace has: entries whose tombstones were forgotten meanwhile
//! would come back.

use std::collections::HashSet;

use tokio::sync::MutexGuard;

use super::{Ledger, Moved};
use crate::name::TreePath;
use crate::namespace::{Fold, Time};
use crate::stamp::{MAX_AHEAD_MS, Stamp};
use crate::sync::draft::LogView;

/// Paths that a notification names; when more have moved, it says that any may have.
const TOLD_MAX: usize = 10_000;

/// A draft that lacks what this node itself has put into the log meanwhile.
#[derive(Debug)]
pub(in crate::sync) struct Overtaken {
    pub(in crate::sync) draft: LogView,
    /// The names of these commits, ascending.
    pub(in crate::sync) landed: Vec<Stamp>,
}

impl Ledger {
    /// Returns when the log was listed and folded last, in the store's time; 0 is never.
    pub(in crate::sync) fn listed_ms(&self) -> u64 {
        self.0.order.lock().times.listed_ms()
    }

    /// Reports whether commits are missing in what was folded.
    pub(in crate::sync) fn is_partial(&self) -> bool {
        !self.log(|log| log.missing().is_empty())
    }

    /// Lets no commit of this node be noted as remote for as long as this is held.
    pub(in crate::sync) async fn landing(&self) -> MutexGuard<'_, ()> {
        self.0.landing.lock().await
    }

    /// Replaces the namespace by a draft; what this node has published and is not remote stays. Hands the
    /// draft back if it lacks commits of this node that are in the log, but for those `passed`: nothing
    /// else here knows any more what they hold.
    pub(in crate::sync) fn adopt(
        &self,
        draft: LogView,
        passed: &HashSet<Stamp>,
    ) -> Result<(), Box<Overtaken>> {
        let latest = latest(draft.fold(), self.now_ms());
        let (moved, old, count) = {
            // A save that is under way would put what follows upon what the index has of before.
            let _saving = self.0.disk.saving.lock();
            let mut order = self.0.order.lock();
            let order = &mut *order;
            let own = order.log.of_node(self.node());
            let lacking = own.filter(|stamp| !passed.contains(stamp) && !draft.has(stamp));
            let mut landed: Vec<Stamp> = lacking.collect();
            if !landed.is_empty() {
                landed.sort_unstable();
                return Err(Box::new(Overtaken { draft, landed }));
            }
            let (mut new, log) = draft.into_parts();
            let mut fold = self.0.fold.write();
            self.keep_own(order, &fold, &mut new);
            // Everything is new to a node that had nothing, and to no other.
            let nothing = fold.registers().next().is_none();
            let moved = (!nothing).then(|| difference(&fold, &new));
            new.take_times(&mut fold);
            let parts = moved.as_deref().unwrap_or_default();
            touch_parents(&mut new, parts, Time::from_wall(self.0.clock.wall()));
            // The index keeps what it has until it is filled with what is there now.
            self.0.disk.index.renew();
            order.own.save_again();
            order.saved.replaced_by(&log);
            order.log = log;
            order.before = None;
            let old = std::mem::replace(&mut *fold, new);
            self.0.counts.note_replaced();
            (moved, old, self.0.listeners.count())
        };
        // Without the locks: a million entries take their time to go.
        drop(old);
        if let Some(stamp) = latest {
            self.observe(stamp, self.now_ms());
        }
        let paths = moved.as_deref().filter(|moved| moved.len() <= TOLD_MAX);
        self.0.listeners.tell(Moved { count, paths });
        Ok(())
    }

    /// Forgets a path, as every node by itself forgets what is past its age.
    #[cfg(test)]
    pub(in crate::sync) fn forget_for_test(&self, path: &TreePath) {
        let mut order = self.0.order.lock();
        self.0.fold.write().reset(path, None);
        order.saved.path_moved(path);
    }
}

/// Returns the latest stamp that our own clock may follow.
fn latest(fold: &Fold, now_ms: u64) -> Option<Stamp> {
    fold.stamps().filter(|stamp| stamp.ms <= now_ms.saturating_add(MAX_AHEAD_MS)).max()
}

/// Notes that the content of the directories moved in which these paths, in path order, are not the same any
/// more; where a directory is among them, times that it was given later stand.
fn touch_parents(fold: &mut Fold, moved: &[TreePath], now: Time) {
    for path in moved {
        let Some(dir) = path.parent() else { continue };
        let stamp = fold.register(path).map_or(Stamp::default(), |register| register.stamp);
        let given = fold.register(&dir).map(|register| register.last_stamp());
        if given.is_none_or(|given| given <= stamp) || moved.binary_search(&dir).is_err() {
            fold.touch_directory(&dir, stamp, now);
        }
    }
}

/// Returns the paths that do not point to the same any more, in path order.
fn difference(old: &Fold, new: &Fold) -> Vec<TreePath> {
    let mut moved = Vec::new();
    let mut news = new.registers().peekable();
    for (path, register) in old.registers() {
        while let Some((other, _)) = news.next_if(|(other, _)| *other < path) {
            moved.push(other);
        }
        match news.next_if(|(other, _)| *other == path) {
            Some((_, other)) if other == register => {}
            _ => moved.push(path),
        }
    }
    moved.extend(news.map(|(path, _)| path));
    moved
}
