//! The paths that code names: in `use` trees, and in the middle of code.
//!
//! Owns the unfolding of `use a::{b, c::d}` into whole paths. Must never judge them.

use crate::scan::{Word, text_at};

/// A path as it is written, with the line of its last part.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Named {
    pub(crate) parts: Vec<String>,
    pub(crate) line: usize,
    pub(crate) in_test: bool,
    /// The name that `use` gives it in this file.
    pub(crate) import: Option<String>,
    /// How many inline modules of the file contain it.
    pub(crate) inline_modules: usize,
}

/// Returns every path of two or more parts, and every crate that is named alone by `use` or
/// `extern crate`.
pub(crate) fn named(words: &[Word]) -> Vec<Named> {
    let mut finder = Finder { words, at: 0, found: Vec::new(), depth: 0, modules: Vec::new() };
    while finder.at < words.len() {
        finder.step();
    }
    finder.found
}

struct Finder<'a> {
    words: &'a [Word],
    at: usize,
    found: Vec<Named>,
    depth: usize,
    /// Brace depths at which modules of the file opened.
    modules: Vec<usize>,
}

impl Finder<'_> {
    fn text(&self, at: usize) -> &str {
        text_at(self.words, at)
    }

    fn push(&mut self, parts: Vec<String>, at: usize) {
        let Some(word) = self.words.get(at.min(self.words.len() - 1)) else { return };
        let (line, in_test, inline_modules) = (word.line, word.in_test, self.modules.len());
        self.found.push(Named { parts, line, in_test, import: None, inline_modules });
    }

    fn step(&mut self) {
        match self.text(self.at) {
            "{" => self.depth += 1,
            "}" => {
                self.depth = self.depth.saturating_sub(1);
                self.modules.retain(|opened| *opened < self.depth + 1);
            }
            "mod" if self.text(self.at + 2) == "{" => {
                self.modules.push(self.depth + 1);
            }
            "use" => {
                self.at += 1;
                self.tree(&[]);
                return;
            }
            "extern" if self.text(self.at + 1) == "crate" => {
                self.push(vec![self.text(self.at + 2).to_owned()], self.at + 2);
                self.at += 2;
            }
            "in" if self.at > 0 && self.text(self.at - 1) == "(" => {
                // The path of a `pub(in ...)` uses nothing.
                while self.at < self.words.len() && self.text(self.at) != ")" {
                    self.at += 1;
                }
            }
            text if is_name(text) && self.text(self.at + 1) == "::" && self.begins_path() => {
                self.chain();
                return;
            }
            _ => {}
        }
        self.at += 1;
    }

    /// Reports whether the name here is the first part of its path.
    fn begins_path(&self) -> bool {
        if self.at == 0 || self.text(self.at - 1) != "::" {
            return self.at == 0 || self.text(self.at - 1) != ".";
        }
        self.at == 1 || !(is_name(self.text(self.at - 2)) || self.text(self.at - 2) == ">")
    }

    /// Reads `a::b::c` in the middle of code.
    fn chain(&mut self) {
        let mut parts = vec![self.text(self.at).to_owned()];
        let start = self.at;
        while self.text(self.at + 1) == "::" && is_name(self.text(self.at + 2)) {
            self.at += 2;
            parts.push(self.text(self.at).to_owned());
        }
        self.push(parts, start);
        self.at += 1;
    }

    /// Reads a `use` tree below `above`, up to its end.
    fn tree(&mut self, above: &[String]) {
        let mut parts = above.to_vec();
        loop {
            match self.text(self.at).to_owned().as_str() {
                "::" => self.at += 1,
                "{" => {
                    self.at += 1;
                    while self.at < self.words.len() && self.text(self.at) != "}" {
                        self.tree(&parts);
                        if self.text(self.at) == "," {
                            self.at += 1;
                        }
                    }
                    self.at += 1;
                    return;
                }
                "as" => {
                    let name = self.text(self.at + 1).to_owned();
                    if let Some(last) = self.found.last_mut() {
                        last.import = Some(name);
                    }
                    self.at += 2;
                }
                text if is_name(text) || text == "*" => {
                    parts.push(text.to_owned());
                    self.at += 1;
                    if self.text(self.at) != "::" {
                        let mut whole = parts.clone();
                        // `a::{self}` is `a`.
                        if whole.len() > 1 {
                            whole.pop_if(|last| last == "self");
                        }
                        let import = whole.last().cloned().filter(|name| name != "*");
                        self.push(whole, self.at - 1);
                        if let Some(last) = self.found.last_mut() {
                            last.import = import;
                        }
                    }
                }
                _ => return,
            }
        }
    }
}

fn is_name(text: &str) -> bool {
    text.chars().next().is_some_and(|first| first.is_alphabetic() || first == '_')
}
