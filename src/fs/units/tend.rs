//! Looking after editions: drafts without a marker, writers that have ended, versions that are no longer read.
//!
//! Owns how long each lasts. Must never publish what a killed process wrote (P2).

use std::collections::HashMap;
use std::time::Duration;

use hearthfs_mount::{End, Errno, Reply};

use super::editions::{Edition, EditionId, Writer};
use super::version::UnitName;
use crate::fs::filesystem::Filesystem;
use crate::fs::inode::Spot;
use crate::fs::state::State;
use crate::fs::who::Who;
use crate::name::TreePath;

/// How long a draft is kept from others after its last change, if no marker completes it.
const UNIT_HOLD: Duration = Duration::from_secs(10);
/// How long a process keeps the version that it began to read, or has published itself, after it opened an entry
/// point last.
const KEPT_FOR: Duration = Duration::from_secs(10);

/// What is due for an edition.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Due {
    Nothing,
    /// Its draft is published as it is.
    Publish,
    /// It goes; its draft is not published.
    End,
}

/// How the writers of a draft are.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Writing {
    /// One of them lives.
    Goes,
    /// None is known to live, and one cannot be seen.
    Unseen,
    /// All have exited by themselves.
    Exited,
    /// All are gone, and one was killed, or it is not known how it ended.
    Killed,
}

fn writing(writers: &[Writer]) -> Writing {
    let (mut killed, mut unseen) = (false, false);
    for writer in writers {
        match writer.watched.as_ref().map(|watched| watched.end()) {
            Some(None) => return Writing::Goes,
            None => unseen = true,
            Some(Some(End::Exited)) => {}
            Some(Some(End::Killed | End::Unknown)) => killed = true,
        }
    }
    match (unseen, killed) {
        (true, _) => Writing::Unseen,
        (false, true) => Writing::Killed,
        (false, false) => Writing::Exited,
    }
}

/// Decides what is due; `open` says whether a file of the draft is still open for writing. `writing` is only asked
/// where it is written.
fn due(edition: &Edition, writing: Writing, open: bool, now: Duration) -> Due {
    let idle = now.saturating_sub(edition.used);
    if !edition.is_written() {
        return if idle >= KEPT_FOR && !open { Due::End } else { Due::Nothing };
    }
    match writing {
        Writing::Exited => Due::Publish,
        Writing::Goes | Writing::Unseen if idle < UNIT_HOLD || open => Due::Nothing,
        Writing::Goes | Writing::Unseen if !edition.open_ended => Due::Publish,
        // An entry point without the files that it names would lead readers to nothing, or to older ones.
        Writing::Goes => Due::Nothing,
        Writing::Killed | Writing::Unseen => Due::End,
    }
}

impl Filesystem {
    /// Does for editions what is due: publishes the drafts of processes that have ended, and of those that write no
    /// more. Blocks.
    pub fn tend_editions(&self) {
        let now = self.0.rooms.clock.mono();
        let all: Vec<(EditionId, Vec<Writer>)> = {
            let state = self.0.state.lock();
            state.editions.iter().map(|(id, edition)| (id, edition.writers.clone())).collect()
        };
        // The kernel is asked outside the lock.
        let all: Vec<(EditionId, usize, Writing)> =
            all.into_iter().map(|(id, by)| (id, by.len(), writing(&by))).collect();
        let all: Vec<(EditionId, Due)> = {
            let state = self.0.state.lock();
            let due = |(id, writers, writing)| {
                // One that came meanwhile is asked the next time.
                let edition = state.editions.get(id).filter(|e| e.writers.len() == writers)?;
                Some((id, due(edition, writing, is_open(&state, edition), now)))
            };
            all.into_iter().filter_map(due).filter(|(_, due)| *due != Due::Nothing).collect()
        };
        for (id, due) in all {
            self.carry_out_due(id, due);
        }
    }

    fn carry_out_due(&self, id: EditionId, due: Due) {
        match due {
            Due::Nothing => {}
            Due::Publish => self.complete(id),
            Due::End => drop(self.end_edition(id)),
        }
    }

    /// Ends all editions, because the mount has ended. Drafts are published as they are, but for those of killed
    /// writers and those with an entry point that is not completed. Blocks.
    pub fn settle_editions(&self) {
        let all: Vec<(EditionId, Due)> = {
            let state = self.0.state.lock();
            let due = |edition: &Edition| match writing(&edition.writers) {
                _ if !edition.is_written() => Due::End,
                Writing::Killed => Due::End,
                Writing::Goes | Writing::Unseen if edition.open_ended => Due::End,
                Writing::Exited | Writing::Goes | Writing::Unseen => Due::Publish,
            };
            state.editions.iter().map(|(id, edition)| (id, due(edition))).collect()
        };
        for (id, due) in all {
            self.carry_out_due(id, due);
        }
    }

    /// Settles the drafts in a directory that is to be removed: `ENOTEMPTY` where one has files.
    pub(in crate::fs) fn leave_directory(&self, dir: &TreePath) -> Reply<()> {
        for id in self.editions_in(dir) {
            let (due, empty) = {
                let state = self.0.state.lock();
                let Some(edition) = state.editions.get(id) else { continue };
                (due_at_end(edition), self.is_draft_empty(&state, edition))
            };
            match due {
                Due::Nothing if !empty => return Err(Errno::ENOTEMPTY),
                // All that it had is gone in it, and goes for all.
                Due::Nothing => self.complete(id),
                Due::End if !self.is_written(id) => {}
                due => self.carry_out_due(id, due),
            }
        }
        Ok(())
    }

    /// Ends the editions in a directory that is gone.
    pub(in crate::fs) fn end_editions_in(&self, dir: &TreePath) {
        for id in self.editions_in(dir) {
            self.end_edition(id);
        }
    }

    fn is_written(&self, id: EditionId) -> bool {
        self.0.state.lock().editions.get(id).is_some_and(Edition::is_written)
    }

    /// Settles the drafts in a directory that is to be renamed: they are published as they are.
    pub(in crate::fs) fn move_directory(&self, dir: &TreePath) {
        for id in self.editions_in(dir) {
            let due = self.0.state.lock().editions.get(id).map(due_at_end);
            match due {
                Some(Due::Nothing) => self.complete(id),
                Some(due) => self.carry_out_due(id, due),
                None => {}
            }
            self.end_edition(id);
        }
    }

    /// Returns the path of a name; `None` while there are no editions at all.
    pub(in crate::fs) fn path_with_editions(&self, spot: &Spot) -> Option<TreePath> {
        let state = self.0.state.lock();
        if state.editions.is_empty() { None } else { state.names.path_of(spot) }
    }

    fn editions_in(&self, dir: &TreePath) -> Vec<EditionId> {
        let state = self.0.state.lock();
        let inside = |edition: &Edition| {
            let at = edition.unit.dir();
            at == *dir || at.is_below(dir)
        };
        state.editions.iter().filter(|(_, edition)| inside(edition)).map(|(id, _)| id).collect()
    }

    fn is_draft_empty(&self, state: &State, edition: &Edition) -> bool {
        let Some(draft) = &edition.draft else { return true };
        let mut dirs = draft.dirs.iter();
        !dirs.any(|(_, dir)| state.lives.in_directory(*dir).next().is_some())
            && self.0.rooms.ledger.read(|fold| !fold.has_descendants(&draft.path))
    }

    /// Returns the editions of a process in a directory or above it that it is led to there: their names are to be
    /// merged into a listing. Each has a draft.
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
            let state = self.0.state.lock();
            let Some(edition) = state.editions.get(id) else { continue };
            let Some(draft) = &edition.draft else { continue };
            if let Some(private) = dir.moved(&edition.unit.dir(), &draft.path) {
                found.insert(edition.unit.clone(), private);
            }
        }
        found
    }
}

/// Decides what is due for an edition whose directory goes: nothing where its writers go on.
fn due_at_end(edition: &Edition) -> Due {
    if !edition.is_written() {
        return Due::End;
    }
    match writing(&edition.writers) {
        Writing::Goes | Writing::Unseen => Due::Nothing,
        Writing::Exited => Due::Publish,
        Writing::Killed => Due::End,
    }
}

fn is_open(state: &State, edition: &Edition) -> bool {
    let dirs = edition.draft.iter().flat_map(|draft| &draft.dirs);
    let mut lives = dirs.flat_map(|(_, dir)| state.lives.in_directory(*dir));
    lives.any(|live| live.open > 0)
}

#[cfg(test)]
mod tests {
    use hearthfs_mount::Caller;

    use super::*;
    use crate::fs::units::version::Version;
    use crate::namespace::Writers;

    #[test]
    fn what_is_due_for_a_draft() {
        let caller = Caller { uid: 1, gid: 1, tid: 1 };
        let unit = UnitName::for_tests();
        let mut edition =
            Edition::new(unit, Writers::One, Version::default(), caller, Duration::ZERO);
        edition.writers.push(Writer { who: Who::Unseen, watched: None });
        assert_eq!(writing(&edition.writers), Writing::Unseen);
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
            (false, Writing::Killed, true, soon, Due::End),
        ] {
            edition.open_ended = open_ended;
            let case = format!("{open_ended} {writing:?} {open} {now:?}");
            assert_eq!(due(&edition, writing, open, now), wanted, "{case}");
        }
    }
}
