//! Many bytes for a fresh node, compared with a plain program that fetches the same objects.
//!
//! Owns the sets, and the order of the two. What a node reads is compared with what was written.

use std::fs::File;
use std::io::Read as _;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use serde_json::json;

use crate::bodies::{Bodies, KIND_BIT};
use crate::clock::{now, sleep_ms, timed};
use crate::node::Node;
use crate::options::Counts;
use crate::reference;
use crate::report::{Report, Table};
use crate::stores::S3Server;

/// The time of each request to the store.
const LATENCY: Duration = Duration::from_millis(20);
/// How long a node may take to learn of all entries.
const KNOWN_MAX: Duration = Duration::from_secs(30);

/// Files in one directory.
const FILES_IN_DIR: usize = 100;

fn name(n: usize) -> String {
    format!("set/{:03}/entry-{n:06}", n / FILES_IN_DIR)
}

/// A set of files, and how it is read.
struct Set {
    name: &'static str,
    size: usize,
    files: usize,
    readers: usize,
    /// The lowest acceptable share of the reference's speed.
    goal: f64,
}

/// One round of a set.
struct Round {
    reference: Duration,
    read: Duration,
    /// From the start of the daemon to the last byte.
    whole: Duration,
    gets: u64,
}

/// Measures, and adds to the report.
pub(crate) fn run(
    base: &Path,
    counts: &Counts,
    bodies: &Bodies,
    report: &mut Report,
) -> Result<()> {
    let sets = [
        Set { name: "256 KiB", size: 256 << 10, files: counts.bulk[0], readers: 1, goal: 0.9 },
        Set { name: "8 KiB", size: 8 << 10, files: counts.bulk[1], readers: 16, goal: 0.5 },
    ];
    let head = ["files", "bytes", "readers", "reference", "fresh node", "from the mount", "GETs"];
    let head = head.into_iter().chain(["speed, of the reference", "goal"]);
    let title = format!("Bulk: a store with {} ms per request", LATENCY.as_millis());
    let mut table = Table::new(&title, head.map(ToOwned::to_owned).collect());
    for set in &sets {
        let bulk = Bulk::publish(base, set, bodies)?;
        let mut rounds = Vec::new();
        for round in 0..counts.bulk_rounds {
            rounds.push(bulk.round(round)?);
        }
        row(&mut table, report, set, &mut rounds);
    }
    report.table(&table);
    Ok(())
}

/// Adds the round with the median ratio.
fn row(table: &mut Table, report: &mut Report, set: &Set, rounds: &mut [Round]) {
    let speed = |round: &Round| round.reference.as_secs_f64() / round.read.as_secs_f64().max(1e-9);
    rounds.sort_by(|a, b| speed(a).total_cmp(&speed(b)));
    let all: Vec<String> = rounds.iter().map(|round| format!("{:.2}", speed(round))).collect();
    let Some(median) = rounds.get(rounds.len() / 2) else { return };
    let ratio = speed(median);
    let mark = if ratio < set.goal { "**" } else { "" };
    let bytes = set.size * set.files;
    crate::say(format_args!(
        "bulk: {} x {}: {} of the reference",
        set.files,
        set.name,
        all.join(", ")
    ));
    table.row(vec![
        format!("{} of {}", set.files, set.name),
        format!("{} MiB", bytes >> 20),
        set.readers.to_string(),
        format!("{:.2} s", median.reference.as_secs_f64()),
        format!("{:.2} s", median.read.as_secs_f64()),
        format!("{:.2} s", median.whole.as_secs_f64()),
        median.gets.to_string(),
        format!("{mark}{ratio:.2}{mark} ({})", all.join(", ")),
        format!("{}", set.goal),
    ]);
    report.row(json!({
        "part": "bulk", "size": set.size, "files": set.files, "readers": set.readers,
        "reference_s": median.reference.as_secs_f64(), "read_s": median.read.as_secs_f64(),
        "whole_s": median.whole.as_secs_f64(), "gets": median.gets, "speed": ratio, "goal": set.goal,
    }));
}

/// One set in a store of its own.
struct Bulk<'a> {
    base: PathBuf,
    set: &'a Set,
    bodies: &'a Bodies,
    server: S3Server,
}

impl<'a> Bulk<'a> {
    /// Puts a set into a store, through a node.
    fn publish(base: &Path, set: &'a Set, bodies: &'a Bodies) -> Result<Self> {
        let base = base.join(set.size.to_string());
        std::fs::create_dir_all(&base)?;
        let server = S3Server::start_in_memory();
        let bulk = Self { base, set, bodies, server };
        let mut writer = bulk.node("writer")?;
        let mount = writer.mount();
        let mut body = Vec::new();
        for n in 0..set.files {
            let file = mount.join(name(n));
            if n.is_multiple_of(FILES_IN_DIR) {
                std::fs::create_dir_all(file.parent().context("a parent")?)?;
            }
            bulk.fill(n, &mut body);
            std::fs::write(&file, &body)?;
        }
        writer.drain()?;
        writer.stop()?;
        std::fs::remove_dir_all(writer.cache())?;
        bulk.server.faults.latency(LATENCY);
        Ok(bulk)
    }

    fn fill(&self, n: usize, body: &mut Vec<u8>) {
        self.bodies.fill(((self.set.size + n) as u64) << KIND_BIT | 1 << 59, self.set.size, body);
    }

    fn node(&self, name: &str) -> Result<Node> {
        Node::over(&self.base, name, &self.server)
    }

    /// Reads everything with the reference and with a fresh node, in alternating order.
    fn round(&self, number: usize) -> Result<Round> {
        let first = number.is_multiple_of(2).then(|| self.reference(number)).transpose()?;
        let (read, whole, gets) = self.read(number)?;
        let reference = first.map_or_else(|| self.reference(number), Ok)?;
        crate::say(format_args!(
            "bulk: {}: the reference {:.2} s, a fresh node {:.2} s, from the mount {:.2} s",
            self.set.name,
            reference.as_secs_f64(),
            read.as_secs_f64(),
            whole.as_secs_f64()
        ));
        Ok(Round { reference, read, whole, gets })
    }

    /// Times the reference.
    fn reference(&self, number: usize) -> Result<Duration> {
        let into = self.base.join(format!("reference-{number}"));
        std::fs::create_dir(&into)?;
        let (took, members) = reference::fetch(&self.server, &into)?;
        std::fs::remove_dir_all(&into)?;
        if members != self.set.files {
            bail!("{members} contents in the packs instead of {}", self.set.files);
        }
        Ok(took)
    }

    /// Times the readers on a fresh node, which knows all names and has no bytes: from the first open
    /// to the last byte, and from the start of the node. Also returns the GETs that the node made.
    fn read(&self, number: usize) -> Result<(Duration, Duration, u64)> {
        rustix::fs::sync();
        let begun = now();
        let mut node = self.node(&format!("reader-{number}"))?;
        while node.status()?["entries"].as_u64().unwrap_or(0) < self.set.files as u64 {
            if now().saturating_sub(begun) > KNOWN_MAX {
                bail!("the node does not list all entries\n{}", node.log_tail());
            }
            sleep_ms(2);
        }
        let paths: Vec<PathBuf> = (0..self.set.files).map(|n| node.mount().join(name(n))).collect();
        let (took, read) = timed(|| self.read_all(&paths, |_, _| Ok(())));
        read?;
        let whole = now().saturating_sub(begun);
        let gets = node.status()?["counters"]["requests"]["get"].as_u64().unwrap_or(0);
        // Checks that the reads equal the writes, outside the measured time.
        let checked = self.read_all(&paths, |n, content| {
            let mut body = Vec::new();
            self.fill(n, &mut body);
            if body != content {
                bail!("other bytes in {}", name(n));
            }
            Ok(())
        });
        checked?;
        node.stop()?;
        std::fs::remove_dir_all(node.cache())?;
        Ok((took, whole, gets))
    }

    fn read_all(
        &self,
        paths: &[PathBuf],
        check: impl Fn(usize, &[u8]) -> Result<()> + Sync,
    ) -> Result<()> {
        let (next, size) = (AtomicUsize::new(0), self.set.size);
        std::thread::scope(|scope| {
            let read = || -> Result<()> {
                let mut buffer = vec![0; size];
                loop {
                    let n = next.fetch_add(1, Ordering::Relaxed);
                    let Some(path) = paths.get(n) else { return Ok(()) };
                    let named =
                        || String::from_utf8_lossy(path.as_os_str().as_bytes()).into_owned();
                    let mut file = File::open(path).with_context(named)?;
                    file.read_exact(&mut buffer).with_context(named)?;
                    check(n, &buffer)?;
                }
            };
            let started: Vec<_> = (0..self.set.readers).map(|_| scope.spawn(read)).collect();
            for reader in started {
                reader.join().map_err(|_| anyhow::anyhow!("a reader panicked"))??;
            }
            Ok(())
        })
    }
}
