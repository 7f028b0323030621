//! The known facts about failed lookups, which `hearthfs explain` shows.
//!
//! Owns the field names, which scripts read: fields are added, never renamed. A path is sent as
//! hexadecimal digits, because it need not be text.

use std::fmt::Write as _;

use serde::{Deserialize, Serialize};

use crate::name::TreePath;

/// The extended attribute of a directory that a mount answers with an [`Explained`] as JSON. The path from that directory
/// follows the prefix, its names separated by `/`. It is never listed and cannot be set.
pub const WHY_PREFIX: &str = "hearthfs.why.";
/// The extended attribute of a mount's root that returns [`Misses`] as JSON: those of the caller.
pub const MISSES_NAME: &str = "hearthfs.misses";
/// The same for one client, whose name follows: those that the caller may see.
pub const MISSES_PREFIX: &str = "hearthfs.misses.";
/// The most misses in one answer.
pub const MISSES_TOLD_MAX: usize = 200;

/// Why a name is a miss.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Reason {
    /// It is no miss: the entry is there and can be read.
    There,
    /// A program of this node is writing the first version.
    Writing,
    /// No node has published it, according to the whole log.
    Never,
    /// This node does not know it, and the log of the store could not be read: another node may have it.
    Unsure,
    /// It had not arrived on this node when the lookup failed.
    Late,
    /// It was removed, or renamed.
    Removed,
    /// It is past its age.
    Expired,
    /// Its bytes are only in the store, which cannot be used.
    StoreDown,
    /// Its bytes are only in the store, and this node has no room for them.
    NoRoom,
    /// Its bytes in the store are damaged or missing.
    Damaged,
    /// Its bytes were only on this node, which no longer has them.
    Evicted,
    /// It belongs to a unit that lacks other files.
    Incomplete,
    /// A file of this name never leaves the node that writes it.
    NodeLocal,
    /// A file is in the place of a directory above it.
    NoDirectory,
    /// The mode bits do not let the caller read it.
    Denied,
    /// A value of a newer daemon.
    #[default]
    #[serde(other)]
    Unknown,
}

impl Reason {
    /// Reports whether the name is missing for every user.
    pub fn is_absence(self) -> bool {
        !matches!(self, Self::There | Self::Writing | Self::Late | Self::Denied | Self::Unknown)
    }
}

/// A failed lookup of a name.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Missed {
    /// Its path below the mount, two hexadecimal digits a byte, names separated by `/`.
    pub path_hex: String,
    /// How long ago the last lookup was, in milliseconds.
    pub ago_ms: u64,
    /// The number of consecutive failed lookups.
    pub times: u64,
    /// The user of the last lookup.
    pub uid: u32,
    /// The client in whose directory it lies.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub client: Option<String>,
    /// The reason at that time.
    pub reason: Reason,
}

/// The recorded misses, the latest first.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Misses {
    /// The misses of this answer.
    pub misses: Vec<Missed>,
    /// How many further recorded misses match.
    pub more: u64,
}

/// The explanation of one miss.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Explained {
    /// The store's time as the node knows it, in milliseconds since the Unix epoch.
    pub now_ms: u64,
    /// The reason.
    pub reason: Reason,
    /// The path to which the reason applies, if it is a directory above; in the form of [`Missed::path_hex`].
    #[serde(skip_serializing_if = "Option::is_none")]
    pub of_hex: Option<String>,
    /// The node that wrote or removed it, 16 hex digits.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub node: Option<String>,
    /// Whether that is the node of this mount.
    pub own: bool,
    /// When it did so, in milliseconds since the Unix epoch by the store's time.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub changed_ms: Option<u64>,
    /// Whether the entry is uploaded, so that other nodes can read it; `None` if that does not matter.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub is_remote: Option<bool>,
    /// Whether changes through this mount reach other nodes.
    pub shared: bool,
    /// The client in whose directory it lies, by the name of its profile.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub client: Option<String>,
    /// The kind of file that the profile assigns, unless it is an ordinary one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kind: Option<String>,
    /// Entries of the same program under other keys; in the form of [`Missed::path_hex`].
    pub similar_hex: Vec<String>,
    /// The last failed lookup, if it is on record.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last: Option<Missed>,
}

/// Writes a path as hexadecimal digits.
pub fn path_to_hex(path: &TreePath) -> String {
    let mut text = String::new();
    for name in path.components() {
        if !text.is_empty() {
            text.push('/');
        }
        for byte in name {
            // Writing to a string cannot fail.
            write!(text, "{byte:02x}").ok();
        }
    }
    text
}

/// Reads what [`path_to_hex`] wrote; `None` for anything else.
pub fn path_of_hex(text: &str) -> Option<TreePath> {
    let digit = |byte: u8| char::from(byte).to_digit(16).map(|digit| digit as u8);
    let part = |part: &str| -> Option<Vec<u8>> {
        let (pairs, rest) = part.as_bytes().as_chunks::<2>();
        let pair = |pair: &[u8; 2]| Some(digit(pair[0])? << 4 | digit(pair[1])?);
        if rest.is_empty() { pairs.iter().map(pair).collect() } else { None }
    };
    if text.is_empty() {
        return Some(TreePath::root());
    }
    text.split('/').try_fold(TreePath::root(), |dir, name| dir.join(&part(name)?).ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_of_any_bytes_travel() {
        for names in [&[&b"jax"[..], b"a\n\xff/x".split_at(3).0][..], &[], &[b"\x1b[31m", b" "]] {
            let path = names.iter().try_fold(TreePath::root(), |dir, name| dir.join(name));
            let path = path.expect("names");
            assert_eq!(path_of_hex(&path_to_hex(&path)), Some(path));
        }
        for bad in ["6", "6g", "2f", "00", "61//62", "2e2e"] {
            assert_eq!(path_of_hex(bad), None, "{bad}");
        }
    }

    /// A daemon and a command of different versions understand each other.
    #[test]
    fn words_are_stable_and_new_ones_are_taken() {
        let text = serde_json::to_string(&Reason::StoreDown).expect("JSON");
        assert_eq!(text, "\"store_down\"");
        let newer = r#"{"reason":"eaten","colour":"red","last":{"reason":"never"}}"#;
        let explained: Explained = serde_json::from_str(newer).expect("understood");
        assert_eq!(explained.reason, Reason::Unknown);
        assert_eq!(explained.last.map(|last| last.reason), Some(Reason::Never));
    }
}
