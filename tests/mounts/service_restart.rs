//! A daemon that is killed under load and restarted, as a service manager does it.

use std::collections::BTreeMap;
use std::io::ErrorKind;
use std::path::PathBuf;
use std::process::Child;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use rustix::io::Errno;

use crate::harness::body::{self, Dice, Id};
use crate::harness::node::{Site, is_mounted, mounts_below};
use crate::harness::store::Trouble;
use crate::harness::time::thread;
use crate::harness::{
    Cluster, Io, Must as _, Node, Options, Store, SyscallProcess, in_both_modes, now, say, sleep_ms,
};

const KILLS: u32 = 6;
const WRITERS: u32 = 3;
const NAMES: u64 = 40;
const LEN_MAX: usize = 100_000;
/// `RestartSec=` of the unit.
const RESTART_MS: u64 = 100;
/// The goal is 2 s; a machine that builds something else meanwhile may take longer to start a process.
const GAP_MS_MAX: u64 = 15_000;
const RIVALS_LIMIT: Duration = Duration::from_secs(20);

/// A program that continues whatever the mount returns.
struct Writer {
    process: SyscallProcess,
    number: u32,
    dir: PathBuf,
    dice: Dice,
    seq: u64,
    /// The acceptable versions of each file: the last acknowledged one, and failed ones since. No file
    /// (`None`) is acceptable until one is acknowledged.
    written: BTreeMap<PathBuf, Vec<Option<Vec<u8>>>>,
    outage: Option<Instant>,
    longest: Duration,
}

impl Writer {
    fn new(dir: PathBuf, number: u32) -> Self {
        let mut process = SyscallProcess::new();
        process.mkdir(&dir).must("make a directory");
        Self {
            process,
            number,
            dir,
            dice: Dice::new(u64::from(number) + 71),
            seq: 0,
            written: BTreeMap::new(),
            outage: None,
            longest: Duration::ZERO,
        }
    }

    /// Records the result of an operation: until the mount is back, the only errors are those of a dead mount.
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
                self.process = SyscallProcess::new();
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
        let done = self.process.put(&path, &bytes);
        let versions = self.written.entry(path).or_insert_with(|| vec![None]);
        if done.is_ok() {
            versions.clear();
        }
        // A failed write may have taken effect as a whole.
        versions.push(Some(bytes));
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
    assert!(longest > Duration::ZERO, "no program noticed that the daemon was gone");
    assert!(longest < Duration::from_millis(GAP_MS_MAX), "programs waited {longest:?}");
    for writer in &writers {
        for (path, versions) in &writer.written {
            let there = match std::fs::read(path) {
                Err(error) if error.kind() == ErrorKind::NotFound => None,
                read => Some(read.must(format_args!("read {}", path.display()))),
            };
            assert!(versions.contains(&there), "{} is none of its versions", path.display());
        }
    }
    cluster.settle();
    crate::harness::tree::converge(&cluster.a.mount, &cluster.b.mount, 30_000);
    // Meanwhile no writer got into the directory below, where its entry would have been lost.
    cluster.a.stop();
    let below = std::fs::read_dir(&cluster.a.mount).must("list the directory below").count();
    assert_eq!(below, 0, "programs have written into the directory below the mount");
}
in_both_modes!(service_restart_under_load);

/// No program waits for the restart because a store does not answer.
#[test]
fn service_restart_does_not_wait_for_the_store() {
    let site = Site::new();
    let store = Store::s3(&site);
    let mut node = Node::start(&site, "a", Some(&store), Options::new(Io::best()));
    SyscallProcess::new().put(&node.at("f"), b"content").must("put");
    node.drain();
    store.trouble(Trouble::Hang);
    node.kill_only();
    let start = now();
    node.up();
    let took = start.elapsed();
    assert_eq!(std::fs::read(node.at("f")).must("read"), b"content");
    say(format_args!("service_restart_does_not_wait_for_the_store: {took:?}"));
    assert!(took < Duration::from_secs(8), "the restart waits for the store: {took:?}");
    store.heal();
}

/// Two independent daemons start at the place of a dead mount: one serves, the other names the one
/// that does, and nothing is left of either at the end.
#[test]
fn service_restart_of_two_at_one_place() {
    let site = Site::new();
    let mut node = Node::start(&site, "a", None, Options::new(Io::best()));
    for round in 0..4 {
        node.kill_only();
        let start = |which: &str| {
            let mut command = site.hearthfs();
            command.env("HEARTHFS_RUNTIME_DIR", site.path().join(format!("run-{which}")));
            command.arg("mount").arg(&node.mount);
            command.arg("--cache-dir").arg(site.path().join(format!("cache-{which}")));
            let out = std::fs::File::create(site.path().join(format!("{which}.out")));
            command.stderr(out.must("make a log")).spawn().must("start a daemon")
        };
        let mut rivals = [("x", start("x")), ("y", start("y"))];
        let begun = now();
        let loser = loop {
            let over = |(_, child): &mut (_, Child)| child.try_wait().is_ok_and(|s| s.is_some());
            if let Some(loser) = rivals.iter_mut().position(over) {
                break loser;
            }
            assert!(begun.elapsed() < RIVALS_LIMIT, "round {round}: no daemon gives up");
            sleep_ms(5);
        };
        let (name, child) = &mut rivals[loser];
        assert_ne!(child.wait().must("its status").code(), Some(0), "round {round}");
        let said = std::fs::read_to_string(site.path().join(format!("{name}.out")));
        let said = said.must("read the output");
        let named = said.contains("another hearthfs daemon of user")
            || said.contains("the control socket of its daemon is not where it should be");
        assert!(named, "round {round}: {said}");
        let winner = &mut rivals[1 - loser].1;
        while !(is_mounted(&node.mount) && rustix::fs::statvfs(&node.mount).is_ok()) {
            assert!(begun.elapsed() < RIVALS_LIMIT, "round {round}: the other does not serve");
            sleep_ms(5);
        }
        SyscallProcess::new().put(&node.at("f"), b"served").must("put");
        assert_eq!(mounts_below(&node.mount).len(), 1, "round {round}");
        let winner_id = rustix::process::Pid::from_child(winner);
        rustix::process::kill_process(winner_id, rustix::process::Signal::TERM).must("end it");
        assert!(winner.wait().must("the end of the winner").success());
        assert!(!is_mounted(&node.mount), "round {round}");
        node.up();
    }
    node.stop();
}
