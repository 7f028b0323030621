//! Changes: the only way in which the namespace is modified.

use serde::{Deserialize, Serialize};

use super::entry::{Attrs, Entry};
use crate::name::TreePath;
use crate::stamp::Stamp;

/// What a change does to its path.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Op {
    /// The path points to this entry from now on.
    Put(Entry),
    /// The path points to nothing from now on.
    Remove,
    /// The entry that change `of` put has these attributes from now on. Does not apply to any other
    /// content of the path, so a `chmod` never restores an old content.
    Attrs {
        /// The stamp of the change that put the content.
        of: Stamp,
        /// All attributes, changed or not.
        attrs: Attrs,
    },
}

/// A change of one path.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Change {
    /// The path that changes.
    pub path: TreePath,
    /// Its place in the total order.
    pub stamp: Stamp,
    /// The change.
    pub op: Op,
}
