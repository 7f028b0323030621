//! The format object: what a prefix holds, and which store it is.
//!
//! Owns its text and the refusals that it can cause. Must never let a store of another format be written to.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::expiry::Declared;
use super::keys;
use crate::config::{RemoteUrl, format_age, parse_age};
use crate::error::{Error, Kind, Result};
use crate::task;

/// The format that this version reads and writes.
pub const FORMAT_VERSION: u64 = 1;
/// The largest format object that is read.
pub(super) const FORMAT_BYTES_MAX: u64 = 64 * 1024;
/// Set in every random identity. The identity of a store of an older version is the time in
/// milliseconds at which it was made, which is far below.
const RANDOM: u64 = 1 << 63;

/// Identifies a store among all that were or will be at its address. Copying the objects of a store
/// also copies it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct StoreId(pub u64);

impl StoreId {
    /// Makes the identity of a new store.
    pub(super) fn random() -> Self {
        Self(task::random_u64() | RANDOM)
    }
}

impl fmt::Display for StoreId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}

impl FromStr for StoreId {
    type Err = String;

    fn from_str(text: &str) -> std::result::Result<Self, Self::Err> {
        let wanted = || format!("`{text}` is not the identity of a store: 16 hex digits");
        let digits = text.len() == 16 && text.bytes().all(|byte| byte.is_ascii_hexdigit());
        let number = u64::from_str_radix(text, 16).ok().filter(|_| digits);
        number.filter(|number| *number > 0).map(Self).ok_or_else(wanted)
    }
}

/// The content of `hearthfs.json`. Unknown fields are kept; a field that must not be ignored needs
/// a new format number.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) struct Format {
    #[serde(rename = "format")]
    version: u64,
    /// The identity of the store, 16 hex digits; missing if an older version made the store.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    id: Option<String>,
    created_ms: u64,
    /// `30d`, `never`; null if an older version made the store.
    expiry: Option<serde_json::Value>,
    trusted_keys: Vec<String>,
    /// The stores whose nodes move on to this one.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    replaces: Vec<String>,
}

impl Format {
    /// Describes a store that is made now, whose entries live for `expiry` (`None` is for ever).
    pub(super) fn new(id: StoreId, created_ms: u64, expiry: Option<Duration>) -> Self {
        let (version, id) = (FORMAT_VERSION, Some(id.to_string()));
        let (expiry, trusted_keys) = (Some(format_age(expiry).into()), Vec::new());
        Self { version, id, created_ms, expiry, trusted_keys, replaces: Vec::new() }
    }

    pub(super) fn encode(&self) -> Vec<u8> {
        let mut text = serde_json::to_vec(self).expect("plain data always encodes");
        text.push(b'\n');
        text
    }
}

/// What the format object of an accepted store says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Said {
    /// The identity of the store.
    pub(super) store: StoreId,
    /// The stores that it replaces.
    pub(super) replaces: Vec<StoreId>,
    /// When the store was made, by the clock of the node that made it.
    pub(super) created_ms: u64,
    /// How long entries live.
    pub(super) expiry: Declared,
}

/// Checks the content of the format object.
pub(super) fn check(bytes: &[u8], url: &RemoteUrl) -> Result<Said> {
    let foreign = || {
        let op = format!(
            "{url} belongs to something else: its {} is not of hearthfs; name another bucket or prefix",
            keys::FORMAT
        );
        Error::new(Kind::Invalid, op)
    };
    let value: serde_json::Value = serde_json::from_slice(bytes).map_err(|_| foreign())?;
    let version = value.get("format").and_then(serde_json::Value::as_u64).ok_or_else(foreign)?;
    if version > FORMAT_VERSION {
        let op = format!(
            "{url} holds format {version} and this version knows format {FORMAT_VERSION}: bring \
             hearthfs on this node up to date, or name another prefix"
        );
        return Err(Error::new(Kind::Invalid, op));
    }
    if version == 0 {
        return Err(foreign());
    }
    let format: Format = serde_json::from_value(value).map_err(|_| foreign())?;
    let expiry = declared(format.expiry.as_ref(), url);
    let created_ms = format.created_ms;
    let store = match format.id {
        Some(id) => id.parse().map_err(|_| foreign())?,
        // All nodes derive the same identity from this, and none has to write it.
        None => StoreId(created_ms.max(1)),
    };
    let replaces = format.replaces.iter().filter_map(|id| id.parse().ok()).collect();
    Ok(Said { store, replaces, created_ms, expiry })
}

/// Returns the identity of the store without checking the rest; `None` if there is none.
pub(super) fn store_of(bytes: &[u8]) -> Option<StoreId> {
    let format: Format = serde_json::from_slice(bytes).ok()?;
    format.id.map_or(Some(StoreId(format.created_ms.max(1))), |id| id.parse().ok())
}

/// Returns the format object with `store` added to those that it replaces; all else stays.
pub(super) fn replacing(bytes: &[u8], store: StoreId) -> Option<Vec<u8>> {
    let mut value: serde_json::Value = serde_json::from_slice(bytes).ok()?;
    let all = value.as_object_mut()?.entry("replaces").or_insert_with(|| serde_json::json!([]));
    all.as_array_mut()?.push(store.to_string().into());
    let mut text = serde_json::to_vec(&value).ok()?;
    text.push(b'\n');
    Some(text)
}

/// Returns the format object with `expiry` declared; all else stays.
pub(super) fn declaring(bytes: &[u8], expiry: Option<Duration>) -> Option<Vec<u8>> {
    let mut value: serde_json::Value = serde_json::from_slice(bytes).ok()?;
    value.as_object_mut()?.insert("expiry".to_owned(), format_age(expiry).into());
    let mut text = serde_json::to_vec(&value).ok()?;
    text.push(b'\n');
    Some(text)
}

/// Reads the expiry. An unreadable one does not exclude the store: the node's own expiry applies then.
fn declared(value: Option<&serde_json::Value>, url: &RemoteUrl) -> Declared {
    let Some(value) = value else { return Declared::Unknown };
    let read = value.as_str().ok_or("it is not a string".to_owned()).and_then(parse_age);
    read.map_or_else(
        |problem| {
            tracing::warn!(
                remote = %url, expiry = %value, problem,
                "the expiry in {} cannot be read; `hearthfs lifecycle apply` writes it again",
                keys::FORMAT
            );
            Declared::Unknown
        },
        Declared::Age,
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn identities_are_written_and_read() {
        let id = StoreId::random();
        assert!(id.0 >= RANDOM);
        assert_eq!(id.to_string().parse(), Ok(id));
        assert_eq!(StoreId(5).to_string(), "0000000000000005");
        for bad in ["", "5", "+000000000000005", "000000000000000g", "0000000000000000"] {
            assert!(bad.parse::<StoreId>().expect_err(bad).contains("16 hex digits"));
        }
    }

    #[test]
    fn the_text_is_pinned_and_accepted() {
        let url = "s3://bkt/p".parse().expect("a good address");
        let month = Some(Duration::from_hours(30 * 24));
        for (age, said) in [(month, "30d"), (None, "never")] {
            let store = StoreId(0xfeed);
            let text = Format::new(store, 5, age).encode();
            let pinned = format!(
                "{{\"format\":1,\"id\":\"000000000000feed\",\"created_ms\":5,\"expiry\":\"{said}\",\
                 \"trusted_keys\":[]}}\n"
            );
            assert_eq!(String::from_utf8_lossy(&text), pinned);
            let (replaces, expiry) = (Vec::new(), Declared::Age(age));
            let said = Said { store, replaces, created_ms: 5, expiry };
            assert_eq!(check(&text, &url).expect("a valid store"), said);
            assert_eq!(store_of(&text), Some(store));
        }
        for expiry in ["null", "30", "\"a month\"", "\"0s\"", "{}"] {
            let text = format!(
                "{{\"format\":1,\"created_ms\":5,\"expiry\":{expiry},\"trusted_keys\":[\"k\"],\"more\":{{}}}}"
            );
            let found = check(text.as_bytes(), &url).expect("a valid store with more fields");
            assert_eq!(found.expiry, Declared::Unknown, "{expiry}");
            assert_eq!(found.store, StoreId(5), "an older version made it");
            assert_eq!(store_of(text.as_bytes()), Some(StoreId(5)));
        }
        assert_eq!(store_of(b"{}"), None);
    }

    #[test]
    fn taking_the_place_of_others_leaves_all_else() {
        let url = "s3://bkt/p".parse().expect("a good address");
        let old = br#"{"format":1,"created_ms":5,"expiry":"7d","trusted_keys":["k"],"more":1}"#;
        let one = replacing(old, StoreId(7)).expect("an object");
        let two = replacing(&one, StoreId(8)).expect("an object");
        let said = check(&two, &url).expect("a valid store");
        assert_eq!((said.store, said.replaces), (StoreId(5), vec![StoreId(7), StoreId(8)]));
        assert!(String::from_utf8_lossy(&two).contains("\"more\":1"));
        let again = declaring(&two, None).expect("an object");
        assert_eq!(check(&again, &url).expect("a valid store").replaces.len(), 2);
    }

    #[test]
    fn declaring_another_expiry_leaves_all_else() {
        let url = "s3://bkt/p".parse().expect("a good address");
        let old =
            br#"{"format":1,"created_ms":5,"expiry":null,"trusted_keys":["k"],"more":{"x":[1]}}"#;
        let new = declaring(old, Some(Duration::from_hours(7 * 24))).expect("an object");
        assert_eq!(
            check(&new, &url).expect("a valid store").expiry,
            Declared::Age(Some(Duration::from_hours(168)))
        );
        let text = String::from_utf8(new).expect("text");
        for part in ["\"expiry\":\"7d\"", "\"more\":{\"x\":[1]}", "[\"k\"]", "\"created_ms\":5"] {
            assert!(text.contains(part), "`{part}` is not in: {text}");
        }
        assert_eq!(declaring(b"[]", None), None);
    }

    #[test]
    fn other_formats_are_refused_with_url_and_remedy() {
        let url = "s3://bkt/p".parse().expect("a good address");
        for (text, says) in [
            (&b"{\"format\":2}"[..], "holds format 2"),
            (
                b"{\"format\":0,\"created_ms\":5,\"expiry\":null,\"trusted_keys\":[]}",
                "something else",
            ),
            (b"{\"format\":\"1\"}", "something else"),
            (b"{\"format\":1}", "something else"),
            (
                b"{\"format\":1,\"id\":\"x\",\"created_ms\":5,\"expiry\":null,\"trusted_keys\":[]}",
                "something else",
            ),
            (b"[]", "something else"),
            (b"", "something else"),
            (b"\xff\xfe", "something else"),
        ] {
            let error = check(text, &url).expect_err(says);
            assert_eq!(error.kind(), Kind::Invalid);
            let text = error.to_string();
            assert!(text.contains(says) && text.contains("s3://bkt/p"), "{text}");
            assert!(text.contains("name another"), "{text}");
        }
    }
}
