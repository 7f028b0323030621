//! P6 with P2 and P4: the daemon is killed at any moment while units are rewritten.
//!
//! A fresh process finds one version, on the node of the writers and on the other: before the kill,
//! after the restart, and at the end. Acknowledged completions are there.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::io::Errno;

use crate::harness::body::Dice;
use crate::harness::time::thread;
use crate::harness::{Cluster, Io, Must as _, SyscallProcess, eventually, in_both_modes, wanted};

/// The number of kills, unless `HEARTHFS_TEST_KILLS` sets it.
const KILLS: u64 = 12;
const WRITERS: u64 = 3;
/// How long an uploaded change may take to be visible on another node, also on a busy machine.
const SEEN_MS: u64 = 30_000;
/// The files of a unit in the order in which they are written; the last is the entry point and completes it.
const MEMBERS: [&str; 4] = ["k.json", "k.ttir", "k.llir", "__grp__k.json"];

/// A process that rewrites one unit, and the results that it got.
struct Writer {
    dir: PathBuf,
    number: u64,
    version: u64,
    dice: Dice,
    /// The last version whose completion was acknowledged.
    done: Option<u64>,
    /// The version that was being completed when the daemon died.
    unsure: Option<u64>,
}

/// The list of a kernel must be JSON; otherwise it would stay on its node.
fn text(number: u64, version: u64) -> String {
    format!("\"{number}.{version}\"")
}

impl Writer {
    /// Writes a member as Triton does, or in place.
    fn write(&mut self, process: &mut SyscallProcess, name: &str) -> Result<(), Errno> {
        let bytes = text(self.number, self.version);
        if self.dice.below(2) == 0 {
            return process.put(&self.dir.join(name), bytes.as_bytes());
        }
        let temporary = self.dir.join(format!("tmp.pid_{}_{}", process.pid(), self.version));
        process.mkdir(&temporary)?;
        process.put(&temporary.join(name), bytes.as_bytes())?;
        process.rename(&temporary.join(name), &self.dir.join(name))?;
        process.rmdir(&temporary)
    }

    fn step(&mut self, process: &mut SyscallProcess) -> Result<(), Errno> {
        self.version += 1;
        let (entry, others) = MEMBERS.split_last().must("members");
        for name in others {
            self.write(process, name)?;
        }
        self.unsure = Some(self.version);
        self.write(process, entry)?;
        self.done = self.unsure.take();
        Ok(())
    }

    /// Writes until the daemon dies.
    fn work(&mut self) {
        let mut process = SyscallProcess::new();
        loop {
            match self.step(&mut process) {
                Ok(()) => {}
                Err(Errno::NOTCONN | Errno::CONNABORTED) => return,
                Err(errno) => panic!("writer {}: {errno}", self.number),
            }
        }
    }

    /// Checks the unit after a restart.
    fn verify(&mut self, when: &str) {
        let found = found(&self.dir, when).map(|text| {
            let version = text.trim_matches('"').split_once('.').must(&text).1.to_owned();
            version.parse::<u64>().must("a version")
        });
        let (done, unsure) = (self.done, self.unsure.take());
        assert!(
            found == done || found.is_some() && found == unsure,
            "{when}, writer {}: found {found:?}, acknowledged {done:?}, in flight {unsure:?}",
            self.number
        );
        self.done = found;
    }
}

/// Returns what a fresh process finds in all members of a unit; `None` if there is no entry point.
fn found(dir: &Path, when: &str) -> Option<String> {
    let mut process = SyscallProcess::new();
    let mut get = |name: &str| match process.get(&dir.join(name)) {
        Ok(bytes) => Some(String::from_utf8(bytes).must("text")),
        Err(Errno::NOENT) => None,
        Err(errno) => panic!("{when}, {name}: {errno}"),
    };
    let (entry, others) = MEMBERS.split_last().must("members");
    let text = get(entry)?;
    for name in others {
        assert_eq!(get(name).as_ref(), Some(&text), "{when}, {}: {name}", dir.display());
    }
    Some(text)
}

fn p6_units_through_kills_at_any_moment(io: Io) {
    let kills = wanted("HEARTHFS_TEST_KILLS", KILLS);
    let mut cluster = Cluster::two(io);
    let mut dice = Dice::new(17);
    let dir = |node: &crate::harness::Node, number| node.at(format!("triton/K{number}"));
    let mut writers: Vec<Writer> = (0..WRITERS)
        .map(|number| Writer {
            dir: dir(&cluster.a, number),
            number,
            version: 0,
            dice: Dice::new(number),
            done: None,
            unsure: None,
        })
        .collect();
    for writer in &writers {
        std::fs::create_dir_all(&writer.dir).must("mkdir");
    }
    let away: Vec<PathBuf> = (0..WRITERS).map(|number| dir(&cluster.b, number)).collect();
    let (over, seen) = (Arc::new(AtomicBool::new(false)), away.clone());
    let watched = Arc::clone(&over);
    let watcher = thread(move || {
        let mut last = 0;
        while !watched.load(Ordering::Relaxed) {
            last += seen.iter().filter_map(|dir| found(dir, "on the other node")).count();
        }
        last
    });
    for kill in 1..=kills {
        cluster.a.kill_under(&mut writers, 20 + dice.below(200), Writer::work);
        for writer in &mut writers {
            writer.verify(&format!("after kill {kill}"));
        }
    }
    let versions: u64 = writers.iter().map(|writer| writer.version).sum();
    assert!(versions > 2 * kills, "too little was written: {versions}");
    cluster.settle();
    for (writer, away) in writers.iter().zip(&away) {
        let wanted = writer.done.map(|version| text(writer.number, version));
        eventually(SEEN_MS, "the other node has it", || {
            let found = found(away, "on the other node");
            if found == wanted { Ok(()) } else { Err(format!("{found:?}, not {wanted:?}")) }
        });
    }
    over.store(true, Ordering::Relaxed);
    assert!(watcher.join().must("one version at a time") > 0, "the other node has seen no unit");
}
in_both_modes!(p6_units_through_kills_at_any_moment);
