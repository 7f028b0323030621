//! The names of objects in the remote.
//!
//! Owns the layout below the prefix. Must never let a name from outside (a list, a commit of another
//! node) become a key unchecked: in a shared directory a key is a path.

use object_store::path::Path;

use crate::digest::Digest;
use crate::error::{Error, Kind, Result};
use crate::stamp::{NodeId, Stamp};

/// The object that says what a prefix holds.
pub const FORMAT: &str = "hearthfs.json";
/// The object with the newest commits.
pub const HEAD: &str = "head";
/// Where commits lie.
pub const LOG: &str = "log";
/// Where packs lie.
pub const PACKS: &str = "packs";
/// Where blobs lie that are objects of their own.
pub const BLOBS: &str = "blobs";
/// Where checkpoints lie.
pub const CHECKPOINTS: &str = "checkpoints";
/// Where nodes write to learn the store's time, and announce what they are about to upload; nothing
/// depends on these objects.
pub const PROBES: &str = "probes";

const COMMIT_END: &str = ".commit";
const PACK_END: &str = ".pack";
const CHECKPOINT_END: &str = ".ckpt";
const BUNDLE_END: &str = ".bundle";

/// Returns the name of the commit with this stamp.
pub fn commit_name(stamp: &Stamp) -> String {
    format!("{}{COMMIT_END}", stamp.sortable())
}

/// Returns the stamp of a commit by its name; `None` when the name is not one of ours.
pub fn commit_stamp(name: &str) -> Option<Stamp> {
    stamp_of(name, COMMIT_END)
}

/// Returns the name of the pack with this stamp.
pub fn pack_name(stamp: &Stamp) -> String {
    format!("{}{PACK_END}", stamp.sortable())
}

/// Returns the stamp of a pack by its name; `None` when the name is not one of ours.
pub fn pack_stamp(name: &str) -> Option<Stamp> {
    stamp_of(name, PACK_END)
}

/// Returns the name of the checkpoint with this stamp.
pub fn checkpoint_name(stamp: &Stamp) -> String {
    format!("{}{CHECKPOINT_END}", stamp.sortable())
}

/// Returns the stamp of a checkpoint by its name; `None` when the name is not one of ours.
pub fn checkpoint_stamp(name: &str) -> Option<Stamp> {
    stamp_of(name, CHECKPOINT_END)
}

/// The name of a bundle, with the period of the log that it covers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BundleName {
    /// The end of the period, with a random number and the node that wrote the bundle.
    pub upto: Stamp,
    /// The beginning of the period, in milliseconds.
    pub from_ms: u64,
}

impl BundleName {
    /// Reads a name; `None` when it is not one of ours.
    pub fn parse(name: &str) -> Option<Self> {
        let (upto, from) = name.strip_suffix(BUNDLE_END)?.rsplit_once('-')?;
        let from_ms = u64::from_str_radix(from, 16).ok()?;
        let parsed = Self { upto: Stamp::parse_sortable(upto)?, from_ms };
        (parsed.from_ms < parsed.upto.ms && parsed.to_string() == name).then_some(parsed)
    }
}

impl std::fmt::Display for BundleName {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}-{:012x}{BUNDLE_END}", self.upto.sortable(), self.from_ms)
    }
}

fn stamp_of(name: &str, end: &str) -> Option<Stamp> {
    let text = name.strip_suffix(end)?;
    // Parsing accepts more spellings of a number than we write; only the written one is a name.
    Stamp::parse_sortable(text).filter(|stamp| stamp.sortable() == text)
}

/// The keys of one remote.
#[derive(Debug, Clone)]
pub(super) struct Keys {
    prefix: Path,
}

impl Keys {
    pub(super) fn new(prefix: &str) -> Self {
        Self { prefix: Path::from(prefix) }
    }

    /// Returns the prefix of all keys.
    pub(super) fn prefix(&self) -> &Path {
        &self.prefix
    }

    /// Returns the folders in which only hearthfs writes.
    pub(super) fn places(&self) -> [Path; 5] {
        [LOG, PACKS, BLOBS, CHECKPOINTS, PROBES].map(|place| self.prefix.clone().join(place))
    }

    pub(super) fn format(&self) -> Path {
        self.prefix.clone().join(FORMAT)
    }

    pub(super) fn head(&self) -> Path {
        self.prefix.clone().join(HEAD)
    }

    pub(super) fn log(&self) -> Path {
        self.prefix.clone().join(LOG)
    }

    pub(super) fn probes(&self) -> Path {
        self.prefix.clone().join(PROBES)
    }

    pub(super) fn probe(&self, node: NodeId) -> Path {
        self.probes().join(node.to_string())
    }

    pub(super) fn commit(&self, name: &str) -> Result<Path> {
        match commit_stamp(name) {
            Some(_) => Ok(self.log().join(name)),
            None => Err(bad_name("commit", name)),
        }
    }

    pub(super) fn pack(&self, name: &str) -> Result<Path> {
        match pack_stamp(name) {
            Some(_) => Ok(self.prefix.clone().join(PACKS).join(name)),
            None => Err(bad_name("pack", name)),
        }
    }

    pub(super) fn checkpoints(&self) -> Path {
        self.prefix.clone().join(CHECKPOINTS)
    }

    pub(super) fn checkpoint(&self, name: &str) -> Result<Path> {
        match checkpoint_stamp(name) {
            Some(_) => Ok(self.checkpoints().join(name)),
            None => Err(bad_name("checkpoint", name)),
        }
    }

    pub(super) fn bundle(&self, name: &BundleName) -> Path {
        self.checkpoints().join(name.to_string())
    }

    pub(super) fn blob(&self, digest: &Digest) -> Path {
        self.prefix.clone().join(BLOBS).join(digest.shard()).join(digest.to_string())
    }
}

fn bad_name(what: &str, name: &str) -> Error {
    Error::new(Kind::Invalid, format!("`{}` is not the name of a {what}", name.escape_debug()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_only_what_we_write() {
        let stamp = Stamp { ms: 1_700_000_000_000, counter: 3, node: NodeId(0xab) };
        let name = commit_name(&stamp);
        assert_eq!(name, "018bcfe5680000000003-00000000000000ab.commit");
        assert_eq!(commit_stamp(&name), Some(stamp));
        assert_eq!(pack_stamp(&pack_name(&stamp)), Some(stamp));
        assert_eq!(pack_stamp(&name), None);
        for bad in [
            "",
            "../x",
            "018bcfe5680000000003-00000000000000ab",
            "018BCFE5680000000003-00000000000000ab.commit",
            "+18bcfe5680000000003-00000000000000ab.commit",
            "018bcfe5680000000003-00000000000000ab.commit/../../x.commit",
        ] {
            assert_eq!(commit_stamp(bad), None, "{bad}");
            assert!(Keys::new("").commit(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn names_of_bundles_are_only_what_we_write() {
        let upto = Stamp { ms: 0x2000, counter: 3, node: NodeId(0xab) };
        let name = BundleName { upto, from_ms: 0x1000 };
        let text = "00000000200000000003-00000000000000ab-000000001000.bundle";
        assert_eq!(name.to_string(), text);
        assert_eq!(BundleName::parse(text), Some(name));
        assert_eq!(checkpoint_stamp(text), None);
        for bad in [
            "",
            "00000000200000000003-00000000000000ab.bundle",
            "00000000200000000003-00000000000000ab-1000.bundle",
            "00000000200000000003-00000000000000ab-000000002000.bundle",
            "00000000200000000003-00000000000000AB-000000001000.bundle",
            "00000000200000000003-00000000000000ab-000000001000.bundle/../x.bundle",
        ] {
            assert_eq!(BundleName::parse(bad), None, "{bad}");
        }
    }

    #[test]
    fn the_layout_is_pinned() {
        let stamp = Stamp { ms: 1, counter: 2, node: NodeId(3) };
        let digest = Digest::of(b"x");
        for (prefix, start) in [("", ""), ("a/b", "a/b/")] {
            let keys = Keys::new(prefix);
            let commit = keys.commit(&commit_name(&stamp)).expect("a good name");
            assert_eq!(keys.format().as_ref(), format!("{start}hearthfs.json"));
            assert_eq!(
                commit.as_ref(),
                format!("{start}log/00000000000100000002-0000000000000003.commit")
            );
            assert_eq!(
                keys.pack(&pack_name(&stamp)).expect("a good name").as_ref(),
                format!("{start}packs/00000000000100000002-0000000000000003.pack")
            );
            assert_eq!(
                keys.checkpoint(&checkpoint_name(&stamp)).expect("a good name").as_ref(),
                format!("{start}checkpoints/00000000000100000002-0000000000000003.ckpt")
            );
            assert_eq!(
                keys.blob(&digest).as_ref(),
                format!("{start}blobs/{}/{digest}", &digest.to_string()[..2])
            );
        }
    }
}
