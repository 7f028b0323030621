//! The part of `status` about the store, the log and the other nodes.
//!
//! Owns the fields with which a fleet is monitored, each in the situation that it is for. Must
//! never check anything that no command prints.

use serde_json::Value;

use crate::harness::body::{self, Id};
use crate::harness::node::Site;
use crate::harness::store::Trouble;
use crate::harness::{Cluster, Io, Must as _, Node, Options, Store, SyscallProcess, eventually};

fn put(node: &Node, name: &str, len: usize) {
    let body = body::make(Id { writer: 1, seq: len as u64 }, len);
    SyscallProcess::new().put(&node.at(name), &body).must("put a file");
}

/// Waits until a status has the expected content, and returns it.
fn until(node: &Node, what: &str, says: impl Fn(&Value) -> bool) -> Value {
    eventually(30_000, what, || {
        let status = node.status();
        if says(&status) { Ok(status) } else { Err(format!("{status:#}")) }
    })
}

fn shown(node: &Node) -> String {
    let mount = node.mount.to_string_lossy();
    node.command(&["status", &mount]).good()
}

/// The reason of an outage is reported during the outage, and after its end.
#[test]
fn fleet_sees_the_reason_of_an_outage() {
    for (trouble, kind, word) in
        [(Trouble::Forbidden, "Denied", "403"), (Trouble::Hang, "TimedOut", ": no ")]
    {
        let options = Options::new(Io::best()).alone().deadline("1s");
        let cluster = Cluster::with(Store::s3, &options);
        let health = cluster.a.status()["health"].clone();
        assert!(health["up"] == true && health["last_error"].is_null(), "{health}");
        cluster.store.trouble(trouble);
        put(&cluster.a, "first", 1_000);
        let down = until(&cluster.a, "the outage", |status| status["health"]["up"] == false);
        let health = &down["health"];
        assert_eq!(health["last_error_kind"], kind, "{health}");
        assert!(health["last_error"].as_str().is_some_and(|why| why.contains(word)), "{health}");
        assert!(health["last_error_age_ms"].as_u64() < Some(30_000), "{health}");
        assert_eq!(down["backlog_reasons"]["store_down"], 1, "{down:#}");
        let text = shown(&cluster.a);
        assert!(text.contains(": 1 waiting for the store"), "{text}");
        cluster.store.heal();
        cluster.a.drain();
        let up = until(&cluster.a, "its end", |status| status["health"]["up"] == true);
        assert_eq!(
            up["health"]["last_error_kind"], kind,
            "the last error is kept: {}",
            up["health"]
        );
        assert!(shown(&cluster.a).contains("outage    ended "), "{}", shown(&cluster.a));
    }
}

/// How old the knowledge about the other nodes is, and how late their changes arrive.
#[test]
fn fleet_sees_how_far_a_node_is_behind() {
    let cluster = Cluster::with(Store::s3, &Options::new(Io::best()).alone());
    let mut process = SyscallProcess::new();
    put(&cluster.a, "first", 1_000);
    cluster.a.drain();
    eventually(10_000, "node B has the file", || {
        process.stat(&cluster.b.at("first")).map_err(|errno| errno.to_string())
    });
    let follower = cluster.b.status()["follower"].clone();
    assert!(follower["list_age_ms"].as_u64() < Some(10_000), "{follower}");
    assert!(follower["attempt_age_ms"].as_u64() < Some(10_000), "{follower}");
    assert!(follower["lag_last_ms"].as_u64().is_some_and(|ms| ms < 10_000), "{follower}");
    assert!(follower["lag_worst_ms"].as_u64() >= follower["lag_last_ms"].as_u64(), "{follower}");
    let versions = cluster.b.status()["versions"].clone();
    assert_eq!(versions, serde_json::json!({ env!("CARGO_PKG_VERSION"): 1 }));
    assert!(follower["list_failed"] == false && follower["unapplied_commits"] == 0, "{follower}");
    assert!(!shown(&cluster.b).contains("behind"), "{}", shown(&cluster.b));
    cluster.store.trouble(Trouble::Forbidden);
    let seen = until(&cluster.b, "the log cannot be read", |status| {
        // A miss asks the store.
        stat_by_process(&cluster.b, "none");
        let follower = &status["follower"];
        follower["list_failed"] == true
            && follower["list_age_ms"].as_u64() > follower["attempt_age_ms"].as_u64()
    });
    assert!(shown(&cluster.b).contains("behind    the log was last read "), "{seen:#}");
    cluster.store.heal();
    until(&cluster.b, "it can be read again", |status| {
        stat_by_process(&cluster.b, "none");
        status["follower"]["list_failed"] == false
    });
}

fn stat_by_process(node: &Node, name: &str) {
    assert!(SyscallProcess::new().stat(&node.at(name)).is_err(), "{name} exists");
}

/// Throttled requests, and the time that they cost, are counted.
#[test]
fn fleet_sees_throttling() {
    let cluster = Cluster::with(Store::s3, &Options::new(Io::best()).alone());
    assert!(!shown(&cluster.a).contains("throttled"), "{}", shown(&cluster.a));
    cluster.store.throttle("packs/");
    put(&cluster.a, "packed", 100_000);
    let seen = until(&cluster.a, "it is throttled", |status| {
        status["health"]["throttled"] == true
            && status["counters"]["throttled"]["503"].as_u64() >= Some(2)
            && status["counters"]["throttled_wait_ms"].as_u64() > Some(0)
    });
    assert!(
        seen["counters"]["throttled"]["429"].is_null() && seen["health"]["up"] == true,
        "{seen:#}"
    );
    // No answer is counted that the server has not sent.
    let told = seen["counters"]["throttled"]["503"].as_u64();
    assert!(told <= Some(cluster.store.throttlings()), "{seen:#}");
    let text = shown(&cluster.a);
    assert!(text.contains("throttled 503 ") && text.contains("; NOW"), "{text}");
    until(&cluster.a, "the backlog shows it", |status| status["backlog_reasons"]["throttled"] == 1);
    cluster.store.heal();
    cluster.a.drain();
    until(&cluster.a, "it is over", |status| status["health"]["throttled"] == false);
}

/// Each miss is a line of the log at level `debug`, with its name and its reason; as JSON if configured.
#[test]
fn fleet_sees_why_a_name_is_a_miss() {
    let site = Site::new();
    let store = Store::s3(&site);
    let a = Node::start(&site, "a", Some(&store), Options::new(Io::best()).deadline("1s"));
    let mut options = Options::new(Io::best()).deadline("1s");
    let words = ["--log-level", "info,hearthfs::fs=debug", "--log-format", "json"];
    options.args.extend(words.map(str::to_owned));
    let b = Node::start(&site, "b", Some(&store), options);
    let mut process = SyscallProcess::new();
    put(&a, "packed", 100_000);
    put(&a, "removed", 100);
    a.drain();
    for name in ["packed", "removed"] {
        eventually(10_000, "node B shows the file", || {
            process.stat(&b.at(name)).map_err(|errno| errno.to_string())
        });
    }
    std::fs::remove_file(a.at("removed")).must("remove");
    a.drain();
    store.throttle("packs/");
    assert!(process.get(&b.at("packed")).is_err(), "throttled content is not served");
    store.heal();
    assert!(process.stat(&b.at("on no node")).is_err());
    eventually(10_000, "node B shows the removal", || match process.stat(&b.at("removed")) {
        Ok(_) => Err("it exists".to_owned()),
        Err(_) => Ok(()),
    });
    let lines: Vec<Value> =
        b.log().lines().map(|line| serde_json::from_str(line).must(line)).collect();
    for (name, reason) in
        [("packed", "503"), ("on no node", "no node has it"), ("removed", "it was removed")]
    {
        let told = lines.iter().any(|line| {
            let says =
                |field: &str, text: &str| line[field].as_str().is_some_and(|s| s.contains(text));
            line["message"] == "miss"
                && line["level"] == "DEBUG"
                && line["name"] == name
                && says("reason", reason)
        });
        assert!(told, "{name}: {}", b.log());
    }
    assert!(!a.log().contains("miss"), "{}", a.log());
    let help = a.command(&["mount", "--help"]).good();
    assert!(help.contains("--log-format"), "{help}");
}
