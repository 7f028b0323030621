//! Requests about a bucket itself, rather than about objects in it.
//!
//! Owns signing them, their limits in time and number, and the words for a refusal. Must never let a
//! credential into a message.

use std::time::Duration;

use futures::StreamExt as _;
use object_store::aws::{AwsAuthorizer, AwsCredentialProvider};
use object_store::client::{HttpClient, HttpRequest, HttpRequestBody, HttpResponse};
use object_store::gcp::GcpCredentialProvider;
use reqwest::header::{AUTHORIZATION, HeaderMap, HeaderName, HeaderValue};
use reqwest::{Method, StatusCode};

use super::xml;
use crate::clock;
use crate::error::{Error, Kind, Result};
use crate::task;

/// How many times one request is made.
const ATTEMPTS_MAX: u32 = 4;
/// The pause before the second attempt; each further one is twice as long, and up to half as much again.
const PAUSE: Duration = Duration::from_millis(200);
/// The largest answer that is read: a thousand rules with long names stay below it.
const ANSWER_BYTES_MAX: usize = 4 * 1024 * 1024;
/// The longest text of a store that is copied into a message.
const TEXT_CHARS_MAX: usize = 300;

/// Access to the API of one bucket.
#[derive(Debug)]
pub(super) struct BucketApi {
    pub(super) client: HttpClient,
    /// The bucket's own address.
    pub(super) base: String,
    pub(super) pass: Pass,
    /// How long one attempt may take.
    pub(super) deadline: Duration,
}

/// How a request is authorized.
#[derive(Debug)]
pub(super) enum Pass {
    /// By a signature of S3's kind.
    Aws { credentials: AwsCredentialProvider, region: String },
    /// By a token of Google's.
    Google { credentials: GcpCredentialProvider },
    /// Not authorized.
    Anonymous,
}

/// One request to the API.
#[derive(Debug, Clone)]
pub(super) struct Ask {
    pub(super) method: Method,
    /// The rest of the address behind the bucket's own, with `?`.
    pub(super) query: String,
    pub(super) headers: Vec<(&'static str, String)>,
    pub(super) body: String,
    /// What is being done, for errors: `read the lifecycle rules of s3://bucket`.
    pub(super) op: String,
    /// The permission that the account needs.
    pub(super) permission: &'static str,
}

/// The store's answer.
#[derive(Debug)]
pub(super) struct BucketAnswer {
    pub(super) status: u16,
    pub(super) body: String,
    headers: HeaderMap,
}

impl BucketAnswer {
    pub(super) fn is_good(&self) -> bool {
        (200..300).contains(&self.status)
    }

    /// Returns a header, if it is there and is plain text.
    pub(super) fn header(&self, name: &str) -> Option<String> {
        Some(self.headers.get(name)?.to_str().ok()?.to_owned())
    }

    /// Returns the store's error code and its message for a refusal.
    pub(super) fn reason(&self) -> (Option<String>, String) {
        if let Ok(root) = xml::parse(&self.body) {
            let error = root.child("Error").unwrap_or(&root);
            let code = error.text_of("Code").map(str::to_owned);
            return (code, clipped(error.text_of("Message").unwrap_or_default()));
        }
        let Ok(all) = serde_json::from_str::<serde_json::Value>(&self.body) else {
            return (None, String::new());
        };
        let error = &all["error"];
        let code = error["errors"][0]["reason"].as_str().or(error["status"].as_str());
        let message = error["message"].as_str().unwrap_or_default();
        (code.map(str::to_owned), clipped(message))
    }

    /// Reports whether the store does not know this kind of request.
    pub(super) fn is_unknown_to_store(&self) -> bool {
        let (code, _) = self.reason();
        matches!(self.status, 405 | 501)
            || matches!(code.as_deref(), Some("NotImplemented" | "MethodNotAllowed"))
    }

    /// Reports whether the same request may succeed a little later.
    pub(super) fn is_worth_another(&self) -> bool {
        let (code, _) = self.reason();
        matches!(self.status, 408 | 429 | 500 | 502 | 503 | 504)
            || matches!(code.as_deref(), Some("OperationAborted" | "RequestTimeout" | "SlowDown"))
    }

    /// Makes an error from a refusal, with what can be done about it.
    pub(super) fn refused(&self, ask: &Ask) -> Error {
        let (code, message) = self.reason();
        let mut text = format!("{}: status {}", ask.op, self.status);
        for part in [code.as_deref(), Some(message.as_str())].into_iter().flatten() {
            if !part.is_empty() {
                text.push(' ');
                text.push_str(part);
            }
        }
        let permission = ask.permission;
        let (kind, remedy) = match (self.status, code.as_deref()) {
            (_, Some("SignatureDoesNotMatch" | "InvalidAccessKeyId" | "ExpiredToken"))
            | (401, _) => (Kind::Denied, "the credentials are refused: check them".to_owned()),
            (403, _) => (Kind::Denied, format!("allow the account {permission} on the bucket")),
            (404, Some("NoSuchBucket" | "notFound") | None) => (
                Kind::NotFound,
                "the bucket does not exist: make it or correct the name".to_owned(),
            ),
            (301 | 307 | 400, _) => {
                let region = self.header("x-amz-bucket-region");
                let region = region.map(|name| format!(" (the bucket is in {name})"));
                let region = region.unwrap_or_default();
                (Kind::Invalid, format!("check endpoint and region{region}"))
            }
            (412, _) => {
                (Kind::Exists, "another program changed the bucket; run it again".to_owned())
            }
            (408 | 429 | 500.., _) => (Kind::Unavailable, "try again later".to_owned()),
            _ => (Kind::Invalid, "the store does not accept it".to_owned()),
        };
        Error::new(kind, format!("{text}; {remedy}"))
    }
}

impl BucketApi {
    /// Makes a request. A read is repeated where that may help. A write is made once: whether to
    /// repeat it depends on what the store holds by then.
    pub(super) async fn ask(&self, ask: &Ask) -> Result<BucketAnswer> {
        let attempts = if ask.method == Method::GET { ATTEMPTS_MAX } else { 1 };
        let mut attempt = 0;
        loop {
            attempt += 1;
            let asked = clock::within(self.deadline, self.ask_once(ask)).await;
            let last = attempt == attempts;
            match asked {
                Some(Ok(answer)) if last || !answer.is_worth_another() => return Ok(answer),
                Some(Err(error)) if last || error.kind() != Kind::Unavailable => return Err(error),
                None if last => {
                    let op = format!(
                        "{}: no answer within {:?}; check endpoint and network",
                        ask.op, self.deadline
                    );
                    return Err(Error::new(Kind::TimedOut, op));
                }
                _ => {}
            }
            rest(attempt).await;
        }
    }

    async fn ask_once(&self, ask: &Ask) -> Result<BucketAnswer> {
        let invalid = |what: &str| Error::new(Kind::Invalid, format!("{}: bad {what}", ask.op));
        let mut request = HttpRequest::new(HttpRequestBody::from(ask.body.clone()));
        *request.method_mut() = ask.method.clone();
        let address = format!("{}{}", self.base, ask.query);
        *request.uri_mut() = address.parse().map_err(|_| invalid("address"))?;
        for (name, value) in &ask.headers {
            let value = HeaderValue::from_str(value).map_err(|_| invalid("header"))?;
            request.headers_mut().insert(HeaderName::from_static(name), value);
        }
        self.sign(&mut request, ask).await?;
        let response = self.client.execute(request).await.map_err(|error| {
            let op = format!("{}: it cannot be reached; check endpoint and network", ask.op);
            Error::with(Kind::Unavailable, op, error)
        })?;
        read(response, ask).await
    }

    async fn sign(&self, request: &mut HttpRequest, ask: &Ask) -> Result<()> {
        let denied = |error: object_store::Error| {
            let op = format!("{}: {error}", ask.op);
            Error::new(Kind::Denied, op)
        };
        match &self.pass {
            Pass::Anonymous => {}
            Pass::Aws { credentials, region } => {
                let credential = credentials.get_credential().await.map_err(denied)?;
                AwsAuthorizer::new(&credential, "s3", region)
                    .try_authorize(request, None)
                    .map_err(denied)?;
            }
            Pass::Google { credentials } => {
                let credential = credentials.get_credential().await.map_err(denied)?;
                let mut value = HeaderValue::from_str(&format!("Bearer {}", credential.bearer))
                    .map_err(|_| Error::new(Kind::Denied, format!("{}: bad token", ask.op)))?;
                value.set_sensitive(true);
                request.headers_mut().insert(AUTHORIZATION, value);
            }
        }
        debug_assert!(
            matches!(self.pass, Pass::Anonymous) || request.headers().contains_key(AUTHORIZATION)
        );
        Ok(())
    }
}

/// Pauses after so many attempts.
pub(super) async fn rest(attempts: u32) {
    let pause = PAUSE * 2_u32.pow(attempts.saturating_sub(1));
    let jitter_ms = task::random_u64() % (pause.as_millis() as u64 / 2).max(1);
    clock::sleep(pause + Duration::from_millis(jitter_ms)).await;
}

async fn read(response: HttpResponse, ask: &Ask) -> Result<BucketAnswer> {
    let (parts, body) = response.into_parts();
    let mut stream = body.bytes_stream();
    let mut bytes = Vec::new();
    while let Some(piece) = stream.next().await {
        let piece = piece.map_err(|error| {
            Error::with(Kind::Unavailable, format!("{}: the answer broke off", ask.op), error)
        })?;
        if bytes.len() + piece.len() > ANSWER_BYTES_MAX {
            let op = format!("{}: the answer has more than {ANSWER_BYTES_MAX} bytes", ask.op);
            return Err(Error::new(Kind::Invalid, op));
        }
        bytes.extend_from_slice(&piece);
    }
    let status: StatusCode = parts.status;
    let body = String::from_utf8(bytes)
        .map_err(|_| Error::new(Kind::Invalid, format!("{}: the answer is not UTF-8", ask.op)))?;
    Ok(BucketAnswer { status: status.as_u16(), body, headers: parts.headers })
}

fn clipped(text: &str) -> String {
    let line = text.chars().map(|c| if c.is_control() { ' ' } else { c });
    line.take(TEXT_CHARS_MAX).collect::<String>().trim().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answer(status: u16, body: &str) -> BucketAnswer {
        BucketAnswer { status, body: body.to_owned(), headers: HeaderMap::new() }
    }

    fn ask() -> Ask {
        Ask {
            method: Method::PUT,
            query: "?lifecycle".into(),
            headers: Vec::new(),
            body: String::new(),
            op: "write the lifecycle rules of s3://bkt".into(),
            permission: "s3:PutLifecycleConfiguration",
        }
    }

    #[test]
    fn refusals_say_where_what_and_what_to_do() {
        let xml =
            |code: &str| format!("<?xml?><Error><Code>{code}</Code><Message>why</Message></Error>");
        let json =
            r#"{"error":{"code":403,"message":"no\nway","errors":[{"reason":"forbidden"}]}}"#;
        for (answer, kind, says) in [
            (
                answer(403, &xml("AccessDenied")),
                Kind::Denied,
                "403 AccessDenied why; allow the account s3:Put",
            ),
            (answer(403, &xml("InvalidAccessKeyId")), Kind::Denied, "credentials are refused"),
            (answer(403, json), Kind::Denied, "403 forbidden no way; allow"),
            (answer(404, &xml("NoSuchBucket")), Kind::NotFound, "bucket does not exist"),
            (answer(400, &xml("MalformedXML")), Kind::Invalid, "MalformedXML why; check"),
            (answer(503, "busy"), Kind::Unavailable, "status 503; try again"),
            (answer(412, ""), Kind::Exists, "run it again"),
        ] {
            let error = answer.refused(&ask());
            assert_eq!(error.kind(), kind, "{error}");
            let text = error.to_string();
            assert!(text.contains(says) && text.contains("s3://bkt"), "`{says}` not in: {text}");
        }
        assert!(answer(501, "").is_unknown_to_store());
        assert!(answer(400, &xml("NotImplemented")).is_unknown_to_store());
        assert!(!answer(404, &xml("NoSuchBucket")).is_unknown_to_store());
        assert!(answer(409, &xml("OperationAborted")).is_worth_another());
        assert!(!answer(409, &xml("Other")).is_worth_another());
    }
}
