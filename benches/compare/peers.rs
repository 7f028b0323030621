//! Other programs that mount a store, if they are installed.
//!
//! Owns how each is started. A missing peer is reported as SKIPPED.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use rustix::process::Pid;
use serde_json::json;

use crate::bodies::Bodies;
use crate::clock::{self, now, sleep_ms};
use crate::node;
use crate::options::Counts;
use crate::report::{Report, Table, micros};
use crate::stats::Samples;
use crate::work::{self, Site, WORKS};

/// How long a peer may take for its first answer, and for its end.
const READY_MAX: Duration = Duration::from_secs(30);
/// The works that peers do; the others would take them long and show little.
const PEER_WORKS: [&str; 8] = [
    "stat, known name",
    "stat, known missing",
    "stat, unknown missing",
    "open+read+close 8 KiB",
    "open+read+close 256 KiB",
    "create+write+close 8 KiB",
    "create+write+close 256 KiB",
    "temporary+rename 8 KiB",
];
const ROUNDS: usize = 5;

struct Peer {
    name: &'static str,
    program: &'static str,
    /// Prepares a store below a directory, and returns the arguments that mount it.
    arguments: fn(&Path, &Path) -> Result<Vec<String>>,
}

const PEERS: [Peer; 2] = [
    Peer { name: "rclone, vfs full, local store", program: "rclone", arguments: rclone },
    Peer { name: "juicefs --writeback, local store", program: "juicefs", arguments: juicefs },
];

/// Measures, and adds to the report.
pub(crate) fn run(
    base: &Path,
    counts: &Counts,
    bodies: &Bodies,
    report: &mut Report,
) -> Result<()> {
    let mut rows: Vec<Vec<String>> =
        PEER_WORKS.iter().map(|work| vec![(*work).to_owned()]).collect();
    let mut names = vec!["work".to_owned()];
    for peer in &PEERS {
        if !is_there(peer.program) {
            report.note(format!("SKIPPED {}: `{}` is not on PATH", peer.name, peer.program));
            continue;
        }
        let dir = base.join(peer.program);
        std::fs::create_dir_all(&dir)?;
        match one(peer, &dir, counts, bodies, report) {
            Ok(cells) => {
                names.push(peer.name.to_owned());
                for (row, cell) in rows.iter_mut().zip(cells) {
                    row.push(cell);
                }
            }
            Err(error) => report.note(format!("SKIPPED {}: {error:#}", peer.name)),
        }
    }
    if names.len() > 1 {
        let mut table = Table::new("Peers: median / 99th percentile, microseconds", names);
        for row in rows {
            table.row(row);
        }
        report.table(&table);
    }
    Ok(())
}

fn is_there(program: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).any(|dir| dir.join(program).is_file())
}

fn text(path: PathBuf) -> Result<String> {
    path.into_os_string().into_string().ok().context("a path that is not UTF-8")
}

fn rclone(base: &Path, mount: &Path) -> Result<Vec<String>> {
    let store = base.join("store");
    std::fs::create_dir_all(&store)?;
    let cache = text(base.join("cache"))?;
    let words = ["--config", "/dev/null", "--vfs-cache-mode", "full", "--cache-dir", &cache];
    let first = ["mount".to_owned(), text(store)?, text(mount.to_owned())?];
    Ok(first.into_iter().chain(words.map(ToOwned::to_owned)).collect())
}

fn juicefs(base: &Path, mount: &Path) -> Result<Vec<String>> {
    let meta = format!("sqlite3://{}", text(base.join("meta.db"))?);
    let bucket = format!("{}/", text(base.join("store"))?);
    let format = Command::new("juicefs")
        .args(["format", "--no-update", "--storage", "file", "--bucket", &bucket, &meta, "bench"])
        .output()?;
    if !format.status.success() {
        bail!("juicefs format: {}", String::from_utf8_lossy(&format.stderr));
    }
    let (mount, cache) = (text(mount.to_owned())?, text(base.join("cache"))?);
    let words = ["mount", &meta, &mount, "--no-usage-report", "--writeback", "--cache-dir", &cache];
    Ok(words.map(ToOwned::to_owned).to_vec())
}

fn one(
    peer: &Peer,
    base: &Path,
    counts: &Counts,
    bodies: &Bodies,
    report: &mut Report,
) -> Result<Vec<String>> {
    let mount = base.join("mount");
    std::fs::create_dir_all(&mount)?;
    let mut command = Command::new(peer.program);
    command.args((peer.arguments)(base, &mount)?).env_remove("AWS_CA_BUNDLE");
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    let mut child = command.spawn()?;
    clock::watch(Pid::from_child(&child));
    let done = measure(peer, &mut child, &mount, counts, bodies, report);
    node::unmount(&mount);
    node::end(&mut child, READY_MAX)?;
    done
}

fn measure(
    peer: &Peer,
    child: &mut Child,
    mount: &Path,
    counts: &Counts,
    bodies: &Bodies,
    report: &mut Report,
) -> Result<Vec<String>> {
    let begun = now();
    while !node::answers(mount) {
        if child.try_wait()?.is_some() || now().saturating_sub(begun) > READY_MAX {
            bail!("it does not mount here");
        }
        sleep_ms(10);
    }
    let mut small = counts.clone();
    (small.rounds, small.warm, small.lists) = (ROUNDS, 1, 0);
    let site = |round| Site { dir: mount, round, target: 99, bodies, counts: &small };
    work::populate(&site(0))?;
    let mut cells = Vec::new();
    for name in PEER_WORKS {
        let work = WORKS.iter().find(|work| work.name == name).context("no such work")?;
        let mut samples = Samples::default();
        for round in 0..small.rounds_all() {
            work.before(&site(round))?;
            let turn = work.turn(&site(round))?;
            if round >= small.warm {
                samples.push(turn);
            }
        }
        let (p50, p99) = (samples.quantile_us(0.5), samples.quantile_us(0.99));
        cells.push(format!("{} / {}", micros(p50), micros(p99)));
        report.row(json!({
            "part": "peers", "work": name, "target": peer.name, "median_us": p50, "p99_us": p99,
        }));
    }
    Ok(cells)
}
