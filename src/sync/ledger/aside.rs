//! Contents that are set aside: the store refuses them repeatedly, and later changes are published
//! nevertheless.
//!
//! Owns which contents are set aside, also over a restart. Must never let the only copy be evicted
//! while a file uses it. Must never stop retrying: the cause of the refusal may be removed.
//!
//! In order: the change that puts such a content is sent in its place, without a location. So other
//! nodes see it before all later changes. They see its entry as a miss, as if the bytes were lost,
//! and never as an older version. If the store accepts the bytes later, a separate commit says
//! where they are.
//!
//! Keeps P5 in-order.

use std::collections::BTreeMap;

use super::Ledger;
use super::own::Own;
use crate::digest::Digest;
use crate::error::Error;
use crate::local::{FactBatch, LoadedIndex};
use crate::namespace::Fold;

/// The name of these contents in the index.
const ASIDE: &str = "aside";
/// The most contents that are set aside; beyond that, the next one holds up all later changes.
const ASIDE_MAX: usize = 10_000;

/// The contents that are set aside, with their sizes.
#[derive(Debug, Default)]
pub(super) struct Aside {
    contents: BTreeMap<Digest, u64>,
    /// The same, as saved.
    saved: BTreeMap<Digest, u64>,
    /// The last error of the store since the start.
    why: String,
}

/// The contents that are set aside, for people.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SetAside {
    /// How many contents.
    pub contents: u64,
    /// Their bytes.
    pub bytes: u64,
    /// The last error of the store; empty if no content was retried since the start.
    pub why: String,
}

impl Aside {
    /// Notes that contents were stored.
    pub(super) fn note_stored<'a>(&mut self, stored: impl Iterator<Item = &'a Digest>) {
        if !self.contents.is_empty() {
            for digest in stored {
                self.contents.remove(digest);
            }
        }
    }

    /// Counts the contents.
    pub(super) fn len(&self) -> u64 {
        self.contents.len() as u64
    }

    /// Writes the contents for the index, if they differ from what was saved.
    pub(super) fn save(&mut self, batch: &mut FactBatch) {
        if self.contents != self.saved {
            self.save_again(batch);
        }
    }

    /// Writes the contents for an index that is filled again.
    pub(super) fn save_again(&mut self, batch: &mut FactBatch) {
        let all: Vec<([u8; 32], u64)> =
            self.contents.iter().map(|(digest, size)| (*digest.as_bytes(), *size)).collect();
        batch.meta(ASIDE, &postcard::to_stdvec(&all).expect("numbers always encode"));
        self.saved.clone_from(&self.contents);
    }

    /// Reads the contents from the index; empty if the data there is anything else.
    pub(super) fn restore(loaded: &LoadedIndex) -> Self {
        let all: Option<Vec<([u8; 32], u64)>> =
            loaded.meta.get(ASIDE).and_then(|bytes| postcard::from_bytes(bytes).ok());
        let contents = all.unwrap_or_default().into_iter();
        let contents: BTreeMap<Digest, u64> =
            contents.map(|(digest, size)| (Digest::from_bytes(digest), size)).collect();
        Self { saved: contents.clone(), contents, why: String::new() }
    }
}

impl Ledger {
    /// Sets a content aside that the store refuses; returns false if there are too many.
    pub(in crate::sync) fn set_aside(&self, digest: Digest, size: u64, error: &Error) -> bool {
        {
            let mut order = self.0.order.lock();
            let aside = &mut order.aside;
            if aside.contents.len() >= ASIDE_MAX && !aside.contents.contains_key(&digest) {
                return false;
            }
            aside.contents.insert(digest, size);
            aside.why = error.chain();
        }
        if let Some(unsaid) = self.0.warned.aside.tell(&self.0.clock) {
            tracing::warn!(
                %digest, size, error = %error.chain(), unsaid,
                "the store refuses a content permanently: it stays on this node, and other nodes see a miss; later \
                 writes are sent as usual; `status` counts such contents"
            );
        }
        true
    }

    /// Reports whether a content is set aside.
    pub(in crate::sync) fn is_aside(&self, digest: &Digest) -> bool {
        self.0.order.lock().aside.contents.contains_key(digest)
    }

    /// Returns what is set aside, for people.
    pub fn aside(&self) -> SetAside {
        let order = self.0.order.lock();
        let Aside { contents, why, .. } = &order.aside;
        let bytes = contents.values().sum();
        SetAside { contents: contents.len() as u64, bytes, why: why.clone() }
    }

    /// Keeps the contents that an earlier run has set aside from eviction: a node that may not
    /// write never retries them.
    pub(super) fn restore_aside(&self) {
        let order = self.0.order.lock();
        let fold = self.0.fold.read();
        for digest in order.aside.contents.keys() {
            self.keeps(&order.own, &fold, digest);
        }
    }

    /// Stores the contents that are set aside and still used again, with the next commit; forgets
    /// the rest.
    pub(in crate::sync) fn retry_aside(&self) {
        {
            let mut order = self.0.order.lock();
            let order = &mut *order;
            let fold = self.0.fold.read();
            order.aside.contents.retain(|digest, size| {
                let wanted = self.keeps(&order.own, &fold, digest);
                if wanted {
                    order.bad.store_again(*digest, *size);
                }
                wanted
            });
        }
        self.0.signs.wake();
    }

    /// Keeps a content that is set aside from eviction, if a file uses it and it is here.
    fn keeps(&self, own: &Own, fold: &Fold, digest: &Digest) -> bool {
        if fold.uses(digest) && fold.stored_ms(digest).is_none() {
            return self.0.disk.blobs.mark_unsaved(digest);
        }
        // A path of this node alone may have the same content.
        if !own.holds(digest) {
            self.0.disk.blobs.mark_saved(digest);
        }
        false
    }
}
