//! Programs that truncate a file by its name while others write it.

use std::sync::atomic::{AtomicBool, Ordering};

use crate::harness::{Cluster, Io, Must as _, SyscallProcess, in_both_modes};

/// How often the file is rewritten.
const REWRITES: u64 = 2000;
const BYTES: usize = 8;

/// One program rewrites a file again and again, and another truncates it by its name. The file is never
/// removed, so none of them finds it missing, and its bytes are those of a close or a truncation.
fn truncations_beside_closes_lose_nothing(io: Io) {
    let cluster = Cluster::two(io);
    let path = cluster.a.at("file");
    SyscallProcess::new().put(&path, &[b'x'; BYTES]).must("put");
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut process = SyscallProcess::new();
            for n in 0.. {
                if done.load(Ordering::Relaxed) {
                    break;
                }
                process.truncate(&path, n % 5).must("truncate");
            }
        });
        let mut process = SyscallProcess::new();
        let rewritten = (0..REWRITES).try_for_each(|_| process.put(&path, &[b'x'; BYTES]));
        done.store(true, Ordering::Relaxed);
        rewritten.must("rewrite");
    });
    for node in [&cluster.a, &cluster.b] {
        cluster.settle();
        let bytes = SyscallProcess::new().get(&node.at("file")).must("read");
        assert!(bytes.len() <= BYTES, "{bytes:?}");
        assert!(bytes.iter().all(|byte| [b'x', 0].contains(byte)), "{bytes:?}");
    }
}
in_both_modes!(truncations_beside_closes_lose_nothing);
