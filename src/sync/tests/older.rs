//! A store that version 0.1 has left.
//!
//! `store_of_0_1.bin` holds the keys and bytes of its objects in postcard: thirty commits of two nodes, half a second
//! apart, with small contents in the commits and larger ones in packs, and a checkpoint after the first twenty-one.

use std::collections::BTreeMap;
use std::time::Duration;

use super::checkpoints::checkpoint;
use super::gc::collect;
use super::harness::*;
use crate::namespace::Site;
use crate::remote::keys;
use crate::sync::LOG_GRACE;
use crate::sync::LogView;

const STORE: &[u8] = include_bytes!("store_of_0_1.bin");
const MONTH: Duration = Duration::from_hours(30 * 24);

/// Makes a world with that store, right after its last commit.
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

/// The files that its two nodes have written.
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

/// Reads the store as a new node of version 0.1 does: the latest checkpoint, and all commits of the
/// log that it does not name. Every content in use must be at its location.
async fn read_the_old_way(world: &World) -> LogView {
    let keys = world.store.keys().await;
    let newest = keys.iter().rfind(|key| key.strip_suffix(".ckpt").is_some());
    let mut draft = match newest {
        Some(key) => LogView::read(&world.store.read(key).await.unwrap()[..]).unwrap().1,
        None => LogView::new(),
    };
    for key in world.log().await {
        draft.apply(&world.commit(&key).await);
    }
    for (digest, location) in draft.fold().locations() {
        if !draft.fold().uses(&digest) {
            continue;
        }
        let key = match &location.site {
            Site::Inline { commit } => format!("log/{commit}"),
            Site::Pack { pack, .. } => format!("packs/{pack}"),
            Site::Object => format!("blobs/{}/{digest}", digest.shard()),
        };
        assert!(keys.contains(&key), "{key} is gone");
    }
    draft
}

/// Nodes of both versions on one prefix: whatever the new ones write and delete, the old ones have
/// all they need.
#[test]
fn a_node_of_version_0_1_finds_everything_whatever_newer_ones_have_done() {
    run(async {
        let world = world_of_old().await;
        let (mut a, mut b) = (world.node(), world.node());
        assert!(a.pull().await && b.pull().await);
        let mut commits = Vec::new();
        for hour in 0..6_u64 {
            for n in 0..150_u64 {
                let node = if n % 2 == 0 { &mut a } else { &mut b };
                node.send(&format!("new{}", n % 20), &content(hour * 1000 + n, 100)).await;
                world.clock.advance(Duration::from_millis(300));
            }
            for _ in 0..20 {
                world.clock.advance(Duration::from_mins(4));
                assert!(a.pull().await && b.pull().await);
                a.engine.checkpointer().unwrap().write_if_due().await;
                a.engine.checkpointer().unwrap().tidy_up().await;
                a.push().await;
            }
            let old = read_the_old_way(&world).await;
            assert!(b.pull().await);
            let registers: Vec<_> = old.fold().registers().collect();
            assert_eq!(registers, b.registers(), "hour {hour}");
            commits.push(world.log().await.len());
        }
        assert!(commits[5] < 600, "{commits:?}");
        let fresh = world.caught_up().await;
        assert_eq!(fresh.registers(), b.registers());
        for (at, bytes) in files() {
            assert!(fresh.read(&at).await == Some(bytes), "{at}");
        }
    });
}

#[test]
fn a_store_of_version_0_1_is_read_and_written() {
    run(async {
        let world = world_of_old().await;
        let (mut a, b) = (world.node(), world.node());
        assert!(a.pull().await && b.pull().await);
        assert_has_all(&a).await;
        a.send("new", b"x").await;
        assert!(b.pull().await && b.read("new").await.is_some());
        a.remove("new");
        a.push().await;
        checkpoint(&a).await;
        world.clock.advance(LOG_GRACE * 2);
        assert!(collect(&a, false).await.total().objects > 5);
        let fresh = world.caught_up().await;
        assert_has_all(&fresh).await;
        assert!(b.pull().await);
        assert_has_all(&b).await;
    });
}
