//! How long entries live: what the store declares, what the bucket's rules do, and what a mount
//! reports about both.

use std::collections::BTreeSet;
use std::io::ErrorKind;
use std::time::Duration;

use crate::harness::body::{self, Id};
use crate::harness::node::Site;
use crate::harness::{
    Cluster, Io, Must as _, Node, Options, Store, SyscallProcess, eventually, now, skipped,
    sleep_ms, tree,
};

fn aged(age: &str) -> Options {
    let mut options = Options::new(Io::best());
    options.args.extend(["--set".to_owned(), format!("expiry.age={age}")]);
    options
}

/// Waits until the node has checked the rules, and returns its report.
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

/// Two clusters with different expiries on one prefix: the later one logs both once, and uses the shorter.
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
    assert!(second.status()["rules"].is_null(), "a directory has no rules");
}

/// After the rules were checked, each disagreement is logged exactly once, and nothing is written.
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

/// The same for a bucket that describes itself like Google's.
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

/// A store that never answers the request for its rules delays neither the mount nor its end.
#[test]
fn rules_are_looked_at_beside_the_mount() {
    let site = Site::new();
    let store = Store::s3(&site);
    store.answer_rules(0, "");
    let mut node = Node::start(&site, "a", Some(&store), aged("30d"));
    assert!(node.status()["rules"].is_null(), "the mount serves before the rules are known");
    SyscallProcess::new().put(&node.at("f"), b"x").must("put");
    node.drain();
    node.stop();
}

/// A store that is down at the mount is checked when it is back, with the age that it then declares.
#[test]
fn rules_of_a_store_that_comes_later_are_looked_at() {
    let site = Site::new();
    let store = Store::s3(&site);
    store.answer_rules(404, "<Error><Code>NoSuchLifecycleConfiguration</Code></Error>");
    drop(Node::start(&site, "first", Some(&store), aged("7d")));
    store.fail();
    let node = Node::start(&site, "late", Some(&store), aged("30d").deadline("1s"));
    sleep_ms(3_000);
    assert!(node.status()["rules"].is_null(), "the rules are unknown: {}", node.log());
    store.heal();
    let (state, detail) = looked(&node);
    assert_eq!(state, "missing", "{detail}");
    assert!(detail.contains("an expiry of 7d"), "{detail}");
}

/// A server of another project is asked once, before and after the rules exist.
#[test]
fn rules_of_another_projects_server_are_looked_at() {
    let moto = match Store::moto() {
        Ok(moto) => moto,
        Err(reason) => {
            return skipped("rules_of_another_projects_server_are_looked_at (moto)", reason);
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

/// How long entries live over the server for which ten seconds are a day, and the corresponding rule.
const AGE: Duration = Duration::from_secs(30);
const AGE_TEXT: &str = "30s";
const AGE_AS_DAYS: &str = "3d";
/// Objects that no rule deletes.
const KEPT: [&str; 2] = ["head", "hearthfs.json"];
/// How long the server may take to delete all old objects.
const DELETED_MAX: Duration = Duration::from_mins(3);

/// Contents of each size class: in a commit, in a pack, an object of its own.
const SIZES: [(&str, usize); 3] = [("tiny", 300), ("small", 9_000), ("large", 1_500_000)];

fn content(seq: u64, len: usize) -> Vec<u8> {
    body::make(Id { writer: 1, seq }, len)
}

/// Reads the used names on one node, and only stats them on the other, and the unused ones on both.
fn use_and_look(a: &Node, b: &Node) {
    for (seq, (name, len)) in SIZES.into_iter().enumerate() {
        let read = std::fs::read(b.at("dir").join(name)).must(format_args!("read {name}"));
        assert!(read == content(seq as u64, len), "{name}");
        std::fs::metadata(a.at("dir").join(name)).must(format_args!("stat {name}"));
        for node in [a, b] {
            // A stat is no use that would keep an entry.
            let kind = std::fs::metadata(node.at(format!("unused-{name}"))).map_err(|e| e.kind());
            assert!(matches!(kind, Ok(_) | Err(ErrorKind::NotFound)), "{name}: {kind:?}");
        }
    }
}

/// Entries in use survive the server's deletions, unused ones become misses and never errors, and a
/// new node gets the rest from the bucket.
#[test]
fn rules_rgw_deletes_what_is_not_used() {
    let store = match Store::radosgw() {
        Ok(store) => store,
        Err(reason) => return skipped("rules_rgw_deletes_what_is_not_used", reason),
    };
    let url = store.url();
    let cluster = Cluster::with(|_| store, &Options::new(Io::best()).expiry(AGE_TEXT));
    cluster.a.command(&["lifecycle", "apply", &url, "--expiry", AGE_AS_DAYS]).good();
    // A day of this server is ten seconds, and the nodes must know how long entries live.
    let declared = |age: &str| format!("\"{age}\"");
    cluster.store.edit("hearthfs.json", &declared(AGE_AS_DAYS), &declared(AGE_TEXT));
    let (a, b) = (&cluster.a, &cluster.b);
    let mut process = SyscallProcess::new();
    process.mkdir(&a.at("dir")).must("mkdir");
    let begun = now();
    for (seq, (name, len)) in SIZES.into_iter().enumerate() {
        process.put(&a.at("dir").join(name), &content(seq as u64, len)).must("put");
        // Each kind in objects of its own.
        a.drain();
        process.put(&a.at(format!("unused-{name}")), &content(10 + seq as u64, len)).must("put");
        a.drain();
    }
    let first = cluster.store.keys();
    for folder in ["log/", "packs/", "blobs/"] {
        assert!(first.iter().any(|key| key.starts_with(folder)), "nothing in {folder}: {first:?}");
    }
    // An object that is named by its content is stored again under its name.
    let large = blake3::hash(&content(2, SIZES[2].1)).to_hex().to_string();
    let stays = |key: &&String| key.ends_with(&large) || KEPT.contains(&key.as_str());
    let old: BTreeSet<String> = first.iter().filter(|key| !stays(key)).cloned().collect();
    eventually(5_000, "node B has the names", || {
        let names = tree::texts(&b.mount);
        if names.len() == 4 { Ok(()) } else { Err(format!("{names:?}")) }
    });
    loop {
        use_and_look(a, b);
        let left: Vec<_> = cluster.store.keys().intersection(&old).cloned().collect();
        let age = now().duration_since(begun);
        if left.is_empty() && age > 2 * AGE {
            break;
        }
        assert!(age < DELETED_MAX, "the server keeps {left:?}");
        sleep_ms(700);
    }
    let late = Node::start(
        &cluster.site,
        "late",
        Some(&cluster.store),
        Options::new(Io::best()).expiry(AGE_TEXT),
    );
    for node in [a, b, &late] {
        eventually(5_000, "only objects in use are left", || {
            let names = tree::texts(&node.mount);
            if names == ["dir"] { Ok(()) } else { Err(format!("{names:?}")) }
        });
        for (seq, (name, len)) in SIZES.into_iter().enumerate() {
            let unused = std::fs::read(node.at(format!("unused-{name}"))).map_err(|e| e.kind());
            assert_eq!(unused.map(drop), Err(ErrorKind::NotFound), "{name}");
            let used = std::fs::read(node.at("dir").join(name)).must(format_args!("read {name}"));
            assert!(used == content(seq as u64, len), "{name}");
        }
        assert!(!node.log().contains("missing or damaged"), "{}", node.log());
    }
    cluster.a.command(&["lifecycle", "remove", &url]).good();
}

/// A server that deletes what the nodes still rely on: a miss if the bytes are gone, never an
/// error, until it is written again.
#[test]
fn rules_rgw_deletes_too_early() {
    let store = match Store::radosgw() {
        Ok(store) => store,
        Err(reason) => return skipped("rules_rgw_deletes_too_early", reason),
    };
    let url = store.url();
    let cluster = Cluster::with(|_| store, &Options::new(Io::best()));
    // Its day is ten seconds long, that of the nodes is not.
    cluster.a.command(&["lifecycle", "apply", &url, "--expiry", "1d"]).good();
    let (a, b) = (&cluster.a, &cluster.b);
    let mut process = SyscallProcess::new();
    for (seq, (name, len)) in SIZES.into_iter().enumerate() {
        process.put(&a.at(name), &content(seq as u64, len)).must("put");
    }
    a.drain();
    eventually(5_000, "node B has the names", || {
        let names = tree::texts(&b.mount);
        if names.len() == SIZES.len() { Ok(()) } else { Err(format!("{names:?}")) }
    });
    eventually(DELETED_MAX.as_millis() as u64, "the server deletes", || {
        let left = cluster.store.keys();
        let all_kept = left.iter().all(|key| KEPT.contains(&key.as_str()));
        if all_kept { Ok(()) } else { Err(format!("{left:?}")) }
    });
    for (seq, (name, len)) in SIZES.into_iter().enumerate() {
        let whole = content(seq as u64, len);
        assert!(std::fs::read(a.at(name)).must("the writer has its bytes") == whole, "{name}");
        let read = std::fs::read(b.at(name)).map_err(|error| error.kind());
        // Content inside a commit arrived together with it.
        let fine =
            read == Err(ErrorKind::NotFound) || (name == "tiny" && read == Ok(whole.clone()));
        assert!(fine, "{name}: {:?}", read.map(|bytes| bytes.len()));
        process.put(&b.at(name), &whole).must("write it again");
    }
    b.drain();
    for (seq, (name, len)) in SIZES.into_iter().enumerate() {
        for node in [a, b] {
            let read = std::fs::read(node.at(name)).must(format_args!("read {name}"));
            assert!(read == content(seq as u64, len), "{name}");
        }
    }
    cluster.a.command(&["lifecycle", "remove", &url]).good();
}
