//! Bundling: puts commits of the log that no checkpoint has yet together in one object.
//!
//! Owns which commits and which earlier bundles go into a new bundle. Needs nothing but the log, so
//! any node can do it, and two bundlers at once do no harm. Must never claim that a bundle has a
//! part of the log that was not listed.

use std::pin::pin;
use std::time::Duration;

use bytes::Bytes;
use futures::StreamExt as _;
use futures::stream;

use crate::clock::Clock;
use crate::error::{Error, Kind, Result};
use crate::remote::{
    BUNDLE_BYTES_MAX, BUNDLE_COMMITS_MAX, Bundle, BundleName, LOG_ITEMS_MAX, LogItem, Remote,
    decode_commit_named, keys,
};
use crate::stamp::{NodeId, Stamp};
use crate::sync::covers::BundleItem;
use crate::sync::read_fault::ReadFault;
use crate::sync::times::LOOK_BACK_MS;
use crate::task;

/// How many commits are read at once.
const FETCHES_AT_ONCE: usize = 8;
/// An earlier bundle is joined if its bytes are at most this many quarters of the new ones: if two
/// bundles have the same number of commits, one is still a few bytes larger.
const SAME_SIZE_QUARTERS: u64 = 5;
/// The longest time from the list to the upload: with a wrong clock, the bundle would hide commits
/// that arrived meanwhile.
const BUNDLE_TIME_MAX: Duration = Duration::from_secs(30);

/// The part of the log that is in no checkpoint and no bundle.
#[derive(Debug)]
pub(super) struct Tail {
    from_ms: u64,
    upto_ms: u64,
    /// When it was listed, by the monotonic clock and by the store's clock.
    began: Duration,
    began_ms: u64,
    items: Vec<(Stamp, LogItem)>,
}

impl Tail {
    /// Lists the log from a time on, up to what one bundle can hold.
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

    /// Returns the bytes of the commits that were made after `ms`.
    pub(super) fn bytes_after(&self, ms: u64) -> u64 {
        self.items.iter().filter(|(stamp, _)| stamp.ms > ms).map(|(_, item)| item.size).sum()
    }

    /// Keeps the commits that are old enough that no earlier one can still appear, and that fit
    /// into a bundle. Returns how long to wait if there are fewer than `least`.
    pub(super) fn settle(&mut self, least: usize) -> Option<Duration> {
        let old_ms = self.began_ms.saturating_sub(LOOK_BACK_MS);
        let mut upto_ms = old_ms;
        let (mut bytes, mut count) = (0, 0);
        for (stamp, item) in &self.items {
            bytes += item.size;
            if bytes > BUNDLE_BYTES_MAX / 2 || count == BUNDLE_COMMITS_MAX / 2 {
                upto_ms = upto_ms.min(stamp.ms);
                break;
            }
            count += 1;
        }
        let enough_ms = self.items.get(least - 1).map(|(stamp, _)| stamp.ms);
        self.items.retain(|(stamp, _)| stamp.ms < upto_ms);
        self.upto_ms = upto_ms;
        let young_ms = enough_ms.filter(|ms| *ms >= old_ms).map(|ms| ms - old_ms + 1);
        let wait_ms = young_ms.map_or(LOOK_BACK_MS / 2, |ms| ms.min(LOOK_BACK_MS));
        (self.items.len() < least).then(|| Duration::from_millis(wait_ms))
    }

    /// Writes a bundle of these commits, together with directly preceding bundles that are not
    /// larger. So there are never many bundles, and each commit is rewritten only a few times.
    /// Returns its name.
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
                // The commits read so far are enough for a bundle.
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

/// Adds an earlier bundle to a bundle.
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

/// Reads a commit as it is in the log; without bytes if no node can use it.
async fn read(remote: &Remote, stamp: Stamp) -> Result<(Stamp, Option<Bytes>)> {
    let name = keys::commit_name(&stamp);
    let bytes = match remote.get_commit(&name).await {
        Ok(bytes) => bytes,
        Err(error) => match ReadFault::of(&error) {
            // A commit that is in a checkpoint meanwhile may be deleted.
            ReadFault::Gone | ReadFault::Passing => return Err(error),
            _ => return Ok((stamp, None)),
        },
    };
    let copy = bytes.clone();
    let good = task::blocking(move || {
        // A commit of a newer format is kept for nodes that know it.
        let read = decode_commit_named(&copy, &stamp);
        read.map_or_else(|error| ReadFault::of(&error) == ReadFault::Newer, |_| true)
    });
    Ok((stamp, good.await.then_some(bytes)))
}
