//! Names for people and for scripts.
//!
//! A name on the mount is any bytes, and another user may have chosen it. Owns the form in which it is
//! printed. Must never print a control character, or a character that reorders or hides others on a terminal.

use std::borrow::Cow;
use std::fmt::Write as _;

/// Writes a name or a path so that a terminal can show it and a command accepts it as an argument:
/// `\n`, `\x1b`, `\xff` for a byte that is not text, `\u{202e}`, and `\\` for a backslash.
pub(super) fn printed(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(bytes.len());
    for chunk in bytes.utf8_chunks() {
        for c in chunk.valid().chars() {
            match c {
                '\\' => text.push_str("\\\\"),
                c => push(&mut text, c),
            }
        }
        for byte in chunk.invalid() {
            write!(text, "\\x{byte:02x}").ok();
        }
    }
    text
}

/// Adds a character to a text, escaped if it is harmful.
fn push(text: &mut String, c: char) {
    match c {
        '\n' => text.push_str("\\n"),
        '\t' => text.push_str("\\t"),
        '\r' => text.push_str("\\r"),
        c if !is_harmful(c) => text.push(c),
        // Writing to a string cannot fail.
        c if c.is_ascii() => drop(write!(text, "\\x{:02x}", u32::from(c))),
        c => drop(write!(text, "\\u{{{:x}}}", u32::from(c))),
    }
}

/// Turns a text that others can influence, such as a message of a store or another node, into one
/// harmless line.
pub(super) fn one_line(text: &str) -> Cow<'_, str> {
    escaped(text, |_| false)
}

/// Makes text harmless that others can influence; keeps line ends.
pub(super) fn tame(text: &str) -> Cow<'_, str> {
    escaped(text, |c| matches!(c, '\n' | '\t'))
}

fn escaped(text: &str, stays: impl Fn(char) -> bool) -> Cow<'_, str> {
    let is_kept = |c: char| stays(c) || !is_harmful(c);
    if text.chars().all(is_kept) {
        return Cow::Borrowed(text);
    }
    let mut escaped = String::with_capacity(text.len() + 8);
    for c in text.chars() {
        if is_kept(c) { escaped.push(c) } else { push(&mut escaped, c) }
    }
    Cow::Owned(escaped)
}

/// Reports whether a terminal would act on a character instead of showing it: control characters,
/// and those that are invisible or reorder others.
pub(super) fn is_harmful(c: char) -> bool {
    c.is_control()
        || matches!(c,
            '\u{ad}' | '\u{61c}' | '\u{180e}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}'
            | '\u{2060}'..='\u{206f}' | '\u{feff}' | '\u{fff9}'..='\u{fffb}' | '\u{e0000}'..='\u{e007f}')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_harmful_is_printed() {
        for (name, text) in [
            (&b"plain-name_1.json"[..], "plain-name_1.json"),
            ("ünï 日本 *?".as_bytes(), "ünï 日本 *?"),
            (b"a\nb\tc\rd", "a\\nb\\tc\\rd"),
            (b"\x1b[31mred\x07\x7f", "\\x1b[31mred\\x07\\x7f"),
            (b"back\\slash", "back\\\\slash"),
            (b"\xff\xfe not text \xc3", "\\xff\\xfe not text \\xc3"),
            ("\u{9b}31m".as_bytes(), "\\u{9b}31m"),
            ("gpj.\u{202e}txt".as_bytes(), "gpj.\\u{202e}txt"),
        ] {
            assert_eq!(printed(name), text);
        }
        let every: Vec<u8> = (0..=255).collect();
        assert!(printed(&every).chars().all(|c| !c.is_control()));
    }

    #[test]
    fn lines_keep_their_ends_and_backslashes() {
        assert_eq!(tame("a\\b\n\tc\x1b[31m\u{202e}\r\n"), "a\\b\n\tc\\x1b[31m\\u{202e}\\r\n");
        assert_eq!(one_line("a\\b\nc\x07"), "a\\b\\nc\\x07");
        assert!(matches!(tame("plain\n"), Cow::Borrowed("plain\n")));
    }
}
