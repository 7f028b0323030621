//! Starting: builds the namespace from what index and journal have kept.

use std::collections::{HashMap, HashSet};
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::{Mutex, RwLock};

use super::aside::Aside;
use super::counts::LedgerCounts;
use super::dirs::keep_dirs;
use super::disk::Disk;
use super::identity::RunIdentity;
use super::listeners::Listeners;
use super::outbox::Split;
use super::own::{OWN, decode};
use super::queue_signs::QueueSigns;
use super::reliance::Reliance;
use super::saved::Saved;
use super::stay_rules::StayRules;
use super::times::KeptTimes;
use super::warned::Warned;
use super::{Inner, Ledger, Ordered};
use crate::clock::Clock;
use crate::digest::Digest;
use crate::error::{Error, Kind, Result};
use crate::local::{
    Blobs, CacheDir, Index, Journal, Leftover, LoadedIndex, NotAdopted, Note, Record, Seq, Staging,
    State,
};
use crate::namespace::{Age, Fold, Op, Profiles, Time};
use crate::remote::Remote;
use crate::stamp::Stamp;
use crate::sync::room::Room;

/// The parts of a ledger.
pub struct LedgerParts {
    /// The cache directory; the ledger keeps it locked while it exists.
    pub dir: CacheDir,
    /// The index.
    pub index: Index,
    /// What the index remembered; its seals have gone to the blobs.
    pub loaded: LoadedIndex,
    /// The local blobs.
    pub blobs: Blobs,
    /// The staging files.
    pub staging: Staging,
    /// The remote; `None` for a cache of this node alone.
    pub remote: Option<Remote>,
    /// The time.
    pub clock: Clock,
    /// How long a writer waits for room.
    pub full_wait: Duration,
    /// The known facts about clients.
    pub profiles: Profiles,
    /// Whether all changes of programs stay on this node.
    pub private: bool,
}

impl fmt::Debug for LedgerParts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LedgerParts").field("dir", &self.dir).finish_non_exhaustive()
    }
}

impl Ledger {
    /// Opens the journal and rebuilds the namespace, without a request to the store.
    ///
    /// Everything that was published and is not remote is queued again.
    ///
    /// # Errors
    ///
    /// As [`Journal::open`]; `Invalid` for a private mount over changes that wait for the store.
    pub fn open(mut parts: LedgerParts) -> Result<Self> {
        let (journal, records) = Journal::open(&parts.dir)?;
        let generation = parts.index.generation();
        let identity = RunIdentity::new(parts.dir.node());
        let times = KeptTimes::restore(&parts.loaded, parts.remote.as_ref());
        let mut order = Ordered { times, ..Ordered::default() };
        let own = parts.loaded.meta.get(OWN).map(|bytes| decode(bytes)).unwrap_or_default();
        let apart = std::mem::take(&mut parts.loaded.apart);
        let fold = if lacks(&order, &parts) {
            tracing::info!(
                "this node was away for longer than entries live: it forgets its old namespace"
            );
            // All of it is past its age, except what other nodes have used since, which they know,
            // and what only this node has, with the directories above that.
            parts.index.renew();
            let mut kept = Fold::new();
            for path in apart.keys().chain(&own) {
                kept.reset(path, parts.loaded.fold.register(path));
            }
            let pending = records.iter().flat_map(|record| &record.changes);
            let pending = pending.map(|change| &change.path);
            for path in apart.keys().chain(&own).chain(pending) {
                keep_dirs(&mut kept, &parts.loaded.fold, path);
            }
            kept
        } else {
            restore(&mut order, parts.loaded)
        };
        let kept = match parts.remote {
            Some(_) => HashSet::new(),
            None => fold.registers().map(|(path, _)| path).collect(),
        };
        let counts = LedgerCounts::new(order.log.len());
        let replayed = records.last().map_or(Seq(0), |last| last.seq);
        let before = records.first().map_or(journal.last(), |first| Seq(first.seq.0 - 1));
        let (blobs, remote, clock) = (&parts.blobs, &parts.remote, &parts.clock);
        let room = Room::new(blobs.clone(), remote.clone(), clock.clone(), parts.full_wait);
        let reliance = Reliance::new(remote.clone(), clock.clone());
        let ledger = Self(Arc::new(Inner {
            clock: parts.clock,
            disk: Disk {
                dir: parts.dir,
                journal,
                blobs: parts.blobs,
                staging: parts.staging,
                index: parts.index,
                saving: Mutex::new(generation),
                bound: Mutex::new(None),
            },
            identity,
            rules: StayRules::new(parts.profiles, parts.private, parts.remote.is_some(), kept),
            remote: parts.remote,
            fold: RwLock::new(fold),
            order: Mutex::new(order),
            landing: tokio::sync::Mutex::default(),
            signs: QueueSigns::new(before, replayed, room),
            reliance,
            listeners: Listeners::default(),
            counts,
            warned: Warned::default(),
        }));
        ledger.observe_all();
        ledger.restore_own(own);
        ledger.restore_apart(apart);
        ledger.restore_aside();
        ledger.replay(records);
        ledger.refuse_backlog()?;
        ledger.adopt_leftovers();
        Ok(ledger)
    }

    /// Refuses a private mount if there are changes that were meant for the store: nothing would
    /// ever upload them.
    fn refuse_backlog(&self) -> Result<()> {
        let left = {
            let order = self.0.order.lock();
            order.outbox.changes_left() as u64 + order.aside.len()
        };
        if !self.0.rules.is_private() || left == 0 {
            return Ok(());
        }
        let op = format!(
            "begin a private mount: {left} changes of an earlier one are not in the store. Mount it with \
             mount.writes = \"shared\" until they are, or use a separate cache directory"
        );
        Err(Error::new(Kind::Invalid, op))
    }

    /// Makes blobs of contents in the namespace whose bytes an earlier run left in staging: it
    /// stopped between the close of a file and the end of its last descriptor.
    fn adopt_leftovers(&self) {
        let left = self.0.disk.staging.take_leftovers();
        if left.is_empty() {
            return;
        }
        let sizes: HashSet<u64> = left.iter().map(Leftover::size).collect();
        // Reading a leftover is worthwhile only if its size is that of a missing content.
        let mut missing: HashMap<Digest, u64> = HashMap::new();
        self.read(|fold| {
            let contents = fold.registers().filter_map(|(_, register)| register.entry?.content());
            missing.extend(contents.filter(|(_, size)| sizes.contains(size)));
        });
        missing.retain(|digest, _| !self.0.disk.blobs.contains(digest));
        let (files, mut adopted) = (left.len(), 0_usize);
        for file in left {
            if !missing.values().any(|size| *size == file.size()) {
                file.remove();
                continue;
            }
            match self.adopt_leftover(&file, &missing) {
                Ok(Some(digest)) => {
                    missing.remove(&digest);
                    adopted += 1;
                    file.remove();
                }
                Ok(None) => file.remove(),
                Err(error) => {
                    tracing::warn!(
                        error = error.chain(),
                        "a file that an earlier run left in staging cannot be used yet; the next start tries again"
                    );
                }
            }
        }
        tracing::info!(files, adopted, "examined the files that an earlier run left in staging");
    }

    fn adopt_leftover(
        &self,
        file: &Leftover,
        missing: &HashMap<Digest, u64>,
    ) -> Result<Option<Digest>> {
        let (copy, staged) = self.0.disk.staging.create()?;
        let digest = file.copy_to(&copy).map_err(|e| Error::io("copy a leftover", e))?;
        let Some(size) = missing.get(&digest) else { return Ok(None) };
        let keep = if self.0.remote.is_some() { State::Unsaved } else { State::Saved };
        self.0
            .disk
            .blobs
            .adopt(staged, &copy, digest, *size, keep)
            .map_err(NotAdopted::into_error)?;
        Ok(Some(digest))
    }

    /// Makes sure that all stamps from now on are greater than every known one.
    fn observe_all(&self) {
        let now_ms = self.now_ms();
        let near = now_ms.saturating_add(crate::stamp::MAX_AHEAD_MS);
        let (mut latest, mut greatest) = (None, None);
        self.read(|fold| {
            for stamp in fold.stamps() {
                latest = latest.max(Some(stamp).filter(|stamp| stamp.ms <= near));
                greatest = greatest.max(Some(stamp).filter(|stamp| stamp.node == self.node()));
            }
        });
        if let Some(stamp) = latest {
            self.observe(stamp, now_ms);
        }
        let mut order = self.0.order.lock();
        let named_ms = order.log.of_node(self.node()).map(|stamp| stamp.ms).max();
        order.given.restore(named_ms.unwrap_or(0), greatest.unwrap_or_default());
    }

    /// Applies the records of the journal.
    fn replay(&self, records: Vec<Record>) {
        if records.is_empty() {
            return;
        }
        let (count, now_ms) = (records.len(), self.now_ms());
        let queued: HashSet<Stamp> =
            records.iter().flat_map(|record| &record.changes).map(|change| change.stamp).collect();
        let mut gone = HashSet::new();
        let mut order = self.0.order.lock();
        if self.0.remote.is_some() {
            self.find_late(&mut order, &records);
        }
        for record in records {
            let greatest = record.changes.iter().map(|change| change.stamp).max();
            order.given.note(greatest.unwrap_or_default());
            let Note { torn, private } = record.note;
            for (digest, check) in torn {
                self.0.rules.note_torn(digest, check);
            }
            let stays = order.outbox.judge(&self.0.rules, &record.changes, private);
            let Split { mut changes, own, mut apart } = stays.split(&self.0.rules, record.changes);
            apart.retain(|change| {
                let is_gone = order.outbox.is_gone(change);
                gone.extend(is_gone.then_some(change.stamp));
                !is_gone
            });
            changes
                .retain(|change| !matches!(&change.op, Op::Attrs { of, .. } if gone.contains(of)));
            let mut fold = self.0.fold.write();
            let mut locked = self.locked(&mut order, &mut fold);
            for change in &changes {
                self.observe(change.stamp, now_ms);
                if self.0.remote.is_some() {
                    locked.order.outbox.track_again(change, locked.fold, &queued);
                    locked.note_put(record.seq, &change.op);
                    // The remote may be another one than the one that is known to have it.
                    if let Op::Put(entry) = &change.op
                        && let Some((digest, _)) = entry.content()
                    {
                        self.0.disk.blobs.mark_unsaved(&digest);
                    }
                }
                // An earlier change of ours was sent under a new stamp, just before the run ended.
                let overtaken = locked.fold.register(&change.path).is_some_and(|known| {
                    let own = known.stamp.node == self.node() && !queued.contains(&known.stamp);
                    own && known.stamp > change.stamp
                        && locked.order.outbox.is_new_stamp(known.stamp)
                });
                if overtaken && !matches!(change.op, Op::Attrs { .. }) {
                    locked.fold.reset(&change.path, None);
                }
                locked.fold.apply(change, Time::from_ms(change.stamp.ms));
                if self.0.remote.is_none() {
                    self.0.rules.forget_alone(locked.fold, change);
                }
                locked.replace_apart(change);
            }
            for change in &own {
                self.observe(change.stamp, now_ms);
                locked.apply_own(change, Time::from_ms(change.stamp.ms));
            }
            for change in &apart {
                self.observe(change.stamp, now_ms);
                let at = Time::from_ms(change.stamp.ms);
                locked.apply_apart((record.seq, change), private, at);
            }
            drop(fold);
            if self.0.remote.is_some() {
                self.enqueue(&mut order, record.seq, changes, None);
            }
        }
        drop(order);
        tracing::info!(records = count, "restored the changes of an earlier run from the journal");
    }
}

/// Reports whether changes that this node has not received can be gone from the log. Then entries
/// that it knows may have been replaced without a trace.
fn lacks(order: &Ordered, parts: &LedgerParts) -> bool {
    parts.remote.as_ref().is_some_and(|remote| {
        order.times.may_lack(Age::of(remote.effective_expiry()), remote.now_ms())
    })
}

/// Restores what the index remembered.
fn restore(order: &mut Ordered, loaded: LoadedIndex) -> Fold {
    (order.saved, order.log) = Saved::restore(&loaded);
    order.aside = Aside::restore(&loaded);
    loaded.fold
}
