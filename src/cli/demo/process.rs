//! Processes of the demonstration: starting, waiting and ending.
//!
//! Must never wait without listening for Ctrl-C, and never leave a process behind.

use std::os::unix::process::CommandExt as _;
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crate::clock::Clock;
use crate::task;
use rustix::process::{Pid, Signal};

use super::say;
use crate::cli::failure::{Failure, Outcome};

/// How often a condition is checked.
const POLL: Duration = Duration::from_millis(10);
/// How long a process that was told to end may take before it is killed.
const END_WITHIN: Duration = Duration::from_secs(10);
/// How often the user is told that a process still runs.
const SAY_EVERY: Duration = Duration::from_secs(10);
/// The message of a step that was ended by a signal.
pub(super) const INTERRUPTED: &str = "interrupted";

/// Makes this process end when its parent does, however that ends.
pub(super) fn end_with_parent() {
    // A kernel that refuses this is no reason to stop: the parent also ends us explicitly.
    let _ = rustix::process::set_parent_process_death_signal(Some(Signal::TERM));
}

/// Waits a moment.
#[expect(clippy::disallowed_methods, reason = "this command uses no asynchronous runtime")]
pub(super) fn pause() {
    std::thread::sleep(POLL);
}

/// Whether a signal has requested the end.
#[derive(Clone, Debug)]
pub(super) struct Stop(Arc<AtomicBool>);

impl Stop {
    /// Turns the signals that end a program into a request to stop, so that everything is cleaned up.
    pub(super) fn on_signals() -> Outcome<Self> {
        use tokio::signal::unix::{SignalKind, signal};
        let failed = |error| Failure::failed(format!("cannot listen for signals: {error}"));
        let runtime =
            tokio::runtime::Builder::new_current_thread().enable_io().build().map_err(failed)?;
        let entered = runtime.enter();
        let mut interrupt = signal(SignalKind::interrupt()).map_err(failed)?;
        let mut terminate = signal(SignalKind::terminate()).map_err(failed)?;
        let mut hangup = signal(SignalKind::hangup()).map_err(failed)?;
        drop(entered);
        let wish = Arc::new(AtomicBool::new(false));
        let set = Arc::clone(&wish);
        let listen = move || {
            runtime.block_on(async {
                loop {
                    tokio::select! {
                        _ = interrupt.recv() => {}
                        _ = terminate.recv() => {}
                        _ = hangup.recv() => {}
                    }
                    set.store(true, Ordering::Relaxed);
                }
            });
        };
        // The thread ends with the process.
        drop(task::thread("signals", listen).map_err(failed)?);
        Ok(Self(wish))
    }

    /// Returns a value that no signal sets, for cleaning up.
    pub(super) fn never() -> Self {
        Self(Arc::new(AtomicBool::new(false)))
    }

    /// Fails if a signal has requested the end.
    pub(super) fn check(&self) -> Outcome<()> {
        if self.0.load(Ordering::Relaxed) { Err(Failure::failed(INTERRUPTED)) } else { Ok(()) }
    }
}

/// A process and its descendants; dropping it ends them.
#[derive(Debug)]
pub(super) struct DemoProcess {
    child: Child,
    name: String,
}

impl DemoProcess {
    /// Starts a process in a group of its own, so that Ctrl-C reaches it only through us.
    pub(super) fn start(command: &mut Command) -> Outcome<Self> {
        let name = command.get_program().to_string_lossy().into_owned();
        let child = command
            .stdin(Stdio::null())
            .process_group(0)
            .spawn()
            .map_err(|error| Failure::failed(format!("cannot start {name}: {error}")))?;
        Ok(Self { child, name })
    }

    /// Returns its exit status, if it has ended.
    pub(super) fn ended(&mut self) -> Option<ExitStatus> {
        self.child.try_wait().ok().flatten()
    }

    /// Waits for its end.
    pub(super) fn wait(&mut self, limit: Duration, stop: &Stop) -> Outcome<ExitStatus> {
        let (clock, mut said) = (Clock::system(), Duration::ZERO);
        loop {
            if let Some(status) = self.ended() {
                return Ok(status);
            }
            stop.check()?;
            if clock.mono() > said + SAY_EVERY {
                said = clock.mono();
                say(format_args!("{} still runs ({} s)", self.name, said.as_secs()));
            }
            if clock.mono() > limit {
                let name = &self.name;
                let problem = format!("{name} did not end within {} s", limit.as_secs());
                return Err(Failure::failed(problem));
            }
            pause();
        }
    }

    /// Asks the process itself to end, without its children.
    pub(super) fn ask_to_end(&self) {
        if let Some(pid) = Pid::from_raw(self.child.id().cast_signed()) {
            // It may have ended by itself; until it is waited for, its process id is not reused.
            let _ = rustix::process::kill_process(pid, Signal::TERM);
        }
    }

    fn signal_all(&self, signal: Signal) {
        if let Some(pid) = Pid::from_raw(self.child.id().cast_signed()) {
            let _ = rustix::process::kill_process_group(pid, signal);
        }
    }
}

impl Drop for DemoProcess {
    fn drop(&mut self) {
        if self.ended().is_some() {
            return;
        }
        self.signal_all(Signal::TERM);
        let clock = Clock::system();
        while clock.mono() < END_WITHIN {
            if self.ended().is_some() {
                return;
            }
            pause();
        }
        self.signal_all(Signal::KILL);
        drop(self.child.wait());
    }
}

/// Runs a command to its end. Its output goes to files that no other user can read.
pub(super) fn output(command: &mut Command, limit: Duration, stop: &Stop) -> Outcome<Output> {
    let failed = |error| Failure::failed(format!("cannot make a temporary file: {error}"));
    let (out, err) = (tempfile::NamedTempFile::new(), tempfile::NamedTempFile::new());
    let (out, err) = (out.map_err(failed)?, err.map_err(failed)?);
    command.stdout(out.reopen().map_err(failed)?).stderr(err.reopen().map_err(failed)?);
    let status = DemoProcess::start(command)?.wait(limit, stop)?;
    let stdout = std::fs::read(out.path()).map_err(failed)?;
    let stderr = std::fs::read(err.path()).map_err(failed)?;
    Ok(Output { status, stdout, stderr })
}

/// Runs a command that has to succeed, and returns its stdout and stderr.
pub(super) fn succeed(
    command: &mut Command,
    limit: Duration,
    stop: &Stop,
) -> Outcome<(String, String)> {
    let shown = format!("{command:?}");
    let output = output(command, limit, stop)?;
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let (out, err) = (text(&output.stdout), text(&output.stderr));
    if !output.status.success() {
        let status = output.status;
        return Err(Failure::failed(format!("{status}: {shown}\n{}", err.trim_end())));
    }
    Ok((out, err))
}
