//! What is reported about how a node follows the log.

use std::time::Duration;

use super::harness::*;
use crate::clock::{self, sleep};
use crate::namespace::Op;
use crate::remote::fault::FaultPlan;
use crate::sync::{Following, Unsent};

fn told(node: &Node) -> Following {
    node.engine.follower().following().expect("a remote exists")
}

const SECOND: Duration = Duration::from_secs(1);

#[test]
fn lists_have_an_age_and_may_fail() {
    run(async {
        let world = World::new();
        let b = world.node();
        assert_eq!(told(&b), Following::default());
        b.remote().give_up_head().await.unwrap();
        assert!(b.pull().await);
        world.clock.advance(7 * SECOND);
        assert_eq!((told(&b).list_age, told(&b).attempt_age), (Some(7 * SECOND), Some(7 * SECOND)));
        b.fail("status=403 only=LIST");
        assert!(!b.pull().await);
        world.clock.advance(2 * SECOND);
        let now = told(&b);
        assert_eq!((now.list_age, now.attempt_age), (Some(9 * SECOND), Some(2 * SECOND)));
        assert!(now.list_failed);
        b.faults.set(FaultPlan::default());
        assert!(b.pull().await);
        assert!(!told(&b).list_failed && told(&b).list_age == Some(Duration::ZERO));
    });
}

#[test]
fn the_lag_of_commits_is_reported() {
    run(async {
        let world = World::new();
        let (mut a, b) = (world.node(), world.node());
        assert!(b.pull().await);
        for (wait, last_ms, worst_ms) in
            [(3, 3_000, 3_000), (1, 1_000, 3_000), (400, 400_000, 400_000)]
        {
            a.send("f", &content(wait, 100)).await;
            world.clock.advance(wait as u32 * SECOND);
            assert!(b.pull().await);
            let now = told(&b);
            let near = |told: Option<u64>, wanted: u64| {
                told.is_some_and(|told| told.abs_diff(wanted) < 100)
            };
            assert!(near(now.lag_last_ms, last_ms) && near(now.lag_worst_ms, worst_ms), "{now:?}");
        }
        world.clock.advance(400 * SECOND);
        assert_eq!(told(&b).lag_worst_ms, None, "no commit for minutes");
        // The node's own commits have no lag.
        let mut c = world.node();
        c.send("mine", b"x").await;
        let c = world.node_at(c.crash());
        assert!(c.pull().await);
        let of_a = told(&c).lag_last_ms;
        assert!(of_a.is_none_or(|ms| ms >= 400_000), "{of_a:?}");
    });
}

/// Commits that were made while no program made requests have no lag.
#[test]
fn lag_counts_from_when_a_program_asks() {
    run(async {
        let world = World::new();
        let (mut a, b) = (world.node(), world.node());
        b.engine.start();
        assert!(b.engine.follower().wait_fresh(DEADLINE).await);
        world.clock.advance(600 * SECOND);
        sleep(600 * SECOND).await;
        a.send("f", &content(1, 100)).await;
        world.clock.advance(3600 * SECOND);
        assert!(b.engine.follower().wait_fresh(DEADLINE).await && b.entry("f").is_some());
        let now = told(&b);
        assert!(now.lag_last_ms.is_some_and(|ms| ms < 1_000), "{now:?}");
        b.engine.stop().await;
    });
}

#[test]
fn commits_that_cannot_be_read_are_counted() {
    run(async {
        let world = World::new();
        let mut a = world.node();
        for n in 0..3_u64 {
            a.send(&format!("f{n}"), &content(n, 100)).await;
        }
        let keys = world.log().await;
        // It has copies.
        world.store.remove("head").await;
        for (trouble, after) in [("status=503", 3), ("status=403", 1)] {
            let b = world.node();
            b.fail(&format!("{trouble} only={}", keys[0]));
            b.pull().await;
            assert_eq!(told(&b).unapplied, after, "{trouble}: {:?}", told(&b));
            b.faults.set(FaultPlan::default());
            world.clock.advance(3600 * SECOND);
            assert!(b.pull().await);
            assert_eq!(told(&b).unapplied, 0, "{trouble}");
        }
    });
}

/// Each record that is not remote counts once, by what it waits for.
#[test]
fn the_backlog_has_reasons() {
    run(async {
        let world = World::new();
        let mut a = world.node();
        let unsent = |node: &Node| node.engine.unsent();
        assert_eq!(unsent(&a), Unsent::default());
        a.write("one", &content(1, 10_000));
        assert_eq!(unsent(&a), Unsent { queued: 1, ..Unsent::default() });
        a.upload().await;
        a.write("two", &content(2, 100));
        let three = (path("three"), Op::Put(a.store(b"3")));
        let token = a.engine.ledger().publish_held(vec![three]).unwrap().1;
        assert_eq!(unsent(&a), Unsent { uploading: 1, queued: 2, ..Unsent::default() });
        a.commit().await;
        a.upload().await;
        a.write("four", &content(4, 100));
        assert_eq!(unsent(&a), Unsent { uploading: 1, held: 2, ..Unsent::default() });
        token.release();
        a.push().await;
        assert_eq!(unsent(&a), Unsent::default());
        for (trouble, wanted) in [
            ("status=503 only=packs", Unsent { throttled: 1, ..Unsent::default() }),
            ("forbidden=1 only=packs", Unsent { uploading: 1, ..Unsent::default() }),
            ("hang=1", Unsent { store_down: 1, ..Unsent::default() }),
            ("largest=2000", Unsent { refused: 1, ..Unsent::default() }),
        ] {
            a.write(trouble, &content(trouble.len() as u64, 10_000));
            a.fail(trouble);
            let seen = clock::within(600 * SECOND, async {
                let uploading = async {
                    let uploaded = a.upload_next().await;
                    Box::pin(a.engine.publisher().unwrap().commit(uploaded.unwrap())).await;
                };
                let watch = async {
                    while unsent(&a) != wanted {
                        sleep(Duration::from_millis(10)).await;
                    }
                    a.faults.set(FaultPlan::default());
                };
                futures::join!(uploading, watch);
            });
            assert!(seen.await.is_some(), "{trouble}: {:?}", unsent(&a));
        }
    });
}

/// The commits of a node carry its version, and other nodes count it.
#[test]
fn versions_of_other_nodes_are_counted() {
    run(async {
        let world = World::new();
        let (mut a, mut b, c) = (world.node(), world.node(), world.node());
        for node in [&mut a, &mut b] {
            node.send("f", b"x").await;
        }
        let count = |node: &Node| node.engine.follower().versions();
        assert!(c.pull().await);
        let own = env!("CARGO_PKG_VERSION");
        assert_eq!(count(&c), [(own.to_owned(), 2)].into());
        assert!(a.pull().await);
        assert_eq!(count(&a), [(own.to_owned(), 1)].into(), "the node does not count itself");
        world.clock.advance(Duration::from_hours(25));
        assert_eq!(count(&c), [].into(), "the other nodes are silent");
    });
}
