//! Eviction: making room by removing the blobs that were used longest ago.
//!
//! Only blobs that the remote has, that are not open and that no writer may change are evicted.
//! Open files stay readable in any case: the kernel keeps them until they are closed.

use std::fs;
use std::io;
use std::sync::atomic::Ordering;
use std::time::Duration;

use super::Blobs;
use crate::digest::Digest;
use crate::local::lru::{Blob, charge};
use crate::local::shelf::StagedBytes;

/// The most blobs that one adoption evicts, unless its bytes exceed what they free.
const EVICT_STEP: usize = 64;
/// The most blobs that one request for room evicts, unless they free less than twice what it asked for.
const MAKE_ROOM_STEP: usize = 4096;
/// The bytes freed when the disk itself reports that it is full.
pub(super) const FULL_DISK_STEP_BYTES: u64 = 64 << 20;
/// How long after an eviction nothing is stored that was not requested.
const PRESSED_FOR: Duration = Duration::from_mins(10);
/// Space reserved for the journal and the index, in bytes.
const DISK_RESERVE_BYTES: u64 = 8 << 20;
/// Files that the disk must be able to hold besides those that it has: one in so many of those that it can
/// hold at all, and at most this many. More are not made before the next look at the disk.
const DISK_RESERVE_FILES_PART: u64 = 32;
const DISK_RESERVE_FILES_MAX: u64 = 4096;
/// One part in this many of the tier is kept free for writers by background work.
const SPARE_PART: u64 = 4;
/// The most free disk space that is kept for writers, in bytes.
const SPARE_DISK_BYTES: u64 = 1 << 30;
/// If more than this is free, the free space is not read from the disk each time, in bytes.
const DISK_PLENTY_BYTES: u64 = 4 << 30;
/// How long the last reading is used in that case: no disk that we know fills `DISK_PLENTY_BYTES` in that time.
const DISK_PLENTY_FOR: Duration = Duration::from_millis(250);

impl Blobs {
    /// Sets how many bytes the tier may take, and evicts the excess before it returns.
    pub fn set_limit(&self, bytes: u64) {
        self.0.limit.store(bytes, Ordering::Relaxed);
        let used = self.used();
        if used > bytes {
            self.free_up(used - self.limits().low);
        }
    }

    /// Makes room for `bytes` more of staging data; returns false if the limit or the disk is full
    /// of what cannot be evicted.
    pub fn make_room(&self, bytes: u64) -> bool {
        let mut budget = MAKE_ROOM_STEP.max((bytes / 2048) as usize);
        loop {
            let lacking = self.lacking(bytes);
            if lacking == 0 {
                return true;
            }
            let step = budget.min(EVICT_STEP);
            let freed = self.evict(lacking, step);
            budget -= step;
            if freed == 0 || budget == 0 {
                return self.lacking(bytes) == 0;
            }
        }
    }

    /// Reports whether `bytes` more fit without evicting anything.
    pub fn has_room(&self, bytes: u64) -> bool {
        self.lacking(charge(bytes)) == 0
    }

    /// As [`Blobs::has_room`], for contents that nobody has requested. There is none for some time
    /// after an eviction: the room that it made is needed soon, and such contents would only push
    /// each other out.
    pub fn has_room_for_more(&self, bytes: u64) -> bool {
        let now = self.0.options.clock.mono().as_secs();
        let evicted_at = self.0.evicted_at.load(Ordering::Relaxed);
        let pressed = evicted_at > 0 && now < evicted_at + PRESSED_FOR.as_secs();
        !pressed && self.has_room(bytes)
    }

    /// As [`Blobs::has_room`], but keeps a part of tier and disk free for writers.
    pub fn has_room_to_spare(&self, bytes: u64) -> bool {
        let (limit, bytes) = (self.limits().bytes, charge(bytes));
        let spare = limit / SPARE_PART;
        let on_disk = bytes.saturating_add(spare.min(SPARE_DISK_BYTES));
        self.used().saturating_add(bytes).saturating_add(spare) <= limit
            && on_disk.saturating_add(DISK_RESERVE_BYTES) <= self.disk_free()
    }

    /// Counts a file of `size` bytes that is about to be written, if `is_room` reports room.
    /// Concurrent callers together take no more than there is.
    pub fn reserve(
        &self,
        staged: &StagedBytes,
        size: u64,
        is_room: impl FnOnce(&Self) -> bool,
    ) -> bool {
        let _turn = self.0.reserving.lock();
        let room = is_room(self);
        if room {
            staged.note(charge(size));
        }
        room
    }

    /// Reports whether so many bytes would fit if the tier held nothing else.
    pub fn could_hold(&self, bytes: u64) -> bool {
        bytes <= self.limits().bytes
    }

    /// Returns how many bytes must be freed before `bytes` more fit under the limit and on the disk.
    fn lacking(&self, bytes: u64) -> u64 {
        let used = self.used();
        let over = used.saturating_add(bytes).saturating_sub(self.limits().bytes);
        over.max(bytes.saturating_add(DISK_RESERVE_BYTES).saturating_sub(self.disk_free()))
    }

    /// Reports whether a file of that size would fit below the limit and on this disk if the tier were empty.
    pub fn fits(&self, bytes: u64) -> bool {
        bytes <= self.limits().bytes && self.disk_free() >= DISK_RESERVE_BYTES
    }

    /// Returns how much the disk has free, in bytes: nothing if it has no room for more files.
    pub fn disk_free(&self) -> u64 {
        let now = self.0.options.clock.mono();
        {
            let (asked, free) = *self.0.disk_free.lock();
            if free > DISK_PLENTY_BYTES && now.saturating_sub(asked) < DISK_PLENTY_FOR {
                return free;
            }
        }
        let free = rustix::fs::statvfs(&self.0.path).map_or(u64::MAX, |disk| free_bytes(&disk));
        *self.0.disk_free.lock() = (now, free);
        free
    }

    /// Reports whether the disk is full, whatever fills it. Contents of other nodes are then no
    /// longer kept, and writes of programs soon fail.
    pub fn is_disk_full(&self) -> bool {
        self.disk_free() < DISK_RESERVE_BYTES
    }

    fn used(&self) -> u64 {
        // Under the lock under which a file moves from staging to blobs.
        let table = self.0.table.lock();
        table.tier.sums().bytes.saturating_add(self.0.shelf.bytes())
    }

    /// Once the high mark is passed, evicts down to the low one in steps: each adoption of
    /// `adopted` bytes frees about twice as much.
    pub(super) fn relieve(&self, adopted: u64) {
        let limits = self.limits();
        let used = self.used();
        let evicting = {
            let mut table = self.0.table.lock();
            table.evicting = used > limits.high || (table.evicting && used > limits.low);
            table.evicting
        };
        if !evicting {
            return;
        }
        let excess = used - limits.low;
        let mut freed = self.evict(excess, EVICT_STEP);
        let due = excess.min(adopted.saturating_mul(2));
        while freed < due {
            match self.evict(due - freed, EVICT_STEP) {
                0 => return,
                more => freed += more,
            }
        }
    }

    /// Evicts until `bytes` bytes are freed, whatever the marks say.
    pub(super) fn free_up(&self, bytes: u64) {
        let mut freed = 0;
        while freed < bytes {
            match self.evict(bytes - freed, EVICT_STEP) {
                0 => return,
                more => freed += more,
            }
        }
    }

    /// Evicts at most `count` blobs, stopping when `bytes` are freed; returns the bytes freed.
    fn evict(&self, bytes: u64, count: usize) -> u64 {
        let mut victims = Vec::new();
        let mut chosen = 0;
        {
            let mut table = self.0.table.lock();
            while victims.len() < count && chosen < bytes {
                let Some((digest, blob)) = table.tier.pop_oldest() else { break };
                chosen += charge(blob.seal.size);
                victims.push((digest, blob));
            }
        }
        let mut freed = 0;
        let mut kept = Vec::new();
        for (digest, blob) in victims {
            if self.remove(&digest) {
                self.0.evictions.fetch_add(1, Ordering::Relaxed);
                let now = self.0.options.clock.mono().as_secs();
                self.0.evicted_at.store(now + 1, Ordering::Relaxed);
                freed += charge(blob.seal.size);
                self.0.evicted_bytes.fetch_add(blob.seal.size, Ordering::Relaxed);
            } else {
                kept.push((digest, blob));
            }
        }
        if !kept.is_empty() {
            let mut table = self.0.table.lock();
            for (digest, blob) in kept {
                table.tier.put_oldest(digest, blob);
            }
        }
        freed
    }

    /// Removes the file of a blob that is no longer in the table; false if it must stay.
    pub(super) fn remove(&self, digest: &Digest) -> bool {
        // Must not wait: the caller may hold another stripe.
        let stripe = &self.0.stripes[usize::from(digest.as_bytes()[0])];
        let Some(_stripe) = stripe.try_lock() else { return false };
        if self.0.table.lock().tier.get(digest).is_some() {
            // Adopted or opened again since it was chosen, so the file is in use.
            return true;
        }
        match fs::remove_file(self.path_of(digest)) {
            Ok(()) => {}
            Err(e) if e.kind() == io::ErrorKind::NotFound => {}
            Err(e) => {
                tracing::debug!(%digest, error = %e, "a blob cannot be evicted");
                return false;
            }
        }
        self.0.table.lock().tell(*digest, None);
        true
    }

    /// Adds blobs that were found on disk as the least recently used.
    pub(super) fn put_found(&self, digest: Digest, blob: Blob) {
        self.0.table.lock().tier.put_oldest(digest, blob);
    }
}

/// Returns the bytes that can be used on a disk. Some disks can hold only so many files.
fn free_bytes(disk: &rustix::fs::StatVfs) -> u64 {
    let reserve = DISK_RESERVE_FILES_MAX.min(disk.f_files / DISK_RESERVE_FILES_PART);
    if disk.f_favail < reserve { 0 } else { disk.f_bavail.saturating_mul(disk.f_frsize) }
}
