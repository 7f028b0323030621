//! P12 clean-directories: a directory lists exactly what the programs put there.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::fs::OFlags;

use crate::harness::syscall_process::{CREATE_NEW, SCRATCH};
use crate::harness::time::thread;
use crate::harness::{
    Cluster, Io, Must as _, SyscallProcess, eventually, in_both_modes, sleep_ms, tree,
};

const ENTRIES: usize = 250;
/// Prefixes of the workers' names while they work.
const OWN: [&str; 3] = ["entry-", "tmp.", "probe-"];

/// Puts entries by temporary and rename, with the usual other operations of programs.
fn work(mount: &Path, worker: &str) -> BTreeSet<String> {
    let mut process = SyscallProcess::new();
    let mut left = BTreeSet::new();
    for k in 0..ENTRIES {
        let (temporary, name) =
            (mount.join(format!("tmp.{worker}.{k}")), format!("entry-{worker}-{k}"));
        // Probes for the right to write: a file is made, unlinked while open, written, closed.
        let probe = mount.join(format!("probe-{worker}"));
        let fd = process.open(&probe, SCRATCH, 0o600).must("a probe");
        process.unlink(&probe).must("unlink the probe");
        process.write(fd, b"x").must("write the probe");
        process
            .put_with(&temporary, CREATE_NEW, 1 << 20, 0, format!("{worker} {k}").as_bytes())
            .must("put a temporary");
        process.rename(&temporary, &mount.join(&name)).must("rename it");
        process.close(fd).must("close the probe");
        if k % 3 == 0 {
            let held = process.open(&mount.join(&name), OFlags::RDONLY, 0).must("open");
            process.unlink(&mount.join(&name)).must("unlink while open");
            process.close(held).must("close");
        } else {
            left.insert(name);
        }
    }
    left
}

fn p12_clean_directories_under_load(io: Io) {
    under_load(&Cluster::two(io));
}
in_both_modes!(p12_clean_directories_under_load);

/// Four processes on two nodes make and remove names; listings show those and nothing else.
pub(crate) fn under_load(cluster: &Cluster) {
    let stop = Arc::new(AtomicBool::new(false));
    let watchers: Vec<_> = [("a", cluster.a.mount.clone()), ("b", cluster.b.mount.clone())]
        .into_iter()
        .map(|(node, mount)| {
            let stop = Arc::clone(&stop);
            thread(move || {
                let other = if node == "a" { "b" } else { "a" };
                let mut strange = BTreeSet::new();
                while !stop.load(Ordering::Relaxed) {
                    let listed = tree::texts(&mount);
                    let unique: BTreeSet<&String> = listed.iter().collect();
                    if unique.len() != listed.len() {
                        strange.insert("a name that is listed twice".to_owned());
                    }
                    strange.extend(listed.into_iter().filter(|name| {
                        !OWN.iter().any(|own| name.starts_with(own))
                            || name.starts_with(&format!("probe-{other}"))
                    }));
                    sleep_ms(5);
                }
                strange
            })
        })
        .collect();
    let workers: Vec<_> =
        [("a1", &cluster.a), ("a2", &cluster.a), ("b1", &cluster.b), ("b2", &cluster.b)]
            .map(|(worker, node)| (worker, node.mount.clone()))
            .into_iter()
            .map(|(worker, mount)| thread(move || work(&mount, worker)))
            .collect();
    let mut expected = BTreeSet::new();
    for worker in workers {
        expected.append(&mut worker.join().must("a worker"));
    }
    stop.store(true, Ordering::Relaxed);
    for watcher in watchers {
        let strange = watcher.join().must("a watcher");
        assert!(strange.is_empty(), "names that no program made there: {strange:?}");
    }
    let expected: Vec<String> = expected.into_iter().collect();
    both_list(cluster, &expected);
}

/// Waits until each node has the names of the other, and both list exactly those.
fn both_list(cluster: &Cluster, expected: &[String]) {
    cluster.settle();
    for node in [&cluster.a, &cluster.b] {
        eventually(10_000, "a node lists exactly the entries", || {
            let listed = tree::texts(&node.mount);
            if listed == expected {
                return Ok(());
            }
            let extra: Vec<_> = listed.iter().filter(|name| !expected.contains(name)).collect();
            let missing: Vec<_> = expected.iter().filter(|name| !listed.contains(name)).collect();
            Err(format!("extra {extra:?}, missing {missing:?}"))
        });
    }
}

#[test]
fn p12_clean_directories_and_a_clean_store() {
    clean_store(&Cluster::two(Io::best()));
}

/// Short-lived temporaries leave nothing in the store either.
pub(crate) fn clean_store(cluster: &Cluster) {
    let mut process = SyscallProcess::new();
    cluster.settle();
    let before = tree::files_below(&cluster.store.objects()).len();
    for k in 0..100 {
        let probe = cluster.a.at(format!("probe{k}"));
        let fd = process.open(&probe, CREATE_NEW, 0o600).must("create");
        process.unlink(&probe).must("unlink");
        process.close(fd).must("close");
    }
    cluster.a.drain();
    let after = tree::files_below(&cluster.store.objects()).len();
    assert!(after <= before + 2, "probes made {} objects", after - before);
    assert!(tree::texts(&cluster.b.mount).is_empty());
}

fn p12_clean_directories_of_many_names(io: Io) {
    many_names(&Cluster::two(io));
}
in_both_modes!(p12_clean_directories_of_many_names);

/// Large directories are listed whole while they change, in any order but without gaps.
pub(crate) fn many_names(cluster: &Cluster) {
    let (dir, mut process) = (cluster.a.at("many"), SyscallProcess::new());
    process.mkdir(&dir).must("mkdir");
    for k in 0..3_000 {
        process.put(&dir.join(format!("stay{k}")), b"s").must("put");
    }
    cluster.a.drain();
    let on_b = cluster.b.at("many");
    eventually(10_000, "node B lists all", || {
        let count = tree::names(&on_b).map_err(|error| error.to_string())?.len();
        if count == 3_000 { Ok(()) } else { Err(count.to_string()) }
    });
    let churn = {
        let dir = dir.clone();
        thread(move || {
            let mut process = SyscallProcess::new();
            for k in 0..300 {
                let path: PathBuf = dir.join(format!("come-and-go{k}"));
                process.put(&path, b"x").must("put");
                process.unlink(&path).must("unlink");
            }
        })
    };
    while !churn.is_finished() {
        for listed in [&dir, &on_b] {
            let names = tree::texts(listed);
            let stay: BTreeSet<_> = names.iter().filter(|name| name.starts_with("stay")).collect();
            let all = names.iter().filter(|name| name.starts_with("stay")).count();
            assert_eq!((stay.len(), all), (3_000, 3_000), "a listing under change");
        }
    }
    churn.join().must("the churn");
    let removed = std::fs::remove_dir_all(&dir);
    removed.must("remove the directory while listing it");
    cluster.a.drain();
    eventually(10_000, "node B shows the removal", || {
        if on_b.exists() { Err("it still exists".to_owned()) } else { Ok(()) }
    });
}

fn p12_clean_directories_and_their_times(io: Io) {
    times(&Cluster::two(io));
}
in_both_modes!(p12_clean_directories_and_their_times);

/// A directory's time moves on the other node when its content changes there.
pub(crate) fn times(cluster: &Cluster) {
    let (mut process, mut other) = (SyscallProcess::new(), SyscallProcess::new());
    process.mkdir(&cluster.a.at("pkg")).must("mkdir");
    cluster.a.drain();
    let on_b = cluster.b.at("pkg");
    eventually(5_000, "node B has the directory", || other.stat(&on_b).map_err(|e| e.to_string()));
    for k in 0..4 {
        let was = other.stat(&on_b).must("stat");
        sleep_ms(20);
        if k == 3 {
            process.unlink(&cluster.a.at("pkg/m0.py")).must("unlink");
        } else {
            process.put(&cluster.a.at(format!("pkg/m{k}.py")), b"pass").must("put");
        }
        cluster.a.drain();
        sleep_ms(1_150);
        let is = other.stat(&on_b).must("stat");
        let (was, is) = ((was.mtime_s, was.mtime_ns), (is.mtime_s, is.mtime_ns));
        assert!(is != was, "change {k} did not move the directory's time on node B");
        let listed = tree::texts(&on_b).len();
        assert_eq!(listed, [1, 2, 3, 2][k], "the listing after change {k}");
    }
    let file = |node: &crate::harness::Node| {
        let meta = std::fs::metadata(node.at("pkg/m1.py")).must("stat");
        meta.modified().must("a time")
    };
    assert_eq!(file(&cluster.a), file(&cluster.b), "a file's time is the same on both nodes");
}
