//! Bundles: commits that no checkpoint has yet are read with few requests, and nothing is missed if
//! a bundle is wrong.

use std::time::Duration;

use super::checkpoints::{checkpoint, remove_log};
use super::gc::collect;
use super::harness::*;
use crate::namespace::Op;
use crate::remote::{Bundle, BundleName};
use crate::stamp::Stamp;

const SECOND: Duration = Duration::from_secs(1);
/// Commits older than this are bundled.
const SETTLED: Duration = Duration::from_secs(100);

/// Makes a namespace whose checkpoint is large compared with later commits, and writes that
/// checkpoint.
async fn large(world: &World) -> Node {
    let mut node = world.node();
    // Names that do not compress make it large.
    let name = |n: u64| {
        let parts = (0..8).map(|part| hex(&content(n * 8 + part + 1, 120)));
        path(&parts.collect::<Vec<_>>().join("/"))
    };
    node.publish((0..300).map(|n| (name(n), Op::Put(file_of(n)))).collect());
    node.push().await;
    world.clock.advance(SETTLED);
    checkpoint(&node).await;
    world.clock.advance(SECOND * 2);
    node
}

fn hex(bytes: &[u8]) -> String {
    let digits = bytes.iter().flat_map(|byte| [byte >> 4, byte & 15]);
    digits.map(|digit| char::from_digit(u32::from(digit), 16).unwrap()).collect()
}

/// Writes commits, a second apart.
async fn write_some(world: &World, node: &mut Node, count: u64) {
    for n in 0..count {
        node.send(&format!("f{}", n % 7), &content(world.clock.wall_ms() + n, 40)).await;
        world.clock.advance(SECOND);
    }
}

async fn bundles(world: &World) -> Vec<BundleName> {
    let keys = world.store.keys().await;
    keys.iter().filter_map(|key| BundleName::parse(key.strip_prefix("checkpoints/")?)).collect()
}

async fn tidy(world: &World, node: &Node) {
    world.clock.advance(SETTLED);
    node.engine.checkpointer().unwrap().write_if_due().await;
}

/// Makes such a namespace, with a bundle of the commits after its checkpoint.
async fn bundled(world: &World) -> (Node, BundleName) {
    let mut node = large(world).await;
    write_some(world, &mut node, 40).await;
    tidy(world, &node).await;
    let made = bundles(world).await;
    assert_eq!(made.len(), 1);
    (node, made[0])
}

async fn read_bundle(world: &World, name: &BundleName) -> Bundle {
    let key = format!("checkpoints/{name}");
    Bundle::decode(&world.store.read(&key).await.unwrap()).unwrap()
}

async fn assert_starts(world: &World, like: &Node) -> Node {
    let fresh = world.caught_up().await;
    assert_eq!(fresh.registers(), like.registers());
    assert!(!fresh.engine.ledger().is_partial());
    fresh
}

async fn checkpoint_bytes(world: &World) -> (usize, u64) {
    let keys = world.store.keys().await;
    let mut all = (0, 0);
    for key in keys.iter().filter(|key| key.strip_suffix(".ckpt").is_some()) {
        all = (all.0 + 1, all.1 + world.store.read(key).await.unwrap().len() as u64);
    }
    all
}

#[test]
fn commits_of_a_large_namespace_are_bundled_instead_of_a_new_checkpoint() {
    run(async {
        let world = World::new();
        let mut a = large(&world).await;
        let log_before = world.store.bytes("log").await;
        let (_, ckpt_bytes) = checkpoint_bytes(&world).await;
        let mut rounds = 0;
        while world.store.bytes("log").await - log_before < ckpt_bytes / 4 {
            write_some(&world, &mut a, 40).await;
            tidy(&world, &a).await;
            rounds += 1;
        }
        assert!(rounds >= 4, "{rounds} rounds");
        assert_eq!(checkpoint_bytes(&world).await.0, 1, "no bundle is due yet");
        // Few commits are left to read, however many there were.
        let fresh = assert_starts(&world, &a).await;
        let asked = fresh.remote().requests();
        assert!(asked.gets <= 3 + 6 && asked.lists <= 2, "{rounds} rounds: {asked:?}");
        let mut log = world.store.bytes("log").await;
        for _ in 0..30 {
            let before = world.store.bytes("log").await;
            write_some(&world, &mut a, 40).await;
            log += world.store.bytes("log").await - before;
            tidy(&world, &a).await;
        }
        let (count, bytes) = checkpoint_bytes(&world).await;
        assert!(count > 1 && bytes - ckpt_bytes <= 2 * log, "{count}: {bytes} for {log}");
        assert_starts(&world, &a).await;
    });
}

#[test]
fn a_node_that_was_away_for_some_minutes_reads_a_bundle_and_not_each_commit() {
    run(async {
        let world = World::new();
        let mut a = large(&world).await;
        let b = world.caught_up().await;
        write_some(&world, &mut a, 300).await;
        tidy(&world, &a).await;
        assert_eq!(bundles(&world).await.len(), 1);
        let before = b.remote().requests();
        assert!(b.pull().await);
        let asked = b.remote().requests();
        assert!(asked.gets - before.gets <= 4 && asked.lists - before.lists <= 3, "{asked:?}");
        assert_eq!(a.registers(), b.registers());
        assert!(b.read("f3").await == a.read("f3").await);
    });
}

#[test]
fn a_bad_bundle_costs_requests_and_nothing_else() {
    run(async {
        let world = World::new();
        let (a, name) = bundled(&world).await;
        let key = format!("checkpoints/{name}");
        let good = world.store.read(&key).await.unwrap();
        let sealed = |bundle: &Bundle| bundle.encode().unwrap();
        let whole = Bundle::decode(&good).unwrap();
        let mut newer = good.to_vec();
        newer[8] = 2;
        let end = newer.len() - 32;
        let sum = *blake3::hash(&newer[..end]).as_bytes();
        newer[end..].copy_from_slice(&sum);
        let other = Bundle { upto_ms: whole.upto_ms + 1, ..whole.clone() };
        let mut damaged = whole.clone();
        damaged.commits[5].1 = b"damaged".to_vec().into();
        // Commits that it could not have, and one that no node can have.
        let mut lacking = whole.clone();
        lacking.lacking = lacking.commits.split_off(20).into_iter().map(|one| one.0).collect();
        for (what, bad) in [
            ("cut", good[..good.len() / 2].to_vec()),
            ("newer", newer),
            ("another", sealed(&other)),
            ("empty", Vec::new()),
            ("lacking", sealed(&lacking)),
            ("huge", vec![0; 65 << 20]),
        ] {
            world.store.overwrite(&key, bad).await;
            let fresh = world.node();
            assert!(fresh.pull().await, "{what}");
            assert_eq!(fresh.registers(), a.registers(), "{what}");
            assert!(!fresh.engine.ledger().is_partial(), "{what}");
        }
        // A commit that is damaged in a bundle is read from the log, at a start and later.
        world.store.overwrite(&key, sealed(&damaged)).await;
        let fresh = world.node();
        assert!(fresh.pull().await && !fresh.engine.ledger().is_partial());
        assert_eq!(fresh.registers(), a.registers());
        world.store.remove(&key).await;
        assert_starts(&world, &a).await;
    });
}

/// A slow store gets smaller bundles; it still gets some.
#[test]
fn a_bundle_is_written_in_time_however_slow_the_store() {
    run(async {
        let world = World::new();
        let mut a = large(&world).await;
        write_some(&world, &mut a, 200).await;
        world.clock.advance(SETTLED);
        a.fail("latency_ms=1000");
        let checkpointer = a.engine.checkpointer().unwrap();
        for round in 1..=2 {
            tokio::select! {
                () = two_minutes(&world) => panic!("the write takes too long"),
                () = checkpointer.write_if_due() => {}
            }
            assert_eq!(bundles(&world).await.len(), round);
        }
        assert_starts(&world, &a).await;
    });
}

/// Advances timers and clock by two minutes.
async fn two_minutes(world: &World) {
    for _ in 0..1200 {
        crate::clock::sleep(SECOND / 10).await;
        world.clock.advance(SECOND / 10);
    }
}

#[test]
fn lists_in_any_order_make_the_same_bundles() {
    run(async {
        let world = World::new();
        let mut a = large(&world).await;
        a.fail("disordered=1");
        for _ in 0..3 {
            write_some(&world, &mut a, 40).await;
            tidy(&world, &a).await;
        }
        assert!(!bundles(&world).await.is_empty());
        let fresh = world.node();
        fresh.fail("disordered=1");
        assert!(fresh.pull().await);
        assert_eq!(fresh.registers(), a.registers());
        assert!(fresh.remote().requests().gets <= 6, "{:?}", fresh.remote().requests());
    });
}

#[test]
fn two_nodes_that_bundle_at_once_do_no_harm() {
    run(async {
        let world = World::new();
        let mut a = large(&world).await;
        let b = world.node();
        write_some(&world, &mut a, 40).await;
        assert!(b.pull().await);
        world.clock.advance(SETTLED + Duration::from_mins(5));
        for node in [&a, &b] {
            node.fail("latency_ms=50");
        }
        let both = [&a, &b].map(|node| node.engine.checkpointer().unwrap().write_if_due());
        futures::future::join_all(both).await;
        let made = bundles(&world).await;
        assert_eq!(made.len(), 2);
        a.fail("");
        assert_starts(&world, &a).await;
        for gone in made {
            world.store.remove(&format!("checkpoints/{gone}")).await;
            write_some(&world, &mut a, 40).await;
            tidy(&world, &a).await;
            assert_starts(&world, &a).await;
        }
    });
}

#[test]
fn the_end_of_a_run_does_not_wait_for_a_bundle() {
    run(async {
        let world = World::new();
        let mut a = large(&world).await;
        write_some(&world, &mut a, 40).await;
        world.clock.advance(SETTLED);
        assert!(a.engine.checkpointer().unwrap().is_due());
        let before = a.remote().requests();
        assert!(a.engine.drain(SECOND, |_| ()).await.complete);
        assert_eq!(a.remote().requests(), before);
    });
}

/// Programs of a busy fleet make hundreds of commits while the first of them get old enough.
#[test]
fn a_bundle_is_written_as_soon_as_its_commits_are_old_enough() {
    run(async {
        let world = World::new();
        let mut node = large(&world).await;
        for n in 0..300_u64 {
            node.send(&format!("f{}", n % 7), &content(n + 1, 40)).await;
            world.clock.advance(Duration::from_millis(1));
        }
        let checkpointer = node.engine.checkpointer().unwrap();
        world.clock.advance(SECOND * 5);
        checkpointer.write_if_due().await;
        let before = node.remote().requests();
        world.clock.advance(SECOND * 54);
        checkpointer.write_if_due().await;
        assert_eq!(node.remote().requests(), before, "it is known that none is old enough");
        world.clock.advance(SECOND * 2);
        checkpointer.write_if_due().await;
        assert_eq!(bundles(&world).await.len(), 1);
    });
}

/// The node that has written the last one continues; another one takes over if it does not.
#[test]
fn one_node_bundles_for_all() {
    run(async {
        let world = World::new();
        let mut a = large(&world).await;
        let b = world.node();
        write_some(&world, &mut a, 40).await;
        assert!(b.pull().await);
        tidy(&world, &b).await;
        assert_eq!(bundles(&world).await.len(), 0, "the other node's turn");
        let asked = b.remote().requests();
        world.clock.advance(SECOND * 30);
        b.engine.checkpointer().unwrap().write_if_due().await;
        assert_eq!(b.remote().requests(), asked, "it does not look again soon");
        world.clock.advance(Duration::from_mins(5));
        b.engine.checkpointer().unwrap().write_if_due().await;
        assert_eq!(bundles(&world).await.len(), 1, "the other node missed its turn");
    });
}

#[test]
fn a_clock_that_jumps_a_day_while_bundling_hides_nothing() {
    run(async {
        for day in [-1, 1] {
            let world = World::new();
            let (mut a, made) = bundled(&world).await;
            let mut bundle = read_bundle(&world, &made).await;
            world.store.remove(&format!("checkpoints/{made}")).await;
            // Like a bundle of a node whose clock is wrong.
            bundle.upto_ms = bundle.upto_ms.strict_add_signed(day * 24 * 3_600_000);
            bundle.from_ms = bundle.from_ms.min(bundle.upto_ms - 1);
            let upto = Stamp { ms: bundle.upto_ms, ..made.upto };
            let name = BundleName { upto, from_ms: bundle.from_ms };
            let key = format!("checkpoints/{name}");
            world.store.overwrite(&key, bundle.encode().unwrap()).await;
            for _ in 0..3 {
                write_some(&world, &mut a, 40).await;
                assert_starts(&world, &a).await;
                tidy(&world, &a).await;
                assert_starts(&world, &a).await;
            }
        }
    });
}

/// A commit that arrived after its time was bundled is looked for when the next one of its node is
/// read.
#[test]
fn what_came_too_late_for_a_bundle_is_found_in_the_log() {
    run(async {
        let world = World::new();
        let mut a = large(&world).await;
        write_some(&world, &mut a, 20).await;
        a.send("late", b"x").await;
        let late = &world.log().await.pop().unwrap();
        let bytes = world.store.read(late).await.unwrap();
        world.clock.advance(SECOND);
        write_some(&world, &mut a, 20).await;
        world.store.remove(late).await;
        tidy(&world, &a).await;
        assert_eq!(bundles(&world).await.len(), 1);
        world.store.overwrite(late, bytes.to_vec()).await;
        assert_starts(&world, &a).await;
    });
}

/// An unfinished bundle leaves nothing behind, or a complete bundle.
#[test]
fn a_node_that_stops_while_bundling_is_followed_by_another() {
    run(async {
        for stop_ms in (0..6000).step_by(500) {
            let world = World::new();
            let mut a = large(&world).await;
            let b = world.node();
            write_some(&world, &mut a, 40).await;
            assert!(b.pull().await);
            world.clock.advance(SETTLED);
            a.fail("latency_ms=300");
            let writing = Box::pin(a.engine.checkpointer().unwrap().write_if_due());
            crate::clock::within(Duration::from_millis(stop_ms), writing).await;
            let stopped = a.crash();
            assert_starts(&world, &b).await;
            world.clock.advance(Duration::from_mins(10));
            b.engine.checkpointer().unwrap().write_if_due().await;
            assert!(!bundles(&world).await.is_empty(), "after {stop_ms} ms");
            let fresh = assert_starts(&world, &b).await;
            assert!(fresh.remote().requests().gets <= 4, "{:?}", fresh.remote().requests());
            let a = world.node_at(stopped);
            assert!(a.pull().await);
            assert_eq!(a.registers(), b.registers());
        }
    });
}

#[test]
fn bundles_are_collected_when_a_settled_checkpoint_has_what_they_have() {
    run(async {
        let world = World::new();
        let (a, _) = bundled(&world).await;
        checkpoint(&a).await;
        for (minutes, left) in [(30, 1), (40, 0)] {
            world.clock.advance(Duration::from_mins(minutes));
            let report = collect(&a, false).await;
            assert_eq!(bundles(&world).await.len(), left, "{report:?}");
            assert_eq!(report.foreign.objects, 0);
        }
        remove_log(&world, |_| true).await;
        assert_starts(&world, &a).await;
    });
}

/// The node that has written the last bundle may never return.
#[test]
fn a_checkpoint_that_is_due_for_its_age_is_written_although_bundles_have_everything() {
    run(async {
        let world = World::aging(Duration::from_hours(96));
        drop(bundled(&world).await);
        let b = world.caught_up().await;
        world.clock.advance(Duration::from_hours(25));
        for _ in 0..6 {
            assert!(b.pull().await);
            b.engine.checkpointer().unwrap().write_if_due().await;
            world.clock.advance(Duration::from_mins(5));
        }
        assert_eq!(checkpoint_bytes(&world).await.0, 2);
        assert_starts(&world, &b).await;
    });
}

/// Only later commits of the same node wait for a commit that cannot be read now.
#[test]
fn what_a_bundle_lacks_holds_up_no_other_node() {
    run(async {
        let world = World::new();
        let mut a = large(&world).await;
        let (mut b, reader) = (world.node(), world.node());
        assert!(reader.pull().await);
        write_some(&world, &mut a, 40).await;
        tidy(&world, &a).await;
        let name = bundles(&world).await[0];
        let mut bundle = read_bundle(&world, &name).await;
        let (lacking, _) = bundle.commits.remove(20);
        bundle.lacking.push(lacking);
        world.store.overwrite(&format!("checkpoints/{name}"), bundle.encode().unwrap()).await;
        world.clock.advance(Duration::from_mins(6));
        b.send("other", b"x").await;
        let name = crate::remote::keys::commit_name(&lacking);
        reader.fail(&format!("status=503 only={name}"));
        assert!(!reader.pull().await, "a commit waits");
        assert!(reader.entry("other").is_some());
        let before = reader.remote().requests();
        assert!(!reader.pull().await);
        let asked = reader.remote().requests();
        assert!(asked.gets <= before.gets + 8, "little is read: {before:?} {asked:?}");
        reader.fail("");
        assert!(reader.pull().await);
        assert!(b.pull().await);
        assert_eq!(reader.registers(), b.registers());
    });
}

/// The time for a bundle may be over as soon as it is begun: a machine may be suspended.
#[test]
fn a_bundle_has_a_commit_however_long_the_list_took() {
    run(async {
        let world = World::new();
        let mut a = large(&world).await;
        write_some(&world, &mut a, 40).await;
        world.clock.advance(SETTLED);
        a.fail("latency_ms=1000 only=LIST");
        let suspended = async {
            crate::clock::sleep(SECOND * 3 / 2).await;
            world.clock.advance(SECOND * 16);
        };
        futures::join!(a.engine.checkpointer().unwrap().write_if_due(), suspended);
        let name = bundles(&world).await[0];
        assert!(!read_bundle(&world, &name).await.commits.is_empty());
    });
}

/// A lookup that waits for a list must not wait for a bundle with much more than the new commits.
#[test]
fn a_node_that_was_idle_reads_a_few_commits_from_the_log() {
    run(async {
        let world = World::new();
        let mut a = large(&world).await;
        write_some(&world, &mut a, 300).await;
        let b = world.caught_up().await;
        world.clock.advance(Duration::from_mins(7));
        write_some(&world, &mut a, 2).await;
        tidy(&world, &a).await;
        assert_eq!(bundles(&world).await.len(), 1);
        let before = b.remote().requests();
        assert!(b.pull().await);
        let asked = b.remote().requests();
        assert!(asked.bytes_down - before.bytes_down < 10_000, "{before:?} {asked:?}");
        assert!(asked.gets - before.gets <= 2 && asked.lists - before.lists <= 2, "{asked:?}");
        assert_eq!(a.registers(), b.registers());
    });
}
