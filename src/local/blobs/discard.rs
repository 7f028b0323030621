//! Discarding blobs to which nothing refers any longer.
//!
//! The caller knows to what files refer. Only what eviction could take is discarded: a blob that is
//! open, or that must be kept for the store, stays.
//!
//! Keeps P13 bounded.

use std::time::Duration;

use super::Blobs;
use super::list::names_in;
use crate::digest::Digest;
use crate::error::{Error, Result};

impl Blobs {
    /// Removes a blob that was not adopted or opened for some time; returns whether it did.
    ///
    /// A blob may be adopted shortly before something refers to it, as the small contents of a commit
    /// are that arrives. So `unused` must be longer than that takes.
    pub fn discard(&self, digest: &Digest, unused: Duration) -> bool {
        let before = u64::from(self.now()).saturating_sub(unused.as_secs());
        let is_due = |used: u32| u64::from(used) < before;
        let Some(blob) = self.0.table.lock().tier.pop_if(digest, |blob| is_due(blob.used)) else {
            return false;
        };
        let removed = self.remove(digest);
        if !removed {
            self.0.table.lock().tier.put_oldest(*digest, blob);
        }
        removed
    }

    /// Returns the digests in one of the 256 folders of `blobs/`, as far as they are known.
    ///
    /// # Errors
    ///
    /// An error of the disk.
    pub fn in_folder(&self, folder: u8) -> Result<Vec<Digest>> {
        let path = self.0.path.join(format!("{folder:02x}"));
        let names =
            names_in(&path).map_err(|e| Error::io(format!("list {}", path.display()), e))?;
        Ok(names.iter().filter_map(|name| name.parse().ok()).collect())
    }

    /// Gives memory back that the table needed for more blobs than there are now.
    pub fn shrink(&self) {
        self.0.table.lock().tier.shrink();
    }
}
