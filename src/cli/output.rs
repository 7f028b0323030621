//! Data goes to stdout, everything else to stderr.
//!
//! Owns both streams. Must never mix them, and never send a terminal a character on which it would act.

use std::io::{IsTerminal as _, Write as _};
use std::time::Duration;

use super::escape::{one_line, tame};
use super::failure::{Failure, Outcome};
use crate::clock::Clock;
use crate::config::ByteSize;
use crate::control::{Backlog, DrainProgress};

/// Prints data. A closed pipe (`| head`) is no failure.
pub(super) fn data(text: &str) -> Outcome<()> {
    write(&tame(text))
}

/// Prints a document that another program reads byte for byte, such as the rules of a bucket. It is
/// escaped only for a terminal.
pub(super) fn document(text: &str) -> Outcome<()> {
    if std::io::stdout().is_terminal() { data(text) } else { write(text) }
}

fn write(text: &str) -> Outcome<()> {
    let mut out = std::io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Err(error) if error.kind() != std::io::ErrorKind::BrokenPipe => {
            Err(Failure::failed(format!("write to standard output: {error}")))
        }
        _ => Ok(()),
    }
}

/// Prints a line for people. Does nothing if stderr is gone.
pub(super) fn note(line: &str) {
    writeln!(std::io::stderr().lock(), "{}", tame(line)).ok();
}

/// If stderr is no terminal, the first report of a drain comes after this time.
const TOLD_AFTER: Duration = Duration::from_secs(3);
/// After that, it is reported at this interval.
const TOLD_EVERY: Duration = Duration::from_secs(15);

/// The progress of a command: on a terminal one line that is rewritten, and elsewhere a line at intervals.
#[derive(Debug)]
pub(super) struct ProgressLine {
    terminal: bool,
    every: Duration,
    shown: bool,
    clock: Clock,
    next: Duration,
}

impl ProgressLine {
    /// Shows a drain.
    pub(super) fn new() -> Self {
        Self::telling_every(TOLD_EVERY)
    }

    /// Shows something that is reported at this interval if stderr is no terminal.
    pub(super) fn telling_every(every: Duration) -> Self {
        let (terminal, clock) = (std::io::stderr().is_terminal(), Clock::system());
        let next = clock.mono() + TOLD_AFTER;
        Self { terminal, every, shown: false, clock, next }
    }

    pub(super) fn show(&mut self, progress: &DrainProgress) {
        self.say(|| draining(progress));
    }

    /// Shows a line.
    pub(super) fn say(&mut self, text: impl FnOnce() -> String) {
        if self.terminal {
            self.shown = true;
            write!(std::io::stderr().lock(), "\r\x1b[K{}", one_line(&text())).ok();
        } else if self.clock.mono() >= self.next {
            self.next = self.clock.mono() + self.every;
            note(&text());
        }
    }
}

impl Drop for ProgressLine {
    fn drop(&mut self) {
        if self.shown {
            write!(std::io::stderr().lock(), "\r\x1b[K").ok();
        }
    }
}

/// Describes the progress of a drain, and what delays it.
fn draining(progress: &DrainProgress) -> String {
    let mut text = format!("draining: {}", left(&progress.backlog));
    text.extend(progress.trouble.iter().map(|why| format!("; {why}")));
    text
}

/// Describes what is not yet uploaded.
pub(super) fn left(backlog: &Backlog) -> String {
    let size = ByteSize(backlog.bytes).human();
    format!("{} ({size}) not yet remote", count(backlog.records, "change", "changes"))
}

/// Formats a number with its noun.
pub(super) fn count(number: u64, one: &str, many: &str) -> String {
    format!("{number} {}", if number == 1 { one } else { many })
}

/// Formats a time roughly: `0.4 s`, `3m20s`, `5h12m`.
pub(super) fn time(ms: u64) -> String {
    let seconds = ms / 1000;
    match seconds {
        0..10 => format!("{:.1} s", ms as f64 / 1000.0),
        10..60 => format!("{seconds} s"),
        60..3600 => format!("{}m{}s", seconds / 60, seconds % 60),
        3600..86_400 => format!("{}h{}m", seconds / 3600, seconds % 3600 / 60),
        _ => format!("{}d{}h", seconds / 86_400, seconds % 86_400 / 3600),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_drain_says_what_is_left_and_why() {
        let backlog = Backlog { records: 4, bytes: 2048, oldest_ms: 9 };
        let mut progress = DrainProgress { backlog, trouble: None };
        assert_eq!(draining(&progress), "draining: 4 changes (2.0 KiB) not yet remote");
        progress.trouble = Some("status 403".to_owned());
        assert!(draining(&progress).ends_with("not yet remote; status 403"));
    }

    #[test]
    fn times_for_people() {
        for (ms, text) in [
            (0, "0.0 s"),
            (440, "0.4 s"),
            (59_999, "59 s"),
            (200_000, "3m20s"),
            (18_720_000, "5h12m"),
            (90_000_000, "1d1h"),
        ] {
            assert_eq!(time(ms), text);
        }
    }
}
