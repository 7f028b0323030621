//! Nodes that are driven step by step.

use std::io::Write as _;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use tokio::runtime::Handle;

use crate::clock::Clock;
use crate::digest::Digest;
use crate::error::Result;
use crate::local::{Blobs, CacheDir, Index, Limits, Options, Staging, State};
use crate::name::TreePath;
pub(super) use crate::name::path;
use crate::namespace::{Attrs, Commit, Entry, EntryKind, Op, Profiles, Register};
use crate::remote::fault::{FaultPlan, Faults, MemoryStore};
use crate::remote::{KnownStore, Remote, RemoteOptions, decode_commit};
use crate::stamp::Stamp;
use crate::sync::ledger::PurgeMark;
use crate::sync::upload::Uploaded;
use crate::sync::{Engine, EngineSettings, FULL_WAIT, Ledger, LedgerParts};

/// The format object is shorter than this, and everything else that is read is longer.
pub(super) const FORMAT_BYTES: u64 = 128;

/// The puts of a commit without packs: the commit, and the head of the log that announces it.
pub(super) const COMMIT_PUTS: u64 = 2;

/// A time at which tests begin; any will do.
pub(super) const NOW_MS: u64 = 1_760_000_000_000;

/// How long a program waits while nothing moves.
pub(super) const DEADLINE: Duration = Duration::from_secs(5);

/// Runs a test with one thread and virtual time: sleeping costs nothing.
pub(super) fn run<T>(test: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .start_paused(true)
        .build()
        .unwrap();
    runtime.block_on(test)
}

/// Runs a test with several threads and the machine's time.
pub(super) fn run_real<T>(test: impl Future<Output = T>) -> T {
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    runtime.block_on(test)
}

pub(super) fn file(digest: Digest, size: u64) -> Entry {
    Entry { kind: EntryKind::File { digest, size }, attrs: Attrs::default(), link: None }
}

/// Stores bytes as a local blob of a node.
pub(super) fn store_in(ledger: &Ledger, bytes: &[u8]) -> Entry {
    let digest = Digest::of(bytes);
    let (mut written, staged) = ledger.staging().create().unwrap();
    written.write_all(bytes).unwrap();
    let size = bytes.len() as u64;
    ledger.blobs().adopt(staged, &written, digest, size, State::Unsaved).unwrap();
    file(digest, size)
}

/// Bytes that do not compress well, different for each seed.
pub(super) fn content(seed: u64, size: usize) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut bytes = Vec::with_capacity(size + 8);
    while bytes.len() < size {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        bytes.extend_from_slice(&state.to_le_bytes());
    }
    bytes.truncate(size);
    bytes
}

/// The store and the time that nodes share.
#[derive(Clone)]
pub(super) struct World {
    pub(super) store: MemoryStore,
    pub(super) clock: Clock,
    pub(super) settings: EngineSettings,
    /// How long entries live.
    pub(super) expiry: Option<Duration>,
    /// The known facts about clients.
    pub(super) profiles: Profiles,
    /// Whether nodes that are opened from now on are private.
    pub(super) private: bool,
    /// The bytes that the local tier may use on nodes that are opened from now on.
    pub(super) tier: u64,
}

impl World {
    /// Makes a world whose time advances only explicitly.
    pub(super) fn new() -> Self {
        Self::with_clock(Clock::manual(NOW_MS))
    }

    pub(super) fn with_clock(clock: Clock) -> Self {
        // No background work in a test that does not want it.
        let delay = Duration::from_millis(200);
        let settings = EngineSettings { delay, ahead: false, ..EngineSettings::default() };
        let store = MemoryStore::with_clock(clock.clone());
        let profiles = Profiles::default();
        let tier = 4 << 30;
        Self { store, clock, settings, expiry: None, profiles, private: false, tier }
    }

    /// Makes a world in which entries live for this long.
    pub(super) fn aging(expiry: Duration) -> Self {
        Self { expiry: Some(expiry), ..Self::new() }
    }

    fn options(&self) -> RemoteOptions {
        RemoteOptions { expiry: self.expiry, ..RemoteOptions::default() }
    }

    /// Opens a node whose clock is ahead by `ahead_ms`, and that reads the store's time at its
    /// start.
    pub(super) async fn node_skewed(&self, root: tempfile::TempDir, ahead_ms: i64) -> Node {
        let node = self.node_adrift(root, ahead_ms);
        node.remote().check().await.unwrap();
        node
    }

    /// Opens a node whose clock is ahead by `ahead_ms`, and that has not read the store's time.
    pub(super) fn node_adrift(&self, root: tempfile::TempDir, ahead_ms: i64) -> Node {
        let skewed = Self { clock: self.clock.skewed(ahead_ms), ..self.clone() };
        let dir = CacheDir::open(root.path()).unwrap();
        let faults = Faults::none();
        let options = self.options();
        let remote = self.store.stranger(&faults, &options, skewed.clock.clone(), dir.node());
        remote.know(known(root.path()));
        let engine = skewed.engine_in(dir, Some(remote));
        Node { root, engine, faults, flying: None }
    }

    pub(super) fn node(&self) -> Node {
        self.node_at(tempfile::tempdir().unwrap())
    }

    /// Returns the keys of the store that begin like this, in order.
    pub(super) async fn keys(&self, start: &str) -> Vec<String> {
        let keys = self.store.keys().await.into_iter();
        keys.filter(|key| key.starts_with(start)).collect()
    }

    /// Returns the keys of the commits in the store, in order.
    pub(super) async fn log(&self) -> Vec<String> {
        self.keys("log/").await
    }

    /// Reads a commit of the store.
    pub(super) async fn commit(&self, key: &str) -> Commit {
        decode_commit(&self.store.read(key).await.unwrap()).unwrap()
    }

    /// Opens a new node that has read the log.
    pub(super) async fn caught_up(&self) -> Node {
        let node = self.node();
        assert!(node.pull().await);
        node
    }

    /// Opens a node on a cache directory that an earlier run may have left.
    pub(super) fn node_at(&self, root: tempfile::TempDir) -> Node {
        let faults = Faults::none();
        let engine = self.engine(root.path(), Some(&faults));
        Node { root, engine, faults, flying: None }
    }

    /// Opens a new node on a store with its own address.
    pub(super) fn node_over(&self, url: &str) -> Node {
        let (root, faults) = (tempfile::tempdir().unwrap(), Faults::none());
        let dir = CacheDir::open(root.path()).unwrap();
        let options = RemoteOptions::default();
        let url = url.parse().unwrap();
        let remote = Remote::open(&url, &options, self.clock.clone(), dir.node()).unwrap();
        let engine = self.engine_in(dir, Some(remote));
        Node { root, engine, faults, flying: None }
    }

    pub(super) fn engine(&self, root: &Path, faults: Option<&Arc<Faults>>) -> Engine {
        self.try_engine(root, faults).unwrap()
    }

    pub(super) fn try_engine(&self, root: &Path, faults: Option<&Arc<Faults>>) -> Result<Engine> {
        let dir = open_dir(root);
        let remote = faults.map(|faults| {
            let options = self.options();
            let remote = self.store.remote(faults, &options, self.clock.clone(), dir.node());
            remote.know(known(root));
            remote
        });
        self.try_engine_in(dir, remote)
    }

    fn engine_in(&self, dir: CacheDir, remote: Option<Remote>) -> Engine {
        self.try_engine_in(dir, remote).unwrap()
    }

    fn try_engine_in(&self, dir: CacheDir, remote: Option<Remote>) -> Result<Engine> {
        let index = Index::open(&dir);
        let mut loaded = index.load();
        let staging = Staging::open(&dir).unwrap();
        let known: Vec<_> = loaded.seals.drain(..).collect();
        let evict_unsaved = remote.is_none() || self.private;
        let options = Options { evict_unsaved, clock: self.clock.clone() };
        let blobs = Blobs::open(&dir, Limits::of(self.tier), known.into_iter(), options).unwrap();
        let clock = self.clock.clone();
        let profiles = self.profiles.clone();
        let full_wait = FULL_WAIT;
        let parts = LedgerParts {
            dir,
            index,
            loaded,
            blobs,
            staging,
            remote,
            clock,
            full_wait,
            profiles,
            private: self.private,
        };
        let read_only = self.settings.read_only || self.private;
        let settings = EngineSettings { read_only, ..self.settings };
        Engine::open(parts, settings, Handle::current())
    }
}

/// One node.
pub(super) struct Node {
    root: tempfile::TempDir,
    pub(super) engine: Engine,
    pub(super) faults: Arc<Faults>,
    /// A batch whose blobs are uploaded and whose commit is not written.
    flying: Option<Uploaded>,
}

impl Node {
    pub(super) fn remote(&self) -> &Remote {
        self.engine.ledger().remote().unwrap()
    }

    /// Returns the bytes that were received from the store.
    pub(super) fn fetched(&self) -> u64 {
        self.remote().requests().bytes_down
    }

    pub(super) fn dir(&self) -> std::path::PathBuf {
        self.root.path().join("v1")
    }

    /// Stores bytes as a local blob, as closing a file does.
    pub(super) fn store(&self, bytes: &[u8]) -> Entry {
        store_in(self.engine.ledger(), bytes)
    }

    pub(super) fn write(&self, at: &str, bytes: &[u8]) -> Stamp {
        let entry = self.store(bytes);
        self.publish(vec![(path(at), Op::Put(entry))])
    }

    pub(super) fn remove(&self, at: &str) -> Stamp {
        self.publish(vec![(path(at), Op::Remove)])
    }

    pub(super) fn publish(&self, ops: Vec<(TreePath, Op)>) -> Stamp {
        *self.engine.ledger().publish(ops).unwrap().last().unwrap()
    }

    pub(super) fn entry(&self, at: &str) -> Option<Entry> {
        let (ledger, at) = (self.engine.ledger(), path(at));
        ledger.read(|fold| {
            let register = fold.visible(&at)?;
            let changed_ms = Some(register.changed_ms());
            let entry = register.entry?;
            ledger.shown(fold, &at, &entry, changed_ms).map(|_| entry)
        })
    }

    /// Opens a file as a program does.
    pub(super) async fn open(&self, at: &str) -> Option<Vec<u8>> {
        let (digest, size) = self.entry(at)?.content()?;
        self.engine.renewer().note_use(&digest, size);
        self.read_blob(digest, size).await
    }

    /// Stores contents again whose renewal is due, and forgets entries long past their age.
    pub(super) async fn keep_house(&mut self) {
        self.engine.renewer().renew().await;
        self.push().await;
        self.purge();
    }

    /// Forgets entries long past their age.
    pub(super) fn purge(&self) {
        let mut mark = Some(PurgeMark::start());
        while let Some(from) = mark {
            mark = self.engine.ledger().purge(&from);
        }
    }

    /// Reads a file as a program would: `None` is a miss.
    pub(super) async fn read(&self, at: &str) -> Option<Vec<u8>> {
        let (digest, size) = self.entry(at)?.content()?;
        self.read_blob(digest, size).await
    }

    pub(super) async fn read_blob(&self, digest: Digest, size: u64) -> Option<Vec<u8>> {
        use std::os::unix::fs::FileExt as _;
        let blobs = self.engine.ledger().blobs();
        self.engine.fetcher().fetch_within(digest, size, DEADLINE).await.ok()?;
        let open = blobs.open_blob(&digest, size).unwrap()?;
        self.engine.fetcher().note_used(digest, size);
        let mut bytes = vec![0; size as usize];
        open.file.read_exact_at(&mut bytes, 0).unwrap();
        assert_eq!(Digest::of(&bytes), digest, "a local blob matches its digest");
        Some(bytes)
    }

    /// Takes the next batch, if there is one, and uploads its blobs, as a publisher in a hurry
    /// does.
    pub(super) async fn upload_next(&self) -> Option<Uploaded> {
        let batch = self.engine.ledger().take()?;
        Some(self.engine.publisher().unwrap().upload_batch(batch).await)
    }

    /// Uploads the blobs of the next batch, if none waits for its commit.
    pub(super) async fn upload(&mut self) {
        if self.flying.is_none() {
            self.flying = self.upload_next().await;
        }
    }

    /// Writes the commit of the batch that was uploaded, and announces it.
    pub(super) async fn commit(&mut self) {
        self.commit_only().await;
        self.engine.publisher().unwrap().announce_all().await;
    }

    /// Writes the commit of the batch that was uploaded; it is not announced.
    async fn commit_only(&mut self) {
        if let Some(uploaded) = self.flying.take() {
            Box::pin(self.engine.publisher().unwrap().commit(uploaded)).await;
        }
    }

    /// Writes the commit of the next batch, and does not announce it.
    pub(super) async fn push_unannounced(&mut self) {
        self.upload().await;
        self.commit_only().await;
    }

    /// Sends everything to the remote.
    pub(super) async fn push(&mut self) {
        loop {
            self.upload().await;
            if self.flying.is_none() {
                return;
            }
            self.commit().await;
        }
    }

    /// Writes a file, and sends everything to the remote.
    pub(super) async fn send(&mut self, at: &str, bytes: &[u8]) {
        self.write(at, bytes);
        self.push().await;
    }

    /// Reads the log, and folds the new commits.
    pub(super) async fn pull(&self) -> bool {
        self.engine.follower().poll().await
    }

    /// Ends the node as SIGKILL does: nothing is saved, nothing is sent.
    pub(super) fn crash(self) -> tempfile::TempDir {
        self.root
    }

    pub(super) fn registers(&self) -> Vec<(TreePath, Register)> {
        let all = |fold: &crate::namespace::Fold| fold.registers().collect();
        self.engine.ledger().read(all)
    }

    pub(super) fn fail(&self, plan: &str) {
        self.faults.set(FaultPlan::parse(plan).unwrap());
    }
}

impl Node {
    /// Makes a node from an engine without a remote.
    pub(super) fn alone(root: tempfile::TempDir, engine: Engine) -> Self {
        Self { root, engine, faults: Faults::none(), flying: None }
    }
}

/// Opens a cache directory. A run that was killed may still be writing the index on its own thread.
pub(super) fn open_dir(root: &Path) -> CacheDir {
    let clock = Clock::system();
    loop {
        match CacheDir::open(root) {
            Err(error) if error.kind() == crate::error::Kind::Busy => {
                assert!(clock.mono() < Duration::from_secs(30), "{}", error.chain());
                std::thread::park_timeout(Duration::from_millis(20));
            }
            opened => return opened.unwrap(),
        }
    }
}

/// Returns the store that an earlier run on this cache directory has used.
pub(super) fn known(root: &Path) -> Option<KnownStore> {
    KnownStore::parse(&CacheDir::kept_store(root).unwrap()?)
}

/// Makes an entry whose content no node has.
pub(super) fn file_of(seed: u64) -> Entry {
    file(Digest::of(&seed.to_le_bytes()), 8)
}

pub(super) fn dir_bytes(dir: &Path) -> u64 {
    let files = std::fs::read_dir(dir).unwrap().map(|file| file.unwrap().metadata().unwrap());
    files.filter(std::fs::Metadata::is_file).map(|found| found.len()).sum()
}
