//! Lookup: which inode a name leads to for which caller, and for how long.
//!
//! The rules, in order. A thread that looks again finds what its open can use. A process finds the
//! live file that it writes itself. Other processes find what is published. Where nothing is
//! published yet, they find the newest live file, and their open will wait.
//!
//! Keeps P15 own-node-at-once.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::time::Duration;

use hearthfs_mount::{Answer, Attr, Caller, Errno, FileType, Found, Ino, Lookup, OpenFlags, Reply};
use parking_lot::MutexGuard;

use super::filesystem::Filesystem;
use super::inode::{DirEntryKey, InodeKind, LiveId, Published};
use super::rights::MAY_SEARCH;
use super::seen::{Absent, Seen, seen_in, shown_in};
use super::state::{State, entry_inode};
use super::units::Purpose;
use super::who::Who;
use super::wish::DECIDE_TRIES_MAX;
use crate::name::{TreePath, check_name};
use crate::namespace::EDITIONS;

/// The longest time that the kernel may cache an answer that only this kernel can change.
pub(super) const TTL_MAX: Duration = Duration::from_hours(1);
/// Nothing that was published a moment ago expires before this part of the age. Bytes that the
/// store has already are relied on for the first half of the age, and an entry becomes a miss a
/// tenth before its end.
const UNAGED_PART: u32 = 4;
/// The longest time that the kernel may cache the size of a file that is being written.
pub(super) const TTL_OF_LIVE: Duration = Duration::from_millis(200);

/// The inode that a name leads to.
#[derive(Debug, Clone, Copy)]
pub(super) struct Lead {
    pub(super) ino: Ino,
    /// How much longer the name leads there.
    pub(super) left: Duration,
}

impl Lead {
    /// Makes a lead that does not expire: to a live file, or to a version that was published a
    /// moment ago.
    pub(super) fn lasting(ino: Ino) -> Self {
        Self { ino, left: Duration::MAX }
    }
}

impl Filesystem {
    /// Reads what is visible under a path: an entry in the namespace whose bytes are available and
    /// that is not past its age.
    pub(super) fn seen(&self, path: &TreePath) -> Option<Seen> {
        self.shown(path).ok()
    }

    /// As [`Filesystem::seen`]; otherwise returns what is known of the absence.
    fn shown(&self, path: &TreePath) -> Result<Seen, Absent> {
        let ledger = &self.0.rooms.ledger;
        let shown = ledger.read(|fold| shown_in(ledger, fold, path));
        self.keep_order();
        shown
    }

    /// Reports whether an inode is what its name still has although it is hidden: its bytes are
    /// lost, or it is past its age. An entry that another node has removed does not count.
    pub(super) fn hides(&self, state: &State, spot: &DirEntryKey, ino: Ino) -> bool {
        let path = state.names.path_of(spot).filter(|_| state.names.bound(spot) == Some(ino));
        let held = path.and_then(|path| self.0.rooms.ledger.read(|fold| seen_in(fold, &path)));
        held.is_some_and(|held| state.is_version(ino, &held))
    }

    /// Returns the caller's process, if that can make a difference for this name. Finding it costs
    /// a read of `/proc`.
    fn who_for(&self, caller: &Caller, spot: &DirEntryKey) -> Option<Who> {
        let matters = Self::is_callers(&self.0.state.lock(), caller, spot);
        matters.then(|| self.0.callers.who(caller))
    }

    pub(super) fn look_up(&self, caller: &Caller, parent: Ino, name: &OsStr) -> Answer<Lookup> {
        let name = name.as_bytes();
        if let Err(error) = check_name(name) {
            return Err(super::errno::of_path(error)).into();
        }
        if is_hidden(parent, name) {
            return Ok(Lookup::Missing { ttl: self.ttl() }).into();
        }
        self.0.rooms.freshness.note_activity();
        let real: DirEntryKey = (parent, name.into());
        if let Some(reply) = self.look_up_plain(caller, &real) {
            return reply.into();
        }
        let spot = match self.routed(caller, real.clone(), Purpose::Find) {
            Ok(spot) => spot,
            Err(errno) => return Err(errno).into(),
        };
        let who = self.who_for(caller, &spot);
        let retries = self.0.state.lock().retries.has(caller.tid);
        let own = |who| self.is_writing(&spot, who);
        let fresh = self.0.rooms.freshness.ready() || retries || who.is_some_and(own);
        let lingers = self.lingers_for(caller, &spot, who);
        if fresh && lingers.is_none() {
            return self.look_up_routed(caller, &real, spot).into();
        }
        let (this, caller) = (self.clone(), *caller);
        Answer::later(async move {
            if !fresh {
                this.0.rooms.freshness.wait_fresh(this.0.rules.deadline).await;
            }
            if let Some((id, mut moved)) = lingers {
                // The open that follows reports an error.
                this.settle_or_keep(id, &mut moved).await.ok();
            }
            let spot = this.routed(&caller, real.clone(), Purpose::Find)?;
            this.look_up_routed(&caller, &real, spot)
        })
    }

    /// Answers from what is known now if the name leads every process to the same inode, and the
    /// knowledge is fresh. Almost every lookup is such a one, and it takes the lock once.
    fn look_up_plain(&self, caller: &Caller, spot: &DirEntryKey) -> Option<Reply<Lookup>> {
        if !self.0.rooms.freshness.ready() {
            return None;
        }
        let state = self.0.state.lock();
        let special = Self::is_near_edition(&state, spot) || Self::is_callers(&state, caller, spot);
        (!special).then(|| self.look_up_now(state, caller, spot, None))
    }

    /// Reports whether it may depend on the caller where a name leads.
    fn is_callers(state: &State, caller: &Caller, spot: &DirEntryKey) -> bool {
        !state.names.lives(spot).is_empty()
            || state.lives.has_groups()
            || state.retries.has(caller.tid)
    }

    /// Answers from what is known now. Answers again if a version of a unit arrived meanwhile that
    /// the caller does not read.
    fn look_up_routed(
        &self,
        caller: &Caller,
        real: &DirEntryKey,
        mut spot: DirEntryKey,
    ) -> Reply<Lookup> {
        for _ in 0..DECIDE_TRIES_MAX {
            let who = self.who_for(caller, &spot);
            let reply = self.look_up_now(self.0.state.lock(), caller, &spot, who)?;
            let now = self.routed(caller, real.clone(), Purpose::Find);
            if now.as_ref() == Ok(&spot) {
                return Ok(reply);
            }
            if let Lookup::Found(found) = reply {
                self.forget_inode(found.attr.ino, 1);
            }
            spot = now?;
        }
        Err(Errno::EBUSY)
    }

    /// Reports whether a process writes a file of this name.
    fn is_writing(&self, spot: &DirEntryKey, who: Who) -> bool {
        let state = self.0.state.lock();
        let mut lives = state.names.lives(spot).iter().filter_map(|id| state.lives.get(*id));
        lives.any(|live| live.has_member(who) && live.writers.has_open())
    }

    /// Returns the live file that a thread which looks again would find here and could not use: it
    /// is closed and about to end.
    fn lingers_for(
        &self,
        caller: &Caller,
        spot: &DirEntryKey,
        who: Option<Who>,
    ) -> Option<(LiveId, tokio::sync::watch::Receiver<()>)> {
        let now = self.0.rooms.clock.mono();
        let mut state = self.0.state.lock();
        let wish = state.retries.at(caller.tid, spot, now)?.wish;
        let id = state.names.inode(state.names.bound(spot)?)?.live()?;
        let live = state.lives.get(id)?;
        let waits = match wish.flags() {
            None => !live.has_member(who?),
            Some(flags) => !flags.truncate,
        };
        let lingers = waits && live.version().is_some() && !live.is_held(now);
        lingers.then(|| (id, live.settling.subscribe()))
    }

    /// Answers from what is known now.
    fn look_up_now(
        &self,
        mut guard: MutexGuard<'_, State>,
        caller: &Caller,
        spot: &DirEntryKey,
        who: Option<Who>,
    ) -> Reply<Lookup> {
        let tid = caller.tid;
        let state = &mut *guard;
        self.may_use(state, caller, spot.0, MAY_SEARCH)?;
        let path = Self::path_to_find(state, spot)?;
        if let Some((found, idle)) = self.lead(state, tid, spot, &path, who) {
            drop(guard);
            if let Some(id) = idle {
                self.finish_soon(id);
            }
            return Ok(Lookup::Found(found));
        }
        let found = self.find_and_tell(state, spot, &path, who)?;
        // The rights of the directory may have changed after the first check, together with what
        // was found.
        if let Err(errno) = self.may_use(state, caller, spot.0, MAY_SEARCH) {
            if let Ok(found) = found {
                state.names.forget(found.attr.ino, 1);
            }
            return Err(errno);
        }
        match found {
            Ok(found) => {
                // A directory on the way is not what the thread opens, so its mode refuses nothing.
                if found.attr.file_type != FileType::Directory && state.retries.has(tid) {
                    let now = self.0.rooms.clock.mono();
                    state.retries.found(tid, spot, found.attr.ino, now);
                }
                Ok(Lookup::Found(found))
            }
            Err(absent) => {
                if state.retries.has(tid) {
                    state.retries.found_nothing(tid, spot, self.0.rooms.clock.mono());
                }
                self.0.rooms.metrics.misses.add(1);
                // If a file was closed here and removed by another node, its name comes back when
                // the file is opened by a descriptor.
                let comes_back = !state.names.lives(spot).is_empty();
                let asks = comes_back || self.is_divided(state, spot);
                let ttl = if asks { Duration::ZERO } else { self.ttl() };
                drop(guard);
                if self.0.observed.busy.is_watched(|| self.0.rooms.clock.mono()) {
                    self.0.observed.busy.miss(&self.0.rules.profiles, &path);
                }
                self.note_miss(caller, path, absent);
                Ok(Lookup::Missing { ttl })
            }
        }
    }

    /// Leads a thread that looks again in order to write. It finds the live file that it joins, or
    /// an inode that is reserved for the file that it begins. Also returns the live file of the
    /// inode that was reserved for the thread before, if nothing uses that any more.
    fn lead(
        &self,
        state: &mut State,
        tid: u32,
        spot: &DirEntryKey,
        path: &TreePath,
        who: Option<Who>,
    ) -> Option<(Found, Option<LiveId>)> {
        if !state.retries.has(tid) {
            return None;
        }
        let now = self.0.rooms.clock.mono();
        let retry = state.retries.at(tid, spot, now)?;
        let (flags, seat) = (retry.wish.flags()?, retry.seat);
        let ino = self.lead_writer(state, spot, path, who?, flags, seat)?;
        let (attr, _) = self.attr_of(state, ino).ok()?;
        let mut idle = None;
        if seat != Some(ino) {
            if let Some(inode) = state.names.inode_mut(ino) {
                inode.seats += 1;
            }
            idle = seat.and_then(|seat| state.leave_seat(seat));
        }
        state.retries.found(tid, spot, ino, now);
        let retry = state.retries.at(tid, spot, now)?;
        retry.seat = Some(ino);
        state.names.note_found(&attr);
        let found = Found { attr, entry_ttl: Duration::ZERO, attr_ttl: Duration::ZERO };
        Some((found, idle))
    }

    /// Returns the inode that an open of a name for writing needs; `None` where there is nothing to
    /// write to.
    pub(super) fn lead_writer(
        &self,
        state: &mut State,
        spot: &DirEntryKey,
        path: &TreePath,
        who: Who,
        flags: OpenFlags,
        reserved: Option<Ino>,
    ) -> Option<Ino> {
        let seen = self.seen(path);
        if seen.as_ref().is_some_and(|seen| seen.entry.content().is_none()) {
            return None;
        }
        if let Some(id) = state.joinable(spot, seen.as_ref(), who, flags) {
            return state.lives.get(id).map(|live| live.ino);
        }
        let told = match seen {
            Some(seen) => seen.published(),
            None => {
                let newest = state.newest_private(spot)?;
                let entry = state.lives.get(newest)?.entry_now();
                Published { entry, stamp: None, changed_ms: 0 }
            }
        };
        if !flags.truncate {
            return Some(state.names.reserve(spot, told));
        }
        let node = InodeKind::Reserved(told);
        // The thread may have given up another name. The inode that was reserved there is not for
        // this one.
        let is_reserved = |ino: &Ino| {
            state.names.inode(*ino).is_some_and(|inode| {
                matches!(inode.node, InodeKind::Reserved(_)) && inode.last.as_ref() == Some(spot)
            })
        };
        match reserved.filter(is_reserved) {
            Some(ino) => {
                if let Some(inode) = state.names.inode_mut(ino) {
                    inode.node = node;
                }
                Some(ino)
            }
            None => Some(state.names.reserve_alone(spot, node)),
        }
    }

    /// Returns the path of a name that is looked up.
    pub(super) fn path_to_find(state: &State, spot: &DirEntryKey) -> Reply<TreePath> {
        let parent = state.names.inode(spot.0).ok_or(Errno::ESTALE)?;
        if !matches!(parent.node, InodeKind::Directory) {
            return Err(Errno::ENOTDIR);
        }
        state.names.path_of(spot).ok_or_else(|| state.names.why_no_path(spot))
    }

    /// Finds where a name leads for `who`, and answers the kernel with it.
    pub(super) fn find_and_tell(
        &self,
        state: &mut State,
        spot: &DirEntryKey,
        path: &TreePath,
        who: Option<Who>,
    ) -> Reply<Result<Found, Absent>> {
        let (lead, seen) = match self.find(state, spot, path, who) {
            Ok(found) => found,
            Err(absent) => return Ok(Err(absent)),
        };
        // The entry was just read, and is not read again for its attributes.
        if let Some(seen) = seen.filter(|_| state.is_entry(lead.ino)) {
            let attr = self.seen_attr(lead.ino, &seen);
            return Ok(Ok(self.tell(state, Some(spot), attr, self.ttl(), lead.left)));
        }
        self.found(state, lead, Some(spot)).map(Ok)
    }

    /// Returns where a name leads for `who`, and the published version if that is the reason.
    pub(super) fn find(
        &self,
        state: &mut State,
        spot: &DirEntryKey,
        path: &TreePath,
        who: Option<Who>,
    ) -> Result<(Lead, Option<Seen>), Absent> {
        let shown = self.shown(path);
        let live = who.and_then(|who| state.own_live(spot, shown.as_ref().ok(), who));
        let live = match shown {
            Ok(seen) if live.is_none() => {
                let left = seen.left;
                let ino = entry_inode(state, spot, path, seen.clone());
                return Ok((Lead { ino, left }, Some(seen)));
            }
            Ok(_) => live,
            Err(_) => live.or_else(|| state.newest_private(spot)),
        };
        let lead = live.and_then(|id| state.lives.get(id)).map(|live| Lead::lasting(live.ino));
        let absent = shown.err().unwrap_or(Absent { is_known: true });
        lead.map(|lead| (lead, None)).ok_or(absent)
    }

    /// Makes an answer to the kernel from an inode, and counts the lookup. The kernel must not
    /// remember the name for longer than the name leads there.
    pub(super) fn found(
        &self,
        state: &mut State,
        to: Lead,
        spot: Option<&DirEntryKey>,
    ) -> Reply<Found> {
        let Lead { ino, left } = to;
        let (attr, attr_ttl) = self.attr_of(state, ino)?;
        Ok(self.tell(state, spot, attr, attr_ttl, left))
    }

    pub(super) fn tell(
        &self,
        state: &mut State,
        spot: Option<&DirEntryKey>,
        attr: Attr,
        attr_ttl: Duration,
        left: Duration,
    ) -> Found {
        state.names.note_found(&attr);
        let entry_ttl = if spot.is_some_and(|spot| self.is_contested(state, spot)) {
            Duration::ZERO
        } else {
            self.ttl()
        };
        Found { attr, entry_ttl: entry_ttl.min(left), attr_ttl: attr_ttl.min(left) }
    }

    /// Reports whether the kernel must ask for a name each time: the name leads different processes
    /// to different inodes, or may disappear by itself.
    fn is_contested(&self, state: &State, spot: &DirEntryKey) -> bool {
        if self.is_divided(state, spot) {
            return true;
        }
        let seen = || state.names.path_of(spot).and_then(|path| self.seen(&path));
        let here = state.names.lives(spot).iter();
        let private: Vec<LiveId> =
            here.filter(|id| state.is_unpublished(**id, spot)).copied().collect();
        match private[..] {
            [] if !state.lives.has_groups() => false,
            [] => seen().is_some_and(|seen| !state.lives.of_group(seen.entry.link).is_empty()),
            // A live file that began from a version which is gone now takes the name along if it is
            // closed unchanged.
            [id] => {
                seen().is_some()
                    || state.lives.get(id).is_some_and(|live| live.lineage.follows().is_some())
            }
            _ => true,
        }
    }

    /// Returns how long the kernel may cache a name that it gets now, together with the attributes
    /// of a file. This ends earlier if the daemon takes the names back.
    pub(super) fn ttl(&self) -> Duration {
        self.ttl_of(self.0.rooms.freshness.name_ttl())
    }

    /// Returns the time for answers that the kernel does not look up again when names are taken
    /// back. These are attributes of directories, which it requests without their names, and
    /// entries of a listing, which it counts as younger than changes that came meanwhile.
    pub(super) fn brief_ttl(&self) -> Duration {
        self.ttl_of(self.0.rooms.freshness.ttl())
    }

    fn ttl_of(&self, fresh_for: Duration) -> Duration {
        if self.is_forgetful() {
            return Duration::ZERO;
        }
        // An entry that is not remote yet has no age, and may get one while the kernel remembers
        // it. Bytes that are stored for a new entry have at least this time left.
        let unaged_for = self.0.rooms.ledger.age().limit().map(|limit| limit / UNAGED_PART);
        fresh_for.min(TTL_MAX).min(unaged_for.unwrap_or(TTL_MAX))
    }
}

/// Reports whether programs cannot see a name.
pub(super) fn is_hidden(parent: Ino, name: &[u8]) -> bool {
    parent == Ino::ROOT && name == EDITIONS
}
