//! The results of a simulation, and the bounds that they are compared with.

use crate::remote::fault::Bill;

/// The prices of S3 for a PUT or a LIST, and for a GET, in dollars. A deletion is free.
const DOLLARS_PER_WRITE: f64 = 5.0 / 1e6;
const DOLLARS_PER_READ: f64 = 0.4 / 1e6;
const SECONDS_PER_DAY: f64 = 86_400.0;

/// What was measured of the fleet.
#[derive(Debug, Clone, PartialEq)]
pub struct FleetFigures {
    /// The number of nodes.
    pub nodes: usize,
    /// The number of entries by which the cost is divided.
    pub entries: usize,
    /// The simulated time that was measured, in seconds.
    pub seconds: f64,
    /// The requests to the bucket in that time.
    pub bill: Bill,
    /// Names that programs looked up.
    pub lookups: u64,
    /// Of these, lookups that were wrong: an entry that had been in the store for longer than
    /// `remote.freshness` was not found, was found in an older version, or could not be opened.
    pub late: u64,
    /// Files that programs wrote because they found none.
    pub compiled: u64,
    /// Median, 99th percentile and maximum of the time from a close until another node showed it,
    /// in milliseconds.
    pub lag_ms: Option<[u64; 3]>,
    /// Uploaded bytes, divided by the bytes of one copy of every entry.
    pub copies: Option<f64>,
    /// When the last node had everything that it wanted, in seconds.
    pub done_s: Option<f64>,
    /// Objects in the log at the end.
    pub log: u64,
    /// Bytes in the bucket at the end.
    pub stored: u64,
    /// Keys that the lists of a new node returned, at the end.
    pub listed_by_new: u64,
    /// Changes that were not remote at the end.
    pub backlog: u64,
}

/// Figures that depend on the machine that runs the simulation.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct MachineFigures {
    /// How long the simulation took, in seconds.
    pub took_s: f64,
    /// Memory of the process divided by the number of nodes, in bytes. Includes the bucket and the
    /// simulation itself.
    pub node_bytes: u64,
}

/// A bound of the requirements, with the measured value.
#[derive(Debug, Clone, PartialEq)]
pub struct Bound {
    /// The quantity that is bounded.
    pub what: &'static str,
    /// The highest allowed value.
    pub goal: f64,
    /// The measured value.
    pub value: f64,
    /// The unit of both.
    pub unit: &'static str,
}

impl Bound {
    /// Reports whether the bound holds.
    pub fn holds(&self) -> bool {
        self.value <= self.goal
    }
}

impl FleetFigures {
    /// Returns the cost of the measured requests, in dollars.
    pub fn dollars(&self) -> f64 {
        let requests = &self.bill.requests;
        let (writes, reads) = (requests.puts + requests.lists, requests.gets + requests.heads);
        writes as f64 * DOLLARS_PER_WRITE + reads as f64 * DOLLARS_PER_READ
    }

    /// Returns the cost of such requests in a day, in dollars.
    pub fn dollars_per_day(&self) -> f64 {
        self.dollars() * SECONDS_PER_DAY / self.seconds
    }

    /// Returns the cost of such requests in a day for a fleet of `nodes` equal nodes.
    pub fn dollars_per_day_of(&self, nodes: usize) -> f64 {
        self.dollars_per_day() * nodes as f64 / self.nodes as f64
    }
}
