//! The daemon's end of the control socket.
//!
//! Owns the socket file and its lock. Must never let a client block the daemon: requests are short,
//! waits have limits, and a slow client is disconnected.

use std::fs::File;
use std::os::unix::fs::{OpenOptionsExt as _, PermissionsExt as _};
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use parking_lot::Mutex;
use rustix::fs::{FlockOperation, flock};
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::unix::OwnedWriteHalf;
use tokio::net::{UnixListener, UnixStream};
use tokio::runtime::Handle;
use tokio::sync::{Semaphore, watch};
use tokio::task::JoinHandle;

use super::message::{
    BusyReport, DrainProgress, DrainReport, OpensReport, Request, RequestFailure, Response,
    WarmReport,
};
use super::place::{self, Place};
use super::status::Status;
use crate::clock::{sleep, within};
use crate::error::{Error, Kind, Result};
use crate::task;

/// The longest request line, in bytes.
pub(super) const REQUEST_BYTES_MAX: u64 = 256 << 10;
/// The most bytes of paths in one request to warm, as sent.
pub const WARM_PATHS_BYTES_MAX: usize = 200 << 10;
/// Connections that are served at once; further ones wait in the kernel's queue.
const CONNECTIONS_MAX: usize = 32;
/// Waits for a drain or for the store that are served at once: fewer than connections, so that
/// `status` always finds a free one.
const DRAINS_MAX: usize = 16;
/// How long a client may take to send its request, and to take one line of the answer.
const LINE_DEADLINE: Duration = Duration::from_secs(5);
/// How often a waiting client receives the progress of the drain.
const PROGRESS_EVERY: Duration = Duration::from_millis(250);
/// The longest drain that a client can request.
const DRAIN_LIMIT_MAX: Duration = Duration::from_hours(7 * 24);
/// How long the end of the server waits for answers in progress.
const CLOSE_DEADLINE: Duration = Duration::from_secs(2);
/// Pause after an accept that failed (out of descriptors), so that the loop does not spin.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// The node behind the socket.
#[async_trait]
pub trait Node: Send + Sync + 'static {
    /// Returns the complete status; must answer at once, whatever the remote does.
    fn status(&self) -> Status;
    /// Returns the profiles that the mount uses, as JSON; must answer at once.
    fn profiles(&self) -> serde_json::Value;
    /// Returns the busy clients and entries; must answer at once.
    fn busy(&self) -> BusyReport;
    /// Returns why a path is a miss, as JSON; the path is as in [`Request::Explain`]. May ask the
    /// store, for some seconds at most.
    ///
    /// # Errors
    ///
    /// `NotFound` for a path that no mount can have.
    async fn explain(&self, path: &str) -> Result<serde_json::Value>;
    /// Returns the recorded misses of one user or one client, as JSON; must answer at once.
    fn misses(&self, uid: Option<u32>, client: Option<&str>) -> serde_json::Value;
    /// Fetches files to the node, as far as there is room; the paths are as in
    /// [`Request::Explain`]. Reports progress in `told`. The caller may drop the future at any
    /// time, which ends the work.
    ///
    /// # Errors
    ///
    /// `Unavailable` when the store cannot be used. A path that cannot be valid is ignored.
    async fn warm(&self, paths: &[String], told: &Mutex<WarmReport>) -> Result<()>;
    /// Records all opens from now on, and returns those since the last request with that number;
    /// must answer at once.
    ///
    /// # Errors
    ///
    /// `Busy` when there are too many recordings.
    fn opens(&self, number: u64, last: bool) -> Result<OpensReport>;
    /// Returns the progress of a drain; must answer at once.
    fn progress(&self) -> DrainProgress;
    /// Waits until everything published before the call is uploaded, for at most `limit`. The
    /// caller may drop the future at any time.
    async fn drain(&self, limit: Duration) -> DrainReport;
    /// Drains for at most `limit` (`None` is the daemon's own limit, zero leaves the backlog in the
    /// journal), unmounts, and lets the daemon end. If a shutdown is already running, a further
    /// call waits for it. The future is never dropped before its end.
    ///
    /// # Errors
    ///
    /// `Busy` when files are open and the mount stays.
    async fn shutdown(&self, limit: Option<Duration>) -> Result<DrainReport>;
}

/// A running server.
#[derive(Debug)]
pub struct Server {
    place: Place,
    /// The lock: its holder owns the socket's name.
    _lock: File,
    end: watch::Sender<bool>,
    accepting: JoinHandle<()>,
    connections: Arc<Semaphore>,
}

impl Server {
    /// Serves `node` at `place`. Replaces a socket that a dead daemon left.
    ///
    /// # Errors
    ///
    /// `Busy` when a living daemon serves the place, `Invalid` when the path of the socket is too long, `Denied` when
    /// the directory is not private to us.
    pub fn start(runtime: &Handle, place: Place, node: Arc<dyn Node>) -> Result<Self> {
        let socket = place.socket();
        place::check_length(&socket)?;
        place::prepare(place.dir(), rustix::process::geteuid().as_raw())?;
        let lock = lock(&place)?;
        remove(&socket)?;
        let failed = |error| Error::io(format!("listen on {}", socket.display()), error);
        let listener = {
            let _inside = runtime.enter();
            UnixListener::bind(&socket).map_err(failed)?
        };
        let private = std::fs::Permissions::from_mode(0o600);
        std::fs::set_permissions(&socket, private).map_err(failed)?;
        let connections = Arc::new(Semaphore::new(CONNECTIONS_MAX));
        let (end, ended) = watch::channel(false);
        let work = accept(runtime.clone(), listener, node, Arc::clone(&connections), ended);
        let accepting = task::spawn(runtime, "control", work);
        Ok(Self { place, _lock: lock, end, accepting, connections })
    }

    /// Ends the server: no new connections are accepted, answers in progress get a moment, and the
    /// socket is removed.
    pub async fn close(self) {
        // It fails only if the task is already gone.
        self.end.send(true).ok();
        if within(CLOSE_DEADLINE, self.accepting).await.is_some() {
            let all = CONNECTIONS_MAX as u32;
            within(CLOSE_DEADLINE, self.connections.acquire_many(all)).await;
        }
        if let Err(error) = remove(&self.place.socket()) {
            tracing::warn!(error = error.chain(), "the control socket is not removed");
        }
    }
}

fn lock(place: &Place) -> Result<File> {
    let path = place.lock();
    let failed = |error| Error::io(format!("lock {}", path.display()), error);
    let file = File::options()
        .write(true)
        .create(true)
        .truncate(false)
        .mode(0o600)
        .open(&path)
        .map_err(failed)?;
    match flock(&file, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => Ok(file),
        Err(rustix::io::Errno::WOULDBLOCK) => {
            Err(Error::new(Kind::Busy, "another daemon serves this mount point"))
        }
        Err(error) => Err(failed(error.into())),
    }
}

/// Removes the socket of a dead daemon, which its free lock reveals; returns whether one was removed.
pub(super) fn sweep(place: &Place) -> bool {
    if let Ok(lock) = lock(place) {
        let gone = place.socket().exists() && remove(&place.socket()).is_ok();
        drop(lock);
        return gone;
    }
    false
}

fn remove(path: &std::path::Path) -> Result<()> {
    match std::fs::remove_file(path) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            Err(Error::io(format!("remove {}", path.display()), error))
        }
        _ => Ok(()),
    }
}

async fn accept(
    runtime: Handle,
    listener: UnixListener,
    node: Arc<dyn Node>,
    connections: Arc<Semaphore>,
    mut ended: watch::Receiver<bool>,
) {
    let drains = Arc::new(Semaphore::new(DRAINS_MAX));
    loop {
        // The semaphore is never closed.
        let Ok(permit) = Arc::clone(&connections).acquire_owned().await else { return };
        let stream = tokio::select! {
            accepted = listener.accept() => accepted,
            _ = ended.changed() => return,
        };
        match stream {
            Ok((stream, _)) => {
                let (node, drains) = (Arc::clone(&node), Arc::clone(&drains));
                let (inner, ended) = (runtime.clone(), ended.clone());
                task::spawn(&runtime, "control client", async move {
                    serve(&inner, stream, node, &drains, ended).await;
                    drop(permit);
                });
            }
            Err(error) => {
                tracing::debug!(%error, "accept on the control socket failed");
                sleep(ACCEPT_PAUSE).await;
            }
        }
    }
}

/// Serves the requests of one client until it disconnects or misbehaves, or until the server ends
/// and nothing is in progress.
async fn serve(
    runtime: &Handle,
    stream: UnixStream,
    node: Arc<dyn Node>,
    drains: &Semaphore,
    mut ended: watch::Receiver<bool>,
) {
    let us = rustix::process::geteuid().as_raw();
    let allowed = stream.peer_cred().is_ok_and(|peer| peer.uid() == us || peer.uid() == 0);
    let (read, mut write) = stream.into_split();
    if !allowed {
        let failure =
            RequestFailure::new(Kind::Denied, "only the user of the mount and root may ask");
        send(&mut write, &Response::Error(failure)).await;
        return;
    }
    let mut lines = BufReader::new(read);
    loop {
        let mut line = Vec::new();
        let mut limited = (&mut lines).take(REQUEST_BYTES_MAX + 1);
        let read = tokio::select! {
            read = within(LINE_DEADLINE, limited.read_until(b'\n', &mut line)) => read,
            _ = ended.wait_for(|ended| *ended) => return,
        };
        if !matches!(read, Some(Ok(1..))) {
            return;
        }
        if line.last() != Some(&b'\n') {
            let failure = RequestFailure::new(Kind::Invalid, "the request is cut off or too long");
            send(&mut write, &Response::Error(failure)).await;
            return;
        }
        let answered = match serde_json::from_slice(&line) {
            Ok(request) => answer(runtime, &mut write, request, &node, drains).await,
            Err(error) => {
                let failure = RequestFailure::new(Kind::Invalid, format!("not a request: {error}"));
                send(&mut write, &Response::Error(failure)).await
            }
        };
        if !answered {
            return;
        }
    }
}

/// Answers one request; false if the client is gone.
async fn answer(
    runtime: &Handle,
    write: &mut OwnedWriteHalf,
    request: Request,
    node: &Arc<dyn Node>,
    drains: &Semaphore,
) -> bool {
    if request == Request::Status {
        return send(write, &Response::Status(Box::new(node.status()))).await;
    }
    if request == Request::Profiles {
        return send(write, &Response::Profiles(node.profiles())).await;
    }
    if request == Request::Busy {
        return send(write, &Response::Busy(node.busy())).await;
    }
    if let Request::Misses { uid, client } = &request {
        let misses = node.misses(*uid, client.as_deref());
        return send(write, &Response::Misses(misses)).await;
    }
    if let Request::Opens { number, last } = request {
        let response = match node.opens(number, last) {
            Ok(opened) => Response::Opens(opened),
            Err(error) => Response::Error(RequestFailure::new(error.kind(), error.chain())),
        };
        return send(write, &response).await;
    }
    let Ok(_permit) = drains.try_acquire() else {
        let busy = format!("{DRAINS_MAX} drains or explanations are being waited for");
        let failure = RequestFailure::new(Kind::Busy, busy);
        return send(write, &Response::Error(failure)).await;
    };
    let capped = |ms| Duration::from_millis(ms).min(DRAIN_LIMIT_MAX);
    match request {
        Request::Status
        | Request::Profiles
        | Request::Busy
        | Request::Misses { .. }
        | Request::Opens { .. } => true,
        Request::Warm { paths } => {
            let told = Mutex::new(WarmReport::default());
            let work = async {
                node.warm(&paths, &told).await.map(|()| Response::Warmed(told.lock().clone()))
            };
            follow(write, || Response::Warming(told.lock().clone()), work).await
        }
        Request::Explain { path } => {
            let response = match node.explain(&path).await {
                Ok(explained) => Response::Explained(explained),
                Err(error) => Response::Error(RequestFailure::new(error.kind(), error.chain())),
            };
            send(write, &response).await
        }
        Request::Drain { timeout_ms } => {
            let work = async { Ok(Response::Drained(node.drain(capped(timeout_ms)).await)) };
            follow(write, || Response::Progress(node.progress()), work).await
        }
        Request::Shutdown { timeout_ms } => {
            // A separate task: the shutdown must finish even if the client disconnects.
            let worker = Arc::clone(node);
            let work = async move { worker.shutdown(timeout_ms.map(capped)).await };
            let work = task::spawn(runtime, "shutdown", work);
            let work = async {
                let ended = work.await;
                ended
                    .unwrap_or_else(|e| Err(Error::with(Kind::Internal, "shut down", e)))
                    .map(Response::Drained)
            };
            follow(write, || Response::Progress(node.progress()), work).await
        }
    }
}

/// Waits for `work` and reports its progress; false, after dropping `work`, if the client is gone.
async fn follow(
    write: &mut OwnedWriteHalf,
    progress: impl Fn() -> Response,
    work: impl Future<Output = Result<Response>>,
) -> bool {
    let mut work = std::pin::pin!(work);
    let result = loop {
        tokio::select! {
            biased;
            result = &mut work => break result,
            () = sleep(PROGRESS_EVERY) => {
                let news = progress();
                if !send(write, &news).await {
                    return false;
                }
            }
        }
    };
    let failed = |error: Error| Response::Error(RequestFailure::new(error.kind(), error.chain()));
    let response = result.unwrap_or_else(failed);
    send(write, &response).await
}

/// Sends one line; false if the client did not read it in time.
async fn send(write: &mut OwnedWriteHalf, response: &Response) -> bool {
    let mut line = match serde_json::to_vec(response) {
        Ok(line) => line,
        Err(error) => {
            tracing::error!(%error, "an answer could not be written as JSON");
            return false;
        }
    };
    line.push(b'\n');
    matches!(within(LINE_DEADLINE, write.write_all(&line)).await, Some(Ok(())))
}
