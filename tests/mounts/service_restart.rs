//! A daemon that is killed under load and started again, as a service manager does it.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use rustix::io::Errno;

use crate::harness::body::{self, Dice, Id};
use crate::harness::node::Site;
use crate::harness::store::Trouble;
use crate::harness::time::thread;
use crate::harness::{
    Cluster, Hand, Io, Must as _, Node, Options, Store, in_both_modes, now, say, sleep_ms,
};

const KILLS: u32 = 6;
const WRITERS: u32 = 3;
const NAMES: u64 = 40;
const LEN_MAX: usize = 100_000;
/// `RestartSec=` of the unit.
const RESTART_MS: u64 = 100;
/// The goal is 2 s; a machine that builds something else meanwhile may take longer to start a process.
const GAP_MS_MAX: u64 = 15_000;

/// A program that goes on whatever the mount says.
struct Writer {
    hand: Hand,
    number: u32,
    dir: PathBuf,
    dice: Dice,
    seq: u64,
    /// Versions of each file that may be there: the last that was acknowledged, and what failed since.
    written: BTreeMap<PathBuf, Vec<Vec<u8>>>,
    outage: Option<Instant>,
    longest: Duration,
}

impl Writer {
    fn new(dir: PathBuf, number: u32) -> Self {
        let mut hand = Hand::new();
        hand.mkdir(&dir).must("make a directory");
        Self {
            hand,
            number,
            dir,
            dice: Dice::new(u64::from(number) + 71),
            seq: 0,
            written: BTreeMap::new(),
            outage: None,
            longest: Duration::ZERO,
        }
    }

    /// Notes how an operation went: until the mount is back, the only errors are those of a dead one.
    fn note(&mut self, done: Result<(), Errno>) -> bool {
        match done {
            Ok(()) => {
                let over = self.outage.take().map(|since| since.elapsed());
                self.longest = self.longest.max(over.unwrap_or_default());
                true
            }
            Err(Errno::NOTCONN | Errno::CONNABORTED) => {
                self.outage.get_or_insert_with(now);
                // A descriptor that the failed operation left open must not join a later one.
                self.hand = Hand::new();
                sleep_ms(1);
                false
            }
            Err(errno) => panic!("writer {}: {errno}", self.number),
        }
    }

    fn step(&mut self) {
        self.seq += 1;
        let path = self.dir.join(format!("f{}", self.dice.below(NAMES)));
        let len = self.dice.len(LEN_MAX);
        let bytes = body::make(Id { writer: self.number, seq: self.seq }, len);
        let done = self.hand.put(&path, &bytes);
        let versions = self.written.entry(path).or_default();
        if done.is_ok() {
            versions.clear();
        }
        // One that failed may have happened as a whole.
        versions.push(bytes);
        self.note(done);
    }

    fn work(&mut self, on: &AtomicBool) {
        while on.load(Ordering::Relaxed) || self.outage.is_some() {
            self.step();
        }
    }
}

fn service_restart_under_load(io: Io) {
    let mut cluster = Cluster::with(Store::dir, &Options::new(io));
    let on = Arc::new(AtomicBool::new(true));
    let working: Vec<_> = (0..WRITERS)
        .map(|number| {
            let mut writer = Writer::new(cluster.a.at(format!("w{number}")), number);
            let on = Arc::clone(&on);
            thread(move || {
                writer.work(&on);
                writer
            })
        })
        .collect();
    for _ in 0..KILLS {
        sleep_ms(500);
        cluster.a.kill_only();
        sleep_ms(RESTART_MS);
        cluster.a.up();
    }
    sleep_ms(200);
    on.store(false, Ordering::Relaxed);
    let writers: Vec<Writer> =
        working.into_iter().map(|work| work.join().must("a writer that ends")).collect();
    let longest = writers.iter().map(|writer| writer.longest).max().unwrap_or_default();
    let count: u64 = writers.iter().map(|writer| writer.seq).sum();
    say(format_args!(
        "service_restart_under_load {io:?}: {KILLS} kills, {count} writes, longest gap {longest:?}"
    ));
    assert!(longest > Duration::ZERO, "nobody noticed that the daemon was gone");
    assert!(longest < Duration::from_millis(GAP_MS_MAX), "programs waited {longest:?}");
    for writer in &writers {
        for (path, versions) in &writer.written {
            let there = std::fs::read(path).must(format_args!("read {}", path.display()));
            assert!(versions.contains(&there), "{} is none of its versions", path.display());
        }
    }
    cluster.settle();
    crate::harness::tree::converge(&cluster.a.mount, &cluster.b.mount, 30_000);
    // Nobody was let into the directory below meanwhile: it would have been written there for nobody.
    cluster.a.stop();
    let below = std::fs::read_dir(&cluster.a.mount).must("list the directory below").count();
    assert_eq!(below, 0, "programs have written into the directory below the mount");
}
in_both_modes!(service_restart_under_load);

/// A store that does not answer makes nobody wait for the restart.
#[test]
fn service_restart_does_not_wait_for_the_store() {
    let site = Site::new();
    let store = Store::s3(&site);
    let mut node = Node::start(&site, "a", Some(&store), Options::new(Io::best()));
    Hand::new().put(&node.at("f"), b"content").must("put");
    node.drain();
    store.trouble(Trouble::Hang);
    node.kill_only();
    let start = now();
    node.up();
    let took = start.elapsed();
    assert_eq!(std::fs::read(node.at("f")).must("read"), b"content");
    say(format_args!("service_restart_does_not_wait_for_the_store: {took:?}"));
    assert!(took < Duration::from_secs(8), "it waited for the store: {took:?}");
    store.heal();
}
