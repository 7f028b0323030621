//! The set-uid program with which users other than root mount and unmount.
//!
//! Owns the protocol with `fusermount3`. Must never be used for what we may do ourselves.

use std::ffi::{OsStr, OsString};
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};

use crate::shape::MountShape;

const HELPER: &str = "fusermount3";
/// The variable with the socket over which the helper returns the device.
const HELPER_SOCKET_ENV: &str = "_FUSE_COMMFD";

/// Mounts through the helper and returns the device.
pub(crate) fn mount(mount_point: &Path, shape: &MountShape<'_>) -> io::Result<OwnedFd> {
    let (ours, theirs) = UnixStream::pair()?;
    let inherited = theirs.as_raw_fd();
    let mut command = Command::new(HELPER);
    command
        .arg("-o")
        .arg(options(shape))
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
    let child = command.spawn().map_err(missing)?;
    // Otherwise the helper's death would not end the stream.
    drop(theirs);
    let device = receive_descriptor(&ours);
    let output = child.wait_with_output()?;
    match device {
        Ok(device) if output.status.success() => Ok(device),
        Ok(_) | Err(_) => Err(refused(&String::from_utf8_lossy(&output.stderr))),
    }
}

fn options(shape: &MountShape<'_>) -> OsString {
    let mut options = OsString::from("nosuid,nodev,noatime,subtype=hearthfs,fsname=");
    options.push(escape_option(OsStr::new(shape.source)));
    options.push(shape.common());
    if shape.read_only {
        options.push(",ro");
    }
    options
}

fn missing(error: io::Error) -> io::Error {
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

fn refused(message: &str) -> io::Error {
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

/// Unmounts through the helper, which lets users unmount what they mounted through it.
pub(crate) fn unmount(path: &Path, lazy: bool) -> io::Result<()> {
    let output = Command::new(HELPER)
        .arg(if lazy { "-uz" } else { "-u" })
        .arg("--")
        .arg(path)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .output()
        .map_err(missing)?;
    if output.status.success() {
        return Ok(());
    }
    let message = String::from_utf8_lossy(&output.stderr).trim().to_owned();
    let busy = message.contains("busy");
    let kind = if busy { io::ErrorKind::ResourceBusy } else { io::ErrorKind::PermissionDenied };
    Err(io::Error::new(kind, message))
}

/// Writes a value for an option list of the mount helper, where commas and backslashes are special.
fn escape_option(value: &OsStr) -> OsString {
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
    fn values_of_options_are_escaped() {
        assert_eq!(escape_option(OsStr::new("a,b\\c")), "a\\,b\\\\c");
    }
}
