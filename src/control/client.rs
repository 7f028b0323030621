//! The command line's end of the control socket.
//!
//! Owns finding the daemon of a mount point and waiting for its end. Must never wait without a limit.

use std::io::ErrorKind;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::UnixStream;

use super::message::{
    BusyReport, DrainProgress, DrainReport, OpensReport, Request, RequestFailure, Response,
    WarmReport,
};
use super::place::{self, Place};
use super::server::sweep;
use super::status::Status;
use crate::clock::{sleep, within};
use crate::config::Surroundings;
use crate::error::{Error, Kind, Result};

/// The longest line that a daemon may answer, in bytes.
const RESPONSE_BYTES_MAX: u64 = 1 << 20;
/// How long a daemon may take to accept, and to send the next line.
const REPLY_DEADLINE: Duration = Duration::from_secs(10);
const END_POLL: Duration = Duration::from_millis(10);

/// A connection to the daemon of one mount.
#[derive(Debug)]
pub struct Client {
    stream: BufReader<UnixStream>,
    place: Place,
    pid: Option<Pid>,
}

impl Client {
    /// Connects to the daemon at `place`. Removes a socket that a dead daemon left. Sockets of
    /// `users` are trusted, besides root's.
    ///
    /// # Errors
    ///
    /// `NotFound` when no daemon runs there, `Denied` when the socket belongs to another user, `TimedOut` when it does
    /// not accept.
    pub async fn connect(place: &Place, users: &[u32]) -> Result<Self> {
        let socket = place.socket();
        let op = || format!("connect to {}", socket.display());
        let connected = within(REPLY_DEADLINE, UnixStream::connect(&socket)).await;
        let stream = match connected {
            None => return Err(Error::new(Kind::TimedOut, op())),
            Some(Err(error)) if error.kind() == ErrorKind::ConnectionRefused => {
                sweep(place);
                return Err(Error::with(Kind::NotFound, op(), error));
            }
            Some(Err(error)) => return Err(Error::io(op(), error)),
            Some(Ok(stream)) => stream,
        };
        if !place::is_trusted(&socket, users) {
            return Err(Error::new(Kind::Denied, format!("{}: not trusted", socket.display())));
        }
        // As seen from our PID namespace; 0 if the daemon is not visible in it.
        let pid = stream.peer_cred().ok().and_then(|peer| peer.pid()).and_then(Pid::from_raw);
        Ok(Self { stream: BufReader::new(stream), place: place.clone(), pid })
    }

    /// Returns where the daemon's socket is.
    pub fn place(&self) -> &Place {
        &self.place
    }

    /// Requests the status.
    ///
    /// # Errors
    ///
    /// `TimedOut` or `Closed` when the daemon does not answer or hangs up, `Corrupt` when its answer is not understood.
    pub async fn status(&mut self) -> Result<Status> {
        self.send(&Request::Status).await?;
        match self.receive().await? {
            Response::Status(status) => Ok(*status),
            other => Err(unexpected(&other)),
        }
    }

    /// Requests the profiles that the mount uses, as JSON.
    ///
    /// # Errors
    ///
    /// `TimedOut` or `Closed` when the daemon does not answer or hangs up, `Corrupt` when its answer is not understood.
    pub async fn profiles(&mut self) -> Result<serde_json::Value> {
        self.send(&Request::Profiles).await?;
        match self.receive().await? {
            Response::Profiles(profiles) => Ok(profiles),
            other => Err(unexpected(&other)),
        }
    }

    /// Requests the busy clients and entries; `None` if the daemon's version does not support this.
    ///
    /// # Errors
    ///
    /// `TimedOut` or `Closed` when the daemon does not answer or hangs up, `Corrupt` when its answer is not understood.
    pub async fn busy(&mut self) -> Result<Option<BusyReport>> {
        self.send(&Request::Busy).await?;
        match self.receive().await? {
            Response::Busy(report) => Ok(Some(report)),
            Response::Error(failure) if failure.is(Kind::Invalid) => Ok(None),
            other => Err(unexpected(&other)),
        }
    }

    /// Requests the reason why a path is a miss; `None` if the daemon's version does not support this.
    ///
    /// # Errors
    ///
    /// `TimedOut` or `Closed` when the daemon does not answer or hangs up, `Corrupt` when its answer is not understood.
    pub async fn explain(&mut self, path: String) -> Result<Option<serde_json::Value>> {
        self.send(&Request::Explain { path }).await?;
        match self.receive().await? {
            Response::Explained(explained) => Ok(Some(explained)),
            Response::Error(failure) if failure.is(Kind::Invalid) => Ok(None),
            other => Err(unexpected(&other)),
        }
    }

    /// Requests the recorded misses of one user or one client; `None` if the daemon's version does
    /// not support this.
    ///
    /// # Errors
    ///
    /// `TimedOut` or `Closed` when the daemon does not answer or hangs up, `Corrupt` when its answer is not understood.
    pub async fn misses(
        &mut self,
        uid: Option<u32>,
        client: Option<String>,
    ) -> Result<Option<serde_json::Value>> {
        self.send(&Request::Misses { uid, client }).await?;
        match self.receive().await? {
            Response::Misses(misses) => Ok(Some(misses)),
            Response::Error(failure) if failure.is(Kind::Invalid) => Ok(None),
            other => Err(unexpected(&other)),
        }
    }

    /// Fetches files to the node, as far as there is room; the paths are as in [`Request::Explain`].
    ///
    /// # Errors
    ///
    /// `Unavailable` when the store cannot be used, `Invalid` when the daemon's version does not support this.
    pub async fn warm(
        &mut self,
        paths: Vec<String>,
        mut progress: impl FnMut(&WarmReport),
    ) -> Result<WarmReport> {
        self.send(&Request::Warm { paths }).await?;
        loop {
            match self.receive().await? {
                Response::Warming(news) => progress(&news),
                Response::Warmed(report) => return Ok(report),
                Response::Error(failure) => return Err(told(failure)),
                other => return Err(unexpected(&other)),
            }
        }
    }

    /// Requests the files opened since the last request with that number; the first request starts
    /// the recording.
    ///
    /// # Errors
    ///
    /// `Busy` when there are too many recordings, `Invalid` when the daemon's version does not support this.
    pub async fn opens(&mut self, number: u64, last: bool) -> Result<OpensReport> {
        self.send(&Request::Opens { number, last }).await?;
        match self.receive().await? {
            Response::Opens(report) => Ok(report),
            Response::Error(failure) => Err(told(failure)),
            other => Err(unexpected(&other)),
        }
    }

    /// Waits until everything published before is uploaded, for at most `limit`.
    ///
    /// # Errors
    ///
    /// `TimedOut` or `Closed` when the daemon does not answer or hangs up, `Corrupt` when its answer
    /// is not understood. A backlog that remains at the limit is no error: the report counts it.
    pub async fn drain(
        &mut self,
        limit: Duration,
        progress: impl FnMut(&DrainProgress),
    ) -> Result<DrainReport> {
        self.send(&Request::Drain { timeout_ms: limit.as_millis() as u64 }).await?;
        self.follow(progress).await
    }

    /// Makes the daemon drain, unmount and end. `limit` applies to the drain: zero leaves the
    /// backlog, `None` is the daemon's own limit.
    ///
    /// # Errors
    ///
    /// `Busy` when the mount is in use and stays, `TimedOut` or `Closed` when the daemon does not answer or hangs up,
    /// `Corrupt` when its answer is not understood.
    pub async fn shutdown(
        &mut self,
        limit: Option<Duration>,
        progress: impl FnMut(&DrainProgress),
    ) -> Result<DrainReport> {
        let timeout_ms = limit.map(|limit| limit.as_millis() as u64);
        self.send(&Request::Shutdown { timeout_ms }).await?;
        self.follow(progress).await
    }

    /// Waits until the daemon's process is gone; returns false after `limit`. An invisible daemon
    /// counts as gone when it hangs up.
    pub async fn wait_gone(mut self, limit: Duration) -> bool {
        let gone = async {
            let mut rest = [0; 512];
            while matches!(self.stream.read(&mut rest).await, Ok(1..)) {}
            let handle = self.pid.map(|pid| pidfd_open(pid, PidfdFlags::empty()));
            // An error means that the process no longer exists.
            if let Some(Ok(handle)) = handle {
                while !has_ended(&handle) {
                    sleep(END_POLL).await;
                }
            }
        };
        within(limit, gone).await.is_some()
    }

    async fn follow(&mut self, mut progress: impl FnMut(&DrainProgress)) -> Result<DrainReport> {
        loop {
            match self.receive().await? {
                Response::Progress(news) => progress(&news),
                Response::Drained(report) => return Ok(report),
                Response::Error(failure) => return Err(told(failure)),
                other => return Err(unexpected(&other)),
            }
        }
    }

    async fn send(&mut self, request: &Request) -> Result<()> {
        let mut line = serde_json::to_vec(request)
            .map_err(|error| Error::with(Kind::Internal, "write a request", error))?;
        line.push(b'\n');
        match within(REPLY_DEADLINE, self.stream.write_all(&line)).await {
            Some(sent) => sent.map_err(|error| Error::io("send to the daemon", error)),
            None => Err(self.late("accept the request")),
        }
    }

    /// Returns the error that the daemon was too slow. It names the process, which may have to be ended.
    fn late(&self, what: &str) -> Error {
        let pid = self.pid.map(|pid| format!(" with process id {}", pid.as_raw_nonzero()));
        let op = format!("the daemon{} does not {what}", pid.unwrap_or_default());
        Error::new(Kind::TimedOut, op)
    }

    async fn receive(&mut self) -> Result<Response> {
        let mut line = Vec::new();
        let mut limited = (&mut self.stream).take(RESPONSE_BYTES_MAX);
        let read = within(REPLY_DEADLINE, limited.read_until(b'\n', &mut line)).await;
        match read {
            None => Err(self.late("answer")),
            Some(Err(error)) => Err(Error::io("receive from the daemon", error)),
            Some(Ok(_)) if line.last() != Some(&b'\n') => {
                Err(Error::new(Kind::Closed, "the daemon closed the connection"))
            }
            Some(Ok(_)) => serde_json::from_slice(&line).map_err(|error| {
                Error::with(Kind::Corrupt, "the answer of the daemon cannot be understood", error)
            }),
        }
    }
}

/// Makes an error from a failure that the daemon reports.
fn told(failure: RequestFailure) -> Error {
    let kinds = [Kind::Busy, Kind::Denied, Kind::Invalid, Kind::Unavailable];
    let kind = kinds.into_iter().find(|kind| failure.is(*kind));
    Error::new(kind.unwrap_or(Kind::Internal), failure.message)
}

fn unexpected(response: &Response) -> Error {
    match response {
        Response::Error(failure) => Error::new(Kind::Internal, failure.message.clone()),
        _ => Error::new(Kind::Corrupt, "the daemon sent an unexpected answer"),
    }
}

/// Reports whether a process has ended, even if its parent has not waited for it yet.
fn has_ended(handle: &OwnedFd) -> bool {
    let mut wanted = [PollFd::new(handle, PollFlags::IN)];
    !matches!(
        poll(&mut wanted, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })),
        Ok(0) | Err(Errno::INTR)
    )
}

/// Connects to the daemon that serves `mount_point` (absolute, resolved). `owner` is the user of
/// the mount, if known.
///
/// # Errors
///
/// `NotFound` when no daemon serves it, `Corrupt` when the daemon at its socket serves another place; otherwise the
/// error of the daemon that was found.
pub async fn find(
    around: &Surroundings,
    mount_point: &Path,
    owner: Option<u32>,
) -> Result<(Client, Status)> {
    let shown = mount_point.to_string_lossy();
    let mut trouble = None;
    for dir in place::search_dirs(around, owner) {
        let users = place::believed(around, &dir, owner);
        let connected = Client::connect(&Place::new(&dir, mount_point), &users).await;
        let asked = match connected {
            Ok(mut client) => client.status().await.map(|status| (client, status)),
            Err(error) => Err(error),
        };
        match asked {
            Ok((client, status)) if status.mount_point == shown => return Ok((client, status)),
            Ok((_, status)) => {
                let message = format!("the daemon there serves {}", status.mount_point);
                trouble = Some(Error::new(Kind::Corrupt, message));
            }
            Err(error) if error.kind() == Kind::NotFound => {}
            Err(error) => trouble = Some(error),
        }
    }
    Err(trouble.unwrap_or_else(|| {
        Error::new(Kind::NotFound, format!("no daemon serves {}", mount_point.display()))
    }))
}

/// Requests the status of all daemons of this user (for root: of the system). The second list holds the errors.
pub async fn list(around: &Surroundings) -> (Vec<Status>, Vec<Error>) {
    let (mut found, mut troubles) = (Vec::new(), Vec::new());
    for dir in place::search_dirs(around, None) {
        let users = place::believed(around, &dir, None);
        for socket in sockets(&dir) {
            let Some(place) = Place::of_socket(&socket) else { continue };
            let asked = match Client::connect(&place, &users).await {
                Ok(mut client) => client.status().await,
                Err(error) => Err(error),
            };
            match asked {
                Ok(status) => found.push(status),
                // Mounts of other users are skipped: we may not query them.
                Err(error) if matches!(error.kind(), Kind::NotFound | Kind::Denied) => {}
                Err(error) => troubles.push(error),
            }
        }
    }
    found.sort_by(|a, b| a.mount_point.cmp(&b.mount_point));
    (found, troubles)
}

fn sockets(dir: &Path) -> Vec<PathBuf> {
    let Ok(entries) = std::fs::read_dir(dir) else { return Vec::new() };
    entries.filter_map(std::result::Result::ok).map(|entry| entry.path()).collect()
}
