//! A fleet in virtual time: many nodes that run the real engine over one simulated bucket.
//!
//! Owns what the programs of a simulated fleet do, and the figures that are counted. Must never
//! change what the engine does: each node has the real ledger, publisher, follower, fetcher and
//! checkpointer, with files on a real file system. Two parts are left out, the mount and the index.
//! One thread does everything. All randomness follows from one seed, except the order in which the
//! runtime wakes tasks.

mod figures;
mod fleet;
mod node;
mod oracle;
mod programs;
mod scenarios;

#[cfg(test)]
mod tests;

pub use figures::{Bound, FleetFigures, MachineFigures};
pub use fleet::Plan;
pub use scenarios::{Scenario, run};
