//! One request to the store, with everything around it.
//!
//! Owns the limits in number and time, the gate, and the counting. Must never send a request
//! without a deadline.

use std::sync::Arc;
use std::time::Duration;

use futures::future::BoxFuture;
use object_store::ObjectStore;
use tokio::sync::{Semaphore, SemaphorePermit};

use super::backend::Backend;
use super::health::{Gate, Lane};
use super::latency::RequestOutcome;
use super::meter::Meter;
use super::progress::Progress;
use super::throttle::Throttle;
use super::time::StoreTime;
use super::trouble::{Cause, Reach, Trouble};
use super::verb::Verb;
use crate::clock;
use crate::error::{Error, Kind, Result};
use crate::task;

/// Requests in flight at once.
pub const REQUESTS_IN_FLIGHT_MAX: usize = 16;
/// Further requests, only for what a program waits for.
pub const RESERVE_MAX: usize = 4;
/// The slowest upload that does not time out. At this rate all uploads in flight share a line of
/// 1.3 MB/s. The progress of one upload cannot be measured: bytes that were handed to the kernel
/// may wait there for long.
const UP_BYTES_PER_SEC_MIN: u64 = 64 * 1024;

/// A description of one request.
#[derive(Debug)]
pub(super) struct Call {
    pub(super) verb: Verb,
    pub(super) lane: Lane,
    /// What is being done, for the error.
    pub(super) op: String,
    /// The time from the permit to the end, and from the last bytes that moved.
    pub(super) limit: Duration,
    /// Notified when bytes move.
    pub(super) progress: Progress,
    /// The store has been checked, so a directory without its format object is a failure.
    pub(super) guarded: bool,
}

/// The failure of a request.
#[derive(Debug)]
pub(super) struct CallFailure(pub(super) Trouble);

impl From<object_store::Error> for CallFailure {
    fn from(error: object_store::Error) -> Self {
        Self(Trouble::of(&error))
    }
}

impl From<Trouble> for CallFailure {
    fn from(trouble: Trouble) -> Self {
        Self(trouble)
    }
}

/// What a request does with the store.
type Work<'w> = Box<
    dyn FnOnce(Arc<dyn ObjectStore>) -> BoxFuture<'w, std::result::Result<(), CallFailure>>
        + Send
        + 'w,
>;

/// Makes requests.
#[derive(Debug)]
pub(super) struct Requester {
    pub(super) backend: Backend,
    pub(super) gate: Arc<Gate>,
    pub(super) meter: Arc<Meter>,
    pub(super) throttle: Arc<Throttle>,
    pub(super) deadline: Duration,
    time: Arc<StoreTime>,
    /// Advice for a person when credentials are refused.
    remedy: &'static str,
    permits: Semaphore,
    reserve: Semaphore,
}

impl Requester {
    pub(super) fn new(
        backend: Backend,
        gate: Arc<Gate>,
        meter: Arc<Meter>,
        throttle: Arc<Throttle>,
        deadline: Duration,
        time: Arc<StoreTime>,
        remedy: &'static str,
    ) -> Self {
        let permits = Semaphore::new(REQUESTS_IN_FLIGHT_MAX);
        let reserve = Semaphore::new(RESERVE_MAX);
        Self { backend, gate, meter, throttle, deadline, time, remedy, permits, reserve }
    }

    /// Returns the time for a request that sends this many bytes.
    pub(super) fn time_for(&self, bytes: u64) -> Duration {
        self.deadline + Duration::from_millis(bytes.saturating_mul(1000) / UP_BYTES_PER_SEC_MIN)
    }

    /// Makes one request.
    pub(super) async fn call<T, F>(
        &self,
        call: Call,
        work: impl FnOnce(Arc<dyn ObjectStore>) -> F + Send,
    ) -> Result<T>
    where
        F: Future<Output = std::result::Result<T, CallFailure>> + Send,
        T: Send,
    {
        let mut value = None;
        let kept = &mut value;
        let work = move |store| {
            let work = work(store);
            let work: BoxFuture<'_, _> = Box::pin(async move {
                *kept = Some(work.await?);
                Ok(())
            });
            work
        };
        self.call_any(call, Box::new(work)).await?;
        Ok(value.expect("a request that succeeds has a value"))
    }

    /// Does the work of [`Requester::call`]; compiled once, and not for each type of a value.
    async fn call_any(&self, call: Call, work: Work<'_>) -> Result<()> {
        let mut ticket = self.gate.enter(call.lane)?;
        let store = match self.backend.store() {
            Ok(store) => store,
            Err(error) => {
                self.meter.error();
                ticket.unanswered(error.kind(), &error.to_string());
                return Err(error);
            }
        };
        let Some(_permit) = self.permit(call.lane).await else {
            let op = format!("{}: too many requests are under way", call.op);
            return Err(Error::new(Kind::TimedOut, op));
        };
        ticket.begin();
        let counts_itself = self.backend.counts_itself();
        if !counts_itself {
            self.meter.request(call.verb);
        }
        let began = self.meter.latency.now();
        let guarded = async {
            self.guard(&call).await?;
            match work(store).await {
                Err(CallFailure(trouble)) => Err(self.told_apart(&call, trouble).await),
                done => done,
            }
        };
        let done = call.progress.within(call.limit, guarded).await;
        if !counts_itself {
            self.meter.latency.note(call.verb, RequestOutcome::of(done.as_ref()), began);
        }
        if let Some(date_ms) = self.meter.take_date_ms() {
            self.time.note_date(date_ms);
        }
        let mut trouble = match done {
            Some(Ok(())) => {
                ticket.answered();
                return Ok(());
            }
            Some(Err(CallFailure(trouble))) => trouble,
            None => Trouble::timed_out(format!("no answer within {:?}", call.limit)),
        };
        self.throttle.note(&trouble, counts_itself);
        if trouble.kind == Kind::Exists && call.guarded {
            // Only the format object and the head are written under a condition, and the head handles a
            // conflict itself. Elsewhere a conflict means two writers of the same bytes at the same moment.
            trouble.kind = Kind::Unavailable;
        }
        // Credentials that allow only reading are no outage for readers. A refusal is also no sign
        // that an outage is over.
        let denied = trouble.kind == Kind::Denied;
        let may_not_write = denied
            && !matches!(trouble.cause(), Cause::Credentials | Cause::NoCredentials)
            && matches!(call.verb, Verb::Put | Verb::Delete);
        // The check of the store reports in one message why it refuses.
        let said_elsewhere = denied && !call.guarded;
        if may_not_write || said_elsewhere || trouble.cause() == Cause::Crowded {
            ticket.undecided();
        } else if trouble.cause() == Cause::Credentials {
            let why = format!("{}: {trouble}; {}", call.op, self.remedy);
            ticket.unanswered(trouble.kind, &why);
        } else {
            let why = || format!("{}: {trouble}", call.op);
            match trouble.reach() {
                Reach::Store => ticket.unanswered(trouble.kind, &why()),
                Reach::Request => ticket.refused(trouble.kind, &why(), trouble.is_answered()),
                Reach::Nothing => ticket.answered(),
            }
        }
        if !matches!(trouble.kind, Kind::NotFound | Kind::Exists) {
            self.meter.error();
        }
        Err(trouble.into_error(call.op))
    }

    /// Keeps writes and lists away from a directory that is no longer the checked one. There they
    /// would succeed, and the writes would be lost or the lists empty.
    async fn guard(&self, call: &Call) -> std::result::Result<(), CallFailure> {
        if call.guarded && matches!(call.verb, Verb::Put | Verb::List) {
            self.present().await?;
        }
        Ok(())
    }

    /// Distinguishes a missing object from a missing store.
    async fn told_apart(&self, call: &Call, trouble: Trouble) -> CallFailure {
        if call.guarded
            && trouble.kind == Kind::NotFound
            && let Err(gone) = self.present().await
        {
            return gone;
        }
        CallFailure(trouble)
    }

    async fn present(&self) -> std::result::Result<(), CallFailure> {
        let Some(dir) = self.backend.dir() else { return Ok(()) };
        let shared = dir.clone();
        if task::blocking(move || shared.is_present()).await {
            return Ok(());
        }
        Err(CallFailure(Trouble::gone(dir.gone().to_string())))
    }

    /// Takes a place among the requests in flight; `None` if a program has waited too long for one.
    async fn permit(&self, lane: Lane) -> Option<SemaphorePermit<'_>> {
        const OPEN: &str = "the semaphores are never closed";
        if lane == Lane::Background {
            return Some(self.permits.acquire().await.expect(OPEN));
        }
        if let Ok(permit) = self.permits.try_acquire() {
            return Some(permit);
        }
        let either = futures::future::select(
            Box::pin(self.permits.acquire()),
            Box::pin(self.reserve.acquire()),
        );
        let (permit, _) = clock::within(self.deadline, either).await?.factor_first();
        Some(permit.expect(OPEN))
    }
}
