//! How long entries live: what the store declares, what the bucket's rules do, and what a mount says of both.

use crate::harness::node::Site;
use crate::harness::{Hand, Io, Must as _, Node, Options, Store, eventually, skipped, sleep_ms};

fn aged(age: &str) -> Options {
    let mut options = Options::new(Io::best());
    options.args.extend(["--set".to_owned(), format!("expiry.age={age}")]);
    options
}

/// Waits until the node has looked at the rules, and returns what it says of them.
fn looked(node: &Node) -> (String, String) {
    let found = eventually(30_000, "the rules are looked at", || {
        let rules = node.status()["rules"].clone();
        if rules.is_null() { Err("nothing yet".to_owned()) } else { Ok(rules) }
    });
    let text = |key: &str| found[key].as_str().unwrap_or_default().to_owned();
    (text("state"), text("detail"))
}

fn warnings(node: &Node, about: &str) -> Vec<String> {
    let log = node.log();
    let found = log.lines().filter(|line| line.contains(" WARN ") && line.contains(about));
    found.map(str::to_owned).collect()
}

fn one_rule(id: &str, days: u32) -> String {
    format!(
        "<LifecycleConfiguration><Rule><ID>{id}</ID><Filter/><Status>Enabled</Status><Expiration><Days>\
         {days}</Days></Expiration></Rule></LifecycleConfiguration>"
    )
}

/// Two clusters with another expiry on one prefix: the later one says so once, with both, and takes the
/// shorter.
#[test]
fn rules_two_expiries_on_one_prefix_are_said_once() {
    let site = Site::new();
    let store = Store::dir(&site);
    let first = Node::start(&site, "first", Some(&store), aged("30d"));
    assert_eq!(warnings(&first, "expiry"), [""; 0]);
    let second = Node::start(&site, "second", Some(&store), aged("7d"));
    let said = warnings(&second, "declares an expiry of 30d");
    assert_eq!(said.len(), 1, "{}", second.log());
    for part in ["configured with 7d", "7d, the shorter", &store.url(), "lifecycle apply"] {
        assert!(said[0].contains(part), "`{part}` is not in: {}", said[0]);
    }
    let third = Node::start(&site, "third", Some(&store), aged("never"));
    assert!(warnings(&third, "configured with never")[0].contains("30d, the shorter"));
    assert!(second.status()["rules"].is_null(), "a directory has no rules to look at");
}

/// Once the rules have been looked at, what disagrees is said once, exactly, and nothing was written.
#[test]
fn rules_that_disagree_are_said_once() {
    let site = Site::new();
    let store = Store::s3(&site);
    for (name, status, body, state, warns, says) in [
        (
            "none",
            404,
            String::from("<Error><Code>NoSuchLifecycleConfiguration</Code></Error>"),
            "missing",
            1,
            "run `hearthfs lifecycle apply",
        ),
        (
            "sooner",
            200,
            one_rule("cleanup", 7),
            "disagree",
            1,
            "rule `cleanup` of the bucket deletes after 7 days what hearthfs keeps for 30 days",
        ),
        (
            "denied",
            403,
            "<Error><Code>AccessDenied</Code></Error>".to_owned(),
            "unknown",
            0,
            "s3:GetLifecycleConfiguration",
        ),
        (
            "unknown",
            501,
            "<Error><Code>NotImplemented</Code></Error>".to_owned(),
            "none",
            0,
            "hearthfs gc",
        ),
    ] {
        store.answer_rules(status, &body);
        let node = Node::start(&site, name, Some(&store), aged("30d"));
        let (found, detail) = looked(&node);
        assert_eq!(found, state, "{name}: {detail}");
        assert!(detail.contains(says), "{name}: `{says}` is not in: {detail}");
        assert_eq!(warnings(&node, "rule").len(), warns, "{name}: {}", node.log());
        assert_eq!(node.log().matches(says).count(), 1, "{name}: once: {}", node.log());
        let table = node.command(&["status", &node.mount.to_string_lossy()]).good();
        let row = table.lines().find(|line| line.trim_start().starts_with("rules "));
        assert!(row.must("a row for the rules").contains(state), "{table}");
    }
}

/// The same for a bucket that describes itself as Google's do.
#[test]
fn rules_of_a_google_bucket_are_looked_at() {
    let site = Site::new();
    let store = Store::gcs(&site);
    let rule = r#"{"action":{"type":"Delete"},"condition":{"age":7,"matchesPrefix":["some/"]}}"#;
    store
        .answer_rules(200, &format!(r#"{{"metageneration":"3","lifecycle":{{"rule":[{rule}]}}}}"#));
    let node = Node::start(&site, "a", Some(&store), aged("30d"));
    let (state, detail) = looked(&node);
    assert_eq!(state, "disagree", "{detail}");
    let says = "rule 1 (Delete) of the bucket deletes after 7 days what hearthfs keeps for 30 days";
    assert!(detail.contains(says), "{detail}");
    assert_eq!(warnings(&node, says).len(), 1, "{}", node.log());
}

/// A store that never answers the question for its rules delays neither the mount nor its end.
#[test]
fn rules_are_looked_at_beside_the_mount() {
    let site = Site::new();
    let store = Store::s3(&site);
    store.answer_rules(0, "");
    let mut node = Node::start(&site, "a", Some(&store), aged("30d"));
    assert!(node.status()["rules"].is_null(), "the mount serves before they are known");
    Hand::new().put(&node.at("f"), b"x").must("put");
    node.drain();
    node.stop();
}

/// A store that is down at the mount is looked at when it is back, with the age that it then declares.
#[test]
fn rules_of_a_store_that_comes_later_are_looked_at() {
    let site = Site::new();
    let store = Store::s3(&site);
    store.answer_rules(404, "<Error><Code>NoSuchLifecycleConfiguration</Code></Error>");
    drop(Node::start(&site, "first", Some(&store), aged("7d")));
    store.fail();
    let node = Node::start(&site, "late", Some(&store), aged("30d").deadline("1s"));
    sleep_ms(3_000);
    assert!(node.status()["rules"].is_null(), "nothing is known: {}", node.log());
    store.heal();
    let (state, detail) = looked(&node);
    assert_eq!(state, "missing", "{detail}");
    assert!(detail.contains("an expiry of 7d"), "{detail}");
}

/// A server that somebody else wrote is asked once, before and after the rules are there.
#[test]
fn rules_of_somebody_elses_server_are_looked_at() {
    let moto = match Store::moto() {
        Ok(moto) => moto,
        Err(reason) => {
            return skipped("rules_of_somebody_elses_server_are_looked_at (moto)", reason);
        }
    };
    let site = Site::new();
    let node = Node::start(&site, "a", Some(&moto), aged("30d"));
    assert_eq!(looked(&node).0, "missing");
    node.command(&["lifecycle", "apply", &moto.url()]).good();
    let other = Node::start(&site, "b", Some(&moto), aged("30d"));
    assert_eq!(looked(&other), ("in place".to_owned(), String::new()));
    assert_eq!(warnings(&other, "rule"), [""; 0]);
}
