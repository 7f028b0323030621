//! The figures of a mount in the OpenMetrics form.
//!
//! Owns their names, on which dashboards and alerts rely: they are added, never renamed. Names
//! follow the conventions of Prometheus: base units, the unit at the end, `_total` for counters.
//! Must never read anything except its arguments.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, MetricEncoder, NoLabelSet};
use prometheus_client::metrics::MetricType;
use prometheus_client::registry::Registry;

use super::{MountFigures, Series};
use crate::control::Status;
use crate::metrics::{BOUNDS_US, ClientFigures, Figures};

/// The prefix of all names.
const PREFIX: &str = "hearthfs";

type Labels = Vec<(&'static str, String)>;
/// The values of one metric by their labels.
type Samples = Vec<(Labels, f64)>;

/// One metric, with one value for each set of labels.
struct Metric {
    /// Without the prefix, and without `_total`.
    name: &'static str,
    help: &'static str,
    counts: bool,
    read: fn(&Status) -> Samples,
}

const fn gauge(name: &'static str, help: &'static str, read: fn(&Status) -> Samples) -> Metric {
    Metric { name, help, counts: false, read }
}

const fn counter(name: &'static str, help: &'static str, read: fn(&Status) -> Samples) -> Metric {
    Metric { name, help, counts: true, read }
}

fn one(value: u64) -> Samples {
    vec![(Labels::new(), value as f64)]
}

fn maybe(value: Option<u64>) -> Samples {
    value.map_or_else(Samples::new, one)
}

fn seconds(ms: Option<u64>) -> Samples {
    ms.map(|ms| (Labels::new(), ms as f64 / 1000.0)).into_iter().collect()
}

fn by(label: &'static str, all: &BTreeMap<String, u64>) -> Samples {
    all.iter().map(|(name, count)| (vec![(label, name.clone())], *count as f64)).collect()
}

fn by_client(all: &Figures, read: fn(&ClientFigures) -> Vec<(&'static str, u64)>) -> Samples {
    let sources = all.iter().flat_map(|(client, figures)| {
        read(figures).into_iter().map(move |(source, count)| {
            (vec![("client", client.clone()), ("source", source.to_owned())], count as f64)
        })
    });
    sources.collect()
}

/// All metrics except the histograms.
const METRICS: &[Metric] = &[
    gauge("build_info", "The version of the daemon, as a label", |s| {
        vec![(vec![("version", s.daemon.version.clone()), ("io", s.io.mode.clone())], 1.0)]
    }),
    gauge("start_time_seconds", "When the mount began, since the Unix epoch", |s| {
        seconds(Some(s.life.started_ms))
    }),
    gauge("entries", "Paths that lead to something", |s| one(s.entries)),
    gauge("store_up", "Whether the store can be used; absent without a store", |s| {
        maybe(s.sharing.health.as_ref().map(|health| u64::from(health.up)))
    }),
    gauge("store_throttling", "Whether the store throttles; absent without a store", |s| {
        maybe(s.sharing.health.as_ref().map(|health| u64::from(health.throttled)))
    }),
    gauge("local_bytes", "Bytes of all blobs in the cache directory", |s| one(s.local.bytes)),
    gauge("local_unsaved_bytes", "Of these, bytes that are nowhere else yet", |s| {
        one(s.local.unsaved_bytes)
    }),
    gauge("local_limit_bytes", "The limit of the cache directory in bytes", |s| {
        one(s.local.limit_bytes)
    }),
    gauge("local_blobs", "Blobs in the cache directory", |s| one(s.local.blobs)),
    gauge("disk_free_bytes", "Bytes that the disk of the cache directory has free", |s| {
        one(s.local.disk_free_bytes)
    }),
    gauge("backlog_records", "Changes that are not remote yet, by the reason", |s| {
        let reasons = &s.unsent.reasons;
        let all = [
            ("queued", reasons.queued),
            ("held", reasons.held),
            ("uploading", reasons.uploading),
            ("throttled", reasons.throttled),
            ("store_down", reasons.store_down),
            ("refused", reasons.refused),
            ("read_only", reasons.read_only),
        ];
        all.iter().map(|(why, n)| (vec![("reason", (*why).to_owned())], *n as f64)).collect()
    }),
    gauge("backlog_bytes", "Bytes of the blobs that these changes need", |s| {
        one(s.unsent.backlog.bytes)
    }),
    gauge("backlog_oldest_seconds", "Age of the oldest change that is not remote yet", |s| {
        seconds(Some(s.unsent.backlog.oldest_ms))
    }),
    gauge("writers_waiting", "Writers that wait for room at this moment", |s| {
        one(s.unsent.slowed.as_ref().map_or(0, |slowed| slowed.writers))
    }),
    gauge(
        "set_aside_contents",
        "Contents that the store refuses, so that only this node has them",
        |s| one(s.unsent.set_aside.as_ref().map_or(0, |aside| aside.contents)),
    ),
    gauge("incomplete_files", "Files that stay on this node because they are not complete", |s| {
        one(s.unsent.incomplete)
    }),
    gauge(
        "follower_list_age_seconds",
        "Age of the last list of the log that was completely applied",
        |s| seconds(s.sharing.follower.as_ref().and_then(|follower| follower.list_age_ms)),
    ),
    gauge("follower_unapplied_commits", "Commits that this node knows but has not applied", |s| {
        maybe(s.sharing.follower.as_ref().map(|follower| follower.unapplied_commits))
    }),
    gauge("nodes_seen", "Other nodes that published within a day, by their version", |s| {
        by("version", &s.sharing.versions)
    }),
    counter(
        "client_entries",
        "Cache entries as each client counts them, by client and source: local, fetched, or compiled here; they continue after a restart",
        |s| {
            by_client(&s.clients, |one| {
                vec![("local", one.local), ("fetched", one.fetched), ("compiled", one.compiled)]
            })
        },
    ),
    counter(
        "client_saved_seconds",
        "The time that compiling the served entries had taken, by client: an estimate; it continues after a restart",
        |s| {
            let one = |(client, figures): (&String, &ClientFigures)| {
                (vec![("client", client.clone())], figures.saved_ms as f64 / 1000.0)
            };
            s.clients.iter().map(one).collect()
        },
    ),
    counter("hits", "Opens for reading that were answered with an entry", |s| one(s.counters.hits)),
    counter("misses", "Names that a program asked for and that no node has", |s| {
        one(s.counters.misses)
    }),
    counter("published", "Files that became entries on this node", |s| one(s.counters.published)),
    counter("published_bytes", "Bytes of these files", |s| one(s.counters.published_bytes)),
    counter("deduplicated", "Files whose content was already here", |s| {
        one(s.counters.deduplicated)
    }),
    counter(
        "dropped_generations",
        "Files that were dropped because their writer was killed",
        |s| one(s.counters.dropped_generations),
    ),
    counter("fetched", "Contents that were fetched from the store for a program", |s| {
        one(s.counters.fetched)
    }),
    counter("fetched_bytes", "Bytes received from the store, as they travelled", |s| {
        one(s.counters.fetched_bytes)
    }),
    counter("fetch_failures", "Fetches that ended in a miss", |s| one(s.counters.fetch_failures)),
    counter("uploaded", "Contents that were uploaded", |s| one(s.counters.uploaded)),
    counter("uploaded_bytes", "Bytes sent to the store, as they travelled", |s| {
        one(s.counters.uploaded_bytes)
    }),
    counter("commits_written", "Commits written to the log", |s| one(s.counters.commits_written)),
    counter("commits_applied", "Commits of other nodes that were applied here", |s| {
        one(s.counters.commits_applied)
    }),
    counter("store_requests", "Requests to the store, by kind", |s| {
        by("kind", &s.counters.requests)
    }),
    counter("store_throttled_requests", "Requests that the store throttled, by status", |s| {
        by("status", &s.counters.throttled)
    }),
    counter("store_failed_requests", "Requests to the store that failed", |s| {
        one(s.counters.remote_retries)
    }),
    counter(
        "store_throttled_seconds",
        "How long programs and uploads waited because the store throttles",
        |s| seconds(Some(s.counters.throttled_wait_ms)),
    ),
    counter("kernel_requests", "Requests of the kernel, by operation", |s| {
        by("operation", &s.counters.operations)
    }),
    counter("kernel_invalidations", "Requests to the kernel to forget names", |s| {
        one(s.counters.invalidated)
    }),
    counter("writers_slowed", "Writers that had to wait for room", |s| one(s.counters.slowed)),
    counter("writers_refused", "Writers that were refused for lack of room", |s| {
        one(s.counters.refused)
    }),
    counter("without_room", "Contents of other nodes that were not kept for lack of room", |s| {
        one(s.counters.without_room)
    }),
    counter("evicted", "Contents that were dropped for space", |s| one(s.counters.evicted)),
    counter("evicted_bytes", "Bytes of these contents", |s| one(s.counters.evicted_bytes)),
    counter("damaged", "Contents and commits that did not match their digest", |s| {
        one(s.counters.damaged)
    }),
];

/// How long closes of programs that published a file took.
pub const CLOSE: &str = "close_duration_seconds";
/// How long opens of entries whose bytes are on this node took.
pub const OPEN: &str = "open_duration_seconds";
/// How long calls of programs waited for a fetch.
pub const FETCH: &str = "fetch_duration_seconds";
/// How long after its close a change was uploaded.
pub const PUBLISH: &str = "publish_delay_seconds";
/// How late commits of other nodes were applied.
pub const LAG: &str = "follower_lag_seconds";
/// How long the store took to answer.
pub const STORE: &str = "store_request_duration_seconds";

const HISTOGRAMS: &[(&str, &str)] = &[
    (CLOSE, "Closes that published a file"),
    (OPEN, "Opens for reading of entries whose bytes were on this node"),
    (FETCH, "Waits of calls for contents that were fetched from the store"),
    (PUBLISH, "Time from the close of a file until it was in the store for all nodes"),
    (LAG, "Time from the stamp of another node's commit until it was applied here"),
    (STORE, "Requests to the store until the answer began, by kind and status"),
];

/// Returns the names of all metrics, as queries use them; three for each histogram.
pub fn names() -> Vec<String> {
    let metrics = METRICS.iter().map(|metric| {
        let end = if metric.counts { "_total" } else { "" };
        format!("{PREFIX}_{}{end}", metric.name)
    });
    let parts = ["_bucket", "_sum", "_count"];
    let histograms =
        HISTOGRAMS.iter().flat_map(|(name, _)| parts.map(|part| format!("{PREFIX}_{name}{part}")));
    metrics.chain(histograms).collect()
}

/// Writes the figures. All have the mount point as a label: one collector may read the files of several mounts.
pub(super) fn render(figures: &MountFigures) -> String {
    let mount = (Cow::Borrowed("mount"), Cow::Owned(figures.status.mount_point.clone()));
    let mut registry = Registry::with_prefix_and_labels(PREFIX, [mount].into_iter());
    registry.register_collector(Box::new(Once(figures.clone())));
    let mut text = String::new();
    // Writing to a string cannot fail, and everything encoded here is valid.
    if let Err(error) = prometheus_client::encoding::text::encode(&mut text, &registry) {
        tracing::warn!(%error, "metrics could not be written");
    }
    text
}

#[derive(Debug)]
struct Once(MountFigures);

impl Collector for Once {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
        for metric in METRICS {
            let samples = (metric.read)(&self.0.status);
            if samples.is_empty() {
                continue;
            }
            let kind = if metric.counts { MetricType::Counter } else { MetricType::Gauge };
            let mut all = encoder.encode_descriptor(metric.name, metric.help, None, kind)?;
            for (labels, value) in &samples {
                let write = |sample: &mut MetricEncoder<'_>| {
                    if metric.counts {
                        sample.encode_counter::<NoLabelSet, _, f64>(value, None)
                    } else {
                        sample.encode_gauge(value)
                    }
                };
                if labels.is_empty() {
                    write(&mut all)?;
                } else {
                    write(&mut all.encode_family(labels)?)?;
                }
            }
        }
        for (name, help) in HISTOGRAMS {
            self.encode_histogram(&mut encoder, name, help)?;
        }
        Ok(())
    }
}

impl Once {
    fn encode_histogram(
        &self,
        encoder: &mut DescriptorEncoder<'_>,
        name: &str,
        help: &str,
    ) -> Result<(), fmt::Error> {
        let all: Vec<&Series> = self.0.series.iter().filter(|one| one.name == name).collect();
        if all.is_empty() {
            return Ok(());
        }
        let mut encoded = encoder.encode_descriptor(name, help, None, MetricType::Histogram)?;
        for Series { labels, times, .. } in all {
            let bounds = BOUNDS_US.iter().map(|us| *us as f64 / 1e6).chain([f64::INFINITY]);
            let buckets: Vec<(f64, u64)> = bounds.zip(times.buckets).collect();
            let (sum, count) = (times.sum_us as f64 / 1e6, times.count());
            if labels.is_empty() {
                encoded.encode_histogram::<NoLabelSet>(sum, count, &buckets, None)?;
            } else {
                let mut one = encoded.encode_family(labels)?;
                one.encode_histogram::<NoLabelSet>(sum, count, &buckets, None)?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::time::Duration;

    use super::*;
    use crate::control::{DaemonReport, HealthReport, SharingReport};
    use crate::metrics::Histogram;

    fn figures() -> MountFigures {
        let histogram = Histogram::default();
        histogram.observe(Duration::from_micros(70));
        histogram.observe(Duration::from_secs(100));
        let status = Status {
            mount_point: "/m".to_owned(),
            daemon: DaemonReport { version: "0.1.0".to_owned(), ..DaemonReport::default() },
            sharing: SharingReport {
                health: Some(HealthReport { up: true, ..HealthReport::default() }),
                versions: BTreeMap::from([("a \"b\"\n".to_owned(), 3)]),
                ..SharingReport::default()
            },
            ..Status::default()
        };
        let labels = vec![("kind", "get".to_owned()), ("status", "200".to_owned())];
        let times = histogram.read();
        let series = vec![
            Series { name: CLOSE, labels: Vec::new(), times },
            Series { name: STORE, labels, times },
        ];
        MountFigures { status, series }
    }

    #[test]
    fn figures_have_the_open_metrics_form() {
        let mut figures = figures();
        figures.status.counters.hits = 7;
        let jax = ClientFigures { local: 3, fetched: 2, compiled: 1, saved_ms: 41_500 };
        figures.status.clients.insert("jax".to_owned(), jax);
        figures.status.counters.throttled_wait_ms = 1500;
        let text = render(&figures);
        for line in [
            "# TYPE hearthfs_hits counter",
            "hearthfs_hits_total{mount=\"/m\"} 7.0",
            "hearthfs_store_up{mount=\"/m\"} 1.0",
            "hearthfs_store_throttled_seconds_total{mount=\"/m\"} 1.5",
            "hearthfs_backlog_records{mount=\"/m\",reason=\"queued\"} 0.0",
            "hearthfs_nodes_seen{mount=\"/m\",version=\"a \\\"b\\\"\\n\"} 3.0",
            "hearthfs_close_duration_seconds_bucket{mount=\"/m\",le=\"0.00005\"} 0",
            "hearthfs_close_duration_seconds_bucket{mount=\"/m\",le=\"0.0001\"} 1",
            "hearthfs_close_duration_seconds_bucket{mount=\"/m\",le=\"+Inf\"} 2",
            "hearthfs_store_request_duration_seconds_count{mount=\"/m\",kind=\"get\",status=\"200\"} 2",
            "hearthfs_client_entries_total{mount=\"/m\",client=\"jax\",source=\"fetched\"} 2.0",
            "hearthfs_client_saved_seconds_total{mount=\"/m\",client=\"jax\"} 41.5",
        ] {
            assert!(text.lines().any(|found| found == line), "{line} in\n{text}");
        }
        assert!(text.ends_with("# EOF\n"));
        // A mount without a store has no figures for one.
        figures.status.sharing.health = None;
        assert!(!render(&figures).contains("hearthfs_store_up"));
    }

    fn document(name: &str) -> String {
        let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("docs").join(name);
        std::fs::read_to_string(path).unwrap()
    }

    /// Returns a line of the table for each metric.
    fn table() -> String {
        let metrics = METRICS.iter().map(|metric| {
            let (end, kind) = if metric.counts { ("_total", "counter") } else { ("", "gauge") };
            format!("| `{PREFIX}_{}{end}` | {kind} | {} |\n", metric.name, metric.help)
        });
        let histograms = HISTOGRAMS
            .iter()
            .map(|(name, help)| format!("| `{PREFIX}_{name}` | histogram | {help} |\n"));
        "| name | kind | meaning |\n|---|---|---|\n".to_owned()
            + &metrics.chain(histograms).collect::<String>()
    }

    #[test]
    fn the_document_lists_all_metrics() {
        let text = document("monitoring.md");
        let (before, shown) = text.split_once("## All figures\n\n").unwrap();
        if std::env::var_os("HEARTHFS_WRITE_DOCUMENTS").is_some() {
            let path = concat!(env!("CARGO_MANIFEST_DIR"), "/docs/monitoring.md");
            return std::fs::write(path, format!("{before}## All figures\n\n{}", table())).unwrap();
        }
        assert_eq!(shown, table(), "HEARTHFS_WRITE_DOCUMENTS=1 cargo test --lib document");
    }

    /// Every metric that a dashboard or a rule uses exists.
    #[test]
    fn dashboards_and_alerts_name_metrics_that_exist() {
        let mut all: BTreeSet<String> = names().into_iter().collect();
        all.extend(HISTOGRAMS.iter().map(|(name, _)| format!("{PREFIX}_{name}")));
        for file in ["monitoring.md", "monitoring/dashboard.json", "monitoring/alerts.yml"] {
            let text = document(file);
            let mut named = 0;
            for (at, _) in text.match_indices("hearthfs_") {
                let is_name = |byte: &char| byte.is_ascii_lowercase() || *byte == '_';
                let name: String = text[at..].chars().take_while(is_name).collect();
                assert!(all.contains(&name), "{file}: {name}");
                named += 1;
            }
            assert!(named > 5, "{file}");
        }
        let dashboard: serde_json::Value =
            serde_json::from_str(&document("monitoring/dashboard.json")).unwrap();
        assert!(dashboard["panels"].as_array().is_some_and(|panels| panels.len() > 10));
    }

    #[test]
    fn names_are_distinct_and_those_that_are_written() {
        let all: BTreeSet<String> = names().into_iter().collect();
        assert_eq!(all.len(), METRICS.len() + 3 * HISTOGRAMS.len());
        let text = render(&figures());
        let is_name = |byte: char| byte.is_ascii_lowercase() || byte == '_';
        for line in text.lines().filter(|line| !line.starts_with('#')) {
            let name = line.split(|byte| !is_name(byte)).next().unwrap();
            assert!(all.contains(name), "{line}");
        }
    }
}
