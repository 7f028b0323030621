//! Made-up programs: real processes that do nothing, so that the node sees somebody behind each call.

use std::process::{Child, Command, Stdio};

use hearthfs_mount::Caller;

/// A process that waits to be killed.
#[derive(Debug)]
pub(super) struct Program(Child);

impl Program {
    pub(super) fn start() -> Self {
        let mut command = Command::new("sleep");
        Self(command.arg("86400").stdin(Stdio::null()).spawn().unwrap())
    }

    /// Returns it as the kernel names who calls.
    pub(super) fn caller(&self) -> Caller {
        Caller { uid: 0, gid: 0, tid: self.0.id() }
    }

    /// Kills it as SIGKILL does and waits until the kernel has taken its memory; it is not buried before it
    /// is dropped, as a task that is closing its files is not.
    pub(super) fn kill(&mut self) {
        self.0.kill().unwrap();
        let statm = format!("/proc/{}/statm", self.0.id());
        while !std::fs::read_to_string(&statm).unwrap().starts_with("0 ") {
            std::thread::yield_now();
        }
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        drop(self.0.kill());
        drop(self.0.wait());
    }
}
