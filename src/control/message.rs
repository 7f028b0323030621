//! The messages of the control socket.
//!
//! Owns the field names, which `status --json` prints and scripts read: fields are added, never
//! renamed. Must never carry file content or credentials.

use serde::{Deserialize, Serialize};

use super::status::{Backlog, Status};
use crate::error::Kind;

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
