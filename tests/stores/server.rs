//! An S3 server in this process, or one that behaves like Google's. It keeps its objects with s3s-fs
//! or in memory.

use std::collections::hash_map::DefaultHasher;
use std::hash::{Hash as _, Hasher as _};
use std::net::{SocketAddr, TcpListener as StdListener};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use hearthfs::clock;
use hearthfs::remote::RemoteOptions;
use hearthfs::task;
use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::server::conn::auto::Builder as Connections;
use s3s::service::{S3Service, S3ServiceBuilder};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Mutex, Notify, watch};

use super::dialect::Dialect;
use super::memory::Memory;
use super::{ACCESS_KEY, BUCKET, SECRET_KEY};

/// Locks with which writes of one key take turns.
const LOCKS: usize = 1024;

/// The faults of the server; may be changed at any time.
#[derive(Debug, Default)]
pub(crate) struct ServerFaults {
    latency_ms: AtomicU64,
    errors_percent: AtomicU64,
    hang: AtomicBool,
    forbidden: AtomicBool,
    /// Status and body of the answer to requests for lifecycle rules.
    rules: std::sync::Mutex<Option<(u16, String)>>,
    unable: std::sync::Mutex<Option<Unable>>,
    /// Requests for keys that contain this text are answered with 503.
    throttled: std::sync::Mutex<Option<String>>,
    /// How many requests got that answer.
    throttlings: AtomicU64,
    /// How many requests were refused because they would have changed something.
    refused_writes: AtomicU64,
    requests: AtomicU64,
}

/// A missing ability of a server. The server does not report it, but answers as if the request had worked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Unable {
    /// Keeping what is written.
    Keep,
    /// Overwriting: the first version stays.
    Overwrite,
    /// Reading parts: the whole object is returned.
    ReadParts,
    /// Honouring the conditions of a write.
    HeedConditions,
    /// Deciding whether a condition of a write holds: such a write is refused with 503.
    Decide,
    /// Replacing an object soon after its last write: that is refused with 429.
    Hurry,
    /// Deleting: that is refused.
    Delete,
    /// Listing: nothing is shown.
    List,
    /// Changing anything: that is refused, as with read-only credentials.
    Write,
}

impl ServerFaults {
    /// Delays every request.
    pub(crate) fn latency(&self, time: Duration) {
        self.latency_ms.store(time.as_millis() as u64, Ordering::Relaxed);
    }

    /// Answers that percentage of requests with 503.
    pub(crate) fn errors(&self, percent: u64) {
        self.errors_percent.store(percent, Ordering::Relaxed);
    }

    /// Answers 503 to requests for keys that contain this text.
    pub(crate) fn throttle(&self, part_of_key: Option<String>) {
        *self.throttled.lock().expect("no thread panics with the lock") = part_of_key;
    }

    fn throttles(&self, path: &str) -> bool {
        let throttled = self.throttled.lock().expect("no thread panics with the lock");
        let throttles = throttled.as_ref().is_some_and(|part| path.contains(part));
        self.throttlings.fetch_add(u64::from(throttles), Ordering::Relaxed);
        throttles
    }

    /// Returns how many requests were answered with 503 because of their keys.
    pub(crate) fn throttlings(&self) -> u64 {
        self.throttlings.load(Ordering::Relaxed)
    }

    /// Returns how many requests were refused because they would have changed something.
    pub(crate) fn refused_writes(&self) -> u64 {
        self.refused_writes.load(Ordering::Relaxed)
    }

    /// Answers no request while it is on.
    pub(crate) fn hang(&self, on: bool) {
        self.hang.store(on, Ordering::Relaxed);
    }

    /// Answers everything with 403.
    pub(crate) fn forbid(&self, on: bool) {
        self.forbidden.store(on, Ordering::Relaxed);
    }

    /// Removes one ability, or restores all.
    pub(crate) fn unable(&self, what: Option<Unable>) {
        *self.unable.lock().expect("no thread panics with the lock") = what;
    }

    /// Sets the answer to requests for the bucket's lifecycle rules; status 0 means no answer.
    pub(crate) fn answer_rules(&self, status: u16, body: &str) {
        *self.rules.lock().expect("no thread panics with the lock") =
            Some((status, body.to_owned()));
    }

    fn rules(&self) -> Option<(u16, String)> {
        self.rules.lock().expect("no thread panics with the lock").clone()
    }

    /// Returns the number of requests so far.
    pub(crate) fn requests(&self) -> u64 {
        self.requests.load(Ordering::Relaxed)
    }
}

/// An S3 server in this process, on a port of the loopback.
#[derive(Debug)]
pub(crate) struct S3Server {
    address: SocketAddr,
    root: tempfile::TempDir,
    memory: Memory,
    /// Its faults.
    pub(crate) faults: Arc<ServerFaults>,
    up: watch::Sender<bool>,
    stop: Arc<Notify>,
    thread: Option<std::thread::JoinHandle<()>>,
}

impl S3Server {
    /// Starts an S3 server with one empty bucket.
    pub(crate) fn start() -> Self {
        Self::start_as(Dialect::S3)
    }

    /// Starts a server with this dialect and one empty bucket.
    pub(crate) fn start_as(dialect: Dialect) -> Self {
        let root = tempfile::tempdir().expect("a directory");
        std::fs::create_dir(root.path().join(BUCKET)).expect("a bucket");
        let files = s3s_fs::FileSystem::new(root.path()).expect("a store");
        Self::start_with(S3ServiceBuilder::new(files), dialect, root, Memory::default())
    }

    /// Starts an S3 server that keeps what it has in memory: [`S3Server::bucket_dir`] stays empty.
    pub(crate) fn start_in_memory() -> Self {
        let (root, memory) = (tempfile::tempdir().expect("a directory"), Memory::default());
        Self::start_with(S3ServiceBuilder::new(memory.clone()), Dialect::S3, root, memory)
    }

    fn start_with(
        mut service: S3ServiceBuilder,
        dialect: Dialect,
        root: tempfile::TempDir,
        memory: Memory,
    ) -> Self {
        let listener = StdListener::bind("127.0.0.1:0").expect("a port");
        listener.set_nonblocking(true).expect("a listener");
        let address = listener.local_addr().expect("an address");
        if matches!(dialect, Dialect::S3) {
            service.set_auth(s3s::auth::SimpleAuth::from_single(ACCESS_KEY, SECRET_KEY));
        }
        let faults = Arc::new(ServerFaults::default());
        let (up, is_up) = watch::channel(true);
        let stop = Arc::new(Notify::new());
        let server = Server {
            service: service.build(),
            locks: (0..LOCKS).map(|_| Mutex::new(())).collect(),
            faults: faults.clone(),
            dialect,
            root: root.path().to_owned(),
        };
        let stopped = stop.clone();
        let thread = task::thread("s3-server", move || {
            let runtime = tokio::runtime::Builder::new_multi_thread()
                .worker_threads(2)
                .enable_all()
                .build()
                .expect("a runtime");
            runtime.block_on(async {
                let listener = TcpListener::from_std(listener).expect("a listener");
                let accepting = accept(listener, Arc::new(server), is_up);
                futures::future::select(Box::pin(stopped.notified()), Box::pin(accepting)).await;
            });
            runtime.shutdown_timeout(Duration::from_secs(1));
        });
        let thread = Some(thread.expect("a thread"));
        Self { address, root, memory, faults, up, stop, thread }
    }

    /// Returns the options of a remote for it.
    pub(crate) fn options(&self, deadline: Duration) -> RemoteOptions {
        RemoteOptions { endpoint: Some(self.endpoint()), deadline, ..RemoteOptions::default() }
    }

    /// Returns its address, as a URL.
    pub(crate) fn endpoint(&self) -> String {
        format!("http://{}", self.address)
    }

    /// Returns the directory in which the bucket's objects are files.
    pub(crate) fn bucket_dir(&self) -> PathBuf {
        self.root.path().join(BUCKET)
    }

    /// Returns the rest of the name of each object in memory whose name begins so.
    pub(crate) fn names_in_memory(&self, beginning: &str) -> Vec<String> {
        self.memory.names(beginning)
    }

    /// Closes all connections and accepts none.
    pub(crate) fn down(&self) {
        self.up.send_replace(false);
    }

    /// Accepts connections again.
    pub(crate) fn up(&self) {
        self.up.send_replace(true);
    }
}

impl Drop for S3Server {
    fn drop(&mut self) {
        self.stop.notify_one();
        if let Some(thread) = self.thread.take() {
            drop(thread.join());
        }
    }
}

struct Server {
    service: S3Service,
    locks: Vec<Mutex<()>>,
    faults: Arc<ServerFaults>,
    dialect: Dialect,
    root: PathBuf,
}

pub(super) type Request = hyper::Request<hyper::body::Incoming>;

async fn accept(listener: TcpListener, server: Arc<Server>, up: watch::Receiver<bool>) {
    let runtime = tokio::runtime::Handle::current();
    loop {
        let Ok((socket, _)) = listener.accept().await else { continue };
        if *up.borrow() {
            drop(task::spawn(&runtime, "s3-connection", serve(socket, server.clone(), up.clone())));
        }
    }
}

async fn serve(socket: TcpStream, server: Arc<Server>, mut up: watch::Receiver<bool>) {
    // Head and body of an answer are two packets; without this the second waits 40 ms.
    socket.set_nodelay(true).expect("a socket");
    let service = hyper::service::service_fn(move |request| answer(server.clone(), request));
    let connections = Connections::new(TokioExecutor::new());
    let serving = connections.serve_connection(TokioIo::new(socket), service);
    let down = async move { drop(up.wait_for(|up| !*up).await) };
    // The first is polled first: after `down` no request is answered, not even one that has arrived.
    futures::future::select(Box::pin(down), Box::pin(serving)).await;
}

async fn answer(
    server: Arc<Server>,
    request: Request,
) -> Result<s3s::HttpResponse, s3s::HttpError> {
    let faults = &server.faults;
    faults.requests.fetch_add(1, Ordering::Relaxed);
    let latency_ms = faults.latency_ms.load(Ordering::Relaxed);
    if latency_ms > 0 {
        clock::sleep(Duration::from_millis(latency_ms)).await;
    }
    while faults.hang.load(Ordering::Relaxed) {
        clock::sleep(Duration::from_millis(20)).await;
    }
    if faults.forbidden.load(Ordering::Relaxed) {
        return Ok(refusal(403, "AccessDenied"));
    }
    let percent = faults.errors_percent.load(Ordering::Relaxed);
    if percent > 0 && task::random_u64() % 100 < percent || faults.throttles(request.uri().path()) {
        return Ok(refusal(503, "SlowDown"));
    }
    let for_rules = request.uri().query().is_some_and(|query| query.starts_with("lifecycle"))
        || request.uri().path().starts_with("/storage/v1/b/");
    if for_rules && let Some((status, body)) = faults.rules() {
        if status == 0 {
            futures::future::pending::<()>().await;
        }
        let answer = hyper::Response::builder().status(status).body(s3s::Body::from(body));
        return Ok(answer.expect("a response"));
    }
    // The server checks conditions before it writes, so writers of one key must take turns. It reads content
    // and version separately, so readers of what is replaced conditionally must take turns with the writers.
    let _turn = match request.method().as_str() {
        "GET" | "HEAD" if !request.uri().path().ends_with("/head") => None,
        _ => {
            let mut hasher = DefaultHasher::new();
            request.uri().path().hash(&mut hasher);
            Some(server.locks[hasher.finish() as usize % LOCKS].lock().await)
        }
    };
    let mut request = request;
    let unable = *faults.unable.lock().expect("no thread panics with the lock");
    let reads = matches!(request.method().as_str(), "GET" | "HEAD");
    if unable == Some(Unable::Write) && !reads {
        faults.refused_writes.fetch_add(1, Ordering::Relaxed);
        return Ok(refusal(403, "AccessDenied"));
    }
    if let Some(answer) = unable.and_then(|unable| fail(unable, &mut request, &server.root)) {
        return Ok(answer);
    }
    let asked = match server.dialect.read(&mut request, &server.root) {
        Ok(asked) => asked,
        Err(answer) => return Ok(*answer),
    };
    let mut answer = hyper::service::Service::call(&server.service, request).await?;
    server.dialect.write(&asked, &mut answer);
    Ok(answer)
}

/// Returns the file of the object that a request names.
pub(super) fn file_of(request: &Request, root: &std::path::Path) -> PathBuf {
    let path = request.uri().path().trim_start_matches('/').replace("%2F", "/");
    root.join(path)
}

/// Applies a missing ability: answers at once, or removes a part of the request.
fn fail(
    unable: Unable,
    request: &mut Request,
    root: &std::path::Path,
) -> Option<s3s::HttpResponse> {
    let deletes = request.method() == "DELETE"
        || request.method() == "POST"
            && request.uri().query().is_some_and(|query| query.starts_with("delete"));
    let puts = request.method() == "PUT";
    let lost = match unable {
        Unable::Keep => puts,
        Unable::Hurry if puts && file_of(request, root).exists() => {
            // A write whose condition does not hold has no effect.
            let held = !request.headers().keys().any(|name| name.as_str().contains("-match"));
            return held.then(|| refusal(429, "SlowDown"));
        }
        Unable::Decide if puts => {
            let asked = request.headers().keys().any(|name| name.as_str().contains("-match"));
            return asked.then(|| refusal(503, "SlowDown"));
        }
        Unable::Overwrite => puts && file_of(request, root).exists(),
        Unable::Delete if deletes => return Some(refusal(403, "AccessDenied")),
        Unable::ReadParts => {
            request.headers_mut().remove("range");
            false
        }
        Unable::HeedConditions => {
            request.headers_mut().remove("if-none-match");
            request.headers_mut().remove("x-goog-if-generation-match");
            false
        }
        Unable::List => {
            let text = request.uri().to_string().replace("prefix=", "prefix=nothing-of-");
            *request.uri_mut() = text.parse().expect("an address");
            false
        }
        Unable::Delete | Unable::Hurry | Unable::Decide | Unable::Write => false,
    };
    lost.then(|| {
        let answer = hyper::Response::builder().status(200).header("etag", "\"0\"");
        answer.body(s3s::Body::empty()).expect("a response")
    })
}

pub(super) fn refusal(status: u16, code: &str) -> s3s::HttpResponse {
    let text = format!("<?xml version=\"1.0\"?><Error><Code>{code}</Code></Error>");
    hyper::Response::builder().status(status).body(s3s::Body::from(text)).expect("a response")
}
