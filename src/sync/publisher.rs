//! The publisher: sends the changes of this node to the remote, in order, in atomic batches.
//!
//! Owns the sequence numbers of this node's commits. Must never write a commit before the blobs
//! that it names, nor before the preceding commit. Must never give up. After a long outage it must
//! not publish as current what was true before the outage.
//!
//! Two tasks form a pipeline: one collects batches and uploads their blobs, the other writes their
//! commits, one after the other. So the blobs of a batch are uploaded while the commit of the
//! preceding batch is in flight.
//!
//! Keeps P5 in-order.

mod ripe;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use bytes::Bytes;
use parking_lot::Mutex;
use tokio::runtime::Handle;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;

use super::announcer::Announcer;
use super::backoff::Backoff;
use super::batch::Batch;
use super::claims::Claims;
use super::doubts;
use super::follower::Follower;
use super::ledger::{Ledger, Pending};
use super::pace::Pace;
use super::upload::{Uploaded, Uploader};
use super::versions;
use crate::clock;
use crate::digest::Digest;
use crate::error::{Error, Result};
use crate::namespace::{BlobPlace, Commit, Location, Site};
use crate::remote::{Remote, StoreId, encode_commit, keys};
use crate::stamp::Stamp;
use crate::task;

/// The most batches whose blobs are uploaded and whose commits wait to be written.
const UPLOADED_MAX: usize = 1;
/// A commit that took longer than this from its stamp to the store's answer is written again under
/// a new stamp: followers look back only this far.
const RESTAMP_AFTER: Duration = Duration::from_secs(20);
/// How often a commit is written again for this reason. After that, a wide list finds it.
const RESTAMPS_MAX: u32 = 3;
/// The shortest and the longest wait before a commit is retried.
const RETRY_MIN: Duration = Duration::from_millis(100);
const RETRY_MAX: Duration = Duration::from_secs(15);
/// After this long without a commit, or half of the age if that is shorter, the next commit begins
/// a new incarnation.
const SILENT_MAX: Duration = Duration::from_hours(24);
/// How long a drain waits until its remote commits are announced, and how long the end of a claim
/// waits for that.
const DRAIN_ANNOUNCED_MAX: Duration = Duration::from_secs(3);
const ANNOUNCED_MAX: Duration = Duration::from_secs(1);
/// How often a drain reports its progress.
const PROGRESS_EVERY: Duration = Duration::from_millis(200);

/// The outcome of a drain.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
pub struct DrainOutcome {
    /// Whether everything that was published before the drain is remote. False if the store refuses
    /// some of it.
    pub complete: bool,
    /// What is not yet remote, whether it was published before the drain or since.
    pub left: Pending,
    /// How long it took, in milliseconds.
    pub elapsed_ms: u64,
}

/// Sends changes to the remote; cheap to clone.
#[derive(Clone, Debug)]
pub struct Publisher(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    ledger: Ledger,
    remote: Remote,
    uploader: Arc<Uploader>,
    claims: Claims,
    announcer: Announcer,
    follower: Follower,
    pace: Pace,
    pack_bytes: u64,
    incarnation: Mutex<OwnIncarnation>,
    /// When the last commit was written, by the monotonic clock.
    last: Mutex<Option<Duration>>,
    /// When this publisher was made, and when the last batch was taken, by the monotonic clock.
    made: Duration,
    taken: Mutex<Option<Duration>>,
    /// Drains in progress; batches are not delayed while there are any.
    hurried: AtomicUsize,
}

/// An incarnation of this node: a sequence of commits without gaps.
#[derive(Debug, Clone, Copy)]
struct OwnIncarnation {
    /// The first one of a process has a random number, and each further one the next number.
    number: u64,
    /// The sequence number of the next commit.
    next: u64,
}

impl OwnIncarnation {
    fn new(number: u64) -> Self {
        Self { number, next: 0 }
    }
}

impl Publisher {
    /// Makes a publisher that does nothing until it is started. It collects for up to `delay`, or
    /// longer while the log is busy, or until there are `pack_bytes` bytes for packs.
    pub fn new(
        ledger: Ledger,
        remote: &Remote,
        follower: Follower,
        delay: Duration,
        pack_bytes: u64,
    ) -> Self {
        let remote = remote.background();
        let uploader = Arc::new(Uploader::new(ledger.clone(), remote.clone(), pack_bytes));
        let incarnation = Mutex::new(OwnIncarnation::new(ledger.first_incarnation()));
        let (last, taken, hurried) = (Mutex::new(None), Mutex::new(None), AtomicUsize::new(0));
        let made = ledger.clock().mono();
        let pace = Pace::new(delay);
        let claims = Claims::new(ledger.clone(), remote.clone(), follower.clone());
        let announcer = Announcer::new(ledger.node(), remote.clone(), follower.head().clone());
        Self(Arc::new(Inner {
            ledger,
            remote,
            uploader,
            claims,
            announcer,
            follower,
            pace,
            pack_bytes,
            incarnation,
            last,
            made,
            taken,
            hurried,
        }))
    }

    /// Starts the tasks of the publisher. Aborting them at any point loses nothing.
    pub fn start(&self, runtime: &Handle) -> Vec<JoinHandle<()>> {
        let (sender, mut uploaded) = mpsc::channel(UPLOADED_MAX);
        let (one, two) = (self.clone(), self.clone());
        let collect = task::spawn(runtime, "collect", async move {
            loop {
                one.ripe().await;
                let Some(next) = Box::pin(one.agree_and_upload()).await else { continue };
                if sender.send(next).await.is_err() {
                    return;
                }
            }
        });
        let commit = task::spawn(runtime, "commit", async move {
            while let Some(next) = uploaded.recv().await {
                Box::pin(two.commit(next)).await;
            }
        });
        vec![collect, commit, self.0.announcer.start(runtime)]
    }

    /// Returns when everything that was published before the call is remote, or after `limit`.
    pub async fn drain(&self, limit: Duration) -> DrainOutcome {
        self.drain_with(limit, |_| ()).await
    }

    /// As [`Publisher::drain`]; calls `progress` periodically.
    pub async fn drain_with(
        &self,
        limit: Duration,
        mut progress: impl FnMut(Pending),
    ) -> DrainOutcome {
        let ledger = &self.0.ledger;
        let (target, began) = (ledger.last(), ledger.clock().mono());
        let _hurry = Hurry::new(&self.0);
        ledger.release_all();
        let mut upto = ledger.remote_upto();
        let wait = async {
            while *upto.borrow_and_update() < target {
                if let Some(Err(_)) = clock::within(PROGRESS_EVERY, upto.changed()).await {
                    return;
                }
                progress(ledger.pending());
            }
        };
        clock::within(limit, wait).await;
        let left = (began + limit).saturating_sub(ledger.clock().mono());
        self.0.announcer.settled(left.min(DRAIN_ANNOUNCED_MAX)).await;
        let complete = *upto.borrow() >= target && ledger.aside().contents == 0;
        // Saves work for the next start, which repeats whatever fails here.
        ledger.save_behind().await;
        let elapsed = ledger.clock().mono().saturating_sub(began);
        DrainOutcome { complete, left: ledger.pending(), elapsed_ms: elapsed.as_millis() as u64 }
    }

    /// Reports whether an upload waits because the store throttles.
    pub(super) fn is_throttled(&self) -> bool {
        self.0.uploader.is_throttled()
    }

    /// Takes the next batch, if there is one, and uploads those of its blobs that no other node has
    /// uploaded or is about to upload.
    async fn agree_and_upload(&self) -> Option<Uploaded> {
        let inner = &self.0;
        let mut batch = inner.ledger.take()?;
        *inner.taken.lock() = Some(inner.ledger.clock().mono());
        let store = self.store_for(&batch).await;
        let lacking = |batch: &Batch| inner.uploader.lacking(batch, store);
        let claim = inner.claims.agree(&mut batch, lacking, || inner.is_hurried()).await;
        let mut uploaded = self.upload_batch(batch).await;
        uploaded.claim = claim;
        Some(uploaded)
    }

    /// Uploads the blobs of a batch.
    pub(super) async fn upload_batch(&self, mut batch: Batch) -> Uploaded {
        self.0.ledger.leave_needless(&mut batch);
        let store = self.store_for(&batch).await;
        self.0.uploader.upload(batch, store).await
    }

    /// Returns the store that a batch goes to, once that is known; `None` if nothing of it is sent.
    async fn store_for(&self, batch: &Batch) -> Option<StoreId> {
        if batch.is_empty() {
            return None;
        }
        let mut backoff = Backoff::new(RETRY_MIN, RETRY_MAX);
        loop {
            match self.0.ledger.bound(&self.0.remote).await {
                Ok(store) => return Some(store),
                Err(error) => self.0.uploader.again(&error, &mut backoff).await,
            }
        }
    }

    /// Writes the commit of a batch. Must be called in the order in which the batches were taken.
    pub(super) async fn commit(&self, mut uploaded: Uploaded) {
        let (ledger, began) = (&self.0.ledger, self.0.ledger.clock().mono());
        let mut tries = CommitTries::new();
        let commit = loop {
            self.know_time(&uploaded).await;
            uploaded = self.renew(uploaded).await;
            let Some(mut commit) = self.commit_of(&uploaded) else { break None };
            match self.put(&mut commit, uploaded.store, &mut tries).await {
                CommitPut::Done => break Some(commit),
                CommitPut::Refused => break None,
                CommitPut::Slow | CommitPut::Moved => {}
            }
        };
        let Uploaded { batch, mut locations, claim, .. } = uploaded;
        let landed: Vec<Digest> = locations.iter().map(|(digest, _)| *digest).collect();
        if let Some(commit) = &commit {
            self.0.incarnation.lock().next += 1;
            *self.0.last.lock() = Some(ledger.clock().mono());
            locations.extend(inline_locations(commit));
            tracing::debug!(
                name = %keys::commit_name(&commit.stamp),
                changes = commit.changes.len(),
                blobs = commit.blobs.len(),
                bytes = batch.bytes,
                records = batch.records,
                elapsed_ms = ledger.clock().mono().saturating_sub(began).as_millis() as u64,
                "published"
            );
        }
        {
            // A task that rebuilds the namespace first reads what has landed.
            let _landing = ledger.landing().await;
            let commit = commit.as_ref().map(|commit| (commit, &tries.names[..]));
            ledger.committed(&batch, locations, commit);
        }
        self.0.uploader.landed(landed.into_iter());
        if let Some(claim) = claim {
            // Other nodes look at the head of the log when the claim is gone.
            self.0.announcer.settled(ANNOUNCED_MAX).await;
            self.0.claims.end(claim).await;
        }
    }

    /// Announces the commits that were made, without the task.
    #[cfg(test)]
    pub(super) async fn announce_all(&self) {
        self.0.announcer.announce_all().await;
    }

    #[cfg(test)]
    pub(super) fn announcer(&self) -> &Announcer {
        &self.0.announcer
    }

    /// Returns when the store's time is known. Stamps are judged by that time.
    async fn know_time(&self, uploaded: &Uploaded) {
        if uploaded.batch.changes.is_empty() {
            return;
        }
        let mut backoff = Backoff::new(RETRY_MIN, RETRY_MAX);
        while let Err(error) = self.0.remote.ready_to_write().await {
            self.0.uploader.again(&error, &mut backoff).await;
        }
    }

    /// Renews what has waited too long: stamps, and the contents that the batch relies on. Also
    /// uploads these again if they are in another store. Must be called before a commit gets a name.
    async fn renew(&self, mut uploaded: Uploaded) -> Uploaded {
        let Inner { ledger, uploader, .. } = &*self.0;
        if ledger.is_late(&uploaded.batch) {
            self.catch_up().await;
            if ledger.stamp_anew(&mut uploaded.batch) {
                ledger.save_surely().await;
            }
        }
        if uploader.is_old(&uploaded) || uploaded.store != self.store_for(&uploaded.batch).await {
            // Nothing may rely on the old places any more.
            uploader.landed(uploaded.locations.iter().map(|(digest, _)| *digest));
            let claim = uploaded.claim;
            uploaded = self.upload_batch(uploaded.batch).await;
            uploaded.claim = claim;
        }
        uploaded
    }

    /// Returns the incarnation of the next commit. This is a new one after a long silence: other
    /// nodes may have forgotten the one before.
    fn incarnation(&self) -> OwnIncarnation {
        let Inner { ledger, last, incarnation, .. } = &*self.0;
        let half = ledger.reliance().kept_age().limit().map_or(SILENT_MAX, |limit| limit / 2);
        let silent = last.lock().map(|at| ledger.clock().mono().saturating_sub(at));
        let mut incarnation = incarnation.lock();
        if incarnation.next > 0 && silent.is_some_and(|silent| silent > half.min(SILENT_MAX)) {
            *incarnation = OwnIncarnation::new(incarnation.number.wrapping_add(1));
        }
        *incarnation
    }

    /// Makes the commit of a batch; `None` if it is empty.
    fn commit_of(&self, uploaded: &Uploaded) -> Option<Commit> {
        let Uploaded { batch, packs, blobs, .. } = uploaded;
        if batch.changes.is_empty() && batch.amends.doubts.is_empty() && blobs.is_empty() {
            return None;
        }
        let mut extensions = BTreeMap::from([(versions::TAG, versions::own())]);
        if !batch.amends.doubts.is_empty() {
            extensions.insert(doubts::TAG, doubts::encode(&batch.amends.doubts));
        }
        let mut blobs = blobs.clone();
        for blob in blobs.iter_mut().filter(|blob| matches!(blob.place, BlobPlace::Inline(_))) {
            // They are stored now, with the commit.
            blob.stored_ms = self.0.ledger.storing_ms([blob.digest].iter());
        }
        let mut changes = self.0.ledger.dirs_above(&batch.changes);
        changes.extend(batch.changes.iter().cloned());
        let stamp = self.0.ledger.name_stamp();
        let OwnIncarnation { number: incarnation, next: sequence } = self.incarnation();
        Some(Commit {
            stamp,
            node: stamp.node,
            incarnation,
            sequence,
            packs: packs.clone(),
            blobs,
            changes,
            extensions,
        })
    }

    /// Returns when all changes that other nodes have published are folded.
    async fn catch_up(&self) {
        let mut backoff = Backoff::new(RETRY_MIN, RETRY_MAX);
        while !self.0.follower.list().await {
            clock::sleep(backoff.wait()).await;
        }
    }

    /// Puts a commit into the log of a store under its name. When the outcome is `Done`, it is there
    /// for certain.
    async fn put(
        &self,
        commit: &mut Commit,
        store: Option<StoreId>,
        tries: &mut CommitTries,
    ) -> CommitPut {
        let (clock, stamped) = (self.0.ledger.clock(), self.0.ledger.clock().mono());
        tries.names.push(commit.stamp);
        if tries.names.len() > NAMES_MAX {
            tries.names.remove(0);
        }
        let Some(bytes) = encode(commit).await else { return CommitPut::Refused };
        let name = keys::commit_name(&commit.stamp);
        let is_slow = || clock.mono().saturating_sub(stamped) > RESTAMP_AFTER;
        loop {
            let put = match self.0.ledger.bound(&self.0.remote).await {
                Ok(found) if Some(found) != store => return CommitPut::Moved,
                Ok(_) => self.0.remote.put_commit(&name, bytes.clone()).await,
                Err(error) => Err(error),
            };
            let is_moved = self.0.remote.used().map(|used| used.store()) != store;
            match put {
                Ok(()) if is_moved => return CommitPut::Moved,
                Ok(()) if is_slow() && tries.slow < RESTAMPS_MAX => {
                    tries.slow += 1;
                    return CommitPut::Slow;
                }
                Ok(()) => {
                    self.0.announcer.note(&tries.names, &bytes);
                    return CommitPut::Done;
                }
                Err(error) => self.0.uploader.again(&error, &mut tries.backoff).await,
            }
            if is_slow() {
                return CommitPut::Slow;
            }
        }
    }
}

/// The outcome of writing a commit.
enum CommitPut {
    Done,
    /// It took so long that it needs another name: nodes that list now look past this one.
    Slow,
    /// The store is not the one that has what the commit names.
    Moved,
    /// No reader would accept it: a bug in hearthfs.
    Refused,
}

/// The attempts to write one commit.
struct CommitTries {
    /// The names under which it may be in the log.
    names: Vec<Stamp>,
    /// How often it was written, but too slowly.
    slow: u32,
    backoff: Backoff,
}

impl CommitTries {
    fn new() -> Self {
        Self { names: Vec::new(), slow: 0, backoff: Backoff::new(RETRY_MIN, RETRY_MAX) }
    }
}

/// The most names of one commit that are remembered as ours; commits under other names are read
/// back, which is harmless.
const NAMES_MAX: usize = 64;

impl Inner {
    fn is_hurried(&self) -> bool {
        self.hurried.load(Ordering::Relaxed) > 0
    }
}

/// Makes the publisher hurry while it exists.
struct Hurry<'a>(&'a Inner);

impl<'a> Hurry<'a> {
    fn new(inner: &'a Inner) -> Self {
        inner.hurried.fetch_add(1, Ordering::Relaxed);
        Self(inner)
    }
}

impl Drop for Hurry<'_> {
    fn drop(&mut self) {
        self.0.hurried.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Encodes a commit. Changes that no reader would accept are left out, with an error in the log:
/// otherwise they would hold up everything behind them.
async fn encode(commit: &mut Commit) -> Option<Bytes> {
    let try_once = async |commit: &Commit| -> Result<Bytes> {
        let copy = commit.clone();
        task::blocking(move || encode_commit(&copy)).await.map(Bytes::from)
    };
    let error: Error = match try_once(commit).await {
        Ok(bytes) => return Some(bytes),
        Err(error) => error,
    };
    let alone = |change: &crate::namespace::Change| {
        let mut one = Commit { changes: vec![change.clone()], ..commit.clone() };
        one.blobs.clear();
        one.packs.clear();
        encode_commit(&one).is_ok()
    };
    let good: Vec<_> = commit.changes.iter().filter(|change| alone(change)).cloned().collect();
    let refused = commit.changes.len() - good.len();
    tracing::error!(error = %error.chain(), refused, "changes cannot be shared with other nodes");
    commit.changes = good;
    match try_once(commit).await {
        Ok(bytes) => Some(bytes),
        Err(error) => {
            let changes = commit.changes.len();
            tracing::error!(error = %error.chain(), changes, "a batch cannot be shared");
            None
        }
    }
}

/// Returns the locations of the blobs that are inline in the commit.
fn inline_locations(commit: &Commit) -> Vec<(Digest, Location)> {
    let name: Arc<str> = Arc::from(keys::commit_name(&commit.stamp));
    let inline = commit.blobs.iter().filter(|blob| matches!(blob.place, BlobPlace::Inline(_)));
    inline
        .map(|blob| {
            let site = Site::Inline { commit: Arc::clone(&name) };
            (blob.digest, Location { site, size: blob.size, stored_ms: blob.stored_ms })
        })
        .collect()
}
