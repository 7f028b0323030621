//! What a commit announces about blobs: packs, and where each blob is.
//!
//! Owns the numbers of packs in a commit. Must never name a pack that the commit does not list.

use std::collections::HashMap;
use std::sync::Arc;

use crate::digest::Digest;
use crate::namespace::{BlobAt, BlobPlace, Location, Site};

/// The most packs of earlier commits that one commit refers to; contents of further packs are stored again.
pub(super) const OLD_PACKS_MAX: usize = 256;

/// A blob in a pack: its digest, its size, and offset and length of its frame.
pub(super) type Packed = (Digest, u64, u64, u32);

/// The outcome of one pack or object.
pub(super) enum PutOutcome {
    Pack { name: String, stored_ms: u64, members: Vec<Packed> },
    Object { digest: Digest, size: u64, stored_ms: u64 },
    Nothing,
}

/// Collects what a commit announces about blobs.
#[derive(Default)]
pub(super) struct Announcement {
    pub(super) packs: Vec<String>,
    pub(super) blobs: Vec<BlobAt>,
    pub(super) locations: Vec<(Digest, Location)>,
}

impl Announcement {
    pub(super) fn add_stored(&mut self, outcome: PutOutcome) {
        match outcome {
            PutOutcome::Pack { name, stored_ms, members } => {
                let pack = self.packs.len() as u32;
                let shared: Arc<str> = Arc::from(name.as_str());
                self.packs.push(name);
                for (digest, size, offset, length) in members {
                    let place = BlobPlace::Pack { pack, offset, length };
                    self.blobs.push(BlobAt { digest, size, place, stored_ms });
                    let site = Site::Pack { pack: Arc::clone(&shared), offset, length };
                    self.locations.push((digest, Location { site, size, stored_ms }));
                }
            }
            PutOutcome::Object { digest, size, stored_ms } => {
                self.blobs.push(BlobAt { digest, size, place: BlobPlace::Object, stored_ms });
                self.locations.push((digest, Location { site: Site::Object, size, stored_ms }));
            }
            PutOutcome::Nothing => {}
        }
    }

    /// Announces again where known blobs are, for nodes that did not see the first announcement.
    pub(super) fn add_known(&mut self, known: Vec<(Digest, Location)>) {
        let new = self.packs.len();
        let mut numbers: HashMap<Arc<str>, u32> = HashMap::new();
        for (digest, Location { site, size, stored_ms }) in known {
            let place = match site {
                Site::Object => BlobPlace::Object,
                Site::Pack { pack, offset, length } => {
                    let number = match numbers.get(&pack) {
                        Some(number) => *number,
                        None if self.packs.len() - new >= OLD_PACKS_MAX => continue,
                        None => {
                            let number = self.packs.len() as u32;
                            self.packs.push(pack.to_string());
                            numbers.insert(pack, number);
                            number
                        }
                    };
                    BlobPlace::Pack { pack: number, offset, length }
                }
                Site::Inline { .. } => continue,
            };
            self.blobs.push(BlobAt { digest, size, place, stored_ms });
        }
    }
}
