//! Commits of many nodes: each node collects for longer, so that together they make few commits.

use std::sync::atomic::Ordering;
use std::time::Duration;

use super::announced::announce;
use super::harness::*;
use super::history::{commit, put_commit};
use crate::stamp::{NodeId, Stamp};

const STEP_MS: u64 = 20;

/// Lets a node publish five files a second while other nodes make `others` commits a second;
/// returns how many commits it made in the last ten seconds.
async fn publish_beside(world: &World, node: &Node, seconds: u64, others: u64) -> u64 {
    let made = || node.engine.ledger().traffic().commits_written.load(Ordering::Relaxed);
    let mut before = 0;
    for ms in (0..seconds * 1000).step_by(STEP_MS as usize) {
        world.clock.advance(Duration::from_millis(STEP_MS));
        crate::clock::sleep(Duration::from_millis(STEP_MS)).await;
        node.engine.follower().freshness().note_activity();
        if ms % 200 == 0 {
            node.write("mine", &ms.to_le_bytes());
        }
        let mut stamps = Vec::new();
        for n in 0..(others * STEP_MS / 1000) {
            // Each is the first and only commit of its run.
            let now_ms = world.clock.wall_ms();
            let stamp = Stamp { ms: now_ms, counter: n as u32, node: NodeId(now_ms * 10 + n) };
            put_commit(world, &commit(stamp, 0)).await;
            stamps.push(stamp);
        }
        if !stamps.is_empty() {
            announce(node.remote(), &stamps).await;
        }
        if ms + 10_000 == seconds * 1000 {
            before = made();
        }
    }
    made() - before
}

#[test]
fn a_publisher_follows_the_pace_of_the_log() {
    run(async {
        let world = World::new();
        let node = world.node();
        node.engine.start();
        assert!(node.engine.follower().wait_fresh(Duration::from_secs(5)).await);
        let alone = publish_beside(&world, &node, 15, 0).await;
        assert!(alone > 20, "{alone} commits");
        let beside = publish_beside(&world, &node, 25, 200).await;
        assert!((1..=5).contains(&beside), "{beside} commits");
        // No drain waits for that.
        node.write("last", b"x");
        let begin = tokio::time::Instant::now();
        assert!(node.engine.drain(Duration::from_mins(1), |_| ()).await.complete);
        assert!(begin.elapsed() < Duration::from_millis(800), "{:?}", begin.elapsed());
        let alone = publish_beside(&world, &node, 25, 0).await;
        assert!(alone > 20, "{alone} commits");
        node.engine.stop().await;
    });
}
