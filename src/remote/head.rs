//! The head of the log: its newest commits in one object, which is replaced each time.
//!
//! Owns the format of the object, and its requests:
//!
//! ```text
//! "HFHEAD\r\n" | version u16 | postcard(head) | checksum 32
//! ```
//!
//! Numbers are little-endian; the checksum is BLAKE3 over all before it. Every later version keeps
//! magic, version and checksum where they are. A head replaces exactly the one from which it was
//! made, so every later head names a commit that was announced until newer commits push it out.
//! Must never be written to a store that ignores this condition. Only speed and cost may depend on
//! the head: the log has the same commits.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use object_store::ObjectStore as _;
use object_store::{Error as StoreError, GetOptions, PutMode, PutOptions, UpdateVersion};
use serde::{Deserialize, Serialize};

use super::call::{Call, CallFailure};
use super::codec::Few;
use super::health::Lane;
use super::store::Remote;
use super::trouble::Trouble;
use super::verb::Verb;
use crate::config::RemoteUrl;
use crate::error::{Error, Kind, Result};
use crate::stamp::{NodeId, Stamp};
use crate::task;

/// The largest head, encoded.
pub const HEAD_BYTES_MAX: u64 = 128 << 10;
/// The most commits that a head names.
pub const HEAD_COMMITS_MAX: usize = 256;
/// Bytes of commits that a head holds together; further commits are only named, and are read from
/// the log. Each head repeats these bytes, so they are few; but a hundred nodes that publish all the
/// time make 30 KiB of commits a second, and a reader must find those of two seconds.
const INLINE_BYTES_MAX: usize = 96 << 10;
/// The largest commit that a head holds.
pub const INLINE_COMMIT_BYTES_MAX: usize = 4 << 10;
/// How long after they were made a head holds the bytes of commits. A node that reads the head once
/// a second has them by then, even if the announcement was slow.
const INLINE_FOR_MS: u64 = 15_000;
/// How long a head names commits: longer than the pause between two wide lists of a node that follows it.
const NAMED_FOR_MS: u64 = 11 * 60_000;

const MAGIC: &[u8; 8] = b"HFHEAD\r\n";
const VERSION: u16 = 1;
const START_BYTES: usize = MAGIC.len() + 2;
const SUM_BYTES: usize = 32;

/// The newest commits of the log.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct LogHead {
    /// A random number, chosen when a head is made that replaces none.
    pub epoch: u64,
    /// Counts the heads of an epoch, from 1.
    pub number: u64,
    /// The head has all commits that were announced by heads from this number on.
    pub from: u64,
    /// Commits, in the order in which they were announced.
    pub commits: Vec<HeadCommit>,
}

/// A commit that a head announces.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct HeadCommit {
    /// The number of the head that announced it first.
    pub number: u64,
    /// Its name.
    pub stamp: Stamp,
    /// The commit's bytes as they lie in the log, if the head holds them.
    pub bytes: Option<Vec<u8>>,
}

/// [`LogHead`] as it is decoded, with the limit checked meanwhile.
#[derive(Deserialize)]
struct WireHead {
    epoch: u64,
    number: u64,
    from: u64,
    commits: Few<HeadCommit, HEAD_COMMITS_MAX>,
}

impl LogHead {
    /// Returns the head that follows `last`, or the first one, with further commits. `now_ms` is the store's time.
    pub fn after(
        last: Option<&Self>,
        more: impl IntoIterator<Item = (Stamp, Option<Bytes>)>,
        now_ms: u64,
    ) -> Self {
        let (epoch, number, from, mut commits) = match last {
            Some(last) => (last.epoch, last.number + 1, last.from, last.commits.clone()),
            None => (task::random_u64(), 1, 1, Vec::new()),
        };
        let known: BTreeSet<Stamp> = commits.iter().map(|commit| commit.stamp).collect();
        let more = more.into_iter().filter(|(stamp, _)| !known.contains(stamp));
        commits.extend(more.map(|(stamp, bytes)| {
            let bytes = bytes.filter(|bytes| bytes.len() <= INLINE_COMMIT_BYTES_MAX);
            HeadCommit { number, stamp, bytes: bytes.map(Vec::from) }
        }));
        let mut head = Self { epoch, number, from, commits };
        head.shorten(now_ms);
        head
    }

    /// Removes commits that are too old, and those above the limits.
    fn shorten(&mut self, now_ms: u64) {
        let is_old = |commit: &HeadCommit| commit.stamp.ms.saturating_add(NAMED_FOR_MS) < now_ms;
        let excess = self.commits.len().saturating_sub(HEAD_COMMITS_MAX);
        let old = self.commits.iter().take_while(|commit| is_old(commit)).count();
        if let Some(last) = old.max(excess).checked_sub(1) {
            // Commits that one head announced are removed together.
            self.from = self.commits[last].number + 1;
            self.commits.retain(|commit| commit.number >= self.from);
        }
        let mut inline_bytes = 0;
        for commit in self.commits.iter_mut().rev() {
            inline_bytes += commit.bytes.as_ref().map_or(0, Vec::len);
            if inline_bytes > INLINE_BYTES_MAX
                || commit.stamp.ms.saturating_add(INLINE_FOR_MS) < now_ms
            {
                commit.bytes = None;
            }
        }
    }

    /// Counts the nodes whose commits it names.
    pub fn nodes(&self) -> usize {
        self.commits.iter().map(|commit| commit.stamp.node).collect::<BTreeSet<_>>().len()
    }

    /// Reports whether it names a commit.
    pub fn has(&self, stamp: &Stamp) -> bool {
        self.commits.iter().any(|commit| commit.stamp == *stamp)
    }

    /// Returns the latest commit of a node that it names.
    pub fn latest_of(&self, node: NodeId) -> Option<Stamp> {
        let of_node = self.commits.iter().filter(|commit| commit.stamp.node == node);
        of_node.map(|commit| commit.stamp).max()
    }

    /// Reports whether a commit is certainly not announced yet. The commits of a node are announced
    /// in order, so those after a named commit of the node were not announced, and those before it
    /// were. A head that names none of the node says nothing about them once it has pushed any
    /// commit out.
    pub fn lacks(&self, stamp: &Stamp) -> bool {
        self.latest_of(stamp.node).map_or(self.from == 1, |latest| latest < *stamp)
    }

    /// Returns what was announced after an earlier head; `None` if that is unknown, or if this head
    /// does not descend from that one: a bucket that was restored goes on from an older head, with
    /// the same epoch and the same numbers.
    pub fn since(&self, earlier: &Self) -> Option<&[HeadCommit]> {
        let number = earlier.number;
        let is_later =
            self.epoch == earlier.epoch && self.from - 1 <= number && number <= self.number;
        let (old, new) =
            self.commits.split_at(self.commits.partition_point(|one| one.number <= number));
        let left = earlier.commits.iter().filter(|one| one.number >= self.from);
        let name = |one: &HeadCommit| (one.number, one.stamp);
        (is_later && old.iter().map(name).eq(left.map(name))).then_some(new)
    }

    /// Encodes it, if readers will accept it.
    ///
    /// # Errors
    ///
    /// `Invalid` above the limits.
    pub fn encode(&self) -> Result<Bytes> {
        let body = postcard::to_stdvec(self)
            .map_err(|error| Error::with(Kind::Internal, "encode the head of the log", error))?;
        let mut bytes = Vec::with_capacity(START_BYTES + body.len() + SUM_BYTES);
        bytes.extend_from_slice(MAGIC);
        bytes.extend_from_slice(&VERSION.to_le_bytes());
        bytes.extend_from_slice(&body);
        bytes.extend_from_slice(blake3::hash(&bytes).as_bytes());
        if self.commits.len() > HEAD_COMMITS_MAX || bytes.len() as u64 > HEAD_BYTES_MAX {
            return Err(Error::new(Kind::Invalid, "head of the log is too large"));
        }
        Ok(bytes.into())
    }

    /// Decodes it. The commits in it are not decoded.
    ///
    /// # Errors
    ///
    /// `Corrupt` for damage, `Invalid` for a newer format.
    pub fn decode(bytes: &[u8]) -> Result<Self> {
        if bytes.len() < START_BYTES + SUM_BYTES || bytes.len() as u64 > HEAD_BYTES_MAX {
            return Err(damaged("its size is impossible"));
        }
        let (body, sum) = bytes.split_at(bytes.len() - SUM_BYTES);
        if &body[..MAGIC.len()] != MAGIC {
            return Err(damaged("its start is not that of a head"));
        }
        if blake3::hash(body).as_bytes() != sum {
            return Err(damaged("its checksum differs"));
        }
        let version = u16::from_le_bytes([body[8], body[9]]);
        if version != VERSION {
            let op = format!("head of the log has the newer format {version}, not {VERSION}");
            return Err(Error::new(Kind::Invalid, op));
        }
        let (head, rest) = postcard::take_from_bytes::<WireHead>(&body[START_BYTES..])
            .map_err(|error| Error::with(Kind::Corrupt, "decode the head of the log", error))?;
        let WireHead { epoch, number, from, commits: Few(commits) } = head;
        let numbers = || commits.iter().map(|commit| commit.number);
        let ordered = numbers().is_sorted() && numbers().all(|one| (from..=number).contains(&one));
        let bounded = number < u64::MAX && from > 0 && from <= number + 1;
        if !rest.is_empty() || !ordered || !bounded {
            return Err(damaged("its content is inconsistent"));
        }
        Ok(Self { epoch, number, from, commits })
    }
}

/// Identifies the bytes of an object that was read or written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HeadVersion {
    e_tag: Option<String>,
    version: Option<String>,
}

impl HeadVersion {
    /// Returns a version that no object has.
    fn of_nothing() -> Self {
        // Google compares a generation, which is a time in microseconds.
        Self { e_tag: Some("\"hearthfs-no-object\"".into()), version: Some("1".into()) }
    }

    fn mode(&self) -> PutMode {
        let Self { e_tag, version } = self.clone();
        PutMode::Update(UpdateVersion { e_tag, version })
    }
}

/// The outcome of reading the head.
#[derive(Debug, Clone)]
pub enum HeadRead {
    /// The head is the known one.
    Same,
    /// The head is another.
    Other(Arc<LogHead>, HeadVersion),
    /// There is no head.
    Missing,
    /// The head cannot be used, for this reason.
    Unusable(HeadVersion, Arc<Error>),
}

/// The outcome of replacing the head.
#[derive(Debug, Clone)]
pub enum HeadPut {
    /// It was replaced.
    Done(HeadVersion),
    /// The head is no longer the expected one.
    Conflict,
    /// The last replacement was too recent (429): Google limits how often an object may be written.
    TooSoon,
}

/// The status of [`HeadPut::TooSoon`].
const TOO_SOON: u16 = 429;

/// The content of the head's object if the store ignores conditions.
const NO_HEAD: &[u8] = b"hearthfs: this store ignores conditions, so there is no head\n";
/// How often one object may be written on Google.
const GCS_EVERY: Duration = Duration::from_millis(1100);

impl Remote {
    /// Returns the shortest time between two replacements of the head: Google allows one write of
    /// an object per second.
    pub fn head_interval(&self) -> Duration {
        match self.inner.url {
            RemoteUrl::Gcs { .. } => GCS_EVERY,
            _ => Duration::ZERO,
        }
    }

    /// Reports whether a head may exist. A shared directory has none, because its lists cost nothing.
    pub fn may_have_head(&self) -> bool {
        self.inner.requester.backend.dir().is_none()
    }

    /// Reads the head, unless it is still the known one.
    ///
    /// # Errors
    ///
    /// `Unavailable` or `TimedOut` while the store does not answer, `Denied` or `Invalid` when it refuses.
    pub async fn get_head(&self, known: Option<&HeadVersion>) -> Result<HeadRead> {
        self.ready(self.lane).await?;
        let key = self.inner.keys.head();
        let if_none_match = known.and_then(|known| known.e_tag.clone());
        let call = self.call(Verb::Get, format!("read {key}"));
        let read = self.inner.requester.call(call, |store| async move {
            let options = GetOptions { if_none_match, ..GetOptions::default() };
            let got = match store.get_opts(&key, options).await {
                Ok(got) => got,
                Err(StoreError::NotModified { .. }) => return Ok(None),
                Err(error) => return Err(error.into()),
            };
            let (e_tag, version) = (got.meta.e_tag.clone(), got.meta.version.clone());
            if got.meta.size > HEAD_BYTES_MAX {
                return Ok(Some((HeadVersion { e_tag, version }, Bytes::new())));
            }
            Ok::<_, CallFailure>(Some((HeadVersion { e_tag, version }, got.bytes().await?)))
        });
        let (version, bytes) = match read.await {
            Ok(Some((HeadVersion { e_tag: None, .. }, _))) => {
                return Err(Error::new(Kind::Invalid, "the store gives no version of an object"));
            }
            Ok(Some(read)) => read,
            Ok(None) => return Ok(HeadRead::Same),
            Err(error) if error.kind() == Kind::NotFound => return Ok(HeadRead::Missing),
            Err(error) => return Err(error),
        };
        self.inner.requester.meter.down(bytes.len() as u64);
        Ok(match LogHead::decode(&bytes) {
            Ok(head) => HeadRead::Other(Arc::new(head), version),
            Err(error) => HeadRead::Unusable(version, Arc::new(error)),
        })
    }

    /// Writes a head if the present one is still `over`; `None` means that there is none.
    ///
    /// # Errors
    ///
    /// `Invalid` where the store knows no such condition; `Denied` on a read-only mount; otherwise `Unavailable` or
    /// `TimedOut` while the store does not answer, `Denied` or `Invalid` when it refuses.
    pub async fn put_head(&self, head: &LogHead, over: Option<&HeadVersion>) -> Result<HeadPut> {
        let mode = over.map_or(PutMode::Create, HeadVersion::mode);
        self.put_head_bytes(head.encode()?, mode).await
    }

    /// Tries to replace a head that does not exist. A store that respects conditions answers with a
    /// conflict; some stores ignore them. What this writes to such a store is no head, so nodes list the log there.
    ///
    /// # Errors
    ///
    /// As [`Remote::put_head`].
    pub async fn put_stale_head(&self) -> Result<HeadPut> {
        self.put_head_bytes(NO_HEAD, HeadVersion::of_nothing().mode()).await
    }

    /// Overwrites the head, whatever it is, with bytes that are no head: a store that cannot
    /// replace a head conditionally must have none that nodes follow.
    ///
    /// # Errors
    ///
    /// As [`Remote::put_head`].
    pub async fn give_up_head(&self) -> Result<()> {
        self.put_head_bytes(NO_HEAD, PutMode::Overwrite).await.map(drop)
    }

    /// Makes the first head of a new store, without commits, unless there is one. So nodes that start
    /// before the first commit follow it, and need not list the log and read each commit. If the store
    /// ignores conditions, the first node that announces replaces it by an object that is no head.
    ///
    /// # Errors
    ///
    /// As [`Remote::put_head`].
    pub(super) async fn begin_head(&self, lane: Lane) -> Result<()> {
        if !self.may_have_head() {
            return Ok(());
        }
        let call = self.call(Verb::Put, format!("write {}", self.inner.keys.head()));
        let call = Call { lane, guarded: false, ..call };
        let first = LogHead::after(None, [], self.now_ms()).encode()?;
        self.replace_head(call, first, PutMode::Create).await.map(drop)
    }

    async fn put_head_bytes(&self, bytes: impl Into<Bytes>, mode: PutMode) -> Result<HeadPut> {
        self.ready_to_write().await?;
        if !self.may_have_head() {
            return Err(Error::new(Kind::Invalid, "a shared directory has no head of the log"));
        }
        let call = self.call(Verb::Put, format!("write {}", self.inner.keys.head()));
        self.replace_head(call, bytes.into(), mode).await
    }

    async fn replace_head(&self, call: Call, bytes: Bytes, mode: PutMode) -> Result<HeadPut> {
        let (key, size) = (self.inner.keys.head(), bytes.len() as u64);
        let requester = &self.inner.requester;
        let call = Call { limit: requester.time_for(size), ..call };
        let put = requester.call(call, |store| async move {
            match store.put_opts(&key, bytes.into(), PutOptions::from(mode)).await {
                Ok(done) => {
                    let version = HeadVersion { e_tag: done.e_tag, version: done.version };
                    Ok(HeadPut::Done(version))
                }
                Err(StoreError::Precondition { .. } | StoreError::AlreadyExists { .. }) => {
                    Ok(HeadPut::Conflict)
                }
                Err(error) => match Trouble::of(&error) {
                    // The refusal concerns only this object, so it does not count as throttling.
                    trouble if trouble.status() == Some(TOO_SOON) => Ok(HeadPut::TooSoon),
                    trouble => Err(CallFailure(trouble)),
                },
            }
        });
        let put = put.await?;
        if matches!(put, HeadPut::Done(_)) {
            requester.meter.up(size);
        }
        Ok(put)
    }
}

fn damaged(what: &str) -> Error {
    Error::new(Kind::Corrupt, format!("head of the log is damaged: {what}"))
}

#[cfg(test)]
mod tests;
