//! JSON for scripts that is also harmless on a terminal.

use std::fmt::Write as _;

use serde::Serialize;

use super::escape::is_harmful;
use super::failure::{Failure, Outcome};

/// Writes a value as one line of JSON.
pub(super) fn json_line(value: &impl Serialize) -> Outcome<String> {
    serde_json::to_string(value).map(|text| harmless(&text) + "\n").map_err(|error| failed(&error))
}

/// Writes a value as JSON over several lines.
pub(super) fn json_pretty(value: &impl Serialize) -> Outcome<String> {
    let text = serde_json::to_string_pretty(value);
    text.map(|text| harmless(&text) + "\n").map_err(|error| failed(&error))
}

fn failed(error: &serde_json::Error) -> Failure {
    Failure::failed(format!("write JSON: {error}"))
}

/// Escapes characters that are valid in a JSON string but harmful on a terminal. They cannot occur
/// outside strings.
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
    fn json_holds_the_same_name_and_nothing_harmful() {
        let name = "a\u{1b}[31m\u{9b}31m\u{202e}\u{e0041}\u{7f}\nb";
        for text in [json_line(&[name]).expect("JSON"), json_pretty(&[name]).expect("JSON")] {
            assert!(text.chars().all(|c| c == '\n' || !is_harmful(c)), "{text:?}");
            let back: Vec<String> = serde_json::from_str(&text).expect("JSON");
            assert_eq!(back, [name]);
        }
    }
}
