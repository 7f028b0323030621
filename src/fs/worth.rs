//! How much the cache has helped, by client: entries that were served, and entries that were
//! compiled here.
//!
//! An *entry* is what a client counts as one hit or one miss. The profile says which names are
//! entries (`entries`). An entry with bytes is served each time that any program opens it for
//! reading. It is compiled when bytes are published under its name that differ from those before.
//! Its time is counted from the first failed lookup of its name, or of a directory above it, to its
//! publish by the same process. Without such a lookup the time is unknown and counts as 0.
//!
//! Owns the counts and the failed lookups that are remembered. An open that hits takes at most one
//! short lock: that of the blob table, or, in a unit with an index, that of the failed lookups as
//! well. Must never hold one of these locks during I/O. Must never grow with the number of lookups.

use std::num::NonZeroUsize;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use hearthfs_mount::Watched;
use lru::LruCache;
use parking_lot::Mutex;

use super::who::Who;
use crate::metrics::{ClientFigures, Figures};
use crate::name::directories_above;
use crate::namespace::Profiles;

/// How many failed lookups are remembered.
const ASKED_MAX: NonZeroUsize = NonZeroUsize::new(4096).expect("it is not 0");
/// The longest key of a failed lookup, in bytes.
const KEY_BYTES_MAX: usize = 1024;
/// How many processes are left out at once; further ones are counted.
const LEFT_OUT_MAX: usize = 64;
/// An entry that took longer than this was not compiled in one go.
const TOOK_MAX: Duration = Duration::from_hours(24);

/// The counts of one client.
#[derive(Debug, Default)]
struct ClientCounts {
    local: AtomicU64,
    fetched: AtomicU64,
    compiled: AtomicU64,
    saved_ms: AtomicU64,
}

/// A process and what it has looked up: the path of an entry or of a directory above it, or the
/// common beginning of the names of a unit.
type AskedPaths = (u32, Box<[u8]>);

/// The figures of this node.
#[derive(Debug)]
pub(super) struct Worth {
    /// In the order of the profiles.
    clients: Vec<(String, ClientCounts)>,
    /// The counts of earlier runs, including those of clients that have no profile any more.
    earlier: Figures,
    /// The time of the first failed lookup of each.
    asked: Mutex<LruCache<AskedPaths, Duration>>,
    /// Processes that are left out because they only copy. An open checks this list only if it is
    /// not empty.
    left_out: Mutex<Vec<(u32, Arc<Watched>)>>,
    leaves_out: AtomicBool,
}

/// An entry that is about to be published.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Made {
    pub(super) client: usize,
    pub(super) took_ms: u32,
}

impl Worth {
    pub(super) fn new(profiles: &Profiles, earlier: Figures) -> Self {
        let clients = profiles.all().iter();
        let clients =
            clients.map(|profile| (profile.name.clone(), ClientCounts::default())).collect();
        let (left_out, leaves_out) = (Mutex::default(), AtomicBool::new(false));
        Self { clients, earlier, asked: Mutex::new(LruCache::new(ASKED_MAX)), left_out, leaves_out }
    }

    pub(super) fn read(&self) -> Figures {
        let mut all = self.earlier.clone();
        for (name, counts) in &self.clients {
            let read = |count: &AtomicU64| count.load(Ordering::Relaxed);
            let now = ClientFigures {
                local: read(&counts.local),
                fetched: read(&counts.fetched),
                compiled: read(&counts.compiled),
                saved_ms: read(&counts.saved_ms),
            };
            if now != ClientFigures::default() {
                *all.entry(name.clone()).or_default() += now;
            }
        }
        all
    }

    pub(super) fn served(&self, client: usize, fetched: bool, took_ms: u32) {
        let Some((_, counts)) = self.clients.get(client) else { return };
        let count = if fetched { &counts.fetched } else { &counts.local };
        count.fetch_add(1, Ordering::Relaxed);
        if took_ms > 0 {
            counts.saved_ms.fetch_add(u64::from(took_ms), Ordering::Relaxed);
        }
    }

    pub(super) fn compiled(&self, client: usize) {
        if let Some((_, counts)) = self.clients.get(client) {
            counts.compiled.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Leaves a process out until it ends.
    pub(super) fn leave_out(&self, process: u32, watched: Arc<Watched>) {
        let mut left_out = self.left_out.lock();
        left_out.retain(|(other, watched)| *other != process && watched.end().is_none());
        if left_out.len() < LEFT_OUT_MAX {
            left_out.push((process, watched));
        }
        self.leaves_out.store(true, Ordering::Relaxed);
    }

    pub(super) fn is_left_out(&self, who: Who) -> bool {
        if !self.leaves_out.load(Ordering::Relaxed) {
            return false;
        }
        let left_out = self.left_out.lock();
        let is_it = |(process, watched): &(u32, Arc<Watched>)| {
            who == Who::Process(*process) && watched.end().is_none()
        };
        left_out.iter().any(is_it)
    }

    /// Forgets processes that have ended.
    pub(super) fn forget_ended(&self) {
        let mut left_out = self.left_out.lock();
        left_out.retain(|(_, watched)| watched.end().is_none());
        self.leaves_out.store(!left_out.is_empty(), Ordering::Relaxed);
    }

    /// Notes a failed lookup by a process, or that the process has read an index that may lack what
    /// it wants. The first time counts, because programs look once more before they write.
    pub(super) fn asked(&self, who: Who, key: &[u8], now: Duration) {
        let Who::Process(process) = who else { return };
        if key.len() <= KEY_BYTES_MAX {
            self.asked.lock().get_or_insert((process, key.into()), || now);
        }
    }

    /// Returns how many milliseconds have passed since the process first looked this up, and
    /// forgets that lookup. Returns 0 where that is unknown. A failed lookup of a directory counts
    /// for everything below it.
    pub(super) fn took(&self, who: Who, key: &[u8], now: Duration) -> u32 {
        let Who::Process(process) = who else { return 0 };
        let mut asked = self.asked.lock();
        // The kernel looks a name up once more just before the name is made. All lookups that led to
        // this entry are forgotten, and the earliest one counts.
        let all = directories_above(key).chain([key]);
        let found = all.filter_map(|looked_up| asked.pop(&(process, Box::from(looked_up))));
        let Some(asked) = found.min() else { return 0 };
        let took = now.saturating_sub(asked);
        if took > TOOK_MAX { 0 } else { took.as_millis() as u32 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::name::path;
    use crate::namespace::Role;

    const AT: fn(u64) -> Duration = Duration::from_millis;

    fn counted(text: &str) -> Option<(String, Role)> {
        let profiles = Profiles::default();
        let path = path(text);
        let counted = profiles.classify(&path).counted?;
        Some((profiles.all()[counted.client].name.clone(), counted.role))
    }

    /// The names that count as entries are exactly those that the clients count themselves.
    #[test]
    fn the_names_of_entries_are_those_that_clients_count() {
        let key = "c8hd21nvu6rt8kdlj2v5m6e0ri0p7k4";
        for (name, client) in [
            ("jax/jit_f-0123-cache", Some(("jax", Role::Entry))),
            ("jax/jit_f-0123-atime", None),
            (&format!("ccache/4/b/{key}R"), Some(("ccache", Role::Entry))),
            (&format!("ccache/4/b/{key}M"), None),
            (&format!("ccache/4/b/{key}R.tmp.aB3xyz.tmp"), None),
            ("ccache/tmp/cpp_stdout.R", None),
            ("ccache/4/b/stats", None),
            ("triton/KEY/__grp__add.json", Some(("triton", Role::Entry))),
            ("triton/KEY/add.json", None),
            ("triton/KEY/tmp.pid_7_ab/__grp__add.json", None),
            ("numba/m_0/m.f-1.py311.nbi", Some(("numba", Role::Index))),
            ("numba/m_0/m.f-1.py311.1.nbc", Some(("numba", Role::Entry))),
            ("src/__pycache__/m.f-1.py311.2.nbc", Some(("numba", Role::Entry))),
            ("numba/m_0/m.f-1.py311.1.nbc.tmp.0123456789abcdef", None),
            ("inductor/triton/0/KEY/__grp__add.json", Some(("triton", Role::Entry))),
            ("inductor/fxgraph/ab/key/graph", Some(("inductor", Role::Entry))),
            ("inductor/fxgraph/ab/key/.12.34.tmp", None),
            ("ccache/4", Some(("ccache", Role::Above))),
            ("ccache/4/b", Some(("ccache", Role::Above))),
            ("ccache/tmp", None),
            ("triton/KEY", Some(("triton", Role::Above))),
            ("jax", None),
            ("mine/jit_f-0123-cache", None),
        ] {
            let client = client.map(|(name, role)| (name.to_owned(), role));
            assert_eq!(counted(name), client, "{name}");
        }
    }

    #[test]
    fn what_an_entry_took_begins_with_the_first_look_of_the_same_process() {
        let worth = Worth::new(&Profiles::default(), Figures::new());
        let (one, other) = (Who::Process(1), Who::Process(2));
        worth.asked(one, b"a", AT(100));
        worth.asked(one, b"a", AT(900));
        worth.asked(Who::Unseen, b"b", AT(100));
        assert_eq!(worth.took(other, b"a", AT(1000)), 0, "another process asked");
        assert_eq!(worth.took(one, b"b", AT(1000)), 0);
        assert_eq!(worth.took(one, b"a", AT(1000)), 900);
        assert_eq!(worth.took(one, b"a", AT(1000)), 0, "it counts once");
        for (name, at) in [(&b"x"[..], 100), (b"x\0y", 200), (b"x\0y\0z", 300)] {
            worth.asked(one, name, AT(at));
        }
        assert_eq!(worth.took(one, b"x\0y\0w", AT(1000)), 900, "the directory above was not there");
        assert_eq!(worth.took(one, b"x\0v", AT(1000)), 0, "that counts once as well");
        assert_eq!(worth.took(one, b"x\0y\0z", AT(1000)), 700);
        worth.asked(one, b"c", AT(0));
        assert_eq!(worth.took(one, b"c", TOOK_MAX + AT(1)), 0);
    }

    /// P13: however many lookups fail, few of them are remembered.
    #[test]
    fn memory_is_bounded() {
        let worth = Worth::new(&Profiles::default(), Figures::new());
        worth.asked(Who::Process(1), &[b'x'; KEY_BYTES_MAX + 1], AT(1));
        assert_eq!(worth.asked.lock().len(), 0);
        for number in 0..3 * ASKED_MAX.get() {
            worth.asked(Who::Process(1), &number.to_le_bytes(), AT(1));
        }
        assert_eq!(worth.asked.lock().len(), ASKED_MAX.get());
    }

    #[test]
    fn figures_add_to_those_of_earlier_runs() {
        let of = |local, fetched, compiled, saved_ms| ClientFigures {
            local,
            fetched,
            compiled,
            saved_ms,
        };
        let earlier = [("gone".to_owned(), of(9, 0, 0, 0)), ("jax".to_owned(), of(1, 1, 1, 1))];
        let worth = Worth::new(&Profiles::default(), Figures::from(earlier.clone()));
        assert_eq!(worth.read(), Figures::from(earlier));
        let place = |name| worth.clients.iter().position(|(client, _)| client == name).unwrap();
        worth.served(place("jax"), false, 10);
        worth.served(place("jax"), true, 5);
        worth.served(place("numba"), true, 0);
        worth.compiled(place("jax"));
        let now = [
            ("gone".to_owned(), of(9, 0, 0, 0)),
            ("jax".to_owned(), of(2, 2, 2, 16)),
            ("numba".to_owned(), of(0, 1, 0, 0)),
        ];
        assert_eq!(worth.read(), Figures::from(now));
    }
}
