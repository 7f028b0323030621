//! Lookup: which inode a name leads to, for whom, and for how long.
//!
//! The rules, in order: a thread that was told to look again finds what its open can use; a process finds the
//! live file that it writes itself; other processes find what is published; where nothing is published yet, the
//! newest live file, whose open will wait.
//!
//! Keeps P15 own-node-at-once.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::time::Duration;

use hearthfs_mount::{Answer, Attr, Caller, Errno, FileType, Found, Ino, Lookup, OpenFlags, Reply};

use super::filesystem::Filesystem;
use super::inode::{LiveId, Node, Published, Spot, number_of};
use super::live::Live;
use super::open::DECIDE_TRIES_MAX;
use super::rights::MAY_SEARCH;
use super::state::State;
use super::units::Purpose;
use super::who::Who;
use crate::name::{TreePath, check_name};
use crate::namespace::{EDITIONS, Entry, Fold, Time};
use crate::stamp::Stamp;
use crate::sync::Ledger;

/// The longest that the kernel may take an answer for granted where nothing can change it but itself.
pub(super) const TTL_MAX: Duration = Duration::from_hours(1);
/// Nothing that was published a moment ago expires before this part of the age: bytes that the store has already
/// are relied on for the first half of it, and an entry is a miss a tenth before its end.
const UNAGED_PART: u32 = 4;
/// The longest that the kernel may take the size of a file for granted while it is being written.
pub(super) const TTL_OF_LIVE: Duration = Duration::from_millis(200);

/// What the namespace has under a path.
#[derive(Debug, Clone)]
pub(super) struct Seen {
    pub(super) entry: Entry,
    /// The change that put it; `None` for a directory that was never made.
    pub(super) stamp: Option<Stamp>,
    pub(super) changed_ms: u64,
    /// For how much longer it may be shown.
    pub(super) left: Duration,
}

impl Seen {
    pub(super) fn published(self) -> Published {
        Published { entry: self.entry, stamp: self.stamp, changed_ms: self.changed_ms }
    }
}

/// Where a name leads.
#[derive(Debug, Clone, Copy)]
pub(super) struct Lead {
    pub(super) ino: Ino,
    /// For how much longer.
    pub(super) left: Duration,
}

impl Lead {
    /// Makes one that does not age: what is being written, or was published a moment ago.
    pub(super) fn lasting(ino: Ino) -> Self {
        Self { ino, left: Duration::MAX }
    }
}

/// Reads what the namespace has under a path, before anything is hidden or has expired.
pub(super) fn seen_in(fold: &Fold, path: &TreePath) -> Option<Seen> {
    if let Some(register) = fold.visible(path) {
        let (stamp, changed_ms) = (Some(register.stamp), register.changed_ms());
        return register.entry.map(|entry| Seen { entry, stamp, changed_ms, left: Duration::MAX });
    }
    (!path.is_root() && fold.is_directory(path)).then(implied_directory)
}

/// Returns a directory that exists only because something lies below it.
pub(super) fn implied_directory() -> Seen {
    let entry = Entry::directory(0o755, 0, 0, Time::default());
    Seen { entry, stamp: None, changed_ms: 0, left: Duration::MAX }
}

/// Reads what is visible under a path: its bytes can be had, and it is not past its age.
pub(super) fn shown_in(ledger: &Ledger, fold: &Fold, path: &TreePath) -> Option<Seen> {
    let seen = seen_in(fold, path)?;
    let changed_ms = seen.stamp.map(|_| seen.changed_ms);
    let left = ledger.shown(fold, path, &seen.entry, changed_ms)?;
    Some(Seen { left, ..seen })
}

impl Filesystem {
    /// Reads what is visible under a path: in the namespace, its bytes can be had, and not past its age.
    pub(super) fn seen(&self, path: &TreePath) -> Option<Seen> {
        let ledger = &self.0.rooms.ledger;
        let seen = ledger.read(|fold| shown_in(ledger, fold, path));
        self.keep_order();
        seen
    }

    /// Reports whether an inode is what its name still has, though it is hidden: its bytes are lost, or it is past
    /// its age. What another node has removed is not.
    pub(super) fn hides(&self, state: &State, spot: &Spot, ino: Ino) -> bool {
        let path = state.names.path_of(spot).filter(|_| state.names.bound(spot) == Some(ino));
        let held = path.and_then(|path| self.0.rooms.ledger.read(|fold| seen_in(fold, &path)));
        held.is_some_and(|held| state.is_version(ino, &held))
    }

    /// Returns who asks, if that can make a difference for this name: finding out costs a look into
    /// `/proc`.
    fn who_for(&self, caller: &Caller, spot: &Spot) -> Option<Who> {
        let matters = {
            let state = self.0.state.lock();
            !state.names.lives(spot).is_empty()
                || state.lives.has_groups()
                || state.retries.has(caller.tid)
        };
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
        let real: Spot = (parent, name.into());
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
                this.settle_or_keep(id, &mut moved).await;
            }
            let spot = this.routed(&caller, real.clone(), Purpose::Find)?;
            this.look_up_routed(&caller, &real, spot)
        })
    }

    /// Answers from what is known now, and anew where a version of a unit came meanwhile that the caller does not read.
    fn look_up_routed(&self, caller: &Caller, real: &Spot, mut spot: Spot) -> Reply<Lookup> {
        for _ in 0..DECIDE_TRIES_MAX {
            let who = self.who_for(caller, &spot);
            let reply = self.look_up_now(caller, &spot, who)?;
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
    fn is_writing(&self, spot: &Spot, who: Who) -> bool {
        let state = self.0.state.lock();
        let mut lives = state.names.lives(spot).iter().filter_map(|id| state.lives.get(*id));
        lives.any(|live| live.has_member(who) && live.open > 0)
    }

    /// Returns the live file that a thread which looks again would find here and could not use: it was closed, and
    /// is about to be released.
    fn lingers_for(
        &self,
        caller: &Caller,
        spot: &Spot,
        who: Option<Who>,
    ) -> Option<(LiveId, tokio::sync::watch::Receiver<()>)> {
        let now = self.0.rooms.clock.mono();
        let mut state = self.0.state.lock();
        let wish = state.retries.at(caller.tid, spot, now)?.wish;
        let id = state.names.inode(state.names.bound(spot)?)?.live()?;
        let live = state.lives.get(id)?;
        let waits = match wish {
            None => !live.has_member(who?),
            Some(flags) => !flags.truncate,
        };
        let lingers = waits && live.version().is_some() && !live.is_held(now);
        lingers.then(|| (id, live.moved.subscribe()))
    }

    /// Answers from what is known now.
    fn look_up_now(&self, caller: &Caller, spot: &Spot, who: Option<Who>) -> Reply<Lookup> {
        let tid = caller.tid;
        let mut guard = self.0.state.lock();
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
        // What was found may have come with other rights of the directory, after the first look at these.
        if let Err(errno) = self.may_use(state, caller, spot.0, MAY_SEARCH) {
            if let Some(found) = found {
                state.names.forget(found.attr.ino, 1);
            }
            return Err(errno);
        }
        match found {
            Some(found) => {
                // A directory on the way is not what the thread opens: its mode refuses nothing.
                if found.attr.file_type != FileType::Directory {
                    let now = self.0.rooms.clock.mono();
                    state.retries.found(tid, spot, found.attr.ino, now);
                }
                Ok(Lookup::Found(found))
            }
            None => {
                state.retries.found_nothing(tid, spot, self.0.rooms.clock.mono());
                self.0.rooms.metrics.misses.add(1);
                let ttl = if self.is_divided(state, spot) { Duration::ZERO } else { self.ttl() };
                drop(guard);
                if self.0.busy.is_watched(|| self.0.rooms.clock.mono()) {
                    self.0.busy.miss(&self.0.rules.profiles, &path);
                }
                self.note_miss(caller, path);
                Ok(Lookup::Missing { ttl })
            }
        }
    }

    /// Leads a thread that looks again in order to write to what it can write: the live file that it joins, or an
    /// inode that is reserved for what it begins. Returns as well the live file that waited for it in vain.
    fn lead(
        &self,
        state: &mut State,
        tid: u32,
        spot: &Spot,
        path: &TreePath,
        who: Option<Who>,
    ) -> Option<(Found, Option<LiveId>)> {
        let now = self.0.rooms.clock.mono();
        let retry = state.retries.at(tid, spot, now)?;
        let (flags, seat) = (retry.wish?, retry.seat);
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
        state.names.count_lookup(ino);
        let found = Found { attr, entry_ttl: Duration::ZERO, attr_ttl: Duration::ZERO };
        Some((found, idle))
    }

    /// Returns the inode that an open for writing of a name needs; `None` where there is nothing to write.
    pub(super) fn lead_writer(
        &self,
        state: &mut State,
        spot: &Spot,
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
        let node = Node::Reserved(told);
        // The thread may have given up another name, and what was reserved there is not for this one.
        let is_reserved = |ino: &Ino| {
            state.names.inode(*ino).is_some_and(|inode| {
                matches!(inode.node, Node::Reserved(_)) && inode.last.as_ref() == Some(spot)
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

    /// Returns the path of a name that is looked for.
    pub(super) fn path_to_find(state: &State, spot: &Spot) -> Reply<TreePath> {
        let parent = state.names.inode(spot.0).ok_or(Errno::ESTALE)?;
        if !matches!(parent.node, Node::Directory) {
            return Err(Errno::ENOTDIR);
        }
        state.names.path_of(spot).ok_or_else(|| state.names.why_no_path(spot))
    }

    /// Finds where a name leads for `who`, and tells the kernel of it.
    pub(super) fn find_and_tell(
        &self,
        state: &mut State,
        spot: &Spot,
        path: &TreePath,
        who: Option<Who>,
    ) -> Reply<Option<Found>> {
        let Some((lead, seen)) = self.find(state, spot, path, who) else { return Ok(None) };
        // What was just read need not be read again for its attributes.
        if let Some(seen) = seen.filter(|_| state.is_entry(lead.ino)) {
            let attr = self.seen_attr(lead.ino, &seen);
            return Ok(Some(self.tell(state, Some(spot), attr, self.ttl(), lead.left)));
        }
        self.found(state, lead, Some(spot)).map(Some)
    }

    /// Returns where a name leads for `who`, and what is published there if that is why.
    pub(super) fn find(
        &self,
        state: &mut State,
        spot: &Spot,
        path: &TreePath,
        who: Option<Who>,
    ) -> Option<(Lead, Option<Seen>)> {
        let seen = self.seen(path);
        if let Some(id) = who.and_then(|who| state.own_live(spot, seen.as_ref(), who)) {
            return state.lives.get(id).map(|live| (Lead::lasting(live.ino), None));
        }
        if let Some(seen) = seen {
            let left = seen.left;
            let ino = entry_inode(state, spot, path, seen.clone());
            return Some((Lead { ino, left }, Some(seen)));
        }
        let newest = state.newest_private(spot)?;
        state.lives.get(newest).map(|live| (Lead::lasting(live.ino), None))
    }

    /// Tells the kernel of an inode, and counts that it was told. It must not remember the name for longer
    /// than the name leads there.
    pub(super) fn found(&self, state: &mut State, to: Lead, spot: Option<&Spot>) -> Reply<Found> {
        let Lead { ino, left } = to;
        let (attr, attr_ttl) = self.attr_of(state, ino)?;
        Ok(self.tell(state, spot, attr, attr_ttl, left))
    }

    fn tell(
        &self,
        state: &mut State,
        spot: Option<&Spot>,
        attr: Attr,
        attr_ttl: Duration,
        left: Duration,
    ) -> Found {
        state.names.count_lookup(attr.ino);
        let entry_ttl = if spot.is_some_and(|spot| self.is_contested(state, spot)) {
            Duration::ZERO
        } else {
            self.ttl()
        };
        Found { attr, entry_ttl: entry_ttl.min(left), attr_ttl: attr_ttl.min(left) }
    }

    /// Reports whether a name leads different processes to different inodes, or may go by itself, or be renamed into a
    /// draft, so that the kernel must ask each time.
    fn is_contested(&self, state: &State, spot: &Spot) -> bool {
        if state.names.is_unremembered(spot) || self.is_divided(state, spot) {
            return true;
        }
        let seen = || state.names.path_of(spot).and_then(|path| self.seen(&path));
        let here = state.names.lives(spot).iter();
        let private: Vec<LiveId> =
            here.filter(|id| state.is_unpublished(**id, spot)).copied().collect();
        match private[..] {
            [] if !state.lives.has_groups() => false,
            [] => seen().is_some_and(|seen| !state.lives.of_group(seen.entry.link).is_empty()),
            // What was begun from a version that has gone takes the name along when it is closed as it was.
            [id] => {
                seen().is_some() || state.lives.get(id).is_some_and(|live| live.began.is_some())
            }
            _ => true,
        }
    }

    /// Returns how long the kernel may take a name that it is told now for granted, with the attributes of a
    /// file: until it is told to look again.
    pub(super) fn ttl(&self) -> Duration {
        self.ttl_of(self.0.rooms.freshness.name_ttl())
    }

    /// Returns the same of what the kernel does not look up again when it is told to: attributes of
    /// directories, which it asks for without their names, and what a listing brings, which it takes for
    /// younger than what it was told meanwhile.
    pub(super) fn brief_ttl(&self) -> Duration {
        self.ttl_of(self.0.rooms.freshness.ttl())
    }

    fn ttl_of(&self, fresh_for: Duration) -> Duration {
        if self.is_forgetful() {
            return Duration::ZERO;
        }
        // What is not remote yet has no age, and gets one while the kernel remembers it: of what is stored for
        // a new entry, at least this is left.
        let unaged_for = self.0.rooms.ledger.age().limit().map(|limit| limit / UNAGED_PART);
        fresh_for.min(TTL_MAX).min(unaged_for.unwrap_or(TTL_MAX))
    }
}

/// Reports whether a name is one that programs cannot see.
pub(super) fn is_hidden(parent: Ino, name: &[u8]) -> bool {
    parent == Ino::ROOT && name == EDITIONS
}

/// Returns what goes into the number of a published entry beside its path.
pub(super) fn version_of(entry: &Entry, stamp: Stamp) -> Vec<u8> {
    // A directory is the same whichever node made it last: what is open below it is found by its number, also by
    // a kernel that forgot it meanwhile.
    if entry.is_directory() { Vec::new() } else { stamp.sortable().into_bytes() }
}

/// Returns the inode of a published entry, making or replacing it where the kernel knows another version.
pub(super) fn entry_inode(state: &mut State, spot: &Spot, path: &TreePath, seen: Seen) -> Ino {
    if let Some(ino) = state.names.bound(spot) {
        if still_holds(state, ino, &seen) {
            return ino;
        }
        state.names.unbind(spot);
    }
    if let Some(ino) = seen.entry.link.and_then(|group| state.names.group(group))
        && still_holds(state, ino, &seen)
    {
        state.names.bind(spot, ino);
        return ino;
    }
    let version = seen.stamp.map_or(Vec::new(), |stamp| version_of(&seen.entry, stamp));
    let mut ino = number_of(path.as_bytes(), &version);
    while state.names.inode(ino).is_some() {
        ino = Ino((ino.0 + 1).max(2));
    }
    let link = seen.entry.link;
    let node =
        if seen.entry.is_directory() { Node::Directory } else { Node::Entry(seen.published()) };
    state.names.add(ino, node);
    state.names.bind(spot, ino);
    state.names.set_group(link, ino);
    ino
}

/// Reports whether an inode is still what the namespace has, and refreshes its attributes.
fn still_holds(state: &mut State, ino: Ino, seen: &Seen) -> bool {
    let Some(inode) = state.names.inode_mut(ino) else { return false };
    match &mut inode.node {
        Node::Directory => seen.entry.is_directory(),
        Node::Entry(published) if published.is(&seen.entry, seen.stamp) => {
            published.entry.attrs = seen.entry.attrs.clone();
            published.changed_ms = seen.changed_ms;
            true
        }
        Node::Live(id) => state
            .lives
            .get(*id)
            .and_then(Live::version)
            .is_some_and(|version| version.published.is(&seen.entry, seen.stamp)),
        _ => false,
    }
}
