//! Lookup: which inode a name leads to, for whom, and for how long.
//!
//! The rules, in order: a process finds the generation that it writes itself; everybody else finds what
//! is published; where nothing is published yet, the newest generation, whose open will wait.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::time::Duration;

use hearthfs_mount::{Answer, Attr, Caller, Errno, Found, Ino, Lookup, Reply};

use super::attrs::attr_from;
use super::beginning::Beginning;
use super::filesystem::Filesystem;
use super::inode::{Inode, Node, Spot, number_of};
use super::state::State;
use super::who::Who;
use super::writing::Writing;
use crate::name::{TreePath, check_name};
use crate::namespace::{Entry, Fold, Time};
use crate::stamp::Stamp;
use crate::sync::Ledger;

/// The longest that the kernel may take an answer for granted where nothing can change it but itself.
pub(super) const TTL_MAX: Duration = Duration::from_hours(1);
/// Nothing that was published a moment ago expires before this part of the age: bytes that the store has already
/// are relied on for the first half of it, and an entry is a miss a tenth before its end.
const UNAGED_PART: u32 = 4;
/// The longest that the kernel may take the size of a file for granted while it is being written.
pub(super) const TTL_OF_GENERATION: Duration = Duration::from_millis(200);

/// What the namespace has under a path.
#[derive(Debug, Clone)]
pub(super) struct Seen {
    pub(super) entry: Entry,
    /// The change that put it; `None` for a directory that nobody made.
    pub(super) stamp: Option<Stamp>,
    pub(super) changed_ms: u64,
    /// For how much longer it may be shown.
    pub(super) left: Duration,
}

/// Where a name leads.
#[derive(Debug, Clone, Copy)]
pub(super) struct Lead {
    pub(super) ino: Ino,
    /// For how much longer.
    pub(super) left: Duration,
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

/// Reports whether two entries are the same file, attributes aside.
pub(super) fn same_content(one: &Entry, two: &Entry) -> bool {
    one.kind == two.kind && one.link == two.link
}

impl Filesystem {
    /// Reads what is visible under a path: in the namespace, its bytes can be had, and not past its age.
    pub(super) fn seen(&self, path: &TreePath) -> Option<Seen> {
        let ledger = &self.0.rooms.ledger;
        let seen = ledger.read(|fold| shown_in(ledger, fold, path));
        self.keep_order();
        seen
    }

    /// Returns who asks, if that can make a difference for this name: finding out costs a look into
    /// `/proc`.
    pub(super) fn who_for(&self, caller: &Caller, spot: &Spot) -> Option<Who> {
        let contested = {
            let state = self.0.state.lock();
            state.slots.get(spot).is_some_and(|slot| !slot.generations.is_empty())
                || !state.linked.is_empty()
                || state.detours.is_on(caller.tid)
        };
        contested.then(|| self.0.callers.who(caller))
    }

    pub(super) fn look_up(&self, caller: &Caller, parent: Ino, name: &OsStr) -> Answer<Lookup> {
        let name = name.as_bytes();
        if let Err(error) = check_name(name) {
            return Err(super::errno::of_path(error)).into();
        }
        let spot: Spot = (parent, name.into());
        self.0.rooms.freshness.note_activity();
        let who = self.who_for(caller, &spot);
        if self.0.rooms.freshness.ready()
            || who.is_some_and(|who| {
                let state = self.0.state.lock();
                state.own_generation(&spot, who).is_some() || state.detours.is_on(caller.tid)
            })
        {
            return self.look_up_now(caller.tid, &spot, who).into();
        }
        let (this, caller) = (self.clone(), *caller);
        Answer::later(async move {
            this.0.rooms.freshness.wait_fresh(this.0.rules.deadline).await;
            let who = this.who_for(&caller, &spot);
            this.look_up_now(caller.tid, &spot, who)
        })
    }

    /// Answers from what is known now.
    fn look_up_now(&self, tid: u32, spot: &Spot, who: Option<Who>) -> Reply<Lookup> {
        let mut state = self.0.state.lock();
        let path = Self::path_to_find(&state, spot)?;
        if let Some(found) = self.promise(&mut state, tid, spot, &path, who) {
            return Ok(Lookup::Found(found));
        }
        match self.find_and_tell(&mut state, spot, &path, who)? {
            Some(found) => Ok(Lookup::Found(found)),
            None => {
                state.detours.miss(tid, spot);
                self.0.rooms.metrics.misses.add(1);
                Ok(Lookup::Missing { ttl: self.ttl() })
            }
        }
    }

    /// Promises a caller who was sent back, and will begin a version of his own, the inode of that: whatever
    /// becomes of the name until he opens it, he need not be sent back again.
    fn promise(
        &self,
        state: &mut State,
        tid: u32,
        spot: &Spot,
        path: &TreePath,
        who: Option<Who>,
    ) -> Option<Found> {
        let (flags, promised) = state.detours.wish(tid, spot, self.0.rooms.clock.mono())?;
        let who = who?;
        let (Lead { ino: natural, .. }, _) = self.find(state, spot, path, Some(who))?;
        state.detours.lead(tid, natural);
        let Ok(Writing::Begin { spot, base }) = self.plan_write_at(state, spot.clone(), who, flags)
        else {
            return None;
        };
        let entry = base.clone().or_else(|| state.entry_of(natural))?;
        let asked = Beginning { base, ..Beginning::of(spot, who, flags, Some(natural)) };
        if asked.stand(state).inode() == Some(natural) {
            return None;
        }
        let kept = promised.filter(|ino| state.is_promised(*ino));
        let ino = kept.unwrap_or_else(|| state.fresh_ino());
        let attr = attr_from(ino, &entry, entry.attrs.mtime, self.names_of(&entry).unwrap_or(1));
        let inode =
            state.inodes.entry(ino).or_insert_with(|| Inode::new(Node::Gone(entry.clone()), None));
        (inode.node, inode.last) = (Node::Promised(entry), Some(asked.spot));
        state.detours.promise(tid, ino);
        state.count_lookup(ino);
        Some(Found { attr, entry_ttl: Duration::ZERO, attr_ttl: Duration::ZERO })
    }

    /// Returns the path of a name that is looked for.
    pub(super) fn path_to_find(state: &State, spot: &Spot) -> Reply<TreePath> {
        let parent = state.inodes.get(&spot.0).ok_or(Errno::ESTALE)?;
        if !matches!(parent.node, Node::Directory) {
            return Err(Errno::ENOTDIR);
        }
        state.path_of(spot).ok_or_else(|| state.why_no_path(spot))
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
        let version = state.inodes.get(&lead.ino).is_some_and(Inode::is_version);
        if let Some(seen) = seen.filter(|_| version) {
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
        if let Some(id) = who.and_then(|who| state.own_generation(spot, who)) {
            return state.generations.get(&id).map(|g| (Lead::lasting(g.home()), None));
        }
        if let Some(seen) = self.seen(path) {
            let own = who.and_then(|who| state.own_linked(&seen.entry, who));
            if let Some(generation) = own.and_then(|id| state.generations.get(&id)) {
                return Some((Lead::lasting(generation.home()), None));
            }
            let left = seen.left;
            let ino = version_inode(state, spot, path, seen.clone());
            return Some((Lead { ino, left }, Some(seen)));
        }
        let newest = state
            .private_generations(spot)
            .filter(|id| state.generations.get(id).is_some_and(|g| !g.guest))
            .last();
        let newest = newest.and_then(|id| state.generations.get(&id));
        newest.map(|generation| (Lead::lasting(generation.home()), None))
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
        state.count_lookup(attr.ino);
        let entry_ttl = if spot.is_some_and(|spot| self.is_contested(state, spot)) {
            Duration::ZERO
        } else {
            self.ttl()
        };
        Found { attr, entry_ttl: entry_ttl.min(left), attr_ttl: attr_ttl.min(left) }
    }

    /// Reports whether a name leads different processes to different inodes, so that the kernel must ask
    /// each time.
    fn is_contested(&self, state: &State, spot: &Spot) -> bool {
        let seen = || state.path_of(spot).and_then(|path| self.seen(&path));
        match state.private_generations(spot).count() {
            0 if state.linked.is_empty() => false,
            0 => seen().is_some_and(|seen| state.linked(&seen.entry).next().is_some()),
            1 => seen().is_some(),
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

impl Lead {
    /// Makes one that does not age: what is being written, or was published a moment ago.
    pub(super) fn lasting(ino: Ino) -> Self {
        Self { ino, left: Duration::MAX }
    }
}

/// Returns what goes into the number of a published entry beside its path.
pub(super) fn version_of(entry: &Entry, stamp: Stamp) -> Vec<u8> {
    // A directory is the same whoever made it last: what is open below it is found by its number, also by
    // a kernel that forgot it meanwhile.
    if entry.is_directory() { Vec::new() } else { stamp.sortable().into_bytes() }
}

/// Returns the inode of a published entry, making or replacing it where the kernel knows another version.
pub(super) fn version_inode(state: &mut State, spot: &Spot, path: &TreePath, seen: Seen) -> Ino {
    if let Some(ino) = state.slots.get(spot).and_then(|slot| slot.published) {
        if still_holds(state, ino, &seen) {
            return ino;
        }
        state.unbind(spot);
    }
    if let Some(group) = seen.entry.link
        && let Some(ino) = state.groups.get(&group).copied()
        && still_holds(state, ino, &seen)
    {
        state.bind(spot, ino);
        return ino;
    }
    let version = seen.stamp.map_or(Vec::new(), |stamp| version_of(&seen.entry, stamp));
    let mut ino = number_of(path.as_bytes(), &version);
    while state.inodes.contains_key(&ino) {
        ino = Ino((ino.0 + 1).max(2));
    }
    let link = seen.entry.link;
    let node = if seen.entry.is_directory() {
        Node::Directory
    } else {
        Node::Version { entry: seen.entry, changed_ms: seen.changed_ms }
    };
    state.inodes.insert(ino, Inode::new(node, None));
    state.bind(spot, ino);
    if let Some(group) = link {
        state.groups.insert(group, ino);
    }
    ino
}

/// Reports whether an inode is still what the namespace has, and refreshes its attributes.
fn still_holds(state: &mut State, ino: Ino, seen: &Seen) -> bool {
    let Some(inode) = state.inodes.get_mut(&ino) else { return false };
    match &mut inode.node {
        Node::Directory => seen.entry.is_directory(),
        Node::Version { entry, changed_ms } if same_content(entry, &seen.entry) => {
            entry.attrs = seen.entry.attrs.clone();
            *changed_ms = seen.changed_ms;
            true
        }
        Node::Generation(id) => state
            .generations
            .get(id)
            .and_then(|generation| generation.published.as_ref())
            .is_some_and(|published| same_content(&published.entry, &seen.entry)),
        Node::Version { .. } | Node::Gone(_) | Node::Promised(_) => false,
    }
}
