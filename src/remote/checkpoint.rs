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
//! Numbers are little-endian. The sum of the head is BLAKE3 over what is before it, that of a frame is
//! BLAKE3 over the sum before it, the nine bytes before its own, and the compressed items. So each frame
//! vouches for all before it, and the last one, which counts what was written, for the whole. Every
//! later version keeps the head as it is. Writing and reading hold one frame in memory, never more, and
//! know nothing of where the bytes come from or go. Must never take more memory than a frame's limit,
//! nor call a checkpoint whole before its end was read.

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
/// The most that the items of one frame may have: the last one may be large.
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

/// What a checkpoint says of itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CheckpointHead {
    /// When it was made and by which node; also its name.
    pub stamp: Stamp,
    /// The age at which entries expire, in milliseconds, as its writer applied it; `None` for never.
    pub age_ms: Option<u64>,
}

/// How far the commits of one run of a node were folded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CheckpointChain {
    /// The node.
    pub node: NodeId,
    /// The random number of its run.
    pub incarnation: u64,
    /// The sequence number that comes next.
    pub next: u64,
    /// When the last commit of the run was made, in milliseconds.
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
    /// How far a run was folded.
    Chain(CheckpointChain),
    /// What is known of a path, with the place of its content if it is known. In ascending order of
    /// paths. Paths with one content each carry its place.
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
    /// Runs of nodes.
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

/// What is accepted; tests ask for less.
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
