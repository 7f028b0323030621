//! What every suite on real mounts stands on: nodes, stores, processes, bodies, and patience.
//!
//! Owns the only starts and ends of daemons in the tests. Must never let a hung mount hang a suite:
//! whatever may block has a deadline, and a test that misses it fails by name.

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

/// Ends a test with what was being tried, for values that only a broken machine withholds.
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

/// Writes one line past the test runner's capture, for those who count.
pub(crate) fn say(text: impl Display) {
    // In one piece, so that the lines of tests beside each other are not torn.
    let line = format!("{text}\n");
    drop(std::io::stderr().lock().write_all(line.as_bytes()));
}

/// Returns how much of something a test does: what a variable says, or else the usual.
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

/// Makes two tests of one function: the same promises hold with and without passthrough.
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
