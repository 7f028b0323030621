//! Checkpoints: a new node sees everything although the log is gone.

use std::path::{Path, PathBuf};

use hearthfs::remote::keys;
use hearthfs::stamp::Stamp;

use crate::harness::body::{self, Id};
use crate::harness::{
    Cluster, Io, Must as _, Node, Options, Store, SyscallProcess, eventually, in_both_modes,
    sleep_ms, tree,
};

/// More commits than make a checkpoint due.
const COMMITS: usize = 270;

/// How long a checkpoint may take, in milliseconds. If writing took so long that a bundle was due first, the rest of the
/// log must be old enough for the next one.
const WRITTEN_WITHIN_MS: u64 = 180_000;

/// How much older than a checkpoint a commit must be to be certainly in it.
const BEFORE_MS: u64 = 1_000;

/// Returns the time in an object's name, in milliseconds.
fn time_of(at: &Path) -> u64 {
    let name = at.file_stem().and_then(|name| name.to_str()).must("a name");
    Stamp::parse_sortable(name).must("a stamp").ms
}

/// Writes until the log has many commits; returns how many files there are.
pub(crate) fn fill(cluster: &Cluster) -> u64 {
    let mut process = SyscallProcess::new();
    process.mkdir(&cluster.a.at("dir")).must("mkdir");
    let mut seq = 0;
    while cluster.store.objects_in("log").len() < COMMITS {
        assert!(seq < 5_000, "the log does not grow");
        let node = if seq % 2 == 0 { &cluster.a } else { &cluster.b };
        // Too large for a commit, which would have to stay as long as the content is used.
        let bytes = body::make(Id { writer: 1, seq }, 6_000);
        let at = if seq % 3 == 0 { format!("dir/f{seq}") } else { format!("f{seq}") };
        // The other node must have seen the directory.
        eventually(10_000, "put a file", || {
            process.put(&node.at(&at), &bytes).map_err(|error| error.to_string())
        });
        seq += 1;
        sleep_ms(15);
    }
    seq
}

/// Returns the checkpoints of a store whose log is long enough for one.
pub(crate) fn written(cluster: &Cluster) -> Vec<PathBuf> {
    // A checkpoint that is due is written when a node ends, and at a drain.
    cluster.settle();
    cluster.a.drain();
    eventually(WRITTEN_WITHIN_MS, "a checkpoint", || {
        let mut found = cluster.store.objects_in(keys::CHECKPOINTS);
        // Bundles are there, too.
        found.retain(|at| {
            let name = at.file_name().and_then(|name| name.to_str());
            name.and_then(keys::checkpoint_stamp).is_some()
        });
        if found.is_empty() { Err(cluster.a.log() + &cluster.b.log()) } else { Ok(found) }
    })
}

/// The options of nodes in these tests: one commit for each file.
pub(crate) fn options(io: Io) -> Options {
    Options::new(io).delay("10ms")
}

fn checkpoints_start_a_new_node_without_the_log(io: Io) {
    without_the_log(&Cluster::with(Store::dir, &options(io)), io);
}
in_both_modes!(checkpoints_start_a_new_node_without_the_log);

/// A node that starts after the log below the checkpoint was deleted shows the same as the others.
pub(crate) fn without_the_log(cluster: &Cluster, io: Io) {
    let files = fill(cluster);
    let mut process = SyscallProcess::new();
    process.unlink(&cluster.a.at("f1")).must("unlink");
    process.chmod(&cluster.a.at("dir"), 0o700).must("chmod");
    let written = written(cluster);
    // A running node must have read what is removed; the grace time ensures that.
    tree::converge(&cluster.a.mount, &cluster.b.mount, 20_000);
    let latest = written.iter().map(|at| time_of(at)).max().must("a checkpoint");
    let covered = |at: &PathBuf| time_of(at) + BEFORE_MS < latest;
    let below: Vec<_> = cluster.store.objects_in("log").into_iter().filter(covered).collect();
    assert!(below.len() > COMMITS / 4, "{} commits are covered", below.len());
    for commit in below {
        std::fs::remove_file(commit).must("remove a commit");
    }
    process.put(&cluster.b.at("later"), &body::make(Id { writer: 2, seq: 0 }, 7_000)).must("put");
    cluster.settle();
    let mut c = Node::start(&cluster.site, "c", Some(&cluster.store), options(io));
    let wanted = tree::converge(&cluster.a.mount, &cluster.b.mount, 20_000);
    let found = tree::converge(&cluster.a.mount, &c.mount, 20_000);
    assert_eq!(found.len(), wanted.len());
    assert_eq!(found.len() as u64, files + 1, "all files but one, the directory, the last one");
    assert!(c.log().contains("started from a checkpoint"), "{}", c.log());
    // It continues from there, also after a restart and after a kill.
    for end in 0..2 {
        if end == 0 {
            c.stop();
        } else {
            c.kill_only();
        }
        c.up();
        process
            .put(&c.at(format!("again{end}")), &body::make(Id { writer: 3, seq: 0 }, 7_000))
            .must("put");
        c.drain();
        tree::converge(&cluster.a.mount, &c.mount, 20_000);
    }
}

/// A damaged checkpoint is logged once, and the log is read instead.
#[test]
fn checkpoints_that_are_damaged_are_passed_over() {
    let cluster = Cluster::with(Store::dir, &options(Io::best()));
    fill(&cluster);
    for checkpoint in written(&cluster) {
        let bytes = std::fs::read(&checkpoint).must("read a checkpoint");
        std::fs::write(&checkpoint, &bytes[..bytes.len() / 2]).must("cut it off");
    }
    let c = Node::start(&cluster.site, "c", Some(&cluster.store), options(Io::best()));
    tree::converge(&cluster.a.mount, &c.mount, 60_000);
    let said = c.log().matches("a checkpoint cannot be used").count();
    let there = cluster.store.objects_in(keys::CHECKPOINTS).len();
    assert!(
        (1..=there).contains(&said),
        "reported {said} times for {there} checkpoints: {}",
        c.log()
    );
}
