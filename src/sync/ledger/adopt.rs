//! Adopting another namespace in place of the present one.
//!
//! Owns which local state survives this: changes that are not remote, and the times at which
//! directories moved. Must never adopt entries that only the old namespace has: their tombstones
//! may have been forgotten meanwhile, and they would come back.

use tokio::sync::MutexGuard;

use super::{Ledger, Moved};
use crate::name::TreePath;
use crate::namespace::{Fold, Time};
use crate::stamp::{MAX_AHEAD_MS, Stamp};
use crate::sync::draft::LogView;

/// The most paths that a notification names; if more have moved, it says that any path may have.
const TOLD_MAX: usize = 10_000;

impl Ledger {
    /// Returns when the log was last listed and folded, in the store's time; 0 if never.
    pub(in crate::sync) fn listed_ms(&self) -> u64 {
        self.0.order.lock().times.listed_ms()
    }

    /// Reports whether commits are missing in what was folded.
    pub(in crate::sync) fn is_partial(&self) -> bool {
        !self.log(|log| log.missing().is_empty())
    }

    /// Prevents commits of this node from being noted as remote while the guard is held.
    pub(in crate::sync) async fn landing(&self) -> MutexGuard<'_, ()> {
        self.0.landing.lock().await
    }

    /// Replaces the namespace by a draft; changes that this node has published and that are not
    /// remote stay. Must be called during [`Ledger::landing`], with all commits of this node in
    /// the draft that are in the log: their changes are known nowhere else here any more.
    pub(in crate::sync) fn adopt(&self, draft: LogView) {
        let latest = latest(draft.fold(), self.now_ms());
        let (moved, old, count) = {
            // A save in progress would add what follows to the old state in the index.
            let _saving = self.0.disk.saving.lock();
            let mut order = self.0.order.lock();
            let order = &mut *order;
            let (mut new, log) = draft.into_parts();
            let mut fold = self.0.fold.write();
            self.locked(order, &mut new).keep_own(&fold);
            // Everything is new to a node that had nothing, and to no other node.
            let nothing = fold.registers().next().is_none();
            let moved = (!nothing).then(|| difference(&fold, &new));
            new.take_times(&mut fold);
            let parts = moved.as_deref().unwrap_or_default();
            touch_parents(&mut new, parts, Time::from_wall(self.0.clock.wall()));
            // The index keeps its old state until it is filled with the new one.
            self.0.disk.index.renew();
            order.own.save_again();
            order.saved.replaced_by(&log);
            order.log = log;
            order.before = None;
            let old = std::mem::replace(&mut *fold, new);
            self.0.counts.note_replaced();
            (moved, old, self.0.listeners.count())
        };
        // Without the locks: dropping a million entries takes time.
        drop(old);
        if let Some(stamp) = latest {
            self.observe(stamp, self.now_ms());
        }
        let paths = moved.as_deref().filter(|moved| moved.len() <= TOLD_MAX);
        self.0.listeners.tell(Moved { count, paths });
    }

    /// Forgets a path, as every node forgets by itself what is past its age.
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

/// Notes that the content of the directories moved in which these paths (sorted) have changed. If a
/// directory itself is among them and was given later times, these times stay.
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

/// Returns the paths that differ between two namespaces, in path order.
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
