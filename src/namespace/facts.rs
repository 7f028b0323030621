//! The facts of an entry besides its attributes, which `hearthfs ls -l` and `hearthfs stat` show.
//!
//! Owns the field names, which scripts read: fields are added, never renamed. Must never contain anything that
//! the caller could not find out from the entry itself: a content may also belong to another user's file.

use serde::{Deserialize, Serialize};

/// The extended attribute that a mount answers with the facts of one entry, as JSON. It is never listed and cannot be set.
pub const FACTS_NAME: &str = "hearthfs.entry";

/// The extended attribute that a mount answers with the savings by client, as JSON, to every user
/// that may read the inode. It is never listed and cannot be set.
pub const FIGURES_NAME: &str = "hearthfs.figures";

/// By requesting this extended attribute, a process declares that its later opens and publishes do
/// not use the cache, as those of a copy program. The figures then leave it out. The value is empty.
pub const UNCOUNTED_NAME: &str = "hearthfs.uncounted";

/// The known facts of one entry.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Facts {
    /// The store's time as the node knows it, in milliseconds since the Unix epoch; ages refer to it.
    pub now_ms: u64,
    /// The node that wrote it, 16 hex digits; `None` for an implied directory, and while it is being written.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub node: Option<String>,
    /// Whether that is the node of this mount.
    pub own: bool,
    /// Whether changes through this mount reach other nodes.
    pub shared: bool,
    /// When it was written, in milliseconds since the Unix epoch by the store's time. Its mtime is
    /// what its program set.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub written_ms: Option<u64>,
    /// The client in whose directory it lies, by the name of its profile. Absent for a file with several names.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub client: Option<String>,
    /// The kind that this profile assigns, unless it is an ordinary file: a word of `hearthfs profiles`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kind: Option<String>,
    /// Whether it is the file of a unit that readers open first.
    pub is_entry: bool,
    /// Where the bytes of a regular file are.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bytes: Option<BytesPlace>,
    /// The digest of its content, 64 hex digits.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub digest: Option<String>,
    /// Facts that only root and the user of the mount get.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub content: Option<ContentFacts>,
}

/// The facts of the content of a regular file. They apply to all files with these bytes, so they also reveal something about
/// files of other users.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct ContentFacts {
    /// When it was last opened, written or fetched on this node, in seconds since the Unix epoch; up to ten minutes early.
    /// `None` if its bytes are not on this node.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub used_s: Option<u64>,
    /// When it was last stored, in milliseconds since the Unix epoch by the store's time; `None` if the store does not have it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stored_ms: Option<u64>,
    /// When it becomes a miss unless it is opened before, in the same form; `None` if it does not age.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub expires_ms: Option<u64>,
}

/// Where the bytes are.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum BytesPlace {
    /// A program of this node is writing them.
    Writing,
    /// On this node.
    Local,
    /// In the store only.
    Remote,
    /// A value of a newer daemon.
    #[serde(other)]
    Unknown,
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A daemon and a command of different versions understand each other.
    #[test]
    fn facts_of_another_version_are_understood() {
        let newer = r#"{"own":true,"bytes":"on the moon","weight":3,"content":{"used_s":7,"colour":"red"}}"#;
        let facts: Facts = serde_json::from_str(newer).expect("understood");
        assert_eq!((facts.own, facts.bytes), (true, Some(BytesPlace::Unknown)));
        assert_eq!(facts.content.and_then(|content| content.used_s), Some(7));
        assert_eq!(serde_json::from_str::<Facts>("{}").expect("understood"), Facts::default());
    }

    #[test]
    fn words_of_facts_are_stable() {
        let facts = Facts {
            now_ms: 5,
            node: Some("9c41d2a07be83f15".into()),
            own: true,
            shared: true,
            written_ms: Some(1),
            client: Some("triton".into()),
            kind: Some("unit".into()),
            is_entry: true,
            bytes: Some(BytesPlace::Remote),
            digest: Some("00".into()),
            content: Some(ContentFacts {
                used_s: Some(2),
                stored_ms: Some(3),
                expires_ms: Some(4),
            }),
        };
        let text = serde_json::to_string(&facts).expect("JSON");
        let wanted = r#"{"now_ms":5,"node":"9c41d2a07be83f15","own":true,"shared":true,"written_ms":1,"client":"triton","kind":"unit","is_entry":true,"bytes":"remote","digest":"00","content":{"used_s":2,"stored_ms":3,"expires_ms":4}}"#;
        assert_eq!(text, wanted);
    }
}
