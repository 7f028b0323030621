//! The result of a check.
//!
//! Owns the words, which scripts read: they are added, never renamed.

use serde::Serialize;

use crate::cli::failure::Failure;

/// The verdict of a check.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "snake_case")]
pub(in crate::cli) enum Verdict {
    /// As it should be.
    Ok,
    /// It works, but not as well as it could.
    Warning,
    /// Something does not work.
    Problem,
    /// It was not checked.
    Skipped,
}

impl Verdict {
    pub(super) fn word(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Warning => "warning",
            Self::Problem => "problem",
            Self::Skipped => "skipped",
        }
    }
}

/// The theme of a check.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "snake_case")]
pub(in crate::cli) enum Theme {
    Machine,
    Mount,
    Store,
    Clients,
}

impl Theme {
    pub(super) const ALL: [Self; 4] = [Self::Machine, Self::Mount, Self::Store, Self::Clients];

    pub(super) fn title(self) -> &'static str {
        match self {
            Self::Machine => "this machine",
            Self::Mount => "the mount",
            Self::Store => "the store",
            Self::Clients => "the clients",
        }
    }
}

/// One check and its result.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub(in crate::cli) struct Finding {
    pub(super) theme: Theme,
    pub(super) name: String,
    pub(super) result: Verdict,
    pub(super) found: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) remedy: Option<String>,
}

impl Finding {
    fn new(theme: Theme, name: &str, result: Verdict, found: String) -> Self {
        Self { theme, name: name.to_owned(), result, found, remedy: None }
    }

    pub(super) fn ok(theme: Theme, name: &str, found: impl Into<String>) -> Self {
        Self::new(theme, name, Verdict::Ok, found.into())
    }

    pub(super) fn warning(
        theme: Theme,
        name: &str,
        found: impl Into<String>,
        remedy: impl Into<String>,
    ) -> Self {
        let remedy = Some(remedy.into());
        Self { remedy, ..Self::new(theme, name, Verdict::Warning, found.into()) }
    }

    pub(super) fn problem(
        theme: Theme,
        name: &str,
        found: impl Into<String>,
        remedy: impl Into<String>,
    ) -> Self {
        let remedy = Some(remedy.into());
        Self { remedy, ..Self::new(theme, name, Verdict::Problem, found.into()) }
    }

    pub(super) fn skipped(theme: Theme, name: &str, why: impl Into<String>) -> Self {
        Self::new(theme, name, Verdict::Skipped, why.into())
    }

    /// Makes one from a refusal by another command.
    pub(super) fn refused(theme: Theme, name: &str, failure: &Failure) -> Self {
        let remedy = if failure.hints.is_empty() {
            "correct what the message names".to_owned()
        } else {
            failure.hints.join("; ")
        };
        Self::problem(theme, name, failure.messages.join("; "), remedy)
    }
}
