//! Living: which parts of a namespace may still be shown at a given time, and for how long.
//!
//! A file is as old as its youngest stored copy. An entry without bytes of its own (a directory, a
//! link, an empty file) lives for the age after its last change, and as long as any file with bytes
//! lives beside or below it. So a directory that is in use keeps its owner and mode.

use std::time::Duration;

use super::age::Age;
use super::entry::Entry;
use super::fold::Fold;
use crate::digest::Digest;
use crate::name::TreePath;

/// The most entries that are checked for one that keeps another alive. If more expired entries wait
/// for the purge, a directory is shown a little too long, and empty.
const WITNESSES_MAX: usize = 512;

/// A namespace at a point in time.
#[derive(Clone, Copy)]
pub struct Living<'a> {
    /// The namespace.
    pub fold: &'a Fold,
    /// How long stored bytes are served.
    pub age: Age,
    /// The store's time.
    pub now_ms: u64,
    /// Reports whether a change that puts a content is still pending: such a content has no age.
    pub pending: &'a dyn Fn(&Digest) -> bool,
}

impl std::fmt::Debug for Living<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Living").field("now_ms", &self.now_ms).finish_non_exhaustive()
    }
}

impl Living<'_> {
    /// Returns for how much longer the entry of a path may be shown; `None` if it is expired.
    /// `changed_ms` is the time of its last change; `None` for an implied directory.
    pub fn left(
        &self,
        path: &TreePath,
        entry: &Entry,
        changed_ms: Option<u64>,
    ) -> Option<Duration> {
        if self.age.is_endless() || path.is_root() {
            return Some(Duration::MAX);
        }
        if let Some((digest, _)) = entry.content().filter(|(_, size)| *size > 0) {
            return self.left_of(&digest, changed_ms.unwrap_or(0));
        }
        let own = changed_ms.and_then(|changed_ms| self.age.left(changed_ms, self.now_ms));
        own.or_else(|| entry.is_directory().then(|| self.below(path)).flatten())
            .or_else(|| changed_ms.and_then(|_| self.beside(path)))
    }

    /// Returns for how much longer a content is served in an entry that was changed at `changed_ms`.
    pub fn left_of(&self, digest: &Digest, changed_ms: u64) -> Option<Duration> {
        // For a copy that exists only here and is not pending, the entry gives the age.
        let stored_ms = self.fold.stored_ms(digest).unwrap_or(changed_ms);
        match self.age.left(stored_ms, self.now_ms) {
            None if (self.pending)(digest) => Some(Duration::MAX),
            left => left,
        }
    }

    /// Returns for how much longer the first living file below a directory is served.
    fn below(&self, dir: &TreePath) -> Option<Duration> {
        self.first(dir, |_| true)
    }

    /// Returns for how much longer the first living file beside a path is served.
    fn beside(&self, path: &TreePath) -> Option<Duration> {
        let dir = path.parent()?;
        self.first(&dir, |at| at.below(&dir).is_some_and(|rest| !rest.contains(&0)))
    }

    fn first(&self, dir: &TreePath, counts: impl Fn(&TreePath) -> bool) -> Option<Duration> {
        let mut looked = 0;
        for (path, register) in self.fold.below(dir) {
            looked += 1;
            if looked > WITNESSES_MAX {
                return Some(Duration::MAX);
            }
            if counts(&path)
                && let Some(left) = self.witness(register.entry.as_ref(), register.changed_ms())
            {
                return Some(left);
            }
        }
        None
    }

    fn witness(&self, entry: Option<&Entry>, changed_ms: u64) -> Option<Duration> {
        let (digest, size) = entry?.content()?;
        if size == 0 { None } else { self.left_of(&digest, changed_ms) }
    }
}
