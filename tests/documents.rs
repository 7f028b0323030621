//! The documents match the project: the tests and files that they name exist.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

const ROOT: &str = env!("CARGO_MANIFEST_DIR");

/// Returns the files with this ending in a directory and below it, as paths from the root of the project.
fn files_below(dir: &str, end: &str) -> Vec<PathBuf> {
    let (mut found, mut todo) = (Vec::new(), vec![PathBuf::from(dir)]);
    while let Some(dir) = todo.pop() {
        for entry in std::fs::read_dir(Path::new(ROOT).join(&dir)).expect("a readable directory") {
            let entry = entry.expect("a readable directory");
            let path = dir.join(entry.file_name());
            if entry.path().is_dir() {
                todo.push(path);
            } else if path.extension().is_some_and(|own| own == end) {
                found.push(path);
            }
        }
    }
    found.sort();
    found
}

/// Returns the documents: those of the root, and all below docs/.
fn documents() -> Vec<PathBuf> {
    let root = std::fs::read_dir(ROOT).expect("a readable directory");
    let root = root.map(|entry| PathBuf::from(entry.expect("a readable directory").file_name()));
    let mut found: Vec<PathBuf> =
        root.filter(|path| path.extension().is_some_and(|end| end == "md")).collect();
    found.extend(files_below("docs", "md"));
    assert!(found.len() > 10, "only {found:?}");
    found
}

fn read(path: impl AsRef<Path>) -> String {
    let path = Path::new(ROOT).join(path);
    std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// The beginnings of lines that define a test: a function, or a macro that makes tests from a body.
const NAMING: [&str; 3] = ["fn ", "over_each_server!(", "over_each_store!("];

/// Returns the names of all functions in the test suites, and of those that their macros make.
fn functions() -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    for path in files_below("tests", "rs") {
        for line in read(path).lines().map(str::trim_start) {
            let named = NAMING.iter().find_map(|start| line.strip_prefix(start));
            let name = named.and_then(|rest| rest.split(['(', '<', ',']).next());
            found.extend(name.map(str::to_owned));
        }
    }
    found
}

/// Returns the texts between back-ticks.
fn quoted(text: &str) -> impl Iterator<Item = &str> {
    text.split('`').skip(1).step_by(2)
}

/// Reports whether a word looks like the name of a test of a promise or rule.
fn is_test_name(word: &str) -> bool {
    let suites = [
        "bad_input_",
        "checkpoints_",
        "clients_",
        "clouds_",
        "commands_",
        "directory_times_",
        "gc_",
        "kill_points_",
        "limits_",
        "live_files_",
        "locks_",
        "moves_",
        "place_",
        "profiles_",
        "programs_",
        "rules_",
        "run_",
        "service_",
        "unchanged_",
        "visibility_",
        "writers_",
    ];
    let promise =
        word.strip_prefix('p').and_then(|rest| rest.split_once('_')).is_some_and(|(number, _)| {
            !number.is_empty() && number.bytes().all(|digit| digit.is_ascii_digit())
        });
    promise || suites.iter().any(|suite| word.starts_with(suite))
}

#[test]
fn every_test_that_semantics_names_exists() {
    let text = read("docs/semantics.md");
    let known = functions();
    let named: Vec<&str> = quoted(&text).filter(|word| is_test_name(word)).collect();
    assert!(named.len() > 40, "only {} tests are named", named.len());
    let missing: Vec<&&str> = named.iter().filter(|name| !known.contains(**name)).collect();
    assert!(missing.is_empty(), "named in docs/semantics.md, but missing: {missing:?}");
}

#[test]
fn every_test_of_a_promise_is_named() {
    let text = read("docs/semantics.md");
    let named: BTreeSet<&str> = quoted(&text).collect();
    let promises = functions().into_iter().filter(|name| {
        let suites = ["place_", "profiles_", "programs_"];
        is_test_name(name)
            && name.starts_with('p')
            && !suites.iter().any(|suite| name.starts_with(suite))
    });
    let missing: Vec<String> = promises.filter(|name| !named.contains(name.as_str())).collect();
    assert!(
        missing.is_empty(),
        "tests of promises that docs/semantics.md does not name: {missing:?}"
    );
}

/// Every link in a document of the project leads to an existing file and heading.
#[test]
fn links_lead_to_files_and_headings() {
    for document in documents() {
        let text = read(&document);
        let dir = document.parent().expect("a document lies in a directory");
        let shown = document.display();
        for target in text.split("](").skip(1).filter_map(|rest| rest.split(')').next()) {
            if target.contains("://") {
                continue;
            }
            let (file, heading) = target.split_once('#').unwrap_or((target, ""));
            let file = if file.is_empty() { document.clone() } else { dir.join(file) };
            let there = Path::new(ROOT).join(&file);
            assert!(there.exists(), "{shown} links to {target}, which does not exist");
            if !heading.is_empty() {
                let there = read(&file);
                let mut headings = there.lines().filter(|line| line.starts_with('#'));
                let found = headings.any(|line| anchor(line) == heading);
                assert!(found, "{shown}: {target} names no heading");
            }
        }
    }
}

/// Makes the anchor of a heading as the usual renderers do.
fn anchor(heading: &str) -> String {
    heading
        .trim_start_matches('#')
        .trim()
        .to_lowercase()
        .chars()
        .filter(|c| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_'))
        .map(|c| if c == ' ' { '-' } else { c })
        .collect()
}

/// The number of promises.
const PROMISES: usize = 15;

/// Returns the promises of docs/semantics.md, such as `P2 killed-writer`, each with the files that
/// its section names as the code that keeps it.
fn promises() -> BTreeMap<String, BTreeSet<String>> {
    let text = read("docs/semantics.md");
    let sections = text.split("\n### ").skip(1);
    let promise = |section: &str| {
        let (title, body) = section.split_once('\n')?;
        let body = body.split("\n## ").next().unwrap_or(body);
        let code = body.split("\nCode: ").nth(1)?.split("\n\n").next()?;
        Some((title.to_owned(), quoted(code).map(str::to_owned).collect()))
    };
    sections.filter_map(promise).collect()
}

/// The head of a module names each promise that it keeps, and docs/semantics.md names the modules that keep a promise.
#[test]
fn promises_and_the_code_that_keeps_them_name_each_other() {
    let promises = promises();
    assert_eq!(promises.len(), PROMISES, "{:?}", promises.keys());
    let mut found: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for path in files_below("src", "rs") {
        let text = read(&path);
        let head: Vec<&str> = text.lines().map_while(|line| line.strip_prefix("//!")).collect();
        let head = head.join("");
        let Some((_, kept)) = head.split_once(" Keeps P") else { continue };
        let kept = format!("P{}", kept.split('.').next().unwrap_or_default());
        let file = path.to_string_lossy();
        for tag in kept.split(", ").flat_map(|part| part.split(" and ")) {
            assert!(promises.contains_key(tag), "{file} keeps {tag:?}, which is no promise");
            found.entry(tag.to_owned()).or_default().insert(file.clone().into_owned());
        }
    }
    assert_eq!(found, promises, "the heads of modules, and docs/semantics.md");
}
