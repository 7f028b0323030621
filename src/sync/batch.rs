//! Batches: which changes go into one commit, and which need not be sent.
//!
//! Owns coalescing. Must never leave out a change that another node needs to get the same
//! namespace.

use std::collections::{BTreeSet, HashMap, HashSet};

use super::doubts::Amends;
use crate::digest::Digest;
use crate::local::Seq;
use crate::name::TreePath;
use crate::namespace::{Change, Op};
use crate::stamp::Stamp;

/// Consecutive records that were taken from the queue.
#[derive(Debug)]
pub(super) struct Taken {
    pub(super) upto: Seq,
    pub(super) records: u64,
    pub(super) bytes: u64,
    pub(super) changes: Vec<Change>,
}

/// Consecutive records that become one commit.
#[derive(Debug)]
pub(super) struct Batch {
    /// The last record in it; 0 when it holds none.
    pub(super) upto: Seq,
    /// How many records it holds.
    pub(super) records: u64,
    /// Bytes of content that its records put.
    pub(super) bytes: u64,
    /// The changes to send.
    pub(super) changes: Vec<Change>,
    /// Contents that its records put and that are not sent, because they were overwritten or
    /// removed since.
    pub(super) dropped: Vec<Digest>,
    /// How many changes of each path its records held, including those that are not sent.
    pub(super) paths: HashMap<TreePath, u32>,
    /// Paths whose changes are in none of its records: they are sent as rides.
    pub(super) rides: BTreeSet<TreePath>,
    /// Doubts and contents to store again, beside the changes.
    pub(super) amends: Amends,
}

impl Batch {
    /// Makes a batch of records. Leaves out changes that later ones replace.
    pub(super) fn of(taken: Taken, amends: Amends) -> Self {
        let Taken { upto, records, bytes, changes } = taken;
        let mut paths: HashMap<TreePath, u32> = HashMap::new();
        for change in &changes {
            match paths.get_mut(&change.path) {
                Some(count) => *count += 1,
                None => drop(paths.insert(change.path.clone(), 1)),
            }
        }
        let all = contents_of(&changes);
        let changes = coalesce(changes);
        let left: HashSet<_> = contents_of(&changes).into_iter().collect();
        let dropped = all.into_iter().filter(|one| !left.contains(one)).map(|one| one.0).collect();
        let rides = BTreeSet::new();
        Self { upto, records, bytes, changes, dropped, paths, rides, amends }
    }

    /// Reports whether nothing of it is sent.
    pub(super) fn is_empty(&self) -> bool {
        self.changes.is_empty() && self.amends.is_empty()
    }

    /// Returns the contents that its changes put, and those to repair, each once.
    pub(super) fn contents(&self) -> Vec<(Digest, u64)> {
        let mut contents = contents_of(&self.changes);
        let repairs = self.amends.repairs.iter();
        let further: Vec<_> = repairs.filter(|one| !contents.contains(one)).copied().collect();
        contents.extend(further);
        contents
    }

    /// Returns the contents that are stored again only because they grow old, each once.
    pub(super) fn renewals(&self) -> Vec<(Digest, u64)> {
        let others: HashSet<_> = self.contents().into_iter().collect();
        let renewals = self.amends.renewals.iter();
        renewals.filter(|one| !others.contains(one)).copied().collect()
    }
}

/// Returns the contents that changes put, each once, without the empty one.
pub(super) fn contents_of(changes: &[Change]) -> Vec<(Digest, u64)> {
    let mut known = HashSet::new();
    let puts = changes.iter().filter_map(|change| match &change.op {
        Op::Put(entry) => entry.content(),
        _ => None,
    });
    puts.filter(|(digest, _)| !digest.is_empty_content() && known.insert(*digest)).collect()
}

/// Keeps, of each path, the winning content and, of each content, the winning attributes, in the
/// order given.
///
/// The fold of what is kept is the same as the fold of all.
pub(super) fn coalesce(changes: Vec<Change>) -> Vec<Change> {
    let mut contents: HashMap<&TreePath, usize> = HashMap::new();
    let mut attrs: HashMap<(&TreePath, Stamp), usize> = HashMap::new();
    for (at, change) in changes.iter().enumerate() {
        let last = match &change.op {
            Op::Put(_) | Op::Remove => contents.entry(&change.path).or_insert(at),
            Op::Attrs { of, .. } => attrs.entry((&change.path, *of)).or_insert(at),
        };
        if changes[*last].stamp <= change.stamp {
            *last = at;
        }
    }
    let mut keep = vec![false; changes.len()];
    for at in contents.values() {
        keep[*at] = true;
    }
    for ((path, of), at) in &attrs {
        // Attributes of a content that was replaced have no effect any more.
        keep[*at] = contents.get(path).is_none_or(|content| *of >= changes[*content].stamp);
    }
    let mut keep = keep.into_iter();
    changes.into_iter().filter(|_| keep.next().unwrap_or(true)).collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::namespace::{Attrs, Entry, EntryKind, Fold, Time};
    use crate::stamp::NodeId;

    /// What happens on a node: it changes one of a few paths, or receives a change of another node
    /// there. A reader of its commit may have received that change before.
    #[derive(Debug, Clone, Copy)]
    enum Step {
        Put,
        Remove,
        Attrs,
        Heard { put: bool, ahead_ms: u64, by_reader: bool },
    }

    fn any_step() -> impl Strategy<Value = (u8, Step)> {
        let heard = (any::<bool>(), 0_u64..30, any::<bool>())
            .prop_map(|(put, ahead_ms, by_reader)| Step::Heard { put, ahead_ms, by_reader });
        let step = prop_oneof![
            3 => Just(Step::Put),
            1 => Just(Step::Remove),
            3 => Just(Step::Attrs),
            2 => heard,
        ];
        (0_u8..3, step)
    }

    /// The changes of a node, and what its reader receives from others.
    #[derive(Debug, Default)]
    struct History {
        changes: Vec<Change>,
        /// What the reader of the commit knows before.
        known: Vec<Change>,
        /// What the reader receives later, or never.
        late: Vec<Change>,
    }

    /// Runs the steps. The stamps of a node grow, and attributes belong to the content that it
    /// shows.
    fn history(steps: &[(u8, Step)]) -> History {
        let (mut history, mut fold) = (History::default(), Fold::new());
        for (ms, (path, step)) in (10..).zip(steps) {
            let path = TreePath::root().join(&[b'a' + path]).expect("a name");
            let own = Stamp { ms, counter: 0, node: NodeId(1) };
            let put = || {
                let kind = EntryKind::File { digest: Digest::of(&ms.to_le_bytes()), size: 8 };
                Op::Put(Entry { kind, attrs: Attrs::default(), link: None })
            };
            let attrs = |fold: &Fold| {
                let register = fold.register(&path).filter(|shown| shown.entry.is_some())?;
                let attrs = Attrs { mode: ms as u32, ..Attrs::default() };
                Some(Op::Attrs { of: register.stamp, attrs })
            };
            let (stamp, op, to) = match *step {
                Step::Put => (own, Some(put()), &mut history.changes),
                Step::Remove => (own, Some(Op::Remove), &mut history.changes),
                Step::Attrs => (own, attrs(&fold), &mut history.changes),
                Step::Heard { put: is_put, ahead_ms, by_reader } => {
                    let stamp = Stamp { ms: ms - 10 + ahead_ms, counter: 0, node: NodeId(2) };
                    let op = if is_put { Some(put()) } else { attrs(&fold) };
                    let to = if by_reader { &mut history.known } else { &mut history.late };
                    (stamp, op, to)
                }
            };
            let Some(op) = op else { continue };
            let change = Change { path, stamp, op };
            fold.apply(&change, Time::default());
            to.push(change);
        }
        history
    }

    proptest! {
        #[test]
        fn the_coalesced_changes_fold_to_the_same(steps in prop::collection::vec(any_step(), 0..40)) {
            let History { changes, known, late } = history(&steps);
            let fold = |parts: [&[Change]; 3]| {
                let mut fold = Fold::new();
                for change in parts.into_iter().flatten() {
                    fold.apply(change, Time::default());
                }
                fold
            };
            let left = coalesce(changes.clone());
            let contents = left.iter().filter(|c| !matches!(c.op, Op::Attrs { .. }));
            prop_assert!(contents.count() <= 3, "one per path at most");
            for late in [&[], &late[..]] {
                let (some, all) = (fold([&known, &left, late]), fold([&known, &changes, late]));
                prop_assert!(some.registers().eq(all.registers()));
            }
        }
    }
}
