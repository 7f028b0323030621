//! The oracle: what a node should know. The simulation sees the bucket and all nodes at once.
//!
//! Owns the counts of wrong lookups, and how long it took until closes were visible. Must never
//! pass information to a node.

use std::collections::HashMap;
use std::sync::Arc;

use parking_lot::Mutex;

use super::node::{FoundName, SimulatedNode};
use crate::name::TreePath;
use crate::namespace::Op;
use crate::remote::decode_commit;
use crate::remote::fault::SimulatedBucket;
use crate::stamp::Stamp;

/// A program that makes a lookup this long after a change was announced in the store must see it:
/// `remote.freshness`.
const FRESH_MS: u64 = 1000;
/// Changes of one path are kept separately for this long; of older ones only the latest is kept.
const APART_MS: u64 = 60_000;
/// The number of changes of a path from which older ones are merged.
const KEPT_MAX: usize = 32;

/// The counts of one run.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct LookupCounts {
    /// Names that programs looked up.
    pub(super) lookups: u64,
    /// Of these, wrong lookups: an entry that had been in the store long enough was not found, was
    /// found in an older version, or could not be opened.
    pub(super) late: u64,
    /// Files that programs wrote because they found none.
    pub(super) compiled: u64,
}

/// Sees the bucket and all nodes.
#[derive(Debug)]
pub(super) struct Oracle {
    bucket: SimulatedBucket,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// When each change of a path was announced in the store, in milliseconds.
    landed: HashMap<TreePath, Vec<(u64, Stamp)>>,
    counts: LookupCounts,
    watched: Vec<WatchedClose>,
    /// How long it took until another node showed each close, in milliseconds.
    lags: Vec<u64>,
}

/// A close for which other nodes are checked.
#[derive(Debug)]
struct WatchedClose {
    path: TreePath,
    stamp: Stamp,
    closed_ms: u64,
    /// The nodes that do not show it yet, by their positions.
    left: Vec<usize>,
}

impl Oracle {
    pub(super) fn new(bucket: SimulatedBucket) -> Self {
        Self { bucket, state: Mutex::default() }
    }

    /// Judges a lookup that a program began at `began_ms`; `opened` says whether it got the bytes.
    pub(super) fn judge(
        &self,
        path: &TreePath,
        began_ms: u64,
        found: Option<&FoundName>,
        opened: bool,
    ) {
        let mut state = self.state.lock();
        self.catch_up(&mut state);
        state.counts.lookups += 1;
        let changes = state.landed.get(path).map_or(&[][..], Vec::as_slice);
        let due = changes.iter().filter(|(landed_ms, _)| landed_ms + FRESH_MS < began_ms);
        let due = due.map(|(_, stamp)| *stamp).max();
        let good = match (due, found) {
            (None, _) => true,
            (Some(due), Some(found)) => found.stamp >= due && opened,
            (Some(_), None) => false,
        };
        state.counts.late += u64::from(!good);
    }

    fn catch_up(&self, state: &mut State) {
        for (landed_ms, bytes) in self.bucket.take_commits() {
            let commit = decode_commit(&bytes).expect("nodes write valid commits");
            for change in &commit.changes {
                if !matches!(change.op, Op::Put(_)) {
                    continue;
                }
                let changes = state.landed.entry(change.path.clone()).or_default();
                if changes.len() >= KEPT_MAX {
                    put_together(changes, landed_ms.saturating_sub(APART_MS));
                }
                changes.push((landed_ms, change.stamp));
            }
        }
    }

    pub(super) fn note_compiled(&self) {
        self.state.lock().counts.compiled += 1;
    }

    pub(super) fn counts(&self) -> LookupCounts {
        self.state.lock().counts
    }

    /// Starts watching for a close on some nodes.
    pub(super) fn watch(&self, path: TreePath, stamp: Stamp, closed_ms: u64, left: Vec<usize>) {
        self.state.lock().watched.push(WatchedClose { path, stamp, closed_ms, left });
    }

    /// Checks the watched closes.
    pub(super) fn look(&self, nodes: &[Arc<SimulatedNode>], now_ms: u64) {
        let mut state = self.state.lock();
        let State { watched, lags, .. } = &mut *state;
        for one in &mut *watched {
            one.left.retain(|place| {
                let seen = nodes[*place].shows(&one.path, one.stamp);
                if seen {
                    lags.push(now_ms - one.closed_ms);
                }
                !seen
            });
        }
        watched.retain(|one| !one.left.is_empty());
    }

    /// Returns median, 99th percentile and maximum of the times from a close until another node
    /// showed it, in milliseconds, and how many there were. A close that is not visible yet counts
    /// with its age.
    pub(super) fn lags(&self, now_ms: u64) -> ([u64; 3], usize) {
        let state = self.state.lock();
        let mut all = state.lags.clone();
        for one in &state.watched {
            all.extend(one.left.iter().map(|_| now_ms - one.closed_ms));
        }
        all.sort_unstable();
        let at = |part: usize| all.get(all.len() * part / 100).or(all.last()).copied().unwrap_or(0);
        ([at(50), at(99), all.last().copied().unwrap_or(0)], all.len())
    }

    /// Forgets all counts and times so far.
    pub(super) fn reset(&self) {
        let mut state = self.state.lock();
        self.catch_up(&mut state);
        (state.counts, state.lags) = (LookupCounts::default(), Vec::new());
        state.watched.clear();
    }
}

/// Keeps only the latest of all changes before a time.
fn put_together(changes: &mut Vec<(u64, Stamp)>, before_ms: u64) {
    let old = changes.iter().filter(|(landed_ms, _)| *landed_ms < before_ms);
    let latest = old.max_by_key(|(_, stamp)| *stamp).copied();
    changes.retain(|(landed_ms, _)| *landed_ms >= before_ms);
    changes.extend(latest);
}
