//! Tests what a store can do instead of trusting its documentation.
//!
//! Owns the one small probe object, and the refusal of a store on which nothing can be built. Must
//! never treat a network failure as an answer.

use std::time::Duration;

use bytes::Bytes;
use futures::StreamExt as _;
use object_store::path::Path;
use object_store::{GetOptions, GetRange, ObjectStoreExt as _, PutMode, PutOptions};

use super::call::{Call, CallFailure};
use super::health::Lane;
use super::store::Remote;
use super::tried::StoreAbilities;
use super::trouble::{Cause, Trouble};
use super::verb::Verb;
use crate::clock;
use crate::error::{Error, Kind, Result};
use crate::stamp::NodeId;
use crate::task;

/// How many rounds a store gets before a failure counts against it: another mount of the same node,
/// ended a moment ago, may have touched the same object.
const ROUNDS_MAX: u64 = 3;
/// The pause before the second round; the next one is longer.
const ROUND_PAUSE_MS: u64 = 300;
/// The range of the object that is read. It excludes both ends and includes every byte that differs
/// between rounds.
const PART: std::ops::Range<u64> = 12..33;
/// How many listed objects are searched for ours.
const LISTED_MAX: usize = 100;
/// How far a list and a read may differ about when an object was stored: reads report whole seconds.
const TIMES_DIFFER_MS_MAX: i64 = 60_000;

/// What the trial found.
pub(super) struct TriedAbilities {
    abilities: StoreAbilities,
    /// When the object was stored, in milliseconds since the Unix epoch by the store's clock ...
    pub(super) stored_ms: i64,
    /// ... and the bounds of that moment by our monotonic clock.
    pub(super) before: Duration,
    pub(super) after: Duration,
}

/// The answer to a request that creates an object which already exists.
enum MakeAnswer {
    /// The store refused it.
    Refused,
    /// The store overwrote the object.
    Done,
    /// The store has no such request.
    Impossible,
    /// No answer came, so the object may or may not have been overwritten.
    Unknown,
}

/// What a trial found, or why the store cannot be used.
type TrialResult<T> = std::result::Result<T, &'static str>;

impl Remote {
    /// Returns what the store was seen to do; `None` before it was tried. A mount that only reads
    /// never tries it.
    pub fn abilities(&self) -> Option<StoreAbilities> {
        *self.inner.tried.abilities.lock()
    }

    /// Returns why the store cannot be used, if a trial has shown that.
    pub fn unfit(&self) -> Option<String> {
        self.inner.tried.unfit.lock().clone()
    }

    /// Tries what everything else relies on: a read, also of a part, returns what was written last, and a list
    /// shows the object with its time. A store that cannot do this is refused from now on. Takes six requests.
    pub(super) async fn try_store(&self) -> Result<TriedAbilities> {
        let mut round = 1;
        loop {
            // Another machine with the same name and the same cache path uses the same object. The
            // store is not to blame when they disturb each other.
            let name = if round == 1 { self.inner.node } else { NodeId(task::random_u64()) };
            let problem =
                match self.try_once(name).await.map_err(|error| self.with_remedy(&error))? {
                    Ok(found) => {
                        *self.inner.tried.abilities.lock() = Some(found.abilities);
                        return Ok(found);
                    }
                    Err(problem) => problem,
                };
            if round == ROUNDS_MAX {
                let text = format!(
                    "{} cannot be used: {problem}, but hearthfs needs this; use another server",
                    self.inner.url
                );
                *self.inner.tried.unfit.lock() = Some(text.clone());
                self.inner.requester.gate.note_unusable(Kind::Invalid, &text);
                self.inner.check.fail();
                return Err(Error::new(Kind::Invalid, text));
            }
            tracing::debug!(problem, round, "store is tried again");
            let pause_ms = ROUND_PAUSE_MS * round;
            let jitter_ms = task::random_u64() % pause_ms;
            clock::sleep(Duration::from_millis(pause_ms + jitter_ms)).await;
            round += 1;
        }
    }

    async fn try_once(&self, name: NodeId) -> Result<TrialResult<TriedAbilities>> {
        let key = &self.inner.keys.probe(name);
        let token = task::random_u64();
        let body = |step: u8| Bytes::from(format!("hearthfs probe {token:016x} {step}\n"));
        let before = self.inner.clock.mono();
        self.put_probe(key, body(1), PutMode::Overwrite).await?;
        let (create_if_absent, old) = match self.create_probe(key, body(2)).await? {
            MakeAnswer::Done => (Some(false), Vec::new()),
            MakeAnswer::Refused => (Some(true), vec![body(1)]),
            MakeAnswer::Impossible => (Some(false), vec![body(1)]),
            MakeAnswer::Unknown => (None, vec![body(1), body(2)]),
        };
        let last = if old.is_empty() {
            vec![body(2)]
        } else {
            self.overwrite_probe(key, old, body(3)).await?
        };
        let after = self.inner.clock.mono();
        let (read, listed) = futures::join!(self.read_probe(key, &last), self.list_probe(key));
        let (stored_ms, listed) = match (read?, listed?) {
            (Ok(stored_ms), listed) => (stored_ms, listed),
            (Err(problem), _) => return Ok(Err(problem)),
        };
        let list_at_once = match listed {
            None => false,
            // If nothing can be deleted, a list that lags shows the object of an earlier mount.
            Some((_, ms)) if ms > 0 && ms + TIMES_DIFFER_MS_MAX < stored_ms => false,
            Some((size, ms))
                if size != last[0].len() as u64 || (ms - stored_ms).abs() > TIMES_DIFFER_MS_MAX =>
            {
                return Ok(Err("a list and a read show different sizes or times of an object"));
            }
            Some(_) => true,
        };
        let delete = self.delete_probe(key).await;
        let abilities = StoreAbilities { create_if_absent, delete, list_at_once };
        Ok(Ok(TriedAbilities { abilities, stored_ms, before, after }))
    }

    fn trying(&self, verb: Verb, what: &str, key: &Path) -> Call {
        // Not guarded, so that a conflict stays a conflict.
        Call { lane: Lane::Background, guarded: false, ..self.call(verb, format!("{what} {key}")) }
    }

    async fn put_probe(&self, key: &Path, body: Bytes, mode: PutMode) -> Result<()> {
        self.inner.requester.meter.up(body.len() as u64);
        let call = self.trying(Verb::Put, "write", key);
        let put = |store: std::sync::Arc<dyn object_store::ObjectStore>| async move {
            store.put_opts(key, body.into(), PutOptions::from(mode)).await?;
            Ok::<_, CallFailure>(())
        };
        self.inner.requester.call(call, put).await
    }

    /// Replaces the object, and returns what it may hold afterwards.
    async fn overwrite_probe(&self, key: &Path, old: Vec<Bytes>, new: Bytes) -> Result<Vec<Bytes>> {
        match self.put_probe(key, new.clone(), PutMode::Overwrite).await {
            Ok(()) => Ok(vec![new]),
            // Google allows one write of an object per second, and does not always enforce it. Only
            // this probe writes so fast, so the only loss is that this round has no result.
            Err(error) if Trouble::cause_of(&error) == Cause::Crowded => {
                Ok([old, vec![new]].concat())
            }
            Err(error) => Err(error),
        }
    }

    /// Asks to create an object that already exists.
    async fn create_probe(&self, key: &Path, body: Bytes) -> Result<MakeAnswer> {
        match self.put_probe(key, body, PutMode::Create).await {
            Ok(()) => Ok(MakeAnswer::Done),
            Err(error) if error.kind() == Kind::Exists => Ok(MakeAnswer::Refused),
            // Some file systems know no hard links, which shows as any error.
            Err(_) if self.inner.requester.backend.dir().is_some() => Ok(MakeAnswer::Impossible),
            Err(error) if error.kind() == Kind::Invalid => Ok(MakeAnswer::Impossible),
            // Some stores refuse two writes of one object in a row. A store that is really down
            // fails the next request, whose failure counts.
            Err(error) if error.kind() == Kind::Unavailable => Ok(MakeAnswer::Unknown),
            Err(error) => Err(error),
        }
    }

    /// Reads a part of the object, and returns when it was stored, in milliseconds since the Unix epoch.
    async fn read_probe(&self, key: &Path, last: &[Bytes]) -> Result<TrialResult<i64>> {
        let call = self.trying(Verb::Get, "read a part of", key);
        let read = self.inner.requester.call(call, |store| async move {
            let range = Some(GetRange::Bounded(PART));
            let got = store.get_opts(key, GetOptions { range, ..GetOptions::default() }).await?;
            let (range, stored) = (got.range.clone(), got.meta.last_modified);
            let bytes = got.bytes().await?;
            if bytes.len() as u64 != range.end - range.start {
                return Err(Trouble::cut_short(bytes.len() as u64, range.end - range.start).into());
            }
            Ok((range, bytes, stored.timestamp_millis()))
        });
        let (range, bytes, stored_ms) = match read.await {
            Ok(read) => read,
            Err(error) if error.kind() == Kind::NotFound => {
                return Ok(Err("an object that was just written is not found"));
            }
            Err(error)
                if error.kind() == Kind::Corrupt
                    || Trouble::cause_of(&error) == Cause::NoRanges =>
            {
                return Ok(Err("parts of objects cannot be read"));
            }
            Err(error) => return Err(error),
        };
        if range != PART {
            return Ok(Err("a read of a part returns another part"));
        }
        let part = PART.start as usize..PART.end as usize;
        if !last.iter().any(|body| bytes == body[part.clone()]) {
            return Ok(Err("a read returns other bytes than were just written"));
        }
        Ok(Ok(stored_ms))
    }

    /// Looks for the object in a list, and returns its size and when it was stored.
    async fn list_probe(&self, key: &Path) -> Result<Option<(u64, i64)>> {
        let folder: Path = key.parts().take(key.parts().count() - 1).collect();
        // A name just before ours, and after those of most other nodes.
        let mut before = key.as_ref().to_owned();
        before.pop();
        let before = Path::from(before);
        let call = self.trying(Verb::List, "list", &folder);
        let listed = self.inner.requester.call(call, |store| async move {
            let mut stream = store.list_with_offset(Some(&folder), &before).take(LISTED_MAX);
            while let Some(meta) = stream.next().await {
                let meta = meta?;
                if meta.location == *key {
                    return Ok(Some((meta.size, meta.last_modified.timestamp_millis())));
                }
            }
            Ok(None)
        });
        listed.await
    }

    /// Reports whether the object could be deleted. If deletes are not allowed, one small object
    /// per node stays until it expires.
    async fn delete_probe(&self, key: &Path) -> bool {
        let call = self.trying(Verb::Delete, "delete", key);
        let deleted = self
            .inner
            .requester
            .call(call, |store| async move { Ok(store.delete(key).await?) })
            .await;
        if let Err(error) = &deleted {
            tracing::debug!(error = %error.chain(), "probe object is not deleted");
        }
        deleted.is_ok()
    }
}
