//! Names of types that are used more than once: a search for such a name finds two things.
//!
//! `State` and `Inner` do not count: by convention they are what a lock guards and what a handle
//! shares, and are private to their file. Tests do not count.

use std::collections::{BTreeMap, BTreeSet};

use crate::scan::{Word, text_at, words};

/// Names that any file may use for private types.
const CUSTOM: [&str; 2] = ["Inner", "State"];

/// The words that begin the definition of a type.
const KEYWORDS: [&str; 4] = ["enum", "struct", "trait", "type"];

/// The names that are used more than once. This list may only shrink.
pub(crate) const KNOWN: &[&str] = &[];

/// Returns the names of types that more than one file defines, with these files; sources are given by path and text.
pub(crate) fn repeated(sources: &[(String, String)]) -> BTreeMap<String, BTreeSet<String>> {
    let mut found: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for (path, text) in sources.iter().filter(|(path, _)| !is_test(path)) {
        for name in defined(text) {
            found.entry(name).or_default().insert(path.clone());
        }
    }
    found.retain(|name, files| files.len() > 1 && !CUSTOM.contains(&name.as_str()));
    found
}

/// Reports whether a file holds only tests.
fn is_test(path: &str) -> bool {
    path.ends_with("/tests.rs") || path.contains("/tests/")
}

/// Returns the names of the types that a source defines outside of `impl` blocks.
fn defined(text: &str) -> BTreeSet<String> {
    let words: Vec<Word> = words(text).into_iter().filter(|word| !word.in_test).collect();
    let mut found = BTreeSet::new();
    let mut depth = 0_usize;
    for at in 0..words.len() {
        match text_at(&words, at) {
            "{" => depth += 1,
            "}" => depth = depth.saturating_sub(1),
            word if depth == 0 && KEYWORDS.contains(&word) => {
                let name = text_at(&words, at + 1);
                if name.starts_with(char::is_uppercase) {
                    found.insert(name.to_owned());
                }
            }
            _ => {}
        }
    }
    found
}
