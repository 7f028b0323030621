//! The FUSE device.
//!
//! Owns opening it, and testing what it supports. Must never know of a mount point.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};

const DEVICE: &str = "/dev/fuse";
/// `_IOW(229, 2, u32)`: releases the registration of a backing file.
const BACKING_CLOSE: libc::Ioctl = 0x4004_e502;

/// Opens it, for one mount.
pub(crate) fn open() -> io::Result<OwnedFd> {
    let opened = OpenOptions::new().read(true).write(true).open(DEVICE);
    opened.map(OwnedFd::from).map_err(no_device)
}

fn no_device(error: io::Error) -> io::Error {
    match error.raw_os_error() {
        Some(libc::ENOENT | libc::ENODEV | libc::ENXIO) => io::Error::new(
            io::ErrorKind::Unsupported,
            format!(
                "{DEVICE} does not exist: load the kernel module (modprobe fuse), or give the container this device"
            ),
        ),
        _ => error,
    }
}

/// Tests whether the kernel would support passthrough to files like this one.
pub(crate) fn try_backing(device: impl std::os::fd::AsFd, file: &File) -> io::Result<()> {
    let device = device.as_fd();
    let id = fuser::BackingId::create_raw(device, file)?;
    // SAFETY: the request reads one u32 behind the pointer.
    match unsafe { libc::ioctl(device.as_raw_fd(), BACKING_CLOSE, &raw const id) } {
        -1 => Err(io::Error::last_os_error()),
        _ => Ok(()),
    }
}
