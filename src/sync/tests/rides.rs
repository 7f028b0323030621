//! Files that a client rewrites on each hit: visible at once here, and sent to other nodes together
//! with other changes.

use super::checkpoints::checkpoint;
use super::harness::*;
use crate::digest::Digest;
use crate::namespace::{Attrs, Check, Op};

const CACHE: &str = "jax/jit_f-0-cache";
const ATIME: &str = "jax/jit_f-0-atime";

/// As JAX does on each hit.
fn hit(node: &Node, at: u64) {
    node.write(ATIME, &at.to_le_bytes());
}

async fn time(node: &Node) -> Option<u64> {
    let bytes = node.read(ATIME).await?;
    Some(u64::from_le_bytes(bytes.try_into().expect("eight bytes")))
}

async fn pulled(node: &Node) -> Option<u64> {
    assert!(node.pull().await);
    time(node).await
}

/// A node with an entry that other nodes have, and another node.
async fn nodes(world: &World) -> (Node, Node) {
    let (mut a, b) = (world.node(), world.node());
    a.write(CACHE, b"an entry");
    hit(&a, 0);
    let before = a.remote().requests().puts;
    a.push().await;
    assert_eq!(pulled(&b).await, Some(0), "the first version travels with its entry");
    assert_eq!(b.read(CACHE).await, Some(b"an entry".to_vec()));
    assert!(a.remote().requests().puts > before);
    (a, b)
}

#[test]
fn a_hundred_hits_make_one_commit_a_minute() {
    run(async {
        let world = World::new();
        let (mut a, b) = nodes(&world).await;
        let before = a.remote().requests();
        for at in 1..100 {
            hit(&a, at);
            assert_eq!(time(&a).await, Some(at), "at once");
            a.push().await;
        }
        let after = a.remote().requests();
        assert_eq!((after.puts, after.bytes_up), (before.puts, before.bytes_up), "no PUT at all");
        assert_eq!(a.engine.ledger().pending().records, 0);
        assert!(a.engine.ledger().blobs().usage().unsaved_bytes > 0, "the content is kept");
        assert_eq!(pulled(&b).await, Some(0));
        for _ in 0..2 {
            a.engine.ledger().send_touches().unwrap();
            a.push().await;
            assert_eq!(
                a.remote().requests().puts,
                before.puts + COMMIT_PUTS,
                "one commit and no more"
            );
        }
        assert_eq!(pulled(&b).await, Some(99));
        assert_eq!(a.entry(ATIME), b.entry(ATIME));
        assert_eq!(a.engine.ledger().blobs().usage().unsaved_bytes, 0, "no content is held");
        // The same holds for the next ones.
        hit(&a, 100);
        a.push().await;
        assert_eq!(a.remote().requests().puts, before.puts + COMMIT_PUTS);
    });
}

#[test]
fn a_hit_rides_with_the_next_commit() {
    run(async {
        let world = World::new();
        let (mut a, b) = nodes(&world).await;
        let before = a.remote().requests().puts;
        hit(&a, 5);
        // Nothing of this is sent, so nothing rides with it.
        a.write("ccache/stats", b"one call");
        a.write("short", b"lived");
        a.remove("short");
        a.push().await;
        assert_eq!((a.remote().requests().puts, pulled(&b).await), (before, Some(0)));
        a.write("other", b"one");
        hit(&a, 6);
        a.upload().await;
        let held = a.engine.ledger().blobs().usage().unsaved_bytes;
        hit(&a, 7);
        assert!(a.engine.ledger().blobs().usage().unsaved_bytes > held, "both are held");
        a.commit().await;
        assert_eq!((a.remote().requests().puts, pulled(&b).await), (before + COMMIT_PUTS, Some(6)));
        assert_eq!(time(&a).await, Some(7));
        a.push().await;
        assert_eq!(a.remote().requests().puts, before + COMMIT_PUTS);
        a.send("another", b"one").await;
        assert_eq!(
            (a.remote().requests().puts, pulled(&b).await),
            (before + 2 * COMMIT_PUTS, Some(7))
        );
        a.remove("ccache/stats");
        assert_eq!(a.registers(), b.registers());
        assert_eq!(a.engine.ledger().blobs().usage().unsaved_bytes, 0, "no content is held");
    });
}

/// Before and after the index has it, and with the earlier version still in flight.
#[test]
fn p4_local_durable_of_rides_that_wait() {
    run(async {
        for (pushed, saved) in [(false, false), (true, false), (false, true), (true, true)] {
            let world = World::new();
            let (mut a, b) = nodes(&world).await;
            a.write("other", b"opens a batch");
            a.upload().await;
            hit(&a, 1);
            hit(&a, 2);
            if pushed {
                a.push().await;
            }
            if saved {
                a.engine.ledger().save().unwrap();
            }
            let before = a.registers();
            let mut a = world.node_at(a.crash());
            assert_eq!(a.registers(), before, "{pushed}, {saved}");
            assert!(a.engine.ledger().blobs().usage().unsaved_bytes > 0, "{pushed}, {saved}");
            assert_eq!(time(&a).await, Some(2));
            // A checkpoint contains nothing of it that other nodes cannot have.
            a.push().await;
            world.clock.advance(std::time::Duration::from_secs(5));
            checkpoint(&a).await;
            let fresh = world.node();
            let known = pulled(&fresh).await.expect("a version");
            assert!(known == 0 || known == 2, "{known}");
            a.engine.ledger().send_touches().unwrap();
            a.push().await;
            assert_eq!(pulled(&b).await, Some(2), "{pushed}, {saved}");
            a.engine.ledger().save().unwrap();
            let a = world.node_at(a.crash());
            assert_eq!((a.registers(), time(&a).await), (b.registers(), Some(2)));
        }
    });
}

#[test]
fn p7_one_winner_of_hits_on_two_nodes() {
    run(async {
        let world = World::new();
        let (mut a, mut b) = nodes(&world).await;
        hit(&a, 1);
        world.clock.advance(std::time::Duration::from_secs(1));
        hit(&b, 2);
        a.engine.ledger().send_touches().unwrap();
        a.push().await;
        assert_eq!(pulled(&b).await, Some(2), "the later version stays");
        b.engine.ledger().send_touches().unwrap();
        b.push().await;
        assert_eq!(pulled(&a).await, Some(2));
        assert_eq!(a.entry(ATIME), b.entry(ATIME));
        // A version that is older than an arriving one is dropped.
        hit(&b, 3);
        world.clock.advance(std::time::Duration::from_secs(1));
        hit(&a, 4);
        a.engine.ledger().send_touches().unwrap();
        a.push().await;
        assert_eq!(pulled(&b).await, Some(4));
        let before = b.remote().requests().puts;
        b.engine.ledger().send_touches().unwrap();
        b.push().await;
        assert_eq!(b.remote().requests().puts, before, "nothing to publish");
        assert_eq!(b.engine.ledger().blobs().usage().unsaved_bytes, 0);
    });
}

/// A change that is more than a use is sent as usual.
#[test]
fn a_change_that_is_more_than_a_use_does_not_wait() {
    run(async {
        let world = World::new();
        let (mut a, b) = nodes(&world).await;
        hit(&a, 1);
        a.remove(ATIME);
        a.push().await;
        assert_eq!(pulled(&b).await, None, "an eviction");
        hit(&a, 2);
        a.push().await;
        assert_eq!(pulled(&b).await, Some(2), "a first version again");
        hit(&a, 3);
        let of = a.engine.ledger().read(|fold| fold.register(&path(ATIME)).unwrap().stamp);
        let attrs = Attrs { mode: 0o600, ..a.entry(ATIME).unwrap().attrs };
        a.publish(vec![(path(ATIME), Op::Attrs { of, attrs })]);
        a.push().await;
        a.engine.ledger().send_touches().unwrap();
        a.push().await;
        assert_eq!(pulled(&b).await, Some(3));
        assert_eq!(b.entry(ATIME), a.entry(ATIME));
        assert_eq!(b.entry(ATIME).unwrap().attrs.mode, 0o600);
        // A large file is no note of a use.
        a.send(ATIME, &[7; 5000]).await;
        assert!(b.pull().await);
        assert_eq!(b.read(ATIME).await, Some(vec![7; 5000]));
        // It does not hold back the entry itself.
        hit(&a, 4);
        a.engine.ledger().note_torn(Digest::of(b"half"), Check::Zstd);
        a.send(CACHE, b"half").await;
        assert!(b.pull().await);
        assert_eq!(b.read(CACHE).await, Some(b"an entry".to_vec()));
    });
}
