//! The shared namespace: what every path points to, the same on every node.
//!
//! Owns entries, changes, commits and the fold that turns a set of changes into a tree. Pure: it does
//! no I/O and reads no clock, so that a model can check it and a thousand nodes fit in one process.

mod age;
mod change;
mod commit;
mod editions;
mod entry;
mod facts;
mod fold;
mod living;
mod location;
mod misses;
mod profiles;

pub use age::Age;
pub use change::{Change, Op};
pub use commit::{BlobAt, BlobPlace, Commit};
pub use editions::{
    EDITION_COUNTS_FOR, EDITION_KEPT_FOR, EDITIONS, EDITIONS_LISTED_MAX, OWN_PATHS_MAX, editions,
    is_edition,
};
pub use entry::{
    Attrs, Entry, EntryKind, TOOK_NAME, Time, XATTR_ENTRY_BYTES_MAX, XATTR_SUM_BYTES_MAX,
    XATTR_TOTAL_BYTES_MAX, Xattrs, split_xattrs,
};
pub use facts::{BytesPlace, ContentFacts, FACTS_NAME, FIGURES_NAME, Facts, UNCOUNTED_NAME};
pub use fold::{Applied, Builder, Child, Fold, PathIs, Register};
pub use living::Living;
pub use location::{Location, Site};
pub use misses::{
    Explained, MISSES_NAME, MISSES_PREFIX, MISSES_TOLD_MAX, Missed, Misses, Reason, WHY_PREFIX,
    path_of_hex, path_to_hex,
};
pub use profiles::{
    Check, Class, Counted, FileKind, PROFILE_KEYS, Part, Pattern, Profile,
    ProfileDraft as ProfilesDraft, Profiles, Program, Refused, Role, Rule, RuleKind, Scope, Touch,
    Tree, UnitKey, Unless, Writers,
};
