//! Writing a checkpoint, item by item.

use std::io::Write;

use super::items::Encoder;
use super::{
    CHECKPOINT_BYTES_MAX, CheckpointChain, CheckpointCounts, CheckpointEarly, CheckpointHead,
    CheckpointLimits, CheckpointSection, FRAME_BYTES, FRAME_BYTES_MAX, FRAME_HEAD_BYTES, LIMITS,
    MAGIC, SUM_BYTES, VERSION, frame_sum, head_sum,
};
use crate::digest::Digest;
use crate::error::{Error, Kind, Result};
use crate::name::TreePath;
use crate::namespace::{Location, Register};
use crate::stamp::Stamp;

/// Digests do not compress, and level 1 already compresses the rest well. Higher levels cost time
/// and save little.
const LEVEL: i32 = 1;

/// Writes a checkpoint to any writer of bytes, in pieces of less than a mebibyte.
///
/// Items must come in the order of [`CheckpointItem`](super::CheckpointItem)'s variants, commits
/// and registers each in ascending order. The bytes are a checkpoint only after
/// [`CheckpointWriter::finish`].
pub struct CheckpointWriter<W: Write> {
    to: W,
    section: CheckpointSection,
    items: Encoder,
    counts: CheckpointCounts,
    sum: [u8; SUM_BYTES],
    bytes: u64,
    raw_bytes: u64,
    last_commit: Option<Stamp>,
    /// The path of the last register.
    last_path: Vec<u8>,
    compressor: zstd::bulk::Compressor<'static>,
    packed: Vec<u8>,
    limits: CheckpointLimits,
}

impl<W: Write> std::fmt::Debug for CheckpointWriter<W> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("CheckpointWriter").field("counts", &self.counts).finish_non_exhaustive()
    }
}

impl<W: Write> CheckpointWriter<W> {
    /// Begins a checkpoint.
    ///
    /// # Errors
    ///
    /// When the head cannot be written.
    pub fn new(to: W, head: &CheckpointHead) -> Result<Self> {
        Self::with_limits(to, head, LIMITS)
    }

    pub(super) fn with_limits(
        mut to: W,
        head: &CheckpointHead,
        limits: CheckpointLimits,
    ) -> Result<Self> {
        let mut bytes = MAGIC.to_vec();
        bytes.extend_from_slice(&VERSION.to_le_bytes());
        let sum = head_sum(&bytes);
        bytes.extend_from_slice(&sum);
        to.write_all(&bytes).map_err(|e| Error::io("write a checkpoint", e))?;
        let compressor = zstd::bulk::Compressor::new(LEVEL)
            .map_err(|e| Error::io("start to compress a checkpoint", e))?;
        let mut writer = Self {
            to,
            section: CheckpointSection::Head,
            items: Encoder::new(),
            counts: CheckpointCounts::default(),
            sum,
            bytes: bytes.len() as u64,
            raw_bytes: 0,
            last_commit: None,
            last_path: Vec::new(),
            compressor,
            packed: Vec::new(),
            limits,
        };
        writer.items.stamp(&head.stamp);
        writer.items.out.number(head.age_ms.map_or(0, |age| age.saturating_add(1)));
        Ok(writer)
    }

    /// Adds a commit that was folded.
    ///
    /// # Errors
    ///
    /// `Internal` when it does not come after the last one, `Invalid` above a limit; an error of the disk.
    pub fn commit(&mut self, stamp: &Stamp) -> Result<()> {
        self.enter(CheckpointSection::Commits)?;
        if self.last_commit.replace(*stamp).is_some_and(|last| last >= *stamp) {
            return Err(disordered("commits"));
        }
        self.items.stamp(stamp);
        self.added(true)
    }

    /// Adds how far an incarnation was folded.
    ///
    /// # Errors
    ///
    /// `Internal` when it is out of order, `Invalid` above a limit; an error of the disk.
    pub fn chain(&mut self, chain: &CheckpointChain) -> Result<()> {
        self.enter(CheckpointSection::Chains)?;
        self.items.chain(chain);
        self.added(true)
    }

    /// Adds the register of a path, with the location of its content.
    ///
    /// # Errors
    ///
    /// `Internal` when its path does not come after the last one, `Invalid` above a limit; an error of the disk.
    pub fn register(
        &mut self,
        path: &TreePath,
        register: &Register,
        location: Option<&Location>,
    ) -> Result<()> {
        self.enter(CheckpointSection::Registers)?;
        if self.counts.registers > 0 && self.last_path.as_slice() >= path.as_bytes() {
            return Err(disordered("registers"));
        }
        self.last_path.clear();
        self.last_path.extend_from_slice(path.as_bytes());
        let location = location
            .filter(|_| register.entry.as_ref().is_some_and(|entry| entry.content().is_some()));
        let good = self.items.register(path, register, location);
        self.added(good)
    }

    /// Adds attributes that wait for their content.
    ///
    /// # Errors
    ///
    /// `Internal` when it is out of order, `Invalid` above a limit; an error of the disk.
    pub fn early(&mut self, early: &CheckpointEarly) -> Result<()> {
        self.enter(CheckpointSection::Early)?;
        let good = self.items.early(early);
        self.added(good)
    }

    /// Adds the location of a content that no register carries.
    ///
    /// # Errors
    ///
    /// `Internal` when it is out of order, `Invalid` above a limit; an error of the disk.
    pub fn location(&mut self, digest: &Digest, location: &Location) -> Result<()> {
        self.enter(CheckpointSection::Locations)?;
        let good = self.items.content(digest, location);
        self.added(good)
    }

    /// Ends the checkpoint; returns the writer, the counts, and the size in bytes.
    ///
    /// # Errors
    ///
    /// An error of the disk when the last frame cannot be written, `Invalid` above the limit of size.
    pub fn finish(mut self) -> Result<(W, CheckpointCounts, u64)> {
        self.enter(CheckpointSection::End)?;
        let CheckpointCounts { commits, chains, registers, early, locations } = self.counts;
        for count in [commits, chains, registers, early, locations] {
            self.items.out.number(count);
        }
        self.close()?;
        self.to.flush().map_err(|e| Error::io("write a checkpoint", e))?;
        Ok((self.to, self.counts, self.bytes))
    }

    /// Starts a section, or continues it.
    fn enter(&mut self, section: CheckpointSection) -> Result<()> {
        if section == self.section {
            return Ok(());
        }
        if section < self.section {
            return Err(disordered("sections"));
        }
        self.close()?;
        self.section = section;
        Ok(())
    }

    fn added(&mut self, good: bool) -> Result<()> {
        let size = self.items.out.0.len();
        if !good || size > FRAME_BYTES_MAX {
            let op = "checkpoint cannot hold an item that no reader would accept";
            return Err(Error::new(Kind::Internal, op));
        }
        if let Some(count) = self.counts.of(self.section) {
            *count += 1;
        }
        self.limits.check(self.counts.total(), self.raw_bytes + size as u64)?;
        if size >= FRAME_BYTES {
            self.close()?;
        }
        Ok(())
    }

    /// Writes the frame.
    fn close(&mut self) -> Result<()> {
        let items = std::mem::replace(&mut self.items, Encoder::new()).out.0;
        if items.is_empty() {
            return Ok(());
        }
        self.raw_bytes += items.len() as u64;
        self.packed.clear();
        self.packed.reserve(zstd::zstd_safe::compress_bound(items.len()));
        self.compressor
            .compress_to_buffer(&items, &mut self.packed)
            .map_err(|e| Error::io("compress a checkpoint", e))?;
        let mut head = Vec::with_capacity(FRAME_HEAD_BYTES + SUM_BYTES);
        head.push(self.section as u8);
        head.extend_from_slice(&(items.len() as u32).to_le_bytes());
        head.extend_from_slice(&(self.packed.len() as u32).to_le_bytes());
        self.sum = frame_sum(&self.sum, &head, &self.packed);
        head.extend_from_slice(&self.sum);
        self.bytes += (head.len() + self.packed.len()) as u64;
        if self.bytes > CHECKPOINT_BYTES_MAX {
            let op = format!("checkpoint has more than {CHECKPOINT_BYTES_MAX} bytes");
            return Err(Error::new(Kind::Invalid, op));
        }
        self.to
            .write_all(&head)
            .and_then(|()| self.to.write_all(&self.packed))
            .map_err(|e| Error::io("write a checkpoint", e))
    }
}

fn disordered(what: &str) -> Error {
    Error::new(Kind::Internal, format!("checkpoint: {what} came out of order"))
}
