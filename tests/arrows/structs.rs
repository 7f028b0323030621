//! Structs that are too large: more than 15 fields, or more than 4 flags.
//!
//! A flag is a field of the type `bool` or `AtomicBool`. Flags that exclude each other should be an
//! enum. Tests do not count.

use crate::scan::{Word, text_at, words};

/// The most fields of one struct.
pub(crate) const FIELDS_MAX: usize = 15;
/// The most flags of one struct.
pub(crate) const FLAGS_MAX: usize = 4;

/// The counts of a struct.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Shape {
    pub(crate) name: String,
    pub(crate) line: usize,
    pub(crate) fields: usize,
    pub(crate) flags: usize,
}

impl Shape {
    /// Reports whether it exceeds a limit.
    pub(crate) fn is_over(&self) -> bool {
        self.fields > FIELDS_MAX || self.flags > FLAGS_MAX
    }
}

/// Returns the structs with named fields of one source.
pub(crate) fn structs(text: &str) -> Vec<Shape> {
    let words: Vec<Word> = words(text).into_iter().filter(|word| !word.in_test).collect();
    (0..words.len()).filter_map(|at| shape(&words, at)).collect()
}

/// Reads the struct whose keyword stands at `at`, if one does.
fn shape(words: &[Word], at: usize) -> Option<Shape> {
    let name = text_at(words, at + 1);
    if text_at(words, at) != "struct" || !name.starts_with(char::is_alphabetic) {
        return None;
    }
    let open = (at + 2..words.len()).find(|at| matches!(text_at(words, *at), "{" | ";"))?;
    if text_at(words, open) == ";" {
        return None;
    }
    let mut fields: Vec<Vec<&str>> = vec![Vec::new()];
    let mut depth = 1_usize;
    for at in open + 1..words.len() {
        let text = text_at(words, at);
        // The arrow of a function type closes nothing.
        let closes = matches!(text, ")" | "]" | "}")
            || text == ">" && !matches!(text_at(words, at - 1), "-" | "=");
        depth += usize::from(matches!(text, "(" | "[" | "{" | "<"));
        depth -= usize::from(closes);
        if depth == 0 {
            break;
        }
        if text == "," && depth == 1 {
            fields.push(Vec::new());
        } else {
            fields.last_mut().expect("the list begins with one entry").push(text);
        }
    }
    fields.retain(|field| field.contains(&":"));
    let is_flag = |field: &&Vec<&str>| {
        matches!(field.last(), Some(&("bool" | "AtomicBool")))
            && matches!(field.get(field.len().wrapping_sub(2)), Some(&(":" | "::")))
    };
    let flags = fields.iter().filter(is_flag).count();
    Some(Shape { name: name.to_owned(), line: words[at].line, fields: fields.len(), flags })
}
