//! Synchronisation: the changes of this node go out in order, and the commits of other nodes come
//! in whole.
//!
//! Owns the ledger (namespace and journal together), publisher, follower and fetcher. Must never
//! make a program wait for the store beyond its deadline. Must never let the namespace show
//! anything that is in no commit and no journal record.

mod announcement;
mod announcer;
mod backoff;
mod batch;
mod chains;
mod checkpoint_copy;
mod checkpointer;
mod claims;
mod covers;
mod doubts;
mod draft;
mod engine;
mod fetcher;
mod flight;
mod folded_log;
mod follower;
mod freshness;
pub mod gc;
mod head;
mod lacking;
mod lag;
mod ledger;
mod look_pace;
mod missing;
mod pace;
mod parcels;
mod patience;
mod publisher;
mod quiet;
mod read_fault;
mod renewer;
mod room;
#[cfg(any(test, feature = "test-util"))]
pub mod simulation;
mod times;
mod troubled;
mod unpack;
mod upload;
mod versions;

pub use checkpointer::Checkpointer;
pub use draft::LogView;
pub use engine::{Engine, EngineSettings, Parts, Unsent};
pub use fetcher::{Fetcher, Warmed};
pub use follower::Follower;
pub use freshness::{FRESH_FOR_EVER, Freshness};
pub use lag::Following;
pub use ledger::{
    HOLD_MAX, HoldToken, Ledger, LedgerParts, Moved, Pending, RECORD_CHANGES_MAX, SetAside,
    Traffic, Turn, Written, known_of_index,
};
pub use publisher::{DrainOutcome, Publisher};
pub use renewer::Renewer;
pub use room::{Demand, FULL_WAIT, PENDING_BYTES_MAX, PENDING_RECORDS_MAX, Room, Slowed};
pub use times::LOG_GRACE;

#[cfg(test)]
mod tests;
