//! Two nodes over a store that takes 20 ms for every request.
//!
//! Owns the set of files, and the store. What a reader gets is compared byte by byte with what was written.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use serde_json::json;

use crate::bodies::{Bodies, KIND_BIT};
use crate::clock::{now, sleep_ms, timed};
use crate::node::Node;
use crate::options::Counts;
use crate::reference::{self, PlainFile};
use crate::report::{Report, Table, against};
use crate::stats::quantile;
use crate::stores::S3Server;

/// The time of each request to the store.
const LATENCY: Duration = Duration::from_millis(20);
const SIZES: [usize; 3] = [8 << 10, 256 << 10, 4 << 20];
/// Size of a file that is copied in.
const COPIED_BYTES: usize = 30_000;
/// How long a change may take to be visible.
const SEEN_MAX: Duration = Duration::from_secs(30);
/// Concurrent readers.
const READERS: usize = 16;
/// A node counts as idle when no node has made a request for this long, in seconds: the follower looks at the log for ten
/// seconds after the last question, and one node packs the new commits into a bundle up to half a minute later.
const QUIET_S: u64 = 45;
/// How long to wait for that, in seconds.
const QUIET_WITHIN_S: u64 = 180;
/// How long the follower has nothing to do between two changes, in milliseconds.
const PAUSE_MS: u64 = 150;

struct Across<'a> {
    base: PathBuf,
    bodies: &'a Bodies,
    counts: &'a Counts,
    server: S3Server,
    set: Vec<PlainFile>,
    table: Table,
    report: &'a mut Report,
}

/// Measures, and adds to the report.
pub(crate) fn run(
    base: &Path,
    counts: &Counts,
    bodies: &Bodies,
    report: &mut Report,
) -> Result<()> {
    let server = S3Server::start_in_memory();
    server.faults.latency(LATENCY);
    let head = ["work", "figure", "goal"].map(ToOwned::to_owned).to_vec();
    let title = format!("Across nodes: a store with {} ms per request", LATENCY.as_millis());
    let mut across = Across {
        base: base.to_owned(),
        bodies,
        counts,
        server,
        set: set(counts),
        table: Table::new(&title, head),
        report,
    };
    let mut a = across.node("a")?;
    across.publish(&a)?;
    across.read_anew("b", "read by a fresh node, one program", 1)?;
    let b = across.read_anew("c", "read by a fresh node, 16 programs", READERS)?;
    across.seen(&a, &b)?;
    across.copy_in(&a)?;
    across.idle(&[("wrote", &a), ("read", &b)])?;
    drop(b);
    a.stop()?;
    let Across { table, report, .. } = across;
    report.table(&table);
    Ok(())
}

fn set(counts: &Counts) -> Vec<PlainFile> {
    let mut all = Vec::new();
    for (size, count) in SIZES.into_iter().zip(counts.set) {
        for n in 0..count {
            // Programs cache into flat directories or into one directory per entry; some of both.
            let name = if n % 4 == 0 {
                format!("set/unit-{size}-{:04}/kernel-{n:05}.bin", n / 16)
            } else {
                format!("set/jit_step-{size}-{n:05}-cache")
            };
            all.push(PlainFile { name, size, seq: ((size + n) as u64) << KIND_BIT | 1 << 62 });
        }
    }
    // Written in mixed order, as a job would.
    let order = |item: &PlainFile| crate::bodies::Dice::new(item.seq).next();
    all.sort_by_key(order);
    all
}

impl Across<'_> {
    fn node(&self, name: &str) -> Result<Node> {
        Node::over(&self.base, name, &self.server)
    }

    /// Adds a figure with its goal to table and report.
    fn figure(&mut self, work: &str, value: f64, goal: Option<f64>, unit: &str) {
        let none = f64::INFINITY;
        let (shown, mut wanted) = against(value, goal.unwrap_or(none), unit);
        if goal.is_none() {
            "-".clone_into(&mut wanted);
        }
        crate::say(format_args!("across: {work}: {shown} (goal {wanted})"));
        self.table.row(vec![work.to_owned(), shown, wanted]);
        self.report.row(json!({
            "part": "across", "work": work, "value": value, "goal": goal, "unit": unit,
        }));
    }

    fn publish(&mut self, a: &Node) -> Result<()> {
        let mount = a.mount();
        for item in &self.set {
            let dir = mount.join(&item.name);
            std::fs::create_dir_all(dir.parent().context("a parent")?)?;
        }
        a.drain()?;
        let into = self.base.join("plain");
        let plain = reference::publish(&self.server, &into, &self.set, self.bodies)?;
        rustix::fs::sync();
        let (before, served) = (requests(a)?, self.server.faults.requests());
        let start = now();
        let mut body = Vec::new();
        for item in &self.set {
            self.bodies.fill(item.seq, item.size, &mut body);
            std::fs::write(mount.join(&item.name), &body)?;
        }
        let closed = seconds(now().saturating_sub(start));
        a.drain()?;
        let durable = seconds(now().saturating_sub(start));
        let served = self.server.faults.requests() - served;
        let spent = grown(&before, &requests(a)?);
        let all = self.set.len();
        self.figure(&format!("publish {all} files: last close"), closed, None, " s");
        self.figure(&format!("publish {all} files: durable"), durable, Some(1.5), " s");
        // Not before: ext4 makes new files slowly where many were removed.
        std::fs::remove_dir_all(into)?;
        let plain = seconds(plain);
        self.figure("... a plain program that writes, digests and uploads them", plain, None, " s");
        self.figure("... speed", plain / durable, None, " of the plain program");
        self.figure("... PUTs", of(&spent, "put"), Some(80.0), "");
        self.figure("... requests that the server saw", served as f64, None, "");
        Ok(())
    }

    /// Starts an empty node and reads the whole set through it.
    fn read_anew(&mut self, name: &str, work: &str, readers: usize) -> Result<Node> {
        let served = self.server.faults.requests();
        let start = now();
        let node = self.node(name)?;
        let ready = seconds(node.ready_after);
        let (mount, set, bodies) = (node.mount(), &self.set, self.bodies);
        let next = AtomicUsize::new(0);
        std::thread::scope(|scope| -> Result<()> {
            let read = || -> Result<()> {
                while let Some(item) = set.get(next.fetch_add(1, Ordering::Relaxed)) {
                    let got = std::fs::read(mount.join(&item.name))
                        .with_context(|| format!("read {}", item.name))?;
                    if got != bodies.make(item.seq, item.size) {
                        bail!("other bytes in {}", item.name);
                    }
                }
                Ok(())
            };
            let started: Vec<_> = (0..readers).map(|_| scope.spawn(read)).collect();
            for reader in started {
                reader.join().map_err(|_| anyhow::anyhow!("a reader panicked"))??;
            }
            Ok(())
        })?;
        let took = seconds(now().saturating_sub(start));
        let served = self.server.faults.requests() - served;
        let spent = requests(&node)?;
        self.figure(&format!("{work}: mount to last byte"), took, Some(1.5), " s");
        self.figure("... of that until ready", ready, None, " s");
        self.figure("... GETs", of(&spent, "get"), Some(80.0), "");
        self.figure("... LISTs", of(&spent, "list"), Some(5.0), "");
        self.figure("... requests that the server saw", served as f64, None, "");
        Ok(node)
    }

    /// Closes files on one node, and polls the other until they are there.
    fn seen(&mut self, a: &Node, b: &Node) -> Result<()> {
        for (how, asks_before) in [("looked up before", true), ("not looked up before", false)] {
            let mut took = Vec::new();
            for n in 0..self.counts.seen {
                let name = format!("seen-{asks_before}-{n}");
                let (here, there) = (a.mount().join(&name), b.mount().join(&name));
                if asks_before {
                    drop(std::fs::metadata(&there));
                }
                std::fs::write(&here, self.bodies.make(n as u64 | 1 << 61, 8 << 10))?;
                let closed = now();
                while std::fs::metadata(&there).is_err() {
                    if now().saturating_sub(closed) > SEEN_MAX {
                        bail!("{name} is not visible on the other node");
                    }
                    sleep_ms(1);
                }
                took.push(now().saturating_sub(closed));
                sleep_ms(PAUSE_MS + (n as u64 * 37) % 100);
            }
            let median = quantile(&mut took, 0.5);
            let work = format!("close to visible on another node, {how}: median");
            self.figure(&work, seconds(median), Some(0.25), " s");
            self.figure("... longest", seconds(quantile(&mut took, 1.0)), None, " s");
        }
        Ok(())
    }

    fn copy_in(&mut self, a: &Node) -> Result<()> {
        let source = self.base.join("source");
        let mut body = Vec::new();
        for n in 0..self.counts.copied {
            let dir = source.join(format!("{:02}", n % 64));
            if n < 64 {
                std::fs::create_dir_all(&dir)?;
            }
            self.bodies.fill((n as u64) << KIND_BIT | 1 << 60, COPIED_BYTES, &mut body);
            std::fs::write(dir.join(format!("entry-{n:05}")), &body)?;
        }
        let before = requests(a)?;
        let disk = copy(&source, &self.base.join("copied"))?;
        let begun = now();
        let took = copy(&source, &a.mount().join("copied"))?;
        a.drain()?;
        let durable = seconds(now().saturating_sub(begun));
        let spent = grown(&before, &requests(a)?);
        let work = format!("cp -r of {} files of 30 KB", self.counts.copied);
        self.figure(&format!("{work}: done"), seconds(took), Some(2.0), " s");
        self.figure("... durable", durable, Some(4.0), " s");
        self.figure("... PUTs", of(&spent, "put"), None, "");
        self.figure("... the same to ext4", seconds(disk), None, " s");
        Ok(())
    }

    fn idle(&mut self, nodes: &[(&str, &Node)]) -> Result<()> {
        let count = |node: &Node| Ok::<_, anyhow::Error>(requests(node)?.values().sum::<u64>());
        let counts = || nodes.iter().map(|(_, node)| count(node)).collect::<Result<Vec<_>>>();
        let mut before = counts()?;
        for _ in 0..QUIET_WITHIN_S / QUIET_S {
            sleep_ms(QUIET_S * 1000);
            let now = counts()?;
            let quiet = now == before;
            before = now;
            if quiet {
                break;
            }
        }
        sleep_ms(self.counts.idle_s * 1000);
        for ((what, node), before) in nodes.iter().zip(before) {
            let made = count(node)? - before;
            let work = format!("requests in {} s of an idle node that {what}", self.counts.idle_s);
            self.figure(&work, made as f64, Some(0.0), "");
        }
        Ok(())
    }
}

fn copy(from: &Path, to: &Path) -> Result<Duration> {
    let (took, status) = timed(|| Command::new("cp").arg("-r").arg(from).arg(to).status());
    if !status?.success() {
        bail!("cp -r to {} failed", to.display());
    }
    Ok(took)
}

fn seconds(time: Duration) -> f64 {
    time.as_secs_f64()
}

/// Returns the requests that a node has made, by kind.
fn requests(node: &Node) -> Result<BTreeMap<String, u64>> {
    let status = node.status()?;
    let counted = status.pointer("/counters/requests").context("no request counters")?;
    Ok(serde_json::from_value(counted.clone())?)
}

fn grown(before: &BTreeMap<String, u64>, after: &BTreeMap<String, u64>) -> BTreeMap<String, u64> {
    let count = |name: &String, now: &u64| now.saturating_sub(*before.get(name).unwrap_or(&0));
    after.iter().map(|(name, now)| (name.clone(), count(name, now))).collect()
}

fn of(requests: &BTreeMap<String, u64>, kind: &str) -> f64 {
    requests.get(kind).copied().unwrap_or(0) as f64
}
