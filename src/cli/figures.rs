//! The savings of the cache, in words, and how a user of the mount reads them.
//!
//! Owns the lines that `run` and `status` print. Must never send a request to a mount without a time limit.

use std::path::Path;

use rustix::fs::getxattr;

use super::failure::{Failure, Outcome};
use super::output::{count, time};
use super::point::answer;
use crate::metrics::{ClientFigures, Figures};
use crate::namespace::{FIGURES_NAME, UNCOUNTED_NAME};

/// The kernel's limit for an attribute.
const BYTES_MAX: usize = 64 << 10;

/// Reads the figures through the mount at a path; every user of it may.
pub(super) fn through_mount(point: &Path) -> Outcome<Figures> {
    let asked = {
        let point = point.to_owned();
        answer(&point.clone(), move || {
            let mut value = vec![0; BYTES_MAX];
            let length = getxattr(&point, FIGURES_NAME, &mut value[..])?;
            Ok::<_, std::io::Error>(serde_json::from_slice(&value[..length])?)
        })?
    };
    asked.map_err(|error| {
        Failure::failed(format!("{} does not report its figures: {error}", point.display())).hint(
            "its daemon has an older version, mount.xattrs is off, or its root is not readable",
        )
    })
}

/// Excludes this process from the figures of the mount at a path: a copy does not use the cache. A
/// mount that does not support this counts the process.
pub(super) fn leave_out(point: &Path) -> Outcome<()> {
    let asked = point.to_owned();
    // An error has the same meaning as an older daemon.
    answer(point, move || getxattr(&asked, UNCOUNTED_NAME, &mut [0; 1][..]).is_ok()).map(drop)
}

/// Describes in four lines what the cache saved; `published` is appended to the line about publishes.
pub(super) fn lines(figures: &Figures, published: &str) -> [String; 4] {
    let all = ClientFigures::sum(figures);
    let line = |what: String, read: fn(&ClientFigures) -> u64, tell: fn(u64) -> String| {
        what + &by_client(figures, read, tell)
    };
    let entries = |number, what: &str| format!("{} {what}", count(number, "entry", "entries"));
    let number: fn(u64) -> String = |number| number.to_string();
    [
        line(entries(all.local, "served locally"), |one| one.local, number),
        line(entries(all.fetched, "fetched from other nodes"), |one| one.fetched, number),
        line(entries(all.compiled, "compiled here and published"), |one| one.compiled, number)
            + published,
        line(format!("{} saved (an estimate)", time(all.saved_ms)), |one| one.saved_ms, time),
    ]
}

/// Lists a figure for each client, if there are several.
fn by_client(
    figures: &Figures,
    read: fn(&ClientFigures) -> u64,
    tell: fn(u64) -> String,
) -> String {
    if figures.len() < 2 {
        return String::new();
    }
    let parts: Vec<String> = figures
        .iter()
        .map(|(name, one)| (name, read(one)))
        .filter(|(_, value)| *value > 0)
        .map(|(name, value)| format!("{} {}", name.escape_default(), tell(value)))
        .collect();
    if parts.is_empty() { String::new() } else { format!(": {}", parts.join(", ")) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn figures(local: u64, fetched: u64, compiled: u64, saved_ms: u64) -> ClientFigures {
        ClientFigures { local, fetched, compiled, saved_ms }
    }

    #[test]
    fn four_lines_say_what_the_cache_was_worth() {
        let mut all = Figures::new();
        let none = [
            "0 entries served locally",
            "0 entries fetched from other nodes",
            "0 entries compiled here and published; drained in 0.4 s",
            "0.0 s saved (an estimate)",
        ];
        assert_eq!(lines(&all, "; drained in 0.4 s"), none);
        all.insert("jax".to_owned(), figures(1, 0, 2, 41_000));
        let one = [
            "1 entry served locally",
            "0 entries fetched from other nodes",
            "2 entries compiled here and published",
            "41 s saved (an estimate)",
        ];
        assert_eq!(lines(&all, ""), one);
        all.insert("bad\u{1b}[1m".to_owned(), figures(3, 1, 0, 60_000));
        let two = [
            "4 entries served locally: bad\\u{1b}[1m 3, jax 1",
            "1 entry fetched from other nodes: bad\\u{1b}[1m 1",
            "2 entries compiled here and published: jax 2; kept",
            "1m41s saved (an estimate): bad\\u{1b}[1m 1m0s, jax 41 s",
        ];
        assert_eq!(lines(&all, "; kept"), two);
    }
}
