//! Changes that need not be sent, because other nodes have them: the same bytes under the same
//! name, or a later version.
//!
//! Owns this decision, just before a batch is uploaded, and the memory of the changes that were
//! omitted because they were the same. Must never omit only a part of what belongs together. Must
//! never omit a change whose entry would live longer if it were sent. Must never rely on what other
//! nodes do not know, such as a version that stays on this node.
//!
//! An omitted change counts as remote. The version of the other nodes is shown from then on, with
//! its times. It was made before ours. A change of a third node may have been made in between and
//! arrive later. It would have lost to ours, so ours is then sent after all.
//!
//! Keeps P7 one-winner.

use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use super::Outbox;
use crate::digest::Digest;
use crate::error::Result;
use crate::hashing::FastMap;
use crate::name::TreePath;
use crate::namespace::{Attrs, Change, Entry, Fold, Op, Register, Time};
use crate::stamp::{NodeId, Stamp};
use crate::sync::batch::Batch;
use crate::sync::ledger::reliance::Reliance;
use crate::sync::ledger::{Ledger, Locked, Moved, Ordered};
use crate::sync::times::LOG_GRACE;

/// The log must have been listed at most this long ago: what it shows may have been removed since.
const LISTED_WITHIN: Duration = Duration::from_secs(10);
/// If the time of an entry is this near to that of the change, it is the time of writing, and no
/// program has set it. The first is by the clock of the node, which may be wrong by two minutes. The
/// second is by that of the store, but may be ahead as far as the clock of a node that had not read
/// the store's time. If wrong clocks made other versions, all nodes that write the same would
/// publish theirs as well.
const WRITTEN_WITHIN_MS: u64 = 300_000;
/// Nodes write the same at the same time if their changes are this near to each other.
const MET_WITHIN_MS: u64 = 60_000;
/// How many paths with omitted changes are remembered, and for how long.
const LEFT_OUT_MAX: usize = 10_000;
const LEFT_OUT_FOR: Duration = LOG_GRACE;

/// Changes that were omitted together, because other nodes had all of them.
#[derive(Debug)]
struct NeedlessGroup {
    changes: Vec<Change>,
    /// When they were omitted, by the monotonic clock.
    at: Duration,
}

/// The omitted changes, the last of each path.
#[derive(Debug, Default)]
pub(super) struct LeftOut {
    paths: FastMap<TreePath, Arc<NeedlessGroup>>,
    /// The paths in the order in which they were added; one may be here more than once.
    order: VecDeque<(TreePath, Arc<NeedlessGroup>)>,
}

impl LeftOut {
    fn note(&mut self, group: &Arc<NeedlessGroup>) {
        for change in &group.changes {
            self.paths.insert(change.path.clone(), Arc::clone(group));
            self.order.push_back((change.path.clone(), Arc::clone(group)));
        }
        while let Some((path, oldest)) = self.order.front()
            && (self.order.len() > LEFT_OUT_MAX
                || group.at.saturating_sub(oldest.at) > LEFT_OUT_FOR)
        {
            if self.paths.get(path).is_some_and(|last| Arc::ptr_eq(last, oldest)) {
                self.paths.remove(path);
            }
            self.order.pop_front();
        }
    }

    /// Checks a change of another node that is shown now. Returns the changes that were omitted at
    /// its path, if they are later.
    pub(super) fn hear(&mut self, change: &Change) -> Option<Vec<Change>> {
        if matches!(change.op, Op::Attrs { .. }) {
            return None;
        }
        let group = self.paths.get(&change.path)?;
        let ours = group.changes.iter().find(|ours| ours.path == change.path)?;
        if is_alike_put(ours, change) {
            return None;
        }
        let is_later = ours.stamp > change.stamp;
        let group = self.paths.remove(&change.path).filter(|_| is_later)?;
        for other in &group.changes {
            self.paths.remove(&other.path);
        }
        Some(group.changes.clone())
    }
}

/// The result of omitting changes.
#[derive(Debug, Default)]
struct Gone {
    /// The paths that show another version now.
    moved: Vec<TreePath>,
    /// Whether another node has written one of them at the same time.
    met: bool,
}

/// Why a change need not be sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Needless {
    /// Other nodes know a later version, to which it would lose.
    Superseded,
    /// Other nodes have the same.
    Same,
}

impl Outbox {
    /// Returns the groups of a batch that the node `own` need not send at all.
    fn needless(
        &self,
        fold: &Fold,
        batch: &Batch,
        (reliance, own): (&Reliance, NodeId),
    ) -> BTreeMap<Stamp, Needless> {
        let mut groups: BTreeMap<Stamp, Option<Needless>> = BTreeMap::new();
        let mut sizes: HashMap<Stamp, usize> = HashMap::new();
        for change in &batch.changes {
            *sizes.entry(group_of(change)).or_default() += 1;
        }
        for change in &batch.changes {
            let of = group_of(change);
            let together = sizes.get(&of).is_some_and(|size| *size > 1);
            let why = self.why_needless(fold, batch, (change, together), (reliance, own));
            let all = groups.entry(of).or_insert(why);
            *all = match (*all, why) {
                (Some(Needless::Superseded), Some(Needless::Superseded)) => why,
                (Some(_), Some(_)) => Some(Needless::Same),
                _ => None,
            };
        }
        groups.into_iter().filter_map(|(of, why)| Some((of, why?))).collect()
    }

    /// Returns why a single change need not be sent; `together` with others.
    fn why_needless(
        &self,
        fold: &Fold,
        batch: &Batch,
        (change, together): (&Change, bool),
        (reliance, own): (&Reliance, NodeId),
    ) -> Option<Needless> {
        let path = &change.path;
        // With a later or an earlier change of ours, which other nodes do not know yet, it would be
        // taken for theirs or lost.
        let all_here = batch.paths.get(path).copied() == Some(self.queue.changes(path));
        if !all_here || batch.rides.contains(path) || self.apart.has(path) || self.touched.has(path)
        {
            return None;
        }
        let known = self.queue.committed(path)?;
        let of = group_of(change);
        if known.stamp > of {
            return Some(Needless::Superseded);
        }
        // This node never reads its own commits. If one is damaged in the store, writing its files
        // again must repair that.
        if known.stamp == of || known.stamp.node == own {
            return None;
        }
        if change.op == Op::Remove {
            // A removal on its own also removes older changes that have not arrived yet.
            return (together && known.entry.is_none()).then_some(Needless::Same);
        }
        let shown = fold.register(path).filter(|shown| shown.stamp == of)?;
        (is_alike(&shown, &known) && lasts(reliance, fold, &known)).then_some(Needless::Same)
    }
}

impl Ledger {
    /// Omits from a batch what other nodes have according to the last list of the log, if the batch
    /// goes to the store with that log. The members
    /// of a unit that one record has put are omitted together or not at all. Reports whether
    /// another node has written some of it at the same time.
    pub(in crate::sync) fn leave_needless(&self, batch: &mut Batch) -> bool {
        let is_known = self.0.reliance.has_listed(LISTED_WITHIN) && self.is_of_used_store();
        if batch.changes.is_empty() || !is_known {
            return false;
        }
        let mut count = None;
        let Gone { moved, met } = {
            let mut order = self.0.order.lock();
            let order = &mut *order;
            if order.outbox.late.is_some() {
                return false;
            }
            let mut fold = self.0.fold.write();
            let by = (&self.0.reliance, self.node());
            let needless = order.outbox.needless(&fold, batch, by);
            if needless.is_empty() {
                return false;
            }
            let puts = batch.contents();
            let (out, rest): (Vec<Change>, Vec<Change>) = std::mem::take(&mut batch.changes)
                .into_iter()
                .partition(|change| needless.contains_key(&group_of(change)));
            batch.changes = rest;
            let left: HashSet<Digest> = batch.contents().into_iter().map(|one| one.0).collect();
            let gone = puts.into_iter().map(|one| one.0).filter(|digest| !left.contains(digest));
            batch.dropped.extend(gone);
            let gone = self.locked(order, &mut fold).leave_out(batch, out);
            if !gone.moved.is_empty() {
                count = Some(self.0.listeners.count());
            }
            gone
        };
        if let Some(count) = count {
            self.0.listeners.tell(Moved { count, paths: Some(&moved) });
        }
        met
    }

    /// Publishes omitted changes again, because a change of another node would have lost to them.
    /// Returns the paths.
    pub(in crate::sync::ledger) fn put_again(
        &self,
        order: &mut Ordered,
        changes: Vec<Change>,
    ) -> Vec<TreePath> {
        match self.try_again(order, changes) {
            Ok(paths) => paths,
            Err(error) => {
                tracing::warn!(error = %error.chain(), "omitted changes could not be published again");
                Vec::new()
            }
        }
    }

    fn try_again(&self, order: &mut Ordered, changes: Vec<Change>) -> Result<Vec<TreePath>> {
        let seq = self.0.disk.journal.append(&changes)?;
        let now = Time::from_wall(self.0.clock.wall());
        {
            let mut fold = self.0.fold.write();
            let mut locked = self.locked(order, &mut fold);
            for change in &changes {
                locked.track(seq, change);
                locked.fold.apply(change, now);
                locked.order.saved.path_moved(&change.path);
            }
        }
        let paths = changes.iter().map(|change| change.path.clone()).collect();
        self.enqueue(order, seq, changes, None);
        Ok(paths)
    }
}

impl Locked<'_> {
    /// Removes changes from the queue for the remote, and shows what other nodes know instead.
    fn leave_out(&mut self, batch: &mut Batch, out: Vec<Change>) -> Gone {
        let Self { ledger, order, fold } = self;
        let mut gone = Gone::default();
        let mut groups: BTreeMap<Stamp, Vec<Change>> = BTreeMap::new();
        for change in out {
            let path = &change.path;
            // Attributes follow the content that they belong to, and were removed with it.
            if let Some(count) = batch.paths.remove(path)
                && let Some(known) = order.outbox.queue.committed(path)
            {
                order.outbox.queue.let_go(path, count);
                let apart_ms = known.stamp.ms.abs_diff(change.stamp.ms);
                gone.met |= known.stamp.node != ledger.node() && apart_ms < MET_WITHIN_MS;
                if fold.register(path).is_some_and(|shown| shown.stamp == group_of(&change)) {
                    fold.reset(path, Some(known));
                    gone.moved.push(path.clone());
                }
                order.saved.path_moved(path);
            }
            groups.entry(group_of(&change)).or_default().push(change);
        }
        let at = ledger.0.clock.mono();
        for changes in groups.into_values() {
            tracing::debug!(changes = changes.len(), path = %changes[0].path, "other nodes have these changes");
            order.outbox.left_out.note(&Arc::new(NeedlessGroup { changes, at }));
        }
        gone
    }
}

/// Reports whether publishing again would not extend the life of what other nodes know of a path,
/// and its bytes can be obtained.
fn lasts(reliance: &Reliance, fold: &Fold, known: &Register) -> bool {
    let content = known.entry.as_ref().and_then(Entry::content);
    match content.filter(|(_, size)| *size > 0) {
        None => !reliance.is_half_over(known.changed_ms()),
        Some((digest, _)) => {
            fold.stored_ms(&digest).is_some_and(|stored_ms| !reliance.is_unsure(&digest, stored_ms))
        }
    }
}

/// Returns the stamp that groups changes: that of a unit's members in one record, or that of the
/// content to which attributes belong.
fn group_of(change: &Change) -> Stamp {
    match &change.op {
        Op::Attrs { of, .. } => *of,
        Op::Put(_) | Op::Remove => change.stamp,
    }
}

/// Reports whether two changes put the same.
fn is_alike_put(ours: &Change, theirs: &Change) -> bool {
    let register = |change: &Change| match &change.op {
        Op::Put(entry) => {
            Some(Register { stamp: change.stamp, attr_stamp: None, entry: Some(entry.clone()) })
        }
        Op::Remove | Op::Attrs { .. } => None,
    };
    register(ours).zip(register(theirs)).is_some_and(|(ours, theirs)| is_alike(&ours, &theirs))
}

/// Reports whether two versions are the same except for when, and for how long, they were written.
fn is_alike(shown: &Register, known: &Register) -> bool {
    let (Some(ours), Some(theirs)) = (&shown.entry, &known.entry) else { return false };
    let Attrs { mtime, atime, took_ms, .. } = theirs.attrs;
    let same = ours.attrs.mtime == mtime || (is_written(shown) && is_written(known));
    let attrs = Attrs { mtime, atime, took_ms, ..ours.attrs.clone() };
    same && Entry { attrs, ..ours.clone() } == *theirs
}

/// Reports whether the time of an entry is the time of writing, and no program has set it.
fn is_written(register: &Register) -> bool {
    register.entry.as_ref().is_some_and(|entry| {
        let Time { secs, nanos } = entry.attrs.mtime;
        let mtime_ms = i128::from(secs) * 1000 + i128::from(nanos / 1_000_000);
        let apart = mtime_ms - i128::from(register.stamp.ms);
        apart.unsigned_abs() <= u128::from(WRITTEN_WITHIN_MS)
    })
}
