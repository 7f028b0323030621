//! Doubts: nodes tell each other that a content is missing at a place.
//!
//! Owns the commit extension that carries doubts. Must never be needed to read the namespace: a
//! node that skips the extension only keeps trusting a place that is empty.
//!
//! Keeps P9 self-healing.

use serde::{Deserialize, Serialize};

use crate::digest::Digest;
use crate::namespace::{Commit, Location};

/// The tag of the extension: postcard of a list of doubts.
pub(super) const TAG: u16 = 1;
/// The most doubts in one commit, and the most that wait for one.
pub(super) const DOUBTS_MAX: usize = 1024;

/// A place that proved to be empty or damaged.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(super) struct Doubt {
    /// The content that should be at the place.
    pub(super) digest: Digest,
    /// The place, as commits have named it.
    pub(super) location: Location,
}

/// What a batch carries beside changes.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(super) struct Amends {
    /// Places that other nodes must no longer trust.
    pub(super) doubts: Vec<Doubt>,
    /// Contents to store again because they are not where they should be, with their sizes.
    pub(super) repairs: Vec<(Digest, u64)>,
    /// Contents to store again because they are used and grow old, with their sizes.
    pub(super) renewals: Vec<(Digest, u64)>,
}

impl Amends {
    pub(super) fn is_empty(&self) -> bool {
        self.doubts.is_empty() && self.repairs.is_empty() && self.renewals.is_empty()
    }
}

/// Encodes doubts for a commit.
pub(super) fn encode(doubts: &[Doubt]) -> Vec<u8> {
    postcard::to_stdvec(doubts).expect("numbers and names always encode")
}

/// Returns the doubts that a commit carries; none if they cannot be decoded.
pub(super) fn of(commit: &Commit) -> Vec<Doubt> {
    let Some(bytes) = commit.extensions.get(&TAG) else { return Vec::new() };
    let mut doubts: Vec<Doubt> = postcard::from_bytes(bytes).unwrap_or_default();
    doubts.truncate(DOUBTS_MAX);
    doubts
}
