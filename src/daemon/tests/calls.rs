//! The calls that programs make to a kernel, and what these calls return: the terms in which node
//! and model are compared.

use std::fmt;

use hearthfs_mount::{Errno, FlockKind, OpenAccess, OpenFlags};

use super::kernel::Fd;
use super::users::Rights;

/// Bytes of a file. They are printed as runs.
#[derive(Clone, PartialEq, Eq, Default)]
pub(super) struct Text(pub(super) Vec<u8>);

impl fmt::Debug for Text {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let runs = self.0.chunk_by(|one, other| one == other);
        let runs = runs.map(|run| match run[0] {
            0 => format!("0*{}", run.len()),
            byte => format!("{}*{}", char::from(byte), run.len()),
        });
        write!(f, "[{}]", runs.collect::<Vec<_>>().join(" "))
    }
}

/// A system call of one program.
#[derive(Clone, PartialEq, Debug)]
pub(super) enum Call {
    /// With `mode`, the file is made if it is missing.
    Open {
        path: &'static str,
        fd: Fd,
        flags: OpenFlags,
        mode: Option<u32>,
    },
    /// `open("/proc/self/fd/...")`.
    Reopen {
        fd: Fd,
        new: Fd,
        flags: OpenFlags,
    },
    /// `dup`, or, for another program, a descriptor that it inherits or receives.
    Duplicate {
        fd: Fd,
        new: Fd,
        to: usize,
    },
    Write {
        fd: Fd,
        at: usize,
        text: Text,
    },
    SetSize {
        fd: Fd,
        size: usize,
    },
    SetMode {
        fd: Fd,
        mode: u32,
    },
    Read {
        fd: Fd,
    },
    Close {
        fd: Fd,
    },
    Map {
        fd: Fd,
        mapping: Fd,
    },
    Store {
        mapping: Fd,
        at: usize,
        text: Text,
    },
    Unmap {
        mapping: Fd,
    },
    Lock {
        fd: Fd,
        kind: FlockKind,
    },
    Truncate {
        path: &'static str,
        size: usize,
    },
    ChangeMode {
        path: &'static str,
        mode: u32,
    },
    MakeDir {
        path: &'static str,
        mode: u32,
    },
    Symlink {
        path: &'static str,
    },
    Link {
        from: &'static str,
        to: &'static str,
    },
    Unlink {
        path: &'static str,
    },
    RemoveDir {
        path: &'static str,
    },
    Rename {
        from: &'static str,
        to: &'static str,
    },
    Stat {
        path: &'static str,
    },
    List {
        path: &'static str,
    },
}

/// Prints how a file is opened.
struct Flags(OpenFlags, Option<u32>);

impl fmt::Display for Flags {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self(flags, mode) = self;
        f.write_str(match flags.access {
            OpenAccess::Read => "O_RDONLY",
            OpenAccess::Write => "O_WRONLY",
            OpenAccess::Both => "O_RDWR",
        })?;
        let more = [
            (flags.append, "|O_APPEND"),
            (flags.truncate, "|O_TRUNC"),
            (flags.exclusive, "|O_EXCL"),
        ];
        for (_, text) in more.iter().filter(|(set, _)| *set) {
            f.write_str(text)?;
        }
        mode.map_or(Ok(()), |mode| write!(f, "|O_CREAT, {mode:04o}"))
    }
}

impl fmt::Display for Call {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Open { path, fd, flags, mode } => {
                write!(f, "open({path:?}, {}) as fd {fd}", Flags(*flags, *mode))
            }
            Self::Reopen { fd, new, flags } => {
                write!(f, "open(\"/proc/self/fd/{fd}\", {}) as fd {new}", Flags(*flags, None))
            }
            Self::Duplicate { fd, new, to } => write!(f, "dup({fd}) as fd {new} of program {to}"),
            Self::Write { fd, at, text } => write!(f, "pwrite({fd}, {text:?}, {at})"),
            Self::SetSize { fd, size } => write!(f, "ftruncate({fd}, {size})"),
            Self::SetMode { fd, mode } => write!(f, "fchmod({fd}, {mode:04o})"),
            Self::Read { fd } => write!(f, "read({fd})"),
            Self::Close { fd } => write!(f, "close({fd})"),
            Self::Map { fd, mapping } => write!(f, "mmap({fd}) as mapping {mapping}"),
            Self::Store { mapping, at, text } => write!(f, "store({mapping}, {at}, {text:?})"),
            Self::Unmap { mapping } => write!(f, "munmap({mapping})"),
            Self::Lock { fd, kind } => write!(f, "flock({fd}, {kind:?})"),
            Self::Truncate { path, size } => write!(f, "truncate({path:?}, {size})"),
            Self::ChangeMode { path, mode } => write!(f, "chmod({path:?}, {mode:04o})"),
            Self::MakeDir { path, mode } => write!(f, "mkdir({path:?}, {mode:04o})"),
            Self::Symlink { path } => write!(f, "symlink({path:?})"),
            Self::Link { from, to } => write!(f, "link({from:?}, {to:?})"),
            Self::Unlink { path } => write!(f, "unlink({path:?})"),
            Self::RemoveDir { path } => write!(f, "rmdir({path:?})"),
            Self::Rename { from, to } => write!(f, "rename({from:?}, {to:?})"),
            Self::Stat { path } => write!(f, "stat({path:?})"),
            Self::List { path } => write!(f, "readdir({path:?})"),
        }
    }
}

/// The kind of thing that a name leads to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Kind {
    Dir,
    Link,
    File,
}

/// What a successful call returns.
#[derive(Clone, PartialEq, Debug)]
pub(super) enum Shown {
    Nothing,
    Bytes(Text),
    Names(Vec<String>),
    /// In a model, a missing size matches any size.
    Attrs(Kind, Rights, Option<u64>),
}

pub(super) type Seen = Result<Shown, Errno>;

/// Reports whether the result of a call is the expected one.
pub(super) fn agrees(seen: &Seen, wanted: &Seen) -> bool {
    match (seen, wanted) {
        (Ok(Shown::Attrs(kind, rights, _)), Ok(Shown::Attrs(wanted, other, None))) => {
            (kind, rights) == (wanted, other)
        }
        _ => seen == wanted,
    }
}
