//! Commits: batches of changes that every node sees whole or not at all.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::change::Change;
use super::location::{Location, Site};
use crate::digest::Digest;
use crate::stamp::{NodeId, Stamp};

/// Where a commit says that a blob lies.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum BlobPlace {
    /// In the commit itself, raw.
    Inline(Vec<u8>),
    /// A frame of one of the commit's packs.
    Pack {
        /// Index into [`Commit::packs`].
        pack: u32,
        /// First byte of the frame.
        offset: u64,
        /// Bytes of the frame.
        length: u32,
    },
    /// An object of its own, named by the digest.
    Object,
}

/// One blob that a commit announces.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct BlobAt {
    /// Its content.
    pub digest: Digest,
    /// Raw bytes, uncompressed.
    pub size: u64,
    /// Where it lies.
    pub place: BlobPlace,
    /// When its bytes were stored (milliseconds, store's time); older than the commit when an earlier
    /// upload is used again.
    pub stored_ms: u64,
}

/// A batch of changes of one node.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Commit {
    /// When it was made; also its name in the log. The changes keep stamps of their own.
    pub stamp: Stamp,
    /// The node that made it.
    pub node: NodeId,
    /// Random number of this run of the node: sequence numbers start again with each.
    pub incarnation: u64,
    /// Counts the commits of one incarnation from 0 without gaps: a reader that sees number k has
    /// missed something if it has not seen k-1.
    pub sequence: u64,
    /// Packs that its blobs lie in, by name.
    pub packs: Vec<String>,
    /// Every blob that its changes need.
    pub blobs: Vec<BlobAt>,
    /// The changes, in the order in which the programs made them.
    pub changes: Vec<Change>,
    /// Room for what later versions add (units, signatures): tagged, skipped when unknown. Tags
    /// below 32768 may be skipped; a commit with an unknown tag from 32768 up must not be applied.
    pub extensions: BTreeMap<u16, Vec<u8>>,
}

impl Commit {
    /// Returns where the store keeps a blob that this commit, which has the name `name`, announces; `None` for one whose
    /// pack it does not name.
    pub fn location_of(&self, name: &str, blob: &BlobAt) -> Option<Location> {
        let site = match &blob.place {
            BlobPlace::Inline(_) => Site::Inline { commit: Arc::from(name) },
            BlobPlace::Object => Site::Object,
            BlobPlace::Pack { pack, offset, length } => {
                let pack = Arc::from(self.packs.get(*pack as usize)?.as_str());
                Site::Pack { pack, offset: *offset, length: *length }
            }
        };
        Some(Location { site, size: blob.size, stored_ms: blob.stored_ms })
    }
}
