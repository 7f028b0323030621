//! Retries: threads that got `ESTALE`, look the name up once more, and open what they find then.
//!
//! The kernel looks again only once: a second `ESTALE` in a row would reach the program. So a retry
//! is recorded with what the thread wants, its lookup finds what that open can use, and the open is
//! answered with what is there. Owns these records. A retry may end without a call to the daemon:
//! at a lookup that finds nothing, or at a permission check of the kernel. So no record is kept for
//! more than [`RETRY_TIME`], and none may be used for another call.

use std::time::Duration;

use hearthfs_mount::{Caller, Ino, OpenFlags};

use super::inode::DirEntryKey;
use super::shares::Shares;
use crate::hashing::FastMap;

/// How long a retry stays recorded. The kernel retries at once; the rest is for waits for the store
/// or a publish.
pub(super) const RETRY_TIME: Duration = Duration::from_secs(15);
/// How long a retry is valid at names that did not lead to the opened inode: a rename may have come
/// in between.
const STRAY_TIME: Duration = Duration::from_millis(100);
/// How long a retry stays recorded after a lookup that found nothing. Where the kernel remembers
/// the name it looks twice, and an `O_CREAT` goes on to make the name. A later call is a different
/// one.
const MISSED_TIME: Duration = Duration::from_secs(1);
/// How many retries are recorded, three quarters of them for one user. Beyond that no thread is
/// made to look again.
const RETRIES_MAX: u64 = 4096;

/// The relation of a call to an earlier call of its thread that got `ESTALE`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Try {
    /// There was no earlier call.
    First,
    /// The thread must not be made to look again. It may have come through a descriptor: it has
    /// searched no directory.
    Last,
    /// Like `Last`, but the thread has walked to the name, so the kernel has just checked the way.
    Walked,
}

/// What a thread that looks again will do with what it finds.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum RetryWish {
    /// Read it, or make a call that is not an open.
    Read,
    /// Write to it as these flags say.
    Write(OpenFlags),
    /// It asked for attributes, on the way to any call.
    Unknown,
}

impl RetryWish {
    /// Makes the wish of an open with these flags, if it writes.
    pub(super) fn of(writes: Option<OpenFlags>) -> Self {
        writes.map_or(Self::Read, Self::Write)
    }

    fn may_be(self, writes: bool) -> bool {
        match self {
            Self::Read => !writes,
            Self::Write(_) => writes,
            Self::Unknown => true,
        }
    }

    /// Returns the flags of a thread that writes.
    pub(super) fn flags(self) -> Option<OpenFlags> {
        if let Self::Write(flags) = self { Some(flags) } else { None }
    }
}

/// A thread that looks again.
#[derive(Debug)]
pub(super) struct Retry {
    /// The user of the thread.
    user: u32,
    /// How long it is recorded ...
    until: Duration,
    /// ... and how long it is valid at names that did not lead to the opened inode.
    stray_until: Duration,
    /// Where it is expected to look: the names that led to the opened inode.
    spots: Vec<DirEntryKey>,
    /// Where its lookup has found nothing. An `O_CREAT` may go on to make that name.
    missed: Option<DirEntryKey>,
    pub(super) wish: RetryWish,
    /// The inode whose open got `ESTALE`. Some opens come back to it without a lookup.
    refused: Option<Ino>,
    /// The inode that its lookup found.
    found: Option<Ino>,
    /// The inode that has a seat for it: a reserved inode, or that of a live file.
    pub(super) seat: Option<Ino>,
}

impl Retry {
    /// Reports whether its thread is expected at this name.
    pub(super) fn is_at(&self, spot: &DirEntryKey) -> bool {
        self.spots.contains(spot) || self.missed.as_ref() == Some(spot)
    }
}

/// All threads that look again. Callers that cannot be seen share the number 0. While any of them
/// may still come back, no other of them is made to look again.
#[derive(Debug)]
pub(super) struct Retries {
    of_thread: FastMap<u32, Retry>,
    shares: Shares,
}

impl Default for Retries {
    fn default() -> Self {
        Self { of_thread: FastMap::default(), shares: Shares::new(RETRIES_MAX) }
    }
}

impl Retries {
    /// Removes the retry of a thread and returns it.
    pub(super) fn take(&mut self, tid: u32) -> Option<Retry> {
        let retry = self.of_thread.remove(&tid)?;
        self.shares.give_back(retry.user, 1);
        Some(retry)
    }

    fn is_fresh(retry: &Retry, now: Duration) -> bool {
        now < retry.until
    }

    /// Removes the retry that ends with this call on an inode. `writes` says whether the call is an
    /// open for writing. Returns the relation of the call to the retry. Also returns the retry
    /// itself, whether the call belongs to it or the thread has given it up.
    pub(super) fn end(
        &mut self,
        caller: &Caller,
        ino: Ino,
        writes: bool,
        now: Duration,
    ) -> (Try, Option<Retry>) {
        let tid = caller.tid;
        let full = !self.shares.has_room(caller.uid);
        if tid == 0 {
            // It is unknown whether this caller is the one that looked again, so the record stays.
            let waits = self.of_thread.get(&0).is_some_and(|retry| Self::is_fresh(retry, now));
            return (if waits || full { Try::Last } else { Try::First }, None);
        }
        let retry = self.take(tid);
        let is_it = |retry: &&Retry| Self::is_fresh(retry, now) && retry.wish.may_be(writes);
        let fresh = retry.as_ref().filter(is_it);
        let how = match fresh {
            Some(retry) if retry.found == Some(ino) => Try::Walked,
            Some(retry) if retry.refused == Some(ino) => Try::Last,
            _ if full => Try::Last,
            _ => Try::First,
        };
        (how, retry)
    }

    /// Removes the retry that ends with the making of a name.
    pub(super) fn end_at(
        &mut self,
        caller: &Caller,
        spot: &DirEntryKey,
        now: Duration,
    ) -> (Try, Option<Retry>) {
        let tid = caller.tid;
        if tid == 0 {
            return self.end(caller, Ino::ROOT, false, now);
        }
        let full = !self.shares.has_room(caller.uid);
        let retry = self.take(tid);
        let this =
            retry.as_ref().is_some_and(|retry| retry.is_at(spot) && Self::is_fresh(retry, now));
        let how = match this {
            true => Try::Walked,
            false if full => Try::Last,
            false => Try::First,
        };
        (how, retry)
    }

    /// Records that a thread looks again. Beyond the limit nothing is recorded, and the next open of
    /// the thread gets what is there.
    pub(super) fn begin(
        &mut self,
        caller: &Caller,
        spots: Vec<DirEntryKey>,
        refused: Option<Ino>,
        wish: RetryWish,
        now: Duration,
    ) {
        let (tid, user) = (caller.tid, caller.uid);
        let wish = if tid == 0 { RetryWish::Read } else { wish };
        let (missed, found, seat) = (None, None, None);
        self.take(tid);
        if !self.shares.take(user, 1) {
            return;
        }
        let (until, stray_until) = (now + RETRY_TIME, now + STRAY_TIME);
        let retry = Retry { user, until, stray_until, spots, missed, wish, refused, found, seat };
        self.of_thread.insert(tid, retry);
    }

    /// Returns the retry of a thread that looks up a name.
    pub(super) fn at(&mut self, tid: u32, spot: &DirEntryKey, now: Duration) -> Option<&mut Retry> {
        let retry = self.of_thread.get_mut(&tid).filter(|_| tid != 0)?;
        let until = if retry.is_at(spot) { retry.until } else { retry.stray_until };
        (now < until).then_some(retry)
    }

    /// Notes what a thread that looks again has found, under whichever name.
    pub(super) fn found(&mut self, tid: u32, spot: &DirEntryKey, ino: Ino, now: Duration) {
        if let Some(retry) = self.at(tid, spot, now) {
            retry.found = Some(ino);
        }
    }

    /// Notes that a thread that looks again has found nothing. Its call ends with that, or is about
    /// to end. The thread searched a directory, so it did not come through a descriptor: an open of
    /// the refused inode is a different call. So is a lookup of other names, unless what is missing
    /// may be a directory on the way: the kernel looks for that twice, and finds it if it was renamed
    /// away and back.
    pub(super) fn found_nothing(&mut self, tid: u32, spot: &DirEntryKey, now: Duration) {
        if let Some(retry) = self.at(tid, spot, now) {
            (retry.refused, retry.found) = (None, None);
            // Its call may have been for attributes only. A later open for writing is a different
            // call, which may need a retry of its own to be led to a draft.
            if retry.wish == RetryWish::Unknown {
                retry.wish = RetryWish::Read;
            }
            retry.until = retry.until.min(now + MISSED_TIME);
            if retry.is_at(spot) {
                retry.stray_until = now;
            }
            retry.missed = Some(spot.clone());
        }
    }

    /// Returns how a thread that looks again will write to this inode, if that is what it has
    /// found.
    pub(super) fn led_to(&self, tid: u32, ino: Ino) -> Option<OpenFlags> {
        let retry = self.of_thread.get(&tid).filter(|_| tid != 0)?;
        retry.wish.flags().filter(|_| retry.found == Some(ino))
    }

    /// Reports whether a thread looks again.
    pub(super) fn has(&self, tid: u32) -> bool {
        tid != 0 && self.of_thread.contains_key(&tid)
    }

    /// Removes every retry that has expired, and returns them.
    pub(super) fn take_expired(&mut self, now: Duration) -> Vec<Retry> {
        let old: Vec<u32> = self
            .of_thread
            .iter()
            .filter(|(_, retry)| !Self::is_fresh(retry, now))
            .map(|(tid, _)| *tid)
            .collect();
        old.iter().filter_map(|tid| self.take(*tid)).collect()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.of_thread.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Duration = Duration::from_hours(1);

    fn thread(tid: u32) -> Caller {
        Caller { uid: 1, gid: 1, tid }
    }

    fn spot(name: &[u8]) -> DirEntryKey {
        (Ino::ROOT, name.into())
    }

    #[test]
    fn a_retry_is_the_next_open_of_what_was_found_or_refused() {
        for (found, opened, how) in [
            (Some(8), 8, Try::Walked),
            (None, 7, Try::Last),
            (Some(8), 9, Try::First),
            (None, 9, Try::First),
        ] {
            let mut retries_of = Retries::default();
            retries_of.begin(&thread(3), vec![spot(b"name")], Some(Ino(7)), RetryWish::Read, NOW);
            if let Some(found) = found {
                retries_of.found(3, &spot(b"name"), Ino(found), NOW);
            }
            let mut end = || retries_of.end(&thread(3), Ino(opened), false, NOW).0;
            assert_eq!(end(), how, "{found:?} {opened}");
            assert_eq!(end(), Try::First, "the retry has ended");
        }
    }

    #[test]
    fn another_call_is_no_retry() {
        for (writes, found_nothing, how) in
            [(false, false, Try::Last), (true, false, Try::First), (false, true, Try::First)]
        {
            let mut retries = Retries::default();
            retries.begin(&thread(3), vec![spot(b"name")], Some(Ino(7)), RetryWish::Read, NOW);
            if found_nothing {
                retries.found_nothing(3, &spot(b"name"), NOW);
            }
            let ended = retries.end(&thread(3), Ino(7), writes, NOW).0;
            assert_eq!(ended, how, "{writes} {found_nothing}");
        }
        // The kernel looks twice where it remembers the name.
        let mut retries = Retries::default();
        retries.begin(&thread(3), vec![spot(b"name")], Some(Ino(7)), RetryWish::Read, NOW);
        retries.found_nothing(3, &spot(b"name"), NOW);
        retries.found(3, &spot(b"name"), Ino(8), NOW);
        assert!(retries.at(3, &spot(b"name"), NOW + MISSED_TIME).is_none(), "the retry has ended");
        assert!(retries.at(3, &spot(b"other"), NOW).is_none(), "another call is no retry");
        assert_eq!(retries.end(&thread(3), Ino(8), false, NOW).0, Try::Walked);
    }

    /// A directory on the way is missing for a moment, while it is renamed away and back. The name itself
    /// may be elsewhere then, too.
    #[test]
    fn a_missing_directory_does_not_end_a_retry() {
        let [name, moved] = [Ino(5), Ino(6)].map(|dir| (dir, b"file"[..].into()));
        for at in [&name, &moved] {
            let mut retries = Retries::default();
            let wish = RetryWish::Write(OpenFlags::default());
            retries.begin(&thread(3), vec![name.clone()], Some(Ino(7)), wish, NOW);
            retries.found_nothing(3, &spot(b"dir"), NOW);
            assert!(retries.at(3, at, NOW).is_some());
            retries.found(3, at, Ino(8), NOW);
            assert_eq!(retries.end(&thread(3), Ino(8), true, NOW).0, Try::Walked);
        }
        let mut retries = Retries::default();
        retries.begin(&thread(3), vec![name.clone()], Some(Ino(7)), RetryWish::Read, NOW);
        retries.found_nothing(3, &spot(b"dir"), NOW);
        assert!(retries.at(3, &name, NOW + MISSED_TIME).is_none(), "the call is over");
        assert_eq!(retries.end(&thread(3), Ino(7), false, NOW).0, Try::First);
    }

    /// The kernel may have asked for attributes on the way to any call.
    #[test]
    fn a_call_of_any_kind_may_follow_stale_attributes() {
        for writes in [false, true] {
            let mut retries = Retries::default();
            let spots = vec![spot(b"name")];
            retries.begin(&thread(3), spots, Some(Ino(7)), RetryWish::Unknown, NOW);
            retries.found(3, &spot(b"name"), Ino(8), NOW);
            assert_eq!(retries.led_to(3, Ino(8)), None, "the kind of write is unknown");
            assert_eq!(retries.end(&thread(3), Ino(8), writes, NOW).0, Try::Walked, "{writes}");
        }
    }

    /// A program that asks for attributes, finds nothing and then writes makes two calls.
    #[test]
    fn a_later_open_for_writing_does_not_end_a_retry_for_attributes() {
        for (writes, how) in [(false, Try::Walked), (true, Try::First)] {
            let mut retries = Retries::default();
            let spots = vec![spot(b"name")];
            retries.begin(&thread(3), spots, Some(Ino(7)), RetryWish::Unknown, NOW);
            retries.found_nothing(3, &spot(b"name"), NOW);
            retries.found(3, &spot(b"name"), Ino(8), NOW);
            assert_eq!(retries.end(&thread(3), Ino(8), writes, NOW).0, how, "{writes}");
        }
    }

    #[test]
    fn a_lookup_elsewhere_is_no_retry() {
        let mut retries = Retries::default();
        retries.begin(&thread(3), vec![spot(b"name")], Some(Ino(7)), RetryWish::Read, NOW);
        assert!(retries.at(3, &spot(b"other"), NOW).is_some(), "the name may have moved");
        assert!(retries.at(3, &spot(b"other"), NOW + STRAY_TIME).is_none());
        assert!(retries.at(4, &spot(b"name"), NOW).is_none());
        assert!(retries.at(3, &spot(b"name"), NOW + RETRY_TIME).is_none());
        assert_eq!(retries.take_expired(NOW).len(), 0);
        assert_eq!(retries.take_expired(NOW + RETRY_TIME).len(), 1);
        assert!(retries.is_empty());
    }

    #[test]
    fn no_caller_gets_look_again_beyond_the_limit() {
        let mut retries = Retries::default();
        for tid in 1..=(RETRIES_MAX / 4 * 3) as u32 {
            let first = retries.end(&thread(tid), Ino(7), false, NOW).0;
            assert_eq!(first, Try::First, "thread {tid}");
            retries.begin(&thread(tid), Vec::new(), None, RetryWish::Read, NOW);
        }
        assert_eq!(retries.end(&thread(u32::MAX), Ino(7), false, NOW).0, Try::Last);
        let other = Caller { uid: 2, ..thread(u32::MAX) };
        assert_eq!(
            retries.end(&other, Ino(7), false, NOW).0,
            Try::First,
            "another user has its own limit"
        );
    }

    #[test]
    fn callers_that_cannot_be_seen_share_one_retry() {
        let mut retries = Retries::default();
        assert_eq!(retries.end(&thread(0), Ino(7), false, NOW).0, Try::First);
        retries.begin(&thread(0), Vec::new(), Some(Ino(7)), RetryWish::Read, NOW);
        assert_eq!(retries.end(&thread(0), Ino(9), false, NOW).0, Try::Last);
        assert_eq!(
            retries.end(&thread(0), Ino(9), false, NOW).0,
            Try::Last,
            "this open may be the retry"
        );
        assert_eq!(retries.end(&thread(0), Ino(9), false, NOW + RETRY_TIME).0, Try::First);
    }
}
