//! Slots: what a name leads to, and for whom.

use hearthfs_mount::Ino;

use super::inode::GenId;

/// What this node knows of one name: the inode of the published entry, if the kernel knows it, and the
/// generations that are being written under the name.
#[derive(Debug, Default)]
pub(super) struct Slot {
    /// The inode of what the namespace has under this name.
    pub(super) published: Option<Ino>,
    /// Open generations, oldest first.
    pub(super) generations: Vec<GenId>,
}

impl Slot {
    pub(super) fn is_empty(&self) -> bool {
        self.published.is_none() && self.generations.is_empty()
    }
}
