//! Announcing commits in the head of the log: in order, in competition with other nodes, and only
//! if the store allows it.

use std::sync::atomic::Ordering;
use std::time::Duration;

use super::announced::{WIDE, announce, cost, follower, head_of};
use super::harness::*;
use crate::remote::{HeadPut, HeadRead, Throttling, keys};
use crate::stamp::{NodeId, Stamp};

#[test]
fn two_nodes_that_announce_at_once_lose_nothing() {
    run(async {
        let world = World::new();
        let (mut a, mut b) = (world.node(), world.node());
        a.send("f", b"0").await;
        b.send("g", b"0").await;
        let c = follower(&world).await;
        // Both know the same head.
        assert!(a.pull().await && b.pull().await);
        for (node, name) in [(&mut a, "f"), (&mut b, "g")] {
            node.write(name, b"1");
            node.push_unannounced().await;
        }
        let (one, two) = (a.engine.publisher().unwrap(), b.engine.publisher().unwrap());
        futures::join!(one.announce_all(), two.announce_all());
        let (lists, _) = cost(&c, c.pull()).await;
        assert_eq!(lists, 0);
        assert_eq!((c.read("f").await, c.read("g").await), (Some(b"1".into()), Some(b"1".into())));
    });
}

#[test]
fn commits_of_other_nodes_are_announced_too_after_a_lost_race() {
    run(async {
        let world = World::new();
        let (mut a, mut b) = (world.node(), world.node());
        a.send("f", b"0").await;
        assert!(b.pull().await);
        b.write("g", b"0");
        b.push_unannounced().await;
        // The head changes before b announces, and a third node has committed and not announced.
        a.send("f", b"1").await;
        let mut d = world.node();
        d.send("h", b"0").await;
        d.write("h", b"1");
        d.push_unannounced().await;
        b.engine.publisher().unwrap().announce_all().await;
        let head = head_of(b.remote()).await;
        assert_eq!(head.commits.len(), 5, "{head:?}");
        d.engine.publisher().unwrap().announce_all().await;
        assert_eq!(head_of(b.remote()).await, head, "the commits are already announced");
    });
}

/// Nodes that start on a new store follow its head from the beginning. If there were none, each would list
/// the log and read every commit of it.
#[test]
fn a_new_store_has_a_head_before_its_first_commit() {
    run(async {
        let world = World::new();
        let (mut a, b) = (world.node(), world.node());
        assert!(a.pull().await && b.pull().await);
        assert!(head_of(b.remote()).await.commits.is_empty());
        for n in 0..3_u64 {
            a.send("f", &content(n, 50)).await;
            assert_eq!(cost(&b, b.pull()).await, (0, 1), "{n}");
            assert_eq!(b.read("f").await, Some(content(n, 50)));
        }
    });
}

/// A node that has lost the race reads the head first: if another node has announced its commits meanwhile,
/// it neither lists nor reads the log.
#[test]
fn a_late_node_whose_commits_are_announced_lists_nothing() {
    run(async {
        let world = World::new();
        let (mut a, mut b) = (world.node(), world.node());
        a.send("f", b"0").await;
        b.send("g", b"0").await;
        assert!(a.pull().await && b.pull().await);
        b.write("g", b"1");
        b.push_unannounced().await;
        let name = world.log().await.last().cloned().unwrap();
        let stamp = keys::commit_stamp(name.rsplit('/').next().unwrap()).unwrap();
        announce(a.remote(), &[stamp]).await;
        let announcer = b.engine.publisher().unwrap().announcer();
        assert_eq!(cost(&b, announcer.announce_once(true)).await, (0, 1));
    });
}

/// In a busy log many nodes wait to announce, so each announces the commits of the others, too, without
/// losing a race first.
#[test]
fn commits_of_other_nodes_are_announced_too_in_a_busy_log() {
    run(async {
        let world = World::new();
        let (mut a, mut b) = (world.node(), world.node());
        for (delay, announced) in [(Duration::ZERO, 1), (Duration::from_secs(1), 4)] {
            let before = head_of(a.remote()).await.commits.len();
            for node in [&mut a, &mut b] {
                node.write("f", &(before as u64).to_le_bytes());
                node.push_unannounced().await;
            }
            let announcer = a.engine.publisher().unwrap().announcer();
            announcer.spread_over(delay);
            assert!(announcer.announce_once(false).await);
            let head = head_of(a.remote()).await;
            assert_eq!(head.commits.len(), announced, "{delay:?} {head:?}");
        }
    });
}

/// A store that throttles would refuse the reads, too: then a node announces only its own commits.
#[test]
fn a_throttled_node_announces_no_commits_of_others() {
    run(async {
        let world = World::new();
        let (mut a, mut b) = (world.node(), world.node());
        a.send("f", b"0").await;
        b.write("g", b"0");
        b.push_unannounced().await;
        a.write("f", b"1");
        a.push_unannounced().await;
        a.fail("status=503 only=LIST");
        assert!(a.remote().list_log(None).await.is_err());
        a.fail("");
        let announcer = a.engine.publisher().unwrap().announcer();
        assert_eq!(cost(&a, announcer.announce_once(true)).await, (0, 1));
        assert_eq!(head_of(a.remote()).await.commits.len(), 2);
    });
}

/// While other nodes keep a publisher from announcing, it makes no further commits: no node would see
/// them. A drain does not wait for that.
#[test]
fn a_publisher_that_cannot_announce_makes_few_commits() {
    run(async {
        let world = World::new();
        let (node, other) = (world.node(), world.node());
        node.engine.start();
        assert!(node.engine.follower().wait_fresh(Duration::from_secs(5)).await);
        // Between a read of the head and its replacement, another node replaces it.
        node.fail("latency_ms=30 only=head");
        let made = || node.engine.ledger().traffic().commits_written.load(Ordering::Relaxed);
        for ms in (0..4000_u64).step_by(20) {
            world.clock.advance(Duration::from_millis(20));
            crate::clock::sleep(Duration::from_millis(20)).await;
            if ms % 200 == 0 {
                node.write("mine", &ms.to_le_bytes());
            }
            announce(other.remote(), &[]).await;
        }
        assert!((1..=4).contains(&made()), "{} commits in four seconds", made());
        node.write("last", b"x");
        let begin = tokio::time::Instant::now();
        assert!(node.engine.drain(Duration::from_mins(1), |_| ()).await.complete);
        assert!(begin.elapsed() < Duration::from_secs(4), "{:?}", begin.elapsed());
        node.engine.stop().await;
    });
}

/// A store that lets the head be replaced once a second is no reason to hold commits back: those that wait are
/// announced together.
#[test]
fn only_other_nodes_make_a_publisher_hold_commits_back() {
    run(async {
        let world = World::new();
        let (mut a, b) = (world.node(), world.node());
        a.send("f", b"0").await;
        a.write("f", b"1");
        a.push_unannounced().await;
        let announcer = a.engine.publisher().unwrap().announcer();
        a.fail("status=429 only=head");
        assert!(!announcer.announce_once(false).await && !announcer.is_beaten());
        a.fail("");
        announce(b.remote(), &[]).await;
        assert!(!announcer.announce_once(false).await && announcer.is_beaten());
        assert!(announcer.announce_once(true).await && !announcer.is_beaten());
    });
}

#[test]
fn a_slow_announcement_is_no_reason_to_distrust() {
    run(async {
        let world = World::new();
        let mut a = world.node();
        a.send("f", b"0").await;
        let b = follower(&world).await;
        world.clock.advance(WIDE);
        a.write("f", b"1");
        a.push_unannounced().await;
        assert!(b.pull().await && b.read("f").await == Some(b"1".into()), "found by a list first");
        world.clock.advance(Duration::from_secs(20));
        a.engine.publisher().unwrap().announce_all().await;
        for _ in 0..9 {
            assert_eq!(cost(&b, b.pull()).await, (0, 1));
            world.clock.advance(Duration::from_secs(10));
        }
    });
}

#[test]
fn p5_in_order_after_a_run_that_ended_between_commit_and_announcement() {
    run(async {
        let world = World::new();
        let mut a = world.node();
        a.send("f", b"0").await;
        let b = follower(&world).await;
        a.write("first", b"1");
        a.push_unannounced().await;
        let mut a = world.node_at(a.crash());
        a.send("second", b"2").await;
        let (lists, _) = cost(&b, b.pull()).await;
        assert_eq!(lists, 0);
        assert!(
            b.entry("second").is_some() && b.entry("first").is_some(),
            "both are visible together"
        );
    });
}

/// Also in order if another node announces what it finds in the log.
#[test]
fn p5_in_order_of_announcements_for_other_nodes() {
    run(async {
        let world = World::new();
        let (mut a, mut b) = (world.node(), world.node());
        a.send("f", b"0").await;
        assert!(b.pull().await);
        b.write("g", b"0");
        b.push_unannounced().await;
        // One node has ended before it announced something, and one is new. Neither announces now.
        let mut ended = world.node();
        ended.write("first", b"1");
        ended.push_unannounced().await;
        let (mut begun, mut new) = (world.node_at(ended.crash()), world.node());
        for (node, name) in [(&mut begun, "second"), (&mut new, "third")] {
            node.write(name, b"2");
            node.push_unannounced().await;
        }
        // The head changes before b announces.
        a.send("f", b"1").await;
        b.engine.publisher().unwrap().announce_all().await;
        let head = head_of(b.remote()).await;
        let log = b.remote().list_log(None).await.unwrap();
        let log: Vec<_> = log.iter().filter_map(|item| keys::commit_stamp(&item.name)).collect();
        let of = |node: &Node, names: &[Stamp]| {
            let id = node.engine.ledger().node();
            names.iter().filter(|name| name.node == id).copied().collect::<Vec<_>>()
        };
        let named: Vec<_> = head.commits.iter().map(|commit| commit.stamp).collect();
        for node in [&a, &b, &new] {
            assert_eq!(of(node, &named), of(node, &log));
        }
        assert_eq!(of(&begun, &log).len(), 2);
        assert_eq!(of(&begun, &named), of(&begun, &log)[..1], "only the first commit is announced");
    });
}

/// A head that names no commit of a node, or only an old one, does not show which of its commits were announced.
#[test]
fn p5_in_order_of_announcements_for_nodes_that_the_head_hardly_names() {
    run(async {
        let world = World::new();
        let (mut a, mut helped) = (world.node(), world.node());
        let id = helped.engine.ledger().node();
        let named = async |node: &Node| {
            let head = head_of(node.remote()).await;
            head.commits.iter().filter(|commit| commit.stamp.node == id).count()
        };
        helped.send("h", b"0").await;
        helped.write("h", b"1");
        helped.push_unannounced().await;
        // Other nodes push all commits out that were announced.
        world.clock.advance(Duration::from_secs(5));
        let ms = a.remote().now_ms();
        for half in 0..2 {
            let names = (0..200).map(|n| Stamp { ms, counter: 0, node: NodeId(half * 200 + n) });
            announce(a.remote(), &names.collect::<Vec<_>>()).await;
        }
        assert_eq!(named(&a).await, 0);
        helped.write("h", b"2");
        helped.push_unannounced().await;
        let mut late = async |bytes: &[u8]| {
            a.write("f", bytes);
            a.push_unannounced().await;
            assert!(a.engine.publisher().unwrap().announcer().announce_once(true).await);
            named(&a).await
        };
        assert_eq!(late(b"0").await, 0, "the commit before the last may not be announced");
        helped.engine.publisher().unwrap().announce_all().await;
        helped.write("h", b"3");
        helped.push_unannounced().await;
        assert_eq!(late(b"1").await, 3, "this one follows a commit that the head names");
        for (at_s, bytes) in [(0, b"4"), (40, b"5")] {
            world.clock.advance(Duration::from_secs(at_s));
            helped.write("h", bytes);
            helped.push_unannounced().await;
        }
        assert_eq!(late(b"2").await, 3, "the list begins after the commit before the last");
    });
}

/// The first commit of such a node is too old for the list.
#[test]
fn p5_in_order_of_announcements_for_nodes_whose_first_commit_is_not_listed() {
    run(async {
        let world = World::new();
        let (mut a, mut silent) = (world.node(), world.node());
        for bytes in [b"0", b"1"] {
            world.clock.advance(Duration::from_secs(40));
            silent.write("h", bytes);
            silent.push_unannounced().await;
        }
        a.write("f", b"0");
        a.push_unannounced().await;
        assert!(a.engine.publisher().unwrap().announcer().announce_once(true).await);
        let head = head_of(a.remote()).await;
        assert_eq!((head.from, head.commits.len()), (1, 1), "only the own commit: {head:?}");
    });
}

/// A commit that was not announced in time is in no list of the last minute either.
#[test]
fn p5_in_order_where_a_list_takes_the_place_of_the_head() {
    run(async {
        let world = World::new();
        let mut a = world.node();
        a.send("f", b"0").await;
        let (b, mut c) = (follower(&world).await, world.node());
        a.write("first", b"1");
        a.push_unannounced().await;
        for minute in 0..5_u8 {
            world.clock.advance(Duration::from_mins(1));
            c.send("other", &[minute]).await;
            assert_eq!(cost(&b, b.pull()).await.0, 0, "the head is enough");
        }
        let mut a = world.node_at(a.crash());
        a.send("second", b"2").await;
        // The head is unreadable just now.
        b.fail("status=500 only=head");
        assert!(b.pull().await && b.entry("second").is_some());
        assert!(b.entry("first").is_some(), "both are visible together");
    });
}

#[test]
fn an_announcement_whose_reply_is_lost_is_made_once() {
    run(async {
        let world = World::new();
        let mut a = world.node();
        a.send("f", b"0").await;
        a.write("f", b"1");
        a.push_unannounced().await;
        a.fail("lost=100 only=head");
        a.engine.publisher().unwrap().announce_all().await;
        a.fail("");
        a.engine.publisher().unwrap().announce_all().await;
        let head = head_of(a.remote()).await;
        assert_eq!((head.number, head.commits.len()), (3, 2), "{head:?}");
    });
}

#[test]
fn a_store_that_ignores_conditions_has_no_head() {
    run(async {
        let world = World::new();
        let mut a = world.node();
        a.fail("unconditional=1");
        a.send("f", b"0").await;
        let found = a.remote().get_head(None).await.unwrap();
        assert!(matches!(found, HeadRead::Unusable(..)), "{found:?}");
        let b = world.node();
        for n in 0..5_u64 {
            a.send("f", &content(n, 50)).await;
            let (lists, _) = cost(&b, b.pull()).await;
            assert!(lists > 0 && b.read("f").await == Some(content(n, 50)), "{n}");
        }
    });
}

#[test]
fn a_head_that_may_not_be_written_or_read_holds_nothing_up() {
    run(async {
        let world = World::new();
        let mut a = world.node();
        a.send("f", b"0").await;
        let b = follower(&world).await;
        for fault in ["forbidden=1 only=head", "status=405 only=head", "status=503 only=head"] {
            b.fail(fault);
            a.send("f", fault.as_bytes()).await;
            // While a store throttles, the fourth look lists the log.
            let mut looks = 0;
            while !b.pull().await {
                looks += 1;
                assert!(looks < 4, "{fault}");
            }
            assert!(b.read("f").await == Some(fault.into()), "{fault}");
            b.fail("");
            world.clock.advance(WIDE);
            assert!(b.pull().await);
            a.fail(fault);
            a.engine.start();
            a.write("g", fault.as_bytes());
            let report = a.engine.drain(DEADLINE, |_| ()).await;
            assert!(report.complete, "{fault}: {report:?}");
            a.engine.kill().await;
            a.fail("");
            world.clock.advance(WIDE);
            assert!(b.pull().await && b.read("g").await == Some(fault.into()), "{fault}");
        }
    });
}

#[test]
fn a_store_that_lets_no_head_be_replaced_has_none() {
    run(async {
        let world = World::new();
        let mut a = world.node();
        a.fail("conflicts=1");
        a.send("f", b"0").await;
        let b = follower(&world).await;
        let found = b.remote().get_head(None).await.unwrap();
        assert!(matches!(found, HeadRead::Unusable(..)), "{found:?}");
        for n in 0..5_u64 {
            a.send("f", &content(n, 50)).await;
            let (lists, _) = cost(&b, b.pull()).await;
            assert!(lists > 0 && b.read("f").await == Some(content(n, 50)), "{n}");
        }
        let found = a.remote().get_head(None).await.unwrap();
        assert!(matches!(found, HeadRead::Unusable(..)), "{found:?}");
    });
}

/// Google lets one object be replaced once a second. That is no reason to publish less often.
#[test]
fn a_head_that_was_replaced_too_soon_is_no_throttling() {
    run(async {
        let world = World::new();
        let mut a = world.node();
        a.send("f", b"0").await;
        a.write("f", b"1");
        a.push_unannounced().await;
        a.fail("status=429 only=head");
        let head = head_of(world.node().remote()).await;
        let put = a.remote().put_head(&head, None).await;
        assert!(matches!(put, Ok(HeadPut::TooSoon)), "{put:?}");
        assert_eq!(a.remote().throttling(), Throttling::default());
        let tried = a.remote().put_stale_head().await;
        assert!(matches!(tried, Ok(HeadPut::TooSoon)), "{tried:?}");
        a.fail("");
        a.engine.publisher().unwrap().announce_all().await;
        assert_eq!(head_of(a.remote()).await.commits.len(), 2);
    });
}

/// A node tries first whether the store respects conditions. Where other nodes replace the head all the time,
/// several of its attempts come too soon, and more so if a drain hurries; that must not delay the next one.
#[test]
fn a_node_whose_first_attempts_come_too_soon_announces_soon_afterwards() {
    run(async {
        let world = World::new();
        let node = world.node();
        node.engine.start();
        assert!(node.engine.follower().wait_fresh(Duration::from_secs(5)).await);
        node.fail("status=429 only=head");
        node.write("f", b"x");
        // Hurries until it has waited for the announcement long enough.
        assert!(node.engine.drain(Duration::from_mins(1), |_| ()).await.complete);
        let other = world.node();
        assert_eq!(head_of(other.remote()).await.commits.len(), 0);
        node.fail("");
        crate::clock::sleep(Duration::from_millis(2100)).await;
        assert_eq!(head_of(other.remote()).await.commits.len(), 1);
        node.engine.stop().await;
    });
}
