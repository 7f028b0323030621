//! What monitors read of a mount: figures, whether it is healthy, and a file for a collector.

use std::collections::BTreeMap;
use std::io::{Read as _, Write as _};
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::copies::{SEEN_MS, put};
use crate::harness::node::{Site, unmount};
use crate::harness::store::Trouble;
use crate::harness::time::now;
use crate::harness::{Io, Must as _, Node, Options, Store, eventually, sleep_ms};

/// How long an answer may take.
const ANSWER_TIME: Duration = Duration::from_secs(20);
/// More connections than are served at once.
const SLOW_CLIENTS: usize = 40;

fn ask_as(socket: &Path, request: &str) -> std::io::Result<String> {
    let mut stream = UnixStream::connect(socket)?;
    stream.set_read_timeout(Some(ANSWER_TIME))?;
    stream.write_all(request.as_bytes())?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    Ok(answer)
}

/// Requests a path; returns the status and the body.
pub(super) fn ask(socket: &Path, path: &str) -> (u16, String) {
    let request = format!("GET {path} HTTP/1.1\r\nHost: node\r\nConnection: close\r\n\r\n");
    let answer = ask_as(socket, &request).must(format_args!("ask for {path}"));
    let (head, body) = answer.split_once("\r\n\r\n").must(format_args!("an answer: {answer:?}"));
    let status = head.split(' ').nth(1).and_then(|status| status.parse().ok());
    (status.must(format_args!("a status: {head}")), body.to_owned())
}

/// Parses figures: values, truncated to whole numbers, by names with labels. Omits the label of the
/// mount point, which all have.
pub(super) fn parsed(text: &str) -> BTreeMap<String, u64> {
    assert!(text.ends_with("# EOF\n"), "{text}");
    let lines = text.lines().filter(|line| !line.starts_with('#'));
    let sample = |line: &str| {
        let (_, rest) = line.split_once("mount=\"/").must(format_args!("a mount: {line}"));
        let (point, _) = rest.split_once('"').must(format_args!("the end of a mount: {line}"));
        let label = format!("mount=\"/{point}\"");
        let line = line.replace(&format!("{{{label}}}"), "").replace(&format!("{label},"), "");
        let (name, value) = line.rsplit_once(' ').must(format_args!("a sample: {line}"));
        let value: f64 = value.parse().must(format_args!("a value: {line}"));
        (name.to_owned(), value as u64)
    };
    lines.map(sample).collect()
}

fn figures(socket: &Path) -> BTreeMap<String, u64> {
    let (status, text) = ask(socket, "/metrics");
    assert_eq!(status, 200, "{text}");
    parsed(&text)
}

fn socket_of(node: &Node) -> PathBuf {
    node.mount.with_extension("metrics")
}

/// Starts a node that answers at a socket beside its mount point.
fn monitored(site: &Site, name: &str, store: &Store, options: &Options) -> Node {
    let socket = site.path().join(format!("{name}.metrics"));
    let at = format!("unix:{}", socket.display());
    let options = options.clone().variable("HEARTHFS_METRICS", &at);
    Node::start(site, name, Some(store), options)
}

#[test]
fn metrics_show_what_two_nodes_do() {
    let site = Site::new();
    let store = Store::s3(&site);
    let options = Options::new(Io::best());
    let nodes = ["a", "b"].map(|name| monitored(&site, name, &store, &options));
    let [a, b] = &nodes;
    let sockets = ["a", "b"].map(|name| site.path().join(format!("{name}.metrics")));
    let [at_a, at_b] = &sockets;
    let large = "program".repeat(40_000);
    put(&a.at("jax/jit_f-1-cache"), &large, 0o644);
    a.drain();
    eventually(SEEN_MS, "node B has it", || {
        std::fs::read_to_string(b.at("jax/jit_f-1-cache")).map_err(|error| error.to_string())
    });
    std::fs::read(a.at("jax/jit_f-1-cache")).must("read on node A");
    assert!(!b.at("jax/jit_f-2-cache").exists());

    let of_a = figures(at_a);
    assert_eq!(of_a["hearthfs_published_total"], 1, "{of_a:#?}");
    assert_eq!(of_a["hearthfs_close_duration_seconds_count"], 1);
    assert!(of_a["hearthfs_publish_delay_seconds_count"] >= 2, "the directory and the file");
    assert!(of_a["hearthfs_open_duration_seconds_count"] >= 1);
    assert_eq!(of_a["hearthfs_fetch_duration_seconds_count"], 0);
    assert_eq!(of_a["hearthfs_store_up"], 1);
    let puts = "hearthfs_store_request_duration_seconds_count{kind=\"put\"";
    let answered = of_a.iter().filter(|(name, _)| name.starts_with(puts));
    let answered = answered.map(|(_, count)| count).sum::<u64>();
    assert_eq!(answered, of_a["hearthfs_store_requests_total{kind=\"put\"}"]);
    assert!(answered >= 2, "a pack and a commit");

    let of_b = figures(at_b);
    assert_eq!(of_b["hearthfs_fetch_duration_seconds_count"], 1, "{of_b:#?}");
    assert_eq!(of_b["hearthfs_follower_lag_seconds_count"], of_b["hearthfs_commits_applied_total"]);
    assert_eq!(of_b["hearthfs_fetched_total"], 1);
    assert!(of_b["hearthfs_misses_total"] >= 1);
    assert_eq!(of_b["hearthfs_close_duration_seconds_count"], 0);
    // The output of `status` at the same time.
    let status: serde_json::Value =
        serde_json::from_str(&ask(at_b, "/status.json").1).must("parse a status");
    assert_eq!(status["counters"]["fetched"], 1);
    assert_eq!(status["mount_point"], b.mount.to_string_lossy().as_ref());
}

/// A daemon that cannot reach its store is healthy: a restart would not help.
#[test]
fn metrics_call_a_mount_healthy_while_the_store_is_down() {
    let site = Site::new();
    let store = Store::s3(&site);
    let options = Options::new(Io::best()).deadline("1s");
    let mut node = monitored(&site, "a", &store, &options);
    let socket = site.path().join("a.metrics");
    assert_eq!(ask(&socket, "/healthz"), (200, "ok\n".to_owned()));
    assert_eq!(ask(&socket, "/readyz"), (200, "serving\n".to_owned()));
    store.trouble(Trouble::Hang);
    put(&node.at("file"), "text", 0o644);
    eventually(30_000, "the outage", || {
        let figures = figures(&socket);
        if figures["hearthfs_store_up"] == 0 { Ok(()) } else { Err("it is up".to_owned()) }
    });
    assert_eq!(ask(&socket, "/healthz"), (200, "ok\n".to_owned()));
    assert_eq!(ask(&socket, "/readyz").0, 200);
    assert!(figures(&socket)["hearthfs_backlog_records{reason=\"store_down\"}"] >= 1);
    // A mount is unhealthy if no thread answers its requests.
    let frozen = node.freeze_requests();
    // An answer is reused for a second.
    eventually(30_000, "it is out of order", || match ask(&socket, "/healthz") {
        (503, why) if why == "the mount does not answer\n" => Ok(()),
        other => Err(format!("{other:?}")),
    });
    drop(frozen);
    store.heal();
    eventually(30_000, "it answers again", || {
        let (status, why) = ask(&socket, "/healthz");
        if status == 200 { Ok(()) } else { Err(why) }
    });
    node.stop();
    assert!(!socket.exists(), "the socket is gone with the mount");
}

/// A mount that was detached while a program uses it continues to its end, and is healthy.
#[test]
fn metrics_call_a_detached_mount_in_use_healthy() {
    let site = Site::new();
    let store = Store::dir(&site);
    let mut node = monitored(&site, "a", &store, &Options::new(Io::best()));
    let socket = socket_of(&node);
    put(&node.at("file"), "text", 0o644);
    let used = std::fs::File::open(node.at("file")).must("open");
    // If a mount vanishes before its daemon has looked at it, it counts as one that could not be made.
    eventually(30_000, "the daemon has checked its mount", || {
        let log = node.log();
        if log.contains(" mounted mount_point=") { Ok(()) } else { Err(log) }
    });
    unmount(&node.mount);
    for _ in 0..5 {
        assert_eq!(ask(&socket, "/healthz"), (200, "ok\n".to_owned()));
        // Longer than an answer is reused.
        sleep_ms(300);
    }
    drop(used);
    node.await_end(30_000);
}

/// Programs of the node may ask as often as they like: the mount is examined once a second.
#[test]
fn metrics_health_looks_at_the_mount_once_a_second() {
    let site = Site::new();
    let store = Store::dir(&site);
    let node = monitored(&site, "a", &store, &Options::new(Io::best()));
    let socket = socket_of(&node);
    let looks = || node.status()["counters"]["operations"]["statfs"].as_u64().unwrap_or(0);
    let (before, began) = (looks(), now());
    for _ in 0..100 {
        assert_eq!(ask(&socket, "/healthz").0, 200);
    }
    let at_most = 2 + began.elapsed().as_secs();
    let made = looks() - before;
    assert!((1..=at_most).contains(&made), "{made} looks of at most {at_most}");
}

#[test]
fn metrics_requests_that_are_bad_or_slow_hold_nothing_up() {
    let site = Site::new();
    let store = Store::dir(&site);
    let node = monitored(&site, "a", &store, &Options::new(Io::best()));
    let socket = site.path().join("a.metrics");
    assert_eq!(ask(&socket, "/nothing").0, 404);
    assert_eq!(ask(&socket, "/../metrics").0, 404);
    let root = ask(&socket, "/");
    assert!(root.0 == 200 && root.1.contains("/healthz"), "{root:?}");
    for method in ["POST", "PUT", "DELETE"] {
        let request = format!(
            "{method} /metrics HTTP/1.1\r\nHost: a\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
        );
        let answer = ask_as(&socket, &request).must("ask");
        assert!(answer.starts_with("HTTP/1.1 405 "), "{answer}");
    }
    let refused = ask_as(&socket, "\0\r\n\r\n").unwrap_or_default();
    assert!(refused.is_empty() || refused.starts_with("HTTP/1.1 400 "), "{refused}");
    let long = format!("GET /{} HTTP/1.1\r\nHost: a\r\n\r\n", "a".repeat(100_000));
    let refused = ask_as(&socket, &long).unwrap_or_default();
    assert!(refused.is_empty() || refused.starts_with("HTTP/1.1 4"), "{refused}");
    // Silent clients take all connections: the mount goes on, and so does `status`.
    let slow: Vec<_> = (0..SLOW_CLIENTS).map(|_| UnixStream::connect(&socket)).collect();
    put(&node.at("file"), "text", 0o644);
    assert_eq!(std::fs::read(node.at("file")).must("read"), b"text");
    assert_eq!(node.status()["phase"], "serving");
    drop(slow);
    eventually(30_000, "it answers", || {
        let (status, text) = ask(&socket, "/readyz");
        if status == 200 { Ok(()) } else { Err(text) }
    });
}

#[test]
fn metrics_addresses_that_cannot_be_used_are_refused() {
    let site = Site::new();
    let taken = TcpListener::bind("127.0.0.1:0").must("listen");
    let taken_at = taken.local_addr().must("an address").to_string();
    let served = site.path().join("served");
    let _listener = UnixListener::bind(&served).must("listen");
    let plain = site.path().join("plain");
    std::fs::write(&plain, "text").must("write");
    let unix = |path: &Path| format!("unix:{}", path.display());
    for (at, why) in [
        (taken_at, "another program uses it"),
        ("192.0.2.1:9464".to_owned(), "metrics.allow_remote"),
        ("0.0.0.0:0".to_owned(), "metrics.allow_remote"),
        ("nonsense".to_owned(), "127.0.0.1:9464"),
        (unix(&served), "another process serves it"),
        (unix(&plain), "not a socket"),
        (unix(&site.path().join("missing/socket")), "check metrics.listen"),
    ] {
        let options = Options::new(Io::best()).variable("HEARTHFS_METRICS", &at);
        let mut node = Node::start(&site, "a", None, Options::new(Io::best()));
        node.stop();
        node.set_options(options);
        let said = node.refused();
        assert!(said.contains("metrics.listen") && said.contains(why), "{at}: {said}");
    }
    assert_eq!(std::fs::read(&plain).must("read"), b"text", "the plain file is kept");
    // What a killed daemon has left is replaced.
    let store = Store::dir(&site);
    let mut node = monitored(&site, "b", &store, &Options::new(Io::best()));
    node.kill_only();
    assert!(socket_of(&node).exists());
    node.up();
    eventually(10_000, "the node is ready", || match ask(&socket_of(&node), "/readyz").0 {
        200 => Ok(()),
        other => Err(format!("status {other}")),
    });
}

#[test]
fn metrics_are_written_for_a_collector() {
    let site = Site::new();
    let cluster_dir = site.dir("collector");
    let file = cluster_dir.join("hearthfs.prom");
    let options =
        Options::new(Io::best()).variable("HEARTHFS_METRICS_TEXTFILE", &file.to_string_lossy());
    let mut node = Node::start(&site, "a", None, options);
    let mode = file.metadata().must("the file").permissions().mode() & 0o777;
    assert_eq!(mode, 0o644);
    put(&node.at("file"), "text", 0o644);
    eventually(60_000, "it is written again", || {
        let text = std::fs::read_to_string(&file).map_err(|error| error.to_string())?;
        let count = parsed(&text)["hearthfs_published_total"];
        if count == 1 { Ok(()) } else { Err(format!("{count}")) }
    });
    let names: Vec<_> = std::fs::read_dir(&cluster_dir).must("list").collect();
    assert_eq!(names.len(), 1, "{names:?}");
    node.stop();
    assert!(!file.exists(), "the old figures are left");
    node.set_options(
        Options::new(Io::best()).variable("HEARTHFS_METRICS_TEXTFILE", "/nowhere/a.prom"),
    );
    let said = node.refused();
    assert!(said.contains("metrics.textfile"), "{said}");
}
