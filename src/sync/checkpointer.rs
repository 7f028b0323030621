//! The checkpointer: writes what was folded, so that the log may go and a new node starts soon.
//!
//! Owns the decision when. Must never write what is not remote yet, nor a namespace in which commits are
//! missing while there is a better one; and never hold anybody up: nobody waits for a checkpoint.

use std::fs::File;
use std::io::{BufWriter, Write as _};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::runtime::Handle;
use tokio::task::JoinHandle;

use super::follower::{Follower, LOOK_BACK_MS};
use super::ledger::{Ledger, Snapshot};
use super::missing::Missing;
use crate::clock;
use crate::error::{Error, Kind, Result};
use crate::remote::{CheckpointCounts, CheckpointHead, CheckpointWriter, LogItem, Remote, keys};
use crate::task;

/// How long commits are kept that a checkpoint has, and objects that it does not need: whoever listed the
/// log or a checkpoint before reads on for as long.
pub const LOG_GRACE: Duration = Duration::from_hours(1);
/// Commits that are not in the latest checkpoint when one is due.
const COMMITS_MAX: u64 = 256;
/// The part of the age after which one is due for a single commit.
const PARTS_OF_AGE: u32 = 4;
/// How often it is looked, without asking the store, whether one is due.
const LOOK_EVERY: Duration = Duration::from_secs(10);
/// The longest that is waited before the store is asked whether another node was faster.
const JITTER_MAX: Duration = Duration::from_secs(20);
/// How long nothing is tried after a failure, at first and at most: an idle node that may not write should
/// not ask for ever.
const RETRY_MIN: Duration = Duration::from_mins(5);
const RETRY_MAX: Duration = Duration::from_hours(6);
/// A checkpoint that took longer than this is left to another try: those who take it for the latest
/// would lack what was deleted meanwhile.
const WRITE_TIME_MAX: Duration = Duration::from_mins(20);
/// Bytes that are written to the file at once.
const WRITE_BYTES: usize = 1 << 20;

/// Brings checkpoints into the order in which they are to be believed, the latest first.
///
/// The name says when its writer began and the store when it had it. A clock that is ahead, and an upload
/// that took long, must not make an old one the latest, so the earlier of both counts.
pub(super) fn latest_first(items: &mut [LogItem]) {
    items.sort_unstable_by_key(|item| std::cmp::Reverse((made_ms(item), item.name.clone())));
}

fn made_ms(item: &LogItem) -> u64 {
    keys::checkpoint_stamp(&item.name).map_or(0, |stamp| stamp.ms.min(item.stored_ms))
}

/// Returns up to when a checkpoint has the whole log: its writer had listed and folded that just before, so what came
/// late is the only thing that it may lack.
pub(super) fn floor_ms(item: &LogItem) -> u64 {
    made_ms(item).saturating_sub(LOOK_BACK_MS)
}

/// Writes checkpoints; cheap to clone.
#[derive(Clone, Debug)]
pub struct Checkpointer(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    ledger: Ledger,
    follower: Follower,
    remote: Remote,
    state: Mutex<State>,
    writing: tokio::sync::Mutex<()>,
}

#[derive(Debug, Default)]
struct State {
    /// When the latest checkpoint was made that we know of; 0 as long as nobody has looked.
    latest_ms: u64,
    /// What was counted last, and how many commits had been folded then.
    counted: Option<(u64, (u64, u64))>,
    /// Nothing is tried before this time of the monotonic clock, ...
    not_before: Duration,
    /// ... which was so long after the last failure; zero after none.
    pause: Duration,
}

impl Checkpointer {
    pub(super) fn new(ledger: Ledger, follower: Follower, remote: &Remote) -> Self {
        let (remote, state) = (remote.background(), Mutex::default());
        let writing = tokio::sync::Mutex::default();
        Self(Arc::new(Inner { ledger, follower, remote, state, writing }))
    }

    /// Starts looking now and then. Aborting it at any point leaves nothing behind.
    pub(super) fn start(&self, runtime: &Handle) -> JoinHandle<()> {
        let checkpointer = self.clone();
        task::spawn(runtime, "checkpoint", async move {
            loop {
                clock::sleep(LOOK_EVERY).await;
                if checkpointer.is_due() {
                    let jitter = task::random_u64() % JITTER_MAX.as_millis() as u64;
                    clock::sleep(Duration::from_millis(jitter)).await;
                    checkpointer.write_if_due().await;
                }
            }
        })
    }

    /// Reports whether a checkpoint should be written, as far as can be told without the store.
    pub fn is_due(&self) -> bool {
        let ledger = &self.0.ledger;
        let mut state = self.0.state.lock();
        if ledger.clock().mono() < state.not_before {
            return false;
        }
        let folded = ledger.folded();
        let latest_ms = state.latest_ms;
        let (count, first_ms) = match state.counted {
            Some((at, counted)) if at == folded => counted,
            _ => {
                let counted = ledger.since(latest_ms);
                state.counted = Some((folded, counted));
                counted
            }
        };
        let old = self.0.remote.effective_expiry().is_some_and(|age| {
            let first_age = ledger.now_ms().saturating_sub(first_ms);
            count > 0 && first_age > (age / PARTS_OF_AGE).as_millis() as u64
        });
        count >= COMMITS_MAX || old
    }

    /// Writes a checkpoint if one is due and no other node has written it. What fails is tried again
    /// later.
    pub async fn write_if_due(&self) {
        let Ok(_writing) = self.0.writing.try_lock() else { return };
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
        state.not_before = self.0.ledger.clock().mono() + state.pause;
    }

    async fn look_and_write(&self) -> Result<()> {
        let mut items = self.0.remote.list_checkpoints().await?;
        latest_first(&mut items);
        self.know(items.first().map_or(0, made_ms));
        if !self.is_due() {
            return Ok(());
        }
        if items.first().is_some_and(|latest| self.is_for_others(latest)) {
            let op =
                "entries live shorter here than is declared; another node writes the checkpoint";
            return Err(Error::new(Kind::Unavailable, op));
        }
        self.write().await.map(drop)
    }

    /// Reports whether a checkpoint is left to nodes that show all that the store declares to live: this one
    /// shows less, and there is one that is young enough to say that others write them.
    fn is_for_others(&self, latest: &LogItem) -> bool {
        let (remote, kept) = (&self.0.remote, self.0.ledger.kept_age());
        let shorter = remote.effective_expiry() != remote.kept_expiry();
        shorter && !kept.is_late(made_ms(latest), self.0.ledger.now_ms())
    }

    fn know(&self, latest_ms: u64) {
        let mut state = self.0.state.lock();
        (state.latest_ms, state.counted) = (latest_ms, None);
    }

    /// Returns what may be missing in a checkpoint: what the latest one does not have either. One that cannot be
    /// used here may have anything, but when it has grown old nobody else can use it either.
    async fn missing(&self) -> Result<Missing> {
        let ledger = &self.0.ledger;
        if !ledger.is_partial() {
            return Ok(Missing::default());
        }
        let unknown = self.0.follower.fill_gaps().await?;
        if unknown.is_some_and(|latest| !ledger.kept_age().is_late(latest.ms, ledger.now_ms())) {
            let op = "commits are missing here; another node writes the checkpoint";
            return Err(Error::new(Kind::Unavailable, op));
        }
        // What is found missing from now on comes after all that the latest one has.
        Ok(ledger.missing())
    }

    /// Writes a checkpoint now; returns its name.
    pub async fn write(&self) -> Result<String> {
        let ledger = &self.0.ledger;
        // What is known of a store that was emptied meanwhile must not be told to those who start from the next.
        self.0.remote.check_again().await?;
        let missing = self.missing().await?;
        // It has to have all that an older one had, of which the log may be gone.
        if !self.0.follower.poll().await {
            return Err(Error::new(Kind::Unavailable, "the log cannot be listed"));
        }
        let busy = || Error::new(Kind::Busy, "what is remote cannot be told yet");
        let began = ledger.clock().mono();
        let snapshot = ledger.snapshot(&missing).ok_or_else(busy)?;
        let stamp = snapshot.stamp;
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
        self.know(stamp.ms);
        self.0.follower.note_written(stamp);
        let elapsed_ms = ledger.clock().mono().saturating_sub(began).as_millis() as u64;
        let CheckpointCounts { commits, registers, .. } = counts;
        tracing::info!(name, commits, registers, bytes = size, elapsed_ms, "wrote a checkpoint");
        Ok(name)
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
