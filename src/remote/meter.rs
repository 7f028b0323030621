//! Counts of requests to the store.
//!
//! Owns the counters and the places that increment them. For buckets that is the HTTP client, so
//! that pages of a list, parts of an upload and retries all count; for other stores it is the
//! operation. Must never fail a request.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use async_trait::async_trait;
use object_store::ClientOptions;
use object_store::client::{
    HttpClient, HttpConnector, HttpError, HttpRequest, HttpResponse, HttpService, ReqwestConnector,
};
use serde::Serialize;

use super::latency::{Latency, RequestOutcome};
use super::throttle::Answers;
use super::verb::Verb;

/// The number of requests of each kind since start, and the bytes of objects moved.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct Requests {
    /// Objects and parts written, uploads begun and completed.
    pub puts: u64,
    /// Objects and ranges read.
    pub gets: u64,
    /// Pages listed.
    pub lists: u64,
    /// Deletes, aborted uploads included.
    pub deletes: u64,
    /// Checks whether an object is there.
    pub heads: u64,
    /// Bytes of objects that the store has acknowledged, compressed; large objects count part by part.
    pub bytes_up: u64,
    /// Bytes of objects received, compressed.
    pub bytes_down: u64,
    /// Operations that failed, except misses.
    pub errors: u64,
}

impl Requests {
    /// Returns the number of requests of all kinds.
    pub fn total(&self) -> u64 {
        self.puts + self.gets + self.lists + self.deletes + self.heads
    }
}

/// The counters behind [`Requests`].
#[derive(Debug, Default)]
pub(super) struct Meter {
    puts: AtomicU64,
    gets: AtomicU64,
    lists: AtomicU64,
    deletes: AtomicU64,
    heads: AtomicU64,
    bytes_up: AtomicU64,
    bytes_down: AtomicU64,
    errors: AtomicU64,
    pub(super) answers: Arc<Answers>,
    pub(super) latency: Latency,
    /// The clock of the last server that answered, in milliseconds since the Unix epoch; 0 if already taken.
    date_ms: AtomicU64,
    /// The same, never reset.
    last_date_ms: AtomicU64,
    /// The region of the bucket, from the first answer that names one.
    region: OnceLock<String>,
}

/// The longest name of a region that is stored.
const REGION_BYTES_MAX: usize = 64;
/// Headers of a request that replaces one certain version of an object. Its refusal says nothing
/// about how much load the store accepts.
const REPLACES: [&str; 2] = ["if-match", "x-goog-if-generation-match"];

impl Meter {
    /// Returns the clock of the last server that answered, once for each answer.
    pub(super) fn take_date_ms(&self) -> Option<u64> {
        match self.date_ms.swap(0, Ordering::Relaxed) {
            0 => None,
            ms => Some(ms),
        }
    }

    /// Records the header `Date`.
    fn note_date(&self, date: &str) {
        if let Ok(date) = chrono::DateTime::parse_from_rfc2822(date) {
            let date_ms = date.timestamp_millis().max(0) as u64;
            self.date_ms.store(date_ms, Ordering::Relaxed);
            self.last_date_ms.store(date_ms, Ordering::Relaxed);
        }
    }

    /// Returns the clock of the last server that answered.
    pub(super) fn last_date_ms(&self) -> Option<u64> {
        Some(self.last_date_ms.load(Ordering::Relaxed)).filter(|ms| *ms > 0)
    }

    /// Records the region of the bucket that an answer names.
    fn note_region(&self, region: &str) {
        let is_name = |c: u8| c.is_ascii_alphanumeric() || c == b'-';
        if self.region.get().is_none()
            && (1..=REGION_BYTES_MAX).contains(&region.len())
            && region.bytes().all(is_name)
        {
            // Another answer may have been first; it names the same region.
            self.region.set(region.to_owned()).ok();
        }
    }

    /// Returns the region of the bucket, if an answer has named one.
    pub(super) fn region(&self) -> Option<String> {
        self.region.get().cloned()
    }

    pub(super) fn request(&self, verb: Verb) {
        let counter = match verb {
            Verb::Put => &self.puts,
            Verb::Get => &self.gets,
            Verb::List => &self.lists,
            Verb::Delete => &self.deletes,
            Verb::Head => &self.heads,
        };
        counter.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn up(&self, bytes: u64) {
        self.bytes_up.fetch_add(bytes, Ordering::Relaxed);
    }

    pub(super) fn down(&self, bytes: u64) {
        self.bytes_down.fetch_add(bytes, Ordering::Relaxed);
    }

    pub(super) fn error(&self) {
        self.errors.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn read(&self) -> Requests {
        let get = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        Requests {
            puts: get(&self.puts),
            gets: get(&self.gets),
            lists: get(&self.lists),
            deletes: get(&self.deletes),
            heads: get(&self.heads),
            bytes_up: get(&self.bytes_up),
            bytes_down: get(&self.bytes_down),
            errors: get(&self.errors),
        }
    }
}

/// Makes HTTP clients that count their requests.
#[derive(Debug)]
pub(super) struct MeteredConnector {
    pub(super) meter: Arc<Meter>,
    /// Requests carry no signature, so a missing signature does not identify metadata requests.
    pub(super) anonymous: bool,
}

impl HttpConnector for MeteredConnector {
    fn connect(&self, options: &ClientOptions) -> object_store::Result<HttpClient> {
        let inner = ReqwestConnector::default().connect(options)?;
        let meter = self.meter.clone();
        Ok(HttpClient::new(Metered { inner, meter, anonymous: self.anonymous }))
    }
}

#[derive(Debug)]
struct Metered {
    inner: HttpClient,
    meter: Arc<Meter>,
    anonymous: bool,
}

#[async_trait]
impl HttpService for Metered {
    async fn call(&self, request: HttpRequest) -> Result<HttpResponse, HttpError> {
        let query = request.uri().query().unwrap_or("");
        // The same client also queries instance metadata and token services, without a signature.
        // Azure may put the signature into the query.
        let signed = request.headers().contains_key("authorization") || has(query, "sig");
        if !self.anonymous && !signed {
            return self.inner.execute(request).await;
        }
        let verb = verb_of(request.method().as_str(), query);
        let replaces = REPLACES.iter().any(|name| request.headers().contains_key(*name));
        self.meter.request(verb);
        let began = self.meter.latency.now();
        let answer = self.inner.execute(request).await.inspect_err(|_| {
            self.meter.latency.note(verb, RequestOutcome::Unanswered, began);
        })?;
        let status = answer.status().as_u16();
        self.meter.latency.note(verb, RequestOutcome::Status(status), began);
        if !(replaces && verb == Verb::Put) {
            self.meter.answers.note(status);
        }
        // An error may come from a proxy, so its date is ignored.
        let date = answer.headers().get("date").filter(|_| answer.status().is_success());
        if let Some(date) = date.and_then(|date| date.to_str().ok()) {
            self.meter.note_date(date);
        }
        let region = answer.headers().get("x-amz-bucket-region");
        if let Some(region) = region.and_then(|region| region.to_str().ok()) {
            self.meter.note_region(region);
        }
        Ok(answer)
    }
}

fn verb_of(method: &str, query: &str) -> Verb {
    let azure = |what: &str| query.split('&').any(|part| part.strip_prefix("comp=") == Some(what));
    match method {
        "GET" if has(query, "list-type") || azure("list") => Verb::List,
        "GET" => Verb::Get,
        "HEAD" => Verb::Head,
        "DELETE" => Verb::Delete,
        "POST" if has(query, "delete") || azure("batch") => Verb::Delete,
        _ => Verb::Put,
    }
}

/// Reports whether a query has this parameter, with or without a value.
fn has(query: &str, name: &str) -> bool {
    query.split('&').any(|part| part.split('=').next() == Some(name))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_date_is_reported_once() {
        let meter = Meter::default();
        for date in ["Sun, 06 Nov 1994 08:49:37 GMT", "yesterday", ""] {
            meter.note_date(date);
        }
        assert_eq!(meter.take_date_ms(), Some(784_111_777_000));
        assert_eq!(meter.take_date_ms(), None);
    }

    #[test]
    fn a_region_is_a_plain_name() {
        let meter = Meter::default();
        for region in ["", "\u{1b}[31m", "a b", &"x".repeat(65)] {
            meter.note_region(region);
        }
        assert_eq!(meter.region(), None);
        meter.note_region("eu-west-1");
        meter.note_region("us-east-1");
        assert_eq!(meter.region().as_deref(), Some("eu-west-1"));
    }

    #[derive(Debug)]
    struct Answering(u16);

    #[async_trait]
    impl HttpService for Answering {
        async fn call(&self, _: HttpRequest) -> Result<HttpResponse, HttpError> {
            let mut answer = HttpResponse::new(bytes::Bytes::new().into());
            *answer.status_mut() = self.0.try_into().unwrap();
            let date = "Sun, 06 Nov 1994 08:49:37 GMT".parse().unwrap();
            answer.headers_mut().insert("date", date);
            Ok(answer)
        }
    }

    /// An error may come from a proxy.
    #[test]
    fn the_date_of_an_error_says_nothing() {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        for (status, says) in [(200, true), (206, true), (403, false), (502, false)] {
            let meter = Arc::new(Meter::default());
            let inner = HttpClient::new(Answering(status));
            let metered = Metered { inner, meter: meter.clone(), anonymous: true };
            let request = HttpRequest::new(bytes::Bytes::new().into());
            drop(runtime.block_on(metered.call(request)).unwrap());
            assert_eq!(meter.take_date_ms().is_some(), says, "{status}");
        }
    }

    #[test]
    fn requests_are_distinguished() {
        for (method, query, verb) in [
            ("GET", "", Verb::Get),
            ("GET", "list-type=2&prefix=a", Verb::List),
            ("HEAD", "", Verb::Head),
            ("PUT", "", Verb::Put),
            ("PUT", "partNumber=1&uploadId=x", Verb::Put),
            ("POST", "uploads=", Verb::Put),
            ("POST", "uploadId=delete", Verb::Put),
            ("POST", "delete", Verb::Delete),
            ("DELETE", "uploadId=x", Verb::Delete),
            ("GET", "restype=container&comp=list&prefix=a", Verb::List),
            ("GET", "sv=2024&sig=x", Verb::Get),
            ("PUT", "comp=block&blockid=x", Verb::Put),
            ("PUT", "comp=blocklist", Verb::Put),
            ("POST", "restype=container&comp=batch", Verb::Delete),
        ] {
            assert_eq!(verb_of(method, query), verb, "{method} {query}");
        }
    }
}
