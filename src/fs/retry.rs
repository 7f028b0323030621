//! Retries: threads that were answered `ESTALE`, look the name up once more, and open what they then find.
//!
//! The kernel looks again only once: a second `ESTALE` in a row would reach the program. So a retry is recorded
//! with what the thread wants, its lookup finds what that open can use, and the open is answered by what is
//! there. Owns these records. A retry may end at a lookup that finds nothing, or at a permission check of the
//! kernel's, of which the daemon is not told: no record is kept for more than [`RETRY_TIME`], and none may be taken for
//! that of another call.

use std::collections::HashMap;
use std::time::Duration;

use hearthfs_mount::{Caller, Ino, OpenFlags};

use super::inode::DirEntryKey;
use super::shares::Shares;

/// How long a retry stays recorded. The kernel retries at once; the slack covers waits for the store or a
/// publish.
pub(super) const RETRY_TIME: Duration = Duration::from_secs(15);
/// How long it stays so at names that are not those of what it opened: a rename may have come in between.
const STRAY_TIME: Duration = Duration::from_millis(100);
/// How long it stays so after a lookup that found nothing: where the kernel remembers the name it looks twice, and an
/// `O_CREAT` goes on to make the name. Anything later is another call.
const MISSED_TIME: Duration = Duration::from_secs(1);
/// How many are recorded, three quarters of them for one user. Beyond that no thread is told to look again.
const RETRIES_MAX: u64 = 4096;

/// How a call stands to an earlier one of its thread that was answered `ESTALE`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Try {
    /// There was none.
    First,
    /// The thread must not be told again to look, and it may have come by a descriptor: no directory was searched.
    Last,
    /// The same, after a walk to the name: the kernel has just checked the way.
    Walked,
}

/// One thread that looks again.
#[derive(Debug)]
pub(super) struct Retry {
    /// The user of the thread.
    user: u32,
    /// Until when it is recorded, ...
    until: Duration,
    /// ... and until when at names that are not those of what it opened.
    stray_until: Duration,
    /// Where it looks: the names that lead to what it opened.
    spots: Vec<DirEntryKey>,
    /// How it will write what it finds; `None` for reading and for what does not open.
    pub(super) wish: Option<OpenFlags>,
    /// The inode that was refused: some opens come back to it without a lookup.
    refused: Option<Ino>,
    /// What its lookup found.
    found: Option<Ino>,
    /// The inode that waits for it: one that is reserved, or that of a live file.
    pub(super) seat: Option<Ino>,
}

impl Retry {
    /// Reports whether its thread looks at a name.
    pub(super) fn is_at(&self, spot: &DirEntryKey) -> bool {
        self.spots.contains(spot)
    }
}

/// All threads that look again. Callers that cannot be seen share the number 0: while any of them may be on
/// its way back, none is told to look again.
#[derive(Debug)]
pub(super) struct Retries {
    of_thread: HashMap<u32, Retry>,
    shares: Shares,
}

impl Default for Retries {
    fn default() -> Self {
        Self { of_thread: HashMap::new(), shares: Shares::new(RETRIES_MAX) }
    }
}

impl Retries {
    /// Takes out the retry of a thread.
    pub(super) fn take(&mut self, tid: u32) -> Option<Retry> {
        let retry = self.of_thread.remove(&tid)?;
        self.shares.give_back(retry.user, 1);
        Some(retry)
    }

    fn is_fresh(retry: &Retry, now: Duration) -> bool {
        now < retry.until
    }

    /// Takes the retry that ends with this call on an inode; `writes` says whether it is an open for writing. Returns how
    /// the call stands to it, and what is left of a retry, whether it was this or another that the thread has given up.
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
            // Whether this is the one that looked again cannot be told, so the record stays.
            let waits = self.of_thread.get(&0).is_some_and(|retry| Self::is_fresh(retry, now));
            return (if waits || full { Try::Last } else { Try::First }, None);
        }
        let retry = self.take(tid);
        let is_it = |retry: &&Retry| Self::is_fresh(retry, now) && retry.wish.is_some() == writes;
        let fresh = retry.as_ref().filter(is_it);
        let how = match fresh {
            Some(retry) if retry.found == Some(ino) => Try::Walked,
            Some(retry) if retry.refused == Some(ino) => Try::Last,
            _ if full => Try::Last,
            _ => Try::First,
        };
        (how, retry)
    }

    /// Takes the retry that ends with the making of a name.
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
        let this = retry
            .as_ref()
            .is_some_and(|retry| retry.spots.contains(spot) && Self::is_fresh(retry, now));
        let how = match this {
            true => Try::Walked,
            false if full => Try::Last,
            false => Try::First,
        };
        (how, retry)
    }

    /// Records that a thread was told to look again.
    pub(super) fn begin(
        &mut self,
        caller: &Caller,
        spots: Vec<DirEntryKey>,
        refused: Option<Ino>,
        wish: Option<OpenFlags>,
        now: Duration,
    ) {
        let (tid, user) = (caller.tid, caller.uid);
        let wish = wish.filter(|_| tid != 0);
        let (found, seat) = (None, None);
        self.take(tid);
        self.shares.add(user, 1);
        let (until, stray_until) = (now + RETRY_TIME, now + STRAY_TIME);
        let retry = Retry { user, until, stray_until, spots, wish, refused, found, seat };
        self.of_thread.insert(tid, retry);
    }

    /// Returns the retry of a thread that looks a name up.
    pub(super) fn at(&mut self, tid: u32, spot: &DirEntryKey, now: Duration) -> Option<&mut Retry> {
        let retry = self.of_thread.get_mut(&tid).filter(|_| tid != 0)?;
        let until = if retry.is_at(spot) { retry.until } else { retry.stray_until };
        (now < until).then_some(retry)
    }

    /// Notes what a thread that looks again has found, by whichever name.
    pub(super) fn found(&mut self, tid: u32, spot: &DirEntryKey, ino: Ino, now: Duration) {
        if let Some(retry) = self.at(tid, spot, now) {
            retry.found = Some(ino);
        }
    }

    /// Notes that a lookup of a thread that looks again has found nothing: the call ends with that, or is about to. The
    /// thread searched a directory, so it did not come by a descriptor: an open of the inode that was refused is another
    /// call, and so is a look at other names.
    pub(super) fn found_nothing(&mut self, tid: u32, spot: &DirEntryKey, now: Duration) {
        if let Some(retry) = self.at(tid, spot, now) {
            (retry.refused, retry.found) = (None, None);
            retry.until = retry.until.min(now + MISSED_TIME);
            // Also where that is not a name of what it opened: a rename may have come in between.
            (retry.spots, retry.stray_until) = (vec![spot.clone()], now);
        }
    }

    /// Returns how a thread that looks again will write what it has found, if that is this inode.
    pub(super) fn led_to(&self, tid: u32, ino: Ino) -> Option<OpenFlags> {
        let retry = self.of_thread.get(&tid).filter(|_| tid != 0)?;
        retry.wish.filter(|_| retry.found == Some(ino))
    }

    /// Reports whether a thread looks again.
    pub(super) fn has(&self, tid: u32) -> bool {
        tid != 0 && self.of_thread.contains_key(&tid)
    }

    /// Takes out every retry that is too old to come back.
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
            retries_of.begin(&thread(3), vec![spot(b"name")], Some(Ino(7)), None, NOW);
            if let Some(found) = found {
                retries_of.found(3, &spot(b"name"), Ino(found), NOW);
            }
            let mut end = || retries_of.end(&thread(3), Ino(opened), false, NOW).0;
            assert_eq!(end(), how, "{found:?} {opened}");
            assert_eq!(end(), Try::First, "it ended");
        }
    }

    #[test]
    fn another_call_is_no_retry() {
        for (writes, found_nothing, how) in
            [(false, false, Try::Last), (true, false, Try::First), (false, true, Try::First)]
        {
            let mut retries = Retries::default();
            retries.begin(&thread(3), vec![spot(b"name")], Some(Ino(7)), None, NOW);
            if found_nothing {
                retries.found_nothing(3, &spot(b"name"), NOW);
            }
            let ended = retries.end(&thread(3), Ino(7), writes, NOW).0;
            assert_eq!(ended, how, "{writes} {found_nothing}");
        }
        // The kernel looks twice where it remembers the name.
        let mut retries = Retries::default();
        retries.begin(&thread(3), vec![spot(b"name")], Some(Ino(7)), None, NOW);
        retries.found_nothing(3, &spot(b"name"), NOW);
        retries.found(3, &spot(b"name"), Ino(8), NOW);
        assert!(retries.at(3, &spot(b"name"), NOW + MISSED_TIME).is_none(), "it has ended");
        assert!(retries.at(3, &spot(b"other"), NOW).is_none(), "another call");
        assert_eq!(retries.end(&thread(3), Ino(8), false, NOW).0, Try::Walked);
    }

    #[test]
    fn a_lookup_elsewhere_is_no_retry() {
        let mut retries = Retries::default();
        retries.begin(&thread(3), vec![spot(b"name")], Some(Ino(7)), None, NOW);
        assert!(retries.at(3, &spot(b"other"), NOW).is_some(), "its name may have moved");
        assert!(retries.at(3, &spot(b"other"), NOW + STRAY_TIME).is_none());
        assert!(retries.at(4, &spot(b"name"), NOW).is_none());
        assert!(retries.at(3, &spot(b"name"), NOW + RETRY_TIME).is_none());
        assert_eq!(retries.take_expired(NOW).len(), 0);
        assert_eq!(retries.take_expired(NOW + RETRY_TIME).len(), 1);
        assert!(retries.is_empty());
    }

    #[test]
    fn no_caller_is_told_to_look_again_beyond_the_limit() {
        let mut retries = Retries::default();
        for tid in 1..=(RETRIES_MAX / 4 * 3) as u32 {
            let first = retries.end(&thread(tid), Ino(7), false, NOW).0;
            assert_eq!(first, Try::First, "thread {tid}");
            retries.begin(&thread(tid), Vec::new(), None, None, NOW);
        }
        assert_eq!(retries.end(&thread(u32::MAX), Ino(7), false, NOW).0, Try::Last);
        let other = Caller { uid: 2, ..thread(u32::MAX) };
        assert_eq!(retries.end(&other, Ino(7), false, NOW).0, Try::First, "of another user");
    }

    #[test]
    fn callers_that_cannot_be_seen_share_one_retry() {
        let mut retries = Retries::default();
        assert_eq!(retries.end(&thread(0), Ino(7), false, NOW).0, Try::First);
        retries.begin(&thread(0), Vec::new(), Some(Ino(7)), None, NOW);
        assert_eq!(retries.end(&thread(0), Ino(9), false, NOW).0, Try::Last);
        assert_eq!(retries.end(&thread(0), Ino(9), false, NOW).0, Try::Last, "this may be the one");
        assert_eq!(retries.end(&thread(0), Ino(9), false, NOW + RETRY_TIME).0, Try::First);
    }
}
