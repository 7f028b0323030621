//! `hearthfs gc`: garbage goes, and nothing that is in use, beside nodes that run.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crate::harness::body::{self, Dice, Id};
use crate::harness::command::{Said, run};
use crate::harness::time::thread;
use crate::harness::{
    Cluster, Io, Must as _, Node, Options, Store, SyscallProcess, in_both_modes, now, sleep_ms,
    tree,
};

/// How long unused objects stay in these tests. Long enough for a commit on a busy machine.
const GRACE: &str = "6s";
/// The minimal duration of the load: over a directory, over a server, and in the long variant.
const LOAD: Duration = Duration::from_secs(12);
const LOAD_SERVER: Duration = Duration::from_secs(15);
const LOAD_LONG: Duration = Duration::from_mins(1);
/// The longest wait for the first garbage to be deleted.
const LOAD_MAX: Duration = Duration::from_secs(150);
/// Names that each writer rewrites.
const NAMES: u64 = 25;
/// Files that stay unchanged.
const KEPT: u64 = 40;

fn gc(cluster: &Cluster, more: &[&str]) -> Said {
    let mut command = cluster.site.hearthfs();
    command.args(["gc", &cluster.store.url(), "--json"]).args(more);
    command.envs(cluster.store.env());
    run(&mut command, 120_000)
}

fn collect(cluster: &Cluster) -> serde_json::Value {
    let out = gc(cluster, &["--hazardous-grace", GRACE]).good();
    serde_json::from_str(&out).must("a report")
}

/// Returns how many deleted objects of a kind a report counts.
fn deleted(report: &serde_json::Value, kind: &str) -> u64 {
    let all = report["deleted"].as_array().must("a list");
    let of_kind = all.iter().filter(|one| one["kind"] == kind);
    of_kind.map(|one| one["objects"].as_u64().must("a number")).sum()
}

/// Writes, replaces, renames and removes its own names on one node until it is stopped; reads them
/// back at once, and those of the other writer as they arrive.
fn load(mount: &Path, writer: u32, stop: &AtomicBool) -> u64 {
    let (mut process, mut dice) = (SyscallProcess::new(), Dice::new(u64::from(writer)));
    let mut seen = vec![0; NAMES as usize];
    let mut seq = 0;
    while !stop.load(Ordering::Relaxed) {
        seq += 1;
        let name = mount.join(format!("w{writer}-{}", dice.below(NAMES)));
        let bytes = body::make(Id { writer, seq }, dice.len(400_000));
        match dice.below(8) {
            0 => drop(process.unlink(&name)),
            1..4 => {
                let temporary = mount.join(format!("tmp-{writer}"));
                process.put(&temporary, &bytes).must("put a temporary");
                process.rename(&temporary, &name).must("rename it");
            }
            _ => process.put(&name, &bytes).must("put"),
        }
        let other = dice.below(NAMES);
        let theirs = mount.join(format!("w{}-{other}", 3 - writer));
        if let Ok(bytes) = process.get(&theirs) {
            let id = body::check(&bytes).must("a whole body");
            let last = &mut seen[other as usize];
            assert!(id.writer == 3 - writer && id.seq >= *last, "{id} after {last}");
            *last = id.seq;
        }
        let kept = dice.below(KEPT);
        let bytes = process.get(&mount.join(format!("kept{kept}"))).must("a file that is kept");
        assert_eq!(body::check(&bytes), Ok(Id { writer: 9, seq: kept }));
        sleep_ms(2);
    }
    seq
}

fn options(io: Io) -> Options {
    Options::new(io).delay("10ms")
}

fn gc_beside_two_nodes_under_load(io: Io) {
    beside_two_nodes(&Cluster::with(Store::dir, &options(io)), io, LOAD);
}
in_both_modes!(gc_beside_two_nodes_under_load);

#[test]
fn gc_beside_two_nodes_over_a_server() {
    let io = Io::best();
    beside_two_nodes(&Cluster::with(Store::s3, &options(io)), io, LOAD_SERVER);
}

/// Two nodes write and read while garbage is collected: no read fails, and a node that starts later
/// has everything.
fn beside_two_nodes(cluster: &Cluster, io: Io, least: Duration) {
    std::fs::write(cluster.store.objects().join("notes.txt"), "mine").must("write a note");
    let (mut process, mut dice) = (SyscallProcess::new(), Dice::new(1));
    for seq in 0..KEPT {
        let bytes = body::make(Id { writer: 9, seq }, dice.len(1_500_000));
        process.put(&cluster.a.at(format!("kept{seq}")), &bytes).must("put");
    }
    cluster.settle();
    tree::converge(&cluster.a.mount, &cluster.b.mount, 20_000);
    let stop = Arc::new(AtomicBool::new(false));
    let writers = [(&cluster.a, 1), (&cluster.b, 2)].map(|(node, writer)| {
        let (mount, stop) = (node.mount.clone(), Arc::clone(&stop));
        thread(move || load(&mount, writer, &stop))
    });
    let long = std::env::var_os("HEARTHFS_TEST_LONG").is_some();
    let (begun, least) = (now(), if long { LOAD_LONG } else { least });
    let (mut packs, mut commits) = (0, 0);
    while begun.elapsed() < least || ((packs == 0 || commits == 0) && begun.elapsed() < LOAD_MAX) {
        assert!(!writers.iter().any(std::thread::JoinHandle::is_finished), "a reader has failed");
        // A drain also writes a checkpoint when one is due.
        cluster.a.drain();
        let report = collect(cluster);
        assert_eq!(report["failed"]["objects"], 0, "{report}");
        assert_eq!(report["foreign"]["objects"], 1, "{report}");
        packs += deleted(&report, "packs");
        commits += deleted(&report, "commits");
        sleep_ms(300);
    }
    stop.store(true, Ordering::Relaxed);
    let written: u64 = writers.into_iter().map(|writer| writer.join().must("no read fails")).sum();
    assert!(packs > 0 && commits > 0, "{packs} packs and {commits} commits of {written} writes");
    cluster.settle();
    let wanted = tree::converge(&cluster.a.mount, &cluster.b.mount, 30_000);
    collect(cluster);
    // A new machine has all of it, so none of it existed only on a node's own disk.
    let c = Node::start(&cluster.site, "c", Some(&cluster.store), options(io));
    assert_eq!(tree::converge(&cluster.a.mount, &c.mount, 30_000).len(), wanted.len());
    for seq in 0..KEPT {
        let bytes = std::fs::read(c.at(format!("kept{seq}"))).must("a file that is kept");
        assert_eq!(body::check(&bytes), Ok(Id { writer: 9, seq }));
    }
    for name in tree::texts(&c.mount) {
        let bytes = std::fs::read(c.at(&name)).must(&name);
        body::check(&bytes).must(&name);
    }
    for node in [&cluster.a, &cluster.b, &c] {
        assert!(!node.log().contains("missing or damaged"), "{}", node.log());
    }
    assert!(cluster.store.objects().join("notes.txt").exists());
}

#[test]
fn gc_says_what_it_would_do_and_refuses_what_is_no_store() {
    let cluster = Cluster::two(Io::best());
    SyscallProcess::new()
        .put(&cluster.a.at("f"), &body::make(Id { writer: 1, seq: 1 }, 9_000))
        .must("put");
    cluster.settle();
    let before = tree::files_below(&cluster.store.objects());
    let said = gc(&cluster, &["--dry-run"]);
    let report: serde_json::Value = serde_json::from_str(&said.good()).must("a report");
    assert_eq!(report["dry_run"], true);
    assert_eq!(report["kept"]["packs"]["objects"], 1);
    assert_eq!(report["deleted"].as_array().map(Vec::len), Some(0));
    assert_eq!(tree::files_below(&cluster.store.objects()), before, "not even a probe");
    let mut command = cluster.site.hearthfs();
    let said = run(command.args(["gc", &cluster.store.url()]), 60_000);
    assert!(said.status.success() && said.out.contains("kept"), "{said:?}");
    assert!(said.err.contains("no complete checkpoint"), "{said:?}");
    let empty = cluster.site.dir("empty");
    for url in [format!("file://{}", empty.display()), "file:///nonexistent/x".to_owned()] {
        let mut command = cluster.site.hearthfs();
        let said = run(command.args(["gc", &url]), 60_000);
        assert_eq!(said.code(), 2, "{said:?}");
        assert!(
            said.err.starts_with("error: ") && said.err.contains("correct the address"),
            "{said:?}"
        );
    }
    assert_eq!(std::fs::read_dir(&empty).must("list").count(), 0, "no store was made");
    let mut command = cluster.site.hearthfs();
    assert_eq!(run(command.arg("gc"), 60_000).code(), 2, "no store is named");
}

/// What is past the expiry is deleted from a bucket too, with as few requests as possible.
#[test]
fn gc_of_a_bucket_goes_by_age() {
    let cluster = Cluster::with(Store::s3, &Options::new(Io::best()));
    let mut process = SyscallProcess::new();
    for seq in 0..30 {
        let bytes = body::make(Id { writer: 1, seq }, 9_000 + 50_000 * seq as usize);
        process.put(&cluster.a.at(format!("f{seq}")), &bytes).must("put");
        if seq % 10 == 9 {
            cluster.settle();
        }
    }
    std::fs::write(cluster.store.objects().join("notes.txt"), "mine").must("write a note");
    let count = |kind: &str| cluster.store.objects_in(kind).len() as u64;
    let (packs, blobs) = (count("packs"), count("blobs"));
    assert!(packs >= 3 && blobs > 0, "{packs} packs and {blobs} blobs");
    let young: serde_json::Value =
        serde_json::from_str(&gc(&cluster, &["--expiry", "1h"]).good()).must("a report");
    assert_eq!(deleted(&young, "packs") + deleted(&young, "blobs"), 0, "{young}");
    sleep_ms(3_000);
    let before = cluster.store.requests();
    let report: serde_json::Value =
        serde_json::from_str(&gc(&cluster, &["--expiry", "1s"]).good()).must("a report");
    let asked = cluster.store.requests() - before;
    assert_eq!((deleted(&report, "packs"), deleted(&report, "blobs")), (packs, blobs), "{report}");
    assert_eq!((count("packs"), count("blobs")), (0, 0));
    assert_eq!(report["foreign"]["objects"], 1, "{report}");
    // Reads of commits, lists, a check of each blob, and a few deletions of many.
    assert!(asked < 25 + blobs + count("log"), "{asked} requests");
    // For the nodes this is damage in the store, and they are a cache: they get misses, or what
    // they still have.
    for seq in 0..30 {
        if let Ok(bytes) = std::fs::read(cluster.b.at(format!("f{seq}"))) {
            assert_eq!(body::check(&bytes), Ok(Id { writer: 1, seq }));
        }
    }
}
