//! What was brought in and the subscribers were not told yet: a moment that only a test can make last.

use parking_lot::Mutex;

use super::Moved;
use crate::name::TreePath;
use crate::sync::ledger::Ledger;

/// A count, and the paths that moved.
type MovedPaths = (u64, Option<Vec<TreePath>>);

/// What they will be told, while they wait.
#[derive(Default)]
pub(super) struct Untold(Mutex<Option<Vec<MovedPaths>>>);

impl Untold {
    /// Keeps what is to be told, if the subscribers wait.
    pub(super) fn keeps(&self, moved: Moved<'_>) -> bool {
        let mut waiting = self.0.lock();
        if let Some(untold) = &mut *waiting {
            untold.push((moved.count, moved.paths.map(<[TreePath]>::to_vec)));
        }
        waiting.is_some()
    }
}

impl Ledger {
    /// Has the subscribers wait, as where the thread that tells them has not come to it yet.
    pub(crate) fn tell_later(&self) {
        self.0.listeners.untold.0.lock().get_or_insert_default();
    }

    /// Tells the subscribers what they wait for; `any`: without the paths, as where very many have moved.
    pub(crate) fn tell_now(&self, any: bool) {
        let untold = self.0.listeners.untold.0.lock().take();
        for (count, paths) in untold.unwrap_or_default() {
            self.0.listeners.tell(Moved { count, paths: paths.as_deref().filter(|_| !any) });
        }
    }
}
