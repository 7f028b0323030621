//! P13 bounded: disk, memory, threads and open files stay under their limits.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use rustix::io::Errno;

use crate::harness::body::{self, Id};
use crate::harness::time::thread;
use crate::harness::{
    Cluster, Io, Must as _, Node, Options, Store, SyscallProcess, eventually, in_both_modes, now,
    sleep_ms, tree,
};

const LIMIT_BYTES: u64 = 64 << 20;
/// Disk usage besides the blobs: files being written or fetched, the index, and the journal.
const SLACK_BYTES: u64 = 12 << 20;
const FILE_LEN: usize = 4 << 20;
const FILES: u64 = 100;
/// An unoptimised daemon under load stays far below the 400 MiB that a million entries may cost.
const MEMORY_BYTES_MAX: u64 = 300 << 20;
const OPEN_FILES_MAX: usize = 512;
const THREADS_MAX: usize = 128;

fn content(k: u64) -> Vec<u8> {
    body::make(Id { writer: 1, seq: k }, FILE_LEN)
}

/// Writes; if pending bytes alone fill the tier, waits and retries, as a program would.
fn put_patiently(process: &mut SyscallProcess, path: &std::path::Path, bytes: &[u8]) {
    let start = now();
    while let Err(errno) = process.put(path, bytes) {
        assert_eq!(errno, Errno::NOSPC, "put {}", path.display());
        assert!(start.elapsed().as_secs() < 30, "no room for 30 s");
        sleep_ms(30);
    }
}

fn process_value(pid: rustix::process::Pid, key: &str) -> u64 {
    let path = format!("/proc/{}/status", pid.as_raw_nonzero());
    let text = std::fs::read_to_string(path).must("read a process's status");
    let line = text.lines().find(|line| line.starts_with(key)).must(key);
    let number = line.split_whitespace().nth(1).and_then(|word| word.parse().ok());
    number.must(line)
}

fn open_files(pid: rustix::process::Pid) -> usize {
    std::fs::read_dir(format!("/proc/{}/fd", pid.as_raw_nonzero())).must("list fds").count()
}

fn expect_modest(node: &Node, when: &str) {
    let pid = node.pid();
    let memory = process_value(pid, "VmHWM:") * 1024;
    assert!(memory < MEMORY_BYTES_MAX, "{when}: {} MiB of memory", memory >> 20);
    let threads = process_value(pid, "Threads:") as usize;
    assert!(threads < THREADS_MAX, "{when}: {threads} threads");
    let files = open_files(pid);
    assert!(files < OPEN_FILES_MAX, "{when}: {files} open files");
}

/// Records the largest disk usage of a directory.
fn sample(dir: PathBuf, stop: &Arc<AtomicBool>) -> (std::thread::JoinHandle<()>, Arc<AtomicU64>) {
    let (most, stop) = (Arc::new(AtomicU64::new(0)), Arc::clone(stop));
    let seen = Arc::clone(&most);
    let watcher = thread(move || {
        while !stop.load(Ordering::Relaxed) {
            seen.fetch_max(tree::disk_use(&dir), Ordering::Relaxed);
            sleep_ms(15);
        }
    });
    (watcher, most)
}

fn p13_bounded_tier_with_six_times_its_size(io: Io) {
    let options = Options::new(io).cache_size("64MiB");
    let cluster = Cluster::with(Store::dir, &options);
    let stop = Arc::new(AtomicBool::new(false));
    let watched = [&cluster.a, &cluster.b].map(|node| sample(node.cache.clone(), &stop));
    let (mut process, mut other) = (SyscallProcess::new(), SyscallProcess::new());
    for k in 0..FILES {
        let (name, bytes) = (format!("f{k}"), content(k));
        put_patiently(&mut process, &cluster.a.at(&name), &bytes);
        assert!(process.get(&cluster.a.at(&name)) == Ok(bytes), "{name} right after its close");
        if k % 10 == 9 {
            cluster.a.drain();
            for back in [k, k - 5, k / 2] {
                let name = format!("f{back}");
                let read = eventually(6_000, format_args!("{name} on node B"), || {
                    other.get(&cluster.b.at(&name)).map_err(|errno| errno.to_string())
                });
                assert!(read == content(back), "{name} on node B");
                let again = process.get(&cluster.a.at(&name));
                assert!(again == Ok(content(back)), "{name} again on node A, evicted or not");
            }
            expect_modest(&cluster.a, "the writing node");
            expect_modest(&cluster.b, "the reading node");
        }
    }
    for k in (0..FILES).rev().step_by(3) {
        let read = other.get(&cluster.b.at(format!("f{k}")));
        assert!(read == Ok(content(k)), "f{k} at the end on node B");
    }
    stop.store(true, Ordering::Relaxed);
    for (watcher, most) in watched {
        watcher.join().must("a watcher");
        let most = most.load(Ordering::Relaxed);
        let (mib, limit) = (most >> 20, (LIMIT_BYTES + SLACK_BYTES) >> 20);
        assert!(most <= LIMIT_BYTES + SLACK_BYTES, "the tier held {mib} MiB, the limit is {limit}");
        assert!(most > LIMIT_BYTES / 3, "the tier was hardly used: {mib} MiB");
    }
}
in_both_modes!(p13_bounded_tier_with_six_times_its_size);

/// If pending bytes alone fill the tier, new data gets ENOSPC; everything else goes on.
fn p13_bounded_backlog(io: Io) {
    let options = Options::new(io).cache_size("32MiB").deadline("1s");
    let cluster = Cluster::with(Store::dir, &options);
    cluster.store.fail();
    let mut process = SyscallProcess::new();
    let mut closed = Vec::new();
    let refused =
        (0..60).find(|k| match process.put(&cluster.a.at(format!("f{k}")), &content(*k)) {
            Ok(()) => {
                closed.push(*k);
                false
            }
            Err(errno) => {
                assert_eq!(errno, Errno::NOSPC, "a full tier");
                true
            }
        });
    assert!(refused.is_some(), "240 MiB fitted into a tier of 32 MiB without a store");
    assert!(closed.len() >= 5, "only {} files of 4 MiB fitted into 32 MiB", closed.len());
    for k in &closed {
        let read = process.get(&cluster.a.at(format!("f{k}")));
        assert!(read == Ok(content(*k)), "f{k}, which was closed without an error");
    }
    let half = process.stat(&cluster.a.at(format!("f{}", refused.unwrap_or_default())));
    assert_eq!(half.map(|stat| stat.size).err(), Some(Errno::NOENT), "the refused file");
    process.mkdir(&cluster.a.at("dir")).must("names still work");
    process.unlink(&cluster.a.at(format!("f{}", closed[0]))).must("unlink makes room");
    let held = tree::disk_use(&cluster.a.cache);
    assert!(held <= (32 << 20) + SLACK_BYTES, "{} MiB on disk", held >> 20);
    cluster.store.heal();
    put_patiently(&mut process, &cluster.a.at("after"), &content(999));
    cluster.a.drain();
    eventually(10_000, "all closed files are on node B", || {
        for k in closed[1..].iter().chain(&[]) {
            let read = std::fs::read(cluster.b.at(format!("f{k}"))).map_err(|e| e.to_string())?;
            if read != content(*k) {
                return Err(format!("f{k} has other bytes"));
            }
        }
        Ok(())
    });
}
in_both_modes!(p13_bounded_backlog);

fn p13_bounded_open_files_and_memory(io: Io) {
    many_open(&Cluster::two(io));
}
in_both_modes!(p13_bounded_open_files_and_memory);

/// Many open files, many names: descriptors and memory follow limits, not the load.
pub(crate) fn many_open(cluster: &Cluster) {
    let mut process = SyscallProcess::new();
    for k in 0..2_000 {
        process.put(&cluster.a.at(format!("f{k}")), format!("{k}").as_bytes()).must("put");
    }
    cluster.settle();
    eventually(10_000, "node B lists all", || {
        let count = tree::texts(&cluster.b.mount).len();
        if count == 2_000 { Ok(()) } else { Err(count.to_string()) }
    });
    for k in 0..2_000 {
        let read = std::fs::read(cluster.b.at(format!("f{k}"))).must("read");
        assert_eq!(read, format!("{k}").as_bytes());
    }
    expect_modest(&cluster.a, "the writing node, all closed");
    expect_modest(&cluster.b, "the reading node, all closed");
    let start = open_files(cluster.b.pid());
    let held: Vec<std::fs::File> =
        (0..200).map(|k| std::fs::File::open(cluster.b.at(format!("f{k}"))).must("open")).collect();
    drop(held);
    eventually(5_000, "closed files cost no descriptors", || {
        let count = open_files(cluster.b.pid());
        if count <= start + 20 { Ok(()) } else { Err(format!("{count}, before {start}")) }
    });
}
