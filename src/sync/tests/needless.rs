//! Changes that are not sent because other nodes have them: never only a part, and never at the
//! cost of losing something.

use std::sync::atomic::Ordering;
use std::time::Duration;

use super::checkpoints::checkpoint;
use super::gc::collect;
use super::harness::*;
use crate::name::TreePath;
use crate::namespace::{Attrs, Entry, Op, Register, Time};
use crate::stamp::Stamp;
use crate::sync::LOG_GRACE;

const BYTES: usize = 9000;

/// Closes a file at the present time.
fn close(world: &World, node: &Node, at: &str, seed: u64) -> Stamp {
    node.publish(vec![put(world, node, at, seed)])
}

fn put(world: &World, node: &Node, at: &str, seed: u64) -> (TreePath, Op) {
    let now = Time::from_wall(world.clock.wall());
    let entry = node.store(&content(seed, BYTES));
    (path(at), Op::Put(Entry { attrs: Attrs { mtime: now, atime: now, ..entry.attrs }, ..entry }))
}

fn register(node: &Node, at: &str) -> Register {
    node.engine.ledger().read(|fold| fold.register(&path(at))).expect("a known path")
}

fn stamp(node: &Node, at: &str) -> Stamp {
    register(node, at).stamp
}

fn commits(node: &Node) -> u64 {
    node.engine.ledger().traffic().commits_written.load(Ordering::Relaxed)
}

fn pass(world: &World, ms: u64) {
    world.clock.advance(Duration::from_millis(ms));
}

/// Removes a file, and collects its content as garbage.
async fn forget(world: &World, node: &mut Node, at: &str) {
    node.remove(at);
    node.push().await;
    checkpoint(node).await;
    world.clock.advance(LOG_GRACE * 2);
    assert!(collect(node, false).await.total().objects > 0);
}

/// Two nodes that compile the same file need different times for it.
#[test]
fn files_that_took_different_times_are_the_same() {
    run(async {
        let world = World::new();
        let (mut a, mut b) = (world.node(), world.node());
        for (node, took_ms) in [(&mut a, 1000), (&mut b, 2000)] {
            let (path, op) = put(&world, node, "f", 1);
            let Op::Put(mut entry) = op else { unreachable!("the operation is a put") };
            entry.attrs.took_ms = took_ms;
            node.publish(vec![(path, Op::Put(entry))]);
            pass(&world, 10);
        }
        a.push().await;
        assert!(b.pull().await);
        b.push().await;
        assert_eq!((commits(&a), commits(&b)), (1, 0), "the second node commits nothing");
        let shown = register(&b, "f").entry.expect("an entry");
        assert_eq!(shown.attrs.took_ms, 1000);
    });
}

#[test]
fn the_version_of_the_others_is_shown_and_ours_is_no_change() {
    run(async {
        let world = World::new();
        let (mut a, mut b) = (world.node(), world.node());
        let first = close(&world, &a, "f", 1);
        a.push().await;
        pass(&world, 1000);
        let second = close(&world, &b, "f", 1);
        assert_eq!(stamp(&b, "f"), second);
        assert!(b.pull().await);
        assert_eq!(stamp(&b, "f"), second, "the later version stays");
        let before = b.remote().requests();
        let applied = b.engine.ledger().applied();
        b.push().await;
        let after = b.remote().requests();
        assert_eq!((after.puts, after.bytes_up), (before.puts, before.bytes_up));
        assert_eq!(stamp(&b, "f"), first, "the version that all others show");
        assert!(b.engine.ledger().applied() > applied, "the kernel is notified");
        let usage = b.engine.ledger().blobs().usage();
        assert_eq!((usage.unsaved_bytes, b.engine.ledger().pending().records), (0, 0));
        // Also after a restart, in which the journal may still have it.
        let b = world.node_at(b.crash());
        assert!(b.read("f").await == Some(content(1, BYTES)));
    });
}

#[test]
fn a_list_that_is_old_is_not_believed() {
    run(async {
        let world = World::new();
        let (mut a, mut b) = (world.node(), world.node());
        close(&world, &a, "f", 1);
        a.push().await;
        assert!(b.pull().await);
        pass(&world, 60_000);
        close(&world, &b, "f", 1);
        b.push().await;
        assert_eq!(commits(&b), 1, "the entry may have been removed meanwhile");
    });
}

/// A removal that was made between the two and arrives later would have lost to our version.
#[test]
fn an_omitted_change_is_sent_after_all_if_others_removed_the_file_in_between() {
    run(async {
        let world = World::new();
        let (mut a, mut b, mut c) = (world.node(), world.node(), world.node());
        close(&world, &a, "f", 1);
        a.push().await;
        assert!(c.pull().await);
        pass(&world, 100);
        c.remove("f");
        pass(&world, 100);
        let ours = close(&world, &b, "f", 1);
        assert!(b.pull().await);
        b.push().await;
        assert_eq!(commits(&b), 0);
        c.push().await;
        assert!(b.pull().await);
        assert_eq!(stamp(&b, "f"), ours);
        b.push().await;
        for node in [&a, &c] {
            assert!(node.pull().await);
            assert_eq!(stamp(node, "f"), ours);
            assert!(node.read("f").await == Some(content(1, BYTES)));
        }
        // A later removal deletes it for good.
        pass(&world, 100);
        c.remove("f");
        c.push().await;
        assert!(b.pull().await);
        b.push().await;
        assert!(a.pull().await && b.pull().await);
        assert!(a.entry("f").is_none() && b.entry("f").is_none() && c.entry("f").is_none());
    });
}

#[test]
fn a_later_removal_by_another_node_wins() {
    run(async {
        let world = World::new();
        let (mut a, mut b) = (world.node(), world.node());
        close(&world, &a, "f", 1);
        a.push().await;
        pass(&world, 100);
        close(&world, &b, "f", 1);
        assert!(b.pull().await);
        b.push().await;
        pass(&world, 100);
        a.remove("f");
        a.push().await;
        assert!(b.pull().await);
        b.push().await;
        assert_eq!((commits(&b), b.entry("f")), (0, None));
    });
}

#[test]
fn a_time_that_a_program_gave_is_sent() {
    run(async {
        let world = World::new();
        let (mut a, mut b) = (world.node(), world.node());
        close(&world, &a, "f", 1);
        a.push().await;
        pass(&world, 100);
        let (at, op) = put(&world, &b, "f", 1);
        let Op::Put(entry) = op else { unreachable!("the operation is a put") };
        let attrs = Attrs { mtime: Time { secs: 1_000_000, nanos: 7 }, ..entry.attrs.clone() };
        let ours = b.publish(vec![(at, Op::Put(Entry { attrs, ..entry }))]);
        assert!(b.pull().await);
        let up = b.remote().requests().bytes_up;
        b.push().await;
        assert_eq!(commits(&b), 1);
        assert!(b.remote().requests().bytes_up - up < 1000, "without the bytes");
        assert!(a.pull().await);
        assert_eq!(stamp(&a, "f"), ours);
        // The same time set again is no change.
        let (at, op) = put(&world, &a, "f", 1);
        let Op::Put(entry) = op else { unreachable!("the operation is a put") };
        let mtime = Time { secs: 1_000_000, nanos: 7 };
        pass(&world, 100);
        let attrs = Attrs { mtime, ..entry.attrs.clone() };
        a.publish(vec![(at, Op::Put(Entry { attrs, ..entry }))]);
        let before = commits(&a);
        a.push().await;
        assert_eq!((commits(&a), stamp(&a, "f")), (before, ours));
    });
}

/// A node whose clock is wrong gives its files times that no other node would give them. They still count as
/// the same files, whichever node writes them first. A third node has not read the store's time, and makes all
/// later stamps run ahead. That changes nothing.
#[test]
fn files_of_a_node_with_a_wrong_clock_are_the_same() {
    run(async {
        for (ahead_ms, wrong_first) in [(120_000, true), (120_000, false), (-120_000, true)] {
            let world = World::new();
            let mut early = world.node_adrift(tempfile::tempdir().unwrap(), 120_000);
            let right = (world.node(), 0);
            let wrong = (world.node_skewed(tempfile::tempdir().unwrap(), ahead_ms).await, ahead_ms);
            let (mut first, mut second) = if wrong_first { (wrong, right) } else { (right, wrong) };
            let stamp = close(&world, &early, "g", 2);
            early.push().await;
            assert!(first.0.pull().await && second.0.pull().await);
            for (node, ahead_ms) in [&mut first, &mut second] {
                let (path, op) = put(&world, node, "f", 1);
                let Op::Put(entry) = op else { unreachable!("the operation is a put") };
                let mtime = Time::from_wall(world.clock.skewed(*ahead_ms).wall());
                let attrs = Attrs { mtime, atime: mtime, ..entry.attrs };
                assert!(node.publish(vec![(path, Op::Put(Entry { attrs, ..entry }))]) > stamp);
                assert!(node.pull().await);
                node.push().await;
                pass(&world, 100);
            }
            let made = (commits(&first.0), commits(&second.0));
            assert_eq!(made, (1, 0), "{ahead_ms} ms, {wrong_first}");
            assert_eq!(register(&second.0, "f"), register(&first.0, "f"));
        }
    });
}

#[test]
fn other_attributes_are_sent_whenever_they_come() {
    run(async {
        for together in [true, false] {
            let world = World::new();
            let (mut a, mut b) = (world.node(), world.node());
            close(&world, &a, "f", 1);
            a.push().await;
            assert!(b.pull().await);
            pass(&world, 100);
            close(&world, &b, "f", 1);
            if !together {
                b.push().await;
                assert_eq!(commits(&b), 0);
            }
            let Register { stamp, entry, .. } = register(&b, "f");
            let attrs = Attrs { mode: 0o700, ..entry.expect("a file").attrs };
            b.publish(vec![(path("f"), Op::Attrs { of: stamp, attrs })]);
            b.push().await;
            assert!(a.pull().await);
            assert_eq!(a.entry("f").map(|entry| entry.attrs.mode), Some(0o700), "{together}");
        }
    });
}

/// The members of a unit are omitted together or not at all.
#[test]
fn p6_units_are_left_out_whole_or_not_at_all() {
    run(async {
        let members = ["triton/K/k.json", "triton/K/k.ptx", "triton/K/__grp__k.json"];
        let unit = |world: &World, node: &Node, seeds: [u64; 3]| {
            let puts = members.iter().zip(seeds).map(|(at, seed)| put(world, node, at, seed));
            node.publish(puts.collect());
        };
        let world = World::new();
        let (mut a, mut b) = (world.node(), world.node());
        unit(&world, &a, [1, 2, 3]);
        a.push().await;
        assert!(b.pull().await);
        pass(&world, 100);
        unit(&world, &b, [1, 2, 3]);
        b.push().await;
        assert_eq!(commits(&b), 0);
        let stamps = |node: &Node| members.map(|at| stamp(node, at));
        assert_eq!(stamps(&b), stamps(&a));
        pass(&world, 100);
        unit(&world, &b, [1, 2, 4]);
        let ours = stamps(&b);
        b.push().await;
        assert!(a.pull().await);
        assert_eq!((stamps(&a), ours[0]), (ours, ours[2]), "the whole unit with one stamp");
    });
}

/// A change is published if its entry then lives longer.
#[test]
fn p11_expiry_loses_no_file_that_was_closed_again() {
    run(async {
        let world = World::aging(Duration::from_hours(20));
        let (mut a, mut b) = (world.node(), world.node());
        close(&world, &a, "f", 1);
        a.publish(vec![(path("d"), Op::Put(Entry::directory(0o755, 0, 0, Time::default())))]);
        a.push().await;
        world.clock.advance(Duration::from_hours(11));
        assert!(b.pull().await);
        close(&world, &b, "f", 1);
        b.publish(vec![(path("d"), Op::Put(Entry::directory(0o755, 0, 0, Time::default())))]);
        b.push().await;
        assert!(a.pull().await);
        world.clock.advance(Duration::from_hours(12));
        assert!(a.pull().await);
        assert!(a.read("f").await == Some(content(1, BYTES)));
        assert!(a.entry("d").is_some());
    });
}

/// Content that an old list showed in use may have been deleted since.
#[test]
fn bytes_are_not_reused_for_what_was_in_use_long_ago() {
    run(async {
        let world = World::new();
        let (mut a, mut b) = (world.node(), world.node());
        close(&world, &a, "f", 1);
        a.push().await;
        assert!(b.pull().await && b.read("f").await.is_some());
        forget(&world, &mut a, "f").await;
        // It still shows the entry, and receives the removal when the file is written.
        close(&world, &b, "g", 1);
        assert!(b.pull().await);
        b.push().await;
        assert!(world.caught_up().await.read("g").await == Some(content(1, BYTES)));
    });
}

/// If only a private mount used a content on a cache directory, that proves nothing about the
/// store.
#[test]
fn bytes_are_not_reused_for_what_a_private_mount_uses() {
    run(async {
        let world = World::new();
        let mut a = world.node();
        close(&world, &a, "f", 1);
        a.push().await;
        let private = World { private: true, ..world.clone() };
        let p = private.node();
        assert!(p.pull().await);
        close(&world, &p, "own", 1);
        p.engine.stop().await;
        forget(&world, &mut a, "f").await;
        let mut shared = world.node_at(p.crash());
        assert!(shared.pull().await);
        assert!(shared.entry("own").is_some() && shared.entry("f").is_none());
        close(&world, &shared, "g", 1);
        shared.push().await;
        assert!(world.caught_up().await.read("g").await == Some(content(1, BYTES)));
    });
}

/// A content that is young in the store is used again although its entry was removed, and lasts.
#[test]
fn young_bytes_are_reused_and_outlast_a_collection() {
    run(async {
        let world = World::new();
        let (mut a, mut b) = (world.node(), world.node());
        for (at, seed) in [("f", 1), ("g", 2)] {
            close(&world, &a, at, seed);
        }
        a.send("small", b"inline").await;
        for at in ["f", "g", "small"] {
            a.remove(at);
        }
        a.push().await;
        world.clock.advance(Duration::from_mins(9));
        assert!(b.pull().await);
        let up = b.remote().requests().bytes_up;
        close(&world, &b, "h", 1);
        b.send("little", b"inline").await;
        assert!(b.remote().requests().bytes_up - up < 1000);
        for _ in 0..3 {
            checkpoint(&b).await;
            world.clock.advance(LOG_GRACE);
            assert!(a.pull().await && b.pull().await);
            collect(&a, false).await;
        }
        let fresh = world.caught_up().await;
        assert!(fresh.read("h").await == Some(content(1, BYTES)));
        assert_eq!(fresh.read("little").await, Some(b"inline".to_vec()));
    });
}

#[test]
fn a_kill_between_omitting_a_change_and_the_journal_costs_nothing() {
    run(async {
        let world = World::new();
        let (mut a, mut b) = (world.node(), world.node());
        close(&world, &a, "f", 1);
        a.push().await;
        pass(&world, 100);
        close(&world, &b, "f", 1);
        close(&world, &b, "g", 2);
        assert!(b.pull().await);
        b.upload().await;
        b.engine.ledger().save().unwrap();
        let mut b = world.node_at(b.crash());
        assert!(b.read("f").await == Some(content(1, BYTES)));
        assert!(b.engine.ledger().pending().records > 0);
        assert!(b.pull().await);
        b.push().await;
        assert!(a.pull().await);
        assert!(a.registers() == b.registers());
        assert!(a.read("g").await == Some(content(2, BYTES)));
    });
}
