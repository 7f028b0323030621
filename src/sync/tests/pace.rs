//! How long a node collects for a commit: for longer beside many other nodes, so that together they
//! make few commits, and briefly when it is the only one that publishes.

use std::sync::atomic::Ordering;
use std::time::Duration;

use super::announced::announce;
use super::harness::*;
use super::history::{commit, put_commit};
use crate::stamp::{NodeId, Stamp};

const STEP_MS: u64 = 20;

/// Starts a node on a new store.
async fn started() -> (World, Node) {
    let world = World::new();
    let node = world.node();
    node.engine.start();
    assert!(node.engine.follower().wait_fresh(Duration::from_secs(5)).await);
    (world, node)
}

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
        let (world, node) = started().await;
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

/// The pace is counted over two seconds. By then, nodes that all begin at once would have made more
/// commits than the store lets others read.
#[test]
fn a_publisher_that_begins_in_a_crowd_slows_down_at_once() {
    run(async {
        let (world, node) = started().await;
        let begun = publish_beside(&world, &node, 2, 200).await;
        assert!((1..=3).contains(&begun), "{begun} commits");
        node.engine.stop().await;
        let (world, node) = started().await;
        let alone = publish_beside(&world, &node, 2, 0).await;
        assert!(alone >= 5, "{alone} commits");
        node.engine.stop().await;
    });
}

/// Files are closed this far apart.
const CLOSE_EVERY_MS: u64 = 500;
/// The step by which time advances while the time until a close is visible is measured.
const FINE_STEP_MS: u64 = 5;
/// A publisher that always has changes makes a commit each time it has collected for the delay of
/// [`World::new`].
const COMMITS_PER_MIN_MAX: u64 = 300;

/// Two nodes over a store that takes 20 ms for a request: programs on one of them close files, and
/// programs on the other look for these.
struct Pair {
    world: World,
    writer: Node,
    reader: Node,
    /// Counts the closes so far.
    closed: u64,
}

impl Pair {
    async fn new() -> Self {
        let world = World::new();
        let (writer, reader) = (world.node(), world.node());
        for node in [&writer, &reader] {
            node.fail("latency_ms=20");
            node.engine.start();
            assert!(node.engine.follower().wait_fresh(Duration::from_secs(5)).await);
        }
        Self { world, writer, reader, closed: 0 }
    }

    async fn pass(&self, ms: u64) {
        for _ in 0..ms.div_ceil(FINE_STEP_MS) {
            self.world.clock.advance(Duration::from_millis(FINE_STEP_MS));
            crate::clock::sleep(Duration::from_millis(FINE_STEP_MS)).await;
            for node in [&self.writer, &self.reader] {
                node.engine.follower().freshness().note_activity();
            }
        }
    }

    /// Closes a file; returns after how many milliseconds the other node shows it.
    async fn close(&mut self) -> u64 {
        let name = format!("n{}", self.closed);
        self.writer.write(&name, &content(self.closed, 8 << 10));
        self.closed += 1;
        let mut waited_ms = 0;
        while self.reader.entry(&name).is_none() {
            assert!(waited_ms < 5000, "it is not seen");
            self.pass(FINE_STEP_MS).await;
            waited_ms += FINE_STEP_MS;
        }
        waited_ms
    }

    /// Closes files at nearly equal intervals; returns the median of these times.
    async fn median_ms(&mut self, closes: u64) -> u64 {
        let mut waited_ms = Vec::new();
        for n in 0..closes {
            let took_ms = self.close().await;
            waited_ms.push(took_ms);
            // Otherwise all closes would have the same distance from the looks of the other node.
            self.pass(CLOSE_EVERY_MS.saturating_sub(took_ms) + n * 37 % 100).await;
        }
        waited_ms.sort_unstable();
        waited_ms[waited_ms.len() / 2]
    }

    fn commits(&self) -> u64 {
        self.writer.engine.ledger().traffic().commits_written.load(Ordering::Relaxed)
    }
}

#[test]
fn a_lone_publisher_commits_as_soon_as_nothing_more_arrives() {
    run(async {
        let mut pair = Pair::new().await;
        pair.pass(30_000).await;
        pair.close().await;
        let alone_ms = pair.median_ms(60).await;
        assert!(alone_ms <= 250, "{alone_ms} ms");
        let mut other = pair.world.node();
        let mut beside_ms = Vec::new();
        for n in 0..5_u64 {
            other.send("others", &n.to_le_bytes()).await;
            pair.pass(1000).await;
            beside_ms.push(pair.median_ms(5).await);
        }
        beside_ms.sort_unstable();
        let beside_ms = beside_ms[beside_ms.len() / 2];
        assert!((300..500).contains(&beside_ms), "{beside_ms} ms beside another publisher");
        pair.pass(5_000).await;
        let alone_ms = pair.median_ms(20).await;
        assert!(alone_ms <= 250, "{alone_ms} ms after the other one has stopped");
        for node in [&pair.writer, &pair.reader] {
            node.engine.stop().await;
        }
    });
}

#[test]
fn a_lone_publisher_makes_few_commits_whatever_it_closes() {
    run(async {
        for every_ms in [20, 60, 80, 120, 300] {
            let pair = Pair::new().await;
            pair.pass(30_000).await;
            pair.writer.write("first", b"1");
            pair.pass(1000).await;
            let before = pair.commits();
            for n in 0..60_000 / every_ms {
                pair.writer.write("again", &content(n, 8 << 10));
                pair.pass(every_ms).await;
            }
            let made = pair.commits() - before;
            assert!(
                made <= COMMITS_PER_MIN_MAX,
                "{made} commits a minute, a close in {every_ms} ms"
            );
            for node in [&pair.writer, &pair.reader] {
                node.engine.stop().await;
            }
        }
    });
}
