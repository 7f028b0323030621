//! The effective values, as the rest of the program takes them.
//!
//! Owns plain data, one struct per section of the file. Must never read anything.

use std::path::PathBuf;
use std::time::Duration;

use super::listen::ListenAt;
use super::units::ByteSize;
use super::url::RemoteUrl;
use crate::namespace::Profiles;

/// All effective values of one mount.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Settings {
    /// How the kernel reaches us.
    pub mount: MountSettings,
    /// The cache directory of this node.
    pub local: Local,
    /// The object store.
    pub remote: RemoteSettings,
    /// How closed files travel to it.
    pub writeback: Writeback,
    /// How long entries live.
    pub expiry: Expiry,
    /// What a command on the mount is given.
    pub run: RunSettings,
    /// What monitors may read.
    pub metrics: MetricsSettings,
    /// What is written about it.
    pub log: Log,
    /// What is known of clients: what comes with the program, and what the configuration adds.
    pub profiles: Profiles,
}

/// Section `[mount]`.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct MountSettings {
    /// Where; `None` leaves it to the command line.
    pub directory: Option<PathBuf>,
    /// Whether reads and writes go straight to the backing files.
    pub io: IoMode,
    /// Whether other users may use the mount.
    pub allow_other: AllowOther,
    /// Where the writes of programs go.
    pub writes: Writes,
    /// Whether the root gets a directory for each client.
    pub client_dirs: ClientDirs,
    /// Whether files have extended attributes of `user.*`.
    pub xattrs: bool,
    /// Threads that answer the kernel; `None` chooses by the number of processors.
    pub threads: Option<usize>,
}

/// How reads and writes travel.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum IoMode {
    /// Passthrough where the kernel grants it, ordinary I/O elsewhere.
    #[default]
    Auto,
    /// Passthrough, or refuse to mount.
    Passthrough,
    /// Ordinary I/O even where passthrough would be granted.
    Ordinary,
}

/// Where the writes of programs go.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Writes {
    /// All nodes get it.
    #[default]
    Shared,
    /// It stays on this node.
    Private,
    /// Writers get EROFS.
    None,
}

impl Writes {
    /// Returns the word for it in the configuration.
    pub fn word(self) -> &'static str {
        match self {
            Self::Shared => "shared",
            Self::Private => "private",
            Self::None => "none",
        }
    }
}

/// Whether users other than the one who mounts may use the mount.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum AllowOther {
    /// Yes for root, no for other users.
    #[default]
    Auto,
    /// Yes; a user who is not root needs `user_allow_other` in /etc/fuse.conf.
    Yes,
    /// No.
    No,
}

/// Whether the daemon makes the directories of clients that are missing in the root of the mount.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum ClientDirs {
    /// With mode 1777, on a mount that is meant for several users: made by a service, or with `allow_other = true`.
    #[default]
    Auto,
    /// No.
    None,
    /// Yes, with this mode.
    Mode(u32),
}

/// Section `[local]`.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Local {
    /// The cache directory; absolute.
    pub cache_dir: PathBuf,
    /// The most that it may hold.
    pub cache_size: ByteSize,
}

/// Section `[remote]`.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct RemoteSettings {
    /// The store; `None` is a local cache only.
    pub url: Option<RemoteUrl>,
    /// Address of another server than the cloud's own; `None` leaves it to the cloud's variables and
    /// files.
    pub endpoint: Option<String>,
    /// Region of an S3 bucket; `None` leaves it to the AWS variables and files.
    pub region: Option<String>,
    /// Whether the name of the bucket (S3) or account (Azure) stands in the path and not in the host
    /// name; `None` finds out by the endpoint.
    pub path_style: Option<bool>,
    /// The longest that an operation on the mount may wait for the store.
    pub deadline: Duration,
    /// How old an answer about the store may be; zero asks each time.
    pub freshness: Duration,
    /// How much of what the store got last is fetched after the mount; zero is nothing, also while programs read.
    pub prefetch: ByteSize,
}

/// Section `[writeback]`.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Writeback {
    /// How long closed files are gathered into one batch.
    pub delay: Duration,
    /// How many bytes end a batch earlier.
    pub batch: ByteSize,
    /// How long an ending mount goes on uploading.
    pub drain_deadline: Duration,
    /// How long a reader waits for the first version of a file that is being written.
    pub open_wait: Duration,
    /// How long a writer waits for room when what is not yet remote fills the cache.
    pub full_wait: Duration,
}

/// Section `[expiry]`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Expiry {
    /// How long the bytes of an entry serve after they were stored; `None` is for ever.
    pub age: Option<Duration>,
    /// Whether the bytes of an entry that is used after half its age are stored again.
    pub renew_on_use: bool,
}

/// Section `[run]`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct RunSettings {
    /// Whether clients that leave out what compiles quickly are told to keep it too.
    pub cache_short_compiles: bool,
}

/// Section `[metrics]`.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct MetricsSettings {
    /// Where they are answered; `None` is nowhere.
    pub listen: Option<ListenAt>,
    /// Whether that may be an address that other machines reach.
    pub allow_remote: bool,
    /// The file that is written for a textfile collector; absolute.
    pub textfile: Option<PathBuf>,
}

/// Section `[log]`.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Log {
    /// A level, or `target=level` pairs separated by commas.
    pub level: String,
    /// The form of the lines.
    pub format: LogFormat,
}

/// The form of log lines.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum LogFormat {
    /// One readable line each.
    #[default]
    Text,
    /// One JSON object each.
    Json,
}
