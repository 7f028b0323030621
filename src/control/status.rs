//! The status of a mount.
//!
//! Owns the field names, which `status --json` prints and scripts read: fields are added, never
//! renamed. Must never carry credentials. A group is written as if its fields were those of the
//! status, in the same order, so a new field belongs at the end of a group.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::config::Writes;
use crate::metrics::{Figures, Snapshot};

/// The complete status of a running mount.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Status {
    /// The process that serves it.
    #[serde(flatten)]
    pub daemon: DaemonReport,
    /// Where it is mounted; bytes that are not UTF-8 are replaced.
    pub mount_point: String,
    /// Its store.
    #[serde(flatten)]
    pub store: StoreReport,
    /// The cache directory.
    pub cache_dir: String,
    /// Where the daemon's log lines go: a file, or `journal`; `None` for any other destination.
    pub log: Option<String>,
    /// How long it has been there, and what it does.
    #[serde(flatten)]
    pub life: LifeReport,
    /// Whether reads and writes use passthrough.
    pub io: IoReport,
    /// Where the writes of programs go.
    #[serde(flatten, with = "writes_as_flags")]
    pub writes: Writes,
    /// A note if callers of other PID namespaces can only be distinguished by their handles.
    pub pid_namespace: Option<String>,
    /// The number of paths with an entry.
    pub entries: u64,
    /// What it knows of the remote and of other nodes.
    #[serde(flatten)]
    pub sharing: SharingReport,
    /// The usage of the cache directory.
    pub local: LocalUsage,
    /// What only this node has.
    #[serde(flatten)]
    pub unsent: UnsentReport,
    /// Counts since the mount started.
    pub counters: Snapshot,
    /// What each client saved through the cache since this cache directory came into use, across restarts.
    pub clients: Figures,
}

/// The process that serves a mount.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct DaemonReport {
    /// Version of the daemon.
    pub version: String,
    /// Its process id, in its own PID namespace.
    pub pid: u32,
    /// The user it runs as.
    pub uid: u32,
}

/// The store of a mount; nothing is set without a remote.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct StoreReport {
    /// The remote's address; `None` is a local cache only.
    #[serde(rename = "remote")]
    pub address: Option<String>,
    /// The identity of the store that this node knows, 16 hex digits; `None` before the first store
    /// was used.
    #[serde(rename = "store")]
    pub identity: Option<String>,
    /// Whether this mount made that store, because there was none.
    #[serde(rename = "made_store")]
    pub is_new: bool,
}

/// The age of a mount and the phase of its daemon.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct LifeReport {
    /// When the mount started: milliseconds since the Unix epoch.
    pub started_ms: u64,
    /// For how long it has been mounted, in milliseconds.
    pub uptime_ms: u64,
    /// The phase of the daemon.
    pub phase: Phase,
}

/// Writes the one setting as the two flags that scripts read.
mod writes_as_flags {
    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    use crate::config::Writes;

    #[derive(Default, Serialize, Deserialize)]
    #[serde(default)]
    struct Flags {
        /// Whether writers get EROFS.
        read_only: bool,
        /// Whether writes of programs stay on this node.
        private: bool,
    }

    // The reference is what serde passes.
    #[expect(clippy::trivially_copy_pass_by_ref, reason = "serde requires this signature")]
    pub(super) fn serialize<S: Serializer>(writes: &Writes, to: S) -> Result<S::Ok, S::Error> {
        let (read_only, private) = (*writes == Writes::None, *writes == Writes::Private);
        Flags { read_only, private }.serialize(to)
    }

    pub(super) fn deserialize<'a, D: Deserializer<'a>>(from: D) -> Result<Writes, D::Error> {
        Ok(match Flags::deserialize(from)? {
            Flags { read_only: true, .. } => Writes::None,
            Flags { private: true, .. } => Writes::Private,
            Flags { .. } => Writes::Shared,
        })
    }
}

/// What a mount knows of its remote and of the nodes that share it.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct SharingReport {
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
}

impl SharingReport {
    /// Returns the state of the remote if there is one that cannot be used.
    pub fn outage(&self) -> Option<&HealthReport> {
        self.health.as_ref().filter(|health| !health.up)
    }
}

/// What only this node has, and why.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct UnsentReport {
    /// Changes published here that are not yet uploaded.
    pub backlog: Backlog,
    /// Why they are not yet uploaded.
    #[serde(rename = "backlog_reasons")]
    pub reasons: BacklogReasons,
    /// Whether writers are slowed, and why; `None` if none is.
    pub slowed: Option<SlowedReport>,
    /// Contents that the store refuses, so that only this node has them; `None` if there are none.
    pub set_aside: Option<SetAsideReport>,
    /// Incomplete files, which stay on this node. The profile of a client can request this check.
    pub incomplete: u64,
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
    /// Why idle processors are not asked to wake quickly while programs use the mount.
    pub slow_wake: Option<String>,
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
