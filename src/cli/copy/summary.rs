//! The messages about a copy: its progress, its summary, its failure.
//!
//! Owns the words. Must never decide anything.

use std::fmt::Write as _;
use std::time::Duration;

use super::report::CopyReport;
use super::tree::Trees;
use super::turn::ImportTurn;
use super::{CopyPlan, Way, copy};
use crate::cli::failure::{Failure, Outcome};
use crate::cli::json::json_pretty;
use crate::cli::output::{ProgressLine, count, data, note, time};
use crate::config::ByteSize;

/// The interval between progress messages where stderr is not a terminal.
const TOLD_EVERY: Duration = Duration::from_secs(5);

/// Runs a copy and prints its messages. Fails if something could not be copied.
pub(in crate::cli) fn copy_and_tell(
    plan: CopyPlan,
    trees: Trees,
    turn: Option<&ImportTurn>,
    json: bool,
) -> Outcome<()> {
    let way = plan.way;
    let mut progress = ProgressLine::telling_every(TOLD_EVERY);
    let copied = copy(plan, trees, turn, |report| progress.say(|| so_far(way, report)));
    drop(progress);
    let report =
        copied.map_err(|error| Failure::failed(format!("start the threads that copy: {error}")))?;
    if json {
        data(&json_pretty(&report)?)?;
    } else {
        data(&text(way, &report))?;
    }
    for path in &report.incomplete {
        note(&format!("note: left out, because its unit is incomplete: {path}"));
    }
    for warning in &report.warnings {
        note(&format!("warning: {}: {}", warning.title, warning.text));
    }
    for failed in &report.failures {
        note(&format!("failed: {}: {}", failed.path, failed.reason));
    }
    end(way, &report)
}

fn so_far(way: Way, report: &CopyReport) -> String {
    let mut text = format!("{}: {}", way.doing(), wrote(report));
    let passed = report.same + report.kept;
    if passed > 0 {
        write!(text, ", {passed} there already").ok();
    }
    if report.failed > 0 {
        write!(text, ", {} failed", report.failed).ok();
    }
    text
}

fn wrote(report: &CopyReport) -> String {
    let mut text = count(report.files, "file", "files");
    write!(text, ", {}", ByteSize(report.bytes).human()).ok();
    if report.units > 0 {
        write!(text, ", {}", count(report.units, "unit", "units")).ok();
    }
    text
}

/// Writes the summary for people. Writing to a string cannot fail.
fn text(way: Way, report: &CopyReport) -> String {
    let done = match (way, report.dry_run) {
        (Way::Import, false) => "imported",
        (Way::Import, true) => "would import",
        (Way::Export, false) => "exported",
        (Way::Export, true) => "would export",
    };
    let mut out = String::new();
    let mut line = |label: &str, what: &str| {
        writeln!(out, "{label:<13} {what}").ok();
    };
    line(done, &format!("{} in {}", wrote(report), time(report.elapsed_ms)));
    if report.same > 0 {
        line("there already", &count(report.same, "file", "files"));
    }
    if report.kept > 0 {
        let files = count(report.kept, "file", "files");
        line(
            "kept",
            &format!("{files} that differ in {}; --overwrite replaces them", report.ends.to),
        );
    }
    for (why, files) in &report.left_out {
        let what = match *why {
            "temporary" => "temporary: a program was writing them",
            "node_local" => "that belong to one node (statistics, lock files)",
            "lock" => "locks",
            "incomplete" => "of incomplete units",
            _ => "neither files, directories nor symbolic links",
        };
        line("left out", &format!("{files} {what}"));
    }
    if report.failed > 0 {
        line("failed", &report.failed.to_string());
    }
    out
}

fn end(way: Way, report: &CopyReport) -> Outcome<()> {
    let what = match way {
        Way::Import => "imported",
        Way::Export => "exported",
    };
    let again = "run the same command again to continue: it skips what is already there";
    if let Some(why) = &report.ended {
        return Err(
            Failure::failed(format!("aborted, not everything was {what}: {why}")).hint(again)
        );
    }
    if report.failed > 0 {
        let failed = count(report.failed, "file or directory", "files and directories");
        let text = format!("{failed} could not be {what}; the others were");
        return Err(Failure::failed(text).hint(again));
    }
    if report.unmatched.is_empty() {
        return Ok(());
    }
    let globs = report.unmatched.join(", ");
    Err(Failure::failed(format!("nothing below {} matches {globs}", report.ends.from))
        .hint("a GLOB is relative to DIR; `hearthfs export --help` explains it"))
}

#[cfg(test)]
mod tests {
    use super::super::report::NotCopied;
    use super::*;

    #[test]
    fn a_summary_says_all_there_is() {
        let mut report =
            CopyReport { files: 12, bytes: 3 << 20, units: 2, ..CopyReport::default() };
        report.ends.to = "/mnt/cache/triton".to_owned();
        assert!(end(Way::Import, &report).is_ok());
        assert_eq!(
            text(Way::Import, &report),
            "imported      12 files, 3.0 MiB, 2 units in 0.0 s\n"
        );
        report.left_out.insert("lock", 1);
        (report.same, report.kept, report.failed) = (3, 4, 5);
        report.failures.push(NotCopied { path: "/a".to_owned(), reason: "why".to_owned() });
        let lines = text(Way::Export, &report);
        for word in ["exported", "there already", "4 files that differ", "1 locks", "failed"] {
            assert!(lines.contains(word), "`{word}` is not in:\n{lines}");
        }
        let said = so_far(Way::Import, &report);
        assert_eq!(said, "importing: 12 files, 3.0 MiB, 2 units, 7 there already, 5 failed");
        let unmatched = vec!["a/*".to_owned(), "b".to_owned()];
        let mut none = CopyReport { unmatched, ..CopyReport::default() };
        none.ends.from = "/mnt".to_owned();
        let failure = end(Way::Export, &none).expect_err("nothing matches").text();
        assert!(failure.contains("nothing below /mnt matches a/*, b"), "{failure}");
        let failure = end(Way::Import, &report).expect_err("some files failed").text();
        assert!(failure.contains("5 files and directories could not be imported"), "{failure}");
    }
}
