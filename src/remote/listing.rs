//! Lists and deletes what lies below the prefix.
//!
//! Owns the mapping from names to kinds of objects, and the deletion of objects. Must never delete what is
//! not ours, or an object other than the one that was listed: the same key may have been written since.

use std::collections::HashSet;
use std::time::Duration;

use futures::StreamExt as _;
use futures::stream::{self, BoxStream};
use object_store::path::Path;
use object_store::{ObjectMeta, ObjectStore, ObjectStoreExt as _};
use tokio::sync::mpsc;

use super::call::{Call, CallFailure};
use super::keys::{self, BundleName};
use super::log::LogItem;
use super::store::Remote;
use super::trouble::Trouble;
use super::verb::Verb;
use crate::clock;
use crate::digest::Digest;
use crate::error::{Error, Kind, Result};
use crate::stamp::{NodeId, Stamp};
use crate::task;

/// Objects that are passed on together, and deleted with one request if the store can do that.
const PAGE_OBJECTS: usize = 1000;
/// How long listing a whole prefix may take, including what the receiver does meanwhile.
const SURVEY_TIME_MAX: Duration = Duration::from_hours(12);
/// How often a page of a list is requested again, with a pause before each try.
const PAGE_TRIES_MAX: u32 = 5;
const PAGE_WAIT: Duration = Duration::from_millis(500);
/// Lists may report the time of an object in milliseconds, and headers report it in seconds.
const SAME_MS: u64 = 1000;
/// How long each of many deletions may take.
const DELETE_TIME_MAX: Duration = Duration::from_millis(100);
/// Objects that are checked again concurrently.
const HEADS_AT_ONCE: usize = 8;
/// Objects that are checked again before they are deleted: few, so that little time passes in between.
const LOOKED_AT_TOGETHER: usize = 64;

/// What an object is, by its name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum What {
    /// The object that marks the prefix as ours.
    Format,
    /// The newest commits.
    Head,
    /// A commit of the log.
    Commit(Stamp),
    /// A pack.
    Pack(Stamp),
    /// A blob that is an object of its own.
    Blob(Digest),
    /// A checkpoint.
    Checkpoint(Stamp),
    /// A bundle of commits.
    Bundle(BundleName),
    /// An object that a node wrote to learn the store's time, or a claim.
    Probe,
    /// Not ours.
    Foreign,
}

impl What {
    /// Classifies a key in the store of a prefix.
    pub(super) fn at(key: &Path, prefix: &Path) -> Self {
        key.prefix_match(prefix).map_or(Self::Foreign, |parts| {
            let parts: Vec<_> = parts.collect();
            Self::of(parts.iter().map(AsRef::as_ref))
        })
    }

    /// Classifies a key below the prefix. Only the spelling that we write is ours.
    fn of<'a>(parts: impl Iterator<Item = &'a str>) -> Self {
        let parts: Vec<&str> = parts.take(4).collect();
        let known = match parts[..] {
            [keys::FORMAT] => Some(Self::Format),
            [keys::HEAD] => Some(Self::Head),
            [keys::LOG, name] => keys::commit_stamp(name).map(Self::Commit),
            [keys::PACKS, name] => keys::pack_stamp(name).map(Self::Pack),
            [keys::CHECKPOINTS, name] => keys::checkpoint_stamp(name)
                .map(Self::Checkpoint)
                .or_else(|| BundleName::parse(name).map(Self::Bundle)),
            [keys::PROBES, name] => {
                let node = u64::from_str_radix(name, 16).map(NodeId).ok();
                node.filter(|node| node.to_string() == name).map(|_| Self::Probe)
            }
            [keys::BLOBS, shard, name] => {
                let digest = name.parse::<Digest>().ok();
                let ours = |d: &Digest| d.to_string() == name && d.shard() == shard;
                digest.filter(ours).map(Self::Blob)
            }
            _ => None,
        };
        known.unwrap_or(Self::Foreign)
    }
}

/// An object as it was listed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Object {
    /// What it is.
    pub what: What,
    /// Its size in bytes.
    pub size: u64,
    /// When it was stored, in milliseconds since the Unix epoch by the store's clock.
    pub stored_ms: u64,
    key: Path,
}

impl Object {
    fn of(meta: ObjectMeta, prefix: &Path) -> Self {
        let what = What::at(&meta.location, prefix);
        let stored_ms = stored_ms(&meta);
        Self { what, size: meta.size, stored_ms, key: meta.location }
    }

    /// Reports whether another object may be written under its key.
    fn may_come_again(&self) -> bool {
        matches!(self.what, What::Blob(_) | What::Probe)
    }
}

fn stored_ms(meta: &ObjectMeta) -> u64 {
    meta.last_modified.timestamp_millis().max(0) as u64
}

/// A list in progress.
struct Listing<'a> {
    remote: &'a Remote,
    page: Vec<Object>,
    /// The last key that was listed.
    last: Option<Path>,
    pages: mpsc::Sender<Vec<Object>>,
    /// The receiver accepts no more pages, and knows why.
    over: bool,
}

impl Listing<'_> {
    async fn add(&mut self, meta: ObjectMeta) {
        self.last = Some(meta.location.clone());
        self.page.push(Object::of(meta, self.remote.inner.keys.prefix()));
        if self.page.len() == PAGE_OBJECTS {
            self.hand_over().await;
        }
    }

    async fn hand_over(&mut self) {
        let requester = &self.remote.inner.requester;
        if !requester.backend.counts_itself() {
            requester.meter.request(Verb::List);
        }
        let page = std::mem::take(&mut self.page);
        if !page.is_empty() {
            self.over |= self.pages.send(page).await.is_err();
        }
    }

    async fn add_all(
        &mut self,
        mut all: BoxStream<'static, object_store::Result<ObjectMeta>>,
    ) -> std::result::Result<(), CallFailure> {
        let deadline = self.remote.inner.requester.deadline;
        while !self.over {
            let next = clock::within(deadline, all.next()).await;
            let next = next.ok_or_else(|| Trouble::timed_out("no page of the list came".into()))?;
            let Some(meta) = next else { break };
            self.add(meta?).await;
        }
        Ok(())
    }

    /// Adds what lies below a prefix of a bucket. The bucket lists in order of the keys, so after a
    /// page fails, the list continues after the last key.
    async fn add_bucket(
        &mut self,
        store: &dyn ObjectStore,
        below: Option<&Path>,
    ) -> std::result::Result<(), CallFailure> {
        let mut tries = 1;
        loop {
            let had = self.last.clone();
            let rest = match &had {
                Some(after) => store.list_with_offset(below, after),
                None => store.list(below),
            };
            match self.add_all(rest).await {
                Err(CallFailure(trouble))
                    if tries < PAGE_TRIES_MAX
                        && matches!(trouble.kind, Kind::Unavailable | Kind::TimedOut) =>
                {
                    tracing::debug!(error = %trouble, "a page of the list is requested again");
                    tries = if self.last == had { tries + 1 } else { 1 };
                    clock::sleep(PAGE_WAIT).await;
                }
                done => return done,
            }
        }
    }

    /// Adds what lies beside our folders, as far as it can be listed; stops at the first failure.
    async fn add_foreign(
        &mut self,
        store: &dyn ObjectStore,
    ) -> std::result::Result<(), CallFailure> {
        let deadline = self.remote.inner.requester.deadline;
        let top = clock::within(deadline, store.list_with_delimiter(None)).await;
        let top = top.ok_or_else(|| Trouble::timed_out("no list came".into()))??;
        for meta in top.objects {
            self.add(meta).await;
        }
        let ours = self.remote.inner.keys.places();
        let mut outcome = Ok(());
        for dir in top.common_prefixes.into_iter().filter(|dir| !ours.contains(dir)) {
            outcome = outcome.and(self.add_all(store.list(Some(&dir))).await);
        }
        outcome
    }
}

/// The outcome of deleting an object.
#[derive(Debug)]
pub enum Deleted {
    /// It is no longer there.
    Gone,
    /// It was written again since it was listed, and stays.
    Young,
    /// It could not be deleted.
    Failed(Error),
}

impl Remote {
    /// Lists everything below the prefix, in no order, and passes it on page by page. Ends early when
    /// the receiver accepts no more pages. If not all foreign objects were seen, returns the reason.
    ///
    /// A shared directory may be the root of a disk, or hold what we may not read. There our
    /// folders must be seen whole, and foreign objects only as far as possible.
    ///
    /// # Errors
    ///
    /// `Unavailable` or `TimedOut` while the store does not answer, `Denied` or `Invalid` when it
    /// refuses. Foreign objects that cannot be listed are no error; the result reports them.
    pub async fn survey(&self, pages: mpsc::Sender<Vec<Object>>) -> Result<Option<String>> {
        self.ready(self.lane).await?;
        let inner = &self.inner;
        let op = format!("list {}", inner.url);
        let call = Call { limit: SURVEY_TIME_MAX, ..self.call(Verb::List, op) };
        let is_dir = inner.requester.backend.dir().is_some();
        inner
            .requester
            .call(call, |store| async move {
                let prefix = inner.keys.prefix();
                let (page, last) = (Vec::new(), None);
                let mut listing = Listing { remote: self, page, last, pages, over: false };
                if !is_dir {
                    let below = (prefix.parts().next().is_some()).then_some(prefix);
                    listing.add_bucket(&*store, below).await?;
                    listing.hand_over().await;
                    return Ok(None);
                }
                for place in inner.keys.places() {
                    listing.add_all(store.list(Some(&place))).await?;
                }
                let missed = listing.add_foreign(&*store).await.err();
                listing.hand_over().await;
                Ok(missed.map(|CallFailure(trouble)| trouble.to_string()))
            })
            .await
    }

    /// Returns the object for a listed commit, checkpoint or bundle.
    pub fn object(&self, item: &LogItem) -> Option<Object> {
        let name = item.name.as_str();
        let (what, folder) = match keys::commit_stamp(name) {
            Some(stamp) => (What::Commit(stamp), self.inner.keys.log()),
            None => {
                (What::of([keys::CHECKPOINTS, name].into_iter()), self.inner.keys.checkpoints())
            }
        };
        let key = folder.join(name);
        (what != What::Foreign).then_some(Object {
            what,
            size: item.size,
            stored_ms: item.stored_ms,
            key,
        })
    }

    /// Deletes objects that are still as they were listed; returns the outcomes in the same order.
    ///
    /// In a shared directory an object that is written again at the same moment is kept. A bucket
    /// has no conditional delete, so a blob is checked again right before it is deleted.
    ///
    /// # Errors
    ///
    /// `Invalid` when one of the objects is foreign, and nothing is deleted; `Denied` on a read-only mount; otherwise
    /// `Unavailable` or `TimedOut` while the store does not answer, `Denied` or `Invalid` when it refuses.
    pub async fn delete(&self, objects: &[Object]) -> Result<Vec<Deleted>> {
        self.ready_to_write().await?;
        if let Some(foreign) = objects.iter().find(|object| object.what == What::Foreign) {
            let op = format!("{} is not of hearthfs and is not deleted", foreign.key);
            return Err(Error::new(Kind::Invalid, op));
        }
        let mut all = Vec::with_capacity(objects.len());
        let alike = objects.chunk_by(|a, b| a.may_come_again() == b.may_come_again());
        let together = |some: &[Object]| match some.first() {
            Some(first) if first.may_come_again() => LOOKED_AT_TOGETHER,
            _ => PAGE_OBJECTS,
        };
        let parts: Vec<&[Object]> = alike.flat_map(|alike| alike.chunks(together(alike))).collect();
        for some in parts {
            if self.inner.requester.backend.dir().is_some() {
                all.extend(self.delete_files(some).await?);
            } else {
                all.extend(self.delete_objects(some).await);
            }
        }
        Ok(all)
    }

    async fn delete_files(&self, some: &[Object]) -> Result<Vec<Deleted>> {
        let dir = self.inner.requester.backend.dir().cloned();
        let dir = dir.ok_or_else(|| Error::new(Kind::Internal, "the remote is no directory"))?;
        let files: Vec<_> = some.iter().map(|o| (o.key.to_string(), o.stored_ms)).collect();
        let removed = task::blocking(move || {
            if !dir.is_present() {
                return Err(dir.gone());
            }
            let remove = |(key, stored_ms): (String, u64)| match dir.remove_old(&key, stored_ms) {
                Ok(true) => Deleted::Gone,
                Ok(false) => Deleted::Young,
                Err(error) => Deleted::Failed(Error::io(format!("delete {key}"), error)),
            };
            Ok(files.into_iter().map(remove).collect())
        });
        let limit = self.time_to_delete(some.len());
        let removed = clock::within(limit, removed).await;
        removed.ok_or_else(|| {
            let op = format!("{} does not answer; check its file server", self.inner.url);
            Error::new(Kind::TimedOut, op)
        })?
    }

    async fn delete_objects(&self, some: &[Object]) -> Vec<Deleted> {
        let looks: Vec<_> = some.iter().map(|object| self.look_again(object)).collect();
        let looks = stream::iter(looks).buffered(HEADS_AT_ONCE);
        let looked: Vec<Option<Deleted>> = looks.collect().await;
        let wanted = some.iter().zip(&looked).filter(|(_, known)| known.is_none());
        let wanted: Vec<Path> = wanted.map(|(object, _)| object.key.clone()).collect();
        let outcome =
            if wanted.is_empty() { Ok(HashSet::new()) } else { self.drop_all(wanted).await };
        let done = |object: &Object| match &outcome {
            Ok(failed) if failed.contains(&object.key) => {
                Deleted::Failed(Error::new(Kind::Unavailable, format!("delete {}", object.key)))
            }
            Ok(_) => Deleted::Gone,
            Err(error) => Deleted::Failed(Error::new(error.kind(), error.chain())),
        };
        some.iter()
            .zip(looked)
            .map(|(object, known)| known.unwrap_or_else(|| done(object)))
            .collect()
    }

    /// Checks an object again whose key may have been rewritten; returns the outcome if it must not be deleted.
    async fn look_again(&self, object: &Object) -> Option<Deleted> {
        if !object.may_come_again() {
            return None;
        }
        let key = &object.key;
        let call = self.call(Verb::Head, format!("look at {key}"));
        let found = self
            .inner
            .requester
            .call(call, |store| async move { Ok(store.head(key).await?) })
            .await;
        match found {
            Ok(meta) if stored_ms(&meta) < object.stored_ms + SAME_MS => None,
            Ok(_) => Some(Deleted::Young),
            Err(error) if error.kind() == Kind::NotFound => Some(Deleted::Gone),
            Err(error) => Some(Deleted::Failed(error)),
        }
    }

    /// Deletes keys, with as few requests as the store allows; returns those that are still there.
    async fn drop_all(&self, keys: Vec<Path>) -> Result<HashSet<Path>> {
        let requester = &self.inner.requester;
        let (count, first) = (keys.len(), keys[0].clone());
        let call = Call {
            limit: self.time_to_delete(count),
            ..self.call(Verb::Delete, format!("delete {count} objects, {first} first"))
        };
        requester
            .call(call, |store| async move {
                let mut left: HashSet<Path> = keys.iter().cloned().collect();
                let mut trouble = None;
                let mut deleted =
                    store.delete_stream(stream::iter(keys.into_iter().map(Ok)).boxed());
                while let Some(one) = deleted.next().await {
                    match one {
                        Ok(key) => {
                            left.remove(&key);
                        }
                        Err(object_store::Error::NotFound { path, .. }) => {
                            left.remove(&Path::from(path));
                        }
                        Err(error) => trouble = Some(error),
                    }
                }
                match trouble {
                    Some(error) if left.len() == count => Err(error.into()),
                    _ => Ok(left),
                }
            })
            .await
    }

    fn time_to_delete(&self, count: usize) -> Duration {
        self.inner.requester.deadline * 2 + DELETE_TIME_MAX * count as u32
    }

    /// Removes temporaries of writers that died from a shared directory; returns how many. A bucket
    /// shows no temporaries.
    pub async fn sweep_temporaries(&self) -> usize {
        let Some(dir) = self.inner.requester.backend.dir().cloned() else { return 0 };
        let now_ms = self.now_ms();
        task::blocking(move || dir.sweep(now_ms)).await
    }
}

#[cfg(test)]
mod tests {
    use super::super::connect::RemoteOptions;
    use super::super::fault::{Faults, MemoryStore};
    use super::*;
    use crate::clock::Clock;

    /// A bucket has no conditional delete, so little may happen between check and deletion.
    #[test]
    fn few_objects_are_checked_before_their_deletion() {
        let store = MemoryStore::new();
        let options = RemoteOptions::default();
        let remote = store.remote(&Faults::none(), &options, Clock::system(), NodeId(1));
        let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build();
        runtime.expect("a runtime").block_on(async {
            remote.check().await.expect("made");
            for n in 0..200_u64 {
                let digest = Digest::of(&n.to_le_bytes());
                let name = keys::pack_name(&Stamp { ms: n, counter: 0, node: NodeId(1) });
                store.overwrite(&format!("packs/{name}"), b"x".to_vec()).await;
                let key = format!("blobs/{}/{digest}", digest.shard());
                store.overwrite(&key, b"x".to_vec()).await;
            }
            let (pages, mut arriving) = mpsc::channel(1);
            let (listed, page) = futures::join!(remote.survey(pages), arriving.recv());
            listed.expect("listed");
            let page = page.expect("a page");
            let is_blob = |o: &Object| !matches!(o.what, What::Format | What::Head);
            let all: Vec<_> = page.into_iter().filter(is_blob).collect();
            assert_eq!(all.len(), 400);
            let before = remote.requests();
            let outcomes = remote.delete(&all).await.expect("deleted");
            assert!(
                outcomes.iter().all(|one| matches!(one, Deleted::Gone)) && outcomes.len() == 400
            );
            let after = remote.requests();
            assert_eq!(after.heads - before.heads, 200, "packs are never written again");
            assert_eq!(after.deletes - before.deletes, 4 + 1);
        });
    }

    #[test]
    fn only_what_we_write_is_ours() {
        let what = |key: &str| What::of(key.split('/'));
        let probe = Path::from("a/b/probes/00000000000000ab");
        assert_eq!(What::at(&probe, &Path::from("a/b")), What::Probe);
        for elsewhere in ["a", "a/bc", "b"] {
            assert_eq!(What::at(&probe, &Path::from(elsewhere)), What::Foreign, "{elsewhere}");
        }
        let stamp = Stamp { ms: 0xabc, counter: 2, node: NodeId(3) };
        let name = stamp.sortable();
        let digest = Digest::of(b"x");
        let shard = digest.shard();
        assert_eq!(what("hearthfs.json"), What::Format);
        assert_eq!(what("head"), What::Head);
        assert_eq!(what(&format!("log/{name}.commit")), What::Commit(stamp));
        assert_eq!(what(&format!("packs/{name}.pack")), What::Pack(stamp));
        assert_eq!(what(&format!("checkpoints/{name}.ckpt")), What::Checkpoint(stamp));
        let bundle = BundleName { upto: stamp, from_ms: 1 };
        assert_eq!(what(&format!("checkpoints/{bundle}")), What::Bundle(bundle));
        assert_eq!(what(&format!("blobs/{shard}/{digest}")), What::Blob(digest));
        assert_eq!(what("probes/00000000000000ab"), What::Probe);
        for foreign in [
            "",
            "other.json",
            "log/readme.txt",
            "hearthfs.json/x",
            "probes/AB",
            &format!("log/{name}.pack"),
            &format!("log/x/{name}.commit"),
            &format!("packs/{}.pack", name.to_uppercase()),
            &format!("blobs/00/{digest}"),
            &format!("blobs/{shard}/{digest}/x"),
            &format!("blobs/{digest}"),
            &format!("backup/log/{name}.commit"),
        ] {
            assert_eq!(what(foreign), What::Foreign, "{foreign}");
        }
    }
}
