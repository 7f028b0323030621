//! Classifies the errors of a store.
//!
//! Owns the one mapping from the client library's errors to ours. Must never let a credential, the
//! query of an address or a page of XML into a message.

use std::error::Error as StdError;

use object_store::Error as StoreError;
use object_store::client::{HttpError, HttpErrorKind};

use crate::error::{Error, Kind};

/// The statuses of throttling: "too many requests", and "unavailable", with which S3 says "slow down".
pub const THROTTLED: [u16; 2] = [429, 503];
/// The longest text of a store that is copied into a message.
const TEXT_BYTES_MAX: usize = 300;

/// The error codes of S3, Google and Azure for a missing bucket.
const MISSING_BUCKET: [&str; 3] = ["NoSuchBucket", "ContainerNotFound", "ContainerBeingDeleted"];
/// Their codes for wrong or expired credentials, with which no request works.
const CREDENTIALS: [&str; 8] = [
    "ExpiredToken",
    "InvalidToken",
    "InvalidAccessKeyId",
    "SignatureDoesNotMatch",
    "AuthenticationFailed",
    "AuthenticationRequired",
    "InvalidAuthenticationInfo",
    "NoAuthenticationInformation",
];
/// Azure's message for the same; it may come with a code that also means other things.
const UNAUTHENTICATED: &str = "Server failed to authenticate the request";
/// Their codes for missing permissions, where the status may differ from 403.
const NOT_ALLOWED: [&str; 2] = ["AccessDenied", "PublicAccessNotPermitted"];

/// Azure's codes for an upload whose parts are gone: Azure drops them when another upload of the
/// same object ends. The upload is repeated.
const PARTS_GONE: [&str; 2] = ["InvalidBlockList", "InvalidBlobOrBlock"];
/// The codes of S3 and Azure for a body that did not arrive, or not as it was sent. They come with
/// 400, and say nothing about the body itself.
const BODY_LOST: [&str; 5] =
    ["RequestTimeout", "IncompleteBody", "BadDigest", "XAmzContentSHA256Mismatch", "Md5Mismatch"];
/// The prefix of the message for a failure to get credentials.
pub(super) const NO_CREDENTIALS: &str = "no credentials: ";

/// The library's messages for a range beyond the end of an object, when the store did not report it.
const BEYOND_THE_END: [&str; 2] = ["Requested range was invalid", "Wanted range starting at"];

/// The cause of a failure, if something can be done about it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Cause {
    /// The bucket is missing, rather than an object in it.
    MissingBucket,
    /// There are no credentials; the message explains why.
    NoCredentials,
    /// The credentials are wrong or expired.
    Credentials,
    /// Our clock is too wrong for a signature.
    Clock,
    /// Too many requests at once, or two writers of the same object: it says nothing about other requests.
    Crowded,
    /// The store does not read parts of objects.
    NoRanges,
    /// No particular cause is known.
    Other,
}

/// How the receiver has to treat an error of the store. This is the only place that decides it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ErrorClass {
    /// The object is missing or damaged. Every node that asks gets the same answer.
    Proof,
    /// The failure may be over soon: throttling, a server error, a broken connection, no answer.
    /// Wait and retry.
    Passing,
    /// The store refuses this request, and waiting changes nothing: not allowed, too large, malformed.
    Refused,
    /// The failure is ours and not the store's: our own disk, our own shutdown.
    Ours,
}

impl ErrorClass {
    /// Returns the class of an error of a request.
    pub fn of(kind: Kind) -> Self {
        match kind {
            Kind::NotFound | Kind::Corrupt => Self::Proof,
            Kind::Unavailable | Kind::TimedOut => Self::Passing,
            Kind::Denied | Kind::Invalid => Self::Refused,
            Kind::Exists
            | Kind::Busy
            | Kind::NoSpace
            | Kind::Exhausted
            | Kind::Closed
            | Kind::Internal => Self::Ours,
        }
    }
}

/// What a failure shows to be unavailable.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Reach {
    /// Everything in the store, unless another request succeeded meanwhile.
    Store,
    /// What was requested. Other requests may succeed.
    Request,
    /// Nothing: the store has answered.
    Nothing,
}

/// What went wrong, boiled down.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{text}")]
pub(super) struct Trouble {
    pub(super) kind: Kind,
    cause: Cause,
    /// Nothing came back: there is no server, or it does not answer.
    silent: bool,
    /// The status, if the store itself reported the failure.
    status: Option<u16>,
    text: String,
}

impl Trouble {
    /// Returns what the failure shows to be unavailable.
    pub(super) fn reach(&self) -> Reach {
        match (self.kind, self.cause) {
            (Kind::TimedOut | Kind::Unavailable | Kind::Denied, _) if self.silent => Reach::Store,
            (
                _,
                Cause::MissingBucket | Cause::NoCredentials | Cause::Credentials | Cause::Clock,
            ) => Reach::Store,
            (Kind::TimedOut | Kind::Unavailable | Kind::Denied, _) => Reach::Request,
            _ => Reach::Nothing,
        }
    }

    /// Reports whether the store itself reported it, rather than the connection breaking.
    pub(super) fn is_answered(&self) -> bool {
        self.status.is_some()
    }

    /// Returns the status, if the store itself reported the failure.
    pub(super) fn status(&self) -> Option<u16> {
        self.status
    }

    /// Reports whether an error of a request means throttling.
    pub(super) fn is_throttled(error: &Error) -> bool {
        let mut cause = error.source();
        while let Some(error) = cause {
            if let Some(trouble) = error.downcast_ref::<Self>() {
                return trouble.status.is_some_and(|status| THROTTLED.contains(&status));
            }
            cause = error.source();
        }
        false
    }

    /// Returns the cause of an error of a request.
    pub(super) fn cause_of(error: &Error) -> Cause {
        let trouble = error.source().and_then(|source| source.downcast_ref::<Self>());
        trouble.map_or(Cause::Other, Self::cause)
    }

    /// Returns the cause, if the store says more than the kind.
    pub(super) fn cause(&self) -> Cause {
        self.cause
    }

    fn plain(kind: Kind, text: String) -> Self {
        Self { kind, cause: Cause::Other, silent: false, status: None, text }
    }

    pub(super) fn timed_out(text: String) -> Self {
        Self { silent: true, ..Self::plain(Kind::TimedOut, text) }
    }

    pub(super) fn gone(text: String) -> Self {
        Self { silent: true, ..Self::plain(Kind::Unavailable, text) }
    }

    pub(super) fn corrupt(text: String) -> Self {
        Self::plain(Kind::Corrupt, text)
    }

    /// A failure to decompress into a local file: damaged bytes, or a failure of our own disk.
    pub(super) fn of_writing(error: &std::io::Error) -> Self {
        let kind = match error.kind() {
            std::io::ErrorKind::StorageFull | std::io::ErrorKind::QuotaExceeded => Kind::NoSpace,
            // zstd's errors have no kind of their own.
            std::io::ErrorKind::Other | std::io::ErrorKind::InvalidData => Kind::Corrupt,
            _ => Kind::Internal,
        };
        Self::plain(kind, clipped(&error.to_string()))
    }

    pub(super) fn cut_short(got: u64, wanted: u64) -> Self {
        let text = format!("{got} of {wanted} bytes arrived");
        Self::plain(Kind::Unavailable, text)
    }

    pub(super) fn of(error: &StoreError) -> Self {
        let said = root_text(error);
        let status = status_in(&said);
        // The service's error code, such as `NoSuchBucket`.
        let code = between(&said, "<Code>", "</Code>");
        let cause = cause_of(error, &said, status, code);
        let kind = kind_of(error, status, code, cause);
        let text = match (status, code) {
            (Some(status), Some(code)) => {
                let message = between(&said, "<Message>", "</Message>").unwrap_or("");
                format!("status {status} {code} {message}")
            }
            (Some(status), None) => format!("status {status}"),
            (None, _) => said.clone(),
        };
        let silent = status.is_none() && is_silent(error);
        Self { kind, cause, silent, status, text: clipped(text.trim()) }
    }

    pub(super) fn into_error(self, op: impl Into<String>) -> Error {
        Error::with(self.kind, op, self)
    }
}

fn cause_of(error: &StoreError, said: &str, status: Option<u16>, code: Option<&str>) -> Cause {
    match code {
        Some(code) if MISSING_BUCKET.contains(&code) => Cause::MissingBucket,
        Some(code) if CREDENTIALS.contains(&code) => Cause::Credentials,
        Some("RequestTimeTooSkewed") => Cause::Clock,
        _ if said.starts_with(NO_CREDENTIALS) => Cause::NoCredentials,
        _ if matches!(error, StoreError::Unauthenticated { .. }) => Cause::Credentials,
        _ if said.contains(UNAUTHENTICATED) => Cause::Credentials,
        Some(code) if PARTS_GONE.contains(&code) => Cause::Crowded,
        _ if status == Some(429) => Cause::Crowded,
        _ if said.contains("non-partial response") => Cause::NoRanges,
        _ => Cause::Other,
    }
}

fn kind_of(error: &StoreError, status: Option<u16>, code: Option<&str>, cause: Cause) -> Kind {
    match cause {
        Cause::MissingBucket | Cause::Crowded => return Kind::Unavailable,
        Cause::NoCredentials | Cause::Credentials | Cause::Clock => return Kind::Denied,
        Cause::NoRanges => return Kind::Invalid,
        Cause::Other => {}
    }
    match code {
        Some(code) if NOT_ALLOWED.contains(&code) => return Kind::Denied,
        Some("AuthorizationHeaderMalformed" | "PermanentRedirect") => return Kind::Invalid,
        Some(code) if BODY_LOST.contains(&code) => return Kind::Unavailable,
        // The object ends before the range that a commit names.
        Some("InvalidRange") => return Kind::Corrupt,
        _ => {}
    }
    match error {
        StoreError::NotFound { .. } => Kind::NotFound,
        StoreError::AlreadyExists { .. } => Kind::Exists,
        StoreError::PermissionDenied { .. } | StoreError::Unauthenticated { .. } => Kind::Denied,
        StoreError::JoinError { .. } => Kind::Internal,
        StoreError::NotImplemented { .. }
        | StoreError::NotSupported { .. }
        | StoreError::InvalidPath { .. }
        | StoreError::UnknownConfigurationKey { .. } => Kind::Invalid,
        other => {
            kind_of_status(status).or_else(|| kind_of_cause(other)).unwrap_or(Kind::Unavailable)
        }
    }
}

fn kind_of_status(status: Option<u16>) -> Option<Kind> {
    Some(match status? {
        401 | 403 => Kind::Denied,
        404 => Kind::NotFound,
        416 => Kind::Corrupt,
        300..=399 | 400 | 405 | 411 | 413 => Kind::Invalid,
        507 => Kind::NoSpace,
        _ => Kind::Unavailable,
    })
}

/// Finds a transport or system error among the causes, which the library reports as a generic error.
fn kind_of_cause(error: &StoreError) -> Option<Kind> {
    let mut cause: Option<&(dyn StdError + 'static)> = Some(error);
    while let Some(error) = cause {
        if let Some(http) = error.downcast_ref::<HttpError>() {
            return Some(match http.kind() {
                HttpErrorKind::Timeout => Kind::TimedOut,
                _ => Kind::Unavailable,
            });
        }
        if let Some(io) = error.downcast_ref::<std::io::Error>() {
            use std::io::ErrorKind as Io;
            return Some(match io.kind() {
                Io::PermissionDenied | Io::ReadOnlyFilesystem => Kind::Denied,
                Io::StorageFull | Io::QuotaExceeded => Kind::NoSpace,
                Io::TimedOut => Kind::TimedOut,
                _ => Kind::Unavailable,
            });
        }
        let text = error.to_string();
        if BEYOND_THE_END.iter().any(|said| text.contains(said)) {
            return Some(Kind::Corrupt);
        }
        cause = error.source();
    }
    None
}

/// Reports whether no server was reached: no connection was established, or no answer came.
fn is_silent(error: &StoreError) -> bool {
    let mut cause: Option<&(dyn StdError + 'static)> = Some(error);
    while let Some(error) = cause {
        if let Some(http) = error.downcast_ref::<HttpError>() {
            return matches!(http.kind(), HttpErrorKind::Connect | HttpErrorKind::Timeout);
        }
        if let Some(io) = error.downcast_ref::<std::io::Error>() {
            use std::io::ErrorKind as Io;
            return matches!(
                io.kind(),
                Io::ConnectionRefused | Io::HostUnreachable | Io::NetworkUnreachable | Io::TimedOut
            );
        }
        cause = error.source();
    }
    false
}

/// Returns what the innermost cause says: the library's wrappers repeat their cause.
fn root_text(error: &StoreError) -> String {
    let mut cause: &(dyn StdError + 'static) = error;
    while let Some(next) = cause.source() {
        cause = next;
    }
    cause.to_string()
}

/// Finds the status in the library's message for an unsuccessful answer. The library's type is
/// private; the conformance tests check this against real servers.
fn status_in(text: &str) -> Option<u16> {
    text.split_once("status code: ")?.1.get(..3)?.parse().ok()
}

fn between<'a>(text: &'a str, start: &str, end: &str) -> Option<&'a str> {
    let rest = text.split_once(start)?.1;
    rest.split_once(end).map(|(inner, _)| inner)
}

/// Removes the user and the query from every address in a text: they may hold signatures and keys.
fn redacted(text: &str) -> String {
    // A query can hold any other character.
    let ends = |c: char| c.is_whitespace() || matches!(c, '"' | '<' | '>');
    let mut shown = String::with_capacity(text.len());
    for token in text.split_inclusive(ends) {
        let end = token.chars().next_back().filter(|last| ends(*last));
        let body = &token[..token.len() - end.map_or(0, char::len_utf8)];
        let (path, query) = body.split_once('?').map_or((body, ""), |(path, query)| (path, query));
        match path.split_once("://") {
            Some((scheme, rest)) => {
                let host = rest.find('/').unwrap_or(rest.len());
                let from = rest[..host].rfind('@').map_or(0, |at| at + 1);
                shown.extend([scheme, "://", &rest[from..]]);
            }
            None => shown.push_str(path),
        }
        if query.contains('=') {
            shown.push_str("?...");
            // Punctuation that closes the sentence around the address.
            let kept = query.trim_end_matches([')', ',', '\'', ';', '.']).len();
            shown.push_str(&query[kept..]);
        } else if body.len() > path.len() {
            shown.push_str(&body[path.len()..]);
        }
        shown.extend(end);
    }
    shown
}

fn clipped(text: &str) -> String {
    let line: String =
        redacted(text).chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
    if line.len() <= TEXT_BYTES_MAX {
        return line;
    }
    let end = (0..=TEXT_BYTES_MAX).rev().find(|at| line.is_char_boundary(*at)).unwrap_or(0);
    format!("{}...", &line[..end])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn generic(text: &str) -> StoreError {
        StoreError::Generic { store: "S3", source: text.to_owned().into() }
    }

    #[test]
    fn answers_are_distinguished() {
        let said = |status: &str, code: &str| {
            generic(&format!(
                "Server returned non-2xx status code: {status}: <Error><Code>{code}</Code>\
                 <Message>why</Message></Error>"
            ))
        };
        for (error, kind) in [
            (said("403 Forbidden", "AccessDenied"), Kind::Denied),
            (said("400 Bad Request", "ExpiredToken"), Kind::Denied),
            (said("400 Bad Request", "AuthorizationHeaderMalformed"), Kind::Invalid),
            (said("416 Range", "InvalidRange"), Kind::Corrupt),
            (said("503 Service Unavailable", "SlowDown"), Kind::Unavailable),
            (said("500 Internal", "InternalError"), Kind::Unavailable),
            (said("404 Not Found", "NoSuchBucket"), Kind::Unavailable),
            (said("404 Not Found", "NoSuchKey"), Kind::NotFound),
            (said("404 Not Found", "ContainerNotFound"), Kind::Unavailable),
            (said("403 Forbidden", "AuthorizationPermissionMismatch"), Kind::Denied),
            (said("400 Bad Request", "InvalidAuthenticationInfo"), Kind::Denied),
            (said("400 Bad Request", "InvalidBlockList"), Kind::Unavailable),
            (said("400 Bad Request", "RequestTimeout"), Kind::Unavailable),
            (said("400 Bad Request", "IncompleteBody"), Kind::Unavailable),
            (said("400 Bad Request", "BadDigest"), Kind::Unavailable),
            (said("400 Bad Request", "EntityTooLarge"), Kind::Invalid),
            (said("401 Unauthorized", "AuthenticationRequired"), Kind::Denied),
            (generic("odd"), Kind::Unavailable),
        ] {
            assert_eq!(Trouble::of(&error).kind, kind, "{error}");
        }
        let trouble = Trouble::of(&said("403 Forbidden", "AccessDenied"));
        assert_eq!(trouble.to_string(), "status 403 AccessDenied why");
        for code in MISSING_BUCKET {
            assert_eq!(Trouble::of(&said("404 Not Found", code)).cause(), Cause::MissingBucket);
        }
        let throttled = Trouble::of(&said("429 Too Many Requests", "SlowDown"));
        assert_eq!((throttled.kind, throttled.cause()), (Kind::Unavailable, Cause::Crowded));
        for code in CREDENTIALS {
            assert_eq!(Trouble::of(&said("400 Bad Request", code)).cause(), Cause::Credentials);
        }
        assert_eq!(trouble.cause(), Cause::Other, "the credentials may still read");
        let firewall = said("403 Forbidden", "AuthorizationFailure");
        assert_eq!(Trouble::of(&firewall).cause(), Cause::Other);
        let signature = generic(&firewall.to_string().replace("why", UNAUTHENTICATED));
        assert_eq!(Trouble::of(&signature).cause(), Cause::Credentials);
        let skewed = Trouble::of(&said("403 Forbidden", "RequestTimeTooSkewed"));
        assert_eq!((skewed.kind, skewed.cause()), (Kind::Denied, Cause::Clock));
    }

    #[test]
    fn answered_failures_concern_only_their_request() {
        let status = |text: &str| {
            Trouble::of(&generic(&format!("Server returned non-2xx status code: {text}"))).reach()
        };
        for (text, reach) in [
            ("503: <Error><Code>SlowDown</Code><Message/></Error>", Reach::Request),
            ("429: <Error><Code>TooManyRequests</Code><Message/></Error>", Reach::Request),
            ("500: nothing", Reach::Request),
            ("403: <Error><Code>AccessDenied</Code><Message/></Error>", Reach::Request),
            ("403: <Error><Code>ExpiredToken</Code><Message/></Error>", Reach::Store),
            ("404: <Error><Code>NoSuchBucket</Code><Message/></Error>", Reach::Store),
            ("400: <Error><Code>EntityTooLarge</Code><Message/></Error>", Reach::Nothing),
        ] {
            assert_eq!(status(text), reach, "{text}");
        }
        let system = |kind: std::io::ErrorKind| {
            let source = Box::new(std::io::Error::new(kind, "x"));
            Trouble::of(&StoreError::Generic { store: "S3", source }).reach()
        };
        assert_eq!(system(std::io::ErrorKind::ConnectionReset), Reach::Request);
        assert_eq!(system(std::io::ErrorKind::ConnectionRefused), Reach::Store);
        assert_eq!(Trouble::timed_out(String::new()).reach(), Reach::Store);
        assert_eq!(Trouble::cut_short(1, 2).reach(), Reach::Request);
        assert_eq!(Trouble::corrupt(String::new()).reach(), Reach::Nothing);
    }

    #[test]
    fn system_errors_keep_their_meaning() {
        use std::io::ErrorKind as Io;
        for (io, kind) in [
            (Io::PermissionDenied, Kind::Denied),
            (Io::StorageFull, Kind::NoSpace),
            (Io::ConnectionReset, Kind::Unavailable),
        ] {
            let source = Box::new(std::io::Error::new(io, "x"));
            let error = StoreError::Generic { store: "file", source };
            assert_eq!(Trouble::of(&error).kind, kind);
        }
    }

    #[test]
    fn addresses_lose_what_is_secret_in_them() {
        let said = "error for url (https://me:key@host/bkt/k?a=x,y'(z)&X-Amz-Signature=abc&sig=de) \"/k?sv=1\", why? 1=1";
        let shown = Trouble::of(&generic(said)).to_string();
        assert_eq!(shown, "error for url (https://host/bkt/k?...) \"/k?...\", why? 1=1");
    }

    #[test]
    fn long_texts_are_cut() {
        let trouble = Trouble::of(&generic(&"ä\n".repeat(1000)));
        assert!(trouble.to_string().len() < TEXT_BYTES_MAX + 4);
    }
}
