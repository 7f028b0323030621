//! A store in memory with a clock of its own.
//!
//! Owns the time at which each object was stored, so that a test can let months pass, and the rule
//! that deletes by age. Must never read the machine's clock unless it was given that one.

use std::collections::HashMap;
use std::fmt;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use futures::stream::{self, BoxStream};
use futures::{StreamExt as _, TryStreamExt as _};
use object_store::memory::InMemory;
use object_store::path::Path;
use object_store::{
    CopyOptions, GetOptions, GetResult, ListResult, MultipartUpload, ObjectMeta, ObjectStore,
    PutMultipartOptions, PutOptions, PutPayload, PutResult, RenameOptions, UploadPart,
};
use parking_lot::Mutex;

use super::{Faults, remote_over};
use crate::clock::Clock;
use crate::remote::connect::RemoteOptions;
use crate::remote::store::Remote;
use crate::stamp::NodeId;

/// A store in memory that several remotes share, as several nodes share a bucket.
#[derive(Debug, Clone)]
pub struct MemoryStore(Arc<TimedStore>);

impl Default for MemoryStore {
    fn default() -> Self {
        Self::new()
    }
}

impl MemoryStore {
    /// Makes an empty store that uses the machine's clock.
    pub fn new() -> Self {
        Self::with_clock(Clock::system())
    }

    /// Makes an empty store that uses the given clock.
    pub fn with_clock(clock: Clock) -> Self {
        Self(Arc::new(TimedStore { inner: InMemory::new(), times: StoredTimes::new(clock) }))
    }

    /// Makes a remote of it, with its own or shared faults, that trusts its clock until it is checked.
    pub fn remote(
        &self,
        faults: &Arc<Faults>,
        options: &RemoteOptions,
        clock: Clock,
        node: NodeId,
    ) -> Remote {
        let remote = self.stranger(faults, options, clock, node);
        remote.inner.time.trust_clock();
        remote
    }

    /// As [`MemoryStore::remote`], but does not trust its clock.
    pub fn stranger(
        &self,
        faults: &Arc<Faults>,
        options: &RemoteOptions,
        clock: Clock,
        node: NodeId,
    ) -> Remote {
        remote_over(self.store(), faults, options, clock, node)
    }

    /// Returns the store itself, without faults.
    pub(super) fn store(&self) -> Arc<dyn ObjectStore> {
        self.0.clone()
    }

    /// Replaces or creates an object; for tests of damage.
    pub async fn overwrite(&self, key: &str, bytes: Vec<u8>) {
        let put = self.0.put_opts(&Path::from(key), bytes.into(), PutOptions::default()).await;
        put.expect("memory accepts all writes");
    }

    /// Returns the bytes of an object.
    pub async fn read(&self, key: &str) -> Option<Bytes> {
        self.0.get_opts(&Path::from(key), GetOptions::default()).await.ok()?.bytes().await.ok()
    }

    /// Removes an object.
    pub async fn remove(&self, key: &str) {
        let one = stream::iter([Ok(Path::from(key))]).boxed();
        self.0.delete_stream(one).for_each(|_| std::future::ready(())).await;
    }

    /// Returns all keys.
    pub async fn keys(&self) -> Vec<String> {
        let mut keys: Vec<String> =
            self.objects().await.into_iter().map(|meta| meta.location.to_string()).collect();
        keys.sort();
        keys
    }

    /// Returns the total bytes below a folder; of all folders for an empty name.
    pub async fn bytes(&self, folder: &str) -> u64 {
        let all = self.objects().await;
        let there = all.iter().filter(|meta| meta.location.as_ref().starts_with(folder));
        there.map(|meta| meta.size).sum()
    }

    /// Deletes objects older than `age`, as a bucket's lifecycle rule does. Keeps the format object.
    pub async fn expire(&self, age: Duration) {
        let now_ms = self.0.times.clock.wall_ms() as i64;
        for meta in self.objects().await {
            let old = now_ms - meta.last_modified.timestamp_millis() > age.as_millis() as i64;
            if old && meta.location.as_ref() != crate::remote::keys::FORMAT {
                self.remove(meta.location.as_ref()).await;
            }
        }
    }

    async fn objects(&self) -> Vec<ObjectMeta> {
        self.0.list(None).filter_map(|meta| std::future::ready(meta.ok())).collect().await
    }
}

/// When each object was stored.
#[derive(Debug, Clone)]
struct StoredTimes {
    clock: Clock,
    stored: Arc<Mutex<HashMap<Path, u64>>>,
}

impl StoredTimes {
    fn new(clock: Clock) -> Self {
        Self { clock, stored: Arc::default() }
    }

    fn note(&self, at: &Path) {
        self.stored.lock().insert(at.clone(), self.clock.wall_ms());
    }

    fn tell_all(
        &self,
        all: BoxStream<'static, object_store::Result<ObjectMeta>>,
    ) -> BoxStream<'static, object_store::Result<ObjectMeta>> {
        let times = self.clone();
        let tell = move |mut meta: ObjectMeta| {
            times.tell(&mut meta);
            meta
        };
        all.map_ok(tell).boxed()
    }

    fn tell(&self, meta: &mut ObjectMeta) {
        if let Some(ms) = self.stored.lock().get(&meta.location) {
            let wrong = meta.last_modified.timestamp_millis();
            meta.last_modified += Duration::from_millis((*ms as i64 - wrong).max(0) as u64);
            meta.last_modified -= Duration::from_millis((wrong - *ms as i64).max(0) as u64);
        }
    }
}

#[derive(Debug)]
struct TimedStore {
    inner: InMemory,
    times: StoredTimes,
}

impl fmt::Display for TimedStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "a clock around {}", self.inner)
    }
}

#[async_trait]
#[deny(clippy::missing_trait_methods)]
impl ObjectStore for TimedStore {
    async fn put_opts(
        &self,
        at: &Path,
        payload: PutPayload,
        options: PutOptions,
    ) -> object_store::Result<PutResult> {
        let done = self.inner.put_opts(at, payload, options).await?;
        self.times.note(at);
        Ok(done)
    }

    async fn put_multipart_opts(
        &self,
        at: &Path,
        options: PutMultipartOptions,
    ) -> object_store::Result<Box<dyn MultipartUpload>> {
        let inner = self.inner.put_multipart_opts(at, options).await?;
        Ok(Box::new(TimedUpload { inner, at: at.clone(), times: self.times.clone() }))
    }

    async fn get_opts(&self, at: &Path, options: GetOptions) -> object_store::Result<GetResult> {
        let mut got = self.inner.get_opts(at, options).await?;
        self.times.tell(&mut got.meta);
        Ok(got)
    }

    async fn get_ranges(
        &self,
        at: &Path,
        ranges: &[Range<u64>],
    ) -> object_store::Result<Vec<Bytes>> {
        self.inner.get_ranges(at, ranges).await
    }

    fn delete_stream(
        &self,
        all: BoxStream<'static, object_store::Result<Path>>,
    ) -> BoxStream<'static, object_store::Result<Path>> {
        self.inner.delete_stream(all)
    }

    fn list(&self, prefix: Option<&Path>) -> BoxStream<'static, object_store::Result<ObjectMeta>> {
        self.times.tell_all(self.inner.list(prefix))
    }

    fn list_with_offset(
        &self,
        prefix: Option<&Path>,
        offset: &Path,
    ) -> BoxStream<'static, object_store::Result<ObjectMeta>> {
        self.times.tell_all(self.inner.list_with_offset(prefix, offset))
    }

    async fn list_with_delimiter(&self, prefix: Option<&Path>) -> object_store::Result<ListResult> {
        let mut list = self.inner.list_with_delimiter(prefix).await?;
        list.objects.iter_mut().for_each(|meta| self.times.tell(meta));
        Ok(list)
    }

    async fn copy_opts(
        &self,
        from: &Path,
        to: &Path,
        options: CopyOptions,
    ) -> object_store::Result<()> {
        self.inner.copy_opts(from, to, options).await?;
        self.times.note(to);
        Ok(())
    }

    async fn rename_opts(
        &self,
        from: &Path,
        to: &Path,
        options: RenameOptions,
    ) -> object_store::Result<()> {
        self.inner.rename_opts(from, to, options).await?;
        self.times.note(to);
        Ok(())
    }
}

#[derive(Debug)]
struct TimedUpload {
    inner: Box<dyn MultipartUpload>,
    at: Path,
    times: StoredTimes,
}

#[async_trait]
#[deny(clippy::missing_trait_methods)]
impl MultipartUpload for TimedUpload {
    fn put_part(&mut self, data: PutPayload) -> UploadPart {
        self.inner.put_part(data)
    }

    async fn complete(&mut self) -> object_store::Result<PutResult> {
        let done = self.inner.complete().await?;
        self.times.note(&self.at);
        Ok(done)
    }

    async fn abort(&mut self) -> object_store::Result<()> {
        self.inner.abort().await
    }
}
