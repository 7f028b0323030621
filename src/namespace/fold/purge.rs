//! Forgetting what belongs to nothing any more.

use super::Fold;
use crate::digest::Digest;
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

    /// Returns for how many minutes a content is known to be in no file, none if it is in one. The count begins
    /// with the first call since it was in one or was located; `minute` is a clock's, and never goes back.
    pub fn idle_minutes(&mut self, digest: &Digest, minute: u64) -> u64 {
        self.places.idle_minutes(digest, minute)
    }

    /// Begins to count anew for how long a content is in no file.
    pub fn wake(&mut self, digest: &Digest) {
        self.places.wake(digest);
    }
}
