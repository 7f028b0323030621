//! Copies of trees to and from a mount: what `import` and `export` have in common.
//!
//! One thread walks the source and makes jobs of it: a few files, or one unit. Others do the jobs. The walk keeps one
//! directory of each level open and never more names than those of units that are not over yet, so a tree of any size
//! takes the same memory.
//!
//! Owns the order in which files are written, and what is left out. Must never write a part of a unit as if it were
//! whole, and never give a file its name before all of it is there.

mod about;
mod at;
mod clients;
mod dirs;
mod file;
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
pub(super) use tree::Trees;
pub(super) use turn::Turn;
use work::copy;

use crate::name::TreePath;
use crate::namespace::{Pattern, Profiles};

/// Which way files go.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Way {
    /// To a mount. What is written there is seen when it is closed, and units when they are complete.
    Import,
    /// From a mount to a plain directory, where a file gets its name when all of it is there.
    Export,
}

/// What is to be copied, and how.
#[derive(Clone, Debug)]
pub(super) struct Plan {
    pub(super) way: Way,
    /// The directory whose content is copied, resolved.
    pub(super) from: PathBuf,
    /// The directory that gets it, resolved; it may be missing.
    pub(super) to: PathBuf,
    /// The path below the mount of the one of them that lies on it.
    pub(super) place: TreePath,
    pub(super) profiles: Profiles,
    /// What is copied, relative to `from`; all if there are none.
    pub(super) globs: Vec<Pattern>,
    /// Replaces files that are there and differ.
    pub(super) overwrite: bool,
    /// Writes nothing, and counts what would be written.
    pub(super) dry_run: bool,
    /// How many bytes the units may have that are written within some seconds: the daemon keeps these on the node.
    pub(super) unit_bytes: u64,
}
