//! The effective values, as the rest of the program uses them.
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
    /// Settings of the mount.
    pub mount: MountSettings,
    /// The cache directory of this node.
    pub local: Local,
    /// The object store.
    pub remote: RemoteSettings,
    /// How closed files are uploaded.
    pub writeback: Writeback,
    /// How long entries live.
    pub expiry: Expiry,
    /// Settings for commands that `hearthfs run` starts.
    pub run: RunSettings,
    /// What monitors may read.
    pub metrics: MetricsSettings,
    /// Settings of the log.
    pub log: Log,
    /// The known clients: those that come with the program, and what the configuration adds.
    pub profiles: Profiles,
}

/// Section `[mount]`.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct MountSettings {
    /// The mount point; `None` leaves it to the command line.
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
    /// Whether idle processors are asked to wake quickly while programs use the mount.
    pub quick_wake: bool,
    /// Threads that answer the kernel; `None` means that the number of processors decides.
    pub threads: Option<usize>,
}

/// Whether reads and writes use passthrough.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum IoMode {
    /// Passthrough if the kernel grants it, otherwise ordinary I/O.
    #[default]
    Auto,
    /// Passthrough, or refuse to mount.
    Passthrough,
    /// Ordinary I/O even if passthrough would be granted.
    Ordinary,
}

/// Where the writes of programs go.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Writes {
    /// Written files reach all nodes.
    #[default]
    Shared,
    /// Written files stay on this node.
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

/// Whether the daemon makes missing directories of clients in the root of the mount.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum ClientDirs {
    /// With mode 1777, on a mount meant for several users: started by a service, or with `allow_other = true`.
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
    /// The largest size of its content.
    pub cache_size: ByteSize,
}

/// Section `[remote]`.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct RemoteSettings {
    /// The store; `None` is a local cache only.
    pub url: Option<RemoteUrl>,
    /// The address of another server than the cloud's own; `None` leaves it to the cloud's variables and files.
    pub endpoint: Option<String>,
    /// Region of an S3 bucket; `None` leaves it to the AWS variables and files.
    pub region: Option<String>,
    /// Whether the name of the bucket (S3) or account (Azure) goes into the path instead of the
    /// host name; `None` means that the endpoint decides.
    pub path_style: Option<bool>,
    /// The longest that an operation on the mount may wait for the store.
    pub deadline: Duration,
    /// How old an answer about the store may be; zero asks each time.
    pub freshness: Duration,
    /// How many of the newest bytes in the store are fetched after the mount. Zero fetches none,
    /// and also turns off fetching ahead while programs read.
    pub prefetch: ByteSize,
}

/// Section `[writeback]`.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Writeback {
    /// How long closed files are gathered into one batch.
    pub delay: Duration,
    /// The size at which a batch ends early.
    pub batch: ByteSize,
    /// How long an ending mount continues to upload.
    pub drain_deadline: Duration,
    /// How long a reader waits for the first version of a file that is being written.
    pub open_wait: Duration,
    /// How long a writer waits for room when pending changes fill the cache.
    pub full_wait: Duration,
}

/// Section `[expiry]`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Expiry {
    /// How long the bytes of an entry are served after they were stored; `None` is for ever.
    pub age: Option<Duration>,
    /// Whether the bytes of an entry that is used after half its age are stored again.
    pub renew_on_use: bool,
}

/// Section `[run]`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct RunSettings {
    /// Whether clients that do not cache quick compilations are told to cache them too.
    pub cache_short_compiles: bool,
}

/// Section `[metrics]`.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct MetricsSettings {
    /// The address; `None` serves no figures.
    pub listen: Option<ListenAt>,
    /// Whether the address may be reachable from other machines.
    pub allow_remote: bool,
    /// The file for a textfile collector; absolute.
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
