//! The digest of a whole file.
//!
//! Owns how a file is read for it, and how many threads help. Must never trust a size: a file may
//! change while it is read.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt as _;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;

use crate::digest::{Digest, Hasher, Subtree};
use crate::task;

/// Bytes read at a time.
const CHUNK_BYTES: usize = 64 << 10;
/// The same for a small file.
const CHUNK_BYTES_MIN: usize = 4 << 10;
/// Larger files are digested by several threads. Digesting a megabyte takes ten times as long as
/// starting a thread.
const ALONE_BYTES_MAX: u64 = 1 << 20;
/// The most threads that help the caller with one file.
const HELPERS_MAX: usize = 3;

/// Digests the whole content of an open file, whatever its offset. Reads to the end even if that is
/// not at `expected` bytes, which only determines how it is read.
///
/// # Errors
///
/// When the file cannot be read.
pub fn hash_file(file: &File, expected: u64) -> io::Result<Digest> {
    let helpers = helpers();
    if expected > ALONE_BYTES_MAX
        && helpers > 0
        && let Some(digest) = hash_subtrees(file, expected, helpers)?
    {
        return Ok(digest);
    }
    let mut hasher = Hasher::new();
    let expected = usize::try_from(expected).unwrap_or(usize::MAX);
    let mut buffer = vec![0; expected.clamp(CHUNK_BYTES_MIN, CHUNK_BYTES)];
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

/// Digests a file of `size` bytes with the help of other threads. `None` if it has another size.
fn hash_subtrees(file: &File, size: u64, helpers: usize) -> io::Result<Option<Digest>> {
    let count = size.div_ceil(Subtree::BYTES);
    let next = AtomicU64::new(0);
    let done = Mutex::new(Vec::new());
    task::together("digest", helpers, &|| {
        let mut buffer = vec![0; CHUNK_BYTES];
        loop {
            let index = next.fetch_add(1, Ordering::Relaxed);
            if index >= count {
                break;
            }
            let subtree = hash_subtree(file, index, size, &mut buffer);
            if !matches!(subtree, Ok(Some(_))) {
                next.store(count, Ordering::Relaxed);
            }
            done.lock().push((index, subtree));
        }
    });
    let mut done = done.into_inner();
    done.sort_unstable_by_key(|(index, _)| *index);
    let subtrees: Vec<Option<Subtree>> =
        done.into_iter().map(|(_, subtree)| subtree).collect::<io::Result<_>>()?;
    let Some(subtrees) = subtrees.into_iter().collect::<Option<Vec<Subtree>>>() else {
        return Ok(None);
    };
    if read_at(file, &mut [0], size)? > 0 {
        return Ok(None);
    }
    Ok(Some(Subtree::join(&subtrees, size)))
}

/// Digests one part of a file of `size` bytes. `None` if the file ends before.
fn hash_subtree(
    file: &File,
    index: u64,
    size: u64,
    buffer: &mut [u8],
) -> io::Result<Option<Subtree>> {
    let mut hasher = Subtree::begin(index);
    let mut left = index * Subtree::BYTES..size.min((index + 1).saturating_mul(Subtree::BYTES));
    while !left.is_empty() {
        let wanted = (left.end - left.start).min(CHUNK_BYTES as u64) as usize;
        match read_at(file, &mut buffer[..wanted], left.start)? {
            0 => return Ok(None),
            n => {
                hasher.update(&buffer[..n]);
                left.start += n as u64;
            }
        }
    }
    Ok(Some(hasher.finish_subtree()))
}

fn read_at(file: &File, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
    loop {
        match file.read_at(buffer, offset) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            done => return done,
        }
    }
}

/// How many threads help: one less than there are processors. Asked once, because the answer takes
/// longer than to digest a small file.
fn helpers() -> usize {
    static HELPERS: OnceLock<usize> = OnceLock::new();
    *HELPERS.get_or_init(|| {
        let processors = std::thread::available_parallelism().map_or(1, usize::from);
        (processors - 1).min(HELPERS_MAX)
    })
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use super::*;

    fn file_of(bytes: &[u8]) -> File {
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(bytes).unwrap();
        file
    }

    #[test]
    fn whatever_size_is_expected_the_whole_file_is_digested() {
        let max = ALONE_BYTES_MAX;
        let bytes: Vec<u8> = (0..4 * max + 3).map(|at| (at * 31 / 7) as u8).collect();
        for size in [0, 1, max, max + 1, 2 * max, 4 * max + 3] {
            let bytes = &bytes[..size as usize];
            let file = file_of(bytes);
            for expected in [0, size.saturating_sub(1), size, size + 1, 3 * max, 9 * max, u64::MAX]
            {
                let found = hash_file(&file, expected).unwrap();
                assert_eq!(found, Digest::of(bytes), "{size} bytes instead of {expected}");
            }
        }
    }

    #[test]
    fn helpers_find_the_same_digest_and_another_size() {
        let size = 7 * Subtree::BYTES + 11;
        let bytes: Vec<u8> = (0..size).map(|at| (at * 13 / 5) as u8).collect();
        let file = file_of(&bytes);
        for helpers in 0..4 {
            let found = |size| hash_subtrees(&file, size, helpers).unwrap();
            assert_eq!(found(size), Some(Digest::of(&bytes)), "with {helpers}");
            assert_eq!(found(size - 1), None, "it is longer");
            assert_eq!(found(size + 1), None, "it is shorter");
            assert_eq!(found(3 * size), None, "it is much shorter");
        }
    }
}
