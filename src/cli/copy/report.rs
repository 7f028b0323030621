//! The counts of a copy.
//!
//! Owns the counts, and the first paths of each kind of trouble. Must never grow with the tree.

use std::collections::BTreeMap;
use std::path::Path;

use parking_lot::Mutex;
use serde::Serialize;

use super::Way;
use super::clients::Warning;
use super::trouble::CopyTrouble;

/// The most paths that are named for each kind of trouble. All are counted.
const NAMED_MAX: usize = 10;

/// The report of a copy; `--json` prints it.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize)]
pub(in crate::cli) struct CopyReport {
    /// From where to where.
    #[serde(flatten)]
    pub(in crate::cli) ends: CopyEnds,
    /// Nothing was written: the counts say what a run without `--dry-run` would write.
    pub(in crate::cli) dry_run: bool,
    /// Files and symbolic links that were written.
    pub(in crate::cli) files: u64,
    /// Their bytes.
    pub(in crate::cli) bytes: u64,
    /// Units that were written: groups of files that only make sense together.
    pub(in crate::cli) units: u64,
    /// Files that the target already had with the same size and time.
    pub(in crate::cli) same: u64,
    /// Files that the target already had, that differ, and that were kept.
    pub(in crate::cli) kept: u64,
    /// Files that are never copied, by reason.
    pub(in crate::cli) left_out: BTreeMap<&'static str, u64>,
    /// The first files of units that are incomplete in the source.
    pub(in crate::cli) incomplete: Vec<String>,
    /// Files and directories that could not be copied.
    pub(in crate::cli) failed: u64,
    /// The first of these, with the reasons.
    pub(in crate::cli) failures: Vec<NotCopied>,
    /// The globs that fit no name.
    pub(in crate::cli) unmatched: Vec<String>,
    /// The conditions under which clients find their entries.
    pub(in crate::cli) warnings: Vec<Warning>,
    /// Why the copy was aborted, if it was.
    pub(in crate::cli) ended: Option<String>,
    /// The duration in milliseconds.
    pub(in crate::cli) elapsed_ms: u64,
}

/// The directories of a copy.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize)]
pub(in crate::cli) struct CopyEnds {
    /// The directory whose content was copied.
    pub(in crate::cli) from: String,
    /// The directory that got it.
    pub(in crate::cli) to: String,
}

/// A path, and the reason why it was not copied.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub(in crate::cli) struct NotCopied {
    pub(in crate::cli) path: String,
    pub(in crate::cli) reason: String,
}

/// Why a file is never copied.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Left {
    Temporary,
    NodeLocal,
    Lock,
    Special,
    Incomplete,
}

impl Left {
    fn word(self) -> &'static str {
        match self {
            Self::Temporary => "temporary",
            Self::NodeLocal => "node_local",
            Self::Lock => "lock",
            Self::Special => "special",
            Self::Incomplete => "incomplete",
        }
    }
}

/// The report so far, shared by all threads.
#[derive(Debug, Default)]
pub(super) struct CopyTally(Mutex<CopyReport>);

impl CopyTally {
    pub(super) fn wrote(&self, bytes: u64) {
        let mut report = self.0.lock();
        report.files += 1;
        report.bytes += bytes;
    }

    pub(super) fn wrote_unit(&self) {
        self.0.lock().units += 1;
    }

    pub(super) fn same(&self, files: usize) {
        self.0.lock().same += files as u64;
    }

    pub(super) fn kept(&self, files: usize) {
        self.0.lock().kept += files as u64;
    }

    pub(super) fn left_out(&self, why: Left, path: &Path) {
        let mut report = self.0.lock();
        *report.left_out.entry(why.word()).or_default() += 1;
        if why == Left::Incomplete && report.incomplete.len() < NAMED_MAX {
            report.incomplete.push(path.display().to_string());
        }
    }

    /// Counts a failure. If it is fatal, it aborts the copy; later failures follow from it and are not counted.
    pub(super) fn failed(&self, way: Way, path: &Path, trouble: &CopyTrouble) {
        let mut report = self.0.lock();
        if report.ended.is_some() {
            return;
        }
        let place = path.display();
        report.failed += 1;
        if report.failures.len() < NAMED_MAX {
            let (path, reason) = (place.to_string(), trouble.to_string());
            report.failures.push(NotCopied { path, reason });
        }
        report.ended = trouble.ends_all(way).map(|why| format!("{place}: {why}"));
    }

    pub(super) fn unmatched<'a>(&self, globs: impl Iterator<Item = &'a str>) {
        self.0.lock().unmatched.extend(globs.map(ToOwned::to_owned));
    }

    /// Aborts the copy.
    pub(super) fn end(&self, why: String) {
        self.0.lock().ended.get_or_insert(why);
    }

    pub(super) fn has_ended(&self) -> bool {
        self.0.lock().ended.is_some()
    }

    pub(super) fn warn(&self, warning: Warning) {
        self.0.lock().warnings.push(warning);
    }

    pub(super) fn so_far(&self) -> CopyReport {
        self.0.lock().clone()
    }
}
