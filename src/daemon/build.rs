//! Builds all parts of a mount, from the bottom up.

use std::collections::BTreeMap;
use std::fs::File;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use hearthfs_mount::{Tasks, mounts};
use rustix::fs::{AtFlags, CWD, Stat, stat, statat};
use rustix::io::Errno;
use rustix::mount::{OpenTreeFlags, open_tree};
use tokio::runtime::Handle;

use crate::clock::{self, Clock};
use crate::config::{Settings, Writes};
use crate::digest::Digest;
use crate::error::{Error, Kind, Result};
use crate::fs::{self, Filesystem, FsOptions};
use crate::local::{
    Blobs, CacheDir, FigureFile, Index, Limits, LoadedIndex, LockOwners, Options, Staging,
};
use crate::metrics::{Metrics, Snapshot};
use crate::namespace::{Attrs, Entry, EntryKind, Time};
use crate::remote::{KnownStore, Remote, RemoteOptions, THROTTLED};
use crate::stamp::NodeId;
use crate::sync::{self, Engine, Traffic};
use crate::task;

/// How long the first check of the remote may take. An unreachable store is no reason to refuse the
/// mount; one that refuses us is.
const CHECK_DEADLINE: Duration = Duration::from_secs(10);
/// The same when a dead mount is replaced: the store was checked before, and programs wait.
const CHECK_AGAIN_DEADLINE: Duration = Duration::from_millis(500);

/// How often a cache directory is tried that an ending daemon still holds, and how many times.
const HOLDER_POLL: Duration = Duration::from_millis(50);
const HOLDER_TRIES: u32 = 100;

/// The first and the longest pause before an unreachable remote is checked again.
const CHECK_AGAIN_MIN: Duration = Duration::from_secs(1);
const CHECK_AGAIN_MAX: Duration = Duration::from_mins(1);

/// All parts on which one mount is built.
#[derive(Debug)]
pub(super) struct Rooms {
    pub(super) fs: Filesystem,
    pub(super) engine: Engine,
    pub(super) blobs: Blobs,
    pub(super) remote: Option<Remote>,
    pub(super) clock: Clock,
    pub(super) metrics: Arc<Metrics>,
    pub(super) tasks: Arc<Tasks>,
    dir: CacheDir,
    index: Index,
    probe: File,
}

impl Rooms {
    /// Returns a file of the cache directory with which passthrough is requested from the kernel.
    pub(super) fn probe_file(&self) -> Result<File> {
        self.probe.try_clone().map_err(|error| Error::io("try passthrough", error))
    }

    /// Saves the figures and the index in their present state, and marks a clean stop.
    pub(super) fn finish(&self) {
        self.fs.keep_figures();
        self.index.flush();
        if let Err(error) = self.engine.ledger().sync().and_then(|()| self.dir.mark_clean()) {
            tracing::warn!(
                error = error.chain(),
                "the stop is not recorded as clean; the next start verifies what is here"
            );
        }
    }
}

/// Builds the parts. Steps that can refuse without changing anything come first.
pub(super) fn rooms(runtime: &Handle, settings: &Settings, mount_point: &Path) -> Result<Rooms> {
    let clock = Clock::of_process();
    let there = mounts::mounted_at(mount_point).ok().flatten();
    let dead = there.is_some_and(|entry| entry.is_hearthfs());
    let patience = if dead { CHECK_AGAIN_DEADLINE } else { CHECK_DEADLINE };
    let cache_dir = &settings.local.cache_dir;
    let mut known = known_store(cache_dir)?;
    let mut early = None;
    if settings.remote.url.is_some() && known.is_none() && CacheDir::is_used(cache_dir) {
        // An older version kept it only in the index.
        let cache = Cache::open(runtime, cache_dir, mount_point)?;
        known = sync::known_of_index(&cache.loaded);
        early = Some(cache);
    }
    let remote = connect(runtime, settings, &clock, patience, known)?;
    let root = root_of(mount_point)?;
    let cache = early.map_or_else(|| Cache::open(runtime, cache_dir, mount_point), Ok)?;
    let Cache { dir, index, mut loaded } = cache;
    let staging = Staging::open(&dir)?.keep_ready()?;
    let limits = Limits::of(settings.local.cache_size.0);
    let private = settings.mount.writes == Writes::Private;
    // A mount that uploads nothing may evict the only copy.
    let evict_unsaved = remote.is_none() || private;
    let options = Options { evict_unsaved, clock: clock.clone() };
    let known = std::mem::take(&mut loaded.seals).into_iter();
    let blobs = Blobs::open(&dir, limits, known, options)?;
    let parts = sync::Parts {
        dir: dir.clone(),
        index: index.clone(),
        loaded,
        blobs: blobs.clone(),
        staging: staging.clone(),
        remote: remote.clone(),
        clock: clock.clone(),
        full_wait: settings.writeback.full_wait,
        profiles: settings.profiles.clone(),
        private,
    };
    let engine_settings = sync::EngineSettings {
        delay: settings.writeback.delay,
        pack_bytes: settings.writeback.batch.0,
        freshness: settings.remote.freshness,
        read_only: settings.mount.writes != Writes::Shared,
        renew_on_use: settings.expiry.renew_on_use,
        ahead: settings.remote.prefetch.0 > 0,
        prefetch: settings.remote.prefetch.0,
    };
    let engine = {
        let _inside = runtime.enter();
        Engine::open(parts, engine_settings, runtime.clone())?
    };
    let tasks = Arc::new(Tasks::detect());
    let metrics = Arc::new(Metrics::new());
    let fs_deps = fs::FsDeps {
        ledger: engine.ledger().clone(),
        freshness: engine.follower().freshness().clone(),
        fetcher: engine.fetcher().clone(),
        renewer: engine.renewer().clone(),
        blobs: blobs.clone(),
        staging: staging.clone(),
        clock: clock.clone(),
        metrics: Arc::clone(&metrics),
        tasks: Arc::clone(&tasks),
        lock_owners: Arc::new(LockOwners::open(&dir)),
        figures: Arc::new(FigureFile::open(&dir)),
    };
    let fs_options = FsOptions {
        deadline: settings.remote.deadline,
        open_wait: settings.writeback.open_wait,
        read_only: settings.mount.writes == Writes::None,
        shared: remote.is_some(),
        root,
        sends: remote.is_some() && settings.mount.writes == Writes::Shared,
        owner: rustix::process::geteuid().as_raw(),
        profiles: settings.profiles.clone(),
        cache_dir: dir.path().to_owned(),
    };
    let fs = Filesystem::new(fs_deps, fs_options);
    // Only the file is needed; its name is removed at once.
    let (probe, _) = staging.create()?;
    engine.start();
    Ok(Rooms { fs, engine, blobs, remote, clock, metrics, tasks, dir, index, probe })
}

/// The cache directory, and the content of its index.
struct Cache {
    dir: CacheDir,
    index: Index,
    loaded: LoadedIndex,
}

impl Cache {
    fn open(runtime: &Handle, root: &Path, mount_point: &Path) -> Result<Self> {
        let dir = open_dir(runtime, root, mount_point)?;
        dir.set_holder(&mount_point.to_string_lossy())?;
        let index = Index::open(&dir);
        let loaded = index.load();
        Ok(Self { dir, index, loaded })
    }
}

/// Returns the store that the cache directory says this node knows.
pub(super) fn known_store(cache_dir: &Path) -> Result<Option<KnownStore>> {
    let Some(text) = CacheDir::kept_store(cache_dir)? else { return Ok(None) };
    let known = KnownStore::parse(&text);
    if known.is_none() {
        let shown = cache_dir.join("v1/store");
        tracing::warn!(path = %shown.display(), "the file cannot be read; the copy in the index is used");
    }
    Ok(known)
}

/// Reports whether the last user of the cache directory was a daemon of this mount point.
pub(super) fn is_held_for(root: &Path, mount_point: &Path) -> bool {
    let text = std::fs::read(root.join("v1/LOCK")).unwrap_or_default();
    text.split(|byte| *byte == b'\n').nth(1) == Some(mount_point.as_os_str().as_bytes())
}

/// Opens the cache directory. An earlier daemon of the same mount point, already unmounted, may
/// still be saving its state.
fn open_dir(runtime: &Handle, root: &Path, mount_point: &Path) -> Result<CacheDir> {
    for _ in 0..HOLDER_TRIES {
        match CacheDir::open(root) {
            Err(error) if error.kind() == Kind::Busy && is_held_for(root, mount_point) => {
                runtime.block_on(clock::sleep(HOLDER_POLL));
            }
            opened => return opened,
        }
    }
    CacheDir::open(root)
}

/// Makes the client of the remote and checks it first. A store that is unreachable, or missing
/// where this node knows it, is no reason to refuse the mount: every request checks it again. The
/// mount is refused by a store that refuses us, by one that belongs to something else, and if no
/// store exists at an address to which the node was told to move.
fn connect(
    runtime: &Handle,
    settings: &Settings,
    clock: &Clock,
    patience: Duration,
    known: Option<KnownStore>,
) -> Result<Option<Remote>> {
    let Some(url) = &settings.remote.url else { return Ok(None) };
    let options = remote_options(settings);
    let mut remote = Remote::open(url, &options, clock.clone(), probe_name(settings))?;
    remote.know(known);
    if settings.mount.writes != Writes::Shared {
        remote = remote.read_only();
    }
    let checked = runtime.block_on(clock::within(patience, remote.check()));
    match checked {
        Some(Ok(())) => {}
        Some(Err(error)) if matches!(error.kind(), Kind::Unavailable | Kind::TimedOut) => {
            // That the known store is missing is already logged.
            if !remote.is_missed() {
                tracing::warn!(error = error.chain(), "the remote cannot be reached yet");
            }
            drop(task::spawn(runtime, "check", check_later(remote.clone())));
        }
        Some(Err(error)) => return Err(error),
        None => {
            tracing::warn!("the remote does not answer yet");
            drop(task::spawn(runtime, "check", check_later(remote.clone())));
        }
    }
    Ok(Some(remote))
}

/// Returns the settings of the remote, besides its address.
pub(super) fn remote_options(settings: &Settings) -> RemoteOptions {
    RemoteOptions {
        endpoint: settings.remote.endpoint.clone(),
        region: settings.remote.region.clone(),
        path_style: settings.remote.path_style,
        deadline: settings.remote.deadline,
        expiry: settings.expiry.age,
    }
}

/// Checks a remote that was unreachable at the mount, as soon as it answers. If it then refuses us,
/// the mount continues without it.
async fn check_later(remote: Remote) {
    let mut pause = CHECK_AGAIN_MIN;
    loop {
        clock::sleep(pause).await;
        pause = (pause * 2).min(CHECK_AGAIN_MAX);
        match remote.check().await {
            Ok(()) => return,
            Err(error) if matches!(error.kind(), Kind::Unavailable | Kind::TimedOut) => {}
            Err(error) => {
                tracing::warn!(error = error.chain(), "the remote cannot be used");
                // Credentials may become valid again; the identity of the store does not change.
                if error.kind() != Kind::Denied {
                    return;
                }
                pause = CHECK_AGAIN_MAX;
            }
        }
    }
}

/// Returns the name under which this node learns the store's time. It is the same at each mount,
/// and known before anything on the disk is changed.
fn probe_name(settings: &Settings) -> NodeId {
    let mut text = rustix::system::uname().nodename().to_bytes().to_vec();
    text.push(0);
    text.extend_from_slice(settings.local.cache_dir.as_os_str().as_bytes());
    let digest = Digest::of(&text);
    let first = digest.as_bytes().first_chunk::<8>().expect("a digest has 32 bytes");
    NodeId(u64::from_le_bytes(*first))
}

/// Returns the initial attributes of the root: those of the mount point.
fn root_of(mount_point: &Path) -> Result<Entry> {
    let looked = match stat(mount_point) {
        // If they cannot be read, the dead mount is removed before there is a new one.
        Err(Errno::NOTCONN) => stat_below(mount_point).or_else(|error| {
            hearthfs_mount::clear_stale(mount_point).map_err(|_| error)?;
            stat(mount_point)
        }),
        looked => looked,
    };
    let meta = looked
        .map_err(|error| Error::io(format!("look at {}", mount_point.display()), error.into()))?;
    let mtime = Time { secs: meta.st_mtime, nanos: meta.st_mtime_nsec as u32 };
    let attrs = Attrs {
        mode: meta.st_mode & 0o7777,
        uid: meta.st_uid,
        gid: meta.st_gid,
        mtime,
        atime: mtime,
        ..Attrs::default()
    };
    Ok(Entry { kind: EntryKind::Directory, attrs, link: None })
}

/// Reads the directory that a dead mount hides without removing the mount, through a copy of the
/// surrounding tree that contains no other mounts.
fn stat_below(mount_point: &Path) -> std::result::Result<Stat, Errno> {
    let (Some(parent), Some(name)) = (mount_point.parent(), mount_point.file_name()) else {
        return Err(Errno::NOTCONN);
    };
    let flags = OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC;
    let tree = open_tree(CWD, parent, flags)?;
    statat(&tree, name, AtFlags::SYMLINK_NOFOLLOW)
}

/// Returns the tested abilities of the remote, by name.
pub(super) fn abilities_of(remote: &Remote) -> BTreeMap<String, bool> {
    let Some(abilities) = remote.abilities() else { return BTreeMap::new() };
    [
        ("create_if_absent", abilities.create_if_absent),
        ("delete", Some(abilities.delete)),
        ("list_at_once", Some(abilities.list_at_once)),
    ]
    .into_iter()
    .filter_map(|(name, can)| Some((name.to_owned(), can?)))
    .collect()
}

/// Adds the counts that other rooms keep themselves.
pub(super) fn add_counts(
    counters: &mut Snapshot,
    remote: Option<&Remote>,
    blobs: &Blobs,
    traffic: &Traffic,
) {
    let usage = blobs.usage();
    (counters.evicted, counters.damaged) = (usage.evictions, usage.damaged);
    counters.evicted_bytes = usage.evicted_bytes;
    counters.uploaded = traffic.uploaded.load(Ordering::Relaxed);
    counters.commits_written = traffic.commits_written.load(Ordering::Relaxed);
    counters.commits_applied = traffic.commits_applied.load(Ordering::Relaxed);
    let Some(remote) = remote else { return };
    let requests = remote.requests();
    let kinds = [
        ("put", requests.puts),
        ("get", requests.gets),
        ("list", requests.lists),
        ("head", requests.heads),
        ("delete", requests.deletes),
    ];
    counters.requests = kinds
        .into_iter()
        .filter(|(_, count)| *count > 0)
        .map(|(kind, count)| (kind.to_owned(), count))
        .collect();
    let throttling = remote.throttling();
    counters.throttled = THROTTLED
        .iter()
        .zip(throttling.answers)
        .filter(|(_, count)| *count > 0)
        .map(|(status, count)| (status.to_string(), count))
        .collect();
    counters.throttled_wait_ms = throttling.waited.as_millis() as u64;
    counters.uploaded_bytes = requests.bytes_up;
    counters.fetched_bytes = requests.bytes_down;
    counters.remote_retries = requests.errors;
}
