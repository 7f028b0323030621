//! Files of sections with `key = value` lines, as the tools of AWS and Azure write them.
//!
//! Owns their few rules. Must never fail at what the tools would read.

use std::collections::BTreeMap;
use std::path::Path;

use super::read_text;
use crate::error::Result;

/// The settings of one section.
pub(in crate::remote) type Section = BTreeMap<String, String>;

/// Reads a file; a missing one has no sections.
pub(super) fn read(path: &Path) -> Result<BTreeMap<String, Section>> {
    Ok(read_text(path)?.map(|text| parse(&text)).unwrap_or_default())
}

/// Reads sections of `key = value` lines. Indented lines belong to the setting before them, and we
/// need none of them. Keys are compared in lower case, as the tools do.
fn parse(text: &str) -> BTreeMap<String, Section> {
    let mut sections: BTreeMap<String, Section> = BTreeMap::new();
    let mut section: Option<String> = None;
    for line in text.lines() {
        let line = line.trim_end();
        if line.is_empty() || line.starts_with(['#', ';', ' ', '\t']) {
            continue;
        }
        if let Some(rest) = line.strip_prefix('[') {
            section = rest.split_once(']').map(|(name, _)| section_name(name));
            if let Some(name) = &section {
                sections.entry(name.clone()).or_default();
            }
            continue;
        }
        let (Some(name), Some((key, value))) = (&section, line.split_once('=')) else { continue };
        let value = without_remark(value.trim());
        sections
            .entry(name.clone())
            .or_default()
            .insert(key.trim().to_ascii_lowercase(), value.to_owned());
    }
    sections
}

/// Normalizes `profile   "a b"` and `profile a b` to one spelling.
fn section_name(text: &str) -> String {
    let text = text.trim();
    let plain = |name: &str| name.trim().trim_matches(['"', '\'']).to_owned();
    match text.split_once(char::is_whitespace) {
        Some(("profile", name)) => format!("profile {}", plain(name)),
        _ => plain(text),
    }
}

/// Removes a remark at the end of a line. It must follow white space, because a secret may hold `#`.
fn without_remark(value: &str) -> &str {
    let cut = [" #", " ;", "\t#", "\t;"].iter().filter_map(|mark| value.find(mark)).min();
    value[..cut.unwrap_or(value.len())].trim_end()
}

#[cfg(test)]
mod tests {
    use super::*;

    proptest::proptest! {
        #[test]
        fn any_text_can_be_read(text in "([\\[\\]=#; a-z\n\t\"]|profile ){0,60}") {
            for (name, section) in parse(&text) {
                proptest::prop_assert!(!name.contains(['\n', ']']));
                proptest::prop_assert!(section.keys().all(|key| !key.contains('=')));
            }
        }
    }
}
