//! Where the editions of units stand: a directory below the root that no program can name.
//!
//! An edition is what one process has of a unit instead of what is published: its draft, or the version that it began
//! to read. Owns the name of this directory. What is below it never leaves the node, and goes at the next start.

use crate::name::TreePath;

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
