//! The remote, as the rest of hearthfs sees it.
//!
//! Owns the handle, and the operations on commits and packs. Must never interpret what it moves.

use std::fs::File;
use std::os::unix::fs::FileExt as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use futures::StreamExt as _;
use object_store::path::Path;
use object_store::{
    GetOptions, GetRange, GetResult, GetResultPayload, ObjectStore, ObjectStoreExt as _, PutPayload,
};
use tokio::sync::Semaphore;

use super::backend::Backend;
use super::call::{Call, CallFailure, Requester};
use super::connect::{self, Environment, RemoteOptions};
use super::dir::SharedDir;
use super::expiry::{Agreement, Declared};
use super::health::{Gate, Health, Lane};
use super::identity::Identity;
use super::keys::Keys;
use super::meter::{Meter, Requests};
use super::pack::PACK_BYTES_MAX;
use super::progress::Progress;
use super::store_check::StoreCheck;
use super::throttle::{Throttle, Throttling, Wait, is_throttled};
use super::time::StoreTime;
use super::tried::Tried;
use super::trouble::Trouble;
use super::verb::Verb;
use crate::clock::Clock;
use crate::config::RemoteUrl;
use crate::error::{Error, Kind, Result};
use crate::stamp::NodeId;
use crate::task;

/// Memory that all uploads of blobs may use together, in MiB.
pub(super) const UPLOAD_MIB_MAX: u32 = 128;
/// Bytes of a file that are read at once.
const FILE_CHUNK_BYTES: usize = 1 << 20;

/// A remote. Cheap to clone; clones share everything, including the limits.
#[derive(Debug, Clone)]
pub struct Remote {
    pub(super) inner: Arc<Inner>,
    pub(super) lane: Lane,
    /// Notified when bytes of this handle's requests move.
    progress: Option<Progress>,
}

#[derive(Debug)]
pub(super) struct Inner {
    pub(super) url: RemoteUrl,
    pub(super) keys: Keys,
    pub(super) requester: Requester,
    pub(super) clock: Clock,
    pub(super) node: NodeId,
    /// One permit for each MiB that an upload may hold.
    pub(super) uploads: Semaphore,
    pub(super) read_only: AtomicBool,
    pub(super) check: StoreCheck,
    /// The identity of the store, and the one that the node knows.
    pub(super) identity: Identity,
    pub(super) tried: Tried,
    pub(super) foreign_said: AtomicBool,
    /// This handle has made the store.
    pub(super) made: AtomicBool,
    pub(super) time: Arc<StoreTime>,
    pub(super) expiry: Agreement,
}

impl Remote {
    /// Makes the handle without a request to the store.
    ///
    /// # Errors
    ///
    /// `Invalid` for a setting that can never work: endpoint, profile, certificates.
    pub fn open(
        url: &RemoteUrl,
        options: &RemoteOptions,
        clock: Clock,
        node: NodeId,
    ) -> Result<Self> {
        Self::open_in(url, options, clock, node, &Environment::process())
    }

    /// As [`Remote::open`], with an environment that is not the process's.
    ///
    /// # Errors
    ///
    /// As [`Remote::open`].
    pub fn open_in(
        url: &RemoteUrl,
        options: &RemoteOptions,
        clock: Clock,
        node: NodeId,
        env: &Environment,
    ) -> Result<Self> {
        let meter = Arc::new(Meter::default());
        let backend = match url {
            RemoteUrl::File(dir) => Backend::Dir(Arc::new(SharedDir::new(dir.clone()))),
            _ => Backend::Bucket(connect::open(url, options, env, &meter)?),
        };
        #[cfg(any(test, feature = "test-util"))]
        let backend = match super::fault::Faults::from_process_env()? {
            Some(faults) => Backend::Faulty(Box::new(backend), faults),
            None => backend,
        };
        Ok(Self::over(url, backend, meter, options, clock, node))
    }

    pub(super) fn over(
        url: &RemoteUrl,
        backend: Backend,
        meter: Arc<Meter>,
        options: &RemoteOptions,
        clock: Clock,
        node: NodeId,
    ) -> Self {
        let gate = Arc::new(Gate::new(clock.clone(), url.to_string(), options.deadline));
        let remedy = connect::credentials_remedy(url);
        let time = Arc::new(StoreTime::new(clock.clone()));
        let throttle = Arc::new(Throttle::new(clock.clone(), meter.answers.clone()));
        let deadline = options.deadline;
        let requester =
            Requester::new(backend, gate, meter, throttle, deadline, time.clone(), remedy);
        let inner = Inner {
            url: url.clone(),
            keys: Keys::new(url.prefix()),
            requester,
            clock,
            node,
            uploads: Semaphore::new(UPLOAD_MIB_MAX as usize),
            read_only: AtomicBool::new(false),
            check: StoreCheck::default(),
            identity: Identity::default(),
            tried: Tried::default(),
            foreign_said: AtomicBool::new(false),
            made: AtomicBool::new(false),
            time,
            expiry: Agreement::new(options.expiry),
        };
        Self { inner: Arc::new(inner), lane: Lane::Foreground, progress: None }
    }

    /// Returns how much the store throttles.
    pub fn throttling(&self) -> Throttling {
        self.inner.requester.throttle.read()
    }

    /// Starts measuring the wait after an error, if the store throttled that request.
    pub fn wait_after(&self, error: &Error) -> Option<Wait> {
        is_throttled(error).then(|| self.begin_wait())
    }

    /// Starts measuring a wait because the store throttled a request.
    pub fn begin_wait(&self) -> Wait {
        Wait::begin(self.inner.requester.throttle.clone())
    }

    /// Makes the handle and checks the store.
    ///
    /// # Errors
    ///
    /// As [`Remote::open`] and [`Remote::check`].
    pub async fn connect(
        url: &RemoteUrl,
        options: &RemoteOptions,
        clock: Clock,
        node: NodeId,
    ) -> Result<Self> {
        let remote = Self::open(url, options, clock, node)?;
        remote.check().await?;
        Ok(remote)
    }

    /// Makes this remote, with all its clones, refuse every write, including that of the format object.
    #[must_use]
    pub fn read_only(self) -> Self {
        self.inner.read_only.store(true, Ordering::Relaxed);
        self
    }

    /// Returns a handle for reads that no program waits for: they leave the reserve to others, and
    /// may be sent to a store that is down. Writes always behave this way.
    #[must_use]
    pub fn background(&self) -> Self {
        Self { lane: Lane::Background, ..self.clone() }
    }

    /// Returns a handle that reports to `progress` when bytes of its requests move.
    #[must_use]
    pub fn telling(&self, progress: &Progress) -> Self {
        Self { progress: Some(progress.clone()), ..self.clone() }
    }

    /// Returns how long a request may take after the last bytes that moved.
    pub fn deadline(&self) -> Duration {
        self.inner.requester.deadline
    }

    /// Completes when a store that did not answer does so again.
    pub fn recovered(&self) -> impl Future<Output = ()> + '_ {
        self.inner.requester.gate.recovered().notified()
    }

    /// Returns the address.
    pub fn url(&self) -> &RemoteUrl {
        &self.inner.url
    }

    /// Returns whether the store answers, and is the one that the node knows.
    pub fn health(&self) -> Health {
        match self.inner.identity.missed() {
            Some((_, since_ms)) => Health::Down { since_ms },
            None => self.inner.requester.gate.health(),
        }
    }

    /// Returns how many requests were made.
    pub fn requests(&self) -> Requests {
        self.inner.requester.meter.read()
    }

    /// Returns how long the store took to answer, by kind and outcome.
    pub fn request_times(&self) -> Vec<super::RequestTimes> {
        self.inner.requester.meter.latency.read()
    }

    /// Reports whether foreign objects were seen.
    pub fn has_foreign(&self) -> bool {
        self.inner.foreign_said.load(Ordering::Relaxed)
    }

    /// Returns how long the store says that entries live, as of the last check.
    pub fn declared_expiry(&self) -> Declared {
        self.inner.expiry.declared()
    }

    /// Returns the expiry that this handle was opened with, `None` for ever.
    pub fn own_expiry(&self) -> Option<Duration> {
        self.inner.expiry.own()
    }

    /// Returns how long entries live, `None` for ever: the shorter of what this node is configured
    /// with and what the store declares. Changes when a store that was down at first is reached.
    pub fn effective_expiry(&self) -> Option<Duration> {
        self.inner.expiry.effective()
    }

    /// Returns for how long records must be kept for other nodes, `None` for ever: what the store
    /// declares, however short this node's own expiry is.
    pub fn kept_expiry(&self) -> Option<Duration> {
        self.inner.expiry.kept()
    }

    /// Returns what the store declares, as far as this run or an earlier one knows.
    pub fn known_expiry(&self) -> Declared {
        self.inner.expiry.known()
    }

    /// Sets the [`Remote::known_expiry`] of an earlier run, which applies until this run has asked.
    pub fn assume_expiry(&self, declared: Declared) {
        self.inner.expiry.assume(declared);
    }

    /// Returns the wall time in milliseconds since the Unix epoch as the store sees it. Once the
    /// store's time was learned, setting our own clock makes no difference.
    pub fn now_ms(&self) -> u64 {
        self.inner.time.now_ms()
    }

    /// Returns how far the store's clock is ahead of ours, in milliseconds, for the next run.
    pub fn ahead_ms(&self) -> i64 {
        self.inner.time.ahead_ms()
    }

    /// Sets the [`Remote::ahead_ms`] of an earlier run, which applies until this run has asked.
    pub fn assume_ahead(&self, ahead_ms: i64) {
        self.inner.time.assume(ahead_ms);
    }

    /// Reads a whole pack.
    ///
    /// # Errors
    ///
    /// `NotFound` when it is gone, `Invalid` for what is no name of a pack; `Unavailable` or `TimedOut` while the store
    /// does not answer, `Denied` or `Invalid` when it refuses.
    pub async fn get_pack(&self, name: &str) -> Result<Bytes> {
        let key = self.inner.keys.pack(name)?;
        self.read(key, None, PACK_BYTES_MAX).await
    }

    /// Reads exactly `length` bytes of a pack.
    ///
    /// # Errors
    ///
    /// As [`Remote::get_pack`]; `Invalid` for a range that no pack has.
    pub async fn get_pack_range(&self, name: &str, offset: u64, length: u64) -> Result<Bytes> {
        let key = self.inner.keys.pack(name)?;
        if length == 0 || length > PACK_BYTES_MAX || offset > PACK_BYTES_MAX {
            let op = format!("{key}: {length} bytes at {offset} are no part of a pack");
            return Err(Error::new(Kind::Invalid, op));
        }
        self.read(key, Some((offset, length)), PACK_BYTES_MAX).await
    }

    /// Writes a pack. Writing it again is harmless.
    ///
    /// # Errors
    ///
    /// `Invalid` for what is no name of a pack; `Denied` on a read-only mount; otherwise `Unavailable` or `TimedOut`
    /// while the store does not answer, `Denied` or `Invalid` when it refuses.
    pub async fn put_pack(&self, name: &str, bytes: Bytes) -> Result<()> {
        let key = self.inner.keys.pack(name)?;
        self.write(key, bytes, PACK_BYTES_MAX).await
    }

    /// Describes a request of this handle.
    pub(super) fn call(&self, verb: Verb, op: impl Into<String>) -> Call {
        let lane = match verb {
            Verb::Put | Verb::Delete => Lane::Background,
            Verb::Get | Verb::List | Verb::Head => self.lane,
        };
        let limit = self.inner.requester.deadline;
        let progress = self.progress.clone().unwrap_or_default();
        Call { verb, lane, op: op.into(), limit, progress, guarded: true }
    }

    pub(super) async fn read(
        &self,
        key: Path,
        range: Option<(u64, u64)>,
        most: u64,
    ) -> Result<Bytes> {
        self.ready(self.lane).await?;
        let call = self.call(Verb::Get, format!("read {key}"));
        self.read_with(call, key, range, most).await
    }

    pub(super) async fn read_with(
        &self,
        call: Call,
        key: Path,
        range: Option<(u64, u64)>,
        most: u64,
    ) -> Result<Bytes> {
        let requester = &self.inner.requester;
        let progress = call.progress.clone();
        let bytes = requester
            .call(call, |store| async move {
                let range =
                    range.map(|(offset, length)| GetRange::Bounded(offset..offset + length));
                let options = GetOptions { range: range.clone(), ..GetOptions::default() };
                let got = store.get_opts(&key, options).await?;
                let length = got.range.end - got.range.start;
                if length > most {
                    let text = format!("{length} bytes where {most} are the most");
                    return Err(Trouble::corrupt(text).into());
                }
                if let Some(GetRange::Bounded(wanted)) = range
                    && got.range != wanted
                {
                    // A request beyond the end returns what there is.
                    let text = format!("{length} of {} bytes are there", wanted.end - wanted.start);
                    return Err(Trouble::corrupt(text).into());
                }
                let bytes = body_of(got, length as usize, &progress).await?;
                if bytes.len() as u64 != length {
                    return Err(Trouble::cut_short(bytes.len() as u64, length).into());
                }
                Ok(bytes)
            })
            .await?;
        requester.meter.down(bytes.len() as u64);
        Ok(bytes)
    }

    pub(super) async fn write(&self, key: Path, bytes: Bytes, most: u64) -> Result<()> {
        self.ready_to_write().await?;
        self.write_now(key, bytes, most).await
    }

    /// Writes an object. The caller has checked the store.
    pub(super) async fn write_now(&self, key: Path, bytes: Bytes, most: u64) -> Result<()> {
        let size = bytes.len() as u64;
        if size > most {
            let op = format!("write {key}: {size} bytes where {most} are the most");
            return Err(Error::new(Kind::Invalid, op));
        }
        let requester = &self.inner.requester;
        let call = Call {
            limit: requester.time_for(size),
            ..self.call(Verb::Put, format!("write {key}"))
        };
        requester
            .call(call, |store| async move {
                store.put(&key, PutPayload::from(bytes)).await?;
                Ok::<_, CallFailure>(())
            })
            .await?;
        requester.meter.up(size);
        Ok(())
    }
}

/// Reads a body of `length` bytes, and reports progress.
async fn body_of(
    got: GetResult,
    length: usize,
    progress: &Progress,
) -> std::result::Result<Bytes, CallFailure> {
    let got = match got {
        GetResult { payload: GetResultPayload::File(file, _), range, .. } => {
            let progress = progress.clone();
            let read = task::blocking(move || read_file(&file, range.start, length, &progress));
            let failed = |error| object_store::Error::Generic { store: "file", source: error };
            return Ok(read.await.map_err(|error| failed(error.into()))?);
        }
        got => got,
    };
    let mut pieces = got.into_stream();
    let mut body = Bytes::new();
    let mut joined = BytesMut::new();
    while let Some(piece) = pieces.next().await {
        let piece = piece?;
        progress.note();
        if piece.len() == length {
            body = piece;
            continue;
        }
        joined.reserve(length.saturating_sub(joined.len()).min(length));
        joined.extend_from_slice(&piece);
    }
    Ok(if joined.is_empty() { body } else { joined.freeze() })
}

/// Reads from a file of a shared directory, less if the file ends early, and reports progress.
fn read_file(file: &File, at: u64, length: usize, progress: &Progress) -> std::io::Result<Bytes> {
    let mut bytes = vec![0; length];
    let mut done = 0;
    while done < length {
        let upto = length.min(done + FILE_CHUNK_BYTES);
        match file.read_at(&mut bytes[done..upto], at + done as u64) {
            Ok(0) => break,
            Ok(count) => done += count,
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => continue,
            Err(error) => return Err(error),
        }
        progress.note();
    }
    bytes.truncate(done);
    Ok(bytes.into())
}

#[cfg(test)]
mod tests;
