//! Patterns of names and of paths, as profiles use them.
//!
//! Owns their syntax, and matching in bounded time, at worst quadratic in the path. Must never
//! allocate during matching: the file system matches at every create.

use std::fmt;
use std::ops::Range;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::name::TreePath;

/// The most names of a path that patterns match; deeper paths are ordinary.
pub(super) const DEPTH_MAX: usize = 40;
/// The longest pattern, in bytes.
const PATTERN_BYTES_MAX: usize = 512;

/// One element of a name pattern.
#[derive(Clone, PartialEq, Eq, Debug)]
enum Token {
    /// These bytes.
    Literal(Box<[u8]>),
    /// Any one byte.
    One,
    /// Any run of bytes, possibly empty.
    Any,
    /// A maximal run of bytes of a set, either of the given length or of at least one byte.
    Run(Set, Option<usize>),
}

/// A set of bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Set {
    Digits,
    Hex,
}

impl Set {
    fn has(self, byte: u8) -> bool {
        match self {
            Self::Digits => byte.is_ascii_digit(),
            Self::Hex => matches!(byte, b'0'..=b'9' | b'a'..=b'f'),
        }
    }
}

/// A pattern of one name.
#[derive(Clone, Debug)]
struct NamePattern {
    tokens: Box<[Token]>,
    has_stem: bool,
}

impl NamePattern {
    fn parse(text: &str) -> Result<Self, String> {
        let (mut tokens, mut literal, mut rest) = (Vec::new(), Vec::new(), text);
        let mut has_stem = false;
        while let Some(first) = rest.chars().next() {
            let (token, length) = match first {
                '*' => (Some(Token::Any), 1),
                '?' => (Some(Token::One), 1),
                '{' => {
                    let end = rest.find('}').ok_or("a `{` has no `}`")?;
                    let word = &rest[1..end];
                    if word == "stem" {
                        if !tokens.is_empty() || !literal.is_empty() {
                            return Err(
                                "`{stem}` is only possible at the beginning of a name".into()
                            );
                        }
                        has_stem = true;
                    }
                    (Some(braced(word)?), end + 1)
                }
                other => (None, other.len_utf8()),
            };
            match token {
                Some(token) => {
                    flush(&mut literal, &mut tokens);
                    tokens.push(token);
                }
                None => literal.extend_from_slice(&rest.as_bytes()[..length]),
            }
            rest = &rest[length..];
        }
        flush(&mut literal, &mut tokens);
        if tokens.is_empty() {
            return Err("a name in it is empty".into());
        }
        if has_stem && tokens[1..].contains(&Token::Any) {
            return Err("a name with `{stem}` has no `*`: its end would be unclear".into());
        }
        Ok(Self { tokens: tokens.into(), has_stem })
    }

    /// Matches a whole name; returns how many bytes of it are the stem, 0 without one.
    ///
    /// Every token except `Any` has one end for each start, and a later start never has an earlier
    /// end. So the first match of the tokens between two `Any` is the best one, and nothing before
    /// the last `Any` is ever tried again.
    fn matches(&self, name: &[u8]) -> Option<usize> {
        // Most patterns end in bytes that almost no name ends in.
        if let Some(Token::Literal(end)) = self.tokens.last()
            && !name.ends_with(end)
        {
            return None;
        }
        let (mut token, mut at) = (0, 0);
        let mut retry: Option<(usize, usize)> = None;
        loop {
            match self.tokens.get(token) {
                Some(Token::Any) => {
                    token += 1;
                    retry = Some((token, at));
                    continue;
                }
                Some(one) => {
                    if let Some(end) = one.end(name, at) {
                        (token, at) = (token + 1, end);
                        continue;
                    }
                }
                None if at == name.len() => {
                    let stem = retry.filter(|_| self.has_stem).map_or(0, |(_, from)| from);
                    return (!self.has_stem || stem > 0).then_some(stem);
                }
                None => {}
            }
            let (back, from) = retry?;
            if from == name.len() {
                return None;
            }
            retry = Some((back, from + 1));
            (token, at) = (back, from + 1);
        }
    }
}

impl Token {
    /// Returns where this token ends if it starts at `at`.
    fn end(&self, name: &[u8], at: usize) -> Option<usize> {
        let rest = &name[at..];
        match self {
            Self::Literal(bytes) => rest.starts_with(bytes).then_some(at + bytes.len()),
            Self::One => (!rest.is_empty()).then_some(at + 1),
            Self::Any => Some(at),
            Self::Run(set, length) => {
                let run = rest.iter().take_while(|byte| set.has(**byte)).count();
                let fits = length.map_or(run > 0, |length| run == length);
                fits.then_some(at + run)
            }
        }
    }
}

impl NamePattern {
    /// Returns the common prefix of all matching names with the given stem, and whether it is the whole name.
    fn beginning(&self, stem: &[u8]) -> (Vec<u8>, bool) {
        let mut bytes = Vec::new();
        let mut tokens = self.tokens.iter();
        if self.has_stem {
            tokens.next();
            bytes.extend_from_slice(stem);
        }
        for token in tokens {
            let Token::Literal(literal) = token else { return (bytes, false) };
            bytes.extend_from_slice(literal);
        }
        (bytes, true)
    }
}

fn flush(literal: &mut Vec<u8>, tokens: &mut Vec<Token>) {
    if !literal.is_empty() {
        tokens.push(Token::Literal(std::mem::take(literal).into()));
    }
}

fn braced(word: &str) -> Result<Token, String> {
    let bad =
        || format!("`{{{word}}}` is unknown; there are {{stem}}, {{num}}, {{hex}} and {{hex64}}");
    if word == "stem" {
        return Ok(Token::Any);
    }
    let split = word.find(|c: char| c.is_ascii_digit()).unwrap_or(word.len());
    let set = match &word[..split] {
        "num" => Set::Digits,
        "hex" => Set::Hex,
        _ => return Err(bad()),
    };
    let length = match &word[split..] {
        "" => None,
        digits => Some(digits.parse().ok().filter(|n| (1..=255).contains(n)).ok_or_else(bad)?),
    };
    Ok(Token::Run(set, length))
}

/// A pattern of the names below a directory. A leading `**/` matches any number of directories, including
/// none; a trailing `/**` matches the directory itself and everything below; `**` alone matches everything.
#[derive(Clone, Debug)]
pub struct Pattern {
    text: Box<str>,
    anywhere: bool,
    names: Box<[NamePattern]>,
    below: bool,
}

impl Pattern {
    /// Parses a pattern.
    ///
    /// # Errors
    ///
    /// What is wrong with the pattern, as a sentence that quotes it.
    pub fn parse(text: &str) -> Result<Self, String> {
        let fail = |reason: String| Err(format!("the pattern {text:?}: {reason}"));
        if text.len() > PATTERN_BYTES_MAX {
            return fail(format!("it is longer than {PATTERN_BYTES_MAX} bytes"));
        }
        let mut parts: Vec<&str> = text.split('/').collect();
        let anywhere = parts.first() == Some(&"**");
        if anywhere {
            parts.remove(0);
        }
        let below = parts.last() == Some(&"**") || (anywhere && parts.is_empty());
        if parts.last() == Some(&"**") {
            parts.pop();
        }
        if parts.len() >= DEPTH_MAX {
            return fail(format!("it has {DEPTH_MAX} names or more"));
        }
        let mut names = Vec::new();
        for part in parts {
            match NamePattern::parse(part) {
                _ if part == "**" => {
                    return fail("`**` is only possible at its beginning or end".into());
                }
                _ if matches!(part, "." | "..") => {
                    return fail(format!("`{part}` is not a name"));
                }
                Ok(name) => names.push(name),
                Err(reason) => return fail(reason),
            }
        }
        Ok(Self { text: text.into(), anywhere, names: names.into(), below })
    }

    /// Reports whether it matches a path, from the first name to the last. Never matches paths
    /// deeper than 40 names.
    pub fn fits_path(&self, path: &TreePath) -> bool {
        PathNames::split(path.as_bytes()).is_some_and(|names| self.matches(&names, 0).is_some())
    }

    /// Returns the text of the pattern.
    pub fn text(&self) -> &str {
        &self.text
    }

    /// Reports whether one of its names contains `{stem}`.
    pub(super) fn has_stem(&self) -> bool {
        self.names.iter().any(|name| name.has_stem)
    }

    /// Reports whether it can start at any depth.
    pub(super) fn is_anywhere(&self) -> bool {
        self.anywhere
    }

    /// Reports whether it matches at any depth below.
    pub(super) fn reaches_below(&self) -> bool {
        self.below
    }

    /// Reports whether it can match the beginning of a path, by the first name alone. Most directories
    /// of clients have a first name that almost no path has.
    pub(super) fn can_begin(&self, path: &PathNames<'_>) -> bool {
        match self.names.first().map(|name| &*name.tokens) {
            Some([Token::Literal(only)]) if !self.anywhere => path.name(0) == &**only,
            _ => true,
        }
    }

    /// Returns the number of its names.
    pub(super) fn depth(&self) -> usize {
        self.names.len()
    }

    /// Matches all names of `path` from `from` on; returns how many bytes of the last name are the stem.
    pub(super) fn matches(&self, path: &PathNames<'_>, from: usize) -> Option<usize> {
        let (length, there) = (self.names.len(), path.count - from);
        if there < length || there == 0 {
            return None;
        }
        let last = if self.anywhere { path.count - length } else { from };
        let first = if self.below { from } else { path.count - length };
        if first > last {
            return None;
        }
        (first..=last).find_map(|at| self.fits(path, at))
    }

    /// Reports whether it matches paths of one depth only.
    pub(super) fn has_one_depth(&self) -> bool {
        !self.anywhere && !self.below
    }

    /// Returns the stem in a path that it matches.
    pub(super) fn stem<'p>(&self, path: &PathNames<'p>, from: usize) -> Option<&'p [u8]> {
        self.matches(path, from)?;
        self.names.iter().enumerate().find_map(|(at, name)| {
            let whole = path.name(from + at);
            name.has_stem.then(|| name.matches(whole).map(|length| &whole[..length])).flatten()
        })
    }

    /// Returns the common prefix of names at a depth, given the stem, and whether it is the whole name.
    pub(super) fn beginning(&self, depth: usize, stem: &[u8]) -> Option<(Vec<u8>, bool)> {
        self.names.get(depth).map(|name| name.beginning(stem))
    }

    /// Reports whether a path below `path` can match, by the names of `path` from `from` on.
    pub(super) fn leads_below(&self, path: &PathNames<'_>, from: usize) -> bool {
        let there = path.count - from;
        let names = self.names.iter().take(there).enumerate();
        there < self.names.len()
            && !self.anywhere
            && names.into_iter().all(|(at, name)| name.matches(path.name(from + at)).is_some())
    }

    /// Matches as many names as it has, from `at` on; returns the bytes of the stem.
    fn fits(&self, path: &PathNames<'_>, at: usize) -> Option<usize> {
        let mut stem = 0;
        for (offset, name) in self.names.iter().enumerate() {
            stem = name.matches(path.name(at + offset))?;
        }
        Some(stem)
    }

    /// Calls `found` with each position at which the names below a matching directory start, the
    /// outermost first, until it returns something.
    pub(super) fn ends_in<T>(
        &self,
        path: &PathNames<'_>,
        from: usize,
        mut found: impl FnMut(usize) -> Option<T>,
    ) -> Option<T> {
        let length = self.names.len();
        let last = if self.anywhere { path.count } else { path.count.min(from + length + 1) };
        // At least one name must follow below the directory.
        (from + length..last).find_map(|end| {
            self.fits(path, end - length)?;
            found(end)
        })
    }
}

impl PartialEq for Pattern {
    fn eq(&self, other: &Self) -> bool {
        self.text == other.text
    }
}

impl Eq for Pattern {}

impl fmt::Display for Pattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl Serialize for Pattern {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&self.text)
    }
}

impl<'de> Deserialize<'de> for Pattern {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        Self::parse(&text).map_err(serde::de::Error::custom)
    }
}

/// The names of a path, split without an allocation.
pub(super) struct PathNames<'p> {
    path: &'p [u8],
    ends: [u32; DEPTH_MAX],
    count: usize,
}

impl<'p> PathNames<'p> {
    /// Splits the stored bytes of a path; `None` for the root and for paths deeper than [`DEPTH_MAX`].
    pub(super) fn split(path: &'p [u8]) -> Option<Self> {
        let (mut ends, mut count, mut from) = ([0; DEPTH_MAX], 0, 0);
        if path.is_empty() {
            return None;
        }
        for name in path.split(|byte| *byte == 0) {
            from += name.len();
            *ends.get_mut(count)? = from as u32;
            (count, from) = (count + 1, from + 1);
        }
        Some(Self { path, ends, count })
    }

    /// Returns the range of a name in the path's bytes.
    fn range(&self, index: usize) -> Range<usize> {
        let from = if index == 0 { 0 } else { self.ends[index - 1] as usize + 1 };
        from..self.ends[index] as usize
    }

    fn name(&self, index: usize) -> &'p [u8] {
        &self.path[self.range(index)]
    }

    /// Returns the path of the first `count` names, and `more` bytes of the next one.
    pub(super) fn upto(&self, count: usize, more: usize) -> &'p [u8] {
        let end = match (count, more) {
            (0, more) => more,
            (count, 0) => self.ends[count - 1] as usize,
            (count, more) => self.range(count).start + more,
        };
        &self.path[..end]
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Matches naively, by trying everything.
    fn plain(tokens: &[Token], name: &[u8]) -> bool {
        let Some((first, rest)) = tokens.split_first() else { return name.is_empty() };
        match first {
            Token::Any => (0..=name.len()).any(|at| plain(rest, &name[at..])),
            other => other.end(name, 0).is_some_and(|at| plain(rest, &name[at..])),
        }
    }

    fn stem(pattern: &str, name: &str) -> Option<usize> {
        NamePattern::parse(pattern).expect(pattern).matches(name.as_bytes())
    }

    proptest! {
        #[test]
        fn matching_is_that_of_trying_everything(
            parts in prop::collection::vec(
                prop::sample::select(vec!["*", "?", "a", "1", ".", "{num}", "{hex}", "{hex2}", "ab"]),
                1..8,
            ),
            name in "[ab1.]{0,12}",
        ) {
            let pattern = NamePattern::parse(&parts.concat()).expect("good");
            let found = pattern.matches(name.as_bytes()).is_some();
            prop_assert_eq!(found, plain(&pattern.tokens, name.as_bytes()), "{:?}", pattern);
        }
    }

    #[test]
    fn stems() {
        for (pattern, name, wanted) in [
            ("{stem}.nbi", "t.f-2.py311.nbi", Some("t.f-2.py311")),
            ("{stem}.{num}.nbc", "t.f-2.py311.1.nbc", Some("t.f-2.py311")),
            ("{stem}.{num}.nbc", "t.f-2.3.12.nbc", Some("t.f-2.3")),
            ("{stem}.{num}.nbc", "1.nbc", None),
            ("{stem}.nbi", ".nbi", None),
            ("{stem}.nbi", "t.nbi.tmp.0123456789abcdef", None),
        ] {
            assert_eq!(stem(pattern, name), wanted.map(str::len), "{pattern} {name}");
        }
    }

    #[test]
    fn places_of_two_stars() {
        for (pattern, path, wanted) in [
            ("a/**", "a", true),
            ("a/**", "a/b/c", true),
            ("a/**", "b/a", false),
            ("**/a", "a", true),
            ("**/a", "x/y/a", true),
            ("**/a", "x/a/y", false),
            ("**/a/**", "x/a/y/z", true),
            ("**/a/b", "a/x/b", false),
            ("**", "x/y", true),
            ("*/b", "a/b", true),
            ("*/b", "b", false),
        ] {
            let bytes = path.replace('/', "\0");
            let names = PathNames::split(bytes.as_bytes()).expect("a short path");
            let found = Pattern::parse(pattern).expect(pattern).matches(&names, 0).is_some();
            assert_eq!(found, wanted, "{pattern} {path}");
        }
    }

    #[test]
    fn bad_patterns_are_refused() {
        for (text, word) in [
            ("a//b", "empty"),
            ("", "empty"),
            ("/a", "empty"),
            ("a/**/b", "beginning or end"),
            ("../a", "not a name"),
            ("{nmu}", "{num}"),
            ("{hex0}", "{hex64}"),
            ("a{", "no `}`"),
            ("a{stem}", "at the beginning"),
            ("{stem}*.x", "unclear"),
        ] {
            let reason = Pattern::parse(text).expect_err(text);
            assert!(reason.contains(word), "{text}: {reason}");
        }
        assert!(Pattern::parse(&"a/".repeat(100)).is_err());
        assert!(Pattern::parse(&"a".repeat(600)).is_err());
    }
}
