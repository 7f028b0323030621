//! The address of the remote, as it is written.
//!
//! Owns the check of its form. Must never connect to anything, and never repeat a password that a
//! person put into an address: messages omit it.

use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use serde::Serialize;

/// The form of an address, for messages.
pub(super) const URL_FORM: &str = "s3://BUCKET[/PREFIX], gs://BUCKET[/PREFIX], \
    az://ACCOUNT/CONTAINER[/PREFIX] or file:///DIRECTORY";

/// The longest address that is accepted, in bytes.
const URL_BYTES_MAX: usize = 2048;
/// The longest key prefix, in bytes. All stores allow keys of 1024; ours need about 90 after the prefix.
const PREFIX_BYTES_MAX: usize = 512;

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
    /// A bucket of Google Cloud Storage.
    Gcs {
        /// The bucket.
        bucket: String,
        /// As above.
        prefix: String,
    },
    /// A container of Azure Blob Storage.
    Azure {
        /// The storage account.
        account: String,
        /// The container in it.
        container: String,
        /// As above.
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
            Self::S3 { .. } | Self::Gcs { .. } | Self::Azure { .. } => None,
        }
    }

    /// Returns the prefix of every key; empty for a directory, whose root is the address itself.
    pub fn prefix(&self) -> &str {
        match self {
            Self::S3 { prefix, .. } | Self::Gcs { prefix, .. } | Self::Azure { prefix, .. } => {
                prefix
            }
            Self::File(_) => "",
        }
    }
}

impl fmt::Display for RemoteUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::S3 { bucket, .. } => write!(f, "s3://{bucket}")?,
            Self::Gcs { bucket, .. } => write!(f, "gs://{bucket}")?,
            Self::Azure { account, container, .. } => write!(f, "az://{account}/{container}")?,
            // The url crate escapes the path for the address, so that parsing returns the same path.
            Self::File(dir) => match url::Url::from_file_path(dir) {
                Ok(url) => f.write_str(url.as_str())?,
                Err(()) => write!(f, "file://{}", dir.display())?,
            },
        }
        if self.prefix().is_empty() { Ok(()) } else { write!(f, "/{}", self.prefix()) }
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
        let read = match scheme {
            "s3" => s3(rest),
            "gs" => gcs(rest),
            "az" => azure(rest),
            "file" => file(text, rest),
            other => Err(format!("`{other}://` is not known")),
        };
        read.map_err(|problem| expected(&problem))
    }
}

fn s3(rest: &str) -> Result<RemoteUrl, String> {
    let (bucket, prefix) = rest.split_once('/').unwrap_or((rest, ""));
    refuse_credentials(
        bucket,
        "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or a profile of the AWS files",
    )?;
    if bucket.is_empty() {
        return Err("the bucket is missing".to_owned());
    }
    let plain = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'-' | b'_');
    if !(3..=63).contains(&bucket.len()) || !bucket.bytes().all(plain) {
        return Err(format!(
            "`{bucket}` cannot be a bucket: 3 to 63 letters, digits, dots, dashes"
        ));
    }
    Ok(RemoteUrl::S3 { bucket: bucket.to_owned(), prefix: prefix_of(prefix)? })
}

fn gcs(rest: &str) -> Result<RemoteUrl, String> {
    let (bucket, prefix) = rest.split_once('/').unwrap_or((rest, ""));
    refuse_credentials(bucket, "GOOGLE_APPLICATION_CREDENTIALS, which names a file")?;
    if bucket.is_empty() {
        return Err("the bucket is missing".to_owned());
    }
    let plain = |b: u8| is_small(b) || matches!(b, b'.' | b'-' | b'_');
    let ends = [bucket.as_bytes().first(), bucket.as_bytes().last()];
    let good = (3..=222).contains(&bucket.len())
        && bucket.split('.').all(|part| (1..=63).contains(&part.len()))
        && bucket.bytes().all(plain)
        && ends.into_iter().flatten().all(|b| is_small(*b));
    if !good {
        return Err(format!(
            "`{bucket}` cannot be a bucket: 3 to 63 small letters, digits, dots, dashes, underscores, \
             with a letter or digit at both ends"
        ));
    }
    Ok(RemoteUrl::Gcs { bucket: bucket.to_owned(), prefix: prefix_of(prefix)? })
}

fn azure(rest: &str) -> Result<RemoteUrl, String> {
    let (account, rest) = rest.split_once('/').unwrap_or((rest, ""));
    refuse_credentials(
        account,
        "AZURE_STORAGE_ACCOUNT_KEY, AZURE_STORAGE_SAS_TOKEN or an identity",
    )?;
    if account.is_empty() {
        return Err("the storage account is missing".to_owned());
    }
    if let Some((name, _)) = account.split_once('.') {
        return Err(format!(
            "`{account}` is a host name; write the account alone, `{name}`, and the host of another \
             cloud than Azure's public one into remote.endpoint"
        ));
    }
    if !(3..=24).contains(&account.len()) || !account.bytes().all(is_small) {
        return Err(format!(
            "`{account}` cannot be a storage account: 3 to 24 small letters and digits"
        ));
    }
    let (container, prefix) = rest.split_once('/').unwrap_or((rest, ""));
    if container.is_empty() {
        return Err(format!("the container after `{account}` is missing"));
    }
    let plain = |b: u8| is_small(b) || b == b'-';
    let good = (3..=63).contains(&container.len())
        && container.bytes().all(plain)
        && !container.starts_with('-')
        && !container.ends_with('-')
        && !container.contains("--");
    if !good {
        return Err(format!(
            "`{container}` cannot be a container: 3 to 63 small letters, digits and single dashes \
             between them"
        ));
    }
    let prefix = prefix_of(prefix)?;
    if prefix.split('/').any(|part| part.ends_with('.')) {
        return Err("a part of the prefix ends with a dot, which this store removes".to_owned());
    }
    let (account, container) = (account.to_owned(), container.to_owned());
    Ok(RemoteUrl::Azure { account, container, prefix })
}

fn is_small(byte: u8) -> bool {
    byte.is_ascii_lowercase() || byte.is_ascii_digit()
}

/// Refuses text that looks like a user with a password where only a name is allowed. No message may
/// repeat it: if a secret contains a slash, a part of the secret ends here.
fn refuse_credentials(name: &str, instead: &str) -> Result<(), String> {
    if name.contains(['@', ':']) {
        return Err(format!("credentials do not belong in an address; use {instead}"));
    }
    Ok(())
}

fn prefix_of(text: &str) -> Result<String, String> {
    let prefix = text.trim_matches('/');
    if prefix.split('/').any(|part| matches!(part, "." | ".."))
        || (!prefix.is_empty() && prefix.contains("//"))
    {
        return Err("the prefix holds `.`, `..` or an empty part".to_owned());
    }
    let plain = |b: u8| b.is_ascii_alphanumeric() || b"-_.=+,:@/".contains(&b);
    if !prefix.bytes().all(plain) {
        return Err(
            "the prefix holds characters other than letters, digits and `-_.=+,:@/`".to_owned()
        );
    }
    if prefix.len() > PREFIX_BYTES_MAX {
        return Err(format!("the prefix is longer than {PREFIX_BYTES_MAX} bytes"));
    }
    Ok(prefix.to_owned())
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
    // Otherwise a trailing slash would give one directory two addresses.
    Ok(RemoteUrl::File(dir.components().collect()))
}

/// Returns `text` without anything that may be a secret, for messages: removes a leading `user:password@`
/// (a password may contain slashes), and everything after a `?`, as in a signed address.
pub fn without_secrets(text: &str) -> String {
    let Some((scheme, rest)) = text.split_once("://") else { return text.to_owned() };
    let (rest, query) = match rest.find('?') {
        Some(at) => (&rest[..at], "?***"),
        None => (rest, ""),
    };
    let first = &rest[..rest.find('/').unwrap_or(rest.len())];
    let last = if first.contains(':') { rest.rfind('@') } else { first.rfind('@') };
    match last {
        Some(at) => format!("{scheme}://***{}{query}", &rest[at..]),
        None => format!("{scheme}://{rest}{query}"),
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
            ("gs://a.bucket_1", "gs://a.bucket_1"),
            ("gs://bucket//a/", "gs://bucket/a"),
            ("az://account1/con-tainer", "az://account1/con-tainer"),
            ("az://account1/container/a/b/", "az://account1/container/a/b"),
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
            ("s3://key:sec/ret@bucket", "credentials"),
            ("gs://", "bucket is missing"),
            ("gs://Bucket", "cannot be a bucket"),
            ("gs://bucket-", "cannot be a bucket"),
            ("gs://a..b", "cannot be a bucket"),
            ("gs://user:secret@bucket", "GOOGLE_APPLICATION_CREDENTIALS"),
            ("gs://bucket/../x", "`..`"),
            ("az://account", "container after `account` is missing"),
            ("az:///container", "account is missing"),
            ("az://Account/container", "cannot be a storage account"),
            ("az://account.blob.core.windows.net/container", "write the account alone, `account`"),
            ("az://account/$root", "cannot be a container"),
            ("az://account/a--b", "cannot be a container"),
            ("az://account/container/a./b", "ends with a dot"),
            ("az://account:sec/ret@container", "AZURE_STORAGE_ACCOUNT_KEY"),
            ("az://account/container?sv=2024&sig=secret", "no meaning"),
            ("ftp://host/dir", "not known"),
            ("file://relative/dir", "absolute"),
            ("file:///", "root directory"),
            ("file:///x\ny", "control"),
        ] {
            let error = text.parse::<RemoteUrl>().expect_err(text);
            assert!(error.contains(why), "{text}: {error}");
            for secret in ["secret", "sec/", "key:sec"] {
                assert!(!error.contains(secret), "{error}");
            }
        }
    }

    #[test]
    fn passwords_are_not_repeated() {
        assert_eq!(without_secrets("s3://key:secret@bucket/x"), "s3://***@bucket/x");
        assert_eq!(without_secrets("s3://key:sec/ret@bucket/x"), "s3://***@bucket/x");
        assert_eq!(without_secrets("az://account/c?sig=a@b"), "az://account/c?***");
        assert_eq!(without_secrets("s3://bucket/a@b"), "s3://bucket/a@b");
    }
}
