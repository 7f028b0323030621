//! Nodes whose cache directory meets another store, and nodes that were made from one cache
//! directory.

use std::time::Duration;

use super::harness::*;
use crate::local::Index;
use crate::remote::fault::{Faults, MemoryStore};
use crate::remote::{Health, RemoteOptions, StoreId};
use crate::stamp::NodeId;
use crate::sync::known_of_index;

/// Another store at the same address, which other nodes use already.
fn elsewhere(world: &World) -> World {
    world.clock.advance(Duration::from_secs(5));
    World { store: MemoryStore::with_clock(world.clock.clone()), ..world.clone() }
}

/// Declares, as `hearthfs init --replaces` does, that a store replaces the one that a node knows.
async fn replace(world: &World, node: &Node) {
    let known = known(node.dir().parent().unwrap()).expect("the node has used a store");
    let (faults, options) = (Faults::none(), RemoteOptions::default());
    let remote = world.store.remote(&faults, &options, world.clock.clone(), NodeId(99));
    assert!(remote.make(&[known.store()]).await.unwrap().told);
    assert!(!remote.make(&[known.store()]).await.unwrap().told, "a second time changes nothing");
}

/// Two nodes that share entries. One of them has a backlog that only it knows.
async fn with_backlog(world: &World) -> (Node, Node) {
    let (mut node, other) = (world.node(), world.node());
    for n in 0..12 {
        node.write(&format!("old{n}"), &content(n, 9_000));
    }
    node.push().await;
    assert!(node.pull().await && other.pull().await);
    node.engine.ledger().save().unwrap();
    for n in 0..5 {
        node.write(&format!("mine{n}"), &content(100 + n, 9_000));
    }
    (node, other)
}

#[test]
fn p4_local_durable_where_another_store_is_in_the_place_of_the_known_one() {
    run(async {
        let world = World::new();
        let (node, other) = with_backlog(&world).await;
        // Nothing at all, and a store that another program has made.
        let (empty, foreign) = (elsewhere(&world), elsewhere(&world));
        let mut theirs = foreign.node();
        theirs.send("theirs", b"1").await;
        let mut root = node.crash();
        for place in [&empty, &foreign] {
            let before = place.store.keys().await;
            let node = place.node_at(root);
            assert!(!node.pull().await, "not the known store");
            assert!(node.remote().is_missed());
            assert!(matches!(node.remote().health(), Health::Down { .. }));
            let why = node.remote().trouble().expect("a reason");
            assert!(why.contains("s3://memory") && why.contains("hearthfs init"), "{why}");
            for n in 0..12 {
                assert_eq!(node.read(&format!("old{n}")).await, Some(content(n, 9_000)));
            }
            node.write("more", b"while it is away");
            let engine = &node.engine;
            engine.start();
            let report = engine.drain(Duration::from_mins(2), |_| {}).await;
            assert!(!report.complete && report.left.records >= 6, "{report:?}");
            engine.kill().await;
            assert!(node.entry("theirs").is_none());
            assert_eq!(place.store.keys().await, before, "nothing is written there");
            root = node.crash();
        }
        // The store is back.
        let mut node = world.node_at(root);
        node.push().await;
        assert!(node.pull().await && other.pull().await);
        assert_eq!(node.remote().trouble(), None);
        for n in 0..5 {
            assert_eq!(other.read(&format!("mine{n}")).await, Some(content(100 + n, 9_000)));
        }
        assert_eq!(other.read("more").await, Some(b"while it is away".to_vec()));
        assert_eq!(other.registers(), node.registers());
    });
}

#[test]
fn a_store_that_refuses_or_does_not_answer_is_not_absent() {
    run(async {
        let world = World::new();
        let (node, other) = with_backlog(&world).await;
        let mut root = node.crash();
        for fault in ["forbidden=1", "errors=100", "resets=100", "hang=1"] {
            let node = world.node_at(root);
            node.fail(fault);
            assert!(!node.pull().await, "{fault}");
            assert!(!node.remote().is_missed(), "{fault}: the store was not read");
            assert!(node.entry("old3").is_some() && node.entry("mine3").is_some(), "{fault}");
            root = node.crash();
        }
        let mut node = world.node_at(root);
        node.push().await;
        assert!(other.pull().await && other.entry("mine4").is_some());
    });
}

#[test]
fn a_store_that_replaces_the_known_one_rebuilds_the_namespace() {
    run(async {
        let world = World::new();
        let mut node = world.node();
        node.send("old", b"sent").await;
        assert!(node.pull().await);
        node.write("mine", b"not sent");
        node.engine.ledger().save().unwrap();
        let other = elsewhere(&world);
        let mut theirs = other.node();
        theirs.send("theirs", b"1").await;
        replace(&other, &node).await;
        let mut node = other.node_at(node.crash());
        assert!(node.entry("old").is_some(), "no request yet");
        node.fail("errors=100");
        assert!(!node.pull().await);
        assert!(node.entry("old").is_some(), "the old entries stay until the store answers");
        node.fail("");
        assert!(node.pull().await);
        assert!(node.entry("old").is_none());
        assert_eq!(node.read("theirs").await, Some(b"1".to_vec()));
        assert_eq!(node.read("mine").await, Some(b"not sent".to_vec()));
        node.send("again", b"sent").await;
        assert!(theirs.pull().await);
        assert_eq!(theirs.read("mine").await, Some(b"not sent".to_vec()));
        assert_eq!(theirs.read("again").await, Some(b"sent".to_vec()), "also stored here");
        assert_eq!(theirs.registers(), node.registers());
        // From now on it knows this store.
        let node = world.node_at(node.crash());
        assert!(!node.pull().await && node.remote().is_missed());
    });
}

#[test]
fn p4_local_durable_of_what_only_another_store_has_stored() {
    run(async {
        let world = World::new();
        let mut node = world.node();
        let bytes = content(1, 9_000);
        node.send("old", &bytes).await;
        assert!(node.pull().await);
        node.write("again", &bytes);
        node.engine.ledger().save().unwrap();
        let other = elsewhere(&world);
        let known = known(node.dir().parent().unwrap());
        other.node().remote().make(&[known.unwrap().store()]).await.unwrap();
        let mut node = other.node_at(node.crash());
        let unsaved = |node: &Node| node.engine.ledger().blobs().usage().unsaved_bytes;
        assert!(unsaved(&node) > 0, "the new store may lack it");
        node.push().await;
        assert!(node.pull().await && node.read("again").await == Some(bytes));
        assert_eq!(unsaved(&node), 0);
    });
}

#[test]
fn a_node_of_an_older_version_knows_its_store() {
    run(async {
        let world = World::new();
        let old = br#"{"format":1,"created_ms":77,"expiry":null,"trusted_keys":[]}"#;
        world.store.overwrite("hearthfs.json", old.to_vec()).await;
        let (mut a, b) = (world.node(), world.node());
        a.send("x", b"1").await;
        for node in [&a, &b] {
            assert!(node.pull().await);
            assert_eq!(
                node.remote().used().unwrap().store(),
                StoreId(77),
                "all nodes read the same store"
            );
        }
        assert_eq!(
            world.store.read("hearthfs.json").await.unwrap(),
            &old[..],
            "no node rewrites it"
        );
        a.engine.ledger().save().unwrap();
        let root = a.crash();
        let found = Index::open(&open_dir(root.path())).load();
        assert_eq!(known_of_index(&found).map(|known| known.store()), Some(StoreId(77)));
    });
}

#[test]
fn nodes_that_make_a_store_at_once_agree_on_one() {
    run(async {
        for faults in ["latency_ms=5", "latency_ms=5 lost=40", "latency_ms=5 errors=30 lost=30"] {
            let world = World::new();
            let nodes: Vec<Node> = (0..6).map(|_| world.node()).collect();
            let found = futures::future::join_all(nodes.iter().map(async |node| {
                node.fail(faults);
                loop {
                    if let Ok(store) = node.remote().store_id().await {
                        return store;
                    }
                    crate::clock::sleep(Duration::from_millis(50)).await;
                    world.clock.advance(Duration::from_secs(1));
                }
            }))
            .await;
            assert!(found.iter().all(|store| *store == found[0]), "{faults}: {found:?}");
        }
    });
}

/// Advances the time until nodes have checked again which store it is.
async fn seen_later(world: &World, nodes: &[&Node]) {
    world.clock.advance(Duration::from_mins(11));
    for node in nodes {
        assert!(node.pull().await);
    }
}

#[test]
fn a_format_object_that_a_rule_has_deleted_is_put_back() {
    run(async {
        let world = World::new();
        let (mut node, mut other) = with_backlog(&world).await;
        node.push().await;
        seen_later(&world, &[&node, &other]).await;
        let said = world.store.read("hearthfs.json").await.unwrap();
        world.store.remove("hearthfs.json").await;
        // A new node does not turn the remains into another store.
        let new = world.node();
        assert!(!new.pull().await);
        let why = new.remote().check().await.unwrap_err().chain();
        assert!(
            why.contains("objects of a store but no hearthfs.json") && why.contains("init"),
            "{why}"
        );
        assert!(world.store.read("hearthfs.json").await.is_none());
        // A mounted node notices at its next look, and a started one at its first.
        for mounted in [true, false] {
            if mounted {
                world.clock.advance(Duration::from_mins(11));
            } else {
                world.store.remove("hearthfs.json").await;
                node.engine.ledger().save().unwrap();
                node = world.node_at(node.crash());
            }
            assert!(node.pull().await, "mounted: {mounted}");
            assert_eq!(world.store.read("hearthfs.json").await, Some(said.clone()));
        }
        new.engine.follower().poll().await;
        world.clock.advance(Duration::from_secs(10));
        assert!(new.pull().await && new.entry("mine4").is_some());
        other.send("then", b"1").await;
        assert!(node.pull().await && node.entry("then").is_some());
    });
}

#[test]
fn a_node_that_may_not_write_puts_no_format_object_back() {
    run(async {
        let world = World::new();
        let (mut node, reader) = with_backlog(&world).await;
        node.push().await;
        seen_later(&world, &[&node, &reader]).await;
        world.store.remove("hearthfs.json").await;
        let writes = reader.remote().requests().puts;
        drop(reader.remote().clone().read_only());
        world.clock.advance(Duration::from_mins(11));
        assert!(!reader.pull().await && reader.remote().is_missed());
        assert!(world.store.read("hearthfs.json").await.is_none());
        assert_eq!(reader.remote().requests().puts, writes);
        // A node that may write puts it back, and then it exists for all.
        assert!(node.pull().await);
        world.clock.advance(Duration::from_secs(10));
        assert!(reader.pull().await);
    });
}

#[test]
fn a_store_with_a_new_id_is_recognised_by_its_log() {
    run(async {
        let world = World::new();
        let (mut node, mut other) = with_backlog(&world).await;
        node.push().await;
        seen_later(&world, &[&node, &other]).await;
        node.engine.ledger().save().unwrap();
        world.store.remove("hearthfs.json").await;
        let (faults, options) = (Faults::none(), RemoteOptions::default());
        let init = world.store.remote(&faults, &options, world.clock.clone(), NodeId(99));
        let made = init.make(&[]).await.unwrap();
        assert!(made.new);
        let mut node = world.node_at(node.crash());
        world.clock.advance(Duration::from_mins(11));
        for node in [&node, &other] {
            assert!(node.pull().await);
            assert!(node.entry("old3").is_some(), "no entry is lost");
            assert_eq!(node.remote().used().unwrap().store(), made.store);
        }
        node.write("a", b"1");
        other.write("b", b"2");
        node.push().await;
        other.push().await;
        assert!(node.pull().await && other.pull().await);
        assert_eq!(node.registers(), other.registers());
    });
}

/// Copies a cache directory, as when an image is made.
fn copied(from: &std::path::Path) -> tempfile::TempDir {
    let to = tempfile::tempdir().unwrap();
    let mut waiting = vec![(from.to_owned(), to.path().to_owned())];
    while let Some((from, to)) = waiting.pop() {
        std::fs::create_dir_all(&to).unwrap();
        for entry in std::fs::read_dir(&from).unwrap() {
            let entry = entry.unwrap();
            let at = to.join(entry.file_name());
            if entry.file_type().unwrap().is_dir() {
                waiting.push((entry.path(), at));
            } else {
                std::fs::copy(entry.path(), at).unwrap();
            }
        }
    }
    to
}

#[test]
fn a_twin_is_noticed_and_an_earlier_run_is_none() {
    run(async {
        let world = World::new();
        let mut first = world.node();
        first.send("before", b"1").await;
        first.engine.ledger().save().unwrap();
        let root = first.crash();
        let identity = |dir: &std::path::Path| std::fs::read_to_string(dir.join("node"));
        // Without its index a node reads its own commits again.
        let (mut a, mut b) = (world.node_at(copied(root.path())), {
            let copy = copied(root.path());
            std::fs::remove_dir_all(copy.path().join("v1/index")).unwrap();
            world.node_at(copy)
        });
        for node in [&mut a, &mut b] {
            assert!(node.pull().await);
            assert_eq!(node.read("before").await, Some(b"1".to_vec()));
            assert!(identity(&node.dir()).is_ok(), "an earlier run is no twin");
        }
        world.clock.advance(Duration::from_secs(1));
        a.send("a", b"2").await;
        // After a long silence its commits are a new sequence; it must read one of them back
        // itself.
        world.clock.advance(Duration::from_hours(48));
        a.send("late", b"2").await;
        a.engine.ledger().forget_seen_for_test();
        assert!(a.pull().await && b.pull().await);
        assert!(identity(&a.dir()).is_ok(), "its own commits show no twin");
        assert!(identity(&b.dir()).is_err(), "the copy gives up the identity");
        assert_eq!(b.read("a").await, Some(b"2".to_vec()), "the copy loses nothing");
        b.write("b", b"3");
        let again = world.node_at(b.crash());
        assert_ne!(again.engine.ledger().node(), a.engine.ledger().node());
        let mut again = again;
        again.push().await;
        assert!(a.pull().await);
        assert_eq!(a.read("b").await, Some(b"3".to_vec()), "the backlog uses the new identity");
        assert!(identity(&a.dir()).is_ok());
    });
}

#[test]
fn a_late_commit_of_an_earlier_run_is_not_from_a_twin() {
    run(async {
        let world = World::new();
        // A node with a wrong clock has made a stamp, and all nodes continue from there.
        let ahead = World { clock: world.clock.skewed(3_600_000), ..world.clone() };
        let mut wrong = ahead.node();
        wrong.send("ahead", b"1").await;
        let mut node = world.caught_up().await;
        node.engine.ledger().save().unwrap();
        node.send("mine", b"1").await;
        // It is killed while its commit is in flight.
        let key = &world.log().await.pop().unwrap();
        let bytes = world.store.read(key).await.unwrap();
        world.store.remove(key).await;
        let node = world.node_at(node.crash());
        assert!(node.pull().await);
        world.clock.advance(Duration::from_secs(1));
        world.store.overwrite(key, bytes.to_vec()).await;
        assert!(node.pull().await && node.entry("mine").is_some());
        assert!(node.dir().join("node").exists(), "the node keeps its identity");
    });
}

/// Removes everything from the store, as an administrator does to start again.
async fn empty(world: &World) {
    for key in world.store.keys().await {
        world.store.remove(&key).await;
    }
}

#[test]
fn a_store_that_is_emptied_under_a_node_is_noticed() {
    run(async {
        let world = World::new();
        let fresh = async || world.node_skewed(tempfile::tempdir().unwrap(), 0).await;
        let mut node = fresh().await;
        for n in 0..5_u64 {
            node.write(&format!("old{n}"), &content(n, 100_000));
        }
        node.push().await;
        assert!(node.pull().await);
        empty(&world).await;
        // Until the store is made again, no node learns what was there.
        world.clock.advance(Duration::from_secs(5));
        assert!(node.engine.checkpointer().unwrap().write().await.is_err());
        assert!(world.store.keys().await.is_empty());
        let mut other = fresh().await;
        other.send("new", b"1").await;
        node.write("mine", b"2");
        world.clock.advance(Duration::from_mins(10));
        assert!(!node.pull().await && node.remote().is_missed());
        assert!(node.entry("old0").is_some(), "the node keeps its entries");
        // The operator confirms that this was intended.
        replace(&world, &node).await;
        world.clock.advance(Duration::from_secs(10));
        assert!(node.pull().await);
        assert!(node.entry("old0").is_none(), "the lost entry is gone");
        assert_eq!(node.read("new").await, Some(b"1".to_vec()));
        node.send("again", &content(0, 100_000)).await;
        node.engine.checkpointer().unwrap().write().await.unwrap();
        let third = fresh().await;
        assert!(other.pull().await && third.pull().await);
        for node in [&other, &third] {
            assert!(node.entry("old1").is_none());
            assert_eq!(node.read("mine").await, Some(b"2".to_vec()));
            assert!(node.read("again").await == Some(content(0, 100_000)), "stored again");
        }
        assert_eq!(third.registers(), node.registers());
    });
}

/// A node whose store is empty notices it at the next look, even if no other node writes there.
#[test]
fn a_store_that_is_emptied_is_noticed_at_the_next_look() {
    run(async {
        let world = World::new();
        let mut node = world.node();
        node.send("old", &content(0, 100_000)).await;
        assert!(node.pull().await);
        empty(&world).await;
        world.clock.advance(Duration::from_secs(2));
        assert!(!node.pull().await && node.remote().is_missed());
        assert!(node.entry("old").is_some(), "the node keeps its entries");
    });
}

/// Commits that a node sends before it notices that its store was emptied prove nothing.
#[test]
fn an_emptied_store_is_not_recognised_by_later_commits() {
    run(async {
        let world = World::new();
        let (mut node, _) = with_backlog(&world).await;
        empty(&world).await;
        world.clock.advance(Duration::from_mins(1));
        node.push().await;
        assert!(!world.log().await.is_empty());
        world.clock.advance(Duration::from_mins(10));
        assert!(!node.pull().await && node.remote().is_missed());
        assert!(world.store.read("hearthfs.json").await.is_none());
        assert!(node.entry("old3").is_some() && node.entry("mine3").is_some());
    });
}

/// A node writes on while its store is emptied and made anew. What it knows of the contents of the
/// old store is not true of the new one.
#[test]
fn commits_name_only_what_the_store_has_to_which_they_go() {
    run(async {
        let world = World::new();
        let mut node = world.node();
        node.send("old", &content(1, 9_000)).await;
        assert!(node.pull().await);
        node.write("flying", &content(2, 9_000));
        node.upload().await;
        node.write("again", &content(1, 9_000));
        empty(&world).await;
        replace(&world, &node).await;
        node.remote().check_again().await.unwrap();
        node.push().await;
        let other = world.caught_up().await;
        assert!(
            other.read("flying").await == Some(content(2, 9_000)),
            "its pack was in the old store"
        );
        assert!(other.read("again").await == Some(content(1, 9_000)), "known from the old store");
        assert!(node.pull().await && node.entry("old").is_none());
        assert_eq!(node.registers(), other.registers());
    });
}

/// Nothing shows a node at once that its store was emptied and made anew. The next head of the log
/// does.
#[test]
fn p9_self_healing_of_what_was_sent_before_another_store_was_noticed() {
    run(async {
        let world = World::new();
        let mut node = world.node();
        node.send("old", &content(1, 9_000)).await;
        assert!(node.pull().await);
        empty(&world).await;
        replace(&world, &node).await;
        node.send("again", &content(1, 9_000)).await;
        world.clock.advance(Duration::from_secs(1));
        assert!(node.pull().await);
        assert!(node.entry("old").is_none(), "it is another store");
        node.push().await;
        let other = world.caught_up().await;
        assert!(other.read("again").await == Some(content(1, 9_000)), "stored again");
    });
}

/// A cache directory may be restored from a copy. What its journal holds was sent long ago, and
/// replaced.
#[test]
fn late_changes_of_a_restored_directory_lose_to_later_ones() {
    run(async {
        let day = Duration::from_hours(24);
        let world = World::aging(30 * day);
        let (mut a, b) = (world.node(), world.node());
        a.send("other", b"1").await;
        assert!(a.pull().await);
        for (n, name) in ["x", "replaced", "removed", "kept"].iter().enumerate() {
            a.write(name, &content(n as u64, 9_000));
        }
        a.engine.ledger().save().unwrap();
        let root = a.crash();
        let image = copied(root.path());
        let mut a = world.node_at(root);
        a.push().await;
        world.clock.advance(day);
        a.write("replaced", &content(7, 9_000));
        a.remove("removed");
        a.push().await;
        world.clock.advance(15 * day);
        drop(a);
        let mut a = world.node_at(image);
        a.write("new", &content(8, 9_000));
        a.push().await;
        assert!(a.pull().await && b.pull().await);
        let fresh = world.caught_up().await;
        for node in [&a, &b, &fresh] {
            assert!(node.read("replaced").await == Some(content(7, 9_000)), "the later close wins");
            assert!(node.entry("removed").is_none(), "the removal was later");
            assert!(node.read("kept").await == Some(content(3, 9_000)));
            assert!(node.read("new").await == Some(content(8, 9_000)));
        }
        assert_eq!(a.registers(), fresh.registers());
        assert_eq!(b.registers(), fresh.registers());
    });
}

/// A server that returns without its disk shows an empty bucket.
#[test]
fn after_an_outage_the_identity_of_the_store_is_checked_first() {
    run(async {
        let world = World::new();
        let (mut node, _) = with_backlog(&world).await;
        node.fail("resets=100");
        assert!(!node.pull().await);
        world.clock.advance(Duration::from_secs(6));
        empty(&world).await;
        node.fail("");
        // It is retried for ever.
        assert!(
            crate::clock::within(Duration::from_mins(1), Box::pin(node.push())).await.is_none()
        );
        assert!(node.remote().is_missed());
        assert!(world.store.keys().await.is_empty(), "nothing is sent there");
    });
}
