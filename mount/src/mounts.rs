//! The table of mounts, and unmounting.
//!
//! Owns reading `/proc/self/mountinfo` and unmounting by path. Must never touch a mount that is not
//! of type `fuse.hearthfs`.

use std::ffi::{CString, OsString};
use std::fs;
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

use crate::helper;

/// The file system type of our mounts.
pub const FS_TYPE: &str = "fuse.hearthfs";

/// One mount of this mount namespace.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct MountEntry {
    /// Id of the mount; reused after it is gone.
    pub id: u64,
    /// Id of the mount on which it lies.
    pub parent: u64,
    /// Device number of the mounted file system, `major:minor`; unique while it lives.
    pub device: (u32, u32),
    /// The mount point.
    pub mount_point: PathBuf,
    /// File system type.
    pub fs_type: String,
    /// The source; for our mounts the given name.
    pub source: OsString,
    /// The user who mounted it, for FUSE.
    pub owner: Option<u32>,
}

impl MountEntry {
    /// Reports whether this is one of ours.
    pub fn is_hearthfs(&self) -> bool {
        self.fs_type == FS_TYPE
    }

    /// Reports whether both are the same mount; what lies under it may have changed.
    pub(crate) fn is_same(&self, other: &Self) -> bool {
        (self.id, self.device) == (other.id, other.device)
    }
}

/// Returns all mounts. Their order does not show which lies on which.
///
/// # Errors
///
/// When `/proc/self/mountinfo` cannot be read.
pub fn all() -> io::Result<Vec<MountEntry>> {
    let table = fs::read("/proc/self/mountinfo")?;
    Ok(table.split(|byte| *byte == b'\n').filter_map(parse).collect())
}

/// Returns the mount at exactly this path, the topmost if there are several.
///
/// # Errors
///
/// When the table of mounts cannot be read, or the directory above `path` does not exist.
pub fn mounted_at(path: &Path) -> io::Result<Option<MountEntry>> {
    top_at(&resolve(path)?)
}

/// As [`mounted_at`], for a path that is free of links; accesses no file system.
pub(crate) fn top_at(path: &Path) -> io::Result<Option<MountEntry>> {
    let here = at(path)?;
    Ok(here.iter().find(|entry| !here.iter().any(|other| other.parent == entry.id)).cloned())
}

/// Returns all mounts at exactly this path (free of links), in no order.
pub(crate) fn at(path: &Path) -> io::Result<Vec<MountEntry>> {
    Ok(all()?.into_iter().filter(|entry| entry.mount_point == path).collect())
}

/// Returns the mount directly beneath another at the same path. `NotFound` means that the upper mount is gone.
pub(crate) fn beneath(mount: &MountEntry) -> io::Result<Option<MountEntry>> {
    let here = at(&mount.mount_point)?;
    // In the table as it is now: another mount may have come in between.
    let Some(now) = here.iter().find(|entry| entry.is_same(mount)) else {
        return Err(io::Error::new(io::ErrorKind::NotFound, "the mount was removed meanwhile"));
    };
    Ok(here.iter().find(|entry| entry.id == now.parent).cloned())
}

/// Returns the id of the mount to which a descriptor belongs; accesses no file system.
pub(crate) fn id_of(descriptor: &impl AsRawFd) -> io::Result<u64> {
    let text = fs::read_to_string(format!("/proc/self/fdinfo/{}", descriptor.as_raw_fd()))?;
    let id = text.lines().find_map(|line| line.strip_prefix("mnt_id:")?.trim().parse().ok());
    id.ok_or_else(|| io::Error::other("no mnt_id in /proc/self/fdinfo"))
}

/// Unmounts the mount at exactly this path, if it is ours. With `lazy`, even if it is in use; its
/// users keep their open files.
///
/// # Errors
///
/// `EBUSY`: in use; `EINVAL`: nothing of ours is mounted there; otherwise the error of the kernel
/// or `fusermount3`.
pub fn unmount(path: &Path, lazy: bool) -> io::Result<()> {
    match mounted_at(path)? {
        Some(entry) if entry.is_hearthfs() => unmount_entry(&entry, lazy),
        _ => Err(io::Error::from_raw_os_error(libc::EINVAL)),
    }
}

/// Makes a path absolute and free of links, without accessing its last component, which may be a dead mount.
pub(crate) fn resolve(path: &Path) -> io::Result<PathBuf> {
    match fs::canonicalize(path) {
        Err(error) if error.raw_os_error() == Some(libc::ENOTCONN) => {}
        resolved => return resolved,
    }
    let Some(name) = path.file_name() else {
        return Err(io::Error::from_raw_os_error(libc::ENOTCONN));
    };
    let parent = match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => fs::canonicalize(parent)?,
        _ => std::env::current_dir()?,
    };
    Ok(parent.join(name))
}

pub(crate) fn unmount_entry(entry: &MountEntry, lazy: bool) -> io::Result<()> {
    let path = CString::new(entry.mount_point.as_os_str().as_bytes())?;
    let flags = libc::UMOUNT_NOFOLLOW | if lazy { libc::MNT_DETACH } else { 0 };
    // SAFETY: `path` is a NUL-terminated string that outlives the call.
    if unsafe { libc::umount2(path.as_ptr(), flags) } == 0 {
        return Ok(());
    }
    let error = io::Error::last_os_error();
    if error.raw_os_error() != Some(libc::EPERM) {
        return Err(error);
    }
    helper::unmount(&entry.mount_point, lazy)
}

/// Aborts the connection of a mount and unmounts it; calls that are waiting there fail.
pub(crate) fn abort_entry(entry: &MountEntry) -> io::Result<()> {
    let path = CString::new(entry.mount_point.as_os_str().as_bytes())?;
    let flags = libc::UMOUNT_NOFOLLOW | libc::MNT_FORCE;
    // SAFETY: `path` is a NUL-terminated string that outlives the call.
    if unsafe { libc::umount2(path.as_ptr(), flags) } == 0 {
        return Ok(());
    }
    // Aborted, but a program still has a file open.
    unmount_entry(entry, true)
}

/// Parses one line: `id parent major:minor root mount_point options [tags...] - type source options`.
fn parse(line: &[u8]) -> Option<MountEntry> {
    let mut fields = line.split(|byte| *byte == b' ');
    let id = text(fields.next()?)?.parse().ok()?;
    let parent = text(fields.next()?)?.parse().ok()?;
    let (major, minor) = text(fields.next()?)?.split_once(':')?;
    let device = (major.parse().ok()?, minor.parse().ok()?);
    let mount_point = PathBuf::from(unescape(fields.nth(1)?));
    fields.find(|field| *field == b"-")?;
    let fs_type = text(fields.next()?)?.to_owned();
    let source = unescape(fields.next()?);
    let mut options = fields.next().unwrap_or_default().split(|byte| *byte == b',');
    let owner = options.find_map(|option| text(option)?.strip_prefix("user_id=")?.parse().ok());
    Some(MountEntry { id, parent, device, mount_point, fs_type, source, owner })
}

fn text(field: &[u8]) -> Option<&str> {
    std::str::from_utf8(field).ok()
}

/// Decodes the kernel's `\ooo` for blanks, line ends and backslashes.
fn unescape(field: &[u8]) -> OsString {
    let mut bytes = Vec::with_capacity(field.len());
    let mut rest = field;
    while let Some((first, tail)) = rest.split_first() {
        if let Some(byte) = octal(rest) {
            bytes.push(byte);
            rest = &rest[4..];
        } else {
            bytes.push(*first);
            rest = tail;
        }
    }
    OsString::from_vec(bytes)
}

fn octal(field: &[u8]) -> Option<u8> {
    let [b'\\', digits @ ..] = field.get(..4)? else { return None };
    let value = digits.iter().try_fold(0u32, |value, digit| {
        matches!(digit, b'0'..=b'7').then(|| value * 8 + u32::from(digit - b'0'))
    })?;
    u8::try_from(value).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_mountinfo() {
        let line = b"36 35 98:17 /mnt1 /a\\040b\\011c\\012d\\134e rw,noatime master:1 shared:2 - \
            fuse.hearthfs s3://b/p\\040q rw,user_id=0";
        let entry = parse(line).unwrap();
        assert_eq!((entry.id, entry.parent, entry.owner), (36, 35, Some(0)));
        assert_eq!(entry.device, (98, 17));
        assert_eq!(entry.mount_point, Path::new("/a b\tc\nd\\e"));
        assert_eq!(entry.source, "s3://b/p q");
        assert!(entry.is_hearthfs());
        let plain = parse(b"1 0 0:1 / / rw - rootfs none rw").unwrap();
        assert_eq!((plain.mount_point.as_path(), plain.is_hearthfs()), (Path::new("/"), false));
        for broken in
            [&b""[..], b"x", b"1 0 0:1 / /", b"1 0 01 / / rw - a b", b"1 0 0:1 / / rw a b"]
        {
            assert_eq!(parse(broken), None);
        }
    }

    #[test]
    fn escapes_only_what_is_an_escape() {
        let table: [(&[u8], &[u8]); 6] = [
            (b"\\040", b" "),
            (b"\\04", b"\\04"),
            (b"\\049", b"\\049"),
            (b"\\777", b"\\777"),
            (b"\xff\\134\\", b"\xff\\\\"),
            (b"", b""),
        ];
        for (escaped, plain) in table {
            assert_eq!(unescape(escaped).as_bytes(), plain);
        }
    }

    #[test]
    fn the_root_is_a_mount_and_a_plain_directory_is_none() {
        assert!(mounted_at(Path::new("/")).unwrap().is_some());
        let plain = std::env::temp_dir().join(format!("hearthfs-mounts-{}", std::process::id()));
        fs::create_dir(&plain).unwrap();
        assert_eq!(mounted_at(&plain).unwrap(), None);
        assert!(!crate::stale_mount::clear_stale(&plain).unwrap());
        assert_eq!(unmount(&plain, true).unwrap_err().raw_os_error(), Some(libc::EINVAL));
        fs::remove_dir(&plain).unwrap();
        assert_eq!(mounted_at(&plain).unwrap_err().kind(), io::ErrorKind::NotFound);
    }
}
