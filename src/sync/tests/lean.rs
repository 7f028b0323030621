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

/// A tier of half the working set: only a little more is fetched than is requested.
#[test]
fn a_miss_under_pressure_fetches_its_own_bytes() {
    const FILES: u64 = 256;
    const SIZE: usize = 16 << 10;
    for ahead in [false, true] {
        run(async {
            let mut world = World::new();
            world.settings.pack_bytes = 512 << 10;
            world.settings.ahead = ahead;
            let mut a = world.node();
            for n in 0..FILES {
                a.write(&format!("d/{n}"), &content(n + 1, SIZE));
            }
            a.push().await;
            let small = World { tier: FILES * SIZE as u64 / 2, ..world.clone() };
            let b = small.node();
            assert!(b.pull().await);
            let before = b.fetched();
            let (mut asked, mut seed) = (0, 7_u64);
            for _ in 0..6 * FILES {
                seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                let n = (seed >> 33) % FILES;
                let entry = b.entry(&format!("d/{n}")).unwrap();
                let (digest, size) = entry.content().unwrap();
                if !b.engine.ledger().blobs().contains(&digest) {
                    asked += size;
                }
                assert!(b.read(&format!("d/{n}")).await == Some(content(n + 1, SIZE)), "d/{n}");
            }
            let fetched = b.fetched() - before;
            assert!(fetched <= 3 * asked, "{fetched} bytes fetched for {asked}, ahead: {ahead}");
        });
    }
}
