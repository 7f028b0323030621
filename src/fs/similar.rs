//! Entries of the same program under other keys, for a user that asks why a name is a miss.
//!
//! Owns which of them a caller gets. Must never hold the lock of the namespace for longer than the
//! names of one directory take. Must never search on a thread that answers requests.

use super::explain::Asker;
use super::filesystem::Filesystem;
use super::rights::{MAY_LIST, MAY_SEARCH};
use crate::name::TreePath;
use crate::namespace::Tree;
use crate::task;

/// The most entries of the same program in one answer.
const SIMILAR_MAX: usize = 5;
/// The most entries that are searched for these. The asker may not see all of them.
const FOUND_MAX: usize = 4 * SIMILAR_MAX;

impl Filesystem {
    /// Returns entries of the same program as a path, under other keys. Leaves out those that the
    /// asker may not see.
    pub(super) async fn similar(&self, asker: Asker, path: &TreePath) -> Vec<TreePath> {
        if self.0.rules.profiles.program(path).is_none() {
            return Vec::new();
        }
        let Some(turn) = self.0.observed.search_turn.wait().await else { return Vec::new() };
        let (this, path) = (self.clone(), path.clone());
        task::blocking(move || {
            // The turn is kept until the search ends, even if the question was given up.
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
        let names = self.0.rooms.ledger.read(|fold| fold.names_after(dir, name, limit));
        names.into_iter().map(|(name, _)| Box::from(&*name)).collect()
    }

    fn has(&self, path: &TreePath) -> bool {
        let ledger = &self.0.rooms.ledger;
        ledger.read(|fold| match fold.visible(path) {
            Some(register) => register.entry.as_ref().is_some_and(|entry| {
                ledger.shown(fold, path, entry, Some(register.changed_ms())).is_some()
            }),
            // The directory exists only because of the entries below it.
            None => fold.is_directory(path),
        })
    }
}
