//! Where log lines go and what they look like.
//!
//! Owns the one subscriber of the process. Must never write to stdout.

use std::io::IsTerminal as _;

use tracing::level_filters::LevelFilter;
use tracing_subscriber::filter::Targets;
use tracing_subscriber::prelude::*;

use crate::config::{Log, LogFormat};

/// Our own crates; a level without a target is theirs.
const OURS: [&str; 2] = ["hearthfs", "hearthfs_mount"];

/// Starts logging to stderr. The journal stamps lines itself, so they carry no time there.
pub(super) fn start(log: &Log) {
    let filter = filter(&log.level);
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
}

/// Reports whether stderr is the journal: the variable names it by device and inode, and is inherited
/// by programs whose stderr is something else.
fn is_journal() -> bool {
    let Ok(named) = std::env::var("JOURNAL_STREAM") else { return false };
    rustix::fs::fstat(std::io::stderr())
        .is_ok_and(|about| named == format!("{}:{}", about.st_dev, about.st_ino))
}

/// Reads a level as the configuration has checked it. Other crates are heard from `warn` up unless
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
    fn levels_apply_to_whom_they_name() {
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
