//! Rules for what stays on this node: the profiles of clients, a private mount, and contents that
//! are known to be incomplete.
//!
//! Owns the decision for paths and contents. Must never judge a content without the check that it
//! has failed: the same bytes may be complete under another name.

use std::collections::HashSet;
use std::num::NonZeroUsize;

use lru::LruCache;
use parking_lot::Mutex;

use super::Ledger;
use crate::digest::Digest;
use crate::local::Torn;
use crate::name::TreePath;
use crate::namespace::{Change, Check, Class, Entry, FileKind, Fold, Op, Profiles, is_edition};

/// The most incomplete contents that are remembered.
const TORN_MAX: NonZeroUsize = NonZeroUsize::new(8192).expect("it is not 0");

/// The rules.
pub(super) struct StayRules {
    /// The known facts about clients.
    profiles: Profiles,
    /// Whether all changes of programs stay on this node.
    private: bool,
    /// Whether there is a remote. Without one everything stays, and no distinction is needed.
    shared: bool,
    /// Paths whose tombstones must stay although there is no remote: an earlier remote may know
    /// them.
    kept: HashSet<TreePath>,
    /// Contents that have failed a check.
    torn: Mutex<LruCache<Torn, ()>>,
}

impl StayRules {
    /// Makes the rules; for `kept` see the field.
    pub(super) fn new(
        profiles: Profiles,
        private: bool,
        shared: bool,
        kept: HashSet<TreePath>,
    ) -> Self {
        Self { profiles, private, shared, kept, torn: Mutex::new(LruCache::new(TORN_MAX)) }
    }

    /// Returns the class of a path in the profiles.
    pub(super) fn classify<'a>(&self, path: &'a TreePath) -> Class<'a> {
        self.profiles.classify(path)
    }

    /// Reports whether changes of a path stay on this node.
    pub(super) fn stays_here(&self, path: &TreePath) -> bool {
        let kind = || self.classify(path).kind;
        self.shared && (is_edition(path) || kind().stays_here())
    }

    /// Reports whether a path is a member of a unit.
    pub(super) fn is_member(&self, path: &TreePath) -> bool {
        matches!(self.classify(path).kind, FileKind::Unit(_))
    }

    /// Reports whether there is a remote.
    pub(super) fn is_shared(&self) -> bool {
        self.shared
    }

    /// Reports whether the mount is private, with a remote or not.
    pub(super) fn is_private(&self) -> bool {
        self.private
    }

    /// Forgets a tombstone that no other node can need, because there is no remote. The tombstone
    /// of a unit's member is kept until a purge: it may show that the remaining files are no unit.
    pub(super) fn forget_alone(&self, fold: &mut Fold, change: &Change) {
        let last = fold.register(&change.path);
        if change.op == Op::Remove
            && last.is_some_and(|register| register.stamp == change.stamp)
            && !self.kept.contains(&change.path)
            && !self.is_member(&change.path)
        {
            fold.reset(&change.path, None);
        }
    }

    /// Notes that a content has failed a check.
    pub(super) fn note_torn(&self, digest: Digest, check: Check) {
        self.torn.lock().put((digest, check), ());
    }

    /// Reports whether no content has failed a check.
    pub(super) fn knows_no_torn(&self) -> bool {
        self.torn.lock().is_empty()
    }

    /// Returns the content of an entry with the check of its name that it has failed.
    pub(super) fn torn_by(&self, path: &TreePath, entry: &Entry) -> Option<Torn> {
        let (digest, size) = entry.content()?;
        let torn = (digest, self.classify(path).check?);
        // An empty content is incomplete in every format.
        (size == 0 || self.torn.lock().contains(&torn)).then_some(torn)
    }
}

impl Ledger {
    /// Notes that a content is incomplete, before it is published under a name with that check.
    /// Under such a name it stays on this node.
    pub fn note_torn(&self, digest: Digest, check: Check) {
        self.0.rules.note_torn(digest, check);
    }

    /// Reports whether an entry stays on this node because it is incomplete.
    pub fn is_torn(&self, path: &TreePath, entry: &Entry) -> bool {
        self.0.rules.is_shared() && self.0.rules.torn_by(path, entry).is_some()
    }

    /// Reports whether all changes of programs stay on this node.
    pub fn is_private(&self) -> bool {
        self.0.rules.is_private() && self.0.rules.is_shared()
    }
}
