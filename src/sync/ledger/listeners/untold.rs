//! Changes that were brought in and for which the subscribers were not notified yet: a moment that
//! only a test can extend.

use parking_lot::Mutex;

use super::Moved;
use crate::name::TreePath;
use crate::sync::ledger::Ledger;

/// A count, and the paths that moved.
type MovedPaths = (u64, Option<Vec<TreePath>>);

/// The delayed notifications, while subscribers wait.
#[derive(Default)]
pub(super) struct Untold(Mutex<Option<Vec<MovedPaths>>>);

impl Untold {
    /// Keeps a notification if the subscribers wait.
    pub(super) fn keeps(&self, moved: Moved<'_>) -> bool {
        let mut waiting = self.0.lock();
        if let Some(untold) = &mut *waiting {
            untold.push((moved.count, moved.paths.map(<[TreePath]>::to_vec)));
        }
        waiting.is_some()
    }
}

impl Ledger {
    /// Delays notifications, as if the notifying thread had not run yet.
    pub(crate) fn tell_later(&self) {
        self.0.listeners.untold.0.lock().get_or_insert_default();
    }

    /// Delivers the delayed notifications; with `any`, without the paths, as if very many had
    /// moved.
    pub(crate) fn tell_now(&self, any: bool) {
        let untold = self.0.listeners.untold.0.lock().take();
        for (count, paths) in untold.unwrap_or_default() {
            self.0.listeners.tell(Moved { count, paths: paths.as_deref().filter(|_| !any) });
        }
    }
}
