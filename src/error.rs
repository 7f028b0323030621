//! The error that crosses rooms.
//!
//! Owns the kinds, which determine what a caller can do. Must never know an errno: `fs::errno` maps them.

use std::fmt;
use std::sync::Arc;

/// What a caller can do about an error.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Kind {
    /// It is not there.
    NotFound,
    /// It is there already.
    Exists,
    /// Another process holds it.
    Busy,
    /// No room on the disk, or a limit reached.
    NoSpace,
    /// No descriptor is free now; one may be later.
    Exhausted,
    /// Not allowed, by permissions or credentials.
    Denied,
    /// The request itself is wrong.
    Invalid,
    /// The bytes are not what they should be.
    Corrupt,
    /// It cannot be reached now, but perhaps later.
    Unavailable,
    /// It took longer than its deadline.
    TimedOut,
    /// We are shutting down.
    Closed,
    /// A fault in hearthfs or the machine.
    Internal,
}

/// An error with its kind, what was being done, and its cause; a clone shares the cause.
#[derive(Debug, Clone)]
pub struct Error {
    kind: Kind,
    op: String,
    source: Option<Arc<dyn std::error::Error + Send + Sync>>,
}

/// The result of most operations between rooms.
pub type Result<T> = std::result::Result<T, Error>;

impl Error {
    /// Makes an error without a further cause.
    pub fn new(kind: Kind, op: impl Into<String>) -> Self {
        Self { kind, op: op.into(), source: None }
    }

    /// Makes an error with its cause.
    pub fn with(
        kind: Kind,
        op: impl Into<String>,
        source: impl Into<Box<dyn std::error::Error + Send + Sync>>,
    ) -> Self {
        Self { kind, op: op.into(), source: Some(Arc::from(source.into())) }
    }

    /// Makes an error from a failed system call, with the kind for its errno.
    pub fn io(op: impl Into<String>, source: std::io::Error) -> Self {
        Self::with(kind_of_io(&source), op, source)
    }

    /// Returns what a caller can do about it.
    pub fn kind(&self) -> Kind {
        self.kind
    }

    /// Returns the whole chain on one line, for logs and for people.
    pub fn chain(&self) -> String {
        let mut text = self.to_string();
        let mut cause = std::error::Error::source(self);
        while let Some(error) = cause {
            text.push_str(": ");
            text.push_str(&error.to_string());
            cause = error.source();
        }
        text
    }
}

/// Returns the kind of a failure of the operating system.
pub(crate) fn kind_of_io(error: &std::io::Error) -> Kind {
    use rustix::io::Errno;
    use std::io::ErrorKind as Io;
    // The standard library has no kind for it.
    if matches!(Errno::from_io_error(error), Some(Errno::MFILE | Errno::NFILE)) {
        return Kind::Exhausted;
    }
    match error.kind() {
        Io::NotFound => Kind::NotFound,
        Io::AlreadyExists => Kind::Exists,
        Io::PermissionDenied | Io::ReadOnlyFilesystem => Kind::Denied,
        Io::StorageFull | Io::QuotaExceeded | Io::FileTooLarge => Kind::NoSpace,
        Io::ResourceBusy | Io::WouldBlock => Kind::Busy,
        Io::InvalidInput => Kind::Invalid,
        Io::InvalidData | Io::UnexpectedEof => Kind::Corrupt,
        Io::TimedOut => Kind::TimedOut,
        _ => Kind::Internal,
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.op)
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.source.as_deref().map(|source| source as _)
    }
}
