//! Open: carries out what was decided.
//!
//! A reader gets the published version. If there is none yet, the reader waits for it, within a
//! limit. A writer shares the live file of a name or begins one. A new version is always another
//! inode than the one the kernel looked up, and `ESTALE` leads the kernel there, once (see
//! `retry`).

use std::sync::Arc;
use std::time::Duration;

use hearthfs_mount::{Answer, Caller, Errno, Ino, OpenFlags, Opened, Reply};
use tokio::sync::watch;

use super::begin::BeginBase;
use super::decide::{Is, LiveIs, NameHas, OpenPlan, StageIs, WritersAre, decide_open};
use super::filesystem::Filesystem;
use super::handles::Bytes;
use super::inode::{AccessRights, DirEntryKey, Inode, InodeKind, LiveId, Published, Source};
use super::live::Live;
use super::retry::{Retry, RetryWish, Try};
use super::state::State;
use super::who::Who;
use super::wish::{DECIDE_TRIES_MAX, Wish};
use crate::clock;
use crate::digest::Digest;
use crate::error::{Error, Kind};
use crate::namespace::Entry;

/// How long a reader waits for the end of a file that all have closed and that was stored to
/// through a mapping, counted from the last store. The RELEASE for the last `munmap` arrives after
/// `munmap` has returned.
const MAPPING_ENDS_MAX: Duration = Duration::from_millis(100);

/// The next step of an open.
pub(super) enum OpenStep {
    /// The open is answered.
    Done(Reply<Opened>),
    /// The blob has to be opened first. The open is counted already.
    Blob {
        digest: Digest,
        size: u64,
        /// The blob is not that of the inode.
        aside: bool,
        /// How long the entry took to compile.
        took_ms: u32,
    },
    /// A live file has to be begun.
    Begin(Box<BeginBase>),
    /// The open is decided again when this changes, but after this time at the latest.
    Linger(watch::Receiver<()>, Duration),
    /// The open is decided again when this changes. If that takes too long, it reads the older
    /// version.
    AwaitNext(watch::Receiver<()>),
    /// The open is decided again when this changes.
    Wait(watch::Receiver<()>),
    /// The open is decided again when this changes, or when the published bytes of the live file
    /// are preserved.
    Settle(LiveId, watch::Receiver<()>),
}

impl Filesystem {
    pub(super) fn open_file(&self, caller: &Caller, ino: Ino, flags: OpenFlags) -> Answer<Opened> {
        self.0.rooms.freshness.note_activity();
        if flags.changes() && self.0.rules.read_only {
            return Err(Errno::EROFS).into();
        }
        let who = self.0.callers.who(caller);
        let (tried, retry, room) = {
            let now = self.0.rooms.clock.mono();
            let mut state = self.0.state.lock();
            let (tried, retry) = state.retries.end(caller, ino, flags.changes(), now);
            (tried, retry, state.handles.has_room(caller.uid))
        };
        let mut wish = Wish { caller: *caller, who, flags, tried, patient: true, client: None };
        let kept = OpenKept { fs: self.clone(), retry };
        if !room {
            return Err(Errno::ENFILE).into();
        }
        match self.open_in_edition(ino, &mut wish, kept.retry.as_ref()) {
            Err(errno) => {
                self.note_open_miss(ino, caller, errno);
                return Err(errno).into();
            }
            Ok(lacking) if lacking.is_empty() => {}
            Ok(lacking) => {
                let this = self.clone();
                return Answer::later(async move {
                    this.fetch_members(ino, &wish.caller, lacking).await?;
                    // Meanwhile the unit may have moved on, or the reader may no longer count as a
                    // recent one.
                    match this.open_in_edition(ino, &mut wish, kept.retry.as_ref()) {
                        Ok(lacking) => this.fetch_members(ino, &wish.caller, lacking).await?,
                        Err(errno) => return Err(errno),
                    }
                    let reply = match this.open_file_as(ino, &wish) {
                        Answer::Now(reply) => reply,
                        Answer::Later(work) => work.await,
                    };
                    drop(kept);
                    this.told(ino, &wish, reply)
                });
            }
        }
        match self.open_file_as(ino, &wish) {
            Answer::Now(reply) => self.told(ino, &wish, reply).into(),
            Answer::Later(work) => {
                let this = self.clone();
                Answer::later(async move {
                    let reply = work.await;
                    drop(kept);
                    this.told(ino, &wish, reply)
                })
            }
        }
    }

    pub(super) fn open_file_as(&self, ino: Ino, wish: &Wish) -> Answer<Opened> {
        match self.open_at_once(ino, wish) {
            OpenStep::Done(reply) => reply.into(),
            first => {
                let (this, wish) = (self.clone(), *wish);
                Answer::later(async move { this.open_in_time(ino, &wish, first).await })
            }
        }
    }

    /// Gives up the seat of a thread that has made another call instead.
    pub(super) fn give_up_seat(&self, retry: Option<Retry>) {
        drop(OpenKept { fs: self.clone(), retry });
    }

    /// Records a retry if the answer is `ESTALE`.
    fn told(&self, ino: Ino, wish: &Wish, reply: Reply<Opened>) -> Reply<Opened> {
        if matches!(reply, Err(Errno::ESTALE)) {
            let flags = wish.flags.changes().then_some(wish.flags);
            self.look_again(&wish.caller, ino, RetryWish::of(flags));
        }
        reply
    }

    /// Records that a thread looks again at the name that it has found as `ino`.
    pub(super) fn look_again(&self, caller: &Caller, ino: Ino, wish: RetryWish) {
        let now = self.0.rooms.clock.mono();
        let mut state = self.0.state.lock();
        let spots = state
            .names
            .inode(ino)
            .map_or(Vec::new(), |inode| inode.places.iter().chain(&inode.last).cloned().collect());
        state.retries.begin(caller, spots, Some(ino), wish, now);
        drop(state);
        self.0.begun.notify_one();
    }

    /// Does everything that needs no wait.
    fn open_at_once(&self, ino: Ino, wish: &Wish) -> OpenStep {
        let step = match self.step(ino, wish) {
            OpenStep::Settle(id, _) if self.finish_left(id) => self.step(ino, wish),
            step => step,
        };
        match step {
            OpenStep::Blob { digest, size, aside, took_ms } => match self.open_here(digest, size) {
                Ok(Some(source)) => {
                    self.note_served(wish.client, Some(&digest), took_ms);
                    OpenStep::Done(Ok(self.opened_blob(ino, wish, source, aside)))
                }
                Ok(None) => OpenStep::Blob { digest, size, aside, took_ms },
                Err(error) => {
                    // A program that opens too many files must not fill the log as well.
                    if error.kind() == Kind::Exhausted {
                        tracing::debug!(%digest, error = error.chain(), "cannot open a blob");
                    } else {
                        tracing::warn!(%digest, error = error.chain(), "cannot open a blob");
                    }
                    self.uncount_open(ino);
                    OpenStep::Done(Err(super::errno::of_open(error.kind())))
                }
            },
            OpenStep::Begin(base) if base.copy.is_none() && self.has_room() => {
                match self.begin_open(ino, wish, &base) {
                    Ok(Some(opened)) => OpenStep::Done(Ok(opened)),
                    Ok(None) => OpenStep::Begin(base),
                    Err(errno) => OpenStep::Done(Err(errno)),
                }
            }
            step => step,
        }
    }

    async fn open_in_time(&self, ino: Ino, wish: &Wish, first: OpenStep) -> Reply<Opened> {
        let writes = wish.writes();
        let mut wish = *wish;
        let mut left = if writes { self.0.rules.deadline } else { self.0.rules.open_wait };
        let mut step = first;
        for _ in 0..DECIDE_TRIES_MAX {
            match step {
                OpenStep::Done(reply) => return reply,
                OpenStep::Blob { digest, size, aside, took_ms } => {
                    return match self.obtain(Some((ino, &wish.caller)), digest, size).await {
                        Ok(source) => {
                            self.note_served(wish.client, Some(&digest), took_ms);
                            Ok(self.opened_blob(ino, &wish, source, aside))
                        }
                        Err(errno) => {
                            self.uncount_open(ino);
                            Err(self.miss(ino, &wish, errno))
                        }
                    };
                }
                OpenStep::Begin(base) => match self.begin_in_time(ino, &wish, *base).await {
                    Ok(Some(opened)) => return Ok(opened),
                    Ok(None) => {}
                    Err(errno) => return Err(errno),
                },
                OpenStep::Linger(mut moved, most) => {
                    clock::within(most, moved.changed()).await;
                    wish.patient = false;
                }
                OpenStep::AwaitNext(mut moved) => match self.wait_for(&mut moved, left).await {
                    Some(rest) => left = rest,
                    None => {
                        step = self.read_version(&mut self.0.state.lock(), ino, &wish);
                        continue;
                    }
                },
                OpenStep::Wait(mut moved) => {
                    let late = if writes { Errno::ETIMEDOUT } else { Errno::ENOENT };
                    left = self.wait_for(&mut moved, left).await.ok_or(late)?;
                }
                OpenStep::Settle(id, mut moved) => {
                    let refused = |error: Error| {
                        if writes {
                            super::errno::promised(&error)
                        } else {
                            super::errno::of_open(error.kind())
                        }
                    };
                    self.settle_or_keep(id, &mut moved).await.map_err(refused)?;
                }
            }
            step = self.step(ino, &wish);
        }
        Err(Errno::EBUSY)
    }

    /// Waits until something changes. Returns how much of `wait` is left then; `None` if nothing
    /// has changed in time.
    pub(super) async fn wait_for(
        &self,
        moved: &mut watch::Receiver<()>,
        wait: Duration,
    ) -> Option<Duration> {
        let begun = self.0.rooms.clock.mono();
        clock::within(wait, moved.changed()).await?.ok();
        Some(wait.saturating_sub(self.0.rooms.clock.mono().saturating_sub(begun)))
    }

    /// Decides about the open, and does what needs neither the disk nor a wait.
    fn step(&self, ino: Ino, wish: &Wish) -> OpenStep {
        let mut guard = self.0.state.lock();
        let state = &mut *guard;
        let (plan, name) = self.decide(state, ino, wish);
        let live = state.names.inode(ino).and_then(Inode::live);
        if plan.is_of_the_inode() {
            let there = name.as_ref().and_then(|name| name.rights);
            if let Err(errno) = self.may_open(state, ino, wish, there) {
                return OpenStep::Done(Err(errno));
            }
        }
        match plan {
            OpenPlan::Fail(errno) => OpenStep::Done(Err(errno)),
            OpenPlan::LookAgain => OpenStep::Done(Err(Errno::ESTALE)),
            OpenPlan::Read => match state.unmapped(ino) {
                Some((moved, None)) => OpenStep::AwaitNext(moved),
                Some((moved, Some(stored))) if wish.patient => {
                    let waited = self.0.rooms.clock.mono().saturating_sub(stored);
                    match MAPPING_ENDS_MAX.saturating_sub(waited) {
                        Duration::ZERO => self.read_version(state, ino, wish),
                        left => OpenStep::Linger(moved, left),
                    }
                }
                _ => self.read_version(state, ino, wish),
            },
            OpenPlan::ReadLive => match live.and_then(|id| state.lives.get(id)) {
                Some(live) => {
                    // A version that the caller's own process has published counts, although it is
                    // not a blob yet.
                    if let Some(version) = live.version().filter(|version| version.mark.size > 0) {
                        let took_ms = version.published.entry.attrs.took_ms;
                        self.note_served(wish.client, None, took_ms);
                    }
                    let source = Arc::clone(&live.source);
                    OpenStep::Done(Ok(self.attach_reader(state, ino, wish, source)))
                }
                None => OpenStep::Done(Err(Errno::ESTALE)),
            },
            OpenPlan::Join => match live {
                Some(id) if wish.flags.truncate => {
                    let opened = self.join(state, ino, id, wish);
                    drop(guard);
                    OpenStep::Done(opened.and_then(|opened| self.empty(opened)))
                }
                Some(id) => OpenStep::Done(self.join(state, ino, id, wish)),
                None => OpenStep::Done(Err(Errno::ESTALE)),
            },
            OpenPlan::JoinAside => match name.and_then(|name| name.joinable) {
                Some(id) => self.join_aside(state, ino, id, wish),
                None => OpenStep::Done(Err(Errno::ESTALE)),
            },
            OpenPlan::ReadCurrent => self.read_current(state, ino),
            OpenPlan::Begin | OpenPlan::Aside { .. } => {
                match self.base_of(state, ino, wish, plan) {
                    Ok(base) => base_at_rest(state, base),
                    Err(errno) => OpenStep::Done(Err(errno)),
                }
            }
            OpenPlan::Wait | OpenPlan::Settle => {
                let Some((id, file)) = live.and_then(|id| Some((id, state.lives.get(id)?))) else {
                    return OpenStep::Done(Err(Errno::ESTALE));
                };
                let moved = file.settling.subscribe();
                if plan == OpenPlan::Wait {
                    OpenStep::Wait(moved)
                } else {
                    OpenStep::Settle(id, moved)
                }
            }
        }
    }

    /// Decides about an open by everything that is known about the inode and its name.
    pub(super) fn decide(
        &self,
        state: &State,
        ino: Ino,
        wish: &Wish,
    ) -> (OpenPlan, Option<NameFound>) {
        let Some(inode) = state.names.inode(ino) else { return (OpenPlan::LookAgain, None) };
        let spot = inode.place().or(inode.last.as_ref());
        let name = spot.map(|spot| self.name_found(state, ino, spot, wish));
        let is = match &inode.node {
            InodeKind::Directory => Is::Directory,
            InodeKind::Reserved(_) => Is::Reserved,
            InodeKind::Gone(_) => Is::Gone { open: inode.source.is_some() },
            InodeKind::Stale(_) => Is::Gone { open: false },
            InodeKind::Entry(published) if published.entry.content().is_none() => Is::Other,
            InodeKind::Entry(published) => Is::Entry {
                bound: name.as_ref().is_some_and(|name| name.bound),
                readable: self.is_readable(&published.entry, published.changed_ms),
            },
            InodeKind::Live(id) => match state.lives.get(*id) {
                Some(live) => {
                    let is = live_is(live, wish.who, self.0.rooms.clock.mono());
                    // A file that was renamed over it has its name now, although that file is not
                    // published yet.
                    let lost = !live.lineage.is_renamed()
                        && spot.is_some_and(|spot| state.has_successor(spot));
                    Is::Live(LiveIs { named: is.named && !lost, ..is })
                }
                None => return (OpenPlan::LookAgain, name),
            },
        };
        let has = name.as_ref().map_or(NameHas::default(), |name| NameHas {
            own: name.own,
            joinable: name.joinable.is_some(),
            entry: name.entry,
            current: name.current,
        });
        (decide_open(wish.asked(), is, has), name)
    }

    /// Finds what else the name of an inode has for the caller.
    fn name_found(&self, state: &State, ino: Ino, spot: &DirEntryKey, wish: &Wish) -> NameFound {
        let seen = state.names.path_of(spot).and_then(|path| self.seen(&path));
        let inode = state.names.inode(ino);
        let bound = match (inode.map(|inode| &inode.node), &seen) {
            (Some(InodeKind::Entry(published)), Some(seen)) => {
                published.is(&seen.entry, seen.stamp)
                    && inode.is_some_and(|inode| inode.places.contains(spot))
            }
            _ => false,
        };
        let hidden = seen.is_none() && self.hides(state, spot, ino);
        let is_it = |id: &LiveId| state.lives.get(*id).is_some_and(|live| live.ino == ino);
        let walked = wish.tried == Try::Walked;
        // The kernel has checked this inode. The caller may use another one only if that is the
        // same file, or if the caller has just walked to the name and the mode allows it.
        let published = match inode.map(|inode| &inode.node) {
            Some(InodeKind::Entry(published)) => Some(published),
            _ => None,
        };
        let reserved = matches!(inode.map(|inode| &inode.node), Some(InodeKind::Reserved(_)));
        let is_next = |live: &Live| {
            published.is_some_and(|one| match one.entry.link.filter(|_| bound) {
                // Its names have different stamps, so the bytes show which version it began from.
                Some(_) => live.is_current(seen.as_ref()),
                None => live.continues(one.stamp, None),
            })
        };
        let may_join = |id: &LiveId| {
            state.lives.get(*id).is_some_and(|live| {
                let allowed = || self.permits(&wish.caller, &live.attrs, wish.wants()).is_ok();
                // If the thread can still look again, the kernel checks it when it opens what it
                // finds.
                is_next(live) || (!wish.is_last() && !reserved) || (walked && allowed())
            })
        };
        let joinable = state.all_joinable(spot, seen.as_ref(), wish.who, wish.flags);
        let joinable = match wish.tried {
            // A descriptor belongs to one file, and another process may have begun a newer file
            // under the name.
            Try::Last => joinable.filter(|id| state.lives.get(*id).is_some_and(is_next)).last(),
            Try::First | Try::Walked => joinable.last().filter(may_join),
        };
        let current = walked
            && seen.as_ref().is_some_and(|seen| {
                self.permits(&wish.caller, &seen.entry.attrs, wish.wants()).is_ok()
            });
        let there = seen.as_ref().filter(|_| bound);
        NameFound {
            rights: there.map(|seen| AccessRights::of(&seen.entry.attrs)),
            bound: (bound || hidden) && !(wish.writes() && state.has_successor(spot)),
            own: state.own_live(spot, seen.as_ref(), wish.who).is_some_and(|id| !is_it(&id)),
            joinable: joinable.filter(|id| !is_it(id)),
            current,
            entry: seen.is_some_and(|seen| {
                let live = inode.and_then(Inode::live);
                let version = live.and_then(|id| state.lives.get(id)?.version());
                version.is_none_or(|version| !version.published.is(&seen.entry, seen.stamp))
            }),
        }
    }

    /// Reads the version of an inode, or what is left of it.
    fn read_version(&self, state: &mut State, ino: Ino, wish: &Wish) -> OpenStep {
        let Some(inode) = state.names.inode(ino) else { return OpenStep::Done(Err(Errno::ESTALE)) };
        let (content, took_ms) = match &inode.node {
            InodeKind::Entry(Published { entry, .. }) => (entry.content(), entry.attrs.took_ms),
            _ => (None, 0),
        };
        if let Some((digest, size)) = content {
            self.0.rooms.renewer.note_use(&digest, size);
            self.0.rooms.metrics.hits.add(1);
            self.note_open(|| inode.place().and_then(|spot| state.names.path_of(spot)));
        }
        let source = inode.source.clone();
        match (source, content) {
            // The blob was truncated in the cache directory. The processes that have it open cannot
            // be helped.
            (Some(source), Some((digest, size))) if !has_size(&source, size) => {
                state.count_open(ino);
                OpenStep::Blob { digest, size, aside: true, took_ms }
            }
            (Some(source), content) => {
                self.note_served(
                    wish.client.filter(|_| content.is_some_and(|(_, size)| size > 0)),
                    None,
                    took_ms,
                );
                OpenStep::Done(Ok(self.attach_reader(state, ino, wish, source)))
            }
            (None, Some((_, 0))) => {
                OpenStep::Done(Ok(self.attach_bytes(state, ino, wish, Bytes::Empty)))
            }
            (None, Some((digest, size))) => {
                state.count_open(ino);
                OpenStep::Blob { digest, size, aside: false, took_ms }
            }
            (None, None) => OpenStep::Done(Err(Errno::ESTALE)),
        }
    }

    /// Reads what the name of an inode has now.
    fn read_current(&self, state: &mut State, ino: Ino) -> OpenStep {
        let spot = state.names.inode(ino).and_then(|inode| inode.place().or(inode.last.as_ref()));
        let spot = spot.cloned();
        let path = spot.as_ref().and_then(|spot| state.names.path_of(spot));
        let Some(seen) = path.and_then(|path| self.seen(&path)) else {
            return OpenStep::Done(Err(Errno::ENOENT));
        };
        let bound = spot.and_then(|spot| state.names.bound(&spot));
        let live = bound.and_then(|ino| state.names.inode(ino)?.live());
        if let Some((id, live)) = live.and_then(|id| Some((id, state.lives.get(id)?)))
            && live.version().is_some()
        {
            return OpenStep::Settle(id, live.settling.subscribe());
        }
        match seen.entry.content() {
            Some((digest, size)) => {
                state.count_open(ino);
                OpenStep::Blob { digest, size, aside: true, took_ms: seen.entry.attrs.took_ms }
            }
            None => OpenStep::Done(Err(Errno::ENOENT)),
        }
    }

    /// Reports whether a version can be served: it is not past its age, and its bytes are not lost.
    fn is_readable(&self, entry: &Entry, changed_ms: u64) -> bool {
        let ledger = &self.0.rooms.ledger;
        ledger.content_left(entry, changed_ms).is_some() && !ledger.hidden(entry)
    }

    /// Returns the error of an open whose bytes are not available. Where the entry becomes a miss,
    /// the kernel looks again and finds nothing, so no program sees a name that it cannot open.
    fn miss(&self, ino: Ino, wish: &Wish, errno: Errno) -> Errno {
        if wish.is_last() || errno != Errno::ENOENT {
            return errno;
        }
        let state = self.0.state.lock();
        let lost = state.names.inode(ino).is_some_and(|inode| match &inode.node {
            InodeKind::Entry(Published { entry, changed_ms, .. }) => {
                !self.is_readable(entry, *changed_ms)
            }
            _ => false,
        });
        if lost { Errno::ESTALE } else { errno }
    }
}

fn has_size(source: &Source, size: u64) -> bool {
    source.backing.file().metadata().is_ok_and(|about| about.len() == size)
}

/// Begins from a base. If the bytes to be copied are not a blob yet, waits for that first.
fn base_at_rest(state: &State, base: BeginBase) -> OpenStep {
    let bound = base.spot.as_ref().and_then(|spot| state.names.bound(spot));
    let live = bound.and_then(|ino| state.names.inode(ino)?.live());
    match live.and_then(|id| Some((id, state.lives.get(id)?))) {
        Some((id, live)) if live.version().is_some() && base.copy.is_some() => {
            OpenStep::Settle(id, live.settling.subscribe())
        }
        _ => OpenStep::Begin(Box::new(base)),
    }
}

/// What the name of an inode has beside that inode.
#[derive(Debug)]
pub(super) struct NameFound {
    /// The present rights of the inode, if its name leads to it.
    rights: Option<AccessRights>,
    bound: bool,
    own: bool,
    joinable: Option<LiveId>,
    current: bool,
    entry: bool,
}

/// What an open holds until it is answered: the seat of a thread that looked again.
struct OpenKept {
    fs: Filesystem,
    retry: Option<Retry>,
}

impl Drop for OpenKept {
    fn drop(&mut self) {
        let Some(retry) = self.retry.take() else { return };
        let idle = self.fs.0.state.lock().give_up(Some(retry));
        if let Some(id) = idle {
            self.fs.finish_soon(id);
        }
    }
}

fn live_is(live: &Live, who: Who, now: Duration) -> LiveIs {
    let stage = match live.version() {
        _ if live.is_dropped() => StageIs::Dropped,
        Some(_) if live.is_held(now) => StageIs::Held,
        Some(_) => StageIs::Published,
        None => StageIs::Writing,
    };
    LiveIs {
        stage,
        member: live.has_member(who),
        named: live.place().is_some(),
        writers: match (live.writers.has_open(), live.writers.has_handles()) {
            (true, _) => WritersAre::Open,
            (false, true) => WritersAre::Closed,
            (false, false) => WritersAre::Gone,
        },
        settling: live.settling.is_on(),
    }
}
