//! Warnings that are not repeated each time.

use std::sync::atomic::AtomicBool;

use crate::sync::quiet::Quiet;

/// What was said, and when.
#[derive(Debug, Default)]
pub(super) struct Warned {
    /// That a node's clock is far ahead: once.
    pub(super) ahead: AtomicBool,
    /// That the store refuses a content for good.
    pub(super) aside: Quiet,
    /// That a blob is not where it should be.
    pub(super) bad: Quiet,
    /// That something could not be saved.
    pub(super) save: Quiet,
}
