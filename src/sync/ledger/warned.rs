//! Warnings that are not repeated each time.

use std::sync::atomic::AtomicBool;

use crate::sync::quiet::Quiet;

/// Which warnings were logged, and when.
#[derive(Debug, Default)]
pub(super) struct Warned {
    /// A node's clock is far ahead: logged once.
    pub(super) ahead: AtomicBool,
    /// The store refuses a content for good.
    pub(super) aside: Quiet,
    /// A blob is not where it should be.
    pub(super) bad: Quiet,
    /// Something could not be saved.
    pub(super) save: Quiet,
}
