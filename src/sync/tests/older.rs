//! A store as version 0.1 has left it.
//!
//! `store_of_0_1.bin` holds the keys and bytes of its objects in postcard: thirty commits of two nodes, half a second
//! apart, with small contents in the commits and larger ones in packs, and a checkpoint after the first twenty-one.

use std::collections::BTreeMap;
use std::time::Duration;

use super::checkpoints::checkpoint;
use super::harness::*;
use crate::remote::keys;
use crate::sync::LOG_GRACE;
use crate::sync::gc::{Collector, Options};

const STORE: &[u8] = include_bytes!("store_of_0_1.bin");
const MONTH: Duration = Duration::from_hours(30 * 24);

/// Makes a world with that store, right after the last commit.
async fn world_of_old() -> World {
    let world = World::aging(MONTH);
    let all: Vec<(String, Vec<u8>)> = postcard::from_bytes(STORE).unwrap();
    let stamp_ms = |key: &str| {
        let name = key.rsplit('/').next().unwrap();
        let known = [keys::commit_stamp, keys::pack_stamp, keys::checkpoint_stamp];
        known.iter().find_map(|stamp_of| stamp_of(name)).map_or(NOW_MS, |stamp| stamp.ms)
    };
    let mut all: Vec<_> =
        all.into_iter().map(|(key, bytes)| (stamp_ms(&key), key, bytes)).collect();
    all.sort();
    for (ms, key, bytes) in all {
        let wait_ms = ms.saturating_sub(world.clock.wall_ms());
        world.clock.advance(Duration::from_millis(wait_ms));
        world.store.overwrite(&key, bytes).await;
    }
    world
}

/// What its two nodes have written.
fn files() -> BTreeMap<String, Vec<u8>> {
    let mut files = BTreeMap::new();
    for n in 0..30_u64 {
        let size = [300, 9000, 2000][(n % 3) as usize];
        files.insert(format!("d{}/f{}", n % 3, n % 11), content(n, size));
        if n % 7 == 3 {
            files.remove(&format!("d{}/f{}", n % 3, (n + 4) % 11));
        }
    }
    files
}

async fn assert_has_all(node: &Node) {
    let there = node.registers().into_iter().filter(|(_, register)| register.entry.is_some());
    assert_eq!(there.count(), files().len());
    for (at, bytes) in files() {
        assert!(node.read(&at).await == Some(bytes), "{at}");
    }
}

#[test]
fn a_store_of_version_0_1_is_read_and_written() {
    run(async {
        let world = world_of_old().await;
        let (mut a, b) = (world.node(), world.node());
        assert!(a.pull().await && b.pull().await);
        assert_has_all(&a).await;
        a.write("new", b"x");
        a.push().await;
        assert!(b.pull().await && b.read("new").await.is_some());
        a.remove("new");
        a.push().await;
        checkpoint(&a).await;
        world.clock.advance(LOG_GRACE * 2);
        let options = Options { grace: LOG_GRACE, told: false };
        let collector = Collector::open(a.remote(), Some(a.remote()), options).await.unwrap();
        assert!(collector.collect(|_| ()).await.unwrap().total().objects > 5);
        let fresh = world.node();
        assert!(fresh.pull().await);
        assert_has_all(&fresh).await;
        assert!(b.pull().await);
        assert_has_all(&b).await;
    });
}
