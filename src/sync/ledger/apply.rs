//! Bringing commits in: those of other nodes, and our own once they are remote.

use std::collections::HashSet;
use std::io::Write as _;
use std::sync::atomic::Ordering;
use std::time::Duration;

use super::lost_blobs::{self, learn};
use super::{Ledger, Moved, Order};
use crate::digest::Digest;
use crate::error::{Error, Result};
use crate::local::{Blobs, State};
use crate::name::TreePath;
use crate::namespace::{Applied, BlobPlace, Change, Commit, Location, Op, Time};
use crate::remote::keys;
use crate::stamp::Stamp;
use crate::sync::batch::Batch;
use crate::sync::doubts;

impl Ledger {
    /// Applies a commit of the log; returns the paths that moved. Nothing moves when the commit was
    /// applied before.
    ///
    /// Readers see the whole commit or nothing of it.
    pub fn apply_remote(&self, name: &str, commit: &Commit) -> Vec<TreePath> {
        let Some(stamp) = keys::commit_stamp(name) else { return Vec::new() };
        if self.is_seen(&stamp) {
            return Vec::new();
        }
        let mut moved;
        let mut count = None;
        {
            let mut order = self.0.order.lock();
            if !order.seen.insert(stamp) {
                return Vec::new();
            }
            self.note_chain(&mut order, commit);
            order.missing.came(commit);
            order.dirty.seen.push(stamp);
            self.note_folded(commit.stamp);
            self.0.traffic.commits_applied.fetch_add(1, Ordering::Relaxed);
            let now_ms = self.now_ms();
            self.observe(commit.stamp, now_ms);
            let now = Time::from_wall(self.0.clock.wall());
            let mut fold = self.0.fold.write();
            let mut again = Vec::new();
            moved = Vec::new();
            self.hear(&mut order, &fold, doubts::of(commit));
            let mut healed = HashSet::new();
            for blob in &commit.blobs {
                if let Some(location) = commit.location_of(name, blob)
                    && learn(&mut order, &mut fold, blob.digest, location)
                {
                    healed.insert(blob.digest);
                }
            }
            for change in &commit.changes {
                self.observe(change.stamp, now_ms);
                if self.stays_here(&change.path) {
                    // A node with other profiles has sent it. Here the path is our own.
                    continue;
                }
                order.keep(&change.path, &fold);
                if order.apart.has(&change.path) {
                    order.queue.hear(change);
                    moved.extend(self.hear_apart(&mut order, &mut fold, change, now));
                    continue;
                }
                order.touched.hear(change);
                let waits = order.queue.hear(change);
                if waits && commit.node == self.node() && order.late.is_some() {
                    // A run before has sent it. What waits is the same change or a later one of ours, and
                    // stays what is shown.
                    let known = fold.register(&change.path);
                    if known.is_some_and(|known| known.stamp.node == self.node()) {
                        continue;
                    }
                }
                order.dirty.paths.insert(change.path.clone());
                if fold.apply(change, now) != Applied::Nothing {
                    moved.push(change.path.clone());
                    again.extend(order.left_out.hear(change));
                }
            }
            if !healed.is_empty() {
                moved.extend(lost_blobs::paths_of(&fold, &healed));
            }
            drop(fold);
            for changes in again {
                moved.extend(self.put_again(&mut order, changes));
            }
            if order.bad.has_amends() {
                self.0.queued.notify_waiters();
            }
            if !moved.is_empty() {
                count = Some(self.count_applied());
            }
        }
        if let Some(count) = count {
            self.tell(Moved { count, paths: Some(&moved) });
        }
        moved
    }

    /// Reports whether an object of the log was folded.
    pub(in crate::sync) fn is_seen(&self, stamp: &Stamp) -> bool {
        self.0.order.lock().seen.contains(stamp)
    }

    /// Returns those of the log's objects that were not folded, in the order given.
    pub(in crate::sync) fn unseen(&self, all: impl Iterator<Item = Stamp>) -> Vec<Stamp> {
        let order = self.0.order.lock();
        all.filter(|stamp| !order.seen.contains(stamp)).collect()
    }

    /// Forgets objects that the log does not have any more. `all` is what it has up to `before_ms`; what is younger
    /// by its name may be there all the same.
    pub(in crate::sync) fn forget_unlisted(&self, all: &HashSet<Stamp>, before_ms: u64) {
        let mut order = self.0.order.lock();
        let gone: Vec<Stamp> = order
            .seen
            .iter()
            .filter(|stamp| stamp.ms < before_ms && !all.contains(stamp))
            .copied()
            .collect();
        for stamp in gone {
            order.seen.remove(&stamp);
            order.dirty.unseen.push(stamp);
        }
        order.missing.listed(all, before_ms);
    }

    /// Reports whether a commit comes directly after what was folded of its run.
    pub(in crate::sync) fn follows(&self, commit: &Commit) -> bool {
        self.0.order.lock().chains.follows(commit)
    }

    fn note_chain(&self, order: &mut Order, commit: &Commit) {
        order.chains.note(commit);
        order.chains.make_room(|ms| self.is_silent(ms));
    }

    /// Reports whether a run whose last commit was made then makes no further one: it would be another run.
    pub(in crate::sync) fn is_silent(&self, ms: u64) -> bool {
        self.kept_age().is_tombstone_over(ms, self.now_ms())
    }

    /// Notes that a batch is remote: as this commit, under any of the names; as none if there was nothing
    /// to say.
    ///
    /// The journal lets go of its records later, when the index has what they stand for.
    pub(in crate::sync) fn committed(
        &self,
        batch: &Batch,
        stored: Vec<(Digest, Location)>,
        commit: Option<(&Commit, &[Stamp])>,
    ) {
        let mut contents = batch.contents();
        contents.extend(batch.renewals());
        self.0.traffic.uploaded.fetch_add(stored.len() as u64, Ordering::Relaxed);
        self.0.traffic.commits_written.fetch_add(u64::from(commit.is_some()), Ordering::Relaxed);
        let now_ms = self.now_ms();
        for change in &batch.changes {
            let delay = Duration::from_millis(now_ms.saturating_sub(change.stamp.ms));
            self.0.traffic.publish_delay.observe(delay);
        }
        {
            let mut order = self.0.order.lock();
            let mut fold = self.0.fold.write();
            order.bad.note_stored(stored.iter());
            order.aside.note_stored(stored.iter().map(|(digest, _)| digest));
            for (digest, location) in stored {
                learn(&mut order, &mut fold, digest, location);
            }
            drop(fold);
            if let Some((commit, names)) = commit {
                order.seen.extend(names);
                order.dirty.seen.extend(names);
                // A checkpoint says it to other nodes, which would take our next one for a gap.
                self.note_chain(&mut order, commit);
                self.note_folded(commit.stamp);
            }
            {
                let fold = self.0.fold.read();
                for change in &batch.changes {
                    order.keep(&change.path, &fold);
                    order.dirty.paths.insert(change.path.clone());
                }
            }
            order.queue.done(batch);
            self.landed(&mut order, batch);
            order.bad.end_renewals(&batch.amends.renewals);
            let put =
                contents.iter().map(|(digest, _)| *digest).chain(batch.dropped.iter().copied());
            self.0.unsent.sent(batch.upto, put, self.0.clock.mono());
            order.dirty.ack = order.dirty.ack.max(Some(batch.upto));
            order.say_apart(batch.upto);
            self.note_totals(&order);
            // What no path points to any more, or is remote anyway, need not be kept. Under the
            // lock, so that a publish of the same keeps it again.
            let fold = self.0.fold.read();
            let needless =
                |d: &&Digest| (!fold.uses(d) || fold.stored_ms(d).is_some()) && !order.own.holds(d);
            for digest in batch.dropped.iter().filter(needless) {
                self.0.blobs.mark_saved(digest);
            }
            contents.retain(|(digest, _)| !order.own.holds(digest));
        }
        for (digest, _) in contents {
            if self.stored_ms(&digest).is_some() {
                self.0.blobs.mark_saved(&digest);
            }
        }
        // A batch without records has no number of its own.
        self.0.remote_upto.send_modify(|upto| *upto = batch.upto.max(*upto));
        self.0.room.note_progress();
    }

    /// Returns where the last known frame of a pack ends; 0 for a pack of which nothing is known.
    pub(in crate::sync) fn pack_end(&self, pack: &str) -> u64 {
        self.read(|fold| fold.pack_end(pack))
    }

    /// Puts the inline blobs of a commit that is about to be applied into the local tier, where files
    /// will use them and they are not there yet. What fails is fetched when it is wanted. Blocks on the
    /// local disk.
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
            if !wanted.contains(&blob.digest) || self.0.blobs.contains(&blob.digest) {
                continue;
            }
            if let Err(error) = self.keep(blob.digest, bytes) {
                tracing::debug!(digest = %blob.digest, error = %error.chain(), "inline blob not kept");
            }
        }
    }

    /// Puts a verified blob that the remote has into the local tier.
    pub(in crate::sync) fn keep(&self, digest: Digest, bytes: &[u8]) -> Result<()> {
        self.keep_if(digest, bytes, |_| true).map(drop)
    }

    /// As [`Ledger::keep`], if there `is_room` when this counts as taken. Returns whether there was.
    pub(in crate::sync) fn keep_if(
        &self,
        digest: Digest,
        bytes: &[u8],
        is_room: impl FnOnce(&Blobs) -> bool,
    ) -> Result<bool> {
        let (mut file, staged) = self.0.staging.create()?;
        if !self.0.blobs.reserve(&staged, bytes.len() as u64, is_room) {
            return Ok(false);
        }
        file.write_all(bytes).map_err(|e| Error::io(format!("stage blob {digest}"), e))?;
        self.0.blobs.adopt(staged, &file, digest, bytes.len() as u64, State::Fetched)?;
        Ok(true)
    }

    pub(super) fn observe(&self, stamp: Stamp, now_ms: u64) {
        if !self.0.stamps.observe(stamp, now_ms)
            && !self.0.warned_ahead.swap(true, Ordering::Relaxed)
        {
            tracing::warn!(
                node = %stamp.node,
                ahead_ms = stamp.ms.saturating_sub(now_ms),
                "a node's clock is far ahead; what it writes cannot be replaced until then"
            );
        }
    }
}
