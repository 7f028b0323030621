//! Claims: notes by which nodes that are about to upload the same content find each other.
//!
//! Owns their names and their requests. They lie beside the probes, under names of the same form,
//! so that every version treats them as small objects that may be deleted after a day. The name
//! begins with the time, so a list can start after the old ones. Nothing depends on a claim: a node
//! that cannot write or read one works without it.

use bytes::Bytes;
use futures::StreamExt as _;
use object_store::{ObjectStore as _, ObjectStoreExt as _};

use super::Remote;
use super::verb::Verb;
use crate::error::Result;
use crate::stamp::NodeId;
use crate::task;

/// The most bytes of a claim.
pub const CLAIM_BYTES_MAX: u64 = 64 << 10;
/// The most claims that are listed together.
const LISTED_MAX: usize = 256;
/// Random bits of a name, after the time.
const RANDOM_BITS: u32 = 16;

/// The name of a claim. Names are ordered by the time of the claim, in milliseconds; it may be
/// later than that of the node's clock, so that the name follows those of other claims.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct ClaimName(u64);

impl ClaimName {
    /// Makes a name for a claim of this time.
    pub fn new(now_ms: u64) -> Self {
        Self(now_ms << RANDOM_BITS | task::random_u64() & ((1 << RANDOM_BITS) - 1))
    }

    /// Returns when it was made.
    pub fn ms(self) -> u64 {
        self.0 >> RANDOM_BITS
    }
}

impl Remote {
    /// Writes a claim.
    ///
    /// # Errors
    ///
    /// `Denied` on a read-only mount; otherwise `Unavailable` or `TimedOut` while the store does not answer, `Denied`
    /// or `Invalid` when it refuses.
    pub async fn put_claim(&self, name: ClaimName, bytes: Bytes) -> Result<()> {
        self.write(self.claim(name), bytes, CLAIM_BYTES_MAX).await
    }

    /// Reads a claim.
    ///
    /// # Errors
    ///
    /// `NotFound` when it was deleted; `Unavailable` or `TimedOut` while the store does not answer, `Denied` or
    /// `Invalid` when it refuses.
    pub async fn get_claim(&self, name: ClaimName) -> Result<Bytes> {
        self.read(self.claim(name), None, CLAIM_BYTES_MAX).await
    }

    /// Lists the claims that were made between two times, the oldest first.
    ///
    /// # Errors
    ///
    /// `Unavailable` or `TimedOut` while the store does not answer, `Denied` or `Invalid` when it refuses.
    pub async fn list_claims(&self, from_ms: u64, upto_ms: u64) -> Result<Vec<ClaimName>> {
        self.ready(self.lane).await?;
        let after = self.claim(ClaimName(from_ms << RANDOM_BITS));
        let folder = self.inner.keys.probes();
        let call = self.call(Verb::List, "list claims");
        let listed = self.inner.requester.call(call, |store| async move {
            let mut stream = store.list_with_offset(Some(&folder), &after).take(LISTED_MAX);
            let mut names = Vec::new();
            while let Some(meta) = stream.next().await {
                let meta = meta?;
                let name = meta.location.filename().and_then(|n| u64::from_str_radix(n, 16).ok());
                names.extend(name.map(ClaimName));
            }
            Ok(names)
        });
        let mut names: Vec<ClaimName> = listed.await?;
        names.retain(|name| (from_ms..=upto_ms).contains(&name.ms()));
        names.sort_unstable();
        Ok(names)
    }

    /// Deletes a claim. If deletes are not allowed, it expires with the probes.
    pub async fn drop_claim(&self, name: ClaimName) {
        let key = self.claim(name);
        let call = self.call(Verb::Delete, format!("delete {key}"));
        let deleted = self.inner.requester.call(call, |store| async move {
            store.delete(&key).await?;
            Ok(())
        });
        if let Err(error) = deleted.await {
            tracing::debug!(error = %error.chain(), "claim is not deleted");
        }
    }

    fn claim(&self, ClaimName(name): ClaimName) -> object_store::path::Path {
        self.inner.keys.probe(NodeId(name))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_in_order_of_time_and_below_those_of_most_nodes() {
        let (now, later) = (ClaimName::new(1_760_000_000_000), ClaimName::new(1_760_000_000_001));
        assert!(now < later && now.ms() == 1_760_000_000_000);
        assert!(NodeId(now.0).to_string() < NodeId(later.0).to_string());
    }
}
