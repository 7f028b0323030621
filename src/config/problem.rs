//! An invalid value, and where it is set.
//!
//! Owns the words for both. Must never show a secret that an address contains.

use std::fmt;
use std::path::PathBuf;

use serde::Serialize;

use super::url::without_secrets;

/// Where an effective value was set.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "snake_case", tag = "kind")]
pub enum Origin {
    /// It is the default.
    Default,
    /// In the file.
    File {
        /// Which file.
        path: PathBuf,
        /// Its line, from 1.
        line: usize,
    },
    /// By an environment variable.
    Environment {
        /// The variable.
        variable: String,
    },
    /// On the command line.
    Flag {
        /// The flag.
        flag: String,
    },
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Default => f.write_str("default"),
            Self::File { path, line } => write!(f, "{}:{line}", path.display()),
            Self::Environment { variable } => write!(f, "environment {variable}"),
            Self::Flag { flag } => write!(f, "flag {flag}"),
        }
    }
}

/// An invalid value: where it is set, what it is, and what would be allowed.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Problem {
    /// Where it is set.
    pub origin: Origin,
    /// The key, or what was written in its place.
    pub key: String,
    /// The value, if there is one.
    pub value: Option<String>,
    /// What is wrong with it, and what is allowed.
    pub reason: String,
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.origin != Origin::Default {
            write!(f, "{}: ", self.origin)?;
        }
        f.write_str(&self.key)?;
        if let Some(value) = &self.value {
            write!(f, " = {:?}", without_secrets(value))?;
        }
        if !self.key.is_empty() {
            f.write_str(": ")?;
        }
        f.write_str(&self.reason)
    }
}

impl Problem {
    pub(super) fn new(
        origin: Origin,
        key: &str,
        value: Option<&str>,
        reason: impl Into<String>,
    ) -> Self {
        Self { origin, key: key.to_owned(), value: value.map(str::to_owned), reason: reason.into() }
    }
}
