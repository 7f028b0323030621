//! What goes wrong with a file or directory.
//!
//! Owns the reasons after which nothing more can be done.

use std::borrow::Cow;
use std::fmt;
use std::io;

use rustix::io::Errno;

/// Why something was not copied.
#[derive(Debug)]
pub(super) enum Trouble {
    /// A call failed, doing this.
    Io(Cow<'static, str>, io::Error),
    /// For people.
    Said(String),
    /// Another program has put something there first.
    Came,
}

impl Trouble {
    /// Returns why nothing more can be done, if this is such a reason.
    pub(super) fn ends_all(&self) -> Option<String> {
        let Self::Io(doing, error) = self else { return None };
        let remedy = match error.raw_os_error().map(Errno::from_raw_os_error)? {
            Errno::NOTCONN | Errno::CONNABORTED => "the mount is gone: mount it again",
            Errno::ROFS => "it is mounted read-only, or is being unmounted",
            Errno::NOSPC | Errno::DQUOT => {
                "there is no room: `hearthfs status` says what is pending and how large the cache may be"
            }
            _ => return None,
        };
        Some(format!("{doing}: {error}; {remedy}"))
    }
}

impl fmt::Display for Trouble {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Io(doing, error) => write!(f, "{doing}: {error}"),
            Self::Said(text) => f.write_str(text),
            Self::Came => f.write_str("another program has put a file there meanwhile"),
        }
    }
}

pub(super) type Done<T> = Result<T, Trouble>;

pub(super) trait Doing<T> {
    /// Says what failed.
    fn doing(self, what: impl Into<Cow<'static, str>>) -> Done<T>;
}

impl<T> Doing<T> for io::Result<T> {
    fn doing(self, what: impl Into<Cow<'static, str>>) -> Done<T> {
        self.map_err(|error| Trouble::Io(what.into(), error))
    }
}
