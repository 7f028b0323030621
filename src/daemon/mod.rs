//! The daemon: builds every room, serves one mount, and takes it down again.
//!
//! Owns the order of starting and stopping. Must never hold logic of its own: it only connects the rooms.
//!
//! At start, steps that can refuse come before those that change anything: settings, mount point,
//! cache directory, remote. At stop, steps that keep promises come before those that discard state:
//! no new writers, drain, unmount, index, the mark of a clean stop.

mod build;
mod client_dirs;
mod fleet;
mod gc;
mod look;
mod monitored;
mod node;
mod notify;
mod outsider;
mod pending;
mod rules;
mod serve;
mod sight;
mod watch;

pub use client_dirs::{MAKE_DIRS, make_dirs};
pub use gc::{
    Collected, CollectedRemoved, CollectedTally, CollectedWhy, Collecting, Collection, Collector,
    collector,
};
pub use look::{LOOK, LookResult, look_at};
pub use node::TAKEN_OVER;
pub use notify::MANAGER_VARIABLES;
pub use pending::count_pending;
pub use rules::{credentials_remedy, credentials_source, know_store, lifecycle, region, store};
pub use serve::{ExitReport, serve};

pub use crate::remote::{
    Access, Declaration, Declared, Lifecycle, Obstacle, RulesCheck, Step, StoreId, Trial,
    is_shorter,
};
#[cfg(test)]
mod tests;
