//! The address of the remote, as it is written.
//!
//! Owns the check of its form. Must never connect to anything, and never repeat a password that
//! somebody put into an address: messages show it without.

use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use serde::Serialize;

/// What an address may look like, for messages.
pub(super) const URL_FORM: &str = "s3://BUCKET[/PREFIX] or file:///DIRECTORY";

/// The longest address that is accepted, in bytes.
const URL_BYTES_MAX: usize = 2048;
/// The longest key prefix, in bytes. S3 allows keys of 1024; ours need about 90 behind the prefix.
const PREFIX_BYTES_MAX: usize = 512;
/// Schemes that are planned; they get a message of their own.
const LATER_SCHEMES: [&str; 2] = ["gs", "az"];

/// The address of the remote, checked for its form.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
#[serde(into = "String")]
pub enum RemoteUrl {
    /// A bucket of any S3 store.
    S3 {
        /// The bucket.
        bucket: String,
        /// The prefix inside it, without slashes at its ends; empty for none.
        prefix: String,
    },
    /// A shared directory.
    File(PathBuf),
}

impl RemoteUrl {
    /// Returns the shared directory, if this is one.
    pub fn directory(&self) -> Option<&Path> {
        match self {
            Self::File(dir) => Some(dir),
            Self::S3 { .. } => None,
        }
    }

    /// Returns the prefix of every key; a directory has none, as its root is the address itself.
    pub fn prefix(&self) -> &str {
        match self {
            Self::S3 { prefix, .. } => prefix,
            Self::File(_) => "",
        }
    }
}

impl fmt::Display for RemoteUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::S3 { bucket, prefix } if prefix.is_empty() => write!(f, "s3://{bucket}"),
            Self::S3 { bucket, prefix } => write!(f, "s3://{bucket}/{prefix}"),
            // The url crate escapes what an address cannot hold; a path that came in comes out.
            Self::File(dir) => match url::Url::from_file_path(dir) {
                Ok(url) => f.write_str(url.as_str()),
                Err(()) => write!(f, "file://{}", dir.display()),
            },
        }
    }
}

impl From<RemoteUrl> for String {
    fn from(url: RemoteUrl) -> Self {
        url.to_string()
    }
}

impl FromStr for RemoteUrl {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let expected = |problem: &str| format!("{problem}; expected {URL_FORM}");
        if text.len() > URL_BYTES_MAX {
            return Err(expected(&format!("it is longer than {URL_BYTES_MAX} bytes")));
        }
        let Some((scheme, rest)) = text.split_once("://") else {
            return Err(if text.starts_with('/') {
                expected(&format!("it is a path; did you mean \"file://{text}\"?"))
            } else {
                expected("it is not an address")
            });
        };
        if rest.contains(['?', '#']) {
            return Err(expected("`?` and `#` have no meaning in it"));
        }
        if text.chars().any(char::is_control) {
            return Err(expected("it holds a control character"));
        }
        match scheme {
            "s3" => s3(rest).map_err(|problem| expected(&problem)),
            "file" => file(text, rest).map_err(|problem| expected(&problem)),
            other if LATER_SCHEMES.contains(&other) => {
                Err(expected(&format!("`{other}://` is not in this version")))
            }
            other => Err(expected(&format!("`{other}://` is not known"))),
        }
    }
}

fn s3(rest: &str) -> Result<RemoteUrl, String> {
    let (bucket, prefix) = rest.split_once('/').unwrap_or((rest, ""));
    if bucket.contains('@') {
        return Err("credentials do not belong into an address; use AWS_ACCESS_KEY_ID and \
                    AWS_SECRET_ACCESS_KEY, or a profile"
            .to_owned());
    }
    if bucket.is_empty() {
        return Err("the bucket is missing".to_owned());
    }
    let plain = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'-' | b'_');
    if !(3..=63).contains(&bucket.len()) || !bucket.bytes().all(plain) {
        return Err(format!(
            "`{bucket}` cannot be a bucket: 3 to 63 letters, digits, dots, dashes"
        ));
    }
    let prefix = prefix.trim_matches('/');
    if prefix.split('/').any(|part| matches!(part, "." | ".."))
        || (!prefix.is_empty() && prefix.contains("//"))
    {
        return Err("the prefix holds `.`, `..` or an empty part".to_owned());
    }
    let plain = |b: u8| b.is_ascii_alphanumeric() || b"-_.=+,:@/".contains(&b);
    if !prefix.bytes().all(plain) {
        return Err(
            "the prefix holds other characters than letters, digits and `-_.=+,:@/`".to_owned()
        );
    }
    if prefix.len() > PREFIX_BYTES_MAX {
        return Err(format!("the prefix is longer than {PREFIX_BYTES_MAX} bytes"));
    }
    Ok(RemoteUrl::S3 { bucket: bucket.to_owned(), prefix: prefix.to_owned() })
}

fn file(text: &str, rest: &str) -> Result<RemoteUrl, String> {
    if !rest.starts_with('/') {
        return Err("the directory must be absolute, with three slashes in front".to_owned());
    }
    let url = url::Url::parse(text).map_err(|error| error.to_string())?;
    let dir = url.to_file_path().map_err(|()| "it names no directory".to_owned())?;
    if dir == Path::new("/") {
        return Err("the root directory cannot be the remote".to_owned());
    }
    // Without this a trailing slash would make two addresses of one directory.
    Ok(RemoteUrl::File(dir.components().collect()))
}

/// Returns `text` with anything that looks like `user:password@` blotted out, for messages.
pub fn without_secrets(text: &str) -> String {
    let Some((scheme, rest)) = text.split_once("://") else { return text.to_owned() };
    let end = rest.find('/').unwrap_or(rest.len());
    match rest[..end].rfind('@') {
        Some(at) => format!("{scheme}://***{}", &rest[at..]),
        None => text.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn good_addresses() {
        for (text, shown) in [
            ("s3://bucket", "s3://bucket"),
            ("s3://bucket/", "s3://bucket"),
            ("s3://bucket/a/b/", "s3://bucket/a/b"),
            ("file:///srv/cache", "file:///srv/cache"),
            ("file:///srv/with%20space", "file:///srv/with%20space"),
            ("file:///srv/with space", "file:///srv/with%20space"),
        ] {
            let url: RemoteUrl = text.parse().expect(text);
            assert_eq!(url.to_string(), shown);
            assert_eq!(url.to_string().parse::<RemoteUrl>().expect("read back"), url);
        }
        let url: RemoteUrl = "file:///srv/with%20space".parse().expect("valid");
        assert_eq!(url.directory(), Some(Path::new("/srv/with space")));
    }

    #[test]
    fn bad_addresses_say_why() {
        for (text, why) in [
            ("", "not an address"),
            ("bucket", "not an address"),
            ("/srv/cache", "did you mean \"file:///srv/cache\""),
            ("s3://", "bucket is missing"),
            ("s3:///prefix", "bucket is missing"),
            ("s3://a", "cannot be a bucket"),
            ("s3://under score!", "cannot be a bucket"),
            ("s3://bucket/../x", "`..`"),
            ("s3://bucket/a//b", "empty part"),
            ("s3://bucket?region=x", "no meaning"),
            ("s3://key:secret@bucket", "credentials"),
            ("gs://bucket", "not in this version"),
            ("az://account/container", "not in this version"),
            ("ftp://host/dir", "not known"),
            ("file://relative/dir", "absolute"),
            ("file:///", "root directory"),
            ("file:///x\ny", "control"),
        ] {
            let error = text.parse::<RemoteUrl>().expect_err(text);
            assert!(error.contains(why), "{text}: {error}");
            assert!(!error.contains("secret@"), "{error}");
        }
    }

    #[test]
    fn passwords_are_not_repeated() {
        assert_eq!(without_secrets("s3://key:secret@bucket/x"), "s3://***@bucket/x");
        assert_eq!(without_secrets("s3://bucket/a@b"), "s3://bucket/a@b");
    }
}
