//! hearthfs: one compile cache for a whole cluster, behind an ordinary directory.
//!
//! The rooms and the direction of their arrows are drawn in `docs/design.md`; `tests/arrows.rs`
//! holds the code to it.

pub mod clock;
pub mod config;
pub mod digest;
pub mod error;
pub mod metrics;
pub mod name;
pub mod stamp;
pub mod task;

pub mod local;
pub mod namespace;
pub mod remote;
pub mod sync;

pub mod fs;

pub mod cli;
pub mod control;
pub mod daemon;
pub mod monitor;
