//! What a node holds depends on what is alive, and what it fetches depends on what is requested.

use std::time::Duration;

use super::harness::*;
use crate::namespace::Op;
use crate::sync::LOG_GRACE;

const NAMES: u64 = 100;

/// Writes all names repeatedly.
async fn rewrite(world: &World, node: &mut Node, rounds: std::ops::Range<u64>) {
    for round in rounds {
        for n in 0..NAMES {
            node.write(&format!("d/{n}"), &content(round * NAMES + n + 1, 300));
        }
        node.push().await;
        world.clock.advance(Duration::from_secs(1));
    }
}

fn located(node: &Node) -> usize {
    node.engine.ledger().read(|fold| fold.locations().count())
}

/// Follows the log for this long, and purges, as a running node does.
async fn live(world: &World, nodes: &[&Node], how_long: Duration) {
    let step = Duration::from_mins(5);
    for _ in 0..=how_long.as_secs() / step.as_secs() {
        world.clock.advance(step);
        for node in nodes {
            assert!(node.pull().await);
            node.purge();
        }
    }
}

#[test]
fn p13_bounded_dead_contents_are_forgotten_after_the_grace_time() {
    for expiry in [None, Some(Duration::from_hours(24 * 30))] {
        run(async {
            let world = World { expiry, ..World::new() };
            let (mut a, b) = (world.node(), world.node());
            rewrite(&world, &mut a, 0..30).await;
            assert!(b.pull().await);
            assert_eq!(located(&b), 30 * NAMES as usize);
            b.purge();
            assert_eq!(located(&b), 30 * NAMES as usize, "other nodes may still use them");
            let grace = LOG_GRACE + Duration::from_mins(10);
            live(&world, &[&a, &b], grace).await;
            for node in [&a, &b] {
                assert_eq!(located(node), NAMES as usize);
                node.engine.ledger().save().unwrap();
            }
            let (a, b) = (a.crash(), b.crash());
            let (a, b) = (world.node_at(a), world.node_at(b));
            for node in [&a, &b, &world.node()] {
                assert!(node.pull().await);
                live(&world, &[node], grace).await;
                assert_eq!(located(node), NAMES as usize);
                for n in 0..NAMES {
                    let want = content(29 * NAMES + n + 1, 300);
                    assert!(node.read(&format!("d/{n}")).await == Some(want), "d/{n}");
                }
            }
        });
    }
}

/// The grace time of a content begins when its last use ends, and not when it was stored.
#[test]
fn p13_bounded_what_was_used_a_moment_ago_stays_known() {
    run(async {
        let world = World::new();
        let (mut a, b) = (world.node(), world.node());
        a.send("f", &content(1, 9000)).await;
        live(&world, &[&a, &b], 3 * LOG_GRACE).await;
        let entry = a.entry("f").unwrap();
        for _ in 0..3 {
            // No node uses it for most of the grace time, and then one does for a moment.
            a.remove("f");
            a.push().await;
            live(&world, &[&a, &b], LOG_GRACE.saturating_sub(Duration::from_mins(10))).await;
            assert_eq!((located(&a), located(&b)), (1, 1));
            a.publish(vec![(path("f"), Op::Put(entry.clone()))]);
            a.push().await;
            assert!(b.pull().await);
        }
        a.remove("f");
        a.push().await;
        live(&world, &[&a, &b], LOG_GRACE + Duration::from_mins(10)).await;
        assert_eq!((located(&a), located(&b)), (0, 0));
    });
}

#[test]
fn p13_bounded_what_was_never_remote_leaves_no_tombstone() {
    run(async {
        let world = World::new();
        let mut a = world.node();
        for n in 0..1000 {
            a.write(&format!("d/{n}"), &content(n + 1, 300));
            a.remove(&format!("d/{n}"));
        }
        a.push().await;
        assert_eq!((a.registers().len(), located(&a)), (0, 0));
    });
}

/// A tier of half the working set: only a little more is fetched than is requested, also while the
/// node makes room for what it writes.
#[test]
fn a_miss_under_pressure_fetches_its_own_bytes() {
    for (size, ahead, writes) in [
        (16 << 10, false, false),
        (16 << 10, true, false),
        (16 << 10, true, true),
        (5000, true, true),
    ] {
        run(async {
            let mut world = World::new();
            world.settings.pack_bytes = 512 << 10;
            world.settings.ahead = ahead;
            let mut a = world.node();
            for n in 0..FILES {
                a.write(&format!("d/{n}"), &content(n + 1, size));
            }
            a.push().await;
            let on_disk = size.next_multiple_of(4096) as u64;
            let small = World { tier: FILES * on_disk / 2, ..world.clone() };
            let mut b = small.node();
            assert!(b.pull().await);
            let (asked, fetched) = read_at_random(&small, &mut b, size, writes).await;
            assert!(fetched <= 3 * asked, "{fetched} for {asked}: {size} {ahead} {writes}");
        });
    }
}

const FILES: u64 = 256;

/// Reads files; returns the bytes that were requested and not here, and those that were fetched.
async fn read_at_random(world: &World, node: &mut Node, size: usize, writes: bool) -> (u64, u64) {
    let before = node.fetched();
    let (mut asked, mut seed) = (0, 7_u64);
    for turn in 0..6 * FILES {
        world.clock.advance(Duration::from_secs(1));
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        let n = (seed >> 33) % FILES;
        let entry = node.entry(&format!("d/{n}")).unwrap();
        let (digest, bytes) = entry.content().unwrap();
        if !node.engine.ledger().blobs().contains(&digest) {
            asked += bytes;
        }
        assert!(node.read(&format!("d/{n}")).await == Some(content(n + 1, size)), "d/{n}");
        if writes && turn % 8 == 0 {
            node.send(&format!("own/{}", turn % 64), &content(turn + 10_000, size)).await;
        }
    }
    (asked, node.fetched() - before)
}

/// Small contents lie in commits, which travel whole. They push out nothing that was not requested,
/// and a program that reads one after the other fetches each commit once.
#[test]
fn a_miss_in_a_commit_pushes_out_only_what_is_requested() {
    run(async {
        let world = World::new();
        let mut a = world.node();
        for n in 0..4 * FILES {
            a.write(&format!("d/{n}"), &content(n + 1, 300));
            if n % 64 == 63 {
                a.push().await;
            }
        }
        for n in 0..20 {
            a.send("last", &content(n + 5000, 9000)).await;
        }
        let small = World { tier: 64 * 4096, ..world.clone() };
        let b = small.node();
        assert!(b.pull().await);
        let before = b.fetched();
        for n in 0..4 * FILES {
            assert!(b.read(&format!("d/{n}")).await == Some(content(n + 1, 300)), "d/{n}");
        }
        let (asked, fetched) = (4 * FILES * 300, b.fetched() - before);
        assert!(fetched <= 2 * asked, "{fetched} bytes fetched for {asked}");
        // What is in the tier now stays there, except for the one that makes room.
        let blobs = b.engine.ledger().blobs().clone();
        let here =
            |n: u64| blobs.contains(&b.entry(&format!("d/{n}")).unwrap().content().unwrap().0);
        let before: Vec<u64> = (0..4 * FILES).filter(|n| here(*n)).collect();
        assert!(b.read("d/0").await.is_some());
        let left = before.iter().filter(|n| here(**n)).count();
        assert!(left + 1 >= before.len(), "{left} of {} are left", before.len());
    });
}
