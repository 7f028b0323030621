//! The file that records up to which record everything is uploaded.
//!
//! Two slots are written in turn, each with its sum. A torn write spoils one of them, and the other is
//! only a little older. Losing both uploads records again that the store already has, which is harmless.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt as _, OpenOptionsExt as _};
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};

const SLOT_BYTES: usize = 24;
/// Slots lie in different blocks, so that no single disk write touches both.
const SLOT_STRIDE: u64 = 4096;

#[derive(Debug)]
pub(super) struct AckFile {
    file: File,
    value: AtomicU64,
    /// How often the file was written; selects the slot of the next write.
    turn: AtomicU64,
}

impl AckFile {
    /// Opens the file in the folder of the journal, and makes it if it does not exist.
    pub(super) fn open(dir: &Path) -> io::Result<Self> {
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .mode(0o600)
            .open(dir.join("ack"))?;
        let slots = [read_slot(&file, 0)?, read_slot(&file, 1)?];
        // The next write goes to the older slot.
        let turn = u64::from(slots[0] >= slots[1]);
        let value = slots[0].max(slots[1]).unwrap_or(0);
        Ok(Self { file, value: AtomicU64::new(value), turn: AtomicU64::new(turn) })
    }

    pub(super) fn value(&self) -> u64 {
        self.value.load(Ordering::Relaxed)
    }

    pub(super) fn store(&self, value: u64) -> io::Result<()> {
        let turn = self.turn.fetch_add(1, Ordering::Relaxed);
        self.file.write_all_at(&slot(value), turn % 2 * SLOT_STRIDE)?;
        self.value.store(value, Ordering::Relaxed);
        Ok(())
    }
}

fn slot(value: u64) -> [u8; SLOT_BYTES] {
    let mut bytes = [0; SLOT_BYTES];
    bytes[..8].copy_from_slice(&value.to_le_bytes());
    let sum = blake3::hash(&bytes[..8]);
    bytes[8..].copy_from_slice(&sum.as_bytes()[..16]);
    bytes
}

fn read_slot(file: &File, index: u64) -> io::Result<Option<u64>> {
    let mut bytes = [0; SLOT_BYTES];
    match file.read_exact_at(&mut bytes, index * SLOT_STRIDE) {
        Ok(()) => {}
        Err(e) if e.kind() == io::ErrorKind::UnexpectedEof => return Ok(None),
        Err(e) => return Err(e),
    }
    let value = u64::from_le_bytes(bytes[..8].try_into().expect("eight bytes"));
    Ok((slot(value) == bytes).then_some(value))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_torn_acknowledgement_falls_back_to_the_one_before() {
        let dir = tempfile::tempdir().unwrap();
        let ack = AckFile::open(dir.path()).unwrap();
        assert_eq!(ack.value(), 0);
        for value in [3, 8, 11] {
            ack.store(value).unwrap();
            assert_eq!(AckFile::open(dir.path()).unwrap().value(), value);
        }
        let at = (0..2).find(|i| read_slot(&ack.file, *i).unwrap() == Some(11)).unwrap();
        ack.file.write_all_at(b"torn", at * SLOT_STRIDE).unwrap();
        let again = AckFile::open(dir.path()).unwrap();
        assert_eq!(again.value(), 8);
        again.store(9).unwrap();
        assert_eq!(AckFile::open(dir.path()).unwrap().value(), 9);
    }
}
