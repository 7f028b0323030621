//! Latency: how long the store takes to answer, by kind of request and outcome.
//!
//! Owns the histograms, which are for people. Must never influence a decision.

use std::collections::BTreeMap;
use std::time::Duration;

use parking_lot::Mutex;

use super::verb::Verb;
use crate::clock::Clock;
use crate::metrics::{Distribution, Histogram};

/// The most outcomes that are counted separately. A server that invents statuses gets no more.
const KINDS_MAX: usize = 64;

/// The outcome of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum RequestOutcome {
    /// An HTTP status.
    Status(u16),
    /// A store without HTTP did it.
    Done,
    /// A store without HTTP failed.
    Failed,
    /// No answer came.
    Unanswered,
    /// Any outcome beyond the limit of kinds.
    Other,
}

impl RequestOutcome {
    /// Returns the outcome of a request without HTTP; `None` means no answer in time.
    pub(super) fn of<T, E>(done: Option<&Result<T, E>>) -> Self {
        match done {
            Some(Ok(_)) => Self::Done,
            Some(Err(_)) => Self::Failed,
            None => Self::Unanswered,
        }
    }

    fn label(self) -> String {
        match self {
            Self::Status(status) => status.to_string(),
            Self::Done => "ok".to_owned(),
            Self::Failed => "error".to_owned(),
            Self::Unanswered => "none".to_owned(),
            Self::Other => "other".to_owned(),
        }
    }
}

/// How long requests of one kind with one outcome took, from the request to the first byte of the
/// answer, or to its end without HTTP.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RequestTimes {
    /// `put`, `get`, `list`, `delete` or `head`.
    pub kind: &'static str,
    /// The HTTP status; `ok` or `error` without HTTP; `none` if no answer came.
    pub status: String,
    /// How long they took.
    pub times: Distribution,
}

/// Measures request times.
#[derive(Debug)]
pub(super) struct Latency {
    /// Requests take real time, even if a test controls the time of the node.
    clock: Clock,
    by_kind: Mutex<BTreeMap<(Verb, RequestOutcome), Histogram>>,
}

impl Default for Latency {
    fn default() -> Self {
        Self { clock: Clock::system(), by_kind: Mutex::default() }
    }
}

impl Latency {
    /// Returns the moment at which a request begins.
    pub(super) fn now(&self) -> Duration {
        self.clock.mono()
    }

    /// Records the outcome of a request that began at `began`.
    pub(super) fn note(&self, verb: Verb, outcome: RequestOutcome, began: Duration) {
        let took = self.now().saturating_sub(began);
        let mut all = self.by_kind.lock();
        let known = all.contains_key(&(verb, outcome)) || all.len() < KINDS_MAX;
        let outcome = if known { outcome } else { RequestOutcome::Other };
        all.entry((verb, outcome)).or_default().observe(took);
    }

    pub(super) fn read(&self) -> Vec<RequestTimes> {
        let all = self.by_kind.lock();
        let told = all.iter().map(|((verb, outcome), histogram)| RequestTimes {
            kind: verb.name(),
            status: outcome.label(),
            times: histogram.read(),
        });
        told.collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kinds_of_answers_are_bounded() {
        let latency = Latency::default();
        for status in 100..300 {
            latency.note(Verb::Get, RequestOutcome::Status(status), latency.now());
        }
        latency.note(Verb::Put, RequestOutcome::Done, latency.now());
        let all = latency.read();
        // The "other" entries of both verbs come on top.
        assert_eq!(all.len(), KINDS_MAX + 2);
        let count = |status: &str| {
            let these = all.iter().filter(|one| one.status == status);
            these.map(|one| one.times.count()).sum::<u64>()
        };
        assert_eq!((count("100"), count("ok")), (1, 0));
        assert_eq!(count("other"), 200 - KINDS_MAX as u64 + 1);
    }
}
