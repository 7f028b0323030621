//! A mount in the background: the same program started again, in a session of its own.
//!
//! Owns both ends of starting it. Must never report success before a stat through the mount worked,
//! and must never leave a half-started daemon behind.
//!
//! The child writes `ready` to its stdout, or else its error; its stderr is a log file.

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

/// The option that marks the process as the child.
pub(super) const DETACHED: &str = "--detached";

/// How long a mount may take to be ready.
const START_LIMIT: Duration = Duration::from_mins(2);
/// How long a child that has reported may take to end.
const END_LIMIT: Duration = Duration::from_secs(10);
const READY: &str = "ready\n";
/// The longest error that is read, in bytes.
const ERROR_BYTES_MAX: u64 = 64 * 1024;
/// A log larger than this is moved aside at the next start.
const LOG_BYTES_MAX: u64 = 16 << 20;
const END_POLL: Duration = Duration::from_millis(20);

/// Starts a mount at `point` in the background and returns when it works. Dropping the future ends the child.
pub(super) async fn launch(around: &Surroundings, point: &Path, flags: &Flags) -> Outcome<PathBuf> {
    let (log, log_path) = open_log(around, point)?;
    let failed = |error: std::io::Error| Failure::failed(format!("start the daemon: {error}"));
    // The running program itself, even if a newer version has replaced its file.
    let mut command = Command::new("/proc/self/exe");
    // The service manager's variables are meant for this process, not for the child.
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

/// A child that is not known to be ready yet; dropping it ends the child.
struct Starting(Option<Child>);

impl Starting {
    /// Returns the child's output up to `ready` or its end.
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

    /// Makes a failure from the output of a child that ended.
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
            // Not reaped yet, so the process id is still its own. It unmounts and ends by itself.
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

/// In the child: sets the name that lists of processes show. It was started through a link, whose
/// name they would show otherwise.
pub(super) fn take_name() {
    // Without it, only the displayed name is wrong.
    std::fs::write("/proc/self/comm", "hearthfs").ok();
}

/// In the child: leaves the session and the directory of the process that started it. Called only
/// after the mount works: while an automount waits for the mount, only the process group that makes
/// it may access its directory.
pub(super) fn detach() {
    let moved = rustix::process::setsid().map(drop).map_err(std::io::Error::from);
    if let Err(error) = moved.and_then(|()| std::env::set_current_dir("/")) {
        tracing::warn!(%error, "the daemon stays in the session in which it was started");
    }
}

/// In the child: reports that the mount works, and closes the pipe.
pub(super) fn say_ready() {
    tell(READY);
}

/// In the child: reports why there is no mount.
pub(super) fn say_failure(failure: &Failure) {
    tell(&failure.text());
}

/// Writes to the parent. If that process is gone, there is nothing to report.
fn tell(text: &str) {
    let mut out = std::io::stdout().lock();
    out.write_all(text.as_bytes()).and_then(|()| out.flush()).ok();
    if let Ok(null) = File::options().write(true).open("/dev/null") {
        rustix::stdio::dup2_stdout(&null).ok();
    }
}
