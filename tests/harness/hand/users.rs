//! What a hand does as another user, and through descriptors instead of names.

use std::path::{Path, PathBuf};

use rustix::fs::OFlags;
use rustix::io::Errno;

use super::{Hand, hex};
use crate::harness::Must as _;

/// A user and the groups it is in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct User {
    pub(crate) uid: u32,
    pub(crate) gid: u32,
}

impl Hand {
    /// Starts one that is `user`, with further groups; needs root.
    pub(crate) fn of(user: User, groups: &[u32]) -> Self {
        let mut hand = Self::new();
        let mut words = vec!["su".to_owned(), user.uid.to_string(), user.gid.to_string()];
        words.extend(groups.iter().map(u32::to_string));
        hand.done(&words.join(" ")).must("become another user");
        hand
    }

    /// Becomes root of a user namespace of its own.
    pub(crate) fn enter_user_namespace(&mut self) -> Result<(), Errno> {
        self.done("userns")
    }

    /// `umask`.
    pub(crate) fn umask(&mut self, mask: u32) {
        self.done(&format!("umask {mask}")).must("umask");
    }

    /// Returns the name by which the hand itself finds what a descriptor of its own stands on.
    pub(crate) fn proc_path(fd: i64) -> PathBuf {
        PathBuf::from(format!("/proc/self/fd/{fd}"))
    }

    /// Lists a directory, sorted, without `.` and `..`.
    pub(crate) fn list(&mut self, path: &Path) -> Result<Vec<String>, Errno> {
        let answer = self.ask(&format!("list {}", hex(path)), &[])?;
        let names = answer.bytes.split(|byte| *byte == 0).filter(|name| !name.is_empty());
        let mut names: Vec<String> =
            names.map(|name| String::from_utf8_lossy(name).into_owned()).collect();
        names.retain(|name| name != "." && name != "..");
        names.sort();
        Ok(names)
    }

    /// `mkdir`, then `chmod`, so that no mask changes the mode.
    pub(crate) fn mkdir_with(&mut self, path: &Path, mode: u32) -> Result<(), Errno> {
        self.mkdir(path)?;
        self.chmod(path, mode)
    }

    /// `open`, `write`, `close`, `chmod`: a file that is published with that mode.
    pub(crate) fn make(&mut self, path: &Path, mode: u32, bytes: &[u8]) -> Result<(), Errno> {
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::TRUNC;
        let fd = self.open(path, flags, mode)?;
        self.write(fd, bytes)?;
        self.close(fd)
    }

    /// Opens a name below an open directory.
    pub(crate) fn open_at(
        &mut self,
        dir: i64,
        name: &str,
        flags: OFlags,
        mode: u32,
    ) -> Result<i64, Errno> {
        self.call(&format!("openat {dir} {} {} {mode}", hex(Path::new(name)), flags.bits()))
    }

    /// `chown`; `None` leaves the user or the group.
    pub(crate) fn chown(
        &mut self,
        path: &Path,
        uid: Option<u32>,
        gid: Option<u32>,
    ) -> Result<(), Errno> {
        self.done(&format!("chown {} {} {}", hex(path), number(uid), number(gid)))
    }

    /// `fchown`; `None` leaves the user or the group.
    pub(crate) fn fchown(
        &mut self,
        fd: i64,
        uid: Option<u32>,
        gid: Option<u32>,
    ) -> Result<(), Errno> {
        self.done(&format!("fchown {fd} {} {}", number(uid), number(gid)))
    }

    /// `fchmod`.
    pub(crate) fn fchmod(&mut self, fd: i64, mode: u32) -> Result<(), Errno> {
        self.done(&format!("fchmod {fd} {mode}"))
    }

    /// `futimens`.
    pub(crate) fn futimes(&mut self, fd: i64, s: i64, ns: i64) -> Result<(), Errno> {
        self.done(&format!("futimes {fd} {s} {ns}"))
    }

    /// `fsetxattr`.
    pub(crate) fn fsetxattr(&mut self, fd: i64, name: &str, value: &[u8]) -> Result<(), Errno> {
        let request = format!("fsetxattr {fd} {} {}", hex(Path::new(name)), value.len());
        self.ask(&request, value).map(|_| ())
    }

    /// Gives what a descriptor stands on a further name.
    pub(crate) fn link_fd(&mut self, fd: i64, to: &Path) -> Result<(), Errno> {
        self.done(&format!("linkfd {fd} {}", hex(to)))
    }
}

/// Spells a user's or group's number, or the one that means "leave it".
fn number(id: Option<u32>) -> i64 {
    id.map_or(-1, i64::from)
}
