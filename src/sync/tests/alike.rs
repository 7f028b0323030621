//! Nodes that write the same: one of them uploads it, and the others find that they need not
//! publish it.

use std::sync::atomic::Ordering;
use std::time::Duration;

use super::harness::*;
use crate::namespace::{Attrs, Entry, Op, Time};

const FILES: u64 = 50;
/// More bytes than a commit of all files takes without their contents.
const COMMIT_BYTES: u64 = 6000;

/// Running nodes, over a store whose requests take some time.
struct Fleet {
    world: World,
    nodes: Vec<Node>,
}

impl Fleet {
    /// Starts nodes on an empty store, or on one that an earlier fleet has left.
    fn new(world: &World, count: usize) -> Self {
        Self::of(world, (0..count).map(|_| world.node()).collect())
    }

    /// Starts a fleet on an empty store. The clock of each node is ahead by so many milliseconds.
    async fn skewed(world: &World, ahead_ms: impl Iterator<Item = i64>) -> Self {
        let mut nodes = Vec::new();
        for ahead_ms in ahead_ms {
            nodes.push(world.node_skewed(tempfile::tempdir().unwrap(), ahead_ms).await);
        }
        Self::of(world, nodes)
    }

    fn of(world: &World, nodes: Vec<Node>) -> Self {
        for node in &nodes {
            node.fail("latency_ms=20");
            node.engine.start();
        }
        Self { world: world.clone(), nodes }
    }

    /// Advances the time for all of them.
    async fn pass(&self, ms: u64) {
        for _ in 0..ms.div_ceil(STEP_MS) {
            self.world.clock.advance(Duration::from_millis(STEP_MS));
            crate::clock::sleep(Duration::from_millis(STEP_MS)).await;
        }
    }

    /// Advances the time until nothing waits for the store; returns how long that took, in
    /// milliseconds.
    async fn settle(&self) -> u64 {
        let mut waited_ms = 0;
        while self.nodes.iter().any(|node| node.engine.ledger().pending().records > 0) {
            self.pass(20).await;
            waited_ms += 20;
            assert!(waited_ms < 60_000, "the fleet does not settle");
        }
        waited_ms
    }

    fn bytes_up(&self) -> u64 {
        self.nodes.iter().map(|node| node.remote().requests().bytes_up).sum()
    }

    /// Counts the contents that were uploaded.
    fn contents_up(&self) -> u64 {
        let of = |node: &Node| node.engine.ledger().traffic().uploaded.load(Ordering::Relaxed);
        self.nodes.iter().map(of).sum()
    }

    fn commits(&self) -> u64 {
        let of =
            |node: &Node| node.engine.ledger().traffic().commits_written.load(Ordering::Relaxed);
        self.nodes.iter().map(of).sum()
    }

    /// Checks that all nodes show the same, and that they show what was written.
    async fn agree(&self, size: usize) {
        for node in &self.nodes {
            assert!(node.pull().await);
        }
        let first = self.nodes[0].registers();
        for node in &self.nodes {
            assert!(node.registers() == first, "nodes differ");
        }
        let late = self.world.node();
        assert!(late.pull().await);
        assert!(late.registers() == first, "the nodes differ from the log");
        for n in 0..FILES {
            assert_eq!(late.read(&format!("d/{n}")).await, Some(content(n, size)));
        }
    }

    async fn stop(&self) {
        for node in &self.nodes {
            node.engine.stop().await;
        }
    }
}

/// The step by which time advances.
const STEP_MS: u64 = 5;

/// Closes a file at the present time.
fn close(world: &World, node: &Node, at: &str, bytes: &[u8]) {
    let now = Time::from_wall(world.clock.wall());
    let entry = node.store(bytes);
    let attrs = Attrs { mtime: now, atime: now, ..entry.attrs };
    node.publish(vec![(path(at), Op::Put(Entry { attrs, ..entry }))]);
}

/// Lets nodes write the same files. `every_ms` is the time between two files of one node. Each node
/// begins `apart_ms` after the previous one.
async fn write_all(fleet: &Fleet, size: usize, every_ms: u64, apart_ms: u64) {
    let nodes = fleet.nodes.len() as u64;
    let end_ms = (FILES - 1) * every_ms + (nodes - 1) * apart_ms;
    let mut at_ms = 0;
    while at_ms <= end_ms {
        for (i, node) in (0..).zip(&fleet.nodes) {
            for n in 0..FILES {
                if n * every_ms + i * apart_ms == at_ms {
                    close(&fleet.world, node, &format!("d/{n}"), &content(n, size));
                }
            }
        }
        at_ms += STEP_MS;
        fleet.pass(STEP_MS).await;
    }
}

/// Returns the copies of contents that a fleet uploads, and all bytes that it uploads in copies of them.
async fn copies(nodes: usize, size: usize, every_ms: u64, apart_ms: u64) -> (f64, f64) {
    copies_of(Fleet::new(&World::new(), nodes), size, every_ms, apart_ms).await
}

async fn copies_of(fleet: Fleet, size: usize, every_ms: u64, apart_ms: u64) -> (f64, f64) {
    fleet.pass(1000).await;
    let before = fleet.bytes_up();
    write_all(&fleet, size, every_ms, apart_ms).await;
    let settled_ms = fleet.settle().await;
    let copies = fleet.contents_up() as f64 / FILES as f64;
    let bytes = (fleet.bytes_up() - before) as f64 / (FILES * size as u64) as f64;
    // Nodes wait for each other for 8 s at most.
    assert!(settled_ms < 8000, "settled after {settled_ms} ms");
    fleet.agree(size).await;
    fleet.stop().await;
    (copies, bytes)
}

#[test]
fn nodes_that_write_the_same_at_once_upload_one_copy() {
    run(async {
        for nodes in [8, 32] {
            let (copies, _) = copies(nodes, 8 << 10, 0, 0).await;
            assert!(copies <= 1.2, "{copies} copies of {nodes} nodes");
        }
    });
}

#[test]
fn nodes_that_write_the_same_within_seconds_upload_one_copy() {
    run(async {
        for (nodes, apart_ms) in [(8, 100), (32, 30)] {
            let (copies, bytes) = copies(nodes, 8 << 10, 40, apart_ms).await;
            assert!(copies <= 1.2, "{copies} copies of {nodes} nodes");
            // Each head of the log contains the young commits.
            assert!(bytes <= 2.5, "{bytes} copies with commits, claims and heads");
        }
    });
}

/// Clocks of nodes differ by up to two seconds. The claims of later nodes have earlier names here.
#[test]
fn nodes_whose_clocks_differ_upload_one_copy() {
    run(async {
        let world = World::new();
        let fleet = Fleet::skewed(&world, (0..8).map(|n| 1750 - n * 500)).await;
        let (copies, _) = copies_of(fleet, 8 << 10, 40, 100).await;
        assert!(copies <= 1.2, "{copies} copies");
    });
}

/// If the claim of the first node counted as the older one for the second, and the other way round
/// for the first, both would wait.
#[test]
fn the_claim_of_a_node_whose_clock_is_behind_follows_those_that_are_there() {
    run(async {
        let world = World::new();
        let fleet = Fleet::skewed(&world, [1500, -1500].into_iter()).await;
        fleet.pass(1000).await;
        let mut claims = Vec::new();
        for (node, count) in fleet.nodes.iter().zip(1..) {
            close(&world, node, "f", &content(1, 9000));
            while claims.len() < count {
                fleet.pass(STEP_MS).await;
                let there = world.keys("probes/").await;
                let new = there.into_iter().find(|key| !claims.contains(key));
                claims.extend(new);
            }
            // Its claim stays.
            node.engine.kill().await;
        }
        assert!(claims[0] < claims[1], "{claims:?}");
    });
}

#[test]
fn small_files_that_all_write_are_uploaded_once() {
    run(async {
        let (_, copies) = copies(16, 1500, 20, 10).await;
        assert!(copies <= 2.5, "{copies} copies with commits, claims and heads");
    });
}

#[test]
fn a_node_that_comes_late_uploads_and_commits_nothing() {
    run(async {
        for size in [8 << 10, 700] {
            let world = World::new();
            let fleet = Fleet::new(&world, 1);
            write_all(&fleet, size, 0, 0).await;
            fleet.settle().await;
            fleet.pass(20_000).await;
            let late = Fleet::new(&world, 1);
            late.pass(1000).await;
            let before = late.bytes_up();
            write_all(&late, size, 20, 0).await;
            late.settle().await;
            assert_eq!((late.bytes_up() - before, late.commits()), (0, 0), "{size}");
            late.agree(size).await;
            // The first one announces it again, because it has never read its own commit. Contents
            // in a pack are not uploaded again.
            let before = (fleet.bytes_up(), fleet.commits());
            write_all(&fleet, size, 0, 0).await;
            fleet.settle().await;
            let (bytes, commits) = (fleet.bytes_up() - before.0, fleet.commits() - before.1);
            assert!(
                commits == 1 && (size < 4096 || bytes < COMMIT_BYTES),
                "{size}: {commits} commits, {bytes} bytes"
            );
            fleet.stop().await;
            late.stop().await;
        }
    });
}

/// Nodes do not wait long for a node that has claimed and then does nothing.
#[test]
fn a_node_that_claims_and_dies_holds_the_others_up_for_its_turn() {
    run(async {
        let world = World::new();
        let (dead, fleet) = (Fleet::new(&world, 1), Fleet::new(&world, 4));
        fleet.pass(1000).await;
        write_all(&dead, 8 << 10, 0, 0).await;
        // Its claim is written, and its bytes are not.
        while world.keys("probes/").await.is_empty() {
            dead.pass(STEP_MS).await;
        }
        dead.nodes[0].engine.kill().await;
        let before = fleet.bytes_up();
        write_all(&fleet, 8 << 10, 0, 0).await;
        let waited_ms = fleet.settle().await;
        assert!((1000..5000).contains(&waited_ms), "{waited_ms} ms");
        let copies = (fleet.bytes_up() - before) as f64 / (FILES * (8 << 10)) as f64;
        assert!(copies <= 1.2, "{copies} copies");
        fleet.agree(8 << 10).await;
        fleet.stop().await;
    });
}

/// The end of a claim waits neither with the lock of a landing commit held nor for a store that
/// does not answer: the next commit follows within about a second.
#[test]
fn the_end_of_a_claim_holds_nothing_up() {
    run(async {
        let world = World::new();
        let fleet = Fleet::new(&world, 1);
        fleet.pass(1000).await;
        let node = &fleet.nodes[0];
        close(&world, node, "first", &content(1, 9000));
        while world.keys("probes/").await.is_empty() {
            fleet.pass(STEP_MS).await;
        }
        node.fail("hang=1 only=probes/");
        while fleet.commits() == 0 {
            fleet.pass(STEP_MS).await;
        }
        close(&world, node, "second", &content(2, 9000));
        fleet.pass(100).await;
        let landing =
            crate::clock::within(Duration::from_millis(200), node.engine.ledger().landing());
        assert!(landing.await.is_some(), "a commit is being noted");
        let waited_ms = fleet.settle().await;
        assert!(waited_ms < 2000, "{waited_ms} ms");
        fleet.stop().await;
    });
}

/// If no other node writes the same, a node claims once, and leaves no claim behind.
#[test]
fn p13_bounded_a_node_alone_claims_once() {
    run(async {
        let world = World::new();
        let fleet = Fleet::new(&world, 2);
        fleet.pass(1000).await;
        let (a, before) = (&fleet.nodes[0], fleet.nodes[0].remote().requests());
        for n in 0..20_u64 {
            close(&world, a, &format!("{n}"), &content(n, 9000));
            fleet.pass(1000).await;
        }
        fleet.settle().await;
        let after = a.remote().requests();
        let (puts, lists) = (after.puts - before.puts, after.lists - before.lists);
        let announced = 20 + 1;
        assert_eq!(puts, 20 * 2 + 1 + announced, "a pack and a commit for each, and the claim");
        assert!(lists <= 5, "{lists} lists in 20 s");
        assert_eq!(after.deletes - before.deletes, 1);
        let probes = world.keys("probes/").await;
        assert!(probes.is_empty(), "{probes:?}");
        fleet.stop().await;
    });
}
