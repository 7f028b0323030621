//! One simulated node, and what programs do on it.

use std::io::Write as _;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use tokio::runtime::Handle;

use crate::clock::Clock;
use crate::digest::Digest;
use crate::error::Result;
use crate::local::{Blobs, CacheDir, Index, Limits, NotAdopted, Options, Staging, State};
use crate::name::TreePath;
use crate::namespace::{Attrs, Entry, EntryKind, Op, Profiles, Time};
use crate::remote::fault::{Faults, SimulatedBucket};
use crate::remote::{KnownStore, RemoteOptions};
use crate::stamp::Stamp;
use crate::sync::{Engine, EngineSettings, FULL_WAIT, LedgerParts};

/// How long a program waits while nothing moves: the default of `remote.deadline`.
const DEADLINE: Duration = Duration::from_secs(5);
/// The bytes that the local tier of a node may use.
const TIER_BYTES: u64 = 1 << 30;
/// How long entries live: the default of `expiry.age`.
const AGE: Duration = Duration::from_hours(30 * 24);

/// The entry that a name leads to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct FoundName {
    pub(super) digest: Digest,
    pub(super) size: u64,
    /// The stamp of the change that has put it there.
    pub(super) stamp: Stamp,
}

/// One node: an engine with its own cache directory, clock and connection to the bucket.
#[derive(Debug)]
pub(super) struct SimulatedNode {
    pub(super) engine: Engine,
    pub(super) faults: Arc<Faults>,
    clock: Clock,
}

impl SimulatedNode {
    /// Starts a node as a mount does: it checks the store first, and then begins to follow and to
    /// publish.
    pub(super) async fn start(
        root: &Path,
        bucket: &SimulatedBucket,
        clock: Clock,
        settings: EngineSettings,
        faults: Arc<Faults>,
    ) -> Result<Self> {
        let kept = CacheDir::kept_store(root)?;
        let dir = CacheDir::open(root)?;
        let options = RemoteOptions { expiry: Some(AGE), ..RemoteOptions::default() };
        let remote = bucket.remote(&faults, &options, clock.clone(), dir.node());
        remote.know(kept.as_deref().and_then(KnownStore::parse));
        if let Err(error) = remote.check().await {
            // Each later request retries this.
            tracing::debug!(error = error.chain(), "the store cannot be used yet");
        }
        let index = Index::off();
        let loaded = index.load();
        let staging = Staging::open(&dir)?;
        let options = Options { evict_unsaved: false, clock: clock.clone() };
        let blobs = Blobs::open(&dir, Limits::of(TIER_BYTES), std::iter::empty(), options)?;
        let parts = LedgerParts {
            dir,
            index,
            loaded,
            blobs,
            staging,
            remote: Some(remote),
            clock: clock.clone(),
            full_wait: FULL_WAIT,
            profiles: Profiles::default(),
            private: false,
        };
        let engine = Engine::open(parts, settings, Handle::current())?;
        engine.start();
        Ok(Self { engine, faults, clock })
    }

    /// Looks a name up, as the mount does when the kernel does not know it.
    pub(super) async fn look_up(&self, path: &TreePath) -> Option<FoundName> {
        let freshness = self.engine.follower().freshness();
        freshness.note_activity();
        if !freshness.ready() {
            freshness.wait_fresh(DEADLINE).await;
        }
        let ledger = self.engine.ledger();
        ledger.read(|fold| {
            let register = fold.visible(path)?;
            let (stamp, changed_ms) = (register.stamp, register.changed_ms());
            let entry = register.entry?;
            ledger.shown(fold, path, &entry, Some(changed_ms))?;
            let (digest, size) = entry.content()?;
            Some(FoundName { digest, size, stamp })
        })
    }

    /// Opens an entry and reads it; false is a miss.
    pub(super) async fn open(&self, found: &FoundName) -> bool {
        let FoundName { digest, size, .. } = *found;
        self.engine.renewer().note_use(&digest, size);
        if self.engine.fetcher().fetch_within(digest, size, DEADLINE).await.is_err() {
            return false;
        }
        let opened = self.engine.ledger().blobs().open_blob(&digest, size);
        opened.is_ok_and(|blob| blob.is_some())
    }

    /// Writes a file and closes it; returns the stamp of the change.
    pub(super) fn close(&self, path: &TreePath, bytes: &[u8]) -> Result<Stamp> {
        let (digest, size) = (Digest::of(bytes), bytes.len() as u64);
        let ledger = self.engine.ledger();
        let (mut file, staged) = ledger.staging().create()?;
        file.write_all(bytes).map_err(|e| crate::error::Error::io("write a file", e))?;
        ledger
            .blobs()
            .adopt(staged, &file, digest, size, State::Unsaved)
            .map_err(NotAdopted::into_error)?;
        let now = Time::from_wall(self.clock.wall());
        let attrs = Attrs { mtime: now, atime: now, ..Attrs::default() };
        let entry = Entry { kind: EntryKind::File { digest, size }, attrs, link: None };
        let stamps = ledger.publish(vec![(path.clone(), Op::Put(entry))])?;
        // A file that other nodes have already is no change, and has no stamp.
        Ok(stamps.last().copied().unwrap_or_default())
    }

    /// Reports whether a path shows a change, or a later one.
    pub(super) fn shows(&self, path: &TreePath, stamp: Stamp) -> bool {
        let of = |fold: &crate::namespace::Fold| fold.register(path);
        self.engine.ledger().read(of).is_some_and(|register| register.stamp >= stamp)
    }

    /// Counts the changes that are not remote yet.
    pub(super) fn backlog(&self) -> u64 {
        self.engine.ledger().pending().records
    }
}
