//! A fleet in virtual time: the requests of a thousand nodes to one bucket, and how long they wait
//! for each other.
//!
//! Owns the sizes of the scenarios and the report. The fleet itself is `hearthfs::sync::simulation`,
//! which runs the real engine. How to read the report: `docs/performance.md`.

mod options;
mod report;
#[path = "../say/mod.rs"]
mod say;

use std::process::ExitCode;

use anyhow::{Context as _, Result};
use clap::Parser as _;
use hearthfs::sync::simulation::run;
use options::Options;
use report::Report;
use say::{print, say};

fn main() -> ExitCode {
    let options = Options::parse();
    if !options.bench {
        say(format_args!("nothing done: run it by `cargo bench --bench fleet`"));
        return ExitCode::SUCCESS;
    }
    match simulate(&options) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            say(format_args!("error: {error:#}"));
            ExitCode::FAILURE
        }
    }
}

fn simulate(options: &Options) -> Result<()> {
    let mut report = Report::default();
    for scenario in options.scenarios() {
        let plan = options.plan(scenario);
        say(format_args!("{}: {} nodes ...", scenario.name(), plan.nodes));
        let (found, machine) =
            run(scenario, &plan).with_context(|| format!("simulate `{}`", scenario.name()))?;
        say(format_args!("{}: {:.0} s", scenario.name(), machine.took_s));
        report.add(scenario, &found, &machine);
    }
    print(&report.markdown());
    if let Some(path) = &options.json {
        report.write_json(path).with_context(|| format!("write {}", path.display()))?;
    }
    Ok(())
}
