//! The log stays short by itself: commits that checkpoints have are deleted, and small contents in
//! use are moved before.

use std::time::Duration;

use super::harness::*;
use crate::namespace::Op;
use crate::sync::LOG_GRACE;

/// More commits than make a checkpoint due.
const ENOUGH: u64 = 300;

async fn count(world: &World, end: &str) -> usize {
    world.store.keys().await.iter().filter(|key| key.ends_with(end)).count()
}

/// Makes commits, each with one small inline file.
async fn write_small(world: &World, node: &mut Node, from: u64) {
    for n in from..from + ENOUGH {
        node.send(&format!("f{n}"), &content(n, 60)).await;
        world.clock.advance(Duration::from_millis(20));
    }
}

/// Makes commits without contents.
async fn write_empty(world: &World, node: &mut Node) {
    for n in 0..ENOUGH {
        node.publish(vec![(path("counter"), Op::Put(file_of(n)))]);
        node.push().await;
        world.clock.advance(Duration::from_millis(20));
    }
}

/// Writes checkpoints that are due, and moves contents that keep commits in the store.
async fn keep_house(node: &mut Node) {
    let checkpointer = node.engine.checkpointer().unwrap().clone();
    checkpointer.write_if_due().await;
    for _ in 0..4 {
        checkpointer.tidy_up().await;
        node.push().await;
    }
}

async fn assert_whole(world: &World, node: &Node, files: u64) {
    let fresh = world.node();
    assert!(fresh.pull().await && node.pull().await);
    assert_eq!(fresh.registers(), node.registers());
    for reader in [&fresh, node] {
        for n in 0..files {
            assert!(reader.read(&format!("f{n}")).await == Some(content(n, 60)), "f{n}");
        }
    }
}

#[test]
fn small_contents_move_and_their_commits_go() {
    run(async {
        let world = World::new();
        let (mut a, b) = (world.node(), world.node());
        write_small(&world, &mut a, 0).await;
        assert!(b.pull().await);
        keep_house(&mut a).await;
        let mut lengths = Vec::new();
        for _ in 0..5 {
            world.clock.advance(LOG_GRACE + Duration::from_mins(1));
            write_empty(&world, &mut a).await;
            keep_house(&mut a).await;
            assert!(b.pull().await);
            lengths.push(count(&world, ".commit").await);
        }
        // The commits that the last two checkpoints have for less than an hour, and few more.
        assert!(lengths[4] <= 2 * ENOUGH as usize + 10, "{lengths:?}");
        assert!(count(&world, ".ckpt").await <= 3);
        assert_whole(&world, &b, ENOUGH).await;
        // A node that had not read the log since the beginning.
        let puts = a.remote().requests().puts;
        keep_house(&mut a).await;
        assert_eq!(a.remote().requests().puts, puts, "nothing is left to move");
        // The nodes remember no names of deleted commits.
        world.clock.advance(Duration::from_mins(11));
        assert!(b.pull().await);
        let seen = b.engine.ledger().since([0])[0].0;
        assert!(seen as usize <= lengths[4] + 10, "{seen} names");
    });
}

#[test]
fn what_a_node_may_still_rely_on_stays() {
    run(async {
        let world = World::new();
        let mut a = world.node();
        write_small(&world, &mut a, 0).await;
        keep_house(&mut a).await;
        let all = count(&world, ".commit").await;
        // First its checkpoint is too young, and then it still names contents in these commits.
        for minutes in [30, 35] {
            world.clock.advance(Duration::from_mins(minutes));
            write_empty(&world, &mut a).await;
            a.engine.checkpointer().unwrap().write_if_due().await;
            a.engine.checkpointer().unwrap().tidy_up().await;
            assert!(count(&world, ".commit").await >= all);
        }
        assert_whole(&world, &a, ENOUGH).await;
        // A node deletes nothing while commits are missing: they may use anything.
        a.send("lost", b"x").await;
        let last = &world.log().await.pop().unwrap();
        world.store.overwrite(last, b"damaged".to_vec()).await;
        let mut other = world.node();
        assert!(other.pull().await && other.engine.ledger().is_partial());
        let before = count(&world, ".commit").await;
        world.clock.advance(LOG_GRACE);
        write_empty(&world, &mut other).await;
        world.clock.advance(Duration::from_mins(5));
        let checkpoints = count(&world, ".ckpt").await;
        other.engine.checkpointer().unwrap().write_if_due().await;
        other.engine.checkpointer().unwrap().tidy_up().await;
        assert_eq!(count(&world, ".ckpt").await, checkpoints + 1);
        assert!(count(&world, ".commit").await >= before);
    });
}

/// If a node stops at any of its requests, the next one continues, and nothing is lost.
#[test]
fn a_node_that_stops_while_sweeping_is_followed_by_another() {
    run(async {
        let world = World::new();
        let (mut a, mut b) = (world.node(), world.node());
        write_small(&world, &mut a, 0).await;
        keep_house(&mut a).await;
        for round in 0..12_u64 {
            world.clock.advance(LOG_GRACE + Duration::from_mins(5));
            write_empty(&world, &mut a).await;
            assert!(b.pull().await);
            world.clock.advance(Duration::from_mins(5));
            a.fail("latency_ms=100");
            let stop = Duration::from_millis(round * 150);
            crate::clock::within(stop, Box::pin(keep_house(&mut a))).await;
            if round % 3 == 2 {
                a = world.node_at(a.crash());
                assert!(a.pull().await);
            }
            a.fail("");
            a.push().await;
            keep_house(&mut b).await;
            assert_whole(&world, &b, ENOUGH).await;
        }
        let left = count(&world, ".commit").await;
        assert!(left <= 3 * ENOUGH as usize, "{left} commits");
        assert!(a.pull().await);
        assert_eq!(a.registers(), b.registers());
    });
}

/// An expired entry is a miss for good (P11), even if its bytes are still here.
#[test]
fn p11_expiry_is_final_for_what_lies_in_commits() {
    run(async {
        let world = World::aging(4 * LOG_GRACE);
        let mut a = world.node();
        a.send("f", b"small").await;
        for _ in 0..6 {
            assert!(a.pull().await);
            world.clock.advance(LOG_GRACE);
        }
        assert!(a.entry("f").is_none() && a.engine.ledger().read(|fold| fold.knows(&path("f"))));
        keep_house(&mut a).await;
        assert!(count(&world, ".ckpt").await > 0);
        assert!(a.entry("f").is_none());
        let b = world.node();
        assert!(b.pull().await && b.entry("f").is_none());
    });
}
