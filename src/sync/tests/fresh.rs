//! P10: what reached the remote more than `freshness` before a question is in the answer.

use std::time::Duration;

use super::harness::*;
use crate::clock::Clock;

const LONG: Duration = Duration::from_secs(5);

#[test]
fn p10_freshness_positive_and_negative_alike() {
    run(async {
        let world = World::new();
        let (mut a, b) = (world.node(), world.node());
        b.engine.start();
        let follower = b.engine.follower();
        assert!(follower.wait_fresh(LONG).await);
        assert!(follower.ready() && b.entry("f").is_none());
        for n in 0..20_u64 {
            if n % 2 == 0 {
                a.write("f", &content(n, 50));
            } else {
                a.remove("f");
            }
            a.push().await;
            // Right after the change an old answer may stand; not after the window.
            world.clock.advance(Duration::from_millis(1001));
            assert!(!follower.ready());
            assert!(follower.wait_fresh(LONG).await);
            assert_eq!(b.entry("f").is_some(), n % 2 == 0, "round {n}");
            assert!(follower.ready() && follower.ttl() <= Duration::from_secs(1));
        }
        b.engine.stop().await;
    });
}

#[test]
fn p10_freshness_zero_asks_each_time() {
    run(async {
        let mut world = World::new();
        let mut a = world.node();
        world.settings.freshness = Duration::ZERO;
        let b = world.node();
        b.engine.start();
        let follower = b.engine.follower();
        for n in 0..10_u64 {
            a.write("f", &content(n, 50));
            a.push().await;
            assert!(!follower.ready());
            let lists = b.remote().requests().lists;
            assert!(follower.wait_fresh(LONG).await);
            assert!(b.remote().requests().lists > lists);
            assert!(b.read("f").await == Some(content(n, 50)));
            assert_eq!(follower.ttl(), Duration::ZERO);
        }
        b.engine.stop().await;
    });
}

#[test]
fn one_list_serves_all_who_wait() {
    run(async {
        let world = World::new();
        let b = world.node();
        b.engine.start();
        let follower = b.engine.follower();
        assert!(follower.wait_fresh(LONG).await);
        world.clock.advance(Duration::from_secs(2));
        b.fail("latency_ms=20");
        let before = b.remote().requests().lists;
        let all = (0..500).map(|_| follower.wait_fresh(LONG));
        assert!(futures::future::join_all(all).await.into_iter().all(|fresh| fresh));
        let lists = b.remote().requests().lists - before;
        assert!(lists <= 2, "{lists} lists");
        b.engine.stop().await;
    });
}

#[test]
fn p8_never_in_the_way_of_a_store_that_is_gone() {
    run_real(async {
        let world = World::with_clock(Clock::system());
        let b = world.node();
        b.write("mine", b"x");
        b.engine.start();
        let follower = b.engine.follower();
        assert!(follower.wait_fresh(LONG).await);
        b.fail("resets=100");
        crate::clock::sleep(Duration::from_millis(1100)).await;
        let clock = Clock::system();
        assert!(!follower.wait_fresh(LONG).await, "it cannot be fresh");
        let begin = clock.mono();
        for _ in 0..200 {
            assert!(!follower.wait_fresh(LONG).await);
            assert!(!follower.ready());
        }
        let took = clock.mono().saturating_sub(begin);
        assert!(took < Duration::from_millis(500), "200 questions took {took:?}");
        assert_eq!(b.read("mine").await, Some(b"x".to_vec()));
        // And it finds out by itself that the store is back.
        b.fail("");
        let begin = clock.mono();
        while !follower.wait_fresh(LONG).await {
            assert!(clock.mono().saturating_sub(begin) < Duration::from_secs(10));
            crate::clock::sleep(Duration::from_millis(20)).await;
        }
        b.engine.stop().await;
    });
}

#[test]
fn a_wait_ends_at_its_deadline_when_the_store_hangs() {
    run(async {
        let world = World::new();
        let b = world.node();
        b.fail("hang=1");
        b.engine.start();
        assert!(!b.engine.follower().wait_fresh(Duration::from_millis(300)).await);
        b.engine.stop().await;
    });
}

#[test]
fn a_commit_that_was_listed_late_is_found() {
    run(async {
        let world = World::new();
        let (mut a, b) = (world.node(), world.node());
        a.write("f0", b"0");
        a.push().await;
        assert!(b.pull().await);
        // It was on its way for 25 seconds while others came and went.
        let mut late = world.node();
        late.write("late", b"1");
        late.upload().await;
        let stuck = late;
        for n in 1..26 {
            world.clock.advance(Duration::from_secs(1));
            a.write("f0", &content(n, 10));
            a.push().await;
            assert!(b.pull().await);
        }
        let mut late = stuck;
        late.commit().await;
        assert!(b.pull().await);
        assert!(b.entry("late").is_some());
    });
}

#[test]
fn a_node_whose_clock_is_ahead_hides_nobody() {
    run(async {
        let world = World::new();
        let ahead = World { clock: Clock::manual(NOW_MS + 3_600_000), ..world.clone() };
        let (mut early, mut a, b) = (ahead.node(), world.node(), world.node());
        early.write("f", b"future");
        early.push().await;
        assert!(b.pull().await);
        // It has not heard of the other, so its names lie an hour before.
        a.write("g", b"now");
        a.push().await;
        world.clock.advance(Duration::from_secs(5));
        assert!(b.pull().await);
        assert!(b.entry("f").is_some() && b.entry("g").is_some());
        // Whoever has seen the future writes after it.
        b.write("f", b"later");
        let mut b = b;
        b.push().await;
        assert!(early.pull().await);
        assert_eq!(early.read("f").await, Some(b"later".to_vec()));
    });
}
