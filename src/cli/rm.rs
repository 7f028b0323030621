//! `hearthfs rm`.
//!
//! Removes through the mount, as the user who runs it: the kernel and the daemon decide as for any
//! `unlink`, and each removal is a change that all nodes get.
//!
//! Owns the order: entry points of units go first, so that no reader finds the rest without them.
//! Must never remove anything that was not counted and confirmed by its pattern.

use std::io::{BufRead as _, IsTerminal as _, Write as _};
use std::os::unix::ffi::OsStrExt as _;
use std::path::PathBuf;

use clap::Args;
use rustix::fs::{AtFlags, FileType, unlinkat};
use rustix::io::Errno;
use serde::Serialize;

use super::escape::printed;
use super::failure::{Failure, Outcome};
use super::inside::{Hit, Query, SeenEntry, Silence, Troubles, Visit, Whole, walk};
use super::json::json_pretty;
use super::output::{ProgressLine, count, data, note};
use crate::config::{ByteSize, Surroundings};

/// Options of `hearthfs rm`.
#[derive(Args, Clone, Debug)]
pub(super) struct Remove {
    /// Paths and patterns of paths; a directory is removed with everything below it
    #[arg(value_name = "GLOB", required = true)]
    globs: Vec<PathBuf>,

    /// Do not ask
    #[arg(short, long)]
    yes: bool,

    /// Remove nothing, and show what would be removed
    #[arg(long)]
    dry_run: bool,

    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// The counts of found and removed names. `--json` prints it.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize)]
struct RmReport {
    /// Nothing was removed: the counts say what a run without `--dry-run` would remove.
    dry_run: bool,
    /// It affects all nodes: the mount sends its changes.
    all_nodes: bool,
    /// Files and links.
    files: u64,
    directories: u64,
    /// Bytes of the files.
    bytes: u64,
    /// Files of units that readers open first.
    entry_points: u64,
    /// Names that could not be examined or removed.
    failed: u64,
}

impl RmReport {
    fn is_empty(&self) -> bool {
        self.files + self.directories == 0
    }

    /// Describes the amount.
    fn what(&self) -> String {
        let files = count(self.files, "file", "files");
        let directories = match self.directories {
            0 => String::new(),
            number => format!(" and {}", count(number, "directory", "directories")),
        };
        format!("{files}{directories} ({})", ByteSize(self.bytes).human())
    }
}

/// Runs the command.
pub(super) fn run(command: &Remove) -> Outcome<()> {
    let query = Query::of(&Surroundings::of_process(), &command.globs, Whole::Itself)?;
    let mut counting = RmCount {
        query: &query,
        report: RmReport { dry_run: command.dry_run, all_nodes: true, ..RmReport::default() },
        silence: Silence::default(),
        troubles: Troubles::default(),
        progress: ProgressLine::new(),
    };
    walk(&query, &mut counting)?;
    let RmCount { mut report, troubles, progress, .. } = counting;
    drop(progress);
    report.failed = troubles.count();
    if report.is_empty() || command.dry_run {
        return tell(command, &report, if report.is_empty() { "nothing matches" } else { "" });
    }
    let question = format!(
        "remove {} below {} from {}?",
        report.what(),
        printed(query.point.as_os_str().as_bytes()),
        if report.all_nodes { "all nodes" } else { "this node only" }
    );
    if !command.yes {
        confirm(&question)?;
    }
    let report = remove(&query, &report)?;
    let more = "`hearthfs drain` waits until the store has the removals; other nodes then follow";
    tell(command, &report, if report.all_nodes { more } else { "" })
}

/// Removes the matches: first the entry points of units, if there are any, then the rest.
fn remove(query: &Query, counted: &RmReport) -> Outcome<RmReport> {
    let mut removing = Removing {
        query,
        entries_only: true,
        report: RmReport { all_nodes: counted.all_nodes, ..RmReport::default() },
        silence: Silence::default(),
        troubles: Troubles::default(),
        progress: ProgressLine::new(),
        wanted: counted.files + counted.directories,
    };
    if counted.entry_points > 0 {
        walk(query, &mut removing)?;
    }
    removing.entries_only = false;
    // A name without a wildcard may be gone by now.
    let walked = walk(query, &mut removing);
    if removing.report.is_empty() {
        walked?;
    }
    let Removing { report, troubles, .. } = removing;
    Ok(RmReport { failed: troubles.count(), ..report })
}

/// Prints the result, and fails if something could not be removed.
fn tell(command: &Remove, report: &RmReport, more: &str) -> Outcome<()> {
    if command.json {
        data(&json_pretty(report)?)?;
    } else if !report.is_empty() {
        let did = if command.dry_run { "would remove" } else { "removed" };
        data(&format!("{did} {}\n", report.what()))?;
    }
    if !more.is_empty() && report.failed == 0 {
        note(more);
    }
    match report.failed {
        0 => Ok(()),
        failed => {
            let names = count(failed, "name", "names");
            let text = format!("{names} could not be looked at or removed");
            Err(Failure::failed(text)
                .hint("removing needs write permission on the directory, as with rm"))
        }
    }
}

/// Asks on the terminal; anything but a yes is a no.
fn confirm(question: &str) -> Outcome<()> {
    let no = || Failure::refused("nothing was removed");
    if !std::io::stdin().is_terminal() {
        return Err(Failure::refused(format!("{question} There is no terminal to ask on")).hint(
            "add --yes to continue without a question, or --dry-run to see what would be removed",
        ));
    }
    write!(std::io::stderr().lock(), "{question} [y/N] ").ok();
    let mut answer = String::new();
    std::io::stdin().lock().read_line(&mut answer).map_err(|_| no())?;
    if is_yes(&answer) { Ok(()) } else { Err(no()) }
}

fn is_yes(answer: &str) -> bool {
    matches!(answer.trim().to_ascii_lowercase().as_str(), "y" | "yes")
}

/// Counts what would be removed.
struct RmCount<'a> {
    query: &'a Query,
    report: RmReport,
    silence: Silence,
    troubles: Troubles,
    progress: ProgressLine,
}

impl Visit for RmCount<'_> {
    fn takes_all_below(&self) -> bool {
        true
    }

    fn found(&mut self, hit: &Hit<'_>) -> Outcome<()> {
        if hit.kind == FileType::Directory {
            self.report.directories += 1;
            return Ok(());
        }
        match SeenEntry::look(hit.dir, hit.name, &self.silence) {
            Ok(entry) => {
                self.report.files += 1;
                self.report.bytes += entry.size().unwrap_or(0);
                self.report.entry_points += u64::from(is_entry(&entry));
                self.report.all_nodes &= entry.facts.is_none_or(|facts| facts.shared);
            }
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
            Err(error) => self.troubles.add(&self.query.shown(hit.below), &error),
        }
        let files = self.report.files;
        self.progress.say(|| format!("{files} files found"));
        Ok(())
    }

    fn troubles(&mut self) -> &mut Troubles {
        &mut self.troubles
    }
}

fn is_entry(entry: &SeenEntry) -> bool {
    entry.facts.as_ref().is_some_and(|facts| facts.is_entry)
}

/// The removal.
struct Removing<'a> {
    query: &'a Query,
    /// Only the entry points of units are removed.
    entries_only: bool,
    report: RmReport,
    silence: Silence,
    troubles: Troubles,
    progress: ProgressLine,
    wanted: u64,
}

impl Visit for Removing<'_> {
    fn takes_all_below(&self) -> bool {
        true
    }

    fn found(&mut self, hit: &Hit<'_>) -> Outcome<()> {
        if hit.kind == FileType::Directory {
            return Ok(());
        }
        let entry = SeenEntry::look(hit.dir, hit.name, &self.silence);
        if self.entries_only && !entry.as_ref().is_ok_and(is_entry) {
            return Ok(());
        }
        if self.unlink(hit, AtFlags::empty()) {
            self.report.files += 1;
            let entry = entry.ok();
            self.report.bytes += entry.as_ref().and_then(SeenEntry::size).unwrap_or(0);
            self.report.entry_points += u64::from(entry.as_ref().is_some_and(is_entry));
        }
        let (done, wanted) = (self.report.files + self.report.directories, self.wanted);
        self.progress.say(|| format!("{done} of {wanted} removed"));
        Ok(())
    }

    fn left(&mut self, hit: &Hit<'_>) -> Outcome<()> {
        if !self.entries_only && self.unlink(hit, AtFlags::REMOVEDIR) {
            self.report.directories += 1;
        }
        Ok(())
    }

    fn troubles(&mut self) -> &mut Troubles {
        &mut self.troubles
    }
}

impl Removing<'_> {
    fn unlink(&mut self, hit: &Hit<'_>, how: AtFlags) -> bool {
        match unlinkat(hit.dir, hit.name, how) {
            Ok(()) => true,
            // Another process was faster.
            Err(Errno::NOENT) => false,
            Err(error) => {
                // Failures of the first walk are retried and reported in the second.
                if !self.entries_only {
                    self.troubles.add(&self.query.shown(hit.below), &error);
                }
                false
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_yes_is_a_yes() {
        for (answer, yes) in [
            ("y\n", true),
            ("Yes\n", true),
            ("\n", false),
            ("no\n", false),
            ("", false),
            ("yy\n", false),
        ] {
            assert_eq!(is_yes(answer), yes, "{answer:?}");
        }
    }

    #[test]
    fn a_report_says_how_much() {
        let mut report = RmReport { files: 1, bytes: 2048, ..RmReport::default() };
        assert_eq!(report.what(), "1 file (2.0 KiB)");
        (report.files, report.directories) = (3, 1);
        assert_eq!(report.what(), "3 files and 1 directory (2.0 KiB)");
    }
}
