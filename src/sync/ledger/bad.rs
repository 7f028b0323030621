//! Bad places: where the remote should have a content and does not.
//!
//! Owns what this node found out and what others told it, and who stores a content again: the node that
//! published the file, if it still has the bytes, and otherwise whoever writes it next. Must never take
//! a place for bad because the store does not answer.

use std::collections::{HashMap, HashSet};

use super::{Ledger, Order};
use crate::digest::Digest;
use crate::name::TreePath;
use crate::namespace::{Fold, Location};
use crate::sync::doubts::{Amends, DOUBTS_MAX, Doubt};

/// Places that are remembered; what is forgotten may be found bad once more.
const BAD_MAX: usize = 10_000;
/// How often one content is stored again because others cannot read it: more would mean that it is
/// they who cannot read. After that it waits for its next writer.
const REPAIRS_MAX: u32 = 3;

/// What is known of bad places, and what is to be done about them.
#[derive(Debug, Default)]
pub(super) struct Bad {
    places: HashMap<Digest, Place>,
    /// How often each content was stored again.
    repaired: HashMap<Digest, u32>,
    /// What waits for the next commit.
    amends: Amends,
    /// Contents that are being renewed.
    renewing: HashSet<Digest>,
}

#[derive(Debug)]
struct Place {
    location: Location,
    /// This node has looked itself; the others know it from somebody who has.
    own: bool,
}

impl Bad {
    fn is(&self, digest: &Digest, location: &Location) -> bool {
        self.places.get(digest).is_some_and(|place| place.location == *location)
    }

    fn note(&mut self, digest: Digest, location: Location, own: bool) {
        if self.places.len() < BAD_MAX || self.places.contains_key(&digest) {
            self.places.insert(digest, Place { location, own });
        }
    }

    fn tell(&mut self, digest: Digest, location: Location) {
        let doubt = Doubt { digest, location };
        if self.amends.doubts.len() < DOUBTS_MAX && !self.amends.doubts.contains(&doubt) {
            self.amends.doubts.push(doubt);
        }
    }

    /// Notes that renewals have come to their end, one way or the other.
    pub(super) fn end_renewals(&mut self, ended: &[(Digest, u64)]) {
        for (digest, _) in ended {
            self.renewing.remove(digest);
        }
    }

    /// Reports whether something waits for a commit.
    pub(super) fn has_amends(&self) -> bool {
        !self.amends.is_empty()
    }

    /// Takes what waits for a commit.
    pub(super) fn take_amends(&mut self) -> Amends {
        std::mem::take(&mut self.amends)
    }
}

/// Learns where a content lies, unless that place is known to be bad. Returns whether a content is
/// there again that was not to be had.
pub(super) fn learn(
    order: &mut Order,
    fold: &mut Fold,
    digest: Digest,
    location: Location,
) -> bool {
    if order.bad.is(&digest, &location) {
        // Whoever says so has not heard of it.
        if order.bad.places.get(&digest).is_some_and(|place| place.own) {
            order.bad.tell(digest, location);
        }
        return false;
    }
    if !fold.locate(digest, &location) {
        return false;
    }
    order.dirty.locations.insert(digest);
    order.bad.places.remove(&digest).is_some()
}

impl Ledger {
    /// Notes that a content is not where it should be, and tells the other nodes. It stays hidden until
    /// another location is known or it is here again, and is uploaded again when it is published again.
    pub fn mark_bad(&self, digest: &Digest, wrong: &Location) {
        {
            let mut order = self.0.order.lock();
            self.0.fold.write().unlocate(digest, wrong);
            order.bad.note(*digest, wrong.clone(), true);
            order.bad.tell(*digest, wrong.clone());
            order.dirty.locations.insert(*digest);
        }
        self.0.queued.notify_waiters();
        if let Some(unsaid) = self.0.quiet_bad.tell(&self.0.clock) {
            tracing::warn!(%digest, site = ?wrong.site, unsaid, "a blob in the remote is missing or damaged; it is a miss until rewritten");
        } else {
            tracing::debug!(%digest, site = ?wrong.site, "a blob in the remote is missing or damaged");
        }
    }

    /// Stores contents again with the next commit, if their bytes are here.
    pub(in crate::sync) fn store_again(&self, contents: &[(Digest, u64)]) {
        {
            let mut order = self.0.order.lock();
            for (digest, size) in contents {
                // Unsaved first: it must not be let go before it is stored.
                if self.0.blobs.mark_unsaved(digest) && order.bad.renewing.insert(*digest) {
                    order.bad.amends.renewals.push((*digest, *size));
                }
            }
        }
        self.0.queued.notify_waiters();
    }

    /// Reports whether contents are being stored again that [`Ledger::store_again`] was given.
    pub(in crate::sync) fn is_renewing(&self) -> bool {
        !self.0.order.lock().bad.renewing.is_empty()
    }

    /// Takes in what another node could not read. Returns whether a content is not known to be anywhere now.
    pub(super) fn hear(&self, order: &mut Order, fold: &mut Fold, doubts: Vec<Doubt>) -> bool {
        let mut lost = HashSet::new();
        for Doubt { digest, location } in doubts {
            let known = fold.location(&digest);
            if known.as_ref().is_some_and(|known| *known != location)
                || order.bad.is(&digest, &location)
            {
                continue;
            }
            if known.as_ref().is_some_and(|known| self.is_expired(known.stored_ms)) {
                // It is where nobody looks any more.
                continue;
            }
            if known.is_some() {
                fold.unlocate(&digest, &location);
                order.dirty.locations.insert(digest);
                lost.insert(digest);
            }
            order.bad.note(digest, location, false);
        }
        if lost.is_empty() {
            return false;
        }
        let own = fold.registers().filter(|(_, register)| register.stamp.node == self.node());
        let contents = own.filter_map(|(_, register)| register.entry?.content());
        for (digest, size) in contents.filter(|(digest, _)| lost.contains(digest)) {
            let queued = &mut order.bad.amends.repairs;
            if queued.len() >= DOUBTS_MAX || queued.contains(&(digest, size)) {
                continue;
            }
            let room = order.bad.repaired.len() < BAD_MAX;
            let times = order.bad.repaired.get(&digest).copied().unwrap_or(0);
            // Unsaved first: it must not be let go before it is stored.
            if room && times < REPAIRS_MAX && self.0.blobs.mark_unsaved(&digest) {
                order.bad.repaired.insert(digest, times + 1);
                queued.push((digest, size));
                tracing::info!(%digest, "another node could not read a blob; it is stored again");
            }
        }
        true
    }

    /// Returns the time to note for contents that are being stored now: what was found bad is older,
    /// also where clocks differ, because the youngest location wins everywhere.
    pub(in crate::sync) fn storing_ms<'a>(
        &self,
        contents: impl Iterator<Item = &'a Digest>,
    ) -> u64 {
        let order = self.0.order.lock();
        let bad = contents.filter_map(|digest| order.bad.places.get(digest));
        bad.map(|place| place.location.stored_ms + 1).fold(self.now_ms(), u64::max)
    }
}

/// Returns the paths of the files with one of these contents.
pub(super) fn paths_of(fold: &Fold, contents: &HashSet<Digest>) -> Vec<TreePath> {
    let has = |register: &crate::namespace::Register| {
        let content = register.entry.as_ref().and_then(crate::namespace::Entry::content);
        content.is_some_and(|(digest, _)| contents.contains(&digest))
    };
    fold.registers().filter(|(_, r)| has(r)).map(|(path, _)| path).collect()
}
