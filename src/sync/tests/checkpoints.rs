//! Checkpoints: a node that starts from one is like any other, and the log below it may be deleted.

use std::collections::BTreeMap;
use std::time::Duration;

use super::harness::*;
use crate::name::TreePath;
use crate::namespace::{Attrs, Op, Register};
use crate::remote::{CheckpointItem, CheckpointReader};
use crate::sync::missing::Missing;

/// Removes the commits of the log for which `gone` is true; returns how many.
pub(super) async fn remove_log(world: &World, gone: impl Fn(&str) -> bool) -> usize {
    let keys = world.log().await;
    let wanted: Vec<_> = keys.iter().filter(|key| gone(key)).collect();
    for key in &wanted {
        world.store.remove(key).await;
    }
    wanted.len()
}

pub(super) async fn checkpoint(node: &Node) -> String {
    node.engine.checkpointer().unwrap().write().await.expect("written")
}

pub(super) async fn items(world: &World, name: &str) -> Vec<CheckpointItem> {
    let bytes =
        world.store.read(&format!("checkpoints/{name}")).await.expect("the checkpoint exists");
    let mut reader = CheckpointReader::new(&bytes[..]).expect("whole");
    let mut items = Vec::new();
    while let Some(item) = reader.next().expect("whole") {
        items.push(item);
    }
    items
}

pub(super) fn registers(items: &[CheckpointItem]) -> BTreeMap<TreePath, Register> {
    let register = |item: &CheckpointItem| match item {
        CheckpointItem::Register(path, register, _) => Some((path.clone(), register.clone())),
        _ => None,
    };
    items.iter().filter_map(register).collect()
}

/// Makes changes on several nodes, each in its own commit.
pub(super) async fn write_some(nodes: &mut [Node], rounds: u64) {
    for n in 0..rounds {
        let count = nodes.len() as u64;
        let node = &mut nodes[(n % count) as usize];
        node.write(&format!("d{}/f{}", n % 3, n % 11), &content(n, 5000));
        if n % 7 == 3 {
            node.remove(&format!("d{}/f{}", n % 3, (n + 4) % 11));
        }
        node.push().await;
        for node in nodes.iter() {
            assert!(node.pull().await);
        }
    }
}

#[test]
fn a_new_node_reads_the_checkpoint_and_what_came_after() {
    run(async {
        let world = World::new();
        let mut nodes = [world.node(), world.node()];
        write_some(&mut nodes, 40).await;
        nodes[0].publish(vec![(TreePath::root(), Op::Put(directory()))]);
        nodes[0].push().await;
        checkpoint(&nodes[0]).await;
        for n in 0..3_u64 {
            nodes[0].write(&format!("after{n}"), &content(100 + n, 9000));
            nodes[0].push().await;
        }
        assert!(nodes[1].pull().await);
        let fresh = world.caught_up().await;
        let asked = fresh.remote().requests();
        // The format object, the head of the log, the checkpoint, three commits.
        assert!(asked.gets <= 6 && asked.lists == 2, "{asked:?}");
        assert_eq!(fresh.registers(), nodes[0].registers());
        assert_eq!(fresh.registers(), nodes[1].registers());
        for (at, seed) in [("d0/f0", 33), ("after2", 102)] {
            let size = if at == "after2" { 9000 } else { 5000 };
            assert!(fresh.read(at).await == Some(content(seed, size)), "{at}");
        }
        // The next start has all of it from the index.
        fresh.engine.ledger().save().unwrap();
        let again = world.node_at(fresh.crash());
        assert_eq!(again.registers(), nodes[0].registers());
        let gets = again.remote().requests().gets;
        assert!(again.pull().await);
        assert!(again.remote().requests().gets <= gets + 2, "{:?}", again.remote().requests());
    });
}

pub(super) fn directory() -> crate::namespace::Entry {
    crate::namespace::Entry::directory(0o700, 1, 2, crate::namespace::Time::from_ms(NOW_MS))
}

#[test]
fn p5_in_order_the_log_below_a_checkpoint_may_be_gone() {
    run(async {
        let world = World::new();
        let mut nodes = [world.node(), world.node(), world.node()];
        write_some(&mut nodes, 30).await;
        checkpoint(&nodes[1]).await;
        assert_eq!(remove_log(&world, |_| true).await, 30);
        let [a, ..] = &mut nodes;
        a.send("later", b"x").await;
        let mut fresh = world.caught_up().await;
        assert_eq!(fresh.registers(), a.registers());
        assert!(!fresh.engine.ledger().is_partial());
        // Nodes that were present all the time continue, and forget names that no checkpoint lists.
        for node in &nodes[1..] {
            assert!(node.pull().await);
            assert_eq!(node.registers(), fresh.registers());
        }
        // The new node does, too.
        fresh.send("d0/f0", b"mine").await;
        assert!(nodes[0].pull().await);
        assert_eq!(nodes[0].read("d0/f0").await, Some(b"mine".to_vec()));
        let name = checkpoint(&fresh).await;
        assert_eq!(registers(&items(&world, &name).await).len(), fresh.registers().len());
    });
}

#[test]
fn what_waits_in_the_queue_is_not_in_a_checkpoint() {
    run(async {
        let world = World::new();
        let (mut a, mut b) = (world.node(), world.node());
        a.write("replaced", b"1");
        a.write("removed", b"1");
        a.write("touched", b"1");
        a.send("theirs", b"1").await;
        assert!(b.pull().await);
        let before: BTreeMap<_, _> = a.registers().into_iter().collect();
        let of = a.write("replaced", b"2");
        a.remove("removed");
        a.write("new", b"2");
        a.write("tmp", b"2");
        a.remove("tmp");
        let put = before[&path("touched")].stamp;
        let attrs = Attrs { mode: 0o600, ..Attrs::default() };
        a.publish(vec![(path("touched"), Op::Attrs { of: put, attrs: attrs.clone() })]);
        a.publish(vec![(path("new"), Op::Attrs { of, attrs })]);
        a.write("theirs", b"2");
        // A change of another node below a waiting change counts.
        b.send("theirs", b"3").await;
        assert!(a.pull().await);
        let name = checkpoint(&a).await;
        let found = registers(&items(&world, &name).await);
        let mut wanted = before;
        let theirs = b.registers().into_iter().find(|(at, _)| *at == path("theirs")).unwrap();
        wanted.insert(theirs.0, theirs.1);
        assert_eq!(found, wanted);
        // The same is true with a batch in flight.
        a.upload().await;
        world.clock.advance(Duration::from_secs(1));
        let name = checkpoint(&a).await;
        assert_eq!(registers(&items(&world, &name).await), wanted);
        a.commit().await;
        a.push().await;
        world.clock.advance(Duration::from_secs(1));
        let name = checkpoint(&a).await;
        let all: BTreeMap<_, _> = a.registers().into_iter().collect();
        assert_eq!(registers(&items(&world, &name).await), all);
        assert!(!all.contains_key(&path("tmp")));
    });
}

#[test]
fn a_node_with_records_of_an_earlier_run_writes_none_until_they_are_remote() {
    run(async {
        let world = World::new();
        let mut a = world.node();
        a.send("f", b"1").await;
        a.write("f", b"2");
        a.write("g", b"2");
        a.engine.ledger().save().unwrap();
        let mut a = world.node_at(a.crash());
        assert!(a.engine.checkpointer().unwrap().write().await.is_err());
        a.push().await;
        checkpoint(&a).await;
    });
}

#[test]
fn what_comes_while_a_snapshot_is_taken_is_not_in_it() {
    run(async {
        let world = World::new();
        let (mut a, mut b) = (world.node(), world.node());
        let ops = |from: u64| {
            (from..from + 6000).map(|n| (path(&format!("f{n:05}")), Op::Put(file_of(n))))
        };
        a.publish(ops(0).collect());
        a.push().await;
        assert!(b.pull().await);
        let wanted: BTreeMap<_, _> = a.registers().into_iter().collect();
        let mut snapshot = a.engine.ledger().snapshot(&Missing::default()).unwrap();
        assert!(
            a.engine.ledger().snapshot(&Missing::default()).is_none(),
            "one snapshot at a time"
        );
        let mut found = BTreeMap::new();
        let mut slices = 0;
        while let Some(slice) = snapshot.registers().unwrap() {
            slices += 1;
            found.extend(slice.into_iter().map(|(path, register, _)| (path, register)));
            // Before and after what was handed out, ours and theirs, sent and not sent.
            for at in ["f00001", "f05990", "e", "g"] {
                a.write(&format!("{at}{slices}"), b"new");
                a.write(at, &content(slices, 10));
            }
            a.push().await;
            b.write("f05991", &content(slices, 20));
            b.remove("f05992");
            b.push().await;
            assert!(a.pull().await);
            a.write("f05993", &content(slices, 30));
        }
        assert!(slices >= 3, "{slices} slices");
        assert!(found == wanted, "{} and {}", found.len(), wanted.len());
    });
}

#[test]
fn p7_one_winner_whichever_node_writes_the_checkpoint() {
    run(async {
        let world = World::new();
        let mut nodes = [world.node(), world.node()];
        write_some(&mut nodes, 20).await;
        let (one, two) = futures::join!(checkpoint(&nodes[0]), checkpoint(&nodes[1]));
        assert_ne!(one, two);
        assert_eq!(registers(&items(&world, &one).await), registers(&items(&world, &two).await));
        remove_log(&world, |_| true).await;
        for gone in [one, two] {
            let fresh = world.caught_up().await;
            assert_eq!(fresh.registers(), nodes[0].registers());
            world.store.remove(&format!("checkpoints/{gone}")).await;
        }
    });
}

#[test]
fn one_checkpoint_is_written_when_due_and_only_one() {
    run(async {
        let world = World::new();
        let (mut a, b) = (world.node(), world.node());
        for n in 0..260_u64 {
            a.publish(vec![(path("f"), Op::Put(file_of(n)))]);
            a.push().await;
            world.clock.advance(Duration::from_millis(5));
            let due = a.engine.checkpointer().unwrap().is_due();
            assert_eq!(due, n + 1 >= 256, "after {} commits", n + 1);
        }
        assert!(b.pull().await);
        for node in [&a, &b] {
            assert!(node.engine.checkpointer().unwrap().is_due());
            node.engine.checkpointer().unwrap().write_if_due().await;
            assert!(!node.engine.checkpointer().unwrap().is_due());
        }
        assert_eq!(world.keys("checkpoints/").await.len(), 1);
        let puts = b.remote().requests().puts;
        b.engine.checkpointer().unwrap().write_if_due().await;
        assert_eq!(b.remote().requests().puts, puts, "no checkpoint is due");
    });
}

#[test]
fn an_engine_writes_checkpoints_by_itself_and_at_the_end() {
    run(async {
        let world = World::new();
        let a = world.node();
        a.engine.start();
        let count = async || world.keys("checkpoints/").await.len();
        for n in 0..300_u64 {
            a.publish(vec![(path("f"), Op::Put(file_of(n)))]);
            assert!(a.engine.publisher().unwrap().drain(Duration::from_mins(1)).await.complete);
        }
        crate::clock::sleep(Duration::from_secs(40)).await;
        assert_eq!(count().await, 1);
        world.clock.advance(Duration::from_mins(1));
        for n in 0..300_u64 {
            a.publish(vec![(path("f"), Op::Put(file_of(n)))]);
            assert!(a.engine.publisher().unwrap().drain(Duration::from_mins(1)).await.complete);
        }
        assert!(a.engine.drain(Duration::from_mins(1), |_| ()).await.complete);
        assert_eq!(count().await, 2);
        // A store that hangs does not delay the end beyond its limit.
        a.engine.stop().await;
    });
}

#[test]
fn p8_never_in_the_way_of_an_end_with_a_checkpoint_due() {
    run(async {
        let world = World::new();
        let mut a = world.node();
        for n in 0..260_u64 {
            a.publish(vec![(path("f"), Op::Put(file_of(n)))]);
            a.push().await;
        }
        a.fail("hang=1");
        let begin = tokio::time::Instant::now();
        assert!(a.engine.drain(Duration::from_secs(3), |_| ()).await.complete);
        assert!(begin.elapsed() < Duration::from_millis(3100), "{:?}", begin.elapsed());
    });
}

#[test]
fn p13_bounded_a_node_that_may_not_write_tries_ever_more_rarely() {
    run(async {
        let world = World::new();
        let mut a = world.node();
        for n in 0..260_u64 {
            a.publish(vec![(path("f"), Op::Put(file_of(n)))]);
            a.push().await;
            world.clock.advance(Duration::from_millis(5));
        }
        a.fail("forbidden=1");
        let mut tries = 0;
        // Two days, in steps of a minute.
        for _ in 0..2 * 24 * 60 {
            world.clock.advance(Duration::from_mins(1));
            let checkpointer = a.engine.checkpointer().unwrap();
            if checkpointer.is_due() {
                tries += 1;
                checkpointer.write_if_due().await;
            }
        }
        assert!((8..16).contains(&tries), "{tries} tries");
        a.fail("");
        world.clock.advance(Duration::from_hours(6));
        a.engine.checkpointer().unwrap().write_if_due().await;
        assert!(!a.engine.checkpointer().unwrap().is_due());
    });
}

#[test]
fn a_crash_while_a_checkpoint_is_written_leaves_no_checkpoint() {
    run(async {
        let world = World::new();
        let mut nodes = [world.node(), world.node()];
        write_some(&mut nodes, 10).await;
        let [a, b] = nodes;
        a.fail("hang=1");
        let write = Box::pin(a.engine.checkpointer().unwrap().write());
        let written = crate::clock::within(Duration::from_secs(2), write);
        assert!(written.await.is_none());
        let a = world.node_at(a.crash());
        assert!(a.pull().await);
        assert!(world.keys("checkpoints/").await.is_empty());
        // Cut off by a store that shows objects which were not written whole.
        let name = checkpoint(&b).await;
        let key = format!("checkpoints/{name}");
        let bytes = world.store.read(&key).await.unwrap();
        world.store.overwrite(&key, bytes[..bytes.len() / 2].to_vec()).await;
        let fresh = world.caught_up().await;
        assert_eq!(fresh.registers(), b.registers());
        assert_eq!(fresh.registers(), a.registers());
    });
}

#[test]
fn p9_self_healing_a_bad_checkpoint_is_passed_over() {
    run(async {
        let world = World::new();
        let mut nodes = [world.node(), world.node()];
        write_some(&mut nodes, 20).await;
        let first = checkpoint(&nodes[0]).await;
        world.clock.advance(Duration::from_secs(1));
        nodes[0].write("between", b"x");
        nodes[0].push().await;
        let second = checkpoint(&nodes[0]).await;
        let (first, second) = (format!("checkpoints/{first}"), format!("checkpoints/{second}"));
        let good = world.store.read(&second).await.unwrap();
        let mut newer = good.to_vec();
        newer[8] = 2;
        let sum = blake3::hash(&newer[..10]);
        newer[10..26].copy_from_slice(&sum.as_bytes()[..16]);
        let mut flipped = good.to_vec();
        flipped[good.len() / 2] ^= 1;
        let renamed = world.store.read(&first).await.unwrap().to_vec();
        for bad in [newer, flipped, good[..30].to_vec(), Vec::new(), renamed] {
            world.store.overwrite(&second, bad).await;
            // From the earlier one, and the part of the log that still exists.
            let fresh = world.caught_up().await;
            assert_eq!(fresh.registers(), nodes[0].registers());
            let asked = fresh.remote().requests().gets;
            assert!(asked <= 7, "the log was not read: {asked}");
        }
        // And from the log alone.
        world.store.overwrite(&first, b"x".repeat(99)).await;
        let fresh = world.caught_up().await;
        assert_eq!(fresh.registers(), nodes[0].registers());
        assert_eq!(fresh.read("between").await, Some(b"x".to_vec()));
    });
}

/// A checkpoint promises that it has the log up to a minute before its name.
#[test]
fn what_is_written_while_a_node_folds_for_minutes_is_in_its_checkpoint() {
    run(async {
        let world = World::new();
        let (mut a, b, mut c) = (world.node(), world.node(), world.node());
        for n in 0..600 {
            a.send(&format!("f{}", n % 50), &content(n, 40)).await;
            world.clock.advance(Duration::from_millis(20));
        }
        b.fail("latency_ms=2000");
        let passing = async {
            let tick = Duration::from_millis(100);
            for n in 0..6000 {
                crate::clock::sleep(tick).await;
                world.clock.advance(tick);
                if n == 200 {
                    c.send("late", b"x").await;
                }
            }
        };
        tokio::select! {
            () = passing => panic!("the write takes too long"),
            _ = checkpoint(&b) => {}
        }
        let fresh = world.caught_up().await;
        assert!(fresh.entry("late").is_some());
    });
}

#[test]
fn a_drain_waits_for_a_checkpoint_that_is_being_written() {
    run(async {
        let world = World::new();
        let mut a = world.node();
        for n in 0..260 {
            a.send(&format!("f{}", n % 50), &content(n, 40)).await;
            world.clock.advance(Duration::from_millis(20));
        }
        a.fail("latency_ms=300");
        let draining = async {
            // The other has begun meanwhile.
            crate::clock::sleep(Duration::from_millis(100)).await;
            a.engine.drain(Duration::from_mins(1), |_| ()).await;
            world.store.keys().await.iter().any(|key| key.starts_with("checkpoints/"))
        };
        let periodic = a.engine.checkpointer().unwrap().write_if_due();
        let ((), written) = futures::join!(periodic, draining);
        assert!(written, "the drain ended before");
    });
}
