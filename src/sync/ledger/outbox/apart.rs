//! Versions that this node keeps to itself, under names that all nodes share: incomplete files,
//! with the units that they belong to, until a complete version replaces them; those of `ride`, for
//! a while; and all changes of programs on a private mount.
//!
//! Such a version is journalled and shown here like any other, and an incomplete file is never
//! sent. Owns the table of these paths, and what other nodes know of them. Must never let such a
//! version hold back, or outlast, what another node puts under its name. Must never let it get into
//! a commit or a checkpoint. Their contents are held like those of `own`, because no other node has
//! them. Those of a private mount are not held: there the least recently used are evicted, as on a
//! node without a store.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::ops::Bound;

use serde::{Deserialize, Serialize};

use super::Outbox;
use crate::digest::Digest;
use crate::local::{FactBatch, Seq};
use crate::name::TreePath;
use crate::namespace::{Applied, Change, Check, Entry, FileKind, Fold, Op, Register, Time};
use crate::stamp::Stamp;
use crate::sync::ledger::stay_rules::StayRules;
use crate::sync::ledger::{Ledger, Locked};

/// The most names that warnings list in one run; for further names, `status` reports only the
/// number.
const NAMED_MAX: usize = 1000;

/// A version that stays here.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct KeptApart {
    /// The stamp of the change that has put or removed it.
    pub(super) stamp: Stamp,
    pub(super) why: ApartReason,
    /// The number of its record.
    pub(super) seq: u64,
}

/// Why other nodes do not know a version.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum ApartReason {
    /// It is incomplete: its content has failed this check. `None` if it stays because of another
    /// member of its unit.
    Incomplete(Option<Check>),
    /// It only shows that an entry was used, and waits to be sent with others (see `ride`).
    Used,
    /// The mount was private.
    Private,
}

impl KeptApart {
    fn failed(&self) -> Option<Check> {
        if let ApartReason::Incomplete(failed) = self.why { failed } else { None }
    }
}

/// The paths with such versions.
#[derive(Debug, Default)]
pub(super) struct Apart {
    paths: BTreeMap<TreePath, KeptApart>,
    /// How many of them wait to be sent with others.
    rides: usize,
    /// How many of them a private mount has changed.
    private: usize,
    /// What other nodes know of them.
    known: Fold,
    /// Versions that were replaced by those of other nodes while the journal still has them, the
    /// last of each path: a start must not bring them back.
    gone: BTreeMap<TreePath, KeptApart>,
    /// The paths that have moved since the table was saved.
    moved: BTreeSet<TreePath>,
    /// Names that no warning has listed yet, with their records.
    unsaid: Vec<(Seq, TreePath)>,
    /// Names that a warning has listed.
    said: HashSet<TreePath>,
}

/// A path as the index has it: the kept version with what other nodes know, and the version that
/// was replaced.
type SavedApart = (Option<(KeptApart, Option<Register>)>, Option<KeptApart>);

impl Apart {
    /// Reports whether a path shows something that other nodes do not know.
    pub(super) fn has(&self, path: &TreePath) -> bool {
        self.paths.contains_key(path)
    }

    /// Returns why other nodes do not know what a path shows.
    pub(super) fn why(&self, path: &TreePath) -> Option<ApartReason> {
        self.paths.get(path).map(|kept| kept.why)
    }

    /// Reports whether no path shows something that other nodes do not know.
    pub(super) fn has_none(&self) -> bool {
        self.paths.is_empty()
    }

    /// Returns the version that a path shows.
    pub(super) fn kept(&self, path: &TreePath) -> Option<&KeptApart> {
        self.paths.get(path)
    }

    /// Returns the check that the content of a path has failed.
    fn failed(&self, path: &TreePath) -> Option<Check> {
        self.kept(path).and_then(KeptApart::failed)
    }

    /// Counts the paths that wait to be sent with others.
    pub(super) fn rides(&self) -> usize {
        self.rides
    }

    /// Reports whether no version is kept here, and none was replaced recently.
    pub(super) fn is_empty(&self) -> bool {
        self.paths.is_empty() && self.gone.is_empty()
    }

    /// Reports whether a path shows the change of a private mount with this stamp.
    pub(super) fn is_private(&self, path: &TreePath, stamp: Stamp) -> bool {
        self.paths
            .get(path)
            .is_some_and(|kept| kept.why == ApartReason::Private && kept.stamp == stamp)
    }

    /// Yields the paths after one, up to another, that a private mount has changed.
    pub(super) fn private_between<'a>(
        &'a self,
        after: &TreePath,
        upto: &TreePath,
    ) -> impl Iterator<Item = &'a TreePath> + use<'a> {
        let bounds = (Bound::Excluded(after.clone()), Bound::Included(upto.clone()));
        let some = (self.private > 0 && after < upto).then(|| self.paths.range(bounds));
        let private =
            some.into_iter().flatten().filter(|(_, kept)| kept.why == ApartReason::Private);
        private.map(|(path, _)| path)
    }

    /// Returns the register that the index gets for a path while it is filled: what other nodes
    /// know, if this version is newer than the table in the index. The journal still has this
    /// version.
    pub(super) fn filled(&self, path: &TreePath, shown: Register) -> Option<Register> {
        if self.has(path) && self.moved.contains(path) { self.known(path) } else { Some(shown) }
    }

    /// Reports whether a private mount has changed any of them.
    pub(super) fn has_private(&self) -> bool {
        self.private > 0
    }

    /// Counts a version that is added, and one that is removed.
    fn count(&mut self, come: Option<ApartReason>, gone: Option<ApartReason>) {
        self.rides += usize::from(come == Some(ApartReason::Used));
        self.rides -= usize::from(gone == Some(ApartReason::Used));
        self.private += usize::from(come == Some(ApartReason::Private));
        self.private -= usize::from(gone == Some(ApartReason::Private));
    }

    /// Yields the paths that wait to be sent with others, after a given one.
    pub(super) fn waiting(&self, after: Option<&TreePath>) -> impl Iterator<Item = &TreePath> {
        let some = self.rides > 0;
        let from = after.map_or(Bound::Unbounded, Bound::Excluded);
        let all = some.then(|| self.paths.range::<TreePath, _>((from, Bound::Unbounded)));
        let used = all.into_iter().flatten().filter(|(_, kept)| kept.why == ApartReason::Used);
        used.map(|(path, _)| path)
    }

    /// Returns what other nodes know of a path that shows something else.
    pub(super) fn known(&self, path: &TreePath) -> Option<Register> {
        self.known.register(path)
    }

    /// Reports whether a content is part of what other nodes know of a path that shows something
    /// else.
    pub(super) fn uses(&self, digest: &Digest) -> bool {
        self.known.uses(digest)
    }

    /// Returns the fold that keeps what other nodes know of a path that shows something else, with
    /// the register of that path.
    pub(super) fn known_mut(&mut self, path: &TreePath) -> Option<(&mut Fold, Option<Register>)> {
        let known = self.paths.contains_key(path).then(|| self.known.register(path))?;
        self.moved.insert(path.clone());
        Some((&mut self.known, known))
    }

    /// Notes a change that other nodes know, or will know.
    pub(super) fn hear(&mut self, change: &Change) {
        if self.has(&change.path) {
            self.known.apply(change, Time::default());
            self.moved.insert(change.path.clone());
        }
    }

    /// Notes that a path shows something that other nodes do not know. `known` is what they know,
    /// if the path showed that before.
    pub(super) fn begin(&mut self, path: &TreePath, kept: KeptApart, known: Option<Register>) {
        let before = self.paths.insert(path.clone(), kept);
        self.count(Some(kept.why), before.map(|before| before.why));
        if before.is_none() {
            self.known.reset(path, known);
        }
        self.moved.insert(path.clone());
    }

    /// Notes that other nodes know what a path shows, or will know it.
    pub(super) fn leave(&mut self, path: &TreePath) {
        let before = self.paths.remove(path);
        self.count(None, before.map(|before| before.why));
        self.known.reset(path, None);
        self.moved.insert(path.clone());
        if self.paths.is_empty() {
            // This also drops what it has noted of directories.
            self.known = Fold::new();
        }
    }

    /// Forgets a path because another node has put something there.
    fn leave_to_others(&mut self, path: &TreePath) {
        if let Some(kept) = self.paths.get(path) {
            self.gone.insert(path.clone(), *kept);
        }
        self.leave(path);
    }

    /// Reports whether a change that stays here was replaced by one of another node before the
    /// journal released it.
    pub(super) fn is_gone(&self, change: &Change) -> bool {
        // Attributes follow the version that they belong to.
        let stamp = match &change.op {
            Op::Attrs { of, .. } => *of,
            Op::Put(_) | Op::Remove => change.stamp,
        };
        self.gone.get(&change.path).is_some_and(|gone| stamp <= gone.stamp)
    }

    /// Forgets replaced versions up to `acked`, the last record that the journal has released.
    fn forget_gone(&mut self, acked: Seq) {
        let moved = &mut self.moved;
        self.gone.retain(|path, gone| {
            let stays = gone.seq > acked.0;
            if !stays {
                moved.insert(path.clone());
            }
            stays
        });
    }

    /// Takes the paths that have moved since the table was saved.
    pub(super) fn take_moved(&mut self, acked: Seq) -> BTreeSet<TreePath> {
        self.forget_gone(acked);
        std::mem::take(&mut self.moved)
    }

    /// Writes the table's entry of a path.
    pub(super) fn save_path(&self, path: &TreePath, batch: &mut FactBatch) {
        let kept = self.paths.get(path).map(|kept| (*kept, self.known(path)));
        let saved: SavedApart = (kept, self.gone.get(path).copied());
        if saved == (None, None) {
            return batch.forget_apart(path);
        }
        batch.apart(path, &postcard::to_stdvec(&saved).expect("registers always encode"));
    }

    /// Writes the whole table for an index that is filled again. Registers are written with those
    /// of all paths.
    pub(super) fn save_again(&mut self, acked: Seq, batch: &mut FactBatch) {
        self.forget_gone(acked);
        self.moved.clear();
        let all: BTreeSet<&TreePath> = self.paths.keys().chain(self.gone.keys()).collect();
        for path in all {
            self.save_path(path, batch);
        }
    }

    /// Warns which files stay here, for the records up to one: once for each name, and not for
    /// files that are complete by now.
    pub(super) fn say(&mut self, upto: Seq) {
        let unsaid = std::mem::take(&mut self.unsaid);
        let (ripe, rest): (Vec<_>, _) = unsaid.into_iter().partition(|(seq, _)| *seq <= upto);
        self.unsaid = rest;
        for (_, path) in ripe {
            let Some(check) = self.failed(&path) else { continue };
            if self.said.len() >= NAMED_MAX || !self.said.insert(path.clone()) {
                continue;
            }
            tracing::warn!(
                %path,
                format = ?check,
                "a file is not complete: it stays on this node until a whole version takes its place"
            );
        }
    }
}

impl Outbox {
    /// Returns a path, with the paths that stay here because of the same version of its unit.
    pub(in crate::sync::ledger) fn with_unit(
        &self,
        rules: &StayRules,
        path: &TreePath,
    ) -> Vec<TreePath> {
        let Some(kept) = self.apart.kept(path) else { return vec![path.clone()] };
        // One record may have versions of several units under one stamp.
        let FileKind::Unit(part) = rules.classify(path).kind else {
            return vec![path.clone()];
        };
        let first = TreePath::from_bytes(part.key.prefix).unwrap_or_else(|_| TreePath::root());
        let near = self.apart.paths.range(first..);
        let near = near.take_while(|(other, _)| other.as_bytes().starts_with(part.key.prefix));
        let is_of_unit = |other: &TreePath| {
            let kind = rules.classify(other).kind;
            matches!(kind, FileKind::Unit(other) if other.key == part.key)
        };
        let all = near.filter(|(other, version)| version.stamp == kept.stamp && is_of_unit(other));
        all.map(|(path, _)| path.clone()).collect()
    }
}

impl Ledger {
    /// Counts the files that stay on this node because they are not complete.
    pub fn incomplete(&self) -> u64 {
        let order = self.0.order.lock();
        order.outbox.apart.paths.values().filter(|kept| kept.failed().is_some()).count() as u64
    }

    /// Restores the table from the index.
    pub(in crate::sync::ledger) fn restore_apart(&self, saved: HashMap<TreePath, Vec<u8>>) {
        let (mut order, mut fold) = (self.0.order.lock(), self.0.fold.write());
        let mut locked = self.locked(&mut order, &mut fold);
        let mut needless = BTreeSet::new();
        for (path, saved) in saved {
            let (kept, gone) = postcard::from_bytes::<SavedApart>(&saved).unwrap_or_default();
            if let Some(gone) = gone {
                locked.order.outbox.apart.gone.insert(path.clone(), gone);
            }
            let Some((kept, known)) = kept else { continue };
            let shown = locked.fold.register(&path).filter(|shown| shown.stamp == kept.stamp);
            let Some(shown) = shown else {
                needless.insert(path);
                continue;
            };
            if let Some(check) = kept.failed()
                && let Some((digest, _)) = shown.entry.as_ref().and_then(Entry::content)
            {
                self.note_torn(digest, check);
            }
            locked.order.outbox.apart.begin(&path, kept, known);
            locked.hold_apart(&path, kept.why);
        }
        order.outbox.apart.moved = needless;
    }
}

impl Locked<'_> {
    /// Applies a change that stays here to the namespace.
    pub(in crate::sync::ledger) fn apply_apart(
        &mut self,
        (seq, change): (Seq, &Change),
        private: bool,
        now: Time,
    ) {
        let path = &change.path;
        if private {
            return self.apply_private((seq, change), now);
        }
        let apart = &self.order.outbox.apart;
        let failed = match &change.op {
            Op::Put(entry) => self.ledger.0.rules.torn_by(path, entry).map(|(_, check)| check),
            Op::Remove => None,
            Op::Attrs { .. } => apart.failed(path),
        };
        let why = match (apart.why(path), &change.op) {
            (Some(ApartReason::Private), Op::Attrs { .. }) => ApartReason::Private,
            _ => ApartReason::Incomplete(failed),
        };
        if !self.show_apart((seq, change), why, now) {
            return;
        }
        if matches!(&change.op, Op::Put(entry) if failed.is_some() && has_bytes(entry)) {
            self.order.outbox.apart.unsaid.push((seq, path.clone()));
        }
    }

    /// Applies a change of a private mount to the namespace.
    fn apply_private(&mut self, (seq, change): (Seq, &Change), now: Time) {
        let path = &change.path;
        let shown = self.show_apart((seq, change), ApartReason::Private, now);
        let known = self.order.outbox.apart.known(path);
        if shown && change.op == Op::Remove && known.is_none_or(|known| known.entry.is_none()) {
            // It hides nothing.
            self.give_up(path, now);
        }
    }

    /// Applies a change that other nodes do not get, or not yet. Reports whether the path shows it
    /// now: a record that is read again at a start may be older than what has replaced it.
    pub(super) fn show_apart(
        &mut self,
        (seq, change): (Seq, &Change),
        why: ApartReason,
        now: Time,
    ) -> bool {
        let (Self { order, fold, .. }, path) = (&mut *self, &change.path);
        let before = fold.register(path);
        fold.apply(change, now);
        let stamp = match &change.op {
            Op::Put(_) | Op::Remove => change.stamp,
            Op::Attrs { of, .. } => *of,
        };
        if fold.register(path).is_none_or(|shown| shown.stamp != stamp) {
            return false;
        }
        let known = if order.outbox.apart.has(path) {
            None
        } else {
            order.outbox.touched.sent(path).or(before)
        };
        order.outbox.apart.begin(path, KeptApart { stamp, why, seq: seq.0 }, known);
        order.saved.path_moved(path);
        self.hold_apart(path, why);
        true
    }

    /// Keeps the content of a path from eviction, unless the mount was private.
    fn hold_apart(&mut self, path: &TreePath, why: ApartReason) {
        match why {
            ApartReason::Private => self.set_own(path, None),
            ApartReason::Incomplete(_) | ApartReason::Used => self.note_own(path),
        }
    }

    /// Notes that a change of a path was applied that will be sent. It may have replaced a kept
    /// version.
    pub(in crate::sync::ledger) fn replace_apart(&mut self, change: &Change) {
        let apart = &mut self.order.outbox.apart;
        let Some(kept) = apart.kept(&change.path) else { return };
        let shown = self.fold.register(&change.path);
        if shown.is_some_and(|shown| shown.stamp == kept.stamp && change.stamp != kept.stamp) {
            return apart.hear(change);
        }
        apart.leave(&change.path);
        self.set_own(&change.path, None);
    }

    /// Takes a change of another node at a path that shows something which other nodes do not know.
    /// Returns the paths that moved: a version of another node replaces one that stays here,
    /// together with all of its unit.
    pub(in crate::sync::ledger) fn hear_apart(
        &mut self,
        change: &Change,
        now: Time,
    ) -> Vec<TreePath> {
        let apart = &mut self.order.outbox.apart;
        if apart.why(&change.path) == Some(ApartReason::Used) {
            apart.hear(change);
            let applied = self.fold.apply(change, now);
            self.compare_ride(&change.path);
            return if applied == Applied::Nothing {
                Vec::new()
            } else {
                vec![change.path.clone()]
            };
        }
        let stamp_of = |known: Option<Register>| known.map(|known| known.stamp);
        let before = stamp_of(apart.known(&change.path));
        apart.hear(change);
        if stamp_of(apart.known(&change.path)) == before {
            return Vec::new();
        }
        let moved = self.order.outbox.with_unit(&self.ledger.0.rules, &change.path);
        for path in &moved {
            self.give_up(path, now);
        }
        moved
    }

    /// Shows at a path what other nodes know of it.
    pub(in crate::sync::ledger) fn give_up(&mut self, path: &TreePath, now: Time) {
        let Self { order, fold, .. } = &mut *self;
        let known = order.outbox.apart.known(path);
        fold.reset(path, known.clone());
        if let Some(dir) = path.parent() {
            let stamp = known.map_or(Stamp::default(), |known| known.stamp);
            fold.touch_directory(&dir, stamp, now);
        }
        order.saved.path_moved(path);
        order.outbox.apart.leave_to_others(path);
        self.set_own(path, None);
    }

    /// Applies the versions that stay here to a namespace that replaces the `old` one, unless other
    /// nodes have put something since.
    pub(super) fn keep_apart(&mut self, old: &Fold) {
        let Self { ledger, order, fold: new } = &mut *self;
        let paths: Vec<TreePath> = order.outbox.apart.paths.keys().cloned().collect();
        let stamp_of = |register: &Option<Register>| register.as_ref().map(|one| one.stamp);
        let is_newer = |path: &TreePath| {
            // Of two versions that note when an entry was used, the later one stays.
            let than = match order.outbox.apart.kept(path) {
                Some(kept) if kept.why == ApartReason::Used => Some(kept.stamp),
                _ => stamp_of(&order.outbox.apart.known(path)),
            };
            stamp_of(&new.register(path)) > than
        };
        let replaced: BTreeSet<TreePath> = paths
            .iter()
            .filter(|path| order.outbox.apart.has(path) && is_newer(path))
            .flat_map(|path| order.outbox.with_unit(&ledger.0.rules, path))
            .collect();
        for path in paths {
            let Outbox { queue, apart, .. } = &mut self.order.outbox;
            if replaced.contains(&path) {
                apart.leave_to_others(&path);
                self.set_own(&path, None);
                continue;
            }
            if !queue.has(&path) {
                apart.known.reset(&path, self.fold.register(&path));
            }
            self.fold.reset(&path, old.register(&path));
        }
    }
}

pub(super) fn has_bytes(entry: &Entry) -> bool {
    entry.content().is_some_and(|(_, size)| size > 0)
}
