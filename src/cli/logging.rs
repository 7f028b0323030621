//! The destination and form of log lines.
//!
//! Owns the one subscriber of the process. Must never write to stdout.

use std::fs::OpenOptions;
use std::io::{self, IsTerminal as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::PathBuf;

use rustix::fs::OFlags;
use tracing::level_filters::LevelFilter;
use tracing_subscriber::filter::Targets;
use tracing_subscriber::prelude::*;
use tracing_subscriber::{Registry, reload};

use crate::config::{Log, LogFormat};

/// Mode of a new log file: lines name files of all users.
const FILE_MODE: u32 = 0o600;
/// Our own crates; a level without a target applies to them.
const OURS: [&str; 2] = ["hearthfs", "hearthfs_mount"];

/// The parts that can be changed while running.
#[derive(Debug)]
pub(super) struct Logging {
    level: reload::Handle<Targets, Registry>,
    /// The file behind stderr, by the name that it had at the start.
    file: Option<PathBuf>,
}

impl Logging {
    /// Continues in a new file of the same name, if stderr is a file: the old one may have been moved aside.
    pub(super) fn reopen(&self) -> io::Result<()> {
        let Some(path) = &self.file else { return Ok(()) };
        // Not through a link: a user who may write to the directory could have put it there.
        let no_link = OFlags::NOFOLLOW.bits() as i32;
        let mut options = OpenOptions::new();
        options.append(true).create(true).mode(FILE_MODE).custom_flags(no_link);
        rustix::stdio::dup2_stderr(options.open(path)?)?;
        Ok(())
    }

    /// Changes what is logged.
    pub(super) fn set_level(&self, level: &str) {
        // It fails only if another subscriber was installed first, as in a test.
        self.level.reload(filter(level)).ok();
    }
}

/// Starts logging to stderr. The journal adds times itself, so lines carry none there.
pub(super) fn start(log: &Log) -> Logging {
    let (filter, level) = reload::Layer::new(filter(&log.level));
    let journal = is_journal();
    let terminal = std::io::stderr().is_terminal() && std::env::var_os("NO_COLOR").is_none();
    let lines = tracing_subscriber::fmt::layer().with_writer(std::io::stderr).with_ansi(terminal);
    let layer = match (log.format, journal) {
        (LogFormat::Json, _) => lines.json().flatten_event(true).boxed(),
        (LogFormat::Text, true) => lines.without_time().boxed(),
        (LogFormat::Text, false) => lines.boxed(),
    };
    // A second start in one process (a test) keeps the first.
    tracing_subscriber::registry().with(layer.with_filter(filter)).try_init().ok();
    Logging { level, file: file_of_stderr() }
}

fn file_of_stderr() -> Option<PathBuf> {
    let path = std::fs::read_link("/proc/self/fd/2").ok()?;
    let is_file = path.is_absolute() && path.symlink_metadata().ok()?.is_file();
    is_file.then_some(path)
}

/// Reports whether stderr is the journal: the variable names it by device and inode. Programs
/// inherit the variable even if their stderr is something else.
fn is_journal() -> bool {
    let Ok(named) = std::env::var("JOURNAL_STREAM") else { return false };
    rustix::fs::fstat(std::io::stderr())
        .is_ok_and(|about| named == format!("{}:{}", about.st_dev, about.st_ino))
}

/// Parses a level that the configuration has checked. Other crates are logged from `warn` up unless
/// they are named.
fn filter(level: &str) -> Targets {
    let mut targets = Targets::new().with_default(LevelFilter::WARN);
    for part in level.split(',') {
        let (target, level) = part.split_once('=').map_or((None, part), |(t, l)| (Some(t), l));
        let level = level.parse().unwrap_or(LevelFilter::INFO);
        if let Some(target) = target {
            targets = targets.with_target(target, level);
            continue;
        }
        targets = targets.with_default(level.min(LevelFilter::WARN));
        targets = OURS.iter().fold(targets, |all, ours| all.with_target(*ours, level));
    }
    targets
}

#[cfg(test)]
mod tests {
    use super::*;
    use tracing::Level;

    #[test]
    fn levels_apply_to_the_crates_they_name() {
        let info = filter("info");
        assert!(info.would_enable("hearthfs::sync", &Level::INFO));
        assert!(!info.would_enable("hearthfs::sync", &Level::DEBUG));
        assert!(!info.would_enable("hyper", &Level::INFO));
        assert!(info.would_enable("hyper", &Level::WARN));
        let pairs = filter("warn,hearthfs::sync=debug,hyper=trace");
        assert!(pairs.would_enable("hearthfs::sync::publisher", &Level::DEBUG));
        assert!(!pairs.would_enable("hearthfs::fs", &Level::INFO));
        assert!(pairs.would_enable("hyper", &Level::TRACE));
        assert!(!filter("off").would_enable("hyper", &Level::ERROR));
    }
}
