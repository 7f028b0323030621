//! P13 bounded: what a daemon takes, in memory and on disk, follows what lives and not what was; and
//! what it fetches follows what programs ask for.
//!
//! `HEARTHFS_TEST_REWRITES=1000000` rewrites a few names so often.

use rustix::process::Pid;

use crate::harness::body::{self, Id};
use crate::harness::{
    Cluster, Io, Must as _, Node, Options, Store, SyscallProcess, eventually, say, tree, wanted,
};

const NAMES: u64 = 100;
const BYTES: usize = 300;
/// How often the names are rewritten, and how often before the first measurement: by then each part
/// of the daemon has been used.
const REWRITES: u64 = 12_000;
const WARM_UP: u64 = 2_000;
/// The journal keeps what is done until its segment is full.
const JOURNAL_BYTES: u64 = 9 << 20;
/// The daemon keeps so many files open that were used last.
const KEPT_OPEN: u64 = 256;
/// A daemon in a test build may vary by this much.
const SLACK_BYTES: u64 = 4 << 20;

/// What a daemon takes.
#[derive(Debug, Clone, Copy)]
struct Taken {
    memory: u64,
    index: u64,
    journal: u64,
    blobs: u64,
}

impl Taken {
    fn of(node: &Node) -> Self {
        let room = node.cache.join("v1");
        let blobs = node.status()["local"]["blobs"].as_u64().must("the number of blobs");
        let [index, journal] = ["index", "journal"].map(|name| tree::disk_use(&room.join(name)));
        Self { memory: memory_of(node.pid()), index, journal, blobs }
    }
}

/// Returns the memory that belongs to a process alone and comes from no file.
fn memory_of(pid: Pid) -> u64 {
    let path = format!("/proc/{}/smaps_rollup", pid.as_raw_nonzero());
    let text = std::fs::read_to_string(path).must("read a process's memory");
    let line = text.lines().find(|line| line.starts_with("Anonymous:")).must("a line");
    let kib = line.split_whitespace().nth(1).and_then(|word| word.parse::<u64>().ok());
    kib.must(line) << 10
}

fn rewrite(cluster: &Cluster, process: &mut SyscallProcess, turns: std::ops::Range<u64>) {
    for turn in turns {
        let (name, id) = (format!("f{}", turn % NAMES), Id { writer: 1, seq: turn });
        process.put(&cluster.a.at(&name), &body::make(id, BYTES)).must("rewrite a name");
    }
    cluster.settle();
}

/// Waits until a node has what was written last.
fn read_all(node: &Node, turns: u64) {
    for turn in turns - NAMES..turns {
        let want = body::make(Id { writer: 1, seq: turn }, BYTES);
        let path = node.at(format!("f{}", turn % NAMES));
        eventually(20_000, path.display(), || match std::fs::read(&path) {
            Ok(found) if found == want => Ok(()),
            found => Err(format!("{:?}", found.map(|found| found.len()))),
        });
    }
}

#[test]
fn p13_bounded_names_that_are_rewritten() {
    let mut cluster = Cluster::with(Store::dir, &Options::new(Io::best()));
    let mut process = SyscallProcess::new();
    let turns = wanted("HEARTHFS_TEST_REWRITES", REWRITES).max(WARM_UP + NAMES);
    rewrite(&cluster, &mut process, 0..WARM_UP);
    read_all(&cluster.b, WARM_UP);
    let once = [&cluster.a, &cluster.b].map(Taken::of);
    rewrite(&cluster, &mut process, WARM_UP..turns);
    read_all(&cluster.b, turns);
    // What was replaced before it was sent goes a minute later. What was sent goes with the grace time.
    eventually(150_000, "what was never sent is removed", || {
        let status = cluster.a.status();
        let sent = status["counters"]["uploaded"].as_u64().must("what was sent");
        let blobs = Taken::of(&cluster.a).blobs;
        let fits = blobs <= sent + 2 * NAMES + KEPT_OPEN;
        if fits { Ok(()) } else { Err(format!("{blobs} blobs, {sent} were sent")) }
    });
    for when in ["before a restart", "after it"] {
        for (node, once) in [&cluster.a, &cluster.b].into_iter().zip(&once) {
            let taken = eventually(60_000, when, || {
                let taken = Taken::of(node);
                let fits = taken.memory <= 2 * once.memory + SLACK_BYTES
                    && taken.index <= 2 * once.index + SLACK_BYTES
                    && taken.journal <= once.journal + JOURNAL_BYTES;
                if fits { Ok(taken) } else { Err(format!("{taken:?}, at first {once:?}")) }
            });
            say(format_args!("{turns} rewrites, {when}: {taken:?}, at first {once:?}"));
        }
        read_all(&cluster.b, turns);
        for node in [&mut cluster.a, &mut cluster.b] {
            node.stop();
            node.up();
        }
        read_all(&cluster.a, turns);
    }
}

const TIER_BYTES: u64 = 16 << 20;
const ENTRIES: u64 = 2 * TIER_BYTES / ENTRY_BYTES as u64;
const ENTRY_BYTES: usize = 16 << 10;
const READS: u64 = 3 * ENTRIES;

/// A working set of twice the tier, in packs of many entries, read in no order while the node also
/// writes.
#[test]
fn p13_bounded_what_a_miss_fetches_from_a_small_tier() {
    let mut cluster = Cluster::with(Store::dir, &Options::new(Io::best()));
    let (mut writer, mut reader) = (SyscallProcess::new(), SyscallProcess::new());
    let content = |n: u64| body::make(Id { writer: 2, seq: n }, ENTRY_BYTES);
    for n in 0..ENTRIES {
        writer.put(&cluster.a.at(format!("e{n}")), &content(n)).must("write an entry");
    }
    cluster.settle();
    let options = Options::new(Io::best()).cache_size("16MiB");
    cluster.b.stop();
    cluster.b.set_options(options);
    std::fs::remove_dir_all(&cluster.b.cache).must("forget what the node had");
    cluster.b.up();
    eventually(20_000, "all names", || match tree::texts(&cluster.b.mount).len() as u64 {
        ENTRIES => Ok(()),
        count => Err(count.to_string()),
    });
    let mut seed = 7_u64;
    for turn in 0..READS {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        let n = (seed >> 33) % ENTRIES;
        let found = reader.get(&cluster.b.at(format!("e{n}"))).must("read an entry");
        assert!(found == content(n), "e{n}");
        if turn % 8 == 0 {
            let own = body::make(Id { writer: 3, seq: turn }, ENTRY_BYTES);
            reader.put(&cluster.b.at(format!("own{}", turn % 64)), &own).must("write");
        }
    }
    let counters = cluster.b.status()["counters"].clone();
    let number = |name: &str| counters[name].as_u64().must(name);
    let (count, fetched) = (number("fetched"), number("fetched_bytes"));
    let asked = count * ENTRY_BYTES as u64;
    say(format_args!("{READS} reads, {count} fetched: {fetched} bytes for {asked}"));
    assert!(count > READS / 8, "only {count} misses: the tier is not small");
    assert!(fetched <= 3 * asked, "{fetched} bytes fetched for {asked}");
}
