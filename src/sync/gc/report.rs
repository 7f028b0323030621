//! What a collection has kept and deleted, and why.

use std::collections::BTreeMap;

use serde::Serialize;

/// Objects and their bytes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct Tally {
    /// How many.
    pub objects: u64,
    /// Their bytes together.
    pub bytes: u64,
}

impl Tally {
    pub(super) fn add(&mut self, bytes: u64) {
        self.objects += 1;
        self.bytes += bytes;
    }
}

/// Why an object is deleted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Why {
    /// It is past its age.
    Expired,
    /// A checkpoint has its changes.
    Covered,
    /// A later checkpoint is complete.
    Superseded,
    /// No entry uses it.
    Unused,
}

impl Why {
    /// Returns the reason as a part of a sentence.
    pub fn text(self) -> &'static str {
        match self {
            Self::Expired => "past the expiry",
            Self::Covered => "in a checkpoint",
            Self::Superseded => "replaced by a later one",
            Self::Unused => "used by no entry",
        }
    }
}

/// Objects of one kind that were deleted for one reason.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Removed {
    /// Their kind.
    pub kind: &'static str,
    /// Why they were deleted.
    pub why: Why,
    /// How many.
    #[serde(flatten)]
    pub tally: Tally,
}

/// The result of a collection.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Report {
    /// Whether nothing was deleted; `deleted` then holds what would have been.
    pub dry_run: bool,
    /// The lifetime of entries that was used.
    pub expiry: String,
    /// The same in milliseconds; `None` is for ever.
    pub expiry_ms: Option<u64>,
    /// The checkpoint that decided what is in use.
    pub checkpoint: Option<String>,
    /// Objects that were kept, by kind.
    pub kept: BTreeMap<&'static str, Tally>,
    /// Objects that were deleted, by kind and reason.
    pub deleted: Vec<Removed>,
    /// Objects that are not ours and were left alone.
    pub foreign: Tally,
    /// Objects that could not be deleted.
    pub failed: Tally,
    /// Temporary files of writers that died, in a shared directory.
    pub temporaries: u64,
    /// Why something was kept that might have been deleted.
    pub notes: Vec<String>,
}

impl Report {
    pub(super) fn removed(&mut self, kind: &'static str, why: Why, bytes: u64) {
        let known = self.deleted.iter_mut().find(|one| one.kind == kind && one.why == why);
        if let Some(known) = known {
            known.tally.add(bytes);
        } else {
            self.deleted.push(Removed { kind, why, tally: Tally { objects: 1, bytes } });
            self.deleted.sort_by_key(|one| (one.kind, one.why));
        }
    }

    /// Returns the total of all that was deleted.
    pub fn total(&self) -> Tally {
        let add = |sum: Tally, one: &Removed| Tally {
            objects: sum.objects + one.tally.objects,
            bytes: sum.bytes + one.tally.bytes,
        };
        self.deleted.iter().fold(Tally::default(), add)
    }
}

/// The progress of a collection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum GcProgress {
    /// Reading a checkpoint.
    Checkpoint,
    /// Reading commits: how many are done, and how many there are.
    Log(u64, u64),
    /// Examining objects: how many were seen, and how many deleted.
    Objects(u64, u64),
}
