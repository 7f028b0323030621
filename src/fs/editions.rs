//! Editions: the versions of units that single processes have.
//!
//! Owns the table of editions. Must never read the namespace or the disk.

pub(super) mod unfinished;
pub(super) mod version;

use std::sync::Arc;
use std::time::Duration;

use hearthfs_mount::{Caller, Ino, Watched};

use self::unfinished::Unfinished;
use self::version::{UnitName, Version};
use super::shares::Shares;
use super::who::Who;
use crate::hashing::{FastMap, FastSet};
use crate::name::{TreePath, directories_above};
use crate::namespace::{EDITION_COUNTS_FOR, EDITIONS_LISTED_MAX, Writers};

/// The most processes that write one draft. A further process writes ordinary files.
const WRITERS_MAX: usize = 1024;

/// The most units for which it is remembered that a warning was logged. Beyond that the warning is
/// logged again.
const TROUBLED_MAX: usize = 1024;

/// The number of an edition.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub(super) struct EditionId(pub(super) u64);

/// A directory of the namespace that holds an edition.
#[derive(Debug)]
pub(super) struct Draft {
    pub(super) path: TreePath,
    /// The inodes of its directories, by their paths below it. The first is the draft's own.
    pub(super) dirs: Vec<(TreePath, Ino)>,
}

/// A process that writes a draft.
#[derive(Debug, Clone)]
pub(super) struct Writer {
    pub(super) who: Who,
    /// `None` where it cannot be watched. Its end is unknown then.
    pub(super) watched: Option<Arc<Watched>>,
}

/// What a process has of a unit.
#[derive(Debug)]
pub(super) struct Edition {
    pub(super) unit: UnitName,
    /// The user whose share it counts against.
    pub(super) user: u32,
    pub(super) shared: Writers,
    /// The version that it began with.
    base: Arc<Version>,
    pub(super) draft: Option<Draft>,
    /// The processes that write it; empty while no process does.
    pub(super) writers: Vec<Writer>,
    /// The processes whose files were published, or given up, before a marker came.
    unfinished: Vec<Writer>,
    /// A process that wrote it was killed, or it is unknown how that process ended.
    pub(super) one_killed: bool,
    /// Its directory is being made, so its version must not change.
    pub(super) drafting: bool,
    /// It has ended, and no name leads to it any more.
    pub(super) ended: bool,
    /// The caller that wrote it last. Its rights decide what may be published.
    pub(super) caller: Caller,
    /// An entry point was written, and no marker after it.
    pub(super) open_ended: bool,
    /// The last open of its entry point, or the last write to it, by the monotonic clock.
    used: Duration,
    /// Changes with each of these uses.
    uses: u64,
    /// Its draft could not be published. The next try comes at this time at the earliest.
    pub(super) not_before: Duration,
}

impl Edition {
    /// Makes the edition of a process that has not read or written anything of the unit yet.
    pub(super) fn new(
        unit: UnitName,
        shared: Writers,
        base: Arc<Version>,
        caller: Caller,
        now: Duration,
    ) -> Self {
        Self {
            unit,
            user: caller.uid,
            shared,
            base,
            draft: None,
            writers: Vec::new(),
            unfinished: Vec::new(),
            one_killed: false,
            drafting: false,
            ended: false,
            caller,
            open_ended: false,
            used: now,
            uses: 0,
            not_before: Duration::ZERO,
        }
    }

    /// Notes that its entry point is opened, or that it is written to.
    pub(super) fn note_use(&mut self, now: Duration) {
        self.used = now;
        self.uses += 1;
    }

    pub(super) fn used(&self) -> Duration {
        self.used
    }

    /// Returns a number that changes with each use.
    pub(super) fn uses(&self) -> u64 {
        self.uses
    }

    /// Adds a process that writes it. Returns false if there are too many.
    #[must_use]
    pub(super) fn add_writer(&mut self, writer: Writer) -> bool {
        let known = self.writers.iter().any(|known| known.who == writer.who);
        if !known && self.writers.len() >= WRITERS_MAX {
            return false;
        }
        if !known {
            self.writers.push(writer);
        }
        true
    }

    pub(super) fn base(&self) -> &Arc<Version> {
        &self.base
    }

    fn counts_for(&self) -> u64 {
        EDITION_COUNTS_FOR + self.base.counts_for() as u64
    }

    pub(super) fn is_written(&self) -> bool {
        !self.writers.is_empty()
    }
}

/// All editions.
#[derive(Debug)]
pub(super) struct Editions {
    all: FastMap<EditionId, Edition>,
    of: FastMap<(Who, UnitName), EditionId>,
    /// The editions of each unit.
    units: FastMap<UnitName, Vec<EditionId>>,
    /// The directories of these units, with the number of units in each.
    unit_dirs: FastMap<TreePath, usize>,
    /// The edition that each directory of a draft belongs to.
    dirs: FastMap<Ino, EditionId>,
    /// Units that could not get a draft and for which a warning was logged.
    troubled: FastSet<UnitName>,
    pub(super) unfinished: Unfinished,
    shares: Shares,
    next: u64,
}

impl Default for Editions {
    fn default() -> Self {
        Self {
            all: FastMap::default(),
            of: FastMap::default(),
            units: FastMap::default(),
            unit_dirs: FastMap::default(),
            dirs: FastMap::default(),
            troubled: FastSet::default(),
            unfinished: Unfinished::default(),
            shares: Shares::new(EDITIONS_LISTED_MAX),
            next: 0,
        }
    }
}

impl Editions {
    pub(super) fn is_empty(&self) -> bool {
        self.all.is_empty()
    }

    pub(super) fn get(&self, id: EditionId) -> Option<&Edition> {
        self.all.get(&id)
    }

    pub(super) fn get_mut(&mut self, id: EditionId) -> Option<&mut Edition> {
        self.all.get_mut(&id)
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (EditionId, &Edition)> {
        self.all.iter().map(|(id, edition)| (*id, edition))
    }

    /// Returns the edition that a process has of a unit.
    pub(super) fn of(&self, who: Who, unit: &UnitName) -> Option<EditionId> {
        self.of.get(&(who, unit.clone())).copied()
    }

    /// Returns the edition that the next write of a process goes to: its own edition if the process
    /// writes that already, or the draft that all writers of the unit share. Processes of different
    /// users share no draft, because each has rights of its own.
    pub(super) fn to_write(&self, who: Who, user: u32, unit: &UnitName) -> Option<EditionId> {
        let own = self.of(who, unit);
        let is_written = |id: &EditionId| self.all.get(id).is_some_and(Edition::is_written);
        if own.as_ref().is_some_and(is_written) {
            return own;
        }
        let shared = |id: &EditionId| {
            self.all.get(id).is_some_and(|edition| {
                edition.shared == Writers::Several && edition.user == user && edition.is_written()
            })
        };
        let shared = self.units.get(unit).and_then(|ids| ids.iter().copied().find(shared));
        shared.or(own)
    }

    /// Reports whether any process has an edition of a unit.
    pub(super) fn has(&self, unit: &UnitName) -> bool {
        self.units.contains_key(unit)
    }

    /// Yields all editions of a unit.
    pub(super) fn of_unit(&self, unit: &UnitName) -> impl Iterator<Item = &Edition> {
        self.units.get(unit).into_iter().flatten().filter_map(|id| self.all.get(id))
    }

    /// Reports whether a path may lead into an edition: a cheap first check, which most paths do
    /// not pass.
    pub(super) fn is_near(&self, path: &TreePath) -> bool {
        if self.unit_dirs.is_empty() {
            return false;
        }
        let mut above = directories_above(path.as_bytes()).chain([&b""[..]]);
        above.any(|dir| self.unit_dirs.contains_key(dir))
    }

    /// Returns the edition whose draft contains this directory.
    pub(super) fn of_dir(&self, dir: Ino) -> Option<EditionId> {
        self.dirs.get(&dir).copied()
    }

    /// Gives an edition the version that it shows from now on. Returns false, and keeps the old
    /// version, if the user may not list that many members.
    #[must_use]
    pub(super) fn rebase(&mut self, id: EditionId, base: Arc<Version>) -> bool {
        let Some(edition) = self.all.get_mut(&id) else { return false };
        let (user, before) = (edition.user, edition.counts_for());
        let old = std::mem::replace(&mut edition.base, base);
        self.shares.give_back(user, before);
        let fits = self.shares.take(user, edition.counts_for());
        if !fits {
            edition.base = old;
            self.shares.add(user, before);
        }
        fits
    }

    /// Reports whether this is the first time that the unit gets no draft.
    pub(super) fn is_first_trouble(&mut self, unit: &UnitName) -> bool {
        if self.troubled.len() >= TROUBLED_MAX {
            self.troubled.clear();
        }
        self.troubled.insert(unit.clone())
    }

    /// Adds an edition for a process that has none of this unit; `None` if the user may have no
    /// more.
    pub(super) fn add(&mut self, who: Who, edition: Edition) -> Option<EditionId> {
        if !self.shares.take(edition.user, edition.counts_for()) {
            return None;
        }
        self.next += 1;
        let id = EditionId(self.next);
        let ids = self.units.entry(edition.unit.clone()).or_default();
        if ids.is_empty() {
            *self.unit_dirs.entry(edition.unit.dir()).or_default() += 1;
        }
        ids.push(id);
        self.of.insert((who, edition.unit.clone()), id);
        self.all.insert(id, edition);
        Some(id)
    }

    /// Gives an edition to one more process.
    pub(super) fn join(&mut self, who: Who, id: EditionId) {
        if let Some(edition) = self.all.get(&id) {
            self.of.insert((who, edition.unit.clone()), id);
        }
    }

    /// Takes an edition from a process, unless no other process has it. Returns whether no other
    /// process has it.
    pub(super) fn leave(&mut self, who: Who, id: EditionId) -> bool {
        let others = self.of.iter().any(|((other, _), of)| *of == id && *other != who);
        if others && let Some(edition) = self.all.get(&id) {
            let of = (who, edition.unit.clone());
            // The process may have another edition by now.
            if self.of.get(&of) == Some(&id) {
                self.of.remove(&of);
            }
        }
        !others
    }

    /// Adds a directory to an edition's draft.
    pub(super) fn add_dir(&mut self, id: EditionId, path: TreePath, dir: Ino) {
        if let Some(draft) = self.all.get_mut(&id).and_then(|edition| edition.draft.as_mut()) {
            draft.dirs.push((path, dir));
            self.dirs.insert(dir, id);
        }
    }

    /// Takes an edition away from its processes: names do not lead there any more.
    pub(super) fn take_away(&mut self, id: EditionId) {
        let Some(edition) = self.all.get_mut(&id) else { return };
        edition.ended = true;
        self.of.retain(|_, other| *other != id);
        if let Some(ids) = self.units.get_mut(&edition.unit) {
            ids.retain(|other| *other != id);
            if ids.is_empty() {
                self.units.remove(&edition.unit);
                let dir = edition.unit.dir();
                if let Some(count) = self.unit_dirs.get_mut(&dir) {
                    *count -= 1;
                    if *count == 0 {
                        self.unit_dirs.remove(&dir);
                    }
                }
            }
        }
    }

    /// Ends the writing of an edition; `version` is what it has published. `done` says whether that completes what its
    /// processes have begun: a marker was published, or the directory of the unit goes.
    pub(super) fn rest(&mut self, id: EditionId, done: bool, version: Version) {
        let Some(edition) = self.all.get_mut(&id) else { return };
        let writers = std::mem::take(&mut edition.writers);
        edition.unfinished.retain(|known| writers.iter().all(|writer| writer.who != known.who));
        edition.unfinished.extend(writers);
        edition.unfinished.truncate(WRITERS_MAX);
        (edition.one_killed, edition.open_ended) = (false, false);
        if done {
            for writer in edition.unfinished.drain(..) {
                self.unfinished.forget(writer.who, &edition.unit);
            }
        }
        // If it has too many members to list them, the mark still identifies the version.
        let bare = Version { mark: version.mark, ..Version::default() };
        let fits = self.rebase(id, version.into()) || self.rebase(id, bare.into());
        debug_assert!(fits, "a version without members fits where the edition did");
    }

    /// Notes that an edition is about to end that was written to, and not completed.
    pub(super) fn note_unfinished(&mut self, id: EditionId) {
        let Some(edition) = self.all.get_mut(&id) else { return };
        for writer in std::mem::take(&mut edition.unfinished) {
            self.unfinished.add(writer, &edition.unit, edition.base.mark);
        }
    }

    /// Removes an edition from the table.
    pub(super) fn remove(&mut self, id: EditionId) -> Option<Edition> {
        self.take_away(id);
        let edition = self.all.remove(&id)?;
        self.shares.give_back(edition.user, edition.counts_for());
        self.dirs.retain(|_, other| *other != id);
        Some(edition)
    }

    /// Forgets writers of an edition that have ended; the others go on.
    pub(super) fn forget_writers(&mut self, id: EditionId, ended: &[Who], one_killed: bool) {
        let Some(edition) = self.all.get_mut(&id) else { return };
        edition.writers.retain(|writer| !ended.contains(&writer.who));
        edition.one_killed |= one_killed;
        for who in ended {
            self.of.remove(&(*who, edition.unit.clone()));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn version(members: usize) -> Version {
        let entry =
            crate::namespace::Entry::directory(0o644, 1, 1, crate::namespace::Time::default());
        let member = super::version::Member {
            path: TreePath::root(),
            entry,
            stamp: crate::stamp::Stamp::default(),
        };
        Version { members: vec![member; members], ..Version::default() }
    }

    #[test]
    fn only_paths_below_the_directory_of_a_unit_are_near() {
        let path = crate::name::path;
        let profiles = crate::namespace::Profiles::default();
        let unit = |text: &str| {
            let path = path(text);
            UnitName::of(&version::part_of(&profiles, &path).expect("a member").key)
        };
        let caller = Caller { uid: 1, gid: 1, tid: 1 };
        let edition =
            |unit| Edition::new(unit, Writers::One, version(0).into(), caller, Duration::ZERO);
        let mut all = Editions::default();
        let near = |all: &Editions| {
            ["numba/m_0/x", "numba/m_0/d/x", "numba/m_1/x", "numba/m_0", "numba/m_00/x", "x"]
                .map(|text| all.is_near(&path(text)))
        };
        assert_eq!(near(&all), [false; 6]);
        let one = all.add(Who::Process(1), edition(unit("numba/m_0/m.f-1.py311.nbi"))).unwrap();
        let other = all.add(Who::Process(2), edition(unit("numba/m_0/m.f-1.py311.nbi"))).unwrap();
        let beside = all.add(Who::Process(1), edition(unit("numba/m_0/m.g-9.py311.nbi"))).unwrap();
        assert_eq!(near(&all), [true, true, false, false, false, false]);
        for id in [one, beside, other] {
            assert!(all.is_near(&path("numba/m_0/x")));
            all.take_away(id);
            assert!(all.remove(id).is_some());
        }
        assert_eq!(near(&all), [false; 6]);
    }

    #[test]
    fn members_that_are_listed_are_limited() {
        let mut all = Editions::default();
        let edition = |members| {
            let caller = Caller { uid: 1, gid: 1, tid: 1 };
            let base = version(members).into();
            Edition::new(UnitName::for_tests(), Writers::One, base, caller, Duration::ZERO)
        };
        let own = 3 * EDITIONS_LISTED_MAX / 4;
        let mut ids = Vec::new();
        while let Some(id) = all.add(Who::Process(ids.len() as u32), edition(0)) {
            ids.push(id);
        }
        assert_eq!(ids.len() as u64, own / EDITION_COUNTS_FOR);
        assert!(!all.rebase(ids[0], version(1).into()), "it would list one member too many");
        assert!(all.remove(ids[1]).is_some());
        assert!(all.rebase(ids[0], version(EDITION_COUNTS_FOR as usize).into()));
        assert!(all.add(Who::Unseen, edition(0)).is_none(), "its members are counted");
        assert!(all.rebase(ids[0], version(0).into()));
        assert!(all.add(Who::Unseen, edition(0)).is_some());
        for id in ids {
            drop(all.remove(id));
        }
        assert!(all.add(Who::Unseen, edition(4096)).is_some());
    }
}
