//! Bad places: where the remote should have a content and does not.
//!
//! Owns what this node found out and what others told it, and which node stores a content again: the node that
//! stored it there, if it still has the bytes, and otherwise the next node that writes it. Must never take a place for bad
//! because the store does not answer, nor because another node says so: that may be a node whose memory or proxy is
//! bad. What another node says is a *doubt*: the place is believed in still, and not relied on unseen.
//!
//! Keeps P9 self-healing.

use std::collections::{HashMap, HashSet};

use super::{Ledger, Ordered};
use crate::digest::Digest;
use crate::local::Blobs;
use crate::name::TreePath;
use crate::namespace::{Fold, Location, Site};
use crate::remote::keys;
use crate::stamp::NodeId;
use crate::sync::doubts::{Amends, DOUBTS_MAX, Doubt};

/// Places that are remembered; what is forgotten may be found bad once more.
const BAD_MAX: usize = 10_000;
/// How often one content is stored again because others cannot read it: more would mean that those
/// nodes cannot read at all. After that it waits for its next writer.
const REPAIRS_MAX: u32 = 3;
/// Contents that this run has stored as objects of their own, whose names do not tell which run stored them. What is forgotten
/// waits for its next writer.
const OWN_OBJECTS_MAX: usize = 10_000;

/// What is known of bad places, and what is to be done about them.
#[derive(Debug, Default)]
pub(super) struct Bad {
    /// What this node has looked at itself.
    places: HashMap<Digest, Location>,
    /// How often each content was stored again.
    repaired: HashMap<Digest, u32>,
    /// What waits for the next commit.
    amends: Amends,
    /// Contents that are being renewed.
    renewing: HashSet<Digest>,
    /// Contents that this run has stored as objects of their own.
    own_objects: HashSet<Digest>,
}

impl Bad {
    fn is(&self, digest: &Digest, location: &Location) -> bool {
        self.places.get(digest) == Some(location)
    }

    /// Returns the place of a content that was found bad here. For others it is where the content lies, as far as
    /// the log says.
    pub(super) fn place(&self, digest: &Digest) -> Option<&Location> {
        self.places.get(digest)
    }

    fn note(&mut self, digest: Digest, location: Location) {
        if self.places.len() < BAD_MAX || self.places.contains_key(&digest) {
            self.places.insert(digest, location);
        }
    }

    /// Notes what this node has stored.
    pub(super) fn note_stored<'a>(&mut self, stored: impl Iterator<Item = &'a (Digest, Location)>) {
        for (digest, location) in stored {
            if location.site == Site::Object && self.own_objects.len() < OWN_OBJECTS_MAX {
                self.own_objects.insert(*digest);
            }
        }
    }

    fn tell(&mut self, digest: Digest, location: Location) {
        let doubt = Doubt { digest, location };
        if self.amends.doubts.len() < DOUBTS_MAX && !self.amends.doubts.contains(&doubt) {
            self.amends.doubts.push(doubt);
        }
    }

    /// Has a content stored with the next commit.
    pub(super) fn store_again(&mut self, digest: Digest, size: u64) {
        if self.can_store_again(digest, size) {
            self.amends.repairs.push((digest, size));
        }
    }

    /// Reports whether there is room for that, and it is not to be stored already.
    fn can_store_again(&self, digest: Digest, size: u64) -> bool {
        let queued = &self.amends.repairs;
        queued.len() < DOUBTS_MAX && !queued.contains(&(digest, size))
    }

    /// Reports whether this node has stored a content at a place.
    fn is_own(&self, own: NodeId, digest: &Digest, location: &Location) -> bool {
        let by = match &location.site {
            Site::Pack { pack, .. } => keys::pack_stamp(pack),
            Site::Inline { commit } => keys::commit_stamp(commit),
            Site::Object => return self.own_objects.contains(digest),
        };
        by.is_some_and(|stamp| stamp.node == own)
    }

    /// Has a content stored again that this node has stored, because another node could not read it.
    fn repair(&mut self, blobs: &Blobs, digest: Digest, size: u64) {
        if !self.can_store_again(digest, size) {
            return;
        }
        let room = self.repaired.len() < BAD_MAX;
        let times = self.repaired.get(&digest).copied().unwrap_or(0);
        // Unsaved first: it must not be let go before it is stored.
        if room && times < REPAIRS_MAX && blobs.mark_unsaved(&digest) {
            self.repaired.insert(digest, times + 1);
            self.store_again(digest, size);
            tracing::info!(%digest, "another node could not read a blob; it is stored again");
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
    order: &mut Ordered,
    fold: &mut Fold,
    digest: Digest,
    location: Location,
) -> bool {
    if order.bad.is(&digest, &location) {
        // The node that says so has not heard of it.
        order.bad.tell(digest, location);
        return false;
    }
    if !fold.locate(digest, &location) {
        return false;
    }
    order.saved.location_moved(digest);
    order.bad.places.remove(&digest).is_some()
}

impl Ledger {
    /// Notes that a content is not where it should be, and tells the other nodes. It stays hidden until
    /// another location is known or it is here again, and is uploaded again when it is published again.
    pub fn mark_bad(&self, digest: &Digest, wrong: &Location) {
        {
            let mut order = self.0.order.lock();
            self.0.fold.write().unlocate(digest, wrong);
            order.bad.note(*digest, wrong.clone());
            order.bad.tell(*digest, wrong.clone());
            order.saved.location_moved(*digest);
        }
        self.0.signs.wake();
        if let Some(unsaid) = self.0.warned.bad.tell(&self.0.clock) {
            tracing::warn!(%digest, site = ?wrong.site, unsaid, "a blob in the remote is missing or damaged; it is a miss until rewritten");
        } else {
            tracing::debug!(%digest, site = ?wrong.site, "a blob in the remote is missing or damaged");
        }
    }

    /// Reports whether a content was not where it should be when this node looked, and no other place is known.
    pub fn is_damaged(&self, digest: &Digest) -> bool {
        self.0.order.lock().bad.place(digest).is_some()
    }

    /// Stores contents again with the next commit, if their bytes are here.
    pub(in crate::sync) fn store_again(&self, contents: &[(Digest, u64)]) {
        {
            let mut order = self.0.order.lock();
            for (digest, size) in contents {
                // Unsaved first: it must not be let go before it is stored.
                if self.0.disk.blobs.mark_unsaved(digest) && order.bad.renewing.insert(*digest) {
                    order.bad.amends.renewals.push((*digest, *size));
                }
            }
        }
        self.0.signs.wake();
    }

    /// Reports whether contents are being stored again that [`Ledger::store_again`] was given.
    pub(in crate::sync) fn is_renewing(&self) -> bool {
        !self.0.order.lock().bad.renewing.is_empty()
    }

    /// Takes in what another node could not read: from now on this node does not rely on it unseen. A program that opens
    /// it reads and verifies it, as always; a writer stores it again. If this node has stored it there and has the
    /// bytes, it stores them again at once.
    pub(super) fn hear(&self, order: &mut Ordered, fold: &Fold, doubts: Vec<Doubt>) {
        for Doubt { digest, location } in doubts {
            let known = fold.location(&digest);
            // It is somewhere else, or where no node looks any more.
            if known.is_some_and(|known| {
                known != location || self.0.reliance.is_expired(known.stored_ms)
            }) || self.0.reliance.is_doubted(&digest, location.stored_ms)
            {
                continue;
            }
            self.0.reliance.doubt(digest, location.stored_ms);
            if order.bad.is_own(self.node(), &digest, &location) && fold.uses(&digest) {
                order.bad.repair(&self.0.disk.blobs, digest, location.size);
            }
        }
    }

    /// Returns the time to note for contents that are being stored now: what was found bad is older,
    /// also where clocks differ, because the youngest location wins everywhere.
    pub(in crate::sync) fn storing_ms<'a>(
        &self,
        contents: impl Iterator<Item = &'a Digest>,
    ) -> u64 {
        let order = self.0.order.lock();
        let bad = contents.filter_map(|digest| {
            let found = order.bad.place(digest).map(|place| place.stored_ms);
            found.max(self.0.reliance.doubted_ms(digest))
        });
        bad.map(|stored_ms| stored_ms + 1).fold(self.now_ms(), u64::max)
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
