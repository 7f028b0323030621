//! Parcels: the contents that one request fetches, in the order in which they were stored.
//!
//! Owns the order. Contents that were written together were stored together, and will probably be
//! read together. Must never be taken for the truth: it is built only from time to time, and the
//! objects in it may no longer exist.

use std::collections::HashMap;
use std::sync::Arc;

use super::ledger::Ledger;
use crate::digest::Digest;
use crate::namespace::Site;

/// The most parcels in an order: the last ones.
const PARCELS_MAX: usize = 100_000;

/// An object of the store that holds contents.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) enum Parcel {
    /// A pack, by its name.
    Pack(Arc<str>),
    /// One content of this many bytes, stored as an object.
    Object(Digest, u64),
}

impl Parcel {
    /// Returns the parcel that holds a content; `None` if a commit holds it.
    pub(super) fn of(site: &Site, digest: Digest, size: u64) -> Option<Self> {
        match site {
            Site::Pack { pack, .. } => Some(Self::Pack(Arc::clone(pack))),
            Site::Object => Some(Self::Object(digest, size)),
            Site::Inline { .. } => None,
        }
    }
}

/// What is known of a parcel.
#[derive(Clone, Copy, Debug, Default)]
struct Holds {
    stored_ms: u64,
    /// The bytes of those of its contents that are not here.
    bytes: u64,
}

/// Parcels, the oldest first, with the bytes that were not here. Those of which all was here have a
/// place, too: a program may go on from there.
#[derive(Debug, Default)]
pub(super) struct Order {
    parcels: Vec<(Parcel, u64)>,
    places: HashMap<Parcel, usize>,
}

impl Order {
    /// Builds the order from everything that the store has. Takes up to a second for millions of
    /// contents.
    pub(super) fn of(ledger: &Ledger) -> Self {
        let mut all: HashMap<Parcel, Holds> = HashMap::new();
        let mut mark = Some(0);
        while let Some(from) = mark {
            let (found, next) = ledger.stored_in_use(from);
            for (digest, location) in found {
                let Some(parcel) = Parcel::of(&location.site, digest, location.size) else {
                    continue;
                };
                if ledger.reliance().is_expired(location.stored_ms) {
                    continue;
                }
                let holds = all.entry(parcel).or_default();
                holds.stored_ms = holds.stored_ms.max(location.stored_ms);
                if !ledger.blobs().contains(&digest) {
                    holds.bytes += location.size;
                }
            }
            if all.len() > 2 * PARCELS_MAX {
                all = last_of(all).into_iter().collect();
            }
            mark = next;
        }
        let all = last_of(all).into_iter();
        Self::of_parcels(all.map(|(parcel, holds)| (parcel, holds.bytes)).collect())
    }

    /// Builds the order from its parcels, each with the bytes that are not here.
    pub(super) fn of_parcels(parcels: Vec<(Parcel, u64)>) -> Self {
        let places = parcels.iter().enumerate().map(|(at, (parcel, _))| (parcel.clone(), at));
        Self { places: places.collect(), parcels }
    }

    /// Returns the position of a parcel.
    pub(super) fn place(&self, parcel: &Parcel) -> Option<usize> {
        self.places.get(parcel).copied()
    }

    /// Returns the parcels from a position on, each with the bytes that were not here.
    pub(super) fn from(&self, place: usize) -> &[(Parcel, u64)] {
        self.parcels.get(place..).unwrap_or_default()
    }
}

/// Returns the last parcels, in their order.
fn last_of(all: HashMap<Parcel, Holds>) -> Vec<(Parcel, Holds)> {
    let mut all: Vec<(Parcel, Holds)> = all.into_iter().collect();
    all.sort_unstable_by(|a, b| (a.1.stored_ms, &a.0).cmp(&(b.1.stored_ms, &b.0)));
    all.split_off(all.len().saturating_sub(PARCELS_MAX))
}
