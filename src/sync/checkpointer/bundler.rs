//! Bundling: commits of the log that no checkpoint has yet, put together in one object.
//!
//! Owns which commits and which earlier bundles go into one. Needs nothing but the log, so any node can do it, and two at
//! once do no harm. Must never say that a bundle has a part of the log that was not listed.

use std::pin::pin;
use std::time::Duration;

use bytes::Bytes;
use futures::StreamExt as _;
use futures::stream;

use crate::clock::Clock;
use crate::error::{Error, Kind, Result};
use crate::remote::{
    BUNDLE_BYTES_MAX, BUNDLE_COMMITS_MAX, Bundle, BundleName, Class, LOG_ITEMS_MAX, LogItem,
    Remote, decode_commit_named, keys,
};
use crate::stamp::{NodeId, Stamp};
use crate::sync::covers::BundleItem;
use crate::sync::times::LOOK_BACK_MS;
use crate::task;

/// Commits that are read at once.
const FETCHES_AT_ONCE: usize = 8;
/// An earlier bundle is joined if it has at most so many quarters of the bytes: of two that have as many commits, one is a few
/// bytes larger.
const SAME_SIZE_QUARTERS: u64 = 5;
/// From the list to the upload no more time may pass than this: a clock that is wrong would hide what came meanwhile.
const BUNDLE_TIME_MAX: Duration = Duration::from_secs(30);

/// The part of the log that no checkpoint and no bundle has.
#[derive(Debug)]
pub(super) struct Tail {
    from_ms: u64,
    upto_ms: u64,
    /// When it was listed, by the monotonic clock and by the store's.
    began: Duration,
    began_ms: u64,
    items: Vec<(Stamp, LogItem)>,
}

impl Tail {
    /// Lists the log from a time on, as far as one bundle can hold it.
    pub(super) async fn list(remote: &Remote, clock: &Clock, from_ms: u64) -> Result<Self> {
        let (began, began_ms) = (clock.mono(), remote.now_ms());
        let first = Stamp { ms: from_ms, counter: 0, node: NodeId(0) };
        let (mut after, mut items) = (keys::commit_name(&first), Vec::new());
        while items.len() < BUNDLE_COMMITS_MAX {
            let page = remote.list_log(Some(&after)).await?;
            let full = page.len() >= LOG_ITEMS_MAX;
            items.extend(page.into_iter().filter_map(|item| {
                let stamp = keys::commit_stamp(&item.name)?;
                Some((stamp, item))
            }));
            match items.last().filter(|_| full) {
                Some((_, last)) => after.clone_from(&last.name),
                None => break,
            }
        }
        Ok(Self { from_ms, upto_ms: u64::MAX, began, began_ms, items })
    }

    /// Returns the bytes of the commits that were made after a time.
    pub(super) fn bytes_after(&self, ms: u64) -> u64 {
        self.items.iter().filter(|(stamp, _)| stamp.ms > ms).map(|(_, item)| item.size).sum()
    }

    /// Keeps what has been there for so long that nothing comes before it any more, and fits into a bundle. Returns how
    /// many commits that are.
    pub(super) fn settle(&mut self) -> usize {
        let mut upto_ms = self.began_ms.saturating_sub(LOOK_BACK_MS);
        let (mut bytes, mut count) = (0, 0);
        for (stamp, item) in &self.items {
            bytes += item.size;
            if bytes > BUNDLE_BYTES_MAX / 2 || count == BUNDLE_COMMITS_MAX / 2 {
                upto_ms = upto_ms.min(stamp.ms);
                break;
            }
            count += 1;
        }
        self.items.retain(|(stamp, _)| stamp.ms < upto_ms);
        self.upto_ms = upto_ms;
        self.items.len()
    }

    /// Writes a bundle of this and of what comes right before it in bundles that are no larger, so that there are never
    /// many of them and each commit is written anew a few times. Returns its name.
    pub(super) async fn bundle(
        self,
        remote: &Remote,
        clock: &Clock,
        node: NodeId,
        before: &[&BundleItem],
    ) -> Result<(BundleName, usize)> {
        let Self { from_ms, upto_ms, began, .. } = self;
        let mut bundle = Bundle { from_ms, upto_ms, lacking: Vec::new(), commits: Vec::new() };
        let reading = stream::iter(self.items).map(|(stamp, _)| read(remote, stamp));
        let mut reading = pin!(reading.buffered(FETCHES_AT_ONCE));
        let mut read_ms = None;
        while let Some(read) = reading.next().await {
            let late = clock.mono().saturating_sub(began) > BUNDLE_TIME_MAX / 2;
            if let (true, Ok((next, _)), Some(read_ms)) = (late, &read, read_ms)
                && next.ms > read_ms
            {
                // What was read is enough for one.
                bundle.upto_ms = next.ms;
                break;
            }
            let read = read?;
            read_ms = Some(read.0.ms);
            match read {
                (stamp, Some(bytes)) => bundle.commits.push((stamp, bytes)),
                (stamp, None) => bundle.lacking.push(stamp),
            }
        }
        for earlier in before.iter().rev() {
            let fits = bundle.bytes() + earlier.item.size <= BUNDLE_BYTES_MAX / 2;
            if !fits || earlier.item.size > bundle.bytes() / 4 * SAME_SIZE_QUARTERS {
                break;
            }
            match remote.get_bundle(&earlier.name).await {
                Ok(earlier) => join(&mut bundle, earlier),
                Err(error) => {
                    tracing::debug!(name = %earlier.name, error = %error.chain(), "a bundle is not joined");
                    break;
                }
            }
        }
        if clock.mono().saturating_sub(began) > BUNDLE_TIME_MAX {
            return Err(Error::new(Kind::TimedOut, "a bundle took too long"));
        }
        let upto = Stamp { ms: bundle.upto_ms, counter: task::random_u64() as u32, node };
        let name = BundleName { upto, from_ms: bundle.from_ms };
        remote.put_bundle(&name, &bundle).await?;
        Ok((name, bundle.commits.len()))
    }
}

/// Adds a bundle that comes before another.
fn join(bundle: &mut Bundle, earlier: Bundle) {
    if bundle.commits.len() + bundle.lacking.len() + earlier.commits.len() + earlier.lacking.len()
        > BUNDLE_COMMITS_MAX
    {
        return;
    }
    bundle.from_ms = bundle.from_ms.min(earlier.from_ms);
    bundle.commits.extend(earlier.commits);
    bundle.commits.sort_unstable_by_key(|(stamp, _)| *stamp);
    bundle.commits.dedup_by_key(|(stamp, _)| *stamp);
    bundle.lacking.extend(earlier.lacking);
    bundle.lacking.sort_unstable();
    bundle.lacking.dedup();
}

/// Reads a commit as it lies in the log; without bytes if no node can use it.
async fn read(remote: &Remote, stamp: Stamp) -> Result<(Stamp, Option<Bytes>)> {
    let name = keys::commit_name(&stamp);
    let bytes = match remote.get_commit(&name).await {
        Ok(bytes) => bytes,
        // What a checkpoint has meanwhile may be gone.
        Err(error) if error.kind() == Kind::NotFound => return Err(error),
        Err(error) if Class::of(error.kind()) == Class::Passing => return Err(error),
        Err(_) => return Ok((stamp, None)),
    };
    let copy = bytes.clone();
    let good = task::blocking(move || {
        // One of a newer format is for nodes that know it.
        decode_commit_named(&copy, &stamp).map_or_else(|e| e.kind() == Kind::Invalid, |_| true)
    });
    Ok((stamp, good.await.then_some(bytes)))
}
