//! Reading the head of the log instead of listing the log.
//!
//! Owns when the head is sufficient. Must never use the head in place of a list after a look that
//! left commits waiting.

use std::collections::HashMap;
use std::time::Duration;

use bytes::Bytes;

use super::bundles::FEW;
use super::{FoldItem, Folded, Follower, WaitingNodes};
use crate::error::Result;
use crate::remote::{HeadCommit, LogHead, Remote};
use crate::stamp::{NodeId, Stamp};
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
        // Some stores list new objects late. Older ones may have been deleted.
        let is_young = |one: &&HeadCommit| one.stamp.ms.saturating_add(LOOK_BACK_MS) > began_ms;
        let announced = head.iter().flat_map(|head| &head.commits);
        let young: Vec<HeadCommit> = announced.filter(is_young).cloned().collect();
        let mut new = Vec::new();
        if !self.list_and_fold(remote, &young, &mut new).await? {
            // A head need not name what waits, so the next look lists the log, too.
            watch.note_listed(None, &[]);
            return Ok(false);
        }
        watch.note_listed(head.as_ref(), &new);
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

    /// Folds commits after a list. Remembers those that came from copies, for a check: the log may
    /// lack them, or have them damaged.
    pub(super) async fn fold_listed(
        &self,
        remote: &Remote,
        items: Vec<FoldItem>,
        listed_again: bool,
        waiting: &WaitingNodes,
    ) -> Folded {
        let copies = items.iter().filter_map(|one| Some((one.stamp, one.copy.clone()?)));
        let copies: Vec<(Stamp, Bytes)> = copies.collect();
        let folded = self.fold(remote, items, listed_again, waiting).await;
        for (stamp, bytes) in copies {
            if self.0.ledger.log(|log| log.has(&stamp)) {
                self.remember_copy(stamp, bytes).await;
            }
        }
        folded
    }

    /// Folds commits of the head.
    async fn fold_announced(&self, remote: &Remote, news: Vec<HeadCommit>) -> Folded {
        let items = self.fold_items(&[], &news);
        self.0.lag.listed(items.len(), true);
        self.fold(remote, items, false, &WaitingNodes::default()).await
    }

    /// Returns those of the listed commits and of those of the head that are to be folded, in one
    /// order. A copy is used even if a list has found its commit unusable, because it costs no
    /// request.
    pub(super) fn fold_items(&self, listed: &[Stamp], announced: &[HeadCommit]) -> Vec<FoldItem> {
        let mut last_shown: HashMap<NodeId, Stamp> = HashMap::new();
        for stamp in listed {
            let last = last_shown.entry(stamp.node).or_insert(*stamp);
            *last = (*last).max(*stamp);
        }
        let of_head = announced.iter().map(|commit| commit.stamp);
        let all: Vec<Stamp> = listed.iter().copied().chain(of_head).collect();
        let mut names = self.unfolded(&all);
        names.extend(self.unseen_copies(announced));
        names.sort_unstable();
        names.dedup();
        let copies: HashMap<Stamp, &Vec<u8>> = announced
            .iter()
            .filter_map(|commit| Some((commit.stamp, commit.bytes.as_ref()?)))
            .collect();
        let items = names.into_iter().map(|stamp| FoldItem {
            stamp,
            copy: copies.get(&stamp).map(|bytes| Bytes::copy_from_slice(bytes)),
            shown: last_shown.get(&stamp.node).is_some_and(|last| stamp <= *last),
        });
        items.collect()
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
