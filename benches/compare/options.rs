//! What a run does, and how much of it.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Parser, ValueEnum};

/// Compares hearthfs with the disk and with the floor. Run it by `cargo bench --bench compare -- ...`.
#[derive(Parser, Debug)]
#[command(name = "compare", disable_version_flag = true)]
pub(crate) struct Options {
    /// Does these parts only.
    #[arg(long, value_delimiter = ',', value_enum)]
    pub(crate) only: Vec<Part>,
    /// Writes all figures to this file as well.
    #[arg(long, value_name = "FILE")]
    pub(crate) json: Option<PathBuf>,
    /// Works below this directory: the disk that is compared. By default that for temporary files.
    #[arg(long, value_name = "DIR")]
    pub(crate) dir: Option<PathBuf>,
    /// Does little of everything: for trying the benchmark itself.
    #[arg(long)]
    pub(crate) quick: bool,
    /// Rounds of the works on one node.
    #[arg(long)]
    pub(crate) rounds: Option<usize>,
    /// Works on one node: adds a column of a hearthfs with this setting; may be given more than once.
    #[arg(long, value_name = "KEY=VALUE")]
    pub(crate) with: Vec<String>,
    /// Works on one node: the program of that column, such as one of an earlier commit.
    #[arg(long, value_name = "PROGRAM")]
    pub(crate) other: Option<PathBuf>,
    /// Also measures a store with 1,000,000 entries.
    #[arg(long)]
    pub(crate) million: bool,
    /// What cargo passes; without it (as from `cargo test --all-targets`) nothing is done.
    #[arg(long, hide = true)]
    pub(crate) bench: bool,
    /// Serves the floor: mount point and backing directory.
    #[arg(long, hide = true, num_args = 2, value_names = ["MOUNT", "BACKING"])]
    pub(crate) serve_floor: Option<Vec<PathBuf>>,
    /// Serves it without passthrough.
    #[arg(long, hide = true)]
    pub(crate) ordinary: bool,
}

/// A part of the report.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub(crate) enum Part {
    /// One node, against disk and floor.
    Single,
    /// One node while much is listed, and much is open.
    Pressure,
    /// Two nodes over a slow store.
    Across,
    /// Many bytes for a fresh node, beside a plain program that fetches the same objects.
    Bulk,
    /// Many entries.
    Scale,
    /// Other programs that mount a store.
    Peers,
}

impl Part {
    /// All of them, in their order.
    pub(crate) const ALL: [Self; 6] =
        [Self::Single, Self::Pressure, Self::Across, Self::Bulk, Self::Scale, Self::Peers];

    /// Returns how long it may take at most.
    pub(crate) fn limit(self) -> Duration {
        Duration::from_mins(match self {
            Self::Single | Self::Scale => 20,
            Self::Pressure | Self::Across | Self::Bulk | Self::Peers => 10,
        })
    }
}

impl Options {
    /// Returns whether a part is to be done.
    pub(crate) fn wants(&self, part: Part) -> bool {
        self.only.is_empty() || self.only.contains(&part)
    }

    /// Returns how much is done.
    pub(crate) fn counts(&self) -> Counts {
        let mut counts = if self.quick { QUICK } else { FULL };
        if let Some(rounds) = self.rounds {
            counts.rounds = rounds.max(1);
        }
        counts
    }
}

/// How many of everything.
#[derive(Clone, Debug)]
pub(crate) struct Counts {
    /// Timed rounds of the works on one node.
    pub(crate) rounds: usize,
    /// Rounds before that: they warm up, and the last one is counted.
    pub(crate) warm: usize,
    /// Names of one turn of a stat work.
    pub(crate) stats: usize,
    /// Files of 8 KiB, 256 KiB and 4 MiB of one turn.
    pub(crate) files: [usize; 3],
    /// Entries of a listed directory.
    pub(crate) listed: usize,
    /// Directories that are listed once each.
    pub(crate) lists: usize,
    /// Files of 8 KiB, 256 KiB and 4 MiB of the set that travels between nodes.
    pub(crate) set: [usize; 3],
    /// Files of 256 KiB and 8 KiB that a fresh node reads in bulk.
    pub(crate) bulk: [usize; 2],
    /// Rounds of that.
    pub(crate) bulk_rounds: usize,
    /// Files of 30 KB that are copied in.
    pub(crate) copied: usize,
    /// Changes that are waited for on the other node.
    pub(crate) seen: usize,
    /// Seconds for which an idle node is watched.
    pub(crate) idle_s: u64,
    /// Entries of the larger store.
    pub(crate) entries: usize,
    /// Names of a directory that is listed beside other work.
    pub(crate) pressed: usize,
    /// Files that are held open beside other work.
    pub(crate) held: usize,
}

const FULL: Counts = Counts {
    rounds: 20,
    warm: 2,
    stats: 100,
    files: [60, 24, 6],
    listed: 10_000,
    lists: 5,
    set: [2000, 200, 50],
    bulk: [1600, 5000],
    bulk_rounds: 5,
    copied: 6400,
    seen: 40,
    idle_s: 30,
    entries: 100_000,
    pressed: 40_000,
    held: 15_000,
};

const QUICK: Counts = Counts {
    rounds: 3,
    warm: 2,
    stats: 50,
    files: [20, 8, 2],
    listed: 1000,
    lists: 5,
    set: [200, 20, 5],
    bulk: [160, 500],
    bulk_rounds: 1,
    copied: 640,
    seen: 5,
    idle_s: 5,
    entries: 5000,
    pressed: 4000,
    held: 1500,
};

impl Counts {
    /// Returns the number of files of that size in one turn.
    pub(crate) fn files(&self, size: usize) -> usize {
        self.files[match size {
            0..=0x4000 => 0,
            0x4001..=0x10_0000 => 1,
            _ => 2,
        }]
    }

    /// Returns the rounds with those that warm up.
    pub(crate) fn rounds_all(&self) -> usize {
        self.rounds + self.warm
    }
}
