//! A syscall process as another user, and calls through descriptors instead of names.

use std::path::{Path, PathBuf};

use rustix::fs::OFlags;
use rustix::io::Errno;

use super::{SyscallProcess, hex};
use crate::harness::Must as _;

/// A user and the groups it is in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct User {
    pub(crate) uid: u32,
    pub(crate) gid: u32,
}

impl SyscallProcess {
    /// Starts one as `user`, with further groups; needs root.
    pub(crate) fn of(user: User, groups: &[u32]) -> Self {
        let mut process = Self::new();
        let mut words = vec!["su".to_owned(), user.uid.to_string(), user.gid.to_string()];
        words.extend(groups.iter().map(u32::to_string));
        process.done(&words.join(" ")).must("become another user");
        process
    }

    /// Becomes root of a user namespace of its own.
    pub(crate) fn enter_user_namespace(&mut self) -> Result<(), Errno> {
        self.done("userns")
    }

    /// `umask`.
    pub(crate) fn umask(&mut self, mask: u32) {
        self.done(&format!("umask {mask}")).must("umask");
    }

    /// Returns the path in `/proc` of the file behind one of the process's own descriptors.
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

    /// `mkdir`, then `chmod`, so that the umask does not change the mode.
    pub(crate) fn mkdir_with(&mut self, path: &Path, mode: u32) -> Result<(), Errno> {
        self.mkdir(path)?;
        self.chmod(path, mode)
    }

    /// `open`, `write`, `close`, `chmod`: a published file with this mode.
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

    /// Makes this many threads start others, each of which ends by itself.
    pub(crate) fn churn(&mut self, threads: u32) {
        self.call(&format!("churn {threads}")).must("start threads");
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

    /// Sends a descriptor to another process, which then has the same open file.
    pub(crate) fn pass(&mut self, fd: i64, to: &mut Self) -> Result<i64, Errno> {
        let mailbox = to.call("mailbox").must("a mailbox");
        let sent = self.done(&format!("sendfd {} {fd}", to.pid()));
        let received = sent.and_then(|()| to.call(&format!("recvfd {mailbox}")));
        to.close(mailbox).must("close a mailbox");
        received
    }

    /// Forks `count` children that open a file; with `lock`, each then waits for an exclusive
    /// `flock`. They live as long as this process.
    pub(crate) fn crowd(&mut self, count: usize, path: &Path, flags: OFlags, lock: bool) {
        let op = if lock { "flock" } else { "hold" };
        let request = format!("crowd {count} {op} {} {}", hex(path), flags.bits());
        assert_eq!(self.call(&request), Ok(count as i64), "a crowd");
    }

    /// Starts threads that `truncate` the files `prefix0`, `prefix1` ..., repeatedly, as long as
    /// this process lives.
    pub(crate) fn cutters(&mut self, count: usize, prefix: &Path) {
        let started = self.call(&format!("cutters {count} {}", hex(prefix)));
        assert_eq!(started, Ok(count as i64), "threads that cut");
    }

    /// `utimensat` with the current time, which any user that may write the file may set.
    pub(crate) fn touch(&mut self, path: &Path) -> Result<(), Errno> {
        self.done(&format!("touch {}", hex(path)))
    }

    /// `mknod` of a kind (`S_IFCHR`, `S_IFIFO` ...) with a mode; devices are `/dev/null`.
    pub(crate) fn mknod(&mut self, path: &Path, kind_and_mode: u32) -> Result<(), Errno> {
        self.done(&format!("mknod {} {kind_and_mode}", hex(path)))
    }

    /// Gives the file behind a descriptor another name.
    pub(crate) fn link_fd(&mut self, fd: i64, to: &Path) -> Result<(), Errno> {
        self.done(&format!("linkfd {fd} {}", hex(to)))
    }
}

/// Formats a user's or group's number, or the one that means "unchanged".
fn number(id: Option<u32>) -> i64 {
    id.map_or(-1, i64::from)
}
