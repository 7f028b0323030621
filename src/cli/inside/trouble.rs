//! Names that could not be examined or changed.
//!
//! Owns their count, and that only the first are named. Must never end a walk: one directory that
//! the user may not read says nothing about others.

use std::fmt::Display;

use crate::cli::failure::{Failure, Outcome};
use crate::cli::output::{count, note};

/// How many are named. All are counted.
const NAMED_MAX: u64 = 20;

/// The failures so far.
#[derive(Debug, Default)]
pub(in crate::cli) struct Troubles(u64);

impl Troubles {
    /// Adds a failure; `path` is as displayed.
    pub(in crate::cli) fn add(&mut self, path: &str, why: &dyn Display) {
        self.0 += 1;
        if self.0 <= NAMED_MAX {
            note(&format!("warning: {path}: {why}"));
        } else if self.0 == NAMED_MAX + 1 {
            note("warning: there are more; they are counted");
        }
    }

    /// Returns how many there were.
    pub(in crate::cli) fn count(&self) -> u64 {
        self.0
    }

    /// Fails if there were any: `could not be read`.
    pub(in crate::cli) fn outcome(&self, what: &str) -> Outcome<()> {
        match self.0 {
            0 => Ok(()),
            number => Err(Failure::failed(format!("{} {what}", count(number, "name", "names")))),
        }
    }
}
