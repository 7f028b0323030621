//! Answers to the requests of monitors.
//!
//! Owns the paths that there are. Must never answer what would change anything.

use bytes::Bytes;
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::header::{ALLOW, CACHE_CONTROL, CONTENT_TYPE, HeaderValue};
use hyper::{Method, Request, Response, StatusCode};

use super::{Monitored, figures};
use crate::control::Phase;

/// The media type of OpenMetrics 1.0.
const OPEN_METRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";
const TEXT: &str = "text/plain; charset=utf-8";
const JSON: &str = "application/json";
/// What the root tells a person.
const PATHS: &str = "hearthfs\n\n\
    /metrics      figures, in the OpenMetrics form\n\
    /status.json  what `hearthfs status --json` shows\n\
    /healthz      200 while the daemon is in order, whatever the store does\n\
    /readyz       200 while the mount serves\n";

/// Answers one request.
pub(super) async fn answer(
    request: &Request<Incoming>,
    node: &dyn Monitored,
) -> Response<Full<Bytes>> {
    let is_read = matches!(*request.method(), Method::GET | Method::HEAD);
    if !is_read {
        let mut refused = say(StatusCode::METHOD_NOT_ALLOWED, TEXT, "only GET and HEAD\n");
        refused.headers_mut().insert(ALLOW, HeaderValue::from_static("GET, HEAD"));
        return refused;
    }
    match request.uri().path() {
        "/" => say(StatusCode::OK, TEXT, PATHS),
        "/metrics" => say(StatusCode::OK, OPEN_METRICS, figures::render(&node.figures())),
        "/status.json" => match serde_json::to_vec(&node.figures().status) {
            Ok(text) => say(StatusCode::OK, JSON, text),
            Err(error) => say(StatusCode::INTERNAL_SERVER_ERROR, TEXT, format!("{error}\n")),
        },
        "/healthz" => match node.trouble().await {
            None => say(StatusCode::OK, TEXT, "ok\n"),
            Some(why) => say(StatusCode::SERVICE_UNAVAILABLE, TEXT, format!("{why}\n")),
        },
        "/readyz" => match node.figures().status.phase {
            Phase::Serving => say(StatusCode::OK, TEXT, "serving\n"),
            Phase::Starting => say(StatusCode::SERVICE_UNAVAILABLE, TEXT, "starting\n"),
            Phase::Ending => say(StatusCode::SERVICE_UNAVAILABLE, TEXT, "ending\n"),
        },
        _ => say(StatusCode::NOT_FOUND, TEXT, PATHS),
    }
}

fn say(status: StatusCode, kind: &'static str, body: impl Into<Bytes>) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::new(body.into()));
    *response.status_mut() = status;
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static(kind));
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    response
}
