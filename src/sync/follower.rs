//! The follower: brings in what other nodes have published.
//!
//! Owns the reading of the log. Must never apply a commit before the earlier commits of the same
//! node while these can be read. Must never miss a commit for ever.
//!
//! Keeps P5 in-order and P10 freshness.

mod announced;
mod bundles;
mod head_copy;
mod list;
mod rebuild;

pub(super) use list::{name_of_ms, names_between};

use std::collections::{BTreeMap, HashSet};
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use futures::StreamExt as _;
use futures::stream;
use parking_lot::Mutex;
use tokio::runtime::Handle;
use tokio::sync::Notify;
use tokio::task::JoinHandle;

use self::head_copy::HeadCopy;
use super::backoff::Backoff;
use super::freshness::Freshness;
use super::head::HeadWatch;
use super::lag::{Following, Lag};
use super::ledger::Ledger;
use super::look_pace::{LookFigures, LookPace};
use super::patience::wait_out;
use super::quiet::Quiet;
use super::read_fault::{ReadFault, read_again};
use super::troubled::Troubled;
use super::versions::Versions;
use crate::error::{Error, Result};
use crate::namespace::Commit;
use crate::remote::{Progress, Remote, decode_commit_named, keys};
use crate::stamp::{NodeId, Stamp};
use crate::task;

/// How many commits are read at once.
const FETCHES_AT_ONCE: usize = 8;
/// The inline blobs of the last commits of one batch, this many, are kept at once: they will
/// probably be read next. Those of earlier commits are fetched on demand, so that a new node does
/// not write a file for each small blob of the history.
const KEPT_INLINE: usize = 16;
/// The shortest and the longest wait after a failed poll.
const RETRY_MIN: Duration = Duration::from_millis(500);
const RETRY_MAX: Duration = Duration::from_secs(10);
/// How long the follower does not retry a commit that it has skipped, at first and at most.
const SKIPPED_MIN: Duration = Duration::from_secs(5);
const SKIPPED_MAX: Duration = Duration::from_mins(5);
/// How many of these commits it reads again with one head of the log or one page of a list, so that
/// new ones need not wait for long.
const SKIPPED_AT_ONCE: usize = 2 * FETCHES_AT_ONCE;
/// How long a commit with a transient fault holds up the later commits of its node. After that it
/// is skipped.
const HELD_MAX: Duration = Duration::from_mins(1);
/// A commit that is older than this says nothing about the present activity.
const NEW_FOR: Duration = Duration::from_mins(1);
/// The most unusable checkpoints, and bundles, that are remembered; a forgotten one is read once
/// more.
const UNUSABLE_MAX: usize = 10_000;

/// Brings in the changes of other nodes; cheap to clone.
#[derive(Clone, Debug)]
pub struct Follower(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    ledger: Ledger,
    /// `None` without a remote: there is nothing to follow then.
    remote: Option<Remote>,
    freshness: Freshness,
    /// The time up to which an earlier run knew the log.
    before_ms: u64,
    state: Mutex<State>,
    /// When to request the commits again that could not be used. Those that were skipped are the
    /// unusable ones of the folded log; the others hold up the later commits of their nodes.
    troubled: Troubled<Stamp>,
    quiet_skipped: Quiet,
    head: Arc<HeadWatch>,
    lag: Lag,
    versions: Versions,
    /// Counts commits of other nodes that were applied soon after they were made.
    others: AtomicU64,
    /// Wakes the task that checks commits which were folded from copies.
    copied: Notify,
    /// Held during a poll: two polls that adopt a checkpoint must not undo each other's work.
    polling: tokio::sync::Mutex<()>,
}

#[derive(Debug, Default)]
struct State {
    /// Everything in the log before this time was listed and folded, except late comers; 0 if
    /// nothing was.
    watermark_ms: u64,
    /// Everything in the log before this time was listed and folded by this run, or is in a cover,
    /// except late comers. After this time, commits that were not announced may be missing.
    covered_ms: u64,
    /// From this time on, the checkpoint that was adopted may lack late comers. The next wide list
    /// begins here.
    late_ms: Option<u64>,
    /// The monotonic time of the last wide list, or of the first list of this run.
    wide: Option<Duration>,
    /// The monotonic time at which a commit was last missing before one that exists.
    gap: Option<Duration>,
    /// The time of this node's stamps after the first list had been folded; it may be ahead of the
    /// store's clock. A later commit under this node's identity that this run did not write is from
    /// another node with the same identity.
    alone_ms: Option<u64>,
    /// The epoch of the head that was read last, and whether the last look has read one.
    epoch: Option<u64>,
    has_head: bool,
    /// The checkpoint that was read last. It contains nothing that is not known here.
    compared: Option<Stamp>,
    /// Commits that may have been folded from copies, and are to be looked for in the log.
    copied: Vec<HeadCopy>,
    /// Whether the last list failed for a whole deadline. Callers do not wait for the next ones
    /// then.
    impatient: bool,
    /// The names of checkpoints and bundles that are not read again: they are unusable, or were
    /// read in vain.
    bad_covers: HashSet<String>,
}

impl State {
    /// Notes that a bundle covers the log between two times.
    fn note_covered(&mut self, from_ms: u64, upto_ms: u64) {
        if from_ms <= self.covered_ms {
            self.covered_ms = self.covered_ms.max(upto_ms);
        }
    }

    /// Notes that a checkpoint or a bundle must not be read again; returns false if there are too
    /// many.
    fn note_bad_cover(&mut self, name: &str) -> bool {
        let has_room = self.bad_covers.len() < UNUSABLE_MAX;
        if has_room {
            self.bad_covers.insert(name.to_owned());
        }
        has_room
    }
}

/// A commit that is to be folded.
struct FoldItem {
    stamp: Stamp,
    /// A copy of its bytes, which need not be requested then.
    copy: Option<Bytes>,
    /// A list or a bundle has shown it or a later one of its node. Then a commit that is missing before
    /// it is lost, if the log was listed again, and not only late.
    shown: bool,
}

/// The outcome of reading a commit.
enum CommitRead {
    Commit(Box<Commit>),
    /// It no longer exists.
    Gone,
    /// It cannot be read now, and the later commits of its node wait for it.
    Later,
    /// It is skipped: damaged, of a newer version, refused by the store, or in trouble for too
    /// long.
    Unusable {
        error: Error,
        /// Whether this run has not warned about it.
        is_news: bool,
    },
}

/// The nodes that have a commit which cannot be read now. Their later commits are neither read nor
/// applied before that one.
#[derive(Debug, Default)]
struct WaitingNodes(Mutex<HashSet<NodeId>>);

impl WaitingNodes {
    fn has(&self, node: NodeId) -> bool {
        self.0.lock().contains(&node)
    }

    fn note(&self, node: NodeId) {
        self.0.lock().insert(node);
    }

    fn is_empty(&self) -> bool {
        self.0.lock().is_empty()
    }
}

/// The outcome of folding what was listed.
#[derive(PartialEq, Eq, Debug)]
enum Folded {
    All,
    /// Some commits could not be read.
    Partly,
    /// A commit is missing before one that exists.
    Gap,
}

impl Follower {
    /// Makes a follower that does nothing until it is started or polled. What it knows may be
    /// `freshness` old; zero asks the store each time.
    pub fn new(ledger: Ledger, freshness: Duration) -> Self {
        let remote = ledger.remote().cloned();
        let freshness = Freshness::new(ledger.clock().clone(), freshness, remote.clone());
        let troubled = Troubled::new(ledger.clock().clone(), SKIPPED_MIN, SKIPPED_MAX);
        let before_ms = ledger.log(|log| log.latest_ms());
        // An earlier run has folded all of the log up to its last list. If its clock was ahead,
        // only what it has seen in the log counts.
        let listed_ms = ledger.listed_ms().min(before_ms);
        let watermark_ms = if ledger.log(|log| log.knows_nothing()) { 0 } else { listed_ms };
        let state = Mutex::new(State { watermark_ms, ..State::default() });
        let polling = tokio::sync::Mutex::default();
        let head = Arc::new(HeadWatch::new(ledger.clock().clone()));
        Self(Arc::new(Inner {
            ledger,
            remote,
            freshness,
            before_ms,
            state,
            troubled,
            quiet_skipped: Quiet::default(),
            head,
            lag: Lag::default(),
            versions: Versions::default(),
            others: AtomicU64::new(0),
            copied: Notify::new(),
            polling,
        }))
    }

    /// As [`Freshness::wait_fresh`].
    pub async fn wait_fresh(&self, limit: Duration) -> bool {
        self.0.freshness.wait_fresh(limit).await
    }

    /// Returns the gate that decides whether an answer is fresh.
    pub fn freshness(&self) -> &Freshness {
        &self.0.freshness
    }

    /// Returns what this node knows of the head of the log.
    pub(super) fn head(&self) -> &Arc<HeadWatch> {
        &self.0.head
    }

    /// Returns how well this node follows the other nodes; `None` without a remote.
    pub fn following(&self) -> Option<Following> {
        let Inner { ledger, freshness, lag, .. } = &*self.0;
        self.0.remote.as_ref()?;
        let now = ledger.clock().mono();
        let (lag_last_ms, lag_worst_ms, pending) = lag.read(now);
        let (list, attempt, list_failed) = freshness.lists();
        let skipped = ledger.log(|log| log.missing().unusable_len());
        Some(Following {
            list_age: list.map(|start| now.saturating_sub(start)),
            attempt_age: attempt.map(|start| now.saturating_sub(start)),
            list_failed,
            lag_last_ms,
            lag_worst_ms,
            unapplied: pending + skipped as u64,
        })
    }

    /// Counts the other nodes by the hearthfs version that wrote their latest commit. Includes
    /// nodes of which this run has applied a commit that is at most a day old.
    pub fn versions(&self) -> BTreeMap<String, u64> {
        self.0.versions.count(self.0.ledger.now_ms())
    }

    /// Starts polling: at once, and then while programs ask. Aborting it loses nothing. A separate
    /// task checks that the polls come in time, so that a slow poll does not delay this check. A
    /// third one checks commits that were folded from copies, so that this does not delay a poll.
    pub fn start(&self, runtime: &Handle) -> [JoinHandle<()>; 3] {
        let (follower, guarded, checked) = (self.clone(), self.clone(), self.clone());
        let checks = task::spawn(runtime, "check copies", async move {
            if let Some(remote) = checked.0.remote.as_ref().map(Remote::background) {
                checked.run_checks(&remote).await;
            }
        });
        let guard = task::spawn(runtime, "guard", async move {
            let ledger = guarded.0.ledger.clone();
            guarded.0.freshness.guard(|| ledger.doubt_names()).await;
        });
        [task::spawn(runtime, "follow", async move { follower.run().await }), guard, checks]
    }

    async fn run(&self) {
        let Inner { ledger, freshness, others, .. } = &*self.0;
        let mut backoff = Backoff::new(RETRY_MIN, RETRY_MAX);
        let mut pace = LookPace::new(freshness.limit());
        self.0.lag.wake(self.0.ledger.now_ms());
        loop {
            let (before, began) = (others.load(Ordering::Relaxed), ledger.clock().mono());
            let may_sleep = if self.poll().await {
                backoff.reset();
                let now = ledger.clock().mono();
                let look = LookFigures {
                    took: now.saturating_sub(began),
                    commits: others.load(Ordering::Relaxed) - before,
                    by_head: self.0.head.is_followed(),
                    publishers: self.0.head.last().map_or(0, |known| known.head.nodes()),
                    throttled: ledger.remote().is_some_and(|remote| remote.throttling().now),
                };
                freshness.asked(pace.wait(now, look)).await;
                true
            } else {
                freshness.asked(backoff.wait()).await;
                // The first list is made even if no program asks: it shows what this node can
                // serve.
                self.0.state.lock().wide.is_some()
            };
            if may_sleep && freshness.woken().await {
                self.0.lag.wake(self.0.ledger.now_ms());
            }
        }
    }

    /// Reads the head of the log, or lists the log, and folds the new commits. Returns whether all
    /// of them were folded.
    pub async fn poll(&self) -> bool {
        self.poll_now(false).await
    }

    /// As [`Follower::poll`], but always lists the log, which also shows commits that were not
    /// announced.
    pub(super) async fn list(&self) -> bool {
        self.poll_now(true).await
    }

    async fn poll_now(&self, must_list: bool) -> bool {
        let Some(remote) = &self.0.remote else { return true };
        let _one = self.0.polling.lock().await;
        self.poll_alone(remote, must_list).await
    }

    /// As [`Follower::poll`], unless the log as it was at most `within` ago is folded already.
    pub(super) async fn poll_within(&self, within: Duration) -> bool {
        let Some(remote) = &self.0.remote else { return true };
        let _one = self.0.polling.lock().await;
        self.0.ledger.reliance().has_listed(within) || self.poll_alone(remote, false).await
    }

    async fn poll_alone(&self, remote: &Remote, must_list: bool) -> bool {
        let list = self.0.freshness.begin();
        // A caller that drops a poll half-way must not leave others waiting for it.
        let mut ending = Ending { freshness: &self.0.freshness, list: Some(list) };
        let outcome = self.bring_in(remote, must_list).await;
        let good = matches!(outcome, Ok(true));
        if let Err(error) = outcome {
            tracing::debug!(error = %error.chain(), "the log cannot be listed");
        }
        ending.end(good);
        good
    }

    /// Reads and applies commits in the order of their stamps. If a commit cannot be read now, or
    /// perhaps is not shown yet, the later ones of the same node are left out; `waiting` holds these
    /// nodes. Returns at a gap unless the log was `listed_again` because of one.
    async fn fold(
        &self,
        remote: &Remote,
        items: Vec<FoldItem>,
        listed_again: bool,
        waiting: &WaitingNodes,
    ) -> Folded {
        let keep_from = items.len().saturating_sub(KEPT_INLINE);
        let reading = stream::iter(items).map(|FoldItem { stamp, copy, shown }| async move {
            let read = match copy {
                _ if waiting.has(stamp.node) => CommitRead::Later,
                Some(bytes) => match unpack(stamp, bytes).await {
                    read @ CommitRead::Unusable { .. } if self.is_not_due(&stamp) => read,
                    // The node that put it into the head or the bundle may have read it badly.
                    CommitRead::Unusable { .. } => self.read(remote, stamp).await,
                    read => read,
                },
                None => self.read(remote, stamp).await,
            };
            (stamp, shown, read)
        });
        let mut reading = pin!(reading.buffered(FETCHES_AT_ONCE).enumerate());
        let alone_ms = self.0.state.lock().alone_ms;
        while let Some((place, (stamp, shown, got))) = reading.next().await {
            // Later commits of a node are not applied before one that cannot be read now.
            if waiting.has(stamp.node) {
                continue;
            }
            match got {
                CommitRead::Commit(commit) => {
                    if !self.0.ledger.log(|log| log.follows(&commit)) {
                        self.0.state.lock().gap = Some(self.0.ledger.clock().mono());
                        if !listed_again {
                            return Folded::Gap;
                        }
                        if !shown {
                            waiting.note(stamp.node);
                            continue;
                        }
                    }
                    if let Some(alone_ms) = alone_ms {
                        self.0.ledger.note_twin(&commit, alone_ms);
                    }
                    self.apply(commit, place >= keep_from).await;
                }
                CommitRead::Gone => self.0.ledger.log(|log| log.note_gone(&stamp)),
                CommitRead::Later => {
                    waiting.note(stamp.node);
                    continue;
                }
                CommitRead::Unusable { error, is_news } => {
                    self.0.ledger.log(|log| log.note_unusable(stamp));
                    if is_news {
                        self.tell_skipped(stamp, &error);
                    }
                }
            }
            self.0.lag.settled();
        }
        if waiting.is_empty() { Folded::All } else { Folded::Partly }
    }

    /// Applies a commit. Keeps its small contents here if `keep_inline` is set.
    async fn apply(&self, commit: Box<Commit>, keep_inline: bool) {
        let inner = Arc::clone(&self.0);
        task::blocking(move || {
            let (ledger, stamp) = (&inner.ledger, commit.stamp);
            if keep_inline {
                ledger.keep_inline(&commit);
            }
            ledger.apply_remote(&keys::commit_name(&stamp), &commit);
            if stamp.node != ledger.node() {
                let now = ledger.clock().mono();
                let lag = inner.lag.applied(stamp.ms, ledger.now_ms(), now);
                ledger.traffic().follower_lag.observe(lag);
                let age_ms = ledger.now_ms().saturating_sub(stamp.ms);
                let is_new = u128::from(age_ms) < NEW_FOR.as_millis();
                inner.others.fetch_add(u64::from(is_new), Ordering::Relaxed);
                inner.versions.note(&commit);
            }
        })
        .await;
    }

    /// Warns about a commit that is skipped from now on. A store that refuses one commit may refuse
    /// many, so these are counted.
    fn tell_skipped(&self, stamp: Stamp, error: &Error) {
        let name = keys::commit_name(&stamp);
        match ReadFault::of(error) {
            ReadFault::Newer => tracing::warn!(
                %name, error = %error.chain(),
                "a commit was written by a newer hearthfs and is skipped; upgrade this node"
            ),
            ReadFault::Damaged => tracing::warn!(
                %name, error = %error.chain(),
                "a commit is damaged and skipped; its changes are not visible here until its files are \
                 written again"
            ),
            _ => {
                if let Some(unsaid) = self.0.quiet_skipped.tell(self.0.ledger.clock()) {
                    tracing::warn!(
                        %name, error = %error.chain(), unsaid,
                        "the store does not return a commit, and it is skipped for now; check that this node may read it"
                    );
                }
            }
        }
    }

    /// Reads one commit.
    async fn read(&self, remote: &Remote, stamp: Stamp) -> CommitRead {
        let Inner { troubled, freshness, .. } = &*self.0;
        let error = match read_again(|| self.read_once(remote, stamp)).await {
            Ok(commit) => {
                troubled.clear(&stamp);
                return CommitRead::Commit(Box::new(commit));
            }
            Err(error) => error,
        };
        let fault = ReadFault::of(&error);
        match fault {
            ReadFault::Gone => {
                troubled.clear(&stamp);
                return CommitRead::Gone;
            }
            ReadFault::Ours => return CommitRead::Later,
            ReadFault::Refused | ReadFault::Passing if freshness.is_down() => {
                return CommitRead::Later;
            }
            ReadFault::Damaged | ReadFault::Newer | ReadFault::Refused | ReadFault::Passing => {}
        }
        let is_first = troubled.note(stamp);
        if fault == ReadFault::Newer {
            troubled.give_up(&stamp);
        }
        let may_pass = fault == ReadFault::Passing && !self.is_skipped(&stamp);
        if may_pass && troubled.is_young(&stamp, HELD_MAX) {
            return CommitRead::Later;
        }
        CommitRead::Unusable { error, is_news: is_first || may_pass }
    }

    /// Reports whether a commit was found unusable, in this run or an earlier one.
    fn is_skipped(&self, stamp: &Stamp) -> bool {
        self.0.ledger.log(|log| log.missing().is_unusable(stamp))
    }

    /// Reports whether a commit was found unusable, and is not to be read again yet.
    fn is_not_due(&self, stamp: &Stamp) -> bool {
        self.is_skipped(stamp) && !self.0.troubled.left(stamp).is_zero()
    }

    /// Reads one commit. Waits out trouble that may pass the first time; later attempts make one
    /// request.
    async fn read_once(&self, remote: &Remote, stamp: Stamp) -> Result<Commit> {
        let name = keys::commit_name(&stamp);
        let bytes = if self.0.troubled.knows(&stamp) || self.is_skipped(&stamp) {
            remote.get_commit(&name).await?
        } else {
            let progress = Progress::default();
            let (limit, remote) = (remote.deadline(), remote.telling(&progress));
            wait_out(&remote, limit, &progress, || remote.get_commit(&name)).await?
        };
        task::blocking(move || decode_commit_named(&bytes, &stamp)).await
    }
}

/// Decodes a commit whose bytes were not read separately.
async fn unpack(stamp: Stamp, bytes: Bytes) -> CommitRead {
    match task::blocking(move || decode_commit_named(&bytes, &stamp)).await {
        Ok(commit) => CommitRead::Commit(Box::new(commit)),
        Err(error) => CommitRead::Unusable { error, is_news: false },
    }
}

/// Ends a list, also when the poll is dropped.
struct Ending<'a> {
    freshness: &'a Freshness,
    list: Option<super::freshness::List>,
}

impl Ending<'_> {
    fn end(&mut self, good: bool) {
        if let Some(list) = self.list.take() {
            self.freshness.end(list, good);
        }
    }
}

impl Drop for Ending<'_> {
    fn drop(&mut self) {
        self.end(false);
    }
}
