//! Nodes that were absent while the log below a checkpoint was deleted, and logs in which commits
//! are missing.

use std::time::Duration;

use super::checkpoints::*;
use super::harness::*;
use crate::namespace::{Attrs, Op};
use crate::remote::{CheckpointItem, keys};
use crate::sync::LOG_GRACE;

#[test]
fn a_node_that_was_away_is_rebuilt_and_keeps_its_own_changes() {
    run(async {
        let world = World::new();
        let mut nodes = [world.node(), world.node()];
        write_some(&mut nodes, 20).await;
        let [a, mut b] = nodes;
        b.write("theirs", b"1");
        b.write("both", b"1");
        b.send("kept", b"1").await;
        assert!(a.pull().await);
        // It is stopped with a backlog.
        a.write("mine", b"backlog");
        a.write("both", b"backlog");
        let put = a.registers().into_iter().find(|(at, _)| *at == path("kept")).unwrap().1.stamp;
        let attrs = Attrs { mode: 0o640, ..Attrs::default() };
        a.publish(vec![(path("kept"), Op::Attrs { of: put, attrs })]);
        a.engine.ledger().save().unwrap();
        let asleep = a.crash();
        world.clock.advance(LOG_GRACE);
        b.remove("theirs");
        b.remove("d0/f0");
        b.send("d1/f1", b"new").await;
        // The tombstones are forgotten everywhere, and the log is deleted.
        forget(&b, &["theirs", "d0/f0"]);
        world.clock.advance(Duration::from_secs(5));
        checkpoint(&b).await;
        assert!(remove_log(&world, |_| true).await > 20);
        let mut a = world.node_at(asleep);
        assert!(a.entry("theirs").is_some(), "the node has not followed yet");
        let told = std::sync::Arc::new(parking_lot::Mutex::new(Vec::new()));
        let heard = told.clone();
        a.engine.ledger().subscribe(Box::new(move |moved| {
            heard.lock().extend_from_slice(moved.paths.expect("few paths have moved"));
        }));
        let applied = a.engine.ledger().applied();
        assert!(a.pull().await);
        assert!(a.engine.ledger().applied() > applied);
        for at in ["theirs", "d0/f0", "d1/f1"] {
            assert!(told.lock().contains(&path(at)), "{at} is reported: {:?}", told.lock());
        }
        assert!(!told.lock().contains(&path("mine")) && !told.lock().contains(&path("both")));
        assert!(a.entry("theirs").is_none() && a.entry("d0/f0").is_none());
        assert_eq!(a.read("mine").await, Some(b"backlog".to_vec()));
        assert_eq!(a.read("both").await, Some(b"backlog".to_vec()));
        assert_eq!(a.entry("kept").unwrap().attrs.mode, 0o640);
        assert_eq!(a.engine.ledger().pending().records, 3);
        a.push().await;
        assert!(b.pull().await);
        assert_eq!(a.registers(), b.registers());
        assert_eq!(b.read("mine").await, Some(b"backlog".to_vec()));
        // Nothing of the deleted entries is in the index.
        a.engine.ledger().save().unwrap();
        let a = world.node_at(a.crash());
        assert_eq!(a.registers(), b.registers());
    });
}

#[test]
fn a_notification_of_too_many_paths_names_none() {
    run(async {
        let world = World::new();
        let mut nodes = [world.node(), world.node()];
        write_some(&mut nodes, 2).await;
        let [a, mut b] = nodes;
        let asleep = a.crash();
        world.clock.advance(LOG_GRACE);
        let many = 0..10_001;
        b.publish(many.map(|n| (path(&format!("d{n}")), Op::Put(directory()))).collect());
        b.push().await;
        checkpoint(&b).await;
        assert!(remove_log(&world, |_| true).await > 0);
        let a = world.node_at(asleep);
        let told = std::sync::Arc::new(parking_lot::Mutex::new(Vec::new()));
        let heard = told.clone();
        a.engine.ledger().subscribe(Box::new(move |moved| {
            heard.lock().push(moved.paths.map(<[_]>::len));
        }));
        assert!(a.pull().await);
        assert_eq!(a.registers(), b.registers());
        assert_eq!(told.lock().iter().filter(|told| told.is_none()).count(), 1);
        assert!(!told.lock().iter().any(|told| told.is_some_and(|paths| paths > 0)));
    });
}

/// Forgets tombstones as expiry does.
fn forget(node: &Node, paths: &[&str]) {
    for at in paths {
        node.engine.ledger().forget_for_test(&path(at));
    }
}

#[test]
fn a_node_that_was_away_while_nothing_happened_goes_on() {
    run(async {
        let world = World::new();
        let mut nodes = [world.node(), world.node()];
        write_some(&mut nodes, 10).await;
        checkpoint(&nodes[0]).await;
        for _ in 0..3 {
            world.clock.advance(LOG_GRACE * 2);
            let (gets, lists) = {
                let asked = nodes[1].remote().requests();
                (asked.gets, asked.lists)
            };
            assert!(nodes[1].pull().await);
            let asked = nodes[1].remote().requests();
            assert!(asked.gets <= gets + 3 && asked.lists == lists + 2, "{asked:?} after {gets}");
        }
        // A checkpoint without new content is read once for nothing, and not again.
        checkpoint(&nodes[0]).await;
        world.clock.advance(LOG_GRACE);
        let applied = nodes[1].engine.ledger().applied();
        assert!(nodes[1].pull().await && nodes[1].pull().await);
        assert_eq!(nodes[1].engine.ledger().applied(), applied, "nothing was new");
    });
}

#[test]
fn a_node_gets_commits_that_were_deleted_below_a_checkpoint_it_missed() {
    run(async {
        let world = World::new();
        let mut nodes = [world.node(), world.node(), world.node()];
        write_some(&mut nodes, 12).await;
        let [mut a, b, c] = nodes;
        // While c is idle, commits are made, are deleted below a checkpoint, and are forgotten by
        // all.
        world.clock.advance(LOG_GRACE);
        for n in 0..5_u64 {
            a.send(&format!("unheard{n}"), &content(n, 9000)).await;
        }
        assert!(b.pull().await);
        checkpoint(&a).await;
        remove_log(&world, |_| true).await;
        world.clock.advance(Duration::from_mins(11));
        assert!(a.pull().await && b.pull().await);
        world.clock.advance(Duration::from_secs(1));
        // This one does not name them any more.
        let name = checkpoint(&b).await;
        let named = items(&world, &name).await;
        assert!(!named.iter().any(|item| matches!(item, CheckpointItem::Commit(_))));
        assert!(c.pull().await);
        assert_eq!(c.registers(), a.registers());
        assert!(c.read("unheard3").await.is_some());
    });
}

#[test]
fn a_node_in_whose_log_commits_are_missing_leaves_checkpoints_to_others() {
    run(async {
        let world = World::new();
        let mut nodes = [world.node(), world.node()];
        for n in 0..300_u64 {
            nodes[0].publish(vec![(path(&format!("f{n}")), Op::Put(file_of(n)))]);
            nodes[0].push().await;
        }
        let name = checkpoint(&nodes[0]).await;
        world.store.remove(&world.log().await[5]).await;
        world.store.overwrite(&format!("checkpoints/{name}"), b"damaged".to_vec()).await;
        let fresh = world.caught_up().await;
        assert!(fresh.engine.ledger().is_partial());
        world.clock.advance(Duration::from_secs(1));
        let mut later = world.caught_up().await;
        for n in 0..300_u64 {
            later.publish(vec![(path("g"), Op::Put(file_of(n)))]);
            later.push().await;
        }
        assert!(fresh.pull().await);
        fresh.engine.checkpointer().unwrap().write_if_due().await;
        let count = async || world.keys("checkpoints/").await.len();
        assert_eq!(count().await, 1);
        assert!(nodes[0].pull().await);
        nodes[0].engine.checkpointer().unwrap().write_if_due().await;
        assert_eq!(count().await, 2);
        let newest = world.caught_up().await;
        assert_eq!(newest.registers(), nodes[0].registers());
        assert!(keys::checkpoint_stamp(&name).is_some());
    });
}

/// Makes a list fail once, right after the node has adopted another namespace.
async fn pull_with_a_failure_after_the_takeover(node: &Node) {
    let faults = node.faults.clone();
    let broken = std::sync::atomic::AtomicBool::new(false);
    node.engine.ledger().subscribe(Box::new(move |_| {
        if !broken.swap(true, std::sync::atomic::Ordering::Relaxed) {
            faults.set(crate::remote::fault::FaultPlan::parse("resets=100").unwrap());
        }
    }));
    assert!(!node.pull().await, "the list failed");
    node.fail("");
}

/// Pulls until a request is sent to the store again.
async fn pull_again(world: &World, node: &Node) {
    for _ in 0..50 {
        if node.pull().await {
            return;
        }
        world.clock.advance(Duration::from_secs(1));
    }
    panic!("the pull still fails");
}

#[test]
fn p11_expiry_while_away_and_a_list_that_fails_at_the_return() {
    run(async {
        let month = Duration::from_hours(30 * 24);
        let world = World::aging(month);
        let (mut a, b) = (world.node(), world.node());
        for name in ["removed", "kept"] {
            a.write(name, &content(1, 9_000));
        }
        a.push().await;
        assert!(a.pull().await && b.pull().await);
        a.remove("removed");
        a.push().await;
        for _ in 0..8 {
            world.clock.advance(Duration::from_hours(5 * 24));
            assert!(a.pull().await && a.open("kept").await.is_some());
            world.clock.advance(Duration::from_hours(1));
            assert!(a.pull().await);
            a.keep_house().await;
            checkpoint(&a).await;
            world.store.expire(month).await;
        }
        pull_with_a_failure_after_the_takeover(&b).await;
        let gets = b.remote().requests().gets;
        pull_again(&world, &b).await;
        // The log alone has nothing of it any more.
        assert!(b.read("kept").await == Some(content(1, 9_000)));
        assert!(b.entry("removed").is_none());
        assert_eq!(a.registers(), b.registers());
        assert!(b.remote().requests().gets <= gets + 3, "the checkpoint is not read again");
    });
}

#[test]
fn a_node_that_was_away_reads_the_checkpoint_once_however_often_lists_fail() {
    run(async {
        let world = World::new();
        let mut nodes = [world.node(), world.node()];
        write_some(&mut nodes, 20).await;
        let [mut a, b] = nodes;
        a.send("later", b"x").await;
        assert!(b.pull().await);
        world.clock.advance(LOG_GRACE);
        let name = checkpoint(&a).await;
        // Nothing in it is new: it is compared, and the list after it fails.
        b.fail("latency_ms=1000");
        for round in 0..5 {
            let faults = b.faults.clone();
            let breaking = async {
                // Requests begin a second apart: the head of the log, the format object, two lists,
                // and between these the read of the first round.
                let at = Duration::from_millis(if round == 0 { 3500 } else { 2500 });
                crate::clock::sleep(at).await;
                faults.set(crate::remote::fault::FaultPlan::parse("resets=100").unwrap());
            };
            let (good, ()) = futures::join!(b.pull(), breaking);
            assert!(!good, "round {round}");
            b.fail("latency_ms=1000");
            world.clock.advance(Duration::from_mins(1));
        }
        let before = b.fetched();
        b.fail("");
        pull_again(&world, &b).await;
        let head = world.store.read("head").await.unwrap().len() as u64;
        assert!(b.fetched() < before + FORMAT_BYTES + head, "{name} is read once");
    });
}

/// Makes two nodes: the second has sent a file that the first can get only from a checkpoint.
async fn one_behind(world: &World) -> [Node; 2] {
    let mut nodes = [world.node(), world.node()];
    write_some(&mut nodes, 10).await;
    world.clock.advance(LOG_GRACE);
    nodes[1].send("theirs", b"1").await;
    checkpoint(&nodes[1]).await;
    remove_log(world, |_| true).await;
    nodes
}

/// A file that was closed here exists, whatever happens while a checkpoint is adopted.
#[test]
fn p4_local_durable_of_a_commit_that_lands_while_a_checkpoint_is_taken_over() {
    run(async {
        for start in 0..14_u64 {
            let world = World::new();
            let [a, mut b] = one_behind(&world).await;
            b.send("later", b"1").await;
            a.write("mine", b"closed");
            let publisher = a.engine.publisher().unwrap();
            let uploaded = a.upload_next().await.unwrap();
            a.fail("latency_ms=1000");
            let landing = async {
                crate::clock::sleep(Duration::from_millis(500 * start + 250)).await;
                publisher.commit(uploaded).await;
                a.engine.ledger().save().unwrap();
            };
            let mut last = false;
            let watching = async {
                for _ in 0..120 {
                    let there = a.entry("mine").is_some();
                    assert!(there, "it is visible, whichever lands first ({start})");
                    crate::clock::sleep(Duration::from_millis(100)).await;
                }
                last = true;
            };
            let (good, (), ()) = futures::join!(a.pull(), landing, watching);
            assert!(good && last);
            assert!(a.entry("theirs").is_some() && a.entry("later").is_some());
            a.engine.ledger().save().unwrap();
            // A start without the store has it from index or journal.
            let again = world.node_at(a.crash());
            again.fail("resets=100");
            assert!(again.entry("mine").is_some(), "after a start ({start})");
        }
    });
}

#[test]
fn a_node_that_publishes_all_the_time_takes_over_a_checkpoint_all_the_same() {
    run(async {
        let world = World::new();
        let [a, _b] = one_behind(&world).await;
        a.fail("latency_ms=1000");
        let over = std::cell::Cell::new(false);
        let publishing = async {
            let publisher = a.engine.publisher().unwrap();
            let mut written = 0;
            while !over.get() {
                a.write(&format!("mine{written}"), b"closed");
                written += 1;
                let uploaded = a.upload_next().await.unwrap();
                publisher.commit(uploaded).await;
            }
            written
        };
        let pulling = async {
            let good = a.pull().await;
            over.set(true);
            good
        };
        let (written, good) = futures::join!(publishing, pulling);
        assert!(good && a.entry("theirs").is_some(), "{written} commits meanwhile");
        for n in 0..written {
            assert!(a.entry(&format!("mine{n}")).is_some(), "{n}");
        }
    });
}

/// Three nodes that act at random, with checkpoints, deletions of the log, restarts and pauses.
#[test]
fn p7_one_winner_with_checkpoints_and_deletions_between() {
    run(async {
        for seed in 0..6_u64 {
            let mut random = Random::new(seed);
            let world = World::new();
            let mut nodes: Vec<Node> = (0..3).map(|_| world.node()).collect();
            for _ in 0..100 {
                let at = random.below(3) as usize;
                let name = format!("d{}/f{}", random.below(3), random.below(6));
                match random.below(14) {
                    0..4 => drop(nodes[at].write(&name, &content(random.next(), 50))),
                    4 => drop(nodes[at].remove(&name)),
                    5..7 => nodes[at].push().await,
                    7..10 => assert!(nodes[at].pull().await),
                    10 => {
                        if nodes[at].engine.checkpointer().unwrap().write().await.is_ok() {
                            // An hour later, when all nodes have read the log, what the checkpoint
                            // has is deleted from it.
                            for node in &nodes {
                                assert!(node.pull().await);
                            }
                            world.clock.advance(LOG_GRACE);
                            let newest = newest_checkpoint(&world).await;
                            let named = items(&world, &newest).await;
                            remove_log(&world, |key| {
                                let stamp = keys::commit_stamp(&key[4..]).unwrap();
                                named.contains(&CheckpointItem::Commit(stamp))
                            })
                            .await;
                        }
                    }
                    11 => {
                        let node = nodes.remove(at);
                        if random.below(2) == 0 {
                            node.engine.ledger().save().unwrap();
                        }
                        nodes.insert(at, world.node_at(node.crash()));
                    }
                    12 => world.clock.advance(Duration::from_mins(random.below(90))),
                    _ => {
                        // A new machine replaces one that has sent everything.
                        nodes[at].push().await;
                        nodes[at] = world.node();
                    }
                }
            }
            for _ in 0..2 {
                for node in &mut nodes {
                    assert!(node.pull().await);
                    node.push().await;
                }
            }
            for node in &nodes {
                assert!(node.pull().await);
                assert_eq!(node.registers(), nodes[0].registers(), "seed {seed}");
            }
            let fresh = world.caught_up().await;
            assert_eq!(fresh.registers(), nodes[0].registers(), "seed {seed}");
        }
    });
}

async fn newest_checkpoint(world: &World) -> String {
    let newest = world.keys("checkpoints/").await.pop().unwrap();
    newest["checkpoints/".len()..].to_owned()
}

pub(super) struct Random(u64);

impl Random {
    pub(super) fn new(seed: u64) -> Self {
        Self(seed * 7919 + 1)
    }

    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    pub(super) fn below(&mut self, most: u64) -> u64 {
        self.next() % most
    }
}
