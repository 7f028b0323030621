//! Building what collects the garbage of a store, without a mount.

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

/// What a collection is asked for beside the settings.
#[derive(Debug, Clone, Copy)]
pub struct Collection {
    /// Nothing at all is written.
    pub dry_run: bool,
    /// The expiry was set: it is not the default.
    pub told: bool,
    /// How long what nodes may rely on is kept; for stores on which no node is mounted, or for tests.
    pub grace: Option<Duration>,
}

/// Makes a collector for the remote of the settings, and checks that.
///
/// # Errors
///
/// `Invalid` when the settings name no remote or one that cannot work; the errors of [`Collector::open`].
pub async fn collector(settings: &Settings, asked: Collection) -> Result<Collector> {
    let Some(url) = &settings.remote.url else {
        let op = "no remote is named: give its address, or a configuration with remote.url";
        return Err(Error::new(Kind::Invalid, op));
    };
    let options = remote_options(settings);
    // Only its probe bears the name.
    let node = NodeId(task::random_u64());
    let open = || Remote::open(url, &options, Clock::of_process(), node);
    let writer = if asked.dry_run { None } else { Some(open()?) };
    let options = GcOptions { grace: asked.grace.unwrap_or(LOG_GRACE), told: asked.told };
    Collector::open(&open()?.read_only(), writer.as_ref(), options).await
}
