//! Where the editions of units stand: a directory below the root that no program can name.
//!
//! An edition is what one process has of a unit instead of what is published: its draft, or the version that it began
//! to read. Owns the name of this directory. What is below it never leaves the node, and goes at the next start.

use std::time::Duration;

use crate::name::TreePath;

/// How many members all editions of a node may list, three quarters of them for one user. Beyond that a reader is led to
/// what is published, and the files of a writer are ordinary ones.
pub const EDITIONS_LISTED_MAX: u64 = 262_144;
/// What an edition counts for beside its members. So there are at most 4,096 of them.
pub const EDITION_COUNTS_FOR: u64 = 64;
/// How long a process keeps the version that it began to read, or has published itself, after it opened an entry
/// point last.
pub const EDITION_KEPT_FOR: Duration = Duration::from_secs(10);
/// The most paths that stay on one node: those of drafts, and what profiles call temporary, node-local or a lock of one
/// node.
pub const OWN_PATHS_MAX: usize = 50_000;

/// The name of the directory, in the root of the mount.
pub const EDITIONS: &[u8] = b".hearthfs-editions";

/// Returns the path of the directory.
pub fn editions() -> TreePath {
    TreePath::root().join(EDITIONS).expect("it is a name")
}

/// Reports whether a path is this directory or lies below it.
pub fn is_edition(path: &TreePath) -> bool {
    path.components().next() == Some(EDITIONS)
}
