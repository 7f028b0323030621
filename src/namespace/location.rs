//! Where the remote keeps the bytes of a blob.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

/// The object that holds a blob, and where in it.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Site {
    /// A frame of a pack.
    Pack {
        /// The pack's name, without prefix.
        pack: Arc<str>,
        /// First byte of the frame.
        offset: u64,
        /// Bytes of the frame.
        length: u32,
    },
    /// An object of its own, named by the digest.
    Object,
    /// Inside the commit that announced it.
    Inline {
        /// The commit's name, without prefix.
        commit: Arc<str>,
    },
}

/// Where the remote keeps a blob, and when it was stored.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Location {
    /// The object that holds it.
    pub site: Site,
    /// Raw bytes, uncompressed.
    pub size: u64,
    /// When the bytes were stored, in milliseconds since the Unix epoch by the store's time; the
    /// youngest location of a digest wins.
    pub stored_ms: u64,
}
