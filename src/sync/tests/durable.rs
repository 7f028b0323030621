//! P4: published changes survive, whatever happens to the daemon, the index, and the remote.

use std::time::Duration;

use super::harness::*;
use crate::namespace::{Attrs, Op};

#[test]
fn p4_local_durable_before_anything_is_remote() {
    run(async {
        let world = World::new();
        let a = world.node();
        a.write("d/f", b"one");
        a.write("d/g", b"two");
        a.remove("d/g");
        let of = a.write("h", b"three");
        let attrs = Attrs { mode: 0o600, ..Attrs::default() };
        a.publish(vec![(path("h"), Op::Attrs { of, attrs: attrs.clone() })]);
        let before = a.registers();
        let mut a = world.node_at(a.crash());
        assert_eq!(a.registers(), before);
        assert_eq!(a.read("d/f").await, Some(b"one".to_vec()));
        assert_eq!(a.entry("h").unwrap().attrs, attrs);
        assert_eq!(a.engine.ledger().pending().records, 5);
        a.push().await;
        assert_eq!(a.engine.ledger().pending().records, 0);
        let b = world.node();
        b.pull().await;
        assert_eq!(b.read("d/f").await, Some(b"one".to_vec()));
        assert_eq!(b.entry("h").unwrap().attrs, attrs);
        assert!(b.entry("d/g").is_none());
    });
}

#[test]
fn p4_local_durable_at_every_step_to_the_remote_also_without_it() {
    run(async {
        for steps in 0..5 {
            let world = World::new();
            let mut a = world.node();
            a.write("small", b"one");
            a.write("packed", &content(1, 10_000));
            a.write("large", &content(2, 1_200_000));
            a.remove("small");
            if steps > 0 {
                a.upload().await;
            }
            if steps > 1 {
                a.commit().await;
            }
            if steps > 2 {
                a.engine.ledger().save().unwrap();
            }
            let root = a.crash();
            if steps > 3 {
                std::fs::remove_dir_all(root.path().join("v1/index")).unwrap();
            }
            let mut a = world.node_at(root);
            if steps > 3 {
                // Only then must it be read again.
                assert!(a.pull().await);
            } else {
                a.fail("hang=1");
            }
            assert!(a.read("packed").await == Some(content(1, 10_000)), "step {steps}");
            assert!(a.read("large").await == Some(content(2, 1_200_000)));
            assert!(a.entry("small").is_none());
            a.fail("");
            a.push().await;
            let b = world.caught_up().await;
            assert!(b.read("packed").await == Some(content(1, 10_000)));
            assert!(b.read("large").await == Some(content(2, 1_200_000)));
        }
    });
}

#[test]
fn the_journal_is_let_go_once_the_index_has_it() {
    run(async {
        let world = World::new();
        let mut a = world.node();
        for n in 0..100 {
            a.write(&format!("f{n}"), &content(n, 3000));
        }
        a.push().await;
        a.engine.ledger().save().unwrap();
        let before = a.registers();
        let a = world.node_at(a.crash());
        assert_eq!(a.engine.ledger().pending().records, 0);
        assert_eq!(a.registers(), before);
        let gets = a.remote().requests().gets;
        assert!(a.pull().await);
        assert_eq!(
            a.remote().requests().gets,
            gets + 2,
            "it reads only the format and the head: its own commits are known"
        );
    });
}

#[test]
fn a_node_alone_keeps_everything_and_a_short_journal() {
    run(async {
        let world = World::new();
        let root = tempfile::tempdir().unwrap();
        let engine = world.engine(root.path(), None);
        let node = Node::alone(root, engine);
        for n in 0..60_000_u64 {
            node.publish(vec![(path(&format!("d/{}", n % 100)), Op::Put(file_of(n)))]);
            if n % 3 == 0 {
                node.remove(&format!("d/{}", n % 100));
            }
        }
        let before = node.registers();
        assert!(before.iter().all(|(_, register)| register.entry.is_some()), "no tombstones");
        let size = |node: &Node| dir_bytes(&node.dir().join("journal"));
        let long = size(&node);
        node.engine.ledger().save().unwrap();
        assert!(size(&node) * 10 < long, "{} of {long} bytes", size(&node));
        let root = node.crash();
        std::fs::remove_dir_all(root.path().join("v1/index")).unwrap();
        let engine = world.engine(root.path(), None);
        let node = Node::alone(root, engine);
        assert_eq!(node.registers(), before);
        assert!(node.engine.follower().freshness().ready());
        assert!(node.engine.follower().wait_fresh(Duration::ZERO).await);
        assert!(node.engine.ledger().read(|fold| fold.contents().count()) > 0);
        assert!(node.entry("d/1").is_none(), "an entry without its blob is a miss");
    });
}

/// Without a remote, tombstones of members are kept while they make a unit a miss.
#[test]
fn p13_bounded_tombstones_of_units_of_a_node_alone() {
    run(async {
        let world = World::new();
        let root = tempfile::tempdir().unwrap();
        let engine = world.engine(root.path(), None);
        let node = Node::alone(root, engine);
        let put = |node: &Node, at: &str, n: u64| {
            node.publish(vec![(path(at), Op::Put(file_of(n)))]);
        };
        for unit in ["gone", "cut", "whole"] {
            put(&node, &format!("triton/{unit}/m"), 1);
            put(&node, &format!("triton/{unit}/__grp__k.json"), 2);
            put(&node, &format!("numba/d/{unit}-1.py311.1.nbc"), 3);
            put(&node, &format!("numba/d/{unit}-1.py311.nbi"), 4);
            node.remove(&format!("triton/{unit}/m"));
            node.remove(&format!("numba/d/{unit}-1.py311.1.nbc"));
        }
        for entry in ["triton/gone/__grp__k.json", "numba/d/gone-1.py311.nbi"] {
            node.remove(entry);
        }
        for entry in ["triton/whole/__grp__k.json", "numba/d/whole-1.py311.nbi"] {
            put(&node, entry, 5);
        }
        let tombstones = |node: &Node| -> Vec<String> {
            let all = node.registers().into_iter().filter(|(_, register)| register.entry.is_none());
            all.map(|(path, _)| path.to_string()).collect()
        };
        assert_eq!(tombstones(&node).len(), 8);
        node.purge();
        assert_eq!(tombstones(&node), ["numba/d/cut-1.py311.1.nbc", "triton/cut/m"]);
        node.engine.ledger().save().unwrap();
        let root = node.crash();
        let engine = world.engine(root.path(), None);
        let node = Node::alone(root, engine);
        // What the journal still has returns, and is purged again.
        node.purge();
        assert_eq!(tombstones(&node), ["numba/d/cut-1.py311.1.nbc", "triton/cut/m"]);
    });
}

#[test]
fn the_stamps_of_a_run_come_after_those_of_the_run_before() {
    run(async {
        let world = World::new();
        let mut a = world.node();
        let first = a.write("f", b"1");
        a.push().await;
        a.engine.ledger().save().unwrap();
        let root = a.crash();
        // The machine's clock was set back.
        let earlier = World { clock: crate::clock::Clock::manual(NOW_MS - 3_600_000), ..world };
        let mut a = earlier.node_at(root);
        let second = a.write("f", b"2");
        assert!(second > first);
        a.push().await;
        assert_eq!(a.read("f").await, Some(b"2".to_vec()));
        assert_eq!(earlier.log().await.len(), 2);
    });
}

#[test]
fn the_index_may_vanish_under_load() {
    run(async {
        let world = World::new();
        let mut a = world.node();
        let write = |a: &Node, from: u64| {
            for n in from..from + 100 {
                a.write(&format!("d{}/f{n}", n % 7), &content(n, 3000));
            }
        };
        write(&a, 0);
        a.push().await;
        a.engine.ledger().save().unwrap();
        std::fs::remove_dir_all(a.dir().join("index")).unwrap();
        write(&a, 100);
        a.push().await;
        a.engine.ledger().save().unwrap();
        write(&a, 200);
        a.push().await;
        // The node notices this, starts a new index, and fills it again.
        a.engine.ledger().save().unwrap();
        a.engine.ledger().save().unwrap();
        let before = a.registers();
        let a = world.node_at(a.crash());
        a.fail("hang=1");
        assert_eq!(a.registers(), before);
        assert_eq!(a.engine.ledger().pending().records, 0);
        for n in 0..300 {
            assert!(a.read(&format!("d{}/f{n}", n % 7)).await == Some(content(n, 3000)), "{n}");
        }
    });
}

#[test]
fn no_other_daemon_opens_the_directory_while_the_ledger_lives() {
    run(async {
        let world = World::new();
        let a = world.node();
        let ledger = a.engine.ledger().clone();
        let root = a.crash();
        let refused = crate::local::CacheDir::open(root.path()).unwrap_err();
        assert_eq!(refused.kind(), crate::error::Kind::Busy);
        drop(ledger);
        crate::local::CacheDir::open(root.path()).unwrap();
    });
}
