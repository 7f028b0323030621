//! Listing checkpoints, and moving them between the store and a file.
//!
//! Must never hold a whole checkpoint in memory, and never report a downloaded one as valid: its
//! reader checks that.

use std::fs::File;
use std::os::unix::fs::FileExt as _;

use futures::StreamExt as _;
use object_store::ObjectStoreExt as _;
use tokio::sync::mpsc;

use super::CHECKPOINT_BYTES_MAX;
use crate::error::{Error, Kind, Result};
use crate::remote::blobs::{FilePiece, PART_BYTES, upload_mib};
use crate::remote::bundle;
use crate::remote::keys;
use crate::remote::log::{LogItem, Wanted};
use crate::remote::store::Remote;
use crate::remote::trouble::Trouble;
use crate::remote::verb::Verb;
use crate::task;

/// The most checkpoints that are listed: a bound for memory, far above what occurs.
const CHECKPOINTS_LISTED_MAX: usize = 500_000;
/// Bytes that are gathered before they are written.
const CHUNK_BYTES: usize = 1 << 20;

impl Remote {
    /// Lists the checkpoints and the bundles, each in the order of their names.
    ///
    /// # Errors
    ///
    /// `Unavailable` or `TimedOut` while the store does not answer, `Denied` or `Invalid` when it refuses.
    pub async fn list_checkpoints(&self) -> Result<(Vec<LogItem>, Vec<LogItem>)> {
        let prefix = self.inner.keys.checkpoints();
        let stamp_of = bundle::listed;
        let wanted = Wanted { after: None, most: CHECKPOINTS_LISTED_MAX, stamp_of };
        let items = self.list_named(prefix, "list the checkpoints", wanted).await?;
        Ok(items.into_iter().partition(|item| keys::checkpoint_stamp(&item.name).is_some()))
    }

    /// Downloads a checkpoint into `file`, from its start on. What arrived is not verified.
    ///
    /// # Errors
    ///
    /// `NotFound` when it is gone, `Corrupt` above the limit of size, `Invalid` for what is no name of a checkpoint;
    /// `Unavailable` or `TimedOut` while the store does not answer, `Denied` or `Invalid` when it refuses.
    pub async fn get_checkpoint(&self, name: &str, file: File) -> Result<()> {
        let key = self.inner.keys.checkpoint(name)?;
        self.ready(self.lane).await?;
        let requester = &self.inner.requester;
        let call = self.call(Verb::Get, format!("read {key}"));
        let progress = call.progress.clone();
        requester
            .call(call, |store| async move {
                let got = store.get(&key).await?;
                let size = got.meta.size;
                if size > CHECKPOINT_BYTES_MAX {
                    let text = format!("{size} bytes where {CHECKPOINT_BYTES_MAX} are the most");
                    return Err(Trouble::corrupt(text).into());
                }
                requester.meter.down(size);
                let (mut body, mut arrived, mut at) = (got.into_stream(), 0, 0);
                let mut chunk = Vec::with_capacity(CHUNK_BYTES);
                while let Some(bytes) = body.next().await {
                    let bytes = bytes?;
                    progress.note();
                    arrived += bytes.len() as u64;
                    chunk.extend_from_slice(&bytes);
                    if chunk.len() >= CHUNK_BYTES {
                        (chunk, at) = write(&file, chunk, at).await?;
                    }
                }
                write(&file, chunk, at).await?;
                if arrived < size {
                    return Err(Trouble::cut_short(arrived, size).into());
                }
                Ok(())
            })
            .await
    }

    /// Uploads a checkpoint of `size` bytes from the start of `file`. Doing it again is harmless.
    ///
    /// # Errors
    ///
    /// `Invalid` for what is no name of a checkpoint; `Denied` on a read-only mount; otherwise `Unavailable` or
    /// `TimedOut` while the store does not answer, `Denied` or `Invalid` when it refuses.
    pub async fn put_checkpoint(&self, name: &str, file: File, size: u64) -> Result<()> {
        let key = self.inner.keys.checkpoint(name)?;
        self.ready_to_write().await?;
        let memory = self.inner.uploads.acquire_many(upload_mib(size)).await;
        let _memory = memory.expect("the semaphore is never closed");
        let (pieces, arriving) = mpsc::channel(1);
        // If sending ends early, the channel closes and the reader stops at its next piece.
        let reading = async move {
            if let Err(error) = read(file, size, &pieces).await {
                drop(pieces.send(Err(error)).await);
            }
        };
        let ((), sent) = futures::join!(reading, self.send(key, arriving));
        sent
    }
}

/// Writes a chunk and empties it; returns where the next one goes.
async fn write(
    file: &File,
    chunk: Vec<u8>,
    at: u64,
) -> std::result::Result<(Vec<u8>, u64), Trouble> {
    let failed = |error: &std::io::Error| Trouble::of_writing(error);
    let file = file.try_clone().map_err(|e| failed(&e))?;
    task::blocking(move || {
        let mut chunk = chunk;
        file.write_all_at(&chunk, at)?;
        let next = at + chunk.len() as u64;
        chunk.clear();
        Ok((chunk, next))
    })
    .await
    .map_err(|e: std::io::Error| failed(&e))
}

/// Hands a file over in pieces.
async fn read(mut file: File, size: u64, pieces: &mpsc::Sender<Result<FilePiece>>) -> Result<()> {
    let mut left = size;
    loop {
        let (bytes, at) = (left.min(PART_BYTES as u64), size - left);
        let read = task::blocking(move || {
            let mut piece = vec![0; bytes as usize];
            file.read_exact_at(&mut piece, at).map(|()| (file, piece))
        });
        let piece;
        (file, piece) = read.await.map_err(|e| Error::io("read a checkpoint", e))?;
        left -= bytes;
        let piece = if left == 0 { FilePiece::Last(piece) } else { FilePiece::Part(piece) };
        if pieces.send(Ok(piece)).await.is_err() {
            return Err(Error::new(Kind::Closed, "the reader of the checkpoint has ended"));
        }
        if left == 0 {
            return Ok(());
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use super::*;
    use crate::clock::Clock;
    use crate::remote::RemoteOptions;
    use crate::remote::fault::{FaultPlan, Faults, MemoryStore};
    use crate::stamp::{NodeId, Stamp};

    fn name(ms: u64) -> String {
        keys::checkpoint_name(&Stamp { ms, counter: 1, node: NodeId(2) })
    }

    async fn there_and_back(remote: &Remote, name: &str, bytes: &[u8]) -> Result<Vec<u8>> {
        let mut file = tempfile::tempfile().expect("a file");
        file.write_all(bytes).expect("written");
        remote.put_checkpoint(name, file, bytes.len() as u64).await?;
        let back = tempfile::tempfile().expect("a file");
        remote.get_checkpoint(name, back.try_clone().expect("a handle")).await?;
        let mut read = vec![0; back.metadata().expect("stat").len() as usize];
        back.read_exact_at(&mut read, 0).expect("readable");
        Ok(read)
    }

    /// Small and large ones, which travel in parts.
    #[test]
    fn what_was_put_is_got() {
        let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build();
        runtime.expect("a runtime").block_on(async {
            let (store, faults) = (MemoryStore::new(), Faults::none());
            let options = RemoteOptions::default();
            let remote = store.remote(&faults, &options, Clock::system(), NodeId(1));
            let sizes = [0, 100, PART_BYTES, PART_BYTES + 1, 2 * PART_BYTES + 5 * CHUNK_BYTES + 7];
            for (ms, size) in (1..).zip(sizes) {
                let mut bytes = vec![0; size];
                blake3::Hasher::new().update(&[ms as u8]).finalize_xof().fill(&mut bytes);
                let back =
                    there_and_back(&remote, &name(ms), &bytes).await.expect("sent and fetched");
                assert!(back == bytes, "{size} bytes");
            }
            let (listed, _) = remote.list_checkpoints().await.expect("listed");
            let names: Vec<_> = listed.iter().map(|item| item.name.clone()).collect();
            assert_eq!(names, (1..6).map(name).collect::<Vec<_>>());
            let missing = tempfile::tempfile().expect("a file");
            let error = remote.get_checkpoint(&name(9), missing).await.expect_err("missing");
            assert_eq!(error.kind(), Kind::NotFound);
            assert!(there_and_back(&remote, "../x.ckpt", b"x").await.is_err());
            // What a broken connection leaves is no checkpoint.
            faults.set(FaultPlan::parse("truncated=100").expect("a plan"));
            let cut = tempfile::tempfile().expect("a file");
            assert!(remote.get_checkpoint(&name(5), cut).await.is_err());
        });
    }
}
