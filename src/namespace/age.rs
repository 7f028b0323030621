//! Age: how long stored bytes are served, and the times derived from it.
//!
//! Owns every duration that depends on the age, so that ledger, fetcher, uploader and renewer
//! agree. Must never read a clock: all times are the store's and passed in.
//!
//! Keeps P11 expiry.

use std::time::Duration;

/// The longest time by which an entry becomes a miss before the store's rule deletes it.
const MARGIN_MAX_MS: u64 = 24 * 60 * 60 * 1000;
/// How long a tombstone is kept if entries never expire.
const TOMBSTONE_MS: u64 = 30 * 24 * 60 * 60 * 1000;
/// The longest random wait before a renewal, so that only one node renews a content.
const JITTER_MAX_MS: u64 = 60 * 60 * 1000;

/// How long the bytes of an entry are served after they were stored.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Age {
    /// `u64::MAX` is for ever.
    limit_ms: u64,
}

impl Age {
    /// Nothing expires.
    pub const NEVER: Self = Self { limit_ms: u64::MAX };

    /// Makes an age; `None` is for ever.
    pub fn of(limit: Option<Duration>) -> Self {
        let ms = |limit: Duration| u64::try_from(limit.as_millis()).unwrap_or(u64::MAX);
        Self { limit_ms: limit.map_or(u64::MAX, ms).max(1) }
    }

    /// Returns the age; `None` is for ever.
    pub fn limit(self) -> Option<Duration> {
        (!self.is_endless()).then(|| Duration::from_millis(self.limit_ms))
    }

    /// Reports whether nothing expires.
    pub fn is_endless(self) -> bool {
        self.limit_ms == u64::MAX
    }

    /// How long before the end of its age an entry becomes a miss: clocks and rules are not exact.
    fn margin_ms(self) -> u64 {
        (self.limit_ms / 10).min(MARGIN_MAX_MS)
    }

    /// Returns for how much longer something that was stored at `stored_ms` is served; `None` if it
    /// is expired, [`Duration::MAX`] if it never expires.
    pub fn left(self, stored_ms: u64, now_ms: u64) -> Option<Duration> {
        if self.is_endless() {
            return Some(Duration::MAX);
        }
        let until_ms = stored_ms.saturating_add(self.limit_ms - self.margin_ms());
        (now_ms < until_ms).then(|| Duration::from_millis(until_ms - now_ms))
    }

    /// Reports whether half of the age is over. Content used after that should be stored again, and
    /// content that must last must not rely on the old copy.
    pub fn is_half_over(self, stored_ms: u64, now_ms: u64) -> bool {
        !self.is_endless() && now_ms >= stored_ms.saturating_add(self.limit_ms / 2)
    }

    /// How long something is kept on record after it has expired: until no node can still show it
    /// or store it again, whatever its clock says.
    pub fn grace_ms(self) -> u64 {
        if self.is_endless() { 0 } else { 2 * self.margin_ms() }
    }

    /// How recent our knowledge of other nodes must be to purge records: everything that they
    /// stored again before it expired is known then.
    pub fn trust_ms(self) -> u64 {
        if self.is_endless() { MARGIN_MAX_MS } else { self.margin_ms() }
    }

    /// How long a tombstone is kept.
    fn tombstone_ms(self) -> u64 {
        if self.is_endless() { TOMBSTONE_MS } else { self.limit_ms }
    }

    /// Reports whether a tombstone is so old that it may be forgotten.
    pub fn is_tombstone_over(self, stamp_ms: u64, now_ms: u64) -> bool {
        let kept_ms = self.tombstone_ms();
        now_ms > stamp_ms.saturating_add(kept_ms).saturating_add((kept_ms / 10).min(MARGIN_MAX_MS))
    }

    /// Reports whether a change is so old that other nodes may soon forget a tombstone that it
    /// should meet. Such a change must get a new stamp before it is sent.
    pub fn is_late(self, stamp_ms: u64, now_ms: u64) -> bool {
        now_ms > stamp_ms.saturating_add(self.tombstone_ms() / 2)
    }

    /// Reports whether the log may lack events since a node last read all of it: commits live no
    /// longer than the entries in them.
    pub fn may_lack(self, listed_ms: u64, now_ms: u64) -> bool {
        self.left(listed_ms, now_ms).is_none()
    }

    /// Returns the longest random wait before a renewal, so that one node is first.
    pub fn jitter(self) -> Duration {
        if self.is_endless() {
            return Duration::ZERO;
        }
        Duration::from_millis((self.limit_ms / 20).min(JITTER_MAX_MS))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DAY: u64 = 24 * 60 * 60 * 1000;

    #[test]
    fn an_age_of_a_month() {
        let age = Age::of(Some(Duration::from_millis(30 * DAY)));
        assert_eq!(age.left(0, 28 * DAY), Some(Duration::from_millis(DAY)));
        assert_eq!(age.left(0, 29 * DAY - 1), Some(Duration::from_millis(1)));
        assert_eq!(age.left(0, 29 * DAY), None, "a day before the store's rule");
        assert!(!age.is_half_over(0, 15 * DAY - 1) && age.is_half_over(0, 15 * DAY));
        assert_eq!(age.grace_ms(), 2 * DAY);
        assert!(!age.is_tombstone_over(0, 31 * DAY) && age.is_tombstone_over(0, 31 * DAY + 1));
        assert!(!age.is_late(0, 15 * DAY) && age.is_late(0, 15 * DAY + 1));
        assert_eq!(age.jitter(), Duration::from_hours(1));
        assert_eq!(age.left(40 * DAY, 0), Some(Duration::from_millis(69 * DAY)), "clocks differ");
    }

    #[test]
    fn an_age_of_seconds() {
        let age = Age::of(Some(Duration::from_secs(10)));
        assert_eq!(age.left(5, 9004), Some(Duration::from_millis(1)));
        assert_eq!(age.left(5, 9005), None);
        assert_eq!(age.jitter(), Duration::from_millis(500));
    }

    #[test]
    fn what_never_expires() {
        for age in [Age::NEVER, Age::of(None)] {
            assert_eq!(age.left(0, u64::MAX), Some(Duration::MAX));
            assert!(age.is_endless() && age.limit().is_none());
            assert!(!age.is_half_over(0, u64::MAX));
            assert!(!age.is_late(0, 15 * DAY) && age.is_late(0, 15 * DAY + 1));
            assert!(!age.is_tombstone_over(0, 31 * DAY) && age.is_tombstone_over(0, 31 * DAY + 1));
        }
    }
}
