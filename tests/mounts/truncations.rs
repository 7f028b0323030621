//! Programs that truncate a file by its name while others write it.

use std::time::{Duration, Instant};

use crate::harness::{Cluster, Io, Must as _, SyscallProcess, in_both_modes};

/// How long the programs race.
const RACE: Duration = Duration::from_secs(3);
const BYTES: usize = 8;

/// One program rewrites a file again and again, and another truncates it by its name. The file is never
/// removed, so none of them finds it missing, and its bytes are those of a close or a truncation.
fn truncations_beside_closes_lose_nothing(io: Io) {
    let cluster = Cluster::two(io);
    let path = cluster.a.at("file");
    SyscallProcess::new().put(&path, &[b'x'; BYTES]).must("put");
    let end = Instant::now() + RACE;
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut process = SyscallProcess::new();
            for n in 0.. {
                if Instant::now() > end {
                    break;
                }
                process.truncate(&path, n % 5).must("truncate");
            }
        });
        let mut process = SyscallProcess::new();
        while Instant::now() < end {
            process.put(&path, &[b'x'; BYTES]).must("rewrite");
        }
    });
    for node in [&cluster.a, &cluster.b] {
        cluster.settle();
        let bytes = SyscallProcess::new().get(&node.at("file")).must("read");
        assert!(bytes.len() <= BYTES, "{bytes:?}");
        assert!(bytes.iter().all(|byte| [b'x', 0].contains(byte)), "{bytes:?}");
    }
}
in_both_modes!(truncations_beside_closes_lose_nothing);
