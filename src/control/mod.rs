//! The control socket: how the command line talks with a running mount.
//!
//! Owns the place of the socket, its messages, and both of its ends. Must never know how the daemon
//! does what a request asks for: that is behind [`Node`].

mod client;
mod message;
mod mounts;
mod place;
mod server;
mod status;

pub use client::{Client, find, list};
pub use message::{
    BusyClient, BusyEntry, BusyReport, DrainProgress, DrainReport, OpensReport, Request,
    RequestFailure, Response, WarmReport,
};
pub use mounts::{FS_NAME, Mounted, Mounts};
pub use place::{Place, prepare, runtime_dir, search_dirs};
pub use server::{Node, Server, WARM_PATHS_BYTES_MAX};
pub use status::{
    Backlog, BacklogReasons, DaemonReport, FollowerReport, HealthReport, IoReport, LifeReport,
    LocalUsage, Phase, RulesReport, SetAsideReport, SharingReport, SlowedReport, Status,
    StoreReport, UnsentReport,
};

#[cfg(test)]
mod tests;
