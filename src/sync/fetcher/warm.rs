//! Warming: makes contents local before a program requests them, because a person has named them,
//! or because the store got them last.
//!
//! Owns how far this goes. Must never evict. Must never continue against a store that cannot be
//! used.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt as _;
use parking_lot::Mutex;

use super::{Fetcher, Inner};
use crate::clock;
use crate::digest::Digest;
use crate::error::{Error, Kind, Result};
use crate::remote::{Health, Remote};
use crate::sync::parcels::{Order, Parcel};
use crate::sync::patience::may_pass;
use crate::sync::unpack::For;
use crate::task;

/// How many parcels are fetched at once for a person.
const WARM_AT_ONCE: usize = 8;
/// How many parcels are fetched at once after the mount. Only a few, because all nodes of a fleet
/// may start together.
const START_AT_ONCE: usize = 2;
/// The most that a file takes on the disk beyond its size.
const PLACE_BYTES: u64 = 4096;
/// How often a parcel is requested whose trouble may pass.
const TRIES: u32 = 4;
/// The pause between these requests, and while the store throttles.
const PAUSE: Duration = Duration::from_secs(1);
/// How many such pauses the warm start makes before it gives up.
const PAUSES_MAX: u32 = 300;

/// The outcome of warming. Each file counts, even if several have the same content.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Warmed {
    /// Files that were here before, and their bytes.
    pub here: (u64, u64),
    /// Files that were fetched, and their bytes.
    pub fetched: (u64, u64),
    /// Files for which there was no room, and their bytes.
    pub without_room: (u64, u64),
    /// Files that could not be fetched, and their bytes.
    pub failed: (u64, u64),
    /// Why the last of them could not be fetched.
    pub trouble: Option<String>,
}

impl Warmed {
    fn add(count: &mut (u64, u64), bytes: u64) {
        *count = (count.0 + 1, count.1 + bytes);
    }
}

fn unusable(error: Error) -> Error {
    Error::with(Kind::Unavailable, "the store cannot be used", error)
}

/// Contents of one parcel, or of none.
type Group = (Option<Parcel>, Vec<(Digest, u64)>);

impl Fetcher {
    /// Makes contents local as far as there is room, and reports its progress in `told`. Dropping
    /// the future ends it.
    ///
    /// # Errors
    ///
    /// `Unavailable` if the store cannot be used.
    pub async fn warm(&self, wanted: Vec<(Digest, u64)>, told: &Mutex<Warmed>) -> Result<()> {
        let inner = &self.0;
        let ledger = inner.ledger.clone();
        let (groups, here) = task::blocking(move || {
            let is_here = |(digest, _): &(Digest, u64)| ledger.blobs().contains(digest);
            let (here, away): (Vec<_>, Vec<_>) = wanted.into_iter().partition(is_here);
            let mut groups: BTreeMap<_, Vec<(Digest, u64)>> = BTreeMap::new();
            for (digest, size) in away {
                let location = ledger.location(&digest);
                let parcel = location.as_ref().and_then(|at| Parcel::of(&at.site, digest, size));
                let stored_ms = location.map_or(0, |at| at.stored_ms);
                groups.entry((stored_ms, parcel)).or_default().push((digest, size));
            }
            let groups: Vec<Group> =
                groups.into_iter().map(|((_, parcel), members)| (parcel, members)).collect();
            (groups, here)
        })
        .await;
        for (_, size) in here {
            Warmed::add(&mut told.lock().here, size);
        }
        let whole = futures::stream::iter(groups).map(|group| self.warm_group(group, told));
        let mut whole = std::pin::pin!(whole.buffer_unordered(WARM_AT_ONCE));
        let mut rest = Vec::new();
        while let Some(left) = whole.next().await {
            rest.extend(left?);
        }
        // One by one if room is scarce: they may evict each other.
        let bytes: u64 = rest.iter().map(|(_, size)| size + PLACE_BYTES).sum();
        let at_once = if inner.ledger.blobs().has_room(bytes) { WARM_AT_ONCE } else { 1 };
        let rest = futures::stream::iter(rest).map(|one| self.warm_one(one, told));
        let mut rest = std::pin::pin!(rest.buffer_unordered(at_once));
        while let Some(done) = rest.next().await {
            done?;
        }
        Ok(())
    }

    /// Fetches a whole parcel if there is room for those of its contents that are wanted; returns
    /// the contents that are still not here.
    async fn warm_group(
        &self,
        (parcel, members): Group,
        told: &Mutex<Warmed>,
    ) -> Result<Vec<(Digest, u64)>> {
        let (inner, blobs) = (&self.0, self.0.ledger.blobs());
        let bytes = members.iter().map(|(_, size)| size + PLACE_BYTES).sum();
        let Some(parcel) = parcel.filter(|_| blobs.has_room(bytes)) else { return Ok(members) };
        let brought = inner.bring_patiently(parcel, For::Person).await;
        let (here, away): (Vec<_>, Vec<_>) =
            members.into_iter().partition(|(digest, _)| blobs.contains(digest));
        for (_, size) in here {
            Warmed::add(&mut told.lock().fetched, size);
        }
        match brought {
            Err(error) if !inner.is_usable() => Err(unusable(error)),
            // Each failure is reported separately.
            _ => Ok(away),
        }
    }

    async fn warm_one(&self, (digest, size): (Digest, u64), told: &Mutex<Warmed>) -> Result<()> {
        let inner = &self.0;
        let Some(remote) = &inner.remote else {
            return Err(Error::new(Kind::Invalid, "there is no remote"));
        };
        if !inner.ledger.blobs().has_room(size + PLACE_BYTES) {
            Warmed::add(&mut told.lock().without_room, size);
            return Ok(());
        }
        let fetched = self.fetch_within(digest, size, remote.deadline()).await;
        let mut told = told.lock();
        match fetched {
            Ok(()) => Warmed::add(&mut told.fetched, size),
            Err(error) if error.kind() == Kind::NoSpace => {
                Warmed::add(&mut told.without_room, size);
            }
            Err(error) if !inner.is_usable() => return Err(unusable(error)),
            Err(error) => {
                Warmed::add(&mut told.failed, size);
                told.trouble = Some(error.chain());
            }
        }
        Ok(())
    }

    /// Makes the most recently stored contents local, up to this many bytes, as far as there is
    /// room that writers do not need. Returns how many bytes that was.
    ///
    /// Each node goes through them in its own order, so that nodes that start together do not fetch
    /// in step.
    pub async fn warm_up(&self, budget: u64) -> u64 {
        let (inner, ledger) = (&self.0, self.0.ledger.clone());
        let chosen = task::blocking(move || choose(&Order::of(&ledger), budget, ledger.node().0));
        let work = futures::stream::iter(chosen.await)
            .map(|(parcel, bytes)| inner.warm_up_one(parcel, bytes));
        let went = work.buffer_unordered(START_AT_ONCE);
        let went = went.take_while(|went| std::future::ready(went.is_some()));
        went.fold(0, |sum, went| std::future::ready(sum + went.unwrap_or(0))).await
    }
}

/// Returns the last parcels of an order that fit into a budget, in a sequence that differs between
/// nodes.
fn choose(order: &Order, budget: u64, node: u64) -> Vec<(Parcel, u64)> {
    let mut left = budget;
    let mut chosen: Vec<(Digest, Parcel, u64)> = Vec::new();
    for (parcel, bytes) in order.from(0).iter().rev().filter(|(_, bytes)| *bytes > 0) {
        let Some(rest) = left.checked_sub(*bytes) else { break };
        left = rest;
        let mut text = match parcel {
            Parcel::Pack(name) => name.as_bytes().to_vec(),
            Parcel::Object(digest, _) => digest.as_bytes().to_vec(),
        };
        text.extend_from_slice(&node.to_le_bytes());
        chosen.push((Digest::of(&text), parcel.clone(), *bytes));
    }
    chosen.sort_unstable_by_key(|(hash, _, _)| *hash);
    chosen.into_iter().map(|(_, parcel, bytes)| (parcel, bytes)).collect()
}

impl Inner {
    /// Reports whether the store can be used, as far as this node knows.
    fn is_usable(&self) -> bool {
        let usable = |r: &Remote| r.unfit().is_none() && r.health() == Health::Up;
        self.remote.as_ref().is_some_and(usable)
    }

    /// Fetches a parcel after the mount, when the store can take it and no program waits. `None`
    /// ends the warming: there is no room, or the store is in trouble for a long time.
    async fn warm_up_one(self: &Arc<Self>, parcel: Parcel, bytes: u64) -> Option<u64> {
        for _ in 0..PAUSES_MAX {
            if !self.ledger.blobs().has_room_to_spare(bytes) {
                return None;
            }
            if !self.may_go() || self.is_crowded() {
                clock::sleep(PAUSE).await;
                continue;
            }
            if !self.note_begun(&parcel) {
                return Some(0);
            }
            // A parcel that fails is fetched when a program requests it.
            return Some(self.bring(parcel, For::Later).await.map_or(0, |()| bytes));
        }
        None
    }

    /// Fetches a parcel, and retries if the trouble may pass.
    async fn bring_patiently(self: &Arc<Self>, parcel: Parcel, whom: For) -> Result<()> {
        let mut tries = 1;
        loop {
            match self.bring(parcel.clone(), whom).await {
                Err(error)
                    if tries < TRIES
                        && self.remote.as_ref().is_some_and(|r| may_pass(r, &error)) =>
                {
                    tries += 1;
                    clock::sleep(PAUSE).await;
                }
                done => return done,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_node_goes_in_an_order_of_its_own() {
        let parcels = (0..50_u64).map(|n| (Parcel::Object(Digest::of(&n.to_le_bytes()), 10), 10));
        let order = Order::of_parcels(parcels.collect());
        let (one, other) = (choose(&order, 400, 1), choose(&order, 400, 2));
        assert_eq!((one.len(), other.len()), (40, 40));
        assert_ne!(one, other);
        assert_eq!(one, choose(&order, 400, 1));
        let (mut one, mut other, mut last) = (one, other, order.from(10).to_vec());
        for parcels in [&mut one, &mut other, &mut last] {
            parcels.sort();
        }
        assert!(one == other && one == last, "all choose the same parcels: the last");
        assert!(choose(&order, 9, 1).is_empty());
    }
}
