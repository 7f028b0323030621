//! Artificial programs: real processes that do nothing, so that the node sees a process behind each
//! call.

use std::collections::BTreeMap;
use std::io::{BufRead as _, BufReader, Write as _};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use hearthfs_mount::Caller;
use parking_lot::Mutex;
use rustix::process::{Pid, Signal, kill_process};

use super::users::{ROOT, User};

/// Starts all programs of this run. Each test has a nursery of its own. If the test process started
/// each program itself, the moment between fork and exec would keep alive the lock of every cache
/// directory that another test has open just then.
static NURSERIES: Mutex<BTreeMap<String, Nursery>> = Mutex::new(BTreeMap::new());

/// A shell that starts programs until its input ends, which happens when this process ends.
struct Nursery {
    _shell: Child,
    ask: ChildStdin,
    told: BufReader<ChildStdout>,
}

impl Nursery {
    fn start() -> Self {
        // The parent of a program never waits for it, so it stays visible that the program was
        // killed.
        let script = "while read -r line; do
            set -- $line
            if [ $1 = until ]; then
                sh -c 'sh -c \"until [ -e $0 ]; do sleep 0.05; done\" >/dev/null & echo $! $$; exec sleep 3600 >/dev/null' $2 &
            else
                $2 $3 sh -c 'sleep 3600 >/dev/null & echo $! $$; exec sleep 3600 >/dev/null' &
            fi
        done";
        let mut command = Command::new("sh");
        command.args(["-c", script]).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut shell = command.spawn().unwrap();
        let (ask, told) = (shell.stdin.take().unwrap(), shell.stdout.take().unwrap());
        Self { _shell: shell, ask, told: BufReader::new(told) }
    }
}

/// A process that waits to be killed, and its parent, which waits as well.
#[derive(Debug)]
pub(super) struct Program(Pid, Pid, User);

impl Program {
    pub(super) fn start() -> Self {
        Self::start_as(ROOT)
    }

    /// Starts a program with the supplementary groups of a user. If there are any, this requires
    /// root.
    pub(super) fn start_as(user: User) -> Self {
        let groups: Vec<String> = user.groups.iter().map(u32::to_string).collect();
        let ask = if groups.is_empty() {
            "one\n".to_owned()
        } else {
            format!("one setpriv --groups={}\n", groups.join(","))
        };
        Self::ask(&ask, user)
    }

    /// Starts a program that exits by itself as soon as a file exists.
    pub(super) fn start_until(file: &Path) -> Self {
        Self::ask(&format!("until {}\n", file.display()), ROOT)
    }

    fn ask(ask: &str, user: User) -> Self {
        let mut line = String::new();
        let test = std::thread::current().name().unwrap_or_default().to_owned();
        let mut nurseries = NURSERIES.lock();
        let nursery = nurseries.entry(test).or_insert_with(Nursery::start);
        nursery.ask.write_all(ask.as_bytes()).unwrap();
        nursery.told.read_line(&mut line).unwrap();
        let mut pids =
            line.split_whitespace().map(|pid| Pid::from_raw(pid.parse().unwrap()).unwrap());
        let program = Self(pids.next().unwrap(), pids.next().unwrap(), user);
        // Until then its parent is a shell, which would wait for processes that have ended.
        let parent = format!("/proc/{}/comm", program.1.as_raw_nonzero());
        while std::fs::read_to_string(&parent).unwrap() != "sleep\n" {
            std::thread::yield_now();
        }
        program
    }

    /// Returns the program as the kernel identifies a caller.
    pub(super) fn caller(&self) -> Caller {
        Caller { uid: self.2.uid, gid: self.2.gid, tid: self.0.as_raw_nonzero().get() as u32 }
    }

    /// Kills the program and waits until the kernel has freed its memory, like that of a task that
    /// is closing its files.
    pub(super) fn kill(&mut self) {
        kill_process(self.0, Signal::KILL).unwrap();
        let statm = format!("/proc/{}/statm", self.0.as_raw_nonzero());
        while !std::fs::read_to_string(&statm).unwrap().starts_with("0 ") {
            std::thread::yield_now();
        }
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        // A zombie accepts the signal, too. It disappears with its parent.
        for pid in [self.0, self.1] {
            kill_process(pid, Signal::KILL).ok();
        }
    }
}
