//! Covers: checkpoints and bundles that replace a part of the log, so that no node has to list or
//! read that part.
//!
//! Owns which checkpoints and bundles are used, and in which order. Must never treat a part of the
//! log as covered unless its cover says so.

use super::times::{LOOK_BACK_MS, WRITE_TIME_MAX};
use crate::error::Result;
use crate::remote::{BundleName, LogItem, Remote, keys};

/// How much later than its object's time the time in a name may be if the clock of its writer is
/// right: a node corrects its clock by the store's only from two seconds on, and a store may give
/// the second alone. Much less than `LOOK_BACK_MS`.
const NAME_AHEAD_MS: u64 = 5_000;

/// The checkpoints and bundles that a list has shown.
#[derive(Debug, Clone, Default)]
pub(super) struct Covers {
    /// The checkpoints, the latest first.
    pub(super) checkpoints: Vec<LogItem>,
    pub(super) bundles: Vec<BundleItem>,
}

/// A bundle, as a list has shown it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct BundleItem {
    pub(super) name: BundleName,
    /// Its entry in the list.
    pub(super) item: LogItem,
}

impl BundleItem {
    /// Returns the time up to which it covers the log.
    pub(super) fn upto_ms(&self) -> u64 {
        bundled_upto_ms(&self.name, self.item.stored_ms)
    }
}

/// Returns the time up to which a bundle that was stored at `stored_ms` covers the log. If the
/// writer's clock is ahead, the bundle still does not cover what was stored after it.
pub(super) fn bundled_upto_ms(name: &BundleName, stored_ms: u64) -> u64 {
    name.upto.ms.min(stored_ms.saturating_sub(LOOK_BACK_MS))
}

impl Covers {
    /// Lists them in the store.
    pub(super) async fn list(remote: &Remote) -> Result<Self> {
        let (mut checkpoints, bundles) = remote.list_checkpoints().await?;
        latest_first(&mut checkpoints);
        let bundles = bundles.into_iter().filter_map(|item| {
            let name = BundleName::parse(&item.name)?;
            Some(BundleItem { name, item })
        });
        Ok(Self { checkpoints, bundles: bundles.collect() })
    }

    /// Returns the bundle that leads farthest from `from_ms`, among those for which `good` is true.
    pub(super) fn next(
        &self,
        from_ms: u64,
        good: impl Fn(&BundleItem) -> bool,
    ) -> Option<&BundleItem> {
        self.bundles
            .iter()
            .filter(|one| one.name.from_ms <= from_ms && from_ms < one.upto_ms() && good(one))
            .max_by_key(|one| (one.upto_ms(), one.name))
    }

    /// Returns the bundles that continue from `from_ms`, one after the other.
    pub(super) fn chain(&self, from_ms: u64) -> Vec<&BundleItem> {
        let mut chain: Vec<&BundleItem> = Vec::new();
        while let Some(next) =
            self.next(chain.last().map_or(from_ms, |last| last.upto_ms()), |_| true)
        {
            chain.push(next);
        }
        chain
    }
}

/// Sorts checkpoints in the order in which to trust them, the latest first.
///
/// The name says when its writer began, and the store says when it was stored. Neither a clock that
/// is ahead nor a slow upload may make an old checkpoint the latest, so the earlier of both times
/// counts.
fn latest_first(items: &mut [LogItem]) {
    items.sort_unstable_by_key(|item| std::cmp::Reverse((trusted_ms(item), item.name.clone())));
}

/// Returns from when a checkpoint counts: the earlier of the times in its name and in the list.
pub(super) fn trusted_ms(item: &LogItem) -> u64 {
    keys::checkpoint_stamp(&item.name).map_or(0, |stamp| stamp.ms.min(item.stored_ms))
}

/// Returns the time up to which a checkpoint covers the whole log. Its writer had listed and folded
/// the log less than half of `LOOK_BACK_MS` before that time, so the checkpoint can lack only late
/// comers. If the time in the name is ahead of the store's time by more than the noise of clocks,
/// it says nothing; the checkpoint may then have been begun `WRITE_TIME_MAX` before it was stored.
pub(super) fn floor_ms(item: &LogItem) -> u64 {
    let named_ms = keys::checkpoint_stamp(&item.name).map_or(0, |stamp| stamp.ms);
    let begun_ms = if named_ms > item.stored_ms.saturating_add(NAME_AHEAD_MS) {
        item.stored_ms.saturating_sub(WRITE_TIME_MAX.as_millis() as u64)
    } else {
        named_ms.min(item.stored_ms)
    };
    begun_ms.saturating_sub(LOOK_BACK_MS)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stamp::{NodeId, Stamp};

    const MINUTE: u64 = 60_000;

    fn bundle(from: u64, upto: u64, stored: u64) -> BundleItem {
        let upto = Stamp { ms: upto * MINUTE, counter: 0, node: NodeId(1) };
        let name = BundleName { upto, from_ms: from * MINUTE };
        let item = LogItem { name: name.to_string(), size: 1, stored_ms: stored * MINUTE };
        BundleItem { name, item }
    }

    fn chain(bundles: &[(u64, u64, u64)], from: u64) -> Vec<(u64, u64)> {
        let bundles = bundles.iter().map(|(from, upto, stored)| bundle(*from, *upto, *stored));
        let covers = Covers { checkpoints: Vec::new(), bundles: bundles.collect() };
        let chain = covers.chain(from * MINUTE);
        chain.iter().map(|one| (one.name.from_ms / MINUTE, one.name.upto.ms / MINUTE)).collect()
    }

    #[test]
    fn as_few_bundles_as_possible_and_none_after_a_gap() {
        let all =
            [(0, 10, 99), (10, 12, 99), (12, 14, 99), (10, 14, 99), (5, 11, 99), (20, 30, 99)];
        assert_eq!(chain(&all, 0), [(0, 10), (10, 14)]);
        assert_eq!(chain(&all, 7), [(5, 11), (10, 14)]);
        assert_eq!(chain(&all, 13), [(12, 14)]);
        assert_eq!(chain(&all, 14), []);
        assert_eq!(chain(&all, 25), [(20, 30)]);
        assert_eq!(chain(&[], 0), []);
    }

    #[test]
    fn a_clock_that_is_ahead_covers_nothing_that_came_later() {
        // The name says up to 1000, but it was stored at 11.
        let all = [(0, 1000, 11), (9, 20, 99)];
        assert_eq!(chain(&all, 0), [(0, 1000), (9, 20)]);
        assert_eq!(chain(&all, 10), [(9, 20)]);
    }

    #[test]
    fn a_checkpoint_whose_name_is_ahead_covers_nothing_that_came_while_it_was_written() {
        let item = |ms: u64, stored_ms: u64| {
            let name = keys::checkpoint_name(&Stamp { ms, counter: 0, node: NodeId(1) });
            LogItem { name, size: 1, stored_ms }
        };
        assert_eq!(floor_ms(&item(100 * MINUTE, 110 * MINUTE)), 99 * MINUTE);
        // A store that rounds its times, and a clock that is a little ahead.
        assert_eq!(floor_ms(&item(110 * MINUTE + 2500, 110 * MINUTE)), 109 * MINUTE);
        // It may have been begun as much earlier as writing one may take.
        assert_eq!(floor_ms(&item(200 * MINUTE, 110 * MINUTE)), 89 * MINUTE);
    }
}
