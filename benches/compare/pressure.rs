//! One node under pressure: a long listing beside other programs, many open files, and the cost of a byte.
//!
//! Owns three figures that a median of undisturbed calls does not show: the slowest lookups while a
//! large directory is listed, a write while many files are open, and the bytes that the daemon
//! reads for each written byte.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use serde_json::json;

use crate::bodies::Bodies;
use crate::clock::timed;
use crate::node::{Node, Options};
use crate::options::Counts;
use crate::report::{Report, Table, micros};
use crate::stats::quantile;

/// Lookups that are timed, with and without the listing.
const LOOKUPS: usize = 20_000;
/// The goal for the slowest of a thousand lookups beside the listing.
const LOOKUP_GOAL: Duration = Duration::from_millis(5);
/// Files that are written in one turn, and turns of each kind.
const WRITES: usize = 60;
const TURNS: usize = 7;
const WRITE_BYTES: usize = 8 << 10;
/// The goal for the slowdown with open files; the noise of a turn is about as large.
const OPEN_GOAL: f64 = 1.1;
/// Descriptors that the daemon needs in addition to those of programs.
const KEPT: u64 = 512;
/// The files for which the bytes that the daemon reads are counted.
const READ_FILES: usize = 64;
const READ_BYTES: usize = 1 << 20;
const READ_GOAL: f64 = 1.05;

/// Measures, and adds to the report.
pub(crate) fn run(
    base: &Path,
    counts: &Counts,
    bodies: &Bodies,
    report: &mut Report,
) -> Result<()> {
    let node = Node::start(base, "node", Options { io: "auto", ..Options::default() })?;
    let mount = node.mount();
    let mut table = Table::new(
        "One node under pressure",
        ["what", "alone", "under pressure", "goal"].map(ToOwned::to_owned).to_vec(),
    );
    bytes_read(&node, bodies, &mut table, report)?;
    crate::say(format_args!("pressure: making {} names", counts.pressed));
    let large = mount.join("large");
    std::fs::create_dir(&large)?;
    for n in 0..counts.pressed {
        let body = bodies.make(1 << 50 | n as u64, 32);
        std::fs::write(large.join(name(n)), body).with_context(|| name(n))?;
    }
    lookups_beside_a_listing(&mount, &large, counts.pressed, &mut table, report)?;
    writes_beside_open_files(&node, &large, counts, bodies, &mut table, report)?;
    report.table(&table);
    Ok(())
}

fn name(n: usize) -> String {
    format!("jit_step-{n:08}-cache")
}

/// Measures how many bytes the daemon reads, in all its calls, for each byte that programs write.
fn bytes_read(node: &Node, bodies: &Bodies, table: &mut Table, report: &mut Report) -> Result<()> {
    let dir = node.mount().join("read");
    std::fs::create_dir(&dir)?;
    let pid = node.pid().context("the daemon is not running")?;
    let before = read_by(pid)?;
    let mut written = 0;
    for n in 0..READ_FILES {
        let body = bodies.make(1 << 51 | n as u64, READ_BYTES);
        written += body.len() as u64;
        std::fs::write(dir.join(n.to_string()), body)?;
    }
    let read = read_by(pid)?.saturating_sub(before) as f64 / written as f64;
    let shown = format!("{read:.3}");
    let shown = if read > READ_GOAL { format!("**{shown}**") } else { shown };
    let what = "bytes that the daemon reads per byte written, 1 MiB files";
    table.row([what, &shown, "-", &READ_GOAL.to_string()].map(ToOwned::to_owned).to_vec());
    report.row(json!({"part": "pressure", "what": "bytes read per byte", "ratio": read}));
    Ok(())
}

fn read_by(pid: u32) -> Result<u64> {
    let text = std::fs::read_to_string(format!("/proc/{pid}/io"))?;
    let line = text.lines().find_map(|line| line.strip_prefix("rchar: "));
    Ok(line.context("no rchar")?.trim().parse()?)
}

fn lookups_beside_a_listing(
    mount: &Path,
    large: &Path,
    names: usize,
    table: &mut Table,
    report: &mut Report,
) -> Result<()> {
    std::fs::create_dir(mount.join("other"))?;
    let mut alone = lookups(mount, "alone")?;
    let (end, lists) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
    let lister = {
        let (large, end, lists) = (large.to_owned(), Arc::clone(&end), Arc::clone(&lists));
        hearthfs::task::thread("lister", move || -> Result<()> {
            while !end.load(Ordering::Relaxed) {
                let listed = std::fs::read_dir(&large)?.count();
                if listed != names {
                    bail!("{listed} names instead of {names}");
                }
                lists.fetch_add(1, Ordering::Relaxed);
            }
            Ok(())
        })?
    };
    let beside = lookups(mount, "beside");
    end.store(true, Ordering::Relaxed);
    lister.join().map_err(|_| anyhow::anyhow!("the listing panicked"))??;
    let mut beside = beside?;
    report.note(format!("pressure: {} listings beside the lookups", lists.load(Ordering::Relaxed)));
    for share in [0.5, 0.999] {
        let us = |samples: &mut Vec<Duration>| quantile(samples, share).as_secs_f64() * 1e6;
        let (one, other) = (us(&mut alone), us(&mut beside));
        let goal = (share > 0.9).then_some(LOOKUP_GOAL.as_secs_f64() * 1e6);
        let shown = format!("{} us", micros(other));
        let shown =
            if goal.is_some_and(|goal| other > goal) { format!("**{shown}**") } else { shown };
        table.row(vec![
            format!("lookup of a missing name, p{}, while {names} names are listed", share * 100.0),
            format!("{} us", micros(one)),
            shown,
            goal.map_or("-".to_owned(), |goal| format!("{} us", micros(goal))),
        ]);
        report.row(json!({
            "part": "pressure", "what": "lookup beside a listing", "share": share,
            "alone_us": one, "beside_us": other,
        }));
    }
    Ok(())
}

fn lookups(mount: &Path, prefix: &str) -> Result<Vec<Duration>> {
    let paths: Vec<PathBuf> =
        (0..LOOKUPS).map(|n| mount.join(format!("other/{prefix}-{n}"))).collect();
    let mut samples = Vec::with_capacity(LOOKUPS);
    for path in &paths {
        let (took, found) = timed(|| rustix::fs::stat(path).map(drop));
        if found != Err(Errno::NOENT) {
            bail!("{}: {found:?}", path.display());
        }
        samples.push(took);
    }
    Ok(samples)
}

/// Returns how many files the daemon may have open.
fn allowed(node: &Node) -> Option<u64> {
    let limits = std::fs::read_to_string(format!("/proc/{}/limits", node.pid()?)).ok()?;
    let line = limits.lines().find(|line| line.starts_with("Max open files"))?;
    line.split_whitespace().nth(4)?.parse().ok()
}

fn writes_beside_open_files(
    node: &Node,
    large: &Path,
    counts: &Counts,
    bodies: &Bodies,
    table: &mut Table,
    report: &mut Report,
) -> Result<()> {
    let limit = getrlimit(Resource::Nofile);
    let wanted = counts.held as u64 + 256;
    // The daemon reserves some for itself, and programs get the rest.
    let daemon = allowed(node).is_some_and(|most| most < wanted + KEPT);
    if limit.maximum.is_some_and(|most| most < wanted) || daemon {
        report.note(format!(
            "SKIPPED writes beside open files: {wanted} descriptors are not allowed"
        ));
        return Ok(());
    }
    setrlimit(Resource::Nofile, Rlimit { current: Some(wanted), ..limit })?;
    let dir = node.mount().join("made");
    std::fs::create_dir(&dir)?;
    let mut number = 0;
    let mut turn = || -> Result<Duration> {
        let mut samples = Vec::with_capacity(WRITES);
        for _ in 0..WRITES {
            number += 1;
            let body = bodies.make(1 << 52 | number, WRITE_BYTES);
            let path = dir.join(number.to_string());
            let (took, done) = timed(|| std::fs::write(&path, &body));
            done?;
            samples.push(took);
        }
        Ok(quantile(&mut samples, 0.5))
    };
    let (mut none, mut many, mut ratios) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..TURNS {
        let without = turn()?;
        let open: Vec<_> = (0..counts.held)
            .map(|n| {
                let flags = OFlags::RDONLY | OFlags::CLOEXEC;
                rustix::fs::open(large.join(name(n)), flags, Mode::empty())
            })
            .collect::<Result<_, _>>()
            .context("hold many files open")?;
        let with = turn()?;
        drop(open);
        ratios.push(with.as_secs_f64() / without.as_secs_f64());
        none.push(without);
        many.push(with);
    }
    ratios.sort_by(f64::total_cmp);
    let ratio = ratios[ratios.len() / 2];
    let us = |samples: &mut Vec<Duration>| quantile(samples, 0.5).as_secs_f64() * 1e6;
    let (without, with) = (us(&mut none), us(&mut many));
    let shown = format!("{} us, {ratio:.2} times", micros(with));
    table.row(vec![
        format!("create+write+close 8 KiB while {} files are open", counts.held),
        format!("{} us", micros(without)),
        if ratio > OPEN_GOAL { format!("**{shown}**") } else { shown },
        format!("{OPEN_GOAL} times"),
    ]);
    report.row(json!({
        "part": "pressure", "what": "writes beside open files", "open": counts.held,
        "alone_us": without, "beside_us": with, "ratio": ratio,
    }));
    Ok(())
}
