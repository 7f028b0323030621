//! Processes that have written a part of a unit and no marker after it, and whose draft has ended.
//!
//! Owns what their next draft must not be published over. Must never hold a version: only its mark.

use std::collections::HashMap;
use std::sync::Arc;

use hearthfs_mount::Watched;

use super::Writer;
use super::version::UnitName;
use crate::fs::who::Who;
use crate::stamp::Stamp;

/// The most of them. Beyond that, what a process has begun is forgotten with its draft.
const UNFINISHED_MAX: usize = 4096;

/// The mark of the version that the process began with, or of what it has published itself.
#[derive(Debug)]
struct UnfinishedDraft {
    mark: Option<Stamp>,
    process: Arc<Watched>,
}

/// All of them, by process and unit.
#[derive(Debug, Default)]
pub(in crate::fs) struct Unfinished(HashMap<(Who, UnitName), UnfinishedDraft>);

impl Unfinished {
    /// Notes that the draft of a process ends. Does nothing for a process that has ended, or whose end would not be
    /// known.
    pub(in crate::fs) fn add(&mut self, writer: Writer, unit: &UnitName, mark: Option<Stamp>) {
        let Some(process) = writer.watched.filter(|process| process.end().is_none()) else {
            return;
        };
        if self.0.len() >= UNFINISHED_MAX {
            self.0.retain(|_, begun| begun.process.end().is_none());
        }
        if self.0.len() < UNFINISHED_MAX {
            self.0.insert((writer.who, unit.clone()), UnfinishedDraft { mark, process });
        }
    }

    /// Notes that a process has completed the unit, or begins with what is published.
    pub(in crate::fs) fn forget(&mut self, who: Who, unit: &UnitName) {
        if !self.0.is_empty() {
            self.0.remove(&(who, unit.clone()));
        }
    }

    /// Reports whether a version with this mark came after a process had begun to write its own.
    pub(in crate::fs) fn has_come(&self, who: Who, unit: &UnitName, mark: Option<Stamp>) -> bool {
        let begun = if self.0.is_empty() { None } else { self.0.get(&(who, unit.clone())) };
        // Another process may have the number of an ended one.
        let begun = begun.filter(|begun| begun.process.end().is_none());
        begun.is_some_and(|begun| mark.is_some() && begun.mark != mark)
    }
}
