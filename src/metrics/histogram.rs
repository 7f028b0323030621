//! Histograms of durations.
//!
//! Owns the bounds, which are the same for all histograms, so that the figures of nodes can be
//! added up. Must never wait: durations are counted on the path of a program's call.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// The upper bounds of the buckets, in microseconds; one more bucket holds longer durations.
pub const BOUNDS_US: [u64; 18] = [
    50, 100, 250, 500, 1_000, 2_500, 5_000, 10_000, 25_000, 50_000, 100_000, 250_000, 500_000,
    1_000_000, 2_500_000, 5_000_000, 10_000_000, 60_000_000,
];

/// Counts durations by their length.
#[derive(Debug, Default)]
pub struct Histogram {
    buckets: [AtomicU64; BOUNDS_US.len() + 1],
    sum_us: AtomicU64,
}

/// The counts of a histogram.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Distribution {
    /// The number of durations in each bucket; each duration is in one bucket.
    pub buckets: [u64; BOUNDS_US.len() + 1],
    /// The sum of all durations, in microseconds.
    pub sum_us: u64,
}

impl Histogram {
    /// Counts one duration.
    pub fn observe(&self, time: Duration) {
        let us = u64::try_from(time.as_micros()).unwrap_or(u64::MAX);
        let bucket = BOUNDS_US.partition_point(|bound| *bound < us);
        self.buckets[bucket].fetch_add(1, Ordering::Relaxed);
        self.sum_us.fetch_add(us, Ordering::Relaxed);
    }

    /// Reads the counts. The buckets are not read at one instant.
    pub fn read(&self) -> Distribution {
        Distribution {
            buckets: std::array::from_fn(|at| self.buckets[at].load(Ordering::Relaxed)),
            sum_us: self.sum_us.load(Ordering::Relaxed),
        }
    }
}

impl Distribution {
    /// Returns the number of durations.
    pub fn count(&self) -> u64 {
        self.buckets.iter().sum()
    }

    /// Adds the counts of another distribution.
    pub fn add(&mut self, other: &Self) {
        for (mine, more) in self.buckets.iter_mut().zip(other.buckets) {
            *mine += more;
        }
        self.sum_us += other.sum_us;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_duration_is_in_the_first_bucket_that_is_long_enough() {
        for (us, bucket) in [(0, 0), (50, 0), (51, 1), (60_000_000, 17), (60_000_001, 18)] {
            let histogram = Histogram::default();
            histogram.observe(Duration::from_micros(us));
            let found = histogram.read();
            assert_eq!((found.buckets[bucket], found.count(), found.sum_us), (1, 1, us), "{us}");
        }
        let mut sum = Distribution::default();
        let one = Histogram::default();
        one.observe(Duration::from_millis(1));
        sum.add(&one.read());
        sum.add(&one.read());
        assert_eq!((sum.count(), sum.sum_us, sum.buckets[4]), (2, 2000, 2));
    }
}
