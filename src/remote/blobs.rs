//! Blobs that are objects of their own.
//!
//! Owns moving them in bounded memory, compressed on the way. Must never complete an upload, or
//! report a download, whose bytes do not have the digest.

use std::fs::File;
use std::io::{self, Read as _, Write as _};
use std::os::unix::fs::FileExt as _;
use std::sync::{Arc, Weak};

use bytes::Bytes;
use futures::StreamExt as _;
use futures::stream::FuturesUnordered;
use object_store::path::Path;
use object_store::{GetResultPayload, MultipartUpload, ObjectStoreExt as _, UploadPart};
use tokio::sync::mpsc;

use super::call::{Call, CallFailure};
use super::frame::{WINDOW_LOG_MAX, ZSTD_LEVEL};
use super::meter::Meter;
use super::progress::Progress;
use super::store::{Remote, UPLOAD_MIB_MAX};
use super::trouble::Trouble;
use super::verb::Verb;
use crate::digest::{Digest, Hasher};
use crate::error::{Error, Kind, Result};
use crate::task;

/// Compressed bytes of one part. A blob that fits into one part is written with one request.
pub(super) const PART_BYTES: usize = 8 * 1024 * 1024;
/// The most parts that S3 takes for one object, with some room.
const PARTS_MAX: u64 = 9_000;
/// Parts of one blob in flight.
const PARTS_IN_FLIGHT_MAX: usize = 2;
/// Bytes that are read or written at once.
const CHUNK_BYTES: usize = 256 * 1024;
/// How far our estimate of the store's time may be wrong.
const CLOCK_NOISE_MS: u64 = 2000;
/// Pieces of a download that wait to be written.
const CHUNKS_QUEUED_MAX: usize = 4;
/// Zeros to compare with. The decompressor writes pieces of at most this size.
static ZEROS: [u8; 128 * 1024] = [0; 128 * 1024];

/// What the reader of a file hands to the upload.
#[derive(Debug)]
pub(super) enum FilePiece {
    Part(Vec<u8>),
    /// The last bytes. Sent only if the whole content has its digest.
    Last(Vec<u8>),
}

impl Remote {
    /// Uploads the content of `file`, `size` bytes from its start.
    ///
    /// # Errors
    ///
    /// `Corrupt` when the bytes do not have the digest, and nothing appears in the store; `Denied` on a read-only
    /// mount; otherwise `Unavailable` or `TimedOut` while the store does not answer, `Denied` or `Invalid` when it
    /// refuses.
    pub async fn put_blob(&self, digest: &Digest, file: File, size: u64) -> Result<()> {
        self.ready_to_write().await?;
        let memory = self.inner.uploads.acquire_many(upload_mib(size)).await;
        let _memory = memory.expect("the semaphore is never closed");
        let digest = *digest;
        let (pieces, arriving) = mpsc::channel(1);
        // If sending ends early, the channel closes and the compressor stops at its next piece.
        let compressing = task::blocking(move || {
            let outcome = compress(&file, size, digest, &pieces);
            if let Err(Some(error)) = outcome {
                drop(pieces.blocking_send(Err(error)));
            }
        });
        let key = self.inner.keys.blob(&digest);
        let ((), sent) = futures::join!(compressing, self.send(key, arriving));
        sent
    }

    /// Writes an object from the pieces that arrive, with one request if there is only one. The
    /// caller has reserved the memory for them.
    pub(super) async fn send(
        &self,
        key: Path,
        mut pieces: mpsc::Receiver<Result<FilePiece>>,
    ) -> Result<()> {
        let first = match next(&mut pieces).await? {
            FilePiece::Last(bytes) => return self.write(key, bytes.into(), u64::MAX).await,
            FilePiece::Part(bytes) => bytes,
        };
        let call = self.call(Verb::Put, format!("begin {key}"));
        let at = &key;
        let begun_ms = self.now_ms();
        let begun = self
            .inner
            .requester
            .call(call, |store| async move { Ok(store.put_multipart(at).await?) });
        let mut upload = Upload { parts: Some(begun.await?), begun_ms, remote: self.clone() };
        let sent = self.send_parts(&key, &mut upload, first, pieces).await;
        match sent {
            Ok(()) => upload.defuse(),
            Err(_) => upload.abort().await,
        }
        sent
    }

    async fn send_parts(
        &self,
        key: &Path,
        upload: &mut Upload,
        first: Vec<u8>,
        mut pieces: mpsc::Receiver<Result<FilePiece>>,
    ) -> Result<()> {
        let mut flying = FuturesUnordered::new();
        let first_size = first.len();
        let mut total = first_size as u64;
        flying.push(self.send_part(key, upload.part(first), first_size));
        loop {
            let piece = loop {
                tokio::select! {
                    piece = next(&mut pieces), if flying.len() < PARTS_IN_FLIGHT_MAX => break piece?,
                    Some(sent) = flying.next() => sent?,
                }
            };
            let (bytes, last) = match piece {
                FilePiece::Part(bytes) => (bytes, false),
                FilePiece::Last(bytes) => (bytes, true),
            };
            total += bytes.len() as u64;
            if !bytes.is_empty() {
                let size = bytes.len();
                flying.push(self.send_part(key, upload.part(bytes), size));
            }
            if last {
                while let Some(sent) = flying.next().await {
                    sent?;
                }
                return self.complete(key, upload, total).await;
            }
        }
    }

    async fn send_part(&self, key: &Path, part: UploadPart, size: usize) -> Result<()> {
        let requester = &self.inner.requester;
        let call = Call {
            limit: requester.time_for(size as u64),
            ..self.call(Verb::Put, format!("write a part of {key}"))
        };
        requester.call(call, |_| async move { Ok(part.await?) }).await?;
        requester.meter.up(size as u64);
        Ok(())
    }

    /// Completes the object. If that seems to fail, looks at the object itself: perhaps only the
    /// reply was lost.
    async fn complete(&self, key: &Path, upload: &mut Upload, total: u64) -> Result<()> {
        let requester = &self.inner.requester;
        let call = Call {
            // Stores put the parts together before they answer.
            limit: requester.time_for(total),
            ..self.call(Verb::Put, format!("complete {key}"))
        };
        let parts = upload.parts.as_mut().expect("the upload is neither aborted nor done");
        let Err(error) = requester
            .call(call, |_| async move { parts.complete().await.map_err(CallFailure::from) })
            .await
        else {
            return Ok(());
        };
        let call = Call {
            lane: super::health::Lane::Background,
            ..self.call(Verb::Head, format!("look for {key}"))
        };
        // An older object may be the damaged one that this upload replaces.
        let oldest_ms = upload.begun_ms.saturating_sub(CLOCK_NOISE_MS) as i64;
        match requester.call(call, |store| async move { Ok(store.head(key).await?) }).await {
            Ok(meta)
                if meta.size == total && meta.last_modified.timestamp_millis() >= oldest_ms =>
            {
                Ok(())
            }
            _ => Err(error),
        }
    }

    /// Downloads a blob of `size` raw bytes into `file`, which must be empty. Writes no more than
    /// `size` bytes, and leaves holes for zeros. Dropping the future ends the download.
    ///
    /// # Errors
    ///
    /// `NotFound` when it is not there, `Corrupt` when the bytes do not have the digest;
    /// `Unavailable` or `TimedOut` while the store does not answer, `Denied` or `Invalid` when it
    /// refuses. After an error the caller must discard the file.
    pub async fn get_blob(&self, digest: &Digest, size: u64, file: File) -> Result<()> {
        self.ready_to_read().await?;
        let key = self.inner.keys.blob(digest);
        let requester = &self.inner.requester;
        let most = compressed_bytes_max(size);
        let call = self.call(Verb::Get, format!("read {key}"));
        let progress = call.progress.clone();
        let digest = *digest;
        requester
            .call(call, |store| async move {
                let got = store.get(&key).await?;
                if got.meta.size > most {
                    let text = format!("{} bytes for a blob of {size}", got.meta.size);
                    return Err(Trouble::corrupt(text).into());
                }
                let waited_for = Arc::new(());
                let sink = Sink {
                    file,
                    hasher: Hasher::new(),
                    written: 0,
                    size,
                    progress,
                    waited_for: Arc::downgrade(&waited_for),
                };
                let received =
                    receive(got.payload, got.meta.size, sink, digest, &requester.meter).await;
                drop(waited_for);
                received
            })
            .await
    }
}

/// Moves a body into the sink and verifies it.
async fn receive(
    body: GetResultPayload,
    size: u64,
    mut sink: Sink,
    digest: Digest,
    meter: &Meter,
) -> std::result::Result<(), CallFailure> {
    let mut stream = match body {
        GetResultPayload::File(mut from, _) => {
            meter.down(size);
            return task::blocking(move || {
                decompress(&mut sink, |chunk| from.read(chunk))?;
                sink.verify(&digest)
            })
            .await;
        }
        GetResultPayload::Stream(stream) => stream,
    };
    let (chunks, arriving) = mpsc::channel(CHUNKS_QUEUED_MAX);
    let progress = sink.progress.clone();
    let writing = task::blocking(move || write_stream(sink, &digest, arriving));
    let reading = async move {
        let mut arrived = 0;
        loop {
            match stream.next().await {
                Some(chunk) => {
                    let chunk = chunk?;
                    progress.note();
                    meter.down(chunk.len() as u64);
                    arrived += chunk.len() as u64;
                    // The writer returns its own error when it stops receiving.
                    if chunks.send(chunk).await.is_err() {
                        return Ok(());
                    }
                }
                // The connection broke, so this is no proof about the object.
                None if arrived < size => return Err(Trouble::cut_short(arrived, size).into()),
                None => return Ok::<_, CallFailure>(()),
            }
        }
    };
    let (written, read) = futures::join!(writing, reading);
    read?;
    written
}

async fn next(pieces: &mut mpsc::Receiver<Result<FilePiece>>) -> Result<FilePiece> {
    match pieces.recv().await {
        Some(piece) => piece,
        None => Err(Error::new(Kind::Internal, "reading what is uploaded ended without an end")),
    }
}

/// An upload in parts that leaves nothing behind, even if its future is dropped.
#[derive(Debug)]
struct Upload {
    parts: Option<Box<dyn MultipartUpload>>,
    /// When it was begun, by the store's clock.
    begun_ms: u64,
    remote: Remote,
}

impl Upload {
    fn part(&mut self, bytes: Vec<u8>) -> UploadPart {
        let parts = self.parts.as_mut().expect("the upload is neither aborted nor done");
        parts.put_part(bytes.into())
    }

    fn defuse(&mut self) {
        self.parts = None;
    }

    async fn abort(&mut self) {
        if let Some(parts) = self.parts.take() {
            abort(&self.remote, parts).await;
        }
    }
}

impl Drop for Upload {
    fn drop(&mut self) {
        let (Some(parts), Ok(runtime)) = (self.parts.take(), tokio::runtime::Handle::try_current())
        else {
            return;
        };
        let remote = self.remote.clone();
        drop(task::spawn(&runtime, "abort", async move { abort(&remote, parts).await }));
    }
}

async fn abort(remote: &Remote, mut parts: Box<dyn MultipartUpload>) {
    let call = remote.call(Verb::Delete, "abort an upload");
    let aborted =
        remote.inner.requester.call(call, |_| async move { Ok(parts.abort().await?) }).await;
    if let Err(error) = aborted {
        // The bucket's rule for incomplete uploads removes the rest.
        tracing::debug!(error = %error.chain(), "upload could not be aborted");
    }
}

/// Compresses the content into pieces while it checks the digest. `Err(None)` when the receiver has
/// stopped receiving.
fn compress(
    file: &File,
    size: u64,
    digest: Digest,
    pieces: &mpsc::Sender<Result<FilePiece>>,
) -> std::result::Result<(), Option<Error>> {
    if compressed_bytes_max(size) <= PART_BYTES as u64 {
        let all = compress_at_once(file, size as usize, digest).map_err(Some)?;
        return pieces.blocking_send(Ok(FilePiece::Last(all))).map_err(|_| None);
    }
    let part_bytes = part_bytes(size);
    let failed = |error| Some(Error::io("compress a blob", error));
    let mut encoder = zstd::stream::write::Encoder::new(Vec::new(), ZSTD_LEVEL).map_err(failed)?;
    encoder.set_pledged_src_size(Some(size)).map_err(failed)?;
    let mut hasher = Hasher::new();
    let mut chunk = vec![0; CHUNK_BYTES];
    let mut at = 0;
    loop {
        let count = read_at(file, &mut chunk, at).map_err(|e| Some(Error::io("read a blob", e)))?;
        if count == 0 {
            break;
        }
        at += count as u64;
        if at > size {
            break;
        }
        hasher.update(&chunk[..count]);
        encoder.write_all(&chunk[..count]).map_err(failed)?;
        while encoder.get_ref().len() >= part_bytes {
            let rest = encoder.get_mut().split_off(part_bytes);
            let part = std::mem::replace(encoder.get_mut(), rest);
            pieces.blocking_send(Ok(FilePiece::Part(part))).map_err(|_| None)?;
        }
    }
    if at != size || hasher.finish() != digest {
        return Err(Some(other_bytes(digest)));
    }
    let mut rest = encoder.finish().map_err(failed)?;
    while rest.len() > part_bytes {
        let more = rest.split_off(part_bytes);
        let part = std::mem::replace(&mut rest, more);
        pieces.blocking_send(Ok(FilePiece::Part(part))).map_err(|_| None)?;
    }
    pieces.blocking_send(Ok(FilePiece::Last(rest))).map_err(|_| None)
}

/// Compresses a content that fits into one part. The compressor then needs no window of its own, which it
/// would copy the content to.
fn compress_at_once(file: &File, size: usize, digest: Digest) -> Result<Vec<u8>> {
    // One more, to notice a file that is longer.
    let mut raw = vec![0; size + 1];
    let mut read = 0;
    while read < raw.len() {
        match read_at(file, &mut raw[read..], read as u64) {
            Ok(0) => break,
            Ok(count) => read += count,
            Err(error) => return Err(Error::io("read a blob", error)),
        }
    }
    if read != size || Digest::of(&raw[..size]) != digest {
        return Err(other_bytes(digest));
    }
    let failed = |error| Error::io("compress a blob", error);
    let mut compressor = zstd::bulk::Compressor::new(ZSTD_LEVEL).map_err(failed)?;
    compressor.compress(&raw[..size]).map_err(failed)
}

fn other_bytes(digest: Digest) -> Error {
    let op = format!("blob {digest} does not match its digest; it is not uploaded");
    Error::new(Kind::Corrupt, op)
}

fn read_at(file: &File, buffer: &mut [u8], at: u64) -> io::Result<usize> {
    loop {
        match file.read_at(buffer, at) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            done => return done,
        }
    }
}

fn part_bytes(size: u64) -> usize {
    PART_BYTES.max((compressed_bytes_max(size) / PARTS_MAX) as usize)
}

/// Returns the memory for one upload: the parts in flight, one that waits, one that is being
/// compressed and one in hand; or the whole blob, if it is small.
pub(super) fn upload_mib(size: u64) -> u32 {
    let parts = part_bytes(size) as u64 * (PARTS_IN_FLIGHT_MAX as u64 + 3);
    let bytes = parts.min(compressed_bytes_max(size) * 2);
    ((bytes >> 20) + 1).min(u64::from(UPLOAD_MIB_MAX)) as u32
}

/// The largest compressed size of so many bytes.
fn compressed_bytes_max(size: u64) -> u64 {
    size + size / 128 + 1024
}

/// A file that accepts the expected number of bytes and checks their digest.
#[derive(Debug)]
struct Sink {
    file: File,
    hasher: Hasher,
    written: u64,
    size: u64,
    /// A few compressed bytes can be gigabytes, so each piece that is written is progress, too.
    progress: Progress,
    /// Gone when the download was given up. The thread that writes must end then: the next try
    /// would compete with it for the disk.
    waited_for: Weak<()>,
}

impl io::Write for Sink {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if bytes.len() as u64 > self.size - self.written {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "more bytes than the blob has"));
        }
        if self.waited_for.strong_count() == 0 {
            return Err(io::Error::other("the download was given up"));
        }
        if ZEROS.get(..bytes.len()) != Some(bytes) {
            self.file.write_all_at(bytes, self.written)?;
        }
        self.hasher.update(bytes);
        self.written += bytes.len() as u64;
        self.progress.note();
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Sink {
    fn verify(&self, digest: &Digest) -> std::result::Result<(), CallFailure> {
        if self.written == self.size && self.hasher.finish() == *digest {
            // It may end with a hole.
            return self.file.set_len(self.size).map_err(|e| Trouble::of_writing(&e).into());
        }
        let text = format!("{} of {} bytes, or other ones", self.written, self.size);
        Err(Trouble::corrupt(text).into())
    }
}

fn write_stream(
    mut sink: Sink,
    digest: &Digest,
    mut chunks: mpsc::Receiver<Bytes>,
) -> std::result::Result<(), CallFailure> {
    let mut left = Bytes::new();
    let mut ended = false;
    decompress(&mut sink, |buffer| {
        while left.is_empty() && !ended {
            match chunks.blocking_recv() {
                Some(chunk) => left = chunk,
                None => ended = true,
            }
        }
        let count = left.len().min(buffer.len());
        buffer[..count].copy_from_slice(&left.split_to(count));
        Ok(count)
    })?;
    sink.verify(digest)
}

/// Decompresses what `read` returns, until it returns nothing.
fn decompress(
    sink: &mut Sink,
    mut read: impl FnMut(&mut [u8]) -> io::Result<usize>,
) -> std::result::Result<(), CallFailure> {
    let failed = |error: &io::Error| CallFailure(Trouble::of_writing(error));
    let mut decoder = zstd::stream::write::Decoder::new(sink).map_err(|e| failed(&e))?;
    decoder.window_log_max(WINDOW_LOG_MAX).map_err(|e| failed(&e))?;
    let mut buffer = vec![0; CHUNK_BYTES];
    loop {
        let count = match read(&mut buffer) {
            Ok(count) => count,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) => return Err(failed(&error)),
        };
        if count == 0 {
            return decoder.flush().map_err(|e| failed(&e));
        }
        decoder.write_all(&buffer[..count]).map_err(|e| failed(&e))?;
    }
}

#[cfg(test)]
mod tests;
