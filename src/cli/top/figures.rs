//! The changes between two samples of a mount.
//!
//! Owns the figures, which `--json` prints. Must never show a figure that started before the first sample.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::Serialize;

use crate::control::{Backlog, BusyEntry, BusyReport, HealthReport, Status};

/// One sample of a mount.
#[derive(Clone, Debug)]
pub(super) struct Sample {
    /// Its time, by the monotonic clock.
    pub(super) at: Duration,
    pub(super) status: Status,
    /// `None` if the daemon does not support this.
    pub(super) busy: Option<BusyReport>,
}

/// The figures of one interval. Fields are added, never renamed.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub(super) struct Rates {
    pub(super) mount_point: String,
    /// The length of the interval in seconds. The following counts are those of the interval unless
    /// they say otherwise.
    pub(super) seconds: f64,
    /// Opens that got an entry.
    pub(super) hits: u64,
    /// Lookups that failed.
    pub(super) misses: u64,
    /// The share of hits; `None` without any.
    pub(super) hit_ratio: Option<f64>,
    pub(super) fetched: u64,
    pub(super) fetched_bytes: u64,
    pub(super) published: u64,
    pub(super) published_bytes: u64,
    pub(super) uploaded: u64,
    pub(super) uploaded_bytes: u64,
    /// Requests to the store by kind.
    pub(super) requests: BTreeMap<String, u64>,
    /// Calls of the kernel by kind.
    pub(super) calls: BTreeMap<String, u64>,
    /// Now: pending changes.
    pub(super) backlog: Backlog,
    /// Now: bytes in the cache directory, and the most that it may hold.
    pub(super) cache_bytes: u64,
    pub(super) cache_limit_bytes: u64,
    /// Now: the number of visible entries.
    pub(super) entries: u64,
    /// Now: whether the store can be used, and why not; `None` without one.
    pub(super) up: Option<bool>,
    pub(super) trouble: Option<String>,
    /// The busiest first; `None` if the daemon does not support this.
    pub(super) clients: Option<Vec<ClientRates>>,
    /// The most opened entries since a client has watched; older opens count less.
    pub(super) busiest: Option<Vec<BusyEntry>>,
}

/// The activity of a client in the interval.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub(super) struct ClientRates {
    pub(super) name: String,
    pub(super) hits: u64,
    pub(super) misses: u64,
}

impl Rates {
    /// Returns the figures between two samples.
    pub(super) fn between(before: &Sample, now: &Sample) -> Self {
        let status = &now.status;
        let same = before.status.pid == status.pid && before.status.started_ms == status.started_ms;
        // Another daemon has started counting from zero.
        let start =
            if same { before.status.counters.clone() } else { crate::metrics::Snapshot::default() };
        let grown = status.counters.since(&start);
        let (hits, misses) = (grown.hits, grown.misses);
        let asked = hits + misses;
        let (up, trouble) = match &status.health {
            None => (None, None),
            Some(HealthReport { up: true, .. }) => (Some(true), None),
            Some(HealthReport { last_error, .. }) => (Some(false), last_error.clone()),
        };
        Self {
            mount_point: status.mount_point.clone(),
            seconds: now.at.saturating_sub(before.at).as_secs_f64(),
            hits,
            misses,
            hit_ratio: (asked > 0).then(|| hits as f64 / asked as f64),
            fetched: grown.fetched,
            fetched_bytes: grown.fetched_bytes,
            published: grown.published,
            published_bytes: grown.published_bytes,
            uploaded: grown.uploaded,
            uploaded_bytes: grown.uploaded_bytes,
            requests: grown.requests.into_iter().filter(|(_, number)| *number > 0).collect(),
            calls: grown.operations.into_iter().filter(|(_, number)| *number > 0).collect(),
            backlog: status.backlog,
            cache_bytes: status.local.bytes,
            cache_limit_bytes: status.local.limit_bytes,
            entries: status.entries,
            up,
            trouble,
            clients: now.busy.as_ref().map(|busy| clients(before.busy.as_ref(), busy)),
            busiest: now.busy.as_ref().map(|busy| busy.entries.clone()),
        }
    }

    /// Returns a count as a rate per second.
    pub(super) fn rate(&self, number: u64) -> f64 {
        if self.seconds > 0.0 { number as f64 / self.seconds } else { 0.0 }
    }
}

fn clients(before: Option<&BusyReport>, now: &BusyReport) -> Vec<ClientRates> {
    let known = |name: &str| {
        let clients = before.iter().flat_map(|busy| &busy.clients);
        clients.into_iter().find(|client| client.name == name).cloned().unwrap_or_default()
    };
    let mut all: Vec<ClientRates> = now
        .clients
        .iter()
        .map(|client| {
            let before = known(&client.name);
            // The daemon resets these counts when no client watches for a while.
            let grown = |now: u64, before: u64| now.checked_sub(before).unwrap_or(now);
            ClientRates {
                name: client.name.clone(),
                hits: grown(client.hits, before.hits),
                misses: grown(client.misses, before.misses),
            }
        })
        .collect();
    all.sort_by(|a, b| {
        (b.hits + b.misses).cmp(&(a.hits + a.misses)).then_with(|| a.name.cmp(&b.name))
    });
    all
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::control::BusyClient;

    pub(crate) fn look(at_s: u64, hits: u64, misses: u64) -> Sample {
        let mut status =
            Status { mount_point: "/m".into(), pid: 1, started_ms: 5, ..Status::default() };
        (status.counters.hits, status.counters.misses) = (hits, misses);
        status.counters.requests = [("get".to_owned(), hits)].into();
        let client = BusyClient { name: "jax".into(), hits, misses };
        let busy = BusyReport { clients: vec![client], entries: Vec::new() };
        Sample { at: Duration::from_secs(at_s), status, busy: Some(busy) }
    }

    #[test]
    fn figures_are_those_of_the_interval() {
        let rates = Rates::between(&look(10, 100, 50), &look(12, 130, 60));
        assert_eq!((rates.hits, rates.misses, rates.hit_ratio), (30, 10, Some(0.75)));
        assert_eq!((rates.seconds, rates.rate(30)), (2.0, 15.0));
        assert_eq!(rates.requests, [("get".to_owned(), 30)].into());
        let client = ClientRates { name: "jax".into(), hits: 30, misses: 10 };
        assert_eq!(rates.clients, Some(vec![client]));
        let idle = Rates::between(&look(10, 100, 50), &look(10, 100, 50));
        assert_eq!((idle.hit_ratio, idle.rate(3), idle.requests.len()), (None, 0.0, 0));
    }

    #[test]
    fn another_daemon_counts_anew() {
        let mut later = look(12, 7, 1);
        later.status.started_ms = 6;
        later.busy = None;
        let rates = Rates::between(&look(10, 100, 50), &later);
        assert_eq!((rates.hits, rates.misses), (7, 1));
        assert_eq!((rates.clients, rates.busiest), (None, None));
    }
}
