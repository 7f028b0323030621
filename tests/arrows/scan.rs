//! Splits source text into words with their lines, without comments and contents of strings.
//!
//! Owns the few lexical rules of Rust that finding paths needs. Must never interpret the words.

/// One word or mark of the code.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Word {
    pub(crate) text: String,
    /// Line in the file, from 1.
    pub(crate) line: usize,
    /// Whether it belongs to an item under `#[cfg(test)]`.
    pub(crate) in_test: bool,
}

/// Splits source text into words.
pub(crate) fn words(text: &str) -> Vec<Word> {
    let mut scanner = Scanner { chars: text.chars().collect(), at: 0, line: 1, found: Vec::new() };
    while scanner.step() {}
    mark_tests(&mut scanner.found);
    scanner.found
}

/// The most marks that Rust allows around a raw string.
const RAW_HASHES_MAX: usize = 255;

struct Scanner {
    chars: Vec<char>,
    at: usize,
    line: usize,
    found: Vec<Word>,
}

impl Scanner {
    fn peek(&self, ahead: usize) -> char {
        self.chars.get(self.at + ahead).copied().unwrap_or('\0')
    }

    fn skip(&mut self, count: usize) {
        for _ in 0..count {
            self.line += usize::from(self.peek(0) == '\n');
            self.at += 1;
        }
    }

    fn push(&mut self, text: impl Into<String>, line: usize) {
        self.found.push(Word { text: text.into(), line, in_test: false });
    }

    fn step(&mut self) -> bool {
        let (here, next) = (self.peek(0), self.peek(1));
        if self.at >= self.chars.len() {
            return false;
        }
        match here {
            _ if here.is_whitespace() => self.skip(1),
            '/' if next == '/' => {
                while self.at < self.chars.len() && self.peek(0) != '\n' {
                    self.skip(1);
                }
            }
            '/' if next == '*' => self.block_comment(),
            '"' => self.quoted(0, false),
            '\'' => self.quote(),
            _ if here.is_alphanumeric() || here == '_' => self.name(),
            ':' if next == ':' => {
                self.push("::", self.line);
                self.skip(2);
            }
            _ => {
                self.push(here, self.line);
                self.skip(1);
            }
        }
        true
    }

    fn block_comment(&mut self) {
        let mut depth = 0_usize;
        while self.at < self.chars.len() {
            match (self.peek(0), self.peek(1)) {
                ('/', '*') => {
                    depth += 1;
                    self.skip(2);
                }
                ('*', '/') => {
                    depth -= 1;
                    self.skip(2);
                    if depth == 0 {
                        return;
                    }
                }
                _ => self.skip(1),
            }
        }
    }

    /// Skips a string with `hashes` marks at its end; nothing is escaped in a raw one.
    fn quoted(&mut self, hashes: usize, raw: bool) {
        // Every line of a long string counts as code.
        self.push("\"", self.line);
        self.skip(1);
        while self.at < self.chars.len() {
            let here = self.peek(0);
            if here == '\\' && !raw {
                self.skip(1);
            } else if here == '"' && (1..=hashes).all(|ahead| self.peek(ahead) == '#') {
                self.skip(1 + hashes);
                return;
            }
            let line = self.line;
            self.skip(1);
            if self.line > line {
                self.push("\"", self.line);
            }
        }
    }

    /// A character, or a lifetime.
    fn quote(&mut self) {
        if self.peek(1) == '\\' {
            self.skip(3);
            while self.at < self.chars.len() && self.peek(0) != '\'' {
                self.skip(1);
            }
            self.skip(1);
        } else if self.peek(2) == '\'' {
            self.skip(3);
        } else {
            self.skip(1);
        }
    }

    fn name(&mut self) {
        let (start, line) = (self.at, self.line);
        while self.peek(0).is_alphanumeric() || self.peek(0) == '_' {
            self.skip(1);
        }
        let text: String = self.chars[start..self.at].iter().collect();
        let prefix = matches!(text.as_str(), "r" | "b" | "br" | "c" | "cr");
        let hashes = (0..RAW_HASHES_MAX).take_while(|ahead| self.peek(*ahead) == '#').count();
        if prefix && self.peek(hashes) == '"' {
            let raw = text.contains('r');
            self.skip(hashes);
            self.quoted(hashes, raw);
        } else if text == "b" && self.peek(0) == '\'' {
            self.quote();
        } else if text == "r" && hashes == 1 {
            // A raw name: `r#type`.
            self.skip(1);
            self.name();
        } else {
            self.push(text, line);
        }
    }
}

/// Marks what is under `#[cfg(test)]`, including the attribute.
fn mark_tests(words: &mut [Word]) {
    let mut at = 0;
    while at < words.len() {
        let is_attribute = words[at].text == "#" && text_at(words, at + 1) == "[";
        if is_attribute && text_at(words, at + 2) == "cfg" {
            let end = closing(words, at + 1);
            let names = &words[at..=end.min(words.len() - 1)];
            let has = |text: &str| names.iter().any(|word| word.text == text);
            if has("test") && !has("not") {
                let end = item_end(words, end + 1);
                words[at..end].iter_mut().for_each(|word| word.in_test = true);
                at = end;
                continue;
            }
        }
        at += 1;
    }
}

/// Returns the text of a word; empty after the end.
pub(crate) fn text_at(words: &[Word], at: usize) -> &str {
    words.get(at).map_or("", |word| word.text.as_str())
}

/// Returns the position of the bracket that closes the one at `open`.
fn closing(words: &[Word], open: usize) -> usize {
    let mut depth = 0_usize;
    for (at, word) in words.iter().enumerate().skip(open) {
        match word.text.as_str() {
            "(" | "[" | "{" => depth += 1,
            ")" | "]" | "}" => {
                depth = depth.saturating_sub(1);
                if depth == 0 {
                    return at;
                }
            }
            _ => {}
        }
    }
    words.len().saturating_sub(1)
}

/// Returns the position after the item that begins at `at`.
fn item_end(words: &[Word], mut at: usize) -> usize {
    while at < words.len() {
        match text_at(words, at) {
            ";" => return at + 1,
            "{" => return closing(words, at) + 1,
            "(" | "[" => at = closing(words, at) + 1,
            _ => at += 1,
        }
    }
    words.len()
}
