//! `hearthfs explain`.
//!
//! Owns how answers are shown. Must never look up the name in question: that would be a miss of its own.

mod ask;
mod words;

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

use clap::Args;
use serde::Serialize;

use super::escape::printed;
use super::failure::Outcome;
use super::inside::usual_dir;
use super::json::json_pretty;
use super::output::{count, data, note, time};
use crate::config::Surroundings;
use crate::namespace::{Explained, MISSES_TOLD_MAX, Missed, Misses, Reason, path_of_hex};
use ask::{MountPath, Whose};

/// The version of what `--json` prints.
const FORM: u32 = 1;

/// Options of `hearthfs explain`.
#[derive(Args, Clone, Debug)]
pub(super) struct Explain {
    /// A path on a mount, which need not exist; with --last or --client the mount point, or a path on the mount
    #[arg(required_unless_present_any = ["last", "client"])]
    path: Option<PathBuf>,

    /// List your own last misses
    #[arg(long)]
    last: bool,

    /// List the last misses of one client, such as jax
    #[arg(long, value_name = "NAME")]
    client: Option<String>,

    /// With --last: the misses of all users; only for root and the user of the mount
    #[arg(long, requires = "last")]
    all_users: bool,

    /// The number of misses to list
    #[arg(short, value_name = "COUNT", default_value_t = 20, value_parser = clap::value_parser!(u16).range(1..=MISSES_TOLD_MAX as i64))]
    number: u16,

    /// Print JSON: one object
    #[arg(long)]
    json: bool,
}

/// One answer, as `--json` prints it.
#[derive(Serialize)]
struct ExplainJson<'a> {
    version: u32,
    #[serde(flatten)]
    path: PathJson,
    reason: Reason,
    why: String,
    remedy: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    of: Option<PathJson>,
    #[serde(skip_serializing_if = "Option::is_none")]
    node: Option<&'a str>,
    own: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    changed_ms: Option<u64>,
    now_ms: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    is_remote: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    client: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    kind: Option<&'a str>,
    similar: Vec<PathJson>,
    #[serde(skip_serializing_if = "Option::is_none")]
    last: Option<MissJson>,
}

/// One miss of a list.
#[derive(Serialize)]
struct MissJson {
    #[serde(flatten)]
    path: PathJson,
    ago_ms: u64,
    times: u64,
    uid: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    client: Option<String>,
    reason: Reason,
    why: String,
    remedy: String,
}

/// A list of misses, as `--json` prints it.
#[derive(Serialize)]
struct MissListJson {
    version: u32,
    misses: Vec<MissJson>,
    more: u64,
}

/// A path in JSON.
#[derive(Serialize)]
struct PathJson {
    path: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    path_hex: Option<String>,
}

impl PathJson {
    fn of(path: &Path) -> Self {
        let bytes = path.as_os_str().as_bytes();
        let hex = || {
            bytes.iter().fold(String::new(), |mut text, byte| {
                // Writing to a string cannot fail.
                write!(text, "{byte:02x}").ok();
                text
            })
        };
        Self {
            path: path.to_string_lossy().into_owned(),
            path_hex: path.to_str().is_none().then(hex),
        }
    }
}

/// Runs the command.
pub(super) fn run(command: &Explain) -> Outcome<()> {
    let around = Surroundings::of_process();
    if !command.last && command.client.is_none() {
        let typed = command.path.as_deref().unwrap_or(Path::new("."));
        let place = MountPath::find(&around, typed)?;
        let explained = ask::why(&around, &place)?;
        let said = said(&place.point, &place.path(), &explained);
        return data(&if command.json { json_pretty(&said)? } else { text(&said, &explained) });
    }
    let dir = match &command.path {
        Some(path) => path.clone(),
        None => usual_dir(&around)?,
    };
    let place = MountPath::find(&around, &dir)?;
    let whose = Whose {
        uid: (command.last && !command.all_users).then_some(around.uid),
        client: command.client.clone(),
        all: command.all_users,
    };
    let Misses { mut misses, mut more } = ask::misses(&around, &place, &whose)?;
    let most = usize::from(command.number);
    more += misses.len().saturating_sub(most) as u64;
    misses.truncate(most);
    let misses: Vec<MissJson> = misses.iter().map(|miss| line(&place.point, miss)).collect();
    if command.json {
        return data(&json_pretty(&MissListJson { version: FORM, misses, more })?);
    }
    if misses.is_empty() {
        note("no miss is remembered");
    }
    if more > 0 {
        note(&format!("{more} more are remembered; -n lists up to {MISSES_TOLD_MAX}"));
    }
    data(&table(&misses))
}

/// Returns the path on this machine for a path from a daemon.
fn place_of(point: &Path, hex: &str) -> PathBuf {
    let path = path_of_hex(hex).unwrap_or_default();
    path.components()
        .fold(point.to_owned(), |dir, name| dir.join(std::ffi::OsStr::from_bytes(name)))
}

fn line(point: &Path, miss: &Missed) -> MissJson {
    let (why, remedy) = words::then(miss.reason);
    MissJson {
        path: PathJson::of(&place_of(point, &miss.path_hex)),
        ago_ms: miss.ago_ms,
        times: miss.times,
        uid: miss.uid,
        client: miss.client.clone(),
        reason: miss.reason,
        why: why.to_owned(),
        remedy: remedy.to_owned(),
    }
}

fn said<'a>(point: &Path, path: &Path, explained: &'a Explained) -> ExplainJson<'a> {
    let of = explained.of_hex.as_deref().map(|hex| place_of(point, hex));
    let similar: Vec<PathBuf> =
        explained.similar_hex.iter().map(|hex| place_of(point, hex)).collect();
    let words = words::now(explained, path, of.as_deref(), similar.len());
    ExplainJson {
        version: FORM,
        path: PathJson::of(path),
        reason: explained.reason,
        why: words.why,
        remedy: words.remedy,
        of: of.as_deref().map(PathJson::of),
        node: explained.node.as_deref(),
        own: explained.own,
        changed_ms: explained.changed_ms,
        now_ms: explained.now_ms,
        is_remote: explained.is_remote,
        client: explained.client.as_deref(),
        kind: explained.kind.as_deref(),
        similar: similar.iter().map(|path| PathJson::of(path)).collect(),
        last: explained.last.as_ref().map(|miss| line(point, miss)),
    }
}

/// Writes an answer for people. Paths and words come from a daemon, which may be another user's.
fn text(said: &ExplainJson<'_>, explained: &Explained) -> String {
    let path = |shown: &PathJson| match &shown.path_hex {
        Some(hex) => printed(&bytes_of(hex)),
        None => printed(shown.path.as_bytes()),
    };
    let mut text = format!("{}\n", path(&said.path));
    // Writing to a string cannot fail.
    let mut row = |name: &str, value: &str| {
        writeln!(text, "  {name:<8} {value}").ok();
    };
    row("why", &said.why);
    if let Some(client) = said.client {
        let kind = said.kind.map(|kind| format!(": {kind}")).unwrap_or_default();
        row("client", &printed(format!("{client}{kind}").as_bytes()));
    }
    if let Some(last) = &explained.last {
        let (then, _) = words::then(last.reason);
        let times =
            if last.times > 1 { format!(", {} times in a row", last.times) } else { String::new() };
        row(
            "asked",
            &format!("{} ago by user {}{times}; then {then}", time(last.ago_ms), last.uid),
        );
    }
    for similar in &said.similar {
        row("similar", &path(similar));
    }
    row("remedy", &said.remedy);
    text
}

fn bytes_of(hex: &str) -> Vec<u8> {
    let pairs = hex.as_bytes().as_chunks::<2>().0;
    let byte = |pair: &[u8; 2]| u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok();
    pairs.iter().filter_map(byte).collect()
}

/// Writes a list for people, with a remedy for each reason in it.
fn table(misses: &[MissJson]) -> String {
    if misses.is_empty() {
        return String::new();
    }
    let mut text = format!(
        "{:>8}  {:>6}  {:>8}  {:<16} {:<12} PATH\n",
        "AGO", "TIMES", "USER", "CLIENT", "REASON"
    );
    let mut remedies = BTreeMap::new();
    for miss in misses {
        let path = match &miss.path.path_hex {
            Some(hex) => printed(&bytes_of(hex)),
            None => printed(miss.path.path.as_bytes()),
        };
        let client = printed(miss.client.as_deref().unwrap_or("-").as_bytes());
        let word = words::word(miss.reason);
        writeln!(
            text,
            "{:>8}  {:>6}  {:>8}  {client:<16} {word:<12} {path}",
            time(miss.ago_ms),
            miss.times,
            miss.uid
        )
        .ok();
        remedies.insert(word, (miss.why.as_str(), miss.remedy.as_str()));
    }
    text.push('\n');
    for (word, (why, remedy)) in remedies {
        writeln!(text, "{word}: {why}\n  remedy: {remedy}").ok();
    }
    let all = count(misses.len() as u64, "miss", "misses");
    writeln!(text, "{all}; `hearthfs explain PATH` shows what is known about one now").ok();
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::name::TreePath;
    use crate::namespace::path_to_hex;

    fn hex(names: &[&[u8]]) -> String {
        let path = names.iter().try_fold(TreePath::root(), |dir, name| dir.join(name));
        path_to_hex(&path.expect("names"))
    }

    #[test]
    fn an_answer_is_printed_line_by_line_and_escaped() {
        let path = Path::new("/m").join(std::ffi::OsStr::from_bytes(b"jax/a\x1b[31m\xff"));
        let explained = Explained {
            now_ms: 100_000,
            reason: Reason::Removed,
            node: Some("9c41d2a07be83f15".into()),
            changed_ms: Some(40_000),
            client: Some("jax\u{1b}[31m".into()),
            similar_hex: vec![hex(&[b"jax", b"b\n"])],
            last: Some(Missed { uid: 7, times: 3, ago_ms: 500, ..Missed::default() }),
            ..Explained::default()
        };
        let said = said(Path::new("/m"), &path, &explained);
        let shown = text(&said, &explained);
        for part in [
            "/m/jax/a\\x1b[31m\\xff\n",
            "  why      removed",
            "1m0s ago by node 9c41d2a07be83f15",
            "  client   jax\\x1b[31m\n",
            "by user 7, 3 times in a row",
            "  similar  /m/jax/b\\n\n",
            "  remedy   ",
        ] {
            assert!(shown.contains(part), "`{part}` is not in:\n{shown}");
        }
        assert!(!shown.contains('\u{1b}'));
        let json = json_pretty(&said).expect("JSON");
        let json: serde_json::Value = serde_json::from_str(&json).expect("JSON");
        assert_eq!((&json["version"], &json["reason"]), (&1.into(), &"removed".into()));
        assert!(json["path_hex"].is_string() && json["remedy"].is_string());
    }

    #[test]
    fn a_list_has_a_remedy_for_each_reason() {
        let of = |reason, name: &[u8]| {
            let miss = Missed { path_hex: hex(&[name]), reason, ..Missed::default() };
            line(Path::new("/m"), &miss)
        };
        let shown = table(&[
            of(Reason::Never, b"a"),
            of(Reason::Expired, b"b\x07"),
            of(Reason::Never, b"c"),
        ]);
        assert_eq!(shown.matches("remedy: ").count(), 2, "{shown}");
        assert!(shown.contains("/m/b\\x07") && shown.contains("3 misses"), "{shown}");
        assert_eq!(table(&[]), "");
    }
}
