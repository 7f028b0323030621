//! `hearthfs gc`.

use std::io::{IsTerminal as _, Write as _};
use std::time::Duration;

use clap::Args;

use super::failure::{Failure, Outcome};
use super::json::json_pretty;
use super::output::{count, data, note};
use super::store::{Chosen, StoreOptions};
use super::wait;
use crate::config::{ByteSize, format_age, parse_duration};
use crate::daemon::{self, Collected, Collecting, Collection, Declared};

/// Options of `hearthfs gc`.
#[derive(Args, Clone, Debug)]
pub(super) struct GcCommand {
    #[command(flatten)]
    store: StoreOptions,

    /// Delete nothing, write nothing, and say what would be deleted
    #[arg(long)]
    dry_run: bool,

    /// How long to keep what nodes may rely on: with less than an hour, a mounted node can lose entries
    #[arg(long, value_name = "TIME", value_parser = parse_duration, hide = true)]
    hazardous_grace: Option<Duration>,

    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Runs the command.
pub(super) fn run(command: &GcCommand) -> Outcome<()> {
    let chosen = command.store.settings()?;
    let (dry_run, grace) = (command.dry_run, command.hazardous_grace);
    let asked = Collection { dry_run, told: chosen.expiry_by.is_some(), grace };
    let report = wait(async {
        let collector = daemon::collector(&chosen.settings, asked).await;
        let collector = collector.map_err(|error| Failure::at_start(&error))?;
        // Before anything uses the expiry.
        if let Some(text) = difference(collector.declared(), collector.expiry(), &chosen) {
            note(&format!("warning: {text}"));
        }
        let mut line = GcLine { on: std::io::stderr().is_terminal(), shown: false };
        Ok(collector.collect(|progress| line.show(progress)).await?)
    })?;
    if command.json {
        data(&json_pretty(&report)?)?;
    } else {
        data(&text(&report))?;
    }
    report.notes.iter().for_each(|line| note(&format!("note: {line}")));
    if report.failed.objects == 0 {
        return Ok(());
    }
    let failed = count(report.failed.objects, "object", "objects");
    Err(Failure::failed(format!("{failed} could not be deleted"))
        .hint("check that the credentials may delete; the next run tries again"))
}

/// Describes which of several expiries applies, if there is a difference.
fn difference(declared: Declared, counts: Option<Duration>, chosen: &Chosen) -> Option<String> {
    let url = chosen.settings.remote.url.as_ref()?;
    let (own, counts) = (format_age(chosen.settings.expiry.age), format_age(counts));
    match (declared, &chosen.expiry_by) {
        (Declared::Age(age), Some(by)) if age != chosen.settings.expiry.age => {
            let declared = format_age(age);
            let end = if counts == declared {
                "which is no longer, applies"
            } else {
                "the shorter, applies, and nodes that use the other lose what is deleted"
            };
            Some(format!(
                "{url} declares an expiry of {declared}, and {by} says {own}: {counts}, {end}"
            ))
        }
        (Declared::Unknown, None) => Some(format!(
            "{url} declares no expiry: {counts}, the default, applies; `hearthfs lifecycle apply {url} \
             --expiry {counts}` declares it"
        )),
        _ => None,
    }
}

/// Writes the report for people.
fn text(report: &Collected) -> String {
    use std::fmt::Write as _;
    // Writing to a string cannot fail.
    let mut out = format!("{:<13} {}\n", "expiry", report.expiry);
    let mut line = |verb: &str, objects: u64, bytes: u64, kind: &str, why: &str| {
        let size = ByteSize(bytes).human();
        writeln!(
            out,
            "{}",
            format!("{verb:<13} {objects:>9} {kind:<12} {size:>10}  {why}").trim_end()
        )
        .ok();
    };
    let verb = if report.dry_run { "would delete" } else { "deleted" };
    for one in &report.deleted {
        line(verb, one.tally.objects, one.tally.bytes, one.kind, one.why.text());
    }
    for (kind, kept) in &report.kept {
        line("kept", kept.objects, kept.bytes, kind, "");
    }
    if report.temporaries > 0 {
        line(verb, report.temporaries, 0, "temporaries", "of writers that died");
    }
    if report.foreign.objects > 0 {
        line("left alone", report.foreign.objects, report.foreign.bytes, "foreign", "not ours");
    }
    if report.failed.objects > 0 {
        line("failed", report.failed.objects, report.failed.bytes, "objects", "");
    }
    out
}

/// A line on the terminal that is rewritten; silent elsewhere.
struct GcLine {
    on: bool,
    shown: bool,
}

impl GcLine {
    fn show(&mut self, progress: Collecting) {
        if !self.on {
            return;
        }
        self.shown = true;
        let text = match progress {
            Collecting::Checkpoint => "reading checkpoints".to_owned(),
            Collecting::Log(done, all) => format!("reading the log: {done} of {all} commits"),
            Collecting::Objects(seen, deleted) => {
                format!("looking through {}, {deleted} to go", count(seen, "object", "objects"))
            }
        };
        write!(std::io::stderr().lock(), "\r\x1b[K{text}").ok();
    }
}

impl Drop for GcLine {
    fn drop(&mut self) {
        if self.shown {
            write!(std::io::stderr().lock(), "\r\x1b[K").ok();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::daemon::{CollectedRemoved, CollectedTally, CollectedWhy};

    #[test]
    fn a_report_is_one_line_for_each_kind_and_reason() {
        let tally = CollectedTally { objects: 12, bytes: 3 << 20 };
        let mut report = Collected {
            dry_run: true,
            expiry: "30d".to_owned(),
            foreign: tally,
            ..Collected::default()
        };
        let removed = CollectedRemoved { kind: "packs", why: CollectedWhy::Unused, tally };
        report.deleted.push(removed);
        report.kept.insert("commits", tally);
        let lines = text(&report);
        assert_eq!(lines.lines().count(), 4, "{lines}");
        for word in
            ["30d", "would delete", "used by no entry", "kept", "commits", "not ours", "3.0 MiB"]
        {
            assert!(lines.contains(word), "`{word}` is not in:\n{lines}");
        }
        report.dry_run = false;
        assert!(text(&report).contains("\ndeleted"), "{}", text(&report));
    }
}
