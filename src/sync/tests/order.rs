//! P5: changes arrive in the order of their closes, in atomic batches.

use super::harness::*;
use crate::namespace::Op;
use crate::remote::{encode_commit, keys};

/// Returns the numbers of the files `n0`, `n1` ... that a node shows.
fn shown(node: &Node, most: u64) -> Vec<u64> {
    (0..most).filter(|n| node.entry(&format!("n{n}")).is_some()).collect()
}

#[test]
fn p5_in_order_with_a_store_in_trouble() {
    run(async {
        let world = World::new();
        let (mut a, b) = (world.node(), world.node());
        a.fail("errors=20 resets=10 lost=20");
        b.fail("errors=20 resets=10 truncated=10");
        for n in 0..40_u64 {
            a.write(&format!("n{n}"), &content(n, if n % 3 == 0 { 20_000 } else { 100 }));
            if n % 3 == 0 {
                a.push().await;
            }
            b.pull().await;
            let shown = shown(&b, 40);
            let whole: Vec<u64> = (0..shown.len() as u64).collect();
            assert_eq!(shown, whole, "files become visible in order");
        }
        a.push().await;
        b.fail("");
        // The store may have refused to announce the last commits.
        assert!(b.engine.follower().list().await);
        assert_eq!(shown(&b, 40).len(), 40);
        for n in 0..40_u64 {
            let size = if n % 3 == 0 { 20_000 } else { 100 };
            assert!(b.read(&format!("n{n}")).await == Some(content(n, size)));
        }
    });
}

#[test]
fn p5_in_order_when_a_list_shows_a_later_commit_only() {
    run(async {
        let world = World::new();
        let (mut a, b) = (world.node(), world.node());
        for n in 0..4_u64 {
            a.send(&format!("n{n}"), b"x").await;
        }
        let log = world.log().await;
        assert_eq!(log.len(), 4);
        // The view of a list that was in progress while commits were written.
        let hidden = world.store.read(&log[1]).await.unwrap();
        world.store.remove(&log[1]).await;
        world.store.remove("head").await;
        assert!(b.pull().await, "a lost commit stops no node");
        assert_eq!(shown(&b, 4), [0, 2, 3]);
        world.store.overwrite(&log[1], hidden.to_vec()).await;
        assert!(b.pull().await);
        assert_eq!(shown(&b, 4), [0, 1, 2, 3]);
    });
}

#[test]
fn p5_in_order_when_a_commit_cannot_be_read_now() {
    run(async {
        let world = World::new();
        let (mut a, mut c, b) = (world.node(), world.node(), world.node());
        for n in 0..30_u64 {
            a.send(&format!("n{n}"), b"x").await;
        }
        c.send("other", b"y").await;
        b.fail("errors=60");
        while !b.pull().await {
            let shown = shown(&b, 30);
            assert_eq!(shown, (0..shown.len() as u64).collect::<Vec<_>>());
        }
        assert_eq!(shown(&b, 30).len(), 30);
        b.fail("");
        assert_eq!(b.read("other").await, Some(b"y".to_vec()));
    });
}

#[test]
fn one_record_is_never_seen_in_part() {
    run(async {
        let world = World::new();
        let (mut a, b) = (world.node(), world.node());
        let ops: Vec<_> = (0..5000)
            .map(|n| (path(&format!("n{n}")), Op::Put(a.store(n.to_string().as_bytes()))))
            .collect();
        a.write("before", b"1");
        a.publish(ops);
        a.send("after", b"2").await;
        assert_eq!(world.log().await.len(), 3, "the large record is a commit of its own");
        b.pull().await;
        assert_eq!(shown(&b, 5000).len(), 5000);
    });
}

#[test]
fn commits_are_numbered_without_gaps_in_each_incarnation() {
    run(async {
        let world = World::new();
        let mut a = world.node();
        for n in 0..3 {
            a.send("f", &content(n, 10)).await;
        }
        a.write("tmp", b"never seen");
        a.remove("tmp");
        a.push().await;
        a.send("g", b"z").await;
        let mut numbers = Vec::new();
        for key in world.log().await {
            let commit = world.commit(&key).await;
            let name = key.strip_prefix("log/").unwrap();
            assert_eq!(keys::commit_stamp(name), Some(commit.stamp));
            numbers.push(commit.sequence);
        }
        assert_eq!(numbers, [0, 1, 2, 3]);
    });
}

#[test]
fn a_commit_of_a_newer_format_is_left_out_and_costs_no_other() {
    run(async {
        let world = World::new();
        let (mut a, b) = (world.node(), world.node());
        a.send("n0", b"x").await;
        let log = world.log().await;
        let mut commit = world.commit(&log[0]).await;
        commit.stamp.counter += 1;
        let mut bytes = encode_commit(&commit).unwrap();
        // The version after the magic bytes, and the checksum over it.
        bytes[8] = 9;
        let end = bytes.len() - 32;
        let sum = *blake3::hash(&bytes[..end]).as_bytes();
        bytes[end..].copy_from_slice(&sum);
        let newer = format!("log/{}", keys::commit_name(&commit.stamp));
        world.store.overwrite(&newer, bytes).await;
        assert!(b.pull().await);
        assert!(b.entry("n0").is_some());
        let before = b.remote().requests().gets;
        assert!(b.pull().await);
        assert_eq!(b.remote().requests().gets, before + 1, "only the head is read");
    });
}

#[test]
fn a_shared_directory_serves_as_a_store() {
    use std::time::Duration;

    use crate::clock::Clock;

    run_real(async {
        let shared = tempfile::tempdir().unwrap();
        let world = World::with_clock(Clock::system());
        let url = format!("file://{}", shared.path().display());
        let (a, b) = (world.node_over(&url), world.node_over(&url));
        a.engine.start();
        b.engine.start();
        let sizes = [0_usize, 100, 5000, 300_000, 1_500_000];
        for (n, size) in sizes.iter().enumerate() {
            a.write(&format!("n{n}"), &content(n as u64, *size));
        }
        assert!(a.engine.drain(Duration::from_secs(20), |_| ()).await.complete);
        crate::clock::sleep(Duration::from_millis(1100)).await;
        assert!(b.engine.follower().wait_fresh(Duration::from_secs(5)).await);
        for (n, size) in sizes.iter().enumerate() {
            assert!(b.read(&format!("n{n}")).await == Some(content(n as u64, *size)), "{n}");
        }
        a.engine.stop().await;
        b.engine.stop().await;
    });
}

/// Everything running at once: writer, publisher, follower, a store in trouble, restarts.
#[test]
fn p5_in_order_while_the_writer_is_killed_again_and_again() {
    use std::time::Duration;

    use crate::clock::{Clock, sleep, within};

    const FILES: u64 = 600;
    run_real(async {
        let mut world = World::with_clock(Clock::system());
        world.settings.delay = Duration::from_millis(10);
        let b = world.node();
        b.fail("errors=5 truncated=5 latency_ms=1");
        b.engine.start();
        let ledger = b.engine.ledger().clone();
        // In one read of the namespace, because commits arrive meanwhile.
        let shown = || -> Vec<u64> {
            let there = |fold: &crate::namespace::Fold, n: u64| {
                let at = path(&format!("n{n}"));
                fold.entry(&at).is_some_and(|entry| ledger.shown(fold, &at, &entry, None).is_some())
            };
            ledger.read(|fold| (0..FILES).filter(|n| there(fold, *n)).collect())
        };
        let mut root = Some(tempfile::tempdir().unwrap());
        for n in 0..FILES {
            let life = 40;
            if n % life != 0 {
                continue;
            }
            let a = world.node_at(root.take().unwrap());
            a.fail("errors=5 lost=10 latency_ms=1");
            a.engine.start();
            for n in n..(n + life).min(FILES) {
                a.write(&format!("n{n}"), &content(n, if n % 2 == 0 { 30_000 } else { 50 }));
                sleep(Duration::from_millis(n % 5)).await;
                b.engine.follower().freshness().note_activity();
                let shown = shown();
                assert_eq!(shown, (0..shown.len() as u64).collect::<Vec<_>>());
            }
            // Its tasks end at any point; only the journal remains.
            a.engine.kill().await;
            root = Some(a.crash());
        }
        let a = world.node_at(root.take().unwrap());
        a.engine.start();
        assert!(a.engine.drain(Duration::from_mins(1), |_| ()).await.complete);
        b.fail("");
        let all = async {
            while (shown().len() as u64) < FILES {
                b.engine.follower().wait_fresh(Duration::from_secs(5)).await;
                sleep(Duration::from_millis(20)).await;
            }
        };
        assert!(within(Duration::from_mins(1), all).await.is_some(), "{}", shown().len());
        for n in 0..FILES {
            let size = if n % 2 == 0 { 30_000 } else { 50 };
            assert!(b.read(&format!("n{n}")).await == Some(content(n, size)), "{n}");
        }
        assert!(a.engine.follower().poll().await);
        assert_eq!(a.registers(), b.registers());
        a.engine.stop().await;
        b.engine.stop().await;
    });
}
