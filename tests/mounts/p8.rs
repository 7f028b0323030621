//! P8 never-in-the-way: remote trouble is a miss, never an error and never a hang.

use std::path::Path;

use rustix::fs::OFlags;
use rustix::io::Errno;

use crate::harness::body::{self, Id};
use crate::harness::store::Trouble;
use crate::harness::time::thread;
use crate::harness::{
    Cluster, Io, Must as _, Node, Options, Store, SyscallProcess, eventually, in_both_modes, now,
    tree,
};

const DEADLINE_MS: u64 = 2_000;
/// How much longer than the deadline an operation may take on a busy machine.
const MARGIN_MS: u64 = 700;

fn bytes(seq: u64, len: usize) -> Vec<u8> {
    body::make(Id { writer: 1, seq }, len)
}

fn options(io: Io) -> Options {
    Options::new(io).alone().deadline("2s").drain_deadline("3s")
}

/// Runs one operation and fails if it takes longer than the deadline allows.
#[track_caller]
fn timed<T>(what: &str, work: impl FnOnce() -> T) -> T {
    let start = now();
    let result = work();
    let took_ms = start.elapsed().as_millis() as u64;
    assert!(took_ms < DEADLINE_MS + MARGIN_MS, "{what} took {took_ms} ms");
    result
}

/// Writes what both nodes need before the failure: B has fetched `hit-*`, and knows only the names of `cold-*`.
fn prepare(cluster: &Cluster) {
    let mut process = SyscallProcess::new();
    for k in 0..4 {
        process.put(&cluster.a.at(format!("hit-{k}")), &bytes(k, 50_000)).must("put");
        process.put(&cluster.a.at(format!("cold-{k}")), &bytes(k, 1_500_000)).must("put");
    }
    cluster.a.drain();
    eventually(5_000, "node B lists all names", || {
        let count = tree::texts(&cluster.b.mount).len();
        if count == 8 { Ok(()) } else { Err(count.to_string()) }
    });
    for k in 0..4 {
        let read = std::fs::read(cluster.b.at(format!("hit-{k}"))).must("fetch");
        assert!(read == bytes(k, 50_000));
    }
}

/// Every operation that a program may try, each within the deadline, with the answers of section 10.
fn use_without_a_store(node: &Node, round: u64) {
    let (mut process, at) = (SyscallProcess::new(), |name: &str| node.at(name));
    for k in 0..4 {
        let read = timed("a hit", || process.get(&at(&format!("hit-{k}"))));
        assert!(read == Ok(bytes(k, 50_000)), "a hit is unchanged");
    }
    for k in 0..2 {
        let read = timed("content that is not local", || process.get(&at(&format!("cold-{k}"))));
        let missed = matches!(&read, Err(Errno::NOENT)) || read == Ok(bytes(k, 1_500_000));
        assert!(missed, "content that is not local: {:?}", read.map(|bytes| bytes.len()));
        let missing = timed("a name that no node knows", || process.stat(&at(&format!("no-{k}"))));
        assert_eq!(missing, Err(Errno::NOENT));
    }
    timed("readdir", || tree::names(&node.mount)).must("readdir");
    timed("statfs", || rustix::fs::statvfs(&node.mount)).must("statfs");
    timed("stat", || process.stat(&at("hit-0"))).must("stat");
    let (new, moved) = (format!("new-{round}"), format!("moved-{round}"));
    timed("create, write, close", || process.put(&at(&new), &bytes(90, 200_000))).must("put");
    let read = timed("read what was just written", || process.get(&at(&new)));
    assert!(read == Ok(bytes(90, 200_000)));
    timed("overwrite a hit", || process.put(&at("hit-3"), &bytes(3, 50_000))).must("put");
    timed("overwrite content that is not local", || process.put(&at("cold-3"), &bytes(7, 9_000)))
        .must("put");
    timed("rename", || process.rename(&at(&new), &at(&moved))).must("rename");
    timed("mkdir", || process.mkdir(&at(&format!("dir-{round}")))).must("mkdir");
    timed("chmod", || process.chmod(&at(&moved), 0o600)).must("chmod");
    timed("symlink", || process.symlink(Path::new("hit-0"), &at(&format!("link-{round}"))))
        .must("symlink");
    let fd = timed("open to append", || process.open(&at(&moved), OFlags::RDWR, 0)).must("open");
    timed("write", || process.pwrite(fd, 0, b"changed")).must("write");
    timed("fsync", || process.fsync(fd)).must("fsync");
    timed("close", || process.close(fd)).must("close");
    timed("unlink", || process.unlink(&at(&format!("link-{round}")))).must("unlink");
    let opened = timed("open to write content that is not local", || {
        process.open(&at("cold-2"), OFlags::RDWR, 0).and_then(|fd| process.close(fd))
    });
    assert!(matches!(opened, Ok(()) | Err(Errno::NOENT)), "{opened:?}");
}

fn everything_arrives(cluster: &Cluster) {
    eventually(20_000, "the backlog is remote", || {
        let mount = cluster.b.mount.to_string_lossy();
        let said = cluster.b.command(&["drain", &mount, "--timeout", "5s"]);
        if said.status.success() { Ok(()) } else { Err(said.err) }
    });
    let all = tree::converge(&cluster.a.mount, &cluster.b.mount, 15_000);
    assert!(
        all.contains_key(Path::new("moved-0")) && all.contains_key(Path::new("dir-0")),
        "{all:?}"
    );
    let read = std::fs::read(cluster.b.at("cold-0")).must("the miss is served again");
    assert!(read == bytes(0, 1_500_000));
    let read = std::fs::read(cluster.a.at("cold-3")).must("content written meanwhile");
    assert!(read == bytes(7, 9_000));
}

fn p8_never_in_the_way_while_the_store_fails(io: Io) {
    let cluster = Cluster::with(Store::dir, &options(io));
    prepare(&cluster);
    cluster.store.fail();
    use_without_a_store(&cluster.b, 0);
    // Many at once wait no longer than one.
    let misses: Vec<_> = (0..12)
        .map(|k| {
            let path = cluster.b.at(format!("none-{k}"));
            thread(move || timed("one of many misses", || SyscallProcess::new().stat(&path)))
        })
        .collect();
    for miss in misses {
        assert_eq!(miss.join().must("a miss"), Err(Errno::NOENT));
    }
    cluster.store.heal();
    everything_arrives(&cluster);
}
in_both_modes!(p8_never_in_the_way_while_the_store_fails);

/// A network disk that was unmounted: writes meanwhile must not end in the empty place.
#[test]
fn p8_never_in_the_way_while_the_store_is_an_empty_place() {
    let cluster = Cluster::with(Store::dir, &options(Io::best()));
    prepare(&cluster);
    cluster.store.vanish();
    use_without_a_store(&cluster.b, 0);
    crate::harness::sleep_ms(1_000);
    cluster.store.heal();
    everything_arrives(&cluster);
}

fn p8_never_in_the_way_of_an_orderly_end(io: Io) {
    let mut cluster = Cluster::with(Store::dir, &options(io));
    prepare(&cluster);
    cluster.store.fail();
    use_without_a_store(&cluster.b, 0);
    let start = now();
    let status = cluster.b.terminate();
    let took_ms = start.elapsed().as_millis();
    assert!(status.success(), "the end without a store: {status}");
    assert!(took_ms < 9_000, "the drain's deadline is 3 s, the end took {took_ms} ms");
    assert!(!crate::harness::node::is_mounted(&cluster.b.mount), "the mount is gone");
    cluster.store.heal();
    cluster.b.up();
    everything_arrives(&cluster);
}
in_both_modes!(p8_never_in_the_way_of_an_orderly_end);

/// The store comes and goes many times; nothing is lost, and the order holds to the end.
#[test]
fn p8_never_in_the_way_of_a_store_that_flaps() {
    let cluster = Cluster::with(Store::dir, &options(Io::best()));
    let mut process = SyscallProcess::new();
    for k in 0..40 {
        if k % 4 == 0 {
            cluster.store.fail();
        }
        timed("put", || process.put(&cluster.a.at(format!("f{k}")), &bytes(k, 20_000))).must("put");
        crate::harness::sleep_ms(60);
        if k % 4 == 2 {
            cluster.store.heal();
        }
    }
    eventually(30_000, "all is remote", || {
        let mount = cluster.a.mount.to_string_lossy();
        let said = cluster.a.command(&["drain", &mount, "--timeout", "5s"]);
        if said.status.success() { Ok(()) } else { Err(said.err) }
    });
    let all = tree::converge(&cluster.a.mount, &cluster.b.mount, 15_000);
    assert_eq!(all.len(), 40);
}

/// Each way in which a server can fail, one after the other, on the same mounts.
fn p8_never_in_the_way_of_a_failing_server(io: Io) {
    let cluster = Cluster::with(Store::s3, &options(io));
    prepare(&cluster);
    let troubles = [
        Trouble::Down,
        Trouble::Hang,
        Trouble::Forbidden,
        Trouble::Errors(100),
        Trouble::Errors(40),
        Trouble::Slow(600),
    ];
    for (round, trouble) in troubles.into_iter().enumerate() {
        crate::harness::say(format_args!("the store: {trouble:?}"));
        cluster.store.trouble(trouble);
        use_without_a_store(&cluster.b, round as u64);
        cluster.store.heal();
        // For the next round everything is as at the beginning, except what that round made.
        let mut process = SyscallProcess::new();
        process.put(&cluster.a.at("cold-3"), &bytes(3, 1_500_000)).must("put");
        cluster.settle();
    }
    for k in 0..3 {
        let read = eventually(10_000, "the miss is served again", || {
            std::fs::read(cluster.b.at(format!("cold-{k}"))).map_err(|error| error.to_string())
        });
        assert!(read == bytes(k, 1_500_000));
    }
    let all = tree::converge(&cluster.a.mount, &cluster.b.mount, 15_000);
    for round in 0..troubles.len() {
        let moved = format!("moved-{round}");
        assert!(all.contains_key(Path::new(&moved)), "{moved} is missing: {all:?}");
    }
}
in_both_modes!(p8_never_in_the_way_of_a_failing_server);

/// S3 throttles with 503, and may do so for one object: only readers of that object wait.
#[test]
fn p8_never_in_the_way_of_others_while_one_object_is_throttled() {
    let cluster = Cluster::with(Store::s3, &Options::new(Io::best()).alone().deadline("20s"));
    let mut process = SyscallProcess::new();
    for k in 0..6 {
        // Each one is an object of its own.
        process.put(&cluster.a.at(format!("large-{k}")), &bytes(k, 1_500_000)).must("put");
    }
    cluster.a.drain();
    eventually(5_000, "node B lists all names", || {
        let count = tree::texts(&cluster.b.mount).len();
        if count == 6 { Ok(()) } else { Err(count.to_string()) }
    });
    let objects = cluster.store.objects_in("blobs");
    assert_eq!(objects.len(), 6, "{objects:?}");
    let digest = blake3::hash(&bytes(0, 1_500_000)).to_hex().to_string();
    assert!(
        objects.iter().any(|key| key.to_string_lossy().contains(&digest)),
        "{digest} is none of {objects:?}"
    );
    cluster.store.throttle(&digest);
    let path = cluster.b.at("large-0");
    let waiting = thread(move || (std::fs::read(path), now()));
    eventually(10_000, "a request for the object fails", || {
        if cluster.store.throttlings() > 0 { Ok(()) } else { Err("no request".to_owned()) }
    });
    for k in 1..6 {
        let read =
            std::fs::read(cluster.b.at(format!("large-{k}"))).must("content of the other node");
        assert!(read == bytes(k, 1_500_000));
    }
    let healed = now();
    cluster.store.heal();
    let (read, ended) = waiting.join().must("the reader ends");
    assert!(read.must("the throttled content") == bytes(0, 1_500_000));
    assert!(ended >= healed, "the read has waited for the store");
}

/// A node that starts while the store does not answer serves what it has.
#[test]
fn p8_never_in_the_way_of_a_start() {
    let mut cluster = Cluster::with(Store::s3, &options(Io::best()));
    prepare(&cluster);
    // What a node has learned from others is on its disk within two seconds; what it published
    // itself is there at once (P4).
    crate::harness::sleep_ms(2_000);
    for trouble in [Trouble::Down, Trouble::Hang, Trouble::Errors(100)] {
        cluster.b.kill_only();
        cluster.store.trouble(trouble);
        let start = now();
        cluster.b.up();
        let took_ms = start.elapsed().as_millis();
        assert!(took_ms < 10_000, "{trouble:?}: a start without its store took {took_ms} ms");
        let read = timed("a hit", || std::fs::read(cluster.b.at("hit-1"))).must("a hit");
        assert!(read == bytes(1, 50_000), "{trouble:?}");
        cluster.store.heal();
    }
    cluster.settle();
    tree::converge(&cluster.a.mount, &cluster.b.mount, 15_000);
}
