//! Failures of a file or directory.
//!
//! Owns the decision which failures are fatal. It depends on the side of the copy: a disk of the
//! source that cannot read one file can read others, but a full target has no room for others either.

use std::borrow::Cow;
use std::fmt;
use std::io;

use rustix::io::Errno;

use super::Way;

/// A side of a copy.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Side {
    Source,
    Target,
}

/// Why something was not copied.
#[derive(Debug)]
pub(super) enum CopyTrouble {
    /// A call on this side failed during this step.
    Io(Side, Cow<'static, str>, io::Error),
    /// A message for people.
    Said(String),
    /// Another program has put something there first.
    Came,
    /// Another program has changed or replaced the file of the source since it was examined.
    Changed,
}

impl CopyTrouble {
    /// Returns why the copy cannot continue, if the failure is fatal.
    pub(super) fn ends_all(&self, way: Way) -> Option<String> {
        let Self::Io(side, doing, error) = self else { return None };
        let is_mount = (way, *side) == (Way::Import, Side::Target)
            || (way, *side) == (Way::Export, Side::Source);
        let remedy = match (error.raw_os_error().map(Errno::from_raw_os_error)?, side) {
            (Errno::NOTCONN | Errno::CONNABORTED, _) if is_mount => {
                "the mount is gone: mount it again"
            }
            (Errno::NOTCONN | Errno::CONNABORTED, _) => "its file system is gone",
            (Errno::ROFS, Side::Target) if is_mount => {
                "it is mounted read-only, or is being unmounted"
            }
            (Errno::ROFS, Side::Target) => "its file system is read-only",
            (Errno::NOSPC | Errno::DQUOT, Side::Target) if is_mount => {
                "there is no room: `hearthfs status` shows what is pending and the limit of the cache"
            }
            (Errno::NOSPC | Errno::DQUOT, Side::Target) => "there is no room: name another DEST",
            _ => return None,
        };
        Some(format!("{doing}: {error}; {remedy}"))
    }
}

impl fmt::Display for CopyTrouble {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Io(_, doing, error) => write!(f, "{doing}: {error}"),
            Self::Said(text) => f.write_str(text),
            Self::Came => f.write_str("another program made a file in the place of the copy meanwhile; run the command again"),
            Self::Changed => f.write_str("it changed while it was read"),
        }
    }
}

pub(super) type Done<T> = Result<T, CopyTrouble>;

pub(super) trait Doing<T> {
    /// Adds what failed in the source.
    fn source(self, what: impl Into<Cow<'static, str>>) -> Done<T>;

    /// Adds what failed in the target.
    fn target(self, what: impl Into<Cow<'static, str>>) -> Done<T>;
}

impl<T> Doing<T> for io::Result<T> {
    fn source(self, what: impl Into<Cow<'static, str>>) -> Done<T> {
        self.map_err(|error| CopyTrouble::Io(Side::Source, what.into(), error))
    }

    fn target(self, what: impl Into<Cow<'static, str>>) -> Done<T> {
        self.map_err(|error| CopyTrouble::Io(Side::Target, what.into(), error))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fatal_failures_depend_on_the_side() {
        let ends = |way, side, errno: Errno| {
            CopyTrouble::Io(side, "write".into(), errno.into()).ends_all(way)
        };
        for way in [Way::Import, Way::Export] {
            for errno in [Errno::NOSPC, Errno::DQUOT, Errno::ROFS] {
                assert!(ends(way, Side::Target, errno).is_some(), "{way:?} {errno}");
                assert_eq!(ends(way, Side::Source, errno), None, "{way:?} {errno}");
            }
            for side in [Side::Source, Side::Target] {
                assert_eq!(ends(way, side, Errno::IO), None, "only this file fails");
                assert!(ends(way, side, Errno::NOTCONN).is_some());
            }
        }
        let said = |way, side| ends(way, side, Errno::NOTCONN).expect("it ends the copy");
        assert!(said(Way::Import, Side::Target).contains("the mount is gone"));
        assert!(said(Way::Export, Side::Source).contains("the mount is gone"));
        assert!(!said(Way::Export, Side::Target).contains("mount"));
        let full = ends(Way::Export, Side::Target, Errno::NOSPC).expect("it ends the copy");
        assert!(!full.contains("hearthfs status"), "{full}");
    }
}
