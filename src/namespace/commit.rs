//! Commits: batches of changes that every node sees whole or not at all.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::change::Change;
use super::location::{Location, Site};
use crate::digest::Digest;
use crate::stamp::{NodeId, Stamp};

/// The location of a blob, as its commit states it.
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
    /// The location.
    pub place: BlobPlace,
    /// When its bytes were stored (milliseconds, store's time); older than the commit if an earlier
    /// upload is reused.
    pub stored_ms: u64,
}

/// A batch of changes of one node.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Commit {
    /// When it was made; also its name in the log. The changes keep stamps of their own.
    pub stamp: Stamp,
    /// The node that made it.
    pub node: NodeId,
    /// Random number of this incarnation of the node: sequence numbers start again with each.
    pub incarnation: u64,
    /// Numbers the commits of one incarnation from 0 without gaps: a reader that sees number k has
    /// missed something if it has not seen k-1.
    pub sequence: u64,
    /// Names of the packs that hold its blobs.
    pub packs: Vec<String>,
    /// Every blob that its changes need.
    pub blobs: Vec<BlobAt>,
    /// The changes, in the order in which the programs made them.
    pub changes: Vec<Change>,
    /// For additions of later versions (units, signatures): tagged, ignored if unknown. Tags below
    /// 32768 may be ignored; a commit with an unknown tag from 32768 up must not be applied.
    pub extensions: BTreeMap<u16, Vec<u8>>,
}

impl Commit {
    /// Returns the location of a blob that this commit, named `name`, announces; `None` if the
    /// commit does not name the blob's pack.
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
