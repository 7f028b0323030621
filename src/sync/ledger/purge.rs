//! Purging: forgets what is so long past its age that no node can show it any more, the locations of
//! contents that no file has, and their blobs here. Without a remote, also forgets tombstones of units that
//! have no effect any more.
//!
//! Owns the walk through the namespace, in steps: no lock is held for longer than one step. Each
//! node purges by itself. Must never forget what waits in the journal.

use super::stay_rules::StayRules;
use super::{Ledger, Locked, Moved};
use crate::digest::Digest;
use crate::name::TreePath;
use crate::namespace::{FileKind, Fold, Living, Register, Time, UnitKey};
use crate::stamp::Stamp;
use crate::sync::times::LOG_GRACE;

/// How many registers or locations are examined in one step.
const STEP: usize = 250;

/// The progress of a purge.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::sync) enum PurgeMark {
    /// The registers up to this path were examined.
    Registers(TreePath),
    /// The locations up to this mark were examined.
    Locations(u32),
    /// The folders of blobs before this one were examined.
    Blobs(u8),
}

impl PurgeMark {
    /// Starts at the beginning.
    pub(in crate::sync) fn start() -> Self {
        Self::Registers(TreePath::root())
    }
}

impl Ledger {
    /// Examines a part of the namespace, from a mark on, and forgets what is due. Returns where to
    /// continue; `None` at the end.
    pub(in crate::sync) fn purge(&self, from: &PurgeMark) -> Option<PurgeMark> {
        if self.0.remote.is_none() {
            return match from {
                PurgeMark::Registers(path) => Some(self.purge_alone(path)),
                PurgeMark::Locations(_) => None,
                PurgeMark::Blobs(folder) => self.purge_blobs(*folder),
            };
        }
        let listed_ms = self.listed_ms();
        if self.now_ms() > listed_ms.saturating_add(self.0.reliance.kept_age().trust_ms()) {
            // Other nodes may have stored again what looks old here.
            return None;
        }
        match from {
            PurgeMark::Registers(path) => Some(self.purge_registers(path)),
            PurgeMark::Locations(mark) => Some(self.purge_locations(*mark)),
            PurgeMark::Blobs(folder) => self.purge_blobs(*folder),
        }
    }

    fn purge_registers(&self, from: &TreePath) -> PurgeMark {
        let (mut last, mut due) = (None, Vec::new());
        self.read(|fold| {
            self.back_then(fold, |living| {
                for (path, register) in fold.registers_after(from).take(STEP) {
                    if self.is_purgeable(living, &path, &register) {
                        due.push(path.clone());
                    }
                    last = Some(path);
                }
            });
        });
        due.extend(self.lost_between(from, last.as_ref()));
        if !due.is_empty() {
            let (mut shown, mut count) = (Vec::new(), None);
            let mut order = self.0.order.lock();
            let mut fold = self.0.fold.write();
            let mut locked = self.locked(&mut order, &mut fold);
            due.retain(|path| {
                let Locked { order, fold, .. } = &mut locked;
                // It may have been written since, or wait in the journal.
                let private = order.outbox.is_private(path);
                let again = fold.register(path).is_some_and(|register| {
                    (private && self.is_lost(fold, &register))
                        || self.back_then(fold, |living| self.is_purgeable(living, path, &register))
                });
                let goes = again && !order.outbox.is_queued(path);
                if goes && order.outbox.is_apart(path) {
                    let now = Time::from_wall(self.0.clock.wall());
                    for path in order.outbox.with_unit(&self.0.rules, path) {
                        locked.give_up(&path, now);
                        shown.push(path);
                    }
                } else if goes {
                    fold.forget(path);
                    order.saved.path_moved(path);
                    locked.note_own(path);
                }
                goes
            });
            if !shown.is_empty() {
                count = Some(self.0.listeners.count());
            }
            drop((fold, order));
            // What other nodes have is shown again.
            if let Some(count) = count {
                self.0.listeners.tell(Moved { count, paths: Some(&shown) });
            }
            tracing::debug!(entries = due.len(), "forgot entries that are long past their age");
        }
        if let Some(path) = last {
            return PurgeMark::Registers(path);
        }
        let now_ms = self.now_ms();
        let is_over = |stamp_ms| self.0.reliance.kept_age().is_tombstone_over(stamp_ms, now_ms);
        self.0.fold.write().forget_early(is_over);
        PurgeMark::Locations(0)
    }

    /// Returns the paths after one, up to another, whose private versions were evicted.
    fn lost_between(&self, from: &TreePath, upto: Option<&TreePath>) -> Vec<TreePath> {
        let Some(upto) = upto else { return Vec::new() };
        let order = self.0.order.lock();
        let fold = self.0.fold.read();
        let private = order.outbox.private_between(from, upto);
        let is_lost = |path: &&TreePath| {
            fold.register(path).is_some_and(|register| self.is_lost(&fold, &register))
        };
        private.filter(is_lost).cloned().collect()
    }

    /// Forgets tombstones of members that make no unit a miss: the unit has no entry point, or a
    /// later one.
    fn purge_alone(&self, from: &TreePath) -> PurgeMark {
        let (mut last, mut due) = (None, Vec::new());
        self.read(|fold| {
            // The members of one unit are adjacent.
            let mut mark = None;
            for (path, register) in fold.registers_after(from).take(STEP) {
                if register.entry.is_none()
                    && let FileKind::Unit(part) = self.0.rules.classify(&path).kind
                {
                    let of = (part.key.rule, part.key.prefix.to_vec());
                    let known = mark.take().filter(|(known, _)| *known == of);
                    let (of, latest) =
                        known.unwrap_or_else(|| (of, entry_stamp(&self.0.rules, fold, &part.key)));
                    mark = Some((of, latest));
                    if latest.is_none_or(|latest| register.stamp <= latest) {
                        due.push((path.clone(), register.stamp));
                    }
                }
                last = Some(path);
            }
        });
        if !due.is_empty() {
            let mut order = self.0.order.lock();
            let mut fold = self.0.fold.write();
            for (path, stamp) in &due {
                let same = |known: &Register| known.entry.is_none() && known.stamp == *stamp;
                if fold.register(path).is_some_and(|known| same(&known)) {
                    fold.forget(path);
                    order.saved.path_moved(path);
                }
            }
        }
        last.map_or(PurgeMark::Blobs(0), PurgeMark::Registers)
    }

    /// Looks at the namespace as of a time in the past: then the node with the slowest clock could
    /// last show, and store again, everything that was expired.
    fn back_then<R>(&self, fold: &Fold, look: impl FnOnce(&Living<'_>) -> R) -> R {
        let age = self.0.reliance.kept_age();
        self.living(fold, |living| {
            let now_ms = self.now_ms().saturating_sub(age.grace_ms());
            look(&Living { age, now_ms, ..*living })
        })
    }

    fn is_purgeable(&self, living: &Living<'_>, path: &TreePath, register: &Register) -> bool {
        match &register.entry {
            None => living.age.is_tombstone_over(register.stamp.ms, self.now_ms()),
            Some(entry) => living.left(path, entry, Some(register.changed_ms())).is_none(),
        }
    }

    /// Reports whether the bytes of an entry are neither here nor in the store.
    fn is_lost(&self, fold: &Fold, register: &Register) -> bool {
        #[cfg(test)]
        self.0.counts.asked_lost.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        register.entry.as_ref().is_some_and(|entry| self.hidden_in(fold, entry))
    }

    /// Forgets locations of contents that no file has. These are locations past their age, and
    /// those that have been unused so long that no node may rely on them and `gc` may delete the
    /// objects.
    fn purge_locations(&self, from: u32) -> PurgeMark {
        let (mut last, mut unused) = (None, Vec::new());
        self.read(|fold| {
            for (mark, digest, location) in fold.locations_from(from).take(STEP) {
                if !fold.uses(&digest) {
                    unused.push((digest, location));
                }
                last = Some(mark);
            }
        });
        if !unused.is_empty() {
            let (mut order, mut fold) = (self.0.order.lock(), self.0.fold.write());
            let mut locked = self.locked(&mut order, &mut fold);
            for (digest, location) in unused {
                if locked.is_over(&digest, location.stored_ms) {
                    locked.fold.unlocate(&digest, &location);
                    locked.order.saved.location_moved(digest);
                }
            }
        }
        last.map_or(PurgeMark::Blobs(0), PurgeMark::Locations)
    }
}

impl Locked<'_> {
    /// Reports whether the location of a content may be forgotten.
    fn is_over(&mut self, digest: &Digest, stored_ms: u64) -> bool {
        let Self { ledger, order, fold } = self;
        // Other nodes may know this content at a path, or will again, although the path shows
        // something else here.
        let known = order.outbox.uses(digest);
        if known {
            fold.wake(digest);
        }
        if known || fold.uses(digest) {
            return false;
        }
        let age = ledger.0.reliance.kept_age();
        let then_ms = ledger.now_ms().saturating_sub(age.grace_ms());
        let minute = ledger.0.clock.mono().as_secs() / 60;
        // One more, because both ends are rounded.
        age.left(stored_ms, then_ms).is_none()
            || fold.idle_minutes(digest, minute) > LOG_GRACE.as_secs() / 60
    }
}

/// Returns the stamp of the latest entry point of a unit.
fn entry_stamp(rules: &StayRules, fold: &Fold, key: &UnitKey<'_>) -> Option<Stamp> {
    let prefix = TreePath::from_bytes(key.prefix).ok()?;
    let here = |(path, _): &(TreePath, Register)| path.as_bytes().starts_with(key.prefix);
    let entry = |(path, register): (TreePath, Register)| {
        let entry = register.entry.as_ref().filter(|entry| !entry.is_directory());
        let kind = entry.map(|_| rules.classify(&path).kind)?;
        let is_entry = matches!(kind, FileKind::Unit(part) if part.key == *key && part.is_entry);
        is_entry.then_some(register.stamp)
    };
    fold.registers_after(&prefix).take_while(here).filter_map(entry).max()
}
