//! A mount in the background: the same program once more, in a session of its own.
//!
//! Owns both ends of starting it. Must never report success before a stat through the mount worked,
//! and must never leave a half-started daemon behind.
//!
//! The child says `ready` on its stdout, or else its error; its stderr is a log file.

use std::fs::File;
use std::io::Write as _;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use tokio::io::AsyncReadExt as _;
use tokio::net::unix::pipe::Receiver;

use super::failure::{Exit, Failure, Outcome};
use super::options::to_args;
use super::point::stat_within;
use crate::clock::{sleep, within};
use crate::config::{Flags, Surroundings, log_base, mount_name};
use crate::daemon::MANAGER_VARIABLES;

/// The option that tells the child what it is.
pub(super) const DETACHED: &str = "--detached";

/// How long a mount may take to be ready.
const START_LIMIT: Duration = Duration::from_mins(2);
/// How long a child that has spoken may take to end.
const END_LIMIT: Duration = Duration::from_secs(10);
const READY: &str = "ready\n";
/// The longest error that is listened to, in bytes.
const ERROR_BYTES_MAX: u64 = 64 * 1024;
/// A log that has grown beyond this is moved aside at the next start.
const LOG_BYTES_MAX: u64 = 16 << 20;
const END_POLL: Duration = Duration::from_millis(20);

/// Starts a mount at `point` in the background and returns once it works. Dropping the future ends the
/// child again.
pub(super) async fn launch(around: &Surroundings, point: &Path, flags: &Flags) -> Outcome<PathBuf> {
    let (log, log_path) = open_log(around, point)?;
    let failed = |error: std::io::Error| Failure::failed(format!("start the daemon: {error}"));
    // The program itself, even if its file was replaced by a newer one meanwhile.
    let mut command = Command::new("/proc/self/exe");
    // What the service manager promised to us is not the child's.
    for variable in MANAGER_VARIABLES.into_iter().chain(["JOURNAL_STREAM"]) {
        command.env_remove(variable);
    }
    let child = command
        .arg0("hearthfs")
        .args(["mount", DETACHED])
        .args(to_args(flags))
        .arg("--")
        .arg(point)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(log)
        .spawn()
        .map_err(failed)?;
    let mut starting = Starting(Some(child));
    let said = within(START_LIMIT, starting.listen()).await;
    let shown = log_path.display();
    match said {
        Some(Ok(text)) if text.starts_with(READY) => {}
        Some(Ok(text)) => return Err(starting.explain(&text, &log_path).await),
        Some(Err(error)) => return Err(failed(error)),
        None => {
            return Err(Failure::failed(format!("the daemon was not ready after {START_LIMIT:?}"))
                .hint(format!("its log is {shown}")));
        }
    }
    match stat_within(point, END_LIMIT) {
        Some(Ok(())) => {
            starting.0 = None;
            Ok(log_path)
        }
        _ => Err(Failure::failed(format!("{} is mounted but does not answer", point.display()))
            .hint(format!("the daemon's log is {shown}"))),
    }
}

/// A child that is not known to be ready yet; ended when this is dropped.
struct Starting(Option<Child>);

impl Starting {
    /// Returns what the child says until it says `ready` or nothing more.
    async fn listen(&mut self) -> std::io::Result<String> {
        let Some(out) = self.0.as_mut().and_then(|child| child.stdout.take()) else {
            return Ok(String::new());
        };
        let mut out = Receiver::from_owned_fd(OwnedFd::from(out))?.take(ERROR_BYTES_MAX);
        let (mut text, mut piece) = (Vec::new(), [0; 1024]);
        while !text.starts_with(READY.as_bytes()) {
            match out.read(&mut piece).await? {
                0 => break,
                length => text.extend_from_slice(&piece[..length]),
            }
        }
        Ok(String::from_utf8_lossy(&text).into_owned())
    }

    /// Makes a failure of what the child said before it ended.
    async fn explain(&mut self, text: &str, log: &Path) -> Failure {
        let status = within(END_LIMIT, async {
            loop {
                match self.0.as_mut().map(Child::try_wait) {
                    Some(Ok(None)) => sleep(END_POLL).await,
                    Some(Ok(status)) => return status,
                    Some(Err(_)) | None => return None,
                }
            }
        })
        .await
        .flatten();
        let exit = match status.and_then(|status| status.code()) {
            Some(2) => Exit::Refused,
            _ => Exit::Failed,
        };
        let lines = |label: &str| -> Vec<String> {
            text.lines().filter_map(|line| line.strip_prefix(label)).map(str::to_owned).collect()
        };
        let (mut messages, mut hints) = (lines("error: "), lines("hint: "));
        if messages.is_empty() {
            let end = status.map_or_else(String::new, |status| format!(" ({status})"));
            messages.push(format!("the daemon ended before it was ready{end}"));
            hints.push(format!("its log is {}", log.display()));
        }
        Failure { exit, messages, hints }
    }
}

impl Drop for Starting {
    fn drop(&mut self) {
        let Some(mut child) = self.0.take() else { return };
        if matches!(child.try_wait(), Ok(None)) {
            // Not reaped yet, so the number is still its own. It unmounts and ends by itself.
            kill_process(Pid::from_child(&child), Signal::TERM).ok();
        }
    }
}

fn open_log(around: &Surroundings, point: &Path) -> Outcome<(File, PathBuf)> {
    let dir = log_base(around);
    let path = dir.join(format!("{}.log", mount_name(point)));
    let open = || {
        std::fs::DirBuilder::new().recursive(true).mode(0o700).create(&dir)?;
        if std::fs::metadata(&path).is_ok_and(|about| about.len() > LOG_BYTES_MAX) {
            std::fs::rename(&path, path.with_extension("log.old"))?;
        }
        File::options().append(true).create(true).mode(0o600).open(&path)
    };
    match open() {
        Ok(file) => Ok((file, path)),
        Err(error) => {
            Err(Failure::refused(format!("cannot write the log {}: {error}", path.display())))
        }
    }
}

/// The child's end: takes the name that lists of processes show. It was started from a link, and would be
/// called like that.
pub(super) fn take_name() {
    // Only looks suffer if it cannot be had.
    std::fs::write("/proc/self/comm", "hearthfs").ok();
}

/// The child's end: leaves the session and the directory of the process that started it. Only once the mount works:
/// where an automount waits for it, only the process group that makes the mount may touch its directory.
pub(super) fn detach() {
    let moved = rustix::process::setsid().map(drop).map_err(std::io::Error::from);
    if let Err(error) = moved.and_then(|()| std::env::set_current_dir("/")) {
        tracing::warn!(%error, "the daemon stays in the session that it was started in");
    }
}

/// The child's end: says that the mount works, and lets go of the pipe.
pub(super) fn say_ready() {
    tell(READY);
}

/// The child's end: says why there is no mount.
pub(super) fn say_failure(failure: &Failure) {
    tell(&failure.text());
}

/// The process that started us may be gone; then there is nothing to tell.
fn tell(text: &str) {
    let mut out = std::io::stdout().lock();
    out.write_all(text.as_bytes()).and_then(|()| out.flush()).ok();
    if let Ok(null) = File::options().write(true).open("/dev/null") {
        rustix::stdio::dup2_stdout(&null).ok();
    }
}
