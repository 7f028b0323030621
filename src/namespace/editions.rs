//! The directory of the editions of units, below the root, which no program can name.
//!
//! An edition is what one process sees of a unit instead of the published version: its draft, or
//! the version that it began to read. Owns the name of this directory. Everything below it stays on
//! the node, and is removed at the next start.

use std::time::Duration;

use crate::name::TreePath;

/// The most members of all editions of a node together, three quarters of them for one user. Beyond
/// that, a reader gets the published version, and the files of a writer are ordinary ones.
pub const EDITIONS_LISTED_MAX: u64 = 262_144;
/// The cost of an edition in addition to its members. This limits a node to 4,096 editions.
pub const EDITION_COUNTS_FOR: u64 = 64;
/// How long a process keeps the version that it began to read, or that it published itself, after
/// it last opened an entry point.
pub const EDITION_KEPT_FOR: Duration = Duration::from_secs(10);
/// The most paths that stay on one node: those of drafts, and those that profiles call temporary,
/// node-local or a lock of one node.
pub const OWN_PATHS_MAX: usize = 50_000;

/// The name of the directory, in the root of the mount.
pub const EDITIONS: &[u8] = b".hearthfs-editions";

/// Returns the path of the directory.
pub fn editions() -> TreePath {
    TreePath::root().join(EDITIONS).expect("`EDITIONS` is a valid name")
}

/// Reports whether a path is this directory or lies below it.
pub fn is_edition(path: &TreePath) -> bool {
    path.components().next() == Some(EDITIONS)
}
