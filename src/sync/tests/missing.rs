//! Commits that a node could not read: it knows of them, and its own checkpoints do not hide them
//! from other nodes.

use std::time::Duration;

use super::announced::cost;
use super::checkpoints::*;
use super::harness::*;
use crate::sync::LOG_GRACE;
use crate::sync::missing::Missing;

/// A node that has read everything, one that could not read the commit of `lost`, and the name and
/// bytes of that commit.
async fn one_is_damaged(world: &World) -> (Node, Node, String, Vec<u8>) {
    let (mut a, b) = (world.node(), world.node());
    for name in ["first", "lost", "last"] {
        a.send(name, &content(1, 9_000)).await;
    }
    let key = world.log().await.remove(1);
    let good = world.store.read(&key).await.unwrap();
    world.store.overwrite(&key, b"damaged".to_vec()).await;
    // It is damaged long after it was announced.
    world.store.remove("head").await;
    assert!(b.pull().await && b.entry("last").is_some());
    assert!(b.entry("lost").is_none() && b.engine.ledger().is_partial());
    (a, b, key, good.to_vec())
}

#[test]
fn p9_self_healing_of_a_commit_by_a_checkpoint_of_a_node_that_has_read_it() {
    run(async {
        let world = World::new();
        let (a, b, ..) = one_is_damaged(&world).await;
        checkpoint(&a).await;
        world.clock.advance(Duration::from_mins(11));
        assert!(b.pull().await);
        assert!(b.read("lost").await == Some(content(1, 9_000)));
        assert!(!b.engine.ledger().is_partial());
        assert_eq!(a.registers(), b.registers());
        let before = b.fetched();
        for _ in 0..3 {
            world.clock.advance(Duration::from_mins(11));
            assert!(b.pull().await);
        }
        assert!(b.fetched() < before + 3 * FORMAT_BYTES, "nothing else is read");
    });
}

#[test]
fn what_one_node_could_not_read_is_in_every_later_checkpoint() {
    run(async {
        for (restart, gone) in [(false, false), (true, false), (false, true), (true, true)] {
            let world = World::new();
            let (a, mut b, ..) = one_is_damaged(&world).await;
            world.clock.advance(Duration::from_secs(1));
            checkpoint(&a).await;
            drop(a);
            if gone {
                // As `gc` does with commits that a checkpoint has.
                remove_log(&world, |_| true).await;
            }
            if restart {
                b.engine.ledger().save().unwrap();
                b = world.node_at(b.crash());
                assert!(b.engine.ledger().is_partial(), "the gap is known after a start");
            }
            world.clock.advance(Duration::from_secs(1));
            checkpoint(&b).await;
            remove_log(&world, |_| true).await;
            let fresh = world.caught_up().await;
            let read = fresh.read("lost").await;
            assert!(read == Some(content(1, 9_000)), "restart {restart}, gone {gone}");
        }
    });
}

#[test]
fn an_unreadable_checkpoint_is_not_replaced_by_one_with_less() {
    run(async {
        let world = World::new();
        let (a, b, ..) = one_is_damaged(&world).await;
        world.clock.advance(Duration::from_secs(1));
        let name = checkpoint(&a).await;
        let key = format!("checkpoints/{name}");
        let good = world.store.read(&key).await.unwrap();
        world.store.overwrite(&key, b"damaged".to_vec()).await;
        assert!(b.engine.checkpointer().unwrap().write().await.is_err());
        world.store.overwrite(&key, good.to_vec()).await;
        assert_eq!(world.keys("checkpoints/").await.len(), 1);
    });
}

#[test]
fn a_node_that_could_read_no_checkpoint_leaves_writing_them_to_others() {
    run(async {
        let month = Duration::from_hours(30 * 24);
        for lost in [false, true] {
            let world = World::aging(month);
            let (mut a, mut b) = (world.node(), world.node());
            a.send("f", &content(1, 9_000)).await;
            assert!(a.pull().await && b.pull().await);
            if lost {
                // It is absent for longer than entries live.
                world.clock.advance(month);
                a.send("f", &content(1, 9_000)).await;
                assert!(a.pull().await);
            } else {
                b = world.node();
            }
            let key = format!("checkpoints/{}", checkpoint(&a).await);
            remove_log(&world, |_| true).await;
            world.store.remove("head").await;
            world.store.overwrite(&key, b"damaged".to_vec()).await;
            assert!(b.pull().await && b.entry("f").is_none());
            assert!(b.engine.ledger().is_partial(), "lost {lost}");
            b.send("own", b"x").await;
            assert!(b.engine.checkpointer().unwrap().write().await.is_err());
            // Another checkpoint is adopted, if there ever is one.
            world.clock.advance(Duration::from_mins(20));
            assert!(a.pull().await);
            checkpoint(&a).await;
            assert!(b.pull().await && b.read("f").await.is_some() && b.entry("own").is_some());
            assert!(!b.engine.ledger().is_partial());
        }
    });
}

#[test]
fn checkpoints_go_on_where_the_latest_cannot_be_read() {
    run(async {
        let world = World::aging(Duration::from_hours(30 * 24));
        let mut a = world.node();
        a.send("f", &content(1, 9_000)).await;
        let name = checkpoint(&a).await;
        world.store.overwrite(&format!("checkpoints/{name}"), b"damaged".to_vec()).await;
        let b = world.node();
        assert!(b.pull().await && b.entry("f").is_some());
        assert!(b.engine.checkpointer().unwrap().write().await.is_err());
        world.clock.advance(Duration::from_hours(16 * 24));
        assert!(b.pull().await);
        checkpoint(&b).await;
    });
}

#[test]
fn checkpoints_are_written_where_no_node_has_read_a_commit() {
    run(async {
        let world = World::new();
        let (a, mut b, key, good) = one_is_damaged(&world).await;
        drop(a);
        for round in 0..3 {
            world.clock.advance(Duration::from_secs(1));
            b.send(&format!("own{round}"), b"x").await;
            checkpoint(&b).await;
            assert!(b.engine.ledger().is_partial(), "an own checkpoint heals nothing");
        }
        // It can be read after all: the checkpoints do not name it, so all nodes read it.
        world.store.overwrite(&key, good).await;
        let fresh = world.node();
        assert!(fresh.pull().await && fresh.entry("lost").is_some());
        world.clock.advance(Duration::from_mins(11));
        assert!(b.pull().await && !b.engine.ledger().is_partial());
        assert_eq!(fresh.registers(), b.registers());
    });
}

#[test]
fn a_commit_that_was_skipped_is_read_again_without_a_list() {
    run(async {
        let world = World::new();
        let (mut a, b, key, good) = one_is_damaged(&world).await;
        a.send("new", b"x").await;
        world.clock.advance(Duration::from_mins(2));
        assert!(b.pull().await && b.pull().await, "it follows the head");
        world.clock.advance(Duration::from_mins(5));
        world.store.overwrite(&key, good).await;
        assert_eq!(cost(&b, b.pull()).await, (0, 2), "the head and the commit");
        assert!(b.entry("lost").is_some() && !b.engine.ledger().is_partial());
        assert_eq!(a.registers(), b.registers());
    });
}

#[test]
fn a_commit_that_is_deleted_before_it_could_be_read_is_in_a_checkpoint() {
    run(async {
        let world = World::new();
        let (a, b, key, _) = one_is_damaged(&world).await;
        world.store.remove(&key).await;
        world.clock.advance(Duration::from_mins(5));
        let is_named = || b.engine.ledger().log(|log| log.missing().unusable_len() > 0);
        assert!(is_named() && b.pull().await && !is_named());
        assert!(b.engine.ledger().is_partial(), "its changes are still missing");
        let gets = b.remote().requests().gets;
        assert!(b.pull().await);
        assert!(b.remote().requests().gets <= gets + 1, "it is not requested again");
        checkpoint(&a).await;
        world.clock.advance(Duration::from_mins(11));
        assert!(b.pull().await && !b.engine.ledger().is_partial());
        assert!(b.read("lost").await == Some(content(1, 9_000)));
    });
}

#[test]
fn a_commit_that_comes_late_is_not_missing_any_more() {
    run(async {
        let world = World::new();
        let (mut a, mut b) = (world.node(), world.node());
        for n in 0..4 {
            a.send(&format!("f{n}"), b"x").await;
        }
        let keys = world.log().await;
        let mut bytes = Vec::new();
        for key in &keys[1..3] {
            bytes.push(world.store.read(key).await.unwrap().to_vec());
            world.store.remove(key).await;
        }
        world.store.remove("head").await;
        assert!(b.pull().await && b.entry("f3").is_some() && b.entry("f1").is_none());
        assert!(
            b.engine.ledger().snapshot(&Missing::default()).is_none(),
            "the gap is checked under the lock"
        );
        for (key, bytes) in keys[1..3].iter().zip(bytes) {
            assert!(b.engine.ledger().is_partial(), "partial before {key} exists");
            b.engine.ledger().save().unwrap();
            b = world.node_at(b.crash());
            world.store.overwrite(key, bytes).await;
            assert!(b.pull().await);
        }
        assert!(!b.engine.ledger().is_partial() && b.entry("f1").is_some());
        b.engine.ledger().save().unwrap();
        let b = world.node_at(b.crash());
        assert!(!b.engine.ledger().is_partial(), "the repair is saved");
    });
}

#[test]
fn a_node_that_starts_from_a_checkpoint_knows_which_later_commits_it_could_not_read() {
    run(async {
        let world = World::new();
        let mut nodes = [world.node(), world.node()];
        write_some(&mut nodes, 6).await;
        let [mut a, b] = nodes;
        world.clock.advance(LOG_GRACE);
        checkpoint(&a).await;
        let old = world.log().await.len();
        a.send("lost", b"x").await;
        let key = world.log().await.remove(old);
        world.store.overwrite(&key, b"damaged".to_vec()).await;
        // The copy in the head is not used any more.
        world.clock.advance(Duration::from_mins(2));
        // One that was absent, and one that is new.
        let fresh = world.node();
        for node in [&b, &fresh] {
            assert!(node.pull().await && node.entry("lost").is_none());
            assert!(node.engine.ledger().is_partial());
        }
    });
}

#[test]
fn p10_freshness_of_a_node_with_missing_commits_where_the_checkpoint_cannot_be_fetched() {
    run(async {
        let world = World::new();
        let (mut a, b, ..) = one_is_damaged(&world).await;
        world.clock.advance(Duration::from_mins(11));
        a.send("new", b"x").await;
        checkpoint(&a).await;
        // Requests begin a second apart: the head, the list of the checkpoints, the read of one, the list of the log.
        b.fail("latency_ms=1000");
        let breaking = async {
            crate::clock::sleep(Duration::from_secs(1)).await;
            for (plan, then_ms) in [("errors=100 latency_ms=1000", 1000), ("", 1000)] {
                crate::clock::sleep(Duration::from_millis(500)).await;
                b.fail(plan);
                crate::clock::sleep(Duration::from_millis(then_ms - 500)).await;
            }
        };
        let (good, ()) = futures::join!(b.pull(), breaking);
        assert!(good && b.entry("new").is_some(), "the log can be read");
        assert!(b.engine.ledger().is_partial() && b.entry("lost").is_none());
        world.clock.advance(Duration::from_mins(11));
        assert!(b.pull().await && b.read("lost").await.is_some(), "the commit is read in a retry");
    });
}

#[test]
fn a_checkpoint_of_ones_own_fills_no_gap() {
    run(async {
        let world = World::new();
        let (mut a, b) = (world.node(), world.node());
        for name in ["first", "lost", "last"] {
            a.send(name, &content(1, 9_000)).await;
        }
        let key = world.log().await.remove(1);
        world.store.remove(&key).await;
        world.store.remove("head").await;
        assert!(b.pull().await && b.entry("last").is_some());
        assert!(b.engine.ledger().is_partial(), "the lost commit is unknown");
        world.clock.advance(Duration::from_secs(1));
        checkpoint(&b).await;
        let before = b.fetched();
        world.clock.advance(Duration::from_mins(11));
        assert!(b.pull().await && b.engine.ledger().is_partial());
        assert!(b.fetched() < before + FORMAT_BYTES, "its own commits are not read");
        // Here is a checkpoint that has it.
        checkpoint(&a).await;
        world.clock.advance(Duration::from_mins(11));
        assert!(b.pull().await && b.read("lost").await.is_some());
        assert!(!b.engine.ledger().is_partial());
    });
}
