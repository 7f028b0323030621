//! Patterns of paths.
//!
//! Owns the meaning of `*`, `?`, `**` and a backslash, and the position of a walk in its patterns.
//! Must never take more time for a name than the product of its length and that of the pattern.

use std::fmt;

/// The longest pattern, in bytes.
const GLOB_BYTES_MAX: usize = 4096;
/// The most names that a pattern has.
const GLOB_NAMES_MAX: usize = 200;

/// One element of a name pattern.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum GlobToken {
    Byte(u8),
    /// Any one byte.
    One,
    /// Any run of bytes.
    Run,
}

/// One name of a pattern.
#[derive(Clone, PartialEq, Eq, Debug)]
enum GlobPart {
    Name(Box<[GlobToken]>),
    /// `**`: any number of directories, including none; at the end all names below.
    Deep,
}

/// A pattern of the names below a directory.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(super) struct Glob(Vec<GlobPart>);

impl Glob {
    /// Adds one name as it was typed, with `*`, `?` and backslashes.
    pub(super) fn push_typed(&mut self, name: &[u8]) -> Result<(), String> {
        let part =
            if name == b"**" { GlobPart::Deep } else { GlobPart::Name(tokens(name)?.into()) };
        self.push(part)
    }

    /// Adds one literal name.
    pub(super) fn push_name(&mut self, name: &[u8]) -> Result<(), String> {
        self.push(GlobPart::Name(name.iter().map(|byte| GlobToken::Byte(*byte)).collect()))
    }

    /// Adds a wildcard for all names of the directory.
    pub(super) fn push_any(&mut self) -> Result<(), String> {
        self.push(GlobPart::Name([GlobToken::Run].into()))
    }

    /// Adds a wildcard for all names below the directory.
    pub(super) fn push_all_below(&mut self) -> Result<(), String> {
        self.push(GlobPart::Deep)
    }

    fn push(&mut self, part: GlobPart) -> Result<(), String> {
        if self.0.len() >= GLOB_NAMES_MAX {
            return Err(format!("it has more than {GLOB_NAMES_MAX} names"));
        }
        self.0.push(part);
        Ok(())
    }

    /// Returns how many names before the last one are literal.
    pub(super) fn known_names(&self) -> usize {
        let above = 0..self.0.len().saturating_sub(1);
        above.take_while(|at| self.literal(*at).is_some()).count()
    }

    fn literal(&self, at: usize) -> Option<Vec<u8>> {
        let GlobPart::Name(tokens) = self.0.get(at)? else { return None };
        let byte =
            |token: &GlobToken| if let GlobToken::Byte(byte) = token { Some(*byte) } else { None };
        tokens.iter().map(byte).collect()
    }
}

/// Reports whether a typed name has wildcards.
pub(super) fn is_typed_pattern(name: &[u8]) -> bool {
    name == b"**"
        || tokens(name).is_ok_and(|all| all.iter().any(|t| !matches!(t, GlobToken::Byte(_))))
}

/// Returns the literal name of a typed one; `None` if it has wildcards.
pub(in crate::cli) fn typed_name(name: &[u8]) -> Result<Option<Vec<u8>>, String> {
    let mut glob = Glob::default();
    glob.push_typed(name)?;
    Ok(glob.literal(0))
}

/// Returns the literal name of a typed one without wildcards.
pub(in crate::cli) fn plain_name(name: &[u8]) -> Result<Vec<u8>, String> {
    let (mut plain, mut rest) = (Vec::with_capacity(name.len()), name);
    while let [first, tail @ ..] = rest {
        rest = tail;
        if *first == b'\\' {
            let (bytes, after) = escaped(tail)?;
            plain.extend(bytes);
            rest = after;
        } else {
            plain.push(*first);
        }
    }
    Ok(plain)
}

/// Parses a typed name. The error describes what is wrong with it.
fn tokens(name: &[u8]) -> Result<Vec<GlobToken>, String> {
    if name.len() > GLOB_BYTES_MAX {
        return Err(format!("a name in it is longer than {GLOB_BYTES_MAX} bytes"));
    }
    let (mut all, mut rest) = (Vec::new(), name);
    while let [first, tail @ ..] = rest {
        rest = tail;
        match first {
            // Several are equivalent to one.
            b'*' if all.last() == Some(&GlobToken::Run) => {}
            b'*' => all.push(GlobToken::Run),
            b'?' => all.push(GlobToken::One),
            b'\\' => {
                let (bytes, after) = escaped(tail)?;
                all.extend(bytes.into_iter().map(GlobToken::Byte));
                rest = after;
            }
            byte => all.push(GlobToken::Byte(*byte)),
        }
    }
    Ok(all)
}

/// Parses what follows a backslash, as `printed` writes it; any other character stands for itself.
fn escaped(rest: &[u8]) -> Result<(Vec<u8>, &[u8]), String> {
    let wrong = || Err("a backslash in it has nothing behind it that it could mean".to_owned());
    let number = |digits: &[u8]| {
        let text = std::str::from_utf8(digits).ok()?;
        u32::from_str_radix(text, 16).ok().filter(|_| !text.starts_with('+'))
    };
    let (bytes, after) = match rest {
        [b'n', after @ ..] => (vec![b'\n'], after),
        [b't', after @ ..] => (vec![b'\t'], after),
        [b'r', after @ ..] => (vec![b'\r'], after),
        [b'x', high, low, after @ ..] => match number(&[*high, *low]) {
            Some(byte) => (vec![byte as u8], after),
            None => return wrong(),
        },
        [b'u', b'{', tail @ ..] => {
            let end = tail.iter().position(|byte| *byte == b'}').unwrap_or(0);
            match number(&tail[..end]).and_then(char::from_u32) {
                Some(c) => (c.to_string().into_bytes(), &tail[end + 1..]),
                None => return wrong(),
            }
        }
        [b'x' | b'u', ..] | [] => return wrong(),
        [byte, after @ ..] => (vec![*byte], after),
    };
    if bytes.iter().any(|byte| matches!(byte, 0 | b'/')) {
        return Err("no name holds a slash or a NUL".to_owned());
    }
    Ok((bytes, after))
}

/// Matches a whole name. On a mismatch the last run is extended; nothing before it is tried again.
fn fits(tokens: &[GlobToken], name: &[u8]) -> bool {
    let (mut at, mut token) = (0, 0);
    let mut run: Option<(usize, usize)> = None;
    while at < name.len() {
        match tokens.get(token) {
            Some(GlobToken::Run) => {
                run = Some((token, at));
                token += 1;
            }
            Some(GlobToken::One) => (at, token) = (at + 1, token + 1),
            Some(GlobToken::Byte(byte)) if *byte == name[at] => (at, token) = (at + 1, token + 1),
            _ => {
                let Some((begun, from)) = run else { return false };
                run = Some((begun, from + 1));
                (at, token) = (from + 1, begun + 1);
            }
        }
    }
    tokens[token..].iter().all(|token| *token == GlobToken::Run)
}

/// The position of a walk in its patterns: pairs of a pattern and a part of it, each once.
#[derive(Clone, PartialEq, Eq, Default)]
pub(super) struct GlobPosition(Vec<(usize, usize)>);

impl GlobPosition {
    /// Starts at the beginning of all patterns.
    pub(super) fn start(globs: &[Glob]) -> Self {
        Self((0..globs.len()).map(|glob| (glob, 0)).collect()).closed(globs)
    }

    /// Adds the positions after `**`, which also matches no directory, unless it ends the pattern.
    fn closed(mut self, globs: &[Glob]) -> Self {
        let mut next = 0;
        while let Some((glob, part)) = self.0.get(next).copied() {
            let parts = &globs[glob].0;
            if parts.get(part) == Some(&GlobPart::Deep) && part + 1 < parts.len() {
                self.add((glob, part + 1));
            }
            next += 1;
        }
        self
    }

    fn add(&mut self, place: (usize, usize)) {
        if !self.0.contains(&place) {
            self.0.push(place);
        }
    }

    /// Advances by a name; `fitting` receives the number of each pattern that ends there.
    pub(super) fn step(&self, globs: &[Glob], name: &[u8], mut fitting: impl FnMut(usize)) -> Self {
        let mut after = Self::default();
        for (glob, part) in &self.0 {
            let parts = &globs[*glob].0;
            let is_last = part + 1 == parts.len();
            match &parts[*part] {
                GlobPart::Deep => {
                    after.add((*glob, *part));
                    if is_last {
                        fitting(*glob);
                    }
                }
                GlobPart::Name(tokens) if !fits(tokens, name) => {}
                GlobPart::Name(_) if is_last => fitting(*glob),
                GlobPart::Name(_) => after.add((*glob, part + 1)),
            }
        }
        after.closed(globs)
    }

    /// Reports whether nothing below can match.
    pub(super) fn is_over(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns the only names that can match here, if they are known: then the directory need not be listed.
    pub(super) fn names(&self, globs: &[Glob]) -> Option<Vec<Vec<u8>>> {
        let mut names: Vec<Vec<u8>> =
            self.0.iter().map(|(glob, part)| globs[*glob].literal(*part)).collect::<Option<_>>()?;
        names.sort_unstable();
        names.dedup();
        Some(names)
    }
}

impl fmt::Debug for GlobPosition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::cli::escape::printed;

    fn glob(text: &str) -> Glob {
        let mut glob = Glob::default();
        text.split('/').for_each(|name| glob.push_typed(name.as_bytes()).expect("a pattern"));
        glob
    }

    fn says(globs: &[&str], path: &str) -> Vec<usize> {
        let globs: Vec<Glob> = globs.iter().map(|text| glob(text)).collect();
        let (mut at, mut fitting) = (GlobPosition::start(&globs), Vec::new());
        for name in path.split('/') {
            fitting.clear();
            at = at.step(&globs, name.as_bytes(), |glob| fitting.push(glob));
        }
        fitting.sort_unstable();
        fitting
    }

    #[test]
    fn patterns_fit_what_they_should() {
        for (pattern, fitting, other) in [
            ("a/b", &["a/b"][..], &["a", "b", "a/b/c", "a/c"][..]),
            ("*.json", &["x.json", ".json"], &["x.jsonl", "a/x.json"]),
            ("a*b*c", &["abc", "aXbYc", "abbcbc"], &["ab", "abcd"]),
            ("?", &["x"], &["", "xy"]),
            ("**", &["a", "a/b", "a/b/c"], &[]),
            ("**/x", &["x", "a/x", "a/b/x"], &["a", "x/y"]),
            ("a/**", &["a/b", "a/b/c"], &["a", "b/a"]),
            ("a/**/x", &["a/x", "a/b/x", "a/b/c/x"], &["x", "b/x", "a/x/y"]),
            ("**/k/**", &["k/x", "a/k/x", "k/k/x/y"], &["k", "a/k"]),
            ("\\*", &["*"], &["x"]),
            ("\\x41\\u{42}", &["AB"], &["x41"]),
        ] {
            for path in fitting {
                assert_eq!(says(&[pattern], path), [0], "{pattern} and {path}");
            }
            for path in other {
                assert_eq!(says(&[pattern], path), Vec::<usize>::new(), "{pattern} and {path}");
            }
        }
        assert_eq!(says(&["a/*", "a/b", "c", "**/b"], "a/b"), [0, 1, 3]);
    }

    #[test]
    fn known_names_are_not_searched() {
        let globs = [glob("a/b"), glob("a/*"), glob("c")];
        let at = GlobPosition::start(&globs);
        assert_eq!(at.names(&globs), Some(vec![b"a".to_vec(), b"c".to_vec()]));
        assert_eq!(at.step(&globs, b"a", |_| ()).names(&globs), None);
        assert!(at.step(&globs, b"c", |_| ()).is_over());
        assert_eq!(GlobPosition::start(&[glob("**/a")]).names(&[glob("**/a")]), None);
    }

    #[test]
    fn nonsense_is_refused() {
        for name in
            ["a\\", "\\xg0", "\\x4", "\\u{zz}", "\\u{}", "\\u{d800}", "\\x2f", "\\u{41", "\\x+1"]
        {
            assert!(tokens(name.as_bytes()).is_err(), "{name}");
        }
        let many = "x/".repeat(GLOB_NAMES_MAX);
        let mut long = Glob::default();
        let mut pushed = many.split('/').map(|name| long.push_typed(name.as_bytes()));
        assert!(pushed.any(|pushed| pushed.is_err()));
    }

    #[test]
    fn a_pattern_that_nearly_fits_takes_no_time() {
        let (name, pattern) = (vec![b'a'; 255], "*a".repeat(100) + "b");
        assert!(!fits(&tokens(pattern.as_bytes()).expect("a pattern"), &name));
    }

    proptest! {
        /// A printed name can be typed, and stands for the same name, if its wildcards are escaped.
        #[test]
        fn printed_names_are_taken_back(name in proptest::collection::vec(any::<u8>().prop_filter("in a name", |b| !matches!(b, 0 | b'/')), 1..40)) {
            let typed = printed(&name).replace('*', "\\*").replace('?', "\\?");
            let all = tokens(typed.as_bytes()).expect("readable");
            prop_assert_eq!(all, name.iter().map(|b| GlobToken::Byte(*b)).collect::<Vec<_>>());
        }

        /// Matching agrees with a naive matcher that tries everything.
        #[test]
        fn names_are_matched_as_by_trying_everything(pattern in "[ab*?]{0,8}", name in "[ab]{0,8}") {
            fn plain(tokens: &[GlobToken], name: &[u8]) -> bool {
                match (tokens, name) {
                    ([], []) => true,
                    ([GlobToken::Run, rest @ ..], _) => (0..=name.len()).any(|skip| plain(rest, &name[skip..])),
                    ([GlobToken::One, rest @ ..], [_, name @ ..]) => plain(rest, name),
                    ([GlobToken::Byte(byte), rest @ ..], [first, name @ ..]) => byte == first && plain(rest, name),
                    _ => false,
                }
            }
            let tokens = tokens(pattern.as_bytes()).expect("a pattern");
            prop_assert_eq!(fits(&tokens, name.as_bytes()), plain(&tokens, name.as_bytes()));
        }
    }
}
