//! P9: damaged content is a miss until it is written again; wrong bytes are never served.

use std::time::Duration;

use super::harness::*;

/// Flips one bit of an object.
async fn flip(world: &World, key: &str, at: usize) {
    let mut bytes = world.store.read(key).await.unwrap().to_vec();
    let at = at % bytes.len();
    bytes[at] ^= 1 << (at % 8);
    world.store.overwrite(key, bytes).await;
}

#[test]
fn p9_self_healing_of_every_part_of_a_pack() {
    run(async {
        let world = World::new();
        let mut a = world.node();
        for n in 0..8_u64 {
            a.write(&format!("f{n}"), &content(n, 5000));
        }
        a.push().await;
        let packs = world.keys("packs/").await;
        assert_eq!(packs.len(), 1);
        let good = world.store.read(&packs[0]).await.unwrap();
        let mut misses = 0;
        for at in (0..good.len()).step_by(good.len() / 40) {
            world.store.overwrite(&packs[0], good.to_vec()).await;
            flip(&world, &packs[0], at).await;
            let b = world.caught_up().await;
            for n in 0..8_u64 {
                if let Some(bytes) = b.read(&format!("f{n}")).await {
                    assert!(bytes == content(n, 5000));
                } else {
                    misses += 1;
                    assert!(b.entry(&format!("f{n}")).is_none(), "the file is hidden");
                }
            }
        }
        assert!((20..=41).contains(&misses), "one miss for each damaged object: {misses}");
        // The next writer repairs it, for the node that found it and for the others.
        world.store.remove(&packs[0]).await;
        let mut b = world.caught_up().await;
        assert_eq!(b.read("f3").await, None);
        assert!(b.entry("f3").is_none());
        b.send("f3", &content(3, 5000)).await;
        let c = world.caught_up().await;
        assert!(c.read("f3").await == Some(content(3, 5000)));
        assert_eq!(c.read("f4").await, None);
    });
}

/// Turns a pack with one member into one of a newer version, which may compress differently.
fn newer(good: &[u8], other_frames: bool) -> Vec<u8> {
    let (index_at, sum_at) = (good.len() - 84, good.len() - 40);
    let mut bytes = good.to_vec();
    bytes[8] += 1;
    if other_frames {
        bytes[10..index_at].fill(7);
    }
    let mut sum = blake3::Hasher::new();
    sum.update(&bytes[..10]).update(&bytes[index_at..sum_at]);
    bytes[sum_at..sum_at + 32].copy_from_slice(sum.finalize().as_bytes());
    bytes
}

#[test]
fn a_pack_of_a_newer_version_is_no_damage() {
    run(async {
        let world = World::new();
        let mut a = world.node();
        a.send("f", &content(1, 5000)).await;
        let pack = world.keys("packs/").await.remove(0);
        let good = world.store.read(&pack).await.unwrap();
        // Readable members are served.
        world.store.overwrite(&pack, newer(&good, false)).await;
        let b = world.caught_up().await;
        assert!(b.read("f").await == Some(content(1, 5000)));
        // A member that cannot be repaired is a miss, which is not published.
        world.store.overwrite(&pack, newer(&good, true)).await;
        let mut c = world.caught_up().await;
        assert_eq!(c.read("f").await, None);
        assert!(c.entry("f").is_some(), "the entry stays visible");
        let commits = world.log().await.len();
        c.push().await;
        assert_eq!(world.log().await.len(), commits);
        world.store.overwrite(&pack, good.to_vec()).await;
        assert!(c.read("f").await == Some(content(1, 5000)), "the repaired pack is read");
    });
}

#[test]
fn p9_self_healing_of_a_blob_object() {
    run(async {
        let world = World::new();
        let bytes = content(1, 1_500_000);
        for damage in 0..4 {
            let mut a = world.node();
            let name = format!("f{damage}");
            a.send(&name, &bytes).await;
            let blobs = world.keys("blobs/").await;
            assert_eq!(blobs.len(), 1);
            let good = world.store.read(&blobs[0]).await.unwrap();
            match damage {
                0 => flip(&world, &blobs[0], good.len() / 2).await,
                1 => world.store.overwrite(&blobs[0], good[..good.len() / 2].to_vec()).await,
                2 => world.store.overwrite(&blobs[0], content(9, 1000)).await,
                _ => world.store.remove(&blobs[0]).await,
            }
            let mut b = world.caught_up().await;
            assert_eq!(b.read(&name).await, None);
            assert!(b.entry(&name).is_none());
            // Also after a restart, whether or not the damage was saved.
            b.engine.ledger().save().unwrap();
            b = world.node_at(b.crash());
            assert!(b.entry(&name).is_none());
            b.send(&name, &bytes).await;
            let c = world.caught_up().await;
            assert!(c.read(&name).await.as_ref() == Some(&bytes));
        }
    });
}

#[test]
fn p9_self_healing_of_a_commit() {
    run(async {
        let world = World::new();
        let (mut a, b) = (world.node(), world.node());
        for n in 0..3 {
            a.send(&format!("f{n}"), b"x").await;
        }
        let log = world.log().await;
        let good = world.store.read(&log[1]).await.unwrap();
        flip(&world, &log[1], good.len() / 2).await;
        // The copy in the head is not used any more.
        world.clock.advance(Duration::from_mins(2));
        assert!(b.pull().await, "the node continues");
        assert!(b.entry("f0").is_some() && b.entry("f1").is_none() && b.entry("f2").is_some());
        let gets = b.remote().requests().gets;
        assert!(b.pull().await);
        assert_eq!(b.remote().requests().gets, gets + 1, "only the head is read");
        world.store.overwrite(&log[1], good.to_vec()).await;
        world.clock.advance(Duration::from_secs(601));
        assert!(b.pull().await);
        assert!(b.entry("f1").is_some(), "a retry reads the whole log");
    });
}

#[test]
fn a_store_that_does_not_answer_proves_nothing() {
    run(async {
        let world = World::new();
        let (mut a, b) = (world.node(), world.node());
        a.write("f", &content(1, 5000));
        a.send("g", &content(2, 1_200_000)).await;
        assert!(b.pull().await);
        for plan in ["errors=100", "resets=100", "forbidden=1", "truncated=100", "hang=1"] {
            b.fail(plan);
            for name in ["f", "g"] {
                assert_eq!(b.read(name).await, None, "{plan}");
                assert!(b.entry(name).is_some(), "{plan}");
            }
        }
        b.fail("");
        // The store is asked again after some time.
        for name in ["f", "g"] {
            let mut tries = 0;
            while b.read(name).await.is_none() {
                tries += 1;
                assert!(tries < 50);
                world.clock.advance(Duration::from_secs(1));
            }
        }
    });
}

#[test]
fn p9_self_healing_of_what_was_damaged_here_before_it_was_remote() {
    run(async {
        let world = World::new();
        let (mut a, b) = (world.node(), world.node());
        a.send("old", b"stays").await;
        for (name, size) in [("in", 100), ("packed", 9000), ("large", 1_300_000)] {
            a.write(name, &content(5, size));
            let digest = crate::digest::Digest::of(&content(5, size));
            let file = a.dir().join("blobs").join(digest.shard()).join(digest.to_string());
            let mut bytes = std::fs::read(&file).unwrap();
            bytes[size / 2] ^= 4;
            std::fs::write(&file, bytes).unwrap();
        }
        a.send("new", b"goes on").await;
        assert!(b.pull().await);
        for node in [&a, &b] {
            for name in ["in", "packed", "large"] {
                assert!(node.entry(name).is_none(), "{name}");
            }
            assert_eq!(node.read("old").await, Some(b"stays".to_vec()));
            assert_eq!(node.read("new").await, Some(b"goes on".to_vec()));
        }
        assert_eq!(a.registers(), b.registers());
        b.write("large", &content(5, 1_300_000));
        let mut b = b;
        b.push().await;
        assert!(a.pull().await);
        assert!(a.read("large").await == Some(content(5, 1_300_000)));
    });
}

#[test]
fn what_was_replaced_before_it_could_be_uploaded_is_not_missed() {
    run(async {
        let world = World::new();
        let (mut a, b) = (world.node(), world.node());
        a.send("f", b"first").await;
        let entry = a.store(&content(1, 9000));
        a.publish(vec![(path("f"), crate::namespace::Op::Put(entry.clone()))]);
        a.publish(vec![(path("other"), crate::namespace::Op::Put(a.store(b"o")))]);
        let batch = a.engine.ledger().take().unwrap();
        // Its writer continued to write, and published the whole file again.
        let digest = entry.content().unwrap().0;
        let file = a.dir().join("blobs").join(digest.shard()).join(digest.to_string());
        std::fs::remove_file(file).unwrap();
        a.write("f", b"second");
        let uploaded = a.engine.publisher().unwrap().upload_batch(batch).await;
        a.engine.publisher().unwrap().commit(uploaded).await;
        assert!(b.pull().await);
        assert_eq!(
            b.read("f").await,
            Some(b"first".to_vec()),
            "the old version is visible meanwhile"
        );
        assert!(b.entry("other").is_some());
        a.push().await;
        assert!(b.pull().await);
        assert_eq!(b.read("f").await, Some(b"second".to_vec()));
        assert_eq!(a.registers(), b.registers());
    });
}

#[test]
fn p9_self_healing_of_a_journal() {
    run(async {
        for at in [100, 300, 500, 700] {
            let world = World::new();
            let a = world.node();
            for n in 0..6 {
                a.write(&format!("f{n}"), &content(n, 100));
            }
            let journal = a.dir().join("journal");
            let root = a.crash();
            let segment = std::fs::read_dir(&journal)
                .unwrap()
                .map(|file| file.unwrap().path())
                .find(|file| file.extension().is_some_and(|end| end == "log"))
                .unwrap();
            let mut bytes = std::fs::read(&segment).unwrap();
            let at = at % bytes.len();
            bytes[at] ^= 2;
            std::fs::write(&segment, bytes).unwrap();
            let mut a = world.node_at(root);
            let left: Vec<u64> = (0..6).filter(|n| a.entry(&format!("f{n}")).is_some()).collect();
            assert!(left.len() >= 5, "{left:?}");
            for n in &left {
                assert!(a.read(&format!("f{n}")).await == Some(content(*n, 100)));
            }
            a.push().await;
            let b = world.caught_up().await;
            assert_eq!(a.registers(), b.registers());
        }
    });
}
