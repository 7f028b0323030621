//! The few process functions that would otherwise need libc elsewhere.
//!
//! Must never keep state.

use std::io;
use std::os::fd::{IntoRawFd as _, OwnedFd};

/// A signal to pass on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Signal {
    /// `SIGHUP`.
    Hangup,
    /// `SIGINT`.
    Interrupt,
    /// `SIGQUIT`.
    Quit,
    /// `SIGTERM`.
    Terminate,
    /// `SIGKILL`.
    Kill,
    /// `SIGUSR1`.
    User1,
    /// `SIGUSR2`.
    User2,
}

impl Signal {
    /// Returns the number of the signal.
    pub const fn number(self) -> i32 {
        match self {
            Self::Hangup => libc::SIGHUP,
            Self::Interrupt => libc::SIGINT,
            Self::Quit => libc::SIGQUIT,
            Self::Terminate => libc::SIGTERM,
            Self::Kill => libc::SIGKILL,
            Self::User1 => libc::SIGUSR1,
            Self::User2 => libc::SIGUSR2,
        }
    }
}

/// Returns the effective user id of this process.
pub fn effective_user() -> u32 {
    // SAFETY: takes nothing, cannot fail.
    unsafe { libc::geteuid() }
}

/// Returns the effective group id of this process.
pub fn effective_group() -> u32 {
    // SAFETY: takes nothing, cannot fail.
    unsafe { libc::getegid() }
}

/// Returns the id of this process.
pub fn own_id() -> u32 {
    std::process::id()
}

/// Closes a file and returns the error: a file system may notice only now that it cannot keep what was written.
///
/// # Errors
///
/// The error of the file system, such as `ENOSPC` or `EIO`. The descriptor is closed all the same.
pub fn close(file: OwnedFd) -> io::Result<()> {
    // SAFETY: the descriptor had no other owner, and has none now.
    match unsafe { libc::close(file.into_raw_fd()) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Sends a signal to one process. The caller must know that the process has not been waited for, or
/// another process may have its id.
///
/// # Errors
///
/// `ESRCH`: it is gone, or `process` is no id; `EPERM`: it belongs to another user.
pub fn send_signal(process: u32, signal: Signal) -> io::Result<()> {
    // 0 and negative numbers would mean process groups.
    let Some(process) = i32::try_from(process).ok().filter(|process| *process > 0) else {
        return Err(io::Error::from_raw_os_error(libc::ESRCH));
    };
    // SAFETY: plain numbers.
    match unsafe { libc::kill(process, signal.number()) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Reports whether this process was started with a signal ignored, as `nohup` does.
pub fn is_ignored(signal: Signal) -> bool {
    let mut action = std::mem::MaybeUninit::<libc::sigaction>::uninit();
    // SAFETY: sets nothing; the kernel fills `action`, which outlives the call, if it returns 0.
    unsafe {
        libc::sigaction(signal.number(), std::ptr::null(), action.as_mut_ptr()) == 0
            && action.assume_init().sa_sigaction == libc::SIG_IGN
    }
}

/// Reports whether `thread` is a thread of `process`, both in our PID namespace, without opening a file.
pub(crate) fn is_thread_of(thread: u32, process: u32) -> bool {
    let (Ok(process), Ok(thread)) = (i32::try_from(process), i32::try_from(thread)) else {
        return false;
    };
    if process <= 0 || thread <= 0 {
        return false;
    }
    // Signal 0 sends nothing. EPERM means that the pair exists.
    // SAFETY: plain numbers.
    let sent = unsafe { libc::syscall(libc::SYS_tgkill, process, thread, 0) };
    sent == 0 || io::Error::last_os_error().raw_os_error() == Some(libc::EPERM)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_process_is_not_signalled() {
        for process in [0, u32::MAX] {
            let refused = send_signal(process, Signal::Terminate).unwrap_err();
            assert_eq!(refused.raw_os_error(), Some(libc::ESRCH));
        }
    }

    #[test]
    fn an_ignored_signal_is_passed_over() {
        // The Rust runtime ignores none of these signals.
        assert!(!is_ignored(Signal::User2));
        // SAFETY: no other code of this process uses this signal.
        unsafe { libc::signal(libc::SIGUSR2, libc::SIG_IGN) };
        assert!(is_ignored(Signal::User2));
        // SAFETY: as above.
        unsafe { libc::signal(libc::SIGUSR2, libc::SIG_DFL) };
    }

    #[test]
    fn threads_are_distinguished_from_strangers() {
        // SAFETY: takes nothing, cannot fail.
        let here = u32::try_from(unsafe { libc::gettid() }).unwrap();
        assert!(is_thread_of(here, own_id()));
        assert!(!is_thread_of(here, 1));
        assert!(!is_thread_of(0, own_id()));
        assert!(is_thread_of(1, 1));
    }
}
