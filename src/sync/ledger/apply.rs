//! Bringing commits in: those of other nodes, and our own once they are remote.

use std::collections::HashSet;
use std::sync::atomic::Ordering;
use std::time::Duration;

use super::lost_blobs;
use super::{Ledger, Locked, Moved};
use crate::digest::Digest;
use crate::error::Result;
use crate::name::TreePath;
use crate::namespace::{Applied, BlobPlace, Change, Commit, Location, Op, Time};
use crate::remote::keys;
use crate::stamp::Stamp;
use crate::sync::batch::Batch;
use crate::sync::doubts;
use crate::sync::folded_log::{FoldedLog, Intake, fold_commit};

/// A commit that is being applied to the present namespace.
struct Arriving<'a> {
    locked: Locked<'a>,
    /// Whether a run of this node has written it.
    is_own: bool,
    now_ms: u64,
    now: Time,
    /// The paths that show something else now.
    moved: Vec<TreePath>,
    /// Contents that can be obtained again.
    healed: HashSet<Digest>,
    /// Omitted changes that must be published after all.
    again: Vec<Vec<Change>>,
}

impl Intake for Arriving<'_> {
    fn folded(&mut self) -> &mut FoldedLog {
        &mut self.locked.order.log
    }

    fn locate(&mut self, digest: Digest, location: Location) {
        if self.locked.learn(digest, location) {
            self.healed.insert(digest);
        }
    }

    fn change(&mut self, change: &Change) {
        let ledger = self.locked.ledger;
        ledger.observe(change.stamp, self.now_ms);
        if ledger.0.rules.stays_here(&change.path) {
            // A node with other profiles has sent it. Here the path belongs to this node alone.
            return;
        }
        let Locked { order, fold, .. } = &mut self.locked;
        order.keep(&change.path, fold);
        let waits = order.outbox.hear(change);
        if order.outbox.is_apart(&change.path) {
            self.moved.extend(self.locked.hear_apart(change, self.now));
            return;
        }
        if waits && self.is_own && order.outbox.is_new_stamp(change.stamp) {
            // An earlier run has sent it. The queue has the same change or a later one of ours,
            // which stays visible.
            let known = fold.register(&change.path);
            if known.is_some_and(|known| known.stamp.node == ledger.node()) {
                return;
            }
        }
        order.saved.path_moved(&change.path);
        if fold.apply(change, self.now) != Applied::Nothing {
            self.moved.push(change.path.clone());
            self.again.extend(order.outbox.take_left_out(change));
        }
    }
}

impl Ledger {
    /// Applies a commit of the log; returns the paths that moved. Nothing moves if the commit was
    /// applied before.
    ///
    /// Readers see the whole commit or nothing of it.
    pub fn apply_remote(&self, name: &str, commit: &Commit) -> Vec<TreePath> {
        if keys::commit_stamp(name) != Some(commit.stamp) {
            return Vec::new();
        }
        let (moved, count) = {
            let mut order = self.0.order.lock();
            let order = &mut *order;
            if order.log.has(&commit.stamp) {
                return Vec::new();
            }
            let now_ms = self.now_ms();
            order.saved.folded(&[commit.stamp]);
            self.0.counts.note_folded(commit.stamp, now_ms);
            self.0.counts.traffic.commits_applied.fetch_add(1, Ordering::Relaxed);
            self.observe(commit.stamp, now_ms);
            let mut fold = self.0.fold.write();
            let mut locked = self.locked(order, &mut fold);
            locked.hear(doubts::of(commit));
            let mut arriving = Arriving {
                locked,
                is_own: commit.node == self.node(),
                now_ms,
                now: Time::from_wall(self.0.clock.wall()),
                moved: Vec::new(),
                healed: HashSet::new(),
                again: Vec::new(),
            };
            fold_commit(commit, &mut arriving);
            let Arriving { mut moved, healed, again, .. } = arriving;
            order.log.make_room(|ms| self.0.reliance.is_silent(ms));
            if !healed.is_empty() {
                moved.extend(lost_blobs::paths_of(&fold, &healed));
            }
            drop(fold);
            for changes in again {
                moved.extend(self.put_again(order, changes));
            }
            if order.bad.has_amends() {
                self.0.signs.wake();
            }
            let count = (!moved.is_empty()).then(|| self.0.listeners.count());
            (moved, count)
        };
        if let Some(count) = count {
            self.0.listeners.tell(Moved { count, paths: Some(&moved) });
        }
        moved
    }

    /// Forgets objects that are no longer in the log. `all` is what the log has up to `before_ms`;
    /// objects whose names are younger may exist although `all` lacks them.
    pub(in crate::sync) fn forget_unlisted(&self, all: &HashSet<Stamp>, before_ms: u64) {
        let mut order = self.0.order.lock();
        let gone = order.log.forget_unlisted(all, before_ms);
        order.saved.forgotten(gone);
    }

    /// Notes that a batch is remote: as this commit, under any of the names; as no commit if it was
    /// empty.
    ///
    /// The journal releases its records later, once the index has what they stand for.
    pub(in crate::sync) fn committed(
        &self,
        batch: &Batch,
        stored: Vec<(Digest, Location)>,
        commit: Option<(&Commit, &[Stamp])>,
    ) {
        let mut contents = batch.contents();
        contents.extend(batch.renewals());
        let (traffic, now_ms) = (&self.0.counts.traffic, self.now_ms());
        traffic.uploaded.fetch_add(stored.len() as u64, Ordering::Relaxed);
        traffic.commits_written.fetch_add(u64::from(commit.is_some()), Ordering::Relaxed);
        for change in &batch.changes {
            let delay = Duration::from_millis(now_ms.saturating_sub(change.stamp.ms));
            traffic.publish_delay.observe(delay);
        }
        {
            let mut order = self.0.order.lock();
            order.bad.note_stored(stored.iter());
            order.aside.note_stored(stored.iter().map(|(digest, _)| digest));
            {
                let mut fold = self.0.fold.write();
                let mut locked = self.locked(&mut order, &mut fold);
                for (digest, location) in stored {
                    locked.learn(digest, location);
                }
            }
            if let Some((commit, names)) = commit {
                order.log.note_written(commit, names);
                order.log.make_room(|ms| self.0.reliance.is_silent(ms));
                order.saved.folded(names);
                self.0.counts.note_folded(commit.stamp, now_ms);
            }
            {
                let fold = self.0.fold.read();
                for change in &batch.changes {
                    order.keep(&change.path, &fold);
                    order.saved.path_moved(&change.path);
                }
            }
            self.landed(&mut order, batch);
            order.bad.end_renewals(&batch.amends.renewals);
            let put =
                contents.iter().map(|(digest, _)| *digest).chain(batch.dropped.iter().copied());
            self.0.reliance.note_sent(batch.upto, put);
            order.saved.remote_upto(batch.upto);
            // A content to which no path points any more, or which is remote anyway, need not be
            // kept. Done under the lock, so that a publish of the same content keeps it again.
            let (fold, mut dead) = (self.0.fold.read(), Vec::new());
            let needless =
                |d: &&Digest| (!fold.uses(d) || fold.stored_ms(d).is_some()) && !order.own.holds(d);
            for digest in batch.dropped.iter().filter(needless) {
                self.0.disk.blobs.mark_saved(digest);
                if fold.stored_ms(digest).is_none() {
                    dead.push(*digest);
                }
            }
            drop(fold);
            let now = self.0.clock.mono();
            for digest in dead {
                order.dead.note(digest, now);
            }
            contents.retain(|(digest, _)| !order.own.holds(digest));
        }
        for (digest, _) in contents {
            if self.stored_ms(&digest).is_some() {
                self.0.disk.blobs.mark_saved(&digest);
            }
        }
        self.0.signs.note_remote(batch.upto);
    }

    /// Returns where the last known frame of a pack ends; 0 for an unknown pack.
    pub(in crate::sync) fn pack_end(&self, pack: &str) -> u64 {
        self.read(|fold| fold.pack_end(pack))
    }

    /// Puts the inline blobs of a commit that is about to be applied into the local tier, if files
    /// will use them and they are not there yet. A blob that fails is fetched on demand. Blocks on
    /// the local disk.
    pub(in crate::sync) fn keep_inline(&self, commit: &Commit) {
        let wanted: HashSet<Digest> = {
            let fold = self.0.fold.read();
            let wins = |change: &&Change| {
                fold.register(&change.path).is_none_or(|register| register.stamp < change.stamp)
            };
            let puts = commit.changes.iter().filter(wins).filter_map(|change| match &change.op {
                Op::Put(entry) => entry.content().map(|(digest, _)| digest),
                _ => None,
            });
            puts.collect()
        };
        for blob in &commit.blobs {
            let BlobPlace::Inline(bytes) = &blob.place else { continue };
            if !wanted.contains(&blob.digest) || self.0.disk.blobs.contains(&blob.digest) {
                continue;
            }
            if let Err(error) = self.keep(blob.digest, bytes) {
                tracing::debug!(digest = %blob.digest, error = %error.chain(), "inline blob not kept");
            }
        }
    }

    /// Puts a verified blob that the remote has into the local tier.
    pub(in crate::sync) fn keep(&self, digest: Digest, bytes: &[u8]) -> Result<()> {
        self.0.disk.blobs.keep(digest, bytes, |_| true).map(drop)
    }

    pub(super) fn observe(&self, stamp: Stamp, now_ms: u64) {
        if !self.0.identity.stamps().observe(stamp, now_ms)
            && !self.0.warned.ahead.swap(true, Ordering::Relaxed)
        {
            tracing::warn!(
                node = %stamp.node,
                ahead_ms = stamp.ms.saturating_sub(now_ms),
                "a node's clock is far ahead; its entries cannot be replaced until then"
            );
        }
    }
}
