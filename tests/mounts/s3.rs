//! The same promises over S3: a server in this process, and one of another project.

use crate::harness::body::{self, Id};
use crate::harness::store::Trouble;
use crate::harness::{
    Cluster, Io, Must as _, Node, Options, Store, SyscallProcess, eventually, in_both_modes,
    skipped, sleep_ms, tree,
};

/// Writes of every size on both nodes, seen whole on the other, and by a node that starts later.
pub(crate) fn work_of_a_day(cluster: &Cluster) {
    let (mut process, mut other) = (SyscallProcess::new(), SyscallProcess::new());
    for k in 0..60 {
        let len = [64, 900, 20_000, 300_000, 1_048_576, 3_000_000][k as usize % 6];
        let (mine, theirs) =
            (body::make(Id { writer: 1, seq: k }, len), body::make(Id { writer: 2, seq: k }, len));
        process.put(&cluster.a.at(format!("a{k}")), &mine).must("put");
        other.put(&cluster.b.at(format!("b{k}")), &theirs).must("put");
        other.put(&cluster.b.at("both"), &theirs).must("put");
        process.put(&cluster.a.at("both"), &mine).must("put");
        if k % 5 == 4 {
            process.unlink(&cluster.a.at(format!("a{}", k - 1))).must("unlink");
            process
                .rename(&cluster.a.at(format!("a{k}")), &cluster.a.at(format!("moved{k}")))
                .must("rename");
        }
    }
    cluster.settle();
    let all = tree::converge(&cluster.a.mount, &cluster.b.mount, 20_000);
    assert_eq!(all.len(), 60 + 60 - 12 + 1);
    let late = Node::start(&cluster.site, "late", Some(&cluster.store), Options::new(Io::best()));
    let there = tree::converge(&cluster.a.mount, &late.mount, 20_000);
    assert_eq!(tree::difference(&all, &there), "");
}

fn s3_two_nodes(io: Io) {
    work_of_a_day(&Cluster::with(Store::s3, &Options::new(io)));
}
in_both_modes!(s3_two_nodes);

#[test]
fn s3_two_nodes_over_a_bad_connection() {
    let cluster = Cluster::with(Store::s3, &Options::new(Io::best()));
    cluster.store.trouble(Trouble::Errors(15));
    cluster.store.trouble(Trouble::Slow(20));
    work_of_a_day(&cluster);
}

#[test]
fn s3_two_nodes_over_another_projects_server() {
    match Store::moto() {
        Ok(store) => work_of_a_day(&Cluster::with(|_| store, &Options::new(Io::best()))),
        Err(reason) => skipped("s3_two_nodes_over_another_projects_server", reason),
    }
}

/// Backlog and order survive a daemon that is killed while the server is down.
#[test]
fn s3_backlog_over_kills_without_a_server() {
    let mut cluster = Cluster::with(Store::s3, &Options::new(Io::best()).deadline("1s"));
    let mut process = SyscallProcess::new();
    cluster.store.fail();
    for k in 0..30 {
        let bytes = body::make(Id { writer: 1, seq: k }, 30_000);
        process.put(&cluster.a.at(k.to_string()), &bytes).must("put");
        if k % 10 == 9 {
            cluster.a.kill_only();
            cluster.a.up();
        }
    }
    cluster.store.heal();
    cluster.a.drain();
    let all = tree::converge(&cluster.a.mount, &cluster.b.mount, 15_000);
    assert_eq!(all.len(), 30);
}

/// An idle node costs no requests.
#[test]
fn s3_an_idle_node_asks_for_nothing() {
    let cluster = Cluster::with(Store::s3, &Options::new(Io::best()));
    SyscallProcess::new().put(&cluster.a.at("f"), b"x").must("put");
    cluster.settle();
    eventually(5_000, "node B has it", || {
        std::fs::read(cluster.b.at("f")).map_err(|error| error.to_string())
    });
    // It may continue to poll for a while after the last use.
    eventually(45_000, "both nodes are idle", || {
        let before = cluster.store.requests();
        sleep_ms(6_000);
        match cluster.store.requests() - before {
            0 => Ok(()),
            asked => Err(format!("{asked} requests in 6 s")),
        }
    });
}
