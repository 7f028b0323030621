//! A process of our own that accesses the mount through the kernel.
//!
//! Owns how it is started and waited for. Must never let a thread of the daemon wait for the
//! daemon's own answer. A request that was read and never answered cannot be interrupted, so with
//! such a thread the daemon could not end, not even by SIGKILL. A separate process gets an error
//! when the daemon is gone.

use std::ffi::OsStr;
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Command, Output, Stdio};

use tokio::sync::oneshot;

use super::notify::MANAGER_VARIABLES;
use crate::error::{Error, Result};
use crate::task;

/// A running process.
#[derive(Debug)]
pub(super) struct Outsider(oneshot::Receiver<std::io::Result<Output>>);

impl Outsider {
    /// Starts this program with a command and its arguments for the mount at `point`. The process holds
    /// `held` until it has ended. Its stderr is captured if `heard`, and otherwise goes to ours.
    pub(super) fn start(
        command: &str,
        point: &Path,
        arguments: &[impl AsRef<OsStr>],
        heard: bool,
        held: impl Send + 'static,
    ) -> Result<Self> {
        let failed = |error| Error::io(format!("start a process for `{command}`"), error);
        // The running program itself, even if a newer version has replaced its file.
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

    /// Returns its exit status and output, or `None` if they are unknown; may be called again if
    /// the future was dropped before.
    pub(super) async fn ended(&mut self) -> Option<Output> {
        (&mut self.0).await.ok()?.ok()
    }
}
