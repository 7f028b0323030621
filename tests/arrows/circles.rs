//! Circles inside a room: files that use each other, so that none of them can be read alone.
//!
//! The rule. A module and all modules below it are one *unit*: `ledger.rs` with `ledger/`. Of the
//! units below one module, no two may use each other, directly or through others. What a module and
//! the modules below it use of each other does not count: a module declares its children and
//! re-exports them, and methods of one type may be in several files. A name that a module imports
//! or re-exports is followed to the file that defines it. Tests do not count. Arrows between rooms
//! have a table of their own (`rules.rs`).

use std::collections::{BTreeMap, BTreeSet};

use crate::paths::{Named, named};
use crate::scan::words;

/// The existing circles, each by its units in order. This list may only shrink.
pub(crate) const KNOWN: &[&[&str]] = &[];

/// The most imports through which one name is followed.
const IMPORTS_MAX: usize = 8;

type Modules = Vec<String>;

/// The imports and paths of one file.
struct File {
    named: Vec<Named>,
    /// The names that its `use` lines import, with their paths.
    imports: BTreeMap<String, Vec<String>>,
}

/// A circle of units.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Circle {
    /// Its units in order, such as `remote::connect`.
    pub(crate) units: Vec<String>,
    /// Its arrows: from, to, and the file and line of one use.
    pub(crate) arrows: Vec<String>,
}

/// Returns the circles of some sources, given by path and text.
pub(crate) fn circles(sources: &[(String, String)]) -> Vec<Circle> {
    let files: BTreeMap<Modules, File> =
        sources.iter().filter_map(|(path, text)| Some((modules(path)?, File::new(text)))).collect();
    let paths: BTreeMap<Modules, &str> =
        sources.iter().filter_map(|(path, _)| Some((modules(path)?, path.as_str()))).collect();
    // From unit to unit below one module, with one place where the arrow is written.
    let mut arrows: BTreeMap<Modules, BTreeMap<(String, String), String>> = BTreeMap::new();
    for (from, file) in &files {
        for path in file.named.iter().filter(|path| !path.in_test) {
            let Some(to) = resolve(&files, from, &path.parts, path.inline_modules, 0) else {
                continue;
            };
            let shared = from.iter().zip(&to).take_while(|(a, b)| a == b).count();
            // The units below the root are the rooms. If one contains the other, it is its parent.
            if shared == 0 || shared == from.len() || shared == to.len() {
                continue;
            }
            let unit = |modules: &Modules| modules[..=shared].join("::");
            let place = format!("{}:{}", paths[from], path.line);
            let arrow = (unit(from), unit(&to));
            arrows.entry(from[..shared].to_vec()).or_default().entry(arrow).or_insert(place);
        }
    }
    arrows.values().flat_map(among).collect()
}

impl File {
    fn new(text: &str) -> Self {
        let named = named(&words(text));
        let imports = named
            .iter()
            .filter(|path| !path.in_test && path.inline_modules == 0)
            .filter_map(|path| Some((path.import.clone()?, path.parts.clone())))
            .collect();
        Self { named, imports }
    }
}

/// Returns the modules from the root to a file; the crate of `mount/` is one room. `None` for tests and programs.
fn modules(path: &str) -> Option<Modules> {
    let inside = match path.strip_prefix("mount/src/") {
        Some(inside) => format!("mount/{inside}"),
        None => path.strip_prefix("src/")?.to_owned(),
    };
    let mut modules: Modules = inside.strip_suffix(".rs")?.split('/').map(str::to_owned).collect();
    if modules.last()? == "main" || modules.iter().any(|module| module == "tests") {
        return None;
    }
    if matches!(modules.last()?.as_str(), "mod" | "lib") {
        modules.pop();
    }
    Some(modules)
}

/// Returns the file that defines what a path names; `None` for other crates and for what can be
/// resolved only with types.
fn resolve(
    files: &BTreeMap<Modules, File>,
    from: &Modules,
    parts: &[String],
    inline_modules: usize,
    imports: usize,
) -> Option<Modules> {
    let room = usize::from(from.first().is_some_and(|room| room == "mount"));
    let (mut at, mut rest) = match parts[0].as_str() {
        "crate" => (from[..room].to_vec(), &parts[1..]),
        "self" => (from.clone(), &parts[1..]),
        "super" => {
            let up = parts.iter().take_while(|part| *part == "super").count();
            let up_files = up.checked_sub(inline_modules)?;
            (from[..from.len().checked_sub(up_files)?].to_vec(), &parts[up..])
        }
        _ => (from.clone(), parts),
    };
    let begins_here = !matches!(parts[0].as_str(), "crate" | "self" | "super");
    let mut went_down = false;
    while let Some(next) = rest.first() {
        at.push(next.clone());
        if !files.contains_key(&at) {
            at.pop();
            break;
        }
        rest = &rest[1..];
        went_down = true;
    }
    // A path that begins with neither is below this file, in another crate, or a type.
    if begins_here && !went_down {
        return None;
    }
    let import = rest.first().and_then(|name| files.get(&at)?.imports.get(name));
    if let Some(import) = import.filter(|_| imports < IMPORTS_MAX) {
        let whole: Vec<String> = import.iter().chain(&rest[1..]).cloned().collect();
        if let Some(found) = resolve(files, &at, &whole, 0, imports + 1) {
            return Some(found);
        }
    }
    files.contains_key(&at).then_some(at)
}

/// Returns the circles among units of one module: each set of units that all reach each other.
fn among(arrows: &BTreeMap<(String, String), String>) -> Vec<Circle> {
    let units: BTreeSet<&String> = arrows.keys().flat_map(|(from, to)| [from, to]).collect();
    let reached = |start: &String| {
        let mut seen: BTreeSet<&String> = BTreeSet::new();
        let mut todo = vec![start.clone()];
        while let Some(unit) = todo.pop() {
            for (_, to) in arrows.keys().filter(|(from, _)| *from == unit) {
                if seen.insert(to) {
                    todo.push(to.clone());
                }
            }
        }
        seen
    };
    let reach: BTreeMap<&String, BTreeSet<&String>> =
        units.iter().map(|unit| (*unit, reached(unit))).collect();
    let mut found: Vec<Circle> = Vec::new();
    for unit in units.iter().filter(|unit| reach[*unit].contains(*unit)) {
        let circle: Vec<String> = units
            .iter()
            .filter(|other| reach[unit].contains(*other) && reach[*other].contains(unit))
            .map(|other| (*other).clone())
            .collect();
        if found.iter().any(|known| known.units == circle) {
            continue;
        }
        let inside = |(from, to): &(String, String)| circle.contains(from) && circle.contains(to);
        let arrows = arrows
            .iter()
            .filter(|(arrow, _)| inside(arrow))
            .map(|((from, to), place)| format!("{place}: `{from}` uses `{to}`"))
            .collect();
        found.push(Circle { units: circle, arrows });
    }
    found
}
