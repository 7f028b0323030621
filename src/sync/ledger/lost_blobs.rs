//! Bad places: where the remote should have a content and does not.
//!
//! Owns what this node found out and what other nodes reported, and which node stores a content
//! again: the node that stored it there, if it still has the bytes, and otherwise the next node
//! that writes it. Must never take a place for bad because the store does not answer, nor because
//! another node says so: the memory or the proxy of that node may be bad. A report of another node
//! is a *doubt*: the place is still trusted for reads, but is not relied on without a check.
//!
//! Keeps P9 self-healing.

use std::collections::HashSet;

use super::{Ledger, Locked};
use crate::digest::Digest;
use crate::hashing::FastMap;
use crate::local::Blobs;
use crate::name::TreePath;
use crate::namespace::{BlobPlace, Commit, Entry, Fold, Location, Register, Site};
use crate::remote::keys;
use crate::stamp::NodeId;
use crate::sync::doubts::{Amends, DOUBTS_MAX, Doubt};

/// The most places that are remembered; a forgotten place may be found bad once more.
const BAD_MAX: usize = 10_000;
/// How often one content is stored again because other nodes cannot read it: if it fails more
/// often, those nodes cannot read at all. After that it waits for its next writer.
const REPAIRS_MAX: u32 = 3;
/// The most contents that are remembered because this run has stored them as separate objects: the
/// names of objects do not show which run stored them. A forgotten content waits for its next
/// writer.
const OWN_OBJECTS_MAX: usize = 10_000;

/// The known bad places, and the repairs to make.
#[derive(Debug, Default)]
pub(super) struct Bad {
    /// Places that this node has found bad itself.
    places: FastMap<Digest, Location>,
    /// How often each content was stored again.
    repaired: FastMap<Digest, u32>,
    /// Doubts and repairs that wait for the next commit.
    amends: Amends,
    /// Contents that are being renewed.
    renewing: HashSet<Digest>,
    /// Contents that this run has stored as separate objects.
    own_objects: HashSet<Digest>,
}

impl Bad {
    fn is(&self, digest: &Digest, location: &Location) -> bool {
        self.places.get(digest) == Some(location)
    }

    /// Returns the place of a content that was found bad here. Other nodes still take it for the
    /// place of the content, according to the log.
    pub(super) fn place(&self, digest: &Digest) -> Option<&Location> {
        self.places.get(digest)
    }

    fn note(&mut self, digest: Digest, location: Location) {
        if self.places.len() < BAD_MAX || self.places.contains_key(&digest) {
            self.places.insert(digest, location);
        }
    }

    /// Notes the places of contents that this node has stored.
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

    /// Stores a content again with the next commit.
    pub(super) fn store_again(&mut self, digest: Digest, size: u64) {
        if self.can_store_again(digest, size) {
            self.amends.repairs.push((digest, size));
        }
    }

    /// Reports whether there is room for that, and it is not queued already.
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

    /// Stores a content again that this node has stored, because another node could not read it.
    fn repair(&mut self, blobs: &Blobs, digest: Digest, size: u64) {
        if !self.can_store_again(digest, size) {
            return;
        }
        let room = self.repaired.len() < BAD_MAX;
        let times = self.repaired.get(&digest).copied().unwrap_or(0);
        // Unsaved first: it must not be evicted before it is stored.
        if room && times < REPAIRS_MAX && blobs.mark_unsaved(&digest) {
            self.repaired.insert(digest, times + 1);
            self.store_again(digest, size);
            tracing::info!(%digest, "a blob may be missing in the store; it is stored again");
        }
    }

    /// Notes that renewals have ended, whatever the outcome.
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

impl Locked<'_> {
    /// Notes the location of a content, unless that place is known to be bad. Returns whether a
    /// content can be obtained again that could not be before.
    pub(super) fn learn(&mut self, digest: Digest, location: Location) -> bool {
        let Self { order, fold, .. } = self;
        if order.bad.is(&digest, &location) {
            // The node that names this place does not know that it is bad.
            order.bad.tell(digest, location);
            return false;
        }
        if !fold.locate(digest, &location) {
            return false;
        }
        order.saved.location_moved(digest);
        order.bad.places.remove(&digest).is_some()
    }

    /// Takes in doubts: another node could not read these contents. From now on this node does not
    /// rely on their places without a check. A program that opens such a file reads and verifies
    /// it, as always; a writer stores the content again. If this node has stored it there and has
    /// the bytes, it stores them again at once.
    pub(super) fn hear(&mut self, doubts: Vec<Doubt>) {
        let Self { ledger, order, fold } = self;
        let reliance = &ledger.0.reliance;
        for Doubt { digest, location } in doubts {
            let known = fold.location(&digest);
            // It is at another place, or where no node looks any more.
            if known.is_some_and(|known| known != location || reliance.is_expired(known.stored_ms))
                || reliance.is_doubted(&digest, location.stored_ms)
            {
                continue;
            }
            reliance.doubt(digest, location.stored_ms);
            if order.bad.is_own(ledger.node(), &digest, &location) && fold.uses(&digest) {
                order.bad.repair(&ledger.0.disk.blobs, digest, location.size);
            }
        }
    }
}

impl Ledger {
    /// Notes that a content is not where it should be, and reports this to other nodes. It stays
    /// hidden until another location is known or it is here again, and is uploaded again when it is
    /// published again.
    pub fn mark_bad(&self, digest: &Digest, wrong: &Location) {
        self.note_bad(digest, wrong);
        if let Some(unsaid) = self.0.warned.bad.tell(&self.0.clock) {
            tracing::warn!(%digest, site = ?wrong.site, unsaid, "a blob in the remote is missing or damaged; it is a miss until rewritten");
        } else {
            tracing::debug!(%digest, site = ?wrong.site, "a blob in the remote is missing or damaged");
        }
    }

    fn note_bad(&self, digest: &Digest, wrong: &Location) {
        {
            let mut order = self.0.order.lock();
            self.0.fold.write().unlocate(digest, wrong);
            order.bad.note(*digest, wrong.clone());
            order.bad.tell(*digest, wrong.clone());
            order.saved.location_moved(*digest);
        }
        self.0.signs.wake();
    }

    /// Notes that the log lacks a commit of which this node has folded a copy, or has it damaged: its
    /// small contents are not where it says. Keeps those that files use. Blocks on the disk.
    pub(in crate::sync) fn mark_inline_bad(&self, commit: &Commit) {
        let name = keys::commit_name(&commit.stamp);
        let mut found = false;
        for blob in &commit.blobs {
            let (BlobPlace::Inline(bytes), Some(place)) =
                (&blob.place, commit.location_of(&name, blob))
            else {
                continue;
            };
            let digest = blob.digest;
            let (is_there, is_used) = self.read(|fold| {
                (fold.location(&digest).is_some_and(|known| known == place), fold.uses(&digest))
            });
            if !is_there {
                continue;
            }
            if is_used
                && !self.0.disk.blobs.contains(&digest)
                && let Err(error) = self.keep(digest, bytes)
            {
                tracing::debug!(%digest, error = %error.chain(), "inline blob not kept");
            }
            self.note_bad(&digest, &place);
            found = true;
        }
        if found {
            tracing::warn!(
                %name, "a commit is missing or damaged in the log, and was read from its copy in the head; its small \
                 contents are stored again by the node that wrote it, or with their next writer"
            );
        }
    }

    /// Reports whether this node found that a content is not where it should be, and no other place
    /// is known.
    pub fn is_damaged(&self, digest: &Digest) -> bool {
        self.0.order.lock().bad.place(digest).is_some()
    }

    /// Stores again what this node has put since a time, and what was stored before this store was
    /// found, if the bytes are here: they may be only in the store that was here before.
    pub(in crate::sync) fn repair_between(&self, since_ms: u64, found_ms: u64) {
        let own = |(_, register): (TreePath, Register)| {
            let is_own = register.stamp.node == self.node() && register.stamp.ms >= since_ms;
            register.entry.as_ref().filter(|_| is_own).and_then(Entry::content)
        };
        let mut order = self.0.order.lock();
        let fold = self.0.fold.read();
        for (digest, size) in fold.registers().filter_map(own) {
            // What a commit holds was read from this store.
            let elsewhere =
                |at: &Location| at.stored_ms < found_ms && !matches!(at.site, Site::Inline { .. });
            if let Some(location) = fold.location(&digest).filter(elsewhere) {
                self.0.reliance.doubt(digest, location.stored_ms);
                order.bad.repair(&self.0.disk.blobs, digest, size);
            }
        }
        drop((fold, order));
        self.0.signs.wake();
    }

    /// Stores contents again with the next commit, if their bytes are here.
    pub(in crate::sync) fn store_again(&self, contents: &[(Digest, u64)]) {
        {
            let mut order = self.0.order.lock();
            for (digest, size) in contents {
                // Unsaved first: it must not be evicted before it is stored.
                if self.0.disk.blobs.mark_unsaved(digest) && order.bad.renewing.insert(*digest) {
                    order.bad.amends.renewals.push((*digest, *size));
                }
            }
        }
        self.0.signs.wake();
    }

    /// Reports whether contents that [`Ledger::store_again`] was given are still being stored.
    pub(in crate::sync) fn is_renewing(&self) -> bool {
        !self.0.order.lock().bad.renewing.is_empty()
    }

    /// Returns the time to note for contents that are being stored now. It is later than that of
    /// the bad places, even if clocks differ, because the youngest location wins everywhere.
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
