//! Copies of trees to and from a mount: what `import` and `export` have in common.
//!
//! One thread walks the source and makes jobs: a few files, or one unit. Other threads do the jobs. The walk keeps one
//! directory of each level open and a bounded number of names, so memory does not grow with the tree.
//!
//! Owns the order in which files are written, and what is left out. Must never write a part of a unit as if it were
//! whole, and never give a file its name before all of it is there.

mod about;
mod at;
mod clients;
mod dirs;
mod file;
mod job;
mod pace;
mod place;
mod report;
mod share;
mod summary;
mod told;
mod tree;
mod trouble;
mod turn;
mod unit;
mod unit_in;
mod unit_out;
mod walk;
mod work;

use std::path::PathBuf;

pub(super) use place::{OnMount, apart, find_directory, resolve};
pub(super) use summary::copy_and_tell;
pub(super) use told::Told;
pub(super) use tree::{DirNames, Trees, open_again};
pub(super) use turn::ImportTurn;
use work::copy;

use crate::name::TreePath;
use crate::namespace::{Pattern, Profiles};

/// The direction of a copy.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Way {
    /// To a mount, where a file is visible when it is closed, and a unit when it is complete.
    Import,
    /// From a mount to a plain directory, where a file gets its name when all of it is there.
    Export,
}

/// The arguments of a copy.
#[derive(Clone, Debug)]
pub(super) struct CopyPlan {
    pub(super) way: Way,
    /// The directory whose content is copied, resolved.
    pub(super) from: PathBuf,
    /// The directory that gets it, resolved; it may be missing.
    pub(super) to: PathBuf,
    /// The path below the mount of the directory that lies on it.
    pub(super) place: TreePath,
    pub(super) profiles: Profiles,
    /// Patterns of the names to copy, relative to `from`; empty means all.
    pub(super) globs: Vec<Pattern>,
    /// Replaces files that are there and differ.
    pub(super) overwrite: bool,
    /// Writes nothing, and counts what would be written.
    pub(super) dry_run: bool,
    /// The most bytes of the units of some seconds: the daemon keeps these on the node.
    pub(super) unit_bytes: u64,
    /// The most bytes of one file that the target can hold.
    pub(super) bytes_max: u64,
}
