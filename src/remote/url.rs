//! The address of a remote, as people write it.
//!
//! Owns which addresses there are and how they print. Must never hold a credential, so that an
//! address can be printed anywhere.

use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// The longest key prefix, in bytes. S3 allows keys of 1024; ours need about 90 behind the prefix.
const PREFIX_BYTES_MAX: usize = 512;

/// What an address may be, for every refusal.
const ALLOWED: &str = "allowed: `s3://bucket[/prefix]` or `file:///absolute/dir`";

/// The address of a remote.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum RemoteUrl {
    /// A bucket of an S3 service.
    S3 {
        /// The bucket's name.
        bucket: String,
        /// The prefix of every key, without slashes at its ends; empty for none.
        prefix: String,
    },
    /// A directory that every node has mounted, or of one machine.
    Dir(PathBuf),
}

/// The text is no address of a remote.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("remote `{value}` {problem}; {ALLOWED}")]
pub struct ParseUrlError {
    value: String,
    problem: &'static str,
}

impl RemoteUrl {
    /// Returns the directory of a `file://` address.
    pub fn dir(&self) -> Option<&Path> {
        match self {
            Self::Dir(dir) => Some(dir),
            Self::S3 { .. } => None,
        }
    }

    /// Returns the prefix of every key; a directory has none, as its root is the address itself.
    pub fn prefix(&self) -> &str {
        match self {
            Self::S3 { prefix, .. } => prefix,
            Self::Dir(_) => "",
        }
    }
}

impl FromStr for RemoteUrl {
    type Err = ParseUrlError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        parse(text).map_err(|problem| ParseUrlError { value: printable(text), problem })
    }
}

fn parse(text: &str) -> Result<RemoteUrl, &'static str> {
    let Some((scheme, rest)) = text.split_once("://") else {
        return Err("has no scheme");
    };
    match scheme {
        "s3" => parse_s3(rest),
        "file" => parse_file(text, rest),
        "gs" | "az" => Err("is of another kind of store: this version speaks s3:// and file://"),
        _ => Err("has an unknown scheme"),
    }
}

fn parse_s3(rest: &str) -> Result<RemoteUrl, &'static str> {
    let (bucket, prefix) = rest.split_once('/').unwrap_or((rest, ""));
    if bucket.contains(['@', ':']) {
        return Err("holds credentials: put them into the AWS variables or files");
    }
    if bucket.is_empty() {
        return Err("names no bucket");
    }
    let inner = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || matches!(b, b'-' | b'.');
    let outer = |b: Option<&u8>| b.is_some_and(u8::is_ascii_alphanumeric);
    let bytes = bucket.as_bytes();
    if !(3..=63).contains(&bytes.len())
        || !bytes.iter().all(|b| inner(*b))
        || !outer(bytes.first())
        || !outer(bytes.last())
    {
        return Err(
            "names an impossible bucket: 3 to 63 of a-z, 0-9, `-` and `.`, with a letter or \
                    digit at both ends, are a name",
        );
    }
    let parts: Vec<&str> = prefix.split('/').filter(|part| !part.is_empty()).collect();
    if parts.iter().any(|part| matches!(*part, "." | "..")) {
        return Err("has `.` or `..` in its prefix");
    }
    let prefix = parts.join("/");
    let plain = |b: u8| b.is_ascii_alphanumeric() || b"-_.=+,:@/".contains(&b);
    if !prefix.bytes().all(plain) {
        return Err("has a prefix with other characters than letters, digits and `-_.=+,:@/`");
    }
    if prefix.len() > PREFIX_BYTES_MAX {
        return Err("has a prefix of more than 512 bytes");
    }
    Ok(RemoteUrl::S3 { bucket: bucket.to_owned(), prefix })
}

fn parse_file(text: &str, rest: &str) -> Result<RemoteUrl, &'static str> {
    if !rest.starts_with('/') {
        return Err("names a host or a relative directory: an absolute one has three slashes");
    }
    let url = url::Url::parse(text).map_err(|_| "cannot be read as a URL")?;
    if url.query().is_some() || url.fragment().is_some() {
        return Err("holds `?` or `#`: write them as %3F and %23");
    }
    let dir = url.to_file_path().map_err(|()| "cannot be read as a path")?;
    // Without this a trailing slash would make two addresses of one directory.
    let dir: PathBuf = dir.components().collect();
    if dir == Path::new("/") {
        return Err("is the root directory");
    }
    if std::os::unix::ffi::OsStrExt::as_bytes(dir.as_os_str()).contains(&0) {
        return Err("holds a NUL");
    }
    Ok(RemoteUrl::Dir(dir))
}

/// Returns the text for a message, without what may be a secret: all between scheme and `@`.
fn printable(text: &str) -> String {
    let (scheme, rest) = text.split_once("://").map_or(("", text), |(s, r)| (s, r));
    let start = if scheme.is_empty() { String::new() } else { format!("{scheme}://") };
    // A secret key may hold slashes, so the last `@` counts, wherever it stands.
    match rest.rfind('@') {
        Some(at) => format!("{start}***{}", &rest[at..]),
        None => text.to_owned(),
    }
}

impl fmt::Display for RemoteUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::S3 { bucket, prefix } if prefix.is_empty() => write!(f, "s3://{bucket}"),
            Self::S3 { bucket, prefix } => write!(f, "s3://{bucket}/{prefix}"),
            Self::Dir(dir) => match url::Url::from_file_path(dir) {
                Ok(url) => write!(f, "{url}"),
                Err(()) => write!(f, "file://{}", dir.display()),
            },
        }
    }
}

impl TryFrom<String> for RemoteUrl {
    type Error = ParseUrlError;

    fn try_from(text: String) -> Result<Self, Self::Error> {
        text.parse()
    }
}

impl From<RemoteUrl> for String {
    fn from(url: RemoteUrl) -> Self {
        url.to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn good_addresses_print_back_normalised() {
        for (text, printed) in [
            ("s3://bkt", "s3://bkt"),
            ("s3://bkt/", "s3://bkt"),
            ("s3://my.bucket-1//a//b/", "s3://my.bucket-1/a/b"),
            ("s3://bkt/team=x/v1", "s3://bkt/team=x/v1"),
            ("file:///srv/cache", "file:///srv/cache"),
            ("file:///srv/cache/", "file:///srv/cache"),
            ("file:///srv/../srv/a%20b", "file:///srv/a%20b"),
        ] {
            let url: RemoteUrl = text.parse().expect(text);
            assert_eq!(url.to_string(), printed);
            assert_eq!(printed.parse::<RemoteUrl>().expect(printed), url);
        }
        let spaced: RemoteUrl = "file:///srv/a%20b%23".parse().expect("a good address");
        assert_eq!(spaced.dir(), Some(Path::new("/srv/a b#")));
    }

    #[test]
    fn bad_addresses_are_refused_with_value_and_remedy() {
        for (text, says) in [
            ("bkt", "no scheme"),
            ("/srv/cache", "no scheme"),
            ("http://x/y", "unknown scheme"),
            ("gs://bkt", "this version speaks s3:// and file://"),
            ("az://a/c", "this version speaks s3:// and file://"),
            ("s3://", "names no bucket"),
            ("s3:///x", "names no bucket"),
            ("s3://B_ket", "impossible bucket"),
            ("s3://ab", "impossible bucket"),
            ("s3://-abc", "impossible bucket"),
            ("s3://bkt/../x", "`..`"),
            ("s3://bkt/a b", "other characters"),
            ("s3://bkt/a?x=1", "other characters"),
            ("file://host/x", "three slashes"),
            ("file://x", "three slashes"),
            ("file:///", "root directory"),
            ("file:///a#b", "%23"),
            ("file:///a%00b", "NUL"),
        ] {
            let error = text.parse::<RemoteUrl>().expect_err(text).to_string();
            assert!(error.contains(says), "{text}: {error}");
            assert!(error.contains(text) && error.contains("allowed: `s3://"), "{text}: {error}");
        }
    }

    #[test]
    fn credentials_in_an_address_are_refused_and_not_repeated() {
        for text in ["s3://AKIA:secret@bkt/p", "s3://AKIA:secret/secret@bkt", "s3://AKIA@bkt"] {
            let error = text.parse::<RemoteUrl>().expect_err("refused").to_string();
            assert!(error.contains("holds credentials"), "{error}");
            assert!(!error.contains("secret") && !error.contains("AKIA"), "{error}");
        }
    }
}
