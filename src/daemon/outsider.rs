//! A process of our own that goes through the kernel to the mount.
//!
//! Owns how it is started and waited for. Must never let a thread of the daemon wait for the daemon's own
//! answer: a request that was taken and is never answered cannot be interrupted, and with such a thread
//! the daemon could not be ended, not even by SIGKILL. A process of its own gets its answer, an error,
//! when the daemon is gone.

use std::ffi::OsStr;
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Command, Output, Stdio};

use tokio::sync::oneshot;

use super::notify::MANAGER_VARIABLES;
use crate::error::{Error, Result};
use crate::task;

/// A process that is running.
#[derive(Debug)]
pub(super) struct Outsider(oneshot::Receiver<std::io::Result<Output>>);

impl Outsider {
    /// Starts this program with a command and its arguments for the mount at `point`; it holds `held` until it has
    /// ended. What it writes to stderr is kept if `heard`, and otherwise goes to ours.
    pub(super) fn start(
        command: &str,
        point: &Path,
        arguments: &[impl AsRef<OsStr>],
        heard: bool,
        held: impl Send + 'static,
    ) -> Result<Self> {
        let failed = |error| Error::io(format!("start a process for `{command}`"), error);
        // The program itself, even if its file was replaced by a newer one meanwhile.
        let mut process = Command::new("/proc/self/exe");
        process.arg0("hearthfs").arg(command).arg("--").arg(point).args(arguments);
        process.current_dir("/").stdin(Stdio::null()).stdout(Stdio::null());
        if heard {
            process.stderr(Stdio::piped());
        }
        for variable in MANAGER_VARIABLES {
            process.env_remove(variable);
        }
        let child = process.spawn().map_err(failed)?;
        let (tell, told) = oneshot::channel();
        let wait = move || {
            let ended = child.wait_with_output();
            drop(held);
            // The receiver may be gone.
            tell.send(ended).ok();
        };
        task::thread("outsider", wait).map_err(failed)?;
        Ok(Self(told))
    }

    /// Returns how it ended, or `None` if that cannot be known; may be called again if the future is dropped before.
    pub(super) async fn ended(&mut self) -> Option<Output> {
        (&mut self.0).await.ok()?.ok()
    }
}
