//! Which rooms may use which, as tables, and the check of one file against them.

use std::collections::BTreeSet;

use crate::paths::{Named, named};
use crate::scan::{Word, words};

/// The most lines of code in one file; comments, blank lines and tests do not count.
pub(crate) const CODE_LINES_MAX: usize = 500;

/// Rooms that all others may use. They use none of each other except as the table says.
const LEAVES: &[&str] =
    &["clock", "config", "digest", "error", "hashing", "metrics", "name", "stamp", "task"];

/// Each room with the other rooms that it may use.
const ROOMS: &[(&str, &[&[&str]])] = &[
    ("clock", &[]),
    ("digest", &[]),
    ("error", &[]),
    ("hashing", &[]),
    ("metrics", &[]),
    ("name", &[]),
    ("stamp", &[]),
    ("task", &[]),
    // The configuration may define clients, which the namespace checks.
    ("config", &[&["namespace"]]),
    // Pure: it reads no clock, spawns nothing and draws no random numbers.
    ("namespace", &[&["digest", "error", "hashing", "name", "stamp"]]),
    ("local", &[LEAVES, &["namespace"]]),
    ("remote", &[LEAVES, &["namespace"]]),
    ("sync", &[LEAVES, &["namespace", "local", "remote"]]),
    ("fs", &[LEAVES, &["namespace", "local", "sync"]]),
    // The socket and its messages; a trait that the daemon implements does the work.
    ("control", &[LEAVES]),
    // A trait that the daemon implements provides the figures.
    ("monitor", &[LEAVES, &["control"]]),
    ("daemon", &[LEAVES, &["namespace", "local", "remote", "sync", "fs", "control", "monitor"]]),
    ("cli", &[LEAVES, &["namespace", "daemon", "control"]]),
];

/// Crates that may be named only in some places.
const CRATES: &[(&str, &[&str])] = &[
    ("anyhow", &["src/main.rs", "src/cli"]),
    ("clap", &["src/cli"]),
    ("clap_complete", &["src/cli/pages.rs"]),
    ("clap_mangen", &["src/cli/pages.rs"]),
    ("foldhash", &["src/hashing.rs"]),
    ("fuser", &["mount/src"]),
    ("http_body_util", &["src/monitor"]),
    ("hyper", &["src/monitor"]),
    ("hyper_util", &["src/monitor"]),
    ("hearthfs_mount", &["src/fs", "src/daemon", "src/cli"]),
    ("libc", &["mount/src"]),
    ("object_store", &["src/remote"]),
    ("prometheus_client", &["src/monitor"]),
    ("ratatui", &["src/cli/top"]),
    ("reqwest", &["src/remote"]),
    ("rustls", &["src/remote"]),
    ("sha2", &["src/monitor"]),
    ("sled", &["src/local/index.rs", "src/local/index"]),
];

/// Names that are forbidden in the pure room.
const IMPURE: &[&[&str]] = &[
    &["rustix"],
    &["std", "env"],
    &["std", "fs"],
    &["std", "io"],
    &["std", "net"],
    &["std", "process"],
    &["std", "thread"],
    &["std", "time", "Instant"],
    &["std", "time", "SystemTime"],
    &["tokio"],
    &["tracing"],
];

/// A file with the facts that its path shows.
pub(crate) struct Source<'a> {
    path: &'a str,
    words: Vec<Word>,
    /// The modules from the crate's root down to the file, the room first.
    modules: Vec<&'a str>,
    is_test: bool,
}

impl<'a> Source<'a> {
    pub(crate) fn new(path: &'a str, text: &str) -> Self {
        let inside = path.strip_prefix("src/").or_else(|| path.strip_prefix("mount/src/"));
        let inside = inside.expect("only sources are checked").trim_end_matches(".rs");
        let mut modules: Vec<&str> = inside.split('/').collect();
        if matches!(modules.last(), Some(&("mod" | "lib" | "main"))) {
            modules.pop();
        }
        let is_test = modules.contains(&"tests");
        Self { path, words: words(text), modules, is_test }
    }

    fn say(&self, line: usize, what: &str) -> String {
        format!("{}:{line}: {what}", self.path)
    }

    fn is_in(&self, places: &[&str]) -> bool {
        places.iter().any(|place| {
            self.path
                .strip_prefix(place)
                .is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
        })
    }
}

/// Returns the violations of a file, one per line.
pub(crate) fn check(source: &Source<'_>) -> Vec<String> {
    let mut wrong = Vec::new();
    if let Some(room) = source.modules.first()
        && source.path.starts_with("src/")
        && !ROOMS.iter().any(|(name, _)| name == room)
    {
        wrong.push(source.say(1, &format!("no room `{room}` in the table of tests/arrows")));
        return wrong;
    }
    for path in &named(&source.words) {
        wrong.extend(arrow(source, path).map(|what| source.say(path.line, &what)));
        // Tests may use anything.
        if !path.in_test && !source.is_test {
            wrong.extend(outside(source, path).map(|what| source.say(path.line, &what)));
        }
    }
    for word in source.words.iter().filter(|word| word.text == "unsafe") {
        if !source.is_in(&["mount/src"]) {
            wrong.push(source.say(word.line, "`unsafe` belongs into mount/ only"));
        }
    }
    let lines: BTreeSet<usize> =
        source.words.iter().filter(|word| !word.in_test).map(|word| word.line).collect();
    if lines.len() > CODE_LINES_MAX && !source.is_test {
        let what = format!("{} lines of code, at most {CODE_LINES_MAX}", lines.len());
        wrong.push(source.say(CODE_LINES_MAX, &what));
    }
    wrong
}

/// Checks a path as an arrow between rooms.
fn arrow(source: &Source<'_>, path: &Named) -> Option<String> {
    let first = path.parts[0].as_str();
    if first == "hearthfs" {
        let target = path.parts.get(1).map(String::as_str);
        return match source.path {
            _ if !source.path.starts_with("src/") => {
                Some("mount/ is a leaf: it must not name the crate `hearthfs`".to_owned())
            }
            "src/main.rs" if target == Some("cli") => None,
            "src/main.rs" => Some("the program uses `cli` only".to_owned()),
            _ => Some("the library names itself: write `crate::`".to_owned()),
        };
    }
    let room = *source.modules.first()?;
    if !source.path.starts_with("src/") {
        return None;
    }
    match first {
        "crate" => match path.parts.get(1).map(String::as_str) {
            Some("*") | None => Some("names no room: `crate::` needs one".to_owned()),
            Some(target) if target == room => own_room(source, path),
            Some(target) => wrong_way(room, target),
        },
        "super" => {
            let up = path.parts.iter().take_while(|part| *part == "super").count();
            let depth = source.modules.len() + path.inline_modules;
            (up >= depth && path.parts.len() > up).then(|| {
                let target = &path.parts[up];
                format!("climbs out of its room: write `crate::{target}`, if the arrow is allowed")
            })
        }
        _ => None,
    }
}

/// Checks a path with `super` from a file directly in its room, which reaches the neighbouring rooms.
fn own_room(source: &Source<'_>, path: &Named) -> Option<String> {
    let direct = source.modules.len() <= 2 && path.inline_modules == 0;
    direct.then(|| {
        let room = source.modules[0];
        format!("`{room}` uses itself through its own front door: write `super::`")
    })
}

fn wrong_way(room: &str, target: &str) -> Option<String> {
    let known = ROOMS.iter().any(|(name, _)| *name == target);
    let (_, allowed) = ROOMS.iter().find(|(name, _)| *name == room)?;
    let may = allowed.iter().any(|group| group.contains(&target));
    // Anything that is no room is a macro or a re-export of the root, of which there are none.
    (!may).then(|| {
        if known {
            format!("`{room}` must not use `{target}`")
        } else {
            format!("`{room}` uses `{target}`, which is no room in the table of tests/arrows")
        }
    })
}

/// Checks a path to a crate that may be named only in some places.
fn outside(source: &Source<'_>, path: &Named) -> Option<String> {
    let first = path.parts[0].as_str();
    if let Some((name, places)) = CRATES.iter().find(|(name, _)| *name == first)
        && !source.is_in(places)
    {
        return Some(format!("`{name}` is named in {} only", places.join(", ")));
    }
    let impure =
        |bad: &&&[&str]| path.parts.iter().zip(**bad).filter(|(a, b)| a == *b).count() == bad.len();
    let bad = IMPURE.iter().find(impure)?;
    (source.modules.first() == Some(&"namespace"))
        .then(|| format!("`namespace` is pure: it must not name `{}`", bad.join("::")))
}
