//! Converts the kind of an error to the error number that a program sees.

use hearthfs_mount::Errno;

use crate::error::{Error, Kind};
use crate::name::PathError;

/// Returns the errno of a kind. An outage is a miss where a name is looked up. `Unavailable` on a
/// handle that is open already goes through [`promised`].
pub(super) fn of(kind: Kind) -> Errno {
    match kind {
        Kind::NotFound | Kind::Unavailable => Errno::ENOENT,
        Kind::Exists => Errno::EEXIST,
        Kind::Busy => Errno::EBUSY,
        Kind::NoSpace => Errno::ENOSPC,
        Kind::Exhausted => Errno::ENFILE,
        Kind::Denied => Errno::EACCES,
        Kind::Invalid => Errno::EINVAL,
        Kind::TimedOut => Errno::ETIMEDOUT,
        Kind::Closed => Errno::ESHUTDOWN,
        Kind::Corrupt | Kind::Internal => Errno::EIO,
    }
}

/// Returns the errno for opening an entry. A problem with its bytes, with the way to them, or with
/// the room for them makes the entry a miss. A lack of descriptors does not, because the bytes may
/// be here.
pub(super) fn of_open(kind: Kind) -> Errno {
    match kind {
        Kind::Exhausted => Errno::ENFILE,
        Kind::Closed => Errno::ESHUTDOWN,
        _ => Errno::ENOENT,
    }
}

/// Returns the errno for an operation on a handle that is open already.
pub(super) fn promised(error: &Error) -> Errno {
    match error.kind() {
        Kind::Unavailable | Kind::NotFound => Errno::EIO,
        kind => of(kind),
    }
}

/// Returns the errno of an impossible path.
pub(super) fn of_path(error: PathError) -> Errno {
    match error {
        PathError::BadName => Errno::EINVAL,
        PathError::TooLong => Errno::ENAMETOOLONG,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kind_has_its_errno() {
        let table = [
            (Kind::NotFound, Errno::ENOENT),
            (Kind::Exists, Errno::EEXIST),
            (Kind::Busy, Errno::EBUSY),
            (Kind::NoSpace, Errno::ENOSPC),
            (Kind::Exhausted, Errno::ENFILE),
            (Kind::Denied, Errno::EACCES),
            (Kind::Invalid, Errno::EINVAL),
            (Kind::Corrupt, Errno::EIO),
            (Kind::Unavailable, Errno::ENOENT),
            (Kind::TimedOut, Errno::ETIMEDOUT),
            (Kind::Closed, Errno::ESHUTDOWN),
            (Kind::Internal, Errno::EIO),
        ];
        for (kind, errno) in table {
            assert_eq!(of(kind), errno, "{kind:?}");
        }
        assert_eq!(promised(&Error::new(Kind::Unavailable, "x")), Errno::EIO);
        assert_eq!(of_open(Kind::Corrupt), Errno::ENOENT);
        assert_eq!(of_open(Kind::NoSpace), Errno::ENOENT);
        assert_eq!(of_open(Kind::Exhausted), Errno::ENFILE);
    }
}
