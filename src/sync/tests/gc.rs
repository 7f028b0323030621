//! Garbage is deleted, and nothing that is in use.

use std::time::Duration;

use futures::FutureExt as _;

use super::checkpoints::checkpoint;
use super::harness::*;
use crate::error::Result;
use crate::namespace::Op;
use crate::sync::LOG_GRACE;
use crate::sync::gc::{Collector, GcOptions, GcProgress, Report, Why};

const OPTIONS: GcOptions = GcOptions { grace: LOG_GRACE, told: false };

/// Collects garbage, or only tells what would be deleted.
pub(super) async fn collect(node: &Node, dry_run: bool) -> Report {
    let writer = (!dry_run).then(|| node.remote());
    let mut progress = 0;
    let collector = Collector::open(node.remote(), writer, OPTIONS).await.expect("a store");
    let report = collector.collect(|_| progress += 1).await;
    assert!(progress > 0);
    report.expect("done")
}

async fn try_to_collect(node: &Node) -> Result<Report> {
    let collector = Collector::open(node.remote(), Some(node.remote()), OPTIONS).await?;
    collector.collect(|_| ()).await
}

fn deleted(report: &Report, kind: &str, why: Why) -> u64 {
    let one = report.deleted.iter().find(|one| one.kind == kind && one.why == why);
    one.map_or(0, |one| one.tally.objects)
}

/// Writes files to packs, commits and objects, and replaces each once; returns what must be
/// readable.
async fn write_and_replace(node: &mut Node) -> Vec<(String, Vec<u8>)> {
    let sizes = [100, 9000, 1_200_000];
    let mut left = Vec::new();
    for round in 0..2_u64 {
        left.clear();
        for (n, size) in (0_u64..).zip(sizes) {
            for copy in 0..2_u64 {
                let (name, bytes) =
                    (format!("f{n}-{copy}"), content(round * 100 + n * 10 + copy, size));
                node.send(&name, &bytes).await;
                left.push((name, bytes));
            }
        }
    }
    left
}

async fn assert_read(node: &Node, all: &[(String, Vec<u8>)]) {
    for (name, bytes) in all {
        assert!(node.read(name).await.as_ref() == Some(bytes), "{name}");
    }
}

#[test]
fn what_no_entry_uses_goes_after_the_grace_time() {
    run(async {
        let world = World::new();
        let (mut a, b) = (world.node(), world.node());
        let files = write_and_replace(&mut a).await;
        world.store.overwrite("notes.txt", b"mine".to_vec()).await;
        world.store.overwrite("packs/readme", b"mine".to_vec()).await;
        assert!(b.pull().await);
        let before = world.store.keys().await;
        // First without a checkpoint, then with none that is old enough.
        for _ in 0..2 {
            let report = collect(&a, false).await;
            assert_eq!(report.total().objects, 0, "{report:?}");
            assert!(!report.notes.is_empty() && report.checkpoint.is_none());
            world.clock.advance(Duration::from_mins(50));
            if world.keys("checkpoints/").await.is_empty() {
                checkpoint(&a).await;
            }
        }
        assert_eq!(world.store.keys().await.len(), before.len() + 1);
        world.clock.advance(Duration::from_mins(15));
        let foretold = collect(&a, true).await;
        assert_eq!(world.store.keys().await.len(), before.len() + 1, "a dry run");
        let report = collect(&a, false).await;
        assert_eq!(Report { dry_run: true, ..report.clone() }, foretold);
        assert_eq!(deleted(&report, "packs", Why::Unused), 2);
        assert_eq!(deleted(&report, "blobs", Why::Unused), 2);
        // Two commits hold small contents that are in use.
        assert_eq!(deleted(&report, "commits", Why::Covered), 10);
        assert_eq!(report.kept["commits"].objects, 2);
        assert_eq!(report.foreign.objects, 2);
        assert_eq!(report.failed.objects, 0);
        let keys = world.store.keys().await;
        assert_eq!(keys.len(), before.len() + 1 - 14);
        assert!(
            keys.contains(&"notes.txt".to_owned()) && keys.contains(&"packs/readme".to_owned())
        );
        // There is nothing left to do.
        assert_eq!(collect(&a, false).await.total().objects, 0);
        let fresh = world.caught_up().await;
        assert_eq!(fresh.registers(), a.registers());
        assert_read(&fresh, &files).await;
        // A node that has read none of the contents yet.
        assert!(b.pull().await);
        assert_read(&b, &files).await;
        // If an unused content is written again, it is stored again.
        a.send("again", &content(10, 9000)).await;
        assert!(b.pull().await);
        assert!(b.read("again").await == Some(content(10, 9000)));
    });
}

#[test]
fn what_a_node_may_be_about_to_rely_on_stays() {
    run(async {
        let world = World::new();
        let (mut a, mut b) = (world.node(), world.node());
        a.send("x", &content(1, 9000)).await;
        assert!(b.pull().await);
        checkpoint(&a).await;
        // It becomes unused after the checkpoint: a node that reads that checkpoint still sees it.
        a.send("x", &content(2, 9000)).await;
        world.clock.advance(LOG_GRACE + Duration::from_mins(5));
        assert_eq!(collect(&a, false).await.total().objects, 1, "the covered commit");
        assert_eq!(world.keys("packs/").await.len(), 2);
        // Uploaded, and its commit is in flight.
        checkpoint(&a).await;
        world.clock.advance(LOG_GRACE + Duration::from_mins(5));
        b.write("y", &content(3, 9000));
        b.upload().await;
        let report = collect(&a, false).await;
        assert_eq!(deleted(&report, "packs", Why::Unused), 1);
        assert_eq!(deleted(&report, "checkpoints", Why::Superseded), 1);
        b.commit().await;
        let fresh = world.caught_up().await;
        assert!(fresh.read("y").await == Some(content(3, 9000)));
        assert!(fresh.read("x").await == Some(content(2, 9000)));
    });
}

/// Reading can take long. An object that is stored meanwhile counts as young, however old it is
/// when it is examined.
#[test]
fn a_collection_judges_by_the_time_when_it_began_to_read() {
    run(async {
        let world = World::new();
        let (mut a, mut b) = (world.node(), world.node());
        a.send("x", &content(1, 9000)).await;
        checkpoint(&a).await;
        world.clock.advance(LOG_GRACE + Duration::from_mins(5));
        a.send("z", &content(2, 9000)).await;
        b.write("y", &content(3, 9000));
        b.upload().await;
        let collector = Collector::open(a.remote(), Some(a.remote()), OPTIONS).await.unwrap();
        let slowly = |progress| {
            if matches!(progress, GcProgress::Checkpoint | GcProgress::Log(..)) {
                world.clock.advance(LOG_GRACE);
            }
        };
        let report = collector.collect(slowly).await.expect("done");
        assert_eq!(deleted(&report, "packs", Why::Unused), 0, "{report:?}");
        b.commit().await;
        assert!(a.pull().await);
        assert!(a.read("y").await == Some(content(3, 9000)));
    });
}

/// A commit that is deleted during the read may be in a checkpoint that was not read. An expired
/// one may be deleted at any time.
#[test]
fn a_commit_deleted_during_the_read_is_not_unreadable() {
    const AGE: Duration = Duration::from_hours(240);
    run(async {
        for (wait, notes, unused) in [(LOG_GRACE * 2, 1, 0), (AGE, 0, 3)] {
            let world = World::aging(AGE);
            let mut a = world.node();
            write_and_replace(&mut a).await;
            checkpoint(&a).await;
            for n in 0..12 {
                a.send(&format!("later{n}"), &content(1000 + n, 9000)).await;
            }
            let last = &world.log().await.pop().unwrap();
            world.clock.advance(wait);
            let collector = Collector::open(a.remote(), None, OPTIONS).await.unwrap();
            let report = collector.collect(|progress| {
                if matches!(progress, GcProgress::Log(1, _)) {
                    world.store.remove(last).now_or_never().expect("memory does not wait");
                }
            });
            let report = report.await.expect("done");
            assert_eq!(report.notes.len(), notes, "{report:?}");
            assert!(
                report.notes.iter().all(|note| note.contains("deleted 1 commits")),
                "{report:?}"
            );
            assert_eq!(deleted(&report, "packs", Why::Unused), unused, "{report:?}");
        }
    });
}

/// The expiry that the store declares counts, whatever the collecting machine would use.
#[test]
fn what_the_store_declares_counts() {
    const DAY: Duration = Duration::from_hours(24);
    run(async {
        for (declared, days, gone) in
            [(Some(90 * DAY), 60, 0), (None, 400, 0), (Some(90 * DAY), 120, 1)]
        {
            let world = World { expiry: declared, ..World::new() };
            let mut a = world.node();
            a.remote().check().await.expect("made");
            a.send("x", &content(1, 9000)).await;
            world.clock.advance(days * DAY);
            let other = World { expiry: Some(30 * DAY), ..world.clone() }.node();
            let report = collect(&other, true).await;
            assert_eq!(deleted(&report, "packs", Why::Expired), gone, "{declared:?} {report:?}");
            assert_eq!(report.expiry, crate::config::format_age(declared));
            let told = GcOptions { told: true, ..OPTIONS };
            let collector = Collector::open(other.remote(), None, told).await.unwrap();
            let report = collector.collect(|_| ()).await.expect("done");
            assert_eq!(deleted(&report, "packs", Why::Expired), 1, "{report:?}");
            assert_eq!(report.expiry, "30d");
        }
    });
}

#[test]
fn what_cannot_be_read_may_use_anything() {
    run(async {
        let world = World::new();
        let mut a = world.node();
        write_and_replace(&mut a).await;
        checkpoint(&a).await;
        world.clock.advance(Duration::from_mins(1));
        a.send("later", b"x").await;
        let last = &world.log().await.pop().unwrap();
        let good = world.store.read(last).await.unwrap();
        let mut newer = good.to_vec();
        newer[8] = 9;
        let end = newer.len() - 32;
        let sum = *blake3::hash(&newer[..end]).as_bytes();
        newer[end..].copy_from_slice(&sum);
        world.clock.advance(LOG_GRACE);
        for bad in [newer, b"damaged".to_vec()] {
            world.store.overwrite(last, bad).await;
            world.clock.advance(LOG_GRACE);
            let report = collect(&a, true).await;
            assert_eq!(deleted(&report, "packs", Why::Unused), 0, "{report:?}");
            assert!(report.notes.iter().any(|note| note.contains("cannot be read")));
            assert_eq!(deleted(&report, "commits", Why::Covered), 10);
        }
        world.store.overwrite(last, good.to_vec()).await;
        world.clock.advance(LOG_GRACE);
        // An unreadable checkpoint covers nothing.
        let only = &world.keys("checkpoints/").await[0];
        let whole = world.store.read(only).await.unwrap();
        world.store.overwrite(only, whole[..whole.len() - 1].to_vec()).await;
        world.clock.advance(LOG_GRACE);
        let report = collect(&a, false).await;
        assert_eq!(report.total().objects, 0, "{report:?}");
        world.store.overwrite(only, whole.to_vec()).await;
        world.clock.advance(LOG_GRACE + Duration::from_secs(1));
        assert!(collect(&a, false).await.total().objects > 0);
    });
}

#[test]
fn a_store_that_fails_is_no_reason_to_delete() {
    run(async {
        let world = World::new();
        let mut a = world.node();
        let files = write_and_replace(&mut a).await;
        checkpoint(&a).await;
        world.clock.advance(LOG_GRACE + Duration::from_mins(1));
        let objects = world.store.keys().await.len();
        a.fail("resets=100");
        assert!(try_to_collect(&a).await.is_err());
        a.fail("");
        assert_eq!(world.store.keys().await.len(), objects);
        // With a store that fails sometimes, the collection succeeds in the end, and nothing is
        // lost.
        a.fail("resets=20");
        for _ in 0..150 {
            drop(try_to_collect(&a).await);
            world.clock.advance(Duration::from_secs(30));
        }
        a.fail("");
        assert_eq!(collect(&a, false).await.total().objects, 0);
        let fresh = world.caught_up().await;
        assert_read(&fresh, &files).await;
    });
}

/// Nodes that act at random, with collections at any time.
#[test]
fn no_entry_in_use_is_lost_whenever_it_is_collected() {
    run(async {
        for seed in 0..5_u64 {
            let mut random = super::absence::Random::new(seed);
            let world = World::new();
            let mut nodes: Vec<Node> = (0..3).map(|_| world.node()).collect();
            let mut collected = 0;
            for _ in 0..120 {
                let at = random.below(3) as usize;
                let name = format!("d{}/f{}", random.below(2), random.below(5));
                match random.below(13) {
                    // Only a few contents, so that the same ones are used again after they were
                    // unused.
                    0..4 => {
                        let size = [60, 6000, 1_100_000][random.below(3) as usize];
                        nodes[at].write(&name, &content(random.below(9), size));
                    }
                    4 => drop(nodes[at].remove(&name)),
                    5..7 => nodes[at].push().await,
                    7..9 => assert!(nodes[at].pull().await),
                    9 => drop(nodes[at].engine.checkpointer().unwrap().write().await),
                    10 => world.clock.advance(Duration::from_mins(random.below(80))),
                    11 => collected += collect(&nodes[at], false).await.total().objects,
                    _ => {
                        // A machine that starts, reads everything that exists, and stops.
                        let fresh = world.caught_up().await;
                        for (path, register) in fresh.registers() {
                            let Some(entry) = register.entry else { continue };
                            let (digest, size) = entry.content().expect("only files");
                            let read = fresh.read_blob(digest, size).await;
                            assert!(read.is_some(), "seed {seed}: {path}");
                        }
                    }
                }
            }
            for _ in 0..2 {
                for node in &mut nodes {
                    assert!(node.pull().await);
                    node.push().await;
                }
            }
            let fresh = world.caught_up().await;
            for node in &nodes {
                assert!(node.pull().await);
                assert_eq!(node.registers(), fresh.registers(), "seed {seed}");
            }
            for (path, register) in fresh.registers() {
                let Some(entry) = register.entry else { continue };
                let (digest, size) = entry.content().expect("only files");
                assert!(fresh.read_blob(digest, size).await.is_some(), "seed {seed}: {path}");
            }
            assert!(collected > 0, "seed {seed}");
        }
    });
}

#[test]
fn a_name_that_is_only_a_directory_needs_no_object() {
    run(async {
        let world = World::new();
        let mut a = world.node();
        let dir =
            crate::namespace::Entry::directory(0o755, 0, 0, crate::namespace::Time::from_ms(1));
        a.publish(vec![(path("d"), Op::Put(dir))]);
        a.push().await;
        checkpoint(&a).await;
        world.clock.advance(LOG_GRACE + Duration::from_mins(1));
        let report = collect(&a, false).await;
        assert_eq!((deleted(&report, "commits", Why::Covered), world.log().await.len()), (1, 0));
        let fresh = world.caught_up().await;
        assert!(fresh.entry("d").is_some());
    });
}

#[test]
fn a_list_that_breaks_off_goes_on_where_it_was() {
    run(async {
        let world = World::new();
        let mut node = world.node();
        for n in 0..12_u64 {
            node.send(&format!("n{n}"), &content(n, 2_000_000)).await;
        }
        let remote = node.remote().background();
        let all = world.store.keys().await.len() as u64;
        for plan in ["broken_lists=100", "errors=100"] {
            node.fail(plan);
            let (pages, mut arriving) = tokio::sync::mpsc::channel(1);
            let counted = async {
                let mut seen = Vec::new();
                while let Some(page) = arriving.recv().await {
                    seen.extend(page);
                }
                seen
            };
            let heal = async {
                crate::clock::sleep(Duration::from_millis(1_700)).await;
                node.fail("");
            };
            let (listed, seen, ()) = futures::join!(remote.survey(pages), counted, heal);
            assert_eq!(listed.unwrap(), None, "{plan}");
            let mut objects: Vec<String> = seen.iter().map(|one| format!("{one:?}")).collect();
            objects.sort();
            objects.dedup();
            assert_eq!((objects.len() as u64, seen.len() as u64), (all, all), "{plan}");
        }
        // A list that never succeeds is an error in the end.
        node.fail("errors=100");
        let (pages, _arriving) = tokio::sync::mpsc::channel(1);
        assert!(remote.survey(pages).await.is_err());
    });
}
