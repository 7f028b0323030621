//! Whether the store is one that we may use.
//!
//! Owns the format object, the store's time, and the refusals of a store that does not fit. Must never
//! let anything be written to a store whose format has not been checked.

use std::sync::atomic::Ordering;
use std::time::Duration;

use bytes::Bytes;
use futures::StreamExt as _;
use object_store::path::Path;
use object_store::{ObjectStoreExt as _, PutMode, PutOptions};

use super::call::Call;
use super::connect;
use super::expiry::{Declaration, Declared};
use super::format::{self, Format};
use super::health::{Health, Lane};
use super::keys;
use super::meter::Verb;
use super::store::Remote;
use super::trouble::{Cause, Trouble};
use crate::clock;
use crate::error::{Error, Kind, Result};
use crate::task;

/// How long a refusal of the store's format is remembered before the store is asked again.
const REFUSAL_KEPT: Duration = Duration::from_secs(10);

/// How many objects are looked at for one that is not ours.
const OTHERS_LOOKED_AT_MAX: usize = 100;

/// How often we look for the format object, when others make it at the same time.
const FORMAT_ROUNDS_MAX: u32 = 4;
/// How much longer the pause before each look is than the one before.
const FORMAT_PAUSE: Duration = Duration::from_millis(50);

impl Remote {
    /// Checks that the store is there, lets us in and has our format, making it ours if it is empty;
    /// tries what it can do, and learns its time. Every other operation does the first part by itself before it goes to a store
    /// that has not been checked, so a store that is down now may be checked later or never.
    pub async fn check(&self) -> Result<()> {
        let _one = self.inner.checking.lock().await;
        self.check_format(Lane::Background).await?;
        if !self.inner.read_only.load(Ordering::Relaxed) {
            self.learn_time().await?;
            self.sweep();
        }
        Ok(())
    }

    /// Returns when the store was made, which tells it from every other that was or will be at this
    /// address: of one that was emptied, too, the next mount makes another.
    pub async fn made_ms(&self) -> Result<u64> {
        self.ready_to_read().await?;
        Ok(self.inner.made_ms.load(Ordering::Relaxed))
    }

    /// Looks again at what the store says of itself, which may be another by now; makes nothing. Before the first
    /// check, that is done.
    pub async fn check_again(&self) -> Result<()> {
        if !self.inner.checked.load(Ordering::Acquire) {
            return self.ready_to_read().await;
        }
        let asked = self.asking("read the format of");
        let (key, call) = (self.inner.keys.format(), self.call(Verb::Get, asked));
        let bytes = self.read_with(call, key, None, format::FORMAT_BYTES_MAX).await?;
        self.take_format(&bytes)
    }

    /// Waits until the store has been checked with success, by whomever; asks nothing.
    pub async fn checked(&self) {
        let mut done = std::pin::pin!(self.inner.check_done.notified());
        // From here on none is missed.
        done.as_mut().enable();
        if !self.inner.checked.load(Ordering::Acquire) {
            done.await;
        }
    }

    /// Waits until the store has been checked, before a read.
    pub(super) async fn ready_to_read(&self) -> Result<()> {
        self.ready(self.lane).await
    }

    /// Waits until the store has been checked and its time is known, before a write.
    pub async fn ready_to_write(&self) -> Result<()> {
        if self.inner.read_only.load(Ordering::Relaxed) {
            let op = format!("{} is mounted read-only", self.inner.url);
            return Err(Error::new(Kind::Denied, op));
        }
        self.ready(Lane::Background).await?;
        self.know_time().await
    }

    /// Makes sure that this run has learned the store's time before it stores what will be aged by it.
    async fn know_time(&self) -> Result<()> {
        if self.inner.time.is_learned() {
            return Ok(());
        }
        let _one = self.inner.checking.lock().await;
        if self.inner.time.is_learned() { Ok(()) } else { self.learn_time().await }
    }

    /// Waits until the store has been checked; checks it if nobody does.
    pub(super) async fn ready(&self, lane: Lane) -> Result<()> {
        let inner = &self.inner;
        if inner.checked.load(Ordering::Acquire) {
            return Ok(());
        }
        let down = || Error::new(Kind::Unavailable, format!("{} has not answered yet", inner.url));
        let _one = match inner.checking.try_lock() {
            Ok(one) => one,
            Err(_) if lane == Lane::Background => inner.checking.lock().await,
            // Somebody asks already, and it may take its whole deadline.
            Err(_) if self.health() != Health::Up => return Err(down()),
            Err(_) => clock::within(inner.caller.deadline, inner.checking.lock())
                .await
                .ok_or_else(down)?,
        };
        if inner.checked.load(Ordering::Acquire) {
            return Ok(());
        }
        if let Some(text) = self.unfit() {
            return Err(Error::new(Kind::Invalid, text));
        }
        let now = inner.clock.mono();
        if let Some((at, kind, text)) = &*inner.refused.lock()
            && now < *at + REFUSAL_KEPT
        {
            return Err(Error::new(*kind, text.clone()));
        }
        self.check_format(lane).await
    }

    async fn check_format(&self, lane: Lane) -> Result<()> {
        let inner = &self.inner;
        let write = !inner.read_only.load(Ordering::Relaxed);
        let checked = match self.open_dir(write).await {
            Ok(()) => self.agree_on_format(lane, write).await,
            Err(error) => Err(error),
        };
        match &checked {
            Ok(()) => {
                inner.checked.store(true, Ordering::Release);
                inner.check_done.notify_waiters();
                *inner.refused.lock() = None;
            }
            Err(error) if matches!(error.kind(), Kind::Unavailable | Kind::TimedOut) => {}
            Err(error) => {
                *inner.refused.lock() = Some((inner.clock.mono(), error.kind(), error.chain()));
            }
        }
        checked
    }

    async fn open_dir(&self, make: bool) -> Result<()> {
        let Some(dir) = self.inner.caller.backend.dir() else { return Ok(()) };
        let shared = dir.clone();
        clock::within(self.inner.caller.deadline, task::blocking(move || shared.open(make)))
            .await
            .unwrap_or_else(|| {
                let op = format!("{} does not answer: is its file server up?", self.inner.url);
                Err(Error::new(Kind::TimedOut, op))
            })
    }

    async fn agree_on_format(&self, lane: Lane, write: bool) -> Result<()> {
        let key = self.inner.keys.format();
        // Again: when two nodes make it at once, the slower one reads what the faster one wrote.
        for round in 0..FORMAT_ROUNDS_MAX {
            clock::sleep(FORMAT_PAUSE * round).await;
            let call = Call {
                lane,
                guarded: false,
                ..self.call(Verb::Get, self.asking("read the format of"))
            };
            match self.read_with(call, key.clone(), None, format::FORMAT_BYTES_MAX).await {
                Ok(bytes) => return self.take_format(&bytes),
                Err(error) if error.kind() == Kind::NotFound && !write => {
                    let op = format!(
                        "{} holds no {}; mount it once without read-only, or correct the address",
                        self.inner.url,
                        keys::FORMAT
                    );
                    return Err(Error::new(Kind::NotFound, op));
                }
                Err(error) if error.kind() == Kind::NotFound => {}
                Err(error) => return Err(self.with_remedy(&error)),
            }
            if round == 0 {
                self.look_for_others(lane).await;
            }
            match self.make_format(lane, &key).await {
                Ok(()) => {}
                Err(error) if error.kind() == Kind::Exists => {}
                Err(error) => return Err(self.with_remedy(&error)),
            }
        }
        let op = format!("{} forgets what is written to it", self.inner.url);
        Err(Error::new(Kind::Unavailable, op))
    }

    /// Checks the format, and takes what it says beside.
    fn take_format(&self, bytes: &[u8]) -> Result<()> {
        let said = format::check(bytes, &self.inner.url)?;
        self.inner.made_ms.store(said.created_ms, Ordering::Relaxed);
        if let Some(warning) = self.inner.expiry.learn(said.expiry, &self.inner.url) {
            tracing::warn!("{warning}");
        }
        Ok(())
    }

    /// Makes the store declare the expiry that this handle was opened with, and makes the store if it is
    /// not there yet. Nodes that are mounted learn of it at their next check.
    pub async fn declare_expiry(&self) -> Result<Declaration> {
        let own = self.inner.expiry.own();
        let _one = self.inner.checking.lock().await;
        self.open_dir(true).await?;
        let (key, lane) = (self.inner.keys.format(), Lane::Background);
        let asked = self.asking("read the format of");
        let call = Call { lane, guarded: false, ..self.call(Verb::Get, asked) };
        let bytes = match self.read_with(call, key.clone(), None, format::FORMAT_BYTES_MAX).await {
            Ok(bytes) => bytes,
            Err(error) if error.kind() == Kind::NotFound => {
                self.agree_on_format(lane, true).await?;
                return Ok(Declaration::Made);
            }
            Err(error) => return Err(self.with_remedy(&error)),
        };
        let before = format::check(&bytes, &self.inner.url)?.expiry;
        if before == Declared::Age(own) {
            return Ok(Declaration::Same);
        }
        let text = format::declaring(&bytes, own).expect("it has just been read as such an object");
        let op = self.asking("write the format of");
        let call = Call { lane, guarded: false, ..self.call(Verb::Put, op) };
        let written = self.inner.caller.call(call, |store| async move {
            store.put(&key, text.into()).await?;
            Ok(())
        });
        written.await.map_err(|error| self.with_remedy(&error))?;
        Ok(Declaration::Changed(before))
    }

    /// Looks whether a place that we are about to make ours holds objects of somebody else, and says so.
    async fn look_for_others(&self, lane: Lane) {
        let prefix = self.inner.keys.prefix();
        let call = Call { lane, guarded: false, ..self.call(Verb::List, self.asking("look into")) };
        let found = self.inner.caller.call(call, |store| async move {
            let mut stream = store.list(Some(prefix)).take(OTHERS_LOOKED_AT_MAX);
            while let Some(meta) = stream.next().await {
                let key = meta?.location;
                if !self.inner.keys.is_ours(&key) {
                    return Ok(Some(key));
                }
            }
            Ok(None)
        });
        // Whether a list works at all is tried later.
        if let Ok(Some(key)) = found.await {
            self.say_foreign(&key);
        }
    }

    /// Says, once, that there are objects which are not ours.
    pub(super) fn say_foreign(&self, key: &Path) {
        if !self.inner.foreign_said.swap(true, Ordering::Relaxed) {
            tracing::warn!(
                remote = %self.inner.url, %key,
                "objects that are not of hearthfs lie there; they are left alone"
            );
        }
    }

    /// Writes the format object, unless somebody has; where a store cannot tell, two writers write
    /// the same but for the time.
    async fn make_format(&self, lane: Lane, key: &Path) -> Result<()> {
        let format = Format::new(self.inner.clock.wall_ms(), self.inner.expiry.own());
        let text = Bytes::from(format.encode());
        self.inner.caller.meter.up(text.len() as u64);
        let op = self.asking("write the format of");
        let is_dir = self.inner.caller.backend.dir().is_some();
        let call = Call { lane, guarded: false, ..self.call(Verb::Put, op) };
        self.inner
            .caller
            .call(call, |store| async move {
                let create = PutOptions::from(PutMode::Create);
                match store.put_opts(key, text.clone().into(), create).await {
                    Ok(_) => {}
                    // Some stores know no conditions, some file systems no hard links.
                    Err(object_store::Error::NotImplemented { .. }) => {
                        store.put(key, text.into()).await?;
                    }
                    Err(object_store::Error::Generic { .. }) if is_dir => {
                        store.put(key, text.into()).await?;
                    }
                    Err(error) => return Err(error.into()),
                }
                Ok(())
            })
            .await
    }

    fn asking(&self, what: &str) -> String {
        format!("{what} {}", self.inner.url)
    }

    /// Adds to an error of the check what a person can do about it.
    pub(super) fn with_remedy(&self, error: &Error) -> Error {
        let cause = Trouble::cause_of(error);
        let dir = self.inner.caller.backend.dir().is_some();
        let (kind, remedy) = match (cause, error.kind()) {
            (Cause::MissingBucket, _) => {
                (Kind::NotFound, "the bucket does not exist: make it or correct the name")
            }
            (Cause::Clock, _) => {
                (Kind::Denied, "the clock of this machine is wrong: set it, and keep it set")
            }
            (Cause::NoCredentials, _) => return Error::new(Kind::Denied, error.chain()),
            (_, Kind::Denied) => (Kind::Denied, connect::credentials_remedy(&self.inner.url)),
            (_, Kind::Invalid) => {
                (Kind::Invalid, "check the endpoint, and the region if it has one")
            }
            (_, kind) if dir => (kind, "check that the file system is mounted and its server up"),
            (_, Kind::TimedOut) => {
                (Kind::TimedOut, "no answer in time: check endpoint and network")
            }
            (_, Kind::Unavailable) => {
                (Kind::Unavailable, "it cannot be reached: check endpoint and network")
            }
            (_, kind) => (kind, "check the store"),
        };
        Error::new(kind, format!("{}; {remedy}", error.chain()))
    }

    /// Tries the store, and takes its time from what it said of the object by which that was done.
    async fn learn_time(&self) -> Result<()> {
        let found = self.try_store().await?;
        self.note_time(found.before, found.after, found.stored_ms);
        Ok(())
    }

    /// Learns the store's time from an object that was sent at `before`, by the monotonic clock.
    pub(super) async fn learn_from(&self, key: &Path, before: Duration) -> Result<()> {
        let after = self.inner.clock.mono();
        let head =
            Call { lane: Lane::Background, ..self.call(Verb::Head, format!("look at {key}")) };
        let meta =
            self.inner.caller.call(head, |store| async move { Ok(store.head(key).await?) }).await?;
        self.note_time(before, after, meta.last_modified.timestamp_millis());
        Ok(())
    }

    /// Takes the store's time from what it says of an object that was stored in between.
    fn note_time(&self, before: Duration, after: Duration, stored_ms: i64) {
        let off_ms = self.inner.time.learn(before, after, stored_ms);
        if off_ms != 0 {
            let (remote, ahead_ms) = (&self.inner.url, self.inner.time.ahead_ms());
            tracing::warn!(%remote, ahead_ms, "the remote's clock differs from ours; its time counts");
        }
    }

    /// Removes what writers that died have left in a shared directory, beside other work.
    fn sweep(&self) {
        let Some(dir) = self.inner.caller.backend.dir().cloned() else { return };
        let now_ms = self.now_ms();
        let runtime = tokio::runtime::Handle::current();
        drop(task::spawn(&runtime, "sweep", async move {
            let removed = task::blocking(move || dir.sweep(now_ms)).await;
            if removed > 0 {
                tracing::info!(removed, "temporaries of dead writers removed from the remote");
            }
        }));
    }
}
