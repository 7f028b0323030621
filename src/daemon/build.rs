//! Building the rooms, from the ground up.

use std::fs::File;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use hearthfs_mount::Tasks;
use tokio::runtime::Handle;

use crate::clock::{self, Clock};
use crate::config::Settings;
use crate::control::Health;
use crate::error::{Error, Kind, Result};
use crate::fs::{self, Filesystem, Rules};
use crate::local::{Blobs, CacheDir, Index, Journal, Limits, Options, StagedPath, Staging};
use crate::metrics::{Metrics, Snapshot};
use crate::namespace::{Attrs, Entry, Kind as EntryKind, Time};
use crate::remote::{self, Remote, RemoteOptions};
use crate::sync::{self, Fetcher, Follower, Ledger, Publisher};

/// How long the first look at the remote may take. A store that cannot be reached is no reason not to
/// mount; one that refuses us is.
const CHECK_DEADLINE: Duration = Duration::from_secs(10);

/// Everything that one mount stands on.
#[derive(Debug)]
pub(super) struct Rooms {
    pub(super) fs: Filesystem,
    pub(super) ledger: Arc<Ledger>,
    pub(super) blobs: Blobs,
    pub(super) remote: Option<Remote>,
    pub(super) publisher: Option<Arc<Publisher>>,
    pub(super) clock: Clock,
    pub(super) metrics: Arc<Metrics>,
    pub(super) tasks: Arc<Tasks>,
    dir: CacheDir,
    index: Index,
    probe: (File, StagedPath),
}

impl Rooms {
    /// Returns a file of the cache directory by which the kernel is asked for passthrough.
    pub(super) fn probe_file(&self) -> Result<File> {
        self.probe.0.try_clone().map_err(|error| Error::io("try passthrough", error))
    }

    /// Puts everything away: the index as it is now, and the mark of a clean stop.
    pub(super) fn finish(&self) {
        self.ledger.save_index();
        self.index.flush();
        if let Err(error) = self.ledger.sync().and_then(|()| self.dir.mark_clean()) {
            tracing::warn!(error = error.chain(), "the next start will look twice at what is here");
        }
    }
}
