//! Other programs, each with a deadline.
//!
//! Owns how a test runs a program and reads its output. Must never wait for one without a limit.

use std::io::Read;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::Duration;

use super::time::{now, sleep_ms, thread};
use super::{Must as _, skipped};

/// The output of a program, and its exit status.
#[derive(Debug)]
pub(crate) struct Said {
    /// The exit status.
    pub(crate) status: ExitStatus,
    /// What it wrote to stdout.
    pub(crate) out: String,
    /// What it wrote to stderr.
    pub(crate) err: String,
}

impl Said {
    /// Returns the exit code; fails the test if the program was killed by a signal.
    #[track_caller]
    pub(crate) fn code(&self) -> i32 {
        self.status.code().must(format_args!("exit code; {self:?}"))
    }

    /// Returns stdout of a program that succeeded.
    #[track_caller]
    pub(crate) fn good(self) -> String {
        assert!(self.status.success(), "{self:?}");
        self.out
    }
}

fn collect(from: Option<impl Read + Send + 'static>) -> std::thread::JoinHandle<Vec<u8>> {
    thread(move || {
        let mut bytes = Vec::new();
        if let Some(mut from) = from {
            drop(from.read_to_end(&mut bytes));
        }
        bytes
    })
}

/// Waits for `child` until the deadline; `None` when it still runs then.
pub(crate) fn wait(child: &mut Child, limit_ms: u64) -> Option<ExitStatus> {
    let start = now();
    loop {
        if let Some(status) = child.try_wait().must("wait for a child") {
            return Some(status);
        }
        if start.elapsed() > Duration::from_millis(limit_ms) {
            return None;
        }
        sleep_ms(3);
    }
}

/// Runs `command` to its end and returns its output; fails if it takes longer than `limit_ms`.
#[track_caller]
pub(crate) fn run(command: &mut Command, limit_ms: u64) -> Said {
    let piped = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = piped.spawn().must(format_args!("start {command:?}"));
    let out = collect(child.stdout.take());
    let err = collect(child.stderr.take());
    let status = wait(&mut child, limit_ms);
    let Some(status) = status else {
        drop(child.kill());
        panic!("{command:?}: not done after {limit_ms} ms");
    };
    let text = |reader: std::thread::JoinHandle<Vec<u8>>| {
        String::from_utf8_lossy(&reader.join().must("read the output")).into_owned()
    };
    Said { status, out: text(out), err: text(err) }
}

/// Reports whether a program of that name can be run.
pub(crate) fn is_there(program: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).any(|dir| dir.join(program).is_file())
}

/// Reports a missing program as a skip of `test`; returns whether the test can run.
pub(crate) fn need(test: &str, program: &str) -> bool {
    let there = is_there(program);
    if !there {
        skipped(test, format_args!("{program} is not installed"));
    }
    there
}
