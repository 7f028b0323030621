//! Translates the requests of one cloud for a server of another.
//!
//! Google's XML interface equals S3's except for the names of headers, bearer tokens instead of
//! signatures, generations of objects, and a failing delete of a missing object.

use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::time::Duration;

use hyper::header::{HeaderMap, HeaderName, HeaderValue};

use super::server::{Request, file_of, refusal};

/// The dialect of a server.
#[derive(Debug)]
pub(crate) enum Dialect {
    /// Unchanged.
    S3,
    /// S3 without signatures: a proxy in between may change a request.
    Open,
    /// Google Cloud Storage.
    Gcs(Google),
}

/// The state of Google's dialect.
#[derive(Debug, Default)]
pub(crate) struct Google {
    /// The id of the only key whose tokens are accepted; `None` accepts any, also an empty one.
    key_id: std::sync::Arc<Mutex<Option<String>>>,
}

/// The facts of a request that its answer needs.
#[derive(Debug, Clone)]
pub(super) struct Asked {
    file: PathBuf,
}

impl Google {
    /// Accepts only tokens that were signed with the key of this id, which may be changed later.
    pub(crate) fn with_key_id(key_id: &std::sync::Arc<Mutex<Option<String>>>) -> Self {
        Self { key_id: key_id.clone() }
    }

    fn lets_in(&self, headers: &HeaderMap) -> bool {
        let wanted = self.key_id.lock().expect("no thread panics with the lock").clone();
        let Some(wanted) = wanted else { return true };
        let token = headers.get("authorization").and_then(|value| value.to_str().ok());
        let head = token.and_then(|token| token.strip_prefix("Bearer ")?.split('.').next());
        // The head of a token is JSON, in base64.
        let head = head.map(from_base64).unwrap_or_default();
        let head: serde_json::Value = serde_json::from_slice(&head).unwrap_or_default();
        head["kid"] == wanted.as_str()
    }
}

impl Dialect {
    /// Turns a request into one of S3, or answers it.
    pub(super) fn read(
        &self,
        request: &mut Request,
        root: &Path,
    ) -> Result<Asked, Box<s3s::HttpResponse>> {
        let asked = Asked { file: file_of(request, root) };
        let Self::Gcs(google) = self else { return Ok(asked) };
        if !google.lets_in(request.headers()) {
            return Err(refusal(401, "AuthenticationRequired").into());
        }
        if request.method() == "DELETE"
            && request.uri().query().is_none()
            && !file_of(request, root).exists()
        {
            return Err(refusal(404, "NoSuchKey").into());
        }
        request.headers_mut().remove("authorization");
        if let Some(wanted) = request.headers_mut().remove("x-goog-if-generation-match") {
            if wanted == "0" {
                // Generation 0 means that there is no object.
                request.headers_mut().insert("if-none-match", HeaderValue::from_static("*"));
            } else if is_young(&asked.file) {
                return Err(refusal(429, "SlowDown").into());
            } else if wanted != generation_of(&asked.file) {
                return Err(refusal(412, "PreconditionFailed").into());
            }
        }
        rename(request.headers_mut(), "x-goog-", "x-amz-");
        Ok(asked)
    }

    /// Turns an answer of S3 into one of this cloud.
    pub(super) fn write(&self, asked: &Asked, answer: &mut s3s::HttpResponse) {
        let Self::Gcs(_) = self else { return };
        rename(answer.headers_mut(), "x-amz-", "x-goog-");
        answer.headers_mut().insert("x-goog-generation", generation_of(&asked.file));
    }
}

/// Reports whether an object was written within the last second, so that it must not be replaced yet.
fn is_young(file: &Path) -> bool {
    let written = std::fs::metadata(file).and_then(|data| data.modified()).ok();
    let age = written.and_then(|at| at.elapsed().ok());
    age.is_some_and(|age| age < Duration::from_secs(1))
}

/// Returns when an object was written, in nanoseconds; 0 for none.
fn generation_of(file: &Path) -> HeaderValue {
    let written = std::fs::metadata(file).and_then(|data| data.modified()).ok();
    let since = written.and_then(|at| at.duration_since(std::time::UNIX_EPOCH).ok());
    HeaderValue::from(since.map_or(0, |since| since.as_nanos() as u64))
}

fn rename(headers: &mut HeaderMap, from: &str, to: &str) {
    let named: Vec<_> = headers.keys().filter(|n| n.as_str().starts_with(from)).cloned().collect();
    for old in named {
        let name = old.as_str().replacen(from, to, 1);
        if let Some(value) = headers.remove(&old) {
            headers.insert(HeaderName::from_bytes(name.as_bytes()).expect("a name"), value);
        }
    }
}

/// Decodes base64, of either alphabet.
fn from_base64(text: &str) -> Vec<u8> {
    let (mut bits, mut count, mut bytes) = (0_u32, 0, Vec::new());
    for byte in text.bytes() {
        let six = match byte {
            b'A'..=b'Z' => byte - b'A',
            b'a'..=b'z' => byte - b'a' + 26,
            b'0'..=b'9' => byte - b'0' + 52,
            b'+' | b'-' => 62,
            b'/' | b'_' => 63,
            _ => continue,
        };
        (bits, count) = (bits << 6 | u32::from(six), count + 6);
        if count >= 8 {
            count -= 8;
            bytes.push((bits >> count) as u8);
        }
    }
    bytes
}
