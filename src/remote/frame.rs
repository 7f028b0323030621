//! One blob as a zstd frame.
//!
//! Owns compression and its limits. Must never return bytes that do not have the digest.

use std::cell::RefCell;

use crate::digest::Digest;
use crate::error::{Error, Kind, Result};

/// The compression level. A node compresses while programs compile. Level 3 takes 1.5 to 1.8 times
/// as long for programs, compiled Python and text, and saves 3 to 7 bytes in a hundred. Level 1 takes
/// 0.8 to 0.9 times as long, and 5 to 12 bytes in a hundred more (`zstd -b`).
pub(super) const ZSTD_LEVEL: i32 = 2;
/// The largest window accepted for decompression, as a power of two. Bounds the memory that a frame
/// can demand. Level 3, of earlier versions, makes windows of 21.
pub(super) const WINDOW_LOG_MAX: u32 = 24;
/// The largest blob that goes into a pack as a frame.
pub const FRAME_RAW_BYTES_MAX: u64 = 16 * 1024 * 1024;

/// Decompresses a frame of a pack and checks the digest.
///
/// # Errors
///
/// `Corrupt` when it does not decompress to `size` bytes with the digest.
pub fn decode_frame(bytes: &[u8], digest: &Digest, size: u64) -> Result<Vec<u8>> {
    let corrupt = || Error::new(Kind::Corrupt, format!("frame of blob {digest} is damaged"));
    if size > FRAME_RAW_BYTES_MAX {
        let op = format!("blob {digest} of {size} bytes is too large for a frame");
        return Err(Error::new(Kind::Corrupt, op));
    }
    let raw = decompress(bytes, size as usize).ok_or_else(corrupt)?;
    if raw.len() as u64 != size || Digest::of(&raw) != *digest {
        return Err(corrupt());
    }
    Ok(raw)
}

thread_local! {
    /// The decompressor of a thread. To make one for each frame took a tenth of the time of the threads
    /// that unpack (`perf`), because it takes fresh memory.
    static DECOMPRESSOR: RefCell<Option<zstd::bulk::Decompressor<'static>>> =
        const { RefCell::new(None) };
}

/// Decompresses to at most `most` bytes.
pub(super) fn decompress(bytes: &[u8], most: usize) -> Option<Vec<u8>> {
    DECOMPRESSOR.with_borrow_mut(|kept| {
        let mut decompressor = match kept.take() {
            Some(decompressor) => decompressor,
            None => new_decompressor()?,
        };
        let raw = decompressor.decompress(bytes, most).ok()?;
        // One that has met a damaged frame is not used again.
        *kept = Some(decompressor);
        Some(raw)
    })
}

fn new_decompressor() -> Option<zstd::bulk::Decompressor<'static>> {
    let mut decompressor = zstd::bulk::Decompressor::new().ok()?;
    decompressor.window_log_max(WINDOW_LOG_MAX).ok()?;
    Some(decompressor)
}
