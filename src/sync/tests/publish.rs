//! The way from a close to the store: holding, hurrying, retrying.

use std::sync::Arc;
use std::time::Duration;

use super::checkpoints::checkpoint;
use super::gc::collect;
use super::harness::*;
use crate::clock::{Clock, sleep, within};
use crate::digest::Digest;
use crate::error::Kind;
use crate::namespace::{Attrs, Op};
use crate::remote::keys;
use crate::sync::ledger::Outlook;
use crate::sync::{EngineSettings, HOLD_MAX, LOG_GRACE, RECORD_CHANGES_MAX};

#[test]
fn a_held_record_waits_and_what_replaces_it_is_all_that_is_sent() {
    run(async {
        let world = World::new();
        let mut a = world.node();
        let ledger = a.engine.ledger().clone();
        a.write("before", b"1");
        let empty = file(Digest::empty(), 0);
        let (_, token) = ledger.publish_held(vec![(path("f"), Op::Put(empty.clone()))]).unwrap();
        a.send("f", b"the real content").await;
        let b = world.node();
        b.pull().await;
        assert!(b.entry("before").is_some() && b.entry("f").is_none());
        assert!(matches!(ledger.outlook(1), Outlook::Held(_)));
        token.release();
        a.push().await;
        b.pull().await;
        assert!(b.read("f").await == Some(b"the real content".to_vec()));
        // It is not released: it is sent after its time limit.
        let (_, token) = ledger.publish_held(vec![(path("g"), Op::Put(empty))]).unwrap();
        world.clock.advance(HOLD_MAX.saturating_sub(Duration::from_millis(1)));
        a.push().await;
        assert!(b.pull().await && b.entry("g").is_none());
        world.clock.advance(Duration::from_millis(1));
        a.push().await;
        assert!(b.pull().await && b.entry("g").is_some());
        drop(token);
    });
}

#[test]
fn a_file_that_becomes_a_blob_just_after_its_close_delays_its_batch_by_milliseconds() {
    run(async {
        let world = World::new();
        let mut a = world.node();
        let ledger = a.engine.ledger().clone();
        let contents = [content(1, 100), content(2, 50_000), content(3, 9 << 20)];
        let digests = contents.each_ref().map(|bytes| Digest::of(bytes));
        let _lodged = digests.map(|digest| ledger.blobs().lodge(digest));
        for (n, (bytes, digest)) in contents.iter().zip(digests).enumerate() {
            let entry = file(digest, bytes.len() as u64);
            a.publish(vec![(path(&n.to_string()), Op::Put(entry))]);
        }
        let ends = async {
            sleep(Duration::from_millis(7)).await;
            for bytes in &contents {
                store_in(&ledger, bytes);
            }
        };
        let upload = within(Duration::from_millis(50), a.upload());
        let (uploaded, ()) = tokio::join!(upload, ends);
        assert_eq!(uploaded, Some(()));
        a.push().await;
        let b = world.caught_up().await;
        for (n, bytes) in contents.iter().enumerate() {
            assert!(b.read(&n.to_string()).await.as_ref() == Some(bytes));
        }
    });
}

/// Without its change, what was closed after it would be sent before it.
#[test]
fn p5_in_order_a_file_that_is_about_to_be_a_blob_is_sent_although_it_was_replaced() {
    run(async {
        let world = World::new();
        let mut a = world.node();
        let ledger = a.engine.ledger().clone();
        let first = content(1, 50_000);
        let digest = Digest::of(&first);
        let _lodged = ledger.blobs().lodge(digest);
        a.publish(vec![(path("f"), Op::Put(file(digest, 50_000)))]);
        a.write("later", b"1");
        let replaced = async {
            // The batch is taken, and its first try to read the blob is under way.
            let next = store_in(&ledger, &content(2, 50_000));
            ledger.publish(vec![(path("f"), Op::Put(next))]).unwrap();
            sleep(Duration::from_millis(7)).await;
            store_in(&ledger, &first);
        };
        tokio::join!(a.upload(), replaced);
        a.commit().await;
        let b = world.caught_up().await;
        assert!(b.read("later").await.is_some());
        assert!(b.read("f").await == Some(first));
    });
}

#[test]
fn a_drain_waits_for_nothing_but_the_store() {
    run_real(async {
        let mut world = World::with_clock(Clock::system());
        world.settings =
            EngineSettings { delay: Duration::from_mins(1), ..EngineSettings::default() };
        let a = world.node();
        let ledger = a.engine.ledger().clone();
        a.engine.start();
        for n in 0..50 {
            a.write(&format!("f{n}"), &content(n, 10_000));
        }
        let empty = file(Digest::empty(), 0);
        let held = ledger.publish_held(vec![(path("held"), Op::Put(empty))]).unwrap();
        let report = a.engine.drain(Duration::from_secs(20), |_| ()).await;
        assert!(report.complete && report.left.records == 0, "{report:?}");
        assert!(report.elapsed_ms < 5000);
        drop(held);
        let b = world.caught_up().await;
        assert!(b.entry("held").is_some() && b.read("f49").await == Some(content(49, 10_000)));
        // A store that is gone: the report says so at its deadline.
        a.fail("resets=100");
        a.write("late", b"x");
        let mut told = 0;
        let report = a.engine.drain(Duration::from_millis(700), |_| told += 1).await;
        assert!(!report.complete && report.left.records == 1 && told >= 2, "{report:?}");
        a.engine.stop().await;
        drop(ledger);
        let mut a = world.node_at(a.crash());
        assert_eq!(a.engine.ledger().pending().records, 1, "the journal keeps it");
        a.push().await;
        assert!(b.pull().await && b.entry("late").is_some());
    });
}

#[test]
fn a_change_is_seen_elsewhere_soon() {
    run_real(async {
        let clock = Clock::system();
        let world = World::with_clock(clock.clone());
        let (a, b) = (world.node(), world.node());
        for node in [&a, &b] {
            node.fail("latency_ms=20");
            node.engine.start();
            assert!(node.engine.follower().wait_fresh(Duration::from_secs(5)).await);
        }
        let mut times = Vec::new();
        for n in 0..15 {
            sleep(Duration::from_millis(1000 + 37 * n)).await;
            let (name, begin) = (format!("f{n}"), clock.mono());
            a.write(&name, &content(n, 8000));
            loop {
                b.engine.follower().freshness().note_activity();
                if b.entry(&name).is_some() {
                    break;
                }
                assert!(clock.mono().saturating_sub(begin) < Duration::from_secs(5));
                sleep(Duration::from_millis(5)).await;
            }
            times.push(clock.mono().saturating_sub(begin));
        }
        times.sort();
        // The goal of half a second is for the benchmark; this machine may be busy with other
        // tests.
        assert!(times[7] < Duration::from_secs(1), "{times:?}");
        a.engine.stop().await;
        b.engine.stop().await;
    });
}

#[test]
fn a_commit_that_was_long_on_its_way_is_written_again_under_a_new_name() {
    run(async {
        let world = World::new();
        let (mut a, b) = (world.node(), world.node());
        a.send("first", b"1").await;
        a.write("f", b"x");
        a.upload().await;
        a.fail("latency_ms=2000");
        let clock = world.clock.clone();
        let meanwhile = async {
            sleep(Duration::from_secs(1)).await;
            clock.advance(Duration::from_secs(25));
        };
        futures::join!(a.commit(), meanwhile);
        let mut commits = Vec::new();
        for key in world.log().await {
            commits.push(world.commit(&key).await);
        }
        let all: Vec<u64> = commits.iter().map(|commit| commit.sequence).collect();
        assert_eq!(all, [0, 1, 1]);
        assert_eq!(commits[1].changes, commits[2].changes);
        assert_eq!(commits[2].stamp.ms / 1000, NOW_MS / 1000 + 25);
        assert!(b.pull().await && b.entry("f").is_some());
        a.fail("");
        let gets = a.remote().requests().gets;
        assert!(a.pull().await);
        assert_eq!(a.remote().requests().gets, gets + 1, "both names are known as own");
    });
}

#[test]
fn a_commit_that_no_reader_would_accept_holds_nothing_up() {
    run(async {
        let world = World::new();
        let (mut a, b) = (world.node(), world.node());
        let mut bad = a.store(b"bad");
        bad.attrs = Attrs { mode: 0o100_644, ..Attrs::default() };
        a.publish(vec![(path("bad"), Op::Put(bad))]);
        a.send("good", b"good").await;
        a.send("later", b"later").await;
        assert!(b.pull().await);
        assert!(b.entry("good").is_some() && b.entry("later").is_some());
        assert!(b.entry("bad").is_none());
    });
}

#[test]
fn a_record_is_bounded_and_goes_whole_or_not_at_all() {
    run(async {
        let world = World::new();
        let a = world.node();
        let ledger = a.engine.ledger();
        a.write("name", b"1");
        assert_eq!(ledger.pending().records, 1);
        assert_eq!(ledger.publish(Vec::new()).unwrap(), []);
        let many = (0..=RECORD_CHANGES_MAX).map(|_| (path("x"), Op::Put(file_of(1)))).collect();
        assert_eq!(ledger.publish(many).unwrap_err().kind(), Kind::Invalid);
        assert_eq!(ledger.pending().records, 1, "no change is published");
    });
}

#[test]
fn subscribers_are_notified_of_whole_commits_and_may_use_the_ledger() {
    run(async {
        let world = World::new();
        let (mut a, b) = (world.node(), world.node());
        let (heard, ledger) = (Arc::new(parking_lot::Mutex::new(Vec::new())), b.engine.ledger());
        let (log, inner) = (Arc::clone(&heard), ledger.clone());
        ledger.subscribe(Box::new(move |moved| {
            // Would hang or panic if any lock were held.
            let paths = moved.paths.unwrap();
            assert!(inner.is_telling() && inner.applied() == moved.count);
            let whole = paths.iter().all(|p| inner.read(|fold| fold.register(p).is_some()));
            inner.touch_directory(&path("d"));
            assert_eq!(inner.pending().records, 0);
            log.lock().push((paths.len(), whole));
        }));
        a.publish(vec![
            (path("d/x"), Op::Put(a.store(b"1"))),
            (path("d/y"), Op::Put(a.store(b"2"))),
        ]);
        a.push().await;
        assert!(b.pull().await && b.pull().await);
        assert_eq!(*heard.lock(), [(2, true)]);
        assert!(!ledger.is_telling());
    });
}

#[test]
fn a_read_only_node_writes_nothing() {
    run(async {
        let mut world = World::new();
        let mut a = world.node();
        a.send("f", b"x").await;
        world.settings.read_only = true;
        let b = world.node();
        b.engine.start();
        assert!(b.engine.follower().wait_fresh(Duration::from_secs(5)).await);
        assert!(b.read("f").await == Some(b"x".to_vec()));
        assert!(b.engine.publisher().is_none());
        assert!(b.engine.drain(Duration::ZERO, |_| ()).await.complete);
        assert_eq!(b.remote().requests().puts, 0);
        b.engine.stop().await;
    });
}

#[test]
fn names_of_the_log_are_the_stamps_of_commits() {
    run(async {
        let world = World::new();
        let mut a = world.node();
        let stamp = a.write("f", b"x");
        a.push().await;
        let log = world.log().await;
        assert!(
            keys::commit_stamp(&log[0]["log/".len()..]).unwrap().ms >= stamp.ms,
            "a commit comes after its changes"
        );
    });
}

#[test]
fn a_change_that_becomes_late_while_its_commit_is_retried_gets_a_new_stamp() {
    run(async {
        let day = Duration::from_hours(24);
        let world = World::aging(30 * day);
        let (mut a, mut b) = (world.node(), world.node());
        let first = a.write("p", &content(1, 500));
        a.write("q", &content(2, 500));
        a.upload().await;
        a.fail("resets=100");
        let (clock, faults) = (world.clock.clone(), a.faults.clone());
        let meanwhile = async {
            sleep(Duration::from_mins(1)).await;
            clock.advance(16 * day);
            b.send("q", &content(3, 500)).await;
            sleep(Duration::from_mins(1)).await;
            faults.set(crate::remote::fault::FaultPlan::default());
        };
        futures::join!(a.commit(), meanwhile);
        assert!(a.pull().await && b.pull().await);
        let c = world.caught_up().await;
        let stamp = c.engine.ledger().read(|fold| fold.register(&path("p")).unwrap().stamp);
        assert!(stamp.ms > first.ms + (15 * day).as_millis() as u64, "{stamp:?} is late");
        for node in [&a, &b, &c] {
            assert!(node.read("p").await == Some(content(1, 500)));
            assert!(
                node.read("q").await == Some(content(3, 500)),
                "the file was changed meanwhile"
            );
            assert_eq!(node.registers(), c.registers());
        }
        assert_eq!(a.engine.ledger().pending().records, 0);
    });
}

#[test]
fn an_incarnation_ends_with_a_long_silence() {
    run(async {
        let world = World::new();
        let (mut a, b) = (world.node(), world.node());
        for hours in [0, 23, 25, 0] {
            world.clock.advance(Duration::from_hours(hours));
            a.send("f", &hours.to_le_bytes()).await;
        }
        assert!(b.pull().await && !b.engine.ledger().is_partial());
        let mut numbers = Vec::new();
        for key in world.log().await {
            let commit = world.commit(&key).await;
            numbers.push((commit.incarnation, commit.sequence));
        }
        let sequences: Vec<u64> = numbers.iter().map(|(_, sequence)| *sequence).collect();
        assert_eq!(sequences, [0, 1, 0, 1]);
        let incarnation = |at: usize| numbers[at].0;
        assert!(incarnation(0) == incarnation(1) && incarnation(2) == incarnation(3));
        assert_ne!(incarnation(1), incarnation(2));
    });
}

#[test]
fn a_commit_names_only_what_is_there_however_long_it_took() {
    run(async {
        for outage in [false, true] {
            let world = World::new();
            let (mut a, mut b) = (world.node(), world.node());
            let sizes = [3_000, 9_000, 1_200_000];
            for (n, size) in (0..).zip(sizes) {
                b.write(&format!("shared{n}"), &content(n, size));
            }
            b.push().await;
            assert!(a.pull().await);
            // Content that other nodes use now, and new content.
            for (n, size) in (0..).zip(sizes) {
                a.write(&format!("reused{n}"), &content(n, size));
                a.write(&format!("new{n}"), &content(n + 10, size));
            }
            a.upload().await;
            // Further files with content that is in flight.
            let publisher = a.engine.publisher().unwrap().clone();
            a.write("again", &content(11, sizes[1]));
            let second = a.upload_next().await.unwrap();
            let mut gone = 0;
            let clock = world.clock.clone();
            let mut waiting = async || {
                for n in 0..sizes.len() {
                    b.remove(&format!("shared{n}"));
                }
                b.push().await;
                clock.advance(Duration::from_mins(1));
                checkpoint(&b).await;
                clock.advance(LOG_GRACE + Duration::from_mins(1));
                gone += collect(&b, false).await.total().objects;
            };
            if outage {
                a.fail("resets=100");
                let faults = a.faults.clone();
                let meanwhile = async {
                    sleep(Duration::from_mins(1)).await;
                    waiting().await;
                    faults.set(crate::remote::fault::FaultPlan::default());
                };
                futures::join!(a.commit(), meanwhile);
            } else {
                waiting().await;
                a.commit().await;
            }
            publisher.commit(second).await;
            assert!(gone >= 4, "enough packs and blobs are lost: {gone}");
            let fresh = world.caught_up().await;
            for (n, size) in (0..).zip(sizes) {
                for (name, seed) in [("reused", n), ("new", n + 10)] {
                    let read = fresh.read(&format!("{name}{n}")).await;
                    assert!(read == Some(content(seed, size)), "{name}{n}, outage {outage}");
                }
            }
            assert!(fresh.read("again").await == Some(content(11, sizes[1])));
        }
    });
}

#[test]
fn a_commit_names_the_place_of_every_content_that_it_puts() {
    run(async {
        let world = World::new();
        let (mut a, mut b) = (world.node(), world.node());
        // More packs of earlier commits than one commit names.
        for n in 0..260 {
            b.send(&format!("theirs{n}"), &content(n, 5_000)).await;
        }
        assert!(a.pull().await);
        for n in 0..260 {
            a.write(&format!("mine{n}"), &content(n, 5_000));
        }
        a.push().await;
        let commit = world.commit(world.log().await.last().unwrap()).await;
        assert_eq!((commit.changes.len(), commit.blobs.len()), (260, 260));
        let packs = world.keys("packs/").await.len();
        assert!(packs <= 261, "most packs are reused: {packs}");
    });
}

#[test]
fn a_commit_relies_on_a_reused_upload_no_longer_than_its_first_commit() {
    run(async {
        let world = World::new();
        let a = world.node();
        let publisher = a.engine.publisher().unwrap();
        let mut uploads = Vec::new();
        for (name, wait) in [("new", 20), ("again", 15)] {
            a.write(name, &content(1, 9_000));
            uploads.push(a.upload_next().await.unwrap());
            world.clock.advance(Duration::from_mins(wait));
        }
        let packs = world.keys("packs/").await;
        assert_eq!(packs.len(), 1, "the second uses the pack of the first");
        world.store.remove(&packs[0]).await;
        for uploaded in uploads {
            publisher.commit(uploaded).await;
        }
        let keys = world.store.keys().await;
        for key in world.log().await {
            let commit = world.commit(&key).await;
            assert_eq!(commit.blobs.len(), 1, "{key}");
            for pack in commit.packs {
                assert!(keys.contains(&format!("packs/{pack}")), "{key} names {pack}");
            }
        }
    });
}
