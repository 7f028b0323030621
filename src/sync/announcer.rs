//! The announcer: puts this node's commits into the head of the log, from which other nodes learn of them.
//!
//! Owns the commits that are made and not yet announced. Must never announce a commit of a node
//! before an earlier one of the same node. Must never keep a commit from being made: if it cannot
//! be announced, other nodes still find it later, by a list.
//!
//! Keeps P5 in-order and P10 freshness.

use std::collections::{BTreeMap, BTreeSet};
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use bytes::Bytes;
use futures::future::{join_all, select};
use parking_lot::Mutex;
use tokio::runtime::Handle;
use tokio::sync::{Notify, watch};
use tokio::task::JoinHandle;

use super::backoff::Backoff;
use super::follower::{name_of_ms, names_between};
use super::head::{FoundHead, HeadWatch, KnownHead};
use super::pace::{self, Crowd};
use crate::clock;
use crate::error::{Error, Kind, Result};
use crate::remote::{
    HEAD_COMMITS_MAX, HeadPut, HeadVersion, Health, INLINE_COMMIT_BYTES_MAX, LogHead, Remote,
    decode_commit_named, keys,
};
use crate::stamp::{NodeId, Stamp};
use crate::task;

/// The most commits that wait to be announced. The oldest ones beyond that are left to the lists of
/// other nodes.
const QUEUE_MAX: usize = HEAD_COMMITS_MAX;
/// The shortest and the longest time between two announcements; a drain does not wait for it. On a
/// slow line, this time is a multiple of how long an announcement takes.
const ANNOUNCE_EVERY: Duration = Duration::from_millis(200);
const ANNOUNCE_EVERY_MAX: Duration = Duration::from_secs(5);
const ANNOUNCE_PART: u32 = 4;
/// A head that was read less than this ago is taken for the present one. So is a head that this
/// node has written, if it did not have to retry because of another node.
const RECENT: Duration = Duration::from_secs(2);
/// The shortest and the longest wait after another node has replaced the head first. The wait is
/// random, up to the longest.
const SPREAD_MIN: Duration = Duration::from_millis(50);
const SPREAD_MAX: Duration = Duration::from_secs(2);
/// In a busy log a node waits before it announces, for a random part of the time for which it collects
/// changes, divided by this. The first one also announces the commits of the others, so that a
/// hundred publishers do not replace one object twenty times a second.
const SPREAD_PART: u32 = 5;
/// In a busy log, and after another node has replaced the head first, this node also announces
/// commits of other nodes: at most this many, and only if they are at most this much earlier than
/// its own.
const OTHERS_MAX: usize = 64;
const OTHERS_BACK_MS: u64 = 30_000;
/// Commits of an earlier run of this node are announced with the first commit of this run if they
/// are not older than this. Nodes that follow the head have seen older ones by a wide list.
const EARLIER_MS: u64 = 630_000;
/// If the store returns the same head this many times and never lets it be replaced, it does not
/// support conditions.
const STUCK_MAX: u32 = 5;
/// The shortest and the longest wait before a failed announcement is retried.
const RETRY_MIN: Duration = Duration::from_millis(500);
const RETRY_MAX: Duration = Duration::from_secs(10);
/// How long nothing is announced after the store has refused an announcement.
const REFUSED_FOR: Duration = Duration::from_mins(10);

/// Announces commits; cheap to clone.
#[derive(Clone, Debug)]
pub(super) struct Announcer(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    node: NodeId,
    remote: Remote,
    head: Arc<HeadWatch>,
    queue: Mutex<BTreeMap<Stamp, Option<Bytes>>>,
    /// How many commits wait.
    waiting: watch::Sender<usize>,
    /// How many milliseconds to spread announcements over; 0 unless the log is busy.
    spread_ms: AtomicU64,
    /// Whether another node has replaced the head first, and commits still wait.
    is_late: AtomicBool,
    /// Whether commits of others keep this node's from being announced. If the store replaces the head
    /// only so often, further commits are announced together with those that wait.
    is_beaten: AtomicBool,
    /// Woken when more commits wait, and by a caller that hurries.
    more: Notify,
    hurry: Notify,
    /// Callers that wait for the queue to be empty.
    hurried: AtomicUsize,
    /// Whether the store was seen to respect conditions, and the queue holds what earlier runs have
    /// left.
    is_ready: AtomicBool,
    /// Whether the store refuses announcements. Changes only under the lock of the queue.
    is_refused: AtomicBool,
    /// The version of the head that could not be replaced last, and how often that failed.
    stuck: Mutex<(Option<HeadVersion>, u32)>,
}

/// The outcome of one attempt.
enum AnnounceTry {
    Done,
    /// Another node has replaced the head first.
    Late,
    /// The store replaces the head only so often. Another node has probably replaced it, too.
    TooSoon,
}

impl Announcer {
    pub(super) fn new(node: NodeId, remote: Remote, head: Arc<HeadWatch>) -> Self {
        let (queue, waiting) = (Mutex::default(), watch::Sender::new(0));
        let (more, hurry) = (Notify::new(), Notify::new());
        let (is_ready, is_refused) = (AtomicBool::new(false), AtomicBool::new(false));
        let (hurried, stuck) = (AtomicUsize::new(0), Mutex::default());
        let spread_ms = AtomicU64::new(0);
        let (is_late, is_beaten) = (AtomicBool::new(false), AtomicBool::new(false));
        Self(Arc::new(Inner {
            node,
            remote,
            head,
            queue,
            waiting,
            spread_ms,
            is_late,
            is_beaten,
            more,
            hurry,
            hurried,
            is_ready,
            is_refused,
            stuck,
        }))
    }

    /// Notes commits that are in the log, under all names that they may have there.
    pub(super) fn note(&self, names: &[Stamp], bytes: &Bytes) {
        if !self.0.remote.may_have_head() {
            return;
        }
        {
            let mut queue = self.0.queue.lock();
            if self.0.is_refused.load(Ordering::Relaxed) {
                return;
            }
            for name in names {
                let kept = Some(name) == names.last() && bytes.len() <= INLINE_COMMIT_BYTES_MAX;
                queue.insert(*name, kept.then(|| bytes.clone()));
            }
            shorten(&mut queue);
        }
        self.count();
        self.0.more.notify_one();
    }

    /// Spreads announcements over a part of `delay`, for which this node collects longer than it would if it
    /// were alone in the log.
    pub(super) fn spread_over(&self, delay: Duration) {
        let spread_ms = (delay / SPREAD_PART).as_millis() as u64;
        self.0.spread_ms.store(spread_ms, Ordering::Relaxed);
    }

    /// Reports whether commits wait because other nodes have replaced the head first.
    pub(super) fn is_beaten(&self) -> bool {
        self.0.is_beaten.load(Ordering::Relaxed)
    }

    /// Returns what the head that this node read last shows of the last [`pace::WINDOW`].
    pub(super) fn crowd(&self) -> Crowd {
        let from_ms = self.0.remote.now_ms().saturating_sub(pace::WINDOW.as_millis() as u64);
        let Some(known) = self.0.head.last() else { return Crowd::default() };
        let recent = known.head.commits.iter().filter(|commit| commit.stamp.ms >= from_ms);
        let recent: Vec<NodeId> = recent.map(|commit| commit.stamp.node).collect();
        let nodes = recent.iter().collect::<BTreeSet<_>>().len();
        Crowd { commits: recent.len(), nodes }
    }

    fn is_late(&self) -> bool {
        self.0.is_late.load(Ordering::Relaxed)
    }

    fn note_try(&self, tried: &AnnounceTry) {
        self.0.is_late.store(!matches!(tried, AnnounceTry::Done), Ordering::Relaxed);
        self.0.is_beaten.store(matches!(tried, AnnounceTry::Late), Ordering::Relaxed);
    }

    /// Returns when no commit waits to be announced, or after `limit`. Does not hurry.
    pub(super) async fn emptied(&self, limit: Duration) {
        let mut waiting = self.0.waiting.subscribe();
        clock::within(limit, waiting.wait_for(|count| *count == 0)).await;
    }

    /// Starts announcing. If the task is aborted, other nodes still find the commits by lists.
    pub(super) fn start(&self, runtime: &Handle) -> JoinHandle<()> {
        let announcer = self.clone();
        task::spawn(runtime, "announce", async move { announcer.run().await })
    }

    /// Returns when everything that was committed before the call is announced, or after `limit`.
    pub(super) async fn settled(&self, limit: Duration) {
        let mut waiting = self.0.waiting.subscribe();
        let _hurry = AnnounceHurry::new(&self.0.hurried);
        self.0.hurry.notify_one();
        clock::within(limit, waiting.wait_for(|count| *count == 0)).await;
    }

    /// Announces everything that waits, without the task.
    #[cfg(test)]
    pub(super) async fn announce_all(&self) {
        while !self.0.queue.lock().is_empty() {
            let Ok(tried) = self.announce().await else { return };
            self.note_try(&tried);
        }
        self.note_try(&AnnounceTry::Done);
    }

    /// Makes one attempt; `late` as after another node has replaced the head first.
    #[cfg(test)]
    pub(super) async fn announce_once(&self, late: bool) -> bool {
        self.note_try(if late { &AnnounceTry::Late } else { &AnnounceTry::Done });
        let tried = self.announce().await.unwrap();
        self.note_try(&tried);
        matches!(tried, AnnounceTry::Done)
    }

    async fn run(&self) {
        let mut spread = SPREAD_MIN;
        let mut backoff = Backoff::new(RETRY_MIN, RETRY_MAX);
        loop {
            while self.0.queue.lock().is_empty() {
                self.note_try(&AnnounceTry::Done);
                self.0.more.notified().await;
            }
            let spread_ms = self.0.spread_ms.load(Ordering::Relaxed);
            if spread_ms > 0 && !self.is_late() {
                self.pause(task::random_part(Duration::from_millis(spread_ms))).await;
            }
            let began = self.0.head.now();
            let tried = self.announce().await;
            self.note_try(tried.as_ref().unwrap_or(&AnnounceTry::Done));
            let wait = match tried {
                Ok(AnnounceTry::Done) => {
                    spread = (spread / 2).max(SPREAD_MIN);
                    backoff.reset();
                    let took = self.0.head.now().saturating_sub(began);
                    let least = ANNOUNCE_EVERY.max(self.0.remote.head_interval());
                    least.max((took * ANNOUNCE_PART).min(ANNOUNCE_EVERY_MAX))
                }
                Ok(AnnounceTry::Late | AnnounceTry::TooSoon) => {
                    let wait = task::random_part(spread);
                    spread = (spread * 2).min(SPREAD_MAX);
                    wait
                }
                // Where nothing at all is allowed, the credentials are wrong, and may be right again soon.
                Err(error)
                    if matches!(error.kind(), Kind::Denied | Kind::Invalid)
                        && self.0.remote.health() == Health::Up =>
                {
                    self.rest(&error).await;
                    continue;
                }
                Err(error) => {
                    tracing::debug!(error = %error.chain(), "commits are not announced yet");
                    backoff.wait()
                }
            };
            self.pause(wait).await;
        }
    }

    /// Waits, but not for long if a caller hurries.
    async fn pause(&self, wait: Duration) {
        let is_hurried = self.0.hurried.load(Ordering::Relaxed) > 0;
        let wait = if is_hurried { wait.min(SPREAD_MIN) } else { wait };
        let (hurry, up) = (pin!(self.0.hurry.notified()), pin!(self.0.remote.recovered()));
        clock::within(wait, select(hurry, up)).await;
    }

    /// Announces what waits. In a busy log, and after another node has replaced the head first, other
    /// nodes probably wait to announce too, so their commits are announced together with this node's.
    async fn announce(&self) -> Result<AnnounceTry> {
        let Inner { remote, head, spread_ms, .. } = &*self.0;
        if !self.get_ready().await? {
            return Ok(AnnounceTry::TooSoon);
        }
        let is_crowded = self.is_late() || spread_ms.load(Ordering::Relaxed) > 0;
        let mut found = match head.last() {
            Some(known) if !is_crowded && (known.own || known.at + RECENT > head.now()) => {
                FoundHead::Known(known)
            }
            _ => head.read(remote).await?,
        };
        if self.waiting(found.head()).is_empty() {
            // Another node has announced it.
            return Ok(AnnounceTry::Done);
        }
        let mut others = Vec::new();
        // Helping takes many reads. If the store refuses some of them, it takes long, and is in vain.
        if is_crowded && !remote.throttling().now {
            others = self.others(found.head()).await;
            // Another node may have replaced it meanwhile.
            found = head.read(remote).await?;
        }
        let more = self.waiting(found.head());
        if more.is_empty() {
            return Ok(AnnounceTry::Done);
        }
        let others = announceable(others, found.head());
        let others = others.into_iter().take(QUEUE_MAX.saturating_sub(more.len()));
        let names: Vec<Stamp> = more.iter().map(|(stamp, _)| *stamp).collect();
        let next = LogHead::after(found.head(), more.into_iter().chain(others), remote.now_ms());
        let (at, version) = (head.now(), found.version().cloned());
        match remote.put_head(&next, version.as_ref()).await? {
            HeadPut::Done(version) => {
                let own = !is_crowded;
                head.note_put(KnownHead { head: Arc::new(next), version, at, own });
                self.0.queue.lock().retain(|stamp, _| !names.contains(stamp));
                self.count();
                Ok(AnnounceTry::Done)
            }
            HeadPut::Conflict if self.is_stuck(version) => {
                remote.give_up_head().await?;
                let op = "the store does not replace an object by the version that it returned";
                Err(Error::new(Kind::Invalid, op))
            }
            HeadPut::Conflict => Ok(AnnounceTry::Late),
            HeadPut::TooSoon => Ok(AnnounceTry::TooSoon),
        }
    }

    /// Returns what waits, without what a head names already: another node may have announced it.
    fn waiting(&self, head: Option<&LogHead>) -> Vec<(Stamp, Option<Bytes>)> {
        let waiting = {
            let mut queue = self.0.queue.lock();
            queue.retain(|stamp, _| !head.is_some_and(|head| head.has(stamp)));
            queue.iter().map(|(stamp, bytes)| (*stamp, bytes.clone())).collect()
        };
        self.count();
        waiting
    }

    /// Notes that a head of this version was not replaced, or that no head was created. Reports
    /// whether replacing it never succeeds.
    fn is_stuck(&self, version: Option<HeadVersion>) -> bool {
        let mut stuck = self.0.stuck.lock();
        let count = if stuck.0 == version { stuck.1 + 1 } else { 1 };
        *stuck = (version, count % STUCK_MAX);
        count == STUCK_MAX
    }

    /// Returns the recent commits of other nodes that a head lacks, with the bytes of those that may be
    /// announced by this node; nothing if they cannot be read.
    async fn others(&self, known: Option<&LogHead>) -> Vec<(Stamp, Option<Bytes>)> {
        let remote = &self.0.remote;
        let first = self.0.queue.lock().first_key_value().map(|(stamp, _)| *stamp);
        let Some(first) = first else { return Vec::new() };
        let from_ms = first.ms.saturating_sub(OTHERS_BACK_MS);
        let from = name_of_ms(from_ms);
        let Ok(items) = remote.list_log(Some(&from)).await else { return Vec::new() };
        let latest = |node| known.and_then(|known| known.latest_of(node));
        // The list must have all commits of the node that are not announced.
        let is_new = |stamp: &Stamp| {
            stamp.node != self.0.node
                && known.is_none_or(|known| known.lacks(stamp))
                && latest(stamp.node).is_none_or(|latest| latest.ms >= from_ms)
        };
        let new = items.iter().filter_map(|item| {
            let stamp = keys::commit_stamp(&item.name).filter(is_new)?;
            Some((stamp, item))
        });
        let read = new.take(OTHERS_MAX).map(|(stamp, item)| async move {
            let small = item.size <= INLINE_COMMIT_BYTES_MAX as u64;
            let read = if small { remote.get_commit(&item.name).await.ok() } else { None };
            let place = read.as_ref().and_then(|bytes| place_in_incarnation(bytes, &stamp));
            (stamp, read.zip(place))
        });
        let read = join_all(read).await;
        let has_first = read.iter().any(|(_, read)| matches!(read, Some((_, 0))));
        let earlier = if has_first { self.earlier().await.ok() } else { None };
        let is_alone = |stamp: &Stamp| {
            let is_before = |name: &Stamp| name.node == stamp.node && name < stamp;
            earlier.as_ref().is_some_and(|names| !names.iter().any(is_before))
        };
        let mut after: BTreeSet<NodeId> = BTreeSet::new();
        let may_be = |(stamp, read): (Stamp, Option<(Bytes, u64)>)| {
            let follows = !after.insert(stamp.node) || latest(stamp.node).is_some();
            let read =
                read.filter(|(_, place)| if *place > 0 { follows } else { is_alone(&stamp) });
            (stamp, read.map(|(bytes, _)| bytes))
        };
        read.into_iter().map(may_be).collect()
    }

    /// Returns the commits of the time in which runs may have ended without announcing them.
    async fn earlier(&self) -> Result<Vec<Stamp>> {
        let from_ms = self.0.remote.now_ms().saturating_sub(EARLIER_MS);
        names_between(&self.0.remote, Some(from_ms), u64::MAX).await
    }

    /// Makes sure, once, that the store replaces only the expected head, and that the commits of an
    /// earlier run are announced with the first commit of this one: a run may have ended in
    /// between. Reports whether that was possible: not if the head was replaced too short a time ago to try.
    async fn get_ready(&self) -> Result<bool> {
        if self.0.is_ready.load(Ordering::Relaxed) {
            return Ok(true);
        }
        match self.0.remote.put_stale_head().await? {
            HeadPut::Conflict => (),
            HeadPut::TooSoon => return Ok(false),
            HeadPut::Done(_) => {
                let op = "the store ignores the conditions of requests";
                return Err(Error::new(Kind::Invalid, op));
            }
        }
        let own = self.earlier().await?.into_iter().filter(|name| name.node == self.0.node);
        {
            let mut queue = self.0.queue.lock();
            for name in own {
                queue.entry(name).or_default();
            }
            shorten(&mut queue);
        }
        self.0.is_ready.store(true, Ordering::Relaxed);
        Ok(true)
    }

    /// Stops announcing for some time, because the store refuses it.
    async fn rest(&self, error: &Error) {
        if error.kind() == Kind::Denied {
            tracing::warn!(
                error = %error.chain(),
                "commits of this node are not announced in the head of the log; other nodes see them when they list it, up \
                 to ten minutes later; check that this node may write and replace the object `head`"
            );
        } else {
            tracing::info!(
                error = %error.chain(),
                "the log has no head in this store; nodes list it instead, which costs more"
            );
        }
        {
            let mut queue = self.0.queue.lock();
            self.0.is_refused.store(true, Ordering::Relaxed);
            queue.clear();
        }
        self.count();
        clock::sleep(REFUSED_FOR).await;
        self.0.is_refused.store(false, Ordering::Relaxed);
    }

    fn count(&self) {
        let count = self.0.queue.lock().len();
        self.0.waiting.send_replace(count);
    }
}

/// Drops the oldest commits if there are too many; other nodes find them by a list.
fn shorten(queue: &mut BTreeMap<Stamp, Option<Bytes>>) {
    while queue.len() > QUEUE_MAX {
        queue.pop_first();
    }
}

/// Returns the commits of other nodes that a head lacks and that this node may announce. If a
/// commit of a node may not be announced, the later ones of that node may not be, either.
fn announceable(
    others: Vec<(Stamp, Option<Bytes>)>,
    head: Option<&LogHead>,
) -> Vec<(Stamp, Option<Bytes>)> {
    let mut left_out = BTreeSet::new();
    let is_lacking = |(stamp, _): &(Stamp, _)| head.is_none_or(|head| head.lacks(stamp));
    let lacking = others.into_iter().filter(is_lacking);
    lacking
        .filter(|(stamp, bytes)| {
            if bytes.is_none() {
                left_out.insert(stamp.node);
            }
            !left_out.contains(&stamp.node)
        })
        .collect()
}

/// Returns the position of a commit in its incarnation, if the commit is whole. Before the first
/// commit of an incarnation, an earlier one may have made commits that are not announced.
fn place_in_incarnation(bytes: &Bytes, name: &Stamp) -> Option<u64> {
    decode_commit_named(bytes, name).ok().map(|commit| commit.sequence)
}

/// Makes the announcer hurry while it exists.
struct AnnounceHurry<'a>(&'a AtomicUsize);

impl<'a> AnnounceHurry<'a> {
    fn new(hurried: &'a AtomicUsize) -> Self {
        hurried.fetch_add(1, Ordering::Relaxed);
        Self(hurried)
    }
}

impl Drop for AnnounceHurry<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}
