//! P8: trouble of the store that may pass is waited out, and affects only the object in question.

use std::sync::atomic::Ordering;
use std::time::Duration;

use super::harness::*;
use crate::clock::{Clock, sleep, within};
use crate::namespace::Op;
use crate::remote::fault::FaultPlan;
use crate::remote::{Health, Throttling};

/// Writes four packs of six files each, and returns their keys.
async fn four_packs(world: &World) -> Vec<String> {
    let mut a = world.node();
    for pack in 0..4_u64 {
        for n in 0..6_u64 {
            a.write(&name(pack, n), &content(pack * 10 + n, 6000));
        }
        a.push().await;
    }
    let packs: Vec<String> = world.keys("packs/").await;
    assert_eq!(packs.len(), 4);
    packs
}

fn name(pack: u64, n: u64) -> String {
    format!("p{pack}/{n}")
}

/// Every other pack is read while one is in trouble, whatever the trouble is.
async fn others_are_read(node: &Node) {
    for pack in 1..4_u64 {
        for n in 0..6_u64 {
            let read = node.read(&name(pack, n)).await;
            assert!(read == Some(content(pack * 10 + n, 6000)), "{}", name(pack, n));
        }
    }
}

#[test]
fn p8_never_in_the_way_a_throttled_pack_is_waited_for() {
    run(async {
        let world = World::new();
        let packs = four_packs(&world).await;
        for trouble in ["status=503", "status=429", "status=500", "resets=100"] {
            let b = world.caught_up().await;
            b.fail(&format!("{trouble} only={}", packs[0]));
            let heal = async {
                sleep(Duration::from_secs(3)).await;
                b.faults.set(FaultPlan::default());
            };
            let wanted = name(0, 0);
            let (read, ()) = futures::join!(b.read(&wanted), heal);
            assert!(read == Some(content(0, 6000)), "{trouble}");
        }
    });
}

/// A node that does not see what others publish waits before it uploads the same. A drain ends that
/// wait.
#[test]
fn p8_never_in_the_way_of_a_drain_while_lists_are_throttled() {
    run(async {
        let world = World::new();
        let node = world.node();
        node.remote().give_up_head().await.unwrap();
        node.engine.start();
        assert!(node.engine.follower().wait_fresh(Duration::from_secs(5)).await);
        let uploaded = || node.engine.ledger().traffic().uploaded.load(Ordering::Relaxed);
        let pass = async |tenths| {
            for _ in 0..tenths {
                world.clock.advance(Duration::from_millis(100));
                sleep(Duration::from_millis(100)).await;
            }
        };
        pass(20).await;
        node.fail("status=503 only=LIST");
        node.write("one", &content(1, 20_000));
        pass(600).await;
        assert_eq!(uploaded(), 0, "the state of the others is unknown");
        let drain = node.engine.drain(Duration::from_mins(1), |_| ());
        let (report, ()) = futures::join!(drain, pass(100));
        assert!(report.complete && report.elapsed_ms < 5000, "{report:?}");
        assert_eq!(uploaded(), 1);
        // It does not wait for ever, either.
        node.write("two", &content(2, 20_000));
        pass(600).await;
        assert_eq!(uploaded(), 1);
        pass(4000).await;
        assert_eq!(uploaded(), 2);
        node.engine.stop().await;
    });
}

/// Throttled requests are counted by their status, and their waits are measured.
#[test]
fn throttling_is_counted_and_its_waits_are_measured() {
    run(async {
        let world = World::new();
        let packs = four_packs(&world).await;
        for (trouble, places) in
            [("429", [true, false]), ("503", [false, true]), ("500", [false; 2])]
        {
            let b = world.caught_up().await;
            assert_eq!(b.remote().throttling(), Throttling::default());
            b.fail(&format!("status={trouble} only={}", packs[0]));
            let heal = async {
                for _ in 0..30 {
                    world.clock.advance(Duration::from_millis(100));
                    sleep(Duration::from_millis(100)).await;
                }
                let now = b.remote().throttling().now;
                b.faults.set(FaultPlan::default());
                for _ in 0..20 {
                    world.clock.advance(Duration::from_millis(100));
                    sleep(Duration::from_millis(100)).await;
                }
                now
            };
            let wanted = name(0, 0);
            let (read, now) = futures::join!(b.read(&wanted), heal);
            assert!(read.is_some(), "{trouble}");
            let told = b.remote().throttling();
            let throttled = places.contains(&true);
            assert_eq!(told.answers.map(|count| count > 0), places, "{told:?}");
            let waited = Duration::from_secs(2)..Duration::from_secs(5);
            assert_eq!((now, waited.contains(&told.waited)), (throttled, throttled), "{told:?}");
            world.clock.advance(Duration::from_secs(10));
            assert!(!b.remote().throttling().now);
        }
    });
}

#[test]
fn p8_never_in_the_way_of_entries_that_lie_elsewhere() {
    run(async {
        let world = World::new();
        let packs = four_packs(&world).await;
        for trouble in ["status=503", "status=403", "status=404", "forbidden=1", "resets=100"] {
            let b = world.caught_up().await;
            b.fail(&format!("{trouble} only={}", packs[0]));
            assert!(b.read(&name(0, 1)).await.is_none(), "{trouble}");
            others_are_read(&b).await;
            assert_eq!(b.remote().health(), Health::Up, "{trouble}");
        }
    });
}

/// Many programs that wait for one pack send no more requests for it than one program.
#[test]
fn p13_bounded_requests_for_a_pack_that_is_throttled() {
    run(async {
        let world = World::new();
        let packs = four_packs(&world).await;
        let b = world.caught_up().await;
        b.fail(&format!("status=503 only={}", packs[0]));
        let names: Vec<String> = (0..60).map(|n| name(0, n % 6)).collect();
        let reads = names.iter().map(|name| b.read(name));
        let read = within(Duration::from_millis(5500), futures::future::join_all(reads)).await;
        assert!(read.expect("within the deadline").iter().all(Option::is_none));
        assert!(b.faults.met() < 20, "{} requests", b.faults.met());
        let read = within(Duration::from_secs(4), b.read(&name(0, 1))).await;
        assert!(read.is_none(), "a later reader also waits");
    });
}

#[test]
fn p8_never_in_the_way_of_what_is_known_when_lists_are_refused() {
    run(async {
        let world = World::new();
        four_packs(&world).await;
        for trouble in ["status=503", "status=403", "resets=100"] {
            let b = world.node();
            b.engine.start();
            assert!(b.engine.follower().wait_fresh(DEADLINE).await);
            b.fail(&format!("{trouble} only=LIST"));
            for pack in 0..4_u64 {
                for n in 0..6_u64 {
                    // Like a lookup and an open, from time to time.
                    b.engine.follower().wait_fresh(DEADLINE).await;
                    let read = b.read(&name(pack, n)).await;
                    assert!(read == Some(content(pack * 10 + n, 6000)), "{trouble}");
                    world.clock.advance(Duration::from_millis(700));
                    sleep(Duration::from_millis(700)).await;
                }
            }
            b.engine.stop().await;
        }
    });
}

#[test]
fn p10_freshness_when_a_list_is_throttled_for_a_moment() {
    run(async {
        let world = World::new();
        let (mut a, b) = (world.node(), world.node());
        b.engine.start();
        assert!(b.engine.follower().wait_fresh(DEADLINE).await);
        a.send("new", b"written while lists are throttled").await;
        world.clock.advance(Duration::from_secs(2));
        b.fail("status=503 only=LIST");
        let heal = async {
            sleep(Duration::from_secs(2)).await;
            b.faults.set(FaultPlan::default());
        };
        let (fresh, ()) = futures::join!(b.engine.follower().wait_fresh(DEADLINE), heal);
        assert!(fresh && b.entry("new").is_some(), "the lookup waits");
        b.engine.stop().await;
    });
}

#[test]
fn a_commit_that_may_not_be_read_is_a_missing_one() {
    run(async {
        let world = World::new();
        let mut a = world.node();
        for n in 0..5_u64 {
            a.send(&format!("f{n}"), &content(n, 3000)).await;
        }
        let commits = world.log().await;
        // The copies in the head are not used any more.
        world.clock.advance(Duration::from_mins(2));
        for trouble in ["status=403", "forbidden=1", "status=503"] {
            let b = world.node();
            b.fail(&format!("{trouble} only={}", commits[2]));
            b.pull().await;
            // Trouble that may pass is waited for, and the later commits of its node wait, too.
            assert!(
                trouble != "status=503" || (b.entry("f1").is_some() && b.entry("f3").is_none())
            );
            world.clock.advance(Duration::from_mins(1));
            assert!(b.pull().await, "{trouble}: all readable commits are applied");
            for n in [0, 1, 3, 4] {
                assert!(b.read(&format!("f{n}")).await == Some(content(n, 3000)), "{trouble}");
            }
            assert!(b.entry("f2").is_none());
            let met = b.faults.met();
            for _ in 0..100 {
                assert!(b.pull().await);
                world.clock.advance(Duration::from_millis(500));
            }
            let asked = b.faults.met() - met;
            assert!(asked < 10, "{trouble}: asked {asked} times in 50 s");
            assert!(!b.engine.ledger().may_lack() && b.engine.ledger().is_partial());
            b.engine.checkpointer().unwrap().write().await.expect("checkpoints are written");
            b.faults.set(FaultPlan::default());
            world.clock.advance(Duration::from_mins(10));
            assert!(b.pull().await);
            assert!(
                b.read("f2").await == Some(content(2, 3000)),
                "{trouble}: the file arrives late"
            );
            assert!(!b.engine.ledger().is_partial(), "{trouble}");
            for key in world.keys("checkpoints/").await {
                world.store.remove(&key).await;
            }
        }
    });
}

/// The deadline counts from the last byte that came.
#[test]
fn p8_never_in_the_way_of_an_entry_that_needs_longer_than_the_deadline() {
    run_real(async {
        let world = World::with_clock(Clock::system());
        let mut a = world.node();
        a.write("large", &content(1, 1_200_000));
        a.send("packed", &content(2, 1_000_000)).await;
        let b = world.caught_up().await;
        // Each of them alone takes longer than the deadline, and so do both together.
        b.fail("bytes_per_s=180000");
        let (large, packed) = futures::join!(b.read("large"), b.read("packed"));
        assert!(large == Some(content(1, 1_200_000)) && packed == Some(content(2, 1_000_000)));
        let c = world.caught_up().await;
        c.fail("hang=1");
        let read = within(DEADLINE + Duration::from_secs(1), c.read("large")).await;
        assert!(read.expect("within the deadline").is_none());
    });
}

#[test]
fn uploads_go_on_as_soon_as_the_store_is_back() {
    run(async {
        let world = World::new();
        let mut a = world.node();
        a.send("first", b"opens the store").await;
        a.fail("hang=1");
        a.engine.start();
        for n in 0..3_u64 {
            a.write(&format!("f{n}"), &content(n, 6000));
        }
        // Long enough for the longest pauses.
        for _ in 0..300 {
            world.clock.advance(Duration::from_secs(1));
            sleep(Duration::from_secs(1)).await;
        }
        assert_ne!(a.remote().health(), Health::Up);
        a.faults.set(FaultPlan::default());
        // A program makes a request.
        a.remote().background().list_log(None).await.expect("the store is back");
        // An attempt that got no answer may still be in progress.
        let report = a.engine.drain(DEADLINE + Duration::from_secs(2), |_| ()).await;
        assert!(report.complete, "{report:?}");
        a.engine.stop().await;
    });
}

#[test]
fn bytes_count_as_uploaded_when_the_store_has_acknowledged_them() {
    run(async {
        let world = World::new();
        let mut a = world.node();
        a.send("first", b"opens the store").await;
        let before = a.remote().requests().bytes_up;
        a.fail("status=503 only=packs/");
        a.write("f", &content(1, 9000));
        let pushed = Box::pin(within(Duration::from_mins(2), a.push())).await;
        assert!(pushed.is_none());
        assert_eq!(a.remote().requests().bytes_up, before);
        a.faults.set(FaultPlan::default());
    });
}

/// In order (P5): content that the store refuses is a miss to other nodes, before they see later
/// changes.
#[test]
fn p5_in_order_past_what_the_store_refuses_for_good() {
    run(async {
        for (trouble, folder, size) in
            [("status=413", "blobs/", 1_200_000), ("status=400", "packs/", 9_000)]
        {
            let world = World::new();
            let (mut a, b) = (world.node(), world.node());
            a.send("refused", &content(1, 3_000)).await;
            a.fail(&format!("{trouble} only={folder}"));
            a.write("refused", &content(2, size));
            a.write("after", b"comes later");
            let pushed = within(Duration::from_mins(5), Box::pin(a.push())).await;
            assert!(pushed.is_some(), "{trouble}: later work goes on");
            assert!(b.pull().await);
            assert!(b.entry("after").is_some());
            assert!(b.entry("refused").is_none(), "a miss, and not the older version");
            assert!(
                a.read("refused").await == Some(content(2, size)),
                "the new version is kept here"
            );
            let aside = a.engine.ledger().aside();
            assert_eq!((aside.contents, aside.bytes), (1, size as u64));
            assert!(aside.why.contains(&trouble[7..]), "{}", aside.why);
            // This survives a restart, until the store accepts the content.
            a.engine.ledger().save().unwrap();
            let mut a = world.node_at(a.crash());
            assert_eq!(a.engine.ledger().aside().contents, 1);
            let kept = a.engine.ledger().blobs().usage().unsaved_bytes;
            assert!(kept > 0, "the content stays without retries: a node may be read-only now");
            a.engine.ledger().retry_aside();
            assert!(a.engine.ledger().blobs().usage().unsaved_bytes > 0);
            a.push().await;
            assert_eq!(a.engine.ledger().aside().contents, 0);
            assert!(b.pull().await);
            assert!(b.read("refused").await == Some(content(2, size)), "{trouble}");
        }
    });
}

/// A store may accept less at once than a pack holds.
#[test]
fn a_pack_that_is_refused_is_sent_in_parts() {
    run(async {
        let world = World::new();
        let (mut a, b) = (world.node(), world.node());
        a.fail("largest=60000");
        for n in 0..8_u64 {
            a.write(&format!("f{n}"), &content(n, 20_000));
        }
        a.write("large", &content(9, 100_000));
        assert!(within(Duration::from_mins(5), Box::pin(a.push())).await.is_some());
        assert!(b.pull().await);
        for n in 0..8_u64 {
            assert!(b.read(&format!("f{n}")).await == Some(content(n, 20_000)));
        }
        assert!(b.entry("large").is_none());
        assert_eq!(a.engine.ledger().aside().bytes, 100_000);
    });
}

#[test]
fn uploads_get_through_a_narrow_line() {
    run(async {
        let world = World::new();
        let (mut a, b) = (world.node(), world.node());
        // A pack of 8 MiB at 200 KiB/s.
        a.fail("latency_ms=40000 only=packs/");
        for n in 0..10_u64 {
            a.write(&format!("f{n}"), &content(n, 800_000));
        }
        assert!(within(Duration::from_mins(3), Box::pin(a.push())).await.is_some());
        assert!(b.pull().await);
        assert!(b.read("f9").await == Some(content(9, 800_000)));
    });
}

/// Other nodes, and the node itself, can replace changes that it made while its clock was far
/// ahead.
#[test]
fn p7_one_winner_also_where_a_clock_was_far_ahead() {
    run(async {
        let world = World::new();
        let mut b = world.node();
        b.send("there", b"before").await;
        let ahead_ms = Duration::from_hours(24 * 400).as_millis() as i64;
        let mut a = world.node_adrift(tempfile::tempdir().unwrap(), ahead_ms);
        for n in 0..4_u64 {
            a.write(&format!("f{n}"), b"first");
        }
        let mut attrs = a.entry("f3").unwrap().attrs;
        let of = a.write("f3", b"second");
        attrs.mode = 0o600;
        a.publish(vec![(path("f3"), Op::Attrs { of, attrs })]);
        a.write("gone", b"x");
        a.remove("gone");
        a.upload().await;
        // The first batch is in flight when this arrives.
        a.send("f2", b"second").await;
        a.write("f1", b"second");
        assert!(a.read("f1").await == Some(b"second".to_vec()), "at once (P15)");
        a.push().await;
        assert!(b.pull().await && a.pull().await);
        assert_eq!(a.registers(), b.registers());
        let near_ms = world.clock.wall_ms() + crate::stamp::MAX_AHEAD_MS;
        assert!(b.registers().iter().all(|(_, register)| register.last_stamp().ms <= near_ms));
        assert_eq!(b.entry("f3").unwrap().attrs.mode, 0o600);
        for (n, text) in [(0, "first"), (1, "second"), (2, "second"), (3, "second")] {
            let name = format!("f{n}");
            assert!(b.read(&name).await == Some(text.as_bytes().to_vec()), "{name}");
            world.clock.advance(Duration::from_millis(5));
            b.write(&name, b"third");
        }
        b.push().await;
        assert!(a.pull().await);
        for n in 0..4 {
            assert!(a.read(&format!("f{n}")).await == Some(b"third".to_vec()));
        }
        assert_eq!(a.registers(), b.registers());
    });
}

/// A refusal may have come from a proxy: the content is retried soon, and then more rarely.
#[test]
fn what_was_refused_by_mistake_is_stored_minutes_later() {
    run(async {
        let world = World::new();
        let a = world.node();
        a.engine.start();
        a.fail("status=413 only=blobs/");
        a.write("refused", &content(2, 1_200_000));
        let mut seconds = 0;
        while a.engine.ledger().aside().contents == 0 {
            seconds += 1;
            assert!(seconds < 120, "the content is not set aside");
            sleep(Duration::from_secs(1)).await;
        }
        a.fail("");
        sleep(Duration::from_mins(3)).await;
        assert_eq!(a.engine.ledger().aside().contents, 0);
        a.engine.stop().await;
    });
}

/// A content that is set aside may also belong to a path of this node alone, and is then the only
/// copy.
#[test]
fn what_is_set_aside_is_kept_for_a_path_of_this_node_alone() {
    run(async {
        let world = World::new();
        let mut a = world.node();
        let bytes = content(2, 1_200_000);
        a.fail("status=413 only=blobs/");
        a.send("refused", &bytes).await;
        a.send("ccache/tmp/cpp_stdout.x.i", &bytes).await;
        let mut b = world.node();
        b.send("other", &bytes).await;
        assert!(a.pull().await);
        a.engine.ledger().retry_aside();
        assert_eq!(a.engine.ledger().aside().contents, 0, "the store has the content");
        assert!(a.engine.ledger().blobs().usage().unsaved_bytes >= bytes.len() as u64);
    });
}

/// Two changes of one node never have the same stamp, except the members of a unit.
#[test]
fn stamps_stay_unique_where_a_clock_was_far_ahead() {
    run(async {
        let world = World::new();
        world.node().remote().check().await.unwrap();
        let ahead_ms = Duration::from_hours(24 * 400).as_millis() as i64;
        let mut a = world.node_adrift(tempfile::tempdir().unwrap(), ahead_ms);
        let assert_unique = |node: &Node| {
            let all = node.registers();
            let stamps: std::collections::HashSet<_> =
                all.iter().map(|(_, register)| register.stamp).collect();
            assert_eq!(stamps.len(), all.len(), "{all:?}");
        };
        a.write("first", b"x");
        a.upload().await;
        // These still get stamps that are as far ahead as before, and the first one gets a new one.
        let put = |at: &str| (path(at), Op::Put(a.store(at.as_bytes())));
        a.publish(["f0", "f1", "f2", "f3"].map(put).to_vec());
        a.commit().await;
        for at in ["f0", "f1"] {
            a.write(at, b"second");
            assert_unique(&a);
        }
        // The same holds after a restart.
        let a = world.node_skewed(a.crash(), ahead_ms).await;
        for at in ["f2", "f0"] {
            a.write(at, b"third");
            assert_unique(&a);
        }
    });
}

/// Only what is being fetched takes room on the disk.
#[test]
fn p13_bounded_room_for_what_is_about_to_be_fetched() {
    run(async {
        let world = World::new();
        let (mut a, b) = (world.node(), world.node());
        let name = |n: u64| format!("f{n}");
        for n in 0..40 {
            a.write(&name(n), &content(n, 1_100_000));
        }
        a.push().await;
        assert!(b.pull().await);
        b.fail("hang=1 only=blobs/");
        let names: Vec<String> = (0..40).map(name).collect();
        let reads = futures::future::join_all(names.iter().map(|name| b.read(name)));
        assert!(within(Duration::from_secs(1), reads).await.is_none());
        let staged = b.engine.ledger().blobs().usage().staged_bytes / 1_100_000;
        assert!((1..=16).contains(&staged), "{staged} files");
    });
}
