//! What is said over the control socket.
//!
//! Owns the words, which `status --json` prints and scripts read: fields are added, never renamed.
//! Must never carry file content or credentials.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::error::Kind;
use crate::metrics::{Figures, Snapshot};

/// What a client asks; one line of JSON.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "op", deny_unknown_fields)]
pub enum Request {
    /// Asks for a [`Status`].
    Status,
    /// Asks for the profiles that the mount goes by.
    Profiles,
    /// Asks for a [`BusyReport`].
    Busy,
    /// Asks why a path is a miss.
    Explain {
        /// Its path below the mount, two hexadecimal digits a byte, names separated by `/`.
        path: String,
    },
    /// Asks for the misses that are remembered.
    Misses {
        /// Of this user only.
        uid: Option<u32>,
        /// Of this client only.
        client: Option<String>,
    },
    /// Makes files local, as far as there is room.
    Warm {
        /// Their paths below the mount, as in [`Request::Explain`].
        paths: Vec<String>,
    },
    /// Records what is opened from now on, and asks for what was since the last question.
    Opens {
        /// Tells this recording from others: a random number that the recording process has drawn.
        number: u64,
        /// It is the last question if there is no more.
        last: bool,
    },
    /// Waits until all that was published before is remote.
    Drain {
        /// For at most so long.
        timeout_ms: u64,
    },
    /// Drains, unmounts and ends the daemon.
    Shutdown {
        /// Drains for at most so long: 0 leaves the backlog, `None` is the daemon's own limit.
        timeout_ms: Option<u64>,
    },
}

/// What the daemon answers; one line of JSON each, any number of `progress` before the last.
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
    /// How far a `warm` is.
    Warming(WarmReport),
    /// The end of a `warm`.
    Warmed(WarmReport),
    /// The answer to `opens`.
    Opens(OpensReport),
    /// How far a drain is.
    Progress(DrainProgress),
    /// The end of a drain, or of a shutdown: then the mount is gone.
    Drained(DrainReport),
    /// It did not work.
    Error(RequestFailure),
}

/// Why a request did not work.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct RequestFailure {
    /// What kind of trouble, as a word.
    pub kind: String,
    /// For people.
    pub message: String,
}

impl RequestFailure {
    /// Makes a failure of that kind.
    pub fn new(kind: Kind, message: impl Into<String>) -> Self {
        Self { kind: format!("{kind:?}"), message: message.into() }
    }

    /// Reports whether it is of that kind.
    pub fn is(&self, kind: Kind) -> bool {
        self.kind == format!("{kind:?}")
    }
}

/// All that there is to know about a running mount.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Status {
    /// Version of the daemon.
    pub version: String,
    /// Its process id, in its own PID namespace.
    pub pid: u32,
    /// The user it runs as.
    pub uid: u32,
    /// Where it is mounted; what is not UTF-8 is replaced.
    pub mount_point: String,
    /// The remote's address; `None` is a local cache only.
    pub remote: Option<String>,
    /// The identity of the store that this node knows, 16 hex digits; `None` without a remote, and before the first
    /// store was used.
    pub store: Option<String>,
    /// Whether this mount has made that store, because there was none.
    pub made_store: bool,
    /// The cache directory.
    pub cache_dir: String,
    /// Where the daemon's log lines go: a file, or `journal`; `None` where they go elsewhere.
    pub log: Option<String>,
    /// When the mount began: milliseconds since the Unix epoch.
    pub started_ms: u64,
    /// For how long it has been mounted, in milliseconds.
    pub uptime_ms: u64,
    /// What it is doing.
    pub phase: Phase,
    /// How reads and writes travel.
    pub io: IoReport,
    /// Whether writers get EROFS.
    pub read_only: bool,
    /// Whether what programs write stays on this node.
    #[serde(default)]
    pub private: bool,
    /// A note when callers of other PID namespaces are told apart by handle only.
    pub pid_namespace: Option<String>,
    /// Paths that lead to something.
    pub entries: u64,
    /// How the remote does; `None` without one.
    pub health: Option<Health>,
    /// How this node follows what others publish; `None` without a remote.
    pub follower: Option<FollowerReport>,
    /// The other nodes of which this mount has read a commit that is at most a day old, by the version of their program.
    pub versions: BTreeMap<String, u64>,
    /// Whether the bucket's lifecycle rules fit the expiry; `None` until they were looked at, and where
    /// there is no bucket.
    pub rules: Option<RulesReport>,
    /// What the remote was seen to do, of that without which hearthfs manages; empty until it has been
    /// tried, which a mount that only reads never does.
    pub abilities: BTreeMap<String, bool>,
    /// What the cache directory holds.
    pub local: LocalUsage,
    /// What is published here and not yet remote.
    pub backlog: Backlog,
    /// Why that is not remote yet.
    pub backlog_reasons: BacklogReasons,
    /// Whether writers are slowed, and why; `None` while all goes on at its own speed.
    pub slowed: Option<SlowedReport>,
    /// What the store refuses, so that only this node has it; `None` where there is no such thing.
    pub set_aside: Option<SetAsideReport>,
    /// Files that stay on this node because they are not complete; a client's profile asks for a check of them.
    pub incomplete: u64,
    /// What was counted since the mount began.
    pub counters: Snapshot,
    /// What the cache was worth to each client, since this cache directory is in use: it goes on after a restart.
    pub clients: Figures,
}

/// The outcome of making files local. Each file counts, also where several have the same content.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct WarmReport {
    /// Files that were on this node before.
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
    /// Files that could not be had.
    pub failed: u64,
    /// Names that lead to no file.
    pub missing: u64,
    /// Why the last of those that failed could not be had.
    pub trouble: Option<String>,
}

impl WarmReport {
    /// Adds the outcome for further files.
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

/// Some of what was opened since the last question.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct OpensReport {
    /// Paths of files, as in [`Request::Explain`], in the order of their first opens since then.
    pub paths: Vec<String>,
    /// Opens that could not be kept, because too many waited.
    pub lost: u64,
    /// There is more to ask for at once.
    pub more: bool,
}

/// Which clients and entries are busy. It is counted while a client asks, and for ten seconds after.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct BusyReport {
    /// Each client of which a name was asked for since a client began to ask, by name.
    pub clients: Vec<BusyClient>,
    /// The entries that were opened most, the busiest first.
    pub entries: Vec<BusyEntry>,
}

/// How busy a client is.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct BusyClient {
    /// The name of its profile.
    pub name: String,
    /// Opens that were answered with an entry.
    pub hits: u64,
    /// Lookups that failed.
    pub misses: u64,
}

/// How busy an entry is.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct BusyEntry {
    /// Its path below the mount; what is not plain text is escaped.
    pub path: String,
    /// How often it was opened since a client began to ask; what was long ago counts less.
    pub opens: u64,
}

/// Contents that the store refuses; they count in the backlog, too.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct SetAsideReport {
    /// How many.
    pub contents: u64,
    /// Their bytes.
    pub bytes: u64,
    /// What the store said of the last one; empty if it was not asked since the start.
    pub why: String,
}

/// What a daemon is doing.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Phase {
    /// Reads what the last run left.
    Starting,
    /// Serves.
    #[default]
    Serving,
    /// Takes no more writes, uploads the backlog, and ends.
    Ending,
    /// Something that only a newer daemon says.
    #[serde(other)]
    Unknown,
}

/// How reads and writes travel, and why so.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct IoReport {
    /// `passthrough` or `ordinary`.
    pub mode: String,
    /// Why not passthrough.
    pub reason: Option<String>,
    /// Why the kernel keeps the locks of `flock`, by inode, when it does: they may then not exclude.
    pub locks_by_inode: Option<String>,
}

/// How the remote does.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Health {
    /// Whether it can be used: it answers, and is the store that the node knows.
    pub up: bool,
    /// For how long that has been so, in milliseconds: since the outage began or the last one ended, and else since the
    /// mount began.
    pub since_ms: u64,
    /// The last trouble that made an outage, kept after it came back; without credentials and queries of addresses.
    pub last_error: Option<String>,
    /// What kind of trouble that was, as a word.
    pub last_error_kind: Option<String>,
    /// How long ago it was met last, in milliseconds.
    pub last_error_age_ms: Option<u64>,
    /// Whether it throttles: a request was answered with 429 or 503 within the last ten seconds, or such an answer is being
    /// waited out.
    pub throttled: bool,
}

/// How a node follows what others publish.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct FollowerReport {
    /// Age of the last list of the log of which all was applied, in milliseconds; `None` before the first.
    pub list_age_ms: Option<u64>,
    /// How long ago the last list began, however it went, in milliseconds.
    pub attempt_age_ms: Option<u64>,
    /// Whether the last list that has ended failed, or showed what could not be had.
    pub list_failed: bool,
    /// The lag of the last commit that was applied, in milliseconds: from its stamp, or from when this node began to
    /// follow if that is later, until it was applied here, by the store's clock.
    pub lag_last_ms: Option<u64>,
    /// The worst of the last five minutes, the one that goes on included; `None` if nothing was applied in them.
    pub lag_worst_ms: Option<u64>,
    /// Commits that this node knows of and has not applied.
    pub unapplied_commits: u64,
}

/// Whether the bucket's lifecycle rules fit the expiry, as they were at the mount.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct RulesReport {
    /// `in place`, `missing`, `disagree`, `none` (the store knows no rules) or `unknown`.
    pub state: String,
    /// What disagrees, or why it is not known.
    pub detail: Option<String>,
}

/// What the cache directory holds.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct LocalUsage {
    /// Bytes of all blobs.
    pub bytes: u64,
    /// Of these, bytes that are nowhere else yet.
    pub unsaved_bytes: u64,
    /// Number of blobs.
    pub blobs: u64,
    /// The most that it may hold, in bytes.
    pub limit_bytes: u64,
    /// Bytes that its disk has free.
    pub disk_free_bytes: u64,
    /// Whether that is too little: less than 8 MiB. Contents of other nodes are not kept any more, and writers get ENOSPC
    /// when nothing is left.
    pub disk_full: bool,
}

/// That writers wait for room.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct SlowedReport {
    /// Writers that wait at this moment.
    pub writers: u64,
    /// For how long now and then some have waited, in milliseconds.
    pub since_ms: u64,
    /// What stands in the way.
    pub why: String,
}

/// What is published on this node and not yet remote.
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

/// Why journal records are not remote yet. Each counts once: together they are the records of the backlog. All are 0 without a
/// remote.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct BacklogReasons {
    /// They wait for a batch: that more comes for one, or that the one before is on its way.
    pub queued: u64,
    /// Programs may still add to them, or to what comes before them.
    pub held: u64,
    /// They are in a batch that is on its way.
    pub uploading: u64,
    /// They are in a batch of which an upload waits because the store throttles.
    pub throttled: u64,
    /// The store cannot be used; those that are held count as held.
    pub store_down: u64,
    /// Contents that the store refuses: what is in `set_aside`.
    pub refused: u64,
    /// The mount is read-only, and an earlier one has left them.
    pub read_only: u64,
}

impl Backlog {
    /// Reports whether all is remote.
    pub fn is_empty(&self) -> bool {
        self.records == 0
    }
}

/// How far a drain is.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct DrainProgress {
    /// What is not yet remote.
    #[serde(flatten)]
    pub backlog: Backlog,
    /// Why nothing gets through: the store was asked since the drain began, and cannot be used now. `None` while it
    /// can, or is not known to be down.
    pub trouble: Option<String>,
}

/// How a drain ended.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct DrainReport {
    /// Whether all that was published before the request is remote.
    pub complete: bool,
    /// What of it is not.
    pub left: Backlog,
    /// How long it took, in milliseconds.
    pub elapsed_ms: u64,
    /// What stood in the way, if anything did.
    pub trouble: Option<String>,
}
