//! Unpacking: stores the contents of a pack that has arrived locally, with several threads.
//!
//! Owns the order: first the contents for which a program waits, then the packs that a program has
//! requested, then all others. Must never store a byte unless it matches its digest. Must never
//! evict for contents that no caller waits for.

use std::collections::HashMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use bytes::Bytes;
use parking_lot::Mutex;
use tokio::runtime::Handle;
use tokio::sync::oneshot;

use super::ledger::Ledger;
use crate::digest::Digest;
use crate::error::{Error, Kind, Result};
use crate::local::Blobs;
use crate::namespace::{Location, Site};
use crate::remote::{PackMember, PackReader, decode_frame};
use crate::task;

/// The most threads that unpack at the same time. There are no more than the machine has
/// processors.
const THREADS_MAX: usize = 8;

/// Why contents are made local. Nothing is evicted for the last two.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum For {
    /// A program waits for one of them.
    Program,
    /// A person has requested them.
    Person,
    /// A program may request them soon. They leave a part of the tier to writers.
    Later,
}

impl For {
    /// Reports whether this many bytes may be stored for which no program waits.
    pub(super) fn may_store(self, blobs: &Blobs, bytes: u64) -> bool {
        match self {
            Self::Program | Self::Person => blobs.has_room(bytes),
            Self::Later => blobs.has_room_to_spare(bytes),
        }
    }
}

/// Makes the contents of packs local; cheap to clone.
#[derive(Clone, Debug)]
pub(super) struct Unpacker(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    ledger: Ledger,
    runtime: Handle,
    threads: usize,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// In the order in which they arrived.
    jobs: Vec<PackJob>,
    /// Numbers the jobs.
    next: u64,
    /// How many threads are working.
    running: usize,
    /// The contents for which programs wait, and the channels that notify them.
    wanted: HashMap<Digest, oneshot::Sender<()>>,
}

/// A pack that has arrived.
#[derive(Debug)]
struct PackJob {
    number: u64,
    bytes: Bytes,
    whom: For,
    /// The members that are not begun, the first one last.
    left: Vec<PackMember>,
    /// The position of each of them in `left`. A member that was taken out of turn is no longer in
    /// here.
    places: HashMap<Digest, usize>,
    /// Those of its contents for which programs wait or have waited.
    urgent: Vec<Digest>,
    /// How many contents are being stored.
    busy: usize,
    damaged: u64,
    failed: Option<Error>,
    done: Option<oneshot::Sender<Result<u64>>>,
}

impl PackJob {
    fn take_next(&mut self) -> Option<PackMember> {
        while let Some(member) = self.left.pop() {
            if self.places.remove(&member.digest).is_some() {
                return Some(member);
            }
        }
        None
    }

    fn take(&mut self, digest: &Digest) -> Option<PackMember> {
        self.places.remove(digest).map(|place| self.left[place])
    }

    fn is_over(&self) -> bool {
        self.places.is_empty() && self.busy == 0
    }
}

/// A content that is being stored.
struct Piece {
    job: u64,
    bytes: Bytes,
    member: PackMember,
    whom: For,
}

impl State {
    fn want(&mut self, digest: Digest, told: oneshot::Sender<()>) {
        self.wanted.insert(digest, told);
        for job in &mut self.jobs {
            if job.places.contains_key(&digest) {
                job.urgent.push(digest);
            }
        }
    }

    /// Takes the content to store next.
    fn take(&mut self) -> Option<Piece> {
        let (at, member, wanted) = self.choose()?;
        let job = &mut self.jobs[at];
        job.busy += 1;
        if wanted {
            // The rest of the pack is for a program from now on, too: its members are neighbours of
            // this one.
            job.whom = For::Program;
        }
        Some(Piece { job: job.number, bytes: job.bytes.clone(), member, whom: job.whom })
    }

    fn choose(&mut self) -> Option<(usize, PackMember, bool)> {
        for (at, job) in self.jobs.iter_mut().enumerate() {
            while let Some(digest) = job.urgent.pop() {
                if let Some(member) = job.take(&digest) {
                    return Some((at, member, true));
                }
            }
        }
        for first in [true, false] {
            for (at, job) in self.jobs.iter_mut().enumerate() {
                if (job.whom == For::Program) == first
                    && let Some(member) = job.take_next()
                {
                    return Some((at, member, false));
                }
            }
        }
        None
    }

    /// Notes the outcome of storing a content.
    fn put_back(&mut self, piece: &Piece, stored: Result<MemberStored>) {
        let Some(at) = self.jobs.iter().position(|job| job.number == piece.job) else { return };
        let job = &mut self.jobs[at];
        job.busy -= 1;
        match stored {
            Ok(MemberStored::Here) => {
                if let Some(told) = self.wanted.remove(&piece.member.digest) {
                    // The receiver may have been dropped just now.
                    told.send(()).ok();
                }
            }
            Ok(MemberStored::Damaged) => job.damaged += 1,
            // There is no room for the others either.
            Ok(MemberStored::NoRoom) => job.places.clear(),
            Err(error) => {
                job.places.clear();
                job.failed = Some(error);
            }
        }
        if job.is_over() {
            let job = self.jobs.remove(at);
            job.end();
        }
    }
}

impl PackJob {
    fn end(self) {
        let outcome = self.failed.map_or(Ok(self.damaged), Err);
        if let Some(done) = self.done {
            // The fetch that waits for it may have been given up.
            done.send(outcome).ok();
        }
    }
}

/// The outcome of storing a content.
enum MemberStored {
    Here,
    Damaged,
    NoRoom,
}

/// Stores contents until there are no more.
fn work(state: &Mutex<State>, store: impl Fn(&Piece) -> Result<MemberStored>) {
    loop {
        let piece = {
            let mut state = state.lock();
            let piece = state.take();
            if piece.is_none() {
                // Under the same lock as the check: a caller that adds work starts a thread if none
                // is left.
                state.running -= 1;
            }
            piece
        };
        let Some(piece) = piece else { return };
        // A panic ends the job, and not the thread, which has other jobs.
        let stored = catch_unwind(AssertUnwindSafe(|| store(&piece)));
        let panicked = |_| Err(Error::new(Kind::Internal, "unpacking has panicked"));
        state.lock().put_back(&piece, stored.unwrap_or_else(panicked));
    }
}

impl Unpacker {
    /// Makes an unpacker that has no work.
    pub(super) fn new(ledger: Ledger, runtime: Handle) -> Self {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let threads = cores.min(THREADS_MAX);
        Self(Arc::new(Inner { ledger, runtime, threads, state: Mutex::default() }))
    }

    /// Notes that a program waits for a content, while the returned guard exists.
    pub(super) fn want(&self, digest: Digest) -> WantedContent<'_> {
        let (told, stored) = oneshot::channel();
        self.0.state.lock().want(digest, told);
        WantedContent { unpacker: self, digest, stored }
    }

    /// Makes those contents of a pack local that files use, as far as there is room.
    ///
    /// `Corrupt` if it is no pack, `Invalid` if it is one of a newer version; otherwise the error
    /// that kept a content from being stored. Damaged contents are skipped.
    pub(super) async fn unpack(&self, name: &Arc<str>, bytes: Bytes, whom: For) -> Result<()> {
        let (ledger, pack) = (self.0.ledger.clone(), Arc::clone(name));
        let opened = bytes.clone();
        let members = task::blocking(move || in_use(&ledger, &pack, &opened)).await?;
        if members.is_empty() {
            return Ok(());
        }
        let (done, ended) = oneshot::channel();
        self.begin(bytes, members, whom, done);
        let damaged = ended
            .await
            .unwrap_or_else(|_| Err(Error::new(Kind::Closed, "unpacking was stopped")))?;
        if damaged > 0 {
            tracing::debug!(pack = %name, damaged, "some blobs of a pack are damaged");
        }
        Ok(())
    }

    fn begin(
        &self,
        bytes: Bytes,
        mut members: Vec<PackMember>,
        whom: For,
        done: oneshot::Sender<Result<u64>>,
    ) {
        members.reverse();
        let places = members.iter().enumerate().map(|(at, member)| (member.digest, at));
        let places: HashMap<Digest, usize> = places.collect();
        let more = {
            let mut state = self.0.state.lock();
            let number = state.next;
            state.next += 1;
            let pieces = members.len();
            let urgent = state.wanted.keys().filter(|digest| places.contains_key(digest));
            let urgent = urgent.copied().collect();
            state.jobs.push(PackJob {
                number,
                bytes,
                whom,
                left: members,
                places,
                urgent,
                busy: 0,
                damaged: 0,
                failed: None,
                done: Some(done),
            });
            let more = self.0.threads.saturating_sub(state.running).min(pieces);
            state.running += more;
            more
        };
        for _ in 0..more {
            let inner = Arc::clone(&self.0);
            let run = move || work(&inner.state, |piece| store(&inner.ledger, piece));
            drop(task::spawn(&self.0.runtime, "unpack", task::blocking(run)));
        }
    }
}

/// A content that a program waits for.
#[derive(Debug)]
pub(super) struct WantedContent<'a> {
    unpacker: &'a Unpacker,
    digest: Digest,
    stored: oneshot::Receiver<()>,
}

impl WantedContent<'_> {
    /// Returns when the content is stored, and never if it is not.
    pub(super) async fn stored(&mut self) {
        if (&mut self.stored).await.is_err() {
            futures::future::pending::<()>().await;
        }
    }
}

impl Drop for WantedContent<'_> {
    fn drop(&mut self) {
        self.unpacker.0.state.lock().wanted.remove(&self.digest);
    }
}

/// Returns the members of a pack that files use and that are not here yet.
fn in_use(ledger: &Ledger, pack: &Arc<str>, bytes: &Bytes) -> Result<Vec<PackMember>> {
    let reader = PackReader::open(bytes)?;
    let mut members: Vec<PackMember> = ledger.read(|fold| {
        let all = reader.members().iter();
        all.filter(|m| fold.uses(&m.digest) && lies_in(fold.location(&m.digest).as_ref(), pack))
            .copied()
            .collect()
    });
    members.retain(|member| !ledger.blobs().contains(&member.digest));
    Ok(members)
}

fn store(ledger: &Ledger, piece: &Piece) -> Result<MemberStored> {
    let Piece { member, bytes, .. } = piece;
    let (digest, size) = (member.digest, u64::from(member.size));
    if ledger.blobs().contains(&digest) {
        return Ok(MemberStored::Here);
    }
    if !piece.whom.may_store(ledger.blobs(), size) {
        return Ok(MemberStored::NoRoom);
    }
    let start = member.offset as usize;
    let frame = bytes.get(start..start + member.length as usize);
    let Some(frame) = frame else { return Ok(MemberStored::Damaged) };
    match decode_frame(frame, &digest, size) {
        Ok(content) => {
            let is_room = |blobs: &Blobs| piece.whom.may_store(blobs, size);
            let kept = ledger.blobs().keep(digest, &content, is_room)?;
            Ok(if kept { MemberStored::Here } else { MemberStored::NoRoom })
        }
        Err(_) => Ok(MemberStored::Damaged),
    }
}

fn lies_in(location: Option<&Location>, name: &str) -> bool {
    location.is_some_and(|l| matches!(&l.site, Site::Pack { pack, .. } if **pack == *name))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn member(n: u32) -> PackMember {
        PackMember { digest: Digest::of(&n.to_le_bytes()), offset: 0, length: 1, size: n }
    }

    fn job(number: u64, whom: For, members: &[u32]) -> PackJob {
        let left: Vec<PackMember> = members.iter().rev().map(|n| member(*n)).collect();
        let places = left.iter().enumerate().map(|(at, member)| (member.digest, at)).collect();
        let (bytes, urgent) = (Bytes::new(), Vec::new());
        let (damaged, failed, done) = (0, None, None);
        PackJob { number, bytes, whom, left, places, urgent, busy: 0, damaged, failed, done }
    }

    fn want(state: &mut State, n: u32) -> oneshot::Receiver<()> {
        let (told, stored) = oneshot::channel();
        state.want(member(n).digest, told);
        stored
    }

    #[test]
    fn what_a_program_waits_for_is_stored_first() {
        let mut state = State::default();
        state.jobs.push(job(0, For::Later, &[1, 2, 3, 4]));
        state.jobs.push(job(1, For::Program, &[5, 6]));
        let mut stored = want(&mut state, 3);
        let first = state.take().expect("there is work");
        assert_eq!(first.member.size, 3);
        state.put_back(&first, Ok(MemberStored::Here));
        assert!(stored.try_recv().is_ok(), "it is reported at once");
        // Its neighbours in the pack are for the program, too, and all others come last.
        state.jobs.push(job(2, For::Later, &[7]));
        let order: Vec<u32> = std::iter::from_fn(|| {
            let piece = state.take()?;
            state.put_back(&piece, Ok(MemberStored::Here));
            Some(piece.member.size)
        })
        .collect();
        assert_eq!(order, [1, 2, 4, 5, 6, 7]);
        assert!(state.jobs.is_empty());
    }

    #[test]
    fn a_pack_ends_where_there_is_no_room_or_the_disk_fails() {
        for fails in [false, true] {
            let mut state = State::default();
            let (done, mut ended) = oneshot::channel();
            state.jobs.push(PackJob { done: Some(done), ..job(0, For::Later, &[1, 2, 3]) });
            let (first, second) = (state.take().expect("work"), state.take().expect("work"));
            let outcome =
                if fails { Err(Error::new(Kind::NoSpace, "")) } else { Ok(MemberStored::NoRoom) };
            state.put_back(&first, outcome);
            assert!(state.take().is_none(), "no more work begins");
            assert!(ended.try_recv().is_err(), "the second part is in flight");
            state.put_back(&second, Ok(MemberStored::Damaged));
            let ended = ended.try_recv().expect("the job has ended");
            assert_eq!(ended.map_err(|error| error.kind()).err(), fails.then_some(Kind::NoSpace));
        }
    }

    #[test]
    fn a_panic_ends_its_pack_and_no_other() {
        let state = Mutex::new(State { running: 1, ..State::default() });
        let (packs, ended): (Vec<_>, Vec<_>) = (0..3).map(|_| oneshot::channel()).unzip();
        for (number, done) in (0..).zip(packs) {
            let n = 2 * number as u32;
            let job = job(number, For::Later, &[n, n + 1]);
            state.lock().jobs.push(PackJob { done: Some(done), ..job });
        }
        let tried = Mutex::new(Vec::new());
        work(&state, |piece| {
            tried.lock().push(piece.member.size);
            assert_ne!(piece.member.size, 2, "this member makes it panic");
            Ok(MemberStored::Here)
        });
        assert_eq!(*tried.lock(), [0, 1, 2, 4, 5]);
        let outcome = |mut ended: oneshot::Receiver<Result<u64>>| {
            let ended = ended.try_recv().expect("the job has ended");
            ended.map_err(|error| error.kind())
        };
        let outcomes: Vec<_> = ended.into_iter().map(outcome).collect();
        assert_eq!(outcomes, [Ok(0), Err(Kind::Internal), Ok(0)]);
        let state = state.into_inner();
        assert_eq!((state.running, state.jobs.len()), (0, 0));
    }
}
