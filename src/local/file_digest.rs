//! The digest of a whole open file.
//!
//! Owns how it is read: large files by several threads, because a program waits for its `close()`
//! meanwhile. Must never return a digest of fewer bytes than the file had.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt as _;
use std::sync::LazyLock;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

use crate::digest::{Digest, Hasher, PIECE_BYTES, PieceDigest};
use crate::task;

/// Bytes read at a time by a single thread.
const HASH_CHUNK_BYTES: usize = 256 << 10;
/// The same for a small file.
const HASH_CHUNK_BYTES_MIN: usize = 4 << 10;
/// Files from this size on are digested by several threads. An idle processor must wake for each, so a
/// `close()` of 4 MiB took longer with them, and of 8 MiB as long (docs/performance.md).
const TOGETHER_BYTES_MIN: u64 = 16 << 20;
/// The most threads that help with one file.
const HELPERS_MAX: usize = 7;

/// The threads of this process that help now. Together they are fewer than the processors.
static HELPING: AtomicUsize = AtomicUsize::new(0);

/// Digests the whole content of an open file, whatever its offset. Reads to the end even if that is
/// not at `expected` bytes, which only determines how it is read.
///
/// # Errors
///
/// When the file cannot be read.
pub fn hash_file(file: &File, expected: u64) -> io::Result<Digest> {
    if expected >= TOGETHER_BYTES_MIN {
        let helpers = Helpers::take();
        if helpers.0 > 0
            && let Some(digest) = hash_together(file, expected, helpers.0)?
        {
            return Ok(digest);
        }
    }
    hash_alone(file, expected)
}

fn hash_alone(file: &File, expected: u64) -> io::Result<Digest> {
    let mut hasher = Hasher::new();
    let expected = usize::try_from(expected).unwrap_or(usize::MAX);
    let mut buffer = vec![0; expected.clamp(HASH_CHUNK_BYTES_MIN, HASH_CHUNK_BYTES)];
    let mut offset = 0;
    loop {
        match read_at(file, &mut buffer, offset)? {
            0 => return Ok(hasher.finish()),
            n => {
                hasher.update(&buffer[..n]);
                offset += n as u64;
            }
        }
    }
}

/// Digests a file of `size` bytes with some more threads; `None` if it has another size.
fn hash_together(file: &File, size: u64, helpers: usize) -> io::Result<Option<Digest>> {
    let reading = Reading { file, size, next: AtomicU64::new(0), over: AtomicBool::new(false) };
    let parts = task::together("hearthfs-digest", helpers, || reading.pieces());
    let mut pieces = Vec::new();
    for part in parts {
        pieces.extend(part?);
    }
    pieces.sort_unstable_by_key(|(number, _)| *number);
    let pieces: Vec<PieceDigest> = pieces.into_iter().map(|(_, piece)| piece).collect();
    let is_longer = read_at(file, &mut [0], size)? > 0;
    Ok(Digest::of_pieces(size, &pieces).filter(|_| !is_longer))
}

/// A file that several threads read.
struct Reading<'a> {
    file: &'a File,
    size: u64,
    /// The next piece that no thread has taken.
    next: AtomicU64,
    /// The file is shorter or cannot be read, so the rest is of no use.
    over: AtomicBool,
}

impl Reading<'_> {
    /// Digests pieces until there are no more.
    fn pieces(&self) -> io::Result<Vec<(u64, PieceDigest)>> {
        let mut buffer = vec![0; PIECE_BYTES];
        let mut pieces = Vec::new();
        while !self.over.load(Ordering::Relaxed) {
            let number = self.next.fetch_add(1, Ordering::Relaxed);
            let offset = number * PIECE_BYTES as u64;
            if offset >= self.size {
                break;
            }
            let length = (self.size - offset).min(PIECE_BYTES as u64) as usize;
            match read_whole(self.file, &mut buffer[..length], offset) {
                Ok(true) => pieces.push((number, PieceDigest::of(number, &buffer[..length]))),
                Ok(false) => self.over.store(true, Ordering::Relaxed),
                Err(error) => {
                    self.over.store(true, Ordering::Relaxed);
                    return Err(error);
                }
            }
        }
        Ok(pieces)
    }
}

/// Fills a buffer from a file; false if the file ends before.
fn read_whole(file: &File, mut buffer: &mut [u8], mut offset: u64) -> io::Result<bool> {
    while !buffer.is_empty() {
        match read_at(file, buffer, offset)? {
            0 => return Ok(false),
            n => {
                buffer = &mut buffer[n..];
                offset += n as u64;
            }
        }
    }
    Ok(true)
}

fn read_at(file: &File, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
    loop {
        match file.read_at(buffer, offset) {
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            done => return done,
        }
    }
}

/// A number of threads that may help, counted until it is dropped.
struct Helpers(usize);

impl Helpers {
    /// Takes as many as there are, up to the most for one file.
    fn take() -> Self {
        static ALL: LazyLock<usize> =
            LazyLock::new(|| std::thread::available_parallelism().map_or(1, usize::from) - 1);
        let all = *ALL;
        let mut taken = 0;
        let take = |helping: usize| {
            taken = all.saturating_sub(helping).min(HELPERS_MAX);
            (taken > 0).then_some(helping + taken)
        };
        match HELPING.fetch_update(Ordering::Relaxed, Ordering::Relaxed, take) {
            Ok(_) => Self(taken),
            Err(_) => Self(0),
        }
    }
}

impl Drop for Helpers {
    fn drop(&mut self) {
        HELPING.fetch_sub(self.0, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use super::*;

    fn file(bytes: &[u8]) -> File {
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(bytes).unwrap();
        file
    }

    #[test]
    fn threads_that_share_a_file_digest_all_of_it() {
        let all: Vec<u8> = (0..3_u32 << 20).map(|n| (n.wrapping_mul(7919) >> 5) as u8).collect();
        for size in [2 << 20, (2 << 20) + 1, (3 << 20) - 1, 3 << 20] {
            let (file, right) = (file(&all[..size]), Digest::of(&all[..size]));
            for helpers in 0..5 {
                assert_eq!(hash_together(&file, size as u64, helpers).unwrap(), Some(right));
            }
        }
    }

    /// The size that the caller expects may be an old one.
    #[test]
    fn a_file_of_another_size_is_digested_as_it_is() {
        let least = TOGETHER_BYTES_MIN;
        let content = vec![3; least as usize + 5000];
        let (file, right) = (file(&content), Digest::of(&content));
        let size = content.len() as u64;
        for expected in [0, 5000, least, size - 1, size, size + 1, size + (4 << 20)] {
            if expected >= least {
                let together = (expected == size).then_some(right);
                assert_eq!(hash_together(&file, expected, 2).unwrap(), together, "{expected}");
            }
            assert_eq!(hash_file(&file, expected).unwrap(), right, "{expected}");
        }
    }

    #[test]
    fn what_cannot_be_read_is_an_error() {
        let path = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(path.path(), vec![1; 1 << 20]).unwrap();
        let written_only = File::options().write(true).open(path.path()).unwrap();
        for expected in [1 << 20, TOGETHER_BYTES_MIN] {
            assert!(hash_together(&written_only, expected, 2).is_err());
            assert!(hash_file(&written_only, expected).is_err());
        }
    }
}
