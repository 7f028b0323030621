//! A process that performs one system call at a time, on request.
//!
//! Owns the helper program `tests/torture/syscall_process*.c` and the protocol with it. Must never wait
//! for an answer without a deadline: if a syscall process hangs on a mount, the test that asked fails.

mod locks;
mod names;
mod races;
mod users;

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, ExitStatus, Stdio};
use std::sync::OnceLock;
use std::sync::mpsc::{Receiver, sync_channel};
use std::time::Duration;

use rustix::fs::OFlags;
use rustix::io::Errno;

pub(crate) use races::{Race, Seen};
pub(crate) use users::User;

use super::Must as _;
use super::command;
use super::time::thread;

const SOURCE: &str = concat!(
    include_str!("../torture/syscall_process.c"),
    include_str!("../torture/syscall_process_users.c"),
    include_str!("../torture/syscall_process_races.c"),
);
/// The default limit for one request.
const ANSWER_MS: u64 = 20_000;

/// Opens a file for writing, creating or truncating it, as compilers that write in place do.
pub(crate) const IN_PLACE: OFlags = OFlags::WRONLY.union(OFlags::CREATE).union(OFlags::TRUNC);
/// Creates a file that must not exist.
pub(crate) const CREATE_NEW: OFlags = OFlags::WRONLY.union(OFlags::CREATE).union(OFlags::EXCL);

/// Creates a file that must not exist, for reading as well.
pub(crate) const SCRATCH: OFlags = OFlags::RDWR.union(OFlags::CREATE).union(OFlags::EXCL);

/// The result of a system call, with the bytes that it returned.
#[derive(Debug)]
struct Answer {
    result: i64,
    errno: i32,
    bytes: Vec<u8>,
}

/// The result of `stat`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Stat {
    pub(crate) size: u64,
    pub(crate) mode: u32,
    pub(crate) nlink: u64,
    pub(crate) ino: u64,
    pub(crate) mtime_s: i64,
    pub(crate) mtime_ns: i64,
    pub(crate) uid: u32,
    pub(crate) gid: u32,
    pub(crate) blocks: u64,
}

/// A separate process controlled by the test.
#[derive(Debug)]
pub(crate) struct SyscallProcess {
    child: Child,
    to: Option<ChildStdin>,
    from: Receiver<Answer>,
    limit_ms: u64,
}

/// Returns the path of the helper program, compiled once.
fn program() -> &'static Path {
    static PROGRAM: OnceLock<PathBuf> = OnceLock::new();
    PROGRAM.get_or_init(|| {
        let dir = Path::new(env!("CARGO_TARGET_TMPDIR"));
        let tag = &blake3::hash(SOURCE.as_bytes()).to_hex()[..12];
        let ready = dir.join(format!("syscall-process-{tag}"));
        if ready.exists() {
            return ready;
        }
        let source = dir.join(format!("syscall-process-{tag}-{}.c", std::process::id()));
        let made = source.with_extension("new");
        std::fs::create_dir_all(dir).must("make the directory for the helper program");
        std::fs::write(&source, SOURCE).must("write the helper program's source");
        let compiler = std::env::var_os("CC").unwrap_or_else(|| "cc".into());
        let mut compile = Command::new(compiler);
        compile.args(["-O1", "-Wall", "-o"]).arg(&made).arg(&source).args(["-ldl", "-pthread"]);
        command::run(&mut compile, 60_000).good();
        std::fs::rename(&made, &ready).must("put the helper program in place");
        drop(std::fs::remove_file(&source));
        ready
    })
}

fn listen(mut from: BufReader<std::process::ChildStdout>) -> Receiver<Answer> {
    let (tell, told) = sync_channel(16);
    drop(thread(move || {
        let mut line = String::new();
        while from.read_line(&mut line).is_ok_and(|n| n > 0) {
            let mut words = line.split_whitespace().map(|word| word.parse::<i64>().unwrap_or(-1));
            let mut next = || words.next().unwrap_or(-1);
            let (result, errno, len) = (next(), next() as i32, next());
            let mut bytes = vec![0; usize::try_from(len).unwrap_or(0)];
            if from.read_exact(&mut bytes).is_err() {
                return;
            }
            if tell.send(Answer { result, errno, bytes }).is_err() {
                return;
            }
            line.clear();
        }
    }));
    told
}

fn hex(path: &Path) -> String {
    use std::fmt::Write as _;
    let bytes = path.as_os_str().as_bytes();
    if bytes.is_empty() {
        return "-".to_owned();
    }
    bytes.iter().fold(String::new(), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

impl SyscallProcess {
    /// Starts one.
    pub(crate) fn new() -> Self {
        Self::wrapped(&[])
    }

    /// Starts one with other words before its command, such as `unshare --pid --fork`.
    pub(crate) fn wrapped(words: &[&str]) -> Self {
        let mut line: Vec<&std::ffi::OsStr> = words.iter().map(std::ffi::OsStr::new).collect();
        line.push(program().as_os_str());
        let mut command = Command::new(line[0]);
        command.args(&line[1..]).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().must("start a syscall process");
        let from = listen(BufReader::new(child.stdout.take().must("its stdout")));
        let to = child.stdin.take();
        Self { child, to, from, limit_ms: ANSWER_MS }
    }

    /// Changes how long one request may take.
    pub(crate) fn limit_ms(&mut self, limit_ms: u64) {
        self.limit_ms = limit_ms;
    }

    /// Sends a request without waiting for its answer.
    fn send(&mut self, request: &str, payload: &[u8]) {
        let to = self.to.as_mut().must("a syscall process that was not closed");
        let sent = to
            .write_all(request.as_bytes())
            .and_then(|()| to.write_all(b"\n"))
            .and_then(|()| to.write_all(payload))
            .and_then(|()| to.flush());
        sent.must(format_args!("ask a syscall process to {request}"));
    }

    fn hear(&mut self, request: &str) -> Answer {
        let limit = Duration::from_millis(self.limit_ms);
        match self.from.recv_timeout(limit) {
            Ok(answer) => answer,
            Err(why) => panic!("syscall process {}: {request}: no answer ({why})", self.child.id()),
        }
    }

    fn ask(&mut self, request: &str, payload: &[u8]) -> Result<Answer, Errno> {
        self.send(request, payload);
        let answer = self.hear(request);
        if answer.result < 0 { Err(Errno::from_raw_os_error(answer.errno)) } else { Ok(answer) }
    }

    fn call(&mut self, request: &str) -> Result<i64, Errno> {
        self.ask(request, &[]).map(|answer| answer.result)
    }

    fn done(&mut self, request: &str) -> Result<(), Errno> {
        self.call(request).map(|_| ())
    }

    /// Returns its process id.
    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Kills it with `signal` and waits until it is gone.
    pub(crate) fn kill(mut self, signal: rustix::process::Signal) -> ExitStatus {
        let pid = rustix::process::Pid::from_child(&self.child);
        rustix::process::kill_process(pid, signal).must("signal a syscall process");
        command::wait(&mut self.child, 10_000).must("a killed syscall process that ends")
    }

    /// Ends it with `op` (`exit`, `_exit` or `die`) and `number`, and waits for it.
    pub(crate) fn leave(mut self, op: &str, number: i32) -> ExitStatus {
        self.send(&format!("{op} {number}"), &[]);
        command::wait(&mut self.child, 10_000).must("a syscall process that ends")
    }
}

/// Files.
impl SyscallProcess {
    /// Opens a file, and returns the descriptor.
    pub(crate) fn open(&mut self, path: &Path, flags: OFlags, mode: u32) -> Result<i64, Errno> {
        self.call(&format!("open {} {} {mode}", hex(path), flags.bits()))
    }

    /// Closes a descriptor; returns the result of `close()` itself.
    pub(crate) fn close(&mut self, fd: i64) -> Result<(), Errno> {
        self.done(&format!("close {fd}"))
    }

    /// Duplicates a descriptor.
    pub(crate) fn dup(&mut self, fd: i64) -> Result<i64, Errno> {
        self.call(&format!("dup {fd}"))
    }

    /// Opens with `flags`, writes `bytes` in pieces of `chunk`, closes.
    pub(crate) fn put_with(
        &mut self,
        path: &Path,
        flags: OFlags,
        chunk: usize,
        delay_us: u64,
        bytes: &[u8],
    ) -> Result<(), Errno> {
        let (path, flags, len) = (hex(path), flags.bits(), bytes.len());
        self.ask(&format!("put {path} {flags} 420 {chunk} {delay_us} {len}"), bytes).map(|_| ())
    }

    /// Writes a file in place, as most compilers do.
    pub(crate) fn put(&mut self, path: &Path, bytes: &[u8]) -> Result<(), Errno> {
        self.put_with(path, IN_PLACE, 1 << 20, 0, bytes)
    }

    /// Reads a whole file.
    pub(crate) fn get(&mut self, path: &Path) -> Result<Vec<u8>, Errno> {
        self.get_slowly(path, 1 << 17, 0)
    }

    /// Reads a whole file in pieces, with a pause after each.
    pub(crate) fn get_slowly(
        &mut self,
        path: &Path,
        chunk: usize,
        delay_us: u64,
    ) -> Result<Vec<u8>, Errno> {
        self.ask(&format!("get {} {chunk} {delay_us}", hex(path)), &[]).map(|answer| answer.bytes)
    }

    /// Reads a whole file through a private mapping that is touched after a pause.
    pub(crate) fn get_mapped(&mut self, path: &Path, delay_us: u64) -> Result<Vec<u8>, Errno> {
        self.ask(&format!("mapget {} {delay_us}", hex(path)), &[]).map(|answer| answer.bytes)
    }

    /// Reads at an offset.
    pub(crate) fn read(&mut self, fd: i64, at: u64, len: usize) -> Result<Vec<u8>, Errno> {
        self.ask(&format!("read {fd} {at} {len}"), &[]).map(|answer| answer.bytes)
    }

    /// Writes at the descriptor's position.
    pub(crate) fn write(&mut self, fd: i64, bytes: &[u8]) -> Result<i64, Errno> {
        self.ask(&format!("write {fd} {}", bytes.len()), bytes).map(|answer| answer.result)
    }

    /// Writes at an offset.
    pub(crate) fn pwrite(&mut self, fd: i64, at: u64, bytes: &[u8]) -> Result<i64, Errno> {
        self.ask(&format!("pwrite {fd} {at} {}", bytes.len()), bytes).map(|answer| answer.result)
    }

    /// Starts writing `len` bytes in pieces, and returns meanwhile.
    pub(crate) fn begin_fill(&mut self, fd: i64, len: usize, chunk: usize, delay_us: u64) {
        let request = format!("fill {fd} {len} {chunk} {delay_us}");
        self.send(&request, &[]);
        self.hear(&request);
    }

    /// Writes one aligned block, as O_DIRECT requires.
    pub(crate) fn write_aligned(
        &mut self,
        fd: i64,
        at: u64,
        len: usize,
        byte: u8,
    ) -> Result<i64, Errno> {
        self.call(&format!("directwrite {fd} {at} {len} {byte}"))
    }

    /// Moves the descriptor's position.
    pub(crate) fn seek(&mut self, fd: i64, at: i64, whence: i32) -> Result<i64, Errno> {
        self.call(&format!("lseek {fd} {at} {whence}"))
    }

    fn parse_stat(&mut self, request: &str) -> Result<Stat, Errno> {
        let answer = self.ask(request, &[])?;
        let text = String::from_utf8_lossy(&answer.bytes).into_owned();
        let words: Vec<i64> =
            text.split(' ').map(|word| word.parse::<u64>().unwrap_or_default() as i64).collect();
        Ok(Stat {
            size: words[0] as u64,
            mode: words[1] as u32,
            nlink: words[2] as u64,
            ino: words[3] as u64,
            mtime_s: words[4],
            mtime_ns: words[5],
            uid: words[6] as u32,
            gid: words[7] as u32,
            blocks: words[8] as u64,
        })
    }

    /// `stat`.
    pub(crate) fn stat(&mut self, path: &Path) -> Result<Stat, Errno> {
        self.parse_stat(&format!("stat {}", hex(path)))
    }

    /// `lstat`.
    pub(crate) fn lstat(&mut self, path: &Path) -> Result<Stat, Errno> {
        self.parse_stat(&format!("lstat {}", hex(path)))
    }

    /// `fstat`.
    pub(crate) fn fstat(&mut self, fd: i64) -> Result<Stat, Errno> {
        self.parse_stat(&format!("fstat {fd}"))
    }

    /// `ftruncate`.
    pub(crate) fn ftruncate(&mut self, fd: i64, len: u64) -> Result<(), Errno> {
        self.done(&format!("ftruncate {fd} {len}"))
    }

    /// `truncate`.
    pub(crate) fn truncate(&mut self, path: &Path, len: u64) -> Result<(), Errno> {
        self.done(&format!("truncate {} {len}", hex(path)))
    }

    /// `fallocate`.
    pub(crate) fn fallocate(&mut self, fd: i64, mode: u32, at: u64, len: u64) -> Result<(), Errno> {
        self.done(&format!("fallocate {fd} {mode} {at} {len}"))
    }

    /// `fsync`.
    pub(crate) fn fsync(&mut self, fd: i64) -> Result<(), Errno> {
        self.done(&format!("fsync {fd}"))
    }
}

impl Drop for SyscallProcess {
    fn drop(&mut self) {
        drop(self.to.take());
        drop(self.child.kill());
        let _ = command::wait(&mut self.child, 2_000);
    }
}
