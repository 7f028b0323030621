//! A private node serves what all nodes share, and keeps its own changes to itself.

use super::checkpoints::checkpoint;
use super::harness::*;
use crate::digest::Digest;
use crate::error::Kind;
use crate::namespace::{Attrs, Op};
use crate::remote::fault::Faults;

/// Opens a private node on the shared store.
fn private(world: &World, root: tempfile::TempDir) -> Node {
    World { private: true, ..world.clone() }.node_at(root)
}

fn new_root() -> tempfile::TempDir {
    tempfile::tempdir().unwrap()
}

/// Lets the journal release waiting records, as the engine does.
fn settle(node: &Node) {
    while node.engine.ledger().settle_private() {}
    node.engine.ledger().save().unwrap();
}

fn set_mode(node: &Node, at: &str, mode: u32) {
    let ledger = node.engine.ledger();
    let of = ledger.read(|fold| fold.register(&path(at)).expect("the entry exists").stamp);
    let attrs = Attrs { mode, ..node.entry(at).expect("the entry exists").attrs };
    ledger.publish(vec![(path(at), Op::Attrs { of, attrs })]).unwrap();
}

fn mode(node: &Node, at: &str) -> Option<u32> {
    Some(node.entry(at)?.attrs.mode)
}

#[test]
fn what_is_written_stays_on_a_private_node() {
    run(async {
        let world = World::new();
        let (mut a, b) = (world.node(), world.node());
        for (at, bytes) in [("kept", "1"), ("replaced", "2"), ("removed", "3"), ("mode", "4")] {
            a.write(at, bytes.as_bytes());
        }
        a.push().await;
        let p = private(&world, new_root());
        assert!(p.pull().await && b.pull().await);
        let shared = p.registers();
        p.write("new", b"of p");
        p.write("replaced", b"of p, too");
        p.remove("removed");
        set_mode(&p, "mode", 0o700);
        let check = |p: &Node, when: &str| {
            assert_eq!(mode(p, "mode"), Some(0o700), "{when}");
            assert!(p.entry("removed").is_none(), "{when}");
            assert_eq!(p.engine.ledger().pending().records, 0, "{when}");
        };
        settle(&p);
        check(&p, "at once");
        assert_eq!(p.read("kept").await, Some(b"1".to_vec()));
        assert_eq!(p.read("new").await, Some(b"of p".to_vec()));
        assert_eq!(p.read("replaced").await, Some(b"of p, too".to_vec()));
        assert!(p.engine.publisher().is_none() && p.remote().requests().puts == 0);
        assert!(p.engine.drain(std::time::Duration::ZERO, |_| ()).await.complete);
        assert!(b.pull().await);
        assert_eq!((b.entry("new"), b.read("replaced").await), (None, Some(b"2".to_vec())));
        assert!(b.entry("removed").is_some() && mode(&b, "mode") != Some(0o700));
        // Also after a restart, and after a checkpoint of another node was adopted.
        p.engine.stop().await;
        let p = private(&world, p.crash());
        check(&p, "after a restart");
        checkpoint(&a).await;
        assert!(p.pull().await);
        check(&p, "beside a checkpoint");
        assert_eq!(p.read("replaced").await, Some(b"of p, too".to_vec()));
        // A file that was created and removed again leaves nothing.
        p.write("scratch", b"x");
        p.remove("scratch");
        p.remove("new");
        assert!(p.registers().iter().all(|(at, _)| *at != path("scratch") && *at != path("new")));
        assert_eq!(p.registers().len(), shared.len());
        assert_eq!(p.remote().requests().puts, 0);
    });
}

#[test]
fn p4_local_durable_on_a_private_node() {
    run(async {
        for saved in [false, true] {
            let world = World::new();
            let mut a = world.node();
            a.write("removed", b"of a");
            a.send("replaced", b"of a").await;
            let p = private(&world, new_root());
            assert!(p.pull().await);
            p.engine.ledger().save().unwrap();
            p.write("new", b"of p");
            p.write("replaced", b"of p");
            p.remove("removed");
            if saved {
                settle(&p);
            }
            p.write("scratch", b"x");
            p.remove("scratch");
            let p = private(&world, p.crash());
            for pulled in [false, true] {
                assert!(!pulled || p.pull().await);
                assert_eq!(p.read("new").await, Some(b"of p".to_vec()), "saved: {saved}");
                assert_eq!(p.read("replaced").await, Some(b"of p".to_vec()), "saved: {saved}");
                assert!(p.entry("removed").is_none() && p.entry("scratch").is_none());
            }
        }
    });
}

/// A later version of another node replaces one that was written on a private node, with all of its
/// unit.
#[test]
fn what_others_publish_later_takes_its_place() {
    run(async {
        let world = World::new();
        let mut a = world.node();
        a.send("open", b"the store").await;
        let mut p = private(&world, new_root());
        assert!(p.pull().await);
        let members = ["triton/K/k.json", "triton/K/k.ptx", "triton/K/__grp__k.json"];
        let all = |node: &Node, text: &str, names: &[&str]| {
            let put =
                |at: &&str| (path(at), Op::Put(node.store(format!("\"{at} {text}\"").as_bytes())));
            node.publish(names.iter().map(put).collect());
        };
        p.write("f", b"of p");
        p.remove("open");
        all(&p, "of p", &members);
        all(&a, "of a", &members[..2]);
        a.write("f", b"of a");
        a.send("open", b"it again").await;
        assert!(p.pull().await);
        assert_eq!(p.read("f").await, Some(b"of a".to_vec()));
        assert_eq!(p.read("open").await, Some(b"it again".to_vec()));
        assert!(p.entry(members[2]).is_none(), "a member of another version");
        // The journal still has the replaced version.
        for saved in [false, true] {
            if saved {
                p.engine.ledger().save().unwrap();
            }
            p = private(&world, p.crash());
            assert!(saved || p.pull().await);
            assert_eq!(p.read("f").await, Some(b"of a".to_vec()), "saved: {saved}");
            assert!(p.entry(members[2]).is_none(), "saved: {saved}");
        }
    });
}

/// What a private mount has left stays there. If it is written again, it is shared, even with the
/// same bytes.
#[test]
fn a_shared_mount_after_a_private_one() {
    run(async {
        for saved in [false, true] {
            let world = World::new();
            let (mut a, b) = (world.node(), world.node());
            a.send("other", b"known bytes").await;
            let p = private(&world, new_root());
            assert!(p.pull().await);
            for at in ["left", "again", "known"] {
                p.write(at, at.as_bytes());
            }
            p.write("known", b"known bytes");
            if saved {
                settle(&p);
            }
            let mut p = world.node_at(p.crash());
            set_mode(&p, "left", 0o640);
            p.push().await;
            assert!(b.pull().await && b.entry("left").is_none() && b.entry("again").is_none());
            assert_eq!(p.read("left").await, Some(b"left".to_vec()));
            p.write("again", b"again");
            p.send("known", b"known bytes").await;
            assert!(b.pull().await && b.entry("left").is_none(), "saved: {saved}");
            assert_eq!(b.read("again").await, Some(b"again".to_vec()), "saved: {saved}");
            assert_eq!(b.read("known").await, Some(b"known bytes".to_vec()), "saved: {saved}");
            p.engine.stop().await;
            let p = private(&world, p.crash());
            assert_eq!(mode(&p, "left"), Some(0o640), "saved: {saved}");
        }
    });
}

/// A start that is refused has changed nothing: what an earlier run has left in staging may be the
/// only copy of a closed file.
#[test]
fn p4_local_durable_a_refused_start_keeps_what_was_left_in_staging() {
    run(async {
        let world = World::new();
        let node = world.node();
        node.write("f", b"the only copy");
        let dir = node.dir();
        let root = node.crash();
        let digest = Digest::of(b"the only copy");
        let blob = dir.join("blobs").join(digest.shard()).join(digest.to_string());
        std::fs::rename(blob, dir.join("staging").join("0000000000000000")).unwrap();
        let refused = World { private: true, ..world.clone() };
        for _ in 0..2 {
            assert!(refused.try_engine(root.path(), Some(&Faults::none())).is_err());
        }
        let node = world.node_at(root);
        assert_eq!(node.read("f").await, Some(b"the only copy".to_vec()));
        assert_eq!(std::fs::read_dir(dir.join("staging").join("left")).unwrap().count(), 0);
    });
}

#[test]
fn a_private_mount_refuses_what_waits_for_the_store() {
    run(async {
        let world = World::new();
        let node = world.node();
        node.write("f", b"x");
        let root = node.crash();
        let opened =
            World { private: true, ..world.clone() }.try_engine(root.path(), Some(&Faults::none()));
        let error = opened.expect_err("one change waits");
        assert_eq!(error.kind(), Kind::Invalid);
        assert!(error.to_string().contains("mount.writes = \"shared\""), "{error}");
    });
}

/// An evicted content of a private node exists nowhere: the name is a miss, and the version of the
/// other nodes is shown again.
#[test]
fn what_was_evicted_is_forgotten() {
    run(async {
        let world = World::aging(std::time::Duration::from_hours(24));
        let mut a = world.node();
        a.send("f", b"of a").await;
        let p = private(&world, new_root());
        assert!(p.pull().await);
        p.write("f", b"of p");
        p.write("g", b"of p");
        settle(&p);
        let digest = crate::digest::Digest::of(b"of p");
        assert!(p.engine.ledger().blobs().usage().unsaved_bytes == 0, "the content may be evicted");
        let blob = p.dir().join("blobs").join(digest.shard()).join(digest.to_string());
        std::fs::remove_file(blob).unwrap();
        let opened = p.engine.ledger().blobs().open_blob(&digest, 4).unwrap();
        assert!(opened.is_none() && p.entry("f").is_none() && p.entry("g").is_none(), "a miss");
        p.purge();
        assert_eq!(p.read("f").await, Some(b"of a".to_vec()));
        assert!(p.registers().iter().all(|(at, _)| *at != path("g")));
    });
}

/// If the index is lost or off, the journal does not release what only the index would have.
#[test]
fn the_journal_keeps_what_the_index_has_lost() {
    run(async {
        for losses in [1, 2] {
            let world = World::new();
            let mut a = world.node();
            a.send("open", b"the store").await;
            let p = private(&world, new_root());
            assert!(p.pull().await);
            p.engine.ledger().save().unwrap();
            for loss in 0..losses {
                p.write(&format!("{loss}"), b"of p");
                std::fs::remove_dir_all(p.dir().join("index")).unwrap();
                // The second time it is too soon to start a new index.
                settle(&p);
                std::fs::create_dir_all(p.dir().join("index")).unwrap();
            }
            p.write("last", b"of p");
            settle(&p);
            let p = private(&world, p.crash());
            for loss in 0..losses {
                assert_eq!(p.read(&format!("{loss}")).await, Some(b"of p".to_vec()), "{losses}");
            }
            assert_eq!(p.read("last").await, Some(b"of p".to_vec()), "{losses}");
        }
    });
}

/// What is in the store need not be kept in the journal, which would grow for ever.
#[test]
fn without_an_index_the_journal_lets_go_of_what_is_in_the_store() {
    run(async {
        let world = World::new();
        let mut a = world.node();
        for round in 0..3 {
            a.send(&format!("{round}"), b"x").await;
            std::fs::remove_dir_all(a.dir().join("index")).ok();
            a.engine.ledger().save().unwrap();
        }
        let a = world.node_at(a.crash());
        assert_eq!(a.engine.ledger().pending().records, 0);
        assert!(a.pull().await && a.entry("0").is_some() && a.entry("2").is_some());
    });
}

/// One record has put several units, and other nodes replace one of them.
#[test]
fn a_version_of_others_replaces_one_unit_of_a_record() {
    run(async {
        let world = World::new();
        let mut a = world.node();
        a.send("open", b"the store").await;
        let p = private(&world, new_root());
        assert!(p.pull().await);
        let names = |unit: &str| ["k.json", "__grp__k.json"].map(|n| format!("triton/{unit}/{n}"));
        let puts = |node: &Node, unit: &str, text: &str| {
            names(unit).map(|at| (path(&at), Op::Put(node.store(format!("\"{text}\"").as_bytes()))))
        };
        p.publish([puts(&p, "K", "of p"), puts(&p, "L", "of p")].concat());
        a.publish(puts(&a, "K", "of a").to_vec());
        a.push().await;
        assert!(p.pull().await);
        for (unit, text) in [("K", "\"of a\""), ("L", "\"of p\"")] {
            for at in names(unit) {
                assert_eq!(p.read(&at).await, Some(text.as_bytes().to_vec()), "{at}");
            }
        }
    });
}

/// After a kill while the index is filled again, a private version is still known to be private.
#[test]
fn changes_while_the_index_is_filled_stay_private() {
    run(async {
        let world = World::aging(std::time::Duration::from_hours(24));
        let mut a = world.node();
        a.send("f", b"of a").await;
        let p = private(&world, new_root());
        assert!(p.pull().await);
        p.engine.ledger().save().unwrap();
        p.engine.ledger().refill_for_test(|| {
            p.write("f", b"of p");
            p.write("g", b"of p");
        });
        let p = private(&world, p.crash());
        assert_eq!(p.read("f").await, Some(b"of p".to_vec()));
        assert!(p.pull().await);
        let digest = crate::digest::Digest::of(b"of p");
        let blob = p.dir().join("blobs").join(digest.shard()).join(digest.to_string());
        std::fs::remove_file(blob).unwrap();
        assert!(p.engine.ledger().blobs().open_blob(&digest, 4).unwrap().is_none());
        p.purge();
        assert_eq!(p.read("f").await, Some(b"of a".to_vec()), "the version of the other nodes");
        assert!(p.registers().iter().all(|(at, _)| *at != path("g")));
    });
}

/// Attributes of a replaced version are not kept for a later one.
#[test]
fn attributes_of_a_replaced_version_are_dropped_with_it() {
    run(async {
        let world = World::new();
        let mut a = world.node();
        a.send("open", b"the store").await;
        let p = private(&world, new_root());
        assert!(p.pull().await);
        p.write("f", b"of p");
        set_mode(&p, "f", 0o600);
        a.send("f", b"of a").await;
        assert!(p.pull().await);
        p.engine.ledger().save().unwrap();
        let p = private(&world, p.crash());
        assert_eq!(p.read("f").await, Some(b"of a".to_vec()));
        let early = p.engine.ledger().read(|fold| fold.early_attrs().count());
        assert_eq!(early, 0);
    });
}

/// Private changes stay private through a mount without a remote whose journal is compacted.
#[test]
fn what_is_private_stays_so_through_a_mount_without_a_remote() {
    run(async {
        for saved in [false, true] {
            let world = World::new();
            let (mut a, b) = (world.node(), world.node());
            a.send("open", b"the store").await;
            let p = private(&world, new_root());
            assert!(p.pull().await);
            for at in ["left", "over"] {
                p.write(at, b"of p");
            }
            if saved {
                settle(&p);
            }
            let root = p.crash();
            let engine = world.engine(root.path(), None);
            let alone = Node::alone(root, engine);
            let size = |node: &Node| super::harness::dir_bytes(&node.dir().join("journal"));
            for n in 0..20_000 {
                alone.publish(vec![(path("busy"), Op::Put(file_of(n)))]);
            }
            alone.write("over", b"alone");
            let before = size(&alone);
            alone.engine.ledger().save().unwrap();
            assert!(size(&alone) < before / 10, "the state is compacted");
            let mut shared = world.node_at(alone.crash());
            assert_eq!(shared.read("left").await, Some(b"of p".to_vec()), "saved: {saved}");
            shared.push().await;
            assert!(b.pull().await);
            assert_eq!(b.read("over").await, Some(b"alone".to_vec()), "saved: {saved}");
            assert!(b.entry("left").is_none(), "saved: {saved}");
        }
    });
}

/// An eviction can lose only what other nodes do not have, so a purge checks nothing else.
#[test]
fn p13_bounded_what_a_purge_asks() {
    run(async {
        let world = World::new();
        let mut a = world.node();
        for n in 0..600 {
            a.write(&format!("{n}"), format!("{n}").as_bytes());
        }
        a.push().await;
        let p = private(&world, new_root());
        assert!(p.pull().await);
        for n in 0..3 {
            p.write(&format!("own{n}"), b"of p");
        }
        p.purge();
        assert_eq!(p.engine.ledger().asked_lost(), 3);
        assert!(p.entry("own0").is_some());
    });
}
