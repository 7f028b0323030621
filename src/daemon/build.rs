//! Building the rooms, from the ground up.

use std::fs::File;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use hearthfs_mount::Tasks;
use tokio::runtime::Handle;

use crate::clock::{self, Clock};
use crate::config::Settings;
use crate::control::Health;
use crate::digest::Digest;
use crate::error::{Error, Kind, Result};
use crate::fs::{self, Filesystem, Rules};
use crate::local::{Blobs, CacheDir, Index, Limits, Options, Staging};
use crate::metrics::{Metrics, Snapshot};
use crate::namespace::{Attrs, Entry, Kind as EntryKind, Time};
use crate::remote::{self, Remote, RemoteOptions};
use crate::stamp::NodeId;
use crate::sync::{self, Engine, Traffic};

/// How long the first look at the remote may take. A store that cannot be reached is no reason not to
/// mount; one that refuses us is.
const CHECK_DEADLINE: Duration = Duration::from_secs(10);

/// Everything that one mount stands on.
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
    /// Returns a file of the cache directory by which the kernel is asked for passthrough.
    pub(super) fn probe_file(&self) -> Result<File> {
        self.probe.try_clone().map_err(|error| Error::io("try passthrough", error))
    }

    /// Puts everything away: the index as it is now, and the mark of a clean stop.
    pub(super) fn finish(&self) {
        self.index.flush();
        if let Err(error) = self.engine.ledger().sync().and_then(|()| self.dir.mark_clean()) {
            tracing::warn!(error = error.chain(), "the next start will look twice at what is here");
        }
    }
}

/// Builds the rooms. What can refuse without a change comes first.
pub(super) fn rooms(runtime: &Handle, settings: &Settings, mount_point: &Path) -> Result<Rooms> {
    let clock = Clock::system();
    let remote = connect(runtime, settings, &clock)?;
    let root = root_of(mount_point)?;
    let dir = CacheDir::open(&settings.local.cache_dir)?;
    dir.set_holder(&mount_point.to_string_lossy())?;
    let staging = Staging::open(&dir)?.keep_ready()?;
    let index = Index::open(&dir);
    let mut loaded = index.load();
    let limits = Limits::of(settings.local.cache_size.0);
    let options = Options { evict_unsaved: remote.is_none(), clock: clock.clone() };
    let known =
        std::mem::take(&mut loaded.seals).into_iter().map(|(digest, used)| (digest, used.seal));
    let blobs = Blobs::open(&dir, limits, known, options)?;
    let parts = sync::Parts {
        dir: dir.clone(),
        index: index.clone(),
        loaded,
        blobs: blobs.clone(),
        staging: staging.clone(),
        remote: remote.clone(),
        clock: clock.clone(),
    };
    let wanted = sync::Settings {
        delay: settings.writeback.delay,
        pack_bytes: settings.writeback.batch.0,
        freshness: settings.remote.freshness,
        read_only: settings.mount.read_only,
    };
    let engine = {
        let _inside = runtime.enter();
        Engine::open(parts, wanted, runtime.clone())?
    };
    let tasks = Arc::new(Tasks::detect());
    let metrics = Arc::new(Metrics::new());
    let below = fs::Rooms {
        ledger: engine.ledger().clone(),
        freshness: engine.follower().freshness().clone(),
        fetcher: engine.fetcher().clone(),
        blobs: blobs.clone(),
        staging: staging.clone(),
        clock: clock.clone(),
        metrics: Arc::clone(&metrics),
        tasks: Arc::clone(&tasks),
    };
    let rules = Rules {
        deadline: settings.remote.deadline,
        open_wait: settings.writeback.open_wait,
        read_only: settings.mount.read_only,
        shared: remote.is_some(),
        root,
        cache_dir: dir.path().to_owned(),
    };
    let fs = Filesystem::new(below, rules);
    // Only its file is wanted; the name goes at once.
    let (probe, _) = staging.create()?;
    engine.start();
    Ok(Rooms { fs, engine, blobs, remote, clock, metrics, tasks, dir, index, probe })
}

/// Makes the client of the remote and has a first look. A store that cannot be reached is no reason not
/// to mount: it is asked again with every request. One that refuses us, or that belongs to something
/// else, is.
fn connect(runtime: &Handle, settings: &Settings, clock: &Clock) -> Result<Option<Remote>> {
    let Some(url) = &settings.remote.url else { return Ok(None) };
    let options = RemoteOptions {
        endpoint: settings.remote.endpoint.clone(),
        region: settings.remote.region.clone(),
        path_style: settings.remote.path_style,
        deadline: settings.remote.deadline,
    };
    let mut remote = Remote::open(url, &options, clock.clone(), probe_name(settings))?;
    if settings.mount.read_only {
        remote = remote.read_only();
    }
    let checked = runtime.block_on(clock::within(CHECK_DEADLINE, remote.check()));
    match checked {
        Some(Ok(())) => {}
        Some(Err(error)) if matches!(error.kind(), Kind::Unavailable | Kind::TimedOut) => {
            tracing::warn!(error = error.chain(), "the remote cannot be reached yet");
        }
        Some(Err(error)) => return Err(error),
        None => tracing::warn!("the remote does not answer yet"),
    }
    Ok(Some(remote))
}

/// Returns the name under which this node learns the store's time: the same at each mount, and known
/// before anything on the disk is touched.
fn probe_name(settings: &Settings) -> NodeId {
    let mut text = rustix::system::uname().nodename().to_bytes().to_vec();
    text.push(0);
    text.extend_from_slice(settings.local.cache_dir.as_os_str().as_bytes());
    let digest = Digest::of(&text);
    let first = digest.as_bytes().first_chunk::<8>().expect("a digest has 32 bytes");
    NodeId(u64::from_le_bytes(*first))
}

/// Returns what the root shall look like until somebody changes it: as the mount point did.
fn root_of(mount_point: &Path) -> Result<Entry> {
    let meta = std::fs::metadata(mount_point)
        .map_err(|error| Error::io(format!("look at {}", mount_point.display()), error))?;
    let mtime = Time { secs: meta.mtime(), nanos: meta.mtime_nsec() as u32 };
    let attrs = Attrs {
        mode: meta.mode() & 0o7777,
        uid: meta.uid(),
        gid: meta.gid(),
        mtime,
        atime: mtime,
        xattrs: None,
    };
    Ok(Entry { kind: EntryKind::Directory, attrs, link: None })
}

/// Returns how the remote does.
pub(super) fn health_of(remote: &Remote, clock: &Clock) -> Health {
    match remote.health() {
        remote::Health::Up => Health { up: true, since_ms: 0, last_error: None },
        remote::Health::Down { since_ms } => Health {
            up: false,
            since_ms: clock.wall_ms().saturating_sub(since_ms),
            last_error: None,
        },
    }
}

/// Adds what other rooms count themselves.
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
    counters.uploaded_bytes = requests.bytes_up;
    counters.fetched_bytes = requests.bytes_down;
    counters.remote_retries = requests.errors;
}
