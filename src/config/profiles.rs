//! The tables `[profiles.NAME]`: what the configuration adds to the known clients.
//!
//! Owns the position of each of their keys in the file. Must never decide what a key means: the profiles do.

use std::collections::BTreeMap;

use toml::de::{DeTable, DeValue};

use super::problem::{Origin, Problem};
use super::suggest::nearest;
use crate::namespace::{PROFILE_KEYS, Profiles, ProfilesDraft, Refused};

/// The section that holds them.
pub(super) const SECTION: &str = "profiles";
/// The longest part of a refused value that is shown, in characters.
const SHOWN_CHARS_MAX: usize = 80;

/// Reads the tables on top of the profiles that come with the program; `at` describes a position in the text.
pub(super) fn read(
    tables: DeTable<'_>,
    text: &str,
    at: impl Fn(usize) -> Origin,
) -> (Profiles, Vec<Problem>) {
    let (mut draft, mut problems) = (ProfilesDraft::shipped(), Vec::new());
    let mut places = BTreeMap::new();
    for (name, content) in tables {
        let place = name.span().start;
        let name = name.into_inner();
        let full = format!("{SECTION}.{name}");
        let DeValue::Table(content) = content.into_inner() else {
            let reason = format!("expected a table: [{full}]");
            problems.push(Problem::new(at(place), &full, None, reason));
            continue;
        };
        places.insert(name.to_string(), place);
        for (key, value) in content {
            let place = key.span().start;
            let full = format!("{full}.{}", key.get_ref());
            let written = shown(text.get(value.span()).unwrap_or_default());
            if !PROFILE_KEYS.contains(&&**key.get_ref()) {
                problems.push(Problem::new(at(place), &full, None, unknown(key.get_ref())));
            } else if let Err(Refused { at: inner, reason }) =
                draft.set(&name, key.get_ref(), value)
            {
                let origin = at(inner.unwrap_or(place));
                problems.push(Problem::new(origin, &full, Some(&written), reason));
            }
        }
    }
    if !problems.is_empty() {
        return (Profiles::default(), problems);
    }
    match draft.finish() {
        Ok(profiles) => (profiles, problems),
        Err((name, refused)) => {
            let origin = at(places.get(&name).copied().unwrap_or_default());
            let mut reason = refused.reason;
            let shipped = Profiles::default();
            let known = shipped.all().iter().map(|profile| profile.name.as_str());
            if let Some(meant) = nearest(&name, known).filter(|meant| *meant != name) {
                reason.extend(["; did you mean \"", meant, "\"?"]);
            }
            let problem = Problem::new(origin, &format!("{SECTION}.{name}"), None, reason);
            (shipped, vec![problem])
        }
    }
}

fn unknown(key: &str) -> String {
    match nearest(key, PROFILE_KEYS) {
        Some(meant) => format!("unknown key; did you mean \"{meant}\"?"),
        None => format!("unknown key; there are {}", PROFILE_KEYS.join(", ")),
    }
}

/// Returns a value as it was written, shortened to one line.
fn shown(value: &str) -> String {
    let line = value.split_whitespace().collect::<Vec<_>>().join(" ");
    if line.chars().count() <= SHOWN_CHARS_MAX {
        return line;
    }
    line.chars().take(SHOWN_CHARS_MAX).chain("...".chars()).collect()
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::super::source;
    use super::*;

    fn problems(text: &str) -> Vec<String> {
        let parsed = source::parse(Path::new("c.toml"), text);
        parsed.problems.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn tables_are_added_to_what_is_known() {
        let text = "[profiles.ccache]\nalso = [\"teams/*/ccache\"]\n\
                    [profiles.go]\nenabled = false\n\
                    [profiles.mine]\ndir = \"mine\"\nvariables = [\"MINE_DIR\"]\n[log]\nlevel = \"info\"\n";
        let parsed = source::parse(Path::new("c.toml"), text);
        assert_eq!(parsed.problems, []);
        assert_eq!(parsed.raws.len(), 1);
        let known = parsed.profiles;
        assert!(known.get("go").is_none() && known.get("jax").is_some());
        assert_eq!(known.get("mine").expect("a known profile").dir, "mine");
        assert_eq!(known.get("ccache").expect("a known profile").also[0].text(), "teams/*/ccache");
        assert_ne!(known, Profiles::default());
        let none = source::parse(Path::new("c.toml"), "[log]\nlevel = \"info\"\n");
        assert_eq!(none.profiles, Profiles::default());
    }

    #[test]
    fn what_is_wrong_is_said_with_its_place() {
        for (text, wanted) in [
            (
                "[profiles.ccache]\n\nneeds_dir = \"yes\"\n",
                &["c.toml:3: profiles.ccache.needs_dir = ", "yes", "expected a boolean"][..],
            ),
            (
                "[profiles.ccache]\nrules = [\n  { names = [\"a\"], kind = \"temporay\" },\n]\n",
                &["c.toml:3: profiles.ccache.rules", "unknown variant `temporay`", "`temporary`"],
            ),
            (
                "[profiles.ccache]\nrulse = []\n",
                &["c.toml:2: profiles.ccache.rulse: unknown key; did you mean \"rules\"?"],
            ),
            (
                "[profiles.ccahce]\nenabled = false\n",
                &["c.toml:1: profiles.ccahce: ", "`dir` or `also`", "did you mean \"ccache\"?"],
            ),
            ("[profiles]\nccache = 1\n", &["c.toml:2: profiles.ccache: expected a table"]),
            (
                "[profiles.mine]\nvariables = [\"MINE\"]\n",
                &["c.toml:1: profiles.mine: ", "set `dir`"],
            ),
        ] {
            let said = problems(text).join("\n");
            for word in wanted {
                assert!(said.contains(word), "{text}: `{word}` is not in: {said}");
            }
        }
    }
}
