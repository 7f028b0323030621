//! Listing the log: how far back, one page at a time.
//!
//! Owns which part of the log is listed. Must never list what existed when the log was last folded,
//! except for late comers. Must never list a page again because a later page failed.

use std::collections::HashSet;
use std::time::Duration;

use super::{Folded, Follower, SKIPPED_AT_ONCE, WaitingNodes};
use crate::error::Result;
use crate::remote::{HeadCommit, LOG_ITEMS_MAX, LogItem, Progress, Remote, StoreId, keys};
use crate::stamp::{NodeId, Stamp};
use crate::sync::patience::wait_out;
use crate::sync::times::LOOK_BACK_MS;

/// How often a wide list is made while the node is active.
const WIDE_EVERY: Duration = Duration::from_mins(10);
/// How far back a wide list goes: late comers, and objects that a store listed late, are visible by
/// then.
pub(super) const WIDE_BACK_MS: u64 = 15 * 60_000;
/// How far back a list goes for a commit that is missing before one that exists.
pub(super) const GAP_BACK_MS: u64 = 3_600_000;

/// The most new commits that one list reports. A list with more is not used to check which commits
/// were announced.
const NEW_MAX: usize = LOG_ITEMS_MAX;

/// The reach of a list.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ListReach {
    /// The new commits.
    New,
    /// The beginning of the log, which shows what was deleted from it, and all commits that are not
    /// old, or that came after the last wide list of the writer of the adopted checkpoint.
    Wide,
    /// The part that may hold a missing commit.
    Gap,
}

/// A part of the log that was listed.
struct LogPage {
    names: Vec<Stamp>,
    /// Whether more pages may follow.
    full: bool,
}

/// What a list is combined with, and what it finds.
struct LogListing<'a> {
    /// Young commits of the head. A store that lists late may show later ones of their nodes first.
    young: &'a [HeadCommit],
    /// The new commits.
    new: &'a mut Vec<Stamp>,
    /// The nodes that have a commit which cannot be folded now.
    waiting: WaitingNodes,
}

impl LogPage {
    /// Returns those commits that belong on this page or an earlier one.
    fn take(&self, young: &[HeadCommit]) -> Vec<HeadCommit> {
        let last = self.names.last().filter(|_| self.full);
        let is_here = |one: &&HeadCommit| last.is_none_or(|last| one.stamp <= *last);
        young.iter().filter(is_here).cloned().collect()
    }
}

impl Follower {
    /// Lists the log and folds the new commits, and those of `young`, in one order; adds their names
    /// to `new`.
    pub(super) async fn list_and_fold(
        &self,
        remote: &Remote,
        young: &[HeadCommit],
        new: &mut Vec<Stamp>,
    ) -> Result<bool> {
        let reaching = self.reaching(remote);
        let wide = self.0.state.lock().wide.is_some() && self.wide_is_due();
        if wide {
            // The store may be gone, be another one, or declare another expiry. If this check
            // fails, the list shows whether the store is there at all.
            reaching.check_again().await.ok();
        }
        let store = self.store_of(&reaching).await?;
        let covers = self.catch_up(remote, store).await?;
        let mut listing = LogListing { young, new, waiting: WaitingNodes::default() };
        self.fold_bundles(remote, covers, &listing.waiting).await;
        let reach = if wide { ListReach::Wide } else { ListReach::New };
        let folded = match self.list_part(remote, store, reach, &mut listing).await? {
            Folded::Gap => self.list_part(remote, store, ListReach::Gap, &mut listing).await?,
            folded => folded,
        };
        Ok(folded == Folded::All)
    }

    /// Lists a part of the log and folds it page by page: folded pages stay folded if a later page
    /// fails.
    async fn list_part(
        &self,
        remote: &Remote,
        store: StoreId,
        reach: ListReach,
        listing: &mut LogListing<'_>,
    ) -> Result<Folded> {
        let ledger = &self.0.ledger;
        let (began, began_ms) = (ledger.clock().mono(), ledger.now_ms());
        let from_ms = |back_ms: u64| {
            let watermark_ms = self.0.state.lock().watermark_ms;
            (watermark_ms > 0).then(|| watermark_ms.saturating_sub(back_ms))
        };
        let (covered_ms, late_ms) = {
            let state = self.0.state.lock();
            (state.covered_ms, state.late_ms)
        };
        let mut after = match reach {
            ListReach::New => from_ms(WIDE_BACK_MS).map(|ms| name_of_ms(ms.max(covered_ms))),
            ListReach::Wide => None,
            ListReach::Gap => from_ms(GAP_BACK_MS).map(name_of_ms),
        };
        let mut first = true;
        loop {
            let page = self.list_page(remote, after.as_deref(), first).await?;
            let latest = page.names.last().copied();
            let items = self.fold_items(&page.names, &page.take(listing.young));
            self.0.lag.listed(items.len(), first);
            // One that is read again was new earlier, and its announcement may be over.
            let stamps = items.iter().map(|one| one.stamp);
            listing.new.extend(stamps.filter(|stamp| !self.is_skipped(stamp)));
            listing.new.truncate(NEW_MAX);
            let (again, waiting) = (reach == ListReach::Gap, &listing.waiting);
            if self.fold_listed(remote, items, again, waiting).await == Folded::Gap {
                return Ok(Folded::Gap);
            }
            if let (true, Some(latest), true) = (waiting.is_empty(), latest, page.full) {
                self.advance_listed(latest.ms.min(began_ms));
            }
            if first && after.is_none() {
                self.forget_gone(&page, began_ms);
            }
            let Some(latest) = latest.filter(|_| page.full) else {
                if !listing.waiting.is_empty() {
                    return Ok(Folded::Partly);
                }
                // Not beyond our own time: a node whose clock is ahead must not make us miss what
                // others write meanwhile.
                self.advance_listed(latest.map_or(0, |latest| latest.ms.min(began_ms)));
                break;
            };
            let head = reach == ListReach::Wide && first;
            let wide_ms = from_ms(WIDE_BACK_MS).filter(|_| head);
            let skipped = wide_ms.map(|ms| name_of_ms(ms.min(late_ms.unwrap_or(ms))));
            let listed = keys::commit_name(&latest);
            after = Some(skipped.map_or(listed.clone(), |skipped| skipped.max(listed)));
            first = false;
        }
        {
            let mut state = self.0.state.lock();
            if reach == ListReach::Wide || state.wide.is_none() {
                state.wide = Some(began);
            }
            if reach == ListReach::Wide {
                state.late_ms = None;
            }
            state.alone_ms.get_or_insert_with(|| ledger.next_stamp().ms);
        }
        ledger.note_listed(began, began_ms);
        ledger.note_store(store);
        Ok(Folded::All)
    }

    /// Notes that all commits with earlier names were folded.
    pub(super) fn advance(&self, upto_ms: u64) {
        let mut state = self.0.state.lock();
        state.watermark_ms = state.watermark_ms.max(upto_ms);
    }

    /// Notes that all commits with earlier names were listed and folded.
    fn advance_listed(&self, upto_ms: u64) {
        self.advance(upto_ms);
        let mut state = self.0.state.lock();
        state.covered_ms = state.covered_ms.max(upto_ms.saturating_sub(LOOK_BACK_MS));
    }

    /// Forgets commits that are no longer at the beginning of the log.
    fn forget_gone(&self, head: &LogPage, began_ms: u64) {
        let settled_ms = began_ms.saturating_sub(LOOK_BACK_MS);
        let last_ms = head.names.last().filter(|_| head.full).map_or(u64::MAX, |last| last.ms);
        let there: HashSet<Stamp> = head.names.iter().copied().collect();
        let before_ms = settled_ms.min(last_ms);
        self.0.ledger.forget_unlisted(&there, before_ms);
    }

    /// Returns the remote with the settings for lists: a program waits for most lists, and when the
    /// store is down, a list finds out that it is up again.
    pub(super) fn reaching(&self, remote: &Remote) -> Remote {
        if self.0.freshness.is_down() { remote.background() } else { remote.clone() }
    }

    /// Reports whether the next list must be wide.
    pub(super) fn wide_is_due(&self) -> bool {
        let now = self.0.ledger.clock().mono();
        self.0.state.lock().wide.is_none_or(|at| now >= at + WIDE_EVERY)
    }

    /// Lists a page of the log. Waits out trouble that may pass, because programs wait for the
    /// list; but only once: a later lookup uses what is known. All pages together are as old as the
    /// `first` of them.
    async fn list_page(
        &self,
        remote: &Remote,
        after: Option<&str>,
        first: bool,
    ) -> Result<LogPage> {
        let impatient = self.0.state.lock().impatient;
        let remote = self.reaching(remote);
        let listed = if impatient {
            remote.list_log(after).await
        } else {
            let (limit, progress) = (remote.deadline(), Progress::default());
            let request = || {
                if first {
                    self.0.freshness.begin_again();
                }
                remote.list_log(after)
            };
            wait_out(&remote, limit, &progress, request).await
        };
        self.0.state.lock().impatient = listed.is_err();
        listed.map(|items| page_of(&items))
    }

    /// Returns the commits to read: the new ones of those that were listed or announced, and some
    /// of those that were skipped and are due again, which no list need name.
    pub(super) fn unfolded(&self, listed: &[Stamp]) -> Vec<Stamp> {
        let troubled = &self.0.troubled;
        self.0.ledger.log(|log| {
            let missing = log.missing();
            let due = missing.unusable().filter(|stamp| troubled.left(stamp).is_zero());
            let known = listed.iter().filter(|stamp| !missing.is_unusable(stamp)).copied();
            let mut names: Vec<Stamp> = known.chain(due.take(SKIPPED_AT_ONCE)).collect();
            names.sort_unstable();
            log.unseen(names.into_iter())
        })
    }
}

fn page_of(items: &[LogItem]) -> LogPage {
    let names = items.iter().filter_map(|item| keys::commit_stamp(&item.name)).collect();
    LogPage { names, full: items.len() >= LOG_ITEMS_MAX }
}

/// Lists the names from a time on, or from the beginning, in order, up to another time.
pub(in crate::sync) async fn names_between(
    remote: &Remote,
    from_ms: Option<u64>,
    upto_ms: u64,
) -> Result<Vec<Stamp>> {
    let (mut after, mut names) = (from_ms.map(name_of_ms), Vec::new());
    loop {
        let page = page_of(&remote.list_log(after.as_deref()).await?);
        names.extend(page.names);
        match names.last().filter(|last| page.full && last.ms < upto_ms) {
            Some(last) => after = Some(keys::commit_name(last)),
            None => {
                names.retain(|stamp| stamp.ms < upto_ms);
                return Ok(names);
            }
        }
    }
}

/// Returns a name that sorts before the names of all commits of a time.
pub(in crate::sync) fn name_of_ms(ms: u64) -> String {
    keys::commit_name(&Stamp { ms, counter: 0, node: NodeId(0) })
}
