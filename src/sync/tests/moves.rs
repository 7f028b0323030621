//! Nodes whose cache directory meets another store, and nodes that were made of one cache directory.

use std::time::Duration;

use super::harness::*;
use crate::remote::fault::MemoryStore;

#[test]
fn a_store_of_another_birth_makes_the_namespace_anew() {
    run(async {
        let world = World::new();
        let mut node = world.node_skewed(tempfile::tempdir().unwrap(), 0).await;
        node.write("old", b"sent");
        node.push().await;
        assert!(node.pull().await);
        node.write("mine", b"not sent");
        node.engine.ledger().save().unwrap();
        // Another store at the same address, in which others are at work already.
        let other = World { store: MemoryStore::with_clock(world.clock.clone()), ..world.clone() };
        world.clock.advance(Duration::from_secs(5));
        let mut theirs = other.node_skewed(tempfile::tempdir().unwrap(), 0).await;
        theirs.write("theirs", b"1");
        theirs.push().await;
        let mut node = other.node_skewed(node.crash(), 0).await;
        assert!(node.entry("old").is_some(), "nothing was asked yet");
        node.fail("errors=100");
        assert!(!node.pull().await);
        assert!(node.entry("old").is_some(), "what it had serves until it knows better");
        node.fail("");
        assert!(node.pull().await);
        assert!(node.entry("old").is_none());
        assert_eq!(node.read("theirs").await, Some(b"1".to_vec()));
        assert_eq!(node.read("mine").await, Some(b"not sent".to_vec()));
        node.write("again", b"sent");
        node.push().await;
        assert!(theirs.pull().await);
        assert_eq!(theirs.read("mine").await, Some(b"not sent".to_vec()));
        assert_eq!(theirs.read("again").await, Some(b"sent".to_vec()), "stored here, too");
        assert_eq!(theirs.registers(), node.registers());
    });
}

#[test]
fn p4_local_durable_of_what_only_another_store_has_stored() {
    run(async {
        let world = World::new();
        let mut node = world.node_skewed(tempfile::tempdir().unwrap(), 0).await;
        let bytes = content(1, 9_000);
        node.write("old", &bytes);
        node.push().await;
        assert!(node.pull().await);
        node.write("again", &bytes);
        node.engine.ledger().save().unwrap();
        let other = World { store: MemoryStore::with_clock(world.clock.clone()), ..world.clone() };
        world.clock.advance(Duration::from_secs(5));
        let mut node = other.node_skewed(node.crash(), 0).await;
        let unsaved = |node: &Node| node.engine.ledger().blobs().usage().unsaved_bytes;
        assert!(unsaved(&node) > 0, "whether this store has it, nobody knows yet");
        node.push().await;
        assert!(node.pull().await && node.read("again").await == Some(bytes));
        assert_eq!(unsaved(&node), 0);
    });
}

/// Copies what a cache directory holds, as whoever makes an image does.
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
        first.write("before", b"1");
        first.push().await;
        first.engine.ledger().save().unwrap();
        let root = first.crash();
        let identity = |dir: &std::path::Path| std::fs::read_to_string(dir.join("node"));
        // Without its index a node reads its own commits anew.
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
        a.write("a", b"2");
        a.push().await;
        // After a long silence its commits are a new row; one of them it has to read back itself.
        world.clock.advance(Duration::from_hours(48));
        a.write("late", b"2");
        a.push().await;
        a.engine.ledger().forget_seen_for_test();
        assert!(a.pull().await && b.pull().await);
        assert!(identity(&a.dir()).is_ok(), "what it wrote itself is no twin's");
        assert!(identity(&b.dir()).is_err(), "it gives up what is not its own");
        assert_eq!(b.read("a").await, Some(b"2".to_vec()), "and loses nothing");
        b.write("b", b"3");
        let again = world.node_at(b.crash());
        assert_ne!(again.engine.ledger().node(), a.engine.ledger().node());
        let mut again = again;
        again.push().await;
        assert!(a.pull().await);
        assert_eq!(a.read("b").await, Some(b"3".to_vec()), "a backlog goes under the new identity");
        assert!(identity(&a.dir()).is_ok());
    });
}

#[test]
fn a_commit_of_an_earlier_run_that_lands_late_is_no_twins() {
    run(async {
        let world = World::new();
        // A node whose clock was wrong has stamped something, and all go on from there.
        let ahead = World { clock: world.clock.skewed(3_600_000), ..world.clone() };
        let mut wrong = ahead.node();
        wrong.write("ahead", b"1");
        wrong.push().await;
        let mut node = world.node();
        assert!(node.pull().await);
        node.engine.ledger().save().unwrap();
        node.write("mine", b"1");
        node.push().await;
        // It is killed while its commit is on the way.
        let keys = world.store.keys().await;
        let key = keys.iter().rfind(|key| key.starts_with("log/")).unwrap();
        let bytes = world.store.read(key).await.unwrap();
        world.store.remove(key).await;
        let node = world.node_at(node.crash());
        assert!(node.pull().await);
        world.clock.advance(Duration::from_secs(1));
        world.store.overwrite(key, bytes.to_vec()).await;
        assert!(node.pull().await && node.entry("mine").is_some());
        assert!(node.dir().join("node").exists(), "it keeps its identity");
    });
}

/// Takes everything out of the store, as an administrator does who wants to begin anew.
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
        // As long as nobody has made it anew, nobody is told what was there.
        world.clock.advance(Duration::from_secs(5));
        assert!(node.engine.checkpointer().unwrap().write().await.is_err());
        let mut other = fresh().await;
        other.write("new", b"1");
        other.push().await;
        node.write("mine", b"2");
        world.clock.advance(Duration::from_mins(10));
        assert!(node.pull().await);
        assert!(node.entry("old0").is_none(), "what is gone is gone");
        assert_eq!(node.read("new").await, Some(b"1".to_vec()));
        node.write("again", &content(0, 100_000));
        node.push().await;
        node.engine.checkpointer().unwrap().write().await.unwrap();
        let third = fresh().await;
        assert!(other.pull().await && third.pull().await);
        for node in [&other, &third] {
            assert!(node.entry("old1").is_none());
            assert_eq!(node.read("mine").await, Some(b"2".to_vec()));
            assert!(node.read("again").await == Some(content(0, 100_000)), "stored once more");
        }
        assert_eq!(third.registers(), node.registers());
    });
}
