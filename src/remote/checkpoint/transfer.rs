//! Moving checkpoints: listed, and between the store and a file.
//!
//! Must never hold a whole one in memory, nor call what arrived whole: who reads it finds out.

use std::fs::File;
use std::os::unix::fs::FileExt as _;

use futures::StreamExt as _;
use object_store::ObjectStoreExt as _;
use tokio::sync::mpsc;

use super::CHECKPOINT_BYTES_MAX;
use crate::clock;
use crate::error::{Error, Kind, Result};
use crate::remote::blobs::{PART_BYTES, Piece, upload_mib};
use crate::remote::call::Call;
use crate::remote::keys;
use crate::remote::meter::Verb;
use crate::remote::store::{LogItem, Remote};
use crate::remote::trouble::Trouble;
use crate::task;

/// Bytes that are gathered before they are written.
const CHUNK_BYTES: usize = 1 << 20;

impl Remote {
    /// Lists the checkpoints, oldest first.
    pub async fn list_checkpoints(&self) -> Result<Vec<LogItem>> {
        let prefix = self.inner.keys.checkpoints();
        self.list_named(prefix, "list the checkpoints", None, keys::checkpoint_stamp).await
    }

    /// Downloads a checkpoint into `file`, from its start on. What arrived is not verified.
    pub async fn get_checkpoint(&self, name: &str, file: File) -> Result<()> {
        let key = self.inner.keys.checkpoint(name)?;
        self.ready(self.lane).await?;
        let caller = &self.inner.caller;
        let call = Call {
            limit: caller.time_for(CHECKPOINT_BYTES_MAX),
            ..self.call(Verb::Get, format!("read {key}"))
        };
        caller
            .call(call, |store| async move {
                let head = clock::within(caller.deadline, store.get(&key)).await;
                let got = head.ok_or_else(|| Trouble::timed_out("no answer came".into()))??;
                let size = got.meta.size;
                if size > CHECKPOINT_BYTES_MAX {
                    let text = format!("{size} bytes where {CHECKPOINT_BYTES_MAX} are the most");
                    return Err(Trouble::corrupt(text).into());
                }
                caller.meter.down(size);
                let (mut body, mut arrived, mut at) = (got.into_stream(), 0, 0);
                let mut chunk = Vec::with_capacity(CHUNK_BYTES);
                while let Some(bytes) = clock::within(caller.deadline, body.next())
                    .await
                    .ok_or_else(|| Trouble::timed_out("it stopped".into()))?
                {
                    let bytes = bytes?;
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
    pub async fn put_checkpoint(&self, name: &str, file: File, size: u64) -> Result<()> {
        let key = self.inner.keys.checkpoint(name)?;
        self.ready_to_write().await?;
        let memory = self.inner.uploads.acquire_many(upload_mib(size)).await;
        let _memory = memory.expect("the semaphore is never closed");
        let (pieces, arriving) = mpsc::channel(1);
        // If sending ends early, the channel closes and the reader stops at its next piece.
        let reading = task::blocking(move || {
            if let Err(error) = read(&file, size, &pieces) {
                drop(pieces.blocking_send(Err(error)));
            }
        });
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
fn read(file: &File, size: u64, pieces: &mpsc::Sender<Result<Piece>>) -> Result<()> {
    let mut left = size;
    loop {
        let mut bytes = vec![0; left.min(PART_BYTES as u64) as usize];
        file.read_exact_at(&mut bytes, size - left)
            .map_err(|e| Error::io("read a checkpoint", e))?;
        left -= bytes.len() as u64;
        let piece = if left == 0 { Piece::Last(bytes) } else { Piece::Part(bytes) };
        if pieces.blocking_send(Ok(piece)).is_err() {
            return Err(Error::new(Kind::Closed, "nobody takes the checkpoint any more"));
        }
        if left == 0 {
            return Ok(());
        }
    }
}
