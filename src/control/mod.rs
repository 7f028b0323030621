//! The control socket: how the command line talks with a running mount.
//!
//! Owns the place of the socket, its messages, and both of its ends. Must never know how the daemon
//! does what a request asks for: that is behind [`Node`].

mod client;
mod message;
mod mounts;
mod place;
mod server;

pub use client::{Client, find, list};
pub use message::{
    Backlog, BacklogReasons, BusyClient, BusyEntry, BusyReport, DrainProgress, DrainReport,
    FollowerReport, HealthReport, IoReport, LocalUsage, OpensReport, Phase, Request,
    RequestFailure, Response, RulesReport, SetAsideReport, SlowedReport, Status, WarmReport,
};
pub use mounts::{FS_NAME, Mounted, Mounts};
pub use place::{Place, prepare, runtime_dir, search_dirs};
pub use server::{Node, Server, WARM_PATHS_BYTES_MAX};

#[cfg(test)]
mod tests;
