//! Reading the log from bundles, if there are any.
//!
//! Owns when bundles are looked for. Must never depend on one: if anything is wrong with it, the
//! log has the same commits.

use std::collections::HashMap;

use bytes::Bytes;

use super::list::{GAP_BACK_MS, name_of_ms, names_between};
use super::{FETCHES_AT_ONCE, FoldItem, Folded, Follower, WaitingNodes};
use crate::remote::{Bundle, LOG_ITEMS_MAX, Remote, decode_commit_named, keys};
use crate::stamp::Stamp;
use crate::sync::covers::{BundleItem, Covers};
use crate::sync::draft::LogView;
use crate::sync::read_fault::{ReadFault, read_again};
use crate::sync::times::LOOK_BACK_MS;
use crate::task;

/// A node that has not listed the log for this long looks for bundles: it may lack many commits.
const BEHIND_MS: u64 = 5 * 60_000;

/// How many commits are read from the log before a list of bundles has arrived.
pub(super) const FEW: usize = 2 * FETCHES_AT_ONCE;

/// A draft, with the later commits from bundles.
pub(super) struct Bundled {
    pub(super) draft: LogView,
    /// It covers the log up to this time.
    pub(super) upto_ms: u64,
    /// Except these commits.
    pub(super) lacking: Vec<Stamp>,
}

impl Follower {
    /// Folds the commits in bundles that are not known yet. `covers` were listed just now.
    /// `waiting` gets the nodes that have a commit which cannot be read now; their later commits
    /// are not applied before that one.
    pub(super) async fn fold_bundles(
        &self,
        remote: &Remote,
        covers: Option<Covers>,
        waiting: &WaitingNodes,
    ) {
        let watermark_ms = || self.0.state.lock().watermark_ms;
        let (now_ms, listed_ms) = (self.0.ledger.now_ms(), self.0.ledger.listed_ms());
        let behind = now_ms.saturating_sub(listed_ms) > BEHIND_MS;
        let (covers, most) = match covers {
            Some(covers) => (covers, u64::MAX),
            None if behind => {
                let most = self.lacking_bytes(remote).await;
                if most == 0 {
                    return;
                }
                (Covers::list(&self.reaching(remote)).await.unwrap_or_default(), most)
            }
            None => return,
        };
        while let Some(next) = self.next_bundle(&covers, watermark_ms()) {
            // Each commit takes slightly more space in a bundle.
            if next.item.size > most.saturating_mul(2) {
                // A program may wait for the new commits, which are fewer.
                break;
            }
            let bundle = match self.fetch_bundle(remote, next).await {
                Ok(Some(bundle)) => bundle,
                Ok(None) => continue,
                Err(_) => break,
            };
            let mut folded = self.fold_bundle(remote, &bundle, None, waiting).await;
            if folded == Folded::Gap {
                // A commit may have arrived after the bundle was written.
                let from_ms = watermark_ms().saturating_sub(GAP_BACK_MS);
                let listed =
                    names_between(&self.reaching(remote), Some(from_ms), next.upto_ms()).await;
                let Ok(names) = listed else { break };
                folded = self.fold_bundle(remote, &bundle, Some(names), waiting).await;
            }
            if folded != Folded::All {
                // Waiting commits are looked for in the log. All others of the bundle are known, so
                // it is not read again.
                self.0.state.lock().note_bad_cover(&next.item.name);
                return;
            }
            tracing::debug!(name = %next.name, "read a part of the log from a bundle");
            self.advance(next.upto_ms());
            self.0.state.lock().note_covered(next.name.from_ms, next.upto_ms());
        }
    }

    /// Returns how many bytes of commits this node lacks, according to a list; `u64::MAX` if one
    /// list does not show all, and 0 if looking for bundles is not worthwhile.
    async fn lacking_bytes(&self, remote: &Remote) -> u64 {
        let watermark_ms = self.0.state.lock().watermark_ms;
        let after = name_of_ms(watermark_ms.saturating_sub(LOOK_BACK_MS));
        let listed = self.reaching(remote).list_log(Some(&after)).await;
        // The next list meets the same trouble, and reports it.
        let Ok(items) = listed else { return 0 };
        if items.len() >= LOG_ITEMS_MAX {
            return u64::MAX;
        }
        let sizes: HashMap<Stamp, u64> = items
            .iter()
            .filter_map(|item| Some((keys::commit_stamp(&item.name)?, item.size)))
            .collect();
        let unseen = self.0.ledger.log(|log| log.unseen(sizes.keys().copied()));
        if unseen.len() <= FEW { 0 } else { unseen.iter().map(|stamp| sizes[stamp]).sum() }
    }

    /// Folds the commits of a bundle, and others of the log if it was listed for commits that may
    /// be missing between them.
    async fn fold_bundle(
        &self,
        remote: &Remote,
        bundle: &Bundle,
        others: Option<Vec<Stamp>>,
        waiting: &WaitingNodes,
    ) -> Folded {
        let listed_again = others.is_some();
        let mut bytes_of: HashMap<Stamp, Bytes> = bundle.commits.iter().cloned().collect();
        let mut names = others.unwrap_or_default();
        names.extend(bundle.lacking.iter().chain(bytes_of.keys()));
        names.sort_unstable();
        names.dedup();
        let unseen = self.0.ledger.log(|log| log.unseen(names.into_iter()));
        let items = unseen.into_iter().map(|stamp| {
            let copy = bytes_of.remove(&stamp);
            FoldItem { stamp, copy, shown: true }
        });
        self.fold(remote, items.collect(), listed_again, waiting).await
    }

    /// Adds to a draft that covers the log up to `upto_ms` the later commits from bundles.
    pub(super) async fn add_bundles(
        &self,
        remote: &Remote,
        covers: &Covers,
        draft: LogView,
        upto_ms: u64,
    ) -> Bundled {
        let mut all = Bundled { draft, upto_ms, lacking: Vec::new() };
        while let Some(next) = self.next_bundle(covers, all.upto_ms) {
            let bundle = match self.fetch_bundle(remote, next).await {
                Ok(Some(bundle)) => bundle,
                Ok(None) => continue,
                Err(_) => break,
            };
            all.lacking.extend(bundle.lacking);
            let (mut draft, commits) = (all.draft, bundle.commits);
            let (draft, bad) = task::blocking(move || {
                let mut bad = Vec::new();
                for (stamp, bytes) in commits {
                    if draft.has(&stamp) {
                        continue;
                    }
                    match decode_commit_named(&bytes, &stamp) {
                        Ok(commit) => draft.apply(&commit),
                        Err(_) => bad.push(stamp),
                    }
                }
                (draft, bad)
            })
            .await;
            // The log has it, too.
            all.lacking.extend(bad);
            all.draft = draft;
            all.upto_ms = next.upto_ms();
        }
        all
    }

    fn next_bundle<'a>(&self, covers: &'a Covers, upto_ms: u64) -> Option<&'a BundleItem> {
        let state = self.0.state.lock();
        covers.next(upto_ms, |one| !state.bad_covers.contains(&one.item.name))
    }

    /// Reads a bundle; `None` if it is unusable, which is noted.
    async fn fetch_bundle(
        &self,
        remote: &Remote,
        item: &BundleItem,
    ) -> crate::error::Result<Option<Bundle>> {
        let error = match read_again(|| remote.get_bundle(&item.name)).await {
            Ok(bundle) => return Ok(Some(bundle)),
            Err(error) => error,
        };
        let fault = ReadFault::of(&error);
        let may_pass = matches!(fault, ReadFault::Passing | ReadFault::Ours);
        if may_pass || !self.0.state.lock().note_bad_cover(&item.item.name) {
            return Err(error);
        }
        if fault != ReadFault::Gone {
            tracing::warn!(
                name = %item.name, error = %error.chain(),
                "a bundle of commits cannot be used; the commits are read one by one; if it was \
                 written by a newer hearthfs, upgrade this node"
            );
        }
        Ok(None)
    }
}
