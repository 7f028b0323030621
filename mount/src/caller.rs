//! Facts about the tasks that call us.
//!
//! Owns every read of `/proc` for a task. A task with an unanswered request cannot go away, so what
//! is read here during a request is about the task that made it. Must never be trusted after the
//! reply, and must never read a file of `/proc` that waits for a lock which the caller may hold.

use std::fs::{self, File};
use std::path::Path;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::proc::{
    Stat, has_no_memory, is_without_memory, may_inspect, open_sizes, status_line, thread_group,
};
use crate::process;
use crate::watched::Watched;

/// Task flag: a signal is killing it.
const PF_SIGNALED: u64 = 0x400;
/// The part of an exit status that names a signal.
const EXIT_SIGNAL_MASK: i64 = 0x7f;
/// Cached thread-to-process pairs, direct mapped; each is checked before use.
const PAIRS_MAX: usize = 256;

/// Threads whose `statm` stays open, direct mapped. Opening and closing the file takes longer than
/// reading it, and each close of a writer needs it.
const SIZES_MAX: usize = 16;

/// The known facts about callers on this machine.
#[derive(Debug)]
pub struct Tasks {
    refusal: Option<&'static str>,
    /// Thread id in the high half, process id in the low one; 0 is an empty slot.
    pairs: Box<[AtomicU64]>,
    sizes: [Mutex<Option<Sizes>>; SIZES_MAX],
}

/// The open `statm` of a task. It belongs to this very task: once the task is gone, reading fails,
/// even if another task has the same id.
#[derive(Debug)]
struct Sizes {
    thread: u32,
    file: File,
}

impl Tasks {
    /// Determines whether `/proc` shows the PID namespace in which the kernel names callers.
    pub fn detect() -> Self {
        let refusal = match fs::read_link("/proc/self") {
            Err(_) => Some("/proc is not mounted"),
            Ok(own) if own != Path::new(&process::own_id().to_string()) => {
                Some("/proc belongs to another PID namespace")
            }
            Ok(_) if Stat::read(process::own_id()).is_err() => {
                Some("/proc does not show the state of tasks")
            }
            Ok(_) => None,
        };
        Self::with(refusal)
    }

    fn with(refusal: Option<&'static str>) -> Self {
        Self {
            refusal,
            pairs: (0..PAIRS_MAX).map(|_| AtomicU64::new(0)).collect(),
            sizes: std::array::from_fn(|_| Mutex::new(None)),
        }
    }

    /// Returns why callers are not visible, if so. Then every caller counts as unseen.
    pub fn refusal(&self) -> Option<&str> {
        self.refusal
    }

    /// Returns the process of a calling thread; `None` if it is not visible.
    pub fn process_of(&self, thread: u32) -> Option<u32> {
        if thread == 0 || self.refusal.is_some() {
            return None;
        }
        // Most callers are the first thread of their process, and this check is one cheap call.
        if process::is_thread_of(thread, thread) {
            return Some(thread);
        }
        let slot = &self.pairs[thread as usize % PAIRS_MAX];
        let pair = slot.load(Ordering::Relaxed);
        // The low half is the process.
        let (known, process) = ((pair >> 32) as u32, pair as u32);
        if known == thread && process::is_thread_of(thread, process) {
            return Some(process);
        }
        let process = thread_group(thread)?;
        slot.store(u64::from(thread) << 32 | u64::from(process), Ordering::Relaxed);
        Some(process)
    }

    /// Returns the supplementary groups of a calling thread; none if they are not visible.
    pub fn groups_of(&self, thread: u32) -> Vec<u32> {
        if thread == 0 || self.refusal.is_some() {
            return Vec::new();
        }
        let groups = status_line(thread, "Groups:").unwrap_or_default();
        groups.split_ascii_whitespace().filter_map(|group| group.parse().ok()).collect()
    }

    /// Reports whether a calling task is being killed by a signal. `false` for one that exits by
    /// itself, however many threads it has, and for one that is not visible.
    pub fn is_dying(&self, thread: u32) -> bool {
        if thread == 0 || self.refusal.is_some() {
            return false;
        }
        // This must come first. During execve a process closes files under a lock that reading
        // `stat` waits for, while it waits for our answer to that very close. `statm` takes no
        // lock, and a task that exits releases its memory before its files.
        if !self.has_no_memory(thread) {
            return false;
        }
        let Ok(stat) = Stat::read(thread) else { return false };
        // The death of the process counts, not how this thread ends. When one thread exits for all,
        // the kernel kills the others. And the last thread of a killed process, which closes its
        // files, may have been ending by itself.
        if stat.exit_code != 0 || may_inspect(thread) {
            return is_death(stat.exit_code);
        }
        // The exit code is hidden from this daemon, so the flag of the thread must do. Treating a
        // clean exit as a kill loses an unclosed file; the reverse publishes one.
        stat.flags & PF_SIGNALED != 0
    }

    /// Reports whether a task has released its memory, using the file of an earlier call if that
    /// still belongs to the task.
    fn has_no_memory(&self, thread: u32) -> bool {
        let slot = &self.sizes[thread as usize % SIZES_MAX];
        // Opening another file is faster than waiting for the lock.
        let Ok(mut known) = slot.try_lock() else { return has_no_memory(thread) };
        let same = known.as_ref().filter(|sizes| sizes.thread == thread);
        if let Some(without) = same.and_then(|sizes| is_without_memory(&sizes.file).ok()) {
            return without;
        }
        *known = None;
        let Ok(file) = open_sizes(thread) else { return false };
        let without = is_without_memory(&file).unwrap_or(false);
        *known = Some(Sizes { thread, file });
        without
    }
}

impl Tasks {
    /// Starts watching the process of a caller. Must be called before the caller is answered.
    /// `None` if that is impossible.
    pub fn watch(&self, process: u32) -> Option<Watched> {
        if process == 0 || self.refusal.is_some() {
            return None;
        }
        Watched::start(process).ok()
    }

    /// Returns when a process was started, in the kernel's ticks since the boot. Together with its
    /// id, this identifies it as long as the machine runs. `None` for a process that is not visible.
    pub fn started(&self, process: u32) -> Option<u64> {
        if process == 0 || self.refusal.is_some() {
            return None;
        }
        Stat::read(process).ok().map(|stat| stat.started)
    }

    /// Starts watching a process of an earlier run, identified by its id and start time; `None` if
    /// it has ended.
    pub fn watch_again(&self, process: u32, started: u64) -> Option<Watched> {
        let watched = self.watch(process)?;
        // Checked afterwards: the watched process has the id, and it is the one that has had it
        // since that start time.
        (self.started(process) == Some(started) && watched.end().is_none()).then_some(watched)
    }

    /// Reports whether a calling task has a signal to handle, so that its call has to end with
    /// `EINTR`. `false` for one that is not visible.
    pub fn is_interrupted(&self, thread: u32) -> bool {
        if thread == 0 || self.refusal.is_some() {
            return false;
        }
        let status = fs::read(format!("/proc/{thread}/status"));
        status.is_ok_and(|text| {
            SignalSets::parse(&text).is_some_and(|signals| signals.interrupt(thread))
        })
    }
}

/// The bit of SIGKILL in a set of signals.
const KILL: u64 = 1 << (libc::SIGKILL - 1);

/// The sets of signals in `/proc/<tid>/status`, and the thread to which they belong.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct SignalSets {
    process: u32,
    /// Pending for this thread.
    own: u64,
    /// Pending for some thread of the process.
    shared: u64,
    blocked: u64,
    ignored: u64,
}

impl SignalSets {
    fn parse(status: &[u8]) -> Option<Self> {
        let value = |key: &str| {
            let mut lines = status.split(|byte| *byte == b'\n');
            let value = lines.find_map(|line| line.strip_prefix(key.as_bytes()))?;
            std::str::from_utf8(value).map(str::trim).ok()
        };
        let set = |key: &str| u64::from_str_radix(value(key)?, 16).ok();
        Some(Self {
            process: value("Tgid:")?.parse().ok()?,
            own: set("SigPnd:")?,
            shared: set("ShdPnd:")?,
            blocked: set("SigBlk:")?,
            ignored: set("SigIgn:")?,
        })
    }

    /// Reports whether the thread has to handle a signal. One thread handles a signal for the whole
    /// process: the first, if it does not block the signal. The kernel wakes only that one. If a
    /// call of another thread ended for it, the call would return an error that no program knows
    /// (512). A fatal signal is pending for every thread.
    fn interrupt(&self, thread: u32) -> bool {
        let shared = if thread == self.process { self.shared } else { 0 };
        let pending = self.own | shared;
        (pending & !(self.blocked | self.ignored)) | ((self.own | self.shared) & KILL) != 0
    }
}

/// Reports whether an exit code means that a signal kills the process. While a process is stopped,
/// the field holds the signal that stopped it.
fn is_death(exit_code: i64) -> bool {
    const STOPS: [i32; 4] = [libc::SIGSTOP, libc::SIGTSTP, libc::SIGTTIN, libc::SIGTTOU];
    let signal = exit_code & EXIT_SIGNAL_MASK;
    signal != 0 && !STOPS.into_iter().any(|stop| i64::from(stop) == signal)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exit_codes_of_processes_that_signals_kill() {
        let core_dumped = 0x80;
        for killed in [libc::SIGKILL, libc::SIGTERM, libc::SIGSEGV | core_dumped] {
            assert!(is_death(killed.into()), "{killed}");
        }
        for other in [0, 1 << 8, 0xff << 8, libc::SIGSTOP, libc::SIGTSTP] {
            assert!(!is_death(other.into()), "{other}");
        }
    }

    #[test]
    fn signals_that_interrupt() {
        let read = |sets: [&str; 4]| {
            let [own, shared, blocked, ignored] = sets;
            let text = format!(
                "Name:\tSigPnd: x\nTgid:\t7\nPid:\t7\nSigPnd:\t{own}\nShdPnd:\t{shared}\nSigBlk:\t{blocked}\n\
                 SigIgn:\t{ignored}\nSigCgt:\t0000000000000000\n"
            );
            SignalSets::parse(text.as_bytes()).unwrap()
        };
        // SIGALRM is 14, SIGKILL is 9.
        let (none, alarm, kill) = ("0000000000000000", "0000000000002000", "0000000000000100");
        let table = [
            ([none, none, none, none], (false, false)),
            ([alarm, none, none, none], (true, true)),
            ([none, alarm, none, none], (true, false)),
            ([alarm, alarm, alarm, none], (false, false)),
            ([alarm, alarm, none, alarm], (false, false)),
            ([kill, none, "ffffffffffffffff", none], (true, true)),
            ([none, kill, none, none], (true, true)),
        ];
        for (sets, (first, other)) in table {
            let signals = read(sets);
            assert_eq!((signals.interrupt(7), signals.interrupt(8)), (first, other), "{sets:?}");
        }
        assert_eq!(SignalSets::parse(b"Tgid:\t7\nSigPnd:\t0\n"), None);
        assert!(!Tasks::detect().is_interrupted(process::own_id()));
    }

    #[test]
    fn threads_lead_to_their_process() {
        let tasks = Tasks::detect();
        assert_eq!(tasks.refusal(), None);
        for _ in 0..3 {
            let found = std::thread::scope(|scope| {
                let work = scope.spawn(|| {
                    // SAFETY: takes nothing, cannot fail.
                    let thread = u32::try_from(unsafe { libc::gettid() }).unwrap();
                    assert_ne!(thread, process::own_id());
                    (tasks.process_of(thread), tasks.process_of(thread))
                });
                work.join().unwrap()
            });
            assert_eq!(found, (Some(process::own_id()), Some(process::own_id())));
        }
        assert_eq!(tasks.process_of(process::own_id()), Some(process::own_id()));
        assert!(!tasks.is_dying(process::own_id()));
    }

    #[test]
    fn a_process_is_known_by_its_number_and_its_start() {
        let tasks = Tasks::detect();
        let own = process::own_id();
        let started = tasks.started(own).unwrap();
        assert!(tasks.watch_again(own, started).is_some());
        assert!(
            tasks.watch_again(own, started + 1).is_none(),
            "another task had this number before"
        );
        assert!(tasks.watch_again(0, started).is_none());
    }

    #[test]
    fn a_stale_pair_is_not_believed() {
        let tasks = Tasks::detect();
        let other = std::thread::scope(|scope| {
            scope
                .spawn(|| {
                    // SAFETY: takes nothing, cannot fail.
                    let thread = u32::try_from(unsafe { libc::gettid() }).unwrap();
                    let slot = &tasks.pairs[thread as usize % PAIRS_MAX];
                    slot.store(u64::from(thread) << 32 | 1, Ordering::Relaxed);
                    tasks.process_of(thread)
                })
                .join()
                .unwrap()
        });
        assert_eq!(other, Some(process::own_id()));
    }

    #[test]
    fn the_memory_of_a_task_is_read_anew_each_time() {
        let tasks = Tasks::detect();
        let mut child = std::process::Command::new("sleep").arg("600").spawn().unwrap();
        let thread = child.id();
        assert!(!tasks.has_no_memory(thread) && !tasks.has_no_memory(thread));
        child.kill().unwrap();
        // Opens its own file each time.
        while !has_no_memory(thread) {
            std::thread::yield_now();
        }
        assert!(tasks.has_no_memory(thread), "the file from its lifetime is read");
        assert!(tasks.is_dying(thread));
        child.wait().unwrap();
        assert!(!tasks.has_no_memory(thread), "the task and its file are gone");
        let slot = tasks.sizes[thread as usize % SIZES_MAX].lock().unwrap();
        assert!(slot.is_none());
    }

    #[test]
    fn a_number_that_another_task_has_is_that_of_the_other() {
        let tasks = Tasks::detect();
        let mut child = std::process::Command::new("sleep").arg("600").spawn().unwrap();
        let file = open_sizes(child.id()).unwrap();
        child.kill().unwrap();
        child.wait().unwrap();
        // As if the child had had the id of this process.
        let own = process::own_id();
        *tasks.sizes[own as usize % SIZES_MAX].lock().unwrap() = Some(Sizes { thread: own, file });
        assert!(!tasks.has_no_memory(own));
        let slot = tasks.sizes[own as usize % SIZES_MAX].lock().unwrap();
        let sizes = slot.as_ref().unwrap();
        assert!(!is_without_memory(&sizes.file).unwrap(), "the file was opened again");
    }

    #[test]
    fn without_a_usable_proc_everyone_is_unseen() {
        let tasks = Tasks::with(Some("for the test"));
        assert_eq!(tasks.process_of(process::own_id()), None);
        assert!(!tasks.is_dying(process::own_id()));
        assert_eq!(Tasks::detect().process_of(0), None);
    }
}
