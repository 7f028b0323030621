//! hearthfs compared with the disk, the floor and other programs, in one run on one machine.
//!
//! Owns the order of the parts and the destination of the report. Times differ between machines, so
//! only round trips and ratios should be compared. How to read the report: `docs/performance.md`.

mod across;
mod bodies;
mod bulk;
mod clock;
#[path = "../floor/mod.rs"]
mod floor;
mod kernel;
mod node;
mod options;
mod peers;
mod pressure;
mod reference;
mod report;
#[path = "../say/mod.rs"]
mod say;
mod scale;
mod single;
mod stats;
#[path = "../../tests/stores/mod.rs"]
mod stores;
mod target;
mod unit;
mod work;

use std::io::{BufRead as _, Write as _};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context as _, Result, bail};
use clap::Parser as _;
use options::{Options, Part};
use report::Report;
use say::{print, say};

/// Threads of the floor: the default number of hearthfs.
const THREADS: usize = 4;

fn main() -> ExitCode {
    let options = Options::parse();
    let done = match &options.serve_floor {
        Some(paths) => serve_floor(paths, !options.ordinary),
        None if options.bench => compare(&options),
        None => {
            say(format_args!("nothing done: run it by `cargo bench --bench compare`"));
            Ok(true)
        }
    };
    match done {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            say(format_args!("error: {error:#}"));
            ExitCode::FAILURE
        }
    }
}

/// Returns the node of the column that `--with` and `--other` add.
fn other(options: &Options) -> Option<node::Options> {
    let (settings, program) = (options.with.clone(), options.other.clone());
    let wanted = program.is_some() || !settings.is_empty();
    wanted.then(|| node::Options { io: "auto", settings, program, ..node::Options::default() })
}

/// Measures all requested parts. A failed part is reported, and the next one runs.
fn compare(options: &Options) -> Result<bool> {
    let counts = options.counts();
    let bodies = bodies::Bodies::new();
    let above = options.dir.clone().unwrap_or_else(std::env::temp_dir);
    let base = tempfile::Builder::new().prefix("hfs-bench-").tempdir_in(&above)?;
    let mut report = Report::default();
    facts(&mut report, &above, options)?;
    clock::start_watchdog()?;
    let other = other(options);
    let mut good = true;
    for part in Part::ALL {
        if !options.wants(part) {
            continue;
        }
        clock::limit(part.limit());
        let dir = base.path().join(format!("{part:?}").to_lowercase());
        std::fs::create_dir_all(&dir)?;
        let before = load();
        let (took, done) = clock::timed(|| match part {
            Part::Single => single::run(&dir, other.clone(), &counts, &bodies, &mut report),
            Part::Pressure => pressure::run(&dir, &counts, &bodies, &mut report),
            Part::Across => across::run(&dir, &counts, &bodies, &mut report),
            Part::Bulk => bulk::run(&dir, &counts, &bodies, &mut report),
            Part::Scale => scale::run(&dir, &counts, options.million, &bodies, &mut report),
            Part::Peers => peers::run(&dir, &counts, &bodies, &mut report),
        });
        let (took, after) = (took.as_secs(), load());
        report.note(format!(
            "part {part:?}: {took} s; load of the machine {before} before, {after} after"
        ));
        if let Err(error) = done {
            good = false;
            report.note(format!("FAILED {part:?}: {error:#}"));
            say(format_args!("error: {part:?}: {error:#}"));
        }
        remove(&dir);
    }
    print(&report.markdown());
    if let Some(path) = &options.json {
        report.write_json(path).with_context(|| format!("write {}", path.display()))?;
    }
    Ok(good)
}

/// Removes what a part left, but never through a mount that is still there.
fn remove(dir: &Path) {
    let table = std::fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    let below =
        |line: &&str| line.split(' ').nth(4).is_some_and(|at| Path::new(at).starts_with(dir));
    if table.lines().any(|line| below(&line)) {
        say(format_args!("{} is left: something is still mounted there", dir.display()));
        return;
    }
    if let Err(error) = std::fs::remove_dir_all(dir) {
        say(format_args!("{}: {error}", dir.display()));
    }
}

fn facts(report: &mut Report, above: &Path, options: &Options) -> Result<()> {
    let system = rustix::system::uname();
    let read = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
    let cpu = read("/proc/cpuinfo");
    let cpu = cpu.lines().find_map(|line| line.strip_prefix("model name")?.split_once(": "));
    report.fact("kernel", system.release().to_string_lossy());
    let cores = std::thread::available_parallelism()?.get();
    report.fact("processor", format!("{cores} x {}", cpu.map_or("?", |(_, name)| name)));
    let kind = match rustix::fs::statfs(above)?.f_type {
        0xEF53 => "ext4".to_owned(),
        0x0102_1994 => "tmpfs: the column `ext4` is tmpfs".to_owned(),
        other => format!("{other:#x}: the column `ext4` is that"),
    };
    report.fact("disk", kind);
    report.fact("load", load());
    report.fact("size of the run", if options.quick { "quick: for trying only" } else { "full" });
    report.fact(
        "contents",
        "every second file incompressible, the others text that compresses about 4:1; no two equal",
    );
    Ok(())
}

/// Returns the load of the machine over the last minute.
fn load() -> String {
    let text = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
    text.split(' ').next().unwrap_or("?").to_owned()
}

/// Serves the floor until stdin ends; answers each line with the number of requests so far.
fn serve_floor(paths: &[PathBuf], passthrough: bool) -> Result<bool> {
    let [mount, backing] = paths else { bail!("a mount point and a directory are needed") };
    let floor =
        floor::Floor::mount(backing, mount, passthrough, THREADS).context("mount the floor")?;
    for line in std::io::stdin().lock().lines() {
        line?;
        let mut out = std::io::stdout().lock();
        writeln!(out, "{}", floor.requests())?;
        out.flush()?;
    }
    drop(floor);
    Ok(true)
}
