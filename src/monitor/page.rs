//! The page with plots, one document without external resources.
//!
//! Owns its assembly, and its security policy. Must never contain data of the mount: the open page
//! fetches the figures, and inserts them as text.

use std::sync::LazyLock;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use sha2::{Digest as _, Sha256};

const HTML: &str = include_str!("page/index.html");
const STYLE: &str = include_str!("page/style.css");
const SCRIPT: &str = include_str!("page/script.js");

static PAGE: LazyLock<Page> = LazyLock::new(Page::of_parts);

/// The page, and its headers.
#[derive(Debug)]
pub(super) struct Page {
    pub(super) html: String,
    /// The value of `Content-Security-Policy`: allows no script and no style except these two.
    pub(super) policy: String,
}

/// Returns the page.
pub(super) fn page() -> &'static Page {
    &PAGE
}

impl Page {
    fn of_parts() -> Self {
        let html = HTML.replacen("STYLE", STYLE, 1).replacen("SCRIPT", SCRIPT, 1);
        let digest = |part: &str| format!("'sha256-{}'", STANDARD.encode(Sha256::digest(part)));
        let policy = format!(
            "default-src 'none'; style-src {}; script-src {}; connect-src 'self'; base-uri 'none'; form-action 'none'; \
             frame-ancestors 'none'",
            digest(STYLE),
            digest(SCRIPT)
        );
        Self { html, policy }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn the_page_needs_nothing_from_elsewhere() {
        let Page { html, policy } = page();
        assert_eq!((html.matches("<style>").count(), html.matches("<script>").count()), (1, 1));
        assert!(html.contains(STYLE) && html.contains(SCRIPT));
        // The namespace of SVG is only a name; nothing is fetched from it.
        let text = html.replace("http://www.w3.org/2000/svg", "");
        for foreign in ["http:", "https:", "//cdn", "src=", "@import", "url(", "<link", "<iframe"] {
            assert!(!text.contains(foreign), "{foreign}");
        }
        // The policy forbids these anyway.
        for inline in [" style=", "onclick", "onload", "javascript:", "innerHTML", "eval("] {
            assert!(!text.contains(inline), "{inline}");
        }
        assert!(policy.starts_with("default-src 'none'; ") && !policy.contains("unsafe"));
        assert_eq!(policy.matches("'sha256-").count(), 2);
    }

    /// The elements that the script looks up are in the document, and the words that it reads are
    /// those of the status.
    #[test]
    fn the_script_finds_its_places() {
        let named = |text: &str, before: &str| -> BTreeSet<String> {
            let all = text.match_indices(before).map(|(at, _)| &text[at + before.len()..]);
            all.filter_map(|rest| rest.split(['\'', '"']).next().map(ToOwned::to_owned)).collect()
        };
        let there = named(HTML, "id=\"");
        for before in ["byId('", "say('", "show('", "plot('"] {
            for id in named(SCRIPT, before) {
                assert!(there.contains(&id), "{before}{id}");
            }
        }
        let status = serde_json::to_value(crate::control::Status::default()).unwrap();
        let words = SCRIPT.match_indices("status.").map(|(at, _)| &SCRIPT[at + "status.".len()..]);
        let is_word = |byte: &char| byte.is_ascii_lowercase() || *byte == '_';
        let words: BTreeSet<String> =
            words.map(|rest| rest.chars().take_while(is_word).collect()).collect();
        for word in words.iter().filter(|word| *word != "json") {
            assert!(status.get(word).is_some(), "status.{word}");
        }
        assert!(words.len() > 6);
    }
}
