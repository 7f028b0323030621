//! The changes between two samples of a mount.
//!
//! Owns the figures, which `--json` prints. Must never show a figure that started before the first sample.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::ser::SerializeStruct as _;
use serde::{Serialize, Serializer};

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

/// The figures of one interval. Fields are added, never renamed: groups are written as if their
/// fields were these.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub(super) struct Rates {
    pub(super) mount_point: String,
    /// The length of the interval in seconds. The following counts are those of the interval unless
    /// they say otherwise.
    pub(super) seconds: f64,
    #[serde(flatten)]
    pub(super) found: FoundCounts,
    #[serde(flatten)]
    pub(super) moved: MovedCounts,
    /// Requests to the store by kind.
    pub(super) requests: BTreeMap<String, u64>,
    /// Calls of the kernel by kind.
    pub(super) calls: BTreeMap<String, u64>,
    /// Now: pending changes.
    pub(super) backlog: Backlog,
    #[serde(flatten)]
    pub(super) cache: CacheNow,
    #[serde(flatten)]
    pub(super) store: StoreNow,
    #[serde(flatten)]
    pub(super) busy: BusyRates,
}

/// What programs found.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub(super) struct FoundCounts {
    /// Opens that got an entry.
    hits: u64,
    /// Lookups that failed.
    misses: u64,
    /// The share of hits; `None` without any.
    hit_ratio: Option<f64>,
}

impl FoundCounts {
    pub(super) fn new(hits: u64, misses: u64) -> Self {
        let asked = hits + misses;
        Self { hits, misses, hit_ratio: (asked > 0).then(|| hits as f64 / asked as f64) }
    }

    pub(super) fn hits(&self) -> u64 {
        self.hits
    }

    pub(super) fn misses(&self) -> u64 {
        self.misses
    }

    pub(super) fn hit_ratio(&self) -> Option<f64> {
        self.hit_ratio
    }
}

/// The contents that moved.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize)]
pub(super) struct MovedCounts {
    pub(super) fetched: u64,
    pub(super) fetched_bytes: u64,
    pub(super) published: u64,
    pub(super) published_bytes: u64,
    pub(super) uploaded: u64,
    pub(super) uploaded_bytes: u64,
}

/// What the cache holds at the end of the interval.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub(super) struct CacheNow {
    /// Bytes in the cache directory, and the most that it may hold.
    #[serde(rename = "cache_bytes")]
    pub(super) bytes: u64,
    #[serde(rename = "cache_limit_bytes")]
    pub(super) limit_bytes: u64,
    /// The number of visible entries.
    pub(super) entries: u64,
}

/// Whether the store can be used at the end of the interval.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum StoreNow {
    /// There is none.
    Absent,
    Up,
    Down {
        /// Why not, if that is known.
        trouble: Option<String>,
    },
}

impl StoreNow {
    fn of(health: Option<&HealthReport>) -> Self {
        match health {
            None => Self::Absent,
            Some(HealthReport { up: true, .. }) => Self::Up,
            Some(HealthReport { last_error, .. }) => Self::Down { trouble: last_error.clone() },
        }
    }
}

impl Serialize for StoreNow {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let (up, trouble) = match self {
            Self::Absent => (None, None),
            Self::Up => (Some(true), None),
            Self::Down { trouble } => (Some(false), trouble.as_deref()),
        };
        let mut fields = serializer.serialize_struct("StoreNow", 2)?;
        fields.serialize_field("up", &up)?;
        fields.serialize_field("trouble", &trouble)?;
        fields.end()
    }
}

/// Who and what is busy.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum BusyRates {
    /// The daemon does not support this.
    Unknown,
    Known {
        /// The busiest first.
        clients: Vec<ClientRates>,
        /// The most opened entries since a client has watched; older opens count less.
        entries: Vec<BusyEntry>,
    },
}

impl BusyRates {
    fn between(before: Option<&BusyReport>, now: Option<&BusyReport>) -> Self {
        now.map_or(Self::Unknown, |now| Self::Known {
            clients: clients(before, now),
            entries: now.entries.clone(),
        })
    }
}

impl Serialize for BusyRates {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let (clients, entries) = match self {
            Self::Unknown => (None, None),
            Self::Known { clients, entries } => (Some(clients), Some(entries)),
        };
        let mut fields = serializer.serialize_struct("BusyRates", 2)?;
        fields.serialize_field("clients", &clients)?;
        fields.serialize_field("busiest", &entries)?;
        fields.end()
    }
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
        let run = |status: &Status| (status.daemon.pid, status.life.started_ms);
        let same = run(&before.status) == run(status);
        // Another daemon has started counting from zero.
        let start =
            if same { before.status.counters.clone() } else { crate::metrics::Snapshot::default() };
        let grown = status.counters.since(&start);
        Self {
            mount_point: status.mount_point.clone(),
            seconds: now.at.saturating_sub(before.at).as_secs_f64(),
            found: FoundCounts::new(grown.hits, grown.misses),
            moved: MovedCounts {
                fetched: grown.fetched,
                fetched_bytes: grown.fetched_bytes,
                published: grown.published,
                published_bytes: grown.published_bytes,
                uploaded: grown.uploaded,
                uploaded_bytes: grown.uploaded_bytes,
            },
            requests: grown.requests.into_iter().filter(|(_, number)| *number > 0).collect(),
            calls: grown.operations.into_iter().filter(|(_, number)| *number > 0).collect(),
            backlog: status.unsent.backlog,
            cache: CacheNow {
                bytes: status.local.bytes,
                limit_bytes: status.local.limit_bytes,
                entries: status.entries,
            },
            store: StoreNow::of(status.sharing.health.as_ref()),
            busy: BusyRates::between(before.busy.as_ref(), now.busy.as_ref()),
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
        let mut status = Status { mount_point: "/m".into(), ..Status::default() };
        (status.daemon.pid, status.life.started_ms) = (1, 5);
        (status.counters.hits, status.counters.misses) = (hits, misses);
        status.counters.requests = [("get".to_owned(), hits)].into();
        let client = BusyClient { name: "jax".into(), hits, misses };
        let busy = BusyReport { clients: vec![client], entries: Vec::new() };
        Sample { at: Duration::from_secs(at_s), status, busy: Some(busy) }
    }

    #[test]
    fn figures_are_those_of_the_interval() {
        let rates = Rates::between(&look(10, 100, 50), &look(12, 130, 60));
        assert_eq!(rates.found, FoundCounts::new(30, 10));
        assert_eq!(rates.found.hit_ratio(), Some(0.75));
        assert_eq!((rates.seconds, rates.rate(30)), (2.0, 15.0));
        assert_eq!(rates.requests, [("get".to_owned(), 30)].into());
        let client = ClientRates { name: "jax".into(), hits: 30, misses: 10 };
        assert_eq!(rates.busy, BusyRates::Known { clients: vec![client], entries: Vec::new() });
        let idle = Rates::between(&look(10, 100, 50), &look(10, 100, 50));
        assert_eq!((idle.found.hit_ratio(), idle.rate(3), idle.requests.len()), (None, 0.0, 0));
    }

    /// Scripts read this text.
    #[test]
    fn the_text_of_the_figures_is_stable() {
        let (before, mut now) = (look(10, 100, 50), look(12, 130, 60));
        (now.status.counters.fetched, now.status.counters.fetched_bytes) = (1, 2);
        (now.status.counters.published, now.status.counters.published_bytes) = (3, 4);
        (now.status.counters.uploaded, now.status.counters.uploaded_bytes) = (5, 6);
        now.status.counters.operations = [("open".to_owned(), 7)].into();
        now.status.unsent.backlog = Backlog { records: 8, bytes: 9, oldest_ms: 10 };
        (now.status.local.bytes, now.status.local.limit_bytes) = (11, 12);
        now.status.entries = 13;
        let why = Some("status 403".to_owned());
        now.status.sharing.health =
            Some(HealthReport { last_error: why, ..HealthReport::default() });
        let entry = BusyEntry { path: "jax/x".into(), opens: 14 };
        now.busy.as_mut().expect("there").entries.push(entry);
        let text =
            |now: &Sample| serde_json::to_string(&Rates::between(&before, now)).expect("JSON");
        let counts = "{\"mount_point\":\"/m\",\"seconds\":2.0,\"hits\":30,\"misses\":10,\"hit_ratio\":0.75,\
            \"fetched\":1,\"fetched_bytes\":2,\"published\":3,\"published_bytes\":4,\"uploaded\":5,\"uploaded_bytes\":6,\
            \"requests\":{\"get\":30},\"calls\":{\"open\":7},\"backlog\":{\"records\":8,\"bytes\":9,\"oldest_ms\":10},\
            \"cache_bytes\":11,\"cache_limit_bytes\":12,\"entries\":13,";
        let busy = "\"up\":false,\"trouble\":\"status 403\",\
            \"clients\":[{\"name\":\"jax\",\"hits\":30,\"misses\":10}],\"busiest\":[{\"path\":\"jax/x\",\"opens\":14}]}";
        assert_eq!(text(&now), format!("{counts}{busy}"));
        (now.status.sharing.health, now.busy) =
            (Some(HealthReport { up: true, ..Default::default() }), None);
        let silent = "\"up\":true,\"trouble\":null,\"clients\":null,\"busiest\":null}";
        assert_eq!(text(&now), format!("{counts}{silent}"));
        now.status.sharing.health = None;
        assert_eq!(text(&now), format!("{counts}{}", silent.replace("true", "null")));
        let idle = text(&before);
        assert!(idle.contains("\"hits\":0,\"misses\":0,\"hit_ratio\":null,"), "{idle}");
    }

    #[test]
    fn another_daemon_counts_anew() {
        let mut later = look(12, 7, 1);
        later.status.life.started_ms = 6;
        later.busy = None;
        let rates = Rates::between(&look(10, 100, 50), &later);
        assert_eq!((rates.found, rates.busy), (FoundCounts::new(7, 1), BusyRates::Unknown));
    }
}
