//! The turn to search the namespace for a user's question.
//!
//! Owns how many searches run at once: one, so that users who ask in a loop take at most one thread
//! from the mount (P14). Must never make a question wait for long.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::clock;

/// How long a question waits for earlier searches. After that its answer lists no similar entries.
const TURN_LIMIT: Duration = Duration::from_secs(1);

/// The turn to search.
#[derive(Debug)]
pub(super) struct SearchTurn(Arc<Semaphore>);

impl Default for SearchTurn {
    fn default() -> Self {
        Self(Arc::new(Semaphore::new(1)))
    }
}

impl SearchTurn {
    /// Waits for the turn; `None` when it takes too long.
    pub(super) async fn wait(&self) -> Option<OwnedSemaphorePermit> {
        clock::within(TURN_LIMIT, Arc::clone(&self.0).acquire_owned()).await?.ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn one_search_runs_at_a_time_and_a_question_waits_a_second() {
        let turns = SearchTurn::default();
        let first = turns.wait().await.expect("no search runs");
        assert!(turns.wait().await.is_none(), "the first search has not ended");
        let (second, ()) = tokio::join!(turns.wait(), async { drop(first) });
        assert!(second.is_some());
    }
}
