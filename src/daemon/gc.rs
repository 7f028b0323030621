//! Builds the garbage collector of a store, without a mount.

use std::time::Duration;

use super::build::remote_options;
use crate::clock::Clock;
use crate::config::Settings;
use crate::error::{Error, Kind, Result};
use crate::remote::Remote;
use crate::stamp::NodeId;
use crate::sync::LOG_GRACE;
use crate::sync::gc::GcOptions;
pub use crate::sync::gc::{
    Collector, GcProgress as Collecting, Removed as CollectedRemoved, Report as Collected,
    Tally as CollectedTally, Why as CollectedWhy,
};
use crate::task;

/// The options of a collection besides the settings.
#[derive(Debug, Clone, Copy)]
pub struct Collection {
    /// Nothing is written.
    pub dry_run: bool,
    /// The expiry was set explicitly, rather than by default.
    pub told: bool,
    /// How long objects that nodes may rely on are kept; for stores that no node mounts, or for tests.
    pub grace: Option<Duration>,
}

/// Makes a collector for the remote of the settings, and checks the remote.
///
/// # Errors
///
/// `Invalid` when the settings name no remote or one that cannot work; the errors of [`Collector::open`].
pub async fn collector(settings: &Settings, asked: Collection) -> Result<Collector> {
    let Some(url) = &settings.remote.url else {
        let op = "no remote is named: pass its address, or a configuration with remote.url";
        return Err(Error::new(Kind::Invalid, op));
    };
    let options = remote_options(settings);
    // Only its probe uses this name.
    let node = NodeId(task::random_u64());
    let open = || Remote::open(url, &options, Clock::of_process(), node);
    let writer = if asked.dry_run { None } else { Some(open()?) };
    let options = GcOptions { grace: asked.grace.unwrap_or(LOG_GRACE), told: asked.told };
    Collector::open(&open()?.read_only(), writer.as_ref(), options).await
}
