//! Reading a checkpoint, item by item.

use std::io::{ErrorKind, Read};

use super::items::Decoder;
use super::wire::In;
use super::{
    CheckpointCounts, CheckpointHead, CheckpointItem, CheckpointLimits, CheckpointSection,
    FRAME_BYTES_MAX, FRAME_HEAD_BYTES, HEAD_BYTES, LIMITS, MAGIC, SUM_BYTES, VERSION, frame_sum,
    head_sum,
};
use crate::error::{Error, Kind, Result};
use crate::remote::frame::WINDOW_LOG_MAX;
use crate::stamp::Stamp;

/// Reads a checkpoint from any reader of bytes.
///
/// After any error the caller must discard everything, including the items that were yielded
/// before. The error is `Corrupt` for a damaged or incomplete checkpoint, `Invalid` for a newer
/// version or one above the limits, and otherwise the error of the reader.
pub struct CheckpointReader<R: Read> {
    from: R,
    head: CheckpointHead,
    section: CheckpointSection,
    /// The items of the frame, and the position of the next one.
    items: Vec<u8>,
    at: usize,
    decoder: Decoder,
    counts: CheckpointCounts,
    sum: [u8; SUM_BYTES],
    raw_bytes: u64,
    last_commit: Option<Stamp>,
    /// The path of the last register.
    last_path: Vec<u8>,
    decompressor: zstd::bulk::Decompressor<'static>,
    packed: Vec<u8>,
    limits: CheckpointLimits,
}

impl<R: Read> std::fmt::Debug for CheckpointReader<R> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("CheckpointReader").field("head", &self.head).finish_non_exhaustive()
    }
}

impl<R: Read> CheckpointReader<R> {
    /// Reads the beginning of a checkpoint. `from` should be buffered.
    ///
    /// # Errors
    ///
    /// `Corrupt` for damage, `Invalid` for a newer format or a checkpoint above the limits.
    pub fn new(from: R) -> Result<Self> {
        Self::with_limits(from, LIMITS)
    }

    pub(super) fn with_limits(mut from: R, limits: CheckpointLimits) -> Result<Self> {
        let mut bytes = [0; HEAD_BYTES];
        read_exact(&mut from, &mut bytes)?;
        let (start, sum) = bytes.split_at(HEAD_BYTES - SUM_BYTES);
        let sum: [u8; SUM_BYTES] = sum.try_into().expect("the sum is the rest of the head");
        if &start[..MAGIC.len()] != MAGIC {
            return Err(damaged("its start is not that of a checkpoint"));
        }
        if head_sum(start) != sum {
            return Err(damaged("the checksum of its head differs"));
        }
        let version = u16::from_le_bytes([start[8], start[9]]);
        if version != VERSION {
            let op =
                format!("checkpoint has the newer format {version}, this version knows {VERSION}");
            return Err(Error::new(Kind::Invalid, op));
        }
        let mut decompressor = zstd::bulk::Decompressor::new()
            .map_err(|e| Error::io("start to decompress a checkpoint", e))?;
        decompressor
            .window_log_max(WINDOW_LOG_MAX)
            .map_err(|e| Error::io("start to decompress a checkpoint", e))?;
        let mut reader = Self {
            from,
            head: CheckpointHead { stamp: Stamp::default(), age_ms: None },
            section: CheckpointSection::Head,
            items: Vec::new(),
            at: 0,
            decoder: Decoder::default(),
            counts: CheckpointCounts::default(),
            sum,
            raw_bytes: 0,
            last_commit: None,
            last_path: Vec::new(),
            decompressor,
            packed: Vec::new(),
            limits,
        };
        if reader.frame()? != CheckpointSection::Head {
            return Err(damaged("it does not say what it is"));
        }
        let mut items = In(&reader.items);
        let head = reader.decoder.name(&mut items).zip(items.number());
        let (stamp, age) = head.filter(|_| items.is_empty()).ok_or_else(unreadable)?;
        reader.head = CheckpointHead { stamp, age_ms: age.checked_sub(1) };
        reader.at = reader.items.len();
        Ok(reader)
    }

    /// Returns the checkpoint's description of itself.
    pub fn head(&self) -> &CheckpointHead {
        &self.head
    }

    /// Returns how much was read so far. After [`CheckpointReader::next`] returned `None`, that is all.
    pub fn counts(&self) -> CheckpointCounts {
        self.counts
    }

    /// Reads the next item. Returns `None` at the end; then all earlier items are known to be whole.
    ///
    /// # Errors
    ///
    /// `Corrupt` for damage, wrong order or a missing end; `Invalid` above the limits.
    #[expect(
        clippy::should_implement_trait,
        reason = "a caller that ignores an error would use an incomplete list"
    )]
    pub fn next(&mut self) -> Result<Option<CheckpointItem>> {
        while self.at == self.items.len() {
            if self.section == CheckpointSection::End {
                return Ok(None);
            }
            let section = self.frame()?;
            if section < self.section || section == CheckpointSection::Head {
                return Err(damaged("its frames are out of order"));
            }
            self.section = section;
            if section == CheckpointSection::End {
                self.end()?;
            }
        }
        let mut items = In(&self.items[self.at..]);
        let item = match self.section {
            CheckpointSection::Commits => self.decoder.name(&mut items).map(CheckpointItem::Commit),
            CheckpointSection::Chains => self.decoder.chain(&mut items).map(CheckpointItem::Chain),
            CheckpointSection::Registers => {
                self.decoder.register(&mut items).map(|(path, register, location)| {
                    CheckpointItem::Register(path, register, location)
                })
            }
            CheckpointSection::Early => self.decoder.early(&mut items).map(CheckpointItem::Early),
            CheckpointSection::Locations => self
                .decoder
                .content(&mut items)
                .map(|(digest, location)| CheckpointItem::Location(digest, location)),
            CheckpointSection::Head | CheckpointSection::End => None,
        };
        self.at = self.items.len() - items.0.len();
        let item = item.ok_or_else(unreadable)?;
        self.note(&item)?;
        Ok(Some(item))
    }

    /// Counts an item and checks the order.
    fn note(&mut self, item: &CheckpointItem) -> Result<()> {
        let ascends = match item {
            CheckpointItem::Commit(stamp) => {
                self.last_commit.replace(*stamp).is_none_or(|last| last < *stamp)
            }
            CheckpointItem::Register(path, ..) => {
                let first = self.counts.registers == 0;
                let ascends = first || self.last_path.as_slice() < path.as_bytes();
                self.last_path.clear();
                self.last_path.extend_from_slice(path.as_bytes());
                ascends
            }
            _ => true,
        };
        if !ascends {
            return Err(damaged("its items are out of order"));
        }
        *self.counts.of(self.section).expect("only sections with items have one") += 1;
        self.limits.check(self.counts.total(), self.raw_bytes)
    }

    /// Reads the next frame.
    fn frame(&mut self) -> Result<CheckpointSection> {
        let mut head = [0; FRAME_HEAD_BYTES + SUM_BYTES];
        read_exact(&mut self.from, &mut head)?;
        let (head, sum) = head.split_at(FRAME_HEAD_BYTES);
        let number = |at: usize| {
            u32::from_le_bytes(head[at..at + 4].try_into().expect("four bytes")) as usize
        };
        let (raw, size) = (number(1), number(5));
        // Checked before allocating: the sum can only be checked afterwards.
        if raw == 0
            || raw > FRAME_BYTES_MAX
            || size > zstd::zstd_safe::compress_bound(FRAME_BYTES_MAX)
        {
            return Err(damaged("a frame has an impossible size"));
        }
        self.packed.resize(size, 0);
        read_exact(&mut self.from, &mut self.packed)?;
        self.sum = frame_sum(&self.sum, head, &self.packed);
        if self.sum != *sum {
            return Err(damaged("the checksum of a frame differs"));
        }
        self.raw_bytes += raw as u64;
        self.limits.check(self.counts.total(), self.raw_bytes)?;
        self.items.clear();
        self.items.reserve(raw);
        let unpacked = self.decompressor.decompress_to_buffer(&self.packed, &mut self.items);
        if unpacked.ok() != Some(raw) {
            return Err(damaged("a frame does not decompress"));
        }
        (self.at, self.decoder) = (0, Decoder::default());
        CheckpointSection::of(head[0]).ok_or_else(unreadable)
    }

    /// Checks the counts, and that nothing follows.
    fn end(&mut self) -> Result<()> {
        let mut items = In(&self.items);
        let mut told = [0; 5];
        for count in &mut told {
            *count = items.number().ok_or_else(unreadable)?;
        }
        let CheckpointCounts { commits, chains, registers, early, locations } = self.counts;
        if !items.is_empty() || told != [commits, chains, registers, early, locations] {
            return Err(damaged("its content differs from its head"));
        }
        self.at = self.items.len();
        let mut one = [0];
        loop {
            match self.from.read(&mut one) {
                Ok(0) => return Ok(()),
                Ok(_) => return Err(damaged("something follows it")),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(Error::io("read a checkpoint", error)),
            }
        }
    }
}

fn damaged(what: &str) -> Error {
    Error::new(Kind::Corrupt, format!("checkpoint is damaged: {what}"))
}

fn unreadable() -> Error {
    damaged("its items cannot be read")
}

fn read_exact(from: &mut impl Read, bytes: &mut [u8]) -> Result<()> {
    from.read_exact(bytes).map_err(|error| match error.kind() {
        ErrorKind::UnexpectedEof => damaged("it ends too early"),
        _ => Error::io("read a checkpoint", error),
    })
}
