//! P3 stable-open: an open file or mapping keeps its version to the end.

use rustix::fs::OFlags;

use crate::harness::body::{self, Id};
use crate::harness::{
    Cluster, Io, Must as _, Node, Options, Store, SyscallProcess, eventually, in_both_modes,
};

const LEN: usize = 1_200_000;

fn version(seq: u64) -> Vec<u8> {
    body::make(Id { writer: 1, seq }, LEN)
}

/// A process that holds one version of a file, through a descriptor and through a mapping.
struct Holder {
    process: SyscallProcess,
    fd: i64,
    map: i64,
    version: Vec<u8>,
}

impl Holder {
    fn new(path: &std::path::Path, seq: u64) -> Self {
        let mut process = SyscallProcess::new();
        let fd = process.open(path, OFlags::RDONLY, 0).must("open");
        let map = process.map(fd, LEN, false, seq.is_multiple_of(2)).must("map");
        Self { process, fd, map, version: version(seq) }
    }

    #[track_caller]
    fn check(&mut self, when: &str) {
        let read = self.process.read(self.fd, 0, LEN + 1).must(format_args!("read {when}"));
        assert!(read == self.version, "{when}: the descriptor shows other bytes");
        let mapped = self.process.map_read(self.map, 0, LEN);
        assert!(mapped == self.version, "{when}: the mapping shows other bytes");
        let stat = self.process.fstat(self.fd).must(format_args!("fstat {when}"));
        assert_eq!(stat.size, LEN as u64, "{when}");
    }
}

fn p3_stable_open_through_replace_and_unlink(io: Io) {
    replaced(&Cluster::two(io));
}
in_both_modes!(p3_stable_open_through_replace_and_unlink);

/// A process that has a version open keeps it, whatever either node does to the name.
pub(crate) fn replaced(cluster: &Cluster) {
    let mut process = SyscallProcess::new();
    let on_a = cluster.a.at("file");
    process.put(&on_a, &version(0)).must("put");
    let mut holders = vec![(Holder::new(&on_a, 0), "version 0 on A")];

    process.put(&on_a, &version(1)).must("replace in place");
    holders.push((Holder::new(&on_a, 1), "version 1 on A"));

    process.put(&cluster.a.at("tmp"), &version(2)).must("put a temporary");
    process.rename(&cluster.a.at("tmp"), &on_a).must("rename over");
    holders.push((Holder::new(&on_a, 2), "version 2 on A"));
    cluster.a.drain();
    let on_b = cluster.b.at("file");
    eventually(5_000, "node B shows version 2", || {
        let read = std::fs::read(&on_b).map_err(|error| error.to_string())?;
        if read == version(2) { Ok(()) } else { Err("another version".to_owned()) }
    });
    holders.push((Holder::new(&on_b, 2), "version 2 on B"));

    process.truncate(&on_a, 10).must("cut it short by name");
    process.put(&on_a, &version(3)).must("replace again");
    process.rename(&on_a, &cluster.a.at("moved")).must("rename away");
    process.put(&on_a, &version(4)).must("another of that name");
    process.unlink(&on_a).must("unlink");
    cluster.settle();
    eventually(5_000, "node B shows the removal", || {
        if on_b.exists() { Err("it still exists".to_owned()) } else { Ok(()) }
    });
    for (holder, name) in &mut holders {
        holder.check(name);
    }
    let mut extra = SyscallProcess::new();
    extra.put(&cluster.b.at("file"), &version(5)).must("B writes the name");
    cluster.settle();
    for (holder, name) in &mut holders {
        holder.check(name);
    }
}

fn push_through(node: &Node, prefix: &str, mib: usize) {
    let mut process = SyscallProcess::new();
    for number in 0..mib {
        let bytes = body::make(Id { writer: 9, seq: number as u64 }, 1 << 20);
        let path = node.at(format!("{prefix}{number}"));
        let mut tries = 0;
        while let Err(errno) = process.put(&path, &bytes) {
            tries += 1;
            assert!(errno == rustix::io::Errno::NOSPC && tries < 200, "put: {errno}");
            crate::harness::sleep_ms(50);
        }
    }
}

/// The size of the local tier for [`evicted`], which must be too small for it.
pub(crate) const TIER: &str = "32MiB";

fn p3_stable_open_through_eviction(io: Io) {
    evicted(&Cluster::with(Store::dir, &Options::new(io).cache_size(TIER)));
}
in_both_modes!(p3_stable_open_through_eviction);

/// A process that has a version open keeps it while its blob is evicted, and the blob is fetched again later.
pub(crate) fn evicted(cluster: &Cluster) {
    let mut process = SyscallProcess::new();
    process.put(&cluster.a.at("held"), &version(0)).must("put");
    cluster.a.drain();
    let on_b = cluster.b.at("held");
    eventually(5_000, "node B shows it", || {
        std::fs::read(&on_b).map(drop).map_err(|error| error.to_string())
    });
    let mut holders = [Holder::new(&cluster.a.at("held"), 0), Holder::new(&on_b, 0)];
    push_through(&cluster.a, "a", 80);
    push_through(&cluster.b, "b", 80);
    for holder in &mut holders {
        holder.check("after eviction");
    }
    cluster.settle();
    assert!(std::fs::read(cluster.a.at("held")).must("read again on A") == version(0));
    assert!(std::fs::read(&on_b).must("read again on B") == version(0));
}
