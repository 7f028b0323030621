//! Where a name of a unit leads a process.
//!
//! Owns that decision, and the beginnings of editions. Must never cost an ordinary file more than a
//! check of its name.

use std::sync::Arc;

use hearthfs_mount::{Caller, Errno, Ino, Reply, Watched};

use crate::error::Error;
use crate::fs::editions::version::{UnitName, Version, current, part_of};
use crate::fs::editions::{Draft, Edition, EditionId, Writer};
use crate::fs::filesystem::Filesystem;
use crate::fs::inode::DirEntryKey;
use crate::fs::seen::{implied_directory, seen_in};
use crate::fs::state::{State, entry_inode};
use crate::fs::who::Who;
use crate::fs::wish::DECIDE_TRIES_MAX;
use crate::name::TreePath;
use crate::namespace::{Entry, EntryKind, Op, Part, Writers, editions};
use crate::stamp::Stamp;

/// What a name is looked up for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in crate::fs) enum Purpose {
    /// To find what it leads to.
    Find,
    /// To remove what it leads to: to unlink it, or to rename it to another name.
    Take,
    /// To make something there.
    Make,
}

/// What is published at a path.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum PublishedAt {
    Nothing,
    Directory,
    File(Option<Stamp>),
}

impl Edition {
    /// Reports whether a name leads the edition's process elsewhere than other processes.
    /// Directories are common to all. If a directory is gone, its members are in the edition's own
    /// directory.
    fn is_apart_at(&self, path: &TreePath, published: PublishedAt) -> bool {
        let base = self.base();
        match published {
            PublishedAt::File(stamp) => self.draft.is_some() || base.stamp_of(path) != stamp,
            PublishedAt::Directory => false,
            PublishedAt::Nothing => self.draft.is_some() || base.has(path) || base.has_below(path),
        }
    }
}

impl Filesystem {
    /// Returns the unit that a path belongs to, if it belongs to one.
    pub(in crate::fs) fn unit_of(&self, path: &TreePath) -> Option<UnitName> {
        part_of(&self.0.rules.profiles, path).map(|part| UnitName::of(&part.key))
    }

    /// Returns where a name leads a caller: into the caller's edition, if it has one of the name's
    /// unit. A caller that makes a member gets an edition.
    pub(in crate::fs) fn routed(
        &self,
        caller: &Caller,
        spot: DirEntryKey,
        purpose: Purpose,
    ) -> Reply<DirEntryKey> {
        let path = {
            let state = self.0.state.lock();
            if purpose != Purpose::Make && !Self::is_near_edition(&state, &spot) {
                return Ok(spot);
            }
            let Some(path) = state.names.path_of(&spot) else { return Ok(spot) };
            path
        };
        let Some(part) = part_of(&self.0.rules.profiles, &path) else { return Ok(spot) };
        let unit = UnitName::of(&part.key);
        if purpose != Purpose::Make && !self.0.state.lock().editions.has(&unit) {
            return Ok(spot);
        }
        let who = self.0.callers.who(caller);
        match purpose {
            Purpose::Find => self.found_in_edition(who, &unit, &path, spot),
            Purpose::Take => Ok(self.taken_from_edition(who, &unit, &path, spot)),
            Purpose::Make => Ok(self.made_in_edition(caller, who, &part, &path, spot)),
        }
    }

    fn found_in_edition(
        &self,
        who: Who,
        unit: &UnitName,
        path: &TreePath,
        spot: DirEntryKey,
    ) -> Reply<DirEntryKey> {
        let Some(id) = self.0.state.lock().editions.of(who, unit) else { return Ok(spot) };
        if self.fits(id, path) {
            return Ok(spot);
        }
        if let Err(error) = self.make_draft(id) {
            // The process cannot keep its version, and must not see another one, so the name is a
            // miss.
            tracing::debug!(error = error.chain(), "an edition could not get a draft");
            return Err(Errno::ENOENT);
        }
        Ok(self.spot_in(id, path, spot))
    }

    /// Reports whether the published version of a path is the one that an edition has there: the
    /// edition was not written, and the unit has not changed.
    fn fits(&self, id: EditionId, path: &TreePath) -> bool {
        let published = self.published_at(path);
        let state = self.0.state.lock();
        let edition = state.editions.get(id);
        edition.is_none_or(|edition| !edition.is_apart_at(path, published))
    }

    /// Returns what is published at a path.
    fn published_at(&self, path: &TreePath) -> PublishedAt {
        match self.seen(path) {
            Some(seen) if seen.entry.is_directory() => PublishedAt::Directory,
            Some(seen) => PublishedAt::File(seen.stamp),
            None => PublishedAt::Nothing,
        }
    }

    /// Reports whether an edition differs from what is published.
    pub(super) fn is_apart(&self, id: EditionId) -> bool {
        let (unit, base) = {
            let state = self.0.state.lock();
            let Some(edition) = state.editions.get(id) else { return false };
            if edition.draft.is_some() {
                return true;
            }
            (edition.unit.clone(), Arc::clone(edition.base()))
        };
        current(&self.0.rooms.ledger, &self.0.rules.profiles, &unit)
            .map_or(true, |version| !version.is(&base))
    }

    fn taken_from_edition(
        &self,
        who: Who,
        unit: &UnitName,
        path: &TreePath,
        spot: DirEntryKey,
    ) -> DirEntryKey {
        for _ in 0..DECIDE_TRIES_MAX {
            let (id, written, uses) = {
                let state = self.0.state.lock();
                let Some(id) = state.editions.of(who, unit) else { return spot };
                let Some(edition) = state.editions.get(id) else { return spot };
                (id, edition.is_written(), edition.uses())
            };
            if written {
                return self.spot_in(id, path, spot);
            }
            // The process removes what is published. Another thread may begin to write meanwhile.
            self.leave_edition(id, who, uses);
        }
        spot
    }

    fn made_in_edition(
        &self,
        caller: &Caller,
        who: Who,
        part: &Part<'_>,
        path: &TreePath,
        spot: DirEntryKey,
    ) -> DirEntryKey {
        if who == Who::Unseen || self.0.rooms.ledger.read(|fold| fold.is_directory(path)) {
            return spot;
        }
        let unit = UnitName::of(&part.key);
        let drafted = self.edition_to_write(caller, who, part.writers, &unit).and_then(|id| {
            let Some(id) = id else { return Ok(None) };
            self.make_draft(id).inspect_err(|_| {
                self.end_edition(id, None);
            })?;
            Ok(Some(id))
        });
        match drafted {
            Ok(Some(id)) => self.spot_in(id, path, spot),
            Ok(None) => spot,
            Err(error) => {
                if self.0.state.lock().editions.is_first_trouble(&unit) {
                    tracing::warn!(
                        dir = %unit.dir(),
                        error = error.chain(),
                        "files that belong together are published one by one"
                    );
                }
                spot
            }
        }
    }

    /// Returns the edition that a process writes; `None` if it may not have one.
    fn edition_to_write(
        &self,
        caller: &Caller,
        who: Who,
        shared: Writers,
        unit: &UnitName,
    ) -> Result<Option<EditionId>, Error> {
        let (user, now) = (caller.uid, self.0.rooms.clock.mono());
        let mut base: Option<Arc<Version>> = None;
        let mut watched: Option<Option<Arc<Watched>>> = None;
        for _ in 0..DECIDE_TRIES_MAX {
            let known = {
                let mut state = self.0.state.lock();
                let mut id = state.editions.to_write(who, user, unit);
                if let (None, Some(base)) = (id, base.take()) {
                    let process = watched.as_ref().and_then(Option::as_ref);
                    let unfinished = &state.editions.unfinished;
                    let came = |process| unfinished.has_come((who, process), unit, base.mark);
                    let lost = process.is_some_and(came);
                    let base = if lost { Arc::new(Version::lost()) } else { base };
                    id = self.add_edition(&mut state, caller, who, unit, base, shared);
                    if id.is_none() {
                        return Ok(None);
                    }
                }
                let edition = id.and_then(|id| state.editions.get_mut(id));
                let writes = |by: &Writer| by.who == who;
                if let Some((id, edition)) = id.zip(edition)
                    && (watched.is_some() || edition.writers.iter().any(writes))
                {
                    let watched = watched.take().flatten();
                    if !edition.add_writer(Writer { who, watched }) {
                        return Ok(None);
                    }
                    edition.note_use(now);
                    edition.caller = *caller;
                    state.editions.join(who, id);
                    return Ok(Some(id));
                }
                id
            };
            // This is determined outside the lock. After that the loop decides again.
            watched = Some(self.0.callers.watch(who));
            if known.is_none() {
                base = Some(Arc::new(current(&self.0.rooms.ledger, &self.0.rules.profiles, unit)?));
            }
        }
        Ok(None)
    }

    pub(super) fn add_edition(
        &self,
        state: &mut State,
        caller: &Caller,
        who: Who,
        unit: &UnitName,
        base: Arc<Version>,
        shared: Writers,
    ) -> Option<EditionId> {
        let now = self.0.rooms.clock.mono();
        self.0.begun.notify_one();
        state.editions.add(who, Edition::new(unit.clone(), shared, base, *caller, now))
    }

    /// Notes that a process writes an edition.
    pub(super) fn written_by(&self, id: EditionId, caller: &Caller, who: Who) {
        let known = {
            let mut state = self.0.state.lock();
            let Some(edition) = state.editions.get_mut(id) else { return };
            edition.note_use(self.0.rooms.clock.mono());
            edition.caller = *caller;
            edition.writers.iter().any(|writer| writer.who == who)
        };
        if known {
            return;
        }
        let watched = self.0.callers.watch(who);
        let mut state = self.0.state.lock();
        if let Some(edition) = state.editions.get_mut(id) {
            // A writer beyond the limit counts as one that has ended.
            let _known = edition.add_writer(Writer { who, watched });
        }
    }

    /// Gives an edition a directory of its own, with the version that it began with.
    pub(super) fn make_draft(&self, id: EditionId) -> Result<(), Error> {
        let ledger = &self.0.rooms.ledger;
        let lacks = |edition: &Edition| edition.draft.is_none() && !edition.ended;
        if !self.0.state.lock().editions.get(id).is_some_and(lacks) {
            return Ok(());
        }
        let turn = ledger.begin();
        let (dir, ops) = {
            let mut state = self.0.state.lock();
            let Some(edition) = state.editions.get_mut(id).filter(|edition| lacks(edition)) else {
                return Ok(());
            };
            let invalid = |error| Error::with(crate::error::Kind::Invalid, "name a draft", error);
            let dir = editions().join(id.0.to_string().as_bytes()).map_err(invalid)?;
            edition.drafting = true;
            let from = edition.unit.dir();
            let real = ledger.read(|fold| seen_in(fold, &from));
            let real = real.filter(|seen| seen.stamp.is_some()).map(|seen| seen.entry);
            let attrs = real.unwrap_or_else(|| self.0.rules.root.clone()).attrs;
            let entry = Entry { kind: EntryKind::Directory, attrs, link: None };
            let mut ops = vec![(dir.clone(), Op::Put(entry))];
            for member in &edition.base().members {
                let Some(path) = member.path.moved(&from, &dir) else { continue };
                let entry = Entry { link: None, ..member.entry.clone() };
                ops.push((path, Op::Put(entry)));
            }
            (dir, ops)
        };
        let written = turn.write(ops);
        let mut guard = self.0.state.lock();
        let state = &mut *guard;
        if let Some(edition) = state.editions.get_mut(id) {
            edition.drafting = false;
        }
        drop(written?.apply());
        let spots: Vec<DirEntryKey> = {
            let Some(edition) = state.editions.get_mut(id) else { return Ok(()) };
            edition.draft = Some(Draft { path: dir.clone(), dirs: Vec::new() });
            let known = edition.base().members.iter();
            known.filter_map(|member| state.names.spot_of(&member.path)).collect()
        };
        let at_root: DirEntryKey = (Ino::ROOT, editions().file_name().into());
        let all = entry_inode(state, &at_root, &editions(), implied_directory());
        state.names.count_lookup(all);
        Self::add_draft_dir(state, id, &dir, all);
        drop(guard);
        // From now on the names lead to more than one file.
        self.doubt(spots);
        Ok(())
    }

    fn add_draft_dir(state: &mut State, id: EditionId, path: &TreePath, parent: Ino) -> Ino {
        let spot: DirEntryKey = (parent, path.file_name().into());
        let ino = entry_inode(state, &spot, path, implied_directory());
        // The kernel never learns of this inode, so only this count keeps it.
        state.names.count_lookup(ino);
        state.editions.add_dir(id, path.clone(), ino);
        ino
    }

    /// Returns the name of a member in a draft. Directories are common to all processes.
    fn spot_in(&self, id: EditionId, path: &TreePath, real: DirEntryKey) -> DirEntryKey {
        if self.0.rooms.ledger.read(|fold| fold.is_directory(path)) {
            return real;
        }
        Self::private_spot(&mut self.0.state.lock(), id, path).unwrap_or(real)
    }

    /// Returns the name of a member in a draft. Makes the inodes of the directories above it.
    fn private_spot(state: &mut State, id: EditionId, path: &TreePath) -> Option<DirEntryKey> {
        let edition = state.editions.get(id)?;
        let private = path.moved(&edition.unit.dir(), &edition.draft.as_ref()?.path)?;
        let (dir, name) = private.split()?;
        Some((Self::private_dir(state, id, &dir)?, name.into()))
    }

    /// Returns the inode of a directory of a draft. Makes it and those above it.
    pub(super) fn private_dir(state: &mut State, id: EditionId, dir: &TreePath) -> Option<Ino> {
        let draft = state.editions.get(id)?.draft.as_ref()?;
        let known = |dirs: &[(TreePath, Ino)], path: &TreePath| {
            dirs.iter().find(|(known, _)| known == path).map(|(_, ino)| *ino)
        };
        let mut missing = Vec::new();
        let mut at = dir.clone();
        let mut ino = loop {
            if let Some(ino) = known(&draft.dirs, &at) {
                break ino;
            }
            let parent = at.parent()?;
            missing.push(at);
            at = parent;
        };
        for path in missing.into_iter().rev() {
            ino = Self::add_draft_dir(state, id, &path, ino);
        }
        Some(ino)
    }

    /// Returns where a member of a draft will be published.
    pub(super) fn public_path(
        state: &State,
        id: EditionId,
        spot: &DirEntryKey,
    ) -> Option<TreePath> {
        let edition = state.editions.get(id)?;
        let path = state.names.path_of(spot)?;
        path.moved(&edition.draft.as_ref()?.path, &edition.unit.dir())
    }

    /// Returns the path by which programs know a name, even for a name of a draft.
    pub(in crate::fs) fn known_path(state: &State, spot: &DirEntryKey) -> Option<TreePath> {
        match state.editions.of_dir(spot.0) {
            Some(id) => Self::public_path(state, id, spot),
            None => state.names.path_of(spot),
        }
    }

    /// Returns where a name leads a process, by the drafts that exist now.
    pub(in crate::fs) fn routed_now(
        &self,
        state: &mut State,
        who: Who,
        spot: DirEntryKey,
        path: &TreePath,
    ) -> DirEntryKey {
        if !state.editions.is_near(path) {
            return spot;
        }
        let Some(part) = part_of(&self.0.rules.profiles, path) else { return spot };
        let id = state.editions.of(who, &UnitName::of(&part.key));
        let is_directory = || self.0.rooms.ledger.read(|fold| fold.is_directory(path));
        match id.filter(|_| !is_directory()) {
            Some(id) => Self::private_spot(state, id, path).unwrap_or(spot),
            None => spot,
        }
    }

    /// Reports whether a name may lead into an edition, or is in a draft.
    pub(in crate::fs) fn is_near_edition(state: &State, spot: &DirEntryKey) -> bool {
        if state.editions.is_empty() {
            return false;
        }
        let is_near = |path| state.editions.is_near(&path);
        state.editions.of_dir(spot.0).is_some() || state.names.path_of(spot).is_some_and(is_near)
    }

    /// Reports whether a name may lead another process elsewhere, because it belongs to a unit or
    /// to a draft.
    pub(in crate::fs) fn is_divided(&self, state: &State, spot: &DirEntryKey) -> bool {
        if !Self::is_near_edition(state, spot) {
            return false;
        }
        if state.editions.of_dir(spot.0).is_some() {
            return true;
        }
        let Some(path) = state.names.path_of(spot) else { return false };
        let Some(part) = part_of(&self.0.rules.profiles, &path) else { return false };
        let unit = UnitName::of(&part.key);
        if !state.editions.has(&unit) {
            return false;
        }
        let published = self.published_at(&path);
        state.editions.of_unit(&unit).any(|edition| edition.is_apart_at(&path, published))
    }
}
