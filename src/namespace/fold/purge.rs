//! Forgetting what belongs to nothing any more.

use super::Fold;
use crate::name::TreePath;

impl Fold {
    /// Forgets everything about a path, also when its content moved.
    pub fn forget(&mut self, path: &TreePath) {
        self.reset(path, None);
        if !self.is_directory(path) {
            self.moved.remove(path);
        }
    }

    /// Forgets attribute changes whose content never came and whose stamps are old.
    pub fn forget_early(&mut self, is_over: impl Fn(u64) -> bool) {
        self.early_attrs.retain(|_, (_, stamp, _)| !is_over(stamp.ms));
    }
}
