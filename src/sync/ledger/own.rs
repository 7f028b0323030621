//! Paths that belong to this node alone: temporary files, statistics and locks, according to the
//! profiles of clients, and the editions of units.
//!
//! Such a change is journalled and applied like any other, and is never sent. Owns the table of
//! these paths and of their contents. No other copy of these contents exists. Must never let one of
//! them be evicted. Must never let one of these paths get into a commit or a checkpoint.
//!
//! The kind belongs to the path of a change, not to the file. So a rename from a temporary name to
//! a shared one is a removal that stays here and a put that is sent, with the content. A rename the
//! other way is a removal that is sent.

use std::collections::BTreeMap;

use super::outbox::Stays;
use super::stay_rules::StayRules;
use super::{Ledger, Locked};
use crate::digest::Digest;
use crate::error::{Error, Kind, Result};
use crate::hashing::FastMap;
use crate::local::FactBatch;
use crate::name::TreePath;
use crate::namespace::{Change, Fold, OWN_PATHS_MAX, Op, Time};

/// The name of the paths in the index.
pub(super) const OWN: &str = "own";
/// The fraction of the local tier that contents of this node alone may take: they cannot be
/// evicted.
const OWN_PART: u64 = 2;

/// A content with its size.
pub(super) type SizedContent = Option<(Digest, u64)>;

/// The paths of this node alone.
#[derive(Debug, Default)]
pub(super) struct Own {
    paths: BTreeMap<TreePath, SizedContent>,
    /// The contents, each with the number of paths that have it.
    contents: FastMap<Digest, u32>,
    bytes: u64,
    /// Whether paths were added or removed since the table was saved.
    moved: bool,
}

impl Own {
    /// Reports whether one of these paths has a content.
    pub(super) fn holds(&self, digest: &Digest) -> bool {
        self.contents.contains_key(digest)
    }

    /// Reports whether there are none.
    pub(super) fn is_empty(&self) -> bool {
        self.paths.is_empty()
    }

    /// Returns the paths.
    pub(super) fn paths(&self) -> impl Iterator<Item = &TreePath> {
        self.paths.keys()
    }

    /// Notes the content of a path, `None` for no path. Returns its old content if no other of the
    /// paths has it.
    fn set(&mut self, path: &TreePath, has: Option<SizedContent>) -> Option<Digest> {
        let content = has.flatten();
        if let Some((digest, size)) = content {
            *self.contents.entry(digest).or_default() += 1;
            self.bytes += size;
        }
        let before = match has {
            Some(content) => self.paths.insert(path.clone(), content),
            None => self.paths.remove(path),
        };
        self.moved |= before.is_some() != has.is_some();
        let (digest, size) = before.flatten()?;
        self.bytes -= size;
        let count = self.contents.get_mut(&digest)?;
        *count -= 1;
        if *count > 0 {
            return None;
        }
        self.contents.remove(&digest);
        Some(digest)
    }

    /// Refuses changes that would make the data of this node alone exceed its part of a tier of
    /// this size.
    pub(super) fn check(
        &self,
        rules: &StayRules,
        tier_bytes: u64,
        changes: &[Change],
        stays: &Stays,
    ) -> Result<()> {
        // What the changes add, and what they remove: a rename does both.
        let ((mut paths, mut bytes), (mut fewer_paths, mut fewer_bytes)) = ((0, 0), (0, 0));
        for (number, change) in changes.iter().enumerate() {
            let counts = stays.has(number) && !stays.note.private;
            if !counts && !rules.stays_here(&change.path) {
                continue;
            }
            let before = self.paths.get(&change.path);
            let held = before.copied().flatten().map_or(0, |(_, size)| size);
            match &change.op {
                Op::Put(entry) => {
                    bytes += entry.content().map_or(0, |(_, size)| size);
                    fewer_bytes += held;
                    paths += usize::from(before.is_none());
                }
                Op::Remove => {
                    fewer_bytes += held;
                    fewer_paths += usize::from(before.is_some());
                }
                Op::Attrs { .. } => {}
            }
        }
        let limit = tier_bytes / OWN_PART;
        let has_paths = self.paths.len() + paths;
        let full = (paths > fewer_paths && has_paths > OWN_PATHS_MAX + fewer_paths)
            || (bytes > fewer_bytes && self.bytes + bytes > limit + fewer_bytes);
        if full {
            let op = format!(
                "no room for more files that stay on this node: {OWN_PATHS_MAX} names and {limit} bytes"
            );
            return Err(Error::new(Kind::NoSpace, op));
        }
        Ok(())
    }

    /// Writes the paths for the index, if they differ from the saved ones.
    pub(super) fn save(&mut self, batch: &mut FactBatch) {
        if std::mem::take(&mut self.moved) {
            let mut bytes = Vec::new();
            for path in self.paths.keys() {
                bytes.extend_from_slice(&(path.as_bytes().len() as u32).to_le_bytes());
                bytes.extend_from_slice(path.as_bytes());
            }
            batch.meta(OWN, &bytes);
        }
    }

    /// Marks the paths to be saved again, because the index is filled again.
    pub(super) fn save_again(&mut self) {
        self.moved = true;
    }
}

/// Decodes the paths from the index; stops at invalid data.
pub(super) fn decode(mut bytes: &[u8]) -> Vec<TreePath> {
    let mut paths = Vec::new();
    while let Some((length, rest)) = bytes.split_first_chunk::<4>()
        && let Some((path, rest)) = rest.split_at_checked(u32::from_le_bytes(*length) as usize)
        && let Ok(path) = TreePath::from_bytes(path)
    {
        paths.push(path);
        bytes = rest;
    }
    paths
}

impl Locked<'_> {
    /// Applies a change that stays here to the namespace.
    pub(super) fn apply_own(&mut self, change: &Change, now: Time) {
        self.fold.apply(change, now);
        let last = self.fold.register(&change.path);
        if change.op == Op::Remove && last.is_some_and(|last| last.stamp == change.stamp) {
            // No other node can have an older version that would come back.
            self.fold.reset(&change.path, None);
        }
        self.order.saved.path_moved(&change.path);
        self.note_own(&change.path);
    }

    /// Notes the present content of a path of this node alone, and releases its old one.
    pub(super) fn note_own(&mut self, path: &TreePath) {
        let entry = self.fold.register(path).and_then(|register| register.entry);
        let has = entry.map(|entry| entry.content().filter(|(_, size)| *size > 0));
        if let Some((digest, _)) = has.flatten() {
            self.ledger.0.disk.blobs.mark_unsaved(&digest);
        }
        self.set_own(path, has);
    }

    /// Notes that a path has a content of this node alone, or none; releases its old one.
    pub(super) fn set_own(&mut self, path: &TreePath, has: Option<SizedContent>) {
        let Some(left) = self.order.own.set(path, has) else { return };
        self.ledger.let_go(self.fold, &left);
    }
}

impl Ledger {
    /// Notes that a file which was closed before is a blob now. The blob need not be kept if its
    /// entry was removed meanwhile, or is remote already.
    pub fn note_blob(&self, digest: &Digest) {
        let order = self.0.order.lock();
        if !order.own.holds(digest) {
            self.let_go(&self.0.fold.read(), digest);
        }
    }

    /// Lets a content be evicted if no change that is not sent puts it, and if no file has it or
    /// the store does. No path of this node alone has it. The caller holds the order, so that a
    /// publish of the same content keeps it again.
    fn let_go(&self, fold: &Fold, digest: &Digest) {
        if !self.0.reliance.is_unsent(digest)
            && (!fold.uses(digest) || fold.stored_ms(digest).is_some())
        {
            self.0.disk.blobs.mark_saved(digest);
        }
    }

    /// Restores these paths from the index, which had them `saved`.
    pub(super) fn restore_own(&self, saved: Vec<TreePath>) {
        let mut order = self.0.order.lock();
        let mut fold = self.0.fold.write();
        let mut locked = self.locked(&mut order, &mut fold);
        for path in saved {
            // The profiles may have changed: then it is a path like any other.
            if self.0.rules.stays_here(&path) && locked.fold.register(&path).is_some() {
                locked.note_own(&path);
            }
        }
        order.own.moved = false;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn contents_are_counted() {
        let (mut own, digest) = (Own::default(), Digest::of(b"x"));
        let path = |name: &str| TreePath::root().join(name.as_bytes()).unwrap();
        assert_eq!(own.set(&path("a"), Some(Some((digest, 5)))), None);
        assert_eq!(own.set(&path("b"), Some(Some((digest, 5)))), None);
        assert!(own.holds(&digest) && own.bytes == 10);
        assert_eq!(own.set(&path("a"), Some(Some((digest, 5)))), None, "the same content again");
        assert_eq!(own.set(&path("a"), Some(None)), None);
        assert_eq!(own.set(&path("b"), None), Some(digest));
        assert!(!own.holds(&digest) && own.bytes == 0);
        assert_eq!(own.paths().count(), 1);
        let mut bytes = Vec::new();
        for name in ["a", "b"] {
            bytes.extend_from_slice(&1_u32.to_le_bytes());
            bytes.extend_from_slice(name.as_bytes());
        }
        assert_eq!(decode(&bytes), [path("a"), path("b")]);
        assert_eq!(decode(&bytes[..9]), [path("a")], "a torn record ends the list");
    }
}
