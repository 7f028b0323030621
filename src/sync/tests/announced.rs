//! The head of the log: nodes follow the commits that are announced in it without lists, and
//! nothing depends on it.

use std::time::Duration;

use super::checkpoints::{checkpoint, remove_log};
use super::harness::*;
use crate::remote::{HeadPut, HeadRead, LogHead, Remote};
use crate::stamp::Stamp;

pub(super) const WIDE: Duration = Duration::from_secs(10 * 60 + 1);

/// A node that has read the head once.
pub(super) async fn follower(world: &World) -> Node {
    let node = world.node();
    assert!(node.pull().await && node.pull().await);
    node
}

/// Returns how many lists and reads an operation costs a node.
pub(super) async fn cost(node: &Node, what: impl Future<Output = bool>) -> (u64, u64) {
    let before = node.remote().requests();
    assert!(what.await);
    let after = node.remote().requests();
    (after.lists - before.lists, after.gets - before.gets)
}

pub(super) async fn head_of(remote: &Remote) -> LogHead {
    match remote.get_head(None).await.unwrap() {
        HeadRead::Other(head, _) => (*head).clone(),
        other => panic!("{other:?}"),
    }
}

/// A node that has sent this many files, each with a commit of its own: f0, f1 and so on.
async fn sent(files: usize) -> (World, Node) {
    let world = World::new();
    let mut node = world.node();
    for n in 0..files {
        node.send(&format!("f{n}"), b"x").await;
    }
    (world, node)
}

async fn change_head(world: &World, node: &Node, change: impl FnOnce(&mut LogHead)) {
    let mut head = head_of(node.remote()).await;
    change(&mut head);
    world.store.overwrite("head", head.encode().unwrap().to_vec()).await;
}

/// Announces commits as other nodes do.
pub(super) async fn announce(remote: &Remote, names: &[Stamp]) {
    loop {
        let (head, version) = match remote.get_head(None).await.unwrap() {
            HeadRead::Other(head, version) => (Some(head), Some(version)),
            _ => (None, None),
        };
        let names = names.iter().map(|name| (*name, None));
        let next = LogHead::after(head.as_deref(), names, remote.now_ms());
        if let HeadPut::Done(_) = remote.put_head(&next, version.as_ref()).await.unwrap() {
            return;
        }
    }
}

#[test]
fn p10_freshness_by_the_head_of_the_log_needs_no_list() {
    run(async {
        let world = World::new();
        let mut a = world.node();
        a.send("f", b"0").await;
        let b = follower(&world).await;
        for n in 1..20_u64 {
            assert_eq!(cost(&b, b.pull()).await, (0, 1), "nothing new: one read");
            a.send("f", &content(n, 50)).await;
            assert_eq!(cost(&b, b.pull()).await, (0, 1), "the commit lies in the head");
            assert_eq!(b.read("f").await, Some(content(n, 50)));
            world.clock.advance(Duration::from_secs(1));
        }
    });
}

#[test]
fn commits_that_are_too_large_for_the_head_are_named_in_it() {
    run(async {
        let world = World::new();
        let mut a = world.node();
        a.send("f", b"0").await;
        let b = follower(&world).await;
        for n in 0..30_u64 {
            a.write(&format!("dir/{n}"), &content(n, 3000));
        }
        a.push().await;
        assert_eq!(cost(&b, b.pull()).await, (0, 2), "the head and the commit");
        assert!(b.entry("dir/29").is_some());
    });
}

/// A node that announces late may name commits again that the head had displaced.
#[test]
fn commits_that_are_named_again_cost_nothing() {
    run(async {
        let world = World::new();
        let mut a = world.node();
        let b = follower(&world).await;
        for n in 0..30_u64 {
            a.send("f", &content(n, 50)).await;
        }
        assert!(b.pull().await);
        let HeadRead::Other(head, version) = b.remote().get_head(None).await.unwrap() else {
            panic!("there is no head")
        };
        let number = head.number + 1;
        let mut next = LogHead { number, from: number, ..(*head).clone() };
        for commit in &mut next.commits {
            (commit.number, commit.bytes) = (number, None);
        }
        assert!(matches!(a.remote().put_head(&next, Some(&version)).await, Ok(HeadPut::Done(_))));
        assert_eq!(cost(&b, b.pull()).await, (0, 1), "all of them are folded");
    });
}

/// Some stores list new objects late, and a stored object can be damaged. For a moment the head has
/// the commit, too.
#[test]
fn a_commit_that_a_list_does_not_show_yet_is_read_from_the_head() {
    run(async {
        let (world, _a) = sent(3).await;
        let log = world.log().await;
        world.store.remove(&log[1]).await;
        world.store.remove(&log[2]).await;
        let b = world.caught_up().await;
        assert!((0..3).all(|n| b.entry(&format!("f{n}")).is_some()));
    });
}

/// The list shows the last commit of a node and not the one before, which the store does not return
/// at the moment.
#[test]
fn p5_in_order_although_lists_are_late() {
    run(async {
        let (world, a) = sent(3).await;
        change_head(&world, &a, |head| head.commits[1].bytes = None).await;
        let late = world.log().await.remove(1);
        let bytes = world.store.read(&late).await.unwrap().to_vec();
        world.store.remove(&late).await;
        let b = world.node();
        b.fail(&format!("errors=100 only={late}"));
        assert!(!b.pull().await);
        assert!(b.entry("f0").is_some() && b.entry("f1").is_none() && b.entry("f2").is_none());
        world.store.overwrite(&late, bytes).await;
        b.fail("");
        assert!(b.pull().await && b.entry("f1").is_some() && b.entry("f2").is_some());
    });
}

/// The head names a commit and no longer the one before, and a list shows neither yet.
#[test]
fn p5_in_order_where_the_head_names_more_than_a_late_list() {
    run(async {
        let (world, a) = sent(3).await;
        change_head(&world, &a, |head| drop(head.commits.remove(1))).await;
        let late = world.log().await.split_off(1);
        let mut kept = Vec::new();
        for name in &late {
            kept.push(world.store.read(name).await.unwrap().to_vec());
            world.store.remove(name).await;
        }
        let b = world.node();
        assert!(!b.pull().await);
        assert!(b.entry("f0").is_some() && b.entry("f2").is_none());
        for (name, bytes) in late.iter().zip(kept) {
            world.store.overwrite(name, bytes).await;
        }
        assert!(b.pull().await && b.entry("f1").is_some() && b.entry("f2").is_some());
    });
}

/// The copy of a damaged commit is used in its place, so that nothing waits for what never comes.
#[test]
fn p9_self_healing_nothing_waits_for_a_damaged_commit_of_which_there_is_a_copy() {
    run(async {
        let (world, _a) = sent(4).await;
        let log = world.log().await;
        world.store.overwrite(&log[1], b"damaged".to_vec()).await;
        world.store.remove(&log[2]).await;
        let b = world.node();
        assert_eq!(cost(&b, b.pull()).await.1, 2, "the identity and the head");
        assert!((0..4).all(|n| b.entry(&format!("f{n}")).is_some()));
    });
}

/// The copy of the damaged commit is no longer in the head, and that of the one after it is.
#[test]
fn p9_self_healing_a_commit_that_is_gone_from_the_log_does_not_hold_up_later_ones() {
    run(async {
        let (world, a) = sent(4).await;
        change_head(&world, &a, |head| head.commits[1].bytes = None).await;
        let log = world.log().await;
        world.store.overwrite(&log[1], b"damaged".to_vec()).await;
        world.store.remove(&log[2]).await;
        let b = world.node();
        assert!(b.pull().await);
        assert!([0, 2, 3].iter().all(|n| b.entry(&format!("f{n}")).is_some()));
    });
}

#[test]
fn a_node_that_was_away_for_longer_than_the_head_covers_lists_the_log() {
    run(async {
        let world = World::new();
        let mut a = world.node();
        a.send("f", b"0").await;
        let b = follower(&world).await;
        for n in 0..5_u64 {
            world.clock.advance(Duration::from_mins(4));
            a.send("f", &content(n, 50)).await;
        }
        let (lists, _) = cost(&b, b.pull()).await;
        assert!(lists > 0, "the pushed-out commit is in the log");
        assert_eq!(b.read("f").await, Some(content(4, 50)));
        assert_eq!(cost(&b, b.pull()).await, (0, 1), "it follows the head again");
    });
}

/// Nodes of older versions, and nodes that die between commit and announcement.
#[test]
fn a_commit_that_is_not_announced_is_found_and_the_head_is_not_trusted_then() {
    run(async {
        let world = World::new();
        let (mut a, mut old) = (world.node(), world.node());
        a.send("f", b"0").await;
        let b = follower(&world).await;
        let mut write_unannounced = async |bytes: &[u8]| {
            old.write("old", bytes);
            old.push_unannounced().await;
        };
        write_unannounced(b"1").await;
        assert!(b.pull().await);
        assert!(b.entry("old").is_none(), "the head does not name the commit");
        world.clock.advance(WIDE);
        assert!(
            b.pull().await && b.read("old").await == Some(b"1".into()),
            "a wide list finds the commit"
        );
        world.clock.advance(Duration::from_secs(31));
        assert!(b.pull().await);
        for n in 0..9_u8 {
            // Now each look lists the log, for ten minutes.
            write_unannounced(&[n]).await;
            world.clock.advance(Duration::from_mins(1));
            assert!(b.pull().await && b.read("old").await == Some(vec![n]), "{n}");
        }
        // The last one was found while lists were made, and counts as well.
        world.clock.advance(Duration::from_mins(8));
        write_unannounced(b"x").await;
        assert!(b.pull().await && b.read("old").await == Some(b"x".into()));
        world.clock.advance(Duration::from_mins(12));
        assert!(b.pull().await && b.pull().await);
        world.clock.advance(Duration::from_mins(12));
        assert!(b.pull().await);
        assert_eq!(cost(&b, b.pull()).await, (0, 1), "all nodes announce again");
    });
}

#[test]
fn a_node_that_slept_trusts_the_head_again() {
    run(async {
        let world = World::new();
        let mut a = world.node();
        a.send("f", b"0").await;
        let b = follower(&world).await;
        for n in 0..40_u64 {
            world.clock.advance(Duration::from_mins(1));
            a.send(&format!("g{n}"), &content(n, 50)).await;
        }
        assert!(b.pull().await && b.entry("g39").is_some());
        for _ in 0..9 {
            world.clock.advance(Duration::from_mins(1));
            assert_eq!(cost(&b, b.pull()).await, (0, 1));
        }
    });
}

/// The node that put it into the head may have bad memory or a bad connection.
#[test]
fn p9_self_healing_of_a_commit_that_is_damaged_in_the_head() {
    run(async {
        let world = World::new();
        let mut a = world.node();
        a.send("f", b"0").await;
        let b = follower(&world).await;
        a.send("f", b"1").await;
        let mut head = head_of(a.remote()).await;
        let bytes = head.commits.last_mut().unwrap().bytes.as_mut().unwrap();
        let middle = bytes.len() / 2;
        bytes[middle] ^= 1;
        world.store.overwrite("head", head.encode().unwrap().to_vec()).await;
        assert!(b.pull().await);
        assert_eq!(b.read("f").await, Some(b"1".into()), "the log also has it");
        assert!(!b.engine.ledger().is_partial());
    });
}

#[test]
fn a_checkpoint_has_what_was_not_announced() {
    run(async {
        let world = World::new();
        let (mut a, mut old) = (world.node(), world.node());
        a.send("f", b"0").await;
        assert!(a.pull().await && a.pull().await);
        old.write("old", b"1");
        old.push_unannounced().await;
        checkpoint(&a).await;
        remove_log(&world, |_| true).await;
        let c = world.node();
        assert!(c.pull().await && c.entry("old").is_some());
    });
}

/// A bucket that was restored, or that failed over to a copy that lags.
#[test]
fn a_head_that_has_moved_back_is_not_followed() {
    run(async {
        let world = World::new();
        let mut a = world.node();
        a.send("f", b"0").await;
        let before = world.store.read("head").await.unwrap().to_vec();
        a.send("f", b"1").await;
        let b = follower(&world).await;
        world.store.overwrite("head", before).await;
        let (lists, _) = cost(&b, b.pull()).await;
        assert!(lists > 0);
        for n in 0..3_u8 {
            a.send("f", &[n]).await;
            assert!(b.pull().await && b.read("f").await == Some(vec![n]), "{n}");
        }
    });
}

/// Nodes that were not restored go on from the head of the backup, until it has the number that a
/// reader knows.
#[test]
fn a_restored_bucket_whose_head_has_the_known_number_is_listed() {
    run(async {
        for commits in 0..3_u8 {
            let world = World::new();
            let mut a = world.node();
            a.send("f", b"0").await;
            let before = world.store.read("head").await.unwrap().to_vec();
            a.send("f", b"1").await;
            a.send("f", b"2").await;
            let b = follower(&world).await;
            world.store.overwrite("head", before).await;
            let mut other = world.node();
            assert!(other.pull().await);
            for n in 0..=commits {
                other.send(&format!("g{n}"), b"x").await;
            }
            assert!(b.pull().await);
            for n in 0..=commits {
                assert!(b.entry(&format!("g{n}")).is_some(), "g{n} of {commits}");
            }
            assert_eq!(cost(&b, b.pull()).await, (0, 1), "it follows the restored head");
        }
    });
}

#[test]
fn a_commit_that_the_store_refuses_does_not_end_the_following_of_the_head() {
    run(async {
        let (world, mut a) = sent(3).await;
        let refused = &world.log().await[1];
        world.store.remove("head").await;
        let b = world.node();
        b.fail(&format!("forbidden=1 only={refused}"));
        assert!(b.pull().await && b.entry("f2").is_some() && b.entry("f1").is_none());
        world.clock.advance(Duration::from_mins(2));
        a.send("g", b"x").await;
        assert!(b.pull().await && b.pull().await);
        assert_eq!(cost(&b, b.pull()).await, (0, 1));
    });
}

#[test]
fn bad_input_a_head_that_is_wrong_costs_lists_and_is_replaced() {
    run(async {
        for (bytes, is_replaced) in
            [(b"nonsense".to_vec(), true), (vec![0; 600 << 10], true), (newer_head(), false)]
        {
            let world = World::new();
            let mut a = world.node();
            a.send("f", b"0").await;
            let b = follower(&world).await;
            world.store.overwrite("head", bytes).await;
            a.write("f", b"1");
            a.push_unannounced().await;
            assert!(
                b.pull().await && b.read("f").await == Some(b"1".into()),
                "the commit is listed"
            );
            a.engine.publisher().unwrap().announce_all().await;
            let head = a.remote().get_head(None).await.unwrap();
            assert_eq!(matches!(head, HeadRead::Other(..)), is_replaced, "{head:?}");
            world.clock.advance(Duration::from_secs(11));
            a.send("f", b"2").await;
            assert!(b.pull().await && b.read("f").await == Some(b"2".into()));
        }
    });
}

/// A head of version 2, with a correct checksum.
fn newer_head() -> Vec<u8> {
    let start = b"HFHEAD\r\n\x02\0".to_vec();
    let sum = blake3::hash(&start);
    [start, sum.as_bytes().to_vec()].concat()
}

#[test]
fn a_read_only_node_follows_the_head() {
    run(async {
        let mut world = World::new();
        let mut a = world.node();
        a.send("f", b"0").await;
        world.settings.read_only = true;
        let b = follower(&world).await;
        a.send("f", b"1").await;
        assert_eq!(cost(&b, b.pull()).await, (0, 1));
        assert_eq!(b.read("f").await, Some(b"1".into()));
    });
}
