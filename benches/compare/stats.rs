//! Computes figures from samples.

use std::time::Duration;

/// Samples of one work on one target, by round.
#[derive(Debug, Default, Clone)]
pub(crate) struct Samples {
    rounds: Vec<Vec<Duration>>,
}

impl Samples {
    /// Adds the samples of one round.
    pub(crate) fn push(&mut self, round: Vec<Duration>) {
        self.rounds.push(round);
    }

    /// Returns how many there are.
    pub(crate) fn len(&self) -> usize {
        self.rounds.iter().map(Vec::len).sum()
    }

    /// Returns the value below which `share` of all samples lie, in microseconds.
    pub(crate) fn quantile_us(&self, share: f64) -> f64 {
        let mut all: Vec<Duration> = self.rounds.iter().flatten().copied().collect();
        quantile(&mut all, share).as_secs_f64() * 1e6
    }

    /// Returns the median over rounds of (median here / median there). Other load of the machine
    /// during a round affects both sides of its ratio.
    pub(crate) fn ratio_to(&self, other: &Self) -> f64 {
        let median = |round: &Vec<Duration>| quantile(&mut round.clone(), 0.5).as_secs_f64();
        let mut ratios: Vec<f64> = self
            .rounds
            .iter()
            .zip(&other.rounds)
            .map(|(a, b)| median(a) / median(b).max(1e-9))
            .collect();
        ratios.sort_by(f64::total_cmp);
        ratios.get(ratios.len() / 2).copied().unwrap_or(f64::NAN)
    }
}

/// Returns the value below which `share` of the samples lie; sorts them.
pub(crate) fn quantile(samples: &mut [Duration], share: f64) -> Duration {
    samples.sort_unstable();
    let at = (samples.len() as f64 * share) as usize;
    samples.get(at.min(samples.len().saturating_sub(1))).copied().unwrap_or_default()
}
