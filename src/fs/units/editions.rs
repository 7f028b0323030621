//! Editions: what single processes have of units.
//!
//! Owns their table. Must never ask the namespace or the disk.

use std::collections::{HashMap, HashSet};
use std::time::Duration;

use hearthfs_mount::{Caller, Ino, Watched};

use super::version::{UnitName, Version};
use crate::fs::shares::Shares;
use crate::fs::who::Who;
use crate::name::TreePath;
use crate::namespace::Writers;

/// The most editions of all processes, three quarters of them for one user. Beyond that a reader is led to what is
/// published, and the files of a writer are ordinary ones.
const EDITIONS_MAX: u64 = 4096;

/// The most units that are remembered because their trouble was said. Beyond that it is said again.
const TROUBLED_MAX: usize = 1024;

/// Number of an edition.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub(super) struct EditionId(pub(super) u64);

/// A directory of the namespace that holds an edition.
#[derive(Debug)]
pub(super) struct Draft {
    pub(super) path: TreePath,
    /// The inodes of its directories, by their paths below it. The first is its own.
    pub(super) dirs: Vec<(TreePath, Ino)>,
}

/// A process that writes a draft.
#[derive(Debug)]
pub(super) struct Writer {
    pub(super) who: Who,
    /// `None` where it cannot be watched: then nothing is known of its end.
    pub(super) watched: Option<Watched>,
}

/// What a process has of a unit.
#[derive(Debug)]
pub(super) struct Edition {
    pub(super) unit: UnitName,
    /// The user that it counts for.
    pub(super) user: u32,
    pub(super) shared: Writers,
    /// The version that it began with.
    pub(super) base: Version,
    pub(super) draft: Option<Draft>,
    /// The processes that write it; empty while nobody does.
    pub(super) writers: Vec<Writer>,
    /// Who wrote it last, for the rights of what is published.
    pub(super) caller: Caller,
    /// An entry point was written, and no marker since.
    pub(super) open_ended: bool,
    /// When its entry point was opened last, or it was written, by the monotonic clock.
    pub(super) used: Duration,
}

impl Edition {
    pub(super) fn is_written(&self) -> bool {
        !self.writers.is_empty()
    }
}

/// All editions.
#[derive(Debug)]
pub(in crate::fs) struct Editions {
    all: HashMap<EditionId, Edition>,
    of: HashMap<(Who, UnitName), EditionId>,
    /// Those of each unit.
    units: HashMap<UnitName, Vec<EditionId>>,
    /// Whose draft a directory is of.
    dirs: HashMap<Ino, EditionId>,
    /// Units without drafts, of which that was said.
    troubled: HashSet<UnitName>,
    shares: Shares,
    next: u64,
}

impl Default for Editions {
    fn default() -> Self {
        Self {
            all: HashMap::new(),
            of: HashMap::new(),
            units: HashMap::new(),
            dirs: HashMap::new(),
            troubled: HashSet::new(),
            shares: Shares::new(EDITIONS_MAX),
            next: 0,
        }
    }
}

impl Editions {
    pub(in crate::fs) fn is_empty(&self) -> bool {
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

    /// Returns the draft that all writers of a unit share, if it is written.
    pub(super) fn shared(&self, unit: &UnitName) -> Option<EditionId> {
        let shared = |id: &&EditionId| {
            self.all
                .get(id)
                .is_some_and(|edition| edition.shared == Writers::Several && edition.is_written())
        };
        self.units.get(unit)?.iter().find(shared).copied()
    }

    /// Reports whether any process has an edition of a unit.
    pub(super) fn has(&self, unit: &UnitName) -> bool {
        self.units.contains_key(unit)
    }

    /// Yields all editions of a unit.
    pub(super) fn of_unit(&self, unit: &UnitName) -> impl Iterator<Item = &Edition> {
        self.units.get(unit).into_iter().flatten().filter_map(|id| self.all.get(id))
    }

    /// Returns the edition whose draft a directory is of.
    pub(super) fn of_dir(&self, dir: Ino) -> Option<EditionId> {
        self.dirs.get(&dir).copied()
    }

    /// Reports whether a user may have one more.
    pub(super) fn has_room(&self, user: u32) -> bool {
        self.shares.has_room(user)
    }

    /// Reports whether it is news that a unit can have no draft.
    pub(super) fn is_first_trouble(&mut self, unit: &UnitName) -> bool {
        if self.troubled.len() >= TROUBLED_MAX {
            self.troubled.clear();
        }
        self.troubled.insert(unit.clone())
    }

    /// Adds an edition of a process, which has none of this unit.
    pub(super) fn add(&mut self, who: Who, edition: Edition) -> EditionId {
        self.next += 1;
        let id = EditionId(self.next);
        self.shares.add(edition.user, 1);
        self.units.entry(edition.unit.clone()).or_default().push(id);
        self.of.insert((who, edition.unit.clone()), id);
        self.all.insert(id, edition);
        id
    }

    /// Lets a further process have an edition.
    pub(super) fn join(&mut self, who: Who, id: EditionId) {
        if let Some(edition) = self.all.get(&id) {
            self.of.insert((who, edition.unit.clone()), id);
        }
    }

    /// Makes a directory one of an edition's draft.
    pub(super) fn add_dir(&mut self, id: EditionId, path: TreePath, dir: Ino) {
        if let Some(draft) = self.all.get_mut(&id).and_then(|edition| edition.draft.as_mut()) {
            draft.dirs.push((path, dir));
            self.dirs.insert(dir, id);
        }
    }

    /// Takes an edition out.
    pub(super) fn remove(&mut self, id: EditionId) -> Option<Edition> {
        let edition = self.all.remove(&id)?;
        self.shares.give_back(edition.user, 1);
        self.of.retain(|_, other| *other != id);
        self.dirs.retain(|_, other| *other != id);
        if let Some(ids) = self.units.get_mut(&edition.unit) {
            ids.retain(|other| *other != id);
            if ids.is_empty() {
                self.units.remove(&edition.unit);
            }
        }
        Some(edition)
    }
}
