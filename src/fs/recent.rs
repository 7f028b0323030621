//! Files of blobs that were opened lately and are still registered with the kernel.
//!
//! Owns these files between two opens: to open, register, unregister and close a blob costs more
//! than everything else in the open of a small file. Must never serve a file whose seal is broken.
//! Must never keep more of the tier from eviction, or more descriptors, than its limits, apart from
//! files that were opened since the last handle ended.

use std::sync::Arc;

use lru::LruCache;
use parking_lot::Mutex;

use super::inode::Source;
use crate::digest::Digest;
use crate::local::Blobs;

/// The most files that are kept.
const FILES_MAX: u64 = 256;
/// One descriptor in this many may be taken by kept files.
const DESCRIPTORS_PART: u64 = 16;
/// One byte of the tier in this many may be kept from eviction by kept files.
const TIER_PART: u64 = 16;
/// Larger files are not kept: reading them takes so long that the open makes no difference.
const FILE_BYTES_MAX: u64 = 1 << 20;

/// Files that were opened lately.
#[derive(Debug)]
pub(super) struct Recent {
    kept: Mutex<KeptOpen>,
    files_max: usize,
    bytes_max: u64,
}

#[derive(Debug)]
struct KeptOpen {
    files: LruCache<Digest, (Arc<Source>, u64)>,
    bytes: u64,
}

impl Recent {
    /// Makes an empty table for a tier of `tier_bytes` and a process that may have `descriptors`
    /// open.
    pub(super) fn new(tier_bytes: u64, descriptors: u64) -> Self {
        let files_max = (descriptors / DESCRIPTORS_PART).clamp(1, FILES_MAX) as usize;
        let kept = KeptOpen { files: LruCache::unbounded(), bytes: 0 };
        Self { kept: Mutex::new(kept), files_max, bytes_max: tier_bytes / TIER_PART }
    }

    /// Returns the file of a blob if it was opened lately and still looks the same as when its
    /// digest was last known to be right.
    pub(super) fn find(&self, blobs: &Blobs, digest: &Digest, size: u64) -> Option<Arc<Source>> {
        let source = Arc::clone(&self.kept.lock().files.get(digest)?.0);
        if blobs.is_whole(digest, size, source.backing.file()) {
            return Some(source);
        }
        let broken = self.kept.lock().remove(digest);
        drop(broken);
        None
    }

    /// Keeps a file that was just opened. [`Recent::trim`] must follow when its handle ends: a
    /// program waits for the open, and no program for that.
    pub(super) fn keep(&self, digest: Digest, size: u64, source: &Arc<Source>) {
        if size == 0 || size > FILE_BYTES_MAX.min(self.bytes_max) {
            return;
        }
        let mut kept = self.kept.lock();
        let before = kept.remove(&digest);
        kept.bytes += size;
        kept.files.put(digest, (Arc::clone(source), size));
        drop(kept);
        drop(before);
    }

    /// Closes the oldest files beyond the limits.
    pub(super) fn trim(&self) {
        // These files are closed after the lock is released.
        let mut oldest = Vec::new();
        let mut kept = self.kept.lock();
        while kept.bytes > self.bytes_max || kept.files.len() > self.files_max {
            let Some((_, (source, bytes))) = kept.files.pop_lru() else { break };
            kept.bytes -= bytes;
            oldest.push(source);
        }
        drop(kept);
    }

    /// Closes all kept files. Returns whether there were any.
    pub(super) fn clear(&self) -> bool {
        let all: Vec<_> = {
            let mut kept = self.kept.lock();
            kept.bytes = 0;
            std::iter::from_fn(|| kept.files.pop_lru()).collect()
        };
        !all.is_empty()
    }
}

impl KeptOpen {
    fn remove(&mut self, digest: &Digest) -> Option<Arc<Source>> {
        let (source, bytes) = self.files.pop(digest)?;
        self.bytes -= bytes;
        Some(source)
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;

    use super::*;

    fn source() -> Arc<Source> {
        Source::new(File::open("/dev/null").unwrap(), None)
    }

    fn digest(number: u64) -> Digest {
        Digest::of(&number.to_le_bytes())
    }

    fn kept(recent: &Recent) -> (usize, u64) {
        let kept = recent.kept.lock();
        (kept.files.len(), kept.bytes)
    }

    #[test]
    fn bytes_and_descriptors_are_bounded() {
        let recent = Recent::new(1000 * TIER_PART, 1 << 20);
        let first = source();
        recent.keep(digest(1), 600, &first);
        recent.keep(digest(1), 600, &first);
        assert_eq!(kept(&recent), (1, 600), "the same content is kept once");
        recent.keep(digest(2), 400, &source());
        assert_eq!(kept(&recent), (2, 1000));
        recent.keep(digest(3), 1, &source());
        assert_eq!(kept(&recent), (3, 1001), "all have an open handle");
        recent.trim();
        assert_eq!(kept(&recent), (2, 401), "the oldest is dropped");
        assert_eq!(Arc::strong_count(&first), 1);
        recent.keep(digest(4), 1001, &source());
        recent.keep(digest(5), 0, &source());
        assert_eq!(kept(&recent), (2, 401), "too large and empty contents are not kept");
        assert!(recent.clear() && !recent.clear());
        assert_eq!(kept(&recent), (0, 0));

        for (descriptors, most) in [(1 << 20, 256), (320, 20), (4, 1)] {
            let recent = Recent::new(1 << 40, descriptors);
            for number in 0..300 {
                recent.keep(digest(number), 10, &source());
            }
            recent.trim();
            assert_eq!(kept(&recent), (most, most as u64 * 10), "{descriptors}");
        }
        let recent = Recent::new(1 << 40, 1 << 20);
        recent.keep(digest(1), FILE_BYTES_MAX + 1, &source());
        assert_eq!(kept(&recent), (0, 0));
    }
}
