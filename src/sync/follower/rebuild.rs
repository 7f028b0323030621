//! Catching up by a checkpoint: if nothing is known, or after a long absence.
//!
//! Owns the choice of the checkpoint. Must never replace the namespace by a checkpoint that has
//! less: later commits are folded into it first. After a long absence the namespace is rebuilt, and
//! not added to: tombstones of entries that other nodes removed may be forgotten by now, and these
//! entries would come back.

use std::collections::HashSet;

use futures::StreamExt as _;
use futures::stream;

use super::list::{WIDE_BACK_MS, names_between};
use super::{CommitRead, FETCHES_AT_ONCE, Follower};
use crate::error::{Error, Kind, Result};
use crate::remote::{LogItem, Remote, StoreId, keys};
use crate::stamp::Stamp;
use crate::sync::checkpoint_copy::read_checkpoint;
use crate::sync::covers::{Covers, floor_ms};
use crate::sync::draft::LogView;
use crate::sync::folded_log::FoldedLog;
use crate::sync::read_fault::{ReadFault, read_again};
use crate::sync::times::{LOG_GRACE, LOOK_BACK_MS};
use crate::task;

/// How many checkpoints are tried, latest first, before only the log is used.
const CHECKPOINTS_TRIED_MAX: usize = 3;

/// The source of a rebuilt namespace.
#[derive(Debug, Clone, Copy)]
struct From<'a> {
    /// The checkpoint; `None` if only the log is used.
    name: Option<&'a str>,
    /// All commits of the log with older names are in it.
    floor_ms: u64,
}

impl Follower {
    /// Adopts the latest checkpoint if this node has never listed the log, or was absent for so
    /// long that commits which it has not read may be gone from the log. Also does so if the
    /// namespace belongs to another store than this one: nothing of it exists here. Returns the
    /// covers of the log, if they were listed.
    pub(super) async fn catch_up(&self, remote: &Remote, store: StoreId) -> Result<Option<Covers>> {
        let ledger = &self.0.ledger;
        let grace_ms = LOG_GRACE.as_millis() as u64;
        let lost = ledger.may_lack() || ledger.is_of_another_store(store);
        let away = ledger.now_ms().saturating_sub(ledger.listed_ms()) > grace_ms / 2;
        let torn = ledger.is_partial() && self.wide_is_due();
        let sure = !away && !lost;
        if sure && !torn {
            return Ok(None);
        }
        let remote = self.reaching(remote);
        let covers = match self.look(&remote, lost).await {
            Ok((_, covers)) => covers,
            // Missing commits stay missing until the next time. The rest of the log need not wait
            // for them.
            Err(error) if sure => {
                tracing::debug!(error = %error.chain(), "no checkpoint was adopted for the missing commits");
                return Ok(None);
            }
            Err(error) => return Err(error),
        };
        if ledger.is_of_another_store(store) {
            self.move_to(&remote, store).await;
        }
        Ok(Some(covers))
    }

    /// Notes that the namespace belongs to this store now, and did not before.
    async fn move_to(&self, remote: &Remote, store: StoreId) {
        let ledger = self.0.ledger.clone();
        let pending = ledger.pending().records;
        tracing::warn!(
            remote = %remote.url(), %store, pending,
            "this node has moved here from another store: it forgets what it knew of that store; what it had not \
             sent yet goes to the new one"
        );
        ledger.note_store(store);
        // Until the store was found to be another one, commits relied on what the one before had.
        let found_ms = remote.found_ms();
        let since_ms = found_ms.saturating_sub(WIDE_BACK_MS);
        task::blocking(move || ledger.repair_between(since_ms, found_ms)).await;
    }

    /// Returns which store this is. If the known store ID is not there, but the log is the one that
    /// this node knows, then the format object was deleted or made again. The store is then treated
    /// as the same one.
    pub(super) async fn store_of(&self, remote: &Remote) -> Result<StoreId> {
        let error = match self.0.ledger.bound(remote).await {
            Err(error) if remote.is_missed() => error,
            done => return done,
        };
        let Some((known, used_ms)) = remote.known() else { return Err(error) };
        // Commits that were sent or read later may be in another store that replaced it.
        let upto_ms = used_ms.unwrap_or(self.0.before_ms);
        if !self.0.ledger.recognises(&remote.peek_log().await?, known, upto_ms) {
            return Err(error);
        }
        remote.recognise().await?;
        let store = self.0.ledger.bound(remote).await?;
        // It has another ID, but is the same store.
        self.0.ledger.note_store(store);
        Ok(store)
    }

    /// Adopts the latest checkpoint if it has the commits that are missing here. Returns the latest
    /// checkpoint if it is unusable, so that it may still contain something unknown.
    pub(in crate::sync) async fn fill_gaps(&self) -> Result<Option<Stamp>> {
        let Some(remote) = &self.0.remote else { return Ok(None) };
        let _one = self.0.polling.lock().await;
        let lost = self.0.ledger.may_lack();
        let (latest, _) = self.look(&remote.background(), lost).await?;
        let compared = self.0.state.lock().compared;
        Ok(latest.filter(|latest| compared != Some(*latest)))
    }

    /// Notes that this node has written a checkpoint: it contains nothing unknown, and none of the
    /// commits that are missing here.
    pub(in crate::sync) fn note_written(&self, stamp: Stamp) {
        self.0.state.lock().compared = Some(stamp);
    }

    /// Reads the latest usable checkpoint, and adopts it if it has more than is known, or if what is
    /// known is `lost`: its entries may have been replaced without a trace. Returns the latest one,
    /// and all covers that were listed.
    async fn look(&self, remote: &Remote, lost: bool) -> Result<(Option<Stamp>, Covers)> {
        let ledger = &self.0.ledger;
        let covers = Covers::list(remote).await?;
        let latest = covers.checkpoints.first().map(item_stamp);
        // A clock that is not known to be right may be ahead. Then only times seen in the log
        // count.
        let seen_ms = if remote.knows_time() { u64::MAX } else { self.0.state.lock().watermark_ms };
        let listed_ms = ledger.listed_ms().min(seen_ms);
        // A checkpoint from before the last list has only what was in the log then. This proves
        // nothing if commits were missing, or if the list was too long ago.
        let proves = !lost && !ledger.is_partial();
        for item in covers.checkpoints.iter().take(CHECKPOINTS_TRIED_MAX) {
            let stamp = item_stamp(item);
            let later_ms = item.stored_ms.max(stamp.ms);
            let listed = proves && later_ms.saturating_add(LOOK_BACK_MS) < listed_ms;
            let compared = self.0.state.lock().compared == Some(stamp);
            if listed || (compared && !lost) {
                return Ok((latest, covers));
            }
            let Some(draft) = self.fetch_checkpoint(remote, item).await? else { continue };
            if lost || ledger.log(|log| log.lacks(draft.log())) {
                let empty = ledger.read(crate::namespace::Fold::is_empty);
                let from = From { name: Some(&item.name), floor_ms: floor_ms(item) };
                let completed = (lost || !empty).then_some(&covers);
                self.take_over(remote, draft, from, completed).await?;
            }
            self.0.state.lock().compared = Some(stamp);
            return Ok((latest, covers));
        }
        if lost {
            // Only the commits that are still in the log are certain.
            let from = From { name: None, floor_ms: 0 };
            self.take_over(remote, LogView::new(), from, Some(&covers)).await?;
        }
        if latest.is_some() && (lost || ledger.log(|log| log.knows_nothing())) {
            // Earlier parts of the log may be deleted.
            ledger.log(FoldedLog::note_others_missing);
        }
        Ok((latest, covers))
    }

    /// Replaces the namespace by a draft. The draft is `completed` by the later commits of these
    /// covers and the log, or used as it is.
    async fn take_over(
        &self,
        remote: &Remote,
        mut draft: LogView,
        from: From<'_>,
        completed: Option<&Covers>,
    ) -> Result<()> {
        let ledger = &self.0.ledger;
        let (began, began_ms) = (ledger.clock().mono(), ledger.now_ms());
        // Later commits are requested by name: a list may lag.
        let before_ms = began_ms.saturating_sub(LOOK_BACK_MS);
        let (own, is_old) = (ledger.node(), |stamp: &Stamp| stamp.ms < before_ms);
        let passed: HashSet<Stamp> = ledger.log(|log| log.of_node(own).filter(is_old).collect());
        let (mut upto_ms, mut covered_ms) = (from.floor_ms, from.floor_ms);
        if let Some(covers) = completed {
            let bundled = self.add_bundles(remote, covers, draft, from.floor_ms).await;
            let from_ms = Some(bundled.upto_ms).filter(|upto_ms| *upto_ms > 0);
            let mut names = names_between(&self.reaching(remote), from_ms, u64::MAX).await?;
            // Not beyond what was seen there: our clock may be ahead, or that of another node.
            let listed_ms = names.last().map_or(0, |last| last.ms.min(began_ms));
            upto_ms = bundled.upto_ms.max(listed_ms);
            covered_ms = bundled.upto_ms.max(listed_ms.saturating_sub(LOOK_BACK_MS));
            names.extend(bundled.lacking);
            names.sort_unstable();
            draft = self.complete(remote, bundled.draft, names).await?;
        }
        // From here on no commit of this node lands. Those that have landed meanwhile are known
        // nowhere else here any more.
        let _landing = ledger.landing().await;
        let is_recent = |stamp: &Stamp| !passed.contains(stamp);
        let mut landed: Vec<Stamp> = ledger.log(|log| log.of_node(own).filter(is_recent).collect());
        landed.sort_unstable();
        let draft = self.complete(remote, draft, landed).await?;
        let (commits, entries) = (draft.log().len(), draft.fold().len());
        let adopting = ledger.clone();
        task::blocking(move || adopting.adopt(draft)).await;
        {
            let mut state = self.0.state.lock();
            (state.watermark_ms, state.covered_ms) = (upto_ms, covered_ms);
            // Its writer may have made its last wide list that long before.
            state.late_ms = from.name.map(|_| from.floor_ms.saturating_sub(WIDE_BACK_MS));
        }
        if completed.is_some() {
            ledger.note_listed(began, began_ms);
        }
        match from.name {
            Some(name) => tracing::info!(name, commits, entries, "started from a checkpoint"),
            None => tracing::info!(commits, entries, "started from the log"),
        }
        Ok(())
    }

    /// Reads a checkpoint; `None` if it is unusable.
    async fn fetch_checkpoint(&self, remote: &Remote, item: &LogItem) -> Result<Option<LogView>> {
        if self.0.state.lock().bad_covers.contains(&item.name) {
            return Ok(None);
        }
        let error = match read_again(|| self.read_checkpoint(remote, item)).await {
            Ok(draft) => return Ok(Some(draft)),
            Err(error) => error,
        };
        match ReadFault::of(&error) {
            ReadFault::Gone => return Ok(None),
            ReadFault::Damaged | ReadFault::Newer => {}
            ReadFault::Refused | ReadFault::Passing | ReadFault::Ours => return Err(error),
        }
        self.0.state.lock().note_bad_cover(&item.name);
        tracing::warn!(
            name = %item.name, error = %error.chain(),
            "a checkpoint cannot be used; the one before it or the whole log is used; if it was \
             written by a newer hearthfs, upgrade this node"
        );
        Ok(None)
    }

    async fn read_checkpoint(&self, remote: &Remote, item: &LogItem) -> Result<LogView> {
        let (staging, ledger) = (self.0.ledger.staging().clone(), self.0.ledger.clone());
        let (stamp, make) = (item_stamp(item), move || staging.create());
        read_checkpoint(remote, &item.name, make, move |from| {
            let (head, mut draft) = LogView::read(from)?;
            draft.log_mut().make_room(|ms| ledger.reliance().is_silent(ms));
            if head.stamp != stamp {
                return Err(Error::new(Kind::Corrupt, "a checkpoint has the name of another"));
            }
            Ok(draft)
        })
        .await
    }

    /// Folds those of some commits into a draft that it does not have.
    async fn complete(
        &self,
        remote: &Remote,
        mut draft: LogView,
        names: Vec<Stamp>,
    ) -> Result<LogView> {
        let wanted = draft.log().unseen(names.into_iter());
        let mut reading = stream::iter(wanted)
            .map(|stamp| async move { (stamp, self.read(remote, stamp).await) })
            .buffered(FETCHES_AT_ONCE);
        while let Some((stamp, got)) = reading.next().await {
            match got {
                CommitRead::Commit(commit) => {
                    draft = task::blocking(move || {
                        draft.apply(&commit);
                        draft
                    })
                    .await;
                }
                CommitRead::Gone => {}
                CommitRead::Later => {
                    let op = "a commit that follows the checkpoint cannot be read now";
                    return Err(Error::new(Kind::Unavailable, op));
                }
                CommitRead::Unusable { error, is_news } => {
                    draft.log_mut().note_unusable(stamp);
                    if is_news {
                        self.tell_skipped(stamp, &error);
                    }
                }
            }
        }
        Ok(draft)
    }
}

fn item_stamp(item: &LogItem) -> Stamp {
    keys::checkpoint_stamp(&item.name).expect("only checkpoints are listed")
}
