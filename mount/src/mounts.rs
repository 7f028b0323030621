//! What is mounted where, and undoing it.
//!
//! Owns the reading of `/proc/self/mountinfo` and unmounting by path. Must never touch a mount that is
//! not of type `fuse.hearthfs`.

use std::ffi::{CString, OsStr, OsString};
use std::fs;
use std::io;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// The file system type that our mounts show.
pub const FS_TYPE: &str = "fuse.hearthfs";

/// One mount of this mount namespace.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct MountEntry {
    /// Number of the mount; used again after it is gone.
    pub id: u64,
    /// Device number of the mounted file system, `major:minor`; unique while it lives.
    pub device: (u32, u32),
    /// Where.
    pub mount_point: PathBuf,
    /// File system type.
    pub fs_type: String,
    /// What; for our mounts the name that was given.
    pub source: OsString,
}

impl MountEntry {
    /// Tells whether this is one of ours.
    pub fn is_hearthfs(&self) -> bool {
        self.fs_type == FS_TYPE
    }

    /// Tells whether nobody serves this mount any more. Asks the file system, so only ask it of ours;
    /// one that is alive but hangs makes this hang.
    pub fn is_stale(&self) -> bool {
        // Not `stat`: the kernel answers that from what it remembers, even for a daemon that is gone.
        statfs(&self.mount_point).is_err_and(|error| error.raw_os_error() == Some(libc::ENOTCONN))
    }
}

/// Asks the file system at `path` for its size, and drops the answer.
fn statfs(path: &Path) -> io::Result<()> {
    let path = CString::new(path.as_os_str().as_bytes())?;
    let mut figures = std::mem::MaybeUninit::<libc::statfs>::uninit();
    // SAFETY: `path` is a NUL-terminated string, `figures` has room for the answer; both outlive the call.
    if unsafe { libc::statfs(path.as_ptr(), figures.as_mut_ptr()) } == 0 {
        return Ok(());
    }
    Err(io::Error::last_os_error())
}

/// Returns all mounts, oldest first.
pub fn all() -> io::Result<Vec<MountEntry>> {
    let table = fs::read("/proc/self/mountinfo")?;
    Ok(table.split(|byte| *byte == b'\n').filter_map(parse).collect())
}

/// Returns what is mounted at exactly this path, the topmost if several.
pub fn mounted_at(path: &Path) -> io::Result<Option<MountEntry>> {
    top_at(&resolve(path)?)
}

/// As [`mounted_at`], for a path that is free of links; asks no file system.
pub(crate) fn top_at(path: &Path) -> io::Result<Option<MountEntry>> {
    Ok(all()?.into_iter().rfind(|entry| entry.mount_point == path))
}

/// Removes a mount of ours that nobody serves any more. Returns whether there was one.
pub fn clear_stale(path: &Path) -> io::Result<bool> {
    match mounted_at(path)? {
        Some(entry) if entry.is_hearthfs() && entry.is_stale() => {
            unmount_entry(&entry, true)?;
            Ok(true)
        }
        _ => Ok(false),
    }
}

/// Unmounts what is mounted at exactly this path, if it is ours. `lazy`: even if it is in use; its users
/// keep what they have open. `EBUSY`: in use; `EINVAL`: nothing of ours is mounted there.
pub fn unmount(path: &Path, lazy: bool) -> io::Result<()> {
    match mounted_at(path)? {
        Some(entry) if entry.is_hearthfs() => unmount_entry(&entry, lazy),
        _ => Err(io::Error::from_raw_os_error(libc::EINVAL)),
    }
}

/// Makes a path absolute and free of links, without asking its last component, which may be a mount
/// that is dead.
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
    unmount_by_helper(&entry.mount_point, lazy)
}

/// Aborts the connection of a mount, whoever waits on it, and unmounts it.
pub(crate) fn abort_entry(entry: &MountEntry) -> io::Result<()> {
    let path = CString::new(entry.mount_point.as_os_str().as_bytes())?;
    let flags = libc::UMOUNT_NOFOLLOW | libc::MNT_FORCE;
    // SAFETY: `path` is a NUL-terminated string that outlives the call.
    if unsafe { libc::umount2(path.as_ptr(), flags) } == 0 {
        return Ok(());
    }
    // Aborted, but somebody still has a file open.
    unmount_entry(entry, true)
}

/// Users other than root may unmount what they mounted through the helper that mounted it.
fn unmount_by_helper(path: &Path, lazy: bool) -> io::Result<()> {
    let output = Command::new(crate::mounting::HELPER)
        .arg(if lazy { "-uz" } else { "-u" })
        .arg("--")
        .arg(path)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .output()
        .map_err(crate::mounting::helper_missing)?;
    if output.status.success() {
        return Ok(());
    }
    let message = String::from_utf8_lossy(&output.stderr).trim().to_owned();
    let busy = message.contains("busy");
    let kind = if busy { io::ErrorKind::ResourceBusy } else { io::ErrorKind::PermissionDenied };
    Err(io::Error::new(kind, message))
}

/// Reads one line: `id parent major:minor root mount_point options [tags...] - type source options`.
fn parse(line: &[u8]) -> Option<MountEntry> {
    let mut fields = line.split(|byte| *byte == b' ');
    let id = text(fields.next()?)?.parse().ok()?;
    let (major, minor) = text(fields.nth(1)?)?.split_once(':')?;
    let device = (major.parse().ok()?, minor.parse().ok()?);
    let mount_point = PathBuf::from(unescape(fields.nth(1)?));
    fields.find(|field| *field == b"-")?;
    let fs_type = text(fields.next()?)?.to_owned();
    let source = unescape(fields.next()?);
    Some(MountEntry { id, device, mount_point, fs_type, source })
}

fn text(field: &[u8]) -> Option<&str> {
    std::str::from_utf8(field).ok()
}

/// Undoes the kernel's `\ooo` for blanks, line ends and backslashes.
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

/// Writes a value for an option list of the mount helper, where commas and backslashes are special.
pub(crate) fn escape_option(value: &OsStr) -> OsString {
    let mut bytes = Vec::with_capacity(value.len());
    for byte in value.as_bytes() {
        if matches!(byte, b',' | b'\\') {
            bytes.push(b'\\');
        }
        bytes.push(*byte);
    }
    OsString::from_vec(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_mountinfo() {
        let line = b"36 35 98:17 /mnt1 /a\\040b\\011c\\012d\\134e rw,noatime master:1 shared:2 - \
            fuse.hearthfs s3://b/p\\040q rw,user_id=0";
        let entry = parse(line).unwrap();
        assert_eq!(entry.id, 36);
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
        assert_eq!(escape_option(OsStr::new("a,b\\c")), "a\\,b\\\\c");
    }

    #[test]
    fn the_root_is_a_mount_and_a_plain_directory_is_none() {
        assert!(mounted_at(Path::new("/")).unwrap().is_some());
        let plain = std::env::temp_dir().join(format!("hearthfs-mounts-{}", std::process::id()));
        fs::create_dir(&plain).unwrap();
        assert_eq!(mounted_at(&plain).unwrap(), None);
        assert!(!clear_stale(&plain).unwrap());
        assert_eq!(unmount(&plain, true).unwrap_err().raw_os_error(), Some(libc::EINVAL));
        fs::remove_dir(&plain).unwrap();
        assert_eq!(mounted_at(&plain).unwrap_err().kind(), io::ErrorKind::NotFound);
    }
}
