//! P5 in-order: a node that sees one change of another node sees every earlier change of it.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::harness::body::{self, Dice, Id};
use crate::harness::store::Trouble;
use crate::harness::time::thread;
use crate::harness::{
    Cluster, Io, Must as _, Options, Store, SyscallProcess, eventually, in_both_modes, sleep_ms,
    tree,
};

const FILES: u64 = 600;
/// The pause after each file, so that the other node looks many times meanwhile.
const PAUSE_MS: u64 = 4;

/// Writes numbered files, and after each the same number into `count-a` and then `count-b`.
fn count(mount: &Path, stop: &AtomicBool) -> u64 {
    let (mut process, mut dice) = (SyscallProcess::new(), Dice::new(5));
    process.mkdir(&mount.join("seq")).must("mkdir");
    for k in 0..FILES {
        if stop.load(Ordering::Relaxed) {
            return k;
        }
        let bytes = body::make(Id { writer: 1, seq: k }, dice.len(300_000));
        let name = mount.join(format!("seq/{k}"));
        if k % 3 == 0 {
            let temporary = mount.join(format!("seq/{k}.tmp"));
            process.put(&temporary, &bytes).must("put a temporary");
            process.rename(&temporary, &name).must("rename it");
        } else {
            process.put(&name, &bytes).must("put");
        }
        for counter in ["count-a", "count-b"] {
            process.put(&mount.join(counter), k.to_string().as_bytes()).must("count");
        }
        sleep_ms(PAUSE_MS);
    }
    FILES
}

fn counted(path: &Path) -> Option<u64> {
    match std::fs::read_to_string(path) {
        Ok(text) => Some(text.parse().must(format_args!("a counter that reads {text:?}"))),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => None,
        Err(error) => panic!("{}: {error}", path.display()),
    }
}

/// Whether a file may be a miss because the store does not answer (P8).
#[derive(Clone, Copy, PartialEq)]
enum Contents {
    Served,
    MayMiss,
}

fn expect_whole(dir: &Path, k: u64, contents: Contents, because: &str) {
    let path = dir.join(k.to_string());
    let read = std::fs::read(&path);
    if contents == Contents::MayMiss && read.is_err() {
        let there = std::fs::symlink_metadata(path);
        there.must(format_args!("the name of file {k} is missing, {because}"));
        return;
    }
    let bytes = read.must(format_args!("file {k} is missing, {because}"));
    assert_eq!(body::check(&bytes), Ok(Id { writer: 1, seq: k }), "{because}");
}

/// Checks everything that a moment's view of the other node implies.
fn observe(mount: &Path, dice: &mut Dice, contents: Contents) -> u64 {
    let dir = mount.join("seq");
    // The later counter is read first: the earlier one must have reached at least that value.
    if let Some(later) = counted(&mount.join("count-b")) {
        let earlier = counted(&mount.join("count-a"));
        let missed = contents == Contents::MayMiss && earlier.is_none();
        assert!(missed || earlier >= Some(later), "count-a is {earlier:?}, count-b was {later}");
        for k in [later, dice.below(later + 1), dice.below(later + 1), 0] {
            expect_whole(&dir, k, contents, &format!("but the counter says {later}"));
        }
    }
    let Ok(listed) = tree::names(&dir) else { return 0 };
    let numbers = listed.iter().filter_map(|name| std::str::from_utf8(name).ok()?.parse().ok());
    let Some(last) = numbers.max() else { return 0 };
    for k in 0..last {
        let there = std::fs::symlink_metadata(dir.join(k.to_string()));
        assert!(there.is_ok(), "the directory shows {last}, but {k} is missing: {there:?}");
    }
    last
}

fn p5_in_order_as_seen_by_the_other_node(io: Io) {
    in_order(&Cluster::two(io));
}
in_both_modes!(p5_in_order_as_seen_by_the_other_node);

/// The same when every request takes long, and some fail.
#[test]
fn p5_in_order_with_a_slow_and_failing_store() {
    for trouble in [Trouble::Slow(120), Trouble::Errors(25)] {
        let cluster = Cluster::with(Store::s3, &Options::new(Io::best()));
        cluster.store.trouble(trouble);
        in_order_with(&cluster, Contents::MayMiss);
    }
}

/// One node writes files and counts them, the other reads: no count is ahead of the files.
pub(crate) fn in_order(cluster: &Cluster) {
    in_order_with(cluster, Contents::Served);
}

fn in_order_with(cluster: &Cluster, contents: Contents) {
    let stop = Arc::new(AtomicBool::new(false));
    let writer = {
        let (mount, stop) = (cluster.a.mount.clone(), Arc::clone(&stop));
        thread(move || count(&mount, &stop))
    };
    let mut dice = Dice::new(55);
    let (mut views, mut steps) = (0, std::collections::BTreeSet::new());
    while !writer.is_finished() {
        steps.insert(observe(&cluster.b.mount, &mut dice, contents));
        views += 1;
    }
    let written = writer.join().must("the writer");
    cluster.a.drain();
    eventually(30_000, "node B has seen all", || {
        let last = observe(&cluster.b.mount, &mut dice, contents);
        if last + 1 == written { Ok(()) } else { Err(format!("{last} of {written}")) }
    });
    assert!(views > 10 && steps.len() > 3, "node B looked {views} times and saw {steps:?}");
    let all = tree::converge(&cluster.a.mount, &cluster.b.mount, 10_000);
    assert_eq!(all.len() as u64, FILES + 3);
}

#[test]
fn p5_in_order_over_a_restart() {
    restarts(&mut Cluster::two(Io::best()));
}

/// The order holds over abrupt ends and restarts of the writing node.
pub(crate) fn restarts(cluster: &mut Cluster) {
    let mut process = SyscallProcess::new();
    let dir = cluster.b.mount.clone();
    for k in 0..60 {
        let bytes = body::make(Id { writer: 1, seq: k }, 2_000 + 30_000 * (k % 7) as usize);
        process.put(&cluster.a.at(k.to_string()), &bytes).must("put");
        if k % 12 == 11 {
            cluster.a.kill_only();
            all_before_the_last(&dir);
            cluster.a.up();
        }
    }
    eventually(20_000, "all arrive, in order", || match all_before_the_last(&dir) {
        Some(59) => Ok(()),
        last => Err(format!("{last:?} of 59")),
    });
}

fn all_before_the_last(dir: &Path) -> Option<u64> {
    let listed = tree::texts(dir);
    let last = listed.iter().filter_map(|name| name.parse::<u64>().ok()).max()?;
    for k in 0..=last {
        expect_whole(dir, k, Contents::Served, &format!("but {last} exists"));
    }
    Some(last)
}
