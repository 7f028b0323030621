//! Checks whether the store is one that we may use.
//!
//! Owns the check of the format object, the store's time, and the refusals of a store that does not
//! fit. Must never let anything be written to a store whose format has not been checked, or that is
//! not the one the node knows.

use std::sync::atomic::Ordering;
use std::time::Duration;

use object_store::ObjectStoreExt as _;
use object_store::path::Path;

use super::call::Call;
use super::connect;
use super::format::{self, Said, StoreId};
use super::health::{Health, Lane, Outage};
use super::identity::{self, FoundStore, KnownStore};
use super::keys;
use super::make::Remains;
use super::store::Remote;
use super::trouble::{Cause, Trouble};
use super::verb::Verb;
use crate::clock;
use crate::error::{Error, Kind, Result};
use crate::task;

/// How long a refusal of the store's format stays cached before the store is asked again.
const REFUSAL_KEPT: Duration = Duration::from_secs(10);

/// The same for a known store that is missing: it may be mounted at any moment.
const MISSED_KEPT: Duration = Duration::from_secs(2);
/// After an outage of this length the store's identity is checked again: another store may have replaced it.
const ANOTHER_AFTER: Duration = Duration::from_secs(5);

impl Remote {
    /// Sets the store that the node knows from an earlier run. Without one, the first check accepts
    /// any store that it finds, and makes one if there is none.
    pub fn know(&self, known: Option<KnownStore>) {
        self.inner.identity.know(known);
    }

    /// Returns the store that this run uses, for the next run; `None` before the first check.
    pub fn used(&self) -> Option<KnownStore> {
        self.inner.identity.accepted()
    }

    /// Returns when this run found the store first that it uses, by the store's clock; 0 before.
    pub fn found_ms(&self) -> u64 {
        self.inner.identity.found_ms()
    }

    /// Returns the store that the node knows, and when this run found it last, by the store's clock.
    pub fn known(&self) -> Option<(StoreId, Option<u64>)> {
        let identity = &self.inner.identity;
        identity.known().map(|known| (known.store(), identity.seen_ms()))
    }

    /// Reports whether the known store is missing: its place is empty, or another store is there.
    pub fn is_missed(&self) -> bool {
        self.inner.identity.missed().is_some()
    }

    /// Returns why the store cannot be used at this moment, and what to do about it, if that is known.
    pub fn trouble(&self) -> Option<String> {
        let missed = self.inner.identity.missed().map(|(why, _)| why);
        self.unfit().or(missed).or_else(|| self.inner.requester.gate.why())
    }

    /// Returns what last kept the store from being used, now or in an outage that is over.
    pub fn last_outage(&self) -> Option<Outage> {
        self.inner.requester.gate.last()
    }

    /// Returns when the last outage ended, by the monotonic clock; `None` before the first.
    pub fn outage_ended(&self) -> Option<Duration> {
        self.inner.requester.gate.ended_at()
    }

    /// Checks that the store is there, accepts our credentials, has our format and is the one that
    /// the node knows. If the node knows none, makes it. Also tries what the store can do, and
    /// learns its time. Every other operation checks an unchecked store itself before its request,
    /// so a store that is down now may be checked later or never.
    ///
    /// # Errors
    ///
    /// `NotFound` when there is no bucket or directory, `Denied` for credentials that are wrong or
    /// not enough, `Invalid` for another format or a store that lacks what hearthfs needs,
    /// `Unavailable` or `TimedOut` when it does not answer or is not the store that this node knows.
    pub async fn check(&self) -> Result<()> {
        let _one = self.inner.check.begin().await;
        self.check_format(Lane::Background).await?;
        if !self.inner.read_only.load(Ordering::Relaxed) {
            self.learn_time().await?;
            self.sweep();
        }
        Ok(())
    }

    /// Returns which store it is.
    ///
    /// # Errors
    ///
    /// As [`Remote::check`], for a store that was not checked before.
    pub async fn store_id(&self) -> Result<StoreId> {
        self.ready_to_read().await?;
        let used = self.inner.identity.accepted();
        Ok(used.expect("a checked store was accepted").store())
    }

    /// Reads the format object again, which may have changed; makes nothing. Before the first
    /// check, does that check.
    ///
    /// # Errors
    ///
    /// As [`Remote::check`]. After an error the store counts as not checked.
    pub async fn check_again(&self) -> Result<()> {
        if !self.is_checked() {
            return self.ready_to_read().await;
        }
        let taken = match self.read_format(self.lane).await? {
            Some(bytes) => self.take_format(&bytes),
            None => Err(self.absent()),
        };
        if taken.is_err() {
            self.inner.check.fail();
        }
        taken
    }

    /// Asks whether the store can be used at this moment, for at most `limit`; returns why it cannot.
    pub async fn probe(&self, limit: Duration) -> Option<String> {
        let remote = self.background();
        if self.is_missed() {
            // The caller asks for the present state, so a cached refusal does not count.
            self.inner.check.forget_refusal();
        }
        match clock::within(limit, remote.check_again()).await {
            Some(Ok(())) => None,
            Some(Err(error)) => Some(self.trouble().unwrap_or_else(|| error.chain())),
            None => {
                let none = || format!("{} does not answer", self.inner.url);
                Some(self.trouble().unwrap_or_else(none))
            }
        }
    }

    /// Waits until any caller has checked the store successfully; makes no request.
    pub async fn checked(&self) {
        self.inner.check.success().await;
    }

    /// Waits until the store has been checked, before a read.
    pub(super) async fn ready_to_read(&self) -> Result<()> {
        self.ready(self.lane).await
    }

    /// Waits until the store has been checked and its time is known, before a write.
    ///
    /// # Errors
    ///
    /// `Denied` on a read-only mount; otherwise as [`Remote::check`].
    pub async fn ready_to_write(&self) -> Result<()> {
        if self.inner.read_only.load(Ordering::Relaxed) {
            let op = format!("{} is mounted read-only", self.inner.url);
            return Err(Error::new(Kind::Denied, op));
        }
        self.ready(Lane::Background).await?;
        self.know_time().await
    }

    /// Reports whether this run has learned the store's time. A node that writes nothing knows only
    /// a lower bound of it.
    pub fn knows_time(&self) -> bool {
        self.inner.time.is_learned()
    }

    /// Makes sure that this run has learned the store's time before it stores anything whose age counts.
    async fn know_time(&self) -> Result<()> {
        if self.inner.time.is_learned() {
            return Ok(());
        }
        let _one = self.inner.check.begin().await;
        if self.inner.time.is_learned() { Ok(()) } else { self.learn_time().await }
    }

    /// Waits until the store has been checked; checks it if no other caller does.
    pub(super) async fn ready(&self, lane: Lane) -> Result<()> {
        let inner = &self.inner;
        if self.is_checked() {
            return Ok(());
        }
        let down = || Error::new(Kind::Unavailable, format!("{} has not answered yet", inner.url));
        let _one = match inner.check.try_begin() {
            Some(one) => one,
            None if lane == Lane::Background => inner.check.begin().await,
            // Another caller is already checking, and may take its whole deadline.
            None if self.health() != Health::Up => return Err(down()),
            None => clock::within(inner.requester.deadline, inner.check.begin())
                .await
                .ok_or_else(down)?,
        };
        if self.is_checked() {
            return Ok(());
        }
        if let Some(text) = self.unfit() {
            return Err(Error::new(Kind::Invalid, text));
        }
        if let Some(refusal) = inner.check.refusal(inner.clock.mono()) {
            return Err(refusal);
        }
        self.check_format(lane).await.map_err(|error| match error.kind() {
            // The store is missing, not the object.
            Kind::NotFound => Error::new(Kind::Unavailable, error.chain()),
            _ => error,
        })
    }

    /// Reports whether the store was checked, and has had no outage since in which another may have
    /// replaced it.
    fn is_checked(&self) -> bool {
        let inner = &self.inner;
        inner.check.has_succeeded() && inner.requester.gate.down_for() < ANOTHER_AFTER
    }

    async fn check_format(&self, lane: Lane) -> Result<()> {
        let inner = &self.inner;
        let write = !inner.read_only.load(Ordering::Relaxed);
        let make = write && inner.identity.known().is_none();
        let checked = match self.open_dir(make).await {
            Ok(()) => self.agree_on_format(lane, make).await,
            Err(error) if error.kind() == Kind::NotFound && inner.identity.known().is_some() => {
                Err(self.absent())
            }
            Err(error) => Err(error),
        };
        match &checked {
            Ok(()) => {
                inner.requester.gate.looked();
                inner.check.succeed();
            }
            Err(error) => {
                inner.check.fail();
                let kept = match error.kind() {
                    Kind::Unavailable | Kind::TimedOut if !self.is_missed() => return checked,
                    Kind::Unavailable | Kind::TimedOut => MISSED_KEPT,
                    _ => REFUSAL_KEPT,
                };
                // `NotFound` would look like an answer about an object.
                let kind = error.kind();
                let kind = if kind == Kind::NotFound { Kind::Unavailable } else { kind };
                inner.check.refuse(inner.clock.mono() + kept, kind, error.chain());
            }
        }
        checked
    }

    pub(super) async fn open_dir(&self, make: bool) -> Result<()> {
        let Some(dir) = self.inner.requester.backend.dir() else { return Ok(()) };
        let shared = dir.clone();
        clock::within(self.inner.requester.deadline, task::blocking(move || shared.open(make)))
            .await
            .unwrap_or_else(|| {
                let op = format!("{} does not answer: is its file server up?", self.inner.url);
                Err(Error::new(Kind::TimedOut, op))
            })
    }

    async fn agree_on_format(&self, lane: Lane, make: bool) -> Result<()> {
        if let Some(bytes) = self.read_format(lane).await? {
            return self.take_format(&bytes);
        }
        let (url, format) = (&self.inner.url, keys::FORMAT);
        if self.inner.identity.known().is_some() {
            return Err(self.absent());
        }
        if !make {
            let op = format!(
                "{url} holds no {format}: correct the address, make the store with `hearthfs init {url}`, or mount \
                 it once without read-only"
            );
            return Err(Error::new(Kind::NotFound, op));
        }
        if self.look_around(lane).await == Remains::Store {
            // Another node may have made and used the store between the two looks.
            if let Some(bytes) = self.read_format(lane).await? {
                return self.take_format(&bytes);
            }
            // A new identity would keep all nodes away that know this store.
            let op = format!(
                "{url} holds objects of a store but no {format}, so it was deleted: a node that knows the store puts it \
                 back; if there is no such node, `hearthfs init {url}` makes a new one"
            );
            return Err(Error::new(Kind::Unavailable, op));
        }
        let bytes = self.make_format(lane).await?;
        self.take_format(&bytes)
    }

    /// Checks the format, and takes over the other settings if this is the store that the node knows.
    fn take_format(&self, bytes: &[u8]) -> Result<()> {
        let url = &self.inner.url;
        let said = format::check(bytes, url)?;
        if let FoundStore::Other(known) = self.inner.identity.judge(&said, url) {
            return Err(self.miss(identity::other_text(url, said.store, known)));
        }
        self.accept(&said, bytes);
        Ok(())
    }

    /// Accepts the store as the one of this node, with its settings.
    pub(super) fn accept(&self, said: &Said, bytes: &[u8]) {
        let (inner, url) = (&self.inner, &self.inner.url);
        if inner.identity.accept(said, bytes, url, self.now_ms()) {
            inner.requester.gate.came_back();
            tracing::info!(remote = %url, store = %said.store, "the store is back");
        }
        if let Some(dir) = inner.requester.backend.dir() {
            dir.note_checked(said.store);
        }
        if let Some(warning) = inner.expiry.learn(said.expiry, url) {
            tracing::warn!("{warning}");
        }
    }

    /// Returns the error for a place without a store, where the node knows one or is to move to.
    fn absent(&self) -> Error {
        match self.inner.identity.absent(&self.inner.url) {
            Some((text, true)) => Error::new(Kind::NotFound, text),
            Some((text, false)) => self.miss(text),
            None => Error::new(Kind::NotFound, format!("{} holds no store", self.inner.url)),
        }
    }

    /// Notes that the known store is missing, and logs it once. For every caller it is an outage.
    fn miss(&self, text: String) -> Error {
        if self.inner.identity.miss(&text, self.inner.clock.wall_ms()) {
            tracing::warn!("{text}");
        }
        self.inner.requester.gate.note_unusable(Kind::Unavailable, &text);
        Error::new(Kind::Unavailable, text)
    }

    /// Logs once that there are objects which are not ours.
    pub(super) fn say_foreign(&self, key: &Path) {
        if !self.inner.foreign_said.swap(true, Ordering::Relaxed) {
            tracing::warn!(
                remote = %self.inner.url, %key,
                "there are objects that are not of hearthfs; they are left alone"
            );
        }
    }

    pub(super) fn asking(&self, what: &str) -> String {
        format!("{what} {}", self.inner.url)
    }

    /// Adds to an error of the check what a person can do about it.
    pub(super) fn with_remedy(&self, error: &Error) -> Error {
        let cause = Trouble::cause_of(error);
        let dir = self.inner.requester.backend.dir().is_some();
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
            (_, kind) if dir => {
                (kind, "check that the file system is mounted and its server is up")
            }
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

    /// Tries the store, and learns its time from the probe object.
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
        let meta = self
            .inner
            .requester
            .call(head, |store| async move { Ok(store.head(key).await?) })
            .await?;
        self.note_time(before, after, meta.last_modified.timestamp_millis());
        Ok(())
    }

    /// Learns the store's time from an object that was stored between `before` and `after`.
    fn note_time(&self, before: Duration, after: Duration, stored_ms: i64) {
        let off_ms = self.inner.time.learn(before, after, stored_ms);
        if off_ms != 0 {
            let (remote, ahead_ms) = (&self.inner.url, self.inner.time.ahead_ms());
            tracing::warn!(%remote, ahead_ms, "the remote's clock differs from ours; its time is used");
        }
    }

    /// Removes temporaries of writers that died from a shared directory, in the background.
    fn sweep(&self) {
        let Some(dir) = self.inner.requester.backend.dir().cloned() else { return };
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
