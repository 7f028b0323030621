//! The command that `run` starts: its signals and its end.
//!
//! Owns forwarding signals. Must never signal a process other than the command: its process id is
//! used only until it is waited for.

use std::io::ErrorKind;
use std::os::unix::process::ExitStatusExt as _;
use std::process::{Child, Command, ExitStatus};
use std::task::Poll;
use std::time::Duration;

use rustix::process::{Pid, Signal, getpgrp, kill_process};
use tokio::signal::unix::{SignalKind, signal};

use super::failure::{Exit, Failure, Outcome};
use crate::clock::within;

/// The forwarded signals. A terminal's stop and continue reach the command without us.
const FORWARDED: [Signal; 6] =
    [Signal::HUP, Signal::INT, Signal::QUIT, Signal::TERM, Signal::USR1, Signal::USR2];

/// For how long after the command's end a signal still belongs to it.
const AFTERMATH: Duration = Duration::from_millis(50);

/// The signals that this process receives in place of the command.
#[derive(Debug)]
pub(super) struct ChildSignals(Vec<(Signal, tokio::signal::unix::Signal)>);

impl ChildSignals {
    /// Starts listening. Ignored signals stay ignored, so that the command inherits that (`nohup`).
    pub(super) fn listen() -> Outcome<Self> {
        let ignored = ignored();
        let mut all = Vec::new();
        for which in FORWARDED {
            if ignored & (1 << (which.as_raw() - 1)) == 0 {
                let stream = signal(SignalKind::from_raw(which.as_raw()))
                    .map_err(|error| Failure::failed(format!("listen for signals: {error}")))?;
                all.push((which, stream));
            }
        }
        Ok(Self(all))
    }

    /// Waits for the next signal.
    pub(super) async fn next(&mut self) -> Signal {
        std::future::poll_fn(|context| {
            for (which, stream) in &mut self.0 {
                if let Poll::Ready(Some(())) = stream.poll_recv(context) {
                    return Poll::Ready(*which);
                }
            }
            Poll::Pending
        })
        .await
    }

    /// Discards the signals so far. What ended the command may have been sent to us as well
    /// (Ctrl-C), and may arrive a moment later; it is not meant for what we do next.
    pub(super) async fn forget(&mut self) {
        within(AFTERMATH, async {
            loop {
                self.next().await;
            }
        })
        .await
        .unwrap_or(());
    }

    /// Waits for the next signal that asks us to end.
    pub(super) async fn next_end(&mut self) -> Signal {
        loop {
            let which = self.next().await;
            if which != Signal::USR1 && which != Signal::USR2 {
                return which;
            }
        }
    }
}

/// Returns the signals that this process ignores, from `/proc`.
fn ignored() -> u64 {
    let text = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let set = text.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    set.and_then(|set| u64::from_str_radix(set.trim(), 16).ok()).unwrap_or(0)
}

/// Reports whether the terminal also sent the signal to the command. If both are in its foreground,
/// it sends Ctrl-C and Ctrl-\ to both, and forwarding would deliver it twice.
fn came_from_terminal(which: Signal) -> bool {
    if which != Signal::INT && which != Signal::QUIT {
        return false;
    }
    let Ok(terminal) = std::fs::File::open("/dev/tty") else { return false };
    rustix::termios::tcgetpgrp(&terminal).is_ok_and(|front| front == getpgrp())
}

/// A running command.
#[derive(Debug)]
pub(super) struct Running {
    child: Child,
    ends: tokio::signal::unix::Signal,
}

impl Running {
    /// Starts the command. If that fails, the exit statuses are those of a shell.
    pub(super) fn start(mut command: Command) -> Outcome<Self> {
        let name = command.get_program().to_string_lossy().into_owned();
        // Before the command starts; otherwise its end could be missed.
        let ends = signal(SignalKind::child())
            .map_err(|error| Failure::failed(format!("listen for signals: {error}")))?;
        let child = command.spawn().map_err(|error| {
            let exit = match error.kind() {
                ErrorKind::NotFound => Exit::NoCommand,
                _ => Exit::NotExecutable,
            };
            Failure::new(exit, format!("cannot run {name}: {error}"))
        })?;
        Ok(Self { child, ends })
    }

    /// Waits for the command's end and forwards signals meanwhile.
    pub(super) async fn finish(mut self, signals: &mut ChildSignals) -> Outcome<ExitStatus> {
        loop {
            let ended = self.child.try_wait();
            match ended {
                Ok(Some(status)) => return Ok(status),
                Ok(None) => {}
                Err(error) => {
                    return Err(Failure::failed(format!("wait for the command: {error}")));
                }
            }
            tokio::select! {
                _ = self.ends.recv() => {}
                which = signals.next() => {
                    if !came_from_terminal(which) {
                        // It may have ended, but the process id stays its own until it is waited
                        // for, which happens only above.
                        kill_process(Pid::from_child(&self.child), which).ok();
                    }
                }
            }
        }
    }
}

/// Ends this process as the command ended.
pub(super) fn end_like(status: ExitStatus) -> std::process::ExitCode {
    if let Some(signal) = status.signal() {
        hearthfs_mount::die_of(signal);
    }
    std::process::ExitCode::from(status.code().unwrap_or(1) as u8)
}
