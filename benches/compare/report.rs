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
    /// Begins a table.
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

/// All that was found out.
#[derive(Debug, Default)]
pub(crate) struct Report {
    text: String,
    rows: Vec<Value>,
    facts: Vec<(String, String)>,
}

impl Report {
    /// Adds what the figures depend on.
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

    /// Adds a figure for scripts.
    pub(crate) fn row(&mut self, row: Value) {
        self.rows.push(row);
    }

    /// Returns the text for people.
    pub(crate) fn markdown(&self) -> String {
        let mut text = String::new();
        for (name, value) in &self.facts {
            let _ = writeln!(text, "- {name}: {value}");
        }
        text + "\n" + &self.text
    }

    /// Writes the figures for scripts.
    pub(crate) fn write_json(&self, path: &Path) -> Result<()> {
        let facts: serde_json::Map<String, Value> =
            self.facts.iter().map(|(name, value)| (name.clone(), json!(value))).collect();
        let whole = json!({ "facts": facts, "rows": self.rows });
        Ok(std::fs::write(path, serde_json::to_vec_pretty(&whole)?)?)
    }
}

/// Writes microseconds with as many digits as they mean.
pub(crate) fn micros(us: f64) -> String {
    match us {
        us if us < 10.0 => format!("{us:.2}"),
        us if us < 100.0 => format!("{us:.1}"),
        us => format!("{us:.0}"),
    }
}

/// Writes a ratio; bold when it misses its goal.
pub(crate) fn ratio(value: f64, goal: Option<f64>) -> String {
    match goal {
        // Half a hundredth is below what is shown.
        Some(goal) if value > goal + 0.005 => format!("**{value:.2}**"),
        _ => format!("{value:.2}"),
    }
}

/// Writes a value with its goal; bold when it misses it.
pub(crate) fn against(value: f64, goal: f64, unit: &str) -> (String, String) {
    let digits = if unit.is_empty() { 0 } else { 2 };
    let mark = if value > goal { "**" } else { "" };
    (format!("{mark}{value:.digits$}{mark}{unit}"), format!("{goal}{unit}"))
}
