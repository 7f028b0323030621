//! Where values come from: flags, environment, file, defaults.
//!
//! Owns reading the file and naming the source of each value. Must never decide what a value means:
//! the table of keys does.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};

use toml::de::{DeTable, DeValue};

use super::keys::{self, Key, Shape};
use super::problem::{Origin, Problem};
use super::profiles;
use super::suggest::nearest;
use crate::namespace::Profiles;

/// The largest configuration file that is read.
const FILE_BYTES_MAX: u64 = 1 << 20;

/// A value as it was written, not interpreted yet.
#[derive(Clone, Debug)]
pub(super) struct Raw {
    pub(super) key: &'static Key,
    pub(super) value: String,
    pub(super) origin: Origin,
}

/// The environment of the process, as far as settings depend on it; a value, so that a test can construct one.
#[derive(Clone, Debug, Default)]
pub struct Surroundings {
    /// The environment variables.
    pub variables: BTreeMap<OsString, OsString>,
    /// The effective user.
    pub uid: u32,
    /// The current directory, to which relative paths refer.
    pub current_dir: PathBuf,
}

impl Surroundings {
    /// Reads the environment of this process.
    pub fn of_process() -> Self {
        Self {
            variables: std::env::vars_os().collect(),
            uid: rustix::process::geteuid().as_raw(),
            // Without one (it was removed), relative paths fail with their name when they are used.
            current_dir: std::env::current_dir().unwrap_or_default(),
        }
    }

    /// Returns a variable unless it is unset or empty.
    pub fn variable(&self, name: &str) -> Option<&OsStr> {
        self.variables.get(OsStr::new(name)).map(OsString::as_os_str).filter(|v| !v.is_empty())
    }

    /// Returns a variable with an absolute path; a relative one counts as unset, as the rules for
    /// base directories require.
    pub fn directory(&self, name: &str) -> Option<PathBuf> {
        self.variable(name).map(PathBuf::from).filter(|path| path.is_absolute())
    }

    /// Makes a path absolute.
    pub fn absolute(&self, path: &Path) -> PathBuf {
        self.current_dir.join(path)
    }
}

/// Makes the environment of a user with these variables.
#[cfg(test)]
pub(crate) fn around(uid: u32, variables: &[(&str, &str)]) -> Surroundings {
    let variables = variables.iter().map(|(name, value)| (name.into(), value.into())).collect();
    Surroundings { variables, uid, current_dir: "/".into() }
}

/// Makes the environment of this user with a runtime directory.
#[cfg(test)]
pub(crate) fn around_runtime_dir(dir: &Path) -> Surroundings {
    let variables = [("HEARTHFS_RUNTIME_DIR".into(), dir.into())].into();
    let uid = rustix::process::geteuid().as_raw();
    Surroundings { variables, uid, current_dir: "/".into() }
}

/// Reads the variables that set keys; the second list holds names that look like ours but are not.
pub(super) fn environment(around: &Surroundings) -> (Vec<Raw>, Vec<Problem>, Vec<String>) {
    let (mut raws, mut problems) = (Vec::new(), Vec::new());
    for key in keys::KEYS {
        let Some(variable) = key.variable else { continue };
        let Some(value) = around.variable(variable) else { continue };
        let origin = Origin::Environment { variable: variable.to_owned() };
        match value.to_str() {
            Some(value) => raws.push(Raw { key, value: value.to_owned(), origin }),
            None => problems.push(Problem::new(origin, key.name, None, "it is not valid UTF-8")),
        }
    }
    (raws, problems, strange_variables(around))
}

/// Variables that have a meaning but set no key.
const OTHER_VARIABLES: [&str; 2] = ["HEARTHFS_CONFIG", "HEARTHFS_RUNTIME_DIR"];

fn strange_variables(around: &Surroundings) -> Vec<String> {
    let known: Vec<&str> =
        keys::KEYS.iter().filter_map(|key| key.variable).chain(OTHER_VARIABLES).collect();
    let names = around.variables.keys().filter_map(|name| name.to_str());
    names
        .filter(|name| name.starts_with("HEARTHFS_") && !known.contains(name))
        .filter_map(|name| {
            nearest(name, known.iter().copied()).map(|meant| {
                format!("the environment variable {name} is unknown; did you mean {meant}?")
            })
        })
        .collect()
}

/// The content of a file.
#[derive(Debug, Default)]
pub(super) struct Parsed {
    pub(super) raws: Vec<Raw>,
    pub(super) problems: Vec<Problem>,
    pub(super) profiles: Profiles,
}

impl Parsed {
    fn bad(problem: Problem) -> Self {
        Self { problems: vec![problem], ..Self::default() }
    }
}

/// Reads the file.
pub(super) fn file(path: &Path) -> Parsed {
    match text_of(path) {
        Ok(text) => parse(path, &text),
        Err(reason) => {
            let reason = format!("cannot read the configuration file {}: {reason}", path.display());
            Parsed::bad(Problem::new(Origin::Default, "", None, reason))
        }
    }
}

fn text_of(path: &Path) -> Result<String, String> {
    let said = |error: std::io::Error| match error.kind() {
        std::io::ErrorKind::PermissionDenied => {
            format!(
                "{error}; let this user enter its directories and read it, or name another with --config"
            )
        }
        _ => error.to_string(),
    };
    let about = std::fs::metadata(path).map_err(said)?;
    if !about.is_file() {
        return Err("it is not a regular file".to_owned());
    }
    if about.len() > FILE_BYTES_MAX {
        return Err(format!("it is larger than {FILE_BYTES_MAX} bytes"));
    }
    let bytes = std::fs::read(path).map_err(said)?;
    String::from_utf8(bytes).map_err(|_| "it is not valid UTF-8".to_owned())
}

/// Reads the text of a file.
pub(super) fn parse(path: &Path, text: &str) -> Parsed {
    let at = |offset: usize| Origin::File { path: path.to_owned(), line: line_of(text, offset) };
    let table = match DeTable::parse(text) {
        Ok(table) => table.into_inner(),
        Err(error) => {
            let origin = at(error.span().map_or(0, |span| span.start));
            return Parsed::bad(Problem::new(origin, "", None, error.message()));
        }
    };
    let Parsed { mut raws, mut problems, profiles: mut known } = Parsed::default();
    for (section, content) in table {
        let origin = at(section.span().start);
        let section = section.into_inner();
        let DeValue::Table(content) = content.into_inner() else {
            problems.push(stray_key(origin, &section));
            continue;
        };
        if section == profiles::SECTION {
            let (read, bad) = profiles::read(content, text, at);
            known = read;
            problems.extend(bad);
            continue;
        }
        if !keys::sections().contains(&&*section) {
            problems.push(unknown(origin, "section", &section, &sections()));
            continue;
        }
        for (name, value) in content {
            let origin = at(name.span().start);
            let full = format!("{section}.{}", name.get_ref());
            let Some(key) = keys::find(&full) else {
                problems.push(unknown_key(origin, &section, name.get_ref()));
                continue;
            };
            match written(key, value.get_ref()) {
                Ok(value) => raws.push(Raw { key, value, origin }),
                Err((value, reason)) => {
                    problems.push(Problem::new(origin, key.name, Some(&value), reason));
                }
            }
        }
    }
    // The table is sorted by name, but people read a file by line.
    problems.sort_by_key(|problem| match problem.origin {
        Origin::File { line, .. } => line,
        _ => 0,
    });
    Parsed { raws, problems, profiles: known }
}

/// Returns all sections that a file can have.
fn sections() -> Vec<&'static str> {
    keys::sections().into_iter().chain([profiles::SECTION]).collect()
}

fn line_of(text: &str, offset: usize) -> usize {
    text.bytes().take(offset).filter(|b| *b == b'\n').count() + 1
}

/// Returns the problem of a key before any section.
fn stray_key(origin: Origin, name: &str) -> Problem {
    let home = keys::KEYS.iter().find(|key| key.short() == name);
    let reason = match home {
        Some(key) => format!("it belongs in the section [{}]", key.section()),
        None => "keys must be in a section".to_owned(),
    };
    Problem::new(origin, name, None, reason)
}

fn unknown(origin: Origin, what: &str, name: &str, all: &[&'static str]) -> Problem {
    let reason = match nearest(name, all.iter().copied()) {
        Some(meant) => format!("unknown {what}; did you mean \"{meant}\"?"),
        None => format!("unknown {what}; there are {}", all.join(", ")),
    };
    Problem::new(origin, name, None, reason)
}

fn unknown_key(origin: Origin, section: &str, name: &str) -> Problem {
    let full = format!("{section}.{name}");
    if let Some(home) = keys::KEYS.iter().find(|key| key.short() == name) {
        let reason = format!("unknown key; did you mean \"{}\"?", home.name);
        return Problem::new(origin, &full, None, reason);
    }
    let here: Vec<_> =
        keys::KEYS.iter().filter(|key| key.section() == section).map(Key::short).collect();
    Problem { key: full, ..unknown(origin, "key", name, &here) }
}

/// Returns the value as text, or else its written form and what is wrong with it.
fn written(key: &Key, value: &DeValue<'_>) -> Result<String, (String, String)> {
    match (value, key.shape) {
        (DeValue::String(text), _) => Ok(text.clone().into_owned()),
        (DeValue::Boolean(on), Shape::Switch) => Ok(on.to_string()),
        (DeValue::Integer(count), Shape::Count) => Ok(count.to_string()),
        (DeValue::Boolean(on), _) => Err((on.to_string(), "expected a string".to_owned())),
        (DeValue::Integer(count), Shape::Text) => {
            let reason = "expected a string, with a unit for a size or a time".to_owned();
            Err((count.to_string(), reason))
        }
        (DeValue::Integer(count), _) => Err((count.to_string(), "expected true or false".into())),
        (DeValue::Float(number), _) => Err((number.to_string(), "expected a string".to_owned())),
        (other, _) => Err((other.type_str().to_owned(), "expected a string".to_owned())),
    }
}
