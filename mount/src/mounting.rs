//! Attaching a FUSE device to a directory.
//!
//! Owns mount(2) and the talk with the helper `fusermount3`. We mount ourselves, because fuser's own
//! way neither shows our type in the mount table nor lets a process of another user, which was handed
//! an open file, close it.

use std::ffi::{CString, OsStr, OsString};
use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};

use crate::{mounts, process, takeover};

/// The set-uid helper through which users other than root mount.
pub(crate) const HELPER: &str = "fusermount3";
/// How the helper is told the socket over which it hands back the device.
const HELPER_SOCKET_ENV: &str = "_FUSE_COMMFD";
/// `_IOW(229, 2, u32)`: gives the registration of a backing file back.
const BACKING_CLOSE: libc::Ioctl = 0x4004_e502;
const DEVICE: &str = "/dev/fuse";
/// The type of the root until the first GETATTR: a directory.
pub(crate) const ROOT_MODE: &str = "40755";

/// What a mount looks like from outside.
#[derive(Clone, Debug)]
pub(crate) struct Look<'a> {
    pub(crate) source: &'a str,
    pub(crate) read_only: bool,
    pub(crate) allow_other: bool,
    /// Whether the kernel compares callers with owners and modes.
    pub(crate) default_permissions: bool,
}

impl Look<'_> {
    /// The options that both ways of mounting spell alike, each with a comma before it.
    fn common(&self) -> String {
        let mut options = String::new();
        if self.default_permissions {
            options.push_str(",default_permissions");
        }
        if self.allow_other {
            options.push_str(",allow_other");
        }
        options
    }
}

/// Mounts and returns the device; by mount(2) if we may, else through the helper. A dead mount of ours
/// that is there is replaced.
pub(crate) fn mount(mount_point: &Path, look: &Look<'_>) -> io::Result<OwnedFd> {
    if let Some(device) = takeover::take_over(mount_point, look)? {
        return Ok(device);
    }
    match mount_by_kernel(mount_point, look) {
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
            mount_by_helper(mount_point, look)
        }
        result => result,
    }
}

fn mount_by_kernel(mount_point: &Path, look: &Look<'_>) -> io::Result<OwnedFd> {
    let device = open_device()?;
    let data = format!(
        "fd={},rootmode={ROOT_MODE},user_id={},group_id={}{}",
        device.as_raw_fd(),
        process::effective_user(),
        process::effective_group(),
        look.common(),
    );
    let source = CString::new(look.source)?;
    let target = CString::new(mount_point.as_os_str().as_bytes())?;
    let fs_type = CString::new(mounts::FS_TYPE)?;
    let data = CString::new(data)?;
    let mut flags = libc::MS_NOSUID | libc::MS_NODEV | libc::MS_NOATIME;
    if look.read_only {
        flags |= libc::MS_RDONLY;
    }
    // SAFETY: all pointers are to NUL-terminated strings that outlive the call.
    let mounted = unsafe {
        libc::mount(source.as_ptr(), target.as_ptr(), fs_type.as_ptr(), flags, data.as_ptr().cast())
    };
    if mounted == 0 { Ok(device) } else { Err(io::Error::last_os_error()) }
}

pub(crate) fn open_device() -> io::Result<OwnedFd> {
    let opened = OpenOptions::new().read(true).write(true).open(DEVICE);
    opened.map(OwnedFd::from).map_err(no_device)
}

fn no_device(error: io::Error) -> io::Error {
    match error.raw_os_error() {
        Some(libc::ENOENT | libc::ENODEV | libc::ENXIO) => io::Error::new(
            io::ErrorKind::Unsupported,
            format!(
                "{DEVICE} is not there: load the kernel module (modprobe fuse), or give the container this device"
            ),
        ),
        _ => error,
    }
}

fn mount_by_helper(mount_point: &Path, look: &Look<'_>) -> io::Result<OwnedFd> {
    let (ours, theirs) = UnixStream::pair()?;
    let inherited = theirs.as_raw_fd();
    let mut command = Command::new(HELPER);
    command
        .arg("-o")
        .arg(helper_options(look))
        .arg("--")
        .arg(mount_point)
        .env(HELPER_SOCKET_ENV, inherited.to_string())
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::piped());
    // SAFETY: between fork and exec only fcntl is called, which is async-signal-safe, on a descriptor
    // that stays open until the child has been spawned.
    unsafe {
        command.pre_exec(move || match libc::fcntl(inherited, libc::F_SETFD, 0) {
            -1 => Err(io::Error::last_os_error()),
            _ => Ok(()),
        });
    }
    let child = command.spawn().map_err(helper_missing)?;
    // Or the helper's death would not be seen as the end of the stream.
    drop(theirs);
    let device = receive_descriptor(&ours);
    let output = child.wait_with_output()?;
    match device {
        Ok(device) if output.status.success() => Ok(device),
        Ok(_) | Err(_) => Err(helper_refused(&String::from_utf8_lossy(&output.stderr))),
    }
}

fn helper_options(look: &Look<'_>) -> OsString {
    let mut options = OsString::from("nosuid,nodev,noatime,subtype=hearthfs,fsname=");
    options.push(mounts::escape_option(OsStr::new(look.source)));
    options.push(look.common());
    if look.read_only {
        options.push(",ro");
    }
    options
}

pub(crate) fn helper_missing(error: io::Error) -> io::Error {
    if error.kind() != io::ErrorKind::NotFound {
        return error;
    }
    io::Error::new(
        io::ErrorKind::PermissionDenied,
        format!(
            "mounting without root needs {HELPER}, which is not installed: install the package fuse3, or mount as root"
        ),
    )
}

fn helper_refused(message: &str) -> io::Error {
    let message = message.trim();
    let remedy = if message.contains("user_allow_other") {
        "; add the line user_allow_other to /etc/fuse.conf, or mount without access for other users"
    } else {
        ""
    };
    io::Error::new(io::ErrorKind::PermissionDenied, format!("{HELPER} refused: {message}{remedy}"))
}

/// Receives the one descriptor that the helper sends with one byte.
fn receive_descriptor(socket: &UnixStream) -> io::Result<OwnedFd> {
    /// Room for one descriptor, aligned as control messages must be.
    #[repr(C, align(8))]
    struct Control([u8; 64]);
    let mut control = Control([0; 64]);
    let mut byte = 0u8;
    let mut part = libc::iovec { iov_base: (&raw mut byte).cast(), iov_len: 1 };
    // SAFETY: all-zero is a valid value of this plain structure.
    let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
    message.msg_iov = &raw mut part;
    message.msg_iovlen = 1;
    message.msg_control = (&raw mut control.0).cast();
    message.msg_controllen = size_of::<Control>();
    let received = loop {
        // SAFETY: the message points to buffers of the stated sizes that outlive the call.
        let received =
            unsafe { libc::recvmsg(socket.as_raw_fd(), &raw mut message, libc::MSG_CMSG_CLOEXEC) };
        let error = io::Error::last_os_error();
        if received >= 0 {
            break received;
        }
        if error.kind() != io::ErrorKind::Interrupted {
            return Err(error);
        }
    };
    if received == 0 {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    // SAFETY: the kernel filled the control buffer and its length; the macros stay within it, and the
    // descriptor that came is ours alone.
    unsafe {
        let header = libc::CMSG_FIRSTHDR(&raw const message);
        if header.is_null()
            || (*header).cmsg_level != libc::SOL_SOCKET
            || (*header).cmsg_type != libc::SCM_RIGHTS
        {
            return Err(io::ErrorKind::InvalidData.into());
        }
        let descriptor = libc::CMSG_DATA(header).cast::<RawFd>().read_unaligned();
        Ok(OwnedFd::from_raw_fd(descriptor))
    }
}

/// Tries whether the kernel would pass reads and writes through to files like this one.
pub(crate) fn try_backing(device: impl std::os::fd::AsFd, file: &File) -> io::Result<()> {
    let device = device.as_fd();
    let id = fuser::BackingId::create_raw(device, file)?;
    // SAFETY: the request reads one u32 behind the pointer.
    match unsafe { libc::ioctl(device.as_raw_fd(), BACKING_CLOSE, &raw const id) } {
        -1 => Err(io::Error::last_os_error()),
        _ => Ok(()),
    }
}
