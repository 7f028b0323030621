//! Commits that were folded from a copy in the head of the log.
//!
//! Owns the check whether the log has them, too: their small contents are looked for there, and an
//! entry that relies on them would be missing on other nodes. Must never delay a look at the log,
//! nor take a commit for lost because the store does not answer.
//!
//! Keeps P9 self-healing.

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures::StreamExt as _;
use futures::stream;

use super::{FETCHES_AT_ONCE, Follower, HELD_MAX};
use crate::clock;
use crate::namespace::Commit;
use crate::remote::{Remote, decode_commit_named, keys};
use crate::stamp::Stamp;
use crate::sync::read_fault::{ReadFault, read_again};
use crate::task;

/// A commit counts as gone from the log if it is missing this long after it was folded: until then,
/// a store may not show it yet. Also how long a check without an answer is not repeated.
const SETTLED_AFTER: Duration = Duration::from_secs(5);
/// The most commits that wait for a check. Others are not checked.
const COPIED_MAX: usize = 256;

/// A commit that may have been folded from a copy.
#[derive(Debug, Clone)]
pub(super) struct HeadCopy {
    commit: Arc<Commit>,
    /// The monotonic time at which it was folded.
    folded: Duration,
    /// The monotonic time of the next check.
    due: Duration,
}

impl Follower {
    /// Remembers a commit for a check. A copy that cannot be decoded was not used.
    pub(super) async fn remember_copy(&self, stamp: Stamp, bytes: Bytes) {
        let now = self.0.ledger.clock().mono();
        let Ok(commit) = task::blocking(move || decode_commit_named(&bytes, &stamp)).await else {
            return;
        };
        {
            let copied = &mut self.0.state.lock().copied;
            if copied.len() == COPIED_MAX || copied.iter().any(|one| one.commit.stamp == stamp) {
                return;
            }
            copied.push(HeadCopy { commit: Arc::new(commit), folded: now, due: now });
        }
        self.0.copied.notify_one();
    }

    /// Checks these commits whenever there are any.
    pub(super) async fn run_checks(&self, remote: &Remote) {
        loop {
            self.0.copied.notified().await;
            while let Some(due) = self.check_copies(remote).await {
                let left = due.saturating_sub(self.0.ledger.clock().mono());
                clock::within(left, self.0.copied.notified()).await;
            }
        }
    }

    /// Checks those of these commits that are due. Returns when the next one is due.
    pub(in crate::sync) async fn check_copies(&self, remote: &Remote) -> Option<Duration> {
        let now = self.0.ledger.clock().mono();
        let due: Vec<HeadCopy> = {
            let copied = &mut self.0.state.lock().copied;
            let due = copied.iter_mut().filter(|one| one.due <= now);
            due.map(|one| {
                one.due = now + SETTLED_AFTER;
                one.clone()
            })
            .collect()
        };
        let reads = due.into_iter().map(|one| async move {
            let fault = fault_of(remote, one.commit.stamp).await;
            (one, fault)
        });
        let mut reads = pin!(stream::iter(reads).buffered(FETCHES_AT_ONCE));
        while let Some((HeadCopy { commit, folded, .. }, fault)) = reads.next().await {
            let age = self.0.ledger.clock().mono().saturating_sub(folded);
            let is_final = match fault {
                Some(ReadFault::Gone) => age >= SETTLED_AFTER,
                Some(ReadFault::Passing | ReadFault::Ours) => age >= HELD_MAX,
                // One that this node may not read is no fault of the log.
                Some(ReadFault::Damaged | ReadFault::Newer | ReadFault::Refused) | None => true,
            };
            if !is_final {
                continue;
            }
            self.0.state.lock().copied.retain(|one| one.commit.stamp != commit.stamp);
            if matches!(fault, Some(ReadFault::Gone | ReadFault::Damaged)) {
                let ledger = self.0.ledger.clone();
                task::blocking(move || ledger.mark_inline_bad(&commit)).await;
            }
        }
        self.0.state.lock().copied.iter().map(|one| one.due).min()
    }
}

/// Returns why a commit cannot be read from the log; `None` if it can.
async fn fault_of(remote: &Remote, stamp: Stamp) -> Option<ReadFault> {
    let name = keys::commit_name(&stamp);
    let read = read_again(async || {
        let bytes = remote.get_commit(&name).await?;
        task::blocking(move || decode_commit_named(&bytes, &stamp)).await
    });
    read.await.err().map(|error| ReadFault::of(&error))
}
