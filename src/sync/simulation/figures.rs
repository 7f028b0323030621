//! What came of a simulation, and the bounds it is held to.

use crate::remote::fault::Bill;

/// What S3 takes for a PUT or a LIST, and for a GET, in dollars. A deletion costs nothing.
const DOLLARS_PER_WRITE: f64 = 5.0 / 1e6;
const DOLLARS_PER_READ: f64 = 0.4 / 1e6;
const SECONDS_PER_DAY: f64 = 86_400.0;

/// What is found out about the fleet.
#[derive(Debug, Clone, PartialEq)]
pub struct FleetFigures {
    /// How many nodes.
    pub nodes: usize,
    /// Entries that the cost is divided by.
    pub entries: usize,
    /// The simulated time that was measured, in seconds.
    pub seconds: f64,
    /// What was asked of the bucket meanwhile.
    pub bill: Bill,
    /// Names that programs looked up.
    pub lookups: u64,
    /// Of these: what the store had had for longer than `remote.freshness` was not found, found in an older version, or could
    /// not be opened.
    pub late: u64,
    /// Files that programs made because they found none.
    pub compiled: u64,
    /// Median, 99th percentile and longest time from a close until another node showed it, in milliseconds.
    pub lag_ms: Option<[u64; 3]>,
    /// Bytes uploaded by the bytes of one copy of every entry.
    pub copies: Option<f64>,
    /// When the last node had what it wanted, in seconds.
    pub done_s: Option<f64>,
    /// Objects in the log at the end.
    pub log: u64,
    /// Bytes in the bucket at the end.
    pub stored: u64,
    /// Keys that the lists of a new node told, at the end.
    pub listed_by_new: u64,
    /// Changes that were not remote at the end.
    pub backlog: u64,
}

/// What depends on the machine that runs the simulation.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct MachineFigures {
    /// How long it took, in seconds.
    pub took_s: f64,
    /// Memory of the process by the number of nodes, in bytes. The bucket and the simulation itself are in it.
    pub node_bytes: u64,
}

/// A bound of the requirements, with what was found.
#[derive(Debug, Clone, PartialEq)]
pub struct Bound {
    /// What is bounded.
    pub what: &'static str,
    /// At most this.
    pub goal: f64,
    /// What it is.
    pub value: f64,
    /// In what both are.
    pub unit: &'static str,
}

impl Bound {
    /// Reports whether it holds.
    pub fn holds(&self) -> bool {
        self.value <= self.goal
    }
}

impl FleetFigures {
    /// Returns what the requests cost that were measured, in dollars.
    pub fn dollars(&self) -> f64 {
        let requests = &self.bill.requests;
        let (writes, reads) = (requests.puts + requests.lists, requests.gets + requests.heads);
        writes as f64 * DOLLARS_PER_WRITE + reads as f64 * DOLLARS_PER_READ
    }

    /// Returns what a day of them costs, in dollars.
    pub fn dollars_per_day(&self) -> f64 {
        self.dollars() * SECONDS_PER_DAY / self.seconds
    }

    /// Returns what a day of them costs in a fleet of `nodes` that are all alike.
    pub fn dollars_per_day_of(&self, nodes: usize) -> f64 {
        self.dollars_per_day() * nodes as f64 / self.nodes as f64
    }
}
