//! Entries of the same program under other keys, for a user that asks why a name is a miss.
//!
//! Owns what of them a caller is told, and how many searches run at once. Must never hold the namespace for longer than one
//! directory's names take, nor search on a thread that answers requests.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::explain::Asker;
use super::filesystem::Filesystem;
use super::rights::{MAY_LIST, MAY_SEARCH};
use crate::name::TreePath;
use crate::namespace::Tree;
use crate::{clock, task};

/// Entries of the same program that are told.
const SIMILAR_MAX: usize = 5;
/// Entries that are found for those: some of them the asker may not know of.
const FOUND_MAX: usize = 4 * SIMILAR_MAX;

/// How long a question waits for the searches before it; after that its answer names no others.
const TURN_LIMIT: Duration = Duration::from_secs(1);

/// The turn to search. One search runs at a time: users that ask in a loop take one thread at most from the mount.
#[derive(Debug)]
pub(super) struct SearchTurn(Arc<Semaphore>);

impl Default for SearchTurn {
    fn default() -> Self {
        Self(Arc::new(Semaphore::new(1)))
    }
}

impl SearchTurn {
    /// Waits for the turn; `None` when it takes too long.
    async fn wait(&self) -> Option<OwnedSemaphorePermit> {
        clock::within(TURN_LIMIT, Arc::clone(&self.0).acquire_owned()).await?.ok()
    }
}

impl Filesystem {
    /// Returns entries of the same program as a path under other keys, as far as the asker may know of them.
    pub(super) async fn similar(&self, asker: Asker, path: &TreePath) -> Vec<TreePath> {
        if self.0.rules.profiles.program(path).is_none() {
            return Vec::new();
        }
        let Some(turn) = self.0.search_turn.wait().await else { return Vec::new() };
        let (this, path) = (self.clone(), path.clone());
        task::blocking(move || {
            // Kept until the search ends, also when the question was given up.
            let _turn = turn;
            this.search(asker, &path)
        })
        .await
    }

    fn search(&self, asker: Asker, path: &TreePath) -> Vec<TreePath> {
        let Some(program) = self.0.rules.profiles.program(path) else { return Vec::new() };
        let may = |at: &TreePath| match asker {
            Asker::Process(caller) if !self.is_trusted(&caller) => {
                self.may_reach(&caller, at, MAY_LIST | MAY_SEARCH)
            }
            _ => true,
        };
        let found = program.others(path, FOUND_MAX, self);
        found.into_iter().filter(may).take(SIMILAR_MAX).collect()
    }
}

impl Tree for Filesystem {
    fn names_after(&self, dir: &TreePath, name: Option<&[u8]>, limit: usize) -> Vec<Box<[u8]>> {
        let children = self.0.rooms.ledger.read(|fold| fold.children_after(dir, name, limit));
        children.into_iter().map(|child| child.name).collect()
    }

    fn has(&self, path: &TreePath) -> bool {
        let ledger = &self.0.rooms.ledger;
        ledger.read(|fold| match fold.visible(path) {
            Some(register) => register.entry.as_ref().is_some_and(|entry| {
                ledger.shown(fold, path, entry, Some(register.changed_ms())).is_some()
            }),
            // Nothing but what lies below says that the directory is there.
            None => fold.is_directory(path),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn one_search_runs_at_a_time_and_a_question_waits_a_second() {
        let turns = SearchTurn::default();
        let first = turns.wait().await.expect("no search runs");
        assert!(turns.wait().await.is_none(), "the first one has not ended");
        let (second, ()) = tokio::join!(turns.wait(), async { drop(first) });
        assert!(second.is_some());
    }
}
