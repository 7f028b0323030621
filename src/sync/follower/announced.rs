//! Looking at the head of the log instead of listing it.
//!
//! Owns when that will do. Must never take the head for a list when commits are missing here, or wait to be read again.

use std::time::Duration;

use bytes::Bytes;

use super::bundles::FEW;
use super::list::ListReach;
use super::{Folded, Follower, Inner, WaitingNodes};
use crate::error::Result;
use crate::remote::{HeadCommit, LogHead, Remote};
use crate::stamp::Stamp;
use crate::sync::times::LOOK_BACK_MS;

/// The log is listed for so long after a commit was missing before one that is there: some stores list late what they
/// have.
const GAP_FOR: Duration = Duration::from_mins(1);

impl Follower {
    /// Folds what is new, by the head of the log where that tells everything; returns whether all of it was folded.
    /// With `must_list` the log is listed in any case.
    pub(super) async fn bring_in(&self, remote: &Remote, must_list: bool) -> Result<bool> {
        let (ledger, watch) = (&self.0.ledger, &self.0.head);
        let (began, began_ms) = (ledger.clock().mono(), ledger.now_ms());
        let head = watch.look(&self.reaching(remote)).await?;
        if !must_list
            && let Some(head) = &head
            && self.is_up_to_date(remote).await
            && let Some(news) = watch.news(head)
            && news.iter().filter(|one| one.bytes.is_none()).count() <= FEW
            && self.fold_announced(remote, news).await == Folded::All
        {
            watch.note_folded(head);
            self.advance(began_ms.min(latest_ms(head)));
            self.0.state.lock().unlisted = true;
            ledger.note_listed(began, began_ms);
            return Ok(true);
        }
        let mut new = Vec::new();
        if !self.list_and_fold(remote, &mut new).await? {
            return Ok(false);
        }
        if let Some(head) = &head {
            // Some stores list late what they have. What is older may have been deleted.
            let young = |one: &&HeadCommit| one.stamp.ms.saturating_add(LOOK_BACK_MS) > began_ms;
            let young = head.commits.iter().filter(young).cloned().collect();
            if self.fold_announced(remote, young).await != Folded::All {
                watch.note_listed(None, &[]);
                return Ok(false);
            }
        }
        watch.note_listed(head.as_deref(), &new);
        Ok(true)
    }

    /// Reports whether a list is not due for another reason than what is new.
    async fn is_up_to_date(&self, remote: &Remote) -> bool {
        let Inner { ledger, withheld, late, .. } = &*self.0;
        let gap = self.0.state.lock().gap;
        !self.wide_is_due()
            && gap.is_none_or(|at| ledger.clock().mono() >= at + GAP_FOR)
            && withheld.due().is_empty()
            && late.len() == 0
            && !ledger.may_lack()
            && matches!(ledger.bound(remote).await, Ok(store) if !ledger.is_of_another_store(store))
    }

    async fn fold_announced(&self, remote: &Remote, news: Vec<HeadCommit>) -> Folded {
        let mut names: Vec<Stamp> = news.iter().map(|commit| commit.stamp).collect();
        names.sort_unstable();
        let names = self.unfolded(&names, ListReach::New, false);
        self.0.lag.listed(names.len(), true);
        let items = names.into_iter().map(|name| {
            let announced = news.iter().find(|commit| commit.stamp == name);
            (name, announced.and_then(|commit| commit.bytes.clone()).map(Bytes::from))
        });
        self.fold(remote, items.collect(), false, &WaitingNodes::default()).await
    }
}

/// Returns the time of the latest commit that a head announces.
fn latest_ms(head: &LogHead) -> u64 {
    head.commits.iter().map(|commit| commit.stamp.ms).max().unwrap_or(0)
}
