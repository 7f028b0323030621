//! P9: another node stores content again that one node could not read.

use std::time::Duration;

use super::harness::*;

/// Removes all stored contents.
async fn lose(world: &World) {
    for key in world.store.keys().await {
        if key.starts_with("packs/") || key.starts_with("blobs/") {
            world.store.remove(&key).await;
        }
    }
}

#[test]
fn p9_self_healing_by_a_writer_on_another_node() {
    run(async {
        for (size, hears_first) in [(9_000, true), (9_000, false), (1_500_000, true)] {
            let world = World::new();
            let (mut a, mut b) = (world.node(), world.node());
            a.send("f", &content(1, size)).await;
            lose(&world).await;
            assert!(b.pull().await);
            assert_eq!(b.read("f").await, None);
            if !hears_first {
                // It announces the place of the content again, because it does not know that the
                // content is missing.
                assert!(a.pull().await);
                a.send("f", &content(1, size)).await;
                assert!(b.pull().await);
                assert!(b.entry("f").is_none());
            }
            b.push().await;
            let said = world.log().await.len();
            b.push().await;
            assert_eq!(world.log().await.len(), said, "the loss is reported once");
            assert!(a.pull().await);
            a.push().await;
            assert!(b.pull().await);
            assert!(b.read("f").await == Some(content(1, size)));
            let c = world.caught_up().await;
            assert!(c.read("f").await == Some(content(1, size)));
            assert_eq!(a.registers(), b.registers());
            // No node has anything more to publish.
            for node in [&mut a, &mut b] {
                assert!(node.pull().await);
                let said = world.log().await.len();
                node.push().await;
                assert_eq!(world.log().await.len(), said);
                assert_eq!(node.engine.ledger().pending().records, 0);
            }
        }
    });
}

#[test]
fn p9_self_healing_by_a_writer_that_only_read_it_before() {
    run(async {
        let world = World::new();
        let (mut a, mut b, mut c) = (world.node(), world.node(), world.node());
        a.send("f", &content(1, 9_000)).await;
        drop(a);
        assert!(c.pull().await);
        assert!(c.read("f").await.is_some());
        lose(&world).await;
        assert!(b.pull().await);
        assert_eq!(b.read("f").await, None);
        b.push().await;
        assert!(c.pull().await);
        let said = world.log().await.len();
        c.push().await;
        assert_eq!(world.log().await.len(), said, "only the publisher or a writer repairs it");
        assert!(c.entry("f").is_some(), "the node has the content");
        c.send("g", &content(1, 9_000)).await;
        assert!(b.pull().await);
        for name in ["f", "g"] {
            assert!(b.read(name).await == Some(content(1, 9_000)), "{name}");
        }
    });
}

#[test]
fn p9_self_healing_ends_where_only_the_reader_is_ill() {
    run(async {
        let world = World::new();
        let mut a = world.node();
        a.send("f", &content(1, 9_000)).await;
        for round in 0..5 {
            lose(&world).await;
            let mut reader = world.caught_up().await;
            assert_eq!(reader.read("f").await, None, "round {round}");
            reader.push().await;
            assert!(a.pull().await);
            let said = world.log().await.len();
            a.push().await;
            let stored = world.log().await.len() - said;
            assert_eq!(stored, usize::from(round < 3), "round {round}");
        }
        a.send("f", &content(1, 9_000)).await;
        let b = world.caught_up().await;
        assert!(b.read("f").await == Some(content(1, 9_000)), "the next writer always repairs it");
    });
}

/// A node with bad memory or a bad proxy doubts everything that it reads.
#[test]
fn p9_self_healing_does_not_affect_nodes_that_can_read() {
    run(async {
        for size in [2_000, 9_000, 1_500_000] {
            let world = World::new();
            let (mut a, known) = (world.node(), world.node());
            for n in 0..5_u64 {
                a.write(&format!("f{n}"), &content(n, size));
            }
            a.push().await;
            drop(a);
            assert!(known.pull().await);
            let mut ill = world.caught_up().await;
            for n in 0..5_u64 {
                let (digest, _) = ill.entry(&format!("f{n}")).unwrap().content().unwrap();
                let location = ill.engine.ledger().location(&digest).unwrap();
                ill.engine.ledger().mark_bad(&digest, &location);
                assert!(size < 4096 || ill.entry(&format!("f{n}")).is_none());
            }
            ill.push().await;
            let fresh = world.node();
            assert!(known.pull().await && fresh.pull().await);
            for node in [&known, &fresh] {
                for n in 0..5_u64 {
                    let name = format!("f{n}");
                    assert!(node.entry(&name).is_some(), "{name} of {size} bytes is hidden");
                    assert!(node.read(&name).await == Some(content(n, size)), "{name}");
                }
            }
            // The same holds for nodes that start from its checkpoint.
            ill.engine.checkpointer().unwrap().write().await.unwrap();
            let late = world.caught_up().await;
            assert!(late.read("f3").await == Some(content(3, size)), "{size}");
        }
    });
}

#[test]
fn what_was_learned_is_there_after_a_crash_without_the_store() {
    run(async {
        let world = World::new();
        let (mut a, b) = (world.node(), world.node());
        a.send("f", &content(1, 9_000)).await;
        assert!(b.pull().await);
        assert!(b.read("f").await.is_some());
        b.engine.ledger().save().unwrap();
        // The state of the disk, whatever the process still does.
        let copy = tempfile::tempdir().unwrap();
        copy_dir(&b.dir(), &copy.path().join("v1"));
        let b = world.node_at(copy);
        b.fail("resets=100");
        assert!(b.read("f").await == Some(content(1, 9_000)));
    });
}

fn copy_dir(from: &std::path::Path, to: &std::path::Path) {
    std::fs::create_dir_all(to).unwrap();
    for entry in std::fs::read_dir(from).unwrap().map(Result::unwrap) {
        let to = to.join(entry.file_name());
        if entry.file_type().unwrap().is_dir() {
            copy_dir(&entry.path(), &to);
        } else {
            std::fs::copy(entry.path(), to).unwrap();
        }
    }
}

/// The head of the log still has a copy of the commit, with its small contents. The commit itself is
/// damaged or gone, and the node lists the log.
#[test]
fn p9_self_healing_of_a_small_content_that_only_the_head_still_has() {
    run(async {
        for (is_gone, hears_first) in [(true, false), (false, false), (true, true), (false, true)] {
            let world = World::new();
            let (mut a, mut b) = (world.node(), world.node());
            a.send("f", &content(1, 50)).await;
            let key = world.log().await[0].clone();
            if is_gone {
                world.store.remove(&key).await;
            } else {
                world.store.overwrite(&key, b"damaged".to_vec()).await;
            }
            assert!(b.pull().await);
            assert_eq!(b.read("f").await, Some(content(1, 50)), "the head has it");
            let (follower, remote) = (b.engine.follower(), b.remote());
            let again = follower.check_copies(remote).await;
            assert_eq!(again.is_some(), is_gone, "the store may not show it yet");
            world.clock.advance(Duration::from_secs(6));
            assert_eq!(follower.check_copies(remote).await, None, "checked");
            if hears_first {
                // The node that wrote the content stores it again.
                b.push().await;
                assert!(a.pull().await);
                a.push().await;
                a.send("g", &content(1, 50)).await;
            } else {
                b.send("g", &content(1, 50)).await;
            }
            world.store.remove("head").await;
            let c = world.caught_up().await;
            assert_eq!(c.read("g").await, Some(content(1, 50)), "{is_gone} {hears_first}");
            assert!(c.entry("f").is_none(), "the commit with that name is lost");
        }
    });
}
