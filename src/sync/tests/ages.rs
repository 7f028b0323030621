//! Nodes that are configured with different expiries over one store: all keep content for the
//! expiry that the store declares.

use std::time::Duration;

use super::checkpoints::*;
use super::harness::*;
use crate::namespace::Op;

const DAY: Duration = Duration::from_hours(24);
const MONTH: Duration = Duration::from_hours(30 * 24);

/// A node that has read the expiry that the store declares.
async fn checked(world: &World) -> Node {
    let node = world.node();
    node.remote().check().await.unwrap();
    node
}

/// A store that declares a month, with a node of that expiry and one that is configured with five
/// days.
async fn two_ages() -> (World, World, Node, Node) {
    let month = World::aging(MONTH);
    let short = World { expiry: Some(5 * DAY), ..month.clone() };
    let a = checked(&month).await;
    let b = checked(&short).await;
    (month, short, a, b)
}

#[test]
fn p11_expiry_here_does_not_forget_what_others_show() {
    run(async {
        let (month, _, mut a, mut b) = two_ages().await;
        a.write("f", &content(1, 9_000));
        a.send("removed", &content(2, 9_000)).await;
        a.remove("removed");
        a.push().await;
        assert!(b.pull().await);
        for _ in 0..14 {
            month.clock.advance(DAY);
            assert!(a.pull().await && b.pull().await);
            b.keep_house().await;
        }
        assert!(a.read("f").await.is_some());
        assert!(b.entry("f").is_none(), "the node's own age is strict");
        assert_eq!(a.registers(), b.registers(), "it keeps the registers of the declared age");
        // A node that starts from its checkpoint shows what all nodes with that expiry show.
        checkpoint(&b).await;
        remove_log(&month, |_| true).await;
        let fresh = checked(&month).await;
        assert!(fresh.pull().await && fresh.read("f").await.is_some());
        for _ in 0..30 {
            month.clock.advance(DAY);
            assert!(b.pull().await);
            b.keep_house().await;
        }
        assert!(b.registers().is_empty(), "the declared age ends them");
    });
}

#[test]
fn checkpoints_are_left_to_nodes_of_the_declared_age_as_long_as_they_write_them() {
    run(async {
        let (month, _, a, mut b) = two_ages().await;
        let count = async || month.keys("checkpoints/").await.len();
        let write = async |b: &mut Node| {
            for n in 0..260_u64 {
                b.publish(vec![(path("f"), Op::Put(file_of(n)))]);
                b.push().await;
                month.clock.advance(Duration::from_millis(5));
            }
        };
        assert!(a.pull().await);
        checkpoint(&a).await;
        write(&mut b).await;
        assert!(b.engine.checkpointer().unwrap().is_due());
        b.engine.checkpointer().unwrap().write_if_due().await;
        assert_eq!(count().await, 1);
        month.clock.advance(16 * DAY);
        write(&mut b).await;
        b.engine.checkpointer().unwrap().write_if_due().await;
        assert_eq!(count().await, 2, "no other node writes one");
    });
}

#[test]
fn p11_expiry_that_is_declared_counts_also_for_a_start_without_the_store() {
    run(async {
        let short = World::aging(5 * DAY);
        let long = World { expiry: Some(MONTH), ..short.clone() };
        let mut a = checked(&short).await;
        let b = checked(&long).await;
        a.send("f", &content(1, 9_000)).await;
        assert!(b.pull().await && b.read("f").await.is_some());
        b.engine.ledger().save().unwrap();
        short.clock.advance(Duration::from_hours(109));
        let b = long.node_at(b.crash());
        b.fail("resets=100");
        assert!(b.entry("f").is_none(), "the store may have deleted it");
        assert_eq!(b.remote().effective_expiry(), Some(5 * DAY));
    });
}
