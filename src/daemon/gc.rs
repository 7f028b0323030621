//! Building what collects the garbage of a store, without a mount.

use std::time::Duration;

use crate::clock::Clock;
use crate::config::Settings;
use crate::error::{Error, Kind, Result};
use crate::remote::{Remote, RemoteOptions};
use crate::stamp::NodeId;
use crate::sync::LOG_GRACE;
pub use crate::sync::gc::{
    Collector, Progress as Collecting, Removed as CollectedRemoved, Report as Collected,
    Tally as CollectedTally, Why as CollectedWhy,
};
use crate::task;

/// Makes a collector for the remote of the settings. `dry_run` writes nothing at all; `grace` is for stores
/// on which no node is mounted, or for tests.
pub fn collector(settings: &Settings, dry_run: bool, grace: Option<Duration>) -> Result<Collector> {
    let Some(url) = &settings.remote.url else {
        let op = "no remote is named: give its address, or a configuration with remote.url";
        return Err(Error::new(Kind::Invalid, op));
    };
    let options = RemoteOptions {
        endpoint: settings.remote.endpoint.clone(),
        region: settings.remote.region.clone(),
        path_style: settings.remote.path_style,
        deadline: settings.remote.deadline,
        expiry: settings.expiry.age,
    };
    // Only its probe bears the name.
    let node = NodeId(task::random_u64());
    let open = || Remote::open(url, &options, Clock::of_process(), node);
    let writer = if dry_run { None } else { Some(open()?) };
    Ok(Collector::new(&open()?.read_only(), writer.as_ref(), grace.unwrap_or(LOG_GRACE)))
}
