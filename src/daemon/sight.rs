//! Whether the mount answers a program that uses it.
//!
//! Owns the one look in progress, and its last answer. Must never start a second look beside it, nor
//! one for each request: a look is a process, and local users may send as many requests as they like.

use std::sync::Arc;
use std::time::Duration;

use super::look::{Look, LookResult};
use super::node::MountedNode;
use crate::clock::within;

/// A younger answer is returned again.
const FRESH: Duration = Duration::from_secs(1);

/// The view that a program has of the mount.
#[derive(Debug)]
pub(super) struct Sight {
    node: Arc<MountedNode>,
    state: tokio::sync::Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// A look that has exceeded its limit.
    under_way: Option<Look>,
    /// The last answer, and when it came, by the monotonic clock.
    found: Option<(Duration, Result<(), &'static str>)>,
}

impl Sight {
    pub(super) fn new(node: &Arc<MountedNode>) -> Self {
        Self { node: Arc::clone(node), state: tokio::sync::Mutex::default() }
    }

    /// Looks through the kernel for at most `limit`; a recent answer is reused. A look that exceeds
    /// the limit continues, and the next call waits for it.
    ///
    /// # Errors
    ///
    /// What is wrong, if the mount answers with an error, or not in time.
    pub(super) async fn see(&self, limit: Duration) -> Result<(), &'static str> {
        let mut state = self.state.lock().await;
        let now = self.node.rooms().clock.mono();
        if let Some((at, found)) = state.found
            && now.saturating_sub(at) < FRESH
        {
            return found;
        }
        let found = self.look(&mut state, limit).await;
        state.found = Some((self.node.rooms().clock.mono(), found));
        found
    }

    async fn look(&self, state: &mut State, limit: Duration) -> Result<(), &'static str> {
        let mut under_way = match state.under_way.take() {
            Some(look) => look,
            None => {
                let Some(point) = self.node.mounted_at() else { return Ok(()) };
                match Look::start(point, self.node.may_look().await) {
                    Ok(look) => look,
                    Err(error) => {
                        // There are no processes or no memory left, which says nothing about the mount.
                        tracing::debug!(error = error.chain(), "cannot look at the mount");
                        return Ok(());
                    }
                }
            }
        };
        match within(limit, under_way.seen()).await {
            // A mount that was unmounted in use is served until its last user ends.
            Some(LookResult::Alive | LookResult::Gone) => Ok(()),
            Some(LookResult::Dead | LookResult::Failed) => Err("the mount answers with an error"),
            None => {
                state.under_way = Some(under_way);
                Err("the mount does not answer")
            }
        }
    }
}
