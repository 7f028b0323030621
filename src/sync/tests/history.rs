//! A long history: the number of a node's requests does not grow with it.

use std::time::Duration;

use super::gc::collect;
use super::harness::*;
use crate::namespace::{Change, Commit, Op};
use crate::remote::{CheckpointChain, CheckpointHead, CheckpointWriter, encode_commit, keys};
use crate::stamp::{NodeId, Stamp};
use crate::sync::LOG_GRACE;

const WRITER: NodeId = NodeId(0xabc);
const SECOND: Duration = Duration::from_secs(1);

/// Returns the stamp of a commit of the history. Each commit was written a second before the next
/// one.
fn stamp(upto_ms: u64, age: u64) -> Stamp {
    Stamp { ms: upto_ms - age * 1000, counter: 7, node: WRITER }
}

/// Returns a commit that replaces one of some files.
pub(super) fn commit(stamp: Stamp, sequence: u64) -> Commit {
    let op = Op::Put(file_of(sequence));
    Commit {
        stamp,
        node: stamp.node,
        incarnation: 1,
        sequence,
        packs: Vec::new(),
        blobs: Vec::new(),
        changes: vec![Change { path: path(&format!("f{}", sequence % 50)), stamp, op }],
        extensions: std::collections::BTreeMap::new(),
    }
}

pub(super) async fn put_commit(world: &World, one: &Commit) {
    let key = format!("log/{}", keys::commit_name(&one.stamp));
    world.store.overwrite(&key, encode_commit(one).unwrap()).await;
}

/// Makes a log of `count` commits, with a checkpoint of all of them that was written right after.
async fn past(world: &World, count: u64) {
    past_every(world, count, 1000).await;
}

/// As [`past`], with this time between two commits.
async fn past_every(world: &World, count: u64, every_ms: u64) {
    world.node().remote().check().await.unwrap();
    let upto_ms = world.clock.wall_ms();
    let at = |age: u64| Stamp { ms: upto_ms - age * every_ms, counter: 7, node: WRITER };
    let stamps: Vec<Stamp> = (1..=count).rev().map(at).collect();
    for stamp in &stamps {
        let key = format!("log/{}", keys::commit_name(stamp));
        world.store.overwrite(&key, b"no node needs to read it".to_vec()).await;
    }
    let head = CheckpointHead { stamp: Stamp { ms: upto_ms, ..stamps[0] }, age_ms: None };
    let mut writer = CheckpointWriter::new(Vec::new(), &head).unwrap();
    for stamp in &stamps {
        writer.commit(stamp).unwrap();
    }
    let chain = CheckpointChain { node: WRITER, incarnation: 1, next: count, ms: upto_ms };
    writer.chain(&chain).unwrap();
    let key = format!("checkpoints/{}", keys::checkpoint_name(&head.stamp));
    world.store.overwrite(&key, writer.finish().unwrap().0).await;
}

/// Reports whether a node knows a file, whose content no node has.
fn knows(node: &Node, at: &str) -> bool {
    node.engine.ledger().read(|fold| fold.register(&path(at)).is_some())
}

#[test]
fn a_new_node_lists_only_what_no_checkpoint_has() {
    run(async {
        let world = World::new();
        past(&world, 20_000).await;
        for n in 0..5 {
            world.clock.advance(SECOND);
            put_commit(&world, &commit(stamp(world.clock.wall_ms(), 0), 20_000 + n)).await;
        }
        let mut fresh = world.node();
        assert!(fresh.pull().await && fresh.registers().len() == 5);
        let asked = fresh.remote().requests();
        // The checkpoints and one page; the format object, the head of the log, the checkpoint, and
        // the later commits.
        assert!(asked.lists == 2 && asked.gets <= 3 + 5, "{asked:?}");
        fresh.send("mine", b"x").await;
        // It continues in this way: with the new commits, and sometimes with the beginning of the
        // log and the last minutes.
        for minutes in 0..60 {
            world.clock.advance(Duration::from_mins(1));
            let before = fresh.remote().requests();
            assert!(fresh.pull().await);
            let asked = fresh.remote().requests();
            assert!(asked.lists <= before.lists + 4, "minute {minutes}: {asked:?}");
            assert!(asked.gets <= before.gets + 2, "minute {minutes}: {asked:?}");
        }
        // A start from the index lists no more.
        fresh.engine.ledger().save().unwrap();
        let again = world.node_at(fresh.crash());
        assert!(again.pull().await && again.entry("mine").is_some());
        assert!(again.remote().requests().lists <= 2, "{:?}", again.remote().requests());
    });
}

/// The checkpoint may lack commits that became visible late, and those are at most a minute old. In
/// a busy fleet, a quarter of an hour of the log has 20,000 names.
#[test]
fn a_new_node_lists_the_last_minute_before_a_checkpoint() {
    run(async {
        let world = World::new();
        past_every(&world, 20_000, 50).await;
        let fresh = world.caught_up().await;
        let lists = fresh.remote().requests().lists;
        assert_eq!(lists, 1 + 2, "the checkpoints, and 1,200 commits");
        // The next list begins at the end of this one.
        world.clock.advance(Duration::from_mins(2));
        assert!(fresh.pull().await);
        assert!(fresh.remote().requests().lists - lists <= 2);
    });
}

/// A checkpoint lacks what became visible after the last wide list of its writer, and that may be
/// ten minutes ago. The nodes that were there find it.
#[test]
fn p7_one_winner_a_new_node_finds_what_came_too_late_for_its_checkpoint() {
    run(async {
        let world = World::new();
        past(&world, 5000).await;
        let ms = world.clock.wall_ms() - Duration::from_mins(8).as_millis() as u64;
        let late = commit(Stamp { ms, counter: 0, node: NodeId(0xdef) }, 0);
        put_commit(&world, &late).await;
        let node = world.caught_up().await;
        assert!(!knows(&node, "f0"), "the first list does not reach so far back");
        let mut other = world.node();
        for n in 0..11_u64 {
            world.clock.advance(Duration::from_mins(1));
            other.send("other", &content(n, 10)).await;
            assert!(node.pull().await);
        }
        assert!(knows(&node, "f0"));
    });
}

/// A list shows commits that were not announced. It begins where the last one ended, not a quarter
/// of an hour before the last commit that was announced.
#[test]
fn a_node_that_followed_the_head_lists_since_its_last_list() {
    run(async {
        let world = World::new();
        past_every(&world, 20_000, 50).await;
        let (node, mut other) = (world.caught_up().await, world.node());
        for n in 0..5_u64 {
            world.clock.advance(Duration::from_mins(1));
            other.send("other", &content(n, 10)).await;
            assert!(node.pull().await);
        }
        let lists = node.remote().requests().lists;
        assert!(node.engine.follower().list().await);
        assert_eq!(node.remote().requests().lists - lists, 2, "1,200 commits");
    });
}

#[test]
fn a_collection_lists_what_it_deletes_and_what_no_checkpoint_has() {
    run(async {
        let world = World::new();
        past(&world, 20_000).await;
        world.clock.advance(LOG_GRACE + SECOND);
        let a = world.caught_up().await;
        let mut lists = Vec::new();
        for _ in 0..2 {
            let before = a.remote().requests().lists;
            collect(&a, false).await;
            lists.push(a.remote().requests().lists - before);
        }
        // All of it once, to delete it, and the last hour before the checkpoint twice.
        assert!(lists[0] <= 20 + 4 + lists[1] && lists[1] <= 6, "{lists:?}");
        assert!(world.log().await.is_empty());
    });
}

/// If a list breaks off, nothing of a log that no checkpoint covers is listed or read twice.
#[test]
fn what_was_listed_is_kept_when_a_later_page_fails() {
    run(async {
        let world = World::new();
        let count = 5000;
        world.node().remote().check().await.unwrap();
        for n in 0..count {
            put_commit(&world, &commit(stamp(world.clock.wall_ms(), count - n), n)).await;
        }
        let fresh = world.node();
        fresh.remote().check().await.unwrap();
        fresh.fail("latency_ms=100");
        let faults = fresh.faults.clone();
        let breaking = async {
            crate::clock::sleep(SECOND).await;
            faults.set(crate::remote::fault::FaultPlan::parse("errors=100 only=LIST").unwrap());
        };
        let (good, ()) = futures::join!(fresh.pull(), breaking);
        let folded = fresh.engine.ledger().folded();
        assert!(!good && folded == 2000, "{folded} of the first page");
        fresh.fail("");
        let before = fresh.remote().requests();
        world.clock.advance(Duration::from_mins(1));
        assert!(fresh.pull().await && fresh.engine.ledger().folded() == count);
        let asked = fresh.remote().requests();
        assert!(asked.lists - before.lists <= 7, "from {before:?} to {asked:?}");
        assert!(asked.gets < count + 6, "{asked:?}");
    });
}

/// The beginning of the log, and its last quarter of an hour, are listed again from time to time.
#[test]
fn what_comes_late_is_found_however_long_the_log() {
    run(async {
        let world = World::new();
        past(&world, 5000).await;
        let node = world.caught_up().await;
        let late = commit(stamp(world.clock.wall_ms(), 0), 5000);
        let mut other = world.node();
        for n in 0..8_u64 {
            world.clock.advance(Duration::from_mins(1));
            other.send("other", &content(n, 10)).await;
            assert!(node.pull().await);
        }
        put_commit(&world, &late).await;
        assert!(node.pull().await && !knows(&node, "f0"), "lists do not reach so far back");
        world.clock.advance(Duration::from_mins(3));
        assert!(node.pull().await && knows(&node, "f0"));
        // If another commit follows it, it is looked for at once.
        world.clock.advance(LOG_GRACE / 2);
        other.send("other", b"the last").await;
        assert!(node.pull().await);
        let (late, next) = (
            commit(stamp(world.clock.wall_ms(), 20 * 60), 5001),
            commit(stamp(world.clock.wall_ms(), 0), 5002),
        );
        put_commit(&world, &late).await;
        put_commit(&world, &next).await;
        assert!(node.pull().await && knows(&node, "f1") && knows(&node, "f2"));
        assert!(!node.engine.ledger().is_partial());
    });
}
