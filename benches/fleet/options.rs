//! What a run simulates, and how much of it.

use std::path::PathBuf;
use std::time::Duration;

use clap::Parser;
use hearthfs::sync::simulation::{Plan, Scenario};

/// Simulates fleets. Run it by `cargo bench --bench fleet -- ...`.
#[derive(Parser, Debug)]
#[command(name = "fleet", disable_version_flag = true)]
pub(crate) struct Options {
    /// Simulates these only: pair, brisk, quiet, cold, failing, warm, busy, day, away.
    #[arg(long, value_delimiter = ',', value_parser = scenario)]
    pub(crate) only: Vec<Scenario>,
    /// Nodes of a fleet; by default what one machine simulates in some minutes.
    #[arg(long)]
    pub(crate) nodes: Option<usize>,
    /// Entries that a fleet shares.
    #[arg(long)]
    pub(crate) entries: Option<usize>,
    /// Simulated seconds of what goes on for ever.
    #[arg(long, value_name = "SECONDS")]
    pub(crate) span: Option<u64>,
    /// Divides the rates of the bucket by this.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub(crate) scarcity: u32,
    /// Decides the figures, but for a few hundredths of `cold`, `failing` and `warm`, and but for times and memory of this machine.
    #[arg(long, default_value_t = 1)]
    pub(crate) seed: u64,
    /// Keeps cache directories below this directory; memory (/dev/shm) is fastest.
    #[arg(long, value_name = "DIR")]
    pub(crate) dir: Option<PathBuf>,
    /// Writes all figures to this file as well.
    #[arg(long, value_name = "FILE")]
    pub(crate) json: Option<PathBuf>,
    /// What cargo passes; without it (as from `cargo test --all-targets`) nothing is done.
    #[arg(long, hide = true)]
    pub(crate) bench: bool,
}

fn scenario(name: &str) -> Result<Scenario, String> {
    let found = Scenario::ALL.into_iter().find(|one| one.name() == name);
    found.ok_or_else(|| format!("there is no scenario `{name}`"))
}

/// Nodes, entries and seconds that two processors and 8 GB simulate in some minutes each.
fn usual(scenario: Scenario) -> (usize, usize, u64) {
    match scenario {
        Scenario::Pair | Scenario::Brisk => (2, 100, 600),
        Scenario::Quiet => (1000, 100, 30),
        Scenario::Cold | Scenario::Failing => (100, 200, 0),
        Scenario::Warm => (1000, 500, 0),
        Scenario::Busy => (200, 100, 20),
        Scenario::Day => (20, 200, 0),
        Scenario::Away => (50, 200, 0),
    }
}

impl Options {
    /// Returns the scenarios to simulate, in order.
    pub(crate) fn scenarios(&self) -> Vec<Scenario> {
        let all = Scenario::ALL.into_iter();
        all.filter(|one| self.only.is_empty() || self.only.contains(one)).collect()
    }

    /// Returns the size of a scenario.
    pub(crate) fn plan(&self, scenario: Scenario) -> Plan {
        let (nodes, entries, seconds) = usual(scenario);
        let is_pair = matches!(scenario, Scenario::Pair | Scenario::Brisk);
        let nodes = if is_pair { nodes } else { self.nodes.unwrap_or(nodes) };
        Plan {
            nodes,
            entries: self.entries.unwrap_or(entries),
            span: Duration::from_secs(self.span.unwrap_or(seconds)),
            scarcity: self.scarcity,
            seed: self.seed,
            dir: self.dir.clone(),
        }
    }
}
