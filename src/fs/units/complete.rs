//! The end of a draft: it becomes the unit as a whole, or is removed.
//!
//! Owns the step by which all members are published at once. These can interleave with it: changes
//! of another node and other drafts of the unit (each takes a turn of the ledger, and so does
//! this); closes of the draft's own files (they belong to the next draft).

use hearthfs_mount::{Caller, Ino};

use super::UNIT_HOLD;
use crate::error::Result;
use crate::fs::editions::version::{MEMBERS_MAX, Member, UnitName, Version, current};
use crate::fs::editions::{Edition, EditionId};
use crate::fs::filesystem::Filesystem;
use crate::fs::inode::{DirEntryKey, LiveId, Published};
use crate::fs::rights::may_take;
use crate::fs::state::{State, close_files};
use crate::fs::who::Who;
use crate::fs::worth::Made;
use crate::name::TreePath;
use crate::namespace::{Entry, Op};
use crate::stamp::Stamp;

/// The permission bit that lets a caller write.
const MAY_WRITE: u32 = 2;

/// The changes that publish a draft.
struct DraftPlan {
    ops: Vec<(TreePath, Op)>,
    members: Vec<Member>,
    /// The clients' entries among them.
    made: Vec<Made>,
}

/// What a process has published something by.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in crate::fs) enum PublishedBy {
    /// A call that makes or moves a name. After it the kernel requests the attributes of the name's
    /// directory again by itself.
    NameCall,
    /// A close, or the end of a mapping.
    Close,
}

impl Filesystem {
    /// Notes that something was published at a name of a draft, and publishes the draft if that
    /// completes it. Returns whether it completes it. `caller` is the process that published;
    /// `None` where it is unknown.
    pub(in crate::fs) fn changed_in_edition(
        &self,
        spot: &DirEntryKey,
        caller: Option<&Caller>,
        by: PublishedBy,
    ) -> Result<bool> {
        let (id, path, unit, written, last) = {
            let state = self.0.state.lock();
            let Some(id) = state.editions.of_dir(spot.0) else { return Ok(false) };
            let Some(path) = Self::public_path(&state, id, spot) else { return Ok(false) };
            let edition = state.editions.get(id).filter(|edition| !edition.ended);
            let Some(edition) = edition else { return Ok(false) };
            (id, path, edition.unit.clone(), edition.is_written(), edition.caller)
        };
        let who = caller.map_or(Who::Unseen, |caller| self.0.callers.who(caller));
        if !written || who != Who::Unseen {
            self.written_by(id, caller.unwrap_or(&last), who);
        }
        let Some(part) = unit.part(&self.0.rules.profiles, &path) else { return Ok(false) };
        if part.is_marker {
            let dir = path.parent().filter(|_| by == PublishedBy::NameCall);
            self.complete(id, None, dir.as_ref())?;
        } else if part.is_entry
            && let Some(edition) = self.0.state.lock().editions.get_mut(id)
        {
            edition.open_ended = true;
        }
        Ok(part.is_marker)
    }

    /// Publishes a draft under its real names, unless the unit has changed since the draft was
    /// begun. `uses` is the value of [`Edition::uses`] at the time of that decision; if it has
    /// changed, nothing happens. `forgotten` is a directory whose attributes the kernel requests
    /// again by itself. Blocks. On an error nothing was published, except the first parts
    /// of a draft that is too large. The publish is tried again later, if the writers do not
    /// complete the draft first.
    pub(super) fn complete(
        &self,
        id: EditionId,
        uses: Option<u64>,
        forgotten: Option<&TreePath>,
    ) -> Result<()> {
        let kept = self.keep_published(id);
        kept.and_then(|()| self.publish_draft(id, uses, forgotten)).inspect_err(|error| {
            tracing::warn!(error = error.chain(), "files that belong together were not published");
            let now = self.0.rooms.clock.mono();
            if let Some(edition) = self.0.state.lock().editions.get_mut(id) {
                edition.not_before = now.saturating_add(UNIT_HOLD);
            }
        })
    }

    /// Makes blobs of what the draft has published and not released. Under the real names, other
    /// processes open only blobs.
    fn keep_published(&self, id: EditionId) -> Result<()> {
        let lives: Vec<LiveId> = {
            let state = self.0.state.lock();
            let lives =
                dirs_of(&state, id).into_iter().flat_map(|dir| state.lives.in_directory(dir));
            let inos = lives.filter(|live| live.version().is_some()).map(|live| live.ino);
            inos.filter_map(|ino| state.names.inode(ino)?.live()).collect()
        };
        lives.into_iter().try_for_each(|id| self.preserve(id))
    }

    fn publish_draft(
        &self,
        id: EditionId,
        uses: Option<u64>,
        forgotten: Option<&TreePath>,
    ) -> Result<()> {
        let ledger = &self.0.rooms.ledger;
        let turn = ledger.begin();
        let done = uses.is_none();
        let plan = {
            let mut state = self.0.state.lock();
            let as_decided = |edition: &&Edition| {
                edition.is_written()
                    && !edition.ended
                    && uses.is_none_or(|uses| edition.uses() == uses)
            };
            let Some(edition) = state.editions.get(id).filter(as_decided) else { return Ok(()) };
            let Some(plan) = self.plan(edition) else {
                state.editions.rest(id, done, Version::lost());
                return Ok(());
            };
            plan
        };
        let DraftPlan { ops, members, made } = plan;
        let paths: Vec<TreePath> = ops.iter().map(|(path, _)| path.clone()).collect();
        if paths.len() > MEMBERS_MAX {
            let dir = paths.first().and_then(TreePath::parent).unwrap_or_default();
            let files = paths.len();
            tracing::warn!(%dir, files, "too many files for one unit: they are published in parts");
        }
        let (mut stamps, mut turn) = (Vec::new(), Some(turn));
        let mut parts = ops.chunks(MEMBERS_MAX).peekable();
        let state = loop {
            let part = parts.next().unwrap_or_default();
            let turn = turn.take().unwrap_or_else(|| ledger.begin());
            let written = match self.write_keeping(turn, part.to_vec()) {
                Ok(written) => written,
                Err(error) => {
                    if !stamps.is_empty() {
                        // One part is published. The rest of the draft would count as a part of
                        // another version.
                        self.0.state.lock().editions.rest(id, done, Version::lost());
                    }
                    return Err(error);
                }
            };
            let mut state = self.0.state.lock();
            // The changes that keep directories come after those of the part.
            stamps.extend(written.apply().into_iter().take(part.len()));
            if parts.peek().is_some() {
                continue;
            }
            let unit = state.editions.get(id).map(|edition| edition.unit.clone());
            let mark = unit.and_then(|unit| self.mark_of(&unit, &paths, &stamps));
            // The first changes are the puts of the members, in the same order.
            let stamped = members.into_iter().zip(&stamps);
            let members = stamped.map(|(m, stamp)| Member { stamp: *stamp, ..m }).collect();
            // This happens under the same lock: files that are published from now on belong to the
            // next draft.
            state.editions.rest(id, done, Version { members, mark, ..Version::default() });
            revive_stale(&mut state, &ops, &stamps);
            self.note_made(made);
            break state;
        };
        let spots: Vec<DirEntryKey> =
            paths.iter().filter_map(|path| state.names.spot_of(path)).collect();
        let dirs: Vec<TreePath> = paths.iter().filter_map(TreePath::parent).collect();
        drop(state);
        if let Some(dir) = dirs.first() {
            tracing::debug!(files = paths.len(), %dir, "files that belong together are published");
        }
        // Of the names that the draft has changed, the kernel remembers only such as lead to an inode
        // that was stale until now. It may remember the attributes of their directories.
        if dirs.iter().any(|dir| forgotten != Some(dir)) {
            self.doubt(spots);
        }
        Ok(())
    }

    /// Returns the stamp of the put of the entry points.
    fn mark_of(&self, unit: &UnitName, paths: &[TreePath], stamps: &[Stamp]) -> Option<Stamp> {
        let is_entry = |path: &TreePath| {
            unit.part(&self.0.rules.profiles, path).is_some_and(|part| part.is_entry)
        };
        paths.iter().zip(stamps).filter(|(path, _)| is_entry(path)).map(|(_, stamp)| *stamp).max()
    }

    /// Returns the changes that publish a draft; `None` if the current version has to stay.
    fn plan(&self, edition: &Edition) -> Option<DraftPlan> {
        let draft = edition.draft.as_ref()?;
        let ledger = &self.0.rooms.ledger;
        // A unit that has become too large has no version that could stay.
        let now = current(ledger, &self.0.rules.profiles, &edition.unit).unwrap_or_default();
        let base = edition.base();
        if now.mark.is_some() && now.mark != base.mark {
            return None;
        }
        let dir = edition.unit.dir();
        let members = ledger.read(|fold| {
            let below = fold.below(&draft.path).filter_map(|(path, register)| {
                let (changed_ms, stamp) = (register.changed_ms(), register.stamp);
                let entry = register.entry.filter(|entry| !entry.is_directory())?;
                ledger.shown(fold, &path, &entry, Some(changed_ms))?;
                Some(Member { path: path.moved(&draft.path, &dir)?, entry, stamp })
            });
            below.collect::<Vec<_>>()
        });
        let mut members: Vec<Member> =
            members.into_iter().map(|member| as_now(member, base, &now)).collect();
        let who = || self.0.callers.who(&edition.caller);
        let mut made = Vec::new();
        for Member { path, entry, .. } in &mut members {
            let there = now.member(path).map(|there| &there.entry);
            made.extend(self.made_at(who, path, there, entry));
        }
        let version = Version { members, ..Version::default() };
        let came = now.members.iter().filter(|there| {
            version.has(&there.path) && base.stamp_of(&there.path) != Some(there.stamp)
        });
        let is_directory = |member: &Member| ledger.read(|fold| fold.is_directory(&member.path));
        if came.clone().any(|there| !self.may_publish_over(&edition.caller, there))
            || version.members.iter().any(is_directory)
        {
            return None;
        }
        let puts = version.members.iter().map(|m| (m.path.clone(), Op::Put(m.entry.clone())));
        // A member that was replaced meanwhile does not belong to this writer.
        let there = |m: &&Member| now.stamp_of(&m.path) == Some(m.stamp);
        let gone = base.members.iter().filter(|m| !version.has(&m.path)).filter(there);
        // Lost members of the version before would make this version unreadable.
        let lost = now.broken.iter().filter(|m| !version.has(&m.path));
        let lost = lost.filter(|there| self.may_publish_over(&edition.caller, there));
        let ops = puts.chain(gone.chain(lost).map(|m| (m.path.clone(), Op::Remove))).collect();
        Some(DraftPlan { ops, members: version.members, made })
    }

    /// Reports whether a caller may replace a file that appeared after the caller began its draft.
    /// The kernel has checked the rights to other files only.
    fn may_publish_over(&self, caller: &Caller, there: &Member) -> bool {
        if self.permits(caller, &there.entry.attrs, MAY_WRITE).is_err() {
            return false;
        }
        let dir = there.path.parent().and_then(|dir| self.seen(&dir)).map(|dir| dir.entry.attrs);
        dir.is_none_or(|dir| may_take(caller, dir.mode, dir.uid, there.entry.attrs.uid))
    }

    /// Leads a process from an edition that it does not write back to what is published. Other
    /// processes of the edition keep the version that they read; the edition ends with the last of
    /// them. `uses` is the value that was seen; if it has changed, for example because another
    /// thread has begun to write, the edition stays. Returns false if that failed.
    pub(super) fn leave_edition(&self, id: EditionId, who: Who, uses: u64) -> bool {
        let last = {
            let mut state = self.0.state.lock();
            if state.editions.get(id).is_some_and(|edition| edition.uses() != uses) {
                return true;
            }
            state.editions.leave(who, id)
        };
        !last || self.end_edition(id, Some(uses))
    }

    /// Ends an edition: the names lead its processes to what is published. Its open files stay open
    /// and are never published. `uses` is the same as for [`Filesystem::complete`]. Returns false
    /// if that failed.
    pub(super) fn end_edition(&self, id: EditionId, uses: Option<u64>) -> bool {
        let ledger = &self.0.rooms.ledger;
        let turn = ledger.begin();
        let paths = {
            let mut state = self.0.state.lock();
            let Some(edition) = state.editions.get(id) else { return true };
            if uses.is_some_and(|uses| edition.uses() != uses) {
                return true;
            }
            let path = edition.draft.as_ref().map(|draft| draft.path.clone());
            // No new files come to it from now on, even if the rest fails.
            state.editions.take_away(id);
            let Some(path) = path else {
                state.editions.remove(id);
                return true;
            };
            let below = ledger.read(|fold| {
                let live = fold.below(&path).filter(|(_, register)| register.entry.is_some());
                live.map(|(path, _)| path).collect::<Vec<_>>()
            });
            below.into_iter().chain([path]).collect::<Vec<_>>()
        };
        let ops = paths.iter().map(|path| (path.clone(), Op::Remove)).collect();
        let written = match turn.write(ops) {
            Ok(written) => written,
            Err(error) => {
                tracing::warn!(error = error.chain(), "a draft could not be removed");
                return false;
            }
        };
        let mut guard = self.0.state.lock();
        let state = &mut *guard;
        drop(written.apply());
        let dirs = dirs_of(state, id);
        let mut spots: Vec<DirEntryKey> =
            paths.iter().filter_map(|path| state.names.spot_of(path)).collect();
        for dir in &dirs {
            spots.extend(state.lives.in_directory(*dir).filter_map(|live| live.place().cloned()));
        }
        state.editions.remove(id);
        for spot in &spots {
            state.retire(spot);
            state.locks.unlink(spot);
        }
        for dir in dirs.into_iter().rev() {
            let place = state.names.inode(dir).and_then(|inode| inode.place().cloned());
            if let Some(spot) = place {
                state.names.unbind(&spot);
            }
            state.names.forget(dir, 1);
        }
        close_files(guard);
        true
    }

    /// Removes the drafts of an earlier run: none of them was published.
    pub(in crate::fs) fn clear_editions(&self) -> Result<()> {
        let ledger = &self.0.rooms.ledger;
        let dir = crate::namespace::editions();
        let ops: Vec<(TreePath, Op)> = ledger.read(|fold| {
            let live = fold.below(&dir).filter(|(_, register)| register.entry.is_some());
            live.map(|(path, _)| (path, Op::Remove)).collect()
        });
        for part in ops.chunks(crate::sync::RECORD_CHANGES_MAX) {
            ledger.publish(part.to_vec())?;
        }
        Ok(())
    }
}

/// Ends the staleness of inodes whose content is published under the names where the kernel may find
/// them.
fn revive_stale(state: &mut State, ops: &[(TreePath, Op)], stamps: &[Stamp]) {
    for ((path, op), stamp) in ops.iter().zip(stamps) {
        if let (Op::Put(entry), Some(spot)) = (op, state.names.spot_of(path)) {
            let (entry, changed_ms) = (entry.clone(), stamp.ms);
            state.names.revive(&spot, Published { entry, stamp: Some(*stamp), changed_ms });
        }
    }
}

fn dirs_of(state: &State, id: EditionId) -> Vec<Ino> {
    let draft = state.editions.get(id).and_then(|edition| edition.draft.as_ref());
    draft.map_or(Vec::new(), |draft| draft.dirs.iter().map(|(_, ino)| *ino).collect())
}

/// Returns a member with its present attributes, if the draft has not changed the member.
fn as_now(member: Member, base: &Version, now: &Version) -> Member {
    let find = |version: &Version| version.member(&member.path).map(|found| found.entry.clone());
    let same = find(base).is_some_and(|entry| Entry { link: None, ..entry } == member.entry);
    match find(now).filter(|_| same) {
        Some(entry) => Member { entry, ..member },
        None => member,
    }
}
