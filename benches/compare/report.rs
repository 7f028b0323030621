//! The figures, as Markdown for people and as JSON for scripts.

use std::fmt::Write as _;
use std::path::Path;

use anyhow::Result;
use serde_json::{Value, json};

/// A table of the report.
#[derive(Debug)]
pub(crate) struct Table {
    title: String,
    head: Vec<String>,
    rows: Vec<Vec<String>>,
}

impl Table {
    /// Starts a table.
    pub(crate) fn new(title: &str, head: Vec<String>) -> Self {
        Self { title: title.to_owned(), head, rows: Vec::new() }
    }

    /// Adds a row.
    pub(crate) fn row(&mut self, row: Vec<String>) {
        self.rows.push(row);
    }

    fn markdown(&self) -> String {
        let mut text = format!("### {}\n\n", self.title);
        let line = |cells: &[String]| format!("| {} |\n", cells.join(" | "));
        text.push_str(&line(&self.head));
        text.push_str(&line(&self.head.iter().map(|_| "---".to_owned()).collect::<Vec<_>>()));
        for row in &self.rows {
            text.push_str(&line(row));
        }
        text
    }
}

/// All results.
#[derive(Debug, Default)]
pub(crate) struct Report {
    text: String,
    rows: Vec<Value>,
    facts: Vec<(String, String)>,
}

impl Report {
    /// Adds a condition of the measurement.
    pub(crate) fn fact(&mut self, name: &str, value: impl Into<String>) {
        self.facts.push((name.to_owned(), value.into()));
    }

    /// Adds a line below the tables so far.
    pub(crate) fn note(&mut self, line: impl AsRef<str>) {
        let _ = writeln!(self.text, "- {}", line.as_ref());
    }

    /// Adds a table.
    pub(crate) fn table(&mut self, table: &Table) {
        let _ = write!(self.text, "\n{}\n", table.markdown());
    }

    /// Adds a machine-readable figure.
    pub(crate) fn row(&mut self, row: Value) {
        self.rows.push(row);
    }

    /// Returns the human-readable text.
    pub(crate) fn markdown(&self) -> String {
        let mut text = String::new();
        for (name, value) in &self.facts {
            let _ = writeln!(text, "- {name}: {value}");
        }
        text + "\n" + &self.text
    }

    /// Writes the machine-readable figures.
    pub(crate) fn write_json(&self, path: &Path) -> Result<()> {
        let facts: serde_json::Map<String, Value> =
            self.facts.iter().map(|(name, value)| (name.clone(), json!(value))).collect();
        let whole = json!({ "facts": facts, "rows": self.rows });
        Ok(std::fs::write(path, serde_json::to_vec_pretty(&whole)?)?)
    }
}

/// Formats microseconds with the significant digits.
pub(crate) fn micros(us: f64) -> String {
    match us {
        us if us < 10.0 => format!("{us:.2}"),
        us if us < 100.0 => format!("{us:.1}"),
        us => format!("{us:.0}"),
    }
}

/// Formats a ratio; bold if it misses its goal.
pub(crate) fn ratio(value: f64, goal: Option<f64>) -> String {
    match goal {
        // Less than half of the last digit shown is ignored.
        Some(goal) if value > goal + 0.005 => format!("**{value:.2}**"),
        _ => format!("{value:.2}"),
    }
}

/// Formats a value with its goal; bold if it misses the goal.
pub(crate) fn against(value: f64, goal: f64, unit: &str) -> (String, String) {
    let digits = if unit.is_empty() { 0 } else { 2 };
    let mark = if value > goal { "**" } else { "" };
    (format!("{mark}{value:.digits$}{mark}{unit}"), format!("{goal}{unit}"))
}
