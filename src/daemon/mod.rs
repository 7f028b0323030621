//! The daemon: builds every room, serves one mount, and takes it down again.
//!
//! Owns the order of starting and stopping. Must never hold logic of its own: what it does is to join.
//!
//! Starting, what can refuse comes before what changes anything: settings, mount point, cache directory,
//! remote. Stopping, what promises comes before what forgets: no new writers, drain, unmount, index, the
//! mark of a clean stop.

mod build;
mod node;
mod serve;

pub use serve::{ExitReport, serve};

#[cfg(test)]
mod tests;
