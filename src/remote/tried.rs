//! The results of trying a store.

use parking_lot::Mutex;

/// Abilities of a store that hearthfs can do without.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StoreAbilities {
    /// It refuses to create an object that already exists, so that one of two writers wins; `None`
    /// if it was too busy to tell.
    pub create_if_absent: Option<bool>,
    /// It allows deletes.
    pub delete: bool,
    /// A list shows an object right after its write.
    pub list_at_once: bool,
}

/// What is known about a store.
#[derive(Debug, Default)]
pub(super) struct Tried {
    pub(super) abilities: Mutex<Option<StoreAbilities>>,
    /// Why the store cannot be used.
    pub(super) unfit: Mutex<Option<String>>,
}
