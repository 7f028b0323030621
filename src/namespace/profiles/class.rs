//! What a profile says about a name: plain data.
//!
//! Owns the words for the kinds of files. Must never decide how they are treated: the file system
//! and the ledger do.

use serde::{Deserialize, Serialize};

/// What is known of one path by its names alone.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Class<'p> {
    /// The kind of file with this name.
    pub kind: FileKind<'p>,
    /// The completeness check for its content at publish.
    pub check: Option<Check>,
    /// What a mere use of the file changes.
    pub touch: Option<Touch>,
    /// Its role in the figures of its client.
    pub counted: Option<Counted>,
}

/// A name that counts in the figures of a client.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Counted {
    /// The client: the index of its profile in [`Profiles::all`](super::Profiles::all).
    pub client: usize,
    /// The role of the name.
    pub role: Role,
}

/// The role of a name in the figures of a client.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Role {
    /// An entry: the client counts one hit or one miss for it.
    Entry,
    /// An index that the client reads before the entries of its unit.
    Index,
    /// A directory in which, or below which, entries may lie.
    Above,
}

/// The kind of a file.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum FileKind<'p> {
    /// No profile knows the name, or one declares it ordinary.
    #[default]
    Ordinary,
    /// Never leaves the node, and is never listed on other nodes, however long its writer runs.
    Temporary,
    /// Belongs to the node: it is kept across restarts and never uploaded.
    NodeLocal,
    /// Its existence means that something is locked.
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
    /// Publishing this one completes the unit.
    pub is_marker: bool,
    /// The processes whose files form one draft.
    pub writers: Writers,
}

/// The identity of a unit: equal for all members of one unit, and only for those.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct UnitKey<'p> {
    /// The rule that makes it a unit; the numbers are valid for one set of profiles.
    pub rule: u16,
    /// How many bytes of the prefix are the directory that the unit's names are relative to. If that is
    /// all of it, the unit is this directory; otherwise the rest is the stem of its names, after one NUL.
    pub dir_bytes: u32,
    /// The leading bytes of the path that all members share, in the stored form of a path.
    pub prefix: &'p [u8],
}

/// The processes whose files form one draft of a unit.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Writers {
    /// Those of one process.
    #[default]
    One,
    /// Those of all processes of the node that write the unit at the same time, such as a compiler's children.
    Several,
}

/// A cheap check whether content is complete.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Check {
    /// Content that begins as a zstd frame must be a whole one; other content passes.
    Zstd,
    /// An ELF file whose headers and sections lie inside it.
    Elf,
    /// A zip archive that ends with its directory.
    Zip,
    /// One JSON value.
    Json,
}

/// What a mere use of a file changes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Touch {
    /// Its times are set on each hit.
    Times,
    /// Each hit rewrites it with nothing but the time. Its first version is an ordinary entry.
    Content,
}
