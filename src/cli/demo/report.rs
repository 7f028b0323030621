//! The results of each node, as a table, and the verdict.

use std::path::Path;

use super::clients::ClientRun;
use super::process::Stop;
use super::world::DemoNode;
use crate::cli::failure::{Failure, Outcome};

const HEAD: [&str; 8] = [
    "node",
    "seconds",
    "cache hits",
    "cache misses",
    "files",
    "bytes",
    "fetched",
    "remote requests",
];

/// The line of one node.
#[derive(Debug)]
pub(super) struct Row([String; 8]);

impl Row {
    /// Asks a node for its counts.
    pub(super) fn of(node: &DemoNode<'_>, run: &ClientRun) -> Outcome<Self> {
        let status = node.status(&Stop::never())?;
        let counters = &status["counters"];
        let fetched = counters["fetched"].as_u64();
        let requests = counters["requests"].as_object();
        let (Some(fetched), Some(requests)) = (fetched, requests) else {
            return Err(Failure::failed(format!("status --json lacks its counters: {status}")));
        };
        let mut kinds: Vec<String> =
            requests.iter().map(|(kind, count)| format!("{count} {kind}")).collect();
        kinds.sort();
        let total: u64 = requests.values().filter_map(serde_json::Value::as_u64).sum();
        let (mut files, mut bytes) = (0, 0);
        count_files(&node.point, &mut files, &mut bytes)
            .map_err(|error| Failure::failed(format!("cannot list {}: {error}", node.name)))?;
        Ok(Self([
            node.name.to_owned(),
            format!("{:.2}", run.seconds),
            run.hits.to_string(),
            run.misses.to_string(),
            files.to_string(),
            bytes.to_string(),
            fetched.to_string(),
            format!("{total} ({})", kinds.join(", ")),
        ]))
    }
}

/// Counts the files that a mount shows, and their bytes.
fn count_files(dir: &Path, files: &mut u64, bytes: &mut u64) -> std::io::Result<()> {
    for entry in std::fs::read_dir(dir)? {
        let entry = entry?;
        let data = entry.metadata()?;
        if data.is_dir() {
            count_files(&entry.path(), files, bytes)?;
        } else {
            *files += 1;
            *bytes += data.len();
        }
    }
    Ok(())
}

/// Formats the lines in columns.
pub(super) fn table(rows: &[Row]) -> String {
    let head = HEAD.map(str::to_owned);
    let lines: Vec<&[String; 8]> =
        std::iter::once(&head).chain(rows.iter().map(|r| &r.0)).collect();
    let width = |column: usize| lines.iter().map(|line| line[column].len()).max().unwrap_or(0);
    let mut text = String::new();
    for line in &lines {
        let cells: Vec<String> = line
            .iter()
            .enumerate()
            .map(|(column, cell)| match column {
                0 | 7 => format!("{cell:<width$}", width = width(column)),
                _ => format!("{cell:>width$}", width = width(column)),
            })
            .collect();
        text.push_str(cells.join("  ").trim_end());
        text.push('\n');
    }
    text
}

/// The result of the demonstration.
#[derive(Debug)]
pub(super) struct DemoVerdict {
    pub(super) text: String,
    pub(super) good: bool,
}

/// Decides whether the second node took everything from the first.
pub(super) fn verdict(noun: &str, cold: &ClientRun, warm: &ClientRun) -> DemoVerdict {
    let all = warm.hits + warm.misses;
    let (text, good) = if cold.answer != warm.answer {
        let text = format!("the results differ: {} and {}", cold.answer.trim(), warm.answer.trim());
        (text, false)
    } else if cold.misses == 0 {
        (format!("node A compiled nothing, so the demo shows nothing: {} hits", cold.hits), false)
    } else if warm.misses > 0 || all == 0 {
        (format!("node B compiled {} of {all} {noun} itself", warm.misses), false)
    } else {
        (format!("node B compiled nothing: {} of {all} {noun} came from node A", warm.hits), true)
    };
    DemoVerdict { text, good }
}
