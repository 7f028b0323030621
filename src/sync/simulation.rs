//! A fleet in virtual time: many nodes that run the real engine over one simulated bucket.
//!
//! Owns what the programs of a simulated fleet do, and what is counted. Must never change what the engine does: a node has
//! the ledger, publisher, follower, fetcher and checkpointer of every other, with files on a real file system. Two things are
//! left out, the mount and the index. One thread does everything, and all chance but the order in which the runtime wakes tasks
//! follows from one seed.

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
