//! Reads facts about a task from `/proc`.
//!
//! Must never take a lock of the task before it is known to have released its memory: during execve
//! a program closes files under that lock.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::FileExt as _;

/// Reports whether a task has released its memory, as one that exits has. Takes no lock of the task.
pub(crate) fn has_no_memory(thread: u32) -> bool {
    open_sizes(thread).and_then(|file| is_without_memory(&file)).unwrap_or(false)
}

pub(crate) fn open_sizes(thread: u32) -> io::Result<File> {
    File::open(format!("/proc/{thread}/statm"))
}

/// Reads the open `statm` of a task; an error when the task is gone.
pub(crate) fn is_without_memory(sizes: &File) -> io::Result<bool> {
    let mut text = [0; 8];
    let count = sizes.read_at(&mut text, 0)?;
    // The first number is the size of all memory.
    Ok(count >= 2 && text.starts_with(b"0 "))
}

/// Returns the exit code of a task that has ended and was not waited for; `None` if it is hidden.
pub(crate) fn exit_code_of(task: u32) -> Option<i64> {
    if !has_no_memory(task) {
        return None;
    }
    let code = Stat::read(task).ok()?.exit_code;
    // A hidden exit code reads as 0, like that of a successful process.
    (code != 0 || may_inspect(task)).then_some(code)
}

/// Reports whether the kernel shows us all fields of a task (hidden fields of `stat` read as 0).
pub(crate) fn may_inspect(thread: u32) -> bool {
    match fs::read_link(format!("/proc/{thread}/exe")) {
        Ok(_) => true,
        // A task that has released its memory has no program any more.
        Err(error) => error.kind() == io::ErrorKind::NotFound,
    }
}

pub(crate) fn thread_group(thread: u32) -> Option<u32> {
    status_line(thread, "Tgid:")?.parse().ok()
}

/// Returns the value of a line of `/proc/<tid>/status`.
pub(crate) fn status_line(thread: u32, name: &str) -> Option<String> {
    let status = fs::read(format!("/proc/{thread}/status")).ok()?;
    status
        .split(|byte| *byte == b'\n')
        .find_map(|line| line.strip_prefix(name.as_bytes()))
        .and_then(|value| std::str::from_utf8(value).ok())
        .map(|value| value.trim().to_owned())
}

/// The relevant fields of `/proc/<tid>/stat`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Stat {
    pub(crate) flags: u64,
    pub(crate) started: u64,
    pub(crate) exit_code: i64,
}

impl Stat {
    pub(crate) fn read(thread: u32) -> io::Result<Self> {
        let line = fs::read(format!("/proc/{thread}/stat"))?;
        Self::parse(&line).ok_or_else(|| io::ErrorKind::InvalidData.into())
    }

    /// Parses the line. The name of a task may contain spaces, parentheses and line ends, so fields
    /// are counted from the last closing parenthesis.
    fn parse(line: &[u8]) -> Option<Self> {
        let name_end = line.iter().rposition(|byte| *byte == b')')?;
        let rest = std::str::from_utf8(&line[name_end + 1..]).ok()?;
        // The first of these is field 3; flags are field 9, the start is field 22, the exit status is field 52.
        let mut fields = rest.split_ascii_whitespace();
        let flags = fields.nth(9 - 3)?.parse().ok()?;
        let started = fields.nth(22 - 10)?.parse().ok()?;
        let exit_code = fields.nth(52 - 23)?.parse().ok()?;
        Some(Self { flags, started, exit_code })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stat_of_a_task_with_an_ugly_name() {
        let mut line = b"7 (a) b (c\n9) S 1 2 3 4 5 4195328".to_vec();
        for field in 10..52 {
            line.extend_from_slice(format!(" {field}").as_bytes());
        }
        line.extend_from_slice(b" 15\n");
        assert_eq!(Stat::parse(&line), Some(Stat { flags: 4_195_328, started: 22, exit_code: 15 }));
        assert_eq!(4_195_328, 0x40_0400, "one of the two bits belongs to a signal");
        assert_eq!(Stat::parse(b"7 (x"), None);
        assert_eq!(Stat::parse(b"7 (x) S 1"), None);
    }
}
