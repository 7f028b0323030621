//! One node: every work on every target, in turns.
//!
//! Owns the order: in each round each target does a work before the next work begins, and the order
//! of the targets is rotated by one, so that no target always follows the same other.

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::{Context as _, Result};
use serde_json::json;

use crate::bodies::Bodies;
use crate::kernel::Tap;
use crate::node::Options;
use crate::options::Counts;
use crate::report::{Report, Table, micros, ratio};
use crate::stats::Samples;
use crate::target::Target;
use crate::work::{self, Site, WORKS, Work};

/// The column with which the others are compared.
const FLOOR: &str = "floor";
/// The column with which those without passthrough are compared.
const FLOOR_ORDINARY: &str = "floor, ordinary";
/// The column of this program as it is mounted by default, and that of `--with` and `--other`.
const OURS: &str = "hearthfs";
const OTHER: &str = "hearthfs, other";

/// The results of one work on one target.
#[derive(Debug, Default)]
struct Cell {
    samples: Samples,
    trips: Option<BTreeMap<String, f64>>,
}

/// Measures, and adds to the report. `other` is one more column.
pub(crate) fn run(
    base: &Path,
    other: Option<Options>,
    counts: &Counts,
    bodies: &Bodies,
    report: &mut Report,
) -> Result<()> {
    let mut targets = targets(base)?;
    if let Some(options) = other {
        report.note(format!("column `{OTHER}`: {}", options.difference()));
        targets.push(Target::node(OTHER, base, "other", options)?);
    }
    let tap = Tap::new();
    match &tap {
        Ok(_) => report.note("round trips are the kernel's own count"),
        Err(why) => report.note(format!("round trips are the daemons' own count: {why:#}")),
    }
    let tap = tap.ok();
    crate::say(format_args!("single: filling {} targets", targets.len()));
    for (number, target) in targets.iter_mut().enumerate() {
        let dir = target.dir.clone();
        let site = Site { dir: &dir, round: 0, target: number, bodies, counts };
        work::populate(&site).with_context(|| format!("fill {}", target.name))?;
        target.settle()?;
        target.remount()?;
    }
    let mut cells: Vec<Vec<Cell>> =
        WORKS.iter().map(|_| targets.iter().map(|_| Cell::default()).collect()).collect();
    for round in 0..counts.rounds_all() {
        crate::say(format_args!("single: round {} of {}", round + 1, counts.rounds_all()));
        for (work, row) in WORKS.iter().zip(&mut cells) {
            if round >= (work.rounds_max)(counts) {
                continue;
            }
            for turn in 0..targets.len() {
                let number = (turn + round) % targets.len();
                let target = &mut targets[number];
                let dir = target.dir.clone();
                let site = Site { dir: &dir, round, target: number, bodies, counts };
                one_turn(work, &site, target, tap.as_ref(), &mut row[number])
                    .with_context(|| format!("{} on {}", work.name, target.name))?;
            }
        }
    }
    for target in &targets {
        let io = target.io()?;
        if !io.is_empty() {
            report.note(format!("column `{}`: I/O is {io}", target.name));
        }
    }
    let names: Vec<&str> = targets.iter().map(|target| target.name).collect();
    drop(targets);
    tables(&names, &cells, counts, report);
    Ok(())
}

fn targets(base: &Path) -> Result<Vec<Target>> {
    let local = |io| Options { io, ..Options::default() };
    let store = base.join("store");
    std::fs::create_dir_all(&store)?;
    let lean = Options { lean: true, ..local("auto") };
    let shared = Options { remote: Some(format!("file://{}", store.display())), ..local("auto") };
    // Passthrough needs the same right as mounting without the helper.
    let root = rustix::process::geteuid().is_root();
    Ok(vec![
        Target::disk(base)?,
        Target::floor(FLOOR, base, root)?,
        Target::node(OURS, base, "node", local("auto"))?,
        Target::node("hearthfs, one user", base, "lean", lean)?,
        Target::node("hearthfs, file://", base, "shared", shared)?,
        Target::floor(FLOOR_ORDINARY, base, false)?,
        Target::node("hearthfs, ordinary", base, "ordinary", local("ordinary"))?,
    ])
}

fn one_turn(
    work: &Work,
    site: &Site<'_>,
    target: &mut Target,
    tap: Option<&Tap>,
    cell: &mut Cell,
) -> Result<()> {
    work.before(site)?;
    if site.round + 1 == site.counts.warm {
        // Counted in a separate round, which is not timed.
        let (samples, trips) = target.count(tap, || Ok(work.turn(site)?.len()))?;
        let operations = (samples * (work.per_sample)(site.counts)).max(1) as f64;
        cell.trips = trips.map(|trips| {
            trips.into_iter().map(|(name, count)| (name, count as f64 / operations)).collect()
        });
    } else {
        let samples = work.turn(site)?;
        if site.round >= site.counts.warm {
            cell.samples.push(samples);
        }
    }
    target.settle()
}

fn tables(names: &[&str], cells: &[Vec<Cell>], counts: &Counts, report: &mut Report) {
    let head = |first: &[&str]| first.iter().chain(names).map(|name| (*name).to_owned()).collect();
    let floor_of = |name: &str| {
        let floor = if name.ends_with("ordinary") { FLOOR_ORDINARY } else { FLOOR };
        names.iter().position(|other| *other == floor).unwrap_or_default()
    };
    let mut times = Table::new("One node: median / 99th percentile, microseconds", head(&["work"]));
    let mut ratios = Table::new("One node: ratio to the floor", head(&["work", "goal"]));
    let mut trips = Table::new(
        "One node: round trips on the caller's path, per operation",
        head(&["work", "goal"]),
    );
    for (work, row) in WORKS.iter().zip(cells) {
        let goal = |goal: Option<f64>| goal.map_or("-".to_owned(), |goal| format!("{goal}"));
        let first = |goal: String| vec![work.name.to_owned(), goal];
        let (mut r, mut t) = (first(goal(work.ratio_max)), first(goal(work.trips_max)));
        let mut time = vec![work.name.to_owned()];
        for (name, cell) in names.iter().zip(row) {
            let each = (work.per_sample)(counts) as f64;
            let (p50, p99) =
                (cell.samples.quantile_us(0.5) / each, cell.samples.quantile_us(0.99) / each);
            let to_floor = cell.samples.ratio_to(&row[floor_of(name)].samples);
            time.push(format!("{} / {}", micros(p50), micros(p99)));
            let ours = name.starts_with("hearthfs");
            r.push(ratio(to_floor, work.ratio_max.filter(|_| ours)));
            let total = cell.trips.as_ref().map(|trips| trips.values().fold(0.0, |sum, n| sum + n));
            t.push(trips_cell(total, cell.trips.as_ref(), work.trips_max.filter(|_| ours)));
            report.row(json!({
                "part": "single", "work": work.name, "target": name, "samples": cell.samples.len(),
                "median_us": p50, "p99_us": p99, "ratio_to_floor": to_floor,
                "ratio_goal": work.ratio_max, "round_trips": total, "round_trips_goal": work.trips_max,
                "by_operation": cell.trips,
            }));
        }
        times.row(time);
        ratios.row(r);
        trips.row(t);
    }
    report.table(&times);
    report.table(&ratios);
    report.table(&trips);
    if names.contains(&OTHER) {
        report.table(&differences(names, cells));
    }
}

/// Returns how many times as long as this program by default the other column takes.
fn differences(names: &[&str], cells: &[Vec<Cell>]) -> Table {
    let head = ["work".to_owned(), format!("`{OTHER}` by `{OURS}`")];
    let mut table = Table::new("One node: the other column beside the default", head.to_vec());
    let of = |column: &str| names.iter().position(|name| *name == column).unwrap_or_default();
    for (work, row) in WORKS.iter().zip(cells) {
        let by = row[of(OTHER)].samples.ratio_to(&row[of(OURS)].samples);
        table.row(vec![work.name.to_owned(), ratio(by, None)]);
    }
    table
}

fn trips_cell(total: Option<f64>, by: Option<&BTreeMap<String, f64>>, goal: Option<f64>) -> String {
    let (Some(total), Some(by)) = (total, by) else { return "-".to_owned() };
    let parts: Vec<String> = by
        .iter()
        .filter(|(_, count)| **count >= 0.005)
        .map(|(name, count)| format!("{name} {}", short(*count)))
        .collect();
    // A single request at the start of a turn, such as one for the directory, does not count as a
    // round trip of the operation.
    let missed = goal.is_some_and(|goal| total > goal + 0.1);
    let mark = if missed { "**" } else { "" };
    if parts.is_empty() {
        return short(total);
    }
    format!("{mark}{}{mark} ({})", short(total), parts.join(", "))
}

fn short(count: f64) -> String {
    let text = format!("{count:.2}");
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}
