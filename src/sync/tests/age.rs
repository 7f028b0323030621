//! P11: expiry, renewal, forgetting, and nodes that return late.

use std::time::Duration;

use super::harness::*;
use crate::namespace::{Attrs, Entry, EntryKind, Op, Time};
use crate::stamp::Stamp;

const HOUR: Duration = Duration::from_hours(1);
const DAY: Duration = Duration::from_hours(24);
const MONTH: Duration = Duration::from_hours(30 * 24);

fn directory(mode: u32) -> Op {
    Op::Put(Entry::directory(mode, 7, 8, Time::default()))
}

/// Contents of each size class: in a commit, in a pack, and a separate object.
const SIZES: [(&str, usize); 3] = [("tiny", 300), ("small", 9_000), ("large", 1_500_000)];

#[test]
fn p11_expiry_is_a_miss_although_the_bytes_are_here() {
    run(async {
        let world = World::aging(MONTH);
        let (mut a, b) = (world.node(), world.node());
        for (name, size) in SIZES {
            a.write(name, &content(1, size));
        }
        // Content that is not remote has no age.
        world.clock.advance(10 * DAY);
        a.push().await;
        assert!(b.pull().await);
        for (name, size) in SIZES {
            assert!(b.read(name).await == Some(content(1, size)));
        }
        world.clock.advance(Duration::from_millis(29 * 86_400_000 - 1));
        for (name, size) in SIZES {
            assert!(a.entry(name).is_some() && b.read(name).await == Some(content(1, size)));
        }
        world.clock.advance(Duration::from_millis(1));
        for (name, size) in SIZES {
            assert!(a.entry(name).is_none() && b.entry(name).is_none(), "{name}");
            let digest = crate::digest::Digest::of(&content(1, size));
            assert!(a.engine.ledger().blobs().contains(&digest), "the content is still local");
            if name == "tiny" {
                // It arrives with its commit.
                continue;
            }
            let new = world.caught_up().await;
            let fetched = new.engine.fetcher().fetch(digest, size as u64).await;
            assert_eq!(fetched.unwrap_err().kind(), crate::error::Kind::NotFound);
        }
        // The same bytes written again are a new entry with its own age, here and on other nodes.
        for (name, size) in SIZES {
            a.write(name, &content(1, size));
            assert!(a.entry(name).is_some());
        }
        a.push().await;
        assert!(b.pull().await);
        world.clock.advance(28 * DAY);
        for (name, size) in SIZES {
            assert!(b.read(name).await == Some(content(1, size)), "{name}");
        }
        assert_eq!(b.engine.ledger().pending().records, 0, "expiry is not damage");
    });
}

#[test]
fn p11_expiry_never() {
    run(async {
        let world = World::new();
        let mut a = world.node();
        a.send("f", &content(1, 9_000)).await;
        let puts = a.remote().requests().puts;
        for _ in 0..20 {
            world.clock.advance(365 * DAY);
            assert!(a.pull().await && a.open("f").await.is_some());
            a.keep_house().await;
        }
        assert_eq!(a.remote().requests().puts, puts);
    });
}

#[test]
fn p11_expiry_of_what_has_no_bytes() {
    run(async {
        let world = World::aging(MONTH);
        let mut a = world.node();
        let link = EntryKind::Symlink { target: b"file"[..].into() };
        let link = Entry { kind: link, attrs: Attrs::default(), link: None };
        let empty = file(crate::digest::Digest::empty(), 0);
        for dir in ["used", "idle"] {
            a.publish(vec![(path(dir), directory(0o750))]);
            a.publish(vec![(path(&format!("{dir}/deep")), directory(0o2770))]);
            a.publish(vec![(path(&format!("{dir}/deep/link")), Op::Put(link.clone()))]);
            a.publish(vec![(path(&format!("{dir}/deep/lock")), Op::Put(empty.clone()))]);
            a.write(&format!("{dir}/deep/file"), &content(3, 9_000));
        }
        a.send("used/deep/file", &content(4, 9_000)).await;
        for _ in 0..6 {
            world.clock.advance(10 * DAY);
            assert!(a.pull().await && a.open("used/deep/file").await.is_some());
            world.clock.advance(2 * HOUR);
            assert!(a.pull().await);
            a.keep_house().await;
        }
        for name in ["used", "used/deep", "used/deep/link", "used/deep/lock"] {
            assert!(a.entry(name).is_some(), "{name}");
        }
        assert_eq!(a.entry("used/deep").unwrap().attrs.mode, 0o2770);
        for name in ["idle", "idle/deep", "idle/deep/link", "idle/deep/lock", "idle/deep/file"] {
            assert!(a.entry(name).is_none(), "{name}");
        }
        // All of that is forgotten, too.
        assert!(a.registers().iter().all(|(at, _)| !at.is_below(&path("idle"))));
        let known = a.registers();
        assert_eq!(known.len(), 5, "{known:?}");
        let a = world.node_at({
            a.engine.stop().await;
            a.crash()
        });
        assert_eq!(a.registers(), known, "the index agrees");
    });
}

#[test]
fn p11_renewal_by_one_node_in_time() {
    run(async {
        let world = World::aging(MONTH);
        let (mut a, mut b) = (world.node(), world.node());
        for n in 0..10 {
            a.write(&format!("f{n}"), &content(n, 9_000));
        }
        a.push().await;
        assert!(b.pull().await);
        let packs = world.keys("packs/").await.len();
        world.clock.advance(Duration::from_secs(15 * 86_400 - 1));
        assert!(a.pull().await && b.pull().await);
        for node in [&mut a, &mut b] {
            assert!(node.open("f0").await.is_some());
            world.clock.advance(Duration::ZERO);
            node.keep_house().await;
        }
        assert_eq!(world.keys("packs/").await.len(), packs, "the pack is not old yet");
        world.clock.advance(Duration::from_secs(1));
        assert!(a.pull().await && b.pull().await);
        for node in [&mut a, &mut b] {
            for n in 0..5 {
                assert!(node.open(&format!("f{n}")).await.is_some());
            }
        }
        // Both know, and neither renews at once; the second sees what the first has done.
        world.clock.advance(HOUR);
        for node in [&mut a, &mut b] {
            assert!(node.pull().await);
            node.keep_house().await;
        }
        assert_eq!(world.keys("packs/").await.len(), packs + 1, "one pack, by one node");
        assert!(a.pull().await);
        world.clock.advance(14 * DAY);
        world.store.expire(29 * DAY).await;
        let c = world.node();
        assert!(a.pull().await && b.pull().await && c.pull().await);
        for n in 0..10 {
            let name = format!("f{n}");
            let expected = (n < 5).then(|| content(n, 9_000));
            assert!(a.open(&name).await == expected && b.open(&name).await == expected, "{name}");
        }
        assert_eq!(world.keys("packs/").await.len(), 1, "unused content is not copied");
    });
}

#[test]
fn p11_renewal_can_be_off() {
    run(async {
        let mut world = World::aging(MONTH);
        world.settings.renew_on_use = false;
        let mut a = world.node();
        a.send("f", &content(1, 9_000)).await;
        for _ in 0..28 {
            world.clock.advance(DAY);
            assert!(a.pull().await && a.open("f").await.is_some());
            a.keep_house().await;
        }
        world.clock.advance(DAY);
        assert!(a.open("f").await.is_none(), "a strict age");
    });
}

#[test]
fn p11_a_content_that_is_put_again_relies_on_no_old_copy() {
    run(async {
        let world = World::aging(MONTH);
        let mut a = world.node();
        a.send("f", &content(1, 9_000)).await;
        assert!(a.pull().await);
        a.send("g", &content(1, 9_000)).await;
        assert_eq!(world.keys("packs/").await.len(), 1, "the pack is young and in use");
        // No program uses it any more, so it may be deleted at any time once it is not young.
        a.remove("f");
        a.remove("g");
        a.push().await;
        world.clock.advance(Duration::from_mins(11));
        assert!(a.pull().await);
        a.send("h", &content(1, 9_000)).await;
        assert_eq!(world.keys("packs/").await.len(), 2);
        world.clock.advance(15 * DAY);
        assert!(a.pull().await);
        a.send("i", &content(1, 9_000)).await;
        assert_eq!(world.keys("packs/").await.len(), 3, "the pack is at half of its age");
        world.clock.advance(HOUR);
        a.send("j", &content(1, 9_000)).await;
        assert_eq!(
            world.keys("packs/").await.len(),
            4,
            "no node has looked at the log for an hour"
        );
    });
}

#[test]
fn p11_expiry_by_the_stores_clock() {
    run(async {
        let world = World::aging(MONTH);
        let hours = |hours: i64| hours * 3_600_000;
        let root = || tempfile::tempdir().unwrap();
        let mut a = world.node_skewed(root(), hours(50)).await;
        let b = world.node_skewed(root(), hours(-70)).await;
        a.send("f", &content(1, 9_000)).await;
        assert!(b.pull().await);
        world.clock.advance(Duration::from_secs(29 * 86_400 - 3));
        assert!(a.entry("f").is_some() && b.entry("f").is_some());
        world.clock.advance(Duration::from_secs(6));
        assert!(a.entry("f").is_none() && b.entry("f").is_none());
    });
}

/// What a node may find that returns after a long absence.
#[test]
fn p11_expiry_of_a_node_that_was_away() {
    run(async {
        for away in [20 * DAY, 29 * DAY, 40 * DAY, 100 * DAY] {
            let world = World::aging(MONTH);
            let (mut a, mut b) = (world.node(), world.node());
            for name in ["old", "removed", "replaced", "changed", "mine", "gone/mine"] {
                a.write(name, &content(1, 9_000));
            }
            a.push().await;
            assert!(a.pull().await && b.pull().await);
            // It is stopped with a backlog.
            a.write("mine", &content(2, 9_000));
            a.write("mine", &content(3, 9_000));
            let stamp = a.write("changed", &content(4, 9_000));
            let attrs = Attrs { mode: 0o600, ..Attrs::default() };
            a.publish(vec![(path("changed"), Op::Attrs { of: stamp, attrs })]);
            a.write("replaced", &content(5, 9_000));
            a.write("removed", &content(6, 9_000));
            a.write("backlog/new", &content(7, 9_000));
            a.remove("gone/mine");
            a.engine.stop().await;
            let root = a.crash();
            world.clock.advance(Duration::from_secs(1));
            b.remove("removed");
            // The same bytes are still used under another name: that is no reason to show the old
            // one.
            b.write("elsewhere", &content(1, 9_000));
            let mut rest = away;
            while rest > Duration::ZERO {
                let step = rest.min(5 * DAY);
                world.clock.advance(step);
                rest -= step;
                b.send("replaced", &content(8, 9_000)).await;
                assert!(b.pull().await && b.open("elsewhere").await.is_some());
                world.clock.advance(HOUR);
                assert!(b.pull().await);
                b.keep_house().await;
                world.store.expire(MONTH).await;
            }
            let mut a = world.node_at(root);
            if away > 28 * DAY {
                for name in ["old", "gone/mine", "elsewhere"] {
                    assert!(a.entry(name).is_none(), "{name} after {away:?}");
                }
            }
            assert!(a.pull().await);
            assert!(a.read("mine").await == Some(content(3, 9_000)), "its own content is pending");
            a.push().await;
            assert!(a.pull().await && b.pull().await);
            let fresh = world.caught_up().await;
            for (node, who) in [(&a, "a"), (&b, "b"), (&fresh, "a new node")] {
                let show = |name: &str| format!("{name} on {who} after {away:?}");
                for (name, seed) in
                    [("mine", 3), ("changed", 4), ("backlog/new", 7), ("replaced", 8)]
                {
                    let read = node.read(name).await;
                    assert!(read == Some(content(seed, 9_000)), "{}", show(name));
                }
                assert_eq!(node.entry("changed").unwrap().attrs.mode, 0o600, "{}", show("mode"));
                assert!(node.entry("gone/mine").is_none(), "{}", show("gone/mine"));
                // While it can be known, the later change wins; after that, what is left of the
                // two.
                let expected = (away > MONTH).then(|| content(6, 9_000));
                assert!(node.read("removed").await == expected, "{}", show("removed"));
                let old = node.read("old").await;
                assert!(old.is_none() || old == Some(content(1, 9_000)));
            }
        }
    });
}

#[test]
fn p11_expiry_of_a_node_that_was_idle() {
    run(async {
        let world = World::aging(MONTH);
        let (mut a, mut b) = (world.node(), world.node());
        for name in ["removed", "kept"] {
            a.write(name, &content(1, 9_000));
        }
        a.push().await;
        assert!(a.pull().await && b.pull().await);
        b.write("own", &content(2, 9_000));
        a.remove("removed");
        a.push().await;
        for _ in 0..8 {
            world.clock.advance(5 * DAY);
            assert!(a.pull().await && a.open("kept").await.is_some());
            world.clock.advance(HOUR);
            assert!(a.pull().await);
            a.keep_house().await;
            world.store.expire(MONTH).await;
        }
        // The bytes are young, because another file has the same, and it can no longer be known
        // that this one was removed.
        assert!(b.pull().await);
        assert!(b.entry("removed").is_none());
        assert!(b.read("own").await == Some(content(2, 9_000)), "the content was not remote");
        b.push().await;
        assert!(a.pull().await && a.entry("own").is_some());
    });
}

#[test]
fn late_changes_keep_their_order_and_lose_to_others() {
    run(async {
        let world = World::aging(MONTH);
        let (mut a, mut b) = (world.node(), world.node());
        a.write("p", &content(1, 500));
        a.write("q", &content(2, 500));
        a.upload().await;
        // A later batch, of the same paths and of others.
        a.write("p", &content(3, 500));
        a.write("r", &content(4, 500));
        world.clock.advance(16 * DAY);
        b.send("q", &content(5, 500)).await;
        a.send("s", &content(6, 500)).await;
        assert!(a.pull().await && b.pull().await);
        let c = world.caught_up().await;
        for node in [&a, &b, &c] {
            for (name, seed) in [("p", 3), ("q", 5), ("r", 4), ("s", 6)] {
                assert!(node.read(name).await == Some(content(seed, 500)), "{name}");
            }
        }
        assert_eq!(b.registers(), c.registers());
        let of = |node: &Node, name: &str| -> Stamp {
            node.engine.ledger().read(|fold| fold.register(&path(name)).unwrap().stamp)
        };
        let young = NOW_MS + (15 * DAY).as_millis() as u64;
        assert!(["p", "r", "s"].iter().all(|name| of(&c, name).ms > young), "stamped again");
        assert!(of(&c, "p") < of(&c, "r") && of(&c, "r") < of(&c, "s"));
        assert_eq!(a.registers(), b.registers());
    });
}

#[test]
fn late_changes_survive_a_crash_on_their_way() {
    run(async {
        let world = World::aging(MONTH);
        let mut a = world.node();
        a.write("p", &content(1, 500));
        a.upload().await;
        a.write("p", &content(2, 500));
        world.clock.advance(20 * DAY);
        // The first one is remote under a new stamp, and the journal does not know that yet.
        a.commit().await;
        let mut a = world.node_at(a.crash());
        assert!(a.pull().await);
        a.push().await;
        let b = world.node();
        assert!(a.pull().await && b.pull().await);
        for node in [&a, &b] {
            assert!(node.read("p").await == Some(content(2, 500)), "the later close wins");
        }
    });
}

#[test]
fn attributes_that_wait_behind_a_change_which_is_late_twice_are_not_lost() {
    run(async {
        let world = World::aging(MONTH);
        let (mut a, b) = (world.node(), world.node());
        let put = a.write("p", &content(1, 500));
        a.upload().await;
        // A later batch.
        let attrs = Attrs { mode: 0o640, ..Attrs::default() };
        a.publish(vec![(path("p"), Op::Attrs { of: put, attrs })]);
        world.clock.advance(16 * DAY);
        // Once it has its new stamp, there is no store for the same time again.
        a.fail("latency_ms=1000");
        let (clock, faults, ledger) =
            (world.clock.clone(), a.faults.clone(), a.engine.ledger().clone());
        let passing = async move {
            while ledger.read(|fold| fold.register(&path("p")).unwrap().stamp) == put {
                crate::clock::sleep(Duration::from_millis(10)).await;
            }
            faults.set(crate::remote::fault::FaultPlan::parse("errors=100").unwrap());
            crate::clock::sleep(Duration::from_secs(5)).await;
            clock.advance(16 * DAY);
            crate::clock::sleep(Duration::from_mins(1)).await;
            faults.set(crate::remote::fault::FaultPlan::parse("").unwrap());
        };
        futures::join!(a.commit(), passing);
        a.push().await;
        assert!(a.pull().await && b.pull().await);
        assert_eq!(a.entry("p").unwrap().attrs.mode, 0o640);
        assert_eq!(b.entry("p").unwrap().attrs.mode, 0o640);
        assert_eq!(a.registers(), b.registers());
    });
}

/// A file that waited must not become visible below a directory of which others have forgotten
/// owner and mode.
#[test]
fn p14_isolation_below_a_directory_that_others_have_forgotten() {
    run(async {
        for (away, restarts) in
            [(10 * DAY, false), (10 * DAY, true), (20 * DAY, false), (20 * DAY, true)]
        {
            let world = World::aging(MONTH);
            let (mut a, mut b) = (world.node(), world.node());
            let attrs = Attrs { mode: 0o700, uid: 1000, gid: 1000, ..Attrs::default() };
            let dir = Entry { kind: EntryKind::Directory, attrs: attrs.clone(), link: None };
            a.publish(vec![(path("private"), Op::Put(dir))]);
            a.write("private/f", &content(1, 9_000));
            a.push().await;
            assert!(a.pull().await && b.pull().await);
            world.clock.advance(25 * DAY);
            a.write("private/g", &content(2, 9_000));
            a.engine.ledger().save().unwrap();
            let mut rest = away;
            while rest > Duration::ZERO {
                world.clock.advance(DAY);
                rest -= DAY;
                assert!(b.pull().await);
                b.keep_house().await;
            }
            assert!(b.registers().iter().all(|(at, _)| *at != path("private")), "it is forgotten");
            if restarts {
                a = world.node_at(a.crash());
            }
            a.push().await;
            assert!(a.pull().await && b.pull().await);
            let fresh = world.caught_up().await;
            for (node, who) in [(&a, "a"), (&b, "b"), (&fresh, "a new node")] {
                let found = node.entry("private").map(|dir| dir.attrs);
                assert_eq!(
                    found,
                    Some(attrs.clone()),
                    "on {who} after {away:?}, restarts: {restarts}"
                );
                assert!(node.read("private/g").await == Some(content(2, 9_000)));
            }
            a.purge();
            assert_eq!(a.registers(), b.registers());
        }
    });
}

/// Contents that waited for their commit are not older than it.
#[test]
fn p11_expiry_does_not_count_while_a_commit_waits() {
    run(async {
        let world = World::aging(Duration::from_mins(10));
        let (mut a, b) = (world.node(), world.node());
        a.send("first", b"opens the store").await;
        a.write("small", &content(1, 500));
        a.write("packed", &content(2, 9_000));
        a.upload().await;
        world.clock.advance(Duration::from_mins(11));
        a.commit().await;
        assert!(a.pull().await && b.pull().await);
        for node in [&a, &b] {
            assert!(node.read("small").await == Some(content(1, 500)));
            assert!(node.read("packed").await == Some(content(2, 9_000)));
        }
    });
}
