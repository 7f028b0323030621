//! Translations between the types of fuser and those of [`crate::vfs`], in both directions.
//!
//! Pure; must never touch a reply.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use crate::vfs::{
    Attr, Caller, Errno, FileType, FlockKind, Found, Ino, OpenAccess, OpenFlags, RenameMode,
    SetTime, Timespec, XattrMode,
};

pub(super) fn caller(request: &fuser::Request) -> Caller {
    Caller { uid: request.uid(), gid: request.gid(), tid: request.pid() }
}

pub(super) fn ino(ino: fuser::INodeNo) -> Ino {
    Ino(ino.0)
}

pub(super) fn errno(errno: Errno) -> fuser::Errno {
    fuser::Errno::from_i32(errno.0)
}

fn file_type(file_type: FileType) -> fuser::FileType {
    match file_type {
        FileType::File => fuser::FileType::RegularFile,
        FileType::Directory => fuser::FileType::Directory,
        FileType::Symlink => fuser::FileType::Symlink,
        FileType::Fifo => fuser::FileType::NamedPipe,
        FileType::Socket => fuser::FileType::Socket,
        FileType::CharDevice => fuser::FileType::CharDevice,
        FileType::BlockDevice => fuser::FileType::BlockDevice,
    }
}

pub(super) fn dirent_type(kind: FileType) -> fuser::FileType {
    file_type(kind)
}

pub(super) fn attr(attr: &Attr) -> fuser::FileAttr {
    fuser::FileAttr {
        ino: fuser::INodeNo(attr.ino.0),
        size: attr.size,
        blocks: attr.blocks,
        atime: system_time(attr.atime),
        mtime: system_time(attr.mtime),
        ctime: system_time(attr.ctime),
        crtime: UNIX_EPOCH,
        kind: file_type(attr.file_type),
        perm: attr.perm & 0o7777,
        nlink: attr.nlink,
        uid: attr.uid,
        gid: attr.gid,
        rdev: attr.rdev,
        blksize: attr.blksize,
        flags: 0,
    }
}

/// Returns the attributes that mean "no such name, and cache that": inode number 0.
pub(super) fn no_attr() -> fuser::FileAttr {
    fuser::FileAttr {
        ino: fuser::INodeNo(0),
        size: 0,
        blocks: 0,
        atime: UNIX_EPOCH,
        mtime: UNIX_EPOCH,
        ctime: UNIX_EPOCH,
        crtime: UNIX_EPOCH,
        kind: fuser::FileType::RegularFile,
        perm: 0,
        nlink: 0,
        uid: 0,
        gid: 0,
        rdev: 0,
        blksize: 0,
        flags: 0,
    }
}

/// Returns the one lifetime for replies in which fuser has no room for two: the shorter.
pub(super) fn common_ttl(found: &Found) -> Duration {
    found.entry_ttl.min(found.attr_ttl)
}

fn system_time(time: Timespec) -> SystemTime {
    let nanos = Duration::from_nanos(u64::from(time.nanos));
    let secs = Duration::from_secs(time.secs.unsigned_abs());
    let whole =
        if time.secs < 0 { UNIX_EPOCH.checked_sub(secs) } else { UNIX_EPOCH.checked_add(secs) };
    whole.and_then(|whole| whole.checked_add(nanos)).unwrap_or(UNIX_EPOCH)
}

/// Undoes fuser's conversion of the times in a `setattr` request. For times before the epoch it subtracts
/// the nanoseconds instead of adding them, so neither half may be carried into the other here.
fn timespec(time: SystemTime) -> Timespec {
    match time.duration_since(UNIX_EPOCH) {
        Ok(after) => Timespec {
            secs: i64::try_from(after.as_secs()).unwrap_or(i64::MAX),
            nanos: after.subsec_nanos(),
        },
        Err(before) => {
            let before = before.duration();
            Timespec {
                secs: 0i64.saturating_sub_unsigned(before.as_secs()),
                nanos: before.subsec_nanos(),
            }
        }
    }
}

pub(super) fn set_time(time: fuser::TimeOrNow) -> SetTime {
    match time {
        fuser::TimeOrNow::Now => SetTime::Now,
        fuser::TimeOrNow::SpecificTime(time) => SetTime::At(timespec(time)),
    }
}

pub(super) fn open_flags(flags: i32) -> OpenFlags {
    OpenFlags {
        access: match flags & libc::O_ACCMODE {
            libc::O_RDONLY => OpenAccess::Read,
            libc::O_WRONLY => OpenAccess::Write,
            // 3 asks for the rights of both.
            _ => OpenAccess::Both,
        },
        truncate: flags & libc::O_TRUNC != 0,
        append: flags & libc::O_APPEND != 0,
        exclusive: flags & libc::O_EXCL != 0,
        direct: flags & libc::O_DIRECT != 0,
    }
}

pub(super) fn rename_mode(flags: fuser::RenameFlags) -> Result<RenameMode, Errno> {
    if flags.is_empty() {
        Ok(RenameMode::Replace)
    } else if flags == fuser::RenameFlags::RENAME_NOREPLACE {
        Ok(RenameMode::NoReplace)
    } else if flags == fuser::RenameFlags::RENAME_EXCHANGE {
        Ok(RenameMode::Exchange)
    } else {
        Err(Errno::EINVAL)
    }
}

pub(super) fn flock_kind(kind: i32) -> Result<FlockKind, Errno> {
    match kind {
        libc::F_RDLCK => Ok(FlockKind::Shared),
        libc::F_WRLCK => Ok(FlockKind::Exclusive),
        libc::F_UNLCK => Ok(FlockKind::Unlock),
        _ => Err(Errno::EINVAL),
    }
}

pub(super) fn xattr_mode(flags: i32) -> Result<XattrMode, Errno> {
    match flags {
        0 => Ok(XattrMode::Any),
        libc::XATTR_CREATE => Ok(XattrMode::Create),
        libc::XATTR_REPLACE => Ok(XattrMode::Replace),
        _ => Err(Errno::EINVAL),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Converts the seconds and nanoseconds of a request as fuser does.
    fn as_fuser_reads(secs: i64, nanos: u32) -> SystemTime {
        if secs >= 0 {
            UNIX_EPOCH + Duration::new(secs.unsigned_abs(), nanos)
        } else {
            UNIX_EPOCH - Duration::new(secs.unsigned_abs(), nanos)
        }
    }

    #[test]
    fn times_of_requests_keep_both_halves() {
        for (secs, nanos) in [
            (0, 0),
            (0, 1),
            (1, 999_999_999),
            (-1, 0),
            (-1, 1),
            (-2, 800_000_000),
            (i64::MIN, 0),
            (i64::MAX, 0),
        ] {
            assert_eq!(timespec(as_fuser_reads(secs, nanos)), Timespec { secs, nanos });
        }
    }

    #[test]
    fn times_of_replies_count_nanoseconds_upwards() {
        let before = system_time(Timespec { secs: -2, nanos: 800_000_000 });
        assert_eq!(UNIX_EPOCH.duration_since(before).unwrap(), Duration::new(1, 200_000_000));
        assert!(system_time(Timespec { secs: i64::MIN, nanos: 0 }) < UNIX_EPOCH);
        assert!(system_time(Timespec { secs: i64::MAX, nanos: 999_999_999 }) > UNIX_EPOCH);
    }

    #[test]
    fn rename_flags_beyond_the_two_are_refused() {
        use fuser::RenameFlags as F;
        let table = [
            (F::empty(), Ok(RenameMode::Replace)),
            (F::RENAME_NOREPLACE, Ok(RenameMode::NoReplace)),
            (F::RENAME_EXCHANGE, Ok(RenameMode::Exchange)),
            (F::RENAME_WHITEOUT, Err(Errno::EINVAL)),
            (F::RENAME_NOREPLACE | F::RENAME_EXCHANGE, Err(Errno::EINVAL)),
            (F::from_bits_retain(1 << 20), Err(Errno::EINVAL)),
        ];
        for (flags, mode) in table {
            assert_eq!(rename_mode(flags), mode, "{flags:?}");
        }
    }

    #[test]
    fn locks_of_three_kinds() {
        let table = [
            (libc::F_RDLCK, FlockKind::Shared),
            (libc::F_WRLCK, FlockKind::Exclusive),
            (libc::F_UNLCK, FlockKind::Unlock),
        ];
        for (kind, wanted) in table {
            assert_eq!(flock_kind(kind), Ok(wanted));
        }
        assert_eq!(flock_kind(7), Err(Errno::EINVAL));
    }

    #[test]
    fn access_modes() {
        let flags = open_flags(libc::O_WRONLY | libc::O_TRUNC | libc::O_APPEND);
        assert_eq!(
            flags,
            OpenFlags {
                access: OpenAccess::Write,
                truncate: true,
                append: true,
                ..OpenFlags::default()
            }
        );
        assert_eq!(open_flags(libc::O_RDONLY), OpenFlags::default());
        let both = open_flags(libc::O_RDWR | libc::O_EXCL | libc::O_DIRECT);
        assert!(both.access == OpenAccess::Both && both.exclusive && both.direct);
    }
}
