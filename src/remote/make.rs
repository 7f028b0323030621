//! Making a store, and later changes of its format object.
//!
//! Owns every write of the format object. Must never make a store if the node knows one, and never
//! remove anything from an object that exists.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use bytes::Bytes;
use futures::StreamExt as _;
use object_store::path::Path;
use object_store::{ObjectStore, ObjectStoreExt as _, PutMode, PutOptions};

use super::call::Call;
use super::expiry::{Declaration, Declared};
use super::format::{self, Format, StoreId};
use super::health::Lane;
use super::keys;
use super::listing::What;
use super::store::Remote;
use super::verb::Verb;
use crate::clock;
use crate::error::{Error, Kind, Result};
use crate::stamp::Stamp;

/// How many objects are examined before a place becomes a store.
const LOOKED_AT_MAX: usize = 1000;
/// If a store has no conditional writes, two nodes that make it at once both write. After this
/// pause, both read what the later one wrote.
const UNSURE_PAUSE: Duration = Duration::from_secs(2);

/// The outcome of making a store.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MadeStore {
    /// Which store is there.
    pub store: StoreId,
    /// It was made just now.
    pub new: bool,
    /// The stores that it replaces were not all recorded before.
    pub told: bool,
}

/// What lies in a place without a format object.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Remains {
    /// Nothing of ours.
    Nothing,
    /// Shared objects: a store whose format object was deleted.
    Store,
}

impl Remote {
    /// Reports whether this handle made the store.
    pub fn has_made(&self) -> bool {
        self.inner.made.load(Ordering::Relaxed)
    }

    /// Makes the store, if there is none, and lets it replace others: nodes that know one of these
    /// move on to this one. Repeating it changes nothing.
    ///
    /// # Errors
    ///
    /// As [`Remote::check`]; `Unavailable` when the store forgets what is written to it.
    pub async fn make(&self, replaces: &[StoreId]) -> Result<MadeStore> {
        let (store, new, told) = {
            let _one = self.inner.check.begin().await;
            self.open_dir(true).await?;
            let before = self.read_format(Lane::Background).await?;
            let new = before.is_none();
            let mut bytes = match before {
                Some(bytes) => bytes,
                None => {
                    self.look_around(Lane::Background).await;
                    self.make_format(Lane::Background).await?
                }
            };
            let said = format::check(&bytes, &self.inner.url)?;
            let wanted = |store: &&StoreId| **store != said.store && !said.replaces.contains(store);
            let missing: Vec<StoreId> = replaces.iter().filter(wanted).copied().collect();
            for store in &missing {
                let text = format::replacing(&bytes, *store);
                bytes = text.expect("the object was just parsed").into();
            }
            if !missing.is_empty() {
                self.write_format(bytes).await?;
            }
            (said.store, new, !missing.is_empty())
        };
        self.check().await?;
        Ok(MadeStore { store, new, told })
    }

    /// Makes the store declare the expiry that this handle was opened with, and makes the store if
    /// it does not exist yet. Mounted nodes learn of it at their next check.
    ///
    /// # Errors
    ///
    /// As [`Remote::check`]; `Unavailable` when the store forgets what is written to it.
    pub async fn declare_expiry(&self) -> Result<Declaration> {
        let own = self.inner.expiry.own();
        let _one = self.inner.check.begin().await;
        self.open_dir(true).await?;
        let Some(bytes) = self.read_format(Lane::Background).await? else {
            // The caller has named this place, whatever lies there; foreign objects are only reported.
            self.look_around(Lane::Background).await;
            self.make_format(Lane::Background).await?;
            return Ok(Declaration::Made);
        };
        let before = format::check(&bytes, &self.inner.url)?.expiry;
        if before == Declared::Age(own) {
            return Ok(Declaration::Same);
        }
        let text = format::declaring(&bytes, own).expect("the object was just parsed");
        self.write_format(text.into()).await?;
        Ok(Declaration::Changed(before))
    }

    /// Lists the first commits of a log in a place that is not accepted as the known store.
    ///
    /// # Errors
    ///
    /// `Unavailable` or `TimedOut` while the store does not answer, `Denied` or `Invalid` when it refuses.
    pub async fn peek_log(&self) -> Result<Vec<Stamp>> {
        let (prefix, op) = (self.inner.keys.log(), self.asking("look into the log of"));
        let call = Call { lane: Lane::Background, guarded: false, ..self.call(Verb::List, op) };
        let listed = self.inner.requester.call(call, |store| async move {
            let (mut stream, mut found) =
                (store.list(Some(&prefix)).take(LOOKED_AT_MAX), Vec::new());
            while let Some(meta) = stream.next().await {
                found.extend(meta?.location.filename().and_then(keys::commit_stamp));
            }
            Ok(found)
        });
        listed.await
    }

    /// Accepts the found store as the known one, because its log proves that it is. A missing
    /// format object is restored; if the store has another identity, the node adopts it.
    ///
    /// # Errors
    ///
    /// `Invalid` when the format object is not readable; `Denied` on a read-only mount; otherwise `Unavailable` or
    /// `TimedOut` while the store does not answer, `Denied` or `Invalid` when it refuses.
    pub async fn recognise(&self) -> Result<()> {
        let inner = &self.inner;
        {
            let _one = inner.check.begin().await;
            match self.read_format(Lane::Background).await? {
                Some(bytes) => {
                    let said = format::check(&bytes, &inner.url)?;
                    tracing::warn!(
                        remote = %inner.url, store = %said.store,
                        "the store has a new identity, but the log that this node knows; it is the same store"
                    );
                    self.accept(&said, &bytes);
                }
                None => self.put_format_back().await?,
            }
        }
        self.check().await
    }

    async fn put_format_back(&self) -> Result<()> {
        let (inner, key) = (&self.inner, self.inner.keys.format());
        if inner.read_only.load(Ordering::Relaxed) {
            let op = format!(
                "{} has lost its {}, and this node is read-only: a node that may write puts it back",
                inner.url,
                keys::FORMAT
            );
            return Err(Error::new(Kind::Unavailable, op));
        }
        let known = inner.identity.known();
        let Some(says) = known.as_ref().and_then(|known| known.says()).map(str::to_owned) else {
            let op =
                format!("{} has lost its {}, and this node has no copy", inner.url, keys::FORMAT);
            return Err(Error::new(Kind::Unavailable, op));
        };
        self.put_new(Lane::Background, &key, says.into()).await?;
        tracing::warn!(
            remote = %inner.url,
            "{} was deleted and is put back as it was; correct the rule that deletes it", keys::FORMAT
        );
        Ok(())
    }

    /// Makes the place a store and returns its format object. If two nodes do this at once, both
    /// get the one that the first wrote.
    pub(super) async fn make_format(&self, lane: Lane) -> Result<Bytes> {
        let inner = &self.inner;
        let key = inner.keys.format();
        let format = Format::new(StoreId::random(), inner.clock.wall_ms(), inner.expiry.own());
        let own = Bytes::from(format.encode());
        if !self.put_new(lane, &key, own.clone()).await? {
            clock::sleep(UNSURE_PAUSE).await;
        }
        let Some(bytes) = self.read_format(lane).await? else {
            let op = format!("{} loses what is written to it", inner.url);
            return Err(Error::new(Kind::Unavailable, op));
        };
        if bytes == own {
            inner.made.store(true, Ordering::Relaxed);
            let store = format::store_of(&bytes);
            let id = store.map(|store| store.to_string()).unwrap_or_default();
            tracing::info!(remote = %inner.url, store = id, "there was no store: a new one is made");
            if let Err(error) = self.begin_head(lane).await {
                tracing::debug!(error = %error.chain(), "the first commit makes the head of the log");
            }
        }
        Ok(bytes)
    }

    /// Writes the format object, unless another node has. Returns true if the store has decided
    /// which writer won; otherwise two writers may both have written.
    async fn put_new(&self, lane: Lane, key: &Path, text: Bytes) -> Result<bool> {
        let bytes = text.len() as u64;
        let op = self.asking("write the format of");
        let is_dir = self.inner.requester.backend.dir().is_some();
        let call = Call { lane, guarded: false, ..self.call(Verb::Put, op) };
        let put = |store: Arc<dyn ObjectStore>| async move {
            let create = PutOptions::from(PutMode::Create);
            match store.put_opts(key, text.clone().into(), create).await {
                Ok(_) => Ok(true),
                // Some stores have no conditional writes, some file systems no hard links.
                Err(object_store::Error::NotImplemented { .. }) => {
                    store.put(key, text.into()).await?;
                    Ok(false)
                }
                Err(object_store::Error::Generic { .. }) if is_dir => {
                    store.put(key, text.into()).await?;
                    Ok(false)
                }
                Err(error) => Err(error.into()),
            }
        };
        match self.inner.requester.call(call, put).await {
            // Another node was first, or the answer to our write was lost and the client retried.
            Err(error) if error.kind() == Kind::Exists => Ok(true),
            Ok(decided) => {
                self.inner.requester.meter.up(bytes);
                Ok(decided)
            }
            Err(error) => Err(self.with_remedy(&error)),
        }
    }

    async fn write_format(&self, text: Bytes) -> Result<()> {
        let (key, op) = (self.inner.keys.format(), self.asking("write the format of"));
        let call = Call { lane: Lane::Background, guarded: false, ..self.call(Verb::Put, op) };
        let written = self.inner.requester.call(call, |store| async move {
            store.put(&key, text.into()).await?;
            Ok(())
        });
        written.await.map_err(|error| self.with_remedy(&error))
    }

    /// Reads the format object; `None` if there is none.
    pub(super) async fn read_format(&self, lane: Lane) -> Result<Option<Bytes>> {
        let (key, op) = (self.inner.keys.format(), self.asking("read the format of"));
        let call = Call { lane, guarded: false, ..self.call(Verb::Get, op) };
        match self.read_with(call, key, None, format::FORMAT_BYTES_MAX).await {
            Ok(bytes) => Ok(Some(bytes)),
            Err(error) if error.kind() == Kind::NotFound => Ok(None),
            Err(error) => Err(self.with_remedy(&error)),
        }
    }

    /// Examines a place that is about to become a store, and logs foreign objects once.
    pub(super) async fn look_around(&self, lane: Lane) -> Remains {
        let prefix = self.inner.keys.prefix();
        let call = Call { lane, guarded: false, ..self.call(Verb::List, self.asking("look into")) };
        let found = self.inner.requester.call(call, |store| async move {
            let mut stream = store.list(Some(prefix)).take(LOOKED_AT_MAX);
            let (mut remains, mut foreign) = (Remains::Nothing, None);
            while let Some(meta) = stream.next().await {
                let key = meta?.location;
                match What::at(&key, prefix) {
                    What::Foreign => drop(foreign.get_or_insert(key)),
                    // The format object has appeared since it was looked for.
                    What::Probe | What::Format | What::Head => {}
                    _ => remains = Remains::Store,
                }
            }
            Ok((remains, foreign))
        });
        // Whether lists work at all is tested later.
        let Ok((remains, foreign)) = found.await else { return Remains::Nothing };
        if let Some(key) = foreign {
            self.say_foreign(&key);
        }
        remains
    }
}
