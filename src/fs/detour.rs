//! Detours: who was sent back with `ESTALE`, to look a name up once more and open what it then finds.
//!
//! The kernel looks again only once: a second `ESTALE` in a row would reach the program. So nobody is sent
//! back who has just been: his second try is answered by what there is, as if it had been his first.

use std::collections::HashMap;
use std::time::Duration;

use hearthfs_mount::{Answer, Caller, Errno, Ino, OpenFlags, Reply};

use super::filesystem::Filesystem;
use super::inode::Spot;

/// How long it is remembered that somebody was sent back. His next try comes at once, but for waits for the
/// store and for a publish.
const DETOUR_TIME: Duration = Duration::from_secs(15);
/// How many are remembered. Nobody is sent back who could not be.
const DETOURS_MAX: usize = 4096;

/// One caller on his way back.
#[derive(Debug)]
struct Detour {
    since: Duration,
    /// How he wants to write what he finds.
    wish: Option<OpenFlags>,
    /// The inode that he was told of since, and that nobody else is.
    promised: Option<Ino>,
    /// The inode of another's that he was led to, and may come to empty (see `State::is_shaken`).
    led: Option<Ino>,
    /// Where he found nothing. The kernel may look there once more, because it doubts what it remembers.
    missed: Option<Spot>,
}

/// Who was sent back, by thread. All callers that cannot be seen share the number 0: while any of them may be
/// on his way back, none is sent.
#[derive(Debug, Default)]
pub(super) struct Detours(HashMap<u32, Detour>);

impl Detours {
    fn is_fresh(detour: &Detour, now: Duration) -> bool {
        now.saturating_sub(detour.since) < DETOUR_TIME
    }

    /// Reports whether a try that begins now must not be sent back.
    fn begin(&mut self, tid: u32, now: Duration) -> bool {
        if self.0.len() >= DETOURS_MAX {
            self.0.retain(|_, detour| Self::is_fresh(detour, now));
        }
        let back = self.0.get(&tid).is_some_and(|detour| Self::is_fresh(detour, now));
        back || self.0.len() >= DETOURS_MAX
    }

    fn send(&mut self, tid: u32, now: Duration, wish: Option<OpenFlags>) {
        let wish = wish.filter(|_| tid != 0);
        self.0.insert(tid, Detour { since: now, wish, promised: None, led: None, missed: None });
    }

    /// Reports whether a thread is on its way back to write something.
    pub(super) fn is_on(&self, tid: u32) -> bool {
        self.0.get(&tid).is_some_and(|detour| detour.wish.is_some())
    }

    /// Returns how a thread on its way back wants to write what it looks for here, and what it was promised.
    pub(super) fn wish(
        &mut self,
        tid: u32,
        spot: &Spot,
        now: Duration,
    ) -> Option<(OpenFlags, Option<Ino>)> {
        let detour = self.0.get(&tid)?;
        if !Self::is_fresh(detour, now) || detour.missed.as_ref().is_some_and(|at| at != spot) {
            self.end(tid);
            return None;
        }
        Some((detour.wish?, detour.promised))
    }

    /// Notes which inode a thread was told of.
    pub(super) fn promise(&mut self, tid: u32, ino: Ino) {
        if let Some(detour) = self.0.get_mut(&tid) {
            detour.promised = Some(ino);
        }
    }

    /// Notes which inode of another's a thread was led to.
    pub(super) fn lead(&mut self, tid: u32, ino: Ino) {
        if let Some(detour) = self.0.get_mut(&tid) {
            detour.led = Some(ino);
        }
    }

    /// Reports whether somebody is on his way to an inode that is not his.
    pub(super) fn lead_to(&self, ino: Ino) -> bool {
        self.0.values().any(|detour| detour.led == Some(ino))
    }

    /// Notes that a thread found nothing. If that is for the second time, its way has ended.
    pub(super) fn miss(&mut self, tid: u32, spot: &Spot) {
        if let Some(detour) = self.0.get_mut(&tid)
            && detour.missed.replace(spot.clone()).is_some()
        {
            self.end(tid);
        }
    }

    /// Ends the way of a thread that does something else by now.
    pub(super) fn end(&mut self, tid: u32) {
        if tid != 0 {
            self.0.remove(&tid);
        }
    }
}

impl Filesystem {
    /// Does what may send its caller back. `act` is told whether this is his last try; what it cannot answer
    /// then is a name that has gone.
    pub(super) fn with_detour<T: 'static>(
        &self,
        caller: &Caller,
        wish: Option<OpenFlags>,
        act: impl FnOnce(bool) -> Answer<T>,
    ) -> Answer<T> {
        let (tid, now) = (caller.tid, self.0.rooms.clock.mono());
        let last = self.0.state.lock().detours.begin(tid, now);
        match act(last) {
            Answer::Now(reply) => self.sent(tid, wish, last, reply).into(),
            Answer::Later(work) => {
                let this = self.clone();
                Answer::later(async move { this.sent(tid, wish, last, work.await) })
            }
        }
    }

    fn sent<T>(&self, tid: u32, wish: Option<OpenFlags>, last: bool, reply: Reply<T>) -> Reply<T> {
        if matches!(reply, Err(Errno::ESTALE)) && !last {
            let now = self.0.rooms.clock.mono();
            self.0.state.lock().detours.send(tid, now, wish);
            return reply;
        }
        if last {
            self.0.state.lock().detours.end(tid);
        }
        reply.map_err(|errno| if errno == Errno::ESTALE { Errno::ENOENT } else { errno })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nobody_is_sent_back_whom_nothing_can_be_remembered_of() {
        let (mut detours, now) = (Detours::default(), Duration::from_hours(1));
        for tid in 0..DETOURS_MAX as u32 {
            assert!(!detours.begin(tid, now), "thread {tid}");
            detours.send(tid, now, None);
        }
        assert!(detours.begin(u32::MAX, now));
        assert!(!detours.begin(u32::MAX, now + DETOUR_TIME), "those before are forgotten");
    }

    #[test]
    fn a_way_ends_where_nothing_is_found_twice() {
        let (mut detours, now) = (Detours::default(), Duration::from_hours(1));
        let spot = |name: &[u8]| -> Spot { (Ino::ROOT, name.into()) };
        let flags = OpenFlags { write: true, ..OpenFlags::default() };
        for then in ["here", "elsewhere"] {
            detours.send(7, now, Some(flags));
            detours.miss(7, &spot(b"here"));
            assert_eq!(detours.wish(7, &spot(b"here"), now), Some((flags, None)));
            match then {
                "here" => detours.miss(7, &spot(b"here")),
                _ => assert_eq!(detours.wish(7, &spot(b"elsewhere"), now), None),
            }
            assert!(!detours.begin(7, now), "{then}");
        }
    }
}
