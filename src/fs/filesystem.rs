//! The file system: its state, the rooms it depends on, and the options it was mounted with.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use hearthfs_mount::{Abilities, Caller, Errno, Ino, Notices, Reply, Tasks, without_privileges};
use parking_lot::Mutex;
use tokio::sync::Notify;

use super::beginnings::{Beginnings, Moment};
use super::busy::BusyCounts;
use super::held_locks::LockFiles;
use super::inode::{DirEntryKey, InodeKind, LiveId};
use super::kept::Spare;
use super::kernel_side::KernelSide;
use super::live::{Live, PublishedVersion};
use super::observed::Observed;
use super::opens::RecordedOpens;
use super::recent::Recent;
use super::seen::{Seen, seen_in};
use super::state::{State, close_files};
use super::who::Callers;
use super::worth::Worth;
use crate::clock::{self, Clock};
use crate::local::{Blobs, FigureFile, LockOwners, Staging, descriptors_for_programs};
use crate::metrics::Metrics;
use crate::name::TreePath;
use crate::namespace::{Attrs, Entry, FileKind, Profiles, Register, Time};
use crate::sync::{Fetcher, Freshness, Ledger, Moved, Renewer};

/// How often the size of files that are being written is measured. For this long they may exceed
/// the limit of the cache.
const MEASURE_EVERY: Duration = Duration::from_millis(250);
/// How long a caller that needs a published file waits for its release. The release follows the
/// close within microseconds, unless a descriptor was duplicated or inherited.
pub(super) const LINGER_MAX: Duration = Duration::from_millis(5);
/// How long a published file may stay open before its published bytes are preserved even if no
/// process needs them. Its writer may change them at any moment.
const KEEP_AFTER: Duration = Duration::from_millis(20);

/// The set-user-id and set-group-id bits, which lend the rights of an owner or group.
const SET_ID: u32 = 0o6000;

/// What the file system depends on.
#[derive(Debug, Clone)]
pub struct FsDeps {
    /// The namespace and its journal.
    pub ledger: Ledger,
    /// Whether the known state of other nodes is fresh.
    pub freshness: Freshness,
    /// Fetches bytes that are not here.
    pub fetcher: Fetcher,
    /// Renews the life of entries that are used.
    pub renewer: Renewer,
    /// The bytes that are here.
    pub blobs: Blobs,
    /// Where new bytes are written.
    pub staging: Staging,
    /// Time.
    pub clock: Clock,
    /// Counters.
    pub metrics: Arc<Metrics>,
    /// The processes behind the requests.
    pub tasks: Arc<Tasks>,
    /// The saved owners of lock files.
    pub lock_owners: Arc<LockOwners>,
    /// Where the figures by client are saved.
    pub figures: Arc<FigureFile>,
}

/// The options that the file system was mounted with.
#[derive(Debug, Clone)]
pub struct FsOptions {
    /// No operation takes longer than this, whatever the store does.
    pub deadline: Duration,
    /// How long a reader waits for the first publish of a name that is being written.
    pub open_wait: Duration,
    /// Whether changes are refused.
    pub read_only: bool,
    /// Whether there is a remote that gets what is published. Without one, blobs may be evicted at
    /// once and are then lost.
    pub shared: bool,
    /// The root directory, until it is changed.
    pub root: Entry,
    /// Whether changes made here are sent to other nodes.
    pub sends: bool,
    /// The user of the mount.
    pub owner: u32,
    /// The known facts about the files of clients, by their names.
    pub profiles: Profiles,
    /// The directory whose file system `statfs` reports.
    pub cache_dir: std::path::PathBuf,
}

#[derive(Debug)]
pub(super) struct Inner {
    pub(super) state: Mutex<State>,
    pub(super) rooms: FsDeps,
    pub(super) rules: FsOptions,
    pub(super) callers: Callers,
    pub(super) recent: Recent,
    pub(super) beginnings: Beginnings,
    pub(super) lock_files: Mutex<LockFiles>,
    pub(super) spare: Spare,
    pub(super) observed: Observed,
    pub(super) worth: Worth,
    kernel: KernelSide,
    /// Notified whenever there is something to look after.
    pub(super) begun: Notify,
    /// Notified when a closed file waits for its end.
    pub(super) ended: Notify,
    /// Set when the daemon stops: new writers are refused.
    pub(super) closing: AtomicBool,
}

/// The file system; clones share everything.
#[derive(Debug, Clone)]
pub struct Filesystem(pub(super) Arc<Inner>);

impl Filesystem {
    /// Builds a file system over its rooms.
    pub fn new(rooms: FsDeps, rules: FsOptions) -> Self {
        let callers = Callers::new(Arc::clone(&rooms.tasks));
        let worth = Worth::new(&rules.profiles, rooms.figures.kept());
        let recent = Recent::new(rooms.blobs.usage().limit, descriptors_for_programs());
        let fs = Self(Arc::new(Inner {
            state: Mutex::new(State::new(descriptors_for_programs())),
            rooms,
            rules,
            callers,
            recent,
            beginnings: Beginnings::new(),
            lock_files: Mutex::default(),
            spare: Spare::default(),
            observed: Observed::default(),
            worth,
            kernel: KernelSide::default(),
            begun: Notify::new(),
            ended: Notify::new(),
            closing: AtomicBool::new(false),
        }));
        if let Err(error) = fs.clear_editions() {
            tracing::warn!(error = error.chain(), "drafts of the last run could not be removed");
        }
        let weak = Arc::downgrade(&fs.0);
        fs.0.rooms.ledger.subscribe(Box::new(move |moved| {
            if let Some(inner) = weak.upgrade() {
                Self(inner).changed_elsewhere(moved);
            }
        }));
        fs
    }

    /// Returns which clients and entries are busy, and keeps counting for ten seconds more.
    pub fn watch_busy(&self) -> BusyCounts {
        self.0.observed.busy.watch(self.0.rooms.clock.mono())
    }

    /// Records opens from now on, and returns part of those since the last question with this
    /// number. The `last` question ends the recording. Returns `None` when there are too many
    /// recordings.
    pub fn opened(&self, number: u64, last: bool) -> Option<RecordedOpens> {
        self.0.observed.opens.take(number, last, self.0.rooms.clock.mono())
    }

    /// Stores what the session can do.
    pub(super) fn learn(&self, abilities: Abilities) {
        self.0.kernel.learn(abilities);
    }

    /// Sets the way to notify the kernel that names moved.
    pub fn set_notices(&self, kernel: Arc<dyn Notices>) {
        self.0.kernel.connect(kernel, self.0.rules.shared);
    }

    /// Refuses new writers from now on; open files go on.
    pub fn close_to_writers(&self) {
        self.0.closing.store(true, Ordering::Relaxed);
    }

    /// Lets writers in again, because the mount stays after all.
    pub fn open_to_writers(&self) {
        self.0.closing.store(false, Ordering::Relaxed);
    }

    /// Reports whether the kernel may read and write files without the daemon.
    pub(super) fn passes_through(&self) -> bool {
        self.0.kernel.passes_through()
    }

    pub(super) fn now(&self) -> Time {
        Time::from_wall(self.0.rooms.clock.wall())
    }

    /// Tells the kernel that names moved on another node.
    ///
    /// Directories that stay directories are left out. Taking back such a name would make the
    /// kernel drop everything that it knows below, while a process may be on its way through it.
    /// The next lookup brings their attributes, and `keep_order` has made that lookup due.
    fn changed_elsewhere(&self, moved: Moved<'_>) {
        let now = self.0.rooms.clock.mono();
        let Some(paths) = moved.paths else {
            self.0.state.lock().changed_elsewhere = Some(now);
            self.keep_order();
            return;
        };
        if paths.is_empty() {
            // The kernel may never ask again for what it remembers.
            self.keep_order();
            return;
        }
        self.note_first_versions(paths, moved.count);
        let (directories, moved): (Vec<_>, Vec<_>) =
            self.0.rooms.ledger.read(|fold| paths.iter().partition(|path| fold.is_directory(path)));
        let spots: Vec<_> = {
            let mut state = self.0.state.lock();
            for path in directories {
                let ino = match state.names.spot_of(path) {
                    Some(spot) => state.names.bound(&spot),
                    None => path.is_root().then_some(Ino::ROOT),
                };
                if let Some(inode) = ino.and_then(|ino| state.names.inode_mut(ino)) {
                    inode.changed_elsewhere = Some(now);
                }
            }
            let spots =
                moved.into_iter().filter_map(|path| Some((path, state.names.spot_of(path)?)));
            let spots: Vec<_> = spots.collect();
            for (path, spot) in &spots {
                self.unbind_moved(&mut state, path, spot);
            }
            let known = |(parent, _): &DirEntryKey| state.names.inode(*parent).is_some();
            spots.into_iter().map(|(_, spot)| spot).filter(known).collect()
        };
        if spots.is_empty() {
            self.keep_order();
            return;
        }
        // What it learned while these names were still bound has to go, too. So this comes last,
        // once for all names.
        self.0.kernel.doubt_moved(spots, self.0.rooms.ledger.applied());
    }

    /// Notes when versions of other nodes arrived at names that keep their first version.
    fn note_first_versions(&self, paths: &[TreePath], count: u64) {
        let kept: Vec<_> = paths.iter().filter(|path| self.is_write_once(path)).collect();
        // Where attributes were changed, the attributes may be all that has arrived.
        let put = |register: Register| register.attr_stamp.is_none().then_some(register.stamp);
        let puts: Vec<_> =
            self.0.rooms.ledger.read(|fold| {
                kept.into_iter().filter_map(|path| put(fold.register(path)?)).collect()
            });
        for put in puts {
            self.0.beginnings.note_came(put, count);
        }
    }

    /// Returns the present moment, to compare later arrivals with.
    pub(super) fn moment(&self) -> Moment {
        let ledger = &self.0.rooms.ledger;
        Moment { stamp: ledger.next_stamp(), applied: ledger.applied() }
    }

    /// Unbinds a file's name that does not lead to it any more. The file may have other names and
    /// is reached by those. A directory is known by its path only.
    fn unbind_moved(&self, state: &mut State, path: &TreePath, spot: &DirEntryKey) {
        let Some(ino) = state.names.bound(spot) else { return };
        let inode = state.names.inode(ino);
        if inode.is_none_or(|inode| matches!(inode.node, InodeKind::Directory)) {
            return;
        }
        let seen = self.0.rooms.ledger.read(|fold| seen_in(fold, path));
        if !seen.is_some_and(|seen| state.is_version(ino, &seen)) {
            state.names.unbind(spot);
        }
    }

    /// Reports whether the kernel must not remember names.
    pub(super) fn is_forgetful(&self) -> bool {
        self.0.kernel.is_forgetful()
    }

    /// Makes the kernel look every name up again at once. Returns whether the kernel can do that.
    pub(super) fn expire_names(&self) -> bool {
        self.0.kernel.expire_names()
    }

    /// Makes the kernel request the attributes of an inode again before it uses them. Returns
    /// whether that is sure.
    pub(super) fn expire_attrs(&self, ino: Ino) -> bool {
        self.0.kernel.expire_attrs(ino)
    }

    /// Makes the kernel request the attributes of inodes that have changed otherwise than by a call on
    /// them, so that no process that has one open sees the old ones. If this fails, the kernel's copy
    /// ends soon.
    pub(super) fn expire_attrs_of(&self, inodes: impl IntoIterator<Item = Ino>) {
        for ino in inodes {
            self.expire_attrs(ino);
        }
    }

    /// Makes the kernel look these names up again before the caller gets its answer. Must be called
    /// without the lock of the state.
    pub(super) fn doubt(&self, spots: impl IntoIterator<Item = DirEntryKey>) {
        self.0.kernel.doubt(spots);
    }

    /// Must be called between reading the namespace and answering from it. A program that sees one
    /// change of another node must see every earlier one, so the names that the kernel remembers
    /// from before have to go first.
    pub(super) fn keep_order(&self) {
        self.0.kernel.keep_order(self.0.rooms.ledger.applied());
    }

    /// Reports whether the permission bits let a caller do what `want` says (4 read, 2 write, 1
    /// search), by the rules of the kernel. It is used where the kernel has checked another version
    /// than the current one.
    pub(super) fn permits(&self, caller: &Caller, attrs: &Attrs, want: u32) -> Reply<()> {
        self.mode_permits(caller, (attrs.uid, attrs.gid, attrs.mode), want)
    }

    /// Does the check of [`Filesystem::permits`] for an owner, a group and a mode.
    pub(super) fn mode_permits(
        &self,
        caller: &Caller,
        of: (u32, u32, u32),
        want: u32,
    ) -> Reply<()> {
        let (uid, gid, mode) = of;
        let bits = if caller.uid == 0 {
            0o7
        } else if caller.uid == uid {
            mode >> 6
        } else if caller.gid == gid || self.0.callers.is_in_group(caller, gid) {
            mode >> 3
        } else {
            mode
        };
        if bits & want == want { Ok(()) } else { Err(Errno::EACCES) }
    }

    /// Clears the set-user-id and set-group-id bits when `caller` changes the bytes or the owner.
    pub(super) fn drop_privileges(&self, caller: &Caller, attrs: &mut Attrs) {
        if attrs.mode & SET_ID == 0 {
            return;
        }
        let in_group = caller.uid == 0
            || caller.gid == attrs.gid
            || self.0.callers.is_in_group(caller, attrs.gid);
        attrs.mode = without_privileges(attrs.mode, in_group);
    }

    /// Reports whether a path keeps its first version: a version begun before the first one arrived
    /// does not replace it.
    pub(super) fn is_write_once(&self, path: &TreePath) -> bool {
        self.0.rules.profiles.classify(path).kind == FileKind::WriteOnce
    }

    /// Does the periodic work for units and lock files: what is due because time has passed or
    /// processes have ended. Blocks.
    pub fn tend(&self) {
        self.tend_editions();
        self.tend_lock_files();
    }

    /// Reports whether a path keeps its present version against one that was begun before it
    /// arrived. An incomplete version is not kept.
    pub(super) fn keeps_first(&self, path: &TreePath, there: &Seen) -> bool {
        self.is_write_once(path) && !self.0.rooms.ledger.is_torn(path, &there.entry)
    }

    /// Does the periodic work, for ever. It runs as a task of the daemon.
    pub async fn look_after(self) {
        tokio::join!(self.end_in_background(), self.sweep());
    }

    async fn sweep(&self) {
        let mut measured = Duration::ZERO;
        let this = self.clone();
        crate::task::blocking(move || this.restore_lock_files()).await;
        loop {
            let lingers = self.busy().await;
            self.finish_ending().await;
            clock::sleep(if lingers { KEEP_AFTER } else { MEASURE_EVERY }).await;
            let now = self.0.rooms.clock.mono();
            if now.saturating_sub(measured) >= MEASURE_EVERY {
                measured = now;
                self.measure();
                let this = self.clone();
                crate::task::blocking(move || this.tend()).await;
            }
            self.keep_lingering(now).await;
            self.give_up_retries(now);
        }
    }

    /// Returns when there is something to look after; true if a published file has not been
    /// released, or could not be ended.
    async fn busy(&self) -> bool {
        loop {
            {
                let state = self.0.state.lock();
                let locks = self.0.lock_files.lock().is_empty();
                let waits = !state.retries.is_empty() || !state.editions.is_empty() || !locks;
                if state.lives.len() > 0 || waits {
                    // What waits for its end is not looked after here.
                    return state.lives.iter().any(|(id, live)| {
                        live.version().is_some_and(|version| {
                            version.put_off_until.is_some() || !state.is_idle(id)
                        })
                    });
                }
            }
            self.0.begun.notified().await;
        }
    }

    /// Preserves the published bytes of files that are closed but still open elsewhere: their
    /// writers may change them at any moment.
    async fn keep_lingering(&self, now: Duration) {
        let lingering: Vec<LiveId> = {
            let state = self.0.state.lock();
            let old = |since: Duration| now.saturating_sub(since) >= KEEP_AFTER;
            let all = state.lives.iter().filter(|(_, live)| {
                let held = live.is_held(now) || live.settling.is_on();
                let due = |version: &PublishedVersion| match version.put_off_until {
                    Some(until) => now >= until,
                    None => old(version.since),
                };
                !held && live.version().is_some_and(due)
            });
            all.map(|(id, _)| id).collect()
        };
        for id in lingering {
            let this = self.clone();
            // If the disk refuses it, the next round tries again.
            crate::task::blocking(move || this.preserve(id)).await.ok();
        }
    }

    /// Gives up what is kept for threads that got `ESTALE` and never looked again.
    fn give_up_retries(&self, now: Duration) {
        let mut state = self.0.state.lock();
        let expired = state.retries.take_expired(now);
        let idle: Vec<LiveId> =
            expired.into_iter().filter_map(|retry| state.give_up(Some(retry))).collect();
        close_files(state);
        for id in idle {
            self.finish_soon(id);
        }
    }

    /// Counts the disk space of open files for the limits, and makes room for it. Writes that are
    /// passed through are not seen otherwise.
    fn measure(&self) {
        let open: Vec<LiveId> = {
            let state = self.0.state.lock();
            state
                .lives
                .iter()
                .filter(|(_, live)| live.writers.has_handles())
                .map(|(id, _)| id)
                .collect()
        };
        let mut grown = false;
        for id in open {
            // Each file is measured under its own lock of the state, so that no request waits for
            // all of them.
            grown |= self.0.state.lock().lives.get(id).is_some_and(Live::measure);
        }
        if grown && !self.0.rooms.blobs.make_room(0) {
            tracing::debug!("files that are being written exceed the limit of the cache");
        }
    }

    /// Counts what the kernel and programs hold: inodes, open files, live files.
    pub fn held(&self) -> (usize, usize, usize) {
        let state = self.0.state.lock();
        (state.names.len(), state.handles.files(), state.lives.len())
    }
}
