//! The base of every suite on real mounts: nodes, stores, processes, bodies, and waits.
//!
//! Owns all starts and ends of daemons in the tests. Must never let a hung mount hang a suite:
//! everything that may block has a deadline, and a test that misses it fails with its name.

pub(crate) mod body;
pub(crate) mod command;
pub(crate) mod node;
pub(crate) mod options;
pub(crate) mod store;
pub(crate) mod syscall_process;
pub(crate) mod time;
pub(crate) mod tree;
mod turn;

use std::fmt::{Debug, Display};
use std::io::Write as _;

pub(crate) use node::{Cluster, Node};
pub(crate) use options::{Io, Options};
pub(crate) use store::Store;
pub(crate) use syscall_process::SyscallProcess;
pub(crate) use time::{eventually, now, sleep_ms, within};

/// Ends a test with a description of the failed step, for values that only a broken machine lacks.
pub(crate) trait Must<T> {
    /// Returns the value, or panics with `what` and the error.
    fn must(self, what: impl Display) -> T;
}

impl<T, E: Debug> Must<T> for Result<T, E> {
    #[track_caller]
    fn must(self, what: impl Display) -> T {
        match self {
            Ok(value) => value,
            Err(error) => panic!("{what}: {error:?}"),
        }
    }
}

impl<T> Must<T> for Option<T> {
    #[track_caller]
    fn must(self, what: impl Display) -> T {
        match self {
            Some(value) => value,
            None => panic!("{what}: nothing there"),
        }
    }
}

/// Writes one line that bypasses the test runner's capture, for scripts that count.
pub(crate) fn say(text: impl Display) {
    // In one piece, so that lines of concurrent tests are not torn.
    let line = format!("{text}\n");
    drop(std::io::stderr().lock().write_all(line.as_bytes()));
}

/// Returns the amount of work of a test: the value of a variable, or else the default.
pub(crate) fn wanted(variable: &str, usual: u64) -> u64 {
    std::env::var(variable)
        .map_or(usual, |text| text.parse().must(format_args!("{variable}={text}")))
}

/// Reports a test that could not run; `.ci/run` fails on those that are not on its list.
pub(crate) fn skipped(name: &str, reason: impl Display) {
    say(format_args!("SKIPPED {name}: {reason}"));
}

/// Returns whether the suite runs as root, which passthrough and some of the tests need.
pub(crate) fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

/// Makes two tests from one function: the same promises hold with and without passthrough.
macro_rules! in_both_modes {
    ($(#[$doc:meta])* $name:ident) => {
        mod $name {
            use crate::harness::Io;

            $(#[$doc])*
            #[test]
            fn ordinary() {
                super::$name(Io::Ordinary);
            }

            $(#[$doc])*
            #[test]
            fn passthrough() {
                if let Some(reason) = Io::passthrough_refused() {
                    crate::harness::skipped(
                        concat!(module_path!(), "::passthrough"),
                        reason,
                    );
                    return;
                }
                super::$name(Io::Passthrough);
            }
        }
    };
}
pub(crate) use in_both_modes;
