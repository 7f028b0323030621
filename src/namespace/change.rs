//! Changes: the only way in which the namespace moves.

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
    /// The entry that change `of` put has these attributes from now on. It says nothing about any
    /// other content of the path, so a `chmod` never brings an old content back.
    Attrs {
        /// The stamp of the change that put the content.
        of: Stamp,
        /// All attributes, changed or not.
        attrs: Attrs,
    },
}

/// One step of one path.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Change {
    /// The path that moves.
    pub path: TreePath,
    /// When, in the total order.
    pub stamp: Stamp,
    /// What happens to it.
    pub op: Op,
}
