//! What a profile says of a name: plain data.
//!
//! Owns the words for the kinds of files. Must never decide what is done with them: the file system and the
//! ledger do.

use serde::{Deserialize, Serialize};

/// What is known of one path by its names alone.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Class<'p> {
    /// What kind of file has this name.
    pub kind: FileKind<'p>,
    /// The test of completeness that its content can be put to when it is published.
    pub check: Option<Check>,
    /// What a mere use of the file changes about it.
    pub touch: Option<Touch>,
    /// What it is in the figures of its client.
    pub counted: Option<Counted>,
}

/// A name that the figures of a client go by.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Counted {
    /// The client: the place of its profile in [`Profiles::all`](super::Profiles::all).
    pub client: usize,
    /// What the name is to that client.
    pub role: Role,
}

/// What a name is in the figures of a client.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Role {
    /// One entry, which the client takes for one hit or one miss.
    Entry,
    /// An index that is read before the entries of its unit.
    Index,
    /// A directory in which, or below which, entries may lie.
    Above,
}

/// The kind of a file.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum FileKind<'p> {
    /// No profile knows the name, or one says that it is nothing special.
    #[default]
    Ordinary,
    /// Never leaves the node, and appears in no other node's listing, however long its writer lives.
    Temporary,
    /// Belongs to the node: it is kept across restarts and never uploaded.
    NodeLocal,
    /// Says by being there that something is locked.
    Lock(Scope),
    /// A version that exists is not replaced by one of the same name that was begun before it arrived.
    WriteOnce,
    /// One of several files that only make sense together.
    Unit(Part<'p>),
}

impl FileKind<'_> {
    /// Reports whether a file of this kind must never be sent to the store.
    pub fn stays_here(&self) -> bool {
        matches!(self, Self::Temporary | Self::NodeLocal | Self::Lock(Scope::Node))
    }
}

/// Which processes a lock by existence excludes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Scope {
    /// Processes of this node: what the lock guards belongs to the node too.
    Node,
    /// Processes of all nodes.
    Cluster,
}

/// A member of a unit.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Part<'p> {
    /// Which unit.
    pub key: UnitKey<'p>,
    /// A reader opens this one first, and takes the other members of the same version.
    pub is_entry: bool,
    /// The publish of this one completes the unit.
    pub is_marker: bool,
    /// The processes whose files make one draft.
    pub writers: Writers,
}

/// The identity of a unit: of all members of one unit alike, and of no others.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct UnitKey<'p> {
    /// The rule that makes it one; the numbers hold for one set of profiles.
    pub rule: u16,
    /// How many bytes of the prefix are the directory that the unit's names are relative to. Where that is all of it,
    /// the unit is this directory; otherwise the rest is the stem of its names, after one NUL.
    pub dir_bytes: u32,
    /// The leading bytes of the path that all members share, in the kept form of a path.
    pub prefix: &'p [u8],
}

/// The processes whose files make one draft of a unit.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Writers {
    /// Those of one process.
    #[default]
    One,
    /// Those of all processes of the node that write the unit at the same time, such as a compiler's children.
    Several,
}

/// A cheap test whether content is complete.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Check {
    /// What begins as a zstd frame is a whole one; what begins otherwise passes.
    Zstd,
    /// An ELF file whose headers and sections lie inside of it.
    Elf,
    /// A zip archive that ends with its directory.
    Zip,
    /// One JSON value.
    Json,
}

/// What a mere use of a file changes about it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Touch {
    /// Its times are set on each hit.
    Times,
    /// It is written anew on each hit, and says nothing but when that was. Its first version is an entry as any other.
    Content,
}
