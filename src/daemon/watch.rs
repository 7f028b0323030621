//! Whether the daemon is healthy, and the signs of life for the service manager.
//!
//! Owns the watchdog's signs of life. Must never treat trouble with the store as trouble of the
//! daemon: a restart does not help against that, and costs what is in memory.

use std::sync::Arc;
use std::time::Duration;

use super::node::MountedNode;
use super::sight::Sight;
use crate::clock::sleep;

/// The interval of the checks, unless a watchdog requires a shorter one.
const LOOK_EVERY: Duration = Duration::from_secs(10);
/// Signs of life per watchdog interval, so that a single late one is not fatal.
const SIGNS_PER_INTERVAL: u32 = 3;

/// Checks the mount periodically, and reports to the service manager, until it is dropped. While
/// something is wrong it sends no sign of life, and the watchdog acts.
pub(super) async fn watch(node: Arc<MountedNode>, sight: Arc<Sight>) {
    let manager = Arc::clone(node.manager());
    let every = manager.watchdog().map_or(LOOK_EVERY, |limit| limit / SIGNS_PER_INTERVAL);
    let mut trouble = WatchTrouble::default();
    loop {
        sleep(every).await;
        let found = if node.rooms().engine.has_failed() {
            Err("a background task has panicked")
        } else if manager.watchdog().is_some() {
            sight.see(every).await
        } else {
            Ok(())
        };
        trouble.note(found);
        match found {
            // These take the locks that all requests take, so if a request hangs with a lock held,
            // no sign is sent.
            Ok(()) => {
                node.rooms().fs.held();
                manager.alive(&node.summary());
            }
            Err(what) => manager.status(&format!("out of order: {what}")),
        }
    }
}

/// Logs once when trouble begins and once when it ends.
#[derive(Default)]
struct WatchTrouble(Option<&'static str>);

impl WatchTrouble {
    fn note(&mut self, found: Result<(), &'static str>) {
        match (self.0, found) {
            (None, Err(what)) => tracing::error!(what, "the daemon is out of order"),
            (Some(what), Ok(())) => tracing::info!(what, "the daemon is in order again"),
            _ => {}
        }
        self.0 = found.err();
    }
}
