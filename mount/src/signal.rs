//! Ends this process as a signal would.

use std::ptr;

/// Ends this process the way `signal` ends a process that does not handle it, so that a process
/// that waits for us sees what it would have seen of the command that we ran. Writes no core file
/// of ours. If the signal does not end a process, exits with 128 plus its number, as shells do.
pub fn die_of(signal: i32) -> ! {
    // SAFETY: every call takes plain numbers or pointers to locals that live through it. Setting the
    // default action cannot run code of ours, and nothing after it relies on a handler.
    unsafe {
        let none = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
        libc::setrlimit(libc::RLIMIT_CORE, &raw const none);
        libc::signal(signal, libc::SIG_DFL);
        let mut set = std::mem::zeroed::<libc::sigset_t>();
        libc::sigemptyset(&raw mut set);
        libc::sigaddset(&raw mut set, signal);
        libc::pthread_sigmask(libc::SIG_UNBLOCK, &raw const set, ptr::null_mut());
        libc::raise(signal);
    }
    std::process::exit(128 + signal)
}
