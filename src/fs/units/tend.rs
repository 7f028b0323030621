//! Looks after editions: drafts without a marker, writers that have ended, versions that are no
//! longer read.
//!
//! Owns how long each of them lasts. Must never publish what a killed process wrote.
//!
//! Keeps P2 killed-writer.

use std::collections::HashMap;
use std::time::Duration;

use hearthfs_mount::{End, Errno, Reply};

use super::UNIT_HOLD;
use crate::fs::editions::version::UnitName;
use crate::fs::editions::{Edition, EditionId, Writer};
use crate::fs::filesystem::Filesystem;
use crate::fs::inode::DirEntryKey;
use crate::fs::state::State;
use crate::fs::who::Who;
use crate::name::TreePath;
use crate::namespace::EDITION_KEPT_FOR;

/// The step that is due for an edition.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Due {
    Nothing,
    /// Its draft is published as it is.
    Publish,
    /// It ends, and its draft is not published.
    End,
}

/// The editions of units in a directory, each with its number of uses.
#[derive(Debug)]
pub(in crate::fs) struct Inside(Vec<(EditionId, u64)>);

/// The state of a draft's writers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Writing {
    /// One of them lives.
    Goes,
    /// None is known to live, and at least one cannot be seen.
    Unseen,
    /// All have exited by themselves.
    Exited,
    /// All are gone. One was killed, or it is unknown how it ended.
    Killed,
}

/// The result of a check of a draft's writers.
#[derive(Debug)]
struct DraftWriters {
    writing: Writing,
    /// Those that have ended.
    ended: Vec<Who>,
    one_killed: bool,
}

impl DraftWriters {
    /// Asks the kernel. `one_killed` is known from the writers that were forgotten.
    fn ask(writers: &[Writer], one_killed: bool) -> Self {
        let (mut goes, mut unseen, mut one_killed) = (false, false, one_killed);
        let mut ended = Vec::new();
        for writer in writers {
            match writer.watched.as_ref().map(|watched| watched.end()) {
                Some(None) => goes = true,
                None => unseen = true,
                Some(Some(end)) => {
                    ended.push(writer.who);
                    one_killed |= end != End::Exited;
                }
            }
        }
        let writing = match (goes, unseen, one_killed) {
            (true, _, _) => Writing::Goes,
            (false, true, _) => Writing::Unseen,
            (false, false, true) => Writing::Killed,
            (false, false, false) => Writing::Exited,
        };
        Self { writing, ended, one_killed }
    }

    /// Returns the ended writers that can be forgotten. If all have ended, none of them can,
    /// because their draft is not published yet.
    fn to_forget(&self) -> &[Who] {
        match self.writing {
            Writing::Goes | Writing::Unseen => &self.ended,
            Writing::Exited | Writing::Killed => &[],
        }
    }

    fn of(edition: &Edition) -> Self {
        Self::ask(&edition.writers, edition.one_killed)
    }
}

/// Decides which step is due. `open` says whether a file of the draft is still open for writing, or being closed: a
/// close that takes long must find its draft. `writing` matters only if the draft is written.
fn due(edition: &Edition, writing: Writing, open: bool, now: Duration) -> Due {
    let idle = now.saturating_sub(edition.used());
    if edition.ended {
        return Due::End;
    }
    if !edition.is_written() {
        return if idle >= EDITION_KEPT_FOR && !open { Due::End } else { Due::Nothing };
    }
    match writing {
        Writing::Killed => Due::End,
        _ if open || now < edition.not_before => Due::Nothing,
        Writing::Exited => Due::Publish,
        Writing::Goes | Writing::Unseen if idle < UNIT_HOLD => Due::Nothing,
        Writing::Goes | Writing::Unseen if !edition.open_ended => Due::Publish,
        // An entry point without the files that it names would lead readers to missing or older
        // files.
        Writing::Goes => Due::Nothing,
        Writing::Unseen => Due::End,
    }
}

impl Filesystem {
    /// Carries out the steps that are due for editions: publishes the drafts of processes that have
    /// ended, and of those that have stopped writing. Blocks.
    pub fn tend_editions(&self) {
        let now = self.0.rooms.clock.mono();
        self.forget_ended();
        let all: Vec<(EditionId, u64, Vec<Writer>, bool)> = {
            let state = self.0.state.lock();
            let look = |(id, edition): (EditionId, &Edition)| {
                (id, edition.uses(), edition.writers.clone(), edition.one_killed)
            };
            state.editions.iter().map(look).collect()
        };
        for (id, uses, writers, one_killed) in all {
            // The kernel is asked outside the lock.
            let writers = DraftWriters::ask(&writers, one_killed);
            let due = {
                let mut state = self.0.state.lock();
                let edition = state.editions.get(id).filter(|edition| edition.uses() == uses);
                // An edition that was used meanwhile is checked in the next round.
                let Some(edition) = edition else { continue };
                let due = due(edition, writers.writing, is_open(&state, edition), now);
                let forgotten = writers.to_forget();
                if due == Due::End && !edition.is_written() {
                    state.editions.note_unfinished(id);
                }
                if due == Due::Nothing && !forgotten.is_empty() {
                    state.editions.forget_writers(id, forgotten, writers.one_killed);
                }
                due
            };
            self.carry_out_due(id, due, Some(uses));
        }
    }

    /// Forgets the processes that have ended and left a unit unfinished.
    fn forget_ended(&self) {
        let all = self.0.state.lock().editions.unfinished.processes();
        for (who, process) in all.iter().filter(|(_, process)| process.end().is_some()) {
            self.0.state.lock().editions.unfinished.end(*who, process);
        }
    }

    fn carry_out_due(&self, id: EditionId, due: Due, uses: Option<u64>) {
        match due {
            Due::Nothing => {}
            // The error is logged already, and the next round tries again.
            Due::Publish => drop(self.complete(id, uses, None)),
            Due::End => drop(self.end_edition(id, uses)),
        }
    }

    /// Ends all editions, because the mount has ended. Drafts are published as they are, except
    /// those of killed writers and those with an entry point that no marker has completed. Blocks.
    pub fn settle_editions(&self) {
        let all: Vec<(EditionId, Due)> = {
            let state = self.0.state.lock();
            let due = |edition: &Edition| match DraftWriters::of(edition).writing {
                _ if !edition.is_written() || edition.ended => Due::End,
                Writing::Killed => Due::End,
                Writing::Goes | Writing::Unseen if edition.open_ended => Due::End,
                Writing::Exited | Writing::Goes | Writing::Unseen => Due::Publish,
            };
            state.editions.iter().map(|(id, edition)| (id, due(edition))).collect()
        };
        for (id, due) in all {
            self.carry_out_due(id, due, None);
        }
    }

    /// Settles the drafts in a directory that is about to be removed. Returns `ENOTEMPTY` if one of
    /// them has files there.
    pub(in crate::fs) fn leave_directory(&self, dir: &TreePath) -> Reply<()> {
        for id in self.editions_in(dir) {
            let (due, written, empty, inside) = {
                let state = self.0.state.lock();
                let Some(edition) = state.editions.get(id) else { continue };
                let empty = self.is_draft_empty(&state, edition, dir);
                (due_at_end(edition), edition.is_written(), empty, is_inside(edition, dir))
            };
            match due {
                // An edition that was only read does not affect the directory.
                _ if !written => {}
                Due::Nothing if !empty => return Err(Errno::ENOTEMPTY),
                // All its members in the directory are removed already, and the publish removes
                // them for all processes.
                Due::Nothing if inside => drop(self.complete(id, None, None)),
                due => self.carry_out_due(id, due, None),
            }
        }
        Ok(())
    }

    /// Returns the editions of units in a directory that is gone according to `state`.
    pub(in crate::fs) fn editions_inside(state: &State, dir: &TreePath) -> Inside {
        let all = state.editions.iter().filter(|(_, edition)| is_inside(edition, dir));
        Inside(all.map(|(id, edition)| (id, edition.uses())).collect())
    }

    /// Ends the editions of a directory that is gone. An edition that was used since then belongs
    /// to another directory of that name.
    pub(in crate::fs) fn end_editions(&self, inside: Inside) {
        for (id, uses) in inside.0 {
            self.end_edition(id, Some(uses));
        }
    }

    /// Settles the drafts in a directory that is about to be renamed: they are published as they
    /// are.
    pub(in crate::fs) fn move_directory(&self, dir: &TreePath) -> Reply<()> {
        for id in self.editions_in(dir) {
            let due = self.0.state.lock().editions.get(id).map(due_at_end);
            match due {
                Some(Due::Nothing | Due::Publish) => {
                    let published = self.complete(id, None, None);
                    published.map_err(|error| crate::fs::errno::promised(&error))?;
                }
                Some(Due::End) | None => {}
            }
            self.end_edition(id, None);
        }
        Ok(())
    }

    /// Returns the path of a name; `None` while no editions exist.
    pub(in crate::fs) fn path_with_editions(&self, spot: &DirEntryKey) -> Option<TreePath> {
        let state = self.0.state.lock();
        if state.editions.is_empty() { None } else { state.names.path_of(spot) }
    }

    /// Returns the editions of units in a directory, and the editions that have members in it.
    fn editions_in(&self, dir: &TreePath) -> Vec<EditionId> {
        let state = self.0.state.lock();
        let concerns = |edition: &Edition| {
            let above = dir.is_below(&edition.unit.dir());
            is_inside(edition, dir) || (above && !self.is_draft_empty(&state, edition, dir))
        };
        state.editions.iter().filter(|(_, edition)| concerns(edition)).map(|(id, _)| id).collect()
    }

    /// Reports whether the draft of an edition has nothing in a directory.
    fn is_draft_empty(&self, state: &State, edition: &Edition, dir: &TreePath) -> bool {
        let Some(draft) = &edition.draft else { return true };
        let private = dir.moved(&edition.unit.dir(), &draft.path);
        let private = private.unwrap_or_else(|| draft.path.clone());
        let mut dirs = draft.dirs.iter().filter(|(at, _)| *at == private || at.is_below(&private));
        !dirs.any(|(_, dir)| state.lives.in_directory(*dir).next().is_some())
            && self.0.rooms.ledger.read(|fold| !fold.has_descendants(&private))
    }

    /// Returns the editions whose units lie in a directory or above it, and that differ for this
    /// process from what is published. Their names have to be merged into a listing. Each of them
    /// has a draft.
    pub(in crate::fs) fn editions_listed(
        &self,
        who: Who,
        dir: &TreePath,
    ) -> HashMap<UnitName, TreePath> {
        let ids: Vec<EditionId> = {
            let state = self.0.state.lock();
            if state.editions.is_empty() {
                return HashMap::new();
            }
            let listed = |(id, edition): (EditionId, &Edition)| {
                let at = edition.unit.dir();
                let here = at == *dir || dir.is_below(&at);
                (here && state.editions.of(who, &edition.unit) == Some(id)).then_some(id)
            };
            state.editions.iter().filter_map(listed).collect()
        };
        let mut found = HashMap::new();
        for id in ids {
            if !self.is_apart(id) || self.make_draft(id).is_err() {
                continue;
            }
            let mut state = self.0.state.lock();
            let Some(edition) = state.editions.get(id) else { continue };
            let Some(draft) = &edition.draft else { continue };
            let (unit, private) =
                (edition.unit.clone(), dir.moved(&edition.unit.dir(), &draft.path));
            let Some(private) = private else { continue };
            // A listing needs the inode of its directory.
            Self::private_dir(&mut state, id, &private);
            found.insert(unit, private);
        }
        found
    }
}

/// Decides which step is due for an edition whose directory goes: nothing if its writers go on.
fn due_at_end(edition: &Edition) -> Due {
    if !edition.is_written() {
        return Due::End;
    }
    match DraftWriters::of(edition).writing {
        Writing::Goes | Writing::Unseen => Due::Nothing,
        Writing::Exited => Due::Publish,
        Writing::Killed => Due::End,
    }
}

/// Reports whether the unit of an edition lies in that directory, or below it.
fn is_inside(edition: &Edition, dir: &TreePath) -> bool {
    let at = edition.unit.dir();
    at == *dir || at.is_below(dir)
}

fn is_open(state: &State, edition: &Edition) -> bool {
    let dirs = edition.draft.iter().flat_map(|draft| &draft.dirs);
    let mut lives = dirs.flat_map(|(_, dir)| state.lives.in_directory(*dir));
    lives.any(|live| live.writers.has_open_or_closes() || live.settling.is_on())
}

#[cfg(test)]
mod tests {
    use hearthfs_mount::Caller;

    use super::*;
    use crate::fs::editions::version::Version;
    use crate::namespace::Writers as Shared;

    #[test]
    fn what_is_due_for_a_draft() {
        let caller = Caller { uid: 1, gid: 1, tid: 1 };
        let unit = UnitName::for_tests();
        let mut edition =
            Edition::new(unit, Shared::One, Version::default().into(), caller, Duration::ZERO);
        assert!(edition.add_writer(Writer { who: Who::Unseen, watched: None }));
        assert_eq!(DraftWriters::of(&edition).writing, Writing::Unseen);
        let (soon, late) = (Duration::from_secs(1), UNIT_HOLD);
        for (open_ended, writing, open, now, wanted) in [
            (false, Writing::Goes, false, soon, Due::Nothing),
            (false, Writing::Goes, false, late, Due::Publish),
            (false, Writing::Goes, true, late, Due::Nothing),
            (true, Writing::Goes, false, late, Due::Nothing),
            (false, Writing::Unseen, false, soon, Due::Nothing),
            (false, Writing::Unseen, false, late, Due::Publish),
            (true, Writing::Unseen, true, late, Due::Nothing),
            (true, Writing::Unseen, false, late, Due::End),
            (true, Writing::Exited, false, soon, Due::Publish),
            (false, Writing::Exited, true, late, Due::Nothing),
            (false, Writing::Killed, true, soon, Due::End),
        ] {
            edition.open_ended = open_ended;
            let case = format!("{open_ended} {writing:?} {open} {now:?}");
            assert_eq!(due(&edition, writing, open, now), wanted, "{case}");
        }
        // A publish that failed is tried again later, and the draft's writers are kept until then.
        edition.not_before = late;
        assert_eq!(due(&edition, Writing::Exited, false, soon), Due::Nothing);
        assert_eq!(due(&edition, Writing::Exited, false, late), Due::Publish);
        assert_eq!(due(&edition, Writing::Killed, false, soon), Due::End);
        let ended =
            |writing| DraftWriters { writing, ended: vec![Who::Process(1)], one_killed: false };
        assert_eq!(ended(Writing::Exited).to_forget(), []);
        assert_eq!(ended(Writing::Goes).to_forget(), [Who::Process(1)]);
    }
}
