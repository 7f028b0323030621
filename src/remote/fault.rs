//! A store that misbehaves on command, for tests.
//!
//! Owns the faults that a test can switch on, around any store. Must never be part of a release build.

mod bucket;
mod memory;

use std::collections::HashMap;
use std::fmt;
use std::ops::Range;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime};

use async_trait::async_trait;
use bytes::Bytes;
use futures::stream::{self, BoxStream};
use futures::{StreamExt as _, TryStreamExt as _};
use object_store::path::Path;
use object_store::{
    CopyOptions, GetOptions, GetResult, GetResultPayload, ListResult, MultipartUpload, ObjectMeta,
    ObjectStore, PutMode, PutMultipartOptions, PutOptions, PutPayload, PutResult, RenameOptions,
    UploadPart,
};
use parking_lot::Mutex;

pub use self::bucket::{Bill, SimulatedBucket, Terms};
pub use self::memory::MemoryStore;
use super::backend::Backend;
use super::connect::RemoteOptions;
use super::meter::Meter;
use super::store::Remote;
use crate::clock::{self, Clock};
use crate::config::RemoteUrl;
use crate::error::{Error, Kind, Result};
use crate::stamp::NodeId;
use crate::task;

/// The environment variable from which a program under test takes its faults: settings as
/// [`FaultPlan::parse`] reads them, or `@` and the path of a file that holds them and may change.
pub const FAULTS_VARIABLE: &str = "HEARTHFS_TEST_FAULTS";

/// How many objects of a list are reordered together.
const DISORDERED_TOGETHER: usize = 7;
/// After how many objects a broken list fails.
const LIST_BREAKS_AFTER: usize = 5;

/// The faults to inject. Percentages are of requests; zero and `None` mean no fault.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct FaultPlan {
    /// Time that passes before each request.
    pub latency: Duration,
    /// How requests are answered.
    pub answer: InjectedAnswer,
    /// Percentage of requests that are answered with 503, and do nothing.
    pub errors_percent: u32,
    /// Percentage of requests whose connection is reset before they do anything.
    pub resets_percent: u32,
    /// Percentage of writes that take effect although their reply is lost.
    pub lost_replies_percent: u32,
    /// Percentage of reads that end in the middle.
    pub truncated_percent: u32,
    /// Percentage of lists that fail with 503 after some objects.
    pub broken_lists_percent: u32,
    /// For how long after a write lists do not show the object.
    pub stale_list: Duration,
    /// Lists come in another order than that of the names, and name some objects twice.
    pub disordered_lists: bool,
    /// How far the store's clock is ahead of the true one, in seconds.
    pub ahead_s: i32,
    /// The status with which requests are answered without taking effect; 0 for none.
    pub status: u16,
    /// Only requests for keys that contain this text meet latency and the faults from `answer` to
    /// `status`; all requests do if it is empty. A list counts as the key [`LIST`], and a deletion
    /// of several objects as the first of them.
    pub only: String,
    /// Bytes of a body that arrive per second; 0 for all at once.
    pub bytes_per_s: u32,
    /// The largest object that is accepted (413 above it); 0 for no limit.
    pub largest: u32,
    /// How the store treats conditions of writes.
    pub conditions: InjectedConditions,
}

/// How the store treats the conditions of writes in a [`FaultPlan`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum InjectedConditions {
    /// It honours them.
    #[default]
    Kept,
    /// It ignores them.
    Ignored,
    /// It refuses every replacement that is conditional on a version.
    Unmet,
}

/// How the requests of a [`FaultPlan`] are answered.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum InjectedAnswer {
    /// As the store answers, apart from the other faults.
    #[default]
    Real,
    /// They never get an answer.
    Never,
    /// They are refused because of the credentials (403).
    Forbidden,
}

/// The key of a list, for [`FaultPlan::only`].
pub const LIST: &str = "LIST";
/// How many pieces of a slow body arrive per second.
const TRICKLES_PER_S: u32 = 2;

impl FaultPlan {
    /// Reads settings such as `latency_ms=20 errors=10 hang=1 stale_ms=2000`.
    ///
    /// # Errors
    ///
    /// `Invalid` with the first setting that is unknown or has a value that does not fit.
    pub fn parse(text: &str) -> Result<Self> {
        let mut plan = Self::default();
        for setting in text.split([' ', ',', '\n']).filter(|part| !part.is_empty()) {
            let refuse = || Error::new(Kind::Invalid, format!("fault `{setting}` is unknown"));
            let (name, value) = setting.split_once('=').ok_or_else(refuse)?;
            if name == "ahead_s" {
                plan.ahead_s = value.parse().map_err(|_| refuse())?;
                continue;
            }
            if name == "only" {
                value.clone_into(&mut plan.only);
                continue;
            }
            let value: u32 = value.parse().map_err(|_| refuse())?;
            let time = Duration::from_millis(u64::from(value));
            match name {
                "latency_ms" => plan.latency = time,
                "hang" if value != 0 => plan.answer = InjectedAnswer::Never,
                "forbidden" if value != 0 => plan.answer = InjectedAnswer::Forbidden,
                "hang" | "forbidden" => plan.answer = InjectedAnswer::Real,
                "errors" => plan.errors_percent = value,
                "resets" => plan.resets_percent = value,
                "lost" => plan.lost_replies_percent = value,
                "truncated" => plan.truncated_percent = value,
                "broken_lists" => plan.broken_lists_percent = value,
                "disordered" => plan.disordered_lists = value > 0,
                "stale_ms" => plan.stale_list = time,
                "status" => plan.status = u16::try_from(value).map_err(|_| refuse())?,
                "largest" => plan.largest = value,
                "unconditional" if value != 0 => plan.conditions = InjectedConditions::Ignored,
                "conflicts" if value != 0 => plan.conditions = InjectedConditions::Unmet,
                "unconditional" | "conflicts" => plan.conditions = InjectedConditions::Kept,
                "bytes_per_s" => plan.bytes_per_s = value,
                _ => return Err(refuse()),
            }
        }
        Ok(plan)
    }
}

/// Controls the faults of one or more remotes.
#[derive(Debug)]
pub struct Faults {
    plan: Mutex<FaultPlan>,
    file: Option<(PathBuf, Mutex<Option<SystemTime>>)>,
    clock: Clock,
    written: Mutex<HashMap<Path, Duration>>,
    /// Requests that the faults in effect were meant for.
    met: AtomicU64,
}

impl Default for Faults {
    fn default() -> Self {
        Self {
            plan: Mutex::default(),
            file: None,
            clock: Clock::system(),
            written: Mutex::default(),
            met: AtomicU64::new(0),
        }
    }
}

impl Faults {
    /// Makes a control with no faults.
    pub fn none() -> Arc<Self> {
        Arc::default()
    }

    /// Replaces the faults in effect.
    pub fn set(&self, plan: FaultPlan) {
        *self.plan.lock() = plan;
    }

    /// Returns how many requests so far were for keys that the faults in effect at their time were meant for.
    pub fn met(&self) -> u64 {
        self.met.load(Ordering::Relaxed)
    }

    /// Returns the faults in effect.
    pub fn plan(&self) -> FaultPlan {
        if let Some((path, seen)) = &self.file {
            let modified = std::fs::metadata(path).and_then(|data| data.modified()).ok();
            let mut seen = seen.lock();
            if *seen != modified {
                *seen = modified;
                let text = std::fs::read_to_string(path).unwrap_or_default();
                match FaultPlan::parse(&text) {
                    Ok(plan) => *self.plan.lock() = plan,
                    Err(error) => tracing::error!(error = %error, "fault file is ignored"),
                }
            }
        }
        self.plan.lock().clone()
    }

    /// Takes the faults from [`FAULTS_VARIABLE`]; `None` when it is not set.
    pub(super) fn from_process_env() -> Result<Option<Arc<Self>>> {
        match std::env::var(FAULTS_VARIABLE) {
            Ok(text) => Ok(Some(Arc::new(Self::from_setting(&text)?))),
            Err(_) => Ok(None),
        }
    }

    /// Takes the faults from a value of [`FAULTS_VARIABLE`].
    ///
    /// # Errors
    ///
    /// As [`FaultPlan::parse`]. A file is read later, so a bad one is no error here.
    pub fn from_setting(text: &str) -> Result<Self> {
        let mut faults = Self::default();
        match text.strip_prefix('@') {
            Some(path) => faults.file = Some((PathBuf::from(path), Mutex::new(None))),
            None => *faults.plan.lock() = FaultPlan::parse(text)?,
        }
        Ok(faults)
    }

    pub(super) fn around(self: &Arc<Self>, inner: Arc<dyn ObjectStore>) -> Arc<dyn ObjectStore> {
        Arc::new(FaultStore { inner, faults: self.clone() })
    }

    fn hits(percent: u32) -> bool {
        percent > 0 && task::random_u64() % 100 < u64::from(percent)
    }

    /// Delays, fails or passes on a request for a key.
    async fn before(&self, key: &str) -> object_store::Result<FaultPlan> {
        let plan = self.plan();
        if !key.contains(&plan.only) {
            return Ok(plan);
        }
        if !plan.latency.is_zero() {
            clock::sleep(plan.latency).await;
        }
        self.met.fetch_add(1, Ordering::Relaxed);
        if plan.answer == InjectedAnswer::Never {
            futures::future::pending::<()>().await;
        }
        if plan.status != 0 {
            return Err(failure(format!("status code: {}: injected", plan.status).into()));
        }
        if plan.answer == InjectedAnswer::Forbidden {
            let path = "anything".to_owned();
            let source = "status code: 403 Forbidden: injected".into();
            return Err(object_store::Error::PermissionDenied { path, source });
        }
        if Self::hits(plan.resets_percent) {
            return Err(reset());
        }
        if Self::hits(plan.errors_percent) {
            return Err(unavailable());
        }
        Ok(plan)
    }

    /// Returns the result of a write, or hides it as a lost reply.
    fn after<T>(plan: &FaultPlan, done: T) -> object_store::Result<T> {
        if Self::hits(plan.lost_replies_percent) { Err(reset()) } else { Ok(done) }
    }

    fn note_written(&self, at: &Path, plan: &FaultPlan) {
        if !plan.stale_list.is_zero() {
            self.written.lock().insert(at.clone(), self.clock.mono());
        }
    }

    fn is_listed(&self, meta: &ObjectMeta) -> bool {
        let stale = self.plan.lock().stale_list;
        let written = self.written.lock().get(&meta.location).copied();
        written.is_none_or(|at| self.clock.mono().saturating_sub(at) >= stale)
    }
}

fn failure(source: Box<dyn std::error::Error + Send + Sync>) -> object_store::Error {
    object_store::Error::Generic { store: "fault", source }
}

/// Makes the remote of one node over a store that several share, with faults of its own or shared ones.
fn remote_over(
    store: Arc<dyn ObjectStore>,
    faults: &Arc<Faults>,
    options: &RemoteOptions,
    clock: Clock,
    node: NodeId,
) -> Remote {
    let url: RemoteUrl = "s3://memory".parse().expect("a good address");
    let (backend, meter) = (Backend::Given(faults.around(store)), Arc::new(Meter::default()));
    Remote::over(&url, backend, meter, options, clock, node)
}

fn unavailable() -> object_store::Error {
    failure("status code: 503 Service Unavailable: injected".into())
}

fn reset() -> object_store::Error {
    failure(std::io::Error::from(std::io::ErrorKind::ConnectionReset).into())
}

/// A store that injects faults.
#[derive(Debug)]
struct FaultStore {
    inner: Arc<dyn ObjectStore>,
    faults: Arc<Faults>,
}

impl fmt::Display for FaultStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "faults around {}", self.inner)
    }
}

#[async_trait]
#[deny(clippy::missing_trait_methods)]
impl ObjectStore for FaultStore {
    async fn put_opts(
        &self,
        at: &Path,
        payload: PutPayload,
        options: PutOptions,
    ) -> object_store::Result<PutResult> {
        let plan = self.faults.before(at.as_ref()).await?;
        if plan.largest > 0 && payload.content_length() > plan.largest as usize {
            return Err(failure("status code: 413: injected".into()));
        }
        let options = match plan.conditions {
            InjectedConditions::Ignored => PutOptions::default(),
            InjectedConditions::Unmet if matches!(options.mode, PutMode::Update(_)) => {
                let (path, source) = (at.to_string(), "injected".into());
                return Err(object_store::Error::Precondition { path, source });
            }
            _ => options,
        };
        let done = self.inner.put_opts(at, payload, options).await?;
        self.faults.note_written(at, &plan);
        Faults::after(&plan, done)
    }

    async fn put_multipart_opts(
        &self,
        at: &Path,
        options: PutMultipartOptions,
    ) -> object_store::Result<Box<dyn MultipartUpload>> {
        self.faults.before(at.as_ref()).await?;
        let inner = self.inner.put_multipart_opts(at, options).await?;
        Ok(Box::new(FaultUpload { inner, at: at.clone(), faults: self.faults.clone() }))
    }

    async fn get_opts(&self, at: &Path, options: GetOptions) -> object_store::Result<GetResult> {
        let plan = self.faults.before(at.as_ref()).await?;
        let mut got = self.inner.get_opts(at, options).await?;
        shift(&mut got.meta, &plan);
        if plan.bytes_per_s > 0 {
            got = trickle(got, plan.bytes_per_s);
        }
        if Faults::hits(plan.truncated_percent) { Ok(cut(got)) } else { Ok(got) }
    }

    async fn get_ranges(
        &self,
        at: &Path,
        ranges: &[Range<u64>],
    ) -> object_store::Result<Vec<Bytes>> {
        self.faults.before(at.as_ref()).await?;
        self.inner.get_ranges(at, ranges).await
    }

    fn delete_stream(
        &self,
        all: BoxStream<'static, object_store::Result<Path>>,
    ) -> BoxStream<'static, object_store::Result<Path>> {
        let (inner, faults) = (self.inner.clone(), self.faults.clone());
        let begin = async move {
            let mut all = Box::pin(all.peekable());
            let first = match all.as_mut().peek().await {
                Some(Ok(at)) => at.to_string(),
                _ => String::new(),
            };
            faults.before(&first).await.map(|_| inner.delete_stream(all))
        };
        stream::once(begin)
            .flat_map(|allowed| match allowed {
                Ok(deleted) => deleted,
                Err(error) => stream::once(async { Err(error) }).boxed(),
            })
            .boxed()
    }

    fn list(&self, prefix: Option<&Path>) -> BoxStream<'static, object_store::Result<ObjectMeta>> {
        listed(self.faults.clone(), self.inner.list(prefix))
    }

    fn list_with_offset(
        &self,
        prefix: Option<&Path>,
        offset: &Path,
    ) -> BoxStream<'static, object_store::Result<ObjectMeta>> {
        listed(self.faults.clone(), self.inner.list_with_offset(prefix, offset))
    }

    async fn list_with_delimiter(&self, prefix: Option<&Path>) -> object_store::Result<ListResult> {
        self.faults.before(LIST).await?;
        self.inner.list_with_delimiter(prefix).await
    }

    async fn copy_opts(
        &self,
        from: &Path,
        to: &Path,
        options: CopyOptions,
    ) -> object_store::Result<()> {
        self.faults.before(to.as_ref()).await?;
        self.inner.copy_opts(from, to, options).await
    }

    async fn rename_opts(
        &self,
        from: &Path,
        to: &Path,
        options: RenameOptions,
    ) -> object_store::Result<()> {
        self.faults.before(to.as_ref()).await?;
        self.inner.rename_opts(from, to, options).await
    }
}

fn listed(
    faults: Arc<Faults>,
    inner: BoxStream<'static, object_store::Result<ObjectMeta>>,
) -> BoxStream<'static, object_store::Result<ObjectMeta>> {
    let gate = faults.clone();
    stream::once(async move { gate.before(LIST).await.map(|plan| (plan, inner)) })
        .flat_map(|allowed| match allowed {
            Ok((plan, all)) => {
                let whole = !Faults::hits(plan.broken_lists_percent);
                let disordered = plan.disordered_lists;
                let upto = if whole { usize::MAX } else { LIST_BREAKS_AFTER };
                let end = stream::iter((!whole).then(unavailable).map(Err));
                let shown = all.map_ok(move |mut meta| {
                    shift(&mut meta, &plan);
                    meta
                });
                let shown = shown.take(upto).chain(end);
                if disordered { disorder(shown.boxed()) } else { shown.boxed() }
            }
            Err(error) => stream::once(async { Err(error) }).boxed(),
        })
        .filter(move |meta| {
            std::future::ready(meta.as_ref().map_or(true, |meta| faults.is_listed(meta)))
        })
        .boxed()
}

/// Shuffles pages of a list, and repeats some of it.
fn disorder(
    all: BoxStream<'static, object_store::Result<ObjectMeta>>,
) -> BoxStream<'static, object_store::Result<ObjectMeta>> {
    let pages = all.chunks(DISORDERED_TOGETHER).map(|mut page| {
        let again: Vec<_> = page.iter().flatten().take(2).cloned().map(Ok).collect();
        page.extend(again);
        page.reverse();
        stream::iter(page)
    });
    pages.flatten().boxed()
}

/// Shifts the time of an object as a store with a wrong clock does.
fn shift(meta: &mut ObjectMeta, plan: &FaultPlan) {
    meta.last_modified += Duration::from_secs(plan.ahead_s.max(0) as u64);
    meta.last_modified -= Duration::from_secs(plan.ahead_s.min(0).unsigned_abs().into());
}

/// Ends a body in the middle without an error, as a broken proxy does.
fn cut(got: GetResult) -> GetResult {
    let half = (got.range.end - got.range.start) / 2;
    let (meta, range) = (got.meta.clone(), got.range.clone());
    let (attributes, extensions) = (got.attributes.clone(), got.extensions.clone());
    let mut left = half as usize;
    let body = got.into_stream().map(move |chunk| {
        chunk.map(|mut bytes| {
            let bytes = bytes.split_to(bytes.len().min(left));
            left -= bytes.len();
            bytes
        })
    });
    GetResult {
        payload: GetResultPayload::Stream(body.boxed()),
        meta,
        range,
        attributes,
        extensions,
    }
}

/// Makes a body arrive slowly, in small pieces.
fn trickle(got: GetResult, bytes_per_s: u32) -> GetResult {
    let (meta, range) = (got.meta.clone(), got.range.clone());
    let (attributes, extensions) = (got.attributes.clone(), got.extensions.clone());
    let piece = (bytes_per_s / TRICKLES_PER_S).max(1) as usize;
    let pieces = got.into_stream().flat_map(move |chunk| {
        let mut all = Vec::new();
        match chunk {
            Ok(mut bytes) => {
                while !bytes.is_empty() {
                    all.push(Ok(bytes.split_to(piece.min(bytes.len()))));
                }
            }
            Err(error) => all.push(Err(error)),
        }
        stream::iter(all)
    });
    let slowly = pieces.then(|piece| async {
        clock::sleep(Duration::from_secs(1) / TRICKLES_PER_S).await;
        piece
    });
    let payload = GetResultPayload::Stream(slowly.boxed());
    GetResult { payload, meta, range, attributes, extensions }
}

#[derive(Debug)]
struct FaultUpload {
    inner: Box<dyn MultipartUpload>,
    at: Path,
    faults: Arc<Faults>,
}

#[async_trait]
#[deny(clippy::missing_trait_methods)]
impl MultipartUpload for FaultUpload {
    fn put_part(&mut self, data: PutPayload) -> UploadPart {
        let (part, faults) = (self.inner.put_part(data), self.faults.clone());
        let at = self.at.clone();
        Box::pin(async move {
            faults.before(at.as_ref()).await?;
            part.await
        })
    }

    async fn complete(&mut self) -> object_store::Result<PutResult> {
        let plan = self.faults.before(self.at.as_ref()).await?;
        let done = self.inner.complete().await?;
        self.faults.note_written(&self.at, &plan);
        Faults::after(&plan, done)
    }

    async fn abort(&mut self) -> object_store::Result<()> {
        self.faults.before(self.at.as_ref()).await?;
        self.inner.abort().await
    }
}
