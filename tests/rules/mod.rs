//! A bucket that keeps its settings as they were sent, for tests of lifecycle rules.
//!
//! Owns a server of the parts of S3 and of Google's JSON API that a bucket's rules and a few small
//! objects need, written from their public descriptions, with failures on command. Must never
//! normalize what it receives: it returns exactly the bytes that were sent.

use std::collections::BTreeMap;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use hearthfs::task;
use md5::{Digest as _, Md5};
use serde_json::{Value, json};

/// The name of the bucket.
pub(crate) const BUCKET: &str = "bkt";
/// How long a connection may stay silent.
const SILENCE_MAX: Duration = Duration::from_secs(10);

/// A failure of the next matching request.
pub(crate) enum Trouble {
    /// It is answered with this status and code.
    Refused(u16, &'static str),
    /// It is carried out, and the answer is lost.
    LostReply,
    /// Another program changes something right before it.
    Meanwhile(fn(&mut State)),
}

/// The content of the bucket, and its requests.
#[derive(Default)]
pub(crate) struct State {
    /// The document of S3's rules.
    pub(crate) xml: Option<String>,
    /// The setting that is in a header.
    pub(crate) sizes: Option<String>,
    /// The versioning state, as S3 spells it.
    pub(crate) versioning: &'static str,
    /// The bucket as Google describes it.
    pub(crate) description: Value,
    pub(crate) objects: BTreeMap<String, Vec<u8>>,
    /// Methods and targets of all requests.
    pub(crate) asked: Vec<String>,
    /// Replacements that the store makes in a document that it receives.
    pub(crate) edits: Vec<(&'static str, &'static str)>,
    /// If set, only requests with this text in their credentials are accepted.
    pub(crate) password: Option<&'static str>,
    troubles: Vec<(&'static str, Trouble)>,
}

impl State {
    /// Returns the number of requests with this prefix.
    pub(crate) fn count(&self, start: &str) -> usize {
        self.asked.iter().filter(|line| line.starts_with(start)).count()
    }

    fn metageneration(&self) -> u64 {
        self.description["metageneration"].as_str().and_then(|n| n.parse().ok()).unwrap_or(0)
    }

    /// Changes the description, with a new generation, as any change of a bucket does.
    pub(crate) fn describe(&mut self, key: &str, value: Value) {
        let next = self.metageneration() + 1;
        self.description["metageneration"] = next.to_string().into();
        self.description[key] = value;
    }
}

/// The server.
pub(crate) struct Bucket {
    address: SocketAddr,
    state: Arc<Mutex<State>>,
}

impl Bucket {
    /// Starts one. It ends with the process.
    pub(crate) fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = listener.local_addr().expect("an address");
        let description = json!({
            "metageneration": "1", "storageClass": "STANDARD", "location": "EUROPE-WEST4",
        });
        let state = Arc::new(Mutex::new(State { description, ..State::default() }));
        let shared = state.clone();
        let serving = task::thread("bucket", move || {
            for socket in listener.incoming().flatten() {
                let state = shared.clone();
                drop(task::thread("bucket-connection", move || serve(&socket, &state)));
            }
        });
        drop(serving.expect("a thread"));
        Self { address, state }
    }

    pub(crate) fn endpoint(&self) -> String {
        format!("http://{}", self.address)
    }

    pub(crate) fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("no thread has panicked")
    }

    /// Makes one request with this prefix fail, such as `PUT /bkt?lifecycle`.
    pub(crate) fn trouble(&self, start: &'static str, what: Trouble) {
        self.state().troubles.push((start, what));
    }
}

struct Request {
    method: String,
    target: String,
    headers: BTreeMap<String, String>,
    body: Vec<u8>,
}

struct Response {
    status: u16,
    headers: Vec<(&'static str, String)>,
    body: Vec<u8>,
}

fn answer(status: u16, body: impl Into<Vec<u8>>) -> Response {
    Response { status, headers: Vec::new(), body: body.into() }
}

fn refused(status: u16, code: &str) -> Response {
    answer(status, format!("<Error><Code>{code}</Code><Message>of the test</Message></Error>"))
}

fn serve(socket: &TcpStream, state: &Mutex<State>) {
    socket.set_read_timeout(Some(SILENCE_MAX)).expect("a socket");
    socket.set_nodelay(true).expect("a socket");
    let mut reader = BufReader::new(socket);
    while let Some(request) = read(&mut reader) {
        let Some(response) = act(&mut state.lock().expect("no thread has panicked"), &request)
        else {
            return;
        };
        let mut lines = vec![
            format!("HTTP/1.1 {} Word", response.status),
            format!("Content-Length: {}", response.body.len()),
        ];
        lines.extend(response.headers.iter().map(|(name, value)| format!("{name}: {value}")));
        let head = lines.join("\r\n");
        let body = if request.method == "HEAD" { &[][..] } else { &response.body };
        let mut socket = socket;
        let all = [format!("{head}\r\n\r\n").as_bytes(), body].concat();
        if socket.write_all(&all).is_err() {
            return;
        }
    }
}

fn read(reader: &mut BufReader<&TcpStream>) -> Option<Request> {
    let mut line = String::new();
    reader.read_line(&mut line).ok()?;
    let mut words = line.split_whitespace();
    let (method, target) = (words.next()?.to_owned(), words.next()?.to_owned());
    let mut headers = BTreeMap::new();
    loop {
        let mut line = String::new();
        reader.read_line(&mut line).ok()?;
        let Some((name, value)) = line.trim_end().split_once(": ") else { break };
        headers.insert(name.to_ascii_lowercase(), value.to_owned());
    }
    let length = headers.get("content-length").and_then(|n| n.parse().ok()).unwrap_or(0);
    let mut body = vec![0; length];
    reader.read_exact(&mut body).ok()?;
    Some(Request { method, target, headers, body })
}

/// Carries out a request; `None` loses the answer.
fn act(state: &mut State, request: &Request) -> Option<Response> {
    let asked = format!("{} {}", request.method, request.target);
    state.asked.push(asked.clone());
    let found = state.troubles.iter().position(|(start, _)| asked.starts_with(start));
    match found.map(|at| state.troubles.remove(at).1) {
        Some(Trouble::Refused(status, code)) => return Some(refused(status, code)),
        Some(Trouble::LostReply) => {
            route(state, request);
            return None;
        }
        Some(Trouble::Meanwhile(change)) => change(state),
        None => {}
    }
    Some(route(state, request))
}

fn route(state: &mut State, request: &Request) -> Response {
    let signed = request.headers.get("authorization");
    if let Some(password) = state.password
        && !signed.is_some_and(|text| text.contains(password))
    {
        return refused(403, "AccessDenied");
    }
    let (path, query) = request.target.split_once('?').unwrap_or((&request.target, ""));
    let path = path.trim_start_matches('/');
    if let Some(bucket) = path.strip_prefix("storage/v1/b/") {
        return if bucket == BUCKET {
            google(state, request, query)
        } else {
            refused(404, "notFound")
        };
    }
    match path.split_once('/').unwrap_or((path, "")) {
        (BUCKET, "") if query == "lifecycle" => rules(state, request),
        (BUCKET, "") if query == "versioning" => answer(
            200,
            format!("<VersioningConfiguration>{}</VersioningConfiguration>", state.versioning),
        ),
        (BUCKET, "") => answer(200, "<ListBucketResult></ListBucketResult>"),
        (BUCKET, key) => object(state, request, key),
        _ => refused(404, "NoSuchBucket"),
    }
}

const SIZES: &str = "x-amz-transition-default-minimum-object-size";

fn rules(state: &mut State, request: &Request) -> Response {
    match request.method.as_str() {
        "GET" => match &state.xml {
            Some(xml) => {
                let sizes = state.sizes.clone().map(|sizes| (SIZES, sizes));
                Response {
                    status: 200,
                    headers: sizes.into_iter().collect(),
                    body: xml.clone().into(),
                }
            }
            None => refused(404, "NoSuchLifecycleConfiguration"),
        },
        "PUT" => {
            let digest = STANDARD.encode(Md5::digest(&request.body));
            if request.headers.get("content-md5") != Some(&digest) {
                return refused(400, "InvalidDigest");
            }
            let text = String::from_utf8(request.body.clone()).expect("text");
            if !text.contains("Rule>") {
                return refused(400, "MalformedXML");
            }
            let edited = state.edits.iter().fold(text, |text, (from, to)| text.replace(from, to));
            state.xml = Some(edited);
            state.sizes = request.headers.get(SIZES).cloned();
            answer(200, "")
        }
        "DELETE" => {
            state.xml = None;
            answer(204, "")
        }
        _ => refused(405, "MethodNotAllowed"),
    }
}

fn google(state: &mut State, request: &Request, query: &str) -> Response {
    match request.method.as_str() {
        "GET" => answer(200, state.description.to_string()),
        "PATCH" => {
            let wanted =
                query.split('&').find_map(|part| part.strip_prefix("ifMetagenerationMatch="));
            if wanted.is_some_and(|wanted| wanted != state.metageneration().to_string()) {
                let error = json!({"error":{"code":412,"message":"changed","errors":[{"reason":"conditionNotMet"}]}});
                return answer(412, error.to_string());
            }
            let change: Value = serde_json::from_slice(&request.body).expect("JSON");
            for (key, value) in change.as_object().expect("an object").clone() {
                state.describe(&key, value);
            }
            answer(200, state.description.to_string())
        }
        _ => refused(405, "MethodNotAllowed"),
    }
}

fn object(state: &mut State, request: &Request, key: &str) -> Response {
    let headers = vec![
        ("ETag", "\"e\"".to_owned()),
        ("x-goog-generation", "1".to_owned()),
        ("Last-Modified", "Sun, 01 Nov 2026 00:00:00 GMT".to_owned()),
    ];
    match request.method.as_str() {
        "PUT" => {
            let first = request.headers.get("if-none-match").is_some_and(|v| v == "*")
                || request.headers.get("x-goog-if-generation-match").is_some_and(|v| v == "0");
            if first && state.objects.contains_key(key) {
                return refused(412, "PreconditionFailed");
            }
            state.objects.insert(key.to_owned(), request.body.clone());
            Response { status: 200, headers, body: Vec::new() }
        }
        "GET" | "HEAD" => match state.objects.get(key) {
            Some(body) => Response { status: 200, headers, body: body.clone() },
            None => refused(404, "NoSuchKey"),
        },
        _ => {
            state.objects.remove(key);
            answer(204, "")
        }
    }
}
