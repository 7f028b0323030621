//! Locks of `flock` (rule 9): they belong to names.

use hearthfs_mount::{Errno, FlockKind};

use super::{Done, Model, is_below, moved};
use crate::daemon::tests::kernel::Fd;

impl Model {
    /// Returns the lock of a name. All names of a file with hard links share one.
    pub(super) fn table_of(&mut self, path: &str) -> u64 {
        let group = self.published(path).and_then(|thing| thing.group);
        let linked =
            self.live_below("").filter(|(_, thing)| group.is_some() && thing.group == group);
        let mut names: Vec<String> = linked.map(|(name, _)| name.clone()).collect();
        names.insert(0, path.to_owned());
        let known = names.iter().find_map(|name| self.tables.get(name).copied());
        let table = known.unwrap_or_else(|| self.next());
        for name in names {
            self.tables.entry(name).or_insert(table);
        }
        table
    }

    /// Requests the lock without waiting. A change of the kind of lock releases the old lock first.
    pub(super) fn lock(&mut self, fd: Fd, kind: FlockKind) -> Done {
        let number = self.descriptors[&fd].file;
        let (table, held) = (self.files[&number].table, self.files[&number].lock);
        let wanted = match kind {
            FlockKind::Unlock => None,
            FlockKind::Shared => Some(false),
            FlockKind::Exclusive => Some(true),
        };
        if held == wanted {
            return Ok(());
        }
        let others = self.files.iter().filter(|(other, file)| {
            **other != number && file.table == table && file.lock.is_some()
        });
        let others: Vec<bool> = others.filter_map(|(_, file)| file.lock).collect();
        let conflicts = |alone: bool| others.iter().any(|other| *other || alone);
        let refused = wanted.is_some_and(conflicts);
        self.files.get_mut(&number).unwrap().lock = wanted.filter(|_| !refused);
        if refused { Err(Errno::EAGAIN) } else { Ok(()) }
    }

    /// Removes a name and any name below it: the next file there has another lock. A file that
    /// another node removes keeps its lock.
    pub(super) fn part_locks(&mut self, path: &str) {
        self.tables.retain(|name, _| name != path && !is_below(name, path));
    }

    /// Gives a file another name, which shares its lock. What had that name before is gone.
    pub(super) fn link_locks(&mut self, from: &str, to: &str) {
        self.part_locks(to);
        if let Some(table) = self.tables.get(from).copied() {
            self.tables.insert(to.to_owned(), table);
        }
    }

    /// Moves a lock together with its name. What had the new name loses it.
    pub(super) fn move_locks(&mut self, from: &str, to: &str) {
        self.part_locks(to);
        let names: Vec<String> = self
            .tables
            .keys()
            .filter(|name| *name == from || is_below(name, from))
            .cloned()
            .collect();
        for name in names {
            if let Some(table) = self.tables.remove(&name) {
                self.tables.insert(moved(&name, from, to), table);
            }
        }
    }

    /// Forgets the locks of names that no process has open.
    pub(super) fn tidy_locks(&mut self) {
        let files = &self.files;
        self.tables.retain(|_, table| files.values().any(|file| file.table == *table));
    }
}
