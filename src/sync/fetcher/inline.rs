//! Contents inside commits: a small content lies in the commit that announces it.
//!
//! Owns the commits that were fetched for one of their contents. A commit travels whole, and a
//! program that wants one of its contents often wants the others next, for which the tier may have
//! no room. So a few commits stay in memory. Must never evict anything for a content that was not
//! requested.

use std::collections::VecDeque;
use std::sync::Arc;

use bytes::Bytes;
use futures::future::BoxFuture;
use parking_lot::Mutex;

use super::{FLIGHTS_MAX, Inner, keep};
use crate::digest::Digest;
use crate::error::{Error, Kind, Result};
use crate::local::Blobs;
use crate::namespace::{BlobPlace, Commit, Site};
use crate::remote::{Progress, Remote, decode_commit};
use crate::sync::flight::Flights;
use crate::task;

/// The most commits that stay in memory, and their bytes.
const RECENT_MAX: usize = 16;
const RECENT_BYTES_MAX: usize = 2 << 20;

/// Commits that are being fetched, and those that were fetched last.
#[derive(Debug)]
pub(super) struct CommitFetches {
    flights: Flights<Arc<str>>,
    recent: RecentCommits,
}

impl CommitFetches {
    pub(super) fn new() -> Self {
        Self { flights: Flights::new(), recent: RecentCommits::default() }
    }
}

/// Commits that were fetched last, the latest one at the end.
#[derive(Debug, Default)]
struct RecentCommits(Mutex<VecDeque<(Arc<str>, Bytes)>>);

impl RecentCommits {
    fn get(&self, name: &str) -> Option<Bytes> {
        let mut all = self.0.lock();
        let at = all.iter().position(|(known, _)| **known == *name)?;
        let found = all.remove(at)?;
        let bytes = found.1.clone();
        all.push_back(found);
        Some(bytes)
    }

    /// Adds a commit that is whole.
    fn put(&self, name: &Arc<str>, bytes: Bytes) {
        let mut all = self.0.lock();
        all.retain(|(known, _)| known != name);
        all.push_back((Arc::clone(name), bytes));
        while all.len() > RECENT_MAX
            || all.iter().map(|(_, bytes)| bytes.len()).sum::<usize>() > RECENT_BYTES_MAX
        {
            all.pop_front();
        }
    }
}

impl Inner {
    pub(super) async fn fetch_inline(
        self: &Arc<Self>,
        remote: &Remote,
        digest: Digest,
        commit: &Arc<str>,
        progress: &Progress,
    ) -> Result<()> {
        if let Some(bytes) = self.commits.recent.get(commit) {
            return self.keep_one(digest, bytes).await;
        }
        let (inner, name) = (Arc::clone(self), Arc::clone(commit));
        let work = move |progress| -> BoxFuture<'static, Result<()>> {
            Box::pin(async move { inner.fetch_commit(&name, &progress).await })
        };
        let name = Arc::clone(commit);
        self.commits.flights.join(&self.runtime, name, FLIGHTS_MAX, progress, work).await?;
        if self.ledger.blobs().contains(&digest) {
            return Ok(());
        }
        // The tier has no room for more than this content, or no file used it before.
        let bytes = match self.commits.recent.get(commit) {
            Some(bytes) => bytes,
            None => self.request(commit, || remote.get_commit(commit)).await?,
        };
        self.keep_one(digest, bytes).await
    }

    /// Keeps one content of a commit.
    async fn keep_one(&self, digest: Digest, bytes: Bytes) -> Result<()> {
        let ledger = self.ledger.clone();
        task::blocking(move || {
            let commit = decode_commit(&bytes)?;
            let mut found = inline_blobs(&commit).filter(|(of, _)| *of == digest);
            match found.next() {
                Some((_, bytes)) => keep(&ledger, digest, bytes),
                None => Err(Error::new(Kind::Corrupt, "the commit does not hold the blob")),
            }
        })
        .await
    }

    /// Fetches a commit again and keeps those of its blobs that files use, as far as there is room:
    /// a caller that wants one of them probably wants the others.
    async fn fetch_commit(&self, name: &Arc<str>, progress: &Progress) -> Result<()> {
        let remote = self.telling(progress)?;
        let bytes = self.request(name, || remote.get_commit(name)).await?;
        let (ledger, of, packed) = (self.ledger.clone(), Arc::clone(name), bytes.clone());
        task::blocking(move || {
            // Decoding compares the bytes with the digests.
            let commit = decode_commit(&packed)?;
            let wanted: Vec<_> = ledger.read(|fold| {
                let lies_here = |digest: &Digest| {
                    let site = fold.location(digest).map(|location| location.site);
                    matches!(site, Some(Site::Inline { commit }) if commit == of)
                };
                let all = inline_blobs(&commit);
                all.filter(|(digest, _)| fold.uses(digest) && lies_here(digest)).collect()
            });
            for (digest, bytes) in wanted {
                let is_room = |blobs: &Blobs| blobs.has_room_for_more(bytes.len() as u64);
                if !ledger.blobs().contains(&digest)
                    && !ledger.blobs().keep(digest, bytes, is_room)?
                {
                    break;
                }
            }
            Ok(())
        })
        .await?;
        self.commits.recent.put(name, bytes);
        Ok(())
    }
}

/// Yields the blobs that are inline in a commit.
fn inline_blobs(commit: &Commit) -> impl Iterator<Item = (Digest, &[u8])> {
    commit.blobs.iter().filter_map(|blob| match &blob.place {
        BlobPlace::Inline(bytes) => Some((blob.digest, bytes.as_slice())),
        _ => None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn p13_bounded_commits_in_memory() {
        let recent = RecentCommits::default();
        let name = |n: usize| -> Arc<str> { n.to_string().into() };
        for n in 0..100 {
            recent.put(&name(n), Bytes::from(vec![n as u8; 1000]));
            assert!(recent.get("0").is_some(), "it is used each time");
        }
        assert_eq!(recent.0.lock().len(), RECENT_MAX);
        recent.put(&name(7), Bytes::from(vec![7; RECENT_BYTES_MAX]));
        assert!(recent.get("0").is_none() && recent.get("7").is_some());
        recent.put(&name(8), Bytes::from(vec![8; RECENT_BYTES_MAX + 1]));
        assert!(recent.0.lock().is_empty(), "it is too large");
    }
}
