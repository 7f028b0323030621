//! Which clients and entries are busy, counted while a client watches.
//!
//! Owns these counts. Must never cost anything while no client watches: opens are not counted then.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;

use crate::hashing::FastMap;
use crate::name::TreePath;
use crate::namespace::{Profiles, is_edition};

/// How long one question keeps the counts going.
const WATCHED_FOR: Duration = Duration::from_secs(10);
/// The most entries that are counted at once. When there are more, all counts are halved, and
/// entries that reach 0 are forgotten.
const ENTRIES_MAX: usize = 4096;
/// How many entries an answer lists.
const ENTRIES_TOLD: usize = 50;
/// The name for everything outside the clients' directories.
const NO_CLIENT: &str = "(none)";

/// What was counted since a client began to watch.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct BusyCounts {
    /// Hits and misses by client.
    pub clients: BTreeMap<String, (u64, u64)>,
    /// The entries that were opened most, with the number of their opens. Older opens count less.
    pub entries: Vec<(TreePath, u64)>,
}

#[derive(Debug, Default)]
struct MissCounts {
    clients: BTreeMap<String, (u64, u64)>,
    entries: FastMap<TreePath, u64>,
}

/// The counts.
#[derive(Debug, Default)]
pub(super) struct Busy {
    /// Until when a client watches, in milliseconds of the monotonic clock.
    until_ms: AtomicU64,
    counts: Mutex<MissCounts>,
}

impl Busy {
    /// Reports whether a client watches. Reads the clock only if a client has watched before.
    pub(super) fn is_watched(&self, now: impl FnOnce() -> Duration) -> bool {
        let until_ms = self.until_ms.load(Ordering::Relaxed);
        until_ms > 0 && now().as_millis() < u128::from(until_ms)
    }

    /// Counts an entry that was opened. A file in a draft is not an entry.
    pub(super) fn hit(&self, profiles: &Profiles, path: TreePath) {
        if is_edition(&path) {
            return;
        }
        let client = client(profiles, &path);
        let mut counts = self.counts.lock();
        counts.clients.entry(client).or_default().0 += 1;
        if counts.entries.len() >= ENTRIES_MAX && !counts.entries.contains_key(&path) {
            counts.entries.retain(|_, opens| {
                *opens /= 2;
                *opens > 0
            });
        }
        *counts.entries.entry(path).or_default() += 1;
    }

    /// Counts a lookup of a name that is not there.
    pub(super) fn miss(&self, profiles: &Profiles, path: &TreePath) {
        if is_edition(path) {
            return;
        }
        let client = client(profiles, path);
        self.counts.lock().clients.entry(client).or_default().1 += 1;
    }

    /// Extends the watch and returns the counts. If no client was watching, the counts begin now.
    pub(super) fn watch(&self, now: Duration) -> BusyCounts {
        let was_watched = self.is_watched(|| now);
        let until_ms = (now + WATCHED_FOR).as_millis() as u64;
        let mut counts = self.counts.lock();
        if !was_watched {
            *counts = MissCounts::default();
        }
        self.until_ms.store(until_ms, Ordering::Relaxed);
        let mut entries: Vec<(TreePath, u64)> =
            counts.entries.iter().map(|(path, opens)| (path.clone(), *opens)).collect();
        let clients = counts.clients.clone();
        drop(counts);
        entries.sort_by(|a, b| b.1.cmp(&a.1).then_with(|| a.0.cmp(&b.0)));
        entries.truncate(ENTRIES_TOLD);
        BusyCounts { clients, entries }
    }
}

fn client(profiles: &Profiles, path: &TreePath) -> String {
    let clients = profiles.clients(path);
    clients.first().map_or_else(|| NO_CLIENT.to_owned(), |(profile, _)| profile.name.clone())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::namespace::EDITIONS;

    fn path(text: &str) -> TreePath {
        text.split('/').fold(TreePath::root(), |dir, name| dir.join(name.as_bytes()).unwrap())
    }

    #[test]
    fn counts_begin_with_a_watcher_and_end_without() {
        let (busy, profiles) = (Busy::default(), Profiles::default());
        let at = Duration::from_secs;
        assert!(!busy.is_watched(|| at(1)));
        assert_eq!(busy.watch(at(1)), BusyCounts::default());
        assert!(busy.is_watched(|| at(10)));
        for (name, opens) in [("jax/jit_f-1-cache", 3), ("mine/x", 1)] {
            (0..opens).for_each(|_| busy.hit(&profiles, path(name)));
        }
        busy.miss(&profiles, &path("jax/jit_f-2-cache"));
        let draft = TreePath::root().join(EDITIONS).and_then(|dir| dir.join(b"x")).unwrap();
        busy.miss(&profiles, &draft);
        busy.hit(&profiles, draft);
        let counts = busy.watch(at(10));
        let clients = [("(none)", (1, 0)), ("jax", (3, 1))].map(|(name, n)| (name.to_owned(), n));
        assert_eq!(counts.clients, BTreeMap::from(clients));
        assert_eq!(counts.entries, [(path("jax/jit_f-1-cache"), 3), (path("mine/x"), 1)]);
        assert!(busy.is_watched(|| at(19)) && !busy.is_watched(|| at(20)));
        assert_eq!(busy.watch(at(30)), BusyCounts::default(), "the counts begin again");
    }

    /// P13: however many entries are opened, few are remembered, and the busiest are among them.
    #[test]
    fn the_busiest_entries_stay_and_memory_is_bounded() {
        let (busy, profiles) = (Busy::default(), Profiles::default());
        busy.watch(Duration::ZERO);
        for number in 0..5 * ENTRIES_MAX {
            busy.hit(&profiles, path(&format!("mine/{number}")));
            busy.hit(&profiles, path("mine/often"));
        }
        assert!(busy.counts.lock().entries.len() <= ENTRIES_MAX);
        (0..2 * ENTRIES_TOLD)
            .for_each(|number| busy.hit(&profiles, path(&format!("new/{number}"))));
        let counts = busy.watch(Duration::from_secs(1));
        assert_eq!(counts.entries.len(), ENTRIES_TOLD);
        assert_eq!(counts.entries[0].0, path("mine/often"));
    }
}
