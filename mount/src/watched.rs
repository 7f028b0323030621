//! Processes that are watched until they end.
//!
//! Owns a descriptor of each (a pidfd), so that another process with the same id is never mistaken
//! for it. Must never wait, and must never signal.

use std::io;
use std::os::fd::{AsRawFd as _, FromRawFd as _, OwnedFd};

use crate::proc::exit_code_of;

/// `PIDFD_GET_INFO` of `linux/pidfd.h`, for the first version of the structure (64 bytes).
const GET_INFO: libc::Ioctl = 0xC040_FF0B_u32 as libc::Ioctl;
/// Requests, and marks, the exit code (`PIDFD_INFO_EXIT`, Linux 6.15).
const INFO_EXIT: u64 = 1 << 3;
/// The part of an exit code that names a signal.
const EXIT_SIGNAL_MASK: i64 = 0x7f;

/// How a process has ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum End {
    /// It exited by itself, whatever its status.
    Exited,
    /// A signal killed it.
    Killed,
    /// It is gone, and the kernel does not say how (before Linux 6.15).
    Unknown,
}

/// A watched process.
#[derive(Debug)]
pub struct Watched {
    process: u32,
    descriptor: OwnedFd,
}

/// `struct pidfd_info`, first version.
#[repr(C)]
#[derive(Default)]
struct Info {
    mask: u64,
    cgroup: u64,
    ids: [u32; 11],
    exit_code: i32,
}

impl Watched {
    /// Starts watching a process. Must be called during a request of the process, which cannot end meanwhile.
    pub(crate) fn start(process: u32) -> io::Result<Self> {
        // SAFETY: plain numbers.
        let opened = unsafe { libc::syscall(libc::SYS_pidfd_open, process, 0) };
        let opened = i32::try_from(opened).map_err(|_| io::ErrorKind::InvalidData)?;
        if opened < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the kernel has just made this descriptor for us.
        let descriptor = unsafe { OwnedFd::from_raw_fd(opened) };
        Ok(Self { process, descriptor })
    }

    /// Returns how the process has ended; `None` while it lives.
    pub fn end(&self) -> Option<End> {
        let mut poll =
            libc::pollfd { fd: self.descriptor.as_raw_fd(), events: libc::POLLIN, revents: 0 };
        // SAFETY: one structure, which outlives the call.
        let ready = unsafe { libc::poll(&raw mut poll, 1, 0) };
        if ready != 1 {
            return None;
        }
        // A process that was not waited for shows its exit code in /proc; for one that was, the
        // descriptor has it.
        let code = self.code_of_gone().or_else(|| exit_code_of(self.process));
        let code = code.or_else(|| self.code_of_gone());
        Some(code.map_or(End::Unknown, |code| {
            if code & EXIT_SIGNAL_MASK == 0 { End::Exited } else { End::Killed }
        }))
    }

    fn code_of_gone(&self) -> Option<i64> {
        let mut info = Info { mask: INFO_EXIT, ..Info::default() };
        // SAFETY: the kernel fills at most the 64 bytes that the number of the call names, and `info` has them.
        let asked = unsafe { libc::ioctl(self.descriptor.as_raw_fd(), GET_INFO, &raw mut info) };
        (asked == 0 && info.mask & INFO_EXIT != 0).then(|| i64::from(info.exit_code))
    }
}

#[cfg(test)]
mod tests {
    use std::process::{Command, Stdio};

    use super::*;

    #[test]
    fn the_end_of_a_process_is_reported_before_and_after_it_was_waited_for() {
        assert_eq!(size_of::<Info>(), 64);
        for (script, kill, end) in [
            ("read line", false, End::Exited),
            ("read line; exit 3", false, End::Exited),
            ("read line", true, End::Killed),
        ] {
            let mut command = Command::new("sh");
            let mut child =
                command.args(["-c", script]).stdin(Stdio::piped()).spawn().expect("a shell");
            let watched = Watched::start(child.id()).unwrap();
            assert_eq!(watched.end(), None);
            if kill {
                child.kill().unwrap();
            }
            drop(child.stdin.take());
            while watched.end().is_none() {
                std::thread::yield_now();
            }
            assert_eq!(watched.end(), Some(end), "{script}: not waited for");
            child.wait().unwrap();
            let gone = watched.end();
            assert!(gone == Some(end) || gone == Some(End::Unknown), "{script}: {gone:?}");
        }
    }
}
