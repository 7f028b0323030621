//! Forgetting what belongs to nothing any more.

use super::Fold;

impl Fold {
    /// Forgets attribute changes whose content never came and whose stamps are old, and when the content of
    /// directories moved that are not there.
    pub fn forget_early(&mut self, is_over: impl Fn(u64) -> bool) {
        self.early_attrs.retain(|_, (_, stamp, _)| !is_over(stamp.ms));
        let mut moved = std::mem::take(&mut self.moved);
        moved.retain(|dir, _| self.is_directory(dir));
        self.moved = moved;
    }
}
