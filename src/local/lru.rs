//! The accounting of local blobs: which exist, which may be evicted, in which order.
//!
//! Owns the order of use and the sums. Must never touch a file; the blobs module does that, and
//! keeps both consistent.
//!
//! Keeps P13 bounded.

use std::num::NonZeroUsize;

use lru::LruCache;

use super::seal::Seal;
use crate::digest::Digest;
use crate::hashing::FastMap;

/// The allocation unit of the disk, in bytes.
const BLOCK_BYTES: u64 = 4096;

/// The known facts about one blob's file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Blob {
    /// The seal of the file when its digest was last known to be right; while `verified` is false,
    /// the seal with which it was found.
    pub(super) seal: Seal,
    /// Whether the seal is known to belong to the digest.
    pub(super) verified: bool,
    /// When its use was last recorded, in seconds since the Unix epoch.
    pub(super) used: u32,
    /// Whether it was fetched from the store, and no program has opened it since.
    pub(super) fetched: bool,
}

/// A blob that may not be evicted, and the reasons.
#[derive(Clone, Copy, Debug)]
pub(super) struct PinnedBlob {
    pub(super) blob: Blob,
    /// Whether its file exists. A pin can outlive the file.
    pub(super) present: bool,
    /// Open handles and uploads.
    pub(super) pins: u32,
    /// The remote does not have it yet.
    pub(super) unsaved: bool,
}

impl PinnedBlob {
    /// Makes the state of a blob that nothing holds.
    fn free(blob: Blob) -> Self {
        Self { blob, present: true, pins: 0, unsaved: false }
    }

    fn evictable(&self) -> bool {
        self.present && self.pins == 0 && !self.unsaved
    }
}

/// Sums over all blobs, in bytes on disk.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Sums {
    pub(super) bytes: u64,
    pub(super) unsaved: u64,
    pub(super) pinned: u64,
}

/// All local blobs: the evictable ones in the order of their last use, the others apart.
#[derive(Debug)]
pub(super) struct Tier {
    free: LruCache<Digest, Blob>,
    held: FastMap<Digest, PinnedBlob>,
    /// How many of `held` are present.
    held_present: usize,
    sums: Sums,
}

/// Returns the bytes that a file of `size` bytes takes on disk.
pub(super) fn charge(size: u64) -> u64 {
    size.div_ceil(BLOCK_BYTES).saturating_mul(BLOCK_BYTES)
}

impl Tier {
    pub(super) fn new() -> Self {
        Self {
            free: LruCache::unbounded(),
            held: FastMap::default(),
            held_present: 0,
            sums: Sums::default(),
        }
    }

    pub(super) fn sums(&self) -> Sums {
        self.sums
    }

    /// Counts the blobs whose files exist.
    pub(super) fn len(&self) -> usize {
        self.free.len() + self.held_present
    }

    /// Returns what is known about a blob that is there, without counting it as used.
    pub(super) fn get(&self, digest: &Digest) -> Option<PinnedBlob> {
        match self.free.peek(digest) {
            Some(blob) => Some(PinnedBlob::free(*blob)),
            None => self.held.get(digest).copied().filter(|held| held.present),
        }
    }

    /// Replaces what is known about a digest; pins stay.
    pub(super) fn put(&mut self, digest: Digest, blob: Blob, unsaved: bool) {
        let pins = self.held.get(&digest).map_or(0, |held| held.pins);
        self.take(&digest);
        self.place(digest, PinnedBlob { blob, present: true, pins, unsaved });
    }

    /// Adds a blob found on disk as the least recently used; does nothing if the digest is known.
    pub(super) fn put_oldest(&mut self, digest: Digest, blob: Blob) -> bool {
        if self.free.contains(&digest) || self.held.contains_key(&digest) {
            return false;
        }
        self.place(digest, PinnedBlob::free(blob));
        self.free.demote(&digest);
        true
    }

    /// Changes what is known about a blob that is there, and counts it as used. Returns the new state.
    pub(super) fn change(
        &mut self,
        digest: &Digest,
        edit: impl FnOnce(&mut PinnedBlob),
    ) -> Option<PinnedBlob> {
        let mut held = self.take(digest)?;
        if held.present {
            edit(&mut held);
        }
        self.place(*digest, held);
        held.present.then_some(held)
    }

    /// Drops one pin.
    pub(super) fn unpin(&mut self, digest: &Digest) {
        if let Some(mut held) = self.take(digest) {
            held.pins = held.pins.saturating_sub(1);
            self.place(*digest, held);
        }
    }

    /// Forgets the file of a blob; pins stay. Returns what was known if it was there.
    pub(super) fn remove(&mut self, digest: &Digest) -> Option<PinnedBlob> {
        let held = self.take(digest)?;
        self.place(*digest, PinnedBlob { present: false, unsaved: false, ..held });
        held.present.then_some(held)
    }

    /// Removes and returns the least recently used evictable blob.
    pub(super) fn pop_oldest(&mut self) -> Option<(Digest, Blob)> {
        let (digest, blob) = self.free.pop_lru()?;
        self.sums.bytes -= charge(blob.seal.size);
        Some((digest, blob))
    }

    /// Removes and returns a blob that may be evicted, if it is due.
    pub(super) fn pop_if(
        &mut self,
        digest: &Digest,
        is_due: impl FnOnce(&Blob) -> bool,
    ) -> Option<Blob> {
        if !self.free.peek(digest).is_some_and(is_due) {
            return None;
        }
        let blob = self.free.pop(digest)?;
        self.sums.bytes -= charge(blob.seal.size);
        Some(blob)
    }

    /// Gives back memory that was needed for more blobs than there are now.
    pub(super) fn shrink(&mut self) {
        // A change of the capacity is the only way to shrink this table. Nothing is removed.
        let least = NonZeroUsize::new(self.free.len()).unwrap_or(NonZeroUsize::MIN);
        self.free.resize(least);
        self.free.resize(NonZeroUsize::MAX);
        self.held.shrink_to_fit();
    }

    /// Yields the digests that are there, in no order.
    pub(super) fn digests(&self) -> impl Iterator<Item = &Digest> {
        let held = self.held.iter().filter(|(_, held)| held.present).map(|(digest, _)| digest);
        self.free.iter().map(|(digest, _)| digest).chain(held)
    }

    /// Yields the blobs with valid seals, in no order.
    pub(super) fn sealed(&self) -> impl Iterator<Item = (&Digest, &Blob)> {
        let held = self.held.iter().filter(|(_, held)| held.present);
        let held = held.map(|(digest, held)| (digest, &held.blob));
        self.free.iter().chain(held).filter(|(_, blob)| blob.verified)
    }

    fn take(&mut self, digest: &Digest) -> Option<PinnedBlob> {
        let held = if let Some(blob) = self.free.pop(digest) {
            PinnedBlob::free(blob)
        } else {
            let held = self.held.remove(digest)?;
            self.held_present -= usize::from(held.present);
            held
        };
        if held.present {
            let bytes = charge(held.blob.seal.size);
            self.sums.bytes -= bytes;
            self.sums.unsaved -= if held.unsaved { bytes } else { 0 };
            self.sums.pinned -= if held.pins > 0 { bytes } else { 0 };
        }
        Some(held)
    }

    fn place(&mut self, digest: Digest, held: PinnedBlob) {
        if held.present {
            let bytes = charge(held.blob.seal.size);
            self.sums.bytes += bytes;
            self.sums.unsaved += if held.unsaved { bytes } else { 0 };
            self.sums.pinned += if held.pins > 0 { bytes } else { 0 };
        }
        if held.evictable() {
            self.free.push(digest, held.blob);
        } else if held.present || held.pins > 0 {
            self.held_present += usize::from(held.present);
            self.held.insert(digest, held);
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn blob(size: u64) -> Blob {
        Blob {
            seal: Seal { size, mtime_ns: 0, ctime_ns: 0, ino: 1 },
            verified: true,
            used: 0,
            fetched: false,
        }
    }

    fn digest(n: u8) -> Digest {
        Digest::of(&[n])
    }

    #[test]
    fn the_least_recently_used_goes_first_and_held_ones_stay() {
        let mut tier = Tier::new();
        for n in 0..5 {
            tier.put(digest(n), blob(1), false);
        }
        tier.change(&digest(0), |_| {});
        tier.change(&digest(1), |held| held.pins += 1);
        tier.change(&digest(2), |held| held.unsaved = true);
        assert_eq!(tier.pop_oldest().map(|(d, _)| d), Some(digest(3)));
        assert_eq!(tier.pop_oldest().map(|(d, _)| d), Some(digest(4)));
        assert_eq!(tier.pop_oldest().map(|(d, _)| d), Some(digest(0)));
        assert_eq!(tier.pop_oldest(), None);
        assert_eq!(tier.len(), 2);
        tier.unpin(&digest(1));
        assert_eq!(tier.pop_oldest().map(|(d, _)| d), Some(digest(1)));
    }

    #[test]
    fn a_pin_outlives_its_file() {
        let mut tier = Tier::new();
        tier.put(digest(1), blob(1), false);
        tier.change(&digest(1), |held| held.pins += 1);
        tier.remove(&digest(1));
        assert!(tier.get(&digest(1)).is_none());
        tier.put(digest(1), blob(2), false);
        assert_eq!(tier.pop_oldest(), None, "the old pin holds the new file of the same bytes");
        tier.unpin(&digest(1));
        assert!(tier.pop_oldest().is_some());
        assert_eq!(tier.sums(), Sums::default());
    }

    proptest! {
        /// P13: after any steps, the sums are the sums of what is there.
        #[test]
        fn sums_stay_true(steps in proptest::collection::vec((0_u8..9, 0_u8..6, 0_u64..9000), 1..200)) {
            let mut tier = Tier::new();
            let mut pins = [0_u32; 6];
            for (what, n, size) in steps {
                let d = digest(n);
                match what {
                    0 => tier.put(d, blob(size), size % 2 == 0),
                    1 => drop(tier.put_oldest(d, blob(size))),
                    2 => {
                        if tier.change(&d, |held| held.pins += 1).is_some() {
                            pins[usize::from(n)] += 1;
                        }
                    }
                    3 => {
                        if pins[usize::from(n)] > 0 {
                            pins[usize::from(n)] -= 1;
                            tier.unpin(&d);
                        }
                    }
                    4 => drop(tier.change(&d, |held| held.unsaved = size % 2 == 0)),
                    6 => drop(tier.remove(&d)),
                    7 => {
                        let was = tier.get(&d);
                        let popped = tier.pop_if(&d, |_| size % 2 == 0);
                        let free = was.is_some_and(|was| was.evictable());
                        prop_assert_eq!(popped.is_some(), free && size % 2 == 0);
                        tier.shrink();
                    }
                    _ => if let Some((gone, _)) = tier.pop_oldest() {
                        let n = (0..6).find(|n| digest(*n) == gone).unwrap();
                        prop_assert_eq!(pins[usize::from(n)], 0, "a pinned blob was evicted");
                    },
                }
                let mut sums = Sums::default();
                let mut count = 0;
                for n in 0..6 {
                    if let Some(held) = tier.get(&digest(n)) {
                        prop_assert_eq!(held.pins, pins[usize::from(n)]);
                        let bytes = charge(held.blob.seal.size);
                        sums.bytes += bytes;
                        sums.unsaved += if held.unsaved { bytes } else { 0 };
                        sums.pinned += if held.pins > 0 { bytes } else { 0 };
                        count += 1;
                    }
                }
                prop_assert_eq!(tier.sums(), sums);
                prop_assert_eq!(tier.len(), count);
                prop_assert_eq!(tier.digests().count(), count);
            }
        }
    }
}
