//! The file system: its state, the rooms it stands on, and the rules it was mounted with.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use hearthfs_mount::{Abilities, Ino, Invalidator, Tasks};
use parking_lot::Mutex;
use tokio::sync::Notify;

use super::generation::Stage;
use super::inode::{GenId, Mode, Node, Spot};
use super::state::State;
use super::who::Callers;
use crate::clock::{self, Clock};
use crate::local::{Blobs, Staging};
use crate::metrics::Metrics;
use crate::name::TreePath;
use crate::namespace::{Entry, Time};
use crate::sync::{Fetcher, Freshness, Ledger, Renewer};

/// How often what is being written is measured: so long may it go beyond the limit of the cache.
const MEASURE_EVERY: Duration = Duration::from_millis(250);

/// What the file system stands on.
#[derive(Debug, Clone)]
pub struct Rooms {
    /// The namespace and its journal.
    pub ledger: Ledger,
    /// Whether what is known of other nodes is fresh.
    pub freshness: Freshness,
    /// The way to bytes that are not here.
    pub fetcher: Fetcher,
    /// The way to a longer life for what is used.
    pub renewer: Renewer,
    /// The bytes that are here.
    pub blobs: Blobs,
    /// Where new bytes are written.
    pub staging: Staging,
    /// Time.
    pub clock: Clock,
    /// Counters.
    pub metrics: Arc<Metrics>,
    /// Who asks.
    pub tasks: Arc<Tasks>,
}

/// What the file system was mounted with.
#[derive(Debug, Clone)]
pub struct Rules {
    /// No operation takes longer than this, whatever the store does.
    pub deadline: Duration,
    /// How long a reader waits for the first publish of a name that is being written.
    pub open_wait: Duration,
    /// Nothing may be changed.
    pub read_only: bool,
    /// Whether there is a remote that gets what is published. Without one, blobs may be evicted at once
    /// and are then gone.
    pub shared: bool,
    /// The root directory, until somebody changes it.
    pub root: Entry,
    /// The directory whose file system `statfs` speaks of.
    pub cache_dir: std::path::PathBuf,
}

#[derive(Debug)]
pub(super) struct Inner {
    pub(super) state: Mutex<State>,
    pub(super) rooms: Rooms,
    pub(super) rules: Rules,
    pub(super) callers: Callers,
    passthrough: AtomicBool,
    invalidator: Mutex<Option<Invalidator>>,
    /// How many commits of other nodes the kernel's memory of names has been told of.
    told: Mutex<u64>,
    /// The kernel cannot be told at once, so it must not remember names.
    forgetful: AtomicBool,
    /// Told whenever a generation begins.
    pub(super) begun: Notify,
    /// Set when the daemon stops: no new writers.
    pub(super) closing: AtomicBool,
}

/// The file system; clones share everything.
#[derive(Debug, Clone)]
pub struct Filesystem(pub(super) Arc<Inner>);

impl Filesystem {
    /// Builds a file system over its rooms.
    pub fn new(rooms: Rooms, rules: Rules) -> Self {
        let callers = Callers::new(Arc::clone(&rooms.tasks));
        let fs = Self(Arc::new(Inner {
            state: Mutex::new(State::new()),
            rooms,
            rules,
            callers,
            passthrough: AtomicBool::new(false),
            invalidator: Mutex::new(None),
            told: Mutex::new(0),
            forgetful: AtomicBool::new(false),
            begun: Notify::new(),
            closing: AtomicBool::new(false),
        }));
        let weak = Arc::downgrade(&fs.0);
        fs.0.rooms.ledger.subscribe(Box::new(move |paths: &[TreePath]| {
            if let Some(inner) = weak.upgrade() {
                Self(inner).changed_elsewhere(paths);
            }
        }));
        fs
    }

    /// Learns what the session can do.
    pub(super) fn learn(&self, abilities: Abilities) {
        self.0.passthrough.store(abilities.passthrough, Ordering::Relaxed);
    }

    /// Gives the way to tell the kernel that names moved.
    pub fn set_invalidator(&self, invalidator: Invalidator) {
        let forgetful = self.0.rules.shared && !invalidator.expire_all();
        self.0.forgetful.store(forgetful, Ordering::Relaxed);
        *self.0.invalidator.lock() = Some(invalidator);
    }

    /// Refuses new writers from now on; what is open goes on.
    pub fn close_to_writers(&self) {
        self.0.closing.store(true, Ordering::Relaxed);
    }

    /// Lets writers in again, because the mount stays after all.
    pub fn open_to_writers(&self) {
        self.0.closing.store(false, Ordering::Relaxed);
    }

    /// Returns the mode of a first open.
    pub(super) fn default_mode(&self) -> Mode {
        if self.0.passthrough.load(Ordering::Relaxed) { Mode::Passthrough } else { Mode::Cached }
    }

    pub(super) fn now(&self) -> Time {
        Time::from_wall(self.0.rooms.clock.wall())
    }

    /// Tells the kernel that names moved on another node.
    ///
    /// Not of directories that stay directories: taking such a name back would make the kernel drop all
    /// that it knows below, under the feet of whoever is on the way through it. Their attributes come with
    /// the next look, which `keep_order` has made due.
    fn changed_elsewhere(&self, paths: &[TreePath]) {
        // It may never ask again for what it remembers.
        self.keep_order();
        if paths.is_empty() {
            return;
        }
        let moved: Vec<_> = self
            .0
            .rooms
            .ledger
            .read(|fold| paths.iter().filter(|path| !fold.is_directory(path)).collect());
        let spots: Vec<_> = {
            let state = self.0.state.lock();
            moved
                .into_iter()
                .filter_map(|path| state.spot_of(path))
                .filter(|(parent, _)| state.inodes.contains_key(parent))
                .collect()
        };
        self.invalidate(spots);
    }

    /// Reports whether the kernel must not remember names.
    pub(super) fn is_forgetful(&self) -> bool {
        self.0.forgetful.load(Ordering::Relaxed)
    }

    /// Makes the kernel look every name up again, at once.
    pub(super) fn expire_names(&self) {
        if let Some(invalidator) = self.0.invalidator.lock().as_ref() {
            invalidator.expire_all();
        }
    }

    /// To be called between reading the namespace and answering from it. A program that sees one change of
    /// another node must see every earlier one, so what the kernel remembers from before has to go first.
    pub(super) fn keep_order(&self) {
        let applied = self.0.rooms.ledger.applied();
        let mut told = self.0.told.lock();
        if applied > *told {
            self.expire_names();
            *told = applied;
        }
    }

    /// Makes the kernel ask again for names. Call it with no lock held.
    pub(super) fn invalidate(&self, spots: impl IntoIterator<Item = (Ino, Box<[u8]>)>) {
        let guard = self.0.invalidator.lock();
        if let Some(invalidator) = guard.as_ref() {
            for (parent, name) in spots {
                invalidator.inval_entry(parent, OsStr::from_bytes(&name));
            }
        }
    }

    /// Does what is due now and then, for ever: a task of the daemon's.
    pub async fn look_after(self) {
        loop {
            self.writing().await;
            clock::sleep(MEASURE_EVERY).await;
            self.measure();
        }
    }

    /// Returns when a file is being written.
    async fn writing(&self) {
        while self.0.state.lock().generations.is_empty() {
            self.0.begun.notified().await;
        }
    }

    /// Counts what open files take on the disk, for the limits, and makes room for it: writes that are
    /// passed through are not seen.
    fn measure(&self) {
        let grown = {
            let state = self.0.state.lock();
            let open = state.generations.values().filter(|generation| generation.writers > 0);
            // All of them: each notes what it takes.
            open.filter(|generation| generation.measure()).count() > 0
        };
        if grown && !self.0.rooms.blobs.make_room(0) {
            tracing::debug!("what is being written is more than the limit of the cache leaves");
        }
    }

    /// Counts what the kernel and programs hold: inodes, open files, generations.
    pub fn held(&self) -> (usize, usize, usize) {
        let state = self.0.state.lock();
        (state.inodes.len(), state.files.len(), state.generations.len())
    }
}

impl State {
    /// Makes a generation one that will never be an entry, and wakes who waits for it.
    /// Returns the name that the kernel may still believe in.
    #[must_use]
    pub(super) fn drop_generation(&mut self, id: GenId) -> Option<Spot> {
        let generation = self.generations.get_mut(&id)?;
        generation.set_stage(Stage::Dropped);
        generation.hold = None;
        let (ino, place, idle) = (generation.ino, generation.place.take(), generation.writers == 0);
        if let Some(spot) = place.clone() {
            if let Some(slot) = self.slots.get_mut(&spot) {
                slot.generations.retain(|other| *other != id);
            }
            let bound = self.slots.get(&spot).is_some_and(|slot| slot.published == Some(ino));
            if !bound && let Some(inode) = self.inodes.get_mut(&ino) {
                inode.places.retain(|other| *other != spot);
                inode.last = Some(spot.clone());
            }
            self.sweep_slot(&spot);
        }
        self.find_heir(id);
        if idle {
            self.end_generation(id);
        }
        place
    }

    /// Forgets a generation that no handle writes any more. Its inode becomes what was published of it,
    /// or nothing.
    pub(super) fn end_generation(&mut self, id: GenId) {
        if self.generations.get(&id).is_some_and(|generation| !generation.is_lost()) {
            self.find_heir(id);
        }
        let Some(generation) = self.generations.remove(&id) else { return };
        if let Some(group) = generation.link
            && let Some(ids) = self.linked.get_mut(&group)
        {
            ids.retain(|other| *other != id);
            if ids.is_empty() {
                self.linked.remove(&group);
            }
        }
        let ino = generation.ino;
        let seen = generation.size_and_mtime().unwrap_or((0, generation.attrs.mtime));
        let gone = generation.as_entry(seen);
        self.let_go(generation.source);
        if let Some(inode) = self.inodes.get_mut(&ino)
            && matches!(inode.node, Node::Generation(of) if of == id)
        {
            inode.node = match generation.published {
                Some(published) => {
                    if let Some(group) = published.entry.link {
                        self.groups.insert(group, ino);
                    }
                    Node::Version { entry: published.entry, changed_ms: published.changed_ms }
                }
                None => Node::Gone(gone),
            };
        }
        if let Some(spot) = generation.place {
            if let Some(slot) = self.slots.get_mut(&spot) {
                slot.generations.retain(|other| *other != id);
            }
            self.sweep_slot(&spot);
        }
        self.sweep_inode(ino);
    }
}
