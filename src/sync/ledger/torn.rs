//! Contents that are known not to be complete.
//!
//! Owns the memory of them: a content, and the check that it has failed. Must never judge a content without the check: the
//! same bytes may be complete under another name.

use std::num::NonZeroUsize;

use lru::LruCache;
use parking_lot::Mutex;

use super::Ledger;
use crate::digest::Digest;
use crate::local::Torn;
use crate::name::TreePath;
use crate::namespace::{Check, Entry};

/// Contents of which that is remembered.
const TORN_MAX: NonZeroUsize = NonZeroUsize::new(8192).expect("it is not 0");

/// Contents that have failed a check.
#[derive(Debug)]
pub(super) struct TornContents(Mutex<LruCache<Torn, ()>>);

impl Default for TornContents {
    fn default() -> Self {
        Self(Mutex::new(LruCache::new(TORN_MAX)))
    }
}

impl TornContents {
    pub(super) fn is_empty(&self) -> bool {
        self.0.lock().is_empty()
    }
}

impl Ledger {
    /// Notes that a content is not complete, before it is published under a name that asks for that check: there it
    /// stays on this node.
    pub fn note_torn(&self, digest: Digest, check: Check) {
        self.0.torn.0.lock().put((digest, check), ());
    }

    /// Reports whether an entry stays on this node because it is not complete.
    pub fn is_torn(&self, path: &TreePath, entry: &Entry) -> bool {
        self.0.remote.is_some() && self.torn_by(path, entry).is_some()
    }

    /// Returns the content of an entry with the check of its name that it has failed.
    pub(super) fn torn_by(&self, path: &TreePath, entry: &Entry) -> Option<Torn> {
        let (digest, size) = entry.content()?;
        let torn = (digest, self.0.profiles.classify(path).check?);
        // Nothing at all is complete in no format.
        (size == 0 || self.0.torn.0.lock().contains(&torn)).then_some(torn)
    }
}
