//! Pins: keep a blob from eviction while it is used.
//!
//! Keeps P3 stable-open.

use std::fmt;

use super::Blobs;
use crate::digest::Digest;

/// Keeps one local blob from eviction until it is dropped.
pub struct Pin {
    digest: Digest,
    /// `None` for the empty digest, which has no blob.
    blobs: Option<Blobs>,
}

impl Pin {
    /// Takes over one pin that was already counted.
    pub(in crate::local) fn counted(blobs: Blobs, digest: Digest) -> Self {
        Self { digest, blobs: Some(blobs) }
    }

    /// Pins nothing: the empty digest needs no file.
    pub(in crate::local) fn empty() -> Self {
        Self { digest: Digest::empty(), blobs: None }
    }

    /// Returns the digest of the pinned blob.
    pub fn digest(&self) -> Digest {
        self.digest
    }
}

impl Drop for Pin {
    fn drop(&mut self) {
        if let Some(blobs) = &self.blobs {
            blobs.unpin(&self.digest);
        }
    }
}

impl fmt::Debug for Pin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pin").field("digest", &self.digest).finish_non_exhaustive()
    }
}
