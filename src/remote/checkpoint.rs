//! Checkpoints as bytes: a folded namespace, so that a new node need not read the whole log.
//!
//! Owns the format of a checkpoint:
//!
//! ```text
//! head   "HFCKPT\r\n" | version u16 | sum 16
//! frame  section u8 | raw bytes u32 | bytes u32 | sum 16 | zstd(items)
//! ...
//! ```
//!
//! Numbers are little-endian. The sum of the head is BLAKE3 over what is before it. The sum of a
//! frame is BLAKE3 over the previous sum, the nine bytes before its own, and the compressed items.
//! So each frame covers all before it, and the last one, which counts the items, covers the whole.
//! Every later version keeps the head as it is. Writing and reading hold only one frame in memory,
//! and do not know where the bytes come from or go. Must never take more memory than a frame's
//! limit, and never report a checkpoint as whole before its end was read.

mod items;
mod read;
mod transfer;
mod wire;
mod write;

pub use read::CheckpointReader;
pub use write::CheckpointWriter;

use crate::digest::Digest;
use crate::error::{Error, Kind, Result};
use crate::name::TreePath;
use crate::namespace::{Attrs, Location, Register};
use crate::stamp::{NodeId, Stamp};

/// The largest encoded checkpoint.
pub const CHECKPOINT_BYTES_MAX: u64 = 4 << 30;
/// The most that the frames of one checkpoint hold together before compression.
pub const CHECKPOINT_RAW_BYTES_MAX: u64 = 8 << 30;
/// The most registers, commits and locations, counted together.
pub const CHECKPOINT_ITEMS_MAX: u64 = 20_000_000;

/// A frame is closed as soon as its items have this many bytes.
const FRAME_BYTES: usize = 512 << 10;
/// The most bytes of items in one frame: the last item may be large.
const FRAME_BYTES_MAX: usize = 1 << 20;

const MAGIC: &[u8; 8] = b"HFCKPT\r\n";
const VERSION: u16 = 1;
const SUM_BYTES: usize = 16;
const HEAD_BYTES: usize = MAGIC.len() + 2 + SUM_BYTES;
/// Section, raw bytes, bytes; the sum follows.
const FRAME_HEAD_BYTES: usize = 1 + 4 + 4;

/// What the frames of a checkpoint hold, in the order in which they stand.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
enum CheckpointSection {
    Head = 0,
    Commits = 1,
    Chains = 2,
    Registers = 3,
    Early = 4,
    Locations = 5,
    End = 6,
}

impl CheckpointSection {
    fn of(byte: u8) -> Option<Self> {
        [
            Self::Head,
            Self::Commits,
            Self::Chains,
            Self::Registers,
            Self::Early,
            Self::Locations,
            Self::End,
        ]
        .into_iter()
        .find(|section| *section as u8 == byte)
    }
}

/// The description at the start of a checkpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CheckpointHead {
    /// When it was made and by which node; also its name.
    pub stamp: Stamp,
    /// The age at which entries expire, in milliseconds, as its writer applied it; `None` for never.
    pub age_ms: Option<u64>,
}

/// How far the commits of one incarnation of a node were folded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CheckpointChain {
    /// The node.
    pub node: NodeId,
    /// The random number of the incarnation.
    pub incarnation: u64,
    /// The next sequence number.
    pub next: u64,
    /// When the last commit of the incarnation was made, in milliseconds.
    pub ms: u64,
}

/// Attributes whose content was not there yet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CheckpointEarly {
    /// The path.
    pub path: TreePath,
    /// The stamp of the content that they belong to.
    pub of: Stamp,
    /// Their own stamp.
    pub stamp: Stamp,
    /// The attributes.
    pub attrs: Attrs,
}

/// One thing that a checkpoint holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CheckpointItem {
    /// A commit that was folded into it. In ascending order, before everything else.
    Commit(Stamp),
    /// How far the commits of an incarnation were folded.
    Chain(CheckpointChain),
    /// The register of a path, with the location of its content if known. In ascending order of
    /// paths. If paths share a content, each carries the location.
    Register(TreePath, Register, Option<Location>),
    /// Attributes that wait for their content.
    Early(CheckpointEarly),
    /// The place of a content that no register carries.
    Location(Digest, Location),
}

/// How much a checkpoint holds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CheckpointCounts {
    /// Commits that were folded into it.
    pub commits: u64,
    /// Incarnations of nodes.
    pub chains: u64,
    /// Paths, tombstones included.
    pub registers: u64,
    /// Attributes that wait for their content.
    pub early: u64,
    /// Places of contents that no register carries.
    pub locations: u64,
}

impl CheckpointCounts {
    fn of(&mut self, section: CheckpointSection) -> Option<&mut u64> {
        match section {
            CheckpointSection::Commits => Some(&mut self.commits),
            CheckpointSection::Chains => Some(&mut self.chains),
            CheckpointSection::Registers => Some(&mut self.registers),
            CheckpointSection::Early => Some(&mut self.early),
            CheckpointSection::Locations => Some(&mut self.locations),
            CheckpointSection::Head | CheckpointSection::End => None,
        }
    }

    fn total(&self) -> u64 {
        self.commits + self.chains + self.registers + self.early + self.locations
    }
}

/// The limits of what is accepted; tests use smaller ones.
#[derive(Clone, Copy, Debug)]
struct CheckpointLimits {
    items: u64,
    raw_bytes: u64,
}

const LIMITS: CheckpointLimits =
    CheckpointLimits { items: CHECKPOINT_ITEMS_MAX, raw_bytes: CHECKPOINT_RAW_BYTES_MAX };

impl CheckpointLimits {
    fn check(&self, items: u64, raw_bytes: u64) -> Result<()> {
        for (what, count, most) in
            [("items", items, self.items), ("bytes", raw_bytes, self.raw_bytes)]
        {
            if count > most {
                let op = format!("checkpoint holds more than the {most} {what} that are the most");
                return Err(Error::new(Kind::Invalid, op));
            }
        }
        Ok(())
    }
}

/// Ties a frame to everything before it.
fn frame_sum(before: &[u8; SUM_BYTES], head: &[u8], items: &[u8]) -> [u8; SUM_BYTES] {
    let mut hasher = blake3::Hasher::new();
    hasher.update(before).update(head).update(items);
    short(&hasher)
}

fn head_sum(head: &[u8]) -> [u8; SUM_BYTES] {
    short(blake3::Hasher::new().update(head))
}

fn short(hasher: &blake3::Hasher) -> [u8; SUM_BYTES] {
    let sum = hasher.finalize();
    sum.as_bytes()[..SUM_BYTES].try_into().expect("a sum has 32 bytes")
}

#[cfg(test)]
mod tests;
