//! The figures, as Markdown for people and as JSON for scripts.

use std::fmt::Write as _;
use std::path::Path;

use anyhow::Result;
use hearthfs::sync::simulation::{Bound, FleetFigures, MachineFigures, Scenario};
use serde_json::{Value, json};

const HOUR: f64 = 3600.0;
const MIB: f64 = 1_048_576.0;

/// All results.
#[derive(Debug, Default)]
pub(crate) struct Report {
    requests: Vec<String>,
    programs: Vec<String>,
    bounds: Vec<String>,
    rows: Vec<Value>,
}

impl Report {
    /// Adds the results of a scenario.
    pub(crate) fn add(
        &mut self,
        scenario: Scenario,
        found: &FleetFigures,
        machine: &MachineFigures,
    ) {
        self.requests.push(requests(scenario, found));
        self.programs.push(programs(scenario, found, machine));
        let bounds = scenario.bounds(found);
        for bound in &bounds {
            self.bounds.push(line(scenario, bound));
        }
        self.rows.push(row(scenario, found, machine, &bounds));
    }

    /// Returns the human-readable text.
    pub(crate) fn markdown(&self) -> String {
        let mut text = String::new();
        for (head, rows) in [
            (
                "scenario | nodes | simulated | PUT | GET | LIST | DELETE | per | requests by entry | refused (503) | \
                 most in a second of one prefix: read / written | cost",
                &self.requests,
            ),
            (
                "scenario | close to visible: p50 / p99 / longest | lookups | misses that should have been hits | done | \
                 copies | up / down per node | bucket at the end | log at the end | keys that a new node lists | \
                 memory per node | took",
                &self.programs,
            ),
            ("scenario | bound | goal | found | ", &self.bounds),
        ] {
            let columns = head.split('|').count();
            let _ = writeln!(text, "| {head} |\n|{}", " --- |".repeat(columns));
            for row in rows {
                let _ = writeln!(text, "| {row} |");
            }
            text.push('\n');
        }
        text
    }

    /// Writes the machine-readable figures.
    pub(crate) fn write_json(&self, path: &Path) -> Result<()> {
        Ok(std::fs::write(path, serde_json::to_vec_pretty(&self.rows)?)?)
    }
}

fn requests(scenario: Scenario, found: &FleetFigures) -> String {
    let asked = &found.bill.requests;
    let (by, per, cost) = if scenario.goes_on() {
        let hours = found.seconds / HOUR;
        (
            found.nodes as f64 * hours,
            "node and hour",
            format!("${:.2} a day", found.dollars_per_day()),
        )
    } else {
        (found.nodes as f64, "node", format!("${:.4}", found.dollars()))
    };
    let each = |count: u64| format!("{:.1}", count as f64 / by);
    [
        scenario.name().to_owned(),
        found.nodes.to_string(),
        span(found.seconds),
        each(asked.puts),
        each(asked.gets + asked.heads),
        each(asked.lists),
        each(asked.deletes),
        per.to_owned(),
        format!("{:.1}", asked.total() as f64 / found.entries.max(1) as f64),
        found.bill.refused.to_string(),
        format!("{} / {}", found.bill.peak[0], found.bill.peak[1]),
        cost,
    ]
    .join(" | ")
}

fn span(seconds: f64) -> String {
    if seconds >= HOUR { format!("{:.1} h", seconds / HOUR) } else { format!("{seconds:.0} s") }
}

fn programs(scenario: Scenario, found: &FleetFigures, machine: &MachineFigures) -> String {
    let seconds = |ms: u64| format!("{:.2} s", ms as f64 / 1000.0);
    let none = || "-".to_owned();
    let asked = &found.bill.requests;
    let mib = |bytes: u64| format!("{:.1} MiB", bytes as f64 / MIB);
    [
        scenario.name().to_owned(),
        found.lag_ms.map_or_else(none, |lag| lag.map(seconds).join(" / ")),
        found.lookups.to_string(),
        found.late.to_string(),
        found.done_s.map_or_else(none, span),
        found.copies.map_or_else(none, |copies| format!("{copies:.2}")),
        format!(
            "{} / {}",
            mib(asked.bytes_up / found.nodes as u64),
            mib(asked.bytes_down / found.nodes as u64)
        ),
        mib(found.stored),
        found.log.to_string(),
        found.listed_by_new.to_string(),
        mib(machine.node_bytes),
        format!("{:.0} s", machine.took_s),
    ]
    .join(" | ")
}

fn line(scenario: Scenario, bound: &Bound) -> String {
    let Bound { what, goal, value, unit } = bound;
    let verdict = if bound.holds() { "holds" } else { "**MISSED**" };
    format!("{} | {what} | {goal}{unit} | {value:.2}{unit} | {verdict}", scenario.name())
}

fn row(
    scenario: Scenario,
    found: &FleetFigures,
    machine: &MachineFigures,
    bounds: &[Bound],
) -> Value {
    let asked = &found.bill.requests;
    let bounds: Vec<Value> = bounds
        .iter()
        .map(|one| json!({ "what": one.what, "goal": one.goal, "found": one.value, "holds": one.holds() }))
        .collect();
    json!({
        "scenario": scenario.name(),
        "nodes": found.nodes,
        "entries": found.entries,
        "seconds": found.seconds,
        "requests": asked,
        "refused": found.bill.refused,
        "peak": found.bill.peak,
        "dollars": found.dollars(),
        "lookups": found.lookups,
        "late": found.late,
        "compiled": found.compiled,
        "lag_ms": found.lag_ms,
        "copies": found.copies,
        "done_s": found.done_s,
        "stored_bytes": found.stored,
        "log": found.log,
        "listed_by_new": found.listed_by_new,
        "node_bytes": machine.node_bytes,
        "took_s": machine.took_s,
        "bounds": bounds,
    })
}
