//! What the cache saved for each client, in the form that is reported and kept.

use std::collections::BTreeMap;
use std::ops::AddAssign;

use serde::{Deserialize, Serialize};

/// The figures of one client: entries as the client itself counts its hits and misses.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct ClientFigures {
    /// Opened entries whose bytes were on this node.
    pub local: u64,
    /// Opened entries whose bytes came from the store since their last open here.
    pub fetched: u64,
    /// Entries that programs of this node made and published.
    pub compiled: u64,
    /// The total time that the opened entries took to make, in milliseconds, if known.
    pub saved_ms: u64,
}

/// The figures of all clients that have any, by the names of their profiles.
pub type Figures = BTreeMap<String, ClientFigures>;

impl ClientFigures {
    /// Returns the growth since `earlier`; smaller figures, which were lost in between, count from zero.
    #[must_use]
    pub fn since(&self, earlier: &Self) -> Self {
        Self {
            local: super::grown(self.local, earlier.local),
            fetched: super::grown(self.fetched, earlier.fetched),
            compiled: super::grown(self.compiled, earlier.compiled),
            saved_ms: super::grown(self.saved_ms, earlier.saved_ms),
        }
    }

    /// Returns the sum of all clients.
    pub fn sum(all: &Figures) -> Self {
        let mut sum = Self::default();
        for one in all.values() {
            sum += *one;
        }
        sum
    }

    /// Returns the growth of each client, without zeros.
    pub fn growth(now: &Figures, earlier: &Figures) -> Figures {
        let none = Self::default();
        let grown = now.iter().map(|(name, figures)| {
            (name.clone(), figures.since(earlier.get(name).unwrap_or(&none)))
        });
        grown.filter(|(_, figures)| *figures != none).collect()
    }
}

impl AddAssign for ClientFigures {
    fn add_assign(&mut self, other: Self) {
        self.local = self.local.saturating_add(other.local);
        self.fetched = self.fetched.saturating_add(other.fetched);
        self.compiled = self.compiled.saturating_add(other.compiled);
        self.saved_ms = self.saved_ms.saturating_add(other.saved_ms);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn figures(local: u64, saved_ms: u64) -> ClientFigures {
        ClientFigures { local, saved_ms, ..ClientFigures::default() }
    }

    #[test]
    fn growth_leaves_out_zeros() {
        let all =
            |jax, numba| Figures::from([("jax".to_owned(), jax), ("numba".to_owned(), numba)]);
        let before = Figures::from([("jax".to_owned(), figures(3, 1000))]);
        let now = all(figures(5, 1500), ClientFigures::default());
        let growth = ClientFigures::growth(&now, &before);
        assert_eq!(growth, Figures::from([("jax".to_owned(), figures(2, 500))]));
        assert_eq!(ClientFigures::sum(&all(figures(5, 1), figures(2, 3))), figures(7, 4));
        // The figures were lost meanwhile.
        let lost = Figures::from([("jax".to_owned(), figures(1, 10))]);
        assert_eq!(ClientFigures::growth(&lost, &before)["jax"], figures(1, 10));
    }
}
