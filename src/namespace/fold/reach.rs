//! Reach: whether a file is in the place of a directory above a path.
//!
//! Owns the flag that spares almost every read the search for one. Must never report that a path
//! is reachable while a file is above it.

use super::Fold;
use super::packed::PackedRecord;
use crate::name::{TreePath, directories_above};

impl Fold {
    /// Reports whether every known ancestor of `path` is a directory.
    pub(super) fn reachable(&self, path: &TreePath) -> bool {
        !self.may_cover || self.has_only_directories_above(path)
    }

    fn has_only_directories_above(&self, path: &TreePath) -> bool {
        let root = (!path.is_root()).then_some(&b""[..]);
        directories_above(path.as_bytes()).chain(root).all(|dir| {
            let record = self.registers.get(dir);
            record.is_none_or(|record| !record.is_live() || record.is_directory())
        })
    }

    /// Must be called after the record of a path has come in. `before` and `now` say whether the
    /// path led to a directory; `None` for a tombstone or no record.
    ///
    /// Both kinds of change can put an entry below a file: a file that takes the place of a
    /// directory, and an entry that comes in below a file. The flag stays set from then on, because
    /// such a namespace is rare and only slower.
    pub(super) fn note_reach(&mut self, path: &TreePath, before: Option<bool>, now: Option<bool>) {
        if self.may_cover || now.is_none() || now == before {
            return;
        }
        // Tombstones below a file count, too, so that not all of them have to be read.
        let covers = now == Some(false) && self.records_below(path).next().is_some();
        self.may_cover = covers || !self.has_only_directories_above(path);
    }
}

/// Finds out for records that come in path order whether a file is above an entry.
#[derive(Debug, Default)]
pub(super) struct InOrder {
    /// The number of the last file. In path order, everything below it follows it directly.
    file: Option<usize>,
}

impl InOrder {
    /// Reports whether the next record lies below a file. `records` are those before it.
    pub(super) fn is_covered(&mut self, records: &[PackedRecord], next: &PackedRecord) -> bool {
        if !next.is_live() {
            return false;
        }
        let file = self.file.and_then(|at| records.get(at)).map(PackedRecord::path);
        let below = |file: &[u8]| {
            let rest = next.path().strip_prefix(file);
            rest.is_some_and(|rest| file.is_empty() || rest.first() == Some(&0))
        };
        let covered = file.is_some_and(below);
        if !next.is_directory() {
            self.file = Some(records.len());
        }
        covered
    }
}
