//! The ledger with both locks held.
//!
//! Owns nothing: operations that change the namespace, together with what is kept beside it, are
//! its methods. Must never exist while its thread waits for the disk.

use super::{Ledger, Ordered};
use crate::namespace::Fold;

/// The state under the two locks. `fold` is the namespace, or the draft that replaces it.
pub(super) struct Locked<'a> {
    pub(super) ledger: &'a Ledger,
    pub(super) order: &'a mut Ordered,
    pub(super) fold: &'a mut Fold,
}

impl Ledger {
    /// Puts together what the two locks protect.
    pub(super) fn locked<'a>(&'a self, order: &'a mut Ordered, fold: &'a mut Fold) -> Locked<'a> {
        Locked { ledger: self, order, fold }
    }
}
