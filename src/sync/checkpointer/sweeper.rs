//! Sweeping: deletes what a settled checkpoint has made needless.
//!
//! Owns which commits, bundles and checkpoints are deleted while nodes run, by the rules of `gc`.
//! Must never delete a commit unless every checkpoint from which a node could start names it. Must
//! never delete a commit that holds a content in use.

use std::collections::HashSet;
use std::fs::File;
use std::io::BufReader;

use crate::error::Result;
use crate::namespace::Site;
use crate::remote::{
    CheckpointItem, CheckpointReader, Deleted, LOG_ITEMS_MAX, LogItem, Remote, keys,
};
use crate::stamp::Stamp;
use crate::sync::checkpoint_copy::read_checkpoint;
use crate::sync::covers::{Covers, floor_ms};
use crate::sync::ledger::Ledger;
use crate::sync::times::LOG_GRACE;
use crate::task;

/// The most parts of the log that are swept together; the rest is left to the next time.
const PARTS_MAX: usize = 50;

/// The commits that a checkpoint contains or needs.
#[derive(Default)]
struct CheckpointSpan {
    /// Commits that are folded into it.
    folded: HashSet<Stamp>,
    /// Commits that hold contents in use.
    used: HashSet<Stamp>,
}

/// The rules for what may be deleted.
struct SweepRules {
    settled: CheckpointSpan,
    /// The commits in the latest checkpoint, if that is another one.
    latest: Option<HashSet<Stamp>>,
    /// The commits that hold contents in use now.
    used: HashSet<Stamp>,
}

impl SweepRules {
    fn goes(&self, stamp: &Stamp) -> bool {
        let covered = self.latest.as_ref().is_none_or(|latest| latest.contains(stamp));
        let needed = self.settled.used.contains(stamp) || self.used.contains(stamp);
        covered && self.settled.folded.contains(stamp) && !needed
    }
}

/// A checkpoint of this node: its name, and the commits in it.
#[derive(Debug)]
pub(super) struct OwnCheckpoint {
    pub(super) name: String,
    pub(super) commits: Vec<Stamp>,
}

/// Deletes needless objects after this node has written a checkpoint; returns how many.
pub(super) async fn sweep(ledger: &Ledger, remote: &Remote, own: OwnCheckpoint) -> Result<usize> {
    let covers = Covers::list(remote).await?;
    let settled_ms = remote.now_ms().saturating_sub(LOG_GRACE.as_millis() as u64);
    let all = &covers.checkpoints;
    let Some(at) = all.iter().position(|item| item.stored_ms <= settled_ms) else { return Ok(0) };
    // This node does not know everything, and what it does not know may be in use.
    if ledger.is_partial() {
        return Ok(0);
    }
    let settled = read(ledger, remote, &all[at]).await?;
    let latest = match at {
        0 => None,
        _ if all[0].name == own.name => Some(own.commits.into_iter().collect()),
        _ => Some(read(ledger, remote, &all[0]).await?.folded),
    };
    let used = used_now(ledger).await;
    let rules = SweepRules { settled, latest, used };
    let floor_ms = floor_ms(&all[at]);
    let mut deleted = sweep_log(remote, floor_ms, &rules).await?;
    // A node that listed these before they became needless has read them by now.
    let bundles = covers.bundles.iter().filter(|one| {
        let holds = |other: &&crate::sync::covers::BundleItem| {
            other.name != one.name
                && other.item.stored_ms <= settled_ms
                && other.name.from_ms <= one.name.from_ms
                && (other.upto_ms(), other.name) > (one.upto_ms(), one.name)
        };
        one.upto_ms() <= floor_ms || covers.bundles.iter().any(|other| holds(&other))
    });
    let mut old: Vec<LogItem> = all[at + 1..].to_vec();
    old.extend(bundles.map(|one| one.item.clone()));
    deleted += delete(remote, &old).await?;
    Ok(deleted)
}

/// Deletes those commits that may be deleted, of the ones made before `before_ms`.
async fn sweep_log(remote: &Remote, before_ms: u64, rules: &SweepRules) -> Result<usize> {
    let (mut after, mut deleted) = (None, 0);
    for _ in 0..PARTS_MAX {
        let mut page = remote.list_log(after.as_deref()).await?;
        let last = page.last().map(|item| item.name.clone());
        let full = page.len() >= LOG_ITEMS_MAX;
        page.retain(|item| keys::commit_stamp(&item.name).is_some_and(|stamp| rules.goes(&stamp)));
        deleted += delete(remote, &page).await?;
        let more = |name: &String| keys::commit_stamp(name).is_some_and(|s| s.ms < before_ms);
        match last.filter(|last| full && more(last)) {
            Some(last) => after = Some(last),
            None => break,
        }
    }
    Ok(deleted)
}

async fn delete(remote: &Remote, items: &[LogItem]) -> Result<usize> {
    let objects: Vec<_> = items.iter().filter_map(|item| remote.object(item)).collect();
    if objects.is_empty() {
        return Ok(0);
    }
    let outcomes = remote.delete(&objects).await?;
    let mut gone = 0;
    for outcome in outcomes {
        match outcome {
            Deleted::Gone => gone += 1,
            Deleted::Young => {}
            Deleted::Failed(error) => return Err(error),
        }
    }
    Ok(gone)
}

/// Returns the commits that hold contents which are in use as far as this node knows.
async fn used_now(ledger: &Ledger) -> HashSet<Stamp> {
    let ledger = ledger.clone();
    task::blocking(move || {
        let (mut used, mut mark) = (HashSet::new(), Some(0));
        while let Some(from) = mark {
            let (found, next) = ledger.inline_in_use(from);
            used.extend(found.into_iter().map(|one| one.commit));
            mark = next;
        }
        used
    })
    .await
}

/// Reads which commits a checkpoint contains or needs.
async fn read(ledger: &Ledger, remote: &Remote, item: &LogItem) -> Result<CheckpointSpan> {
    let staging = ledger.staging().clone();
    read_checkpoint(remote, &item.name, move || staging.create(), span).await
}

fn span(from: BufReader<File>) -> Result<CheckpointSpan> {
    let mut span = CheckpointSpan::default();
    let mut reader = CheckpointReader::new(from)?;
    while let Some(item) = reader.next()? {
        match item {
            CheckpointItem::Commit(stamp) => drop(span.folded.insert(stamp)),
            CheckpointItem::Register(_, _, Some(location)) => {
                if let Site::Inline { commit } = &location.site {
                    span.used.extend(keys::commit_stamp(commit));
                }
            }
            _ => {}
        }
    }
    Ok(span)
}
