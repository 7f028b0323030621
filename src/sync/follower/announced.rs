//! Reading the head of the log instead of listing the log.
//!
//! Owns when the head is sufficient. Must never use the head in place of a list after a look that
//! left commits waiting.

use std::time::Duration;

use bytes::Bytes;

use super::bundles::FEW;
use super::{Folded, Follower, WaitingNodes};
use crate::error::Result;
use crate::remote::{HeadCommit, LogHead, Remote};
use crate::stamp::Stamp;
use crate::sync::times::LOOK_BACK_MS;

/// How long the log is listed after a commit was missing before one that exists: some stores list
/// new objects late.
const GAP_FOR: Duration = Duration::from_mins(1);

impl Follower {
    /// Folds the new commits. Uses the head of the log if that names all of them. Returns whether
    /// all were folded. With `must_list`, always lists the log.
    pub(super) async fn bring_in(&self, remote: &Remote, must_list: bool) -> Result<bool> {
        let (ledger, watch) = (&self.0.ledger, &self.0.head);
        let (began, began_ms) = (ledger.clock().mono(), ledger.now_ms());
        let head = watch.look(&self.reaching(remote)).await?;
        if self.was_removed(head.as_deref()) {
            // The store may be another one at the same address, or an emptied one. If this check fails, the list does, too.
            self.reaching(remote).check_again().await.ok();
        }
        if !must_list
            && let Some(head) = &head
            && self.is_up_to_date(remote).await
            && let Some(news) = watch.news(head)
            && self.unread(&news) <= FEW
            && self.fold_announced(remote, news).await == Folded::All
        {
            watch.note_folded(head);
            self.advance(began_ms.min(latest_ms(head)));
            ledger.note_listed(began, began_ms);
            return Ok(true);
        }
        let mut new = Vec::new();
        if !self.list_and_fold(remote, &mut new).await? {
            // A head need not name what waits, so the next look lists the log, too.
            watch.note_listed(None, &[]);
            return Ok(false);
        }
        if let Some(head) = &head {
            // Some stores list new objects late. Older ones may have been deleted.
            let young = |one: &&HeadCommit| one.stamp.ms.saturating_add(LOOK_BACK_MS) > began_ms;
            let young = head.commits.iter().filter(young).cloned().collect();
            if self.fold_unlisted(remote, young).await != Folded::All {
                watch.note_listed(None, &[]);
                return Ok(false);
            }
        }
        watch.note_listed(head.as_deref(), &new);
        Ok(true)
    }

    /// Reports whether the head of the last look was perhaps removed: now there is another one, or none
    /// that can be read.
    fn was_removed(&self, head: Option<&LogHead>) -> bool {
        let mut state = self.0.state.lock();
        let had_head = std::mem::replace(&mut state.has_head, head.is_some());
        let Some(head) = head else { return had_head };
        state.epoch.replace(head.epoch).is_some_and(|before| before != head.epoch)
    }

    /// Reports whether everything but new commits is up to date, so that no other reason requires a
    /// list.
    async fn is_up_to_date(&self, remote: &Remote) -> bool {
        let ledger = &self.0.ledger;
        let gap = self.0.state.lock().gap;
        !self.wide_is_due()
            && gap.is_none_or(|at| ledger.clock().mono() >= at + GAP_FOR)
            && !ledger.may_lack()
            && matches!(ledger.bound(remote).await, Ok(store) if !ledger.is_of_another_store(store))
    }

    /// Folds commits that a list did not show, or that cannot be read from the log. Remembers those
    /// that came from copies.
    async fn fold_unlisted(&self, remote: &Remote, young: Vec<HeadCommit>) -> Folded {
        let unseen = self.unseen_copies(&young);
        let copies = young.iter().filter(|one| unseen.contains(&one.stamp));
        let copies: Vec<(Stamp, Bytes)> =
            copies.filter_map(|one| Some((one.stamp, one.bytes.clone()?.into()))).collect();
        let folded = self.fold_announced(remote, young).await;
        for (stamp, bytes) in copies {
            if self.0.ledger.log(|log| log.has(&stamp)) {
                self.remember_copy(stamp, bytes).await;
            }
        }
        folded
    }

    /// Folds commits of the head. Those with a copy are folded even if a list has found them
    /// unusable, because a copy costs no request.
    async fn fold_announced(&self, remote: &Remote, news: Vec<HeadCommit>) -> Folded {
        let stamps: Vec<Stamp> = news.iter().map(|commit| commit.stamp).collect();
        let mut names = self.unfolded(&stamps);
        names.extend(self.unseen_copies(&news));
        names.sort_unstable();
        names.dedup();
        self.0.lag.listed(names.len(), true);
        let items = names.into_iter().map(|name| {
            let announced = news.iter().find(|commit| commit.stamp == name);
            (name, announced.and_then(|commit| commit.bytes.clone()).map(Bytes::from))
        });
        self.fold(remote, items.collect(), false, &WaitingNodes::default()).await
    }

    /// Counts the commits that were not folded and of which the head has no copy.
    fn unread(&self, news: &[HeadCommit]) -> usize {
        let named = news.iter().filter(|commit| commit.bytes.is_none());
        self.0.ledger.log(|log| log.unseen(named.map(|commit| commit.stamp))).len()
    }

    /// Returns the commits that were not folded and of which the head has a copy.
    fn unseen_copies(&self, news: &[HeadCommit]) -> Vec<Stamp> {
        let copied = news.iter().filter(|commit| commit.bytes.is_some());
        self.0.ledger.log(|log| log.unseen(copied.map(|commit| commit.stamp)))
    }
}

/// Returns the time of the latest commit that a head announces.
fn latest_ms(head: &LogHead) -> u64 {
    head.commits.iter().map(|commit| commit.stamp.ms).max().unwrap_or(0)
}
