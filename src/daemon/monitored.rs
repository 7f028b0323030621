//! The daemon as monitors see it.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;

use super::node::MountedNode;
use super::sight::Sight;
use crate::control::{Node as _, Phase};
use crate::metrics::Distribution;
use crate::monitor::{self, Monitored, MountFigures, Series};
use crate::remote::Remote;

/// How long a look through the mount may take before the mount counts as unresponsive.
const LOOK_LIMIT: Duration = Duration::from_secs(5);

/// A mount with what a monitor needs to check it.
#[derive(Debug)]
pub(super) struct MonitoredNode {
    node: Arc<MountedNode>,
    sight: Arc<Sight>,
}

impl MonitoredNode {
    pub(super) fn new(node: &Arc<MountedNode>, sight: &Arc<Sight>) -> Self {
        Self { node: Arc::clone(node), sight: Arc::clone(sight) }
    }

    fn series(&self) -> Vec<Series> {
        let rooms = self.node.rooms();
        let (times, traffic) = (&rooms.metrics.times, rooms.engine.ledger().traffic());
        let plain = |name, times: Distribution| Series { name, labels: Vec::new(), times };
        let mut all = vec![
            plain(monitor::CLOSE, times.close.read()),
            plain(monitor::OPEN, times.open.read()),
            plain(monitor::FETCH, times.fetch.read()),
        ];
        let Some(remote) = &rooms.remote else { return all };
        all.push(plain(monitor::PUBLISH, traffic.publish_delay.read()));
        all.push(plain(monitor::LAG, traffic.follower_lag.read()));
        all.extend(Remote::request_times(remote).into_iter().map(|one| Series {
            name: monitor::STORE,
            labels: vec![("kind", one.kind.to_owned()), ("status", one.status)],
            times: one.times,
        }));
        all
    }
}

#[async_trait]
impl Monitored for MonitoredNode {
    fn figures(&self) -> MountFigures {
        MountFigures { status: self.node.status(), series: self.series() }
    }

    async fn trouble(&self) -> Option<String> {
        if self.node.rooms().engine.has_failed() {
            return Some("a background task has panicked".to_owned());
        }
        // Before the mount appears, and while it is removed, a look is impossible.
        if self.node.status().life.phase != Phase::Serving {
            return None;
        }
        self.sight.see(LOOK_LIMIT).await.err().map(ToOwned::to_owned)
    }
}
