//! The messages of the control socket.
//!
//! Owns the field names, which `status --json` prints and scripts read: fields are added, never
//! renamed. Must never carry file content or credentials.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::error::Kind;
use crate::metrics::{Figures, Snapshot};

/// A request of a client; one line of JSON.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "op", deny_unknown_fields)]
pub enum Request {
    /// Requests a [`Status`].
    Status,
    /// Requests the profiles that the mount uses.
    Profiles,
    /// Requests a [`BusyReport`].
    Busy,
    /// Requests the reason why a path is a miss.
    Explain {
        /// Its path below the mount, two hexadecimal digits per byte, names separated by `/`.
        path: String,
    },
    /// Requests the recorded misses.
    Misses {
        /// Only of this user.
        uid: Option<u32>,
        /// Only of this client.
        client: Option<String>,
    },
    /// Fetches files to the node, as far as there is room.
    Warm {
        /// Their paths below the mount, as in [`Request::Explain`].
        paths: Vec<String>,
    },
    /// Records all opens from now on, and requests those since the last request.
    Opens {
        /// Identifies the recording: a random number chosen by the client.
        number: u64,
        /// This is the last request, if nothing remains to be read.
        last: bool,
    },
    /// Waits until everything published before is uploaded.
    Drain {
        /// The longest wait.
        timeout_ms: u64,
    },
    /// Drains, unmounts and ends the daemon.
    Shutdown {
        /// The limit of the drain: 0 leaves the backlog, `None` is the daemon's own limit.
        timeout_ms: Option<u64>,
    },
}

/// A response of the daemon; one line of JSON each, any number of `progress` before the last.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Response {
    /// The answer to `status`.
    Status(Box<Status>),
    /// The answer to `profiles`: what `hearthfs profiles --json` lists.
    Profiles(serde_json::Value),
    /// The answer to `busy`.
    Busy(BusyReport),
    /// The answer to `explain`.
    Explained(serde_json::Value),
    /// The answer to `misses`.
    Misses(serde_json::Value),
    /// The progress of a `warm`.
    Warming(WarmReport),
    /// The result of a `warm`.
    Warmed(WarmReport),
    /// The answer to `opens`.
    Opens(OpensReport),
    /// The progress of a drain.
    Progress(DrainProgress),
    /// The result of a drain, or of a shutdown: then the mount is gone.
    Drained(DrainReport),
    /// The request failed.
    Error(RequestFailure),
}

/// Why a request failed.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct RequestFailure {
    /// The kind of failure, as a word.
    pub kind: String,
    /// For people.
    pub message: String,
}

impl RequestFailure {
    /// Makes a failure of this kind.
    pub fn new(kind: Kind, message: impl Into<String>) -> Self {
        Self { kind: format!("{kind:?}"), message: message.into() }
    }

    /// Reports whether it is of this kind.
    pub fn is(&self, kind: Kind) -> bool {
        self.kind == format!("{kind:?}")
    }
}

/// The complete status of a running mount.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Status {
    /// Version of the daemon.
    pub version: String,
    /// Its process id, in its own PID namespace.
    pub pid: u32,
    /// The user it runs as.
    pub uid: u32,
    /// Where it is mounted; bytes that are not UTF-8 are replaced.
    pub mount_point: String,
    /// The remote's address; `None` is a local cache only.
    pub remote: Option<String>,
    /// The identity of the store that this node knows, 16 hex digits; `None` without a remote, and
    /// before the first store was used.
    pub store: Option<String>,
    /// Whether this mount made that store, because there was none.
    pub made_store: bool,
    /// The cache directory.
    pub cache_dir: String,
    /// Where the daemon's log lines go: a file, or `journal`; `None` for any other destination.
    pub log: Option<String>,
    /// When the mount started: milliseconds since the Unix epoch.
    pub started_ms: u64,
    /// For how long it has been mounted, in milliseconds.
    pub uptime_ms: u64,
    /// The phase of the daemon.
    pub phase: Phase,
    /// Whether reads and writes use passthrough.
    pub io: IoReport,
    /// Whether writers get EROFS.
    pub read_only: bool,
    /// Whether writes of programs stay on this node.
    #[serde(default)]
    pub private: bool,
    /// A note if callers of other PID namespaces can only be distinguished by their handles.
    pub pid_namespace: Option<String>,
    /// The number of paths with an entry.
    pub entries: u64,
    /// The state of the remote; `None` without one.
    pub health: Option<HealthReport>,
    /// How far this node has followed the log; `None` without a remote.
    pub follower: Option<FollowerReport>,
    /// The number of other nodes by program version. Counts nodes of which this mount has read a
    /// commit at most a day old.
    pub versions: BTreeMap<String, u64>,
    /// Whether the bucket's lifecycle rules match the expiry; `None` until they were checked, and
    /// without a bucket.
    pub rules: Option<RulesReport>,
    /// The tested abilities of the remote that hearthfs can do without. Empty until they were
    /// tested, which a mount that only reads never does.
    pub abilities: BTreeMap<String, bool>,
    /// The usage of the cache directory.
    pub local: LocalUsage,
    /// Changes published here that are not yet uploaded.
    pub backlog: Backlog,
    /// Why they are not yet uploaded.
    pub backlog_reasons: BacklogReasons,
    /// Whether writers are slowed, and why; `None` if none is.
    pub slowed: Option<SlowedReport>,
    /// Contents that the store refuses, so that only this node has them; `None` if there are none.
    pub set_aside: Option<SetAsideReport>,
    /// Incomplete files, which stay on this node. The profile of a client can request this check.
    pub incomplete: u64,
    /// Counts since the mount started.
    pub counters: Snapshot,
    /// What each client saved through the cache since this cache directory came into use, across restarts.
    pub clients: Figures,
}

/// The result of a `warm`. Each file counts, even if several have the same content.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct WarmReport {
    /// Files that were already on this node.
    pub here: u64,
    /// Their bytes.
    pub here_bytes: u64,
    /// Files that were fetched.
    pub fetched: u64,
    /// Their bytes.
    pub fetched_bytes: u64,
    /// Files for which there was no room.
    pub without_room: u64,
    /// Their bytes.
    pub without_room_bytes: u64,
    /// Files that could not be fetched.
    pub failed: u64,
    /// Names without a file.
    pub missing: u64,
    /// Why the last of the failed files could not be fetched.
    pub trouble: Option<String>,
}

impl WarmReport {
    /// Adds the result for further files.
    pub fn add(&mut self, other: &Self) {
        self.here += other.here;
        self.here_bytes += other.here_bytes;
        self.fetched += other.fetched;
        self.fetched_bytes += other.fetched_bytes;
        self.without_room += other.without_room;
        self.without_room_bytes += other.without_room_bytes;
        self.failed += other.failed;
        self.missing += other.missing;
        self.trouble = other.trouble.clone().or_else(|| self.trouble.take());
    }
}

/// Some of the opens since the last request.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct OpensReport {
    /// Paths of files, as in [`Request::Explain`], in the order of their first opens since then.
    pub paths: Vec<String>,
    /// Opens that were lost because too many were waiting.
    pub lost: u64,
    /// There is more to request at once.
    pub more: bool,
}

/// The busy clients and entries. Counting starts with a request and stops ten seconds after the last one.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct BusyReport {
    /// Each client with a lookup since counting started, by name.
    pub clients: Vec<BusyClient>,
    /// The entries that were opened most, the busiest first.
    pub entries: Vec<BusyEntry>,
}

/// How busy a client is.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct BusyClient {
    /// The name of the client's profile.
    pub name: String,
    /// Opens that got an entry.
    pub hits: u64,
    /// Lookups that failed.
    pub misses: u64,
}

/// How busy an entry is.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct BusyEntry {
    /// Its path below the mount; bytes other than plain text are escaped.
    pub path: String,
    /// The number of opens since counting started; older ones count less.
    pub opens: u64,
}

/// Contents that the store refuses; they also count in the backlog.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct SetAsideReport {
    /// How many.
    pub contents: u64,
    /// Their bytes.
    pub bytes: u64,
    /// The store's message about the last one; empty if no upload was tried since the start.
    pub why: String,
}

/// The phase of a daemon.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Phase {
    /// It reads what the last run left.
    Starting,
    /// It serves the mount.
    #[default]
    Serving,
    /// It refuses new writers, uploads the backlog, and ends.
    Ending,
    /// A phase of a newer daemon.
    #[serde(other)]
    Unknown,
}

/// Whether reads and writes use passthrough, and why.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct IoReport {
    /// `passthrough` or `ordinary`.
    pub mode: String,
    /// Why it is not passthrough.
    pub reason: Option<String>,
    /// Why the kernel keeps `flock` locks by inode, if it does: they may then fail to exclude.
    pub locks_by_inode: Option<String>,
}

/// The state of the remote.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct HealthReport {
    /// Whether it can be used: it answers, and is the store that the node knows.
    pub up: bool,
    /// How long this has been the case, in milliseconds: since the outage began or the last one
    /// ended, or else since the mount started.
    pub since_ms: u64,
    /// The last cause of an outage, kept after the outage; without credentials and queries of addresses.
    pub last_error: Option<String>,
    /// The kind of that cause, as a word.
    pub last_error_kind: Option<String>,
    /// How long ago it last occurred, in milliseconds.
    pub last_error_age_ms: Option<u64>,
    /// Whether it throttles: a request was answered with 429 or 503 within the last ten seconds, or
    /// still waits because of such an answer.
    pub throttled: bool,
}

/// How far a node has followed the log.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct FollowerReport {
    /// Age of the last list of the log that was applied completely, in milliseconds; `None` before the first.
    pub list_age_ms: Option<u64>,
    /// How long ago the last list began, successful or not, in milliseconds.
    pub attempt_age_ms: Option<u64>,
    /// Whether the last finished list failed, or showed commits that could not be read.
    pub list_failed: bool,
    /// The lag of the last applied commit, in milliseconds, by the store's clock. It is measured
    /// from the commit's stamp, or from when this node began to follow if that is later.
    pub lag_last_ms: Option<u64>,
    /// The worst lag of the last five minutes, including commits not applied yet; `None` if none
    /// was applied in that time.
    pub lag_worst_ms: Option<u64>,
    /// Known commits that this node has not applied.
    pub unapplied_commits: u64,
}

/// Whether the bucket's lifecycle rules matched the expiry at the mount.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct RulesReport {
    /// `in place`, `missing`, `disagree`, `none` (the store knows no rules) or `unknown`.
    pub state: String,
    /// What disagrees, or why the state is unknown.
    pub detail: Option<String>,
}

/// The usage of the cache directory.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct LocalUsage {
    /// Bytes of all blobs.
    pub bytes: u64,
    /// Bytes of blobs that are not uploaded yet.
    pub unsaved_bytes: u64,
    /// Number of blobs.
    pub blobs: u64,
    /// The most that it may hold, in bytes.
    pub limit_bytes: u64,
    /// Free bytes of its disk.
    pub disk_free_bytes: u64,
    /// Whether the disk is full: less than 8 MiB is free. Contents of other nodes are then no
    /// longer kept, and writers get ENOSPC when nothing is left.
    pub disk_full: bool,
}

/// Writers that wait for room.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct SlowedReport {
    /// Writers that wait now.
    pub writers: u64,
    /// How long some writers have been waiting, with short gaps, in milliseconds.
    pub since_ms: u64,
    /// What prevents progress.
    pub why: String,
}

/// Changes published on this node that are not yet uploaded.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Backlog {
    /// Journal records.
    pub records: u64,
    /// Bytes of the blobs that they need.
    pub bytes: u64,
    /// Age of the oldest record, in milliseconds.
    pub oldest_ms: u64,
}

/// Why journal records are not yet uploaded. Each record counts once, so the sum is that of the
/// backlog. All are 0 without a remote.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct BacklogReasons {
    /// Waiting for their batch to fill, or for the previous batch.
    pub queued: u64,
    /// Programs may still extend them, or earlier records.
    pub held: u64,
    /// In a batch that is being uploaded.
    pub uploading: u64,
    /// In a batch with an upload that waits because the store throttles.
    pub throttled: u64,
    /// The store cannot be used; held records count as held.
    pub store_down: u64,
    /// The store refuses their contents, which `set_aside` lists.
    pub refused: u64,
    /// The mount is read-only, and an earlier one left them.
    pub read_only: u64,
}

impl Backlog {
    /// Reports whether nothing is pending: everything is uploaded.
    pub fn is_empty(&self) -> bool {
        self.records == 0
    }
}

/// The progress of a drain.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct DrainProgress {
    /// The rest that is not uploaded yet.
    #[serde(flatten)]
    pub backlog: Backlog,
    /// Why there is no progress: the store was tried since the drain began, and cannot be used now.
    /// `None` if it can, or is not known to be down.
    pub trouble: Option<String>,
}

/// The result of a drain.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct DrainReport {
    /// Whether everything published before the request is uploaded.
    pub complete: bool,
    /// The rest of it that is not uploaded.
    pub left: Backlog,
    /// How long it took, in milliseconds.
    pub elapsed_ms: u64,
    /// What prevented completion, if anything did.
    pub trouble: Option<String>,
}
