//! Locks, mappings and child processes of a syscall process.

use std::path::Path;
use std::time::Duration;

use rustix::io::Errno;
use rustix::process::{Pid, Signal, kill_process};

use super::{SyscallProcess, hex};
use crate::harness::Must as _;

impl SyscallProcess {
    /// `flock`: 1 shared, 2 exclusive, 8 unlock. Adds 4 (`LOCK_NB`), so it never waits.
    pub(crate) fn flock(&mut self, fd: i64, op: u32) -> Result<(), Errno> {
        self.done(&format!("flock {fd} {}", op | 4))
    }

    /// `flock` that waits; [`SyscallProcess::heard`] returns the answer.
    pub(crate) fn begin_flock(&mut self, fd: i64, op: u32) {
        self.send(&format!("flock {fd} {op}"), &[]);
    }

    /// Waits at most `limit_ms` for the answer to a request that was started.
    pub(crate) fn heard(&mut self, limit_ms: u64) -> Option<Result<(), Errno>> {
        let answer = self.from.recv_timeout(Duration::from_millis(limit_ms)).ok()?;
        let failed = answer.result < 0;
        Some(if failed { Err(Errno::from_raw_os_error(answer.errno)) } else { Ok(()) })
    }

    /// A POSIX record lock over a range: 0 read, 1 write, 2 unlock.
    pub(crate) fn setlk(&mut self, fd: i64, kind: u32, at: u64, len: u64) -> Result<(), Errno> {
        self.done(&format!("setlk {fd} {kind} {at} {len}"))
    }

    /// Forks a child that keeps every descriptor open until it is killed.
    pub(crate) fn fork_and_hold(&mut self) -> Pid {
        let child = self.call("forkhold").must("fork") as i32;
        Pid::from_raw(child).must("a process id")
    }

    /// Forks a child that writes `bytes` to an inherited descriptor at SIGUSR1, and then waits to be killed.
    pub(crate) fn fork_and_write(&mut self, fd: i64, bytes: &[u8]) -> Pid {
        let answer = self.ask(&format!("heir {fd} {}", bytes.len()), bytes).must("fork");
        Pid::from_raw(answer.result as i32).must("a process id")
    }

    /// Installs a handler for a signal. With `restart`, interrupted calls are restarted instead of
    /// failing with EINTR.
    pub(crate) fn catch(&mut self, signal: Signal, restart: bool) {
        let request = format!("catch {} {}", signal.as_raw(), i32::from(restart));
        self.done(&request).must("handle a signal");
    }

    /// Sends it a signal that it survives.
    pub(crate) fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).must("signal a syscall process");
    }

    /// Stops one thread of another process for as long as this process lives.
    pub(crate) fn freeze(&mut self, thread: u32) -> Result<(), Errno> {
        self.done(&format!("freeze {thread}"))
    }

    /// Maps the first `len` bytes.
    pub(crate) fn map(
        &mut self,
        fd: i64,
        len: usize,
        writable: bool,
        shared: bool,
    ) -> Result<i64, Errno> {
        self.call(&format!("map {fd} {len} {} {}", i32::from(writable), i32::from(shared)))
    }

    /// Reads from a mapping; a SIGBUS ends the process, which fails the test.
    pub(crate) fn map_read(&mut self, map: i64, at: u64, len: usize) -> Vec<u8> {
        self.ask(&format!("mapread {map} {at} {len}"), &[]).must("read a mapping").bytes
    }

    /// Writes into a mapping.
    pub(crate) fn map_write(&mut self, map: i64, at: u64, bytes: &[u8]) {
        let request = format!("mapwrite {map} {at} {}", bytes.len());
        self.ask(&request, bytes).must("write into a mapping");
    }

    /// Writes into a mapping of a file whose daemon may be killed. If the store ends the process
    /// with SIGBUS, the result is `ENOTCONN`.
    pub(crate) fn map_write_or_die(
        &mut self,
        map: i64,
        at: u64,
        bytes: &[u8],
    ) -> Result<(), Errno> {
        self.send(&format!("mapwrite {map} {at} {}", bytes.len()), bytes);
        match self.from.recv_timeout(Duration::from_millis(self.limit_ms)) {
            Ok(answer) if answer.result < 0 => Err(Errno::from_raw_os_error(answer.errno)),
            Ok(_) => Ok(()),
            Err(_) => Err(Errno::NOTCONN),
        }
    }

    /// `msync`.
    pub(crate) fn msync(&mut self, map: i64) -> Result<(), Errno> {
        self.done(&format!("msync {map}"))
    }

    /// `munmap`.
    pub(crate) fn unmap(&mut self, map: i64) -> Result<(), Errno> {
        self.done(&format!("unmap {map}"))
    }

    /// Forks a child that exits at once, with every descriptor open.
    pub(crate) fn spawn_and_exit(&mut self, code: i32) -> i64 {
        self.call(&format!("spawn {code}")).must("fork")
    }

    /// Loads a library and calls a function of it; `again` requests the copy that is already loaded.
    pub(crate) fn call_library(
        &mut self,
        path: &Path,
        symbol: &str,
        again: bool,
    ) -> Result<i64, Errno> {
        let op = if again { "recall" } else { "call" };
        self.call(&format!("{op} {} {}", hex(path), hex(Path::new(symbol))))
    }
}
