//! Opens of members: a reader begins its version, and a writer its draft.
//!
//! Owns that step of an open. Must never open an entry point for a process that is then led to
//! members of another version.

use std::sync::Arc;

use hearthfs_mount::{Caller, Errno, Ino, Reply};

use super::route::Purpose;
use crate::digest::Digest;
use crate::fs::editions::version::{UnitName, Version, current};
use crate::fs::editions::{Edition, EditionId};
use crate::fs::filesystem::Filesystem;
use crate::fs::inode::DirEntryKey;
use crate::fs::retry::{Retry, RetryWish};
use crate::fs::who::Who;
use crate::fs::wish::{DECIDE_TRIES_MAX, Wish};
use crate::name::TreePath;
use crate::namespace::{FileKind, Writers};

impl Filesystem {
    /// Prepares the open of a member. A reader begins an edition with the entry point, and a writer
    /// is led to its draft. Returns the contents that the reader will need and that this node does
    /// not have.
    pub(in crate::fs) fn open_in_edition(
        &self,
        ino: Ino,
        wish: &mut Wish,
        retry: Option<&Retry>,
    ) -> Reply<Vec<(Digest, u64)>> {
        let none = Vec::new();
        let (place, private, path) = {
            let state = self.0.state.lock();
            // The name may have moved on since the kernel looked it up.
            let place =
                state.names.inode(ino).and_then(|inode| inode.place().or(inode.last.as_ref()));
            let Some(place) = place.cloned() else { return Ok(none) };
            let private = state.editions.of_dir(place.0);
            let path = match private {
                Some(id) => Self::public_path(&state, id, &place),
                None => state.names.path_of(&place),
            };
            let Some(path) = path else { return Ok(none) };
            (place, private, path)
        };
        let class = self.0.rules.profiles.classify(&path);
        if !wish.writes() {
            // A file that the caller's own process has written is no hit.
            let client = self.note_reading(wish.who, &class, &path);
            wish.client = client.filter(|_| private.is_none());
        }
        let FileKind::Unit(part) = class.kind else { return Ok(none) };
        let public = self.0.state.lock().names.spot_of(&path);
        // A retry that belongs to another name is no reason to keep this thread here.
        let here = |retry: &Retry| {
            retry.is_at(&place) || public.as_ref().is_some_and(|public| retry.is_at(public))
        };
        let last = wish.is_last() && retry.is_none_or(here);
        match private {
            Some(_) if !part.is_entry => Ok(none),
            Some(id) => self.reopen_entry(id, public, ino, wish, last).map(|()| none),
            None if wish.writes() => {
                if last {
                    return Ok(none);
                }
                let spot = self.routed(&wish.caller, place.clone(), Purpose::Make)?;
                if spot == place { Ok(none) } else { Err(self.led_to(spot, ino, wish)) }
            }
            None if part.is_entry => {
                if !last && !self.is_published_for(wish.who, &UnitName::of(&part.key)) {
                    return Err(self.led_to(place, ino, wish));
                }
                let unit = UnitName::of(&part.key);
                let lacking = self.begin_to_read(&unit, part.writers, wish)?;
                // Otherwise the kernel looks up again what was replaced after its lookup.
                if last {
                    self.must_begin_with(ino, wish.who, &unit, &path)?;
                }
                Ok(lacking)
            }
            _ => Ok(none),
        }
    }

    /// Checks that an inode is the entry point of the version that a process has just begun to
    /// read. If it belongs to an older version, no process can be led to the other members of that
    /// version any more, and the unit is a miss.
    fn must_begin_with(&self, ino: Ino, who: Who, unit: &UnitName, path: &TreePath) -> Reply<()> {
        let mut state = self.0.state.lock();
        let Some(stamp) = state.stamp_of(ino) else { return Ok(()) };
        let Some(id) = state.editions.of(who, unit) else { return Ok(()) };
        let is_older = |edition: &Edition| {
            let plain = edition.draft.is_none() && !edition.drafting;
            plain && edition.base().stamp_of(path) != Some(stamp)
        };
        if !state.editions.get(id).is_some_and(is_older) {
            return Ok(());
        }
        state.editions.remove(id);
        Err(Errno::ENOENT)
    }

    /// Opens the entry point of an edition. An edition that is not written is given up for the
    /// version that is published now.
    fn reopen_entry(
        &self,
        id: EditionId,
        public: Option<DirEntryKey>,
        ino: Ino,
        wish: &Wish,
        last: bool,
    ) -> Reply<()> {
        let (unit, base, uses) = {
            let mut state = self.0.state.lock();
            let now = self.0.rooms.clock.mono();
            let Some(edition) = state.editions.get_mut(id) else { return Ok(()) };
            edition.note_use(now);
            if edition.is_written() || wish.writes() || last {
                return Ok(());
            }
            (edition.unit.clone(), Arc::clone(edition.base()), edition.uses())
        };
        let now = current(&self.0.rooms.ledger, &self.0.rules.profiles, &unit);
        if now.is_ok_and(|now| now.is(&base)) {
            return Ok(());
        }
        let Some(real) = public.filter(|_| self.leave_edition(id, wish.who, uses)) else {
            return Ok(());
        };
        Err(self.led_to(real, ino, wish))
    }

    /// Makes the kernel look a name up again for this thread.
    fn led_to(&self, spot: DirEntryKey, ino: Ino, wish: &Wish) -> Errno {
        let now = self.0.rooms.clock.mono();
        let again = RetryWish::of(wish.writes().then_some(wish.flags));
        self.0.state.lock().retries.begin(&wish.caller, vec![spot], Some(ino), again, now);
        self.0.begun.notify_one();
        Errno::ESTALE
    }

    /// Reports whether a process reads a unit as it is published: its edition has no directory, and
    /// is not getting one.
    fn is_published_for(&self, who: Who, unit: &UnitName) -> bool {
        let state = self.0.state.lock();
        let edition = state.editions.of(who, unit).and_then(|id| state.editions.get(id));
        edition.is_none_or(|edition| edition.draft.is_none() && !edition.drafting)
    }

    /// Notes the version that a process begins to read. Returns its contents that are not on this
    /// node; `ENOENT` if one of them is lost.
    fn begin_to_read(
        &self,
        unit: &UnitName,
        shared: Writers,
        wish: &Wish,
    ) -> Reply<Vec<(Digest, u64)>> {
        let ledger = &self.0.rooms.ledger;
        let now = || (ledger.changes(), current(ledger, &self.0.rules.profiles, unit));
        // A unit that is too large is read as ordinary files.
        let (mut changes, Ok(version)) = now() else { return Ok(Vec::new()) };
        let mut version = Arc::new(version);
        for _ in 0..DECIDE_TRIES_MAX {
            if version.is_broken() {
                return Err(Errno::ENOENT);
            }
            let contents = version.members.iter().filter_map(|member| member.entry.content());
            let lacks = |(digest, size): &(Digest, u64)| *size > 0 && !self.uses(digest, *size);
            let lacking = contents.filter(lacks).collect();
            if wish.who == Who::Unseen {
                return Ok(lacking);
            }
            self.begin_edition(unit, shared, wish, &version);
            if ledger.changes() == changes {
                return Ok(lacking);
            }
            // A change that came after the version was read has found no edition here. The kernel
            // may remember a name of a member, or its absence, from a lookup in between.
            let (later, Ok(moved)) = now() else { return Ok(lacking) };
            if !moved.is_broken() && moved.is(&version) {
                return Ok(lacking);
            }
            (changes, version) = (later, Arc::new(moved));
        }
        // A unit that changes so often cannot be read now.
        Err(Errno::ENOENT)
    }

    /// Gives a process an edition with a version. An edition that the process writes is not
    /// changed.
    fn begin_edition(&self, unit: &UnitName, shared: Writers, wish: &Wish, version: &Arc<Version>) {
        let mut state = self.0.state.lock();
        let now = self.0.rooms.clock.mono();
        state.editions.unfinished.forget(wish.who, unit);
        match state.editions.of(wish.who, unit) {
            Some(id) => {
                let edition = state.editions.get_mut(id);
                let plain = |edition: &&mut Edition| edition.draft.is_none() && !edition.drafting;
                if let Some(edition) = edition.filter(plain) {
                    edition.note_use(now);
                    if !state.editions.rebase(id, Arc::clone(version)) {
                        state.editions.remove(id);
                    }
                }
            }
            None => {
                let version = Arc::clone(version);
                self.add_edition(&mut state, &wish.caller, wish.who, unit, version, shared);
            }
        }
    }

    /// Notes a use of a member's content. All members of a unit are renewed and kept as long as its
    /// entry point, even members that its readers do not open. Returns whether the content is here.
    fn uses(&self, digest: &Digest, size: u64) -> bool {
        self.0.rooms.renewer.note_use(digest, size);
        let blobs = &self.0.rooms.blobs;
        blobs.pin(digest).is_some() || blobs.contains(digest)
    }

    /// Fetches the members of a unit before its entry point is opened, because a program that has
    /// opened it relies on all of them. Any failure is a miss.
    pub(in crate::fs) async fn fetch_members(
        &self,
        ino: Ino,
        caller: &Caller,
        lacking: Vec<(Digest, u64)>,
    ) -> Reply<()> {
        for (digest, size) in lacking {
            // Members that were sent together arrive together with the first.
            self.obtain(Some((ino, caller)), digest, size).await?;
        }
        Ok(())
    }
}
