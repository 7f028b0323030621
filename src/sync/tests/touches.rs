//! Times that a client sets on each hit: visible at once here, and gathered for other nodes.

use super::checkpoints::checkpoint;
use super::harness::*;
use crate::namespace::{Attrs, Op, Time};
use crate::sync::ledger::TOUCH_EVERY;

const RESULT: &str = "ccache/4/b/c8hd21nvu6rt8kdlj2v5m6e0ri0p7k4R";

/// Sets the times of a path, and its mode, as `utimensat` and `chmod` do.
fn set(node: &Node, at: &str, secs: i64, mode: u32) {
    let ledger = node.engine.ledger();
    let of = ledger.read(|fold| fold.register(&path(at)).expect("the entry exists").stamp);
    let time = Time { secs, nanos: 0 };
    let entry = node.entry(at).expect("the entry exists");
    let attrs = Attrs { mtime: time, atime: time, mode, ..entry.attrs };
    ledger.publish(vec![(path(at), Op::Attrs { of, attrs })]).unwrap();
}

fn seconds(node: &Node, at: &str) -> i64 {
    node.entry(at).expect("the entry exists").attrs.mtime.secs
}

#[test]
fn the_times_of_hits_are_gathered() {
    run(async {
        let world = World::new();
        let (mut a, b) = (world.node(), world.node());
        for at in [RESULT, "plain"] {
            a.write(at, b"an entry");
        }
        a.push().await;
        assert!(b.pull().await);
        let before = a.remote().requests();
        for second in 1..100 {
            set(&a, RESULT, second, 0);
            assert_eq!(seconds(&a, RESULT), second, "at once");
        }
        a.push().await;
        assert_eq!(a.remote().requests().puts, before.puts, "a hit is no commit");
        assert_eq!(a.engine.ledger().pending().records, 0);
        // All of them in one commit, and only the last times.
        a.engine.ledger().send_touches().unwrap();
        a.push().await;
        assert_eq!(a.remote().requests().puts, before.puts + COMMIT_PUTS);
        assert!(b.pull().await);
        assert_eq!(seconds(&b, RESULT), 99);
        // Nothing is left.
        a.engine.ledger().send_touches().unwrap();
        a.push().await;
        assert_eq!(a.remote().requests().puts, before.puts + COMMIT_PUTS);
        assert!(TOUCH_EVERY.as_secs() >= 60);
        // A change that is more than a use is sent as usual, with the times.
        set(&a, RESULT, 100, 0);
        set(&a, RESULT, 101, 0o600);
        set(&a, "plain", 102, 0);
        a.push().await;
        assert!(b.pull().await);
        assert_eq!(b.entry(RESULT).map(|entry| entry.attrs.mode), Some(0o600));
        assert_eq!((seconds(&b, RESULT), seconds(&b, "plain")), (101, 102));
        // A touch of an entry that other nodes do not have yet is not held back, either.
        a.write("ccache/4/b/c8hd21nvu6rt8kdlj2v5m6e0ri0p7k5R", b"another");
        set(&a, "ccache/4/b/c8hd21nvu6rt8kdlj2v5m6e0ri0p7k5R", 103, 0);
        a.push().await;
        assert!(b.pull().await);
        assert_eq!(seconds(&b, "ccache/4/b/c8hd21nvu6rt8kdlj2v5m6e0ri0p7k5R"), 103);
    });
}

#[test]
fn the_times_of_hits_survive_a_restart_and_a_replacement() {
    run(async {
        let world = World::new();
        let (mut a, b) = (world.node(), world.node());
        a.send(RESULT, b"an entry").await;
        set(&a, RESULT, 7, 0);
        a.push().await;
        a.engine.ledger().save().unwrap();
        let mut a = world.node_at(a.crash());
        assert_eq!(seconds(&a, RESULT), 7);
        // Another node replaces the entry before the touch is sent: the touch belongs to the
        // replaced entry.
        assert!(b.pull().await);
        let mut b = b;
        b.send(RESULT, b"another").await;
        set(&a, RESULT, 8, 0);
        assert!(a.pull().await);
        a.engine.ledger().send_touches().unwrap();
        a.push().await;
        assert!(b.pull().await);
        assert_eq!(a.read(RESULT).await, Some(b"another".to_vec()));
        assert_eq!(a.entry(RESULT), b.entry(RESULT));
    });
}

#[test]
fn a_checkpoint_has_no_times_that_others_do_not_know() {
    run(async {
        let world = World::new();
        let (mut a, b) = (world.node(), world.node());
        a.send(RESULT, b"an entry").await;
        set(&a, RESULT, 7, 0);
        assert_known(&world, &a, 0).await;
        // They are in flight, and then another change is.
        a.engine.ledger().send_touches().unwrap();
        assert_known(&world, &a, 0).await;
        a.push().await;
        assert_known(&world, &a, 7).await;
        set(&a, RESULT, 8, 0);
        set(&a, RESULT, 8, 0o600);
        assert_known(&world, &a, 7).await;
        a.push().await;
        assert_known(&world, &a, 8).await;
        // Another node changes the entry meanwhile.
        set(&a, RESULT, 9, 0o600);
        assert!(b.pull().await);
        world.clock.advance(std::time::Duration::from_secs(5));
        let mut b = b;
        b.write(RESULT, b"another");
        set(&b, RESULT, 0, 0o640);
        b.push().await;
        assert!(a.pull().await);
        a.push().await;
        a.engine.ledger().send_touches().unwrap();
        assert_eq!(a.engine.ledger().pending().records, 0, "touches of others are not sent again");
        checkpoint(&a).await;
        let fresh = assert_starts(&world, 0).await;
        assert_eq!(fresh.entry(RESULT), b.entry(RESULT));
    });
}

/// Writes a checkpoint, and starts a node from it.
async fn assert_known(world: &World, by: &Node, known: i64) {
    checkpoint(by).await;
    assert_starts(world, known).await;
    world.clock.advance(std::time::Duration::from_secs(5));
}

async fn assert_starts(world: &World, known: i64) -> Node {
    let fresh = world.caught_up().await;
    assert_eq!(seconds(&fresh, RESULT), known);
    fresh
}

/// A record must not be larger than any other may be.
#[test]
fn p13_bounded_touches_are_sent_in_parts() {
    run(async {
        let world = World::new();
        let mut a = world.node();
        let name = |n: u64| format!("ccache/4/b/c8hd21nvu6rt8kdlj2v5m6e0ri0p{n:03}R");
        let value: Box<[u8]> = vec![7; 60_000].into();
        for half in [0..300, 300..600] {
            let put = |n: u64| {
                let mut entry = file_of(n);
                let xattr = (Box::from(&b"user.large"[..]), value.clone());
                entry.attrs.xattrs = Some(Box::new(std::iter::once(xattr).collect()));
                (path(&name(n)), Op::Put(entry))
            };
            a.publish(half.map(put).collect());
        }
        a.push().await;
        for n in 0..600 {
            let ledger = a.engine.ledger();
            let register = ledger.read(|fold| fold.register(&path(&name(n)))).unwrap();
            let (of, time) = (register.stamp, Time { secs: 9, nanos: 0 });
            let attrs = Attrs { mtime: time, atime: time, ..register.entry.unwrap().attrs };
            ledger.publish(vec![(path(&name(n)), Op::Attrs { of, attrs })]).unwrap();
        }
        a.push().await;
        assert_eq!(a.engine.ledger().pending().records, 0);
        a.engine.ledger().send_touches().unwrap();
        assert!(a.engine.ledger().pending().records >= 2);
        a.push().await;
        let b = world.caught_up().await;
        let times = |node: &Node| {
            let all = node.registers().into_iter();
            all.filter(|(_, register)| register.entry.as_ref().unwrap().attrs.mtime.secs == 9)
                .count()
        };
        assert_eq!((times(&a), times(&b)), (600, 600));
    });
}
