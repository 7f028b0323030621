//! Made-up programs: real processes that do nothing, so that the node sees somebody behind each call.

use std::collections::BTreeMap;
use std::io::{BufRead as _, BufReader, Write as _};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use hearthfs_mount::Caller;
use parking_lot::Mutex;
use rustix::process::{Pid, Signal, kill_process};

/// Starts all programs of this run. If each were started from here, the moment between fork and exec would
/// hold the lock of every cache directory that some other test has open just then. It buries the dead only
/// when it starts the next one, so each test has one of its own: a killed program can still be seen to have
/// been killed.
static NURSERIES: Mutex<BTreeMap<String, Nursery>> = Mutex::new(BTreeMap::new());

/// A shell that starts programs until its input ends, which it does with this process.
struct Nursery {
    _shell: Child,
    ask: ChildStdin,
    told: BufReader<ChildStdout>,
}

impl Nursery {
    fn start() -> Self {
        let script = "while read -r line; do sleep 3600 >/dev/null & echo $!; done";
        let mut command = Command::new("sh");
        command.args(["-c", script]).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut shell = command.spawn().unwrap();
        let (ask, told) = (shell.stdin.take().unwrap(), shell.stdout.take().unwrap());
        Self { _shell: shell, ask, told: BufReader::new(told) }
    }
}

/// A process that waits to be killed.
#[derive(Debug)]
pub(super) struct Program(Pid);

impl Program {
    pub(super) fn start() -> Self {
        let mut line = String::new();
        let test = std::thread::current().name().unwrap_or_default().to_owned();
        let mut nurseries = NURSERIES.lock();
        let nursery = nurseries.entry(test).or_insert_with(Nursery::start);
        nursery.ask.write_all(b"one more\n").unwrap();
        nursery.told.read_line(&mut line).unwrap();
        Self(Pid::from_raw(line.trim().parse().unwrap()).unwrap())
    }

    /// Returns it as the kernel names who calls.
    pub(super) fn caller(&self) -> Caller {
        Caller { uid: 0, gid: 0, tid: self.0.as_raw_nonzero().get() as u32 }
    }

    /// Kills it and waits until the kernel has taken its memory, as that of a task that closes its files.
    pub(super) fn kill(&mut self) {
        kill_process(self.0, Signal::KILL).unwrap();
        let statm = format!("/proc/{}/statm", self.0.as_raw_nonzero());
        // Gone altogether when the nursery has noticed already.
        while std::fs::read_to_string(&statm).is_ok_and(|sizes| !sizes.starts_with("0 ")) {
            std::thread::yield_now();
        }
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        // A zombie takes it too.
        kill_process(self.0, Signal::KILL).ok();
    }
}
