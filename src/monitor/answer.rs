//! Answers to the requests of monitors.
//!
//! Owns the paths that are served. Must never offer anything that changes the mount.

use bytes::Bytes;
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::header::{
    ALLOW, CACHE_CONTROL, CONTENT_SECURITY_POLICY, CONTENT_TYPE, HeaderValue, REFERRER_POLICY,
    X_CONTENT_TYPE_OPTIONS,
};
use hyper::{Method, Request, Response, StatusCode};

use super::{Monitored, figures, page};
use crate::control::Phase;

/// The media type of OpenMetrics 1.0.
const OPEN_METRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";
const TEXT: &str = "text/plain; charset=utf-8";
const JSON: &str = "application/json";
const HTML: &str = "text/html; charset=utf-8";
/// The answer for unknown paths.
const PATHS: &str = "hearthfs\n\n\
    /             a page with plots\n\
    /metrics      figures, in the OpenMetrics format\n\
    /status.json  what `hearthfs status --json` shows\n\
    /healthz      200 while the daemon is in order, whatever the state of the store\n\
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
        "/" => show_page(),
        "/metrics" => say(StatusCode::OK, OPEN_METRICS, figures::render(&node.figures())),
        "/status.json" => match serde_json::to_vec(&node.figures().status) {
            Ok(text) => say(StatusCode::OK, JSON, text),
            Err(error) => say(StatusCode::INTERNAL_SERVER_ERROR, TEXT, format!("{error}\n")),
        },
        "/healthz" => match node.trouble().await {
            None => say(StatusCode::OK, TEXT, "ok\n"),
            Some(why) => say(StatusCode::SERVICE_UNAVAILABLE, TEXT, format!("{why}\n")),
        },
        "/readyz" => match node.figures().status.life.phase {
            Phase::Serving => say(StatusCode::OK, TEXT, "serving\n"),
            Phase::Starting => say(StatusCode::SERVICE_UNAVAILABLE, TEXT, "starting\n"),
            // A daemon always knows its own phase.
            Phase::Ending | Phase::Unknown => {
                say(StatusCode::SERVICE_UNAVAILABLE, TEXT, "ending\n")
            }
        },
        _ => say(StatusCode::NOT_FOUND, TEXT, PATHS),
    }
}

/// Answers with the page. Its policy allows it to fetch figures from here, and nothing from elsewhere.
fn show_page() -> Response<Full<Bytes>> {
    let page = page::page();
    let mut response = say(StatusCode::OK, HTML, page.html.as_bytes());
    let headers = response.headers_mut();
    // The policy consists of digests and words of ours.
    if let Ok(policy) = HeaderValue::from_str(&page.policy) {
        headers.insert(CONTENT_SECURITY_POLICY, policy);
    }
    headers.insert(REFERRER_POLICY, HeaderValue::from_static("no-referrer"));
    headers.insert(X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    response
}

fn say(status: StatusCode, kind: &'static str, body: impl Into<Bytes>) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::new(body.into()));
    *response.status_mut() = status;
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static(kind));
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    response
}
