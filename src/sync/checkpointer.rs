//! The checkpointer: keeps the log short, so that a new node starts quickly.
//!
//! Owns the decision when to write a bundle, and when to write a checkpoint of what was folded.
//! Must never write what is not remote yet. Must never write a namespace in which commits are
//! missing while a better checkpoint exists. Must never hold up a program: none waits for a
//! checkpoint.

mod bundler;
mod mover;
mod sweeper;

use std::fs::File;
use std::io::{BufWriter, Write as _};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::runtime::Handle;
use tokio::task::JoinHandle;

use self::bundler::Tail;
use self::mover::Mover;
use self::sweeper::OwnCheckpoint;
use super::covers::{BundleItem, Covers, floor_ms, trusted_ms};
use super::fetcher::Fetcher;
use super::follower::Follower;
use super::ledger::{Ledger, Snapshot};
use super::missing::Missing;
use super::times::{LOG_GRACE, LOOK_BACK_MS, WRITE_TIME_MAX};
use crate::clock;
use crate::error::{Error, Kind, Result};
use crate::remote::{CheckpointCounts, CheckpointHead, CheckpointWriter, LogItem, Remote, keys};
use crate::stamp::Stamp;
use crate::task;

/// A checkpoint may be due from this many commits that are in no checkpoint. Whether it is due
/// depends on their bytes, too.
const COMMITS_MAX: u64 = 256;
/// A checkpoint is written when its size is at most this many times that of the log since the last
/// one.
const BYTES_TIMES: u64 = 2;
/// A bundle is due from this many commits that are in no checkpoint and no bundle, once they are
/// old enough.
const BUNDLED_MIN: u64 = 32;
/// How old the first of them is then, at least.
const BUNDLED_AFTER_MS: u64 = LOOK_BACK_MS + 30_000;
/// The node that wrote the last one also writes the next one. After this time another node checks
/// whether it still does.
const OTHERS_TIME: Duration = Duration::from_mins(3);
/// Once a commit is older than this fraction of the age, a checkpoint is due for it alone.
const PARTS_OF_AGE: u32 = 4;
/// The longest wait for other nodes, as a fraction of the age: a checkpoint must be written before
/// the commits that it replaces are deleted.
const WAITED_PART_OF_AGE: u32 = 16;
/// How often to check, without a request, whether one is due.
const LOOK_EVERY: Duration = Duration::from_secs(10);
/// The longest wait before a node asks the store whether another node has already written one. The
/// node that wrote the last one does not wait: the others leave the next one to it.
const JITTER_MAX: Duration = Duration::from_secs(20);
/// The first and the longest pause after a failure: an idle node that may not write must not ask
/// for ever.
const RETRY_MIN: Duration = Duration::from_mins(5);
const RETRY_MAX: Duration = Duration::from_hours(6);
/// How often the log is listed before a checkpoint: reading it may take longer than the name of the
/// checkpoint allows, and each further list has less to read.
const LISTS_MAX: u32 = 3;
/// How many bytes are written to the file at once.
const WRITE_BYTES: usize = 1 << 20;

/// Writes checkpoints; cheap to clone.
#[derive(Clone, Debug)]
pub struct Checkpointer(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    ledger: Ledger,
    follower: Follower,
    remote: Remote,
    mover: Mover,
    state: Mutex<State>,
    writing: tokio::sync::Mutex<()>,
}

#[derive(Debug, Default)]
struct State {
    /// When the latest known checkpoint was made; 0 before the first look.
    latest_ms: u64,
    /// The time up to which checkpoint and bundles cover the log.
    covered_ms: u64,
    /// The last count, and how many commits had been folded then.
    counted: Option<(u64, FoldedCommits)>,
    /// Whether this node wrote the last one that it knows.
    is_last: bool,
    /// The checkpoint of this node after which it has not tidied up yet.
    sweeps: Option<OwnCheckpoint>,
    /// Nothing is tried before this time of the monotonic clock.
    not_before: Duration,
    /// The pause since the last failure; zero if the last attempt succeeded.
    pause: Duration,
}

/// Counts of folded commits.
#[derive(Debug, Clone, Copy)]
struct FoldedCommits {
    /// Commits in no checkpoint: how many, and when the first was made.
    unfolded: (u64, u64),
    /// Commits in no checkpoint and no bundle.
    uncovered: (u64, u64),
}

impl Checkpointer {
    pub(super) fn new(
        ledger: Ledger,
        follower: Follower,
        fetcher: Fetcher,
        remote: &Remote,
    ) -> Self {
        let (remote, state) = (remote.background(), Mutex::default());
        let writing = tokio::sync::Mutex::default();
        let mover = Mover::new(ledger.clone(), fetcher);
        Self(Arc::new(Inner { ledger, follower, remote, mover, state, writing }))
    }

    /// Starts checking periodically. Aborting the task at any point leaves nothing behind.
    pub(super) fn start(&self, runtime: &Handle) -> JoinHandle<()> {
        let checkpointer = self.clone();
        task::spawn(runtime, "checkpoint", async move {
            loop {
                clock::sleep(LOOK_EVERY).await;
                if checkpointer.is_due() {
                    clock::sleep(checkpointer.jitter()).await;
                    checkpointer.write_if_due().await;
                }
                checkpointer.tidy_up().await;
            }
        })
    }

    /// Returns how long to wait before asking the store.
    fn jitter(&self) -> Duration {
        if self.0.state.lock().is_last {
            return Duration::ZERO;
        }
        let most_ms = self.at_most(JITTER_MAX).as_millis() as u64;
        Duration::from_millis(task::random_u64() % most_ms.max(1))
    }

    /// Returns how long to wait for other nodes: `usual`, or less if entries have a short life.
    fn at_most(&self, usual: Duration) -> Duration {
        let age = self.0.remote.effective_expiry();
        age.map_or(usual, |age| usual.min(age / WAITED_PART_OF_AGE))
    }

    /// Reports whether a checkpoint or a bundle is due, as far as this node knows without asking
    /// the store.
    pub fn is_due(&self) -> bool {
        let ledger = &self.0.ledger;
        if ledger.clock().mono() < self.0.state.lock().not_before {
            return false;
        }
        let (count, first_ms) = self.counted().uncovered;
        let waited_ms = ledger.now_ms().saturating_sub(first_ms);
        count >= COMMITS_MAX
            || (count >= BUNDLED_MIN && waited_ms >= BUNDLED_AFTER_MS)
            || self.is_old()
    }

    /// Reports whether a commit has been in no checkpoint for so long that a checkpoint is due.
    fn is_old(&self) -> bool {
        let (count, first_ms) = self.counted().unfolded;
        let first_age_ms = self.0.ledger.now_ms().saturating_sub(first_ms);
        count > 0 && self.due_age_ms().is_some_and(|age_ms| first_age_ms > age_ms)
    }

    /// Returns how old a commit may get before it is in a checkpoint; `None` for any age.
    fn due_age_ms(&self) -> Option<u64> {
        let age = self.0.remote.effective_expiry()?;
        Some((age / PARTS_OF_AGE).as_millis() as u64)
    }

    fn counted(&self) -> FoldedCommits {
        let (ledger, mut state) = (&self.0.ledger, self.0.state.lock());
        let folded = ledger.folded();
        match state.counted {
            Some((at, counted)) if at == folded => counted,
            _ => {
                let times_ms = [state.latest_ms, state.covered_ms];
                let [unfolded, uncovered] = ledger.since(times_ms);
                let counted = FoldedCommits { unfolded, uncovered };
                state.counted = Some((folded, counted));
                counted
            }
        }
    }

    /// Writes a checkpoint or a bundle if one is due and no other node has written it. A failure is
    /// retried later. Waits for one that is being written: a node that drains must not end before.
    pub async fn write_if_due(&self) {
        let _writing = self.0.writing.lock().await;
        if !self.is_due() {
            return;
        }
        let outcome = self.look_and_write().await;
        let mut state = self.0.state.lock();
        state.pause = match outcome {
            Ok(()) => Duration::ZERO,
            Err(error) => {
                tracing::debug!(error = %error.chain(), "no checkpoint was written");
                (state.pause * 2).clamp(RETRY_MIN, RETRY_MAX)
            }
        };
        state.not_before = state.not_before.max(self.0.ledger.clock().mono() + state.pause);
    }

    /// As [`Checkpointer::write_if_due`], at the end of a run. A program may wait for that, so work
    /// that other nodes can do is left to them.
    pub(super) async fn write_at_end(&self) {
        if self.counted().uncovered.0 >= COMMITS_MAX || self.is_old() {
            self.write_if_due().await;
        }
    }

    async fn look_and_write(&self) -> Result<()> {
        let Inner { ledger, remote, .. } = &*self.0;
        let covers = Covers::list(remote).await?;
        let latest = covers.checkpoints.first();
        let chain = covers.chain(latest.map_or(0, floor_ms));
        let covered_ms = chain.last().map_or(0, |last| last.upto_ms());
        self.know(latest.map_or(0, trusted_ms), covered_ms);
        if !self.is_due() || self.is_of_others(latest, &chain) {
            return Ok(());
        }
        let from_ms = chain.last().map_or(latest.map_or(0, floor_ms), |last| last.upto_ms());
        let mut tail = Tail::list(remote, ledger.clock(), from_ms).await?;
        let bytes = chain.iter().map(|one| one.item.size).sum::<u64>()
            + tail.bytes_after(latest.map_or(0, trusted_ms));
        let (count, _) = self.counted().unfolded;
        let pays = latest.is_none_or(|latest| latest.size <= bytes.saturating_mul(BYTES_TIMES));
        if self.is_old() || (count >= COMMITS_MAX && pays) {
            if latest.is_some_and(|latest| self.is_for_others(latest)) {
                let op =
                    "entries expire earlier here than declared; another node writes the checkpoint";
                return Err(Error::new(Kind::Unavailable, op));
            }
            let (name, commits) = self.write_named().await?;
            self.0.mover.begin();
            let mut state = self.0.state.lock();
            (state.is_last, state.sweeps) = (true, Some(OwnCheckpoint { name, commits }));
            return Ok(());
        }
        if let Some(wait) = tail.settle(BUNDLED_MIN as usize / 2) {
            self.wait(wait);
            return Ok(());
        }
        let began = ledger.clock().mono();
        let node = ledger.node();
        let (name, commits) = tail.bundle(remote, ledger.clock(), node, &chain).await?;
        let latest_ms = self.0.state.lock().latest_ms;
        self.know(latest_ms, name.upto.ms);
        self.0.state.lock().is_last = true;
        let elapsed_ms = ledger.clock().mono().saturating_sub(began).as_millis() as u64;
        tracing::info!(%name, commits, elapsed_ms, "wrote a bundle");
        Ok(())
    }

    /// Tidies up after a checkpoint of this node: deletes what the checkpoints have made needless,
    /// and moves some contents out of commits that are older than the grace time, so that these
    /// commits can be deleted. A failure is left to the next time.
    pub(super) async fn tidy_up(&self) {
        let own = self.0.state.lock().sweeps.take();
        if let Some(own) = own {
            self.sweep(own).await;
        }
        let grace_ms = LOG_GRACE.as_millis() as u64;
        self.0.mover.move_some(self.0.ledger.now_ms().saturating_sub(grace_ms)).await;
    }

    async fn sweep(&self, own: OwnCheckpoint) {
        match sweeper::sweep(&self.0.ledger, &self.0.remote, own).await {
            Ok(0) => {}
            Ok(objects) => tracing::info!(objects, "deleted objects that are no longer needed"),
            Err(error) => {
                tracing::debug!(error = %error.chain(), "some unneeded objects could not be deleted");
            }
        }
    }

    /// Reports whether to leave this to the node that wrote the last checkpoint or bundle. True
    /// while that node seems to be running.
    fn is_of_others(&self, latest: Option<&LogItem>, chain: &[&BundleItem]) -> bool {
        let ledger = &self.0.ledger;
        let last = match chain.last() {
            Some(bundle) => Some(bundle.name.upto.node),
            None => {
                latest.and_then(|one| keys::checkpoint_stamp(&one.name)).map(|stamp| stamp.node)
            }
        };
        self.0.state.lock().is_last = last == Some(ledger.node());
        let FoldedCommits { unfolded, uncovered } = self.counted();
        // Once a checkpoint is due because of age, commits in bundles count as waiting, too.
        let aged_ms =
            self.due_age_ms().map_or(u64::MAX, |age_ms| unfolded.1.saturating_add(age_ms));
        let waited_ms = ledger.now_ms().saturating_sub(uncovered.1.min(aged_ms));
        let others_ms = self.at_most(OTHERS_TIME).as_millis() as u64;
        if last.is_none_or(|last| last == ledger.node()) || waited_ms > others_ms {
            return false;
        }
        // Each node checks at another time, so that one of many notices soon.
        self.wait(Duration::from_millis(others_ms / 2 + task::random_u64() % others_ms.max(1)));
        true
    }

    fn wait(&self, time: Duration) {
        self.0.state.lock().not_before = self.0.ledger.clock().mono() + time;
    }

    /// Reports whether to leave a checkpoint to nodes that show all that the store declares to
    /// live. True if this node shows less, and the latest checkpoint is young, so other nodes do
    /// write them.
    fn is_for_others(&self, latest: &LogItem) -> bool {
        let (remote, kept) = (&self.0.remote, self.0.ledger.reliance().kept_age());
        let shorter = remote.effective_expiry() != remote.kept_expiry();
        shorter && !kept.is_late(trusted_ms(latest), self.0.ledger.now_ms())
    }

    /// Notes when the latest checkpoint was made, and up to when bundles continue from it.
    fn know(&self, latest_ms: u64, covered_ms: u64) {
        let mut state = self.0.state.lock();
        (state.latest_ms, state.covered_ms) = (latest_ms, covered_ms.max(latest_ms));
        state.counted = None;
    }

    /// Returns the commits that may be missing in a new checkpoint: those that the latest one
    /// lacks, too. A checkpoint that cannot be read here may contain anything; but once it is old,
    /// other nodes cannot read it either.
    async fn missing(&self) -> Result<Missing> {
        let ledger = &self.0.ledger;
        if !ledger.is_partial() {
            return Ok(Missing::default());
        }
        let unknown = self.0.follower.fill_gaps().await?;
        if unknown
            .is_some_and(|latest| !ledger.reliance().kept_age().is_late(latest.ms, ledger.now_ms()))
        {
            let op = "commits are missing here; another node writes the checkpoint";
            return Err(Error::new(Kind::Unavailable, op));
        }
        // Anything found missing from now on is newer than all that the latest checkpoint has.
        Ok(ledger.log(|log| log.missing().clone()))
    }

    /// Folds the log until nothing is missing that was in it shortly before this returns. The name
    /// of a checkpoint promises that.
    async fn fold_log(&self) -> Result<()> {
        let ledger = &self.0.ledger;
        for _ in 0..LISTS_MAX {
            if !self.0.follower.list().await {
                return Err(Error::new(Kind::Unavailable, "the log cannot be listed"));
            }
            if ledger.now_ms().saturating_sub(ledger.listed_ms()) <= LOOK_BACK_MS / 2 {
                return Ok(());
            }
        }
        Err(Error::new(Kind::Busy, "the log grows faster than it can be read"))
    }

    /// Writes a checkpoint now; returns its name.
    ///
    /// # Errors
    ///
    /// `Busy` while it is not known what is remote, or if the log grows faster than it is read;
    /// `TimedOut` if the upload takes too long; `Unavailable` if the log cannot be listed or
    /// commits are missing here.
    pub async fn write(&self) -> Result<String> {
        self.write_named().await.map(|(name, _)| name)
    }

    /// Writes a checkpoint; returns its name and the names of its commits.
    async fn write_named(&self) -> Result<(String, Vec<Stamp>)> {
        let ledger = &self.0.ledger;
        // If the store was emptied meanwhile, what is known of it must not reach nodes that start
        // from this checkpoint.
        self.0.remote.check_again().await?;
        let missing = self.missing().await?;
        // It must contain all that an older checkpoint had: the log of that part may be gone.
        self.fold_log().await?;
        let busy = || Error::new(Kind::Busy, "it is not yet known what is remote");
        let began = ledger.clock().mono();
        let snapshot = ledger.snapshot(&missing).ok_or_else(busy)?;
        let (stamp, commits) = (snapshot.stamp, snapshot.commits.clone());
        let age = self.0.remote.kept_expiry();
        let staging = ledger.staging().clone();
        let (file, staged) = task::blocking(move || staging.create()).await?;
        let copy = file.try_clone().map_err(|e| Error::io("open a checkpoint once more", e))?;
        let encoded = task::blocking(move || encode(snapshot, age, copy)).await;
        let (counts, size) = encoded?;
        staged.note_bytes(size);
        let took = ledger.clock().mono().saturating_sub(began);
        let name = keys::checkpoint_name(&stamp);
        let left = WRITE_TIME_MAX.saturating_sub(took);
        let put = clock::within(left, self.0.remote.put_checkpoint(&name, file, size)).await;
        drop(staged);
        put.ok_or_else(|| Error::new(Kind::TimedOut, "a checkpoint took too long"))??;
        self.know(stamp.ms, 0);
        self.0.follower.note_written(stamp);
        let elapsed_ms = ledger.clock().mono().saturating_sub(began).as_millis() as u64;
        let CheckpointCounts { commits: count, registers, .. } = counts;
        tracing::info!(
            name,
            commits = count,
            registers,
            bytes = size,
            elapsed_ms,
            "wrote a checkpoint"
        );
        Ok((name, commits))
    }
}

/// Writes a snapshot to a file, slice by slice.
fn encode(
    mut snapshot: Snapshot,
    age: Option<Duration>,
    file: File,
) -> Result<(CheckpointCounts, u64)> {
    let age_ms = age.map(|age| age.as_millis() as u64);
    let head = CheckpointHead { stamp: snapshot.stamp, age_ms };
    let to = BufWriter::with_capacity(WRITE_BYTES, file);
    let mut writer = CheckpointWriter::new(to, &head)?;
    for stamp in std::mem::take(&mut snapshot.commits) {
        writer.commit(&stamp)?;
    }
    for chain in std::mem::take(&mut snapshot.chains) {
        writer.chain(&chain)?;
    }
    while let Some(slice) = snapshot.registers()? {
        for (path, register, location) in slice {
            writer.register(&path, &register, location.as_ref())?;
        }
    }
    for early in std::mem::take(&mut snapshot.early) {
        writer.early(&early)?;
    }
    while let Some(slice) = snapshot.locations() {
        for (digest, location) in slice {
            writer.location(&digest, &location)?;
        }
    }
    let (mut to, counts, size) = writer.finish()?;
    to.flush().map_err(|e| Error::io("write a checkpoint", e))?;
    Ok((counts, size))
}
