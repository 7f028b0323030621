//! Bytes of published versions that are kept in memory until they are a blob.
//!
//! Owns the buffers between two uses. Allocating and clearing this much memory again takes longer
//! than reading a file that was just written. Must never keep more buffers than its limit.

use std::fs::File;
use std::io;
use std::ops::Deref;
use std::os::unix::fs::FileExt;
use std::sync::Arc;

use parking_lot::Mutex;

/// The bytes of a published file up to this size are kept in case the writer goes on through a
/// duplicated descriptor.
pub(super) const KEPT_BYTES_MAX: u64 = 1024 * 1024;
/// The most buffers that wait for the next file: as many as there are threads that publish at once.
const SPARE_MAX: usize = 4;

/// Buffers that no file needs now. Clones share them.
#[derive(Clone, Debug, Default)]
pub(super) struct Spare(Arc<Mutex<Vec<Vec<u8>>>>);

/// The first bytes of a file, as they were when they were read.
#[derive(Debug)]
pub(super) struct Kept {
    /// May be longer than the kept bytes.
    buffer: Vec<u8>,
    size: usize,
    spare: Spare,
}

impl Spare {
    /// Reads the first `size` bytes of a file, or fewer if the file ends earlier.
    pub(super) fn read(&self, file: &File, size: usize) -> io::Result<Kept> {
        let mut buffer = self.0.lock().pop().unwrap_or_default();
        if buffer.len() < size {
            buffer.reserve_exact(size - buffer.len());
            buffer.resize(size, 0);
        }
        let mut kept = Kept { buffer, size: 0, spare: self.clone() };
        while kept.size < size {
            match file.read_at(&mut kept.buffer[kept.size..size], kept.size as u64) {
                Ok(0) => break,
                Ok(count) => kept.size += count,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(kept)
    }
}

impl Deref for Kept {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.buffer[..self.size]
    }
}

impl Drop for Kept {
    fn drop(&mut self) {
        let mut spare = self.spare.0.lock();
        if spare.len() < SPARE_MAX {
            spare.push(std::mem::take(&mut self.buffer));
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    #[test]
    fn a_buffer_that_held_more_shows_only_what_was_read() {
        let spare = Spare::default();
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(&[7; 5000]).unwrap();
        let first = spare.read(&file, 5000).unwrap();
        assert_eq!(first[..], [7; 5000]);
        drop(first);
        file.set_len(0).unwrap();
        file.write_all_at(b"short", 0).unwrap();
        let second = spare.read(&file, 4000).unwrap();
        assert_eq!(&second[..], b"short", "the file is shorter");
        assert_eq!(second.buffer.len(), 5000, "the first buffer is reused");
        assert_eq!(spare.read(&file, 2).unwrap()[..], *b"sh");
    }

    #[test]
    fn buffers_are_bounded() {
        let spare = Spare::default();
        let file = tempfile::tempfile().unwrap();
        file.set_len(KEPT_BYTES_MAX).unwrap();
        let read = |_| spare.read(&file, KEPT_BYTES_MAX as usize).unwrap();
        let kept: Vec<Kept> = (0..3 * SPARE_MAX).map(read).collect();
        assert!(spare.0.lock().is_empty());
        drop(kept);
        let left = spare.0.lock();
        assert_eq!(left.len(), SPARE_MAX);
        assert!(left.iter().all(|buffer| buffer.capacity() as u64 == KEPT_BYTES_MAX));
    }
}
