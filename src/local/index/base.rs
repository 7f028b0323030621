//! The base: most of the index in one flat file, in order of the keys, made to be read from end to end.
//!
//! ```text
//! head    "hearthB\n" | version u32 | number u64 | era u64 | sum 16
//! block   raw bytes u32 | packed bytes u32 | sum 16 | zstd of facts, as in a chunk
//! ...
//! end     0 u32 | 8 u32 | sum 16 | number of facts u64
//! ```
//!
//! Numbers are little-endian. Each sum is BLAKE3 over the previous sum and its own bytes, so it
//! covers everything before it. A base is written under another name, and renamed when it is on the
//! disk. Must never be changed once it has its name.

use std::fs::{self, File};
use std::io::{self, BufReader, BufWriter, Read, Write};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use super::IndexTrouble;
use super::chunk::{LEVEL, append};
use crate::local::dir::sync_dir;

const MAGIC: &[u8; 8] = b"hearthB\n";
const VERSION: u32 = 1;
const SUM_BYTES: usize = 16;
/// Approximate raw bytes of facts in one block; a single fact may be larger.
const BLOCK_BYTES: usize = 256 << 10;
/// The most bytes that a block may claim to have.
const BLOCK_BYTES_MAX: usize = 64 << 20;
const NAME: &str = "base-";
const UNFINISHED: &str = "base.new";

type Sum = [u8; SUM_BYTES];

fn sum(before: &Sum, parts: &[&[u8]]) -> Sum {
    let mut hasher = blake3::Hasher::new();
    hasher.update(before);
    for part in parts {
        hasher.update(part);
    }
    *hasher.finalize().as_bytes().first_chunk().expect("16 of 32 bytes")
}

fn head(number: u64, era: u64) -> (Vec<u8>, Sum) {
    let (number, era) = (number.to_le_bytes(), era.to_le_bytes());
    let mut head = [MAGIC.as_slice(), &VERSION.to_le_bytes(), &number, &era].concat();
    let sum = sum(&[0; SUM_BYTES], &[&head]);
    head.extend_from_slice(&sum);
    (head, sum)
}

#[expect(clippy::needless_pass_by_value, reason = "the signature is what `map_err` passes")]
fn text(error: io::Error) -> IndexTrouble {
    format!("its base: {error}")
}

/// A base that is in place.
#[derive(Debug)]
pub(super) struct Base {
    path: PathBuf,
    ino: u64,
    /// Chunks from this number on override the base; it contains those before.
    pub(super) number: u64,
    /// The number of its facts; 0 until it was read once.
    pub(super) facts: u64,
}

impl Base {
    /// Finds the base with this number.
    pub(super) fn open(dir: &Path, number: u64) -> Result<Self, IndexTrouble> {
        let path = dir.join(format!("{NAME}{number:016x}"));
        let ino = fs::metadata(&path).map_err(text)?.ino();
        Ok(Self { path, ino, number, facts: 0 })
    }

    /// Reports whether its file is still there.
    pub(super) fn is_there(&self) -> bool {
        fs::metadata(&self.path).is_ok_and(|found| found.ino() == self.ino)
    }

    /// Starts reading it.
    pub(super) fn read(&self) -> Result<BaseReader, IndexTrouble> {
        BaseReader::open(&self.path, self.number)
    }
}

/// Removes every base file except that of `keep`.
pub(super) fn sweep(dir: &Path, keep: Option<&Base>) -> Result<(), IndexTrouble> {
    for entry in fs::read_dir(dir).map_err(text)? {
        let entry = entry.map_err(text)?;
        let name = entry.file_name();
        let is_base =
            name.to_str().is_some_and(|name| name.starts_with(NAME) || name == UNFINISHED);
        if is_base && keep.is_none_or(|base| entry.path() != base.path) {
            fs::remove_file(entry.path()).map_err(text)?;
        }
    }
    Ok(())
}

/// Writes a base.
pub(super) struct BaseWriter {
    dir: PathBuf,
    file: BufWriter<File>,
    number: u64,
    sum: Sum,
    raw: Vec<u8>,
    last: Vec<u8>,
    facts: u64,
}

impl BaseWriter {
    /// Starts a base for the chunks before `number`.
    pub(super) fn create(dir: &Path, number: u64, era: u64) -> Result<Self, IndexTrouble> {
        let file = File::create(dir.join(UNFINISHED)).map_err(text)?;
        let mut file = BufWriter::with_capacity(BLOCK_BYTES, file);
        let (head, sum) = head(number, era);
        file.write_all(&head).map_err(text)?;
        let (raw, last) = (Vec::with_capacity(BLOCK_BYTES), Vec::new());
        Ok(Self { dir: dir.to_owned(), file, number, sum, raw, last, facts: 0 })
    }

    /// Adds a fact; keys must come in order.
    pub(super) fn add(&mut self, key: &[u8], value: &[u8]) -> Result<(), IndexTrouble> {
        if self.facts > 0 && *self.last >= *key {
            return Err("the facts for its base are not in order".into());
        }
        self.last.clear();
        self.last.extend_from_slice(key);
        self.facts += 1;
        append(&mut self.raw, key, Some(value));
        if self.raw.len() >= BLOCK_BYTES { self.end_block() } else { Ok(()) }
    }

    fn end_block(&mut self) -> Result<(), IndexTrouble> {
        let packed = zstd::bulk::compress(&self.raw, LEVEL).map_err(text)?;
        let raw = self.raw.len() as u32;
        self.raw.clear();
        self.block(raw, &packed)
    }

    fn block(&mut self, raw: u32, bytes: &[u8]) -> Result<(), IndexTrouble> {
        let lengths = [raw.to_le_bytes(), (bytes.len() as u32).to_le_bytes()].concat();
        self.sum = sum(&self.sum, &[&lengths, bytes]);
        for part in [lengths.as_slice(), &self.sum, bytes] {
            self.file.write_all(part).map_err(text)?;
        }
        Ok(())
    }

    /// Ends the base, makes it durable and gives it its name.
    pub(super) fn finish(mut self) -> Result<Base, IndexTrouble> {
        if !self.raw.is_empty() {
            self.end_block()?;
        }
        self.block(0, &self.facts.to_le_bytes())?;
        self.file.flush().and_then(|()| self.file.get_ref().sync_all()).map_err(text)?;
        let name = self.dir.join(format!("{NAME}{:016x}", self.number));
        fs::rename(self.dir.join(UNFINISHED), &name).map_err(text)?;
        sync_dir(&self.dir).map_err(text)?;
        Ok(Base { facts: self.facts, ..Base::open(&self.dir, self.number)? })
    }
}

/// Reads a base.
pub(super) struct BaseReader {
    file: BufReader<File>,
    sum: Sum,
    /// The era of its seals.
    pub(super) era: u64,
    /// The number of facts, once the end was read.
    pub(super) facts: Option<u64>,
}

impl BaseReader {
    fn open(path: &Path, number: u64) -> Result<Self, IndexTrouble> {
        let mut file = BufReader::with_capacity(BLOCK_BYTES, File::open(path).map_err(text)?);
        let mut found = [0; 28 + SUM_BYTES];
        file.read_exact(&mut found).map_err(text)?;
        let era = u64::from_le_bytes(*found[20..].first_chunk().expect("a head has more bytes"));
        let (expected, sum) = head(number, era);
        if *expected != found {
            return Err("its base is damaged or of another format".into());
        }
        Ok(Self { file, sum, era, facts: None })
    }

    /// Returns the facts of the next block; `None` at the verified end.
    pub(super) fn next(&mut self) -> Result<Option<Vec<u8>>, IndexTrouble> {
        if self.facts.is_some() {
            return Ok(None);
        }
        let mut lengths = [0; 8];
        self.file.read_exact(&mut lengths).map_err(text)?;
        let mut found = [0; SUM_BYTES];
        self.file.read_exact(&mut found).map_err(text)?;
        let [raw, packed] = [0, 4].map(|at| {
            u32::from_le_bytes(*lengths[at..].first_chunk().expect("four bytes")) as usize
        });
        if raw.max(packed) > BLOCK_BYTES_MAX {
            return Err("a block of its base is too large".into());
        }
        let mut bytes = vec![0; packed];
        self.file.read_exact(&mut bytes).map_err(text)?;
        self.sum = sum(&self.sum, &[&lengths, &bytes]);
        if self.sum != found {
            return Err("its base is damaged".into());
        }
        if raw > 0 {
            return zstd::bulk::decompress(&bytes, raw).map(Some).map_err(text);
        }
        let facts = bytes.try_into().map_err(|_| "the end of its base is unreadable")?;
        self.facts = Some(u64::from_le_bytes(facts));
        Ok(None)
    }
}
