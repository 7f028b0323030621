//! `hearthfs profiles`.

use std::fmt::Write as _;
use std::path::PathBuf;

use clap::Args;
use serde::Serialize;

use super::failure::{Failure, Outcome};
use super::json::json_pretty;
use super::output::{data, note};
use crate::config::{self, Flags, Surroundings, nearest};
use crate::namespace::{Pattern, Profile, Profiles, Rule, RuleKind, Unless};

/// Options of `hearthfs profiles`.
#[derive(Args, Clone, Debug)]
pub(super) struct ProfilesCommand {
    /// One client, such as ccache; all if left out
    name: Option<String>,

    /// Print JSON
    #[arg(long)]
    json: bool,

    /// The configuration file [env: HEARTHFS_CONFIG]
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
}

/// What `--json` prints.
#[derive(Serialize)]
struct ProfilesJson<'a> {
    profiles: Vec<&'a Profile>,
    kinds: Vec<KindSaid>,
}

/// A kind, and its meaning.
#[derive(Serialize)]
struct KindSaid {
    kind: RuleKind,
    meaning: &'static str,
}

/// Runs the command.
pub(super) fn run(command: &ProfilesCommand) -> Outcome<()> {
    let flags = Flags { file: command.config.clone(), values: Vec::new() };
    let loaded = config::load(&flags, &Surroundings::of_process(), None)?;
    for warning in &loaded.warnings {
        note(&format!("warning: {warning}"));
    }
    let all = &loaded.settings.profiles;
    let chosen: Vec<&Profile> = match &command.name {
        Some(name) => vec![all.get(name).ok_or_else(|| no_such(all, name))?],
        None => all.all().iter().collect(),
    };
    let text = match (command.json, &command.name) {
        (true, _) => json(chosen)?,
        (false, None) => table(&chosen),
        (false, Some(_)) => chosen.into_iter().map(at_length).collect(),
    };
    data(&text)
}

fn no_such(all: &Profiles, name: &str) -> Failure {
    let failure = Failure::refused(format!("there is no profile {name:?}"));
    let names: Vec<&str> = all.all().iter().map(|profile| profile.name.as_str()).collect();
    match nearest(name, names.iter().copied()) {
        Some(meant) => failure.hint(format!("did you mean {meant}?")),
        None => failure.hint(format!("there are {}", names.join(", "))),
    }
}

fn json(profiles: Vec<&Profile>) -> Outcome<String> {
    let kinds = RuleKind::ALL.map(|kind| KindSaid { kind, meaning: kind.meaning() });
    json_pretty(&ProfilesJson { profiles, kinds: kinds.into() })
}

/// Writes a line for each profile. Writing to a string cannot fail.
fn table(profiles: &[&Profile]) -> String {
    let mut text = format!("{:<18} {:<18} {:<32} KINDS\n", "NAME", "DIRECTORY", "VARIABLE");
    for profile in profiles {
        let mut kinds: Vec<RuleKind> = profile.rules.iter().map(|rule| rule.kind).collect();
        kinds.sort_unstable();
        kinds.dedup();
        let kinds: Vec<&str> = kinds.into_iter().map(RuleKind::word).collect();
        let dash = |text: &str| if text.is_empty() { "-".to_owned() } else { text.to_owned() };
        let variable = profile.variables.last().map(String::as_str).unwrap_or_default();
        let (dir, variable) = (dash(&profile.dir), dash(variable));
        let kinds = dash(&kinds.join(" "));
        writeln!(text, "{:<18} {dir:<18} {variable:<32} {kinds}", profile.name).ok();
    }
    text
}

/// Writes everything that is known about one client.
fn at_length(profile: &Profile) -> String {
    let mut text = format!("{}: {}\n", profile.name, profile.title);
    let mut line = |label: &str, what: &str| {
        writeln!(text, "  {label:<12} {what}").ok();
    };
    for variable in &profile.variables {
        line("variable", &format!("{variable}=MOUNT/{}", profile.dir));
    }
    for Unless { variable, holds } in &profile.unless {
        let holds = if holds.is_empty() { String::new() } else { format!(" and holds {holds}") };
        line("unless", &format!("{variable} is set{holds}"));
    }
    for (name, value) in &profile.settings {
        line("also set", &format!("{name}={value}"));
    }
    for (name, value) in &profile.short_compiles {
        line("on demand", &format!("{name}={value} (run.cache_short_compiles)"));
    }
    if profile.needs_dir {
        line("directory", "made by `run`, because the program does not");
    }
    if !profile.dir.is_empty() {
        line("known in", &profile.dir);
    }
    for root in &profile.also {
        line("known in", root.text());
    }
    for rule in &profile.rules {
        line(rule.kind.word(), &rule_line(rule));
    }
    for pattern in &profile.program {
        line("program", &format!("{{stem}} of {pattern}, whatever the key"));
    }
    if !profile.how.is_empty() {
        line("how", &profile.how);
    }
    if !profile.import.is_empty() {
        line("import", &profile.import);
    }
    for note in &profile.notes {
        line("note", note);
    }
    text
}

/// Writes one rule: its names, their kind, and whether the program acts on it.
fn rule_line(rule: &Rule) -> String {
    let mut text = rule.names.iter().map(Pattern::text).collect::<Vec<_>>().join(" ");
    if let Some(dir) = &rule.inside {
        write!(text, " in {dir}").ok();
    }
    for (role, pattern) in [("entry", &rule.entry), ("marker", &rule.marker)] {
        if let Some(pattern) = pattern {
            write!(text, "; {role} {pattern}").ok();
        }
    }
    if !rule.what.is_empty() {
        write!(text, ": {}", rule.what).ok();
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_profile_is_shown() {
        let shipped = Profiles::default();
        let all: Vec<&Profile> = shipped.all().iter().collect();
        let table = table(&all);
        for profile in &all {
            assert!(table.contains(&format!("\n{} ", profile.name)), "{table}");
        }
        assert!(table.contains("TRITON_CACHE_DIR"));
        let said: serde_json::Value =
            serde_json::from_str(&json(all).expect("JSON")).expect("JSON");
        assert_eq!(said["profiles"].as_array().map(Vec::len), Some(shipped.all().len()));
        assert_eq!(said["kinds"][5]["kind"], "unit");
    }

    #[test]
    fn a_profile_at_length_says_all_of_it() {
        let shipped = Profiles::default();
        let text = at_length(shipped.get("neuron").expect("a known profile"));
        for word in [
            "NEURON_COMPILE_CACHE_URL=MOUNT/neuron",
            "NEURON_CC_FLAGS is set and holds --cache_dir",
            "known in     neuron",
            "marker model.done",
            "clear-locks",
        ] {
            assert!(text.contains(word), "`{word}` is not in:\n{text}");
        }
        assert!(no_such(&shipped, "ccahce").text().contains("did you mean ccache"));
        assert!(no_such(&shipped, "zebra").text().contains("there are bazel, ccache"));
    }
}
