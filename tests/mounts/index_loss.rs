//! The index is disposable: losing it costs time, never data.

use std::path::Path;

use crate::harness::body::{self, Id};
use crate::harness::time::thread;
use crate::harness::{Cluster, Io, Must as _, Node, SyscallProcess, in_both_modes, sleep_ms, tree};

fn load(mount: &Path, writer: u32, from: u64) -> u64 {
    let mut process = SyscallProcess::new();
    let mut k = from;
    loop {
        let bytes = body::make(Id { writer, seq: k }, 64 + 5_000 * (k % 9) as usize);
        let path = mount.join(format!("w{writer}-{k}"));
        if process.put(&path, &bytes).is_err() {
            return k;
        }
        k += 1;
    }
}

fn check_all(node: &Node, writers: &[u64], when: &str) {
    for (writer, upto) in writers.iter().enumerate() {
        for seq in 0..*upto {
            let path = node.at(format!("w{writer}-{seq}"));
            let bytes = std::fs::read(&path).must(format_args!("{when}: {}", path.display()));
            let id = Id { writer: writer as u32, seq };
            assert_eq!(body::check(&bytes), Ok(id), "{when}: {}", path.display());
        }
    }
}

/// Deletes the index under load, kills the daemon, and restarts it: nothing that was closed is lost.
fn index_loss_under_load(io: Io) {
    let mut cluster = Cluster::two(io);
    let index = cluster.a.cache.join("v1/index");
    let mut written = [0_u64; 2];
    for round in 0..4 {
        let workers: Vec<_> = (0..2_u32)
            .map(|writer| {
                let (mount, from) = (cluster.a.mount.clone(), written[writer as usize]);
                thread(move || load(&mount, writer, from))
            })
            .collect();
        sleep_ms(300);
        assert!(index.is_dir(), "the index is a directory of the cache directory");
        std::fs::remove_dir_all(&index).must("delete the index of a running daemon");
        sleep_ms(300);
        cluster.a.kill_only();
        for (writer, worker) in workers.into_iter().enumerate() {
            written[writer] = worker.join().must("a writer that ends with its daemon");
        }
        if round % 2 == 1 {
            // Once with nothing, once with garbage in its place.
            drop(std::fs::remove_dir_all(&index));
            std::fs::create_dir_all(&index).must("make a false index");
            std::fs::write(index.join("db"), vec![0x5a; 70_000]).must("fill it with rubbish");
            std::fs::write(index.join("conf"), b"rubbish").must("fill it with rubbish");
        }
        cluster.a.up();
        check_all(&cluster.a, &written, "after the index was lost");
        // A close that was not acknowledged may have taken effect or not; its name is written again.
    }
    assert!(written.iter().sum::<u64>() > 100, "too little was written: {written:?}");
    cluster.settle();
    tree::converge(&cluster.a.mount, &cluster.b.mount, 20_000);
    check_all(&cluster.b, &written, "on the other node");
}
in_both_modes!(index_loss_under_load);

/// A node that lost its index while it was stopped serves its local content without the store.
#[test]
fn index_loss_while_stopped_keeps_the_local_blobs() {
    let mut cluster = Cluster::two(Io::best());
    let mut process = SyscallProcess::new();
    for k in 0..30 {
        let bytes = body::make(Id { writer: 0, seq: k }, 40_000);
        process.put(&cluster.a.at(format!("w0-{k}")), &bytes).must("put");
    }
    cluster.a.stop();
    std::fs::remove_dir_all(cluster.a.cache.join("v1/index")).must("delete the index");
    let blobs = || tree::files_below(&cluster.a.cache.join("v1/blobs")).len();
    let before = blobs();
    assert!(before >= 30, "{before} blobs");
    cluster.a.up();
    check_all(&cluster.a, &[30], "after a stop without an index");
    assert!(tree::files_below(&cluster.a.cache.join("v1/blobs")).len() >= 30, "blobs were dropped");
}
