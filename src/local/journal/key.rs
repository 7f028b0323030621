//! The key of the journal: what the sums of its records depend on.
//!
//! Owns `key`: the same random bytes and their sum, in two slots. Must never replace a key of which a slot is
//! whole: without it, no record of the journal can be read.

use std::fmt;
use std::fs;
use std::io;
use std::path::Path;

use crate::local::dir::write_atomic;
use crate::task;

const SLOT_BYTES: usize = blake3::KEY_LEN + 16;
/// Slots lie in different blocks, so that one bad block does not cost the key.
const SLOT_STRIDE: usize = 4096;

/// What the sums of a segment's records depend on.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum SumKey {
    /// Random bytes, which no program knows.
    Secret([u8; blake3::KEY_LEN]),
    /// Nothing: a segment of version 1.
    Public,
}

impl SumKey {
    /// Returns a hasher for a sum.
    pub(super) fn hasher(&self) -> blake3::Hasher {
        match self {
            Self::Secret(bytes) => blake3::Hasher::new_keyed(bytes),
            Self::Public => blake3::Hasher::new(),
        }
    }
}

impl fmt::Debug for SumKey {
    /// Shows no secret.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Secret(_) => "Secret",
            Self::Public => "Public",
        })
    }
}

/// A key, as its file holds it.
#[derive(Debug)]
pub(super) struct SumKeyFile {
    secret: [u8; blake3::KEY_LEN],
    /// Whether both slots hold it.
    is_whole: bool,
}

impl SumKeyFile {
    /// Reads the file in the folder of the journal; makes a key if no slot holds one. Changes nothing on
    /// the disk.
    pub(super) fn read(dir: &Path) -> io::Result<Self> {
        let bytes = match fs::read(dir.join("key")) {
            Err(e) if e.kind() == io::ErrorKind::NotFound => Vec::new(),
            read => read?,
        };
        let slots = [0, SLOT_STRIDE].map(|at| read_slot(bytes.get(at..at + SLOT_BYTES)?));
        let secret = slots.into_iter().flatten().next().unwrap_or_else(random);
        Ok(Self { secret, is_whole: slots == [Some(secret); 2] })
    }

    /// Makes sure that the file holds the key, also after a power loss. Must be called before the first record
    /// is appended.
    pub(super) fn keep(&self, dir: &Path) -> io::Result<()> {
        if self.is_whole {
            return Ok(());
        }
        let slot = slot(&self.secret);
        let mut bytes = vec![0; SLOT_STRIDE];
        bytes[..SLOT_BYTES].copy_from_slice(&slot);
        bytes.extend_from_slice(&slot);
        write_atomic(&dir.join("key"), &bytes)
    }

    pub(super) fn key(&self) -> SumKey {
        SumKey::Secret(self.secret)
    }
}

fn random() -> [u8; blake3::KEY_LEN] {
    let mut key = [0; blake3::KEY_LEN];
    for part in key.chunks_exact_mut(8) {
        part.copy_from_slice(&task::random_u64().to_le_bytes());
    }
    key
}

fn slot(secret: &[u8; blake3::KEY_LEN]) -> [u8; SLOT_BYTES] {
    let mut bytes = [0; SLOT_BYTES];
    bytes[..blake3::KEY_LEN].copy_from_slice(secret);
    bytes[blake3::KEY_LEN..].copy_from_slice(&blake3::hash(secret).as_bytes()[..16]);
    bytes
}

fn read_slot(bytes: &[u8]) -> Option<[u8; blake3::KEY_LEN]> {
    let secret = bytes.get(..blake3::KEY_LEN)?.try_into().ok()?;
    (slot(&secret) == bytes).then_some(secret)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_damaged_block_does_not_cost_the_key() {
        let dir = tempfile::tempdir().unwrap();
        let first = SumKeyFile::read(dir.path()).unwrap();
        assert!(!dir.path().join("key").exists(), "reading changes nothing");
        first.keep(dir.path()).unwrap();
        let path = dir.path().join("key");
        let good = fs::read(&path).unwrap();
        for block in [0..SLOT_STRIDE, SLOT_STRIDE..good.len()] {
            let mut bytes = good.clone();
            bytes[block].fill(0);
            fs::write(&path, bytes).unwrap();
            let again = SumKeyFile::read(dir.path()).unwrap();
            assert_eq!(again.key(), first.key());
            again.keep(dir.path()).unwrap();
            assert_eq!(fs::read(&path).unwrap(), good, "both slots are whole again");
        }
        fs::write(&path, [0; 10]).unwrap();
        assert_ne!(SumKeyFile::read(dir.path()).unwrap().key(), first.key());
    }
}
