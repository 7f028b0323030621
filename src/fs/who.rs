//! The process behind a request, if it can be seen.

use std::sync::{Arc, Weak};

use crate::hashing::FastMap;

use hearthfs_mount::{Caller, Tasks, Watched};
use parking_lot::Mutex;

/// The identity that decides which unpublished bytes a caller may see.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) enum Who {
    /// A process, by its thread-group id.
    Process(u32),
    /// A caller in a PID namespace that the daemon cannot see into. Nothing is known about it, so
    /// each of its opens counts as a process of its own.
    Unseen,
}

/// Finds the process behind a request.
#[derive(Debug, Clone)]
pub(super) struct Callers {
    tasks: Arc<Tasks>,
    /// The processes that are watched: one descriptor for each, however many drafts it writes.
    watched: Arc<Mutex<FastMap<u32, Weak<Watched>>>>,
}

impl Callers {
    pub(super) fn new(tasks: Arc<Tasks>) -> Self {
        Self { tasks, watched: Arc::default() }
    }

    /// Returns the process of a caller.
    pub(super) fn who(&self, caller: &Caller) -> Who {
        if caller.tid == 0 {
            return Who::Unseen;
        }
        self.tasks.process_of(caller.tid).map_or(Who::Unseen, Who::Process)
    }

    /// Reports whether a group is among the supplementary groups of the caller.
    pub(super) fn is_in_group(&self, caller: &Caller, gid: u32) -> bool {
        caller.tid != 0 && self.tasks.groups_of(caller.tid).contains(&gid)
    }

    /// Begins to watch the process of a caller that still waits for its answer; `None` where it
    /// cannot be watched.
    pub(super) fn watch(&self, who: Who) -> Option<Arc<Watched>> {
        let Who::Process(process) = who else { return None };
        let mut all = self.watched.lock();
        // An ended process may have had the same number.
        let known = all.get(&process).and_then(Weak::upgrade).filter(|one| one.end().is_none());
        if known.is_some() {
            return known;
        }
        all.retain(|_, watched| watched.strong_count() > 0);
        let watched = Arc::new(self.tasks.watch(process)?);
        all.insert(process, Arc::downgrade(&watched));
        Some(watched)
    }

    /// Reports whether a signal is ending the caller, so that the kernel and not the program closes
    /// its files.
    pub(super) fn is_dying(&self, caller: &Caller) -> bool {
        caller.tid != 0 && self.tasks.is_dying(caller.tid)
    }
}
