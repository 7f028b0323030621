//! P13: the number of requests to the store.

use std::time::Duration;

use super::harness::*;
use crate::clock::Clock;
use crate::error::Kind;
use crate::namespace::Op;
use crate::remote::fault::FaultPlan;
use crate::sync::Demand;

#[test]
fn p13_bounded_puts_for_many_small_files() {
    run(async {
        let world = World::new();
        let mut a = world.node();
        a.send("first", b"opens the store").await;
        let before = a.remote().requests().puts;
        for n in 0..1000_u64 {
            a.write(&format!("d/{n}"), &content(n, 2000));
        }
        a.push().await;
        let puts = a.remote().requests().puts - before;
        assert!(puts <= 3, "{puts} puts for 1000 files");
        let b = world.caught_up().await;
        let before = b.remote().requests().gets;
        for n in 0..1000_u64 {
            assert!(b.read(&format!("d/{n}")).await == Some(content(n, 2000)));
        }
        let gets = b.remote().requests().gets - before;
        assert!(gets <= 1, "{gets} gets: files written together are read together");
    });
}

/// A batch is full with the content that fills a pack, and this content goes into that pack.
#[test]
fn p13_bounded_a_full_batch_is_one_pack() {
    run(async {
        let mut world = World::new();
        world.settings.pack_bytes = 64 << 10;
        let mut a = world.node();
        a.send("first", b"opens the store").await;
        for round in 0..5_u64 {
            let (before, mut bytes) = (a.remote().requests().puts, 0);
            for n in 0.. {
                if bytes >= world.settings.pack_bytes {
                    break;
                }
                let size = 9000 + 700 * (n % 3);
                a.write(&format!("d/{round}/{n}"), &content(round << 8 | n, size as usize));
                bytes += size;
            }
            a.push().await;
            assert_eq!(a.remote().requests().puts - before, 1 + COMMIT_PUTS, "{bytes} bytes");
        }
    });
}

/// A new node does not write every small file of the history, and reads those of one commit with
/// one request.
#[test]
fn p13_bounded_small_files_of_old_commits_are_fetched_when_wanted() {
    run(async {
        let world = World::new();
        let mut a = world.node();
        let name = |commit: u64, n: u64| format!("{commit}/{n}");
        for commit in 0..20 {
            for n in 0..10 {
                a.write(&name(commit, n), &content(commit * 100 + n, 200));
            }
            a.push().await;
        }
        let b = world.caught_up().await;
        let kept = b.engine.ledger().blobs().usage().blobs;
        assert!((1..200).contains(&kept), "{kept} of 200 small files were written");
        let before = b.remote().requests().gets;
        for commit in 0..20 {
            for n in 0..10 {
                let read = b.read(&name(commit, n)).await;
                assert!(read == Some(content(commit * 100 + n, 200)));
            }
        }
        let gets = b.remote().requests().gets - before;
        assert!((1..20).contains(&gets), "{gets} gets");
        assert_eq!(b.engine.ledger().blobs().usage().blobs, 200);
    });
}

#[test]
fn p13_bounded_what_is_temporary_costs_nothing() {
    run(async {
        let world = World::new();
        let mut a = world.node();
        a.send("first", b"opens the store").await;
        let before = a.remote().requests();
        for n in 0..50_u64 {
            a.write("lock", &content(n, 100));
            a.write("tmp", &content(n + 1000, 50_000));
            a.remove("tmp");
        }
        a.remove("lock");
        a.push().await;
        let after = a.remote().requests();
        assert_eq!(after, before, "no request");
        assert_eq!(a.registers().len(), 1, "no tombstone");
        assert_eq!(a.engine.ledger().blobs().usage().unsaved_bytes, 0);
        a.engine.ledger().save().unwrap();
        let a = world.node_at(a.crash());
        assert_eq!(a.engine.ledger().pending().records, 0);
        assert_eq!(a.registers().len(), 1);
    });
}

#[test]
fn a_temporary_that_is_renamed_is_uploaded_once() {
    run(async {
        let world = World::new();
        let mut a = world.node();
        let bytes = content(7, 600_000);
        let entry = a.store(&bytes);
        a.publish(vec![(path("t"), Op::Put(entry.clone()))]);
        a.publish(vec![(path("f"), Op::Put(entry)), (path("t"), Op::Remove)]);
        a.push().await;
        let up = a.remote().requests().bytes_up;
        assert!((600_000..610_000).contains(&up), "{up}");
        // The same content under another name costs a commit and no content.
        assert!(a.pull().await);
        let again = a.store(&bytes);
        a.publish(vec![(path("g"), Op::Put(again))]);
        a.push().await;
        assert!(a.remote().requests().bytes_up - up < 2000);
        let b = world.node();
        b.pull().await;
        assert!(b.read("g").await == Some(bytes));
        assert!(b.entry("t").is_none());
    });
}

#[test]
fn a_temporary_that_is_renamed_while_it_is_on_its_way_is_uploaded_once() {
    run(async {
        let world = World::new();
        let (mut a, b) = (world.node(), world.node());
        let publisher = a.engine.publisher().unwrap().clone();
        for (name, size) in [("packed", 500_000), ("large", 1_200_000)] {
            let entry = a.store(&content(size as u64, size));
            a.publish(vec![(path("t"), Op::Put(entry.clone()))]);
            let first = a.upload_next().await.unwrap();
            let up = a.remote().requests().bytes_up;
            a.publish(vec![(path(name), Op::Put(entry)), (path("t"), Op::Remove)]);
            let second = a.upload_next().await.unwrap();
            assert_eq!(a.remote().requests().bytes_up, up);
            publisher.commit(first).await;
            publisher.commit(second).await;
        }
        a.push().await;
        assert!(b.pull().await);
        assert!(b.read("packed").await == Some(content(500_000, 500_000)));
        assert!(b.read("large").await == Some(content(1_200_000, 1_200_000)));
    });
}

#[test]
fn p13_bounded_an_idle_node_asks_nothing() {
    run(async {
        let world = World::new();
        let a = world.node();
        a.engine.start();
        assert!(a.engine.follower().wait_fresh(Duration::from_secs(5)).await);
        // It polls while there is activity, and for some seconds after.
        for _ in 0..40 {
            world.clock.advance(Duration::from_millis(500));
            crate::clock::sleep(Duration::from_millis(500)).await;
        }
        let polled = a.remote().requests();
        let looks = polled.lists + polled.gets;
        assert!(looks > 10 && looks < 30, "{polled:?}");
        for _ in 0..1000 {
            world.clock.advance(Duration::from_secs(2));
            crate::clock::sleep(Duration::from_secs(2)).await;
        }
        assert_eq!(a.remote().requests(), polled);
        // It wakes up again.
        assert!(!a.engine.follower().freshness().ready());
        assert!(a.engine.follower().wait_fresh(Duration::from_secs(5)).await);
        a.engine.stop().await;
    });
}

#[test]
fn back_pressure_when_the_store_is_gone() {
    run(async {
        let world = World::new();
        let a = world.node();
        let room = a.engine.ledger().room();
        assert!(room.is_open(Demand::Begin) && room.wait(Demand::Begin).await.is_ok());
        for n in 0..crate::sync::PENDING_RECORDS_MAX {
            a.publish(vec![(path(&format!("{}", n % 50)), Op::Put(file_of(n % 50)))]);
        }
        assert!(!room.is_open(Demand::Begin));
        let soon = Duration::from_millis(10);
        assert!(crate::clock::within(soon, room.wait(Demand::Begin)).await.is_none());
        a.engine.start();
        assert_eq!(room.wait(Demand::Begin).await.err().map(|error| error.chain()), None);
        a.engine.stop().await;
    });
}

/// A program that only creates names or changes attributes begins no file, but is bounded, too.
#[test]
fn the_queue_is_bounded_for_programs_that_write_no_files() {
    run(async {
        let world = World::new();
        let a = world.node();
        let ledger = a.engine.ledger();
        a.publish(vec![(path("there"), Op::Put(file_of(1)))]);
        ledger.room().note_pending(1_000_000, 0);
        let refused = ledger.publish(vec![(path("more"), Op::Put(file_of(2)))]);
        assert_eq!(refused.err().map(|error| error.kind()), Some(Kind::NoSpace));
        a.publish(vec![(path("there"), Op::Remove)]);
        a.publish(vec![(path("more"), Op::Put(file_of(2)))]);
    });
}

/// A caller waits neither for room that cannot come nor for a store that is down.
#[test]
fn no_caller_waits_for_room_that_cannot_come() {
    run(async {
        let world = World::new();
        let mut a = world.node();
        let room = a.engine.ledger().room().clone();
        let limit = a.engine.ledger().blobs().usage().limit;
        assert!(room.admits(limit) && room.is_open(Demand::Begin));
        assert_eq!(room.slowed(), None);
        a.send("first", b"opens the store").await;
        a.faults.set(FaultPlan { resets_percent: 100, ..FaultPlan::default() });
        a.engine.start();
        a.write("second", b"waits");
        while a.remote().health() == crate::remote::Health::Up {
            world.clock.advance(Duration::from_millis(20));
            crate::clock::sleep(Duration::from_millis(20)).await;
        }
        world.clock.advance(Duration::from_secs(2));
        room.note_pending(crate::sync::PENDING_RECORDS_MAX, 0);
        let why = room.wait(Demand::Begin).await.expect_err("refused").chain();
        assert!(why.contains("the store is down"), "{why}");
        let slowed = room.slowed().expect("slowed just now");
        assert_eq!((slowed.writers, room.counts()), (0, (1, 1)));
        a.engine.stop().await;
    });
}

/// The goal of the design for two nodes, as far as it can be checked without a mount.
#[test]
fn the_set_of_the_design_is_durable_and_read_with_few_requests() {
    run_real(async {
        let clock = Clock::system();
        let world = World::with_clock(clock.clone());
        let a = world.node();
        a.fail("latency_ms=20");
        a.engine.start();
        let sizes: Vec<(String, u64, usize)> = (0..2000_u64)
            .map(|n| (format!("s{n}"), n, 8 << 10))
            .chain((0..200).map(|n| (format!("m{n}"), 10_000 + n, 256 << 10)))
            .chain((0..50).map(|n| (format!("l{n}"), 20_000 + n, 4 << 20)))
            .collect();
        let begin = clock.mono();
        for (name, seed, size) in &sizes {
            a.write(name, &content(*seed, *size));
        }
        let written = clock.mono();
        let report = a.engine.drain(Duration::from_mins(1), |_| ()).await;
        assert!(report.complete);
        let local = written.saturating_sub(begin);
        let after = clock.mono().saturating_sub(written);
        assert!(after < Duration::from_secs(5), "durable {after:?} after the last close");
        let puts = a.remote().requests().puts;
        // A machine that takes longer to write makes more batches of 200 ms, each with three puts.
        let slower = local.saturating_sub(Duration::from_secs(2)).as_millis() as u64 * 3 / 200;
        assert!(puts <= 80 + slower, "{puts} puts in {local:?}");
        a.engine.stop().await;

        let b = world.node();
        b.fail("latency_ms=20");
        b.engine.start();
        let begin = clock.mono();
        assert!(b.engine.follower().wait_fresh(Duration::from_secs(20)).await);
        let gets = sizes.iter().map(|(name, seed, size)| {
            let b = &b;
            async move { assert!(b.read(name).await == Some(content(*seed, *size)), "{name}") }
        });
        futures::future::join_all(gets).await;
        let read = clock.mono().saturating_sub(begin);
        assert!(read < Duration::from_secs(10), "read after {read:?}");
        let asked = b.remote().requests();
        let objects = world.store.keys().await.len() as u64;
        // One list of the checkpoints and one of the log; then reads of the head, which is one of
        // the objects.
        let looks = read.as_millis() as u64 / 200;
        assert!(
            asked.gets <= objects + looks && asked.lists <= 3,
            "{asked:?} for {objects} objects"
        );
        b.engine.stop().await;
    });
}
