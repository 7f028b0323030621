//! `hearthfs du`.

use std::collections::{BTreeMap, HashSet};
use std::path::PathBuf;

use clap::{Args, ValueEnum};
use rustix::fs::FileType;
use serde::Serialize;

use super::escape::printed;
use super::failure::Outcome;
use super::inside::{Hit, Query, SeenEntry, Silence, Troubles, Visit, Whole, walk};
use super::json::json_pretty;
use super::ls::node;
use super::output::{ProgressLine, data, note};
use crate::config::{ByteSize, Surroundings};
use crate::namespace::BytesPlace;

/// The most rows. One further row counts the rest.
const ROWS_MAX: usize = 10_000;
/// The most files with several names that are tracked, so that each is counted once.
const LINKED_MAX: usize = 1_000_000;
/// The row for everything without a row of its own.
const OTHERS: &str = "(others)";

/// Options of `hearthfs du`.
#[derive(Args, Clone, Debug)]
pub(super) struct DuCommand {
    /// Paths and patterns of paths; without any, the current directory or the only mount
    #[arg(value_name = "GLOB")]
    globs: Vec<PathBuf>,

    /// What gets a row
    #[arg(long, value_enum, default_value = "dir")]
    by: By,

    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// What has a row of its own.
#[derive(ValueEnum, Clone, Copy, PartialEq, Eq, Debug)]
enum By {
    /// Each directory on the first level at which there are several, and the files beside them
    Dir,
    /// Each client
    Client,
    /// Each node that has written something
    Node,
}

/// The sums of one row.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize)]
struct RowSum {
    /// Regular files; each group of hard links counts once.
    files: u64,
    /// Their bytes.
    bytes: u64,
    /// Of these, bytes that are on this node.
    local_bytes: u64,
    /// Files whose location is unknown.
    untold: u64,
}

impl RowSum {
    fn add(&mut self, other: Self) {
        self.files += other.files;
        self.bytes += other.bytes;
        self.local_bytes += other.local_bytes;
        self.untold += other.untold;
    }
}

/// What `--json` prints.
#[derive(Debug, Serialize)]
struct DuJson {
    total: RowSum,
    rows: Vec<DuRow>,
}

#[derive(Debug, Serialize)]
struct DuRow {
    name: String,
    #[serde(flatten)]
    sum: RowSum,
}

/// The state of the count.
struct DuCount<'a> {
    query: &'a Query,
    by: By,
    /// How many names of a path identify its row.
    depth: usize,
    rows: BTreeMap<String, RowSum>,
    total: RowSum,
    linked: HashSet<u64>,
    silence: Silence,
    troubles: Troubles,
    progress: ProgressLine,
}

/// Runs the command.
pub(super) fn run(command: &DuCommand) -> Outcome<()> {
    let around = Surroundings::of_process();
    let query = Query::of(&around, &command.globs, Whole::Below)?;
    let mut counting = DuCount {
        query: &query,
        by: command.by,
        depth: query.known_names() + 1,
        rows: BTreeMap::new(),
        total: RowSum::default(),
        linked: HashSet::new(),
        silence: Silence::default(),
        troubles: Troubles::default(),
        progress: ProgressLine::new(),
    };
    let found = walk(&query, &mut counting)?;
    let DuCount { rows, total, troubles, progress, .. } = counting;
    drop(progress);
    if !found && query.has_wildcards && troubles.count() == 0 {
        note("nothing matches");
    }
    let mut rows: Vec<DuRow> = rows.into_iter().map(|(name, sum)| DuRow { name, sum }).collect();
    rows.sort_by(|a, b| b.sum.bytes.cmp(&a.sum.bytes).then_with(|| a.name.cmp(&b.name)));
    let report = DuJson { total, rows };
    data(&if command.json { json_pretty(&report)? } else { table(&report) })?;
    troubles.outcome("could not be looked at")
}

impl Visit for DuCount<'_> {
    fn takes_all_below(&self) -> bool {
        true
    }

    fn found(&mut self, hit: &Hit<'_>) -> Outcome<()> {
        if hit.kind != FileType::RegularFile {
            return Ok(());
        }
        match SeenEntry::look(hit.dir, hit.name, &self.silence) {
            Ok(entry) => self.count(hit, &entry),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
            Err(error) => self.troubles.add(&self.query.shown(hit.below), &error),
        }
        Ok(())
    }

    fn troubles(&mut self) -> &mut Troubles {
        &mut self.troubles
    }
}

impl DuCount<'_> {
    fn count(&mut self, hit: &Hit<'_>, entry: &SeenEntry) {
        let is_linked = entry.names() > 1 && self.linked.len() < LINKED_MAX;
        if is_linked && !self.linked.insert(entry.stat.st_ino) {
            return;
        }
        let bytes = entry.size().unwrap_or(0);
        let place = entry.facts.as_ref().and_then(|facts| facts.bytes);
        let is_local = matches!(place, Some(BytesPlace::Local | BytesPlace::Writing));
        let local_bytes = if is_local { bytes } else { 0 };
        let one = RowSum { files: 1, bytes, local_bytes, untold: u64::from(place.is_none()) };
        self.total.add(one);
        let mut name = self.name(hit, entry);
        if self.rows.len() >= ROWS_MAX && !self.rows.contains_key(&name) {
            OTHERS.clone_into(&mut name);
        }
        self.rows.entry(name).or_default().add(one);
        let total = self.total;
        self.progress.say(|| format!("{} files, {}", total.files, ByteSize(total.bytes).human()));
    }

    /// Returns the row of a file.
    fn name(&self, hit: &Hit<'_>, entry: &SeenEntry) -> String {
        let facts = entry.facts.as_ref();
        match self.by {
            By::Client => {
                facts.and_then(|facts| facts.client.clone()).unwrap_or_else(|| "(none)".to_owned())
            }
            By::Node => facts.and_then(node).unwrap_or_else(|| "(unknown)".to_owned()),
            By::Dir => {
                let slashes = hit.below.iter().enumerate().filter(|(_, byte)| **byte == b'/');
                let end = slashes.map(|(at, _)| at).nth(self.depth - 1);
                end.map_or_else(|| "(files)".to_owned(), |end| printed(&hit.below[..end]) + "/")
            }
        }
    }
}

/// Writes a line for each row, the largest first, and a total.
fn table(report: &DuJson) -> String {
    let line = |sum: &RowSum, name: &str| {
        let human = |bytes| ByteSize(bytes).human();
        let local = if sum.untold == sum.files && sum.files > 0 {
            "-".to_owned()
        } else {
            human(sum.local_bytes)
        };
        format!("{:>10} {local:>10} {:>9} {name}\n", human(sum.bytes), sum.files)
    };
    let mut text = format!("{:>10} {:>10} {:>9} NAME\n", "SIZE", "LOCAL", "FILES");
    text.extend(report.rows.iter().map(|row| line(&row.sum, &row.name)));
    text + &line(&report.total, "total")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_has_the_largest_first_and_the_total_last() {
        let sum = |bytes, untold| RowSum { files: 2, bytes, local_bytes: bytes / 2, untold };
        let row =
            |name: &str, bytes, untold| DuRow { name: name.to_owned(), sum: sum(bytes, untold) };
        let report = DuJson {
            total: sum(3072, 2),
            rows: vec![row("triton/", 2048, 0), row("private/", 1024, 2)],
        };
        let wanted = "      SIZE      LOCAL     FILES NAME\n   \
                      2.0 KiB    1.0 KiB         2 triton/\n   \
                      1.0 KiB          -         2 private/\n   \
                      3.0 KiB          -         2 total\n";
        assert_eq!(table(&report), wanted);
        let said = serde_json::to_value(&report).expect("JSON");
        assert_eq!(said["rows"][0]["name"], "triton/");
        assert_eq!(said["rows"][0]["local_bytes"], 1024);
    }
}
