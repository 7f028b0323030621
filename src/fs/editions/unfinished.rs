//! Processes that have written a part of a unit and no marker after it, and whose draft has ended.
//!
//! Owns what their next drafts must not be published over. Must never hold a version: only its mark. Must never ask
//! the kernel: its caller holds the lock of the state.

use std::sync::Arc;

use hearthfs_mount::Watched;

use super::Writer;
use super::version::UnitName;
use crate::fs::who::Who;
use crate::hashing::FastMap;
use crate::stamp::Stamp;

/// The most units of all processes together. Beyond that, what a process has begun is forgotten with its draft.
const UNFINISHED_MAX: usize = 4096;

/// What a process has begun.
#[derive(Debug)]
struct UnfinishedUnits {
    process: Arc<Watched>,
    /// The mark of the version that each unit was begun with, or of what the process has published itself.
    marks: FastMap<UnitName, Option<Stamp>>,
}

/// All of them, by process.
#[derive(Debug, Default)]
pub(in crate::fs) struct Unfinished {
    all: FastMap<Who, UnfinishedUnits>,
    units: usize,
}

impl Unfinished {
    /// Notes that the draft of a process ends. Does nothing for a process whose end would not be known.
    pub(super) fn add(&mut self, writer: Writer, unit: &UnitName, mark: Option<Stamp>) {
        let Writer { who, watched: Some(process) } = writer else { return };
        // An ended process may have had the same number.
        if self.all.get(&who).is_some_and(|known| !Arc::ptr_eq(&known.process, &process)) {
            self.remove(who);
        }
        if self.units >= UNFINISHED_MAX {
            return;
        }
        let units = || UnfinishedUnits { process, marks: FastMap::default() };
        let known = self.all.entry(who).or_insert_with(units);
        self.units += usize::from(known.marks.insert(unit.clone(), mark).is_none());
    }

    /// Notes that a process has completed the unit, or begins with what is published.
    pub(in crate::fs) fn forget(&mut self, who: Who, unit: &UnitName) {
        let Some(known) = self.all.get_mut(&who) else { return };
        self.units -= usize::from(known.marks.remove(unit).is_some());
        if known.marks.is_empty() {
            self.all.remove(&who);
        }
    }

    /// Reports whether a version with this mark came after a process had begun to write its own.
    pub(in crate::fs) fn has_come(
        &self,
        (who, process): (Who, &Arc<Watched>),
        unit: &UnitName,
        mark: Option<Stamp>,
    ) -> bool {
        let known = self.all.get(&who).filter(|known| Arc::ptr_eq(&known.process, process));
        let begun = known.and_then(|known| known.marks.get(unit));
        begun.is_some_and(|begun| mark.is_some() && *begun != mark)
    }

    /// Returns the processes, so that the kernel can be asked for their ends.
    pub(in crate::fs) fn processes(&self) -> Vec<(Who, Arc<Watched>)> {
        self.all.iter().map(|(who, known)| (*who, Arc::clone(&known.process))).collect()
    }

    /// Forgets a process that has ended, and its descriptor with it.
    pub(in crate::fs) fn end(&mut self, who: Who, process: &Arc<Watched>) {
        if self.all.get(&who).is_some_and(|known| Arc::ptr_eq(&known.process, process)) {
            self.remove(who);
        }
    }

    fn remove(&mut self, who: Who) {
        self.units -= self.all.remove(&who).map_or(0, |known| known.marks.len());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use hearthfs_mount::Tasks;

    #[test]
    fn units_are_counted_forgotten_and_limited() {
        let id = std::process::id();
        let watch = || Arc::new(Tasks::detect().watch(id).unwrap());
        let (who, process) = (Who::Process(id), watch());
        let writer = |process: &Arc<Watched>| Writer { who, watched: Some(Arc::clone(process)) };
        let (unit, later) = (UnitName::for_tests(), Some(Stamp { ms: 7, ..Stamp::default() }));
        let mut all = Unfinished::default();
        all.add(Writer { who, watched: None }, &unit, None);
        assert!(all.processes().is_empty(), "its end would not be known");
        all.add(writer(&process), &unit, None);
        all.add(writer(&process), &unit, None);
        assert_eq!(all.units, 1);
        assert!(all.has_come((who, &process), &unit, later));
        assert!(!all.has_come((who, &process), &unit, None), "nothing is published");
        let other = watch();
        assert!(!all.has_come((who, &other), &unit, later), "another process of that number");
        all.end(who, &other);
        assert_eq!(all.units, 1);
        all.add(writer(&other), &unit, later);
        assert!(!all.has_come((who, &other), &unit, later), "it is what was begun with");
        assert!(!all.has_come((who, &process), &unit, later), "that process has ended");
        all.forget(who, &unit);
        assert!(all.units == 0 && all.processes().is_empty());
        all.units = UNFINISHED_MAX;
        all.add(writer(&other), &unit, None);
        assert!(all.processes().is_empty(), "there are too many");
    }
}
