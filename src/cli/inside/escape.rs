//! Names for people and for scripts.
//!
//! A name on the mount is any bytes, and another user has chosen them. Owns the form in which it is printed. Must never print a
//! control character, or what changes the order or the presence of other characters on a terminal.

use std::fmt::Write as _;

use serde::Serialize;

use crate::cli::failure::{Failure, Outcome};

/// Writes a name or a path so that it can be shown on a terminal and taken back as an argument: `\n`, `\x1b`, `\xff` for a byte
/// that is not text, `\u{202e}`, and `\\` for a backslash.
pub(in crate::cli) fn printed(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(bytes.len());
    for chunk in bytes.utf8_chunks() {
        for c in chunk.valid().chars() {
            // Writing to a string does not fail.
            match c {
                '\\' => text.push_str("\\\\"),
                '\n' => text.push_str("\\n"),
                '\t' => text.push_str("\\t"),
                '\r' => text.push_str("\\r"),
                c if !is_harmful(c) => text.push(c),
                c if c.is_ascii() => drop(write!(text, "\\x{:02x}", u32::from(c))),
                c => drop(write!(text, "\\u{{{:x}}}", u32::from(c))),
            }
        }
        for byte in chunk.invalid() {
            write!(text, "\\x{byte:02x}").ok();
        }
    }
    text
}

/// Reports whether a terminal would not show a character but do something: control characters, and those that are not to be seen
/// or reorder others.
fn is_harmful(c: char) -> bool {
    c.is_control()
        || matches!(c,
            '\u{ad}' | '\u{61c}' | '\u{180e}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}'
            | '\u{2060}'..='\u{206f}' | '\u{feff}' | '\u{fff9}'..='\u{fffb}' | '\u{e0000}'..='\u{e007f}')
}

/// Writes a value as one line of JSON.
pub(in crate::cli) fn json_line(value: &impl Serialize) -> Outcome<String> {
    serde_json::to_string(value).map(|text| harmless(&text) + "\n").map_err(|error| failed(&error))
}

/// Writes a value as JSON over several lines.
pub(in crate::cli) fn json_pretty(value: &impl Serialize) -> Outcome<String> {
    let text = serde_json::to_string_pretty(value);
    text.map(|text| harmless(&text) + "\n").map_err(|error| failed(&error))
}

fn failed(error: &serde_json::Error) -> Failure {
    Failure::failed(format!("write it as JSON: {error}"))
}

/// Escapes what may stand in a string of JSON and is still harmful on a terminal. Outside of strings there is no such character.
fn harmless(json: &str) -> String {
    let mut text = String::with_capacity(json.len());
    for c in json.chars() {
        if c == '\n' || !is_harmful(c) {
            text.push(c);
            continue;
        }
        for unit in c.encode_utf16(&mut [0; 2]) {
            write!(text, "\\u{unit:04x}").ok();
        }
    }
    text
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
    fn json_holds_the_same_name_and_nothing_harmful() {
        let name = "a\u{1b}[31m\u{9b}31m\u{202e}\u{e0041}\u{7f}\nb";
        for text in [json_line(&[name]).expect("JSON"), json_pretty(&[name]).expect("JSON")] {
            assert!(text.chars().all(|c| c == '\n' || !is_harmful(c)), "{text:?}");
            let back: Vec<String> = serde_json::from_str(&text).expect("JSON");
            assert_eq!(back, [name]);
        }
    }
}
