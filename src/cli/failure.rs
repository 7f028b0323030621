//! How a command fails.
//!
//! Owns the exit statuses, which scripts rely on, and the form of messages. Must never print data.

use std::fmt::Write as _;

use super::escape::tame;
use crate::config::Refusal;
use crate::error::{Error, Kind};

/// The exit status of a command that failed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Exit {
    /// It was attempted and failed.
    Failed = 1,
    /// It was not attempted: usage, configuration, environment.
    Refused = 2,
    /// There is no mount for it.
    NotMounted = 3,
    /// `run`: the command exists and cannot be executed.
    NotExecutable = 126,
    /// `run`: there is no such command.
    NoCommand = 127,
}

/// Why a command failed, and what to do about it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Failure {
    pub(super) exit: Exit,
    pub(super) messages: Vec<String>,
    pub(super) hints: Vec<String>,
}

/// The result of a command.
pub(super) type Outcome<T> = Result<T, Failure>;

impl Failure {
    pub(super) fn new(exit: Exit, message: impl Into<String>) -> Self {
        Self { exit, messages: vec![message.into()], hints: Vec::new() }
    }

    pub(super) fn failed(message: impl Into<String>) -> Self {
        Self::new(Exit::Failed, message)
    }

    pub(super) fn refused(message: impl Into<String>) -> Self {
        Self::new(Exit::Refused, message)
    }

    pub(super) fn not_mounted(message: impl Into<String>) -> Self {
        Self::new(Exit::NotMounted, message)
    }

    #[must_use]
    pub(super) fn hint(mut self, hint: impl Into<String>) -> Self {
        self.hints.push(hint.into());
        self
    }

    /// Makes a failure from an error before any change: an error that the user can fix is a refusal.
    pub(super) fn at_start(error: &Error) -> Self {
        let exit = match error.kind() {
            Kind::NotFound
            | Kind::Exists
            | Kind::Busy
            | Kind::NoSpace
            | Kind::Denied
            | Kind::Invalid => Exit::Refused,
            Kind::Corrupt
            | Kind::Exhausted
            | Kind::Unavailable
            | Kind::TimedOut
            | Kind::Closed
            | Kind::Internal => Exit::Failed,
        };
        Self::new(exit, error.chain())
    }

    /// Returns the lines for stderr. Text that others can influence, such as a path, is made
    /// harmless for a terminal.
    pub(super) fn text(&self) -> String {
        let mut text = String::new();
        for (label, lines) in [("error", &self.messages), ("hint", &self.hints)] {
            for line in lines {
                // Writing to a string cannot fail.
                writeln!(text, "{label}: {}", tame(line)).ok();
            }
        }
        text
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        Self::failed(error.chain())
    }
}

impl From<Refusal> for Failure {
    fn from(refusal: Refusal) -> Self {
        let messages = refusal.0.iter().map(ToString::to_string).collect();
        let hint = "docs/configuration.md describes every key";
        Self { exit: Exit::Refused, messages, hints: vec![hint.to_owned()] }
    }
}
