//! Contents that are fetched before a program requests them: those that were stored together, those
//! that a person has named, and those that the store got last.

use std::time::Duration;

use parking_lot::Mutex;

use super::harness::*;
use crate::clock;
use crate::digest::Digest;
use crate::error::Kind;
use crate::sync::Warmed;

const SIZE: usize = 16 << 10;
/// Files in one pack.
const TOGETHER: u64 = 4;

fn name(n: u64) -> String {
    format!("d/{n:03}")
}

/// Makes a store with this many files, `TOGETHER` in each pack.
async fn stored(files: u64) -> World {
    let mut world = World::new();
    world.settings.pack_bytes = TOGETHER * SIZE as u64;
    world.settings.ahead = true;
    let mut a = world.node();
    for n in 0..files {
        a.write(&name(n), &content(n + 1, SIZE));
    }
    a.push().await;
    world
}

fn digest(n: u64) -> Digest {
    Digest::of(&content(n + 1, SIZE))
}

/// Counts the files whose contents are here.
fn here(node: &Node, files: u64) -> u64 {
    (0..files).filter(|n| here_is(node, *n)).count() as u64
}

fn here_is(node: &Node, n: u64) -> bool {
    node.engine.ledger().blobs().contains(&digest(n))
}

/// Returns a node that knows what the store has, and the number of reads that this took.
async fn fresh(world: &World) -> (Node, u64) {
    let node = world.caught_up().await;
    let before = node.remote().requests().gets;
    (node, before)
}

/// Lets the node finish what it has begun.
async fn settle() {
    for _ in 0..100 {
        clock::sleep(Duration::from_millis(100)).await;
    }
}

fn packs_read(node: &Node, before: u64) -> u64 {
    node.remote().requests().gets - before
}

#[test]
fn what_was_stored_together_is_fetched_together() {
    run(async {
        let files = 80;
        let world = stored(files).await;
        let (b, before) = fresh(&world).await;
        assert!(b.read(&name(0)).await.is_some());
        settle().await;
        // Its own pack, and the six that follow. Which these are depends on the order of the
        // uploads.
        assert_eq!(here(&b, files), 7 * TOGETHER);
        for n in 0..files {
            assert!(b.read(&name(n)).await == Some(content(n + 1, SIZE)), "{n}");
            settle().await;
        }
        assert_eq!(packs_read(&b, before), files / TOGETHER, "each pack is read once");
    });
}

/// A program that reads what is here already need not wait for more.
#[test]
fn the_use_of_what_was_fetched_ahead_fetches_more() {
    run(async {
        let files = 200;
        let world = stored(files).await;
        let (b, before) = fresh(&world).await;
        let read = async |n: u64| {
            assert!(b.read(&name(n)).await.is_some());
            settle().await;
            packs_read(&b, before)
        };
        assert_eq!(read(0).await, 7);
        let guessed = (TOGETHER..files).find(|n| here_is(&b, *n)).unwrap();
        let more = read(guessed).await;
        assert!(more > 7, "{more}");
        assert_eq!(read(guessed).await, more, "the same content again tells nothing");
        // What was used long after a fetch ahead says nothing.
        world.clock.advance(Duration::from_mins(1));
        let (last, all) =
            ((0..files).rev().find(|n| here_is(&b, *n)).unwrap(), packs_read(&b, before));
        assert_eq!(read(last).await, all);
    });
}

/// The first parcel is followed by few, because a program may need only one content of it.
#[test]
fn a_program_that_goes_on_in_its_first_pack_is_read_ahead_of() {
    run(async {
        let files = 200;
        let world = stored(files).await;
        let (b, before) = fresh(&world).await;
        assert!(b.read(&name(0)).await.is_some());
        settle().await;
        assert_eq!(packs_read(&b, before), 7);
        let same = (1..TOGETHER).find(|n| here_is(&b, *n)).unwrap();
        assert!(b.read(&name(same)).await.is_some());
        settle().await;
        assert_eq!(packs_read(&b, before), 1 + 12, "twice as many");
        // Further contents of it tell nothing new.
        for n in 0..TOGETHER {
            assert!(b.read(&name(n)).await.is_some());
        }
        settle().await;
        assert_eq!(packs_read(&b, before), 1 + 12);
    });
}

#[test]
fn random_reads_are_read_ahead_ever_less() {
    run(async {
        let files = 800;
        let world = stored(files).await;
        let (b, before) = fresh(&world).await;
        // So far from each other, in reverse order, that the order of the uploads does not matter.
        let asked: Vec<u64> = (1..8).rev().map(|n| n * 100).collect();
        for n in &asked {
            assert!(b.read(&name(*n)).await.is_some());
            settle().await;
        }
        let read = packs_read(&b, before);
        assert!(read <= asked.len() as u64 + 6 + 3 + 1, "{read} packs");
    });
}

#[test]
fn nothing_is_fetched_ahead_of_a_store_that_throttles() {
    run(async {
        let files = 80;
        let world = stored(files).await;
        let b = world.caught_up().await;
        // One request is throttled; it is not the one for the pack.
        world.store.remove("head").await;
        b.fail("status=503 only=LIST");
        assert!(!b.pull().await && b.remote().throttling().now);
        b.fail("");
        assert!(b.read(&name(0)).await.is_some());
        settle().await;
        assert_eq!(here(&b, files), TOGETHER);
        // The store has recovered.
        world.clock.advance(Duration::from_mins(1));
        assert!(b.read(&name(files - 1)).await.is_some());
        assert!(b.read(&name(files / 2)).await.is_some());
        settle().await;
        assert!(here(&b, files) > 3 * TOGETHER);
    });
}

#[test]
fn reading_ahead_evicts_nothing_and_leaves_room_to_writers() {
    run(async {
        let files = 80;
        let world = stored(files).await;
        let tier = 40 * SIZE as u64;
        let small = World { tier, ..world };
        let b = small.node();
        assert!(b.pull().await);
        for n in (0..files).step_by(8) {
            assert!(b.read(&name(n)).await.is_some());
            settle().await;
            let usage = b.engine.ledger().blobs().usage();
            if usage.evictions > 0 {
                // From here on programs evict for what they request.
                break;
            }
            // Of a pack for which a program waits, everything is kept for which there is room.
            let most = tier / 4 * 3 + TOGETHER * SIZE as u64 * (n / 8 + 1);
            assert!(usage.bytes <= most.min(tier), "{usage:?} after {n}");
        }
        let before = here(&b, files);
        assert_eq!(b.engine.fetcher().warm_up(1 << 30).await, 0, "no room to spare");
        settle().await;
        assert_eq!(here(&b, files), before);
    });
}

#[test]
fn warm_brings_what_is_named_and_says_what_it_did() {
    run(async {
        let files = 80;
        let world = stored(files).await;
        let (b, before) = fresh(&world).await;
        let named: Vec<(Digest, u64)> = (0..40).map(|n| (digest(n), SIZE as u64)).collect();
        let told = Mutex::new(Warmed::default());
        b.engine.fetcher().warm(named.clone(), &told).await.unwrap();
        let all = (40, 40 * SIZE as u64);
        assert_eq!(*told.lock(), Warmed { fetched: all, ..Warmed::default() });
        assert!((0..40).all(|n| b.engine.ledger().blobs().contains(&digest(n))));
        assert!(packs_read(&b, before) <= 12, "{}", packs_read(&b, before));
        let told = Mutex::new(Warmed::default());
        b.engine.fetcher().warm(named, &told).await.unwrap();
        assert_eq!(*told.lock(), Warmed { here: all, ..Warmed::default() });
    });
}

#[test]
fn warm_evicts_nothing_and_says_for_what_there_is_no_room() {
    run(async {
        let files = 80;
        let world = stored(files).await;
        let small = World { tier: 30 * SIZE as u64, ..world };
        let b = small.node();
        assert!(b.pull().await);
        let named: Vec<(Digest, u64)> = (0..files).map(|n| (digest(n), SIZE as u64)).collect();
        let told = Mutex::new(Warmed::default());
        b.engine.fetcher().warm(named, &told).await.unwrap();
        let told = told.into_inner();
        let usage = b.engine.ledger().blobs().usage();
        assert_eq!((usage.evictions, told.failed.0), (0, 0), "{told:?}");
        assert!(told.fetched.0 >= 20 && told.fetched.0 + told.without_room.0 == files, "{told:?}");
        assert_eq!(here(&b, files), told.fetched.0);
    });
}

#[test]
fn warm_ends_where_the_store_cannot_be_used() {
    run(async {
        let world = stored(8).await;
        let b = world.caught_up().await;
        b.fail("hang=1");
        let named: Vec<(Digest, u64)> = (0..8).map(|n| (digest(n), SIZE as u64)).collect();
        let told = Mutex::new(Warmed::default());
        let error = b.engine.fetcher().warm(named, &told).await.unwrap_err();
        assert_eq!(error.kind(), Kind::Unavailable);
        // A lost content is no trouble of the store.
        b.fail("");
        settle().await;
        world.clock.advance(Duration::from_mins(1));
        assert!(b.pull().await);
        let named = vec![(Digest::of(b"no node has it"), 14), (digest(0), SIZE as u64)];
        let told = Mutex::new(Warmed::default());
        b.engine.fetcher().warm(named, &told).await.unwrap();
        let told = told.into_inner();
        assert_eq!((told.failed, told.fetched.0), ((1, 14), 1), "{told:?}");
    });
}

#[test]
fn a_start_brings_what_the_store_got_last_within_its_budget() {
    run(async {
        let files = 80;
        let world = stored(files).await;
        let mut a = world.caught_up().await;
        world.clock.advance(Duration::from_hours(1));
        for n in files..files + 2 * TOGETHER {
            a.write(&name(n), &content(n + 1, SIZE));
        }
        a.push().await;
        let b = world.caught_up().await;
        let last = 2 * TOGETHER * SIZE as u64;
        assert_eq!(b.engine.fetcher().warm_up(last).await, last);
        let late = (files..files + 2 * TOGETHER).map(digest);
        let blobs = b.engine.ledger().blobs();
        assert!(late.into_iter().all(|digest| blobs.contains(&digest)));
        assert_eq!(here(&b, files), 0);
        assert_eq!(b.engine.fetcher().warm_up(0).await, 0);
    });
}
