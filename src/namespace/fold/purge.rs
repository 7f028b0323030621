//! Forgetting records that nothing uses any more.

use super::Fold;
use crate::digest::Digest;
use crate::name::TreePath;

impl Fold {
    /// Forgets everything about a path, including when its content changed.
    pub fn forget(&mut self, path: &TreePath) {
        self.reset(path, None);
    }

    /// Forgets attribute changes whose content never arrived and whose stamps are old.
    pub fn forget_early(&mut self, is_over: impl Fn(u64) -> bool) {
        self.early_attrs.retain(|_, (_, stamp, _)| !is_over(stamp.ms));
    }

    /// Returns for how many minutes no file has had a content; 0 if one has it. The count starts with
    /// the first call after a file had it or it was located. `minute` comes from a monotonic clock.
    pub fn idle_minutes(&mut self, digest: &Digest, minute: u64) -> u64 {
        self.places.idle_minutes(digest, minute)
    }

    /// Restarts the count of minutes without a file.
    pub fn wake(&mut self, digest: &Digest) {
        self.places.wake(digest);
    }
}
