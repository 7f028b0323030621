//! Lists `blobs/` after the start, and compares it with what the index remembered.
//!
//! Reads names, and the metadata of files that the index did not know; never contents.

use std::fs;
use std::io;
use std::path::Path;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};

use super::{Blob, Blobs, Inner, seal_at};
use crate::digest::Digest;
use crate::error::{Error, Result};
use crate::local::seal::Seal;
use crate::task;

impl Blobs {
    /// Lists the folder: before returning if the index remembered nothing, in the background otherwise.
    pub(super) fn list(&self) -> Result<()> {
        let mut known: Vec<Digest> = self.0.table.lock().tier.digests().copied().collect();
        known.sort_unstable();
        let inner = Arc::downgrade(&self.0);
        let alone = known.is_empty();
        let list = move || {
            if let Err(e) = list_all(&inner, &known) {
                // Nothing is lost: unknown blobs are looked up one by one.
                tracing::warn!(error = %e, "the blobs cannot be listed");
            }
        };
        if alone {
            list();
            return Ok(());
        }
        task::thread("blob-list", list)
            .map(drop)
            .map_err(|e| Error::io("start the thread that lists the blobs", e))
    }
}

/// Lists all shards; ends early when the receiver is gone.
fn list_all(inner: &Weak<Inner>, known: &[Digest]) -> io::Result<()> {
    let alone = known.is_empty();
    let mut unknown: Vec<(Digest, Seal)> = Vec::new();
    let mut strangers = 0_u64;
    let mut rest = known;
    for shard in 0..=255_u8 {
        let Some(blobs) = inner.upgrade().map(Blobs) else { return Ok(()) };
        let at = rest.partition_point(|digest| digest.as_bytes()[0] == shard);
        let (expected, later) = rest.split_at(at);
        rest = later;
        let mut seen = vec![false; expected.len()];
        let path = blobs.0.path.join(format!("{shard:02x}"));
        for name in names_in(&path)? {
            match name.parse::<Digest>() {
                Ok(digest) if digest.as_bytes()[0] == shard => {
                    if let Ok(index) = expected.binary_search(&digest) {
                        seen[index] = true;
                    } else if let Some(seal) = seal_at(&path.join(&name))? {
                        unknown.push((digest, seal));
                    }
                }
                _ => strangers += 1,
            }
        }
        for (digest, _) in expected.iter().zip(seen).filter(|(_, seen)| !seen) {
            blobs.missing(digest);
        }
    }
    // The index did not know when they were used, so they are ordered by when they were made.
    unknown.sort_unstable_by_key(|(_, seal)| std::cmp::Reverse(seal.mtime_ns));
    let Some(blobs) = inner.upgrade().map(Blobs) else { return Ok(()) };
    let found = unknown.len();
    for (digest, seal) in unknown {
        let blob = Blob { seal, verified: false, used: 0, fetched: false };
        if alone {
            blobs.put_found(digest, blob);
        } else {
            blobs.found(digest, blob);
        }
    }
    blobs.0.listed.store(true, Ordering::Release);
    tracing::debug!(known = known.len(), found, strangers, "listed the blobs");
    Ok(())
}

/// Returns the UTF-8 names in a folder; a missing folder is empty.
pub(super) fn names_in(path: &Path) -> io::Result<Vec<String>> {
    let entries = match fs::read_dir(path) {
        Ok(entries) => entries,
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(e) => return Err(e),
    };
    let mut names = Vec::new();
    for entry in entries {
        names.push(entry?.file_name().to_string_lossy().into_owned());
    }
    Ok(names)
}

impl Blobs {
    /// Forgets a blob that the index remembered and the disk does not have.
    fn missing(&self, digest: &Digest) {
        let _stripe = self.stripe(digest);
        // It may have been adopted since the folder was read.
        if matches!(seal_at(&self.path_of(digest)), Ok(None)) {
            self.0.table.lock().forget(digest);
        }
    }

    /// Adds a blob that the index did not remember, if it is still there.
    fn found(&self, digest: Digest, blob: Blob) {
        let _stripe = self.stripe(&digest);
        if matches!(seal_at(&self.path_of(&digest)), Ok(Some(_))) {
            self.put_found(digest, blob);
        }
    }
}
