//! Moves contents from old commits into packs, so that the commits can be deleted.
//!
//! Owns what is moved, and when. Must never move contents that no file uses. It need not hurry:
//! nothing waits for it.

use parking_lot::Mutex;

use crate::sync::fetcher::Fetcher;
use crate::sync::ledger::Ledger;
use crate::task;

/// How many contents are moved together: one commit names the places of all of them.
const TOGETHER_MAX: usize = 1024;

/// Moves contents.
#[derive(Debug)]
pub(super) struct Mover {
    ledger: Ledger,
    fetcher: Fetcher,
    /// The mark from which it continues; `None` while there is nothing to do.
    mark: Mutex<Option<u32>>,
}

impl Mover {
    pub(super) fn new(ledger: Ledger, fetcher: Fetcher) -> Self {
        Self { ledger, fetcher, mark: Mutex::default() }
    }

    /// Starts examining everything, unless that is already in progress.
    pub(super) fn begin(&self) {
        self.mark.lock().get_or_insert(0);
    }

    /// Moves some contents of commits that were made before `before_ms`, with the next commit of
    /// this node.
    pub(super) async fn move_some(&self, before_ms: u64) {
        let mut ready = Vec::new();
        while ready.is_empty() {
            let Some(mark) = *self.mark.lock() else { return };
            // The contents of the last call are still in flight.
            if self.ledger.is_renewing() {
                return;
            }
            let ledger = self.ledger.clone();
            let (mut found, next) = task::blocking(move || ledger.inline_in_use(mark)).await;
            // A content past its age stays a miss.
            found.retain(|one| {
                one.commit.ms < before_ms && !self.ledger.reliance().is_expired(one.stored_ms)
            });
            let all = found.len() <= TOGETHER_MAX;
            found.truncate(TOGETHER_MAX);
            for one in found {
                match self.fetcher.fetch(one.digest, one.size).await {
                    Ok(()) => ready.push((one.digest, one.size)),
                    Err(error) => {
                        let digest = one.digest;
                        tracing::debug!(%digest, error = %error.chain(), "a content cannot be moved");
                    }
                }
            }
            // Moved contents are not found again, so the rest of a slice is examined once more.
            if all || ready.is_empty() {
                *self.mark.lock() = next;
            }
        }
        tracing::debug!(contents = ready.len(), "moved from commits into packs");
        self.ledger.store_again(&ready);
    }
}
