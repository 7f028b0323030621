//! P4 local-durable: what was acknowledged survives SIGKILL of the daemon at any instant.

use std::collections::BTreeSet;
use std::path::PathBuf;

use rustix::fs::OFlags;
use rustix::io::Errno;

use crate::harness::body::{self, Dice, Id};
use crate::harness::syscall_process::{CREATE_NEW, IN_PLACE};
use crate::harness::tree::{self, Thing, Tree};
use crate::harness::{Cluster, Io, Must as _, SyscallProcess, in_both_modes, say, wanted};

/// The number of kills, unless `HEARTHFS_TEST_KILLS` sets it.
const KILLS: u64 = 50;
/// The most kills of one cluster: a test's daemons have a limited lifetime.
const KILLS_OF_ONE_CLUSTER: u64 = 50;
const WORKERS: u32 = 3;
const NAMES: u64 = 12;
const LEN_MAX: usize = 200_000;

/// The effect of an operation on names, if it takes effect.
type Effect = Vec<(PathBuf, Option<Thing>)>;

/// A process that works in a directory of its own, and the expected content.
struct Worker {
    process: SyscallProcess,
    writer: u32,
    seq: u64,
    dice: Dice,
    dir: PathBuf,
    model: Tree,
    unsure: Option<Effect>,
}

fn applied(model: &Tree, effect: &Effect) -> Tree {
    let mut after = model.clone();
    for (name, thing) in effect {
        match thing {
            Some(thing) => drop(after.insert(name.clone(), thing.clone())),
            None => drop(after.remove(name)),
        }
    }
    after
}

impl Worker {
    fn new(dir: PathBuf, writer: u32, seed: u64) -> Self {
        let mut process = SyscallProcess::new();
        process.mkdir(&dir).must("make a worker's directory");
        let dice = Dice::new(u64::from(writer) * 977 + seed);
        Self { process, writer, seq: 0, dice, dir, model: Tree::new(), unsure: None }
    }

    fn name(&mut self, kind: &str) -> PathBuf {
        PathBuf::from(format!("{kind}{}", self.dice.below(NAMES)))
    }

    fn write(&mut self, name: PathBuf, sync: bool) -> (Effect, Result<(), Errno>) {
        self.seq += 1;
        let len = self.dice.len(LEN_MAX);
        let bytes = body::make(Id { writer: self.writer, seq: self.seq }, len);
        let mode = match self.model.get(&name) {
            Some(Thing::File(mode, ..)) => *mode,
            _ => 0o644,
        };
        let thing = Thing::File(mode, len, blake3::hash(&bytes).to_hex().to_string());
        let path = self.dir.join(&name);
        let done = if sync {
            self.process.open(&path, IN_PLACE, 0o644).and_then(|fd| {
                self.process.write(fd, &bytes)?;
                self.process.fsync(fd)?;
                self.process.close(fd)
            })
        } else {
            self.process.put(&path, &bytes)
        };
        (vec![(name, Some(thing))], done)
    }

    fn files(&self) -> Vec<PathBuf> {
        let files = self.model.iter().filter(|(_, thing)| matches!(thing, Thing::File(..)));
        files.map(|(name, _)| name.clone()).collect()
    }

    fn some_file(&mut self) -> Option<PathBuf> {
        let files = self.files();
        let which = self.dice.below(files.len() as u64) as usize;
        files.get(which).cloned()
    }

    fn change_a_file(&mut self, file: &PathBuf, how: u64) -> (Effect, Result<(), Errno>) {
        let path = self.dir.join(file);
        match (how, self.model[file].clone()) {
            (0, _) => (vec![(file.clone(), None)], self.process.unlink(&path)),
            (1, Thing::File(old, len, digest)) => {
                let mode = if old == 0o644 { 0o755 } else { 0o644 };
                let effect = vec![(file.clone(), Some(Thing::File(mode, len, digest)))];
                (effect, self.process.chmod(&path, mode))
            }
            (_, thing) => {
                let to = self.name("f");
                let done = self.process.rename(&path, &self.dir.join(&to));
                let gone = (file.clone(), None);
                let effect = if to == *file { Vec::new() } else { vec![gone, (to, Some(thing))] };
                (effect, done)
            }
        }
    }

    /// Performs one operation of any kind; returns its effect and its result.
    fn step(&mut self) -> (Effect, Result<(), Errno>) {
        let dice = self.dice.below(20);
        if let (0..=5, Some(file)) = (dice, self.some_file()) {
            return self.change_a_file(&file, dice / 2);
        }
        match dice {
            6 | 7 => {
                let name = PathBuf::from(format!("empty{}", self.seq));
                self.seq += 1;
                let digest = blake3::hash(b"").to_hex().to_string();
                let path = self.dir.join(&name);
                let done = self.process.put_with(&path, CREATE_NEW, 1, 0, &[]);
                (vec![(name, Some(Thing::File(0o644, 0, digest)))], done)
            }
            8 => {
                let name = self.name("d");
                let path = self.dir.join(&name);
                if self.model.contains_key(&name) {
                    (vec![(name, None)], self.process.rmdir(&path))
                } else {
                    (vec![(name, Some(Thing::Dir))], self.process.mkdir(&path))
                }
            }
            9 => {
                let name = self.name("s");
                let path = self.dir.join(&name);
                if self.model.contains_key(&name) {
                    return (vec![(name, None)], self.process.unlink(&path));
                }
                let target = format!("target {}", self.seq);
                self.seq += 1;
                let done = self.process.symlink(std::path::Path::new(&target), &path);
                (vec![(name, Some(Thing::Link(target.into_bytes())))], done)
            }
            11 | 12 => {
                let name = self.name("f");
                self.write_twice(&name)
            }
            _ => {
                let name = self.name("f");
                self.write(name, dice == 10)
            }
        }
    }

    /// Publishes by closing a duplicate, overwrites, and publishes again: the first version is as
    /// safe as that of a file which no process has open.
    fn write_twice(&mut self, name: &PathBuf) -> (Effect, Result<(), Errno>) {
        let len = self.dice.len(LEN_MAX);
        let mode = match self.model.get(name) {
            Some(Thing::File(mode, ..)) => *mode,
            _ => 0o644,
        };
        let version = |seq: u64| {
            let bytes = body::make(Id { writer: self.writer, seq }, len);
            let thing = Thing::File(mode, len, blake3::hash(&bytes).to_hex().to_string());
            (bytes, vec![(name.clone(), Some(thing))])
        };
        let (first, second) = (version(self.seq + 1), version(self.seq + 2));
        self.seq += 2;
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::TRUNC;
        let opened = self.process.open(&self.dir.join(name), flags, 0o644);
        let published = opened.and_then(|fd| {
            self.process.write(fd, &first.0)?;
            let copy = self.process.dup(fd)?;
            self.process.close(copy).map(|()| fd)
        });
        let fd = match published {
            Ok(fd) => fd,
            Err(errno) => return (first.1, Err(errno)),
        };
        self.model = applied(&self.model, &first.1);
        let done = self.process.pwrite(fd, 0, &second.0).and_then(|_| self.process.close(fd));
        (second.1, done)
    }

    /// Reports whether an operation failed because the daemon was killed. The kernel answers EIO for a request that it
    /// was copying to or from the daemon at that instant (`fuse_dev_do_read`, `fuse_dev_do_write`).
    fn is_cut_off(&self, errno: Errno) -> bool {
        let is_dead = |errno| matches!(errno, Errno::NOTCONN | Errno::CONNABORTED);
        is_dead(errno) || errno == Errno::IO && rustix::fs::statvfs(&self.dir).is_err_and(is_dead)
    }

    /// Works until the daemon dies.
    fn work(&mut self) {
        loop {
            let (effect, done) = self.step();
            match done {
                Ok(()) => self.model = applied(&self.model, &effect),
                Err(errno) if self.is_cut_off(errno) => {
                    self.unsure = Some(effect);
                    // A descriptor that the failed operation left open must not join a later one.
                    self.process = SyscallProcess::new();
                    return;
                }
                Err(errno) => panic!("worker {}: {effect:?}: {errno}", self.writer),
            }
        }
    }

    /// A name that can be opened can be stat'ed and is listed, and vice versa; one that cannot can be created.
    fn verify_names(&mut self, round: u64) {
        let listed = tree::texts(&self.dir);
        let pool = (0..NAMES).flat_map(|k| ["f", "d", "s"].map(|kind| format!("{kind}{k}")));
        for name in pool.chain(listed.iter().cloned()).collect::<BTreeSet<_>>() {
            let path = self.dir.join(&name);
            let stat = self.process.lstat(&path).map(drop);
            let is_link = name.starts_with('s');
            let opened = if is_link {
                self.process.readlink(&path).map(drop)
            } else {
                let opened = self.process.open(&path, OFlags::RDONLY, 0);
                opened.and_then(|fd| self.process.close(fd))
            };
            let is_there = listed.contains(&name);
            let expected = if is_there { Ok(()) } else { Err(Errno::NOENT) };
            assert!(
                stat == expected && opened == expected,
                "after kill {round}, worker {}: {name}: listed {is_there}, stat {stat:?}, open {opened:?}",
                self.writer
            );
            if !is_there && self.dice.below(4) == 0 {
                let made = self.process.put_with(&path, CREATE_NEW, 1, 0, &[]);
                made.and_then(|()| self.process.unlink(&path)).must(format_args!("create {name}"));
            }
        }
    }

    /// Compares what is there with what must be there; the interrupted operation may have taken
    /// effect as a whole or not at all.
    fn verify(&mut self, round: u64) {
        self.verify_names(round);
        let there = tree::read(&self.dir).must("read a worker's directory");
        let without = tree::difference(&self.model, &there);
        let effect = self.unsure.take().unwrap_or_default();
        let with = tree::difference(&applied(&self.model, &effect), &there);
        assert!(
            without.is_empty() || with.is_empty(),
            "after kill {round}, worker {}: acknowledged / there\n{without}\n-- or, with {effect:?}\n{with}",
            self.writer
        );
        self.model = there;
    }
}

fn p4_local_durable_through_fifty_kills(io: Io) {
    let mut left = wanted("HEARTHFS_TEST_KILLS", KILLS);
    let mut seed = 0;
    while left > 0 {
        let rounds = left.min(KILLS_OF_ONE_CLUSTER);
        let acknowledged = kills_from(&mut Cluster::two(io), rounds, seed);
        (left, seed) = (left - rounds, seed + 1);
        if seed > 1 || left > 0 {
            say(format_args!("{}: {rounds} kills, {acknowledged} files", io.word()));
        }
    }
}
in_both_modes!(p4_local_durable_through_fifty_kills);

/// Kills a node repeatedly while processes work on it; everything acknowledged is there, on both nodes.
pub(crate) fn kills(cluster: &mut Cluster, rounds: u64) {
    kills_from(cluster, rounds, 0);
}

/// The same with choices derived from a seed; returns how many files were written.
fn kills_from(cluster: &mut Cluster, rounds: u64, seed: u64) -> u64 {
    let dir = |writer: u32| cluster.a.at(format!("w{writer}"));
    let mut workers: Vec<Worker> = (0..WORKERS).map(|n| Worker::new(dir(n), n, seed)).collect();
    let mut dice = Dice::new(4 + seed);
    let mut acknowledged = 0;
    for round in 0..rounds {
        cluster.a.kill_under(&mut workers, 20 + dice.below(250), Worker::work);
        for worker in &mut workers {
            worker.verify(round);
        }
        acknowledged = workers.iter().map(|worker| worker.seq).sum();
    }
    assert!(acknowledged > 10 * rounds, "too little was written: {acknowledged}");
    cluster.settle();
    let there = tree::converge(&cluster.a.mount, &cluster.b.mount, 30_000);
    for worker in &workers {
        let name = format!("w{}", worker.writer);
        let own: Tree = there
            .iter()
            .filter_map(|(path, thing)| {
                let below = path.strip_prefix(&name).ok()?;
                (below.as_os_str() != "").then(|| (below.to_owned(), thing.clone()))
            })
            .collect();
        assert_eq!(tree::difference(&worker.model, &own), "", "worker {name} on both nodes");
    }
    acknowledged
}

fn p4_local_durable_at_the_close(io: Io) {
    at_the_close(&mut Cluster::two(io));
}
in_both_modes!(p4_local_durable_at_the_close);

/// Kills right after `close()` has returned.
pub(crate) fn at_the_close(cluster: &mut Cluster) {
    let mut process = SyscallProcess::new();
    for round in 0..8 {
        let bytes = body::make(Id { writer: 1, seq: round }, 500 + 400_000 * (round % 2) as usize);
        process.put(&cluster.a.at(format!("f{round}")), &bytes).must("put");
        process.put(&cluster.a.at("same"), &bytes).must("overwrite");
        process.put(&cluster.a.at(format!("e{round}")), b"").must("create an empty one");
        cluster.a.kill_only();
        cluster.a.up();
        for name in [format!("f{round}"), "same".to_owned()] {
            let read = std::fs::read(cluster.a.at(&name)).must(format_args!("read {name}"));
            assert!(read == bytes, "{name} after kill {round}");
        }
        assert_eq!(std::fs::read(cluster.a.at(format!("e{round}"))).must("read"), b"");
    }
    cluster.settle();
    tree::converge(&cluster.a.mount, &cluster.b.mount, 10_000);
}

fn p4_local_durable_means_nothing_half(io: Io) {
    nothing_half(&mut Cluster::two(io));
}
in_both_modes!(p4_local_durable_means_nothing_half);

/// A kill in the middle of a write leaves the old version, and no trace of the new one.
pub(crate) fn nothing_half(cluster: &mut Cluster) {
    let old = body::make(Id { writer: 1, seq: 0 }, 100_000);
    SyscallProcess::new().put(&cluster.a.at("f"), &old).must("put");
    let mut writing = SyscallProcess::new();
    let fd = writing.open(&cluster.a.at("f"), IN_PLACE, 0o644).must("open");
    writing.write(fd, &vec![1; 60_000]).must("write");
    let fresh = writing.open(&cluster.a.at("g"), IN_PLACE, 0o644).must("open");
    writing.write(fresh, &vec![2; 60_000]).must("write");
    cluster.a.kill_only();
    assert!(writing.close(fd).is_err(), "a close after the daemon's death succeeds");
    cluster.a.up();
    assert!(std::fs::read(cluster.a.at("f")).must("read") == old, "the old version");
    assert_eq!(tree::texts(&cluster.a.mount), ["f"]);
    // Empty files that are kept ready for the next writers are no leftovers.
    let mut staged = tree::files_below(&cluster.a.cache.join("v1/staging"));
    staged.retain(|file| std::fs::metadata(file).is_ok_and(|meta| meta.len() > 0));
    assert!(staged.is_empty(), "staging was not cleared: {staged:?}");
    cluster.settle();
    let there = tree::converge(&cluster.a.mount, &cluster.b.mount, 10_000);
    assert_eq!(there.len(), 1, "{there:?}");
}
