//! What this node knows of the head of the log.
//!
//! Owns the last head that was read or written, up to where its commits are folded, and whether it
//! is trusted. A trusted head replaces a list of new commits: each node announces its commits there
//! before they count as published. Must never be trusted while another node does not announce its
//! commits; lists show such commits.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;

use super::patience::wait_out;
use super::times::LOOK_BACK_MS;
use crate::clock::Clock;
use crate::error::{Error, Kind, Result};
use crate::remote::{HeadCommit, HeadRead, HeadVersion, Health, LogHead, Progress, Remote};
use crate::stamp::Stamp;

/// A commit that is not announced within this time never will be: its node does not announce, or
/// died before it could.
const ANNOUNCED_WITHIN: Duration = Duration::from_secs(30);
/// How long the head is not trusted after such a commit was found.
const DISTRUSTED_FOR: Duration = Duration::from_mins(10);
/// The most commits that were listed, are not announced, and are watched.
const SUSPECTS_MAX: usize = 1024;
/// How long throttling and similar trouble is waited out before the log is listed instead.
const PATIENCE: Duration = Duration::from_secs(1);
/// After this many looks in a row have failed because the store throttles, the log is listed.
const FAILURES_MAX: u32 = 3;
/// A head that is missing is not requested again within this time: meanwhile each look lists the log,
/// and reads every commit of it. The other constants are for a head that is damaged, and for one
/// that may not be read.
const MISSING_FOR: Duration = Duration::from_secs(1);
const DAMAGED_FOR: Duration = Duration::from_secs(10);
const REFUSED_FOR: Duration = Duration::from_mins(10);

/// The head as this node knows it.
#[derive(Debug)]
pub(super) struct HeadWatch {
    clock: Clock,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    last: Option<KnownHead>,
    /// The head up to which all that was announced is folded.
    folded: Option<Arc<LogHead>>,
    /// How many looks in a row failed because the store throttled.
    failures: u32,
    /// The head is not requested before this monotonic time.
    absent_until: Duration,
    distrusted_until: Duration,
    /// Commits that a list has shown and that no head had announced at that time, with that
    /// monotonic time.
    suspects: Vec<(Stamp, Duration)>,
    said: bool,
}

/// A head that was read or written.
#[derive(Debug, Clone)]
pub(super) struct KnownHead {
    pub(super) head: Arc<LogHead>,
    pub(super) version: HeadVersion,
    /// It was the head in the store at this monotonic time or later.
    pub(super) at: Duration,
    /// This node has written it, at the first attempt.
    pub(super) own: bool,
}

/// What the store has in place of the head.
#[derive(Debug, Clone)]
pub(super) enum FoundHead {
    Known(KnownHead),
    Missing,
    /// Damaged.
    Damaged(HeadVersion),
}

impl FoundHead {
    /// Returns the head, if it is usable.
    pub(super) fn head(&self) -> Option<&LogHead> {
        match self {
            Self::Known(known) => Some(&known.head),
            Self::Missing | Self::Damaged(_) => None,
        }
    }

    /// Returns the version of the object; `None` if there is none.
    pub(super) fn version(&self) -> Option<&HeadVersion> {
        match self {
            Self::Known(KnownHead { version, .. }) | Self::Damaged(version) => Some(version),
            Self::Missing => None,
        }
    }
}

impl HeadWatch {
    pub(super) fn new(clock: Clock) -> Self {
        Self { clock, state: Mutex::default() }
    }

    /// Returns the time of the monotonic clock.
    pub(super) fn now(&self) -> Duration {
        self.clock.mono()
    }

    /// Returns the head that was read or written last.
    pub(super) fn last(&self) -> Option<KnownHead> {
        self.state.lock().last.clone()
    }

    /// Reports whether the last look needed no list.
    pub(super) fn is_followed(&self) -> bool {
        let state = self.state.lock();
        state.folded.is_some() && self.now() >= state.distrusted_until
    }

    /// Notes that this node has written a head.
    pub(super) fn note_put(&self, known: KnownHead) {
        let mut state = self.state.lock();
        state.absent_until = Duration::ZERO;
        state.note(known);
    }

    /// Reads the head for a follower; `None` if there is no usable head.
    ///
    /// # Errors
    ///
    /// `Unavailable` if the store throttles: lists would make that worse. After several such looks,
    /// the log is listed nevertheless, because perhaps only the head is unreadable.
    pub(super) async fn look(&self, remote: &Remote) -> Result<Option<Arc<LogHead>>> {
        let began = self.clock.mono();
        let is_skipped = {
            let mut state = self.state.lock();
            let is_skipped = state.failures >= FAILURES_MAX;
            state.failures = if is_skipped { 0 } else { state.failures };
            is_skipped
        };
        if is_skipped || !remote.may_have_head() || began < self.state.lock().absent_until {
            return Ok(None);
        }
        let limit = if remote.throttling().now { remote.deadline() } else { PATIENCE };
        let progress = Progress::default();
        let found = wait_out(remote, limit, &progress, || self.read(remote)).await;
        let absent_for = match found {
            Ok(FoundHead::Known(known)) => {
                self.state.lock().failures = 0;
                return Ok(Some(known.head));
            }
            Ok(FoundHead::Missing) => MISSING_FOR,
            Ok(FoundHead::Damaged(_)) => DAMAGED_FOR,
            Err(error)
                if matches!(error.kind(), Kind::Denied | Kind::Invalid)
                    && remote.health() == Health::Up =>
            {
                self.say_unusable(&error);
                REFUSED_FOR
            }
            Err(error) if remote.throttling().now => {
                self.state.lock().failures += 1;
                return Err(error);
            }
            Err(error) => {
                tracing::debug!(error = %error.chain(), "the head of the log was not read");
                return Ok(None);
            }
        };
        self.state.lock().absent_until = began + absent_for;
        Ok(None)
    }

    /// Reads the head.
    pub(super) async fn read(&self, remote: &Remote) -> Result<FoundHead> {
        let (last, at) = (self.last(), self.clock.mono());
        let known = last.as_ref().map(|last| &last.version);
        let read = match remote.get_head(known).await? {
            // It may have been a bad read.
            HeadRead::Unusable(..) => remote.get_head(known).await?,
            read => read,
        };
        let known = match (read, last) {
            (HeadRead::Other(head, version), _) => KnownHead { head, version, at, own: false },
            (HeadRead::Same, Some(last)) => KnownHead { at, ..last },
            (HeadRead::Missing | HeadRead::Same, _) => return Ok(FoundHead::Missing),
            (HeadRead::Unusable(version, error), _) if error.kind() == Kind::Corrupt => {
                tracing::debug!(error = %error.chain(), "the head of the log cannot be used");
                return Ok(FoundHead::Damaged(version));
            }
            (HeadRead::Unusable(_, error), _) => {
                return Err(Error::with(error.kind(), "read the head of the log", error));
            }
        };
        self.state.lock().note(known.clone());
        Ok(FoundHead::Known(known))
    }

    /// Returns the commits that were announced and are not folded; `None` if only a list can show
    /// them.
    pub(super) fn news(&self, head: &LogHead) -> Option<Vec<HeadCommit>> {
        let now = self.clock.mono();
        let mut state = self.state.lock();
        let folded = state.folded.clone()?;
        let Some(news) = head.since(&folded) else {
            // It is unknown what was announced meanwhile, so a commit cannot be called unannounced.
            state.suspects.clear();
            state.folded = None;
            return None;
        };
        state.judge(head, now);
        (now >= state.distrusted_until).then(|| news.to_vec())
    }

    /// Notes that all commits are folded that were announced up to this head.
    pub(super) fn note_folded(&self, head: &Arc<LogHead>) {
        self.state.lock().folded = Some(Arc::clone(head));
    }

    /// Notes that the log was listed and folded after `head` had been read, and that the `new`
    /// commits were found.
    pub(super) fn note_listed(&self, head: Option<&Arc<LogHead>>, new: &[Stamp]) {
        let Some(head) = head else {
            let mut state = self.state.lock();
            (state.folded, state.suspects) = (None, Vec::new());
            return;
        };
        let (now, mut state) = (self.clock.mono(), self.state.lock());
        let in_touch = state.folded.as_ref().is_some_and(|folded| head.since(folded).is_some());
        // Other heads may have announced a commit meanwhile, so this one need not name it, unless
        // the commit is newer than those that this head names.
        let oldest_ms = head.commits.iter().map(|one| one.stamp.ms).min();
        let told_from_ms = oldest_ms.map_or(u64::MAX, |ms| ms.saturating_add(LOOK_BACK_MS));
        if !in_touch {
            state.suspects.clear();
        }
        let room = SUSPECTS_MAX.saturating_sub(state.suspects.len());
        let unannounced =
            new.iter().filter(|stamp| (in_touch || stamp.ms >= told_from_ms) && !head.has(stamp));
        state.suspects.extend(unannounced.take(room).map(|stamp| (*stamp, now)));
        state.folded = Some(Arc::clone(head));
    }

    fn say_unusable(&self, error: &Error) {
        if !std::mem::replace(&mut self.state.lock().said, true) {
            tracing::warn!(
                error = %error.chain(),
                "the head of the log cannot be read; the log is listed instead, which costs more; check that this node \
                 may read it and that its hearthfs is up to date"
            );
        }
    }
}

impl State {
    /// Notes a head, unless a later one is known. A store that was restored may have an earlier
    /// head.
    fn note(&mut self, known: KnownHead) {
        let is_later = self.last.as_ref().is_none_or(|last| {
            last.head.epoch != known.head.epoch
                || last.head.number <= known.head.number
                || last.at < known.at
        });
        if is_later {
            self.last = Some(known);
        }
    }

    /// Checks whether all nodes announce their commits.
    fn judge(&mut self, head: &LogHead, now: Duration) {
        self.suspects.retain(|(stamp, _)| !head.has(stamp));
        let is_over = |(_, seen): &(Stamp, Duration)| *seen + ANNOUNCED_WITHIN <= now;
        if let Some((stamp, _)) = self.suspects.iter().find(|suspect| is_over(suspect)) {
            tracing::debug!(
                node = %stamp.node,
                "a commit was not announced in the head of the log; the head is not trusted for some time"
            );
            self.distrusted_until = now + DISTRUSTED_FOR;
        }
        self.suspects.retain(|suspect| !is_over(suspect));
    }
}
