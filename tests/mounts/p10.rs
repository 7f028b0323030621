//! P10 freshness: a lookup that starts more than `freshness` after a change reached the remote sees
//! it, on every node. These tests look exactly once, after that time.

use std::path::Path;

use crate::harness::{
    Cluster, Io, Must as _, Node, Options, Store, SyscallProcess, in_both_modes, sleep_ms, tree,
};

/// How much longer than `freshness` a lookup may take: timers and a busy machine.
const MARGIN_MS: u64 = 150;

/// Checks changes from the other node, each by a single lookup after `wait_ms`.
fn changes(from: &Node, to: &Node, wait_ms: u64) {
    let mut process = SyscallProcess::new();
    let pass = || {
        from.drain();
        sleep_ms(wait_ms);
    };
    let absent = |name: &str| {
        let there = std::fs::symlink_metadata(to.at(name));
        let kind = there.as_ref().map_err(std::io::Error::kind).map(std::fs::Metadata::len);
        assert_eq!(kind, Err(std::io::ErrorKind::NotFound), "{name} is absent");
    };
    for round in 0..3 {
        let (dir, file) = (format!("d{round}"), format!("d{round}/file"));
        absent(&dir);
        absent(&file);
        process.mkdir(&from.at(&dir)).must("mkdir");
        pass();
        assert!(to.at(&dir).is_dir(), "a new directory");
        absent(&file);
        assert!(tree::texts(&to.at(&dir)).is_empty());

        process.put(&from.at(&file), b"first").must("put");
        pass();
        assert_eq!(std::fs::read(to.at(&file)).must("a new file"), b"first");
        assert_eq!(tree::texts(&to.at(&dir)), ["file"]);

        process.put(&from.at(&file), b"second version").must("overwrite");
        pass();
        assert_eq!(std::fs::metadata(to.at(&file)).must("stat").len(), 14, "an overwritten file");
        assert_eq!(std::fs::read(to.at(&file)).must("read"), b"second version");

        process.chmod(&from.at(&file), 0o750).must("chmod");
        process.symlink(Path::new("file"), &from.at(&dir).join("link")).must("symlink");
        pass();
        let mode = std::os::unix::fs::PermissionsExt::mode(
            &std::fs::metadata(to.at(&file)).must("stat").permissions(),
        );
        assert_eq!(mode & 0o777, 0o750, "a changed mode");
        assert_eq!(std::fs::read(to.at(&dir).join("link")).must("by the link"), b"second version");

        process.rename(&from.at(&dir), &from.at("moved")).must("rename the directory");
        pass();
        absent(&dir);
        absent(&file);
        assert_eq!(std::fs::read(to.at("moved/file")).must("read"), b"second version");

        process.unlink(&from.at("moved/link")).must("unlink");
        process.unlink(&from.at("moved/file")).must("unlink");
        process.rmdir(&from.at("moved")).must("rmdir");
        pass();
        absent("moved/file");
        absent("moved");
        assert!(!tree::texts(&to.mount).contains(&"moved".to_owned()));
    }
}

fn p10_freshness_of_a_second(io: Io) {
    a_second(&Cluster::two(io));
}
in_both_modes!(p10_freshness_of_a_second);

pub(crate) fn a_second(cluster: &Cluster) {
    changes(&cluster.a, &cluster.b, 1_000 + MARGIN_MS);
}

fn p10_freshness_zero_asks_each_time(io: Io) {
    zero(&Cluster::with(Store::dir, &Options::new(io).freshness("0s")));
}
in_both_modes!(p10_freshness_zero_asks_each_time);

pub(crate) fn zero(cluster: &Cluster) {
    changes(&cluster.a, &cluster.b, 0);
    changes(&cluster.b, &cluster.a, 0);
}

fn p10_freshness_of_a_name_missed_before(io: Io) {
    missed_before(&Cluster::with(Store::dir, &Options::new(io).alone()));
}
in_both_modes!(p10_freshness_of_a_name_missed_before);

/// A name that was looked up in vain, repeatedly, is found within the window after its creation.
pub(crate) fn missed_before(cluster: &Cluster) {
    let mut process = SyscallProcess::new();
    for round in 0..5 {
        let name = format!("wanted{round}");
        for _ in 0..50 {
            assert!(std::fs::metadata(cluster.b.at(&name)).is_err());
        }
        process.put(&cluster.a.at(&name), b"made").must("put");
        cluster.a.drain();
        let start = crate::harness::now();
        while std::fs::read(cluster.b.at(&name)).is_err() {
            sleep_ms(1);
        }
        let took_ms = start.elapsed().as_millis() as u64;
        assert!(took_ms <= 1_000 + MARGIN_MS, "found after {took_ms} ms");
    }
}

#[test]
fn p10_freshness_shares_one_question_among_all_misses() {
    one_question(&Cluster::with(Store::dir, &Options::new(Io::best()).alone()));
}

/// A miss is answered soon even if it has to ask the store, and a busy misser does not ask each time.
pub(crate) fn one_question(cluster: &Cluster) {
    let start = crate::harness::now();
    for k in 0..2_000 {
        assert!(std::fs::metadata(cluster.b.at(format!("missing{k}"))).is_err());
    }
    let took_ms = start.elapsed().as_millis();
    assert!(took_ms < 5_000, "2,000 misses took {took_ms} ms");
}

/// The kernel caches unchanged names for as long as programs use them, although other nodes could change them.
fn p10_freshness_leaves_known_names_to_the_kernel(io: Io) {
    let cluster = Cluster::with(Store::dir, &Options::new(io).alone());
    let mut process = SyscallProcess::new();
    process.mkdir(&cluster.a.at("d")).must("mkdir");
    process.put(&cluster.a.at("d/known"), b"first").must("put");
    cluster.a.drain();
    let known = cluster.b.at("d/known");
    let missing = cluster.b.at("d/missing");
    crate::harness::eventually(5_000, "the file arrives", || {
        std::fs::read(&known).map_err(|error| error.to_string())
    });
    assert!(std::fs::metadata(&missing).is_err());
    if forgets(&cluster.b) {
        crate::harness::say("this kernel cannot be told to forget all names, so it remembers none");
        return;
    }
    let asked =
        |what: &str| cluster.b.status()["counters"]["operations"][what].as_u64().unwrap_or(0);
    let (lookups, opens) = (asked("lookup"), asked("open"));
    // Longer than the freshness.
    for _ in 0..100 {
        assert_eq!(std::fs::read(&known).must("read"), b"first");
        assert!(std::fs::metadata(&missing).is_err());
        sleep_ms(25);
    }
    let (lookups, opens) = (asked("lookup") - lookups, asked("open") - opens);
    assert!(opens >= 100, "{opens} opens");
    assert!(lookups <= 12, "{lookups} lookups of two names in 100 opens");
    // Yet a change elsewhere is seen in time.
    for n in 0..3_u8 {
        process.put(&cluster.a.at("d/known"), &[b'0' + n]).must("put");
        process.put(&cluster.a.at(format!("d/new{n}")), b"x").must("put");
        cluster.a.drain();
        sleep_ms(1_000 + MARGIN_MS);
        assert_eq!(std::fs::read(&known).must("read"), [b'0' + n]);
        assert!(cluster.b.at(format!("d/new{n}")).exists());
    }
}
in_both_modes!(p10_freshness_leaves_known_names_to_the_kernel);

/// Reports whether the kernel asks for a name each time.
fn forgets(node: &Node) -> bool {
    let lookups = || node.status()["counters"]["operations"]["lookup"].as_u64().unwrap_or(0);
    let before = lookups();
    for _ in 0..20 {
        assert!(std::fs::metadata(node.at("never")).is_err());
    }
    lookups() - before >= 20
}

/// An unused node does not rely on its knowledge, and asks again for a name that it looked up before.
fn p10_freshness_after_a_rest(io: Io) {
    let cluster = Cluster::with(Store::dir, &Options::new(io).alone());
    let mut process = SyscallProcess::new();
    process.put(&cluster.a.at("name"), b"old").must("put");
    cluster.a.drain();
    let name = cluster.b.at("name");
    crate::harness::eventually(5_000, "the file arrives", || {
        std::fs::read(&name).map_err(|error| error.to_string())
    });
    // Longer than an unused node continues to poll.
    sleep_ms(12_000);
    process.put(&cluster.a.at("name"), b"new").must("put");
    cluster.a.drain();
    sleep_ms(1_000 + MARGIN_MS);
    assert_eq!(std::fs::read(&name).must("read"), b"new");
}
in_both_modes!(p10_freshness_after_a_rest);
