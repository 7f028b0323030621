//! P10: an answer includes everything that reached the remote more than `freshness` before the
//! lookup.

use std::time::Duration;

use super::checkpoints::{checkpoint, remove_log};
use super::harness::*;
use crate::clock::{Clock, sleep};
use crate::sync::{FRESH_FOR_EVER, Ledger};

const LONG: Duration = Duration::from_secs(5);

#[test]
fn p10_freshness_positive_and_negative_alike() {
    run(async {
        let world = World::new();
        let (mut a, b) = (world.node(), world.node());
        b.engine.start();
        let follower = b.engine.follower();
        assert!(follower.wait_fresh(LONG).await);
        assert!(follower.freshness().ready() && b.entry("f").is_none());
        for n in 0..20_u64 {
            if n % 2 == 0 {
                a.write("f", &content(n, 50));
            } else {
                a.remove("f");
            }
            a.push().await;
            // Right after the change an old answer is allowed; after the window it is not.
            world.clock.advance(Duration::from_millis(1001));
            assert!(!follower.freshness().ready());
            assert!(follower.wait_fresh(LONG).await);
            assert_eq!(b.entry("f").is_some(), n % 2 == 0, "round {n}");
            assert!(
                follower.freshness().ready()
                    && follower.freshness().ttl() <= Duration::from_secs(1)
            );
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
            a.send("f", &content(n, 50)).await;
            assert!(!follower.freshness().ready());
            let looks = || b.remote().requests().lists + b.remote().requests().gets;
            let before = looks();
            assert!(follower.wait_fresh(LONG).await);
            // Reading the head of the log is as good as a list.
            assert!(looks() > before);
            assert!(b.read("f").await == Some(content(n, 50)));
            assert_eq!(follower.freshness().ttl(), Duration::ZERO);
        }
        b.engine.stop().await;
    });
}

#[test]
fn one_list_serves_all_waiting_callers() {
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

/// An explanation of a miss uses a list that began after the request, at a bounded cost.
#[test]
fn a_request_of_a_person_gets_a_list_that_begins_after_it() {
    run_real(async {
        let world = World::with_clock(Clock::system());
        let (mut a, b) = (world.node(), world.node());
        b.engine.start();
        let freshness = b.engine.follower().freshness().clone();
        assert!(b.engine.follower().wait_fresh(LONG).await);
        a.send("f", b"x").await;
        assert!(freshness.ready() && b.entry("f").is_none(), "the old answer is still fresh");
        assert!(freshness.ask_anew(LONG).await);
        assert!(b.entry("f").is_some());
        let clock = Clock::system();
        let (begun, before) = (clock.mono(), b.remote().requests().lists);
        for _ in 0..4 {
            let all = (0..100).map(|_| freshness.ask_anew(LONG));
            assert!(futures::future::join_all(all).await.into_iter().all(|fresh| fresh));
        }
        let took = clock.mono().saturating_sub(begun);
        let lists = b.remote().requests().lists - before;
        let most = took.as_millis() as u64 / 250 + 2;
        assert!(lists <= 2 * most, "{lists} requests in {took:?}");
        b.fail("resets=100");
        sleep(Duration::from_millis(600)).await;
        let begun = clock.mono();
        assert!(!freshness.ask_anew(Duration::from_secs(2)).await);
        assert!(clock.mono().saturating_sub(begun) < Duration::from_secs(4));
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
        assert!(!follower.wait_fresh(LONG).await, "the node cannot be fresh");
        let begin = clock.mono();
        for _ in 0..200 {
            assert!(!follower.wait_fresh(LONG).await);
            assert!(!follower.freshness().ready());
        }
        let took = clock.mono().saturating_sub(begin);
        assert!(took < Duration::from_millis(500), "200 questions took {took:?}");
        assert_eq!(b.read("mine").await, Some(b"x".to_vec()));
        // The node finds out by itself that the store is back.
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
        a.send("f0", b"0").await;
        assert!(b.pull().await);
        // It was in flight for 25 seconds while others were made and deleted.
        let mut late = world.node();
        late.write("late", b"1");
        late.upload().await;
        let stuck = late;
        for n in 1..26 {
            world.clock.advance(Duration::from_secs(1));
            a.send("f0", &content(n, 10)).await;
            assert!(b.pull().await);
        }
        let mut late = stuck;
        late.commit().await;
        assert!(b.pull().await);
        assert!(b.entry("late").is_some());
    });
}

#[test]
fn a_node_whose_clock_is_ahead_hides_no_node() {
    run(async {
        let world = World::new();
        let ahead = World { clock: Clock::manual(NOW_MS + 3_600_000), ..world.clone() };
        let (mut early, mut a, b) = (ahead.node(), world.node(), world.node());
        early.send("f", b"future").await;
        assert!(b.pull().await);
        // It has not received anything of the other node, so the names of its commits lie an hour
        // before.
        a.send("g", b"now").await;
        world.clock.advance(Duration::from_secs(5));
        assert!(b.pull().await);
        assert!(b.entry("f").is_some() && b.entry("g").is_some());
        // A node that has seen the future stamp writes after it.
        b.write("f", b"later");
        let mut b = b;
        b.push().await;
        assert!(early.pull().await);
        assert_eq!(early.read("f").await, Some(b"later".to_vec()));
    });
}

/// A node that writes nothing knows only a lower bound of the store's time.
#[test]
fn a_reader_whose_clock_is_ahead_misses_nothing_after_a_restart() {
    run(async {
        let (two_hours, age) = (7_200_000, Duration::from_hours(4));
        let mut world = World::aging(age);
        let mut a = world.node();
        a.send("f", b"first").await;
        world.settings.read_only = true;
        let b = world.node_adrift(tempfile::tempdir().unwrap(), two_hours);
        assert!(b.pull().await);
        b.engine.ledger().save().unwrap();
        let b = world.node_adrift(b.crash(), two_hours);
        world.clock.advance(Duration::from_secs(10));
        a.send("f", b"second").await;
        assert!(b.pull().await);
        assert!(b.read("f").await == Some(b"second".to_vec()));
        // It also misses nothing after an absence so long that its namespace is rebuilt.
        world.clock.advance(2 * age);
        a.send("f", b"third").await;
        assert!(b.pull().await);
        assert!(b.read("f").await == Some(b"third".to_vec()));
        world.clock.advance(Duration::from_secs(10));
        a.send("f", b"fourth").await;
        assert!(b.pull().await);
        assert!(b.read("f").await == Some(b"fourth".to_vec()));
    });
}

/// Such a node must not take a checkpoint for older than its last list.
#[test]
fn a_reader_whose_clock_is_ahead_catches_up_after_it_was_idle() {
    run(async {
        let mut world = World::new();
        let mut a = world.node();
        a.send("f", b"first").await;
        world.settings.read_only = true;
        let b = world.node_adrift(tempfile::tempdir().unwrap(), 7_200_000);
        assert!(b.pull().await);
        world.clock.advance(Duration::from_mins(2));
        a.send("g", b"second").await;
        checkpoint(&a).await;
        assert_eq!(remove_log(&world, |_| true).await, 2);
        world.clock.advance(Duration::from_mins(40));
        assert!(b.pull().await);
        assert!(b.entry("g").is_some());
    });
}

/// What a kernel remembers of a name: until a time, and until it is notified.
#[derive(Clone, Copy)]
struct Remembered {
    version: Option<u64>,
    doubts: u64,
    until: Duration,
}

/// A kernel that asks a node for one name only when it must.
struct Kernel<'a> {
    node: &'a Node,
    name: Option<Remembered>,
    asked: u64,
}

impl Kernel<'_> {
    /// Makes a lookup; `Err` if the store had to be asked and did not answer.
    async fn look(&mut self, world: &World) -> Result<Option<u64>, ()> {
        let (ledger, freshness) =
            (self.node.engine.ledger(), self.node.engine.follower().freshness());
        if let Some(name) = self.name.filter(|name| name.doubts == ledger.applied())
            && world.clock.mono() < name.until
        {
            return Ok(name.version);
        }
        self.asked += 1;
        let doubts = ledger.applied();
        freshness.note_activity();
        let fresh = freshness.ready() || freshness.wait_fresh(LONG).await;
        let version = self.node.entry("f").and_then(|entry| entry.content()).map(|(_, size)| size);
        let until = world.clock.mono() + freshness.name_ttl();
        self.name = Some(Remembered { version, doubts, until });
        if fresh { Ok(version) } else { Err(()) }
    }
}

/// Advances timers and clock.
async fn pass(world: &World, ms: u64) {
    for _ in 0..ms {
        world.clock.advance(Duration::from_millis(1));
        sleep(Duration::from_millis(1)).await;
    }
}

#[test]
fn p10_freshness_of_names_that_the_kernel_remembers() {
    run(async {
        let world = World::new();
        let (mut a, b) = (world.node(), world.node());
        b.engine.start();
        let mut kernel = Kernel { node: &b, name: None, asked: 0 };
        // The sizes that became remote, with the times.
        let mut remote: Vec<(Duration, u64)> = Vec::new();
        let (mut seed, mut looks) = (7_u64, 0_u64);
        let mut random = move |below: u64| {
            seed = seed
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            (seed >> 33) % below
        };
        for round in 1..=150_u64 {
            match random(12) {
                // A store that is slow, that is gone, that has recovered.
                0 => b.fail(&format!("latency_ms={}", random(900))),
                1 => b.fail("resets=100"),
                2..=4 => b.fail(""),
                // No program makes a request for so long that the node stops asking the store.
                5 => pass(&world, 10_000 + random(3000)).await,
                6..=8 => {
                    a.send("f", &content(round, 100 + round as usize)).await;
                    remote.push((world.clock.mono(), 100 + round));
                }
                _ => {}
            }
            for _ in 0..random(40) {
                pass(&world, random(60)).await;
                let now = world.clock.mono();
                let asked = kernel.asked;
                // If the store cannot be asked, the name is a miss.
                let Ok(seen) = kernel.look(&world).await else { continue };
                looks += 1;
                let settled =
                    remote.iter().rev().find(|(at, _)| *at + Duration::from_secs(1) < now);
                let due = settled.map(|(_, size)| *size);
                let by = if kernel.asked > asked { "the node" } else { "the kernel" };
                assert!(seen >= due, "round {round}: {by} says {seen:?} and not {due:?}");
            }
        }
        assert!(kernel.asked * 2 < looks, "{} questions for {looks} looks", kernel.asked);
        b.engine.stop().await;
    });
}

fn doubts(ledger: &Ledger) -> std::sync::Arc<std::sync::atomic::AtomicU64> {
    let told = std::sync::Arc::new(std::sync::atomic::AtomicU64::new(0));
    let count = std::sync::Arc::clone(&told);
    ledger.subscribe(Box::new(move |_| {
        count.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
    }));
    told
}

#[test]
fn names_are_vouched_for_as_long_as_lists_come_in_time() {
    run(async {
        let world = World::new();
        let b = world.node();
        let freshness = b.engine.follower().freshness().clone();
        assert!(b.pull().await);
        assert_eq!(freshness.name_ttl(), freshness.ttl(), "no kernel caches the name");
        let told = doubts(b.engine.ledger());
        let told = || told.load(std::sync::atomic::Ordering::Relaxed);
        b.engine.start();
        assert!(freshness.wait_fresh(LONG).await);
        for _ in 0..30 {
            pass(&world, 100).await;
            freshness.note_activity();
            assert_eq!(freshness.name_ttl(), FRESH_FOR_EVER);
        }
        assert_eq!(told(), 0);
        // No program makes a request: the vouching ends once, and the store is left alone.
        pass(&world, 12_000).await;
        assert_eq!((told(), freshness.name_ttl()), (1, Duration::ZERO));
        let lists = b.remote().requests().lists;
        pass(&world, 30_000).await;
        assert_eq!((told(), b.remote().requests().lists), (1, lists));
        assert!(freshness.wait_fresh(LONG).await);
        assert_eq!(freshness.name_ttl(), FRESH_FOR_EVER);
        // The store is gone.
        b.fail("resets=100");
        pass(&world, 1100).await;
        assert_eq!((told(), freshness.name_ttl()), (2, Duration::ZERO));
        b.fail("");
        while !freshness.wait_fresh(LONG).await {
            pass(&world, 50).await;
        }
        assert_eq!(freshness.name_ttl(), FRESH_FOR_EVER);
        // The same happens when the guard ends.
        b.engine.stop().await;
        assert_eq!(told(), 3);
        assert_ne!(freshness.name_ttl(), FRESH_FOR_EVER);
    });
}

#[test]
fn a_node_that_asks_each_time_vouches_for_nothing() {
    run(async {
        for freshness in [Duration::ZERO, Duration::from_millis(200)] {
            let mut world = World::new();
            world.settings.freshness = freshness;
            let b = world.node();
            b.engine.start();
            let gate = b.engine.follower().freshness();
            assert!(gate.wait_fresh(LONG).await);
            assert!(gate.name_ttl() <= freshness);
            b.engine.stop().await;
        }
    });
}

#[test]
fn a_name_whose_bytes_are_lost_is_doubted() {
    run(async {
        let world = World::new();
        let (mut a, b) = (world.node(), world.node());
        a.send("f", &content(1, 3 << 20)).await;
        assert!(b.pull().await);
        let (digest, size) = b.entry("f").unwrap().content().unwrap();
        for key in world.keys("blobs/").await {
            world.store.remove(&key).await;
        }
        let before = b.engine.ledger().applied();
        assert!(b.engine.fetcher().fetch(digest, size).await.is_err());
        assert!(b.engine.ledger().applied() > before && b.entry("f").is_none());
    });
}
