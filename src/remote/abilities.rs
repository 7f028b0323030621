//! What a store can do, tried and not believed.
//!
//! Owns the one small object by which it is tried, and the refusal of a store on which nothing can be
//! built. Must never take trouble on the line for an answer.

use std::sync::atomic::Ordering;
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

/// How often a store is tried before what it did counts against it: another mount of the same node,
/// ended a moment ago, may have touched the same object.
const ROUNDS_MAX: u64 = 3;
/// The pause before the second round; the next one is longer.
const ROUND_PAUSE_MS: u64 = 300;
/// The part of the object that is read: neither its beginning nor its end, and all that differs.
const PART: std::ops::Range<u64> = 12..33;
/// How many objects of a list are looked at for ours.
const LISTED_MAX: usize = 100;
/// How far a list and a read may differ in when an object was stored: reads know whole seconds.
const TIMES_DIFFER_MS_MAX: i64 = 60_000;

/// What trying it brought.
pub(super) struct TriedAbilities {
    abilities: StoreAbilities,
    /// When the object was stored, in milliseconds since the Unix epoch by the store's clock ...
    pub(super) stored_ms: i64,
    /// ... which lies between these by our monotonic one.
    pub(super) before: Duration,
    pub(super) after: Duration,
}

/// The answer to a request that makes what is there already.
enum MakeAnswer {
    /// That was refused.
    Refused,
    /// It was done: it is an overwrite like any other.
    Done,
    /// It cannot be asked.
    Impossible,
    /// No answer came, and it may or may not have been done.
    Unknown,
}

/// What a trial says of the store: something, or why it cannot be used.
type TrialResult<T> = std::result::Result<T, &'static str>;

impl Remote {
    /// Returns what the store was seen to do; `None` until it has been tried, which a mount that only
    /// reads never does.
    pub fn abilities(&self) -> Option<StoreAbilities> {
        *self.inner.tried.abilities.lock()
    }

    /// Returns why the store cannot be used, if that was found out.
    pub fn unfit(&self) -> Option<String> {
        self.inner.tried.unfit.lock().clone()
    }

    /// Tries what everything else relies on: that an object is read as it was written last, also a part
    /// of it, and listed with its time. A store that cannot do this is refused from now on. Takes six
    /// requests.
    pub(super) async fn try_store(&self) -> Result<TriedAbilities> {
        let mut round = 1;
        loop {
            // Another machine of the same name, with its cache in the same place, has the same object. It is no
            // fault of the store that they disturb each other.
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
                    "{} cannot be used: {problem}, and hearthfs relies on that; use another server",
                    self.inner.url
                );
                *self.inner.tried.unfit.lock() = Some(text.clone());
                self.inner.caller.gate.note_unusable(Kind::Invalid, &text);
                self.inner.checked.store(false, Ordering::Release);
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
            // Where nothing can be deleted, a list that lags shows what an earlier mount has left.
            Some((_, ms)) if ms > 0 && ms + TIMES_DIFFER_MS_MAX < stored_ms => false,
            Some((size, ms))
                if size != last[0].len() as u64 || (ms - stored_ms).abs() > TIMES_DIFFER_MS_MAX =>
            {
                return Ok(Err("a list shows another size or time of an object than a read does"));
            }
            Some(_) => true,
        };
        let delete = self.delete_probe(key).await;
        let abilities = StoreAbilities { create_if_absent, delete, list_at_once };
        Ok(Ok(TriedAbilities { abilities, stored_ms, before, after }))
    }

    fn trying(&self, verb: Verb, what: &str, key: &Path) -> Call {
        // Not guarded, so that a conflict stays one.
        Call { lane: Lane::Background, guarded: false, ..self.call(verb, format!("{what} {key}")) }
    }

    async fn put_probe(&self, key: &Path, body: Bytes, mode: PutMode) -> Result<()> {
        self.inner.caller.meter.up(body.len() as u64);
        let call = self.trying(Verb::Put, "write", key);
        let put = |store: std::sync::Arc<dyn object_store::ObjectStore>| async move {
            store.put_opts(key, body.into(), PutOptions::from(mode)).await?;
            Ok::<_, CallFailure>(())
        };
        self.inner.caller.call(call, put).await
    }

    /// Replaces the object, and returns what it may hold then.
    async fn overwrite_probe(&self, key: &Path, old: Vec<Bytes>, new: Bytes) -> Result<Vec<Bytes>> {
        match self.put_probe(key, new.clone(), PutMode::Overwrite).await {
            Ok(()) => Ok(vec![new]),
            // Google lets one object be written once a second, and is not always strict about it. That is
            // enough for us: it is done only here; it only means that nothing was learned.
            Err(error) if Trouble::cause_of(&error) == Cause::Crowded => {
                Ok([old, vec![new]].concat())
            }
            Err(error) => Err(error),
        }
    }

    /// Asks to make what is there already.
    async fn create_probe(&self, key: &Path, body: Bytes) -> Result<MakeAnswer> {
        match self.put_probe(key, body, PutMode::Create).await {
            Ok(()) => Ok(MakeAnswer::Done),
            Err(error) if error.kind() == Kind::Exists => Ok(MakeAnswer::Refused),
            // Some file systems know no hard links, which shows as any error.
            Err(_) if self.inner.caller.backend.dir().is_some() => Ok(MakeAnswer::Impossible),
            Err(error) if error.kind() == Kind::Invalid => Ok(MakeAnswer::Impossible),
            // Two writes of one object in a row are too many for some. What is really away fails at the next
            // request, which is one that matters.
            Err(error) if error.kind() == Kind::Unavailable => Ok(MakeAnswer::Unknown),
            Err(error) => Err(error),
        }
    }

    /// Reads a part of the object, and returns when it was stored, in milliseconds since the Unix epoch.
    async fn read_probe(&self, key: &Path, last: &[Bytes]) -> Result<TrialResult<i64>> {
        let call = self.trying(Verb::Get, "read a part of", key);
        let read = self.inner.caller.call(call, |store| async move {
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
            return Ok(Err("a read of a part brings another part"));
        }
        let part = PART.start as usize..PART.end as usize;
        if !last.iter().any(|body| bytes == body[part.clone()]) {
            return Ok(Err("a read brings other bytes than were just written"));
        }
        Ok(Ok(stored_ms))
    }

    /// Looks for the object in a list, and returns its size and when it was stored.
    async fn list_probe(&self, key: &Path) -> Result<Option<(u64, i64)>> {
        let folder: Path = key.parts().take(key.parts().count() - 1).collect();
        // Just before ours, behind those of most other nodes.
        let mut before = key.as_ref().to_owned();
        before.pop();
        let before = Path::from(before);
        let call = self.trying(Verb::List, "list", &folder);
        let listed = self.inner.caller.call(call, |store| async move {
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

    /// Reports whether the object could be deleted. What is left where we may not is one small object
    /// per node, for the expiry.
    async fn delete_probe(&self, key: &Path) -> bool {
        let call = self.trying(Verb::Delete, "delete", key);
        let deleted =
            self.inner.caller.call(call, |store| async move { Ok(store.delete(key).await?) }).await;
        if let Err(error) = &deleted {
            tracing::debug!(error = %error.chain(), "probe object is left");
        }
        deleted.is_ok()
    }
}
