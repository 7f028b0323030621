//! A bucket that behaves as S3 documents it, in the memory and the virtual time of a simulation.
//!
//! Owns what a request costs: time, a share of the rate of its prefix, and money. Must never read
//! the machine's clock, and never let a request exceed the rates.

use std::collections::HashMap;
use std::fmt;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use futures::stream::{self, BoxStream};
use futures::{StreamExt as _, TryStreamExt as _};
use object_store::path::Path;
use object_store::{
    CopyOptions, GetOptions, GetResult, ListResult, MultipartUpload, ObjectMeta, ObjectStore,
    PutMultipartOptions, PutOptions, PutPayload, PutResult, RenameOptions, UploadPart,
};
use parking_lot::Mutex;

use super::{Faults, MemoryStore, remote_over, unavailable};
use crate::clock::{self, Clock};
use crate::remote::connect::RemoteOptions;
use crate::remote::head::LogHead;
use crate::remote::keys;
use crate::remote::meter::{Meter, Requests};
use crate::remote::store::Remote;
use crate::remote::verb::Verb;
use crate::stamp::{NodeId, Stamp};
use crate::task;

/// Keys on one page of a list, and in one deletion request.
const PAGE_KEYS: usize = 1000;
/// The folder of commits, and the object that announces them.
const LOG: &str = "log";
const HEAD: &str = "head";

/// The speed and rates of the bucket and of the line to it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Terms {
    /// The average time of a request; single ones take up to a quarter less or more.
    pub latency: Duration,
    /// Bytes that the line of one node moves in a second.
    pub line_bytes_per_s: u64,
    /// PUT, POST and DELETE requests that a prefix takes in a second; 503 beyond.
    pub writes_per_s: u32,
    /// GET, HEAD and LIST requests that a prefix answers in a second; 503 beyond.
    pub reads_per_s: u32,
}

impl Default for Terms {
    /// The rates that S3 documents, 20 ms a request, and a line of 1 Gbit/s.
    fn default() -> Self {
        Self {
            latency: Duration::from_millis(20),
            line_bytes_per_s: 125_000_000,
            writes_per_s: 3500,
            reads_per_s: 5500,
        }
    }
}

/// The requests that the bucket has received.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Bill {
    /// Requests that were answered, by kind.
    pub requests: Requests,
    /// Requests that were refused with 503 because of the rate of their prefix. They cost nothing.
    pub refused: u64,
    /// Keys that lists returned.
    pub listed: u64,
    /// The most requests of one prefix in one second, refused ones included: reads, and writes.
    pub peak: [u32; 2],
}

impl Bill {
    /// Returns the requests since an earlier bill; the peak is that of the whole time.
    #[must_use]
    pub fn since(&self, before: &Self) -> Self {
        let (now, then) = (&self.requests, &before.requests);
        let requests = Requests {
            puts: now.puts - then.puts,
            gets: now.gets - then.gets,
            lists: now.lists - then.lists,
            deletes: now.deletes - then.deletes,
            heads: now.heads - then.heads,
            bytes_up: now.bytes_up - then.bytes_up,
            bytes_down: now.bytes_down - then.bytes_down,
            errors: now.errors - then.errors,
        };
        let (refused, listed) = (self.refused - before.refused, self.listed - before.listed);
        Self { requests, refused, listed, peak: self.peak }
    }
}

/// A bucket that all nodes of a simulation share; clones are the same bucket.
#[derive(Debug, Clone)]
pub struct SimulatedBucket(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    store: MemoryStore,
    clock: Clock,
    terms: Terms,
    answered: Meter,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// The requests to each prefix in the present second.
    seconds: HashMap<String, Second>,
    refused: u64,
    listed: u64,
    peak: [u32; 2],
    /// Commits that no head has announced yet.
    unannounced: HashMap<Stamp, Bytes>,
    /// Commits announced since the last call that took them, each with the time of its announcement
    /// in milliseconds.
    commits: Vec<(u64, Bytes)>,
}

/// The requests of one prefix in one second.
#[derive(Debug, Default)]
struct Second {
    number: u64,
    /// Reads, and writes.
    counts: [u32; 2],
}

impl SimulatedBucket {
    /// Makes an empty bucket.
    pub fn new(clock: Clock, terms: Terms) -> Self {
        let (store, answered) = (MemoryStore::with_clock(clock.clone()), Meter::default());
        Self(Arc::new(Inner { store, clock, terms, answered, state: Mutex::default() }))
    }

    /// Makes the remote of one node, with faults of its own. It learns the store's time in its check.
    pub fn remote(
        &self,
        faults: &Arc<Faults>,
        options: &RemoteOptions,
        clock: Clock,
        node: NodeId,
    ) -> Remote {
        remote_over(Arc::new(self.clone()), faults, options, clock, node)
    }

    /// Returns the requests so far.
    pub fn bill(&self) -> Bill {
        let state = self.0.state.lock();
        let State { refused, listed, peak, .. } = *state;
        Bill { requests: self.0.answered.read(), refused, listed, peak }
    }

    /// Resets the peaks.
    pub fn reset_peak(&self) {
        self.0.state.lock().peak = [0; 2];
    }

    /// Returns the commits that were announced since the last call, each with the time of its
    /// announcement in milliseconds.
    pub fn take_commits(&self) -> Vec<(u64, Bytes)> {
        std::mem::take(&mut self.0.state.lock().commits)
    }

    /// Returns how many objects lie in a folder, and their bytes. Costs no request.
    pub async fn holds(&self, folder: &str) -> (u64, u64) {
        let sum = |(count, bytes), meta: ObjectMeta| async move { (count + 1, bytes + meta.size) };
        let all = self.0.inside().list(Some(&Path::from(folder)));
        all.filter_map(|meta| std::future::ready(meta.ok())).fold((0, 0), sum).await
    }
}

impl Inner {
    fn inside(&self) -> Arc<dyn ObjectStore> {
        self.store.store()
    }

    /// Delays a request by its time, or refuses it.
    async fn admit(&self, key: &str, verb: Verb) -> object_store::Result<()> {
        let latency = self.terms.latency;
        let part = (task::random_u64() % 1000) as u32;
        clock::sleep(latency * 3 / 4 + latency / 2 * part / 1000).await;
        let folder = key.split('/').next().unwrap_or_default();
        let number = self.clock.wall().as_secs();
        let mut state = self.state.lock();
        let State { seconds, refused, peak, .. } = &mut *state;
        let second = seconds.entry(folder.to_owned()).or_default();
        if second.number != number {
            *second = Second { number, counts: [0; 2] };
        }
        let writes = matches!(verb, Verb::Put | Verb::Delete);
        let limits = [self.terms.reads_per_s, self.terms.writes_per_s];
        let (place, limit) = (usize::from(writes), limits[usize::from(writes)]);
        second.counts[place] += 1;
        peak[place] = peak[place].max(second.counts[place]);
        if second.counts[place] > limit {
            *refused += 1;
            return Err(unavailable());
        }
        self.answered.request(verb);
        Ok(())
    }

    /// Waits while bytes pass over the line.
    async fn carry(&self, bytes: u64) {
        let ms = bytes * 1000 / self.terms.line_bytes_per_s;
        if ms > 0 {
            clock::sleep(Duration::from_millis(ms)).await;
        }
    }

    /// Records written commits, and when they are announced.
    fn note_written(&self, at: &Path, written: Bytes) {
        let (now_ms, mut state) = (self.clock.wall_ms(), self.state.lock());
        let State { unannounced, commits, .. } = &mut *state;
        if at.as_ref().starts_with(LOG) {
            let stamp = at.filename().and_then(keys::commit_stamp);
            unannounced.extend(stamp.map(|stamp| (stamp, written)));
        } else if at.as_ref() == HEAD
            && let Ok(head) = LogHead::decode(&written)
        {
            let announced = head.commits.iter().filter_map(|one| unannounced.remove(&one.stamp));
            commits.extend(announced.map(|commit| (now_ms, commit)));
        }
    }

    /// Returns a list page by page, with one request for each page.
    fn pages(
        self: Arc<Self>,
        prefix: Option<&Path>,
        all: BoxStream<'static, object_store::Result<ObjectMeta>>,
    ) -> BoxStream<'static, object_store::Result<ObjectMeta>> {
        let folder = prefix.map(ToString::to_string).unwrap_or_default();
        let pages = stream::try_unfold(Some(all), move |all| {
            let (inner, folder) = (self.clone(), folder.clone());
            async move {
                let Some(mut all) = all else { return Ok(None) };
                inner.admit(&folder, Verb::List).await?;
                let page: Vec<ObjectMeta> = all.by_ref().take(PAGE_KEYS).try_collect().await?;
                inner.state.lock().listed += page.len() as u64;
                let next = (page.len() == PAGE_KEYS).then_some(all);
                Ok::<_, object_store::Error>(Some((stream::iter(page.into_iter().map(Ok)), next)))
            }
        });
        pages.try_flatten().boxed()
    }
}

fn unsupported(what: &str) -> object_store::Error {
    object_store::Error::NotSupported { source: what.into() }
}

impl fmt::Display for SimulatedBucket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a simulated bucket")
    }
}

#[async_trait]
#[deny(clippy::missing_trait_methods)]
impl ObjectStore for SimulatedBucket {
    async fn put_opts(
        &self,
        at: &Path,
        payload: PutPayload,
        options: PutOptions,
    ) -> object_store::Result<PutResult> {
        let (inner, bytes) = (&self.0, payload.content_length() as u64);
        inner.carry(bytes).await;
        inner.admit(at.as_ref(), Verb::Put).await?;
        let written = Bytes::from(payload.clone());
        let done = inner.inside().put_opts(at, payload, options).await?;
        inner.answered.up(bytes);
        inner.note_written(at, written);
        Ok(done)
    }

    async fn put_multipart_opts(
        &self,
        at: &Path,
        options: PutMultipartOptions,
    ) -> object_store::Result<Box<dyn MultipartUpload>> {
        self.0.admit(at.as_ref(), Verb::Put).await?;
        let inside = self.0.inside().put_multipart_opts(at, options).await?;
        Ok(Box::new(PartsUpload { bucket: self.clone(), at: at.clone(), inside }))
    }

    async fn get_opts(&self, at: &Path, options: GetOptions) -> object_store::Result<GetResult> {
        let verb = if options.head { Verb::Head } else { Verb::Get };
        self.0.admit(at.as_ref(), verb).await?;
        let got = self.0.inside().get_opts(at, options).await?;
        if verb == Verb::Get {
            let bytes = got.range.end - got.range.start;
            self.0.carry(bytes).await;
            self.0.answered.down(bytes);
        }
        Ok(got)
    }

    async fn get_ranges(&self, _: &Path, _: &[Range<u64>]) -> object_store::Result<Vec<Bytes>> {
        Err(unsupported("several ranges"))
    }

    fn delete_stream(
        &self,
        all: BoxStream<'static, object_store::Result<Path>>,
    ) -> BoxStream<'static, object_store::Result<Path>> {
        let inner = self.0.clone();
        let chunks = all.try_chunks(PAGE_KEYS).then(move |chunk| {
            let inner = inner.clone();
            async move {
                let chunk = chunk.map_err(|error| error.1)?;
                let first = chunk.first().map(ToString::to_string).unwrap_or_default();
                inner.admit(&first, Verb::Delete).await?;
                let chunk = stream::iter(chunk.into_iter().map(Ok)).boxed();
                Ok::<_, object_store::Error>(inner.inside().delete_stream(chunk))
            }
        });
        chunks.try_flatten().boxed()
    }

    fn list(&self, prefix: Option<&Path>) -> BoxStream<'static, object_store::Result<ObjectMeta>> {
        self.0.clone().pages(prefix, self.0.inside().list(prefix))
    }

    fn list_with_offset(
        &self,
        prefix: Option<&Path>,
        offset: &Path,
    ) -> BoxStream<'static, object_store::Result<ObjectMeta>> {
        self.0.clone().pages(prefix, self.0.inside().list_with_offset(prefix, offset))
    }

    async fn list_with_delimiter(&self, _: Option<&Path>) -> object_store::Result<ListResult> {
        Err(unsupported("a list of folders"))
    }

    async fn copy_opts(&self, _: &Path, _: &Path, _: CopyOptions) -> object_store::Result<()> {
        Err(unsupported("a copy"))
    }

    async fn rename_opts(&self, _: &Path, _: &Path, _: RenameOptions) -> object_store::Result<()> {
        Err(unsupported("a rename"))
    }
}

/// An upload in parts.
#[derive(Debug)]
struct PartsUpload {
    bucket: SimulatedBucket,
    at: Path,
    inside: Box<dyn MultipartUpload>,
}

#[async_trait]
#[deny(clippy::missing_trait_methods)]
impl MultipartUpload for PartsUpload {
    fn put_part(&mut self, data: PutPayload) -> UploadPart {
        let (inner, at, bytes) = (self.bucket.0.clone(), self.at.clone(), data.content_length());
        let put = self.inside.put_part(data);
        Box::pin(async move {
            inner.carry(bytes as u64).await;
            inner.admit(at.as_ref(), Verb::Put).await?;
            inner.answered.up(bytes as u64);
            put.await
        })
    }

    async fn complete(&mut self) -> object_store::Result<PutResult> {
        self.bucket.0.admit(self.at.as_ref(), Verb::Put).await?;
        self.inside.complete().await
    }

    async fn abort(&mut self) -> object_store::Result<()> {
        self.bucket.0.admit(self.at.as_ref(), Verb::Delete).await?;
        self.inside.abort().await
    }
}
