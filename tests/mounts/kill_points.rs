//! Kills of the daemon between a close and the end of the last descriptor.
//!
//! A program that closes a duplicate has published, and continues to write through the descriptor
//! that it kept. After the restart every acknowledged close is there and nothing unclosed is. A
//! name can be opened exactly when it can be stat'ed.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;

use rustix::fs::OFlags;
use rustix::io::Errno;
use rustix::process::{Signal, kill_process};

use crate::harness::body::{self, Dice, Id};
use crate::harness::command::run;
use crate::harness::syscall_process::{CREATE_NEW, IN_PLACE};
use crate::harness::time::thread;
use crate::harness::{
    Cluster, Io, Must as _, Node, SyscallProcess, eventually, in_both_modes, now, skipped,
    sleep_ms, tree, wanted,
};

/// The number of kills, unless `HEARTHFS_TEST_KILLS` sets it.
const ROUNDS: u64 = 14;
/// The most kills of one pair of nodes: a test's daemon has a limited lifetime.
const ROUNDS_OF_ONE_CLUSTER: u64 = 100;
const WRITERS: u32 = 3;
const NAMES: u64 = 6;
const LEN_MAX: usize = 60_000;
/// The files that a node fetches when it is killed, their sizes, and how many processes read them.
const FETCHED_FILES: u64 = 120;
const FETCHED_LEN_MIN: usize = 9_000;
const FETCHED_LEN_MORE: usize = 60_000;
const READERS: usize = 4;
/// The longest time after which it is killed: about as long as it takes to fetch all.
const KILLED_AFTER_MS: u64 = 40;

const UPDATE: OFlags = OFlags::RDWR.union(OFlags::CREATE).union(OFlags::TRUNC);

/// How a writer keeps the file open after the close that publishes it.
#[derive(Debug, Clone, Copy)]
enum Kept {
    /// Not at all: a plain close.
    Nothing,
    /// Through the descriptor that was duplicated, with which it overwrites.
    Descriptor,
    /// The same, and it truncates the file.
    Cut,
    /// Through a shared mapping, into which it stores.
    Mapping,
}

/// A process that publishes names of its own, and the results that it got.
struct Writer {
    process: SyscallProcess,
    number: u32,
    seq: u64,
    dice: Dice,
    dir: PathBuf,
    /// The last acknowledged close of each name.
    closed: BTreeMap<String, u64>,
    /// The close in progress when the daemon died; it may have taken effect or not.
    unsure: Option<(String, u64)>,
}

impl Writer {
    fn new(dir: PathBuf, number: u32) -> Self {
        let mut process = SyscallProcess::new();
        process.mkdir(&dir).must("make a writer's directory");
        let dice = Dice::new(u64::from(number) + 41);
        Self { process, number, seq: 0, dice, dir, closed: BTreeMap::new(), unsure: None }
    }

    fn bytes(&self, seq: u64) -> Vec<u8> {
        let mut dice = Dice::new(seq * 31 + u64::from(self.number));
        body::make(Id { writer: self.number, seq }, dice.len(LEN_MAX))
    }

    /// Publishes one version; an error means that the daemon died.
    fn step(&mut self) -> Result<(), Errno> {
        self.seq += 1;
        let (seq, bytes) = (self.seq, self.bytes(self.seq));
        let name = format!("f{}", self.dice.below(NAMES));
        let path = self.dir.join(&name);
        let kept = match self.dice.below(5) {
            0 => Kept::Nothing,
            1 => Kept::Cut,
            2 => Kept::Mapping,
            _ => Kept::Descriptor,
        };
        let fd = self.process.open(&path, UPDATE, 0o644)?;
        self.process.write(fd, &bytes)?;
        let mapped = matches!(kept, Kept::Mapping);
        let map = if mapped { Some(self.process.map(fd, bytes.len(), true, true)?) } else { None };
        self.unsure = Some((name.clone(), seq));
        match kept {
            Kept::Nothing => self.process.close(fd)?,
            _ => {
                let second = self.process.dup(fd)?;
                self.process.close(second)?;
            }
        }
        self.unsure = None;
        self.closed.insert(name.clone(), seq);
        match (kept, map) {
            (Kept::Nothing, _) => return Ok(()),
            (Kept::Mapping, Some(map)) => {
                // The first store fetches the page from the daemon.
                self.process.map_write_or_die(map, 0, b"not closed")?;
                self.process.msync(map)?;
                self.process.unmap(map)?;
            }
            (Kept::Cut, _) => self.process.ftruncate(fd, 7)?,
            _ => {
                self.process.pwrite(fd, 0, &vec![0xee; bytes.len() + 100])?;
            }
        }
        // Writes the whole version again, so that closing the kept descriptor publishes a known version.
        self.seq += 1;
        let (seq, bytes) = (self.seq, self.bytes(self.seq));
        self.process.ftruncate(fd, 0)?;
        self.process.pwrite(fd, 0, &bytes)?;
        self.unsure = Some((name.clone(), seq));
        self.process.close(fd)?;
        self.unsure = None;
        self.closed.insert(name, seq);
        Ok(())
    }

    fn is_dead(&self, errno: Errno) -> bool {
        let is_dead = |errno| matches!(errno, Errno::NOTCONN | Errno::CONNABORTED);
        is_dead(errno) || errno == Errno::IO && rustix::fs::statvfs(&self.dir).is_err_and(is_dead)
    }

    /// Publishes until the daemon dies.
    fn work(&mut self) {
        loop {
            match self.step() {
                Ok(()) => {}
                Err(errno) if self.is_dead(errno) => {
                    self.process = SyscallProcess::new();
                    return;
                }
                Err(errno) => panic!("writer {}: {errno} ({:?})", self.number, self.unsure),
            }
        }
    }

    /// Checks every name in every way after a restart.
    fn verify(&mut self, when: &str) {
        let mut process = SyscallProcess::new();
        let listed = process.list(&self.dir).must("list");
        let unsure = self.unsure.take();
        for k in 0..NAMES {
            let name = format!("f{k}");
            let path = self.dir.join(&name);
            let found = agree(&mut process, &path, listed.contains(&name), when);
            let last = self.closed.get(&name).copied();
            let maybe = unsure.as_ref().filter(|(of, _)| *of == name).map(|(_, seq)| *seq);
            assert!(
                found == last || found.is_some() && found == maybe,
                "{when}, {name} of writer {}: found {found:?}, acknowledged {last:?}, in flight {maybe:?}",
                self.number
            );
            if let Some(seq) = found {
                self.closed.insert(name, seq);
            }
        }
    }
}

/// Checks that stat, open, O_EXCL and listing agree, and returns the number of the present version.
#[track_caller]
fn agree(process: &mut SyscallProcess, path: &Path, is_listed: bool, when: &str) -> Option<u64> {
    let stat = process.stat(path);
    let read = process.get(path);
    let name = path.display();
    assert_eq!(stat.is_ok(), read.is_ok(), "{when}, {name}: stat {stat:?}, open {:?}", read.err());
    assert_eq!(stat.is_ok(), is_listed, "{when}, {name}: stat {stat:?}, listed {is_listed}");
    let (Ok(stat), Ok(read)) = (stat, read) else {
        return None;
    };
    assert_eq!(stat.size, read.len() as u64, "{when}, {name}");
    assert_eq!(process.open(path, CREATE_NEW, 0o644), Err(Errno::EXIST), "{when}, {name}");
    let id = body::check(&read).unwrap_or_else(|fault| panic!("{when}, {name}: {fault}"));
    Some(id.seq)
}

/// Kills repeatedly, at any instant, under writers that keep open what they have closed.
fn kill_points_of_writers_that_keep_a_descriptor(io: Io) {
    let rounds = wanted("HEARTHFS_TEST_KILLS", ROUNDS);
    let mut dice = Dice::new(9);
    let mut acknowledged = 0;
    let mut done = 0;
    while done < rounds {
        let mut cluster = Cluster::two(io);
        let dir = |number: u32| cluster.a.at(format!("w{number}"));
        let mut writers: Vec<Writer> = (0..WRITERS).map(|n| Writer::new(dir(n), n)).collect();
        for _ in 0..rounds.min(ROUNDS_OF_ONE_CLUSTER) {
            done += 1;
            cluster.a.kill_under(&mut writers, 20 + dice.below(200), Writer::work);
            for writer in &mut writers {
                writer.verify(&format!("after kill {done}"));
            }
        }
        acknowledged += writers.iter().map(|writer| writer.seq).sum::<u64>();
        converge(&cluster, &mut writers);
    }
    assert!(acknowledged > 10 * rounds, "too little was written: {acknowledged}");
}
in_both_modes!(kill_points_of_writers_that_keep_a_descriptor);

fn converge(cluster: &Cluster, writers: &mut [Writer]) {
    cluster.settle();
    tree::converge(&cluster.a.mount, &cluster.b.mount, 30_000);
    for writer in writers {
        writer.verify("at last");
        writer.dir = cluster.b.at(format!("w{}", writer.number));
        writer.verify("at last, on the other node");
    }
}

/// Kills exactly between FLUSH and RELEASE, while a duplicate, a mapping, or a child keeps the file
/// open, with and without later changes of the bytes.
fn kill_points_between_flush_and_release(io: Io) {
    let mut cluster = Cluster::two(io);
    let first = |k: usize| body::make(Id { writer: 1, seq: k as u64 }, 20_000 + 3 * k);
    let mut names = Vec::new();
    for round in 0..3 {
        let mut processes = Vec::new();
        for (k, what) in
            ["untouched", "overwritten", "cut", "mapped", "old"].into_iter().enumerate()
        {
            let name = format!("{what}{round}");
            let (path, mut process) = (cluster.a.at(&name), SyscallProcess::new());
            if what == "old" {
                SyscallProcess::new().put(&path, b"an older version").must("put");
            }
            let bytes = first(k);
            let fd = process.open(&path, UPDATE, 0o644).must("open");
            process.write(fd, &bytes).must("write");
            let map = process.map(fd, bytes.len(), true, true).must("map");
            let second = process.dup(fd).must("dup");
            process.close(second).must("the close that is acknowledged");
            match what {
                "overwritten" | "old" => {
                    process.pwrite(fd, 100, b"not closed").must("overwrite");
                }
                "cut" => process.ftruncate(fd, 5).must("cut"),
                "mapped" => {
                    process.map_write(map, 0, b"not closed");
                    process.msync(map).must("msync");
                }
                _ => {}
            }
            names.push((name, bytes));
            processes.push(process);
        }
        // In every second round a reader finds the version in between.
        if round == 1 {
            for (name, bytes) in &names {
                assert!(
                    SyscallProcess::new().get(&cluster.a.at(name)).must("read") == *bytes,
                    "{name}"
                );
            }
        }
        cluster.a.kill_only();
        drop(processes);
        cluster.a.up();
        for (name, bytes) in &names {
            let path = cluster.a.at(name);
            let mut process = SyscallProcess::new();
            let read = process.get(&path).must(format_args!("{name} after kill {round}"));
            assert!(read == *bytes, "{name} after kill {round}: {:?}", body::check(&read));
            assert_eq!(process.stat(&path).must("stat").size, bytes.len() as u64, "{name}");
            assert_eq!(process.open(&path, CREATE_NEW, 0o644), Err(Errno::EXIST), "{name}");
        }
    }
    cluster.settle();
    for (name, bytes) in &names {
        eventually(10_000, format_args!("{name} on the other node"), || {
            let read = std::fs::read(cluster.b.at(name)).map_err(|error| error.to_string())?;
            if read == *bytes { Ok(()) } else { Err("other bytes".to_owned()) }
        });
    }
    // A file adopted at the start is an entry like any other.
    for (name, _) in &names {
        SyscallProcess::new()
            .put_with(&cluster.a.at(name), IN_PLACE, 4096, 0, b"again")
            .must("write again");
        assert_eq!(std::fs::read(cluster.a.at(name)).must("read"), b"again");
    }
}
in_both_modes!(kill_points_between_flush_and_release);

/// A process that reads files which another node has made.
struct FetchReader {
    process: SyscallProcess,
    /// What to read, in this order.
    files: Arc<Vec<(PathBuf, Vec<u8>)>>,
    next: usize,
}

impl FetchReader {
    /// Reads until the daemon dies or all is read. What it gets is whole.
    fn work(&mut self) {
        while let Some((path, bytes)) = self.files.get(self.next) {
            let Ok(read) = self.process.get(path) else { return };
            assert!(read == *bytes, "{}: {:?}", path.display(), body::check(&read));
            self.next += READERS;
        }
    }
}

/// Kills a node while it stores what it fetches. That leaves no unfinished file, and what is lacking is
/// fetched again.
fn kill_points_of_a_node_that_fetches(io: Io) {
    let rounds = wanted("HEARTHFS_TEST_KILLS", ROUNDS);
    let mut dice = Dice::new(23);
    let mut done = 0;
    while done < rounds {
        let mut cluster = Cluster::two(io);
        for _ in 0..(rounds - done).min(ROUNDS_OF_ONE_CLUSTER) {
            done += 1;
            kill_while_it_fetches(&mut cluster, done, &mut dice);
        }
        assert!(
            !cluster.b.log().contains("a local blob was damaged"),
            "an unfinished file was left"
        );
    }
}
in_both_modes!(kill_points_of_a_node_that_fetches);

fn kill_while_it_fetches(cluster: &mut Cluster, round: u64, dice: &mut Dice) {
    std::fs::create_dir(cluster.a.at(format!("r{round}"))).must("mkdir");
    let files = (0..FETCHED_FILES).map(|n| {
        let name = format!("r{round}/{n:03}");
        let seq = round * FETCHED_FILES + n;
        let bytes = body::make(Id { writer: 9, seq }, FETCHED_LEN_MIN + dice.len(FETCHED_LEN_MORE));
        std::fs::write(cluster.a.at(&name), &bytes).must("write");
        (cluster.b.at(&name), bytes)
    });
    let files: Arc<Vec<_>> = Arc::new(files.collect());
    cluster.a.drain();
    eventually(10_000, "the other node knows all names", || {
        let mut lacking = files.iter().filter(|(path, _)| std::fs::metadata(path).is_err());
        lacking.next().map_or(Ok(()), |(path, _)| Err(path.display().to_string()))
    });
    let reader =
        |next| FetchReader { process: SyscallProcess::new(), files: Arc::clone(&files), next };
    let mut readers: Vec<_> = (0..READERS).map(reader).collect();
    cluster.b.kill_under(&mut readers, 1 + dice.below(KILLED_AFTER_MS), FetchReader::work);
    let mut process = SyscallProcess::new();
    for (path, bytes) in files.iter() {
        let what = format_args!("{} after kill {round}", path.display());
        let read = process.get(path).must(what);
        assert!(read == *bytes, "{what}: {:?}", body::check(&read));
    }
}

/// Reports whether the kernel can expire all names at once.
fn has_epochs() -> bool {
    let release = rustix::system::uname().release().to_string_lossy().into_owned();
    let mut numbers = release.split(|c: char| !c.is_ascii_digit()).map_while(|n| n.parse().ok());
    let version: (u32, u32) = (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0));
    version >= (6, 16)
}

/// The daemon is killed while a program waits for it in a directory, and a change of another node
/// has just arrived there. To expire one name the kernel locks the directory, and a thread that
/// waits for that lock does not end with its process.
#[test]
fn kill_points_while_the_kernel_forgets_names() {
    const RESCUE_MS: u64 = 5_000;
    if !has_epochs() {
        let name = "kill_points_while_the_kernel_forgets_names";
        skipped(name, "a kernel before 6.16 takes names back one by one");
        return;
    }
    let mut cluster = Cluster::two(Io::best());
    let (mut process, mut maker) = (SyscallProcess::new(), SyscallProcess::new());
    process.mkdir(&cluster.a.at("d")).must("mkdir");
    process.put(&cluster.a.at("d/old"), b"first").must("put");
    cluster.a.drain();
    let (old, new) = (cluster.b.at("d/old"), cluster.b.at("d/new"));
    eventually(10_000, "it arrives", || {
        process.get(&old).map(drop).map_err(|errno| errno.to_string())
    });
    let entries = |node: &Node| node.status()["entries"].as_u64().must("a number");
    let known = entries(&cluster.b);
    let frozen = cluster.b.freeze_requests();
    let making = thread(move || maker.put(&new, b"never"));
    process.put(&cluster.a.at("d/old"), b"second").must("put");
    process.put(&cluster.a.at("d/more"), b"more").must("put");
    cluster.a.drain();
    eventually(10_000, "the change arrives", || {
        let now = entries(&cluster.b);
        if now > known { Ok(()) } else { Err(format!("{now} entries")) }
    });
    // So that a fault of this kind ends the test, not the machine.
    let mount = cluster.b.mount.clone();
    let rescue = thread(move || {
        sleep_ms(RESCUE_MS);
        drop(run(Command::new("umount").arg("-f").arg(&mount), 10_000));
    });
    let start = now();
    kill_process(cluster.b.pid(), Signal::KILL).must("kill the daemon");
    // A stopped thread must be released before it can end.
    drop(frozen);
    cluster.b.kill_only();
    let took = start.elapsed();
    rescue.join().must("the rescue");
    assert!(making.join().must("the maker").is_err(), "a file was made without a daemon");
    assert!(took.as_millis() < u128::from(RESCUE_MS) / 2, "the daemon took {took:?} to end");
}
