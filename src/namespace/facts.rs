//! What is shown of an entry beside its attributes: `hearthfs ls -l` and `hearthfs stat` show it.
//!
//! Owns the words, which scripts read: fields are added, never renamed. Must never carry what the caller could not find out
//! by the entry itself: a content may be that of another user's file, too.

use serde::{Deserialize, Serialize};

/// The extended attribute that a mount answers with the facts of one entry, as JSON. It is never listed and cannot be set.
pub const FACTS_NAME: &str = "hearthfs.entry";

/// The extended attribute that a mount answers with what the cache was worth by client, as JSON, to every user that may read
/// the inode. It is never listed and cannot be set.
pub const FIGURES_NAME: &str = "hearthfs.figures";

/// The extended attribute by asking for which a process says that what it opens and publishes from then on is no use of the
/// cache, as a copy's is not: it is left out of the figures. Its value is empty.
pub const UNCOUNTED_NAME: &str = "hearthfs.uncounted";

/// What is known of one entry.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Facts {
    /// The store's time as the node knows it, in milliseconds since the Unix epoch: ages are counted to it.
    pub now_ms: u64,
    /// The node that wrote it, 16 hex digits; `None` for a directory that was never made, and while it is being written.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub node: Option<String>,
    /// Whether that is the node of this mount.
    pub own: bool,
    /// Whether what is changed through this mount reaches other nodes.
    pub shared: bool,
    /// When it was written, in milliseconds since the Unix epoch by the store's time. Its mtime is what its program set.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub written_ms: Option<u64>,
    /// The client in whose directory it lies, by the name of its profile. Absent for a file with several names.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub client: Option<String>,
    /// What that profile says that it is, if it is more than an ordinary file: a word of `hearthfs profiles`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kind: Option<String>,
    /// Whether it is the file of a unit that readers open first.
    pub is_entry: bool,
    /// Where the bytes of a regular file are.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bytes: Option<Bytes>,
    /// The digest of its content, 64 hex digits.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub digest: Option<String>,
    /// What only root and the user of the mount are told.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub content: Option<ContentFacts>,
}

/// What is known of the content of a regular file. It holds for all files with these bytes, so it tells of the files of others.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct ContentFacts {
    /// When it was last opened, written or fetched on this node, in seconds since the Unix epoch; up to ten minutes early.
    /// `None` where its bytes are not on this node.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub used_s: Option<u64>,
    /// When it was last stored, in milliseconds since the Unix epoch by the store's time; `None` where the store does not have it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stored_ms: Option<u64>,
    /// When it becomes a miss if it is not opened before, in the same form; `None` where it does not age.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub expires_ms: Option<u64>,
}

/// Where bytes are.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Bytes {
    /// A program of this node is writing them.
    Writing,
    /// On this node.
    Local,
    /// In the store only.
    Remote,
    /// What a newer daemon says.
    #[serde(other)]
    Unknown,
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A daemon and a command of neighbouring versions understand each other.
    #[test]
    fn facts_of_another_version_are_understood() {
        let newer = r#"{"own":true,"bytes":"on the moon","weight":3,"content":{"used_s":7,"colour":"red"}}"#;
        let facts: Facts = serde_json::from_str(newer).expect("understood");
        assert_eq!((facts.own, facts.bytes), (true, Some(Bytes::Unknown)));
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
            bytes: Some(Bytes::Remote),
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
