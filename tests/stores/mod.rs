//! Object stores for tests: s3s-fs in this process with faults on command, and moto as a process.
//!
//! Owns starting and stopping them. Must never be needed by the library.
#![allow(dead_code, reason = "each test program uses another part")]

use std::collections::hash_map::DefaultHasher;
use std::hash::{Hash as _, Hasher as _};
use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpListener as StdListener, TcpStream as StdStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use hearthfs::clock::{self, Clock};
use hearthfs::remote::{Environment, RemoteOptions};
use hearthfs::task;
use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::server::conn::auto::Builder as Connections;
use s3s::service::{S3Service, S3ServiceBuilder};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Mutex, Notify, watch};

/// The access key that the servers accept.
pub(crate) const ACCESS_KEY: &str = "testkey";
/// The secret that belongs to it.
pub(crate) const SECRET_KEY: &str = "testsecret";
/// The bucket that the servers have.
pub(crate) const BUCKET: &str = "bkt";
/// Locks by which writes of one key take turns.
const LOCKS: usize = 1024;
/// How long a server may take to answer for the first time.
const START_MAX: Duration = Duration::from_secs(30);

/// What the server does wrong; may be switched at any time.
#[derive(Debug, Default)]
pub(crate) struct ServerFaults {
    latency_ms: AtomicU64,
    errors_percent: AtomicU64,
    hang: AtomicBool,
    forbidden: AtomicBool,
    requests: AtomicU64,
    /// Status and body of the answer to questions for lifecycle rules.
    rules: std::sync::Mutex<Option<(u16, String)>>,
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

    /// Answers nothing while it is on.
    pub(crate) fn hang(&self, on: bool) {
        self.hang.store(on, Ordering::Relaxed);
    }

    /// Answers everything with 403.
    pub(crate) fn forbid(&self, on: bool) {
        self.forbidden.store(on, Ordering::Relaxed);
    }

    /// Answers questions for the bucket's lifecycle rules so; status 0 is never.
    pub(crate) fn answer_rules(&self, status: u16, body: &str) {
        *self.rules.lock().expect("nobody panics with it") = Some((status, body.to_owned()));
    }

    fn rules(&self) -> Option<(u16, String)> {
        self.rules.lock().expect("nobody panics with it").clone()
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
    /// What it does wrong.
    pub(crate) faults: Arc<ServerFaults>,
    up: watch::Sender<bool>,
    stop: Arc<Notify>,
    thread: Option<std::thread::JoinHandle<()>>,
}

impl S3Server {
    /// Starts a server with one empty bucket.
    pub(crate) fn start() -> Self {
        let root = tempfile::tempdir().expect("a directory");
        std::fs::create_dir(root.path().join(BUCKET)).expect("a bucket");
        let listener = StdListener::bind("127.0.0.1:0").expect("a port");
        listener.set_nonblocking(true).expect("a listener");
        let address = listener.local_addr().expect("an address");
        let mut service =
            S3ServiceBuilder::new(s3s_fs::FileSystem::new(root.path()).expect("a store"));
        service.set_auth(s3s::auth::SimpleAuth::from_single(ACCESS_KEY, SECRET_KEY));
        let faults = Arc::new(ServerFaults::default());
        let (up, is_up) = watch::channel(true);
        let stop = Arc::new(Notify::new());
        let server = Server {
            service: service.build(),
            locks: (0..LOCKS).map(|_| Mutex::new(())).collect(),
            faults: faults.clone(),
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
        Self { address, root, faults, up, stop, thread }
    }

    /// Returns what a remote needs to reach it.
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

    /// Ends all connections and accepts none.
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

/// Returns an environment with these credentials and nothing else.
pub(crate) fn environment(access_key: &str, secret_key: &str) -> Environment {
    [("AWS_ACCESS_KEY_ID", access_key), ("AWS_SECRET_ACCESS_KEY", secret_key)]
        .map(|(name, value)| (name.to_owned(), value.to_owned()))
        .into_iter()
        .collect()
}

struct Server {
    service: S3Service,
    locks: Vec<Mutex<()>>,
    faults: Arc<ServerFaults>,
}

type Request = hyper::Request<hyper::body::Incoming>;

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
    futures::future::select(Box::pin(serving), Box::pin(down)).await;
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
    if percent > 0 && task::random_u64() % 100 < percent {
        return Ok(refusal(503, "SlowDown"));
    }
    if request.uri().query().is_some_and(|query| query.starts_with("lifecycle"))
        && let Some((status, body)) = faults.rules()
    {
        if status == 0 {
            futures::future::pending::<()>().await;
        }
        let answer = hyper::Response::builder().status(status).body(s3s::Body::from(body));
        return Ok(answer.expect("a response"));
    }
    // The server checks conditions first and writes then; writers of one key must take turns.
    let _turn = match request.method().as_str() {
        "GET" | "HEAD" => None,
        _ => {
            let mut hasher = DefaultHasher::new();
            request.uri().path().hash(&mut hasher);
            Some(server.locks[hasher.finish() as usize % LOCKS].lock().await)
        }
    };
    hyper::service::Service::call(&server.service, request).await
}

fn refusal(status: u16, code: &str) -> s3s::HttpResponse {
    let text = format!("<?xml version=\"1.0\"?><Error><Code>{code}</Code></Error>");
    hyper::Response::builder().status(status).body(s3s::Body::from(text)).expect("a response")
}

/// A moto server: somebody else's S3, in a process of its own.
#[derive(Debug)]
pub(crate) struct Moto {
    child: Child,
    address: SocketAddr,
}

impl Moto {
    /// Starts moto with one empty bucket; the reason when it is not there.
    pub(crate) fn start() -> Result<Self, String> {
        let program = find_moto()?;
        let free = StdListener::bind("127.0.0.1:0").expect("a port");
        let address = free.local_addr().expect("an address");
        drop(free);
        let child = Command::new(&program)
            .args(["-H", "127.0.0.1", "-p", &address.port().to_string()])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .map_err(|error| format!("{} does not start: {error}", program.display()))?;
        let moto = Self { child, address };
        moto.wait_until_up();
        assert_eq!(moto.put(BUCKET, b""), 200, "moto makes a bucket");
        Ok(moto)
    }

    /// Returns what a remote needs to reach it.
    pub(crate) fn options(&self, deadline: Duration) -> RemoteOptions {
        let endpoint = Some(format!("http://{}", self.address));
        RemoteOptions { endpoint, deadline, ..RemoteOptions::default() }
    }

    /// Writes a bucket or an object without any client library; returns the status.
    pub(crate) fn put(&self, path: &str, body: &[u8]) -> u16 {
        let mut stream = StdStream::connect(self.address).expect("a connection");
        let head = format!(
            "PUT /{path} HTTP/1.1\r\nHost: {}\r\nContent-Length: {}\r\nConnection: close\r\n\
             Authorization: AWS4-HMAC-SHA256 Credential={ACCESS_KEY}/20250101/us-east-1/s3/\
             aws4_request, SignedHeaders=host, Signature=0\r\n\r\n",
            self.address,
            body.len()
        );
        stream.write_all(head.as_bytes()).expect("sent");
        stream.write_all(body).expect("sent");
        let mut answer = String::new();
        stream.read_to_string(&mut answer).expect("an answer");
        let status = answer.split(' ').nth(1).and_then(|status| status.parse().ok());
        status.unwrap_or_else(|| panic!("not an answer: {answer}"))
    }

    fn wait_until_up(&self) {
        let clock = Clock::system();
        let start = clock.mono();
        while StdStream::connect(self.address).is_err() {
            assert!(clock.mono().saturating_sub(start) < START_MAX, "moto does not come up");
            nap(Duration::from_millis(50));
        }
    }
}

impl Drop for Moto {
    fn drop(&mut self) {
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

fn find_moto() -> Result<PathBuf, String> {
    if let Some(path) = std::env::var_os("HEARTHFS_MOTO") {
        let path = PathBuf::from(path);
        let shown = path.display().to_string();
        return if path.is_file() {
            Ok(path)
        } else {
            Err(format!("HEARTHFS_MOTO={shown} is missing"))
        };
    }
    let dirs = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&dirs)
        .map(|dir: PathBuf| dir.join("moto_server"))
        .find(|path: &PathBuf| Path::is_file(path))
        .ok_or_else(|| "moto_server is not on PATH and HEARTHFS_MOTO is not set".to_owned())
}

#[expect(clippy::disallowed_methods, reason = "no runtime is there yet")]
fn nap(time: Duration) {
    std::thread::sleep(time);
}
