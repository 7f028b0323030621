//! What trying a store has shown.

use parking_lot::Mutex;

/// What a store was seen to do, of that without which hearthfs manages.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StoreAbilities {
    /// It refuses to make an object that is there already, so that one of two writers wins; `None` when it
    /// was too busy to say.
    pub create_if_absent: Option<bool>,
    /// It lets us delete.
    pub delete: bool,
    /// A list shows an object that was put just before.
    pub list_at_once: bool,
}

/// What is known of a store.
#[derive(Debug, Default)]
pub(super) struct Tried {
    pub(super) abilities: Mutex<Option<StoreAbilities>>,
    /// Why the store cannot be used.
    pub(super) unfit: Mutex<Option<String>>,
}
